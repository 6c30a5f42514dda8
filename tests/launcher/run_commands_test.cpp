// SPDX-License-Identifier: Apache-2.0
// Tests `run` and `resume` in a temporary folder: dry runs, the state of runs, and finding runs.
#include <fcntl.h>
#include <filesystem>
#include <map>
#include <unistd.h>

#include <gmock/gmock.h>

#include "configs/load.hpp"
#include "launcher/inspect/run_report.hpp"
#include "launcher/runs/config_changes.hpp"
#include "launcher/runs/run_directory.hpp"
#include "tests/launcher/command_run.hpp"

namespace tidemill::launcher {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kSource = TIDEMILL_SOURCE_DIR;

std::string content_of(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// Changes to the temporary folder, since runs are stored in `runs/` of the working directory.
class RunTest : public CommandTest {
protected:
  void SetUp() override {
    before_ = std::filesystem::current_path();
    std::filesystem::current_path(path(""));
    write("small.yaml",
          "workflow: rl\n"
          "model: {path: " +
              kSource +
              "/examples/models/arithmetic}\n"
              "data: {train: " +
              kSource +
              "/examples/arithmetic/data/train.jsonl}\n"
              "rollout: {group_size: 2, max_new_tokens: 4, workers: 1}\n"
              "reward: {kind: number}\n"
              "train: {steps: 1, prompts_per_step: 2}\n");
    write("supervised.yaml",
          "workflow: sft\n"
          "model: {path: " +
              kSource +
              "/examples/models/arithmetic}\n"
              "data: {train: " +
              kSource +
              "/examples/arithmetic/data/sft.jsonl}\n"
              "train: {steps: 1, sequences_per_step: 2}\n");
  }
  void TearDown() override { std::filesystem::current_path(before_); }

private:
  std::filesystem::path before_;
};

TEST_F(RunTest, ADryRunPrintsAConfigurationFileOrOneObject) {
  const Outcome text = run({"run", "small.yaml", "--dry-run", "rollout.top_k=5"});
  EXPECT_EQ(text.code, kDone) << text.err;
  EXPECT_THAT(text.err, HasSubstr("warning: argument 4: rollout.top_k: "));
  EXPECT_THAT(text.out, HasSubstr("# memory, expected peak: "));
  EXPECT_THAT(text.out, HasSubstr("# memory, at most: "));
  EXPECT_EQ(run({"check", write("printed.yaml", text.out)}).code, kDone);

  const Outcome warned = run({"run", "small.yaml", "--dry-run", "rollout.top_k=5", "--json"});
  EXPECT_EQ(warned.code, kDone);
  EXPECT_EQ(warned.err, "");
  ASSERT_EQ(warned.lines().size(), 1U);
  EXPECT_EQ(warned.lines()[0].at("warnings").size(), 1U);

  const Outcome outcome = run({"run", "small.yaml", "--dry-run", "--json"});
  EXPECT_EQ(outcome.code, kDone) << outcome.err;
  ASSERT_EQ(outcome.lines().size(), 1U);
  const nlohmann::json object = outcome.lines()[0];
  EXPECT_FALSE(object.contains("warnings"));
  EXPECT_EQ(object.at("config").at("rollout").at("group_size"), 2);
  EXPECT_EQ(object.at("config").at("workflow"), "rl");
  std::int64_t sum = 0;
  for (const char* part : {"program", "weights", "kv", "activations", "gradients", "optimizer",
                           "commits", "generated", "stream", "best"}) {
    sum += object.at("memory_bytes").at(part).get<std::int64_t>();
  }
  EXPECT_GT(sum, 0);
  EXPECT_EQ(object.at("memory_bytes").at("total"), sum);
  EXPECT_LT(object.at("expected_memory_bytes").at("total"), sum);
  EXPECT_FALSE(std::filesystem::exists("runs"));
}

TEST_F(RunTest, ADryRunOfAServerSaysWhatItsJobsMayTake) {
  write("server.yaml", "workflow: serve\nmodel: {path: " + kSource +
                           "/examples/models/arithmetic}\n"
                           "serve: {kv_bytes: 1MiB}\ndevice: {memory_bytes: 2GiB}\n");
  const std::string jobs = "serve.jobs_path=jobs";
  const Outcome text = run({"serve", "server.yaml", "--dry-run", jobs});
  EXPECT_EQ(text.code, kDone) << text.err;
  EXPECT_THAT(text.out, HasSubstr("# memory, at most: "));
  EXPECT_THAT(text.out, HasSubstr("# memory, each of 4 fine-tuning jobs at most: "));
  EXPECT_EQ(run({"check", write("printed.yaml", text.out)}).code, kDone);

  const nlohmann::json alone = run({"serve", "server.yaml", "--dry-run", "--json"}).lines().at(0);
  EXPECT_FALSE(alone.contains("job_memory_bytes"));
  // 26 MiB for each of 16 constraints.
  EXPECT_EQ(alone.at("memory_bytes").at("constraints"), std::int64_t{16 * 26} << 20U);
  const nlohmann::json training =
      run({"serve", "server.yaml", "--dry-run", "--json", jobs, "serve.tuning.max_running=2"})
          .lines()
          .at(0);
  EXPECT_EQ(training.at("config").at("workflow"), "serve");
  // The cache that jobs reserve counts, and they share equally what is left.
  EXPECT_GT(training.at("memory_bytes").at("kv"), alone.at("memory_bytes").at("kv"));
  const auto total = training.at("memory_bytes").at("total").get<std::int64_t>();
  EXPECT_EQ(training.at("job_memory_bytes"), ((std::int64_t{2} << 30U) - total) / 2);
  EXPECT_FALSE(std::filesystem::exists("jobs"));
  const Outcome open = run({"serve", "server.yaml", "--dry-run", "serve.host=0.0.0.0"});
  EXPECT_EQ(open.code, kRefused);
  EXPECT_THAT(open.err, HasSubstr("serve.host: must be an address of the loopback interface"));
  const Outcome keyless = run({"serve", "server.yaml", "--dry-run", "serve.keys_file=none.json"});
  EXPECT_EQ(keyless.code, kRefused);
  EXPECT_THAT(keyless.err, HasSubstr("serve.keys_file: "));

  // 256 MiB beyond the server are less than a job takes for each of 64 jobs. The room on both sides
  // is for the program, whose memory is measured and grows from one call to the next.
  const std::string many = "serve.tuning.max_running=64";
  const auto with_many =
      run({"serve", "server.yaml", "--dry-run", "--json", jobs, many, "device.memory_bytes=8GiB"})
          .lines()
          .at(0)
          .at("memory_bytes")
          .at("total")
          .get<std::int64_t>();
  const Outcome refused = run({"serve", "server.yaml", "--dry-run", jobs, many,
                               "device.memory_bytes=" + std::to_string(with_many + (256 << 20))});
  EXPECT_EQ(refused.code, kRefused);
  EXPECT_THAT(refused.err, HasSubstr(" for each of 64 jobs with a sequence of 64 tokens; "));
  EXPECT_THAT(refused.err, HasSubstr(" fits; or raise device.memory_bytes"));
}

TEST_F(RunTest, RowsAreKeptForTrainingOnlyOnPolicy) {
  const auto memory = [](const std::vector<std::string>& more) {
    std::vector<std::string> words{"run", "small.yaml", "--dry-run", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, kDone) << outcome.err;
    return outcome.lines().at(0);
  };
  const nlohmann::json kept = memory({});
  const auto rows = kept.at("memory_bytes").at("generated").get<std::int64_t>();
  EXPECT_GT(rows, 0);
  EXPECT_GT(kept.at("expected_memory_bytes").at("generated"), 0);
  EXPECT_LE(kept.at("expected_memory_bytes").at("generated"), rows);
  for (const char* without : {"staleness.max=1", "train.recompute=cheap"}) {
    const nlohmann::json object = memory({without});
    EXPECT_EQ(object.at("memory_bytes").at("generated"), 0) << without;
    EXPECT_EQ(object.at("expected_memory_bytes").at("generated"), 0) << without;
  }

  for (const bool on_policy : {true, false}) {
    const Outcome outcome = run({"run", "small.yaml", "--json", on_policy ? "name=on" : "name=off",
                                 on_policy ? "staleness.max=0" : "staleness.max=1"});
    ASSERT_EQ(outcome.code, kDone) << outcome.err;
    double recalled = -1.0;
    double compared = -1.0;
    for (const nlohmann::json& line : outcome.lines()) {
      if (line.value("kind", "") == "train") {
        recalled = line.at("recalled_tokens").get<double>();
        compared = line.at("logprob_gap_tokens").get<double>();
        EXPECT_EQ(line.at("logprob_gap_max"), 0.0);
      }
    }
    EXPECT_EQ(recalled > 0.0, on_policy);
    EXPECT_GT(compared, 0.0);
  }
}

// Replaces standard input by a file.
class Stdin {
public:
  explicit Stdin(const std::string& path) : before_(::dup(STDIN_FILENO)) {
    const int file = ::open(path.c_str(), O_RDONLY);
    EXPECT_GE(file, 0) << path;
    ::dup2(file, STDIN_FILENO);
    ::close(file);
  }
  Stdin(const Stdin&) = delete;
  Stdin& operator=(const Stdin&) = delete;
  ~Stdin() {
    ::dup2(before_, STDIN_FILENO);
    ::close(before_);
  }

private:
  int before_;
};

TEST_F(RunTest, ARunFileIsReadFromStdin) {
  {
    const Stdin input("small.yaml");
    const Outcome checked = run({"check", "-"});
    EXPECT_EQ(checked.code, kDone) << checked.err;
  }
  {
    const Stdin input("small.yaml");
    const Outcome outcome = run({"run", "-", "seed=3"});
    EXPECT_EQ(outcome.code, kDone) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("done: step 1; the model is in runs/run/export\n"));
  }
  write("bad.yaml", "workflow: rl\nbogus: 1\n");
  const Stdin input("bad.yaml");
  EXPECT_THAT(run({"check", "-"}).err, StartsWith("stdin:2: bogus: unknown key"));
}

TEST_F(RunTest, ADryRunRefusesTheSameMemoryAsTheRun) {
  const Outcome real = run({"run", "small.yaml", "device.memory_bytes=1MiB"});
  EXPECT_EQ(real.code, kRefused);
  EXPECT_THAT(real.err,
              HasSubstr("device.memory_bytes: 1.0 MiB are allowed, and the run may need"));
  const Outcome dry = run({"run", "small.yaml", "device.memory_bytes=1MiB", "--dry-run"});
  EXPECT_EQ(dry.code, real.code);
  // The memory of the program itself has grown in between.
  const auto parts = [](const std::string& line) { return line.substr(line.find(", weights ")); };
  EXPECT_EQ(parts(dry.err), parts(real.err));
  EXPECT_EQ(dry.out, "");
}

TEST_F(RunTest, RunsAndShowReportARun) {
  ASSERT_EQ(run({"run", "small.yaml"}).code, kDone);
  const Outcome finished = run({"runs", "--json"});
  ASSERT_EQ(finished.lines().size(), 1U);
  EXPECT_EQ(finished.lines()[0].at("state"), "finished");
  EXPECT_EQ(finished.lines()[0].at("step"), 1);
  EXPECT_EQ(finished.lines()[0].at("steps"), 1);
  EXPECT_TRUE(finished.lines()[0].at("train").contains("reward_mean"));
  EXPECT_THAT(run({"show", "small"}).out, HasSubstr("small: rl, finished, step 1 of 1\n"));
  EXPECT_THAT(content_of("runs/small/log.txt"),
              ContainsRegex("loading .*\n(.*\n)*"
                            ".*memory: [0-9.]+ MiB expected, [0-9.]+ MiB at most\n"
                            ".*step 1: generating 2 responses to each of 2 prompts, of at most"));
  const Outcome samples = run({"show", "small", "--samples", "--json"});
  EXPECT_EQ(samples.lines().size(), 4U);  // 2 prompts, 2 samples each
  EXPECT_EQ(samples.lines()[0].at("response_ids").size(),
            samples.lines()[0].at("behavior_logprobs").size());

  ASSERT_EQ(run({"run", "small.yaml", "name=none", "record.samples_bytes=0"}).code, kDone);
  EXPECT_EQ(run({"show", "none", "--samples"}).err,
            "runs/none/samples.jsonl: contains no samples\n");
}

TEST_F(RunTest, RunsAndShowReportWhyARunFailed) {
  const Outcome failed =
      run({"run", "small.yaml", "reward={kind: command, command: [/bin/false]}"});
  EXPECT_EQ(failed.code, kFailed);  // not kRefused: the arguments could be used
  const Outcome runs = run({"runs", "--json"});
  ASSERT_EQ(runs.lines().size(), 1U);
  EXPECT_EQ(runs.lines()[0].at("state"), "failed");
  EXPECT_EQ(runs.lines()[0].at("reason").get<std::string>() + '\n', failed.err);
  EXPECT_THAT(run({"show", "small"}).out, HasSubstr("step 0 of 1; reward-0: command: given up"));
}

// The directory of a run whose process could write nothing after it, as on a full disk.
TEST_F(RunTest, ARunThatEndedBeforeItsFirstStepHasFailed) {
  const auto schema = Schema<configs::RunConfig>::described();
  const auto config = configs::load_run_config(schema, "small.yaml");
  ASSERT_TRUE(config.ok()) << config.status().message();
  const auto directory = make_run_directory(schema, config.value().value, "small.yaml");
  ASSERT_TRUE(directory.ok()) << directory.status().message();
  const RunReport report = read_run_report(directory.value().path);
  EXPECT_EQ(report.state, "failed");
  EXPECT_EQ(report.reason, "its process was killed, or could not write why it ended");
}

// Makes directories of new runs as `run` does.
class RunDirectoryTest : public RunTest {
protected:
  [[nodiscard]] Result<NewRunDirectory> make(const std::string& file) const {
    const auto config = configs::load_run_config(schema_, "small.yaml");
    EXPECT_TRUE(config.ok()) << config.status().message();
    return make_run_directory(schema_, config.value().value, file);
  }
  // Returns the path of the directory that is made.
  [[nodiscard]] std::string made(const std::string& file) const {
    const auto directory = make(file);
    EXPECT_TRUE(directory.ok()) << directory.status().message();
    return directory.ok() ? directory.value().path.string() : "";
  }

