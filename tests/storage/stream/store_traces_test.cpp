// SPDX-License-Identifier: Apache-2.0
// Checks the stream index against the 62 recorded traces of tests/golden/rl (README, section 9).
//
// The traces assume a simpler interface than that of the index. An adapter translates:
// `max_deliveries` is unlimited and no task has outputs, so that a completion is only an ack; rows
// and groups get ids in the order of their first accepted put; a consumer's acks carry the last
// lease that it received for the row.
#include <cstdint>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "storage/stream/stream_index.hpp"

namespace tidemill::storage {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kUnseen = 1'000'000;  // ids from here on are never admitted

StreamOptions options_of(const Json& config) {
  StreamOptions options;
  for (const Json& column : config.at("columns")) {
    options.columns.push_back({column.get<std::string>(), ColumnType::kBytes});
  }
  for (const auto& [name, given] : config.at("tasks").items()) {
    TaskOptions task;
    task.name = name;
    task.inputs = given.at("inputs").get<std::vector<std::string>>();
    const Json& sampler = given.at("sampler");
    task.unit = sampler.at("by_group").get<bool>() ? DeliveryUnit::kGroup : DeliveryUnit::kRow;
    if (sampler.at("kind") == "balanced") {
      task.ranks = sampler.at("ranks").get<std::uint32_t>();
    }
    task.lease = std::chrono::seconds(given.at("lease").get<int>());
    if (given.contains("max_staleness")) {
      task.max_staleness = given.at("max_staleness").get<std::uint64_t>();
      task.stale_policy =
          given.at("stale_policy") == "drop" ? StalePolicy::kDropForTask : StalePolicy::kWait;
    }
    options.tasks.push_back(task);
  }
  if (!config.at("group_size").is_null()) {
    options.max_group_size = config.at("group_size").get<std::uint32_t>();
  }
  options.max_deliveries = 0;
  return options;
}

/// Plays the events of one trace on a stream index and returns results in the form of the traces.
class TraceAdapter {
public:
  explicit TraceAdapter(const Json& config) {
    auto index = StreamIndex::create(options_of(config));
    EXPECT_TRUE(index.ok()) << index.status().to_string();
    index_ = std::move(index).value();
  }

  StreamIndex& index() { return *index_; }

  Json play(const Json& event) {
    Json result = Json::object();
    if (event.contains("now")) {
      seconds_ = event.at("now").get<std::int64_t>();
    }
    // Every call that takes a time does this itself. Here it shows what expired, for all events.
    const Status moved = index_->expire(now());
    const StreamEffects effects = index_->take_effects();
    if (!effects.returned.empty()) {
      result["expired"] = pairs(effects.returned);
    }
    if (!moved.ok()) {
      seconds_ = latest_;
      result["error"] = reason(moved);
    } else {
      latest_ = seconds_;
      result.update(dispatch(event));
    }
    result["state"] = state();
    return result;
  }

private:
  TimePoint now() const { return TimePoint{} + std::chrono::seconds(seconds_); }

  static std::int64_t seconds_of(TimePoint time) {
    return std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count();
  }

  static std::string reason(const Status& status) {
    return status.message().substr(0, status.message().find(':'));
  }

  Json dispatch(const Json& event) {
    const std::string& name = event.at("ev").get_ref<const std::string&>();
    if (name == "put") {
      return put(event);
    }
    if (name == "fetch") {
      return fetch(event);
    }
    if (name == "ack" || name == "nack" || name == "renew") {
      return settle(name, event);
    }
    if (name == "version") {
      return error_or_nothing(index_->set_version(event.at("to").get<std::uint64_t>()));
    }
    if (name == "restore_version") {
      index_->restore_version(event.at("to").get<std::uint64_t>());
      return Json::object();
    }
    if (name == "drop_consumer") {
      index_->drop_consumer(event.at("consumer").get<std::string>());
      return {{"returned", pairs(index_->take_effects().returned)}};
    }
    if (name == "tick") {
      return Json::object();
    }
    ADD_FAILURE() << "event " << name << " is not known to this test";
    return Json::object();
  }

