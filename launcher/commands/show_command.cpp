// SPDX-License-Identifier: Apache-2.0
// `tidemill show`: draws the curves of a run, or shows its samples token by token.
#include <CLI/App.hpp>
#include <algorithm>
#include <array>
#include <ostream>

#include "base/json/json.hpp"
#include "base/schema/suggest.hpp"
#include "engines/tokenizer/tokenizer.hpp"
#include "launcher/commands/commands.hpp"
#include "launcher/inspect/chart.hpp"
#include "launcher/inspect/pages.hpp"
#include "launcher/inspect/run_report.hpp"
#include "launcher/inspect/sample_file.hpp"
#include "launcher/inspect/sample_view.hpp"
#include "launcher/option_checks.hpp"
#include "launcher/terminal.hpp"
#include "storage/run_files/lines.hpp"
#include "storage/run_files/metrics_line.hpp"
#include "storage/run_files/sample_line.hpp"

namespace tidemill::launcher {
namespace {

// A metric over the steps.
struct Curve {
  std::string name;
  std::string kind;  // "train" or "eval"
  std::vector<ChartPoint> points;
};

void add_point(std::vector<Curve>& curves, const storage::MetricsLine& line,
               const std::string& name, double value) {
  auto curve = std::find_if(curves.begin(), curves.end(),
                            [&](const Curve& c) { return c.name == name && c.kind == line.kind; });
  if (curve == curves.end()) {
    curve = curves.insert(curves.end(), {name, line.kind, {}});
  }
  curve->points.push_back({static_cast<double>(line.step), value});
}

// Reads all curves of a run. There are about thirty metrics, so a run of a million steps fits into
// memory.
Result<std::vector<Curve>> read_curves(const std::filesystem::path& path) {
  TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile file, ReadableFile::open(path));
  std::vector<Curve> curves;
  std::uint64_t number = 0;
  const auto take = [&](std::string_view text) -> Status {
    ++number;
    const auto line = storage::parse_metrics_line(text);
    if (!line.ok()) {
      return corrupt_data(path.string() + ':' + std::to_string(number) + ": not a line of metrics");
    }
    for (const auto& [name, value] : line.value().metrics) {
      add_point(curves, line.value(), name, value);
    }
    return {};
  };
  TIDEMILL_RETURN_IF_ERROR(storage::for_each_line(path, file.size_bytes(), take));
  for (Curve& curve : curves) {  // evaluations may be recorded in any order
    std::stable_sort(curve.points.begin(), curve.points.end(),
                     [](const ChartPoint& a, const ChartPoint& b) { return a.x < b.x; });
  }
  return curves;
}

const Curve* find_curve(const std::vector<Curve>& curves, std::string_view name) {
  const auto found =
      std::find_if(curves.begin(), curves.end(), [name](const Curve& c) { return c.name == name; });
  return found == curves.end() ? nullptr : &*found;
}

// Returns the metrics that are shown by default.
std::vector<std::string> default_metrics(const std::vector<Curve>& curves) {
  const bool rl = find_curve(curves, "reward_mean") != nullptr;
  std::vector<std::string> names =
      rl ? std::vector<std::string>{"reward_mean", "eval_mean_at_k", "response_tokens_mean",
                                    "gradient_norm"}
         : std::vector<std::string>{"loss", "eval_loss", "gradient_norm", "learning_rate"};
  names.erase(
      std::remove_if(names.begin(), names.end(),
                     [&curves](const auto& name) { return find_curve(curves, name) == nullptr; }),
      names.end());
  return names;
}

Json::Object curve_json(const Curve& curve) {
  Json::Array points;
  for (const ChartPoint& point : curve.points) {
    points.push_back(Json::Array{static_cast<std::int64_t>(point.x), point.y});
  }
  return {{"metric", curve.name}, {"kind", curve.kind}, {"points", std::move(points)}};
}

std::string summary_line(const RunReport& report) {
  std::string line = report.directory.string() + ": " + report.workflow + ", " + report.state +
                     ", step " + std::to_string(report.step);
  if (report.steps) {
    line += " of " + std::to_string(*report.steps);
  }
  return line + (report.reason.empty() ? "" : "; " + shown_text(report.reason, Letters::kUtf8));
}

std::string last_value(const Curve& curve) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.4g at step %.0f", curve.points.back().y,
                curve.points.back().x);
  return text.data();
}

class ShowCommand final : public Command {
public:
  [[nodiscard]] std::string name() const override { return "show"; }
  [[nodiscard]] std::string summary() const override {
    return "Draws a run's metrics, or shows its samples";
  }
  [[nodiscard]] std::string example() const override {
    return "tidemill show runs/quickstart --samples --worst";
  }

  void declare(CLI::App& app) override {
    app.add_option("RUN", run_, "The run's directory, or its name under runs/")
        ->required()
        ->type_name("");
    app.add_option("--metric", metrics_,
                   "Metrics of metrics.jsonl to draw instead of the default ones")
        ->type_name("NAME...");
    auto* samples =
        app.add_flag("--samples", samples_,
                     "Show samples with their rewards and the log-probability of each token");
    const auto number = [&](const char* option, const char* help, auto& target, std::uint64_t min) {
      auto* added = app.add_option(option, target, help)->type_name("N")->needs(samples);
      accept_integers(*added, {min, std::uint64_t{1} << 62U});
      return added;
    };
    number("--step", "The step in which the samples were trained. Default: the last one",
           choice_.step, 0);
    number("--group", "Show only this group, the samples of one prompt", choice_.group, 0);
    auto* worst = app.add_flag("--worst", worst_, "Show the lowest rewards first")->needs(samples);
    app.add_flag("--best", best_, "Show the highest rewards first")
        ->needs(samples)
        ->excludes(worst);
    number("--page", "Show only this page; a page is as high as the terminal", page_, 1);
    terminal_.declare(app);
  }

