// SPDX-License-Identifier: Apache-2.0
// `tidemill-bench serve`: puts load on a running server and measures its responses.
#include <CLI/App.hpp>
#include <algorithm>
#include <iomanip>
#include <ostream>
#include <utility>

#include "base/json/json.hpp"
#include "bench/commands.hpp"
#include "bench/serve_traffic.hpp"
#include "launcher/option_checks.hpp"

namespace tidemill::bench {
namespace {

class ServeCommand final : public launcher::Command {
public:
  [[nodiscard]] std::string name() const override { return "serve"; }
  [[nodiscard]] std::string summary() const override {
    return "Measures a running server of OpenAI's completions API";
  }
  [[nodiscard]] std::string example() const override {
    return "tidemill-bench serve --port 8000 --name my-model --streams 16";
  }

  void declare(CLI::App& app) override {
    app.add_option("--host", load_.host, "IPv4 address of the server")->capture_default_str();
    launcher::accept_integers(
        *app.add_option("--port", load_.port, "TCP port of the server")->capture_default_str(),
        {1, 65535});
    app.add_option("--name", load_.model, "Name of the model in requests")->required();
    const auto add = [&app](const char* name, auto& value, const char* help, std::uint64_t max) {
      launcher::accept_integers(*app.add_option(name, value, help)->capture_default_str(),
                                {1, max});
    };
    add("--streams", load_.streams, "Streams, each with one request at a time: the concurrency",
        1024);
    add("--requests", load_.requests, "Requests of each stream", 1'000'000);
    add("--prompt-tokens", load_.prompt_tokens, "Length of a prompt", 1'000'000);
    add("--new-tokens", load_.new_tokens, "Length of a response", 1'000'000);
    add("--vocabulary", load_.vocabulary, "Prompts have ids from 10 to below this", 1'000'000);
    add("--seed", load_.seed, "Seed of the prompts; a server that has seen one caches it",
        1'000'000);
    const auto number = [&app](const char* name, auto& value, const char* help,
                               const launcher::NumberRange& range) {
      launcher::accept_numbers(*app.add_option(name, value, help)->capture_default_str(), range);
    };
    number("--rate", arrivals_.rate,
           "Requests per second that arrive whatever becomes of earlier ones; 0: use streams",
           {0.0F, false, 1e4F});
    number("--cv", arrivals_.cv, "Coefficient of variation of the times between arrivals",
           {0.0F, true, 100.0F});
    number("--seconds", arrivals_.seconds, "Requests arrive until then", {0.0F, true, 1e5F});
    number("--length-sigma", arrivals_.length_sigma,
           "Standard deviation of the logarithm of both lengths, which are then medians",
           {0.0F, false, 3.0F});
    for (const char* name : {"--cv", "--seconds", "--length-sigma"}) {
      app.get_option(name)->needs("--rate");
    }
    for (const char* name : {"--streams", "--requests"}) {
      app.get_option(name)->excludes("--rate");
    }
    number("--ttft", ttft_goal_s_, "Goal for the first token, in seconds", {0.0F, true, 1e4F});
    number("--tpot", tpot_goal_s_, "Goal for each further token, in seconds", {0.0F, true, 1e4F});
    app.add_option("--extra-body", load_.extra_body,
                   R"(JSON members that each request gets too, such as "top_k":20)");
    app.add_flag("--health", health_, "Also measure how long /health takes");
  }

  [[nodiscard]] Status run(launcher::Session& session) override {
    TIDEMILL_ASSIGN_OR_RETURN(const TrafficTimes times, measure());
    Json::Object line = row_of(times);
    if (health_) {
      TIDEMILL_ASSIGN_OR_RETURN(const std::vector<double> health,
                                time_requests(load_, "/health", kHealthRequests));
      line.push_back({"health_p50_s", quantile_of(health, 0.5)});
      line.push_back({"health_p99_s", quantile_of(health, 0.99)});
    }
    print(line, session);
    return {};
  }

private:
  static constexpr int kHealthRequests = 2000;

  [[nodiscard]] bool arrives() const noexcept { return arrivals_.rate > 0.0; }

  [[nodiscard]] Result<TrafficTimes> measure() {
    if (!arrives()) {
      return run_traffic(load_);
    }
    arrivals_.prompt_tokens = load_.prompt_tokens;
    arrivals_.new_tokens = load_.new_tokens;
    arrivals_.seed = load_.seed;
    return run_arrivals(load_, plan_arrivals(arrivals_));
  }

  [[nodiscard]] Json::Object row_of(const TrafficTimes& times) const {
    std::vector<double> first;
    std::vector<double> per_token;
    std::vector<double> gaps;
    std::int64_t good = 0;
    for (const ResponseTimes& one : times.responses) {
      first.push_back(one.ttft_s);
      per_token.push_back(one.tpot_s());
      gaps.push_back(one.max_gap_s);
      good += one.ttft_s <= ttft_goal_s_ && one.tpot_s() <= tpot_goal_s_ ? 1 : 0;
    }
    for (std::vector<double>* values : {&first, &per_token, &gaps}) {
      std::sort(values->begin(), values->end());
    }
    const std::size_t sent = times.responses.size() + times.failures.size();
    Json::Object line{
        {"figure", arrives() ? "serve_bursty" : "serve_" + std::to_string(load_.streams)},
        {"value", static_cast<double>(times.new_tokens()) / times.seconds},
        {"unit", "tok/s"},
        {"ttft_p50_s", quantile_of(first, 0.5)},
        {"ttft_p99_s", quantile_of(first, 0.99)},
        {"tpot_p50_s", quantile_of(per_token, 0.5)},
        {"tpot_p99_s", quantile_of(per_token, 0.99)},
        {"max_gap_p50_s", quantile_of(gaps, 0.5)},
        {"max_gap_p99_s", quantile_of(gaps, 0.99)},
        {"responses", static_cast<std::int64_t>(times.responses.size())},
        {"failures", static_cast<std::int64_t>(times.failures.size())},
        {"goodput",
         static_cast<double>(good) / static_cast<double>(std::max<std::size_t>(1, sent))},
        {"seconds", times.seconds}};
    if (!times.failures.empty()) {
      line.push_back({"first_failure", times.failures.front().message()});
    }
    return line;
  }

  static void print(const Json::Object& line, launcher::Session& session) {
    if (session.form == launcher::OutputForm::kJson) {
      session.out << Json(line).to_line();
      return;
    }
    for (const Json::Member& member : line) {
      if (const std::string* text = member.value.if_string()) {
        session.out << member.name << ": " << *text << '\n';
      } else {
        session.out << member.name << ": " << std::setprecision(4)
                    << member.value.number().value_or(0.0) << '\n';
      }
    }
  }

  TrafficOptions load_;
  ArrivalOptions arrivals_{.rate = 0.0};
  double ttft_goal_s_ = 2.0;
  double tpot_goal_s_ = 0.1;
  bool health_ = false;
};

}  // namespace

std::unique_ptr<launcher::Command> make_serve_command() {
  return std::make_unique<ServeCommand>();
}

}  // namespace tidemill::bench
