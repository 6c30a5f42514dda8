// SPDX-License-Identifier: Apache-2.0
// Tests `runs` and `show` on run directories made by hand: intact, new, old, damaged and hostile
// ones.
#include <algorithm>
#include <array>
#include <filesystem>
#include <sstream>
#include <utility>

#include <gmock/gmock.h>

#include "base/text/utf8.hpp"
#include "launcher/inspect/pages.hpp"
#include "launcher/inspect/sample_view.hpp"
#include "storage/checkpoint/run_lock.hpp"
#include "tests/launcher/command_run.hpp"

namespace tidemill::launcher {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kModel = TIDEMILL_SOURCE_DIR "/examples/models/arithmetic";

class InspectTest : public CommandTest {
protected:
  void SetUp() override {
    before_ = std::filesystem::current_path();
    std::filesystem::current_path(path(""));
  }
  void TearDown() override { std::filesystem::current_path(before_); }

  // A run of 4 steps that has recorded `done` of them.
  void make_run(const std::string& name, std::int64_t done, const std::string& state) const {
    const std::string folder = "runs/" + name + '/';
    std::filesystem::create_directories(path(folder));
    write(folder + "run.yaml", "workflow: rl\nmodel: {path: " + kModel +
                                   "}\ntrain: {steps: 4}\nkey_of_a_later_version: 1\n");
    std::vector<json> metrics;
    std::vector<json> samples;
    for (std::int64_t step = 1; step <= done; ++step) {
      metrics.push_back({{"kind", "train"},
                         {"step", step},
                         {"reward_mean", 0.25 * static_cast<double>(step)},
                         {"loss", 0.5},
                         {"gradient_norm", nullptr}});
      for (int i = 0; i < 2; ++i) {
        // The keys have the same order as in the recorder's lines.
        samples.push_back({{"step", step},
                           {"sample", 2 * step + i},
                           {"group", step},
                           {"prompt", "19+19="},
                           {"response", "38"},
                           {"answer", "38"},
                           {"reward", i},
                           {"advantage", i - 0.5},
                           {"finish_reason", "stop"},
                           {"response_ids", {6, 11}},
                           {"behavior_logprobs", {-0.25, -4.5}}});
      }
    }
    if (done > 2) {
      metrics.push_back({{"kind", "eval"}, {"step", 2}, {"eval_mean_at_k", 0.75}});
    }
    write_lines(folder + "metrics.jsonl", metrics);
    write_samples(folder + "samples.jsonl", samples);
    if (!state.empty()) {
      write(folder + "state.json", state);
    }
  }

  // Writes samples as the recorder does, with `step` first.
  void write_samples(const std::string& name, const std::vector<json>& samples) const {
    std::string text;
    for (const json& sample : samples) {
      json rest = sample;
      rest.erase("step");
      text += "{\"step\":" + sample.at("step").dump() + ',' + rest.dump().substr(1) + '\n';
    }
    write(name, text);
  }

  void set_age(const std::string& name, int hours) const {
    const auto time = std::filesystem::file_time_type::clock::now() - std::chrono::hours(hours);
    std::filesystem::last_write_time(path("runs/" + name + "/metrics.jsonl"), time);
  }

  static constexpr const char* kFinished = R"({"state":"finished","steps":4,"reason":""})";
  static constexpr const char* kRunning = R"({"state":"running","steps":4,"reason":""})";

private:
  std::filesystem::path before_;
};

TEST_F(InspectTest, RunsListsEachRunWithItsStateAndTheNewestLast) {
  make_run("old", 4, "");  // made before state.json existed
  make_run("done", 4, kFinished);
  make_run("broken", 2, R"({"state":"failed","steps":4,"reason":"the disk is full"})");
  make_run("held", 1, R"({"state":"stopped","steps":4,"reason":"interrupted"})");
  make_run("killed", 3, kRunning);
  make_run("working", 1, kRunning);
  int age = 10;
  for (const char* name : {"old", "done", "broken", "held", "killed", "working"}) {
    set_age(name, age--);
  }
  const auto lock = storage::RunLock::acquire(path("runs/working"));
  ASSERT_TRUE(lock.ok());
  const Outcome outcome = run({"runs", "--json"});
  ASSERT_EQ(outcome.code, kDone) << outcome.err;
  const std::vector<json> lines = outcome.lines();
  ASSERT_EQ(lines.size(), 6U);
  const std::vector<std::pair<std::string, std::string>> expected{
      {"runs/old", "finished"}, {"runs/done", "finished"}, {"runs/broken", "failed"},
      {"runs/held", "stopped"}, {"runs/killed", "failed"}, {"runs/working", "running"}};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(lines[i].at("run"), expected[i].first);
    EXPECT_EQ(lines[i].at("state"), expected[i].second) << expected[i].first;
    EXPECT_EQ(lines[i].at("steps"), 4);
    EXPECT_EQ(lines[i].at("workflow"), "rl");
  }
  EXPECT_EQ(lines[2].at("reason"), "the disk is full");
  EXPECT_EQ(lines[2].at("step"), 2);
  EXPECT_EQ(lines[4].at("reason"), "its process was killed, or could not write why it ended");
  EXPECT_EQ(lines[1].at("train").at("reward_mean"), 1.0);
  EXPECT_EQ(lines[1].at("eval").at("eval_mean_at_k"), 0.75);

