// SPDX-License-Identifier: Apache-2.0
// Tests `tidemill-bench engine`: its output, its errors, and how it detects load from other
// processes.
#include <cmath>
#include <regex>

#include "bench/commands.hpp"
#include "bench/engine_bench.hpp"
#include "bench/foreign_load.hpp"
#include "bench/memory_notes.hpp"
#include "bench/profile_table.hpp"
#include "bench/random_model.hpp"
#include "bench/timed_process.hpp"
#include "engines/formats/model_files.hpp"
#include "tests/launcher/command_run.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::bench {
namespace {

using launcher::kDone;
using launcher::kRefused;
using launcher::Outcome;

class BenchProgramTest : public ::testing::Test {
protected:
  static Outcome run(const std::vector<std::string>& arguments) {
    std::ostringstream out;
    std::ostringstream err;
    std::vector<std::unique_ptr<launcher::Command>> commands;
    commands.push_back(make_engine_command());
    const int code = launcher::run_program(arguments, commands, out, err);
    return {code, out.str(), err.str()};
  }
};

TEST_F(BenchProgramTest, PrintsOneFigurePerLine) {
  const Outcome outcome = run({"engine", "--preset", "3.7m", "--figure", "decode_b1_f32",
                               "--figure", "lora_step_bf16_b1", "--json"});
  ASSERT_EQ(outcome.code, kDone) << outcome.err;
  const auto lines = outcome.lines();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0]["figure"], "decode_b1_f32");
  EXPECT_EQ(lines[0]["peer"], "memory bandwidth");
  EXPECT_EQ(lines[1]["figure"], "lora_step_bf16_b1");
  EXPECT_EQ(lines[1]["peer"], "matmul peak");
  for (const auto& line : lines) {
    EXPECT_EQ(line["unit"], "tok/s");
    EXPECT_EQ(line["threads"], 1);
    const double value = line["value"];
    const double peer = line["peer_value"];
    EXPECT_GT(value, 0.0);
    EXPECT_GT(peer, 0.0);
    EXPECT_DOUBLE_EQ(line["ratio"], value / peer);
    EXPECT_GE(line["foreign_load"], 0.0);
  }
}

// The notes of the figures of real models, on a small one.
TEST_F(BenchProgramTest, ReportsNotesWithFigures) {
  const std::vector<std::string> memory{"peak_bytes", "plan_bytes", "peak_of_plan"};
  const std::vector<std::pair<std::string, std::vector<std::string>>> expected{
      {"decode_b1_bf16", {}},
      {"rollout_32_bf16", {"sampling_share"}},
      {"lora_step_bf16_b1", {}},
      {"lora_step_bf16_t2048", {"tokens_per_s_at_512", "rate_of_512"}},
      {"lora_step_nf4_t4096", {"base_bytes", "base_of_bf16"}}};
  std::vector<std::string> arguments{"engine", "--preset", "0.1m", "--repetitions", "1", "--json"};
  for (const auto& [figure, notes] : expected) {
    arguments.insert(arguments.end(), {"--figure", figure});
  }
  const Outcome outcome = run(arguments);
  ASSERT_EQ(outcome.code, kDone) << outcome.err;
  const auto lines = outcome.lines();
  ASSERT_EQ(lines.size(), expected.size());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    auto [figure, notes] = expected[i];
    EXPECT_EQ(lines[i]["figure"], figure);
    EXPECT_GT(lines[i]["value"], 0.0) << figure;
    notes.insert(notes.end(), memory.begin(), memory.end());
    for (const std::string& note : notes) {
      ASSERT_TRUE(lines[i].contains(note)) << figure << ": " << note;
      EXPECT_GT(lines[i][note], 0.0) << figure << ": " << note;
    }
  }
  EXPECT_LT(lines[1]["sampling_share"], 1.0);
}

// Figures that submit requests of several sizes, which the options of their model do not name.
TEST_F(BenchProgramTest, MeasuresFiguresWhoseRequestsVary) {
  std::vector<std::string> arguments{"engine", "--preset", "0.1m", "--repetitions", "1", "--json"};
  for (const char* figure : {"prefill_512_bf16", "group_rollout", "multi_lora_16", "coserve_sum"}) {
    arguments.insert(arguments.end(), {"--figure", figure});
  }
  const Outcome outcome = run(arguments);
  ASSERT_EQ(outcome.code, kDone) << outcome.err;
  ASSERT_EQ(outcome.lines().size(), 4U);
  for (const auto& line : outcome.lines()) {
    ASSERT_TRUE(line["value"].is_number()) << line.dump();
    EXPECT_GT(line["value"], 0.0) << line.dump();
  }
}

