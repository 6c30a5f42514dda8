// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/gateway_metrics.hpp"

#include <map>
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace tidemill::actors {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using Buckets = Histogram::BucketBoundaries;
using Labels = std::map<std::string, std::string>;

double seconds(Duration time) {
  return std::chrono::duration<double>(time).count();
}

// The bounds that vLLM has.
const Buckets kFirstToken{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25, 0.5,
                          0.75,  1.0,   2.5,  5.0,  7.5,  10.0, 20.0, 40.0, 80.0};
const Buckets kTokenGap{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4,
                        0.5,  0.75,  1.0,  2.5,   5.0, 7.5,  10.0, 20.0, 40.0};
const Buckets kLatency{0.3,  0.5,  0.8,  1.0,  1.5,  2.0,  2.5,  5.0,
                       10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 120.0};
const Buckets kTokens{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000};

}  // namespace

struct GatewayMetrics::Families {
  explicit Families(const std::string& model) : labels{{"engine", "0"}, {"model_name", model}} {}

  Gauge& gauge(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(labels);
  }
  Counter& counter(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add(labels);
  }
  Histogram& histogram(const char* name, const char* help, const Buckets& bounds) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels,
                                                                                     bounds);
  }
  // Sets a counter that is counted elsewhere.
  static void set(Counter& counter, double value) { counter.Increment(value - counter.Value()); }
  static void set(Counter& counter, std::uint64_t value) {
    set(counter, static_cast<double>(value));
  }
  // Returns the labels of a tenant.
  [[nodiscard]] Labels of(const std::string& tenant) const {
    Labels all = labels;
    all["tenant"] = tenant;
    return all;
  }
  // Returns the gauge of a quantile of the errors of predicted times.
  Gauge& error(const char* work, const char* quantile) {
    Labels all = labels;
    all["work"] = work;
    all["quantile"] = quantile;
    return errors_of_times.Add(all);
  }

  Labels labels;
  prometheus::Registry registry;
  Gauge& running = gauge("vllm:num_requests_running", "Sequences that are generated");
  Gauge& waiting = gauge("vllm:num_requests_waiting", "Sequences that wait to be generated");
  Gauge& kv_use = gauge("vllm:kv_cache_usage_perc", "Share of the cache in use; 1 is all of it");
  Counter& preemptions = counter("vllm:num_preemptions_total", "Sequences that lost their pages");
  Counter& cache_queries =
      counter("vllm:prefix_cache_queries_total", "Tokens of prompts looked up in the cache");
  Counter& cache_hits =
      counter("vllm:prefix_cache_hits_total", "Tokens of prompts found in the cache");
  Counter& prompt_tokens = counter("vllm:prompt_tokens_total", "Tokens of prompts");
  Counter& new_tokens = counter("vllm:generation_tokens_total", "Tokens generated");
  prometheus::Family<Counter>& responses = prometheus::BuildCounter()
                                               .Name("vllm:request_success_total")
                                               .Help("Responses that have ended, by reason")
                                               .Register(registry);
  prometheus::Family<Counter>& errors = prometheus::BuildCounter()
                                            .Name("tidemill:errors_total")
                                            .Help("Responses with an error status")
                                            .Register(registry);
  Counter& train_tokens = counter("tidemill:train_tokens_total", "Tokens trained on");
  Gauge& jobs = gauge("tidemill:jobs_open", "Training jobs on the device");
  Counter& train_seconds =
      counter("tidemill:train_seconds_total", "Time that the device has given to training");
  Counter& generation_seconds =
      counter("tidemill:generation_seconds_total", "Time that the device has given to generation");
  Gauge& first_token_goal =
      gauge("tidemill:time_to_first_token_goal_seconds", "The goal of serve.slo.ttft_ms");
  Gauge& token_gap_goal =
      gauge("tidemill:inter_token_latency_goal_seconds", "The goal of serve.slo.tpot_ms");
  Counter& late_first_tokens =
      counter("tidemill:late_first_tokens_total", "First tokens that came later than the goal");
  Counter& late_next_tokens =
      counter("tidemill:late_next_tokens_total", "Further tokens that came later than the goal");
  prometheus::Family<Gauge>& errors_of_times =
      prometheus::BuildGauge()
          .Name("tidemill:time_prediction_error")
          .Help("Relative error of the last predicted times, by kind of work and quantile")
          .Register(registry);
  // Of tenants, which other tenants must not see.
  prometheus::Registry tenants;
  prometheus::Family<Counter>& tenant_prompt_tokens =
      prometheus::BuildCounter()
          .Name("tidemill:tenant_prompt_tokens_total")
          .Help("Tokens of prompts, by tenant")
          .Register(tenants);
  prometheus::Family<Counter>& tenant_new_tokens =
      prometheus::BuildCounter()
          .Name("tidemill:tenant_generation_tokens_total")
          .Help("Tokens generated, by tenant")
          .Register(tenants);
  prometheus::Family<Counter>& tenant_refused = prometheus::BuildCounter()
                                                    .Name("tidemill:tenant_refused_total")
                                                    .Help("Requests with status 429, by tenant")
                                                    .Register(tenants);
  prometheus::Family<Gauge>& tenant_pending =
      prometheus::BuildGauge()
          .Name("tidemill:tenant_responses_pending")
          .Help("Responses that wait or are generated, by tenant")
          .Register(tenants);
  // The gauges that have been set. Those of tenants without responses become 0.
  std::map<std::string, Gauge*> pending;
  Histogram& first_token =
      histogram("vllm:time_to_first_token_seconds",
                "From the arrival of a request to its first token", kFirstToken);
  Histogram& token_gap =
      histogram("vllm:inter_token_latency_seconds", "Between two tokens of a response", kTokenGap);
  Histogram& latency = histogram("vllm:e2e_request_latency_seconds",
                                 "From the arrival of a request to its last token", kLatency);
  Histogram& prompt_length = histogram("vllm:request_prompt_tokens", "Tokens of a prompt", kTokens);
  Histogram& new_length =
      histogram("vllm:request_generation_tokens", "Tokens of a response", kTokens);
};