  const std::string table = run({"runs"}).out;
  EXPECT_THAT(table, HasSubstr("run      workflow  state     step  reward  eval reward  loss  "));
  EXPECT_THAT(table, HasSubstr("done     rl        finished  4/4   1       0.75         0.5   "));
  EXPECT_THAT(table, HasSubstr("working  rl        running   1/4   0.25    -            0.5   "));
  EXPECT_LT(table.find("old"), table.find("working"));
}

TEST_F(InspectTest, RunsShowsTheNewestLineOfEachKind) {
  const auto train = [](int step, double reward) {
    return json{{"kind", "train"}, {"step", step}, {"reward_mean", reward}, {"loss", -reward}};
  };
  const auto eval = [](int step, double reward) {
    return json{{"kind", "eval"}, {"step", step}, {"eval_mean_at_k", reward}};
  };
  make_run("trained_last", 0, kRunning);
  write_lines("runs/trained_last/metrics.jsonl",
              {train(1, 0.1), eval(1, 0.2), eval(2, 0.3), train(2, 0.4), train(3, 0.5)});
  make_run("evaluated_last", 0, kRunning);
  write_lines("runs/evaluated_last/metrics.jsonl",
              {train(1, 0.1), train(2, 0.2), eval(0, 0.3), eval(2, 0.4)});
  std::map<std::string, json> of;
  for (const json& line : run({"runs", "--json"}).lines()) {
    of[line.at("run").get<std::string>().substr(5)] = line;
  }
  EXPECT_EQ(of["trained_last"].at("step"), 3);
  EXPECT_EQ(of["trained_last"].at("train"), (json{{"reward_mean", 0.5}, {"loss", -0.5}}));
  EXPECT_EQ(of["trained_last"].at("eval"), (json{{"eval_mean_at_k", 0.3}}));
  EXPECT_EQ(of["evaluated_last"].at("step"), 2);
  EXPECT_EQ(of["evaluated_last"].at("train"), (json{{"reward_mean", 0.2}, {"loss", -0.2}}));
  EXPECT_EQ(of["evaluated_last"].at("eval"), (json{{"eval_mean_at_k", 0.4}}));
}

TEST_F(InspectTest, ARunOfUnknownLengthIsListedWithoutIt) {
  make_run("endless", 1, R"({"state":"stopped","steps":0,"reason":""})");
  write("runs/endless/run.yaml", "workflow: sft\nmodel: {path: " + kModel + "}\n");
  write_lines("runs/endless/metrics.jsonl", {{{"kind", "train"}, {"step", 3}, {"loss", 0.123456}},
                                             {{"kind", "eval"}, {"step", 2}, {"eval_loss", 2.5}}});
  EXPECT_THAT(
      run({"runs"}).out,
      HasSubstr("run      workflow  state    step  reward  eval reward  loss    eval loss  "
                "written\n"
                "endless  sft       stopped  3/?   -       -            0.1235  2.5        "));
  EXPECT_TRUE(run({"runs", "--json"}).lines().at(0).at("steps").is_null());
  EXPECT_THAT(run({"show", "endless"}).out, HasSubstr("runs/endless: sft, stopped, step 3\n"));

  // The length in state.json replaces that of the file.
  write("runs/endless/state.json", R"({"state":"stopped","steps":9,"reason":"interrupted"})");
  EXPECT_EQ(run({"runs", "--json"}).lines().at(0).at("steps"), 9);
  EXPECT_THAT(run({"show", "endless"}).out,
              HasSubstr("runs/endless: sft, stopped, step 3 of 9; interrupted\n"));
}

