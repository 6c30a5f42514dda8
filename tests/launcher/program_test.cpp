// SPDX-License-Identifier: Apache-2.0
// Tests the output streams, the messages and the exit codes of the program.
#include "launcher/program.hpp"

#include <CLI/App.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/commands/commands.hpp"
#include "launcher/runs/log_sinks.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Outcome {
  int code = 0;
  std::string out;
  std::string err;
};

Outcome run(const std::vector<std::string>& arguments,
            std::vector<std::unique_ptr<Command>> commands = all_commands()) {
  std::ostringstream out;
  std::ostringstream err;
  const int code = run_program(arguments, std::move(commands), out, err);
  return {code, out.str(), err.str()};
}

const std::string kPreset = TIDEMILL_SOURCE_DIR "/configs/quickstart.yaml";

TEST(ProgramTest, WithoutACommandHelpIsShown) {
  const Outcome outcome = run({});
  EXPECT_EQ(outcome.code, kRefused);
  EXPECT_THAT(outcome.err, HasSubstr("Usage: tidemill"));
}

TEST(ProgramTest, HelpAndVersionSucceed) {
  EXPECT_EQ(run({"--version"}).out, "tidemill 0.1.0\n");
  const Outcome help = run({"--help"});
  EXPECT_EQ(help.code, kDone);
  EXPECT_THAT(help.out, HasSubstr("Exit codes: 0 success; 1 the work failed; 2 the command line"));
  EXPECT_THAT(help.out, HasSubstr("as a second Ctrl-C does (130)"));
}

TEST(ProgramTest, EveryCommandHasHelpWithAnExample) {
  for (const auto& command : all_commands()) {
    const Outcome help = run({command->name(), "--help"});
    EXPECT_EQ(help.code, kDone) << command->name();
    EXPECT_THAT(help.out, HasSubstr("--json"));
    EXPECT_THAT(help.out, HasSubstr("Example: " + command->example()));
    EXPECT_TRUE(command->example().starts_with("tidemill " + command->name())) << command->name();
    const std::string overview = run({"--help"}).out;
    EXPECT_EQ(overview.find(command->summary()) == std::string::npos, command->hidden())
        << command->name();
  }
}

TEST(ProgramTest, WrongCommandLinesGetOneLineOnStderr) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"chekc", "x"}, "tidemill: chekc: unknown command; did you mean check?\n"},
      {{"fly"}, "tidemill: fly: unknown command; tidemill --help lists all commands\n"},
      {{"check"}, "tidemill: FILE is required\n"},
      {{"check", kPreset, "--fast"},
       "tidemill: --fast: unknown option; tidemill check --help lists all options\n"},
      {{"check", kPreset, "train.steps=3", "--bogus"},
       "tidemill: --bogus: unknown option; tidemill check --help lists all options\n"},
      {{"generate", "x", "--max-tokens", "8", "--prompt", "1+1="},
       "tidemill: --max-tokens: unknown option; did you mean --max-new-tokens?\n"},
      {{"generate", "x", "1+1=", "2+2="}, "tidemill: 2+2=: is one argument too many\n"},
      {{"--fast", "check", kPreset},
       "tidemill: --fast: unknown option; tidemill check --help lists all options\n"},
      {{"check", kPreset, "--train.steps=3"},
       "tidemill: --train.steps=3: unknown option; keys are written "
       "without dashes: train.steps=3\n"},
      {{"run", kPreset, "--max_new_tokens=64"},
       "tidemill: --max_new_tokens=64: unknown option; keys are written "
       "without dashes: rollout.max_new_tokens=64\n"},
      {{"run", kPreset, "--num_generations", "x=1"},
       "tidemill: --num_generations: unknown option; keys are written "
       "without dashes: rollout.group_size=VALUE\n"},
      {{"serve", kPreset, "--port", "9000"},
       "tidemill: --port: unknown option; keys are written without dashes: serve.port=VALUE\n"},
      {{"tokenize", "x", "--seed=3"},
       "tidemill: --seed=3: unknown option; tidemill tokenize --help lists all options\n"},
      {{"check", kPreset, "--log-level", "loud"},
       "--log-level: must be one of debug, info, warning, error, not \"loud\"\n"},
      {{"check", "/nowhere.yaml"}, "/nowhere.yaml: no such file\n"},
      {{"explain", "rollout.group_sise"},
       "rollout.group_sise: unknown key; did you mean rollout.group_size?\n"},
  };
  for (const auto& [arguments, line] : cases) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, kRefused) << line;
    EXPECT_EQ(outcome.err, line);
    EXPECT_EQ(outcome.out, "");
  }
}

