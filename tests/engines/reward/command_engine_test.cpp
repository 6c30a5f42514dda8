// SPDX-License-Identifier: Apache-2.0
// The command engine with real programs, including many that misbehave.
//
// Time limits and pauses use a ManualClock. Tests that need a program to be considered hung advance
// the clock themselves.
#include "engines/reward/command_engine.hpp"

#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>

#include "tests/engines/reward/reward_fixture.hpp"

namespace tidemill::engines {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kScorer = TIDEMILL_TEST_DIR "/engines/reward/programs/scorer.py";

class CommandRewardEngineTest : public ::testing::Test {
protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "tidemill-reward-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    engine_.reset();
    std::filesystem::remove_all(folder_);
  }

  void start(std::vector<std::string> command) {
    options_.kind = RewardKind::kCommand;
    options_.command = std::move(command);
    auto started = CommandRewardEngine::start(options_, clock_);
    ASSERT_TRUE(started.ok()) << started.status().to_string();
    engine_ = std::move(started).value();
  }
  void start_scorer(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"python3", kScorer});
    start(std::move(arguments));
  }
  void start_shell(const std::string& script) { start({"sh", "-c", script}); }

  void submit(std::uint64_t id, const std::string& response) {
    const Status accepted = engine_->submit(make_request(id, response), sink_);
    ASSERT_TRUE(accepted.ok()) << accepted.to_string();
  }
  ::testing::AssertionResult step_until_results(std::size_t results) {
    return step_until(*engine_, [&] { return sink_.count() >= results; });
  }
  // Sends the samples to the program, then lets their time limit pass.
  void run_out_of_time() {
    ASSERT_TRUE(engine_->step(Duration::zero()).ok());
    clock_.advance(first_reply_timeout(options_.timeout));
    (void)engine_->step(Duration::zero());
  }
  [[nodiscard]] std::string log() const {
    std::ostringstream text;
    text << std::ifstream(folder_ + "/stderr.log").rdbuf();
    return text.str();
  }

  std::string folder_;
  ManualClock clock_;
  RewardOptions options_;
  RecordingSink sink_;
  std::unique_ptr<CommandRewardEngine> engine_;
};

TEST_F(CommandRewardEngineTest, ScoresManySamples) {
  options_.max_in_flight = 8;
  start_scorer({"lengths"});
  for (std::uint64_t id = 0; id < 300; ++id) {
    submit(id, std::string(id, 'x'));
  }
  ASSERT_TRUE(step_until_results(300));
  for (std::uint64_t id = 0; id < 300; ++id) {
    EXPECT_EQ(sink_.reward(id), static_cast<double>(id));
  }
  EXPECT_EQ(engine_->stats().starts, 1U);
  EXPECT_FALSE(engine_->has_work());
}

TEST_F(CommandRewardEngineTest, SendsSamplesLargerThanThePipeBuffer) {
  options_.max_in_flight = 3;
  start_scorer({"lengths"});
  for (std::uint64_t id = 0; id < 6; ++id) {
    submit(id, std::string(1'000'000 + id, 'x'));
  }
  ASSERT_TRUE(step_until_results(6));
  EXPECT_EQ(sink_.reward(5), 1'000'005.0);
}

TEST_F(CommandRewardEngineTest, RepliesMayComeInAnyOrder) {
  options_.max_in_flight = 4;
  start_scorer({"reversed_order", "4"});
  for (std::uint64_t id = 0; id < 8; ++id) {
    submit(id, std::string(id, 'x'));
  }
  ASSERT_TRUE(step_until_results(8));
  EXPECT_EQ(sink_.order(), (std::vector<std::uint64_t>{3, 2, 1, 0, 7, 6, 5, 4}));
  for (std::uint64_t id = 0; id < 8; ++id) {
    EXPECT_EQ(sink_.reward(id), static_cast<double>(id));
  }
}

TEST_F(CommandRewardEngineTest, TheSameSampleMayBeInFlightTwice) {
  options_.max_in_flight = 2;
  start_scorer({"reversed_order", "2"});
  RecordingSink other;
  submit(1, "abc");
  ASSERT_TRUE(engine_->submit(make_request(1, "abcde"), other).ok());
  ASSERT_TRUE(step_until(*engine_, [&] { return sink_.count() + other.count() == 2; }));
  EXPECT_EQ(sink_.reward(1), 3.0);
  EXPECT_EQ(other.reward(1), 5.0);
}