  const Schema<configs::RunConfig> schema_ = Schema<configs::RunConfig>::described();
};

TEST_F(RunDirectoryTest, HasTheFirstNameThatIsNotInUse) {
  EXPECT_EQ(made("a/small.yaml"), "runs/small");
  EXPECT_EQ(made("small.yaml"), "runs/small-2");
  EXPECT_EQ(made("small.yaml"), "runs/small-3");
  EXPECT_EQ(content_of("runs/small-2/run.yaml"), content_of("runs/small/run.yaml"));
  EXPECT_THAT(content_of("runs/small/run.yaml"), HasSubstr("\n  steps: 1\n"));
  EXPECT_EQ(read_started("runs/small").value().size(), std::string("2026-01-31T12:00:00").size());
  EXPECT_EQ(read_run_report("runs/small").state, "failed") << "a process that ends now has failed";
}

TEST_F(RunDirectoryTest, OnlyWhatARunThatHasNotBegunLeavesIsRemoved) {
  struct Case {
    std::string name;
    std::string content;
    bool in_use = false;
  };
  const std::vector<Case> cases{{"run.yaml", "workflow: rl\n"},
                                {"started", "2026\n"},
                                {"state.json", "{}"},
                                {"log.txt", "x\n"},
                                {"metrics.jsonl", ""},
                                {"samples.jsonl", ""},
                                {"reward-stderr.txt", "x\n"},
                                {"events.out.tfevents.tidemill", "x"},
                                {".tmp-1", "x"},
                                {"checkpoints/store.json", "{}"},
                                {"metrics.jsonl", "x", true},
                                {"samples.jsonl", "x", true},
                                {"checkpoints/commit-1", "x", true},
                                {"notes.txt", "", true}};
  for (const Case& one : cases) {
    std::filesystem::remove_all("runs");
    std::filesystem::create_directories("runs/small/checkpoints");
    write("runs/small/" + one.name, one.content);
    const auto directory = make("small.yaml");
    ASSERT_TRUE(directory.ok()) << one.name << ": " << directory.status().message();
    EXPECT_EQ(directory.value().path, one.in_use ? "runs/small-2" : "runs/small") << one.name;
    EXPECT_EQ(directory.value().taken_over, !one.in_use) << one.name;
    EXPECT_EQ(std::filesystem::exists("runs/small/checkpoints"), one.in_use) << one.name;
    const bool replaced =
        one.name == "run.yaml" || one.name == "started" || one.name == "state.json";
    EXPECT_EQ(std::filesystem::exists("runs/small/" + one.name), one.in_use || replaced)
        << one.name;
    if (replaced) {
      EXPECT_NE(content_of("runs/small/" + one.name), one.content) << one.name;
    }
  }
  std::filesystem::remove_all("runs");
  const auto fresh = make("small.yaml");
  ASSERT_TRUE(fresh.ok());
  EXPECT_FALSE(fresh.value().taken_over);
}

TEST_F(RunDirectoryTest, AGivenNameInUseIsRefused) {
  std::filesystem::create_directories("runs/mine");
  write("runs/mine/notes.txt", "");
  EXPECT_EQ(run({"run", "small.yaml", "name=mine"}).err,
            "runs/mine: the run exists; resume it, or give another name\n");
  EXPECT_FALSE(std::filesystem::exists("runs/mine/run.yaml"));
}

TEST_F(RunDirectoryTest, ARenamedOrRemovedOneIsNoticed) {
  const auto directory = make("small.yaml");
  ASSERT_TRUE(directory.ok());
  EXPECT_TRUE(check_in_place(*directory.value().held).ok());
  std::filesystem::rename("runs/small", "runs/moved");
  const std::string now = std::filesystem::canonical("runs/moved");
  EXPECT_EQ(check_in_place(*directory.value().held).message(),
            "runs/small: was renamed to " + now +
                " during the run; to continue it: tidemill resume " + now);
  std::filesystem::remove_all("runs/moved");
  EXPECT_EQ(check_in_place(*directory.value().held).message(),
            "runs/small: was removed during the run");
}

TEST_F(RunDirectoryTest, ARefusedRunLeavesNone) {
  EXPECT_EQ(run({"run", "small.yaml", "device.memory_bytes=1MiB"}).code, kRefused);
  EXPECT_TRUE(std::filesystem::is_empty("runs"));
}

// A run that has ended has made a commit, so its records would be those of another start.
TEST_F(RunDirectoryTest, ARunThatHasLostItsCommitsIsNotStartedAgain) {
  const std::string directory = made("small.yaml");
  write(directory + "/metrics.jsonl", R"({"kind":"train","step":1})"
                                      "\n");
  const std::string problem = directory + "/checkpoints: has no commit, but the run ";
  const std::string advice =
      " and has records; to start it again, use another name or remove " + directory + "\n";
  write(directory + "/state.json", R"({"state":"finished","steps":1,"reason":""})");
  EXPECT_EQ(run({"resume", directory}).err, problem + "has finished" + advice);
  write(directory + "/state.json", R"({"state":"stopped","steps":1,"reason":""})");
  EXPECT_EQ(run({"resume", directory}).err, problem + "was stopped" + advice);
  EXPECT_EQ(content_of(directory + "/metrics.jsonl"), "{\"kind\":\"train\",\"step\":1}\n");
  std::filesystem::remove(directory + "/started");
  std::filesystem::remove(directory + "/metrics.jsonl");
  EXPECT_EQ(run({"resume", directory}).err,
            directory +
                "/started: no such file; without commits and records, tidemill run can use "
                "the name small again\n");
}

// The keys of run.yaml may have been edited, so the configuration of the last commit counts.
TEST_F(RunDirectoryTest, ChangesAreThoseSinceTheLastCommit) {
  const auto config = [this](const std::vector<configs::Override>& overrides) {
    const auto loaded = configs::load_run_config(schema_, "small.yaml", overrides);
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    return loaded.value().value;
  };
  const auto check = [&](const std::vector<configs::Override>& before,
                         const std::vector<configs::Override>& after,
                         const std::string& committed) {
    return check_config_changes(schema_, {config(before), config(after), "FILE", after}, committed);
  };
  const std::vector<configs::Override> larger{{"rollout.group_size=4", "argument 3"}};
  const std::string was = configs::resolved_text(schema_, config({}));
  const std::string advice =
      "rollout.group_size: cannot change in a resumed run, because its commits depend on it; ";
  EXPECT_THAT(check({}, larger, "").status().message(), StartsWith("argument 3: " + advice));
  EXPECT_THAT(check(larger, larger, was).status().message(), StartsWith("argument 3: " + advice));
  EXPECT_THAT(check_config_changes(schema_, {config(larger), config(larger), "FILE", {}}, was)
                  .status()
                  .message(),
              StartsWith("FILE: " + advice));
  EXPECT_TRUE(check(larger, larger, "").ok());
  EXPECT_TRUE(check(larger, larger, "not: [a, run").ok()) << "of another version";
  const std::vector<configs::Override> twice{{"train.learning_rate=0.5", "argument 3"},
                                             {"train={learning_rate: 0.25}", "argument 4"}};
  EXPECT_THAT(check({}, twice, "").status().message(),
              StartsWith("argument 4: train.learning_rate"));

  const std::string note =
      "the length of the run has changed: with staleness.schedule: fixed and a staleness.max above "
      "0, its weights differ from those of a run that had this length from its start";
  const auto noted = [&](const std::string& schedule, const std::string& max,
                         const std::string& change) {
    const std::vector<configs::Override> before{{"staleness.schedule=" + schedule, ""},
                                                {"staleness.max=" + max, ""}};
    std::vector<configs::Override> after = before;
    after.push_back({change, "argument 3"});
    const auto checked = check(before, after, "");
    EXPECT_TRUE(checked.ok()) << checked.status().message();
    return checked.ok() ? checked.value() : "";
  };
  EXPECT_EQ(noted("fixed", "1", "train.steps=2"), note);
  EXPECT_EQ(noted("fixed", "1", "train.steps=1"), "") << "as before";
  EXPECT_EQ(noted("fixed", "1", "checkpoint.every_steps=3"), "");
  EXPECT_EQ(noted("fixed", "0", "train.steps=2"), "");
  EXPECT_EQ(noted("none", "1", "train.steps=2"), "");
}

TEST_F(RunTest, TheModelsBeforeAndAfterAreCompared) {
  write_lines("eval.jsonl",
              {{{"prompt", "10+20="}, {"answer", "30"}}, {{"prompt", "11+20="}, {"answer", "31"}}});
  const std::vector<std::string> words{"run", "small.yaml", "eval.every_steps=1",
                                       "data.eval=eval.jsonl"};
  const auto started = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    const Outcome outcome = run(more);
    EXPECT_EQ(outcome.code, kDone) << outcome.err;
    return outcome;
  };
  std::map<std::string, nlohmann::json> of;
  for (const nlohmann::json& line : started({"name=json", "--json"}).lines()) {
    of[line.at("kind").get<std::string>()] = line;
  }
  const nlohmann::json compared = of.at("before_and_after");
  EXPECT_EQ(compared.at("accuracy_after"), of.at("eval").at("eval_mean_at_k"));
  EXPECT_TRUE(compared.contains("accuracy_before"));
  ASSERT_EQ(compared.at("answers").size(), 2U);
  EXPECT_EQ(compared.at("answers")[0].at("prompt"), "10+20=");
  EXPECT_EQ(compared.at("answers")[0].at("right"), "30");
  EXPECT_EQ(compared.at("answers")[1].at("prompt"), "11+20=");
  EXPECT_EQ(compared.at("answers")[1].at("right"), "31");

