// SPDX-License-Identifier: Apache-2.0
// Tests that every message type is serialized and deserialized without loss. CAF 0.17 writes no
// bytes and reports success for a type that it cannot serialize, and no warning shows an `inspect`
// that omits a field. These tests find both. A type without an example does not compile.
#include <iostream>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <caf/all.hpp>
#include <gtest/gtest.h>

#include "actors/type_ids.hpp"

namespace tidemill::test {
namespace {

using namespace tidemill::actors;  // NOLINT(google-build-using-namespace): names all its messages

// -- one filled example of each type --------------------------------------------------------------

template <class T>
struct Example;  // each message type needs a specialization below

Buffer some_buffer() {
  return Buffer::adopt(std::vector<float>{1.0F, 2.0F}, DType::kF32);
}
Tensor some_tensor() {
  return {DType::kF32, {2}, some_buffer()};
}
engines::VersionSpan some_span() {
  return {{1, 2, 3}, 4};
}
engines::Snapshot some_snapshot() {
  return {
      {1, 2, 3}, "base digest", "adapter digest", {{"w", some_tensor()}}, {{"a", some_tensor()}}};
}
// A handle as it is read back: only whether there is a constraint is serialized.
engines::ConstraintHandle some_constraint() {
  engines::ConstraintHandle handle;
  handle.is_set = true;
  return handle;
}

engines::SamplingOptions some_sampling() {
  return {0.5F, 10, 0.9F, 0.1F, 1.5F, 0.25F, 0.125F, {{7, -1.0F}}};
}
engines::TrainSequence some_sequence() {
  return {{5},           {1, 2},        {0, 1},        {0.0F, 0.5F}, {0.0F, -1.0F},
          {0.0F, -2.0F}, {0.0F, -3.0F}, {some_span()}, {1.0F, 0.5F}};
}
storage::SampleRow some_row() {
  return {{6}, {2}, 1, 3, 4, 5, 7};
}
storage::ColumnValue some_cell() {
  return {{3}, some_buffer()};
}
StreamCapture some_capture() {
  storage::StreamSnapshot snapshot;
  snapshot.index.columns = {"reward"};
  snapshot.index.tasks = {"train"};
  snapshot.index.totals = {9, 1, 2, 3, 4};
  snapshot.index.task_totals = {{1, 2, 3, 4}};
  snapshot.index.groups = {{{2}, 1, {6}, 0, 0, 1, {1}}};
  snapshot.index.rows = {{some_row(), 8, 7, {3, 40}, 1, {{storage::CellState::kReady, 2, 1}}}};
  snapshot.rows = {{{6}, {some_cell()}}};
  return {1, 2, 3, 4, snapshot};
}
SampleRecord some_sample() {
  return {{8},    {4},           "prompt", "answer",       0.5, {{"form", 0.25}}, -0.5F,
          "stop", {some_span()}, {1, 2},   {-0.5F, -0.25F}};
}

// NOLINTBEGIN(bugprone-macro-parentheses): `type` is a type's name
#define TIDEMILL_EXAMPLE(type, ...)                 \
  template <>                                       \
  struct Example<type> {                            \
    static type make() { return type __VA_ARGS__; } \
  }
// NOLINTEND(bugprone-macro-parentheses)

TIDEMILL_EXAMPLE(SampleId, {17});
TIDEMILL_EXAMPLE(PolicyVersion, {1, 2, 3});
TIDEMILL_EXAMPLE(engines::RewardRequest, {{5}, "prompt", "response", "answer", "{}"});
TIDEMILL_EXAMPLE(engines::RewardResult, {{5}, 0.5, "error", {1.0, 2.0}});
TIDEMILL_EXAMPLE(
    engines::RolloutRequest,
    {{9},     {1, 2}, some_sampling(), 11,   13,   12, {2}, {"stop"}, some_constraint(),
     "tutor", 3,      Duration(99),    true, true, 5,  6,   true,     engines::Priority::kHigh,
     "red",   "salt"});
TIDEMILL_EXAMPLE(engines::RolloutResult, {{9},
                                          {4, 5},
                                          {-1.0F, -2.0F},
                                          {some_span()},
                                          engines::FinishReason::kLength,
                                          "why",
                                          {-3.0F},
                                          {0.5F},
                                          {{4, -0.5F}},
                                          {{5, -0.25F}},
                                          7});
TIDEMILL_EXAMPLE(engines::Snapshot, (some_snapshot()));
TIDEMILL_EXAMPLE(storage::SlotChanges, {1, 2, 3, 4});
TIDEMILL_EXAMPLE(storage::Settlement,
                 {{{1}, {2}}, {{{{3}, 1, 2}, storage::Refusal::kBadColumn, "why"}}});
TIDEMILL_EXAMPLE(TrainRequest, {{{{some_sequence()}, {{5}}}},
                                2,
                                0.5F,
                                true,
                                true,
                                {1, 2, 4},
                                {some_sequence()},
                                some_snapshot()});
TIDEMILL_EXAMPLE(TrainOutcome,
                 {{{{{"loss", 0.5}}, 1.5, 0.001, 3}}, some_snapshot(), {0.25, 99}, {-1.5, 7}});
TIDEMILL_EXAMPLE(PassOutcome, {{{-1.0F, -2.0F}}, {{"loss", 0.5}}});
TIDEMILL_EXAMPLE(engines::UpdateReport, {{{"loss", 0.5}}, 1.5, 0.001, 3});
TIDEMILL_EXAMPLE(JobId, {5});
storage::JobSpec some_spec() {
  return {"base",
          "file-1",
          "file-2",
          "mine",
          3,
          {{"a", "b"}},
          storage::JobMethod::kReinforcement,
          {1, 2, 0.5, 3, 4},
          {storage::GraderKind::kStringCheck, "n", storage::StringOperation::kLike, "i", "r", "{}"},
          "{}"};
}
storage::JobRecord some_job() {
  return {"ftjob-1", 1, 2,  some_spec(), storage::JobState::kFailed, true, {5, 6, 0.25, 7, 8},
          "tuned",   9, 10, {"file-3"},  {"code", "why", "model"}};
}
TIDEMILL_EXAMPLE(storage::JobSpec, (some_spec()));
TIDEMILL_EXAMPLE(storage::JobRecord, (some_job()));
TIDEMILL_EXAMPLE(storage::PageQuery, {"ftjob-1", "ftevent-1", 7, {{"team", "red"}}});
TIDEMILL_EXAMPLE(storage::JobPage, {{some_job()}, true});
TIDEMILL_EXAMPLE(storage::JobEventPage, {{{"ftevent-1", 1, storage::EventLevel::kWarn,
                                           storage::EventType::kMetrics, "m", "{}"}},
                                         true});
TIDEMILL_EXAMPLE(storage::JobCheckpointPage, {"ftjob-1", {{"ftckpt-1", 1, 2, "{}", "m"}}, true});
TIDEMILL_EXAMPLE(OptimizerState, {{{"m", some_tensor()}}});
TIDEMILL_EXAMPLE(TrainingState, {some_snapshot(), {{{"m", some_tensor()}}}});
TIDEMILL_EXAMPLE(
    AdapterRequest,
    {AdapterAction::kLoad, "tutor", "adapters/tutor", {1, 2, 3}, "{}", {{"a", some_tensor()}}, 6});
TIDEMILL_EXAMPLE(AdapterList, {{{"tutor", {1, 2, 3}, 4, 5, 6}}});
TIDEMILL_EXAMPLE(TokenBatch, {{{{9}, 3, {4}, {-1.0F}, {some_span()}, {{4, -0.5F}}}}});
TIDEMILL_EXAMPLE(DeviceUsage, {1, 2, 0.5, 3, 4, 5, 6, 7, 8, 1.5, 2.5, 0.1, 0.2, 0.3, 0.4});
TIDEMILL_EXAMPLE(HttpRequest, {1, "GET", "/health", {{"host", "localhost"}}, "body"});
TIDEMILL_EXAMPLE(Caller, {"tenant", engines::Priority::kHigh, false});
TIDEMILL_EXAMPLE(QuarantinedDevice, {"device", "why", true});
TIDEMILL_EXAMPLE(NewGroup, {21, {{some_row(), {some_cell()}}}});
TIDEMILL_EXAMPLE(LeaseRequest, {{1}, "consumer", 4, 2, 77, Duration{5}});
TIDEMILL_EXAMPLE(
    LeaseReply,
    {{{some_row(), {{6}, 3, 2}, 1, {3, 40}, {some_cell()}}}, Duration{9}, "reward", true, true});
TIDEMILL_EXAMPLE(AckRequest, {{1}, "consumer", {{{{6}, 3, 2}, {some_cell()}, {3, 40}}}});
TIDEMILL_EXAMPLE(LeaseUpdate, {{1},
                               "consumer",
                               {{{{6}, 3, 2}, {some_cell()}, {3, 40}}},
                               storage::Release::kFailed,
                               "reason"});
TIDEMILL_EXAMPLE(GroupVerdict, {{2}, {storage::VerdictKind::kFilter, "no signal"}});
TIDEMILL_EXAMPLE(StreamCapture, (some_capture()));
TIDEMILL_EXAMPLE(StreamStatus,
                 {1, 2, 3, 4, 5, 6, 7, 8, 9, {0.5, 1.5}, 10, 11, "why", 12, {1, 2, 3}});
TIDEMILL_EXAMPLE(AdmissionRequest, {3, Duration{4}});
TIDEMILL_EXAMPLE(Admission, {1, 2, 3, "version 4"});
TIDEMILL_EXAMPLE(KeeperStatus,
                 {1, 2, 3, 4, 5, 6, 7, {{"device", 8, 9, "why", DeviceState::kLeaving}}});
TIDEMILL_EXAMPLE(DeviceStatus, {"device", 8, 9, "why", DeviceState::kLeaving});
TIDEMILL_EXAMPLE(DeviceJoin, {"device-7", nullptr, nullptr});
TIDEMILL_EXAMPLE(StepRecord, {"train", 5, {{"reward_mean", 0.5}}, {some_sample()}});
TIDEMILL_EXAMPLE(storage::RecordMarks, {1, 2, "metrics", "samples"});
TIDEMILL_EXAMPLE(EvalReport, {1, 2, 3, 0.5, 0.75, 4, {0.25}});
TIDEMILL_EXAMPLE(WorkerStatus, {"rollout-0", "rollout", WorkerState::kWaiting, 2});
TIDEMILL_EXAMPLE(StartWorker, {"reward-3", "reward", 3, 9});
TIDEMILL_EXAMPLE(WorkerList, {{{"rollout-0", "rollout", WorkerState::kWaiting, 2}}});
TIDEMILL_EXAMPLE(RunSummary, {RunEnd::kData, 7, some_snapshot(), "why"});

// -- the fields that `inspect` names, compared with those of the struct ---------------------------

// Converts to any field type, to find out with how many fields an aggregate can be initialized.
struct AnyField {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor): never called
};

template <class T, class... Fields>
concept MadeOf = requires {
  T{std::declval<Fields>()...};
};

template <class T, class... Fields>
constexpr std::size_t num_fields() {
  if constexpr (MadeOf<T, Fields..., AnyField>) {
    return num_fields<T, Fields..., AnyField>();
  } else {
    return sizeof...(Fields);
  }
}

class FieldCounter;
template <class T>
concept Inspected = std::is_class_v<T> && requires(FieldCounter& f, T& x) {
  inspect(f, x);
};

// An inspector that compares the number of fields that `inspect` names with the number that the
// struct has, recursively.
class FieldCounter {
public:
  using result_type = void;