TEST_F(BenchProgramTest, PrintsNotesBelowTheFigure) {
  const Outcome outcome =
      run({"engine", "--preset", "0.1m", "--figure", "decode_b1_f32", "--repetitions", "1"});
  ASSERT_EQ(outcome.code, kDone) << outcome.err;
  EXPECT_TRUE(std::regex_search(outcome.out, std::regex("\n  peak_bytes: [0-9]+\n")))
      << outcome.out;
  EXPECT_TRUE(std::regex_search(outcome.out, std::regex("\n  peak_of_plan: [0-9]+\\.[0-9]{3}\n")))
      << outcome.out;
}

TEST_F(BenchProgramTest, TheProfileCoversTheSteps) {
  const Outcome outcome =
      run({"engine", "--preset", "3.7m", "--figure", "prefill_512_f32", "--profile"});
  ASSERT_EQ(outcome.code, kDone) << outcome.err;
  EXPECT_NE(outcome.out.find("prefill_512_f32: "), std::string::npos) << outcome.out;
  for (const char* operation : {"linear 256 x 688", "attention", "swiglu", "rms_norm"}) {
    EXPECT_NE(outcome.out.find(operation), std::string::npos) << operation << '\n' << outcome.out;
  }
  EXPECT_NE(outcome.out.find("operations cover "), std::string::npos) << outcome.out;
}

TEST_F(BenchProgramTest, RefusesUnknownArguments) {
  for (const auto& [arguments, named] :
       {std::pair<std::vector<std::string>, std::string>{{"store"}, "store: unknown command"},
        {{"engine", "--figure", "speed"}, "decode_b1_f32"},
        {{"engine", "--preset", "7b"}, "197m"},
        {{"engine", "--threads", "0"}, "--threads"},
        {{"engine", "--repetitions", "0"}, "--repetitions"},
        {{"engine", "--model", "nowhere"}, "nowhere"},
        {{"engine", "--model", "x", "--preset", "15m"}, "--model"}}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, kRefused) << outcome.err;
    EXPECT_NE(outcome.err.find(named), std::string::npos) << outcome.err;
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
  }
}

TEST(RandomModel, PresetsHaveTheSizesInTheirNames) {
  for (const auto& [name, millions] : {std::pair{"0.1m", 0.1},
                                       {"3.7m", 3.7},
                                       {"15m", 15.0},
                                       {"197m", 197.0},
                                       {"600m", 600.0},
                                       {"1b", 1007.0},
                                       {"qwen3-0.6b", 596.0},
                                       {"qwen3-1.7b", 1720.6}}) {
    const engines::ModelConfig config = preset_config(name).value();
    EXPECT_NEAR(static_cast<double>(engines::num_parameters(config)) / 1e6, millions,
                0.05 * millions)
        << name;
  }
  EXPECT_EQ(preset_config("7b").status().message(),
            "--preset: must be one of 0.1m, 3.7m, 15m, 197m, 600m, 1b, qwen3-0.6b, qwen3-1.7b");
}

// NF4 takes 33 bytes for 64 weights and a float for 256 such blocks, the table and the head of an
// NF4 base 34 bytes for 32 weights. The tolerance is that of layouts, which round sizes up and hold
// some scales in f32.
TEST(MemoryNotes, CountTheBaseInEachType) {
  const engines::ModelConfig config = preset_config("qwen3-1.7b").value();
  const auto table = static_cast<double>(config.vocab_size * config.hidden_size);
  const double layers = static_cast<double>(engines::num_parameters(config)) - table;
  const std::vector<FigureNote> bf16 = base_notes(config, DType::kBF16);
  const std::vector<FigureNote> nf4 = base_notes(config, DType::kNf4);
  EXPECT_NEAR(bf16[0].value, 2.0 * (layers + 2.0 * table), 0.01 * bf16[0].value);
  EXPECT_DOUBLE_EQ(bf16[1].value, 1.0);
  // The head is the table too.
  EXPECT_NEAR(nf4[0].value, layers * (33.0 + 4.0 / 256.0) / 64.0 + table * 34.0 / 32.0,
              0.03 * nf4[0].value);
  EXPECT_DOUBLE_EQ(nf4[1].value, nf4[0].value / bf16[0].value);
}

