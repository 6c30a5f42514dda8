// SPDX-License-Identifier: Apache-2.0
// Tests the requests and responses of files and fine-tuning jobs.
#include "actors/gateway/openai/fine_tuning.hpp"

#include <nlohmann/json.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/gateway/openai/files.hpp"

namespace tidemill::test {
namespace {

using actors::openai::ApiError;
using actors::openai::FileUpload;
using actors::openai::parse_job;
using actors::openai::to_json;
using storage::JobRecord;
using storage::JobSpec;
using json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Returns a request with these members in addition.
std::string job(const std::string& members) {
  return R"({"model": "base", "training_file": "file-1")" +
         (members.empty() ? "" : ", " + members) + "}";
}

JobSpec spec_of(const std::string& members) {
  auto parsed = parse_job(job(members));
  const auto* error = std::get_if<ApiError>(&parsed);
  EXPECT_EQ(error, nullptr) << members << ": " << (error == nullptr ? "" : error->message);
  return error == nullptr ? std::get<JobSpec>(parsed) : JobSpec();
}

const std::string kGrader =
    R"("grader": {"type": "string_check", "name": "n", "input": "i", "reference": "r", )"
    R"("operation": "ilike"})";

std::string reinforcement(const std::string& members) {
  return R"("method": {"type": "reinforcement", "reinforcement": {)" + members + "}}";
}

TEST(FineTuningTest, ReadsTheLeast) {
  const JobSpec spec = spec_of("");
  EXPECT_EQ(spec.model, "base");
  EXPECT_EQ(spec.training_file, "file-1");
  EXPECT_EQ(spec.seed, -1);
  EXPECT_EQ(spec.method, storage::JobMethod::kSupervised);
  EXPECT_EQ(spec.hyperparameters, storage::JobHyperparameters());
  EXPECT_EQ(spec_of(R"("seed": null, "metadata": null, "method": null, "integrations": null)"),
            spec);
}

TEST(FineTuningTest, ReadsASupervisedJob) {
  const JobSpec spec = spec_of(
      R"("validation_file": "file-2", "suffix": "mine", "seed": 7, "integrations": [],
         "metadata": {"a": "b", "c": ""}, "tidemill": {"train.steps": 5, "model.lora.rank": 8},
         "method": {"type": "supervised", "supervised": {"hyperparameters":
           {"batch_size": 4, "n_epochs": "auto", "learning_rate_multiplier": 0.5}}})");
  EXPECT_EQ(spec.validation_file, "file-2");
  EXPECT_EQ(spec.suffix, "mine");
  EXPECT_EQ(spec.seed, 7);
  EXPECT_EQ(spec.metadata, (std::map<std::string, std::string>{{"a", "b"}, {"c", ""}}));
  EXPECT_EQ(spec.hyperparameters, (storage::JobHyperparameters{4, 0, 0.5, 0, 0}));
  EXPECT_EQ(json::parse(spec.overrides),
            json::parse(R"({"train.steps": 5, "model.lora.rank": 8})"));
  // The deprecated form.
  EXPECT_EQ(spec_of(R"("hyperparameters": {"batch_size": 4, "learning_rate_multiplier": 0.5})")
                .hyperparameters,
            spec.hyperparameters);
}

TEST(FineTuningTest, ReadsAReinforcementJob) {
  const JobSpec spec = spec_of(
      reinforcement(kGrader + R"(, "hyperparameters": {"eval_interval": 5, "eval_samples": 2,
                     "compute_multiplier": "auto", "reasoning_effort": "default"})"));
  EXPECT_EQ(spec.method, storage::JobMethod::kReinforcement);
  EXPECT_EQ(spec.grader, (storage::JobGrader{storage::GraderKind::kStringCheck, "n",
                                             storage::StringOperation::kIlike, "i", "r", ""}));
  EXPECT_EQ(spec.hyperparameters.eval_interval, 5);
  EXPECT_EQ(spec.hyperparameters.eval_samples, 2);
  const JobSpec own = spec_of(
      reinforcement(R"("grader": {"type": "tidemill", "reward": {"kind": "number", "x": [1]}})"));
  EXPECT_EQ(own.grader.kind, storage::GraderKind::kReward);
  EXPECT_EQ(own.grader.reward, R"({"kind":"number","x":[1]})");
}

TEST(FineTuningTest, RefusesOtherRequests) {
  struct Row {
    std::string body;
    const char* param;
    const char* message;
  };
  const auto supervised = [](const std::string& values) {
    return job(R"("method": {"type": "supervised", "supervised": {"hyperparameters": )" + values +
               "}}");
  };
  const auto hyper = [](const std::string& values) {
    return job(reinforcement(kGrader + R"(, "hyperparameters": )" + values));
  };
  const auto grader = [](const std::string& text) {
    return job(reinforcement(R"("grader": )" + text));
  };
  const std::string at = "method.reinforcement.";
  const std::string pairs = [] {
    std::string text;
    for (int i = 0; i < 17; ++i) {
      text += (i == 0 ? "\"" : ", \"") + std::to_string(i) + "\": \"\"";
    }
    return "{" + text + "}";
  }();
  const std::vector<Row> rows = {
      {"", "", "the body is not valid JSON"},
      {"[]", "", "must be a JSON object"},
      {R"({"training_file": "f"})", "model", "missing"},
      {R"({"model": "base"})", "training_file", "missing"},
      {job(R"("beams": 1)"), "beams", "unknown field"},
      {job(R"("suffix": "a b")"), "suffix", "at most 64 characters"},
      {job(R"("suffix": ")" + std::string(65, 'a') + "\""), "suffix", "at most 64 characters"},
      {job(R"("seed": -1)"), "seed", "an integer of at least 0"},
      {job(R"("metadata": {"a": 1})"), "metadata.a", "must be a text"},
      {job(R"("metadata": {"a": ")" + std::string(513, 'x') + "\"}"), "metadata.a", "512"},
      {job(R"("metadata": {")" + std::string(65, 'x') + "\": \"\"}"),
       "metadata.xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "64"},
      {job(R"("metadata": )" + pairs), "metadata", "at most 16 members"},
      {job(R"("integrations": [{"type": "wandb"}])"), "integrations", "not supported"},
      {job(R"("hyperparameters": {"batch_size": 0})"), "hyperparameters.batch_size", "from 1 to"},
      {job(R"("hyperparameters": {"batch_size": "many"})"), "hyperparameters.batch_size", "auto"},
      {job(R"("hyperparameters": {}, "method": {"type": "supervised"})"), "hyperparameters",
       "give them in method only"},
      {job(R"("method": {})"), "method.type", "must be \"supervised\" or"},
      {job(R"("method": {"type": "dpo", "dpo": {}})"), "method.type",
       "\"dpo\" is not supported; must be \"supervised\" or \"reinforcement\""},
      {job(R"("method": {"type": "supervised", "dpo": {}})"), "method.dpo", "is not the type"},
      {job(R"("method": {"type": "supervised", "x": {}})"), "method.x", "unknown field"},
      {job(R"("method": {"type": "supervised", "supervised": {"grader": {}}})"),
       "method.supervised.grader", "unknown field"},
      {supervised(R"({"n_epochs": 1.5})"), "method.supervised.hyperparameters.n_epochs", "integer"},
      {supervised(R"({"learning_rate_multiplier": 0})"),
       "method.supervised.hyperparameters.learning_rate_multiplier", "greater than 0"},
      {supervised(R"({"learning_rate_multiplier": "high"})"),
       "method.supervised.hyperparameters.learning_rate_multiplier", "greater than 0"},
      {supervised(R"({"learning_rate": 1})"), "method.supervised.hyperparameters.learning_rate",
       "use learning_rate_multiplier, or the key train.learning_rate in tidemill"},
      {supervised(R"({"eval_samples": 1})"), "method.supervised.hyperparameters.eval_samples",
       "unknown field"},
      {job(R"("method": {"type": "reinforcement"})"), "method.reinforcement", "must have a grader"},
      {job(reinforcement("")), "method.reinforcement.grader", "missing"},
      {hyper(R"({"compute_multiplier": 2})"),
       "method.reinforcement.hyperparameters.compute_multiplier", "not supported"},
      {hyper(R"({"reasoning_effort": "high"})"),
       "method.reinforcement.hyperparameters.reasoning_effort", "not supported"},
      {grader(R"({})"), "method.reinforcement.grader.type", "missing"},
      {grader(R"({"type": "python", "source": "x"})"), "method.reinforcement.grader.type",
       "the grader \"python\" is not supported"},
      {grader(R"({"type": "string_check", "name": "n", "input": "i", "reference": "r"})"),
       "method.reinforcement.grader.operation", "missing"},
      {grader(R"({"type": "string_check", "name": "n", "input": "i", "reference": "r",
                  "operation": "gt"})"),
       "method.reinforcement.grader.operation", "must be \"eq\""},
      {grader(R"({"type": "tidemill"})"), "method.reinforcement.grader.reward", "an object"},
      {grader(R"({"type": "tidemill", "reward": {}})"), "method.reinforcement.grader.reward",
       "with a kind"},
      {grader(R"({"type": "tidemill", "reward": [{"kind": "number"},
                  {"kind": "command", "command": ["id"]}]})"),
       "method.reinforcement.grader.reward", "not allowed in requests"},
      {job(R"("tidemill": [])"), "tidemill", "must be a JSON object"},
      {grader(R"("number")"), "method.reinforcement.grader", "must be a JSON object"},
      {supervised(R"({"batchsize": 4})"), "method.supervised.hyperparameters.batchsize",
       "unknown field; did you mean batch_size?"},
      {hyper(R"({"eval_sample": 4})"), "method.reinforcement.hyperparameters.eval_sample",
       "unknown field; did you mean eval_samples?"},
      {job(R"("hyperparameters": {"lr_multiplier": 4})"), "hyperparameters.lr_multiplier",
       "unknown field"},
      {job(R"("tidemill": {"reward": {"kind": "number"}})"), "tidemill.reward",
       "is not a key that a job may set; use method.reinforcement.grader"},
      {job(R"("tidemill": {"train": {"steps": 1}})"), "tidemill.train", "use dotted keys"},
      {job(R"("tidemill": {"a b": 1})"), "tidemill.a b", "must be a dotted key"},
      {std::string(600'000, ' '), "", "the body is longer than 524288 bytes"},
  };
  for (const Row& row : rows) {
    const auto parsed = parse_job(row.body);
    const auto* error = std::get_if<ApiError>(&parsed);
    ASSERT_NE(error, nullptr) << row.body;
    EXPECT_EQ(error->status, 400U);
    EXPECT_EQ(error->param, row.param) << error->message;
    EXPECT_THAT(error->message, HasSubstr(row.message));
    if (*row.param != '\0') {
      EXPECT_THAT(error->message, StartsWith(std::string(row.param).substr(0, 64)));
    }
  }
  EXPECT_EQ(rows.size(), 46U);
}

