// SPDX-License-Identifier: Apache-2.0
// `tidemill-bench weights`: measures how weights get to other processes of this machine.
#include <CLI/App.hpp>
#include <algorithm>
#include <iomanip>
#include <ostream>
#include <string>
#include <vector>

#include "base/json/json.hpp"
#include "base/text/mebibytes.hpp"
#include "bench/adapter_update.hpp"
#include "bench/commands.hpp"
#include "bench/random_model.hpp"
#include "bench/weights_figures.hpp"
#include "launcher/option_checks.hpp"

namespace tidemill::bench {
namespace {

constexpr const char* kSnapshot = "snapshot_4_engines";
constexpr const char* kAdapterUpdate = "adapter_update";

void write_json(std::ostream& out, const std::string& name, std::uint64_t bytes,
                const WeightsFigure& figure) {
  out << Json(Json::Object{{"figure", name},
                           {"bytes", static_cast<std::int64_t>(bytes)},
                           {"seconds", figure.seconds},
                           {"peer", "memcpy into the same segments"},
                           {"peer_seconds", figure.copy_seconds},
                           {"ratio", figure.seconds / figure.copy_seconds},
                           {"shared_bytes", static_cast<std::int64_t>(figure.shared_bytes)},
                           {"bytes_of_one_more_reader",
                            static_cast<std::int64_t>(figure.bytes_of_one_more)}})
             .to_line();
}

void write_text(std::ostream& out, const std::string& name, std::uint64_t bytes,
                const WeightsFigure& figure) {
  out << std::fixed << std::setprecision(1) << name << ": "
      << mebibytes_text(static_cast<std::int64_t>(bytes)) << " in " << 1e3 * figure.seconds
      << " ms; memcpy into the same segments " << 1e3 * figure.copy_seconds << " ms; ratio "
      << std::setprecision(2) << figure.seconds / figure.copy_seconds << "; "
      << mebibytes_text(static_cast<std::int64_t>(figure.shared_bytes)) << " shared, "
      << figure.bytes_of_one_more << " bytes for each reader\n";
}

double ratio_of(const AdapterUpdateFigure& figure) {
  return figure.seconds / (figure.copy_seconds + figure.digest_seconds);
}

void write_json(std::ostream& out, const AdapterUpdateMeasure& how,
                const AdapterUpdateFigure& figure) {
  out << Json(Json::Object{{"figure", kAdapterUpdate},
                           {"preset", how.preset},
                           {"engines", static_cast<std::int64_t>(how.engines)},
                           {"bytes", static_cast<std::int64_t>(figure.bytes)},
                           {"seconds", figure.seconds},
                           {"target_seconds", kAdapterUpdateTarget},
                           {"save_seconds", figure.save_seconds},
                           {"load_seconds", figure.load_seconds},
                           {"peer", "one thread copies the bytes and computes their digest"},
                           {"peer_seconds", figure.copy_seconds + figure.digest_seconds},
                           {"peer_copy_seconds", figure.copy_seconds},
                           {"peer_digest_seconds", figure.digest_seconds},
                           {"ratio", ratio_of(figure)}})
             .to_line();
}

void write_text(std::ostream& out, const AdapterUpdateMeasure& how,
                const AdapterUpdateFigure& figure) {
  out << std::fixed << std::setprecision(1) << kAdapterUpdate << ": "
      << mebibytes_text(static_cast<std::int64_t>(figure.bytes)) << " of " << how.preset << " to "
      << how.engines << " engines in " << 1e3 * figure.seconds << " ms, "
      << 1e3 * figure.save_seconds << " of them for the snapshot; the target of "
      << 1e3 * kAdapterUpdateTarget << " ms is "
      << (figure.seconds <= kAdapterUpdateTarget ? "met" : "missed")
      << "; one thread copies the bytes in " << 1e3 * figure.copy_seconds
      << " ms and digests them in " << 1e3 * figure.digest_seconds << " ms; ratio "
      << std::setprecision(2) << ratio_of(figure) << '\n';
}

class WeightsCommand final : public launcher::Command {
public:
  [[nodiscard]] std::string name() const override { return "weights"; }
  [[nodiscard]] std::string summary() const override {
    return "Measures how weights get to other processes of this machine";
  }
  [[nodiscard]] std::string example() const override {
    return "tidemill-bench weights --figure adapter_update --json";
  }

  void declare(CLI::App& app) override {
    auto* figure = app.add_option("--figure", figures_, "Measure only this figure; may be repeated")
                       ->allow_extra_args(false);
    launcher::accept_names(*figure, {kSnapshot, kAdapterUpdate});
    auto* bytes = app.add_option("--mib", mebibytes_, "Size of the snapshot of snapshot_4_engines")
                      ->type_name("N")
                      ->capture_default_str();
    launcher::accept_integers(*bytes, {1, 65'536});
    auto* readers = app.add_option("--readers", how_.readers, "Processes that get the weights")
                        ->type_name("N")
                        ->capture_default_str();
    launcher::accept_integers(*readers, {1, 32});
    auto* repetitions =
        app.add_option("--repetitions", how_.repetitions, "Measure each figure so often")
            ->type_name("N")
            ->capture_default_str();
    launcher::accept_integers(*repetitions, {1, 1'000});
    auto* preset = app.add_option("--preset", adapter_.preset, "Model of adapter_update")
                       ->capture_default_str();
    launcher::accept_names(*preset, preset_names());
  }

  [[nodiscard]] Status run(launcher::Session& session) override {
    if (measures(kSnapshot)) {
      TIDEMILL_RETURN_IF_ERROR(run_snapshot(session));
    }
    if (measures(kAdapterUpdate)) {
      TIDEMILL_RETURN_IF_ERROR(run_adapter_update(session));
    }
    return {};
  }

private:
  [[nodiscard]] bool measures(const std::string& figure) const {
    return figures_.empty() || std::ranges::count(figures_, figure) > 0;
  }

  Status run_snapshot(launcher::Session& session) {
    how_.bytes = mebibytes_ << 20U;
    TIDEMILL_ASSIGN_OR_RETURN(const WeightsFigure figure, measure_weights(how_));
    const std::string name = "snapshot_" + std::to_string(how_.readers) + "_engines";
    session.form == launcher::OutputForm::kJson ? write_json(session.out, name, how_.bytes, figure)
                                                : write_text(session.out, name, how_.bytes, figure);
    return {};
  }

  Status run_adapter_update(launcher::Session& session) {
    adapter_.engines = how_.readers;
    adapter_.repetitions = how_.repetitions;
    TIDEMILL_ASSIGN_OR_RETURN(const AdapterUpdateFigure figure, measure_adapter_update(adapter_));
    session.form == launcher::OutputForm::kJson ? write_json(session.out, adapter_, figure)
                                                : write_text(session.out, adapter_, figure);
    return {};
  }

  std::vector<std::string> figures_;
  std::uint64_t mebibytes_ = 1024;
  WeightsMeasure how_;
  AdapterUpdateMeasure adapter_;
};

}  // namespace

std::unique_ptr<launcher::Command> make_weights_command() {
  return std::make_unique<WeightsCommand>();
}

}  // namespace tidemill::bench
