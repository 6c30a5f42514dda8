// SPDX-License-Identifier: Apache-2.0
// Plays random operations on a stream and on a plain model of its rules, and compares their whole
// state after each one.
#include "tests/storage/stream/stream_model.hpp"

#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "storage/stream/stream_table.hpp"
#include "storage/versions/admission.hpp"

namespace tidemill::storage {
namespace {

constexpr int kNumSequences = 1500;
constexpr int kNumOperations = 160;

/// Returns a random declaration like those of runs: rollout, reward, sometimes an advantage per
/// group and an observer, and a trainer of any kind.
StreamOptions random_options(RandomStream& random) {
  const auto chance = [&](std::uint64_t percent) { return random.below(100) < percent; };
  StreamOptions options;
  options.columns = {{"prompt", ColumnType::kInt32}, {"response", ColumnType::kInt32},
                     {"reward", ColumnType::kFloat}, {"advantage", ColumnType::kFloat},
                     {"mask", ColumnType::kInt32},   {"partial", ColumnType::kInt32}};
  options.max_group_size = chance(80) ? static_cast<std::uint32_t>(1 + random.below(4)) : 0;
  const bool groups = options.max_group_size > 0;
  const auto seconds = [&] { return std::chrono::seconds(2 + random.below(8)); };
  options.tasks.push_back({"rollout", {"prompt"}, {"response"}});
  if (chance(50)) {
    options.tasks.back().optional_outputs = {"mask"};
    options.tasks.back().progress = {"partial"};
  }
  options.tasks.push_back({"reward", {"prompt", "response"}, {"reward"}});
  const bool advantage = groups && chance(50);
  if (advantage) {
    options.tasks.push_back({"advantage", {"reward"}, {"advantage"}, DeliveryUnit::kGroup});
  }
  if (chance(20)) {
    options.tasks.push_back({"observer", {"response"}, {}});
  }
  TaskOptions train{"train", {"response", advantage ? "advantage" : "reward"}, {}};
  train.unit = groups && chance(70) ? DeliveryUnit::kGroup : DeliveryUnit::kRow;
  train.order = chance(40) ? DeliveryOrder::kStrict : DeliveryOrder::kOldestReady;
  train.ranks = chance(30) ? static_cast<std::uint32_t>(1 + random.below(3)) : 0;
  if (chance(60)) {
    train.max_staleness = random.below(3);
    train.stale_policy = static_cast<StalePolicy>(random.below(3));
  }
  options.tasks.push_back(train);
  for (TaskOptions& task : options.tasks) {
    task.lease = seconds();
  }
  options.max_deliveries = static_cast<std::uint32_t>(random.below(4));
  options.on_failed = chance(50) ? OnFailedRow::kShrink : OnFailedRow::kDropGroup;
  options.accept_column = chance(80) ? "response" : "";
  if (chance(40)) {
    options.group_bytes = 16 * (1 + random.below(6));
    options.limit_bytes = options.group_bytes * (1 + random.below(6));
  }
  return options;
}

/// One random sequence.
class Play {
public:
  explicit Play(std::uint64_t seed)
      : random_(seed),
        options_(random_options(random_)),
        model_(options_),
        saved_model_(model_),
        stream_(StreamTable::create(options_).value()),
        saved_(stream_->snapshot()) {}

  void run() {
    for (int i = 0; i < kNumOperations && !::testing::Test::HasFailure(); ++i) {
      step();
      compare();
    }
  }

  std::map<std::string, int> seen;  // operations and outcomes, to show that all were reached

private:
  std::uint64_t below(std::uint64_t bound) { return random_.below(bound); }
  bool chance(std::uint64_t percent) { return below(100) < percent; }
  TimePoint now() const { return TimePoint{} + std::chrono::seconds(seconds_); }