  const std::string table = started({"name=table"}).out;
  EXPECT_THAT(table, ContainsRegex("^\nmean reward before  [01]\\.[0-9]{3}\n"
                                   "mean reward after   [01]\\.[0-9]{3}\n\n"
                                   "prompt {20}response before {11}response after {12}reference\n"
                                   "10\\+20= .* 30\n"
                                   "11\\+20= .* 31\n\n"
                                   "done: step 1; the model is in runs/table/export\n"));
  const std::string random =
      started({"name=random", "model.init=random", "eval.samples=3", "eval.temperature=1"}).out;
  EXPECT_THAT(random, ContainsRegex("^\nmean reward after   0\\.000   pass@3 0\\.000\n\n"
                                    "prompt {20}response after {12}reference\n"));
}

TEST_F(RunTest, ARunIsResumedAndExportedByItsNameOrAnyPathOfItsDirectory) {
  ASSERT_EQ(run({"run", "small.yaml"}).code, kDone);
  for (const char* directory : {"runs/small", "runs/small/", "runs/../runs/small/.", "small"}) {
    const Outcome outcome = run({"resume", directory});
    EXPECT_EQ(outcome.code, kDone) << directory << ": " << outcome.err;
    const Outcome exported = run({"export", directory, "exported"});
    EXPECT_EQ(exported.code, kDone) << directory << ": " << exported.err;
  }
  EXPECT_THAT(content_of("runs/small/log.txt"),
              HasSubstr("step 1 was the last one; train.steps=N gives the run more\n"));
  EXPECT_EQ(run({"show", "small"}).code, kDone);
  const std::string unknown = "smal: no such run; tidemill runs lists all runs\n";
  EXPECT_EQ(run({"resume", "smal"}).err, unknown);
  EXPECT_EQ(run({"show", "smal"}).err, unknown);
  EXPECT_EQ(run({"export", "smal", "out"}).err,
            "smal: no such run or commit; tidemill runs lists all runs\n");

  std::filesystem::current_path("runs/small");
  const Outcome outcome = run({"resume", "."});
  EXPECT_EQ(outcome.code, kDone) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("done: step 1; the model is in ./export\n"));
}