TEST_F(InspectTest, ADamagedRunIsListedAsDamaged) {
  make_run("good", 2, kFinished);
  make_run("no_yaml", 2, kFinished);
  std::filesystem::remove(path("runs/no_yaml/run.yaml"));
  make_run("bad_yaml", 2, kFinished);
  write("runs/bad_yaml/run.yaml", "workflow: [\x1b[31m\n");
  make_run("no_workflow", 2, kFinished);
  write("runs/no_workflow/run.yaml", "seed: 1\n");
  make_run("bad_metrics", 2, kFinished);
  write("runs/bad_metrics/metrics.jsonl", "{\"kind\":\"train\"}\n{]\n");
  make_run("bad_state", 2, R"({"state":"asleep","steps":4})");
  make_run("half_line", 2, kFinished);
  std::ofstream(path("runs/half_line/metrics.jsonl"), std::ios::app) << "{\"kind\":\"tra";
  std::filesystem::create_directories(path("runs/empty"));
  write("runs/a_file", "");
  const Outcome outcome = run({"runs", "--json"});
  EXPECT_EQ(outcome.code, kDone);
  std::map<std::string, json> of;
  for (const json& line : outcome.lines()) {
    of[line.at("run").get<std::string>().substr(5)] = line;
  }
  EXPECT_EQ(of.size(), 7U);  // the empty folder is not listed
  EXPECT_EQ(of["good"].at("state"), "finished");
  EXPECT_EQ(of["half_line"].at("state"), "finished");  // the half line is still being written
  EXPECT_EQ(of["half_line"].at("step"), 2);
  const std::map<std::string, std::string> reasons{
      {"no_yaml", "runs/no_yaml/run.yaml: cannot open: No such file"},
      {"bad_yaml", "runs/bad_yaml/run.yaml:"},
      {"no_workflow", "runs/no_workflow/run.yaml: workflow: missing"},
      {"bad_metrics", "runs/bad_metrics/metrics.jsonl: contains an invalid line"},
      {"bad_state", "runs/bad_state/state.json: state: not a known state"}};
  for (const auto& [name, reason] : reasons) {
    EXPECT_EQ(of[name].at("state"), "damaged") << name;
    EXPECT_THAT(of[name].at("reason").get<std::string>(), HasSubstr(reason));
    const Outcome shown = run({"show", "runs/" + name});
    EXPECT_EQ(shown.code, kRefused) << name;
    EXPECT_EQ(std::count(shown.err.begin(), shown.err.end(), '\n'), 1) << shown.err;
  }
  EXPECT_EQ(run({"runs"}).out.find('\x1b'), std::string::npos);
}

// Only the end of a long file is read, and it may begin in the middle of a line.
TEST_F(InspectTest, ALongRunWithoutEvaluationsIsReportedByItsLastStep) {
  make_run("long", 1, kFinished);
  constexpr std::size_t kLongEnough = std::size_t{3} << 20U;
  std::string metrics;
  int step = 0;
  while (metrics.size() < kLongEnough) {
    metrics += json{{"kind", "train"}, {"step", ++step}, {"reward_mean", 0.5}}.dump() + '\n';
  }
  write("runs/long/metrics.jsonl", metrics);
  const Outcome outcome = run({"runs", "--json"});
  ASSERT_EQ(outcome.lines().size(), 1U);
  const json line = outcome.lines()[0];
  EXPECT_EQ(line.at("state"), "finished") << line.at("reason");
  EXPECT_EQ(line.at("step"), step);
  EXPECT_EQ(line.at("train").at("reward_mean"), 0.5);
  EXPECT_TRUE(line.at("eval").empty());
  EXPECT_EQ(run({"show", "long"}).code, kDone);
}

TEST_F(InspectTest, RunsWithoutADirectorySaysWhereRunsAreStored) {
  EXPECT_THAT(run({"runs"}).err, HasSubstr("runs: no such directory; runs are stored in runs/"));
  std::filesystem::create_directories(path("elsewhere/x"));
  const Outcome none = run({"runs", "--dir", "elsewhere"});  // x is a directory, but not a run
  EXPECT_EQ(none.code, kDone);
  EXPECT_EQ(std::count(none.out.begin(), none.out.end(), '\n'), 1) << none.out;
}