  template <class... Ts>
  void operator()(Ts&... fields) {
    named_ = sizeof...(Ts);
    (visit(fields), ...);
  }

  // Return the types whose `inspect` omits a field, and the number of types that were checked.
  [[nodiscard]] const std::vector<std::string>& incomplete_types() const {
    return incomplete_types_;
  }
  [[nodiscard]] std::size_t num_structs() const { return num_structs_; }

  template <class T>
  void check(T& value) {
    FieldCounter inner;
    inspect(inner, value);
    ++num_structs_;
    if constexpr (std::is_aggregate_v<T>) {
      if (inner.named_ != num_fields<T>()) {
        incomplete_types_.push_back(std::string(typeid(T).name()) + ": " +
                                    std::to_string(inner.named_) + " of " +
                                    std::to_string(num_fields<T>()) + " fields");
      }
    }
    incomplete_types_.insert(incomplete_types_.end(), inner.incomplete_types_.begin(),
                             inner.incomplete_types_.end());
    num_structs_ += inner.num_structs_;
  }

private:
  template <class T>
  void visit(T& field) {
    if constexpr (Inspected<T>) {
      check(field);
    }
  }
  void visit(std::string& /*text*/) {}
  void visit(caf::strong_actor_ptr& /*handle*/) {}  // its fields are those of CAF
  template <class T>
  void visit(std::vector<T>& values) {
    ASSERT_FALSE(values.empty())
        << "the example has an empty list, so its elements are not checked";
    visit(values.front());
  }
  template <class K, class V>
  void visit(std::map<K, V>& values) {
    ASSERT_FALSE(values.empty()) << "the example has an empty map, so its elements are not checked";
    visit(values.begin()->second);
  }
  template <class A, class B>
  void visit(std::pair<A, B>& values) {
    visit(values.first);
    visit(values.second);
  }