TEST_F(RunTest, AResumedRunMayHaveMoreSteps) {
  const std::vector<std::string> synchronous{"staleness.max=0", "train.learning_rate=1e-3",
                                             "rollout.group_size=4", "train.prompts_per_step=4"};
  const auto start = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"run", "small.yaml"});
    words.insert(words.end(), synchronous.begin(), synchronous.end());
    const Outcome outcome = run(words);
    ASSERT_EQ(outcome.code, kDone) << outcome.err;
  };
  start({"name=long", "train.steps=3"});
  start({"name=extended"});
  EXPECT_NE(content_of("runs/extended/export/model.safetensors"),
            content_of("runs/long/export/model.safetensors"));
  const Outcome outcome = run({"resume", "extended", "train.steps=3", "checkpoint.every_steps=1"});
  ASSERT_EQ(outcome.code, kDone) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("done: step 3; the model is in runs/extended/export\n"));
  EXPECT_EQ(content_of("runs/extended/export/model.safetensors"),
            content_of("runs/long/export/model.safetensors"));
  EXPECT_THAT(content_of("runs/extended/run.yaml"), HasSubstr("\n  steps: 3\n"));
  EXPECT_THAT(run({"show", "extended"}).out, HasSubstr("rl, finished, step 3 of 3\n"));
}

