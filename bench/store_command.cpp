// SPDX-License-Identifier: Apache-2.0
// `tidemill-bench store`: measures the control plane of a stream on one core.
#include <CLI/App.hpp>
#include <iomanip>
#include <ostream>
#include <string>
#include <utility>

#include "base/json/json.hpp"
#include "bench/commands.hpp"
#include "bench/store_figures.hpp"
#include "launcher/option_checks.hpp"

namespace tidemill::bench {
namespace {

constexpr const char* name_of(StoreOrder order) noexcept {
  return order == StoreOrder::kAdmission ? "admission" : "random";
}

void write_json(std::ostream& out, const StoreFigure& figure) {
  Json::Object line{{"figure", figure.name},
                    {"order", name_of(figure.order)},
                    {"live_rows", static_cast<std::int64_t>(figure.live_rows)},
                    {"rows_per_s", figure.rows_per_second},
                    {"row_ns", figure.ns_per_row}};
  if (figure.target > 0.0) {
    line.push_back({"target_rows_per_s", figure.target});
    line.push_back({"ratio", figure.rows_per_second / figure.target});
    line.push_back({"of_1k", figure.of_1k});
  }
  out << Json(std::move(line)).to_line();
}

void write_text(std::ostream& out, const StoreFigure& figure) {
  out << std::fixed << std::setprecision(0) << figure.name << ", " << name_of(figure.order)
      << " order: " << figure.rows_per_second << " rows/s, " << figure.ns_per_row << " ns each";
  if (figure.target > 0.0) {
    out << std::setprecision(2) << ", " << figure.rows_per_second / figure.target
        << " of the target; " << figure.of_1k << " times the time of 1,000 rows";
  }
  out << '\n';
}

class StoreCommand final : public launcher::Command {
public:
  [[nodiscard]] std::string name() const override { return "store"; }
  [[nodiscard]] std::string summary() const override {
    return "Measures the control plane of a stream on one core";
  }
  [[nodiscard]] std::string example() const override {
    return "tidemill-bench store --figure store_rows_1m --json";
  }

  void declare(CLI::App& app) override {
    auto* figure =
        app.add_option("--figure", how_.figures, "Measure only this figure; may be repeated")
            ->allow_extra_args(false);
    launcher::accept_names(*figure, store_figures());
    auto* order =
        app.add_option("--order", order_, "Order in which rows are finished")->default_str("both");
    launcher::accept_names(*order, {name_of(StoreOrder::kAdmission), name_of(StoreOrder::kRandom)});
    auto* call =
        app.add_option("--rows-per-call", how_.rows_per_call, "Rows of a write, a lease and an ack")
            ->type_name("N")
            ->capture_default_str();
    launcher::accept_integers(*call, {1, 1 << 16});
    auto* rows =
        app.add_option("--measured-rows", how_.measured_rows, "Rows of each repetition, at least")
            ->type_name("N")
            ->capture_default_str();
    launcher::accept_integers(*rows, {1'000, 100'000'000});
    auto* repetitions =
        app.add_option("--repetitions", how_.repetitions, "Measure each figure so often")
            ->type_name("N")
            ->capture_default_str();
    launcher::accept_integers(*repetitions, {1, 1'000});
  }

  [[nodiscard]] Status run(launcher::Session& session) override {
    if (!order_.empty()) {
      how_.order =
          order_ == name_of(StoreOrder::kRandom) ? StoreOrder::kRandom : StoreOrder::kAdmission;
    }
    for (const StoreFigure& figure : measure_store(how_)) {
      session.form == launcher::OutputForm::kJson ? write_json(session.out, figure)
                                                  : write_text(session.out, figure);
    }
    return {};
  }

private:
  StoreMeasure how_;
  std::string order_;
};

}  // namespace

std::unique_ptr<launcher::Command> make_store_command() {
  return std::make_unique<StoreCommand>();
}

}  // namespace tidemill::bench
