// SPDX-License-Identifier: Apache-2.0
// What a gateway counts, in the text format of Prometheus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "actors/device/messages.hpp"
#include "base/clock.hpp"
#include "engines/executor/executor_options.hpp"
#include "engines/rollout_engine.hpp"

namespace tidemill::actors {

/// The counters of /metrics. Those that vLLM has too have its names, so that vLLM's dashboards
/// work; other names begin with "tidemill:". Tokens of a response count when it ends.
///
/// Source: vLLM, docs/design/metrics.md and vllm/v1/metrics/loggers.py.
/// Threads: one call at a time. The actors that share an object run on one thread.
class GatewayMetrics {
public:
  /// `model` is the value of the label model_name. Tokens that come later than `goal` are counted.
  GatewayMetrics(const std::string& model, const engines::LatencyGoal& goal);
  GatewayMetrics(const GatewayMetrics&) = delete;
  GatewayMetrics& operator=(const GatewayMetrics&) = delete;
  ~GatewayMetrics();

  /// Counts the first token of a response, `since_arrival` after its request.
  void on_first_token(Duration since_arrival);
  /// Counts a later token, `gap` after the one before it.
  void on_next_token(Duration gap);
  /// Counts a response that has ended.
  void on_response(const engines::RolloutResult& result, std::size_t prompt_tokens,
                   Duration since_arrival, const std::string& tenant);
  /// Counts a request of `tenant` that gets 429.
  void on_refused(const std::string& tenant);
  /// Counts a request that was refused or that failed. What the HTTP server refuses by itself, such
  /// as a message that is not HTTP, and failures that a future of Tinker's API reports are not
  /// counted. May be called from any thread at any time.
  void on_error(std::uint32_t status);

  /// Returns all metrics but those of tenants. The device's are included.
  [[nodiscard]] std::string text(const DeviceUsage& load);
  /// Returns the metrics of tenants. `pending` has the number of choices of each tenant that are
  /// waiting or being generated.
  [[nodiscard]] std::string tenants_text(const std::map<std::string, std::size_t>& pending);

private:
  struct Families;
  engines::LatencyGoal goal_;
  std::unique_ptr<Families> families_;
};

}  // namespace tidemill::actors