  [[nodiscard]] Status run(Session& session) override {
    TIDEMILL_ASSIGN_OR_RETURN(const std::filesystem::path directory, find_run(run_));
    const RunReport report = read_run_report(directory);
    if (report.state == "damaged") {
      return corrupt_data(report.reason);
    }
    return samples_ ? show_samples(report, session) : show_curves(report, session);
  }

private:
  [[nodiscard]] Status show_curves(const RunReport& report, Session& session) const {
    auto curves = read_curves(report.directory / storage::kMetricsFile);
    const bool none_yet =
        curves.status().code() == Errc::kNotFound || (curves.ok() && curves.value().empty());
    if (!curves.ok() && !none_yet) {
      return curves.status();
    }
    if (none_yet) {
      curves = std::vector<Curve>();
    }
    std::vector<const Curve*> chosen;
    for (const std::string& name : metrics_.empty() ? default_metrics(curves.value()) : metrics_) {
      chosen.push_back(find_curve(curves.value(), name));
      if (chosen.back() == nullptr) {
        return unknown_metric(name, curves.value());
      }
    }
    if (session.form == OutputForm::kJson) {
      for (const Curve* curve : chosen) {
        session.out << Json(curve_json(*curve)).to_line();
      }
      return {};
    }
    const Terminal terminal = terminal_.terminal(session.out);
    session.out << summary_line(report) << '\n';
    if (chosen.empty()) {
      session.out << "no step has been recorded yet\n";
    }
    const bool utf8 = terminal.letters == Letters::kUtf8;
    const ChartStyle style{terminal.columns, kChartRows,
                           utf8 ? ChartGlyphs::kBraille : ChartGlyphs::kAscii};
    for (const Curve* curve : chosen) {
      session.out << '\n'
                  << draw_chart(curve->name + ": " + last_value(*curve), curve->points, style);
    }
    return {};
  }

  [[nodiscard]] static Status unknown_metric(const std::string& name,
                                             const std::vector<Curve>& curves) {
    if (curves.empty()) {
      return Status(Errc::kNotFound, "--metric: no step has been recorded yet");
    }
    std::vector<std::string> names;
    std::string list;
    for (const Curve& curve : curves) {
      names.push_back(curve.name);
      list += (list.empty() ? "" : ", ") + curve.name;
    }
    const std::string meant = schema::closest_name(name, names);
    return Status(Errc::kNotFound,
                  "--metric: " + schema::clipped(name) + ": the run has no such metric" +
                      (meant.empty() ? "; it has: " + list : "; did you mean " + meant + '?'));
  }

  // Opens the tokenizer of the model that the run started from, or of its export.
  [[nodiscard]] static TokenBytes open_tokens(const RunReport& report, Session& session) {
    for (const std::filesystem::path& directory : {report.model, report.directory / "export"}) {
      const auto tokenizer = engines::Tokenizer::load(directory);
      if (tokenizer.ok()) {
        return [tokenizer = tokenizer.value()](std::int32_t id) {
          return std::string(tokenizer.token_bytes(id));
        };
      }
    }
    session.err << "warning: " << report.model.string()
                << " has no readable tokenizer; tokens are shown as ids\n";
    return {};
  }

  [[nodiscard]] Status show_samples(const RunReport& report, Session& session) const {
    const std::filesystem::path path = report.directory / storage::kSamplesFile;
    TIDEMILL_ASSIGN_OR_RETURN(std::vector<SampleLocation> locations, find_samples(path, choice_));
    if (worst_ || best_) {
      const double sign = worst_ ? 1.0 : -1.0;
      std::stable_sort(locations.begin(), locations.end(), [sign](const auto& a, const auto& b) {
        return sign * a.reward < sign * b.reward;
      });
    }
    TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile file, ReadableFile::open(path));
    if (session.form == OutputForm::kJson) {
      for (const SampleLocation& location : locations) {
        TIDEMILL_ASSIGN_OR_RETURN(const std::string line, read_sample_line(file, location));
        session.out << line << '\n';
      }
      return {};
    }
    const Terminal terminal = terminal_.terminal(session.out);
    const TokenBytes tokens = open_tokens(report, session);
    Pages pages(session.out, terminal, page_);
    bool more = pages.write(draw_legend(terminal));
    for (auto location = locations.begin(); location != locations.end() && more; ++location) {
      TIDEMILL_ASSIGN_OR_RETURN(const std::string line, read_sample_line(file, *location));
      TIDEMILL_ASSIGN_OR_RETURN(const storage::SampleLine sample, storage::parse_sample_line(line));
      more = pages.write(draw_sample(sample, terminal, tokens));
    }
    if (page_ && !pages.any()) {
      return invalid_argument("--page: the last page is " + std::to_string(pages.num_pages()));
    }
    return {};
  }

  static constexpr std::size_t kChartRows = 8;

  std::string run_;
  std::vector<std::string> metrics_;
  bool samples_ = false;
  bool worst_ = false;
  bool best_ = false;
  SampleChoice choice_;
  std::optional<std::size_t> page_;
  TerminalOptions terminal_;
};

}  // namespace

std::unique_ptr<Command> make_show_command() {
  return std::make_unique<ShowCommand>();
}

}  // namespace tidemill::launcher