TEST(ProgramTest, AWrongCommandLineIsReportedAsJson) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"chekc", "x", "--json"}, "tidemill: chekc: unknown command; did you mean check?"},
      {{"check", "--json"}, "tidemill: FILE is required"},
      {{"check", kPreset, "--json", "--bogus"},
       "tidemill: --bogus: unknown option; tidemill check --help lists all options"},
      {{"check", kPreset, "--log-level", "x", "--json"},
       "--log-level: must be one of debug, info, warning, error, not \"x\""},
  };
  for (const auto& [arguments, line] : cases) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, kRefused) << line;
    EXPECT_EQ(outcome.err, line + '\n');
    EXPECT_EQ(outcome.out, "{\"error\":" + nlohmann::json(line).dump() + "}\n");
  }
  EXPECT_EQ(run({"check", kPreset, "--bogus"}).out, "");
}

// Accepts only a few bytes, like a disk that is nearly full.
class FullBuffer final : public std::streambuf {
protected:
  int_type overflow(int_type byte) override {
    return taken_++ < 3 ? traits_type::not_eof(byte) : traits_type::eof();
  }

private:
  int taken_ = 0;
};

TEST(ProgramTest, AResultThatCannotBeWrittenIsAFailure) {
  const std::string model = TIDEMILL_TEST_DIR "/golden/engine/models/llama-tiny";
  const std::vector<std::vector<std::string>> lines{
      {"check", kPreset},
      {"check", kPreset, "--print"},
      {"explain"},
      {"explain", "seed", "--json"},
      {"tokenize", model, "Hi"},
      {"generate", model, "Hi", "--greedy", "--max-new-tokens", "4"},
      {"--help"},
      {"--version"},
  };
  for (const std::vector<std::string>& arguments : lines) {
    FullBuffer buffer;
    std::ostream out(&buffer);
    std::ostringstream err;
    EXPECT_EQ(run_program(arguments, all_commands(), out, err), kFailed) << arguments[0];
    EXPECT_EQ(err.str(), "stdout: cannot be written\n") << arguments[0];
  }
}

TEST(ProgramTest, ErrorsNameAnOverrideByItsNumber) {
  const Outcome outcome =
      run({"check", "--print", kPreset, "seed=1", "--log-level", "error", "train.stpes=3"});
  EXPECT_EQ(outcome.code, kRefused);
  EXPECT_EQ(outcome.err, "argument 7: train.stpes: unknown key; did you mean steps?\n");
  EXPECT_EQ(run({"check", kPreset, "seed=1", "seed=x"}).err,
            "argument 4: seed: needs an integer of at least 0, found x\n");
}

TEST(ProgramTest, TheLastOverrideOfAKeyCounts) {
  const Outcome outcome = run({"check", kPreset, "seed=1", "eval={every_steps: 3}",
                               "eval.every_steps=5", "seed=2", "--json"});
  ASSERT_EQ(outcome.code, kDone) << outcome.err;
  const auto config = nlohmann::json::parse(outcome.out).at("config");
  EXPECT_EQ(config.at("seed"), 2);
  EXPECT_EQ(config.at("eval").at("every_steps"), 5);
}

TEST(ProgramTest, CheckReportsSuccessWarnsAndPrints) {
  const Outcome ok = run({"check", kPreset});
  EXPECT_EQ(ok.code, kDone);
  EXPECT_EQ(ok.out, kPreset + ": ok, workflow rl\n");
  EXPECT_EQ(ok.err, "");
  const Outcome warned = run({"check", kPreset, "rollout.top_k=5", "--print"});
  EXPECT_EQ(warned.code, kDone);
  EXPECT_THAT(warned.err, HasSubstr("warning: argument 3: rollout.top_k: "));
  EXPECT_THAT(warned.out, HasSubstr("workflow: rl\nmodel:\n  path: "));
  EXPECT_THAT(warned.out, HasSubstr("  top_k: 5\n"));
}

TEST(ProgramTest, JsonIsOneObjectPerLine) {
  const Outcome ok = run({"check", kPreset, "rollout.top_k=5", "--json"});
  const auto line = nlohmann::json::parse(ok.out);
  EXPECT_EQ(line.at("ok"), true);
  EXPECT_EQ(line.at("warnings").size(), 1U);
  EXPECT_EQ(line.at("config").at("rollout").at("top_k"), 5);
  EXPECT_EQ(line.at("config").at("data").at("shuffle"), true);
  EXPECT_TRUE(line.at("config").at("train").at("adapter").is_null());

  const Outcome bad = run({"check", kPreset, "seed=x", "--json"});
  EXPECT_EQ(bad.code, kRefused);
  EXPECT_EQ(nlohmann::json::parse(bad.out).at("error"),
            "argument 3: seed: needs an integer of at least 0, found x");
  EXPECT_EQ(bad.err, "argument 3: seed: needs an integer of at least 0, found x\n");

  std::istringstream lines(run({"explain", "--json"}).out);
  std::size_t num_keys = 0;
  for (std::string text; std::getline(lines, text); ++num_keys) {
    EXPECT_TRUE(nlohmann::json::parse(text).contains("key"));
  }
  EXPECT_GT(num_keys, 80U);
}

