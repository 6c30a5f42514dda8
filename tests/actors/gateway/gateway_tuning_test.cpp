// SPDX-License-Identifier: Apache-2.0
// Tests /v1/fine_tuning/jobs of the gateway on an actor that records what it is asked.
#include <gmock/gmock.h>

#include "actors/tuning/handles.hpp"
#include "tests/actors/gateway/gateway_fixture.hpp"

namespace tidemill::test {
namespace {

using actors::ExchangeId;
using storage::JobRecord;
using storage::JobSpec;
using storage::PageQuery;
using ::testing::ElementsAre;

// What a fake tuning actor was asked, and what it replies.
struct FakeTuning {
  std::vector<std::string> asked;
  JobSpec spec;
  JobRecord job;
  Status failure;
};

actors::TuningActor::behavior_type fake_tuning(actors::TuningActor::pointer /*self*/,
                                               const std::shared_ptr<FakeTuning>& fake) {
  const auto reply = [fake](const std::string& what) -> caf::result<JobRecord> {
    fake->asked.push_back(what);
    if (!fake->failure.ok()) {
      return actors::to_caf_error(fake->failure);
    }
    return fake->job;
  };
  const auto name = [](const char* verb, const PageQuery& query) {
    return std::string(verb) + " " + query.job + " " + query.after + " " +
           std::to_string(query.limit);
  };
  return {
      [fake, reply](atom::create, const JobSpec& spec) {
        fake->spec = spec;
        return reply("create");
      },
      [fake, name](atom::list, const PageQuery& query) {
        std::string asked = name("list", query);
        for (const auto& [key, value] : query.metadata) {
          asked += " " + key + "=" + value;
        }
        fake->asked.push_back(asked);
        return storage::JobPage{{fake->job}, true};
      },
      [reply](atom::get, const std::string& id) { return reply("get " + id); },
      [reply](atom::cancel, const std::string& id) { return reply("cancel " + id); },
      [reply](atom::pause, const std::string& id) { return reply("pause " + id); },
      [reply](atom::resume, const std::string& id) { return reply("resume " + id); },
      [reply](atom::remove, const std::string& model) { return reply("remove " + model); },
      [fake, name](atom::events, const PageQuery& query) {
        fake->asked.push_back(name("events", query));
        return storage::JobEventPage{{{"ftevent-1", 1, {}, {}, "", ""}}, false};
      },
      [fake, name](atom::checkpoint, const PageQuery& query) {
        fake->asked.push_back(name("checkpoints", query));
        return storage::JobCheckpointPage{query.job, {{"ftckpt-1", 1, 5, "", "m"}}, false};
      },
  };
}

class GatewayTuningTest : public GatewayTest {
protected:
  void SetUp() override {
    fake_tuning_->job.id = "ftjob-1";
    fake_tuning_->job.spec.model = "base";
    GatewayTest::SetUp();
  }
  void TearDown() override {
    tuning_ = nullptr;
    GatewayTest::TearDown();
  }
  void complete_deps(actors::GatewayDeps& deps) override {
    tuning_ = system().spawn(fake_tuning, fake_tuning_);
    keep(tuning_);
    deps.tuning = tuning_;
  }
  ExchangeId create() {
    return post("/v1/fine_tuning/jobs", R"({"model": "base", "training_file": "file-1"})");
  }