TEST_F(InspectTest, ShowDrawsTheDefaultCurvesOrTheChosenOnes) {
  make_run("a", 4, kFinished);
  const Outcome defaults = run({"show", "a", "--ascii"});
  ASSERT_EQ(defaults.code, kDone) << defaults.err;
  EXPECT_THAT(defaults.out, HasSubstr("runs/a: rl, finished, step 4 of 4\n"));
  EXPECT_THAT(defaults.out, HasSubstr("reward_mean: 1 at step 4\n         1 +"));
  EXPECT_THAT(defaults.out, HasSubstr("eval_mean_at_k: 0.75 at step 2\n"));
  EXPECT_EQ(defaults.out.find('\x1b'), std::string::npos);
  EXPECT_THAT(defaults.out, Not(HasSubstr("loss")));

  const Outcome loss = run({"show", "runs/a", "--metric", "loss", "--ascii", "--width", "60"});
  EXPECT_THAT(loss.out, HasSubstr("loss: 0.5 at step 4"));
  EXPECT_THAT(loss.out, Not(HasSubstr("reward")));
  std::istringstream lines(loss.out);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 60U);
  }
  const Outcome typed = run({"show", "a", "--metric", "reward_men"});
  EXPECT_EQ(typed.err,
            "--metric: reward_men: the run has no such metric; did you mean reward_mean?\n");
  EXPECT_EQ(run({"show", "a", "--json", "--metric", "loss"}).lines().at(0).at("points"),
            json::parse("[[1,0.5],[2,0.5],[3,0.5],[4,0.5]]"));
}

TEST_F(InspectTest, ShowOrdersEvaluationsByTheirSteps) {
  make_run("late", 0, kRunning);
  write_lines("runs/late/metrics.jsonl",
              {{{"kind", "eval"}, {"step", 4}, {"eval_mean_at_k", 0.5}},
               {{"kind", "eval"}, {"step", 2}, {"eval_mean_at_k", 0.25}},
               {{"kind", "eval"}, {"step", 6}, {"eval_mean_at_k", 0.75}}});
  EXPECT_EQ(
      run({"show", "late", "--json", "--metric", "eval_mean_at_k"}).lines().at(0).at("points"),
      json::parse("[[2,0.25],[4,0.5],[6,0.75]]"));
}

TEST_F(InspectTest, ShowChoosesTheMetricsOfTheWorkflow) {
  const auto shown = [this](const json& train, const json& eval) {
    make_run("a", 0, kRunning);
    write_lines("runs/a/metrics.jsonl", {train, eval});
    std::vector<std::string> names;
    for (const json& line : run({"show", "a", "--json"}).lines()) {
      names.push_back(line.at("kind").get<std::string>() + ' ' +
                      line.at("metric").get<std::string>());
    }
    return names;
  };
  const json common{
      {"kind", "train"}, {"step", 1},    {"gradient_norm", 1.0},       {"learning_rate", 0.5},
      {"loss", 1.0},     {"other", 1.0}, {"response_tokens_mean", 1.0}};
  json rl = common;
  rl["reward_mean"] = 1.0;
  EXPECT_THAT(shown(rl, {{"kind", "eval"}, {"step", 1}, {"eval_mean_at_k", 0.5}}),
              ::testing::ElementsAre("train reward_mean", "eval eval_mean_at_k",
                                     "train response_tokens_mean", "train gradient_norm"));
  EXPECT_THAT(shown(common, {{"kind", "eval"}, {"step", 1}, {"eval_loss", 0.5}}),
              ::testing::ElementsAre("train loss", "eval eval_loss", "train gradient_norm",
                                     "train learning_rate"));
}

TEST_F(InspectTest, AnUnknownMetricIsRefusedWithTheKnownOnes) {
  make_run("a", 1, kFinished);
  EXPECT_EQ(run({"show", "a", "--metric", "zebra"}).err,
            "--metric: zebra: the run has no such metric; it has: loss, reward_mean\n");
  make_run("young", 0, kRunning);
  EXPECT_EQ(run({"show", "young", "--metric", "zebra"}).err,
            "--metric: no step has been recorded yet\n");
  write("runs/a/metrics.jsonl", R"({"kind":"train","step":1,"loss":0.5})"
                                "\n{]\n"
                                R"({"kind":"train","step":2,"loss":0.5})"
                                "\n"
                                R"({"kind":"eval","step":2,"eval_loss":0.5})"
                                "\n");
  EXPECT_EQ(run({"show", "a"}).err, "runs/a/metrics.jsonl:2: not a line of metrics\n");
}