TEST(ProgramTest, TheReferencePageMatchesTheSchema) {
  std::ifstream page(TIDEMILL_SOURCE_DIR "/docs/configuration.md");
  std::ostringstream text;
  text << page.rdbuf();
  EXPECT_EQ(text.str(), run({"explain", "--markdown"}).out)
      << "update it: tidemill explain --markdown > docs/configuration.md";
}

TEST(ProgramTest, ExplainListsEveryKeyOnceUnderItsWorkflows) {
  const std::string text = run({"explain"}).out;
  std::map<std::string, std::set<std::string>> headings;  // by key
  std::set<std::string> seen;
  std::string heading;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with("Keys of ")) {
      heading = line;
    } else if (!line.empty()) {
      EXPECT_TRUE(seen.insert(line).second) << "twice: " << line;
      headings[line.substr(0, line.find(": "))].insert(heading);
    }
  }
  const std::set<std::string> both{"Keys of rl and sft:"};
  EXPECT_TRUE(
      text.starts_with("Keys of rl, sft and serve:\n"
                       "workflow: How to train the model, or serve: a server.\n"))
      << text;
  EXPECT_EQ(headings["model.path"], std::set<std::string>{"Keys of rl, sft and serve:"});
  EXPECT_EQ(headings["serve.port"], std::set<std::string>{"Keys of serve:"});
  EXPECT_EQ(headings["data.train"], both);
  EXPECT_EQ(headings["train.adapter.rank"], both);
  EXPECT_EQ(headings["data.eval"], both);
  EXPECT_EQ(headings["eval.keep_best"], both);
  EXPECT_EQ(headings["rollout.group_size"], std::set<std::string>{"Keys of rl:"});
  EXPECT_EQ(headings["train.sequences_per_step"], std::set<std::string>{"Keys of sft:"});

  std::map<std::string, std::set<std::string>> workflows;
  std::istringstream lines(run({"explain", "--json"}).out);
  std::set<std::string> objects;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(objects.insert(line).second) << "twice: " << line;
    const auto key = nlohmann::json::parse(line);
    for (const auto& name : key.at("workflows")) {
      workflows[key.at("key")].insert(name);
    }
  }
  EXPECT_EQ(workflows["workflow"], (std::set<std::string>{"rl", "sft", "serve"}));
  EXPECT_EQ(workflows["model.path"], (std::set<std::string>{"rl", "sft", "serve"}));
  EXPECT_EQ(workflows["rollout.group_size"], std::set<std::string>{"rl"});
}

TEST(ProgramTest, ExplainNamesTheWorkflowsOfAKey) {
  EXPECT_THAT(run({"explain", "eval.samples"}).out, HasSubstr("[workflow: rl]"));
  const auto line = nlohmann::json::parse(run({"explain", "eval.samples", "--json"}).out);
  EXPECT_EQ(line.at("workflows").dump(), "[\"rl\"]");
  // Both workflows have this key, although they refuse it together with train.steps.
  EXPECT_THAT(run({"explain", "data.epochs"}).out, HasSubstr("[workflow: rl or sft]"));
}

TEST(ProgramTest, ExplainShowsOneKeyOrTheReferencePage) {
  EXPECT_EQ(run({"explain", "rollout.group_size"}).out,
            "rollout.group_size: an integer from 2 to 1024, default 8  [workflow: rl]\n"
            "  Samples generated for each prompt, whose rewards are compared.\n"
            "  Other programs call it num_generations, n, num_return_sequences, "
            "num_samples_per_prompt, n_samples_per_prompt.\n");
  EXPECT_EQ(run({"explain", "eval.temperature"}).out,
            "eval.temperature: 0 or a finite number from 0.001 to 100, default 0  [workflow: rl]\n"
            "  Divides the logits; 0: greedy.\n");
  EXPECT_EQ(run({"explain", "train.adapter.rank"}).out,
            "train.adapter.rank: an integer from 1 to 1024, default 16  [workflow: rl or sft, "
            "train.adapter.kind: lora]\n  Rank of the update.\n"
            "  Other programs call it r, lora_r, lora_rank.\n");
  EXPECT_THAT(run({"explain", "--markdown"}).out, HasSubstr("## `rollout` (workflow: rl)"));
}