TEST(FineTuningTest, WritesJobs) {
  JobRecord record;
  record.id = "ftjob-1";
  record.created_at = 5;
  record.spec = spec_of(reinforcement(kGrader));
  record.spec.seed = 3;
  json written = json::parse(to_json(record).to_line());
  EXPECT_EQ(written["status"], "validating_files");
  EXPECT_EQ(written["error"], json());
  EXPECT_EQ(written["finished_at"], json());
  EXPECT_EQ(written["hyperparameters"]["batch_size"], "auto");
  EXPECT_EQ(written["method"]["reinforcement"]["grader"]["operation"], "ilike");
  EXPECT_EQ(written["trained_tokens"], json());
  EXPECT_EQ(written["metadata"], json());
  record.estimated_finish = 7;
  record.state = storage::JobState::kRunning;
  EXPECT_EQ(json::parse(to_json(record).to_line())["estimated_finish"], 7);
  record.state = storage::JobState::kPaused;
  EXPECT_EQ(json::parse(to_json(record).to_line())["estimated_finish"], json());
  record.state = storage::JobState::kFailed;
  record.error = {"invalid_file", "line 3", "training_file"};
  record.is_resolved = true;
  record.resolved = {8, 3, 1.5, 10, 1};
  record.trained_tokens = 0;
  record.finished_at = 9;
  written = json::parse(to_json(record).to_line());
  EXPECT_EQ(
      written["error"],
      json::parse(R"({"code": "invalid_file", "message": "line 3", "param": "training_file"})"));
  EXPECT_EQ(written["hyperparameters"],
            json::parse(R"({"batch_size": 8, "n_epochs": 3, "learning_rate_multiplier": 1.5})"));
  EXPECT_EQ(written["trained_tokens"], 0);
  EXPECT_EQ(written["finished_at"], 9);
}