TEST_F(InspectTest, SamplesAreChosenByStepGroupAndReward) {
  make_run("a", 1, kFinished);
  std::vector<json> samples;
  const auto add = [&](int step, int group, int sample, double reward) {
    samples.push_back({{"step", step}, {"sample", sample}, {"group", group}, {"reward", reward}});
  };
  add(1, 0, 0, 0.5);
  add(1, 1, 1, 0.25);
  add(1, 0, 2, 0.75);
  add(1, 1, 3, 0.25);
  add(1, 1, 4, 0.75);
  add(2, 2, 5, 1.0);
  write_samples("runs/a/samples.jsonl", samples);
  const auto chosen = [](std::vector<std::string> more) {
    std::vector<std::string> words{"show", "a", "--samples", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<int> numbers;
    for (const json& line : run(words).lines()) {
      numbers.push_back(line.at("sample").get<int>());
    }
    return numbers;
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(chosen({}), ElementsAre(5)) << "the last step";
  EXPECT_THAT(chosen({"--step", "1"}), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(chosen({"--step", "1", "--group", "1"}), ElementsAre(1, 3, 4));
  EXPECT_THAT(chosen({"--step", "1", "--worst"}), ElementsAre(1, 3, 0, 2, 4));
  EXPECT_THAT(chosen({"--step", "1", "--best"}), ElementsAre(2, 4, 0, 1, 3));
  EXPECT_EQ(run({"show", "a", "--samples", "--step", "1", "--group", "9"}).err,
            "runs/a/samples.jsonl: has no samples of group 9 in step 1; its groups are 0 to 1\n");
}

TEST_F(InspectTest, ShowSaysWhatIsMissing) {
  make_run("young", 0, kRunning);
  EXPECT_THAT(run({"show", "young"}).out, HasSubstr("no step has been recorded yet"));
  EXPECT_EQ(run({"show", "young", "--samples"}).err,
            "runs/young/samples.jsonl: contains no samples\n");
  EXPECT_EQ(run({"show", "b"}).err, "b: no such run; tidemill runs lists all runs\n");
  make_run("a", 4, kFinished);
  EXPECT_EQ(run({"show", "a", "--samples", "--step", "9"}).err,
            "runs/a/samples.jsonl: has no samples of step 9; its steps are 1 to 4\n");
  EXPECT_EQ(run({"show", "a", "--samples", "--group", "9"}).err,
            "runs/a/samples.jsonl: has no samples of group 9 in step 4; its groups are 4 to 4\n");
  EXPECT_EQ(run({"show", "a", "--samples", "--page", "9"}).err, "--page: the last page is 1\n");
  EXPECT_EQ(run({"show", "a", "--step", "9"}).code, kRefused);  // needs --samples
}

TEST_F(InspectTest, SamplesAreShownWithTheirTokens) {
  make_run("a", 4, kFinished);
  const Outcome plain = run({"show", "a", "--samples", "--step", "2"});
  ASSERT_EQ(plain.code, kDone) << plain.err;
  EXPECT_THAT(plain.out, HasSubstr("sample 4  group 2  step 2  reward 0  advantage -0.5  2 tokens  "
                                   "log-probability -4.750  stop\n"
                                   "prompt    19+19=\n"
                                   "response  38\n"
                                   "answer    38\n"
                                   "tokens    \""));
  EXPECT_THAT(plain.out, HasSubstr("\" -0.250  \""));
  EXPECT_THAT(plain.out, HasSubstr("\" -4.500\n"));
  EXPECT_EQ(plain.out.find('\x1b'), std::string::npos);
  EXPECT_THAT(plain.out, Not(HasSubstr("step 3")));

  const auto first_sample = [](const Outcome& outcome) {
    return outcome.lines().at(0).at("sample").get<int>();
  };
  EXPECT_EQ(first_sample(run({"show", "a", "--samples", "--json"})), 8);  // of the last step
  EXPECT_EQ(first_sample(run({"show", "a", "--samples", "--json", "--best"})), 9);
  EXPECT_EQ(first_sample(run({"show", "a", "--samples", "--json", "--worst"})), 8);

  const Outcome colored = run({"show", "a", "--samples", "--color", "always"});
  EXPECT_THAT(colored.out, HasSubstr("log-probability of a token: "));
  EXPECT_THAT(colored.out, HasSubstr("\x1b["));
  EXPECT_THAT(colored.out, Not(HasSubstr("-4.500")));
}

TEST_F(InspectTest, WithoutATokenizerTokensAreShownAsIds) {
  make_run("a", 1, kFinished);
  write("runs/a/run.yaml", "workflow: rl\nmodel: {path: gone}\n");
  const Outcome outcome = run({"show", "a", "--samples"});
  EXPECT_EQ(outcome.code, kDone);
  EXPECT_EQ(outcome.err, "warning: gone has no readable tokenizer; tokens are shown as ids\n");
  EXPECT_THAT(outcome.out, HasSubstr("tokens    \"#6\" -0.250  \"#11\" -4.500\n"));
}

TEST_F(InspectTest, PagesTogetherShowAllSamples) {
  make_run("a", 1, kFinished);
  std::vector<json> many;
  const json one = json::parse(
      R"({"step":1,"sample":0,"group":0,"prompt":"p","response":"r","reward":0,
          "response_ids":[],"behavior_logprobs":[]})");
  for (int i = 0; i < 20; ++i) {
    many.push_back(one);
    many.back()["sample"] = i;
  }
  write_samples("runs/a/samples.jsonl", many);
  const std::string all = run({"show", "a", "--samples"}).out;
  std::string pages;
  for (int page = 1;; ++page) {
    const Outcome outcome = run({"show", "a", "--samples", "--page", std::to_string(page)});
    if (outcome.code != kDone) {
      EXPECT_EQ(outcome.err, "--page: the last page is " + std::to_string(page - 1) + "\n");
      break;
    }
    EXPECT_LE(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 22);  // of 24 rows
    pages += outcome.out;
  }
  EXPECT_EQ(pages, all);
}

TEST_F(InspectTest, DamagedSamplesAreNamed) {
  make_run("a", 1, kFinished);
  const std::string good = R"({"step":1,"sample":0,"group":0,"reward":0})"
                           "\n";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"nonsense\n", "no sample begins at byte 0"},
      {good + "{\"step\":1,\n", "byte 43: "},
      {R"({"step":1,"sample":0,"group":0,"reward":"much"})"
       "\n",
       "reward: must be a number"},
      {R"({"step":1,"sample":0,"group":0,"reward":0,"response_ids":[1]})"
       "\n",
       "behavior_logprobs: must have as many elements as response_ids"}};
  for (const auto& [text, problem] : cases) {
    write("runs/a/samples.jsonl", text);
    const Outcome outcome = run({"show", "a", "--samples"});
    EXPECT_EQ(outcome.code, kRefused) << text;
    EXPECT_THAT(outcome.err, HasSubstr("runs/a/samples.jsonl: "));
    EXPECT_THAT(outcome.err, HasSubstr(problem));
  }
  write("runs/a/samples.jsonl", good + "{\"step\":1,\"sam");  // still being written
  EXPECT_EQ(run({"show", "a", "--samples"}).code, kDone);
}

