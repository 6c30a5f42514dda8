// SPDX-License-Identifier: Apache-2.0
// Checks the admission ledger against the 72 recorded traces of tests/golden/rl (README, section
// 8), and against this project's own traces for `forfeit`, which have the same form.
#include <cstdint>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include <gtest/gtest.h>

#include "storage/versions/admission.hpp"

namespace tidemill::storage {
namespace {

using Json = nlohmann::json;

struct Count {
  int traces = 0;
  int events = 0;
  int forfeits = 0;
  int forfeits_refused = 0;
};

Json state_of(const AdmissionLedger& ledger) {
  const AdmissionState& state = ledger.state();
  return {{"capacity", ledger.capacity()}, {"version", state.version},
          {"running", state.running},      {"accepted", state.accepted},
          {"rejected", state.rejected},    {"aborted", state.aborted}};
}

Json error_or_nothing(const Status& status) {
  if (status.ok()) {
    return Json::object();
  }
  return {{"error", status.message().substr(0, status.message().find(':'))}};
}

Json play(AdmissionLedger& ledger, const Json& event) {
  const std::string& name = event.at("ev").get_ref<const std::string&>();
  const std::int64_t n = event.value("n", std::int64_t{1});
  if (name == "submit") {
    const Result<std::int64_t> granted = ledger.submit(n);
    return granted.ok() ? Json{{"granted", granted.value()}} : error_or_nothing(granted.status());
  }
  if (name == "force_submit") {
    return error_or_nothing(ledger.force_submit(n));
  }
  if (name == "accept") {
    return error_or_nothing(ledger.accept(n));
  }
  if (name == "reject") {
    return error_or_nothing(ledger.reject(n));
  }
  if (name == "abort") {
    return error_or_nothing(ledger.abort(n));
  }
  if (name == "forfeit") {
    return error_or_nothing(ledger.forfeit(n));
  }
  if (name == "version") {
    return error_or_nothing(ledger.set_version(event.at("to").get<std::int64_t>()));
  }
  if (name == "restart") {
    return error_or_nothing(ledger.restart(event.at("version").get<std::int64_t>(),
                                           event.value("unconsumed", std::int64_t{0})));
  }
  if (name == "resize") {
    ledger.resize(event.at("max_concurrent").get<std::int64_t>());
    return Json::object();
  }
  return {{"error", std::string(refusal_name(Refusal::kUnknownEvent))}};
}

Count play_file(const std::string& path) {
  Count count;
  std::ifstream file(path);
  const Json traces = Json::parse(file).at("traces");
  for (const Json& trace : traces) {
    SCOPED_TRACE(trace.at("id").get<std::string>());
    const Json& config = trace.at("config");
    auto ledger = AdmissionLedger::create(
        {config.at("max_concurrent").get<std::int64_t>(), config.at("batch").get<std::int64_t>(),
         config.at("max_staleness").get<std::int64_t>(), config.at("version").get<std::int64_t>()});
    EXPECT_TRUE(ledger.ok()) << ledger.status().to_string();
    EXPECT_EQ(state_of(ledger.value()), trace.at("initial"));
    ++count.traces;
    int number = 0;
    for (const Json& event : trace.at("events")) {
      SCOPED_TRACE("event " + std::to_string(number++) + ": " + event.dump());
      Json result = play(ledger.value(), event);
      if (event.at("ev") == "forfeit") {
        ++count.forfeits;
        count.forfeits_refused += result.contains("error") ? 1 : 0;
      }
      result.update(state_of(ledger.value()));
      EXPECT_EQ(result, event.at("want"));
      ++count.events;
    }
  }
  return count;
}

TEST(CapacityTraces, AllAgree) {
  const Count count = play_file(TIDEMILL_TEST_DIR "/golden/rl/capacity_traces.json");
  std::cout << "capacity traces: " << count.traces << " traces, " << count.events
            << " events checked\n";
  RecordProperty("traces", count.traces);
  RecordProperty("events", count.events);
  EXPECT_EQ(count.traces, 72);
  EXPECT_EQ(count.events, 1584);
}

TEST(CapacityTraces, ForfeitAgrees) {
  const Count count = play_file(TIDEMILL_TEST_DIR "/storage/versions/forfeit_traces.json");
  std::cout << "forfeit traces: " << count.traces << " traces, " << count.events << " events, "
            << count.forfeits << " forfeits (" << count.forfeits_refused << " refused) checked\n";
  RecordProperty("traces", count.traces);
  EXPECT_EQ(count.traces, 14);
  EXPECT_EQ(count.forfeits, 36);
  EXPECT_EQ(count.forfeits_refused, 17);
}

}  // namespace
}  // namespace tidemill::storage