  void expect_reason(const Status& status, const std::string& reason, const std::string& what) {
    last_ = what + (reason.empty() ? "" : " refused: " + reason);
    ++seen[what + (reason.empty() ? "" : "/" + reason)];
    const std::string got =
        status.ok() ? "" : status.message().substr(0, status.message().find(':'));
    EXPECT_EQ(got, reason) << what << " " << status.to_string();
  }

  /// Advances the time by a random amount. The model is told here, the stream by the next call.
  void tick() {
    seconds_ += chance(40) ? static_cast<std::int64_t>(below(3)) : 0;
    model_.move_clock(seconds_);
  }

  void step() {
    const std::uint64_t kind = below(100);
    if (kind < 28) {
      put_new();
    } else if (kind < 31) {
      put_known();
    } else if (kind < 60) {
      lease();
    } else if (kind < 89) {
      settle();
    } else if (kind < 91) {
      tick();
      EXPECT_TRUE(stream_->expire(now()).ok());
      last_ = "expire";
    } else if (kind < 93) {
      drop_consumer();
    } else if (kind < 95) {
      apply_a_verdict();
    } else if (kind < 98) {
      change_version();
    } else {
      save_or_restore();
    }
  }

  void put_new() {
    SampleRow row;
    row.id = {next_row_ + (chance(10) ? below(3) : 0)};
    if (chance(3) && next_row_ > 0) {
      row.id = {below(next_row_)};
    }
    const bool grouped = options_.max_group_size > 0 ? chance(90) : chance(3);
    if (grouped) {
      if (!open_ || chance(5)) {
        open_ = OpenGroup{next_group_, 1 + below(std::max(1U, options_.max_group_size)), 0};
      }
      row.group = {chance(3) && next_group_ > 0 ? below(next_group_) : open_->id};
      row.group_size = static_cast<std::uint32_t>(open_->size + (chance(2) ? 1 : 0));
      row.index_in_group = static_cast<std::uint32_t>(chance(3) ? below(5) : open_->next);
    }
    const std::vector<ColumnValue> values = cells({0});
    const RowFacts facts{kNoStep, chance(30) ? below(20) : kNoTokens};
    const std::string reason = model_.put(row, infos(values), facts);
    expect_reason(stream_->put(row, values, facts), reason, "put");
    if (reason.empty() && model_.rows.rbegin()->first == row.id.value) {
      next_row_ = row.id.value + 1;
    }
    if (reason.empty() && grouped && row.group.value == open_->id) {
      next_group_ = open_->id + 1;
      if (++open_->next == open_->size) {
        open_.reset();
      }
    } else if (reason == "bad_group" || reason == "group_full" || reason == "group_retired") {
      if (chance(50)) {
        open_.reset();
      }
    }
  }

  void put_known() {
    if (next_row_ == 0) {
      return;
    }
    SampleRow row;
    row.id = {below(next_row_)};
    if (chance(20)) {
      row.group = {below(next_group_ + 1)};
      row.group_size = 1;
    }
    std::vector<ColumnValue> values = cells({static_cast<std::uint32_t>(1 + below(3))});
    if (chance(10)) {
      values.push_back({ColumnId{static_cast<std::uint32_t>(below(9))}, Buffer{}});
    }
    const RowFacts facts{chance(50) ? below(5) : kNoStep, chance(30) ? below(20) : kNoTokens};
    const std::string reason = model_.put(row, infos(values), facts);
    expect_reason(stream_->put(row, values, facts), reason, "write");
  }

