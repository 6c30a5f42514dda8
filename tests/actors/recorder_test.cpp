// SPDX-License-Identifier: Apache-2.0
// The contracts of actors/recorder/handles.hpp and of the record files.
#include <chrono>
#include <csignal>
#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <sys/resource.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/recorder/metrics_events.hpp"
#include "actors/recorder/spawn.hpp"
#include "base/digest.hpp"
#include "base/json/json.hpp"
#include "storage/events/event_file.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::test {
namespace {

using actors::RecordMarks;
using actors::StepRecord;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

// Keeps the lines in memory.
class MemoryRecordFiles final : public actors::RecordFiles {
public:
  Result<RecordMarks> append(const std::string& metrics, const std::string& samples) override {
    ++appends;
    if (!failure.ok()) {
      return failure;
    }
    metrics_text += metrics;
    samples_text += samples;
    return RecordMarks{metrics_text.size(), samples_text.size()};
  }
  int appends = 0;
  Status failure;
  std::string metrics_text;
  std::string samples_text;
};

StepRecord some_record(std::uint64_t step) {
  actors::SampleRecord sample;
  sample.id = {3};
  sample.group = {1};
  sample.prompt = "2+2=\n";
  sample.reference_answer = "4";
  sample.reward = 1.0;
  sample.advantage = -0.5F;
  sample.finish_reason = "stop";
  sample.versions = {{{0, 2, 4}, 2}};
  sample.response_ids = {7, 8};
  sample.behavior_logprobs = {-0.5F, -0.25F};
  return {"train", step, {{"reward_mean", 0.5}}, {sample}};
}

class RecorderTest : public ActorTest {
protected:
  void start(RecordMarks marks = {}) {
    recorder_ = keep(actors::spawn_recorder(
        system(),
        {files_, marks, [this](const StepRecord& record) { seen_.push_back(record.step); },
         [this](const std::vector<std::int32_t>& ids) {
           ++decoded_;
           return std::to_string(ids.size()) + " tokens";
         },
         held_port_ != nullptr ? held_port_ : &port()}));
  }
  Reply<RecordMarks> record(std::uint64_t step) {
    auto reply = ask<RecordMarks>(recorder_, atom::record_v, some_record(step));
    drain();
    return reply;
  }
  Reply<RecordMarks> capture() {
    auto reply = ask<RecordMarks>(recorder_, atom::capture_v);
    drain();
    return reply;
  }

  std::shared_ptr<MemoryRecordFiles> files_ = std::make_shared<MemoryRecordFiles>();
  std::vector<std::uint64_t> seen_;
  int decoded_ = 0;
  actors::WorkPort* held_port_ = nullptr;
  actors::RecorderActor recorder_;
};

TEST_F(RecorderTest, RepliesWithTheSizesOnceTheLinesAreWritten) {
  start();
  const auto reply = record(5);
  EXPECT_FALSE(reply.arrived());
  EXPECT_EQ(seen_, (std::vector<std::uint64_t>{5}));  // observed before it is written
  advance(0s);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply.value().metrics_bytes, files_->metrics_text.size());
  EXPECT_EQ(reply.value().samples_bytes, files_->samples_text.size());
}

TEST_F(RecorderTest, WritesOneJsonObjectPerLine) {
  start();
  record(5);
  advance(0s);
  EXPECT_EQ(files_->metrics_text.back(), '\n');
  const auto metrics = parse_json(files_->metrics_text);
  ASSERT_TRUE(metrics.ok());
  EXPECT_EQ(*metrics.value().find("step")->if_integer(), 5);
  EXPECT_EQ(files_->samples_text.find('\n'), files_->samples_text.size() - 1);
  const auto sample = parse_json(files_->samples_text);
  ASSERT_TRUE(sample.ok()) << sample.status().to_string();
  EXPECT_EQ(*sample.value().find("step")->if_integer(), 5);
  EXPECT_EQ(*sample.value().find("sample")->if_integer(), 3);
  EXPECT_THAT(files_->samples_text, HasSubstr(R"("prompt":"2+2=\n")"));
  EXPECT_THAT(files_->samples_text, HasSubstr(R"("response":"2 tokens")"));
  EXPECT_THAT(files_->samples_text, HasSubstr(R"("versions":[{"step":4,"tokens":2}])"));
  EXPECT_THAT(files_->samples_text, HasSubstr(R"("behavior_logprobs":[-0.5,-0.25])"));
}