TEST_F(CommandRewardEngineTest, SendsTheRowAndKeepsStderr) {
  options_.stderr_path = folder_ + "/stderr.log";
  start_scorer({"row"});
  submit(1, "r");
  ASSERT_TRUE(step_until_results(1));
  EXPECT_EQ(sink_.reward(1), 4.0);
  engine_.reset();
  EXPECT_EQ(log(), R"({"answer": "42", "id": 1, "level": 2, "prompt": "6 * 7", "response": "r", )"
                   R"("tags": ["a", "b"]})"
                   "\n");
}

TEST_F(CommandRewardEngineTest, AProgramThatHangsIsKilledAfterTheTimeLimit) {
  options_.timeout = std::chrono::seconds(10);
  options_.max_in_flight = 2;
  options_.stderr_path = folder_ + "/stderr.log";
  start_shell("echo 'reading the model' >&2; exec sleep 100000");
  submit(7, "a");
  submit(8, "b");
  submit(9, "c");
  ASSERT_TRUE(step_until(*engine_, [&] { return !log().empty(); }));
  clock_.advance(std::chrono::milliseconds(59'999));
  ASSERT_TRUE(engine_->step(Duration::zero()).ok());
  EXPECT_EQ(sink_.count(), 0U);
  clock_.advance(std::chrono::milliseconds(1));
  ASSERT_TRUE(engine_->step(Duration::zero()).ok());
  ASSERT_EQ(sink_.count(), 1U) << "only the sample that the program was working on";
  EXPECT_THAT(sink_.error(7),
              AllOf(HasSubstr("sample 7: the reward program gave no reply to sample 7 within 60 s "
                              "and was killed; it has never replied since it was started, and a "
                              "larger timeout_ms gives it more time to start"),
                    HasSubstr("its last line on stderr: reading the model")));
  EXPECT_EQ(engine_->stats().hangs, 1U);
  EXPECT_TRUE(engine_->has_work());
}

TEST_F(CommandRewardEngineTest, AProgramThatHangsAfterAReplyIsKilledAfterTheTimeLimit) {
  options_.timeout = std::chrono::seconds(10);
  options_.max_in_flight = 2;
  start_shell("echo '{\"id\": 1, \"reward\": 1}'; exec sleep 100000");
  submit(7, "a");
  submit(8, "b");
  submit(9, "c");
  ASSERT_TRUE(step_until_results(1));
  clock_.advance(std::chrono::milliseconds(9'999));
  ASSERT_TRUE(engine_->step(Duration::zero()).ok());
  EXPECT_EQ(sink_.count(), 1U);
  clock_.advance(std::chrono::milliseconds(1));
  ASSERT_TRUE(engine_->step(Duration::zero()).ok());
  ASSERT_EQ(sink_.count(), 2U);
  EXPECT_EQ(sink_.error(8),
            "sample 8: the reward program gave no reply to sample 8 within 10 s and was killed");
}

// The first reply may come late. The samples behind it have the full time limit from then on.
TEST_F(CommandRewardEngineTest, TheStartOfAProgramIsNotChargedToItsSamples) {
  options_.timeout = std::chrono::seconds(1);
  options_.max_in_flight = 2;
  const std::string gate = folder_ + "/gate";
  ASSERT_EQ(::mkfifo(gate.c_str(), 0600), 0);
  start_shell("read go <" + gate + "; echo '{\"id\": 2, \"reward\": 1}'; exec sleep 100000");
  submit(1, "x");
  submit(2, "x");
  ASSERT_TRUE(engine_->step(Duration::zero()).ok());
  clock_.advance(std::chrono::seconds(8));
  ASSERT_TRUE(engine_->step(Duration::zero()).ok());
  EXPECT_EQ(sink_.count(), 0U);
  { std::ofstream(gate) << "go\n"; }
  ASSERT_TRUE(step_until_results(1));
  EXPECT_EQ(sink_.reward(2), 1.0);
  clock_.advance(std::chrono::milliseconds(999));
  ASSERT_TRUE(engine_->step(Duration::zero()).ok());
  EXPECT_EQ(engine_->stats().hangs, 0U);
  clock_.advance(std::chrono::milliseconds(1));
  ASSERT_TRUE(engine_->step(Duration::zero()).ok());
  EXPECT_EQ(engine_->stats().hangs, 1U);
}

TEST(FirstReplyTimeout, IsTenTimesTheTimeLimitWithinAMinute) {
  using namespace std::chrono_literals;
  EXPECT_EQ(first_reply_timeout(1ms), 10ms);
  EXPECT_EQ(first_reply_timeout(1s), 10s);
  EXPECT_EQ(first_reply_timeout(30s), 60s);
  EXPECT_EQ(first_reply_timeout(60s), 60s);
  EXPECT_EQ(first_reply_timeout(24h), 24h);
}

TEST_F(CommandRewardEngineTest, TheTimeLimitOfASampleExcludesItsQueue) {
  options_.timeout = std::chrono::seconds(10);
  options_.max_in_flight = 3;
  // The program replies once for each byte that the test writes into the gate.
  const std::string gate = folder_ + "/gate";
  ASSERT_EQ(::mkfifo(gate.c_str(), 0600), 0);
  const UniqueFd open_gate(::open(gate.c_str(), O_RDWR | O_CLOEXEC));
  start_shell("exec 3<" + gate +
              "; id=1; while dd bs=1 count=1 <&3 2>/dev/null >/dev/null; do "
              "echo '{\"id\": '$id', \"reward\": 1}'; id=$((id+1)); done");
  for (std::uint64_t id = 1; id <= 3; ++id) {
    submit(id, "x");
  }
  ASSERT_TRUE(engine_->step(Duration::zero()).ok());
  for (std::uint64_t id = 1; id <= 3; ++id) {
    clock_.advance(std::chrono::seconds(9));  // the last sample takes 27 s, 9 s of them its own
    ASSERT_EQ(::write(open_gate.get(), "x", 1), 1);
    ASSERT_TRUE(step_until_results(id));
  }
  EXPECT_EQ(sink_.reward(3), 1.0);
  EXPECT_EQ(engine_->stats().hangs, 0U);
}

TEST_F(CommandRewardEngineTest, AProgramThatExitsIsRestarted) {
  options_.max_in_flight = 4;
  options_.first_backoff = std::chrono::seconds(1);
  options_.stderr_path = folder_ + "/stderr.log";
  start_scorer({"poison"});
  submit(1, "good");
  submit(2, "poison");
  submit(3, "good");
  submit(4, "good");
  ASSERT_TRUE(step_until_results(2));
  EXPECT_EQ(sink_.reward(1), 1.0);
  EXPECT_EQ(sink_.error(2),
            "sample 2: the reward program ended (exit status 3); its last line on stderr: cannot "
            "handle this");
  ASSERT_TRUE(engine_->step(Duration::zero()).ok());
  EXPECT_EQ(sink_.count(), 2U) << "the other samples wait for the restart";
  EXPECT_EQ(engine_->stats().starts, 1U) << "no restart before the pause is over";
  clock_.advance(std::chrono::seconds(1));
  ASSERT_TRUE(step_until_results(4));
  EXPECT_EQ(sink_.reward(3), 1.0);
  EXPECT_EQ(sink_.reward(4), 1.0);
  EXPECT_EQ(engine_->stats().starts, 2U);
  EXPECT_EQ(engine_->stats().ends, 1U);
  EXPECT_EQ(log(), "cannot handle this\n");
}

// The stream delivers a failed sample at most three times. A sample that kills the program must not
// use up the deliveries of the samples in flight with it.
TEST_F(CommandRewardEngineTest, APoisonedSampleFailsNoOtherSample) {
  options_.max_in_flight = 8;
  options_.first_backoff = Duration::zero();
  start_scorer({"poison"});
  std::vector<std::uint64_t> waiting = {0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<int> failures(8);
  for (int delivery = 0; delivery < 3; ++delivery) {
    sink_.clear();
    for (const std::uint64_t id : waiting) {
      submit(id, id == 2 ? "poison" : "good");
    }
    ASSERT_TRUE(step_until_results(waiting.size()));
    std::vector<std::uint64_t> again;
    for (const std::uint64_t id : waiting) {
      if (!sink_.error(id).empty()) {
        again.push_back(id);
        ++failures[id];
      }
    }
    waiting = again;
  }
  EXPECT_EQ(failures[2], 3);
  for (const std::uint64_t id : {0U, 1U, 3U, 4U, 5U, 6U, 7U}) {
    EXPECT_EQ(failures[id], 0) << id;
  }
}

TEST_F(CommandRewardEngineTest, AProgramThatDiesAtEveryFifthLineFailsFewSamples) {
  constexpr std::uint64_t kSamples = 20;
  options_.first_backoff = Duration::zero();
  start_scorer({"fifth_dies"});
  for (std::uint64_t id = 0; id < kSamples; ++id) {
    submit(id, "x");
  }
  ASSERT_TRUE(step_until_results(kSamples));
  std::uint64_t failed = 0;
  for (std::uint64_t id = 0; id < kSamples; ++id) {
    failed += sink_.error(id).empty() ? 0 : 1;
  }
  EXPECT_EQ(failed, kSamples / 5) << "one for each start of the program";
  EXPECT_EQ(engine_->stats().ends, kSamples / 5);
}

// A program that scores several samples at a time may die because of one that is not the oldest.
// That sample is charged once it is sent alone.
TEST_F(CommandRewardEngineTest, APoisonedSampleOfAConcurrentProgramIsFound) {
  options_.max_in_flight = 3;
  options_.first_backoff = Duration::zero();
  start_scorer({"third_kills_first_start", folder_ + "/flag"});
  submit(0, "good");
  submit(1, "good");
  submit(2, "poison");
  submit(3, "good");
  ASSERT_TRUE(step_until_results(4));
  EXPECT_THAT(sink_.error(0), HasSubstr("ended (exit status 3)")) << "it was the oldest";
  EXPECT_EQ(sink_.reward(1), 1.0);
  EXPECT_THAT(sink_.error(2), HasSubstr("ended (exit status 3)"));
  EXPECT_EQ(sink_.reward(3), 1.0);
}

// A program that scores the lines that wait for it together may die because of two samples of a
// batch. The second is charged alone too, and only then the program gets batches again.
TEST_F(CommandRewardEngineTest, APoisonedSampleIsFoundAmongBatches) {
  options_.max_in_flight = 5;
  options_.first_backoff = Duration::zero();
  start_scorer({"batches"});
  for (std::uint64_t id = 0; id < 10; ++id) {
    submit(id, id == 2 || id == 4 ? "poison" : "good");
  }
  ASSERT_TRUE(step_until_results(10));
  EXPECT_THAT(sink_.error(0), HasSubstr("ended (exit status 3)")) << "it was the oldest";
  for (const std::uint64_t id : {2U, 4U}) {
    EXPECT_THAT(sink_.error(id), HasSubstr("ended (exit status 3)")) << id;
  }
  for (const std::uint64_t id : {1U, 3U}) {
    EXPECT_EQ(sink_.reward(id), 1.0) << id << " was not sent alone";
  }
  for (const std::uint64_t id : {5U, 6U, 7U, 8U, 9U}) {
    EXPECT_EQ(sink_.reward(id), 5.0) << id << " was not sent with the others";
  }
  EXPECT_EQ(engine_->stats().ends, 3U);
}

// The second start begins with nothing of the first: no half of a reply, no request that was only
// partly sent, and no words of the dead program in error messages.
TEST_F(CommandRewardEngineTest, ARestartedProgramIsReadFromItsFirstByte) {
  options_.first_backoff = Duration::zero();
  const std::string first = "[ ! -e " + folder_ + "/once ] && touch " + folder_ + "/once && ";
  start_shell(first + "{ read line; printf '{\"id\": 0, \"rewa'; exit 3; }; exec python3 " +
              kScorer + " lengths");
  submit(0, "a");
  ASSERT_TRUE(step_until_results(1));
  EXPECT_THAT(sink_.error(0), HasSubstr("exit status 3"));
  submit(1, "abc");
  ASSERT_TRUE(step_until_results(2));
  EXPECT_EQ(sink_.reward(1), 3.0);
  EXPECT_EQ(engine_->stats().garbage_lines + engine_->stats().unknown_ids, 0U);
}

TEST_F(CommandRewardEngineTest, ARestartedProgramGetsOnlyWholeRequests) {
  options_.first_backoff = Duration::zero();
  const std::string first = "[ ! -e " + folder_ + "/once ] && touch " + folder_ + "/once && ";
  start_shell(first + "{ head -c 1000 > /dev/null; exit 3; }; exec python3 " + kScorer +
              " lengths");
  submit(0, std::string(1'000'000, 'x'));  // more than a pipe holds
  ASSERT_TRUE(step_until_results(1));
  EXPECT_THAT(sink_.error(0), HasSubstr("the reward program"));
  submit(1, "abc");
  ASSERT_TRUE(step_until_results(2));
  EXPECT_EQ(sink_.reward(1), 3.0);
}

TEST_F(CommandRewardEngineTest, AnErrorQuotesOnlyTheProgramThatCausedIt) {
  options_.first_backoff = Duration::zero();
  start_shell("read line; [ -e " + folder_ + "/once ] && exit 4; touch " + folder_ +
              "/once; echo strange words; echo last words >&2; exit 3");
  submit(0, "a");
  ASSERT_TRUE(step_until_results(1));
  EXPECT_THAT(sink_.error(0), AllOf(HasSubstr("exit status 3"), HasSubstr("strange words"),
                                    HasSubstr("last words")));
  submit(1, "a");
  ASSERT_TRUE(step_until_results(2));
  EXPECT_EQ(sink_.error(1), "sample 1: the reward program ended (exit status 4)");
}

// The samples that were in flight behind the failed one go one at a time; then the program gets
// several again.
TEST_F(CommandRewardEngineTest, AfterTheSamplesThatGoAloneSeveralGoTogetherAgain) {
  options_.max_in_flight = 4;
  options_.first_backoff = Duration::zero();
  start_scorer({"careful", folder_ + "/once", "4", "3"});
  for (std::uint64_t id = 0; id < 12; ++id) {
    submit(id, "a");
  }
  ASSERT_TRUE(step_until_results(12));
  for (std::uint64_t id = 0; id < 12; ++id) {
    EXPECT_EQ(sink_.error(id).empty(), id != 0) << id;
  }
  EXPECT_EQ(sink_.order(), (std::vector<std::uint64_t>{0, 1, 2, 3, 7, 6, 5, 4, 11, 10, 9, 8}));
  EXPECT_EQ(engine_->stats().starts, 2U);
}

TEST_F(CommandRewardEngineTest, GarbageIsCountedAndIgnored) {
  start_scorer({"noisy"});
  submit(1, "x");
  submit(2, "x");
  ASSERT_TRUE(step_until_results(2));
  EXPECT_EQ(sink_.reward(1), 1.0);
  EXPECT_EQ(sink_.reward(2), 1.0);
  EXPECT_EQ(engine_->stats().garbage_lines, 7U);
}

TEST_F(CommandRewardEngineTest, TheErrorOfAHangQuotesEarlierGarbage) {
  start_shell("echo 'Traceback, sort of'; exec sleep 100000");
  submit(1, "x");
  ASSERT_TRUE(step_until(*engine_, [&] { return engine_->stats().garbage_lines == 1; }));
  run_out_of_time();
  ASSERT_EQ(sink_.count(), 1U);
  EXPECT_THAT(sink_.error(1),
              HasSubstr("its last line on stdout that is not a reply: Traceback, sort of"));
}

TEST_F(CommandRewardEngineTest, RefusesRewardsThatAreNotFiniteNumbers) {
  start_scorer({"verbatim"});
  const std::vector<std::string> replies = {
      R"({"id": ID, "reward": NaN})",   R"({"id": ID, "reward": Infinity})",
      R"({"id": ID, "reward": 1e999})", R"({"id": ID, "reward": "1"})",
      R"({"id": ID, "reward": [1]})",   R"({"id": ID})",
      R"({"id": ID, "reward": 0.25})",  R"({"id": ID, "error": "no such task"})",
  };
  for (std::size_t i = 0; i < replies.size(); ++i) {
    submit(i, replies[i]);
  }
  ASSERT_TRUE(step_until_results(replies.size()));
  for (std::uint64_t id = 0; id < 6; ++id) {
    EXPECT_THAT(sink_.error(id), HasSubstr("sample " + std::to_string(id) +
                                           ": the reward program's reply is invalid: "));
  }
  EXPECT_EQ(sink_.reward(6), 0.25);
  EXPECT_EQ(sink_.error(7), "sample 7: the reward program cannot score it: no such task");
  EXPECT_EQ(engine_->stats().bad_replies, 6U);
  EXPECT_EQ(engine_->stats().starts, 1U);
}

TEST_F(CommandRewardEngineTest, RepliesToUnknownSamplesAreCountedAndIgnored) {
  start_scorer({"strange_ids"});
  submit(1, "x");
  submit(2, "x");
  ASSERT_TRUE(step_until_results(2));
  EXPECT_EQ(sink_.reward(1), 1.0);
  EXPECT_EQ(sink_.reward(2), 1.0);
  ASSERT_TRUE(step_until(*engine_, [&] {
    // The last line may not have arrived yet. The engine reads only while it has work.
    if (!engine_->has_work()) {
      submit(100 + sink_.count(), "x");
    }
    return engine_->stats().unknown_ids >= 4;
  }));
}

TEST_F(CommandRewardEngineTest, AProgramMayStartSlowly) {
  options_.timeout = std::chrono::seconds(60);
  const std::string gate = folder_ + "/gate";
  ASSERT_EQ(::mkfifo(gate.c_str(), 0600), 0);
  start_scorer({"gate", gate});
  submit(1, "abc");
  ASSERT_TRUE(engine_->step(Duration::zero()).ok());
  clock_.advance(std::chrono::seconds(59));
  ASSERT_TRUE(engine_->step(std::chrono::milliseconds(20)).ok());
  EXPECT_EQ(sink_.count(), 0U);
  { const UniqueFd opened(::open(gate.c_str(), O_WRONLY | O_CLOEXEC)); }
  ASSERT_TRUE(step_until_results(1));
  EXPECT_EQ(sink_.reward(1), 3.0);
}

// Returns the peak resident memory of this process in MiB.
std::int64_t peak_mib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;
}

TEST_F(CommandRewardEngineTest, EndlessLinesTakeBoundedMemoryAndEndAtTheTimeLimit) {
  start({"yes", "garbage"});
  submit(1, "x");
  const std::int64_t before = peak_mib();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(engine_->step(std::chrono::seconds(1)).ok());
  }
  EXPECT_GT(engine_->stats().garbage_lines, 1'000U);
  EXPECT_EQ(sink_.count(), 0U);
  run_out_of_time();
  EXPECT_THAT(sink_.error(1), HasSubstr("no reply to sample 1"));
  EXPECT_LT(peak_mib() - before, 64);
}

TEST_F(CommandRewardEngineTest, AnEndlessLineTakesBoundedMemoryAndEndsAtTheTimeLimit) {
  start_shell("exec 3<&0 tr '\\0' x </dev/zero");  // 3: its input stays open
  submit(1, "x");
  const std::int64_t before = peak_mib();
  ASSERT_TRUE(step_until(*engine_, [&] { return engine_->stats().garbage_lines == 1; }));
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(engine_->step(std::chrono::seconds(1)).ok());
  }
  run_out_of_time();
  EXPECT_THAT(sink_.error(1), HasSubstr("a line of more than 1 MiB"));
  EXPECT_EQ(engine_->stats().garbage_lines, 1U);
  EXPECT_LT(peak_mib() - before, 64);
}

TEST_F(CommandRewardEngineTest, ManyLinesOnStderrDoNotBlockTheProgram) {
  options_.stderr_path = folder_ + "/stderr.log";
  start_shell(
      "i=0; while [ $i -lt 3000 ]; do echo \"line $i of the log, long enough to fill a pipe\" >&2; "
      "i=$((i+1)); done; read line; echo '{\"id\": 1, \"reward\": 1}'; exec cat >/dev/null");
  submit(1, "x");
  ASSERT_TRUE(step_until_results(1));
  EXPECT_EQ(sink_.reward(1), 1.0);
  const std::string text = log();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3000);
}

TEST_F(CommandRewardEngineTest, AProgramThatNeverReadsIsKilled) {
  options_.max_in_flight = 4;
  start_shell("exec sleep 100000");
  for (std::uint64_t id = 0; id < 4; ++id) {
    submit(id, std::string(500'000, 'x'));
  }
  run_out_of_time();
  ASSERT_EQ(sink_.count(), 1U);
  EXPECT_THAT(sink_.error(0), HasSubstr("no reply to sample 0 within 60 s"));
}

TEST_F(CommandRewardEngineTest, AProgramThatClosesItsInputOrOutputIsRestarted) {
  options_.first_backoff = Duration::zero();
  start_shell("exec <&-; exec sleep 100000");
  submit(1, std::string(500'000, 'x'));
  ASSERT_TRUE(step_until_results(1));
  EXPECT_THAT(sink_.error(1), HasSubstr("the reward program closed its standard input"));
  start_shell("exec >&-; exec sleep 100000");
  submit(2, "x");
  ASSERT_TRUE(step_until_results(2));
  EXPECT_THAT(sink_.error(2), HasSubstr("the reward program closed its standard output"));
}

TEST_F(CommandRewardEngineTest, GivesUpOnAProgramThatAlwaysExits) {
  options_.max_failures_in_a_row = 3;
  options_.first_backoff = std::chrono::seconds(1);
  start_shell("echo 'no module named torch' >&2; exit 1");
  Status last;
  std::vector<std::uint64_t> starts_by_second;
  for (int second = 0; second < 10 && last.ok(); ++second) {
    // Steps until nothing more can happen within this second of the engine's clock.
    do {
      if (!engine_->has_work()) {
        sink_.clear();
        submit(1, "x");
        submit(2, "x");
      }
      last = engine_->step(std::chrono::milliseconds(5));
    } while (last.ok() && engine_->stats().starts > engine_->stats().ends);
    starts_by_second.push_back(engine_->stats().starts);
    clock_.advance(std::chrono::seconds(1));
  }
  EXPECT_EQ(last.code(), Errc::kUnavailable);
  EXPECT_THAT(last.message(),
              AllOf(HasSubstr("command: given up after 3 failures in a row without a reply: the "
                              "reward program ended (exit status 1)"),
                    HasSubstr("its last line on stderr: no module named torch")));
  EXPECT_EQ(starts_by_second, (std::vector<std::uint64_t>{1, 2, 2, 3})) << "pauses of 1 s and 2 s";
  EXPECT_EQ(sink_.count(), 2U);
  EXPECT_FALSE(engine_->has_work());
  EXPECT_EQ(engine_->submit(make_request(3, "x"), sink_).code(), Errc::kUnavailable);
  EXPECT_EQ(engine_->step(Duration::zero()).code(), Errc::kUnavailable);
}

// A program that scores one response and exits is a common mistake. This one returns once it has
// the sample. If it returned before that, the sample would not fail.
TEST_F(CommandRewardEngineTest, AProgramThatReturnsWithoutAReplyIsToldToRun) {
  start_shell("read line");
  submit(1, "x");
  ASSERT_TRUE(step_until_results(1));
  EXPECT_THAT(sink_.error(1),
              HasSubstr("ended (exit status 0) before it replied to any request; it must run until "
                        "its standard input ends, and write one line for each line that it reads"));
}

TEST_F(CommandRewardEngineTest, OneReplyPerStartKeepsTheEngineFromGivingUp) {
  options_.max_in_flight = 1;
  options_.max_failures_in_a_row = 2;
  options_.first_backoff = Duration::zero();
  start_shell(
      "read line; id=${line##*\\\"id\\\":}; echo \"{\\\"id\\\": ${id%%,*}, \\\"reward\\\": 1}\"");
  int deliveries = 0;
  for (std::uint64_t id = 0; id < 8; ++id) {
    // The engine may notice the exit only after it has sent the sample, which then fails and is
    // submitted again.
    bool scored = false;
    while (!scored) {
      sink_.clear();
      submit(id, "x");
      ASSERT_TRUE(step_until_results(1));
      scored = sink_.error(id).empty();
      ASSERT_LT(++deliveries, 100);
    }
  }
  EXPECT_GE(engine_->stats().starts, 8U);
}

TEST_F(CommandRewardEngineTest, RefusesAProgramThatCannotBeExecuted) {
  const std::string plain = folder_ + "/plain.txt";
  std::ofstream(plain) << "not a program\n";
  const std::string headless = folder_ + "/headless";
  std::ofstream(headless) << "echo\n";
  ASSERT_EQ(::chmod(headless.c_str(), 0700), 0);
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"no-such-program-here"}, "command: cannot run `no-such-program-here`: not found in PATH"},
      {{"/no/such/program"}, "command: cannot run `/no/such/program`: No such file or directory"},
      {{plain}, "command: cannot run `" + plain + "`: Permission denied"},
      {{headless}, "command: cannot run `" + headless + "`: Exec format error"},
      {{folder_}, "command: cannot run `" + folder_ + "`: Permission denied"},
      {{""}, "command: is missing"},
  };
  for (const auto& [command, message] : cases) {
    options_.kind = RewardKind::kCommand;
    options_.command = command;
    const auto started = make_reward_engine(options_, clock_);
    ASSERT_FALSE(started.ok()) << command.front();
    EXPECT_EQ(started.status().code(), Errc::kInvalidArgument);
    EXPECT_EQ(started.status().message(), message);
  }
}

TEST_F(CommandRewardEngineTest, GivesUpOnAProgramWhoseFileDisappears) {
  const std::string program = folder_ + "/once.sh";
  std::ofstream(program) << "#!/bin/sh\nrm \"$0\"\nexit 4\n";
  ASSERT_EQ(::chmod(program.c_str(), 0700), 0);
  options_.max_failures_in_a_row = 3;
  options_.first_backoff = Duration::zero();
  start({program});
  Status last;
  while (last.ok()) {
    if (!engine_->has_work()) {
      sink_.clear();
      submit(1, "x");
    }
    last = engine_->step(std::chrono::milliseconds(20));
  }
  EXPECT_THAT(last.message(), HasSubstr("No such file or directory"));
  EXPECT_NE(sink_.error(1), "");
}

TEST_F(CommandRewardEngineTest, RefusesARowThatIsNotAnObjectNamingTheSample) {
  start({"cat"});
  RewardRequest wrong = make_request(5, "x");
  wrong.fields = "[]";
  EXPECT_EQ(engine_->submit(wrong, sink_).message(),
            "sample 5: the row is not a JSON object of at most 64 levels");
  EXPECT_FALSE(engine_->has_work());
}

TEST_F(CommandRewardEngineTest, HoldsABoundedNumberOfBytes) {
  start({"cat"});
  Status accepted;
  int count = 0;
  const std::string response(32U << 20U, 'x');
  while (accepted.ok() && count < 20) {
    accepted = engine_->submit(make_request(static_cast<std::uint64_t>(count), response), sink_);
    count += accepted.ok() ? 1 : 0;
  }
  EXPECT_EQ(accepted.code(), Errc::kResourceExhausted);
  EXPECT_EQ(count, 7);
  // A sample counts until it is done, because a restarted program may get it again.
  ASSERT_TRUE(engine_->step(Duration::zero()).ok());
  EXPECT_EQ(engine_->submit(make_request(100, response), sink_).code(), Errc::kResourceExhausted);
}

TEST_F(CommandRewardEngineTest, TheExampleProgramScoresArithmetic) {
  start({"python3", TIDEMILL_SOURCE_DIR "/examples/rewards/arithmetic.py"});
  RewardRequest right = make_request(1, "17 + 25 = 42");
  right.prompt = "17 + 25 =";
  right.reference_answer = "";
  RewardRequest wrong = right;
  wrong.id = {2};
  wrong.response = "It is 43";
  RewardRequest none = right;
  none.id = {3};
  none.response = "I do not know";
  RewardRequest strange = right;
  strange.id = {4};
  strange.prompt = "What is love?";
  for (const RewardRequest& each : {right, wrong, none, strange}) {
    ASSERT_TRUE(engine_->submit(each, sink_).ok());
  }
  ASSERT_TRUE(step_until_results(4));
  EXPECT_EQ(sink_.reward(1), 1.0);
  EXPECT_EQ(sink_.reward(2), 0.1);
  EXPECT_EQ(sink_.reward(3), 0.0);
  EXPECT_THAT(sink_.error(4), HasSubstr("no arithmetic in the prompt"));
}

}  // namespace
}  // namespace tidemill::engines