TEST(FineTuningTest, WritesLists) {
  storage::JobCheckpointPage checkpoints;
  checkpoints.job = "ftjob-1";
  checkpoints.entries = {{"ftckpt-2", 8, 20, R"({"train_loss": 0.5})", "m:20"},
                         {"ftckpt-1", 7, 10, "", "m:10"}};
  checkpoints.has_more = true;
  json list = json::parse(to_json(checkpoints).to_line());
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["has_more"], true);
  EXPECT_EQ(list["first_id"], "ftckpt-2");
  EXPECT_EQ(list["last_id"], "ftckpt-1");
  EXPECT_EQ(list["data"][0]["metrics"]["train_loss"], 0.5);
  EXPECT_EQ(list["data"][1]["metrics"], json::object());
  EXPECT_EQ(list["data"][0]["fine_tuning_job_id"], "ftjob-1");
  storage::JobEventPage events;
  events.entries = {{"ftevent-1", 8, storage::EventLevel::kWarn, storage::EventType::kMetrics, "m",
                     R"({"step": 1})"}};
  list = json::parse(to_json(events).to_line());
  EXPECT_EQ(list["data"][0]["level"], "warn");
  EXPECT_EQ(list["data"][0]["type"], "metrics");
  EXPECT_EQ(list["data"][0]["data"]["step"], 1);
  EXPECT_EQ(json::parse(to_json(storage::JobPage()).to_line())["first_id"], json());
}

