// SPDX-License-Identifier: Apache-2.0
// `tidemill-bench actors`: measures the actors of a run without the engines.
#include <CLI/App.hpp>
#include <iomanip>
#include <ostream>
#include <string>
#include <vector>

#include "base/json/json.hpp"
#include "bench/commands.hpp"
#include "bench/scale_figures.hpp"
#include "launcher/option_checks.hpp"

namespace tidemill::bench {
namespace {

constexpr const char* kName = "actor_scale";

void write_json(std::ostream& out, const ScaleFigure& figure, double of_one_process) {
  out << Json(Json::Object{{"figure", kName},
                           {"processes", static_cast<std::int64_t>(figure.processes)},
                           {"samples_per_s", figure.samples_per_second},
                           {"target_samples_per_s", kScaleTargetRate},
                           {"ratio", figure.samples_per_second / kScaleTargetRate},
                           {"peer", "all actors in one process"},
                           {"peer_samples_per_s", of_one_process},
                           {"owner_us", figure.owner_us},
                           {"actors_us", figure.actors_us},
                           {"rollout_us", figure.rollout_us}})
             .to_line();
}

void write_text(std::ostream& out, const ScaleFigure& figure, double of_one_process) {
  out << std::fixed << std::setprecision(0) << kName << ", " << figure.processes
      << " rollout processes: " << figure.samples_per_second << " samples/s, "
      << std::setprecision(2) << figure.samples_per_second / kScaleTargetRate << " of the target, "
      << figure.samples_per_second / of_one_process
      << " of all actors in one process; processor time of a sample: " << std::setprecision(1)
      << figure.owner_us << " us in the process of the run, " << figure.actors_us
      << " us of them in the thread of its actors (at most " << std::setprecision(0)
      << 1e6 / figure.actors_us << " samples/s), and " << std::setprecision(1) << figure.rollout_us
      << " us in the rollout processes\n";
}

class ActorsCommand final : public launcher::Command {
public:
  [[nodiscard]] std::string name() const override { return "actors"; }
  [[nodiscard]] std::string summary() const override {
    return "Measures how many samples pass through the actors of a run";
  }
  [[nodiscard]] std::string example() const override { return "tidemill-bench actors --json"; }

  void declare(CLI::App& app) override {
    auto* processes = app.add_option("--processes", how_.processes,
                                     "Measure this number of rollout processes; may be repeated")
                          ->type_name("N")
                          ->allow_extra_args(false)
                          ->default_str("1, 2 and 4");
    launcher::accept_integers(*processes, {1, 32});
    auto* samples = app.add_option("--samples", how_.samples, "Samples of each repetition")
                        ->type_name("N")
                        ->capture_default_str();
    launcher::accept_integers(*samples, {1, 100'000'000});
    auto* repetitions =
        app.add_option("--repetitions", how_.repetitions, "Measure each number so often")
            ->type_name("N")
            ->capture_default_str();
    launcher::accept_integers(*repetitions, {1, 1'000});
    auto* tokens = app.add_option("--response-tokens", how_.response_tokens, "Tokens of a response")
                       ->type_name("N")
                       ->capture_default_str();
    launcher::accept_integers(*tokens, {1, 100'000});
  }

  [[nodiscard]] Status run(launcher::Session& session) override {
    TIDEMILL_ASSIGN_OR_RETURN(const std::vector<ScaleFigure> figures, measure_scale(how_));
    const double of_one_process = figures.front().samples_per_second;
    for (const ScaleFigure& figure : figures) {
      session.form == launcher::OutputForm::kJson ? write_json(session.out, figure, of_one_process)
                                                  : write_text(session.out, figure, of_one_process);
    }
    return {};
  }

private:
  ScaleMeasure how_;
};

}  // namespace

std::unique_ptr<launcher::Command> make_actors_command() {
  return std::make_unique<ActorsCommand>();
}

}  // namespace tidemill::bench