TEST_F(RunTest, AResumedRunMayNotEndBeforeItsLastCommit) {
  for (const std::string workflow : {"small", "supervised"}) {
    const std::string file = workflow + ".yaml";
    const std::string directory = "runs/" + workflow;
    ASSERT_EQ(run({"run", file, "name=" + workflow, "train.steps=3"}).code, kDone) << file;
    const std::string before = content_of(directory + "/run.yaml");
    const Outcome refused = run({"resume", directory, "train.steps=2"});
    EXPECT_EQ(refused.code, kRefused);
    EXPECT_EQ(refused.err,
              "train.steps: the run would end after step 2, but its last commit is of step 3\n");
    EXPECT_EQ(content_of(directory + "/run.yaml"), before);
    EXPECT_EQ(run({"resume", directory, "train.steps=3"}).code, kDone) << file;
  }
}

// 5 rows, 3 times, are 7 batches of 2; the last row is left over.
TEST_F(RunTest, BatchesContinueFromOneEpochIntoTheNext) {
  std::vector<nlohmann::json> rows;
  for (int i = 0; i < 5; ++i) {
    rows.push_back(
        {{"prompt", std::to_string(10 + i) + "+20="}, {"answer", std::to_string(30 + i)}});
  }
  write_lines("five.jsonl", rows);
  for (const char* file : {"small.yaml", "supervised.yaml"}) {
    const Outcome outcome =
        run({"run", file, "--json", "data.train=five.jsonl", "data.epochs=3", "train.steps=null"});
    ASSERT_EQ(outcome.code, kDone) << outcome.err;
    std::int64_t trained = 0;
    std::int64_t end = 0;
    for (const nlohmann::json& line : outcome.lines()) {
      trained += line.at("kind") == "train" ? 1 : 0;
      end = line.at("kind") == "end" ? line.at("step").get<std::int64_t>() : end;
    }
    EXPECT_EQ(trained, 7) << file;
    EXPECT_EQ(end, 7) << file;
  }
}