TEST(FineTuningTest, ReadsQueries) {
  const auto query = actors::openai::parse_page_query("/x?limit=3&after=a%2Db", "j");
  const auto& page = std::get<storage::PageQuery>(query);
  EXPECT_EQ(page.job, "j");
  EXPECT_EQ(page.after, "a-b");
  EXPECT_EQ(page.limit, 3U);
  struct Row {
    const char* target;
    const char* message;
  };
  for (const Row& row : {Row{"/x?limit=0", "limit: must be an integer from 1 to 100"},
                         Row{"/x?limit=101", "limit: must be an integer from 1 to 100"},
                         Row{"/x?limit=1x", "limit: must be an integer from 1 to 100"},
                         Row{"/x?limit=", "limit: must be an integer from 1 to 100"},
                         Row{"/x?limit=1&limit=2", "limit: occurs twice"},
                         Row{"/x?metadata[a]=b", "metadata[a]: unknown parameter"},
                         Row{"/x?after=%zz", "the query of the path has a broken encoding"}}) {
    const auto refused = actors::openai::parse_page_query(row.target, "j");
    ASSERT_TRUE(std::holds_alternative<ApiError>(refused)) << row.target;
    EXPECT_EQ(std::get<ApiError>(refused).message, row.message);
  }
  const auto files = actors::openai::parse_file_query("/v1/files?order=asc&purpose=fine-tune");
  EXPECT_EQ(std::get<storage::FileQuery>(files).order, storage::FileOrder::kOldestFirst);
  EXPECT_EQ(std::get<storage::FileQuery>(files).purpose, "fine-tune");
  EXPECT_EQ(std::get<storage::FileQuery>(files).limit, 10'000U);
  EXPECT_EQ(std::get<ApiError>(actors::openai::parse_file_query("/v1/files?order=up")).param,
            "order");
}

TEST(FineTuningTest, ReadsUploads) {
  const std::string type = "multipart/form-data; boundary=X";
  const auto field = [](const std::string& name, const std::string& value) {
    return "--X\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n";
  };
  const std::string file =
      "--X\r\nContent-Disposition: form-data; name=file; filename=a.jsonl\r\n\r\n{}\r\n";
  const std::string purpose = field("purpose", "fine-tune");
  const std::string body = purpose + file + "--X--";
  const auto parsed = actors::openai::parse_upload(body, type);
  const auto& upload = std::get<FileUpload>(parsed);
  EXPECT_EQ(upload.filename, "a.jsonl");
  EXPECT_EQ(upload.content, "{}");
  struct Row {
    std::string body;
    const char* param;
    const char* message;
  };
  for (const Row& row :
       {Row{file + "--X--", "purpose", "purpose: missing"},
        Row{purpose + "--X--", "file", "file: missing; must be a file"},
        Row{file + file + purpose + "--X--", "file", "file: occurs twice"},
        Row{file + purpose + purpose + "--X--", "purpose", "purpose: occurs twice"},
        Row{field("file", "x") + purpose + "--X--", "file", "file: needs a filename"},
        Row{file + field("purpose", "assistants") + "--X--", "purpose",
            R"(purpose: must be "fine-tune", and not "assistants")"},
        Row{file + field("purpose", "fine-tune-results") + "--X--", "purpose",
            R"(and not "fine-tune-results")"},
        Row{body.substr(0, body.size() - 5) + field("expires_after[anchor]", "x") + "--X--",
            "expires_after[anchor]", "not supported: files are kept"},
        Row{field("x", "y") + body, "x", "x: unknown field"},
        Row{"", "", "it must begin with the boundary"}}) {
    const auto refused = actors::openai::parse_upload(row.body, type);
    ASSERT_TRUE(std::holds_alternative<ApiError>(refused)) << row.message;
    EXPECT_EQ(std::get<ApiError>(refused).param, row.param);
    EXPECT_THAT(std::get<ApiError>(refused).message, HasSubstr(row.message));
  }
}

}  // namespace
}  // namespace tidemill::test