  static Json error_or_nothing(const Status& status) {
    return status.ok() ? Json::object() : Json{{"error", reason(status)}};
  }

  TaskId task_of(const Json& event) const {
    return index_->options().find_task(event.at("task").get<std::string>()).value_or(TaskId{999});
  }

  SampleId row_of(const Json& id) const {
    const auto known = rows_.find(id.get<std::uint64_t>());
    return known == rows_.end() ? SampleId{kUnseen + id.get<std::uint64_t>()} : known->second;
  }

  Json put(const Json& event) {
    const auto trace_id = event.at("row").get<std::uint64_t>();
    const bool known = rows_.contains(trace_id);
    const bool grouped = event.contains("group");
    const std::string group = grouped ? event.at("group").dump() : "";
    SampleRow row;
    row.id = known ? rows_.at(trace_id) : SampleId{rows_.size()};
    if (grouped) {
      const auto location = groups_.find(group);
      row.group = location == groups_.end() ? GroupId{groups_.size()} : location->second;
      row.group_size = std::max(1U, index_->options().max_group_size);
      row.index_in_group = group_rows_[group];
    }
    std::vector<CellInfo> cells;
    for (const Json& column : event.at("columns")) {
      cells.push_back(
          {index_->options().find_column(column.get<std::string>()).value_or(ColumnId{999}), 1});
    }
    RowFacts facts;
    facts.oldest_step = event.value("version", kNoStep);
    facts.tokens = event.value("tokens", kNoTokens);
    const Status status = index_->put(row, cells, facts);
    if (status.ok() && !known) {
      rows_.emplace(trace_id, row.id);
      names_.emplace(row.id, trace_id);
      if (grouped) {
        groups_.emplace(group, row.group);
        ++group_rows_[group];
      }
    }
    return error_or_nothing(status);
  }

  Json share_of(const GrantedShare& share, const Json& event) {
    Json rows = Json::array();
    for (const GrantedRow& row : share.rows) {
      rows.push_back({names_.at(row.lease.row), row.deliveries});
      given_[{event.at("task"), event.at("consumer"), row.lease.row}] = row.lease;
    }
    return rows;
  }

  Json fetch(const Json& event) {
    const LeaseOptions request{task_of(event), event.at("consumer").get<std::string>(),
                               event.at("n").get<std::uint32_t>(), event.value("min", 1U)};
    const Result<Grant> granted = index_->lease(request, now());
    if (!granted.ok()) {
      // A count of 0 is refused with any minimum; the traces' default minimum is 1.
      return error_or_nothing(granted.status());
    }
    const Grant& grant = granted.value();
    Json result = Json::object();
    if (index_->options().tasks[request.task.value].ranks == 0) {
      result["rows"] = share_of(grant.shares.front(), event);
    } else {
      result["ranks"] = Json::array();
      for (const GrantedShare& share : grant.shares) {
        result["ranks"].push_back(share_of(share, event));
        if (!grant.empty()) {
          result["tokens"].push_back(share.tokens);
        }
      }
    }
    if (!grant.empty()) {
      result["deadline"] = seconds_of(grant.deadline);
    }
    return result;
  }