// Keeps work until the test runs it.
class HeldPort final : public actors::WorkPort {
public:
  void run(Work work, caf::strong_actor_ptr /*receiver*/, caf::message /*done*/) override {
    held.push_back(std::move(work));
  }
  std::vector<Work> held;
};

// A batch of long responses would take too long for a message handler.
TEST_F(RecorderTest, ThePortDecodesTheResponses) {
  HeldPort held;
  held_port_ = &held;
  start();
  record(5);
  ASSERT_EQ(held.held.size(), 1U);
  EXPECT_EQ(decoded_, 0);
  static_cast<void>(held.held[0]());
  EXPECT_EQ(decoded_, 1);
  EXPECT_EQ(files_->appends, 1);
}

// Reading them back gives the floats of the recorded sample.
TEST_F(RecorderTest, LogProbabilitiesAreShortAndExact) {
  start();
  StepRecord step = some_record(1);
  step.samples[0].behavior_logprobs = {-0.1F, -1.17549435e-38F, -16777216.0F, -0.333333343F};
  const auto reply = ask<RecordMarks>(recorder_, atom::record_v, step);
  drain();
  advance(0s);
  EXPECT_THAT(files_->samples_text, HasSubstr(R"("behavior_logprobs":[-0.1,)"));
  const auto line = parse_json(files_->samples_text);
  const Json::Array& numbers = *line.value().find("behavior_logprobs")->if_array();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(static_cast<float>(*numbers[i].number()), step.samples[0].behavior_logprobs[i]);
  }
}

TEST_F(RecorderTest, RecordsThatArriveDuringAWriteAreWrittenTogetherInOrder) {
  start();
  record(1);
  const auto second = record(2);
  const auto third = record(3);
  EXPECT_EQ(files_->appends, 1);
  EXPECT_TRUE(run_until([&] { return third.arrived(); }));
  EXPECT_EQ(files_->appends, 2);
  EXPECT_EQ(second.value().metrics_bytes, third.value().metrics_bytes);
  std::istringstream lines(files_->metrics_text);
  std::string line;
  for (const std::int64_t step : {1, 2, 3}) {
    ASSERT_TRUE(std::getline(lines, line));
    EXPECT_EQ(*parse_json(line).value().find("step")->if_integer(), step);
  }
}

TEST_F(RecorderTest, CaptureWaitsForTheCurrentWrite) {
  start({100, 200});
  const auto before = capture();
  ASSERT_TRUE(before.ok());
  EXPECT_EQ(before.value().metrics_bytes, 100U);
  EXPECT_EQ(before.value().samples_bytes, 200U);
  record(1);
  const auto during = capture();
  EXPECT_FALSE(during.arrived());
  EXPECT_TRUE(run_until([&] { return during.arrived(); }));
  EXPECT_EQ(during.value().metrics_bytes, files_->metrics_text.size());
}

TEST_F(RecorderTest, AFailedWriteFailsItsRequestsAndTheRecorderContinues) {
  start();
  files_->failure = {Errc::kResourceExhausted, "metrics.jsonl: no space left"};
  const auto lost = record(1);
  advance(0s);
  EXPECT_EQ(lost.status().code(), Errc::kResourceExhausted);
  EXPECT_EQ(lost.status().message(), "metrics.jsonl: no space left");
  files_->failure = {};
  const auto kept = record(2);
  advance(0s);
  EXPECT_TRUE(kept.ok());
  EXPECT_EQ(files_->metrics_text.find("\"step\":1"), std::string::npos);
}

// -- files ----------------------------------------------------------------------------------------

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class RecordFilesTest : public ::testing::Test {
protected:
  auto open(RecordMarks marks = {}) {
    return actors::open_record_files({directory_.path()}, marks);
  }
  std::filesystem::path metrics() const { return directory_.path() / "metrics.jsonl"; }
  std::filesystem::path samples() const { return directory_.path() / "samples.jsonl"; }
  std::filesystem::path events() const { return directory_.path() / actors::kEventFileName; }
  std::uint64_t num_events() const {
    return storage::find_event_records(events(), 1000).value().num_records;
  }
  TemporaryDirectory directory_;
};