  std::shared_ptr<FakeTuning> fake_tuning_ = std::make_shared<FakeTuning>();
  actors::TuningActor tuning_;
};

TEST_F(GatewayTuningTest, AsksForEveryPath) {
  const ExchangeId created = create();
  EXPECT_EQ(sent(created).response.status, 200U);
  EXPECT_EQ(body(created)["object"], "fine_tuning.job");
  EXPECT_EQ(body(created)["id"], "ftjob-1");
  EXPECT_EQ(fake_tuning_->spec.training_file, "file-1");
  const std::string jobs = "/v1/fine_tuning/jobs";
  EXPECT_EQ(body(send(request("GET", jobs)))["has_more"], true);
  send(request("GET", jobs + "?limit=3&after=ftjob-2"));
  send(request("GET", jobs + "?metadata%5Bteam%5D=a&metadata[x]=%22"));
  EXPECT_EQ(body(send(request("GET", jobs + "/ftjob-1")))["model"], "base");
  for (const std::string verb : {"/cancel", "/pause", "/resume"}) {
    EXPECT_EQ(body(send(request("POST", jobs + "/ftjob-1" + verb)))["id"], "ftjob-1");
  }
  EXPECT_EQ(body(send(request("GET", jobs + "/ftjob-1/events")))["data"][0]["id"], "ftevent-1");
  const ExchangeId checkpoints = send(request("GET", jobs + "/ftjob-1/checkpoints?after=x"));
  EXPECT_EQ(body(checkpoints)["data"][0]["fine_tuning_job_id"], "ftjob-1");
  EXPECT_THAT(fake_tuning_->asked,
              ElementsAre("create", "list   20", "list  ftjob-2 3", "list   20 team=a x=\"",
                          "get ftjob-1", "cancel ftjob-1", "pause ftjob-1", "resume ftjob-1",
                          "events ftjob-1  20", "checkpoints ftjob-1 x 10"));
  EXPECT_EQ(sent(send(request("GET", jobs + "/ftjob-1/cancel"))).response.status, 405U);
  EXPECT_EQ(sent(send(request("GET", jobs + "?limit=0"))).response.status, 400U);
  EXPECT_EQ(sent(send(request("GET", jobs + "?metadata=null"))).response.status, 400U);
  EXPECT_EQ(sent(send(request("GET", jobs + "/ftjob-1/events?metadata[a]=b"))).response.status,
            400U);
  EXPECT_EQ(body(post(jobs, "{}"))["error"]["param"], "model");
}

TEST_F(GatewayTuningTest, DeletesModelsOfJobs) {
  const ExchangeId deleted = send(request("DELETE", "/v1/models/ft:base::job%2D1"));
  EXPECT_EQ(sent(deleted).response.body,
            "{\"id\":\"ft:base::job-1\",\"object\":\"model\",\"deleted\":true}\n");
  EXPECT_THAT(fake_tuning_->asked, ElementsAre("remove ft:base::job-1"));
  EXPECT_EQ(sent(send(request("DELETE", "/v1/models/base"))).response.status, 403U);
  fake_tuning_->failure = {Errc::kUnavailable, "the server is stopping"};
  EXPECT_EQ(sent(send(request("DELETE", "/v1/models/tuned"))).response.status, 503U);

  fake_tuning_->failure = {Errc::kNotFound, "\"tuned\": there is no such fine-tuned model"};
  const ExchangeId loaded = send(request("DELETE", "/v1/models/tuned"));
  reply_adapters({{{"tuned", {}, 1, 0}}});
  EXPECT_EQ(sent(loaded).response.status, 400U);
  EXPECT_THAT(sent(loaded).response.body, ::testing::HasSubstr("/v1/unload_lora_adapter"));
  const ExchangeId unknown = send(request("DELETE", "/v1/models/none"));
  reply_adapters({{{"tuned", {}, 1, 0}}});
  EXPECT_EQ(sent(unknown).response.status, 404U);
  EXPECT_EQ(body(unknown)["error"]["code"], "model_not_found");
}

TEST_F(GatewayTuningTest, PassesErrorsOn) {
  struct Row {
    Status failure;
    std::uint32_t status;
    const char* param;
  };
  for (const Row& row : {
           Row{{Errc::kNotFound, "training_file: \"file-1\": there is no such file"},
               404U,
               "training_file"},
           Row{{Errc::kInvalidArgument, "tidemill.train.steps: must be positive"},
               400U,
               "tidemill.train.steps"},
           Row{{Errc::kInvalidArgument, "ftjob-1: a job that has failed cannot be paused"},
               400U,
               ""},
           Row{{Errc::kResourceExhausted, "the disk is full"}, 507U, ""},
           Row{{Errc::kCorruptData, "jobs.db: is damaged"}, 500U, ""},
           Row{{Errc::kUnavailable, "the server is stopping"}, 503U, ""},
       }) {
    fake_tuning_->failure = row.failure;
    const ExchangeId id = create();
    EXPECT_EQ(sent(id).response.status, row.status) << row.failure.message();
    EXPECT_EQ(body(id)["error"]["message"], row.failure.message());
    const auto param = body(id)["error"]["param"];
    EXPECT_EQ(param.is_null() ? "" : param.get<std::string>(), row.param);
  }
}

}  // namespace
}  // namespace tidemill::test