TEST(RandomModel, IsReproducibleAndComplete) {
  const engines::ModelConfig config = preset_config("3.7m").value();
  const engines::ModelFiles one = random_model(config, DType::kBF16);
  const engines::ModelFiles two = random_model(config, DType::kBF16);
  EXPECT_TRUE(engines::check_tensors(engines::expected_tensors(config), one.tensors, "x").ok());
  EXPECT_TRUE(std::ranges::equal(one.tensors.at("lm_head.weight").data.bytes(),
                                 two.tensors.at("lm_head.weight").data.bytes()));
  double squares = 0.0;
  const auto values = one.tensors.at("lm_head.weight").data.as<std::uint16_t>();
  for (const std::uint16_t half : values) {
    const double value = bf16_to_float(half);
    squares += value * value;
  }
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(values.size())), 0.02, 0.001);
}

// user nice system idle iowait irq softirq steal guest guest_nice, in hundredths of a second.
constexpr const char* kStat =
    "cpu  500 10 50 900 90 1 2 30 100 0\n"
    "cpu0 400 0 20 500 50 0 0 20 100 0\n"
    "cpu1 100 10 30 400 40 1 2 10 0 0\n"
    "intr 1 2 3\n";

TEST(ForeignLoad, CountsTheGivenCoresAndGuestTimeOnce) {
  const CoreTimes first = core_times(kStat, {0});
  EXPECT_DOUBLE_EQ(first.busy, 4.4);
  EXPECT_DOUBLE_EQ(first.total, 9.9);
  const CoreTimes both = core_times(kStat, {0, 1});
  EXPECT_DOUBLE_EQ(both.busy, 4.4 + 1.53);
  EXPECT_DOUBLE_EQ(both.total, 9.9 + 5.93);
  const CoreTimes none = core_times("", {0});
  EXPECT_DOUBLE_EQ(none.total, 0.0);
}

TEST(Figure, RatioOfTimesIsInverted) {
  Figure figure{"x", 50.0, "tok/s", "a limit", 100.0};
  EXPECT_DOUBLE_EQ(figure.ratio(), 0.5);
  figure.unit = "s";
  EXPECT_DOUBLE_EQ(figure.ratio(), 2.0);
  figure.value = 0.0;
  EXPECT_DOUBLE_EQ(figure.ratio(), 0.0);
}

TEST(TimedProcess, RecordsWhenEachLineWasPrinted) {
  const test::TemporaryDirectory directory;
  const auto process = run_timed({"/bin/sh", "-c", "echo one; sleep 0.2; echo two; pwd"},
                                 directory.path(), std::chrono::minutes(1));
  ASSERT_TRUE(process.ok()) << process.status().message();
  const std::vector<TimedLine>& lines = process.value().lines;
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].text, "one");
  EXPECT_EQ(lines[1].text, "two");
  EXPECT_GE(lines[1].seconds - lines[0].seconds, 0.1);
  EXPECT_EQ(std::filesystem::canonical(lines[2].text),
            std::filesystem::canonical(directory.path()));
  EXPECT_GT(process.value().peak_bytes, 0.0);
}

TEST(TimedProcess, ErrorsNameTheReason) {
  const test::TemporaryDirectory directory;
  const auto ran = [&](const std::vector<std::string>& command, Duration timeout) {
    return run_timed(command, directory.path(), timeout).status();
  };
  const Status refused = ran({"/bin/sh", "-c", "echo wrong >&2; exit 3"}, std::chrono::minutes(1));
  EXPECT_EQ(refused.message(), "/bin/sh: ended with 3: wrong");
  const Status hung = ran({"/bin/sh", "-c", "exec sleep 600"}, std::chrono::milliseconds(200));
  EXPECT_NE(hung.message().find("not done after"), std::string::npos) << hung.message();
  EXPECT_FALSE(ran({"/no/such/program"}, std::chrono::minutes(1)).ok());
}

TEST(ProfileTable, ShowsTheMostExpensiveFirstAndTheCoverage) {
  StepProfile profile;
  profile.seconds = 0.1;
  profile.peaks = {100e9, 200e9, 20e9};
  profile.ops.records["rope"] = {4, 0.02, 1e9, 1e8};
  profile.ops.records["linear 8 x 8"] = {2, 0.07, 3.5e9, 7e8};
  profile.ops.records["attention"] = {2, 0.01, 0.5e9, 1e8, DType::kBF16};
  const std::string table = profile_table(profile);
  EXPECT_LT(table.find("linear 8 x 8"), table.find("rope")) << table;
  EXPECT_NE(table.find("operations cover 100.0% of 100.0 ms"), std::string::npos) << table;
  EXPECT_NE(table.find("70.0%      50.0     10.0     50%"), std::string::npos) << table;
  EXPECT_NE(table.find("10.0%      50.0     10.0     25%"), std::string::npos) << table;
}

}  // namespace
}  // namespace tidemill::bench