TEST_F(RecordFilesTest, AppendsAndReturnsBothSizes) {
  const auto files = open();
  ASSERT_TRUE(files.ok()) << files.status().to_string();
  ASSERT_TRUE(files.value()->append("a\n", "bb\n").ok());
  const auto marks = files.value()->append("c\n", "");
  ASSERT_TRUE(marks.ok());
  EXPECT_EQ(marks.value().metrics_bytes, 4U);
  EXPECT_EQ(marks.value().samples_bytes, 3U);
  EXPECT_EQ(content(metrics()), "a\nc\n");
  EXPECT_EQ(content(samples()), "bb\n");
}

TEST_F(RecordFilesTest, OpenTruncatesToTheMarksOfTheCommit) {
  ASSERT_TRUE(open().value()->append("one\ntwo\n", "x\ny\n").ok());
  const auto files = open({4, 2});
  ASSERT_TRUE(files.ok());
  EXPECT_EQ(content(metrics()), "one\n");
  EXPECT_EQ(content(samples()), "x\n");
  ASSERT_TRUE(files.value()->append("three\n", "").ok());
  EXPECT_EQ(content(metrics()), "one\nthree\n");
}

TEST_F(RecordFilesTest, SamplesThatExceedTheLimitAreLeftOut) {
  const auto open_small = [this](RecordMarks marks) {
    return actors::open_record_files({directory_.path()}, marks, 8);
  };
  // The same lines are kept, whether they are appended together or one by one.
  ASSERT_TRUE(open_small({}).value()->append("", "aaa\nbbbb\ncc\nd\n").ok());
  EXPECT_EQ(content(samples()), "aaa\ncc\n");
  const auto files = open_small({});
  for (const char* line : {"aaa\n", "bbbb\n", "cc\n", "d\n"}) {
    ASSERT_TRUE(files.value()->append("", line).ok());
  }
  EXPECT_EQ(content(samples()), "aaa\ncc\n");
  ASSERT_TRUE(open_small({0, 4}).value()->append("m\n", "bbbb\n").ok());  // resumed
  EXPECT_EQ(content(samples()), "aaa\n");
  EXPECT_EQ(content(metrics()), "m\n");
}

const std::string kLine1 = R"({"kind":"train","step":1,"loss":0.5,"gap":null})"
                           "\n";
const std::string kLine2 = R"({"kind":"eval","step":2,"eval_mean_at_k":1})"
                           "\n";

TEST_F(RecordFilesTest, TheEventFileHasARecordForEachLine) {
  const auto files = open();
  ASSERT_TRUE(files.value()->append(kLine1 + kLine2, "").ok());
  EXPECT_EQ(num_events(), 3U);  // the first record holds the file's version
  const std::string bytes = content(events());
  EXPECT_THAT(bytes, HasSubstr("train/loss"));
  EXPECT_THAT(bytes, HasSubstr("eval/eval_mean_at_k"));
  EXPECT_EQ(bytes.find("gap"), std::string::npos);
  EXPECT_EQ(bytes.find("step"), std::string::npos);
}

TEST_F(RecordFilesTest, TheEventFileIsTruncatedWithTheMetrics) {
  ASSERT_TRUE(open().value()->append(kLine1 + kLine2, "").ok());
  const std::string before = content(events());
  const auto files = open({kLine1.size(), 0});
  ASSERT_TRUE(files.ok());
  EXPECT_EQ(num_events(), 2U);
  EXPECT_TRUE(before.starts_with(content(events())));  // the wall times are kept
  ASSERT_TRUE(files.value()->append(kLine2, "").ok());
  EXPECT_EQ(num_events(), 3U);
}

TEST_F(RecordFilesTest, AnEventFileThatLacksRecordsIsRewrittenFromTheMetrics) {
  ASSERT_TRUE(open().value()->append(kLine1 + kLine2, "").ok());
  const RecordMarks marks{kLine1.size() + kLine2.size(), 0};
  const std::string whole = content(events());
  for (const std::size_t size : {whole.size() - 1, std::size_t{3}, std::size_t{0}}) {
    std::filesystem::resize_file(events(), size);
    ASSERT_TRUE(open(marks).ok());
    EXPECT_EQ(num_events(), 3U) << size;
    EXPECT_EQ(content(events()).size(), whole.size()) << size;
  }
  std::filesystem::remove(events());
  ASSERT_TRUE(open(marks).ok());
  EXPECT_EQ(num_events(), 3U);
}

