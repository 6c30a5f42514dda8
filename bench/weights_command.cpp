// SPDX-License-Identifier: Apache-2.0
// `tidemill-bench weights`: measures how weights get to other processes of this machine.
#include <CLI/App.hpp>
#include <iomanip>
#include <ostream>
#include <string>

#include "base/json/json.hpp"
#include "base/text/mebibytes.hpp"
#include "bench/commands.hpp"
#include "bench/weights_figures.hpp"
#include "launcher/option_checks.hpp"

namespace tidemill::bench {
namespace {

class WeightsCommand final : public launcher::Command {
public:
  [[nodiscard]] std::string name() const override { return "weights"; }
  [[nodiscard]] std::string summary() const override {
    return "Measures how weights get to other processes of this machine";
  }
  [[nodiscard]] std::string example() const override { return "tidemill-bench weights --json"; }

  void declare(CLI::App& app) override {
    auto* bytes = app.add_option("--mib", mebibytes_, "Size of a snapshot")
                      ->type_name("N")
                      ->capture_default_str();
    launcher::accept_integers(*bytes, {1, 65'536});
    auto* readers = app.add_option("--readers", how_.readers, "Processes that map it")
                        ->type_name("N")
                        ->capture_default_str();
    launcher::accept_integers(*readers, {1, 32});
  }

  [[nodiscard]] Status run(launcher::Session& session) override {
    how_.bytes = mebibytes_ << 20U;
    TIDEMILL_ASSIGN_OR_RETURN(const WeightsFigure figure, measure_weights(how_));
    const std::string name = "snapshot_" + std::to_string(how_.readers) + "_engines";
    const double ratio = figure.seconds / figure.copy_seconds;
    if (session.form == launcher::OutputForm::kJson) {
      session.out << Json(Json::Object{
                              {"figure", name},
                              {"bytes", static_cast<std::int64_t>(how_.bytes)},
                              {"seconds", figure.seconds},
                              {"peer", "memcpy into the same segments"},
                              {"peer_seconds", figure.copy_seconds},
                              {"ratio", ratio},
                              {"shared_bytes", static_cast<std::int64_t>(figure.shared_bytes)},
                              {"bytes_of_one_more_reader",
                               static_cast<std::int64_t>(figure.bytes_of_one_more)}})
                         .to_line();
      return {};
    }
    session.out << std::fixed << std::setprecision(1) << name << ": "
                << mebibytes_text(static_cast<std::int64_t>(how_.bytes)) << " in "
                << 1e3 * figure.seconds << " ms; memcpy into the same segments "
                << 1e3 * figure.copy_seconds << " ms; ratio " << std::setprecision(2) << ratio
                << "; " << mebibytes_text(static_cast<std::int64_t>(figure.shared_bytes))
                << " shared, " << figure.bytes_of_one_more << " bytes for each reader\n";
    return {};
  }

private:
  std::uint64_t mebibytes_ = 1024;
  WeightsMeasure how_;
};

}  // namespace

std::unique_ptr<launcher::Command> make_weights_command() {
  return std::make_unique<WeightsCommand>();
}

}  // namespace tidemill::bench