  Json settle(const std::string& kind, const Json& event) {
    const LeaseHolder holder{task_of(event), event.at("consumer").get<std::string>()};
    std::vector<HeldRowInfo> finished;
    std::map<SampleId, Json> asked;
    for (const Json& id : event.at("rows")) {
      const SampleId row = row_of(id);
      const auto lease = given_.find({event.at("task"), event.at("consumer"), row});
      finished.push_back({lease == given_.end() ? Lease{row} : lease->second});
      asked[row] = id;
    }
    const Result<Settlement> settled = [&] {
      if (kind == "nack") {
        return index_->nack(holder, finished, {Release::kFailed, "nack"}, now());
      }
      if (kind == "renew") {
        return index_->renew(holder, finished, now());
      }
      return index_->complete(holder, finished, now());
    }();
    if (!settled.ok()) {
      return error_or_nothing(settled.status());
    }
    Json result{{"done", Json::array()}, {"refused", Json::array()}};
    for (const SampleId row : settled.value().done) {
      result["done"].push_back(asked.at(row));
    }
    for (const RefusedRow& row : settled.value().refused) {
      result["refused"].push_back(asked.at(row.lease.row));
    }
    return result;
  }

  Json pairs(const std::vector<TaskRow>& rows) const {
    Json list = Json::array();
    for (const TaskRow& row : rows) {
      list.push_back({index_->options().tasks[row.task.value].name, names_.at(row.row)});
    }
    return list;
  }

  Json state() const {
    Json tasks = Json::object();
    for (std::uint32_t i = 0; i < index_->options().tasks.size(); ++i) {
      const TaskId task{i};
      const TaskOptions& options = index_->options().tasks[i];
      Json ready = Json::array();
      for (const SampleId row : index_->ready_rows(task)) {
        ready.push_back(names_.at(row));
      }
      Json deliverable = Json::array();
      for (const std::vector<SampleId>& unit : index_->deliverable(task)) {
        Json rows = Json::array();
        for (const SampleId row : unit) {
          rows.push_back(names_.at(row));
        }
        deliverable.push_back(options.unit == DeliveryUnit::kGroup ? rows : rows.front());
      }
      Json leased = Json::array();
      for (const LeaseView& lease : index_->leases(task)) {
        leased.push_back({names_.at(lease.lease.row), lease.consumer, seconds_of(lease.deadline)});
      }
      const TaskTotals& totals = index_->task_totals(task);
      tasks[options.name] = {{"ready", ready},        {"deliverable", deliverable},
                             {"leased", leased},      {"acked", totals.acked},
                             {"stale", totals.stale}, {"redelivered", totals.redelivered}};
    }
    return {
        {"tasks", tasks}, {"retired", index_->totals().retired()}, {"version", index_->version()}};
  }

  std::unique_ptr<StreamIndex> index_;
  std::int64_t seconds_ = 0;
  std::int64_t latest_ = 0;
  std::map<std::uint64_t, SampleId> rows_;   // by the trace's id
  std::map<SampleId, std::uint64_t> names_;  // the reverse
  std::map<std::string, GroupId> groups_;
  std::map<std::string, std::uint32_t> group_rows_;
  std::map<std::tuple<std::string, std::string, SampleId>, Lease> given_;
};

TEST(StoreTraces, AllAgree) {
  std::ifstream file(TIDEMILL_TEST_DIR "/golden/rl/store_traces.json");
  const Json traces = Json::parse(file).at("traces");
  int num_traces = 0;
  int num_events = 0;
  for (const Json& trace : traces) {
    SCOPED_TRACE(trace.at("id").get<std::string>());
    TraceAdapter adapter(trace.at("config"));
    ++num_traces;
    int number = 0;
    for (const Json& event : trace.at("events")) {
      SCOPED_TRACE("event " + std::to_string(number++) + ": " + event.dump());
      const Json result = adapter.play(event);
      ++num_events;
      ASSERT_EQ(result, event.at("want"));
      const Status sound = adapter.index().check_invariants();
      ASSERT_TRUE(sound.ok()) << sound.to_string();
    }
  }
  std::cout << "store traces: " << num_traces << " traces, " << num_events << " events checked\n";
  RecordProperty("traces", num_traces);
  RecordProperty("events", num_events);
  EXPECT_EQ(num_traces, 62);
  EXPECT_EQ(num_events, 1579);
}

}  // namespace
}  // namespace tidemill::storage