  void lease() {
    const auto task = static_cast<std::uint32_t>(below(options_.tasks.size()));
    const std::uint32_t ranks = std::max(1U, options_.tasks[task].ranks);
    auto count = static_cast<std::uint32_t>(ranks * (1 + below(3)));
    count = chance(3) ? count - 1 : count;
    const auto at_least = static_cast<std::uint32_t>(chance(70) ? 1 : 1 + below(3));
    const std::string consumer(1, static_cast<char>('a' + below(3)));
    tick();
    std::vector<StreamModel::Share> expected;
    const std::string reason = model_.lease(task, consumer, count, at_least, expected);
    const auto batch = stream_->lease({TaskId{task}, consumer, count, at_least}, now());
    expect_reason(batch.status(), reason, "lease");
    if (!batch.ok()) {
      return;
    }
    std::vector<StreamModel::Share> got;
    for (const LeasedShare& share : batch.value().shares) {
      StreamModel::Share& rows = got.emplace_back();
      for (const LeasedRow& row : share.rows) {
        rows.emplace_back(row.lease, row.deliveries);
        given_[task].push_back(row.lease);
        consumers_[row.lease.generation] = consumer;
        std::size_t columns = options_.tasks[task].inputs.size();
        for (const std::string& column : options_.tasks[task].progress) {
          columns +=
              model_.rows.at(row.row.id.value).columns.count(options_.find_column(column)->value);
        }
        EXPECT_EQ(row.columns.size(), columns);
      }
    }
    EXPECT_EQ(got, expected);
    ++seen[batch.value().empty() ? "lease/empty" : "lease/granted"];
  }

  /// Picks leases as consumers do, and sometimes as faulty consumers do.
  std::vector<Lease> pick_leases(std::uint32_t task) {
    std::vector<Lease> picked;
    std::vector<Lease>& held = given_[task];
    if (held.empty() || chance(3)) {
      return {{{below(next_row_ + 1)}, 0, below(5)}};
    }
    const Lease& chosen = chance(75) ? held.back() : held[below(held.size())];
    const std::uint64_t generation = chosen.generation;
    for (const Lease& lease : held) {
      if (lease.generation == generation && (chance(97) || picked.empty())) {
        picked.push_back(lease);
      }
    }
    if (chance(2)) {
      picked.push_back(picked.front());
    }
    if (chance(5)) {
      picked.push_back(held[below(held.size())]);
    }
    if (chance(5)) {
      ++picked.front().generation;
    }
    if (chance(2)) {
      ++picked.front().incarnation;
    }
    return picked;
  }

  /// Returns the columns that a consumer writes with `act`, sometimes as a faulty one does.
  std::vector<std::uint32_t> columns_of(const TaskOptions& task, StreamModel::Act act) {
    std::vector<std::uint32_t> columns;
    const auto add = [&](const std::vector<std::string>& names) {
      for (const std::string& name : names) {
        columns.push_back(options_.find_column(name)->value);
      }
    };
    const bool keeps = act == StreamModel::Act::kLeave || act == StreamModel::Act::kRenew;
    if (act == StreamModel::Act::kComplete) {
      add(task.outputs);
      add(chance(50) ? task.optional_outputs : std::vector<std::string>());
    } else if (keeps ? chance(70) : chance(3)) {
      add(task.progress);
    }
    if (chance(3)) {
      columns.push_back(static_cast<std::uint32_t>(below(6)));
    }
    return columns;
  }

