// SPDX-License-Identifier: Apache-2.0
// `tidemill-bench store`: measures the control plane of a stream on one core, and rows that pass to
// another process.
#include <CLI/App.hpp>
#include <algorithm>
#include <iomanip>
#include <iterator>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "base/json/json.hpp"
#include "bench/commands.hpp"
#include "bench/idle_figure.hpp"
#include "bench/row_figures.hpp"
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

void write_json(std::ostream& out, const RowFigure& figure) {
  Json::Object line{{"figure", figure.name}};
  if (figure.bytes == 0) {
    line.push_back({"p50_us", figure.wake_p50_us});
    line.push_back({"p99_us", figure.wake_p99_us});
    line.push_back({"peer", "a futex"});
    line.push_back({"peer_p50_us", figure.futex_p50_us});
    line.push_back({"peer_p99_us", figure.futex_p99_us});
  } else {
    line.push_back({"bytes", static_cast<std::int64_t>(figure.bytes)});
    line.push_back({"seconds", figure.seconds});
    line.push_back({"peer", "writing and reading the bytes in one thread"});
    line.push_back({"peer_seconds", figure.copy_seconds});
  }
  out << Json(std::move(line)).to_line();
}

void write_text(std::ostream& out, const RowFigure& figure) {
  out << std::fixed << std::setprecision(1) << figure.name << ": ";
  if (figure.bytes == 0) {
    out << "p50 " << figure.wake_p50_us << " us, p99 " << figure.wake_p99_us << " us; a futex: p50 "
        << figure.futex_p50_us << " us, p99 " << figure.futex_p99_us << " us\n";
    return;
  }
  const double gigabytes = static_cast<double>(figure.bytes) * 1e-9;
  out << std::setprecision(2) << gigabytes / figure.seconds
      << " GB/s; written and read by one thread " << gigabytes / figure.copy_seconds << " GB/s\n";
}

void write_json(std::ostream& out, const IdleFigure& figure) {
  Json::Object line{{"figure", kIdleFigure},
                    {"core_share", figure.core_share},
                    {"target", kIdleTarget},
                    {"lease_attempts_per_s", figure.lease_attempts_per_second}};
  out << Json(std::move(line)).to_line();
}

void write_text(std::ostream& out, const IdleFigure& figure) {
  out << std::fixed << std::setprecision(2) << kIdleFigure << ": " << 100.0 * figure.core_share
      << "% of a core, at most " << 100.0 * kIdleTarget << "% wanted; the stream tries "
      << figure.lease_attempts_per_second << " leases/s\n";
}

class StoreCommand final : public launcher::Command {
public:
  [[nodiscard]] std::string name() const override { return "store"; }
  [[nodiscard]] std::string summary() const override {
    return "Measures a stream: its control plane, and rows that pass to another process";
  }
  [[nodiscard]] std::string example() const override {
    return "tidemill-bench store --figure store_rows_1m --json";
  }

  void declare(CLI::App& app) override {
    auto* figure =
        app.add_option("--figure", how_.figures, "Measure only this figure; may be repeated")
            ->allow_extra_args(false);
    std::vector<std::string> names = store_figures();
    std::ranges::copy(row_figures(), std::back_inserter(names));
    names.emplace_back(kIdleFigure);
    launcher::accept_names(*figure, names);
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
    auto* passed = app.add_option("--passed-rows", row_.rows,
                                  "Rows of each repetition of store_putget and store_putget_ragged")
                       ->type_name("N")
                       ->capture_default_str();
    launcher::accept_integers(*passed, {8, 1 << 20});
    auto* wakes = app.add_option("--wakes", row_.wakes, "Wakes of store_wake")
                      ->type_name("N")
                      ->capture_default_str();
    launcher::accept_integers(*wakes, {10, 100'000});
    auto* idle_rows = app.add_option("--idle-rows", idle_.rows, "Rows of the stream of store_idle")
                          ->type_name("N")
                          ->capture_default_str();
    launcher::accept_integers(*idle_rows, {1'000, 100'000'000});
    auto* idle_seconds =
        app.add_option("--idle-seconds", idle_.seconds, "How long store_idle is measured")
            ->type_name("N")
            ->capture_default_str();
    launcher::accept_integers(*idle_seconds, {1, 3'600});
  }

  [[nodiscard]] Status run(launcher::Session& session) override {
    if (!order_.empty()) {
      how_.order =
          order_ == name_of(StoreOrder::kRandom) ? StoreOrder::kRandom : StoreOrder::kAdmission;
    }
    const auto is_of_rows = [](const std::string& name) {
      return std::ranges::count(row_figures(), name) > 0;
    };
    const bool all = how_.figures.empty();
    row_.repetitions = how_.repetitions;
    std::ranges::copy_if(how_.figures, std::back_inserter(row_.figures), is_of_rows);
    std::erase_if(how_.figures, is_of_rows);
    const bool idle = all || std::erase(how_.figures, kIdleFigure) > 0;
    // First, because they start processes, which a process with one thread may do.
    if (all || !row_.figures.empty()) {
      TIDEMILL_ASSIGN_OR_RETURN(const std::vector<RowFigure> figures, measure_rows(row_));
      write_all(session, figures);
    }
    if (idle) {
      TIDEMILL_ASSIGN_OR_RETURN(const IdleFigure figure, measure_idle(idle_));
      write_all(session, std::vector<IdleFigure>{figure});
    }
    if (all || !how_.figures.empty()) {
      write_all(session, measure_store(how_));
    }
    return {};
  }

private:
  template <class Figure>
  static void write_all(const launcher::Session& session, const std::vector<Figure>& figures) {
    for (const Figure& figure : figures) {
      session.form == launcher::OutputForm::kJson ? write_json(session.out, figure)
                                                  : write_text(session.out, figure);
    }
  }

  StoreMeasure how_;
  RowMeasure row_;
  IdleMeasure idle_;
  std::string order_;
};

}  // namespace

std::unique_ptr<launcher::Command> make_store_command() {
  return std::make_unique<StoreCommand>();
}

}  // namespace tidemill::bench