// A step has an optimizer step for each minibatch and epoch, and records the rate of the last one.
// The schedule ends with the last optimizer step of the run.
TEST_F(RunTest, TheLearningRateFallsOverTheOptimizerStepsOfTheWholeRun) {
  const std::vector<std::string> schedule{"--json", "train.schedule=linear",
                                          "train.learning_rate=0.001", "train.steps=3"};
  struct Case {
    std::string file;
    std::vector<std::string> more;
    int per_step;  // optimizer steps
  };
  const std::vector<Case> cases{
      {"supervised.yaml", {"name=s"}, 1},
      {"small.yaml", {"name=a"}, 1},
      {"small.yaml", {"name=b", "train.minibatches=2"}, 2},
      {"small.yaml", {"name=c", "train.epochs=2"}, 2},
      {"small.yaml", {"name=d", "train.minibatches=2", "train.epochs=3"}, 6}};
  for (const Case& one : cases) {
    std::vector<std::string> words{"run", one.file};
    words.insert(words.end(), schedule.begin(), schedule.end());
    words.insert(words.end(), one.more.begin(), one.more.end());
    const Outcome outcome = run(words);
    ASSERT_EQ(outcome.code, kDone) << outcome.err;
    int step = 0;
    for (const nlohmann::json& line : outcome.lines()) {
      if (line.at("kind") == "train") {
        ++step;
        const double taken = one.per_step * step - 1;
        EXPECT_DOUBLE_EQ(line.at("learning_rate").get<double>(),
                         0.001 * (1.0 - taken / (3 * one.per_step)))
            << one.more[0] << ", step " << step;
      }
    }
    EXPECT_EQ(step, 3);
  }
}