  void settle() {
    auto task = static_cast<std::uint32_t>(below(options_.tasks.size()));
    for (int tries = 0; tries < 4 && model_.num_leased(task) == 0; ++tries) {
      task = static_cast<std::uint32_t>(below(options_.tasks.size()));
    }
    const std::uint64_t kind = below(20);
    const auto act = kind < 16   ? StreamModel::Act::kComplete
                     : kind < 17 ? StreamModel::Act::kNack
                     : kind < 18 ? StreamModel::Act::kLose
                     : kind < 19 ? StreamModel::Act::kLeave
                                 : StreamModel::Act::kRenew;
    const std::vector<Lease> leases = pick_leases(task);
    const auto known = consumers_.find(leases.front().generation);
    const bool honest = known != consumers_.end() && chance(97);
    const LeaseHolder holder{TaskId{task}, honest ? known->second : "another consumer"};
    std::vector<HeldRow> rows;
    std::vector<HeldRowInfo> asked;
    for (const Lease& lease : leases) {
      const RowFacts facts{chance(60) ? below(6) : kNoStep, chance(40) ? below(20) : kNoTokens};
      rows.push_back({lease, cells(columns_of(options_.tasks[task], act)), facts});
      asked.push_back({lease, infos(rows.back().columns), facts});
    }
    tick();
    Settlement expected;
    const std::string reason = model_.settle(task, holder.consumer, act, asked, expected);
    Result<Settlement> settled = [&] {
      switch (act) {
        case StreamModel::Act::kNack:
          return stream_->nack(holder, rows, {Release::kFailed, "test"}, now());
        case StreamModel::Act::kLose:
          return stream_->nack(holder, rows, {Release::kLost, "test"}, now());
        case StreamModel::Act::kLeave:
          return stream_->nack(holder, rows, {Release::kLeft, "test"}, now());
        case StreamModel::Act::kRenew: return stream_->renew(holder, rows, now());
        case StreamModel::Act::kComplete: break;
      }
      return stream_->complete(holder, rows, now());
    }();
    expect_reason(settled.status(), reason, "settle");
    if (settled.ok()) {
      for (RefusedRow& row : settled.value().refused) {  // the model has no texts
        EXPECT_EQ(row.detail.empty(), !is_content_refusal(row.reason));
        row.detail.clear();
      }
      EXPECT_EQ(settled.value(), expected);
      for (const RefusedRow& row : settled.value().refused) {
        ++seen["settle/row/" + std::string(refusal_name(row.reason))];
      }
      if (act == StreamModel::Act::kComplete && !settled.value().done.empty()) {
        ++seen["settle/acked"];
      }
      if (act != StreamModel::Act::kComplete && !rows.front().columns.empty() &&
          !settled.value().done.empty()) {
        ++seen["settle/progress"];
      }
    }
  }

  void drop_consumer() {
    const std::string consumer(1, static_cast<char>('a' + below(4)));
    model_.drop_consumer(consumer);
    stream_->drop_consumer(consumer);
    last_ = "drop_consumer";
  }

  void apply_a_verdict() {
    const auto kind = static_cast<VerdictKind>(below(3));
    if (chance(50)) {
      const std::uint64_t row = below(next_row_ + 1);
      const std::string reason = model_.apply_verdict(row, kind);
      expect_reason(stream_->apply_verdict({row}, {kind, "test"}), reason, "verdict");
    } else {
      const std::uint64_t group = below(next_group_ + 1);
      const std::string reason = model_.apply_group_verdict(group, kind);
      expect_reason(stream_->apply_group_verdict({group}, {kind, "test"}), reason, "group_verdict");
    }
  }

  void change_version() {
    if (chance(90)) {
      const bool back = model_.version > 0 && chance(5);
      const std::uint64_t to = back ? below(model_.version) : model_.version + below(2);
      expect_reason(stream_->set_version(to), back ? "version_regress" : "", "set_version");
      model_.version = back ? model_.version : to;
    } else {
      model_.version = below(model_.version + 2);
      stream_->restore_version(model_.version);
      last_ = "restore_version";
    }
  }

  void save_or_restore() {
    if (chance(80)) {
      saved_model_ = model_;
      saved_ = stream_->snapshot();
      saved_next_row_ = next_row_;
      saved_next_group_ = next_group_;
      saved_open_ = open_;
      last_ = "snapshot";
    } else {
      model_.restore(saved_model_);
      const Status restored = stream_->restore(saved_);
      ASSERT_TRUE(restored.ok()) << restored.to_string();
      next_row_ = saved_next_row_;
      next_group_ = saved_next_group_;
      open_ = saved_open_;
      last_ = "restore";
    }
    ++seen[last_];
  }

