// SPDX-License-Identifier: Apache-2.0
// `tidemill-bench engine`: measures the engine on this machine.
#include <CLI/App.hpp>
#include <iomanip>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>

#include "base/json/json.hpp"
#include "bench/commands.hpp"
#include "bench/engine_bench.hpp"
#include "bench/profile_table.hpp"
#include "bench/random_model.hpp"
#include "launcher/option_checks.hpp"

namespace tidemill::bench {
namespace {

using launcher::OutputForm;
using launcher::Session;

constexpr int kMaxThreads = 256;
constexpr int kMaxRepetitions = 1000;

// Returns the value of a note for people: bytes as an integer, ratios with three digits.
std::string note_text(const FigureNote& note) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(note.name.ends_with("_bytes") ? 0 : 3) << note.value;
  return text.str();
}

class EngineCommand final : public launcher::Command {
public:
  [[nodiscard]] std::string name() const override { return "engine"; }
  [[nodiscard]] std::string summary() const override {
    return "Measures the engine against the limits of this machine";
  }
  [[nodiscard]] std::string example() const override {
    return "tidemill-bench engine --preset 197m --figure decode_b1_bf16 --profile";
  }

  void declare(CLI::App& app) override {
    auto* preset =
        app.add_option("--preset", preset_, "A model with random weights and a known size")
            ->default_str("197m, or the figure's own");
    launcher::accept_names(*preset, preset_names());
    app.add_option("--model", model_, "A model directory to measure instead of a preset")
        ->type_name("DIR")
        ->excludes(preset);
    auto* threads = app.add_option("--threads", threads_, "Compute threads")
                        ->type_name("N")
                        ->capture_default_str();
    launcher::accept_integers(*threads, {1, kMaxThreads});
    auto* figure = app.add_option("--figure", figures_, "Measure only this figure; may be repeated")
                       ->allow_extra_args(false);
    launcher::accept_names(*figure, engine_figures());
    auto* repetitions =
        app.add_option("--repetitions", repetitions_,
                       "Measure each figure so often; 1 also leaves out the run before")
            ->type_name("N")
            ->default_str("5, or the figure's own");
    launcher::accept_integers(*repetitions, {1, kMaxRepetitions});
    app.add_flag("--profile", profile_, "Also print the time of each operation");
    app.add_option("--program", program_, "The program that figures of whole runs start")
        ->type_name("FILE")
        ->default_str("tidemill, in the folder of this program");
  }

  [[nodiscard]] Status run(Session& session) override {
    launcher::warn_of_threads(threads_, session.log);
    EngineBenchOptions options;
    options.threads = threads_;
    options.figures = figures_;
    options.repetitions = repetitions_;
    options.model = [this](DType dtype, const char* preset) { return open(dtype, preset); };
    options.model_directory = model_;
    options.program = program_.empty() ? sibling_program() : std::filesystem::path(program_);
    const auto report = [&](const Figure& figure) { print(figure, session); };
    const auto profiled = [&](const Figure& /*figure*/, const StepProfile& profile) {
      (session.form == OutputForm::kJson ? session.err : session.out) << profile_table(profile);
    };
    return profile_ ? run_engine_bench(options, report, profiled)
                    : run_engine_bench(options, report, {});
  }

private:
  static std::filesystem::path sibling_program() {
    std::error_code ignored;  // if it fails, figures that start the program report an error
    return std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path() / "tidemill";
  }

  [[nodiscard]] Result<engines::ModelFiles> open(DType dtype, const char* preset) const {
    if (!model_.empty()) {
      return engines::open_model(model_);
    }
    TIDEMILL_ASSIGN_OR_RETURN(const engines::ModelConfig config,
                              preset_config(preset_.empty() ? preset : preset_));
    return random_model(config, dtype);
  }

  static void print(const Figure& figure, Session& session) {
    if (session.form == OutputForm::kJson) {
      Json::Object line{{"figure", figure.name},
                        {"value", figure.value},
                        {"unit", figure.unit},
                        {"peer", figure.peer},
                        {"peer_value", figure.peer_value},
                        {"ratio", figure.ratio()},
                        {"threads", figure.threads},
                        {"foreign_load", figure.foreign_load}};
      for (const FigureNote& note : figure.notes) {
        line.push_back({note.name, note.value});
      }
      session.out << Json(std::move(line)).to_line();
    } else {
      session.out << std::fixed << figure.name << ": "
                  << std::setprecision(figure.unit == "s" ? 3 : 1) << figure.value << ' '
                  << figure.unit << ", " << std::setprecision(1) << figure.ratio() * 100.0
                  << "% of " << figure.peer << '\n';
      for (const FigureNote& note : figure.notes) {
        session.out << "  " << note.name << ": " << note_text(note) << '\n';
      }
    }
    session.out.flush();
  }

  std::string preset_;  // empty: the preset that each figure is defined for
  std::string model_;
  int threads_ = 1;
  std::vector<std::string> figures_;
  int repetitions_ = 0;  // 0: those of each figure
  bool profile_ = false;
  std::string program_;
};

}  // namespace

std::unique_ptr<launcher::Command> make_engine_command() {
  return std::make_unique<EngineCommand>();
}

}  // namespace tidemill::bench
