// SPDX-License-Identifier: Apache-2.0
// `tidemill-bench transport`: measures messages between two processes of this machine.
#include <CLI/App.hpp>
#include <iomanip>
#include <ostream>
#include <string>
#include <utility>

#include "base/json/json.hpp"
#include "bench/commands.hpp"
#include "bench/transport_figures.hpp"
#include "launcher/option_checks.hpp"

namespace tidemill::bench {
namespace {

class TransportCommand final : public launcher::Command {
public:
  [[nodiscard]] std::string name() const override { return "transport"; }
  [[nodiscard]] std::string summary() const override {
    return "Measures messages between two processes of this machine";
  }
  [[nodiscard]] std::string example() const override { return "tidemill-bench transport --json"; }

  void declare(CLI::App& app) override {
    auto* count = app.add_option("--round-trips", how_.round_trips, "Round trips of each figure")
                      ->type_name("N")
                      ->capture_default_str();
    launcher::accept_integers(*count, {100, 10'000'000});
    auto* size = app.add_option("--bytes", how_.body_bytes, "Size of a request and of its reply")
                     ->type_name("N")
                     ->capture_default_str();
    launcher::accept_integers(*size, {1, 1 << 20});
    auto* figure =
        app.add_option("--figure", how_.figures, "Measure only this figure; may be repeated")
            ->allow_extra_args(false);
    launcher::accept_names(*figure, transport_figures());
  }

  [[nodiscard]] Status run(launcher::Session& session) override {
    TIDEMILL_ASSIGN_OR_RETURN(const auto figures, measure_transport(how_));
    for (const TransportFigure& figure : figures) {
      if (session.form == launcher::OutputForm::kJson) {
        session.out << json_of(figure).to_line();
      } else {
        print(figure, session.out);
      }
    }
    return {};
  }

private:
  static Json json_of(const TransportFigure& figure) {
    Json::Array primitives;
    for (const TransportPrimitive& primitive : figure.primitives) {
      primitives.emplace_back(Json::Object{
          {"name", primitive.name}, {"p50_us", primitive.p50_us}, {"p99_us", primitive.p99_us}});
    }
    return Json::Object{{"figure", figure.name},
                        {"p50_us", figure.p50_us},
                        {"p99_us", figure.p99_us},
                        {"primitives", std::move(primitives)},
                        {"in_flight", static_cast<std::int64_t>(figure.in_flight)},
                        {"per_second", figure.per_second}};
  }
  static void print(const TransportFigure& figure, std::ostream& out) {
    out << std::fixed << std::setprecision(2) << figure.name << ": p50 " << figure.p50_us
        << " us, p99 " << figure.p99_us << " us, " << std::setprecision(0) << figure.per_second
        << " per second" << std::setprecision(2);
    for (const TransportPrimitive& primitive : figure.primitives) {
      out << "; " << primitive.name << ": p50 " << primitive.p50_us << " us, p99 "
          << primitive.p99_us << " us, ratio " << figure.p50_us / primitive.p50_us;
    }
    out << '\n';
  }

  TransportMeasure how_;
};

}  // namespace

std::unique_ptr<launcher::Command> make_transport_command() {
  return std::make_unique<TransportCommand>();
}

}  // namespace tidemill::bench