TEST_F(RecordFilesTest, AFileShorterThanItsMarkIsNamed) {
  ASSERT_TRUE(open().value()->append("one\n", "x\n").ok());
  const auto files = open({4, 3});
  ASSERT_FALSE(files.ok());
  EXPECT_EQ(files.status().code(), Errc::kCorruptData);
  EXPECT_THAT(files.status().message(), HasSubstr("samples.jsonl: 2 bytes"));
  EXPECT_EQ(content(metrics()), "one\n");  // the failed open loses nothing
}

TEST_F(RecordFilesTest, AFileThatDoesNotHaveTheDigestOfItsMarkIsNamed) {
  const auto marks = open().value()->append("one\n", "x\n");
  ASSERT_TRUE(marks.ok());
  std::ofstream(samples(), std::ios::binary) << "y\n";
  const auto files = open(marks.value());
  EXPECT_EQ(files.status().code(), Errc::kCorruptData);
  EXPECT_THAT(files.status().message(), HasSubstr("samples.jsonl: the 2 bytes"));
}

TEST_F(RecordFilesTest, TheDigestsAreThoseOfTheWholeFiles) {
  const auto both = open().value()->append("one\n", "x\n");
  ASSERT_TRUE(both.ok());
  const auto files = open(both.value());
  ASSERT_TRUE(files.ok()) << files.status().to_string();
  const auto resumed = files.value()->append("two\n", "");
  ASSERT_TRUE(resumed.ok());
  const std::string whole = "one\ntwo\n";
  EXPECT_EQ(resumed.value().metrics_digest, digest_bytes(std::as_bytes(std::span(whole))));
  EXPECT_EQ(resumed.value().samples_digest, both.value().samples_digest);
}

TEST_F(RecordFilesTest, AFileThatIsRemovedOrChangedDuringTheRunIsNoticed) {
  for (const char* how : {"removed", "replaced", "shortened"}) {
    const auto files = open();
    ASSERT_TRUE(files.value()->append("one\n", "x\n").ok());
    if (how == std::string("shortened")) {
      std::filesystem::resize_file(metrics(), 1);
    } else {
      std::filesystem::rename(metrics(), directory_.path() / "elsewhere");
    }
    if (how == std::string("replaced")) {
      std::ofstream(metrics()) << "one\n";
    }
    const auto failed = files.value()->append("two\n", "");
    EXPECT_EQ(failed.status().code(), Errc::kCorruptData) << how;
    EXPECT_THAT(
        failed.status().message(),
        HasSubstr(how == std::string("shortened")
                      ? "metrics.jsonl: another program changed it during the run: it has 1 "
                        "bytes instead of 4"
                      : "metrics.jsonl: was removed or replaced during the run"))
        << how;
  }
}

// Supervised runs record no samples.
TEST_F(RecordFilesTest, AnEmptyFileMayBeRemoved) {
  const auto files = open();
  ASSERT_TRUE(files.value()->append("one\n", "").ok());
  std::filesystem::remove(samples());
  EXPECT_TRUE(files.value()->append("two\n", "").ok());
}

TEST_F(RecordFilesTest, ADirectoryThatDoesNotExistIsNamed) {
  const auto files = actors::open_record_files({"/nonexistent"}, {});
  ASSERT_FALSE(files.ok());
  EXPECT_THAT(files.status().message(), HasSubstr("/nonexistent: cannot open"));
}

// With a limit on file sizes, a write fails halfway, as on a full disk.
TEST_F(RecordFilesTest, AnAppendThatFailsHalfwayLeavesWholeLines) {
  const auto files = open();
  ASSERT_TRUE(files.value()->append("0123456\n", "").ok());
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = before;
  small.rlim_cur = 12;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto failed = files.value()->append("89abcdef\n", "s\n");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.status().message(), HasSubstr("metrics.jsonl: cannot append"));
  EXPECT_EQ(content(metrics()), "0123456\n");
  EXPECT_EQ(content(samples()), "s\n");
  const auto again = files.value()->append("ok\n", "");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(content(metrics()), "0123456\nok\n");
}

}  // namespace
}  // namespace tidemill::test