GatewayMetrics::GatewayMetrics(const std::string& model, const engines::LatencyGoal& goal)
    : goal_(goal), families_(std::make_unique<Families>(model)) {
  families_->first_token_goal.Set(seconds(goal.first_token));
  families_->token_gap_goal.Set(seconds(goal.per_token));
}
GatewayMetrics::~GatewayMetrics() = default;

void GatewayMetrics::on_first_token(Duration since_arrival) {
  families_->first_token.Observe(seconds(since_arrival));
  families_->late_first_tokens.Increment(since_arrival > goal_.first_token ? 1.0 : 0.0);
}

void GatewayMetrics::on_next_token(Duration gap) {
  families_->token_gap.Observe(seconds(gap));
  families_->late_next_tokens.Increment(gap > goal_.per_token ? 1.0 : 0.0);
}

void GatewayMetrics::on_response(const engines::RolloutResult& result, std::size_t prompt_tokens,
                                 Duration since_arrival, const std::string& tenant) {
  Families& all = *families_;
  const auto prompt = static_cast<double>(prompt_tokens);
  const auto created = static_cast<double>(result.response_ids.size());
  Labels labels = all.labels;
  labels["finished_reason"] = finish_reason_name(result.finish_reason);
  all.responses.Add(labels).Increment();
  all.prompt_tokens.Increment(prompt);
  all.new_tokens.Increment(created);
  all.cache_queries.Increment(prompt);
  all.cache_hits.Increment(static_cast<double>(result.cached_tokens));
  all.prompt_length.Observe(prompt);
  all.new_length.Observe(created);
  all.latency.Observe(seconds(since_arrival));
  all.tenant_prompt_tokens.Add(all.of(tenant)).Increment(prompt);
  all.tenant_new_tokens.Add(all.of(tenant)).Increment(created);
}

void GatewayMetrics::on_refused(const std::string& tenant) {
  families_->tenant_refused.Add(families_->of(tenant)).Increment();
}

void GatewayMetrics::on_error(std::uint32_t status) {
  Labels labels = families_->labels;
  labels["status"] = std::to_string(status);
  families_->errors.Add(labels).Increment();
}

std::string GatewayMetrics::text(const DeviceUsage& load) {
  Families& all = *families_;
  all.running.Set(static_cast<double>(load.running));
  all.waiting.Set(static_cast<double>(load.waiting));
  all.kv_use.Set(load.kv_use);
  Families::set(all.preemptions, load.preemptions);
  Families::set(all.train_tokens, load.train_tokens);
  all.jobs.Set(static_cast<double>(load.jobs));
  Families::set(all.train_seconds, load.train_seconds);
  Families::set(all.generation_seconds, load.rollout_seconds);
  all.error("generation", "0.5").Set(load.iteration_error_p50);
  all.error("generation", "0.99").Set(load.iteration_error_p99);
  all.error("training", "0.5").Set(load.unit_error_p50);
  all.error("training", "0.99").Set(load.unit_error_p99);
  return prometheus::TextSerializer().Serialize(all.registry.Collect());
}

std::string GatewayMetrics::tenants_text(const std::map<std::string, std::size_t>& pending) {
  Families& all = *families_;
  for (const auto& [tenant, count] : pending) {
    all.pending.emplace(tenant, &all.tenant_pending.Add(all.of(tenant)));
  }
  for (const auto& [tenant, gauge] : all.pending) {
    const auto found = pending.find(tenant);
    gauge->Set(found != pending.end() ? static_cast<double>(found->second) : 0.0);
  }
  return prometheus::TextSerializer().Serialize(all.tenants.Collect());
}

}  // namespace tidemill::actors