// -- appearance
// --------------------------------------------------------------------------------------

storage::SampleLine sample_of(const std::vector<std::int32_t>& ids,
                              const std::vector<float>& logprobs) {
  storage::SampleLine sample;
  sample.response_ids = ids;
  sample.behavior_logprobs = logprobs;
  return sample;
}

TEST(SampleViewTest, HostileTextCannotMoveTheCursor) {
  storage::SampleLine sample = sample_of({1}, {-1.0F});
  sample.prompt =
      "a\x1b[2Jb\r\tc\n\x7F\xC2\x9B"
      "d\xFF";
  sample.finish_reason = "\x1b]0;x\a";
  const auto bytes = [](std::int32_t) { return std::string("\x1b[31m\n"); };
  for (const Letters letters : {Letters::kUtf8, Letters::kAscii}) {
    const std::string drawn = draw_sample(sample, {false, letters}, bytes);
    for (const char c : drawn) {
      EXPECT_TRUE(static_cast<unsigned char>(c) >= ' ' || c == '\n') << drawn;
    }
    EXPECT_THAT(drawn, HasSubstr("prompt    a\\x1b[2Jb\\x0d\\tc\\n\n          \\x7f\\x9bd"));
    EXPECT_THAT(drawn, HasSubstr("\"\\x1b[31m\\n\" -1.000"));
  }
}

