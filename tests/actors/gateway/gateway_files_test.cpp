// SPDX-License-Identifier: Apache-2.0
// Tests /v1/files of the gateway on a real file store, and which paths there are.
#include <gmock/gmock.h>

#include "actors/gateway/file_part.hpp"
#include "actors/gateway/routes.hpp"
#include "base/random.hpp"
#include "tests/actors/gateway/gateway_fixture.hpp"
#include "tests/support/faulty_file_system.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::test {
namespace {

using actors::ApiKeys;
using actors::ExchangeId;
using actors::HttpRequest;
using actors::KeyScope;
using actors::match_path;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class GatewayFilesTest : public GatewayTest {
protected:
  void SetUp() override {
    storage::JobDirectoryOptions options;
    options.path = folder_.path() / "jobs";
    options.random_bits = [this] { return random_.bits(); };
    auto directory = storage::JobDirectory::open(std::move(options), disk_);
    ASSERT_TRUE(directory.ok()) << directory.status().to_string();
    files_ = storage::FileStore::open(directory.value(), {}).value();
    GatewayTest::SetUp();
  }
  void TearDown() override {
    GatewayTest::TearDown();
    files_ = nullptr;
  }
  void complete_deps(actors::GatewayDeps& deps) override {
    deps.files = files_;
    deps.file_port = &port();
    deps.limits.max_pending_upload_bytes = std::size_t{4} << 20U;
    deps.limits.max_download_bytes = 2 * actors::kDownloadPartBytes;
  }

  static std::string form(const std::string& content, const std::string& purpose = "fine-tune") {
    return "--X\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n" + purpose +
           "\r\n--X\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\n"
           "Content-Type: application/octet-stream\r\n\r\n" +
           content + "\r\n--X--\r\n";
  }
  static HttpRequest upload_request(std::string body) {
    HttpRequest made = request("POST", "/v1/files");
    made.headers.push_back({"content-type", "multipart/form-data; boundary=X"});
    made.body = std::move(body);
    return made;
  }
  ExchangeId upload(const std::string& content) { return send(upload_request(form(content))); }
  std::string uploaded(const std::string& content) {
    const ExchangeId id = upload(content);
    EXPECT_EQ(sent(id).response.status, 200U) << sent(id).response.body;
    return body(id)["id"].get<std::string>();
  }
  ExchangeId get(const std::string& target) { return send(request("GET", target)); }
  // Tells the gateway that all of a body has been sent so far.
  void report_sent(ExchangeId id) {
    caf::anon_send(gateway_, atom::sent_v, id);
    advance(Duration{0});
  }
  std::string error_of(ExchangeId id) { return body(id)["error"]["message"].get<std::string>(); }

  TemporaryDirectory folder_{memory_directory_path()};
  RandomStream random_{7};
  FaultyFileSystem disk_{{}};
  std::shared_ptr<storage::FileStore> files_;
};

TEST_F(GatewayFilesTest, StoresAndListsFiles) {
  const ExchangeId made = upload("{}\n{}\n");
  const auto file = body(made);
  EXPECT_EQ(file["object"], "file");
  EXPECT_EQ(file["bytes"], 6);
  EXPECT_EQ(file["filename"], "a.jsonl");
  EXPECT_EQ(file["purpose"], "fine-tune");
  EXPECT_EQ(file["created_at"], 17);
  EXPECT_EQ(file["status"], "processed");
  const auto id = file["id"].get<std::string>();
  EXPECT_EQ(body(get("/v1/files/" + id)), file);
  const std::string second = uploaded("x");
  const auto list = body(get("/v1/files?limit=1"));
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"][0]["id"], second);
  EXPECT_EQ(list["has_more"], true);
  EXPECT_EQ(body(get("/v1/files?limit=1&after=" + second))["data"][0]["id"], id);
  EXPECT_EQ(body(get("/v1/files?order=asc"))["first_id"], id);
  EXPECT_EQ(body(get("/v1/files?purpose=fine-tune-results"))["data"].size(), 0U);
}

TEST_F(GatewayFilesTest, SendsABodyPartByPart) {
  std::string content;
  while (content.size() < actors::kDownloadPartBytes * 5 / 2) {
    content += "line " + std::to_string(content.size()) + "\n";
  }
  const std::string id = uploaded(content);
  const ExchangeId download = get("/v1/files/" + id + "/content");
  EXPECT_EQ(sent(download).length, content.size());
  EXPECT_EQ(sent(download).response.headers[0].value, "application/octet-stream");
  EXPECT_EQ(sent(download).response.body, "");
  report_sent(download);
  EXPECT_EQ(sent(download).response.body.size(), actors::kDownloadPartBytes);
  EXPECT_FALSE(sent(download).ended);
  ASSERT_EQ(sent(send(request("DELETE", "/v1/files/" + id))).response.status, 200U);
  report_sent(download);  // the bytes can still be read
  EXPECT_FALSE(sent(download).ended);
  report_sent(download);
  EXPECT_TRUE(sent(download).ended);
  EXPECT_EQ(sent(download).response.body, content);
  report_sent(download);  // of an exchange that has ended
  EXPECT_EQ(sent(download).responses, 1);
}

TEST_F(GatewayFilesTest, ForgetsADownloadThatTheClientCloses) {
  const std::string id = uploaded("abc");
  const ExchangeId download = get("/v1/files/" + id + "/content");
  caf::anon_send(gateway_, atom::closed_v, download);
  report_sent(download);
  EXPECT_EQ(sent(download).response.body, "");
}

// Each download holds a part in memory while its client does not read.
TEST_F(GatewayFilesTest, LimitsDownloads) {
  const std::string id = uploaded("abc");
  const std::string target = "/v1/files/" + id + "/content";
  const ExchangeId closed = get(target);
  const ExchangeId complete = get(target);
  EXPECT_EQ(sent(get(target)).response.status, 429U);
  EXPECT_EQ(sent(get("/v1/files/file-x/content")).response.status, 429U);
  caf::anon_send(gateway_, atom::closed_v, closed);
  EXPECT_EQ(sent(get("/v1/files/file-x/content")).response.status, 404U);
  EXPECT_EQ(sent(get(target)).response.status, 200U);
  EXPECT_EQ(sent(get(target)).response.status, 429U);
  report_sent(complete);
  EXPECT_TRUE(sent(complete).ended);
  EXPECT_EQ(sent(get(target)).response.status, 200U);
}

TEST_F(GatewayFilesTest, DeletesFiles) {
  const std::string id = uploaded("abc");
  const ExchangeId deleted = send(request("DELETE", "/v1/files/" + id));
  EXPECT_EQ(body(deleted),
            nlohmann::json::parse(R"({"id": ")" + id + R"(", "object": "file", "deleted": true})"));
  for (const auto& [method, path] : std::vector<std::pair<std::string, std::string>>{
           {"DELETE", ""}, {"GET", ""}, {"GET", "/content"}}) {
    const ExchangeId missing = send(request(method, "/v1/files/" + id + path));
    EXPECT_EQ(sent(missing).response.status, 404U);
    EXPECT_EQ(error_of(missing), '"' + id + "\": there is no such file");
  }
}

TEST_F(GatewayFilesTest, RefusesBadUploads) {
  HttpRequest json = request("POST", "/v1/files", "{}");
  EXPECT_EQ(sent(send(json)).response.status, 415U);
  EXPECT_EQ(body(send(upload_request(form("x", "vision"))))["error"]["param"], "purpose");
  const ExchangeId empty = upload("");
  EXPECT_EQ(sent(empty).response.status, 400U);
  EXPECT_EQ(body(empty)["error"]["param"], "file");
  EXPECT_EQ(sent(send(upload_request("--X"))).response.status, 400U);
  EXPECT_EQ(error_of(get("/v1/files?page=2")), "page: unknown parameter");
  EXPECT_EQ(sent(get("/v1/files?after=file-x")).response.status, 404U);
  EXPECT_EQ(sent(upload(std::string(std::size_t{4} << 20U, 'x'))).response.status, 429U);
  EXPECT_TRUE(files_->list({}).value().entries.empty());
  // Uploads do not count with other bodies, whose limit is 1,500 bytes here.
  EXPECT_EQ(sent(upload(std::string(4000, 'x'))).response.status, 200U);
}

TEST_F(GatewayFilesTest, ReportsAFullDisk) {
  uploaded("x");
  // The next call of the file system fails.
  disk_.~FaultyFileSystem();
  new (&disk_) FaultyFileSystem({1, ENOSPC});
  const ExchangeId full = upload("y");
  EXPECT_EQ(sent(full).response.status, 507U);
  EXPECT_EQ(body(full)["error"]["code"], "insufficient_storage");
  EXPECT_EQ(sent(full).response.headers.back().name, "x-should-retry");
  EXPECT_EQ(sent(upload("y")).response.status, 200U);
}

TEST(StorageErrors, NameNoPathOfTheServer) {
  const auto full =
      actors::openai::to_storage_error({Errc::kResourceExhausted, "/data/jobs.db: full"});
  EXPECT_EQ(full.status, 507U);
  EXPECT_EQ(full.message, "the server has no room to store this: full");
  const auto damaged =
      actors::openai::to_storage_error({Errc::kCorruptData, "/data/jobs.db: malformed"});
  EXPECT_EQ(damaged.status, 500U);
  EXPECT_EQ(damaged.message, "a file of the server is damaged: malformed");
  const auto other =
      actors::openai::to_storage_error({Errc::kCorruptData, "file-abc: has 3 of 4 bytes"});
  EXPECT_EQ(other.message, "file-abc: has 3 of 4 bytes");
}

TEST_F(GatewayFilesTest, NeedsTheScope) {
  auto keys = std::make_shared<ApiKeys>();
  ASSERT_TRUE(keys->add({"user", {KeyScope::kInfer}, actors::hash_api_key("tm-user")}).ok());
  ASSERT_TRUE(keys->add({"tuner", {KeyScope::kTune}, actors::hash_api_key("tm-tuner")}).ok());
  start(keys);
  const auto status = [&](HttpRequest made, const std::string& key) {
    if (!key.empty()) {
      made.headers.push_back({"x-api-key", key});
    }
    return sent(send(std::move(made))).response.status;
  };
  for (const std::string target : {"/v1/files", "/v1/files/file-1", "/v1/files/file-1/content"}) {
    EXPECT_EQ(status(request("GET", target), ""), 401U) << target;
    EXPECT_EQ(status(request("GET", target), "tm-user"), 403U) << target;
  }
  EXPECT_EQ(status(request("DELETE", "/v1/files/file-1"), "tm-user"), 403U);
  EXPECT_EQ(status(upload_request(form("x")), "tm-user"), 403U);
  EXPECT_EQ(status(upload_request(form("x")), "tm-tuner"), 200U);
  EXPECT_EQ(status(request("GET", "/v1/files"), "tm-tuner"), 200U);
  EXPECT_EQ(status(request("GET", "/v1/models"), "tm-tuner"), 403U);

  const actors::AccessRules rules{{}, keys};
  const actors::BodyLimits limits{100, 1000, 500};
  const auto most = [&](const std::string& method, const std::string& target,
                        const std::string& key) {
    HttpRequest head = request(method, target);
    head.headers.push_back({"x-api-key", key});
    return actors::max_body_bytes(head, rules, limits);
  };
  EXPECT_EQ(most("POST", "/v1/files", "tm-tuner"), 1000U);
  EXPECT_EQ(most("POST", "/v1/files", "tm-user"), 100U);
  EXPECT_EQ(most("POST", "/v1/files", "tm-none"), 100U);
  EXPECT_EQ(most("PUT", "/v1/files", "tm-tuner"), 100U);
  EXPECT_EQ(most("POST", "/v1/chat/completions", "tm-tuner"), 100U);
  EXPECT_EQ(actors::max_body_bytes(request("POST", "/v1/files"), {}, {100, 0}), 100U);
  EXPECT_EQ(most("POST", "/api/v1/forward_backward", "tm-none"), 500U);
}

TEST_F(GatewayFilesTest, NamesTheMethodsOfAPath) {
  const ExchangeId wrong = send(request("PUT", "/v1/files"));
  EXPECT_EQ(sent(wrong).response.status, 405U);
  EXPECT_EQ(error_of(wrong), "the method must be GET, POST");
  EXPECT_EQ(sent(wrong).response.headers.back().value, "GET, POST");
  EXPECT_EQ(sent(get("/v1/files/a/b/c")).response.status, 404U);
  EXPECT_EQ(sent(get("/v1/files/")).response.status, 404U);
  EXPECT_EQ(sent(get("/v1/fine_tuning/jobs")).response.status, 404U);  // no tuning actor
  files_ = nullptr;
  start(nullptr);
  EXPECT_EQ(sent(get("/v1/files")).response.status, 404U);
}

TEST(RoutesTest, MatchesPaths) {
  EXPECT_EQ(match_path("/a/b", "/a/b"), actors::PathArguments());
  EXPECT_EQ(match_path("/a/b", "/a/b/"), std::nullopt);
  EXPECT_EQ(match_path("/a/b", "/a"), std::nullopt);
  EXPECT_EQ(match_path("/a/b", "/a/bc"), std::nullopt);
  EXPECT_THAT(*match_path("/a/*/c", "/a/x%2Fy/c"), ElementsAre("x/y"));
  EXPECT_EQ(match_path("/a/*/c", "/a//c"), std::nullopt);
  EXPECT_EQ(match_path("/a/*", "/a/%zz"), std::nullopt);
  EXPECT_EQ(match_path("/a/*", "/a/b/c"), std::nullopt);
  EXPECT_THAT(*match_path("/a/**", "/a/b/c"), ElementsAre("b/c"));
  EXPECT_EQ(match_path("/a/**", "/a/"), std::nullopt);
  EXPECT_EQ(match_path("/a/**", "/a"), std::nullopt);
}

}  // namespace
}  // namespace tidemill::test