// An unset key is printed as null, but an entry of a free map is gone.
TEST_F(RunTest, AKeyThatCommitsDependOnCannotBeAddedOrUnset) {
  struct Case {
    std::string key;
    std::string value;
    std::string unset;
    std::string named;  // in the refusal
  };
  const std::vector<Case> cases{
      {"rollout.kv_bytes", "64MiB", "null", "rollout.kv_bytes"},
      {"data.chat_template_kwargs", "{a: 1}", "{}", "data.chat_template_kwargs.a"},
      {"train.adapter", "{rank: 2}", "null", "train.adapter"}};
  for (const auto& [key, value, unset, named] : cases) {
    const std::string set = key + '=' + value;
    const std::string removed = key + '=' + unset;
    const std::string refusal = "argument 3: " + named + ": cannot change in a resumed run";
    ASSERT_EQ(run({"run", "small.yaml", "name=with", set}).code, kDone) << key;
    EXPECT_THAT(run({"resume", "with", removed}).err, StartsWith(refusal));
    EXPECT_EQ(run({"resume", "with", set}).code, kDone) << key;
    ASSERT_EQ(run({"run", "small.yaml", "name=without"}).code, kDone) << key;
    EXPECT_THAT(run({"resume", "without", set}).err, StartsWith(refusal));
    EXPECT_EQ(run({"resume", "without", removed}).code, kDone) << key;
    std::filesystem::remove_all("runs");
  }
}