TEST(SampleViewTest, TokensOfOneCharacterAreDrawnTogether) {
  const auto bytes = [](std::int32_t id) {
    return std::string(id == 1 ? "\xC3" : id == 2 ? "\xBC" : "x");
  };
  const std::string drawn =
      draw_sample(sample_of({1, 2, 3}, {-0.5F, -2.0F, -0.25F}), {false, Letters::kUtf8}, bytes);
  EXPECT_THAT(drawn, HasSubstr("tokens    \"\xC3\xBC\" -2.000  \"x\" -0.250\n"));
}

TEST(SampleViewTest, ColorsGoFromGreenToRedWithFallingLogprob) {
  const auto bytes = [](std::int32_t) { return std::string("x"); };
  const auto drawn = [&](float logprob, Colors colors) {
    return draw_sample(sample_of({1}, {logprob}), {true, Letters::kUtf8, colors}, bytes);
  };
  EXPECT_THAT(drawn(0.0F, Colors::kTrue), HasSubstr("48;2;135;255;135mx\x1b[0m"));
  EXPECT_THAT(drawn(-5.0F, Colors::kTrue), HasSubstr("48;2;255;135;135mx\x1b[0m"));
  EXPECT_THAT(drawn(-50.0F, Colors::kTrue), HasSubstr("48;2;255;135;135mx\x1b[0m"));
  EXPECT_THAT(drawn(0.0F, Colors::k256), HasSubstr("48;5;120mx"));
  EXPECT_THAT(drawn(-1.25F, Colors::k256), HasSubstr("48;5;228mx"));
  EXPECT_THAT(drawn(-9.0F, Colors::k256), HasSubstr("48;5;210mx"));
  EXPECT_EQ(draw_legend({}), "");
}

TEST(PagesTest, APageLeavesTwoLinesOfTheTerminalFree) {
  Terminal terminal;
  terminal.rows = 5;
  const auto page = [&](std::size_t number) {
    std::ostringstream out;
    Pages pages(out, terminal, number);
    const bool first = pages.write("1\n2\n");
    const bool second = pages.write("3\n4\n5\n6\n7\n");
    return std::pair{out.str(), std::array{first, second, pages.any()}};
  };
  EXPECT_EQ(page(1), std::pair(std::string("1\n2\n3\n"), std::array{true, false, true}));
  EXPECT_EQ(page(2), std::pair(std::string("4\n5\n6\n"), std::array{true, false, true}));
  EXPECT_EQ(page(3), std::pair(std::string("7\n"), std::array{true, true, true}));
  EXPECT_EQ(page(4), std::pair(std::string(), std::array{true, true, false}));
  std::ostringstream out;
  Pages all(out, terminal, std::nullopt);
  EXPECT_TRUE(all.write("1\n2\n3\n4\n5\n6\n"));
  EXPECT_EQ(out.str(), "1\n2\n3\n4\n5\n6\n");
  EXPECT_EQ(all.num_pages(), 2U);
  EXPECT_TRUE(all.write("7\n"));
  EXPECT_EQ(all.num_pages(), 3U);
}

TEST(ShownTextTest, OnlyPrintableCharactersAreShown) {
  const std::string text = "a\n\t\x1F \x7F\xC2\x9F\xC2\xA0\xC3\xBC\xFF~";
  EXPECT_EQ(shown_text(text, Letters::kUtf8),
            "a\\n\\t\\x1f \\x7f\\x9f\xC2\xA0\xC3\xBC\xEF\xBF\xBD~");
  EXPECT_EQ(shown_text(text, Letters::kAscii), "a\\n\\t\\x1f \\x7f\\x9f???~");
}

TEST(SampleViewTest, LinesFitTheTerminal) {
  storage::SampleLine sample =
      sample_of(std::vector<std::int32_t>(100, 1), std::vector<float>(100, -1.0F));
  sample.prompt = std::string(300, 'p');
  Terminal terminal;
  terminal.columns = 60;
  std::istringstream lines(draw_sample(sample, terminal, [](auto) { return std::string("ab"); }));
  std::string line;
  std::getline(lines, line);  // skips the head, which is not wrapped
  while (std::getline(lines, line)) {
    EXPECT_LE(line.size(), 61U) << line;  // one trailing space may exceed the width
  }
}

}  // namespace
}  // namespace tidemill::launcher