TEST(ProgramTest, ExplainSearchesForAWordThatIsNoKey) {
  EXPECT_EQ(run({"explain", "Multiplies NEGATIVE"}).out,
            "Keys of rl:\n"
            "rollout.repetition_penalty: Divides positive and multiplies negative logits of tokens "
            "that occur in the prompt or the response; 1: off.\n");
  EXPECT_THAT(run({"explain", "Group_Size"}).out, HasSubstr("rollout.group_size: "));
  EXPECT_EQ(run({"explain", "num_generations"}).out,
            "Keys of rl:\n"
            "rollout.group_size: Samples generated for each prompt, whose rewards are compared.\n")
      << "the name that other programs give the key";
  // A setting of other programs that has no counterpart.
  EXPECT_THAT(
      run({"explain", "beta"}).out,
      AllOf(StartsWith("beta: unknown key; there is no KL term against a reference model\n"),
            HasSubstr("train.betas: ")));
  EXPECT_THAT(run({"explain", "packing"}).err,
              StartsWith("packing: unknown key; rows are never padded"));
  // The name of a value, and keys of both workflows.
  EXPECT_THAT(run({"explain", "half a cosine"}).out,
              AllOf(HasSubstr("Keys of rl and sft:\n"), HasSubstr("train.schedule: ")));
  std::istringstream lines(run({"explain", "repetition_pen", "--json"}).out);
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(nlohmann::json::parse(line).at("key"), "rollout.repetition_penalty");
  EXPECT_FALSE(std::getline(lines, line));
}

class EndingCommand final : public Command {
public:
  explicit EndingCommand(Status status) : status_(std::move(status)) {}
  [[nodiscard]] std::string name() const override { return "end"; }
  [[nodiscard]] std::string summary() const override { return "Ends"; }
  [[nodiscard]] std::string example() const override { return "tidemill end"; }
  void declare(CLI::App& /*app*/) override {}
  [[nodiscard]] Status run(Session& /*session*/) override {
    if (status_.ok()) {
      throw std::runtime_error("two\nlines");
    }
    return status_;
  }

private:
  Status status_;
};

TEST(ProgramTest, ExitCodesDistinguishBadInputFromFailedWork) {
  const auto code_of = [](Status status) {
    std::vector<std::unique_ptr<Command>> commands;
    commands.push_back(std::make_unique<EndingCommand>(std::move(status)));
    return run({"end"}, std::move(commands));
  };
  EXPECT_EQ(code_of(corrupt_data("a file: torn")).code, kRefused);
  EXPECT_EQ(code_of(corrupt_data("a file: torn")).err, "a file: torn\n");
  EXPECT_EQ(code_of(Status(Errc::kResourceExhausted, "disk full")).code, kFailed);
  const Outcome thrown = code_of(Status());
  EXPECT_EQ(thrown.code, kFailed);
  EXPECT_EQ(thrown.err, "tidemill: two lines\n");
}

TEST(LogSinkTest, TheLogOfARunIsWrittenOnceItIsOpen) {
  const test::TemporaryDirectory folder;
  const auto directory = HeldDirectory::open(folder.path());
  ASSERT_TRUE(directory.ok()) << directory.status().message();
  const auto text = [&folder] {
    std::ifstream stream(folder.path() / "log.txt");
    return std::string{std::istreambuf_iterator<char>(stream), {}};
  };
  for (int round = 0; round < 2; ++round) {
    const SystemClock clock;
    Log log(clock);
    auto sink = std::make_unique<RunLogSink>(directory.value());
    RunLogSink& file = *sink;
    log.add_sink(std::move(sink));
    EXPECT_TRUE(file.check().ok());
    const std::string before = text();
    log.warning("slow {}", {{"step", round}});
    EXPECT_EQ(text(), before);
    ASSERT_TRUE(file.open().ok());
    log.info("opened", {{"step", round}});
  }
  EXPECT_THAT(text(),
              ::testing::MatchesRegex("(20[0-9-]+ [0-9:]+[.][0-9]+ warning slow [{][}] step=[01]\n"
                                      "20[0-9-]+ [0-9:]+[.][0-9]+ info opened step=[01]\n)+"));
}

// The exit codes of docs/looking.md, for every command.
TEST(ProgramTest, EveryCommandRefusesAnUnknownOptionAsAnInvalidRequest) {
  for (const auto& command : all_commands()) {
    SCOPED_TRACE(command->name());
    const Outcome outcome = run({command->name(), "--no-such-option"}, all_commands());
    EXPECT_EQ(outcome.code, kRefused) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

}  // namespace
}  // namespace tidemill::launcher