TEST_F(RunTest, AResumedRunKeepsTheKeysThatItsCommitsDependOn) {
  ASSERT_EQ(run({"run", "small.yaml", "name=kept"}).code, kDone);
  ASSERT_EQ(run({"run", "small.yaml", "name=cosine", "train.schedule=cosine"}).code, kDone);
  const std::string before = content_of("runs/kept/run.yaml");
  const Outcome refused = run({"resume", "kept", "train.steps=2", "rollout={group_size: 4}"});
  EXPECT_EQ(refused.code, kRefused);
  EXPECT_EQ(
      refused.err,
      "argument 4: rollout.group_size, rollout.max_new_tokens, rollout.workers: cannot change "
      "in a resumed run, because its commits "
      "depend on it; these keys can: train.steps, data.epochs, eval.every_steps, "
      "checkpoint.every_steps, record.samples_bytes, device.threads, device.memory_bytes, "
      "train.micro_batch_tokens, reward.timeout_ms, placement\n");
  EXPECT_EQ(run({"resume", "cosine", "train.steps=2"}).err,
            "argument 3: train.steps: cannot change in a resumed run with train.schedule: cosine, "
            "because the learning rates of all steps depend on it\n");
  write_lines("two.jsonl",
              {{{"prompt", "10+20="}, {"answer", "30"}}, {{"prompt", "11+20="}, {"answer", "31"}}});
  ASSERT_EQ(run({"run", "small.yaml", "name=epochs", "train.schedule=linear", "train.steps=null",
                 "data.train=two.jsonl", "data.epochs=1"})
                .code,
            kDone);
  EXPECT_EQ(run({"resume", "epochs", "data.epochs=2"}).err,
            "argument 3: data.epochs: cannot change in a resumed run with train.schedule: linear, "
            "because the learning rates of all steps depend on it\n");
  EXPECT_THAT(run({"resume", "kept", "train.stpes=2"}).err, HasSubstr("did you mean steps?"));
  EXPECT_EQ(run({"resume", "kept", "rollout.group_size=2"}).code, kDone);  // as before
  EXPECT_EQ(content_of("runs/kept/run.yaml"), before);
}

// An unprivileged user cannot list the folder.
TEST_F(RunTest, AnUnreadableFolderOfRunsIsAFailure) {
  std::filesystem::create_directory("runs");
  std::filesystem::permissions("runs", std::filesystem::perms::none);
  std::filesystem::permissions(path(""), std::filesystem::perms::all);
  constexpr uid_t kNobody = 65534;
  const bool root = ::geteuid() == 0;
  ASSERT_TRUE(!root || ::seteuid(kNobody) == 0);
  const Outcome outcome = run({"runs"});
  ASSERT_TRUE(!root || ::seteuid(0) == 0);
  std::filesystem::permissions("runs", std::filesystem::perms::owner_all);
  EXPECT_EQ(outcome.code, kFailed);
  EXPECT_EQ(outcome.err, "runs: cannot list: Permission denied\n");
}

}  // namespace
}  // namespace tidemill::launcher
