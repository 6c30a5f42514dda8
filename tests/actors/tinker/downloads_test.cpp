// SPDX-License-Identifier: Apache-2.0
#include "actors/tinker/downloads.hpp"

#include <deque>
#include <fstream>
#include <functional>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "actors/gateway/file_part.hpp"
#include "tests/actors/gateway/gateway_fixture.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::test {
namespace {

using actors::ExchangeId;
using actors::FairLimit;
using actors::kDownloadPartBytes;
using actors::tinker::Downloads;
using actors::tinker::OpenedFile;

class DownloadsTest : public ::testing::Test {
protected:
  bool start(ExchangeId exchange, const std::string& tenant, const std::string& name) {
    return downloads_.start(
        exchange, tenant,
        [this, name]() -> Result<OpenedFile> {
          TIDEMILL_ASSIGN_OR_RETURN(ReadableFile file, ReadableFile::open(folder_.path() / name));
          return std::make_shared<const ReadableFile>(std::move(file));
        },
        [this](const Status& status) { failures_.push_back(status); });
  }
  void make_file(const std::string& name, std::size_t size) {
    std::ofstream(folder_.path() / name) << std::string(size, 'x');
  }
  void work() {
    while (!waiting_.empty()) {
      const auto next = std::move(waiting_.front());
      waiting_.pop_front();
      next();
    }
  }
  FakeHttp::Sent& sent(ExchangeId exchange) { return http_.sent[exchange]; }

  TemporaryDirectory folder_{memory_directory_path()};
  FakeHttp http_;
  std::deque<std::function<void()>> waiting_;
  std::vector<Status> failures_;
  Downloads downloads_{http_,
                       [this](const std::string& /*tenant*/, std::function<void()> work,
                              std::function<void()> done) {
                         waiting_.push_back([work = std::move(work), done = std::move(done)] {
                           work();
                           done();
                         });
                       },
                       FairLimit(4 * kDownloadPartBytes, actors::Tenancy::kSeveral)};
};

TEST_F(DownloadsTest, SendsTheNextPartOnceTheOneBeforeIsSent) {
  const std::size_t size = kDownloadPartBytes * 3 / 2;
  make_file("a", size);
  ASSERT_TRUE(start(1, "t", "a"));
  work();
  EXPECT_EQ(sent(1).length, size);
  EXPECT_EQ(sent(1).response.body, "");
  downloads_.on_sent(1);
  work();
  EXPECT_EQ(sent(1).response.body.size(), kDownloadPartBytes);
  EXPECT_FALSE(sent(1).ended);
  downloads_.on_sent(1);
  work();
  EXPECT_EQ(sent(1).response.body, std::string(size, 'x'));
  EXPECT_TRUE(sent(1).ended);
  downloads_.on_sent(1);
  EXPECT_TRUE(waiting_.empty());
}

TEST_F(DownloadsTest, AnEmptyFileIsSentAtOnce) {
  make_file("a", 0);
  ASSERT_TRUE(start(1, "t", "a"));
  work();
  EXPECT_TRUE(sent(1).ended);
}

TEST_F(DownloadsTest, AClosedConnectionReadsNothingMore) {
  make_file("a", 10);
  ASSERT_TRUE(start(1, "t", "a"));
  downloads_.forget(1);
  work();
  EXPECT_FALSE(http_.sent.contains(1));
  ASSERT_TRUE(start(2, "t", "a"));
  work();
  downloads_.on_sent(2);
  downloads_.forget(2);
  work();
  EXPECT_EQ(sent(2).response.body, "");
}

TEST_F(DownloadsTest, AFileThatBecomesShorterEndsTheConnection) {
  make_file("a", 10);
  ASSERT_TRUE(start(1, "t", "a"));
  work();
  make_file("a", 5);
  downloads_.on_sent(1);
  work();
  EXPECT_TRUE(sent(1).ended);
  EXPECT_EQ(sent(1).response.body, "");
  ASSERT_TRUE(start(2, "t", "none"));
  work();
  ASSERT_EQ(failures_.size(), 1U);
  EXPECT_EQ(failures_[0].code(), Errc::kNotFound);
}

TEST_F(DownloadsTest, TenantsLeaveEachOtherRoom) {
  make_file("a", 10);
  ExchangeId exchange = 0;
  while (start(++exchange, "greedy", "a")) {
    ASSERT_LT(exchange, 4U);
  }
  EXPECT_EQ(exchange, 3U);
  EXPECT_TRUE(start(10, "other", "a"));
  downloads_.forget(1);
  EXPECT_TRUE(start(11, "greedy", "a"));
}

}  // namespace
}  // namespace tidemill::test