  std::vector<ColumnValue> cells(const std::vector<std::uint32_t>& columns) {
    std::vector<ColumnValue> values;
    for (const std::uint32_t column : columns) {
      const std::size_t elements = below(4);
      const DType dtype =
          options_.columns[column].type == ColumnType::kInt32 ? DType::kI32 : DType::kF32;
      values.push_back(
          {ColumnId{column}, Buffer::adopt(std::vector<std::int32_t>(elements, 7), dtype)});
    }
    return values;
  }

  static std::vector<CellInfo> infos(const std::vector<ColumnValue>& values) {
    std::vector<CellInfo> list;
    for (const ColumnValue& value : values) {
      list.push_back({value.column, value.value.size_bytes(), value.value.identity().dtype});
    }
    return list;
  }

  void compare() {
    SCOPED_TRACE("after " + last_);
    const Status sound = stream_->check_invariants();
    EXPECT_TRUE(sound.ok()) << sound.to_string();
    const StreamIndex& index = stream_->index();
    for (std::uint32_t i = 0; i < options_.tasks.size(); ++i) {
      SCOPED_TRACE("task " + options_.tasks[i].name);
      const TaskId task{i};
      EXPECT_EQ(index.ready_rows(task), model_.ready_rows(i));
      EXPECT_EQ(index.deliverable(task), model_.deliverable(i));
      EXPECT_EQ(index.task_totals(task), model_.totals[i]);
      compare_leases(task);
    }
    const StreamTotals& totals = index.totals();
    EXPECT_EQ(totals.admitted, model_.rows.size());
    EXPECT_EQ(totals.trained, model_.count(RowOutcome::kTrained));
    EXPECT_EQ(totals.dropped, model_.count(RowOutcome::kDropped));
    EXPECT_EQ(totals.filtered, model_.count(RowOutcome::kFiltered));
    EXPECT_EQ(totals.failed, model_.count(RowOutcome::kFailed));
    const auto [used, reserved] = model_.used_and_reserved();
    EXPECT_EQ(index.bytes_used(), used);
    EXPECT_EQ(index.bytes_reserved(), reserved);
    EXPECT_EQ(index.version(), model_.version);
    if (model_.counts_slots()) {
      EXPECT_EQ(index.held_slots(), model_.held());
    }
    compare_effects();
  }

  void compare_leases(TaskId task) {
    std::vector<std::string> expected;
    for (const auto& [id, row] : model_.rows) {
      const StreamModel::ModelCell& cell = row.cells[task.value];
      if (row.live && cell.state == CellState::kLeased) {
        expected.push_back(std::to_string(id) + " " + cell.consumer + " " +
                           std::to_string(cell.deadline) + " " + std::to_string(cell.generation));
      }
    }
    std::vector<std::string> got;
    for (const LeaseView& lease : stream_->index().leases(task)) {
      const auto deadline =
          std::chrono::duration_cast<std::chrono::seconds>(lease.deadline.time_since_epoch());
      got.push_back(std::to_string(lease.lease.row.value) + " " + lease.consumer + " " +
                    std::to_string(deadline.count()) + " " +
                    std::to_string(lease.lease.generation));
    }
    EXPECT_EQ(got, expected);
  }

  void compare_effects() {
    const StreamEffects effects = stream_->take_effects();
    std::set<std::pair<std::uint64_t, RowOutcome>> retired;
    for (const RetiredRow& row : effects.retired) {
      retired.emplace(row.id.value, row.outcome);
      ++seen["retired/" + std::string(row_outcome_name(row.outcome))];
    }
    EXPECT_EQ(retired, model_.retired);
    EXPECT_EQ(retired.size(), effects.retired.size());
    std::vector<std::pair<std::uint32_t, std::uint64_t>> returned;
    for (const TaskRow& row : effects.returned) {
      returned.emplace_back(row.task.value, row.row.value);
    }
    EXPECT_EQ(returned, model_.returned);
    EXPECT_EQ(effects.slots, model_.slots);
    update_ledger(effects.slots);
    seen["slots/forfeited"] += static_cast<int>(effects.slots.forfeited);
    seen["slots/aborted"] += static_cast<int>(effects.slots.aborted);
    seen["slots/rejected"] += static_cast<int>(effects.slots.rejected);
    model_.retired.clear();
    model_.returned.clear();
    model_.slots = {};
  }