  std::size_t named_ = 0;
  std::vector<std::string> incomplete_types_;
  std::size_t num_structs_ = 0;
};

// -- serialization --------------------------------------------------------------------------------

std::vector<char> bytes_of(caf::actor_system& system, const caf::message& message) {
  std::vector<char> bytes;
  caf::binary_serializer sink(system, bytes);
  EXPECT_FALSE(sink(const_cast<caf::message&>(message)));  // NOLINT: an inspector takes no const
  return bytes;
}

template <class T>
std::vector<char> bytes_of_value(caf::actor_system& system, T value) {
  std::vector<char> bytes;
  caf::binary_serializer sink(system, bytes);
  EXPECT_FALSE(sink(value));
  return bytes;
}

template <class T>
void check_type(caf::actor_system& system) {
  const std::string name = caf::type_name<T>::value;
  SCOPED_TRACE(name);
  T example = Example<T>::make();

  // As the only element of a message, which is how the type is sent, under its registered name.
  const std::vector<char> bytes = bytes_of(system, caf::make_message(example));
  EXPECT_GT(bytes.size(), bytes_of(system, caf::message{}).size());
  EXPECT_NE(std::string(bytes.begin(), bytes.end()).find(name), std::string::npos);
  caf::message back;
  caf::binary_deserializer source(system, bytes);
  ASSERT_FALSE(source(back));
  EXPECT_EQ(source.remaining(), 0U);
  ASSERT_TRUE(back.match_elements<T>());

  // The copy is equal: it has the same text and the same bytes, which are not those of an empty
  // value.
  EXPECT_EQ(caf::deep_to_string(back.get_as<T>(0)), caf::deep_to_string(example));
  EXPECT_EQ(bytes_of(system, back), bytes);
  EXPECT_GT(bytes_of_value(system, example).size(), 0U);
  EXPECT_NE(bytes_of_value(system, example), bytes_of_value(system, T{}));

  FieldCounter counter;
  counter.check(example);
  for (const std::string& type : counter.incomplete_types()) {
    ADD_FAILURE() << "inspect omits fields of " << type;
  }
}

template <caf::type_id_t... Offsets>
std::size_t check_types(caf::actor_system& system,
                        std::integer_sequence<caf::type_id_t, Offsets...> /*offsets*/) {
  using Block = caf::id_block::tidemill_types;
  (check_type<typename caf::type_by_id<Block::begin + Offsets>::type>(system), ...);
  return sizeof...(Offsets);
}

TEST(MessageTypes, EveryRegisteredTypeIsSerializedWithoutLoss) {
  using Block = caf::id_block::tidemill_types;
  caf::actor_system_config config;
  config.add_message_types<Block>();
  config.set("scheduler.policy", caf::atom("testing"));
  caf::actor_system system(config);
  const std::size_t count =
      check_types(system, std::make_integer_sequence<caf::type_id_t, Block::end - Block::begin>{});
  std::cout << "message types checked: " << count << '\n';
  EXPECT_EQ(count, 49U);  // of actors/type_ids.hpp
}

// Shows that the counter finds an omitted field.
struct Incomplete {
  int kept = 0;
  int omitted = 0;
};
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Incomplete& x) {
  return f(x.kept);
}

TEST(MessageTypes, AFieldThatInspectOmitsIsFound) {
  Incomplete value;
  FieldCounter counter;
  counter.check(value);
  EXPECT_EQ(counter.incomplete_types().size(), 1U);
  SampleRecord whole = some_sample();
  FieldCounter all;
  all.check(whole);
  EXPECT_TRUE(all.incomplete_types().empty());
  EXPECT_GT(all.num_structs(), 3U);
}

}  // namespace
}  // namespace tidemill::test
