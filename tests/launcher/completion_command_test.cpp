// SPDX-License-Identifier: Apache-2.0
// Tests `completion`: what bash offers with the script, and that the scripts have all options and
// keys.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <regex>
#include <set>

#include <gmock/gmock.h>

#include "base/schema/reference.hpp"
#include "configs/run_config.hpp"
#include "tests/launcher/command_run.hpp"

namespace tidemill::launcher {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

using Words = std::vector<std::string>;

class CompletionTest : public CommandTest {
protected:
  void SetUp() override {
    write("bash.sh", run({"completion", "bash"}).out);
    write("rl.yaml", "workflow: rl\n");
    write("sft.yml", "# another workflow\nworkflow: sft  # tuning\n");
    write("notes.txt", "");
    for (const char* name : {"runs/first", "runs/second", "runs/none"}) {
      std::filesystem::create_directories(path(name));
    }
    write("runs/first/run.yaml", "");
    write("runs/second/run.yaml", "");
  }

  // Returns what bash offers if the cursor is at the end of `line`.
  [[nodiscard]] Words offered(const std::string& line,
                              const std::string& word_breaks = " \t\n\"'><=;|&(:") const {
    write("line", line);
    write("breaks", word_breaks);
    const std::string command =
        "cd '" + path("") +
        "' && bash -c 'source ./bash.sh; COMP_LINE=$(cat line; echo x); COMP_LINE=${COMP_LINE%x}; "
        "COMP_POINT=${#COMP_LINE}; COMP_WORDBREAKS=$(cat breaks); _tidemill; "
        "((${#COMPREPLY[@]} == 0)) || printf \"%s\\n\" \"${COMPREPLY[@]}\"' 2>&1";
    std::FILE* pipe = ::popen(command.c_str(), "r");  // NOLINT(cert-env33-c): the shell is tested
    Words words;
    char text[4096];
    while (std::fgets(text, sizeof(text), pipe) != nullptr) {
      words.emplace_back(text);
      words.back().pop_back();
    }
    EXPECT_EQ(::pclose(pipe), 0) << line;
    return words;
  }
};

TEST_F(CompletionTest, OffersCommandsAndOptions) {
  EXPECT_THAT(offered("tidemill r"), UnorderedElementsAre("run", "resume", "runs"));
  EXPECT_THAT(offered("tidemill "), IsSupersetOf({"check", "completion", "show", "template"}));
  EXPECT_THAT(offered("tidemill run --dr"), ElementsAre("--dry-run"));
  EXPECT_THAT(offered("tidemill show runs/first --wo"), ElementsAre("--worst"));
  EXPECT_THAT(offered("tidemill check --dr"), IsEmpty());
  EXPECT_THAT(offered("./mill sch"), ElementsAre("schema"));
}

TEST_F(CompletionTest, OffersTheValuesOfOptionsAndArguments) {
  EXPECT_THAT(offered("tidemill check --log-level d"), ElementsAre("debug"));
  EXPECT_THAT(offered("tidemill completion "), ElementsAre("bash", "zsh", "fish"));
  EXPECT_THAT(offered("tidemill run "), UnorderedElementsAre("rl.yaml", "sft.yml", "runs"));
  EXPECT_THAT(offered("tidemill run --dry-run r"), UnorderedElementsAre("rl.yaml", "runs"));
  EXPECT_THAT(offered("tidemill tokenize m --input n"), ElementsAre("notes.txt"));
  EXPECT_THAT(offered("tidemill generate ru"),
              ElementsAre("runs"));  // a directory, since it may be a model
  for (const char* command : {"show", "resume", "export"}) {
    EXPECT_THAT(offered(std::string("tidemill ") + command + " "),
                UnorderedElementsAre("runs/first", "runs/second"));
  }
  EXPECT_THAT(offered("tidemill show runs/first --step "), IsEmpty());
  EXPECT_THAT(offered("tidemill explain train.ad"), Contains("train.adapter.rank"));
}

TEST_F(CompletionTest, OffersKeysOfTheWorkflowThatTheFileNames) {
  const Words rl = offered("tidemill run rl.yaml ");
  EXPECT_THAT(rl, IsSupersetOf({"seed=", "rollout.group_size=", "train.adapter.rank="}));
  EXPECT_THAT(rl, Not(Contains("train.sequences_per_step=")));
  const Words sft = offered("tidemill check --print sft.yml seed=1 ");
  EXPECT_THAT(sft, IsSupersetOf({"seed=", "train.sequences_per_step="}));
  EXPECT_THAT(sft, Not(Contains("rollout.group_size=")));
  EXPECT_THAT(offered("tidemill run rl.yaml train.st"), ElementsAre("train.steps="));
  EXPECT_THAT(offered("tidemill run gone.yaml train.seq"),
              ElementsAre("train.sequences_per_step="));  // unknown workflow: keys of all
}

TEST_F(CompletionTest, OffersTheValuesOfAKey) {
  EXPECT_THAT(offered("tidemill run rl.yaml train.schedule=co"),
              UnorderedElementsAre("constant", "cosine"));
  EXPECT_THAT(offered("tidemill run rl.yaml train.schedule=co", " "),
              UnorderedElementsAre("train.schedule=constant", "train.schedule=cosine"));
  EXPECT_THAT(offered("tidemill run rl.yaml data.shuffle="), ElementsAre("true", "false"));
  EXPECT_THAT(offered("tidemill run rl.yaml reward.kind=n"), ElementsAre("number"));
  EXPECT_THAT(offered("tidemill run rl.yaml seed="), IsEmpty());
}

TEST_F(CompletionTest, HasEveryOptionThatHelpShows) {
  const std::regex option("--[a-z][a-z-]*");
  for (const auto& command : all_commands()) {
    if (command->hidden()) {
      EXPECT_THAT(offered("tidemill "), Not(Contains(command->name())));
      continue;
    }
    const std::string help = run({command->name(), "--help"}).out;
    const std::string options = help.substr(0, help.find("Example: "));
    const Words known = offered("tidemill " + command->name() + " --");
    std::set<std::string> shown;
    // An option is at the beginning of a line; its help may mention others.
    std::istringstream lines(options);
    for (std::string line; std::getline(lines, line);) {
      std::smatch match;
      if (line.starts_with("  -") && std::regex_search(line, match, option)) {
        shown.insert(match.str());
      }
    }
    EXPECT_EQ(std::set<std::string>(known.begin(), known.end()), shown) << command->name();
  }
}

TEST_F(CompletionTest, EveryScriptHasAllCommandsAndKeys) {
  const auto schema = Schema<configs::RunConfig>::described();
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const Outcome script = run({"completion", shell});
    ASSERT_EQ(script.code, kDone);
    for (const auto& command : all_commands()) {
      if (command->hidden()) {
        continue;  // its name may be part of another word
      }
      EXPECT_THAT(script.out, HasSubstr(command->name()));
    }
    for (const KeyReference& key : list_keys(schema.structure())) {
      EXPECT_THAT(script.out, HasSubstr(key.has_keys ? key.path + '.' : key.path)) << shell;
    }
  }
  EXPECT_THAT(run({"completion", "bash"}).out, HasSubstr(" data.train "));
  EXPECT_EQ(run({"completion", "csh"}).err, "SHELL: must be one of bash, zsh, fish, not \"csh\"\n");
}

}  // namespace
}  // namespace tidemill::launcher