  /// Checks that an admission ledger accepts what the stream reports, and that both agree on slots.
  void update_ledger(const SlotChanges& slots) {
    if (!model_.counts_slots()) {
      return;
    }
    std::int64_t started = 0;
    for (const auto& [key, group] : model_.groups) {
      started += group.size;
    }
    if (last_ == "restore") {
      const HeldSlots held = stream_->index().held_slots();
      EXPECT_TRUE(ledger_.restart(0, held.accepted).ok());
      EXPECT_TRUE(ledger_.force_submit(held.running).ok());
    } else {
      EXPECT_TRUE(ledger_.force_submit(started - started_).ok());
    }
    started_ = started;
    const Status applied = ledger_.apply(slots);
    EXPECT_TRUE(applied.ok()) << applied.to_string();
    EXPECT_EQ(ledger_.state().running, stream_->index().held_slots().running);
  }

  struct OpenGroup {
    std::uint64_t id = 0;
    std::uint64_t size = 1;
    std::uint64_t next = 0;
  };

  RandomStream random_;
  StreamOptions options_;
  StreamModel model_;
  StreamModel saved_model_;
  std::unique_ptr<StreamTable> stream_;
  StreamSnapshot saved_;
  AdmissionLedger ledger_ = AdmissionLedger::create({}).value();
  std::int64_t started_ = 0;  // slots of all groups that were ever started
  std::int64_t seconds_ = 0;
  std::uint64_t next_row_ = 0;
  std::uint64_t next_group_ = 0;
  std::uint64_t saved_next_row_ = 0;
  std::uint64_t saved_next_group_ = 0;
  std::optional<OpenGroup> open_;
  std::optional<OpenGroup> saved_open_;
  std::map<std::uint32_t, std::vector<Lease>> given_;  // every lease ever given, by task
  std::map<std::uint64_t, std::string> consumers_;     // by generation
  std::string last_;
};

TEST(StreamModel, RandomSequencesAgree) {
  std::map<std::string, int> seen;
  for (std::uint64_t seed = 0; seed < kNumSequences; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Play play(seed);
    play.run();
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
    for (const auto& [name, count] : play.seen) {
      seen[name] += count;
    }
  }
  std::cout << "stream model: " << kNumSequences << " sequences of " << kNumOperations
            << " operations\n";
  // Each of these must have been reached often, or the comparison would prove little about it.
  for (const char* name : {"put",
                           "put/byte_limit",
                           "put/row_retired",
                           "put/no_groups",
                           "put/bad_group",
                           "put/group_full",
                           "put/group_retired",
                           "write",
                           "write/row_retired",
                           "write/group_mismatch",
                           "write/duplicate_column",
                           "write/unknown_column",
                           "lease/granted",
                           "lease/empty",
                           "lease/bad_count",
                           "settle/acked",
                           "settle/progress",
                           "settle/duplicate_row",
                           "settle/partial_group",
                           "settle/row/unknown_row",
                           "settle/row/not_leased",
                           "settle/row/old_lease",
                           "settle/row/other_incarnation",
                           "settle/row/other_consumer",
                           "settle/row/bad_column",
                           "settle/row/duplicate_column",
                           "settle/row/group_refused",
                           "verdict",
                           "group_verdict",
                           "set_version/version_regress",
                           "snapshot",
                           "restore",
                           "retired/trained",
                           "retired/dropped",
                           "retired/filtered",
                           "retired/failed",
                           "slots/forfeited",
                           "slots/aborted",
                           "slots/rejected"}) {
    EXPECT_GT(seen[name], 20) << name;
  }
}

}  // namespace
}  // namespace tidemill::storage
