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
    add("--streams", load_.streams, "Streams, each with one request at a time", 1024);
    add("--requests", load_.requests, "Requests of each stream", 1'000'000);
    add("--prompt-tokens", load_.prompt_tokens, "Length of a prompt", 1'000'000);
    add("--new-tokens", load_.new_tokens, "Length of a response", 1'000'000);
    add("--vocabulary", load_.vocabulary, "Prompts have ids from 10 to below this", 1'000'000);
    add("--seed", load_.seed, "Seed of the prompts; a server that has seen one caches it",
        1'000'000);
    app.add_flag("--health", health_, "Also measure how long /health takes");
  }

  [[nodiscard]] Status run(launcher::Session& session) override {
    TIDEMILL_ASSIGN_OR_RETURN(const TrafficTimes times, run_traffic(load_));
    std::vector<double> first;
    std::vector<double> per_token;
    for (const ResponseTimes& one : times.responses) {
      first.push_back(one.first_token_s);
      per_token.push_back((one.last_token_s - one.first_token_s) /
                          static_cast<double>(std::max<std::int64_t>(1, load_.new_tokens - 1)));
    }
    std::sort(first.begin(), first.end());
    std::sort(per_token.begin(), per_token.end());
    Json::Object line{{"figure", "serve_" + std::to_string(load_.streams)},
                      {"value", static_cast<double>(times.new_tokens) / times.seconds},
                      {"unit", "tok/s"},
                      {"ttft_p50_s", quantile_of(first, 0.5)},
                      {"ttft_p99_s", quantile_of(first, 0.99)},
                      {"tpot_p50_s", quantile_of(per_token, 0.5)},
                      {"tpot_p99_s", quantile_of(per_token, 0.99)},
                      {"responses", static_cast<std::int64_t>(times.responses.size())}};
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
  bool health_ = false;
};

}  // namespace

std::unique_ptr<launcher::Command> make_serve_command() {
  return std::make_unique<ServeCommand>();
}

}  // namespace tidemill::bench
