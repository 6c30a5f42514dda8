// SPDX-License-Identifier: Apache-2.0
#include "transport/query/query_server.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/unique_fd.hpp"
#include "tests/support/soft_limit.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::transport {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class QueryServerTest : public ::testing::Test {
protected:
  void start() {
    auto server = QueryServer::listen(path_, [this](const std::string& query) {
      ++answered_;
      return query == "nothing" ? std::string() : "you asked " + query;
    });
    ASSERT_TRUE(server.ok()) << server.status().to_string();
    server_ = std::move(server).value();
  }

  test::TemporaryDirectory folder_;
  std::filesystem::path path_ = folder_.path() / "control";
  std::unique_ptr<QueryServer> server_;
  std::atomic<int> answered_ = 0;
};

TEST_F(QueryServerTest, AnswersEachQuery) {
  start();
  EXPECT_EQ(send_query(path_, "a", 10s).value(), "you asked a");
  const std::string longest(kMaxQueryBytes, 'x');
  EXPECT_EQ(send_query(path_, longest, 10s).value(), "you asked " + longest);
  EXPECT_EQ(answered_, 2);
}

TEST_F(QueryServerTest, ManyAskAtATime) {
  start();
  std::vector<std::thread> askers;
  std::atomic<int> right = 0;
  for (int i = 0; i < 8; ++i) {
    askers.emplace_back([&, i] {
      for (int j = 0; j < 50; ++j) {
        const std::string query = std::to_string(i) + "." + std::to_string(j);
        const auto answer = send_query(path_, query, 30s);
        right += answer.ok() && answer.value() == "you asked " + query ? 1 : 0;
      }
    });
  }
  for (std::thread& asker : askers) {
    asker.join();
  }
  EXPECT_EQ(right, 400);
}

TEST_F(QueryServerTest, WithoutAServerOrAnAnswerTheReasonSaysSo) {
  EXPECT_EQ(send_query(path_, "a", 100ms).status().code(), Errc::kUnavailable);
  EXPECT_EQ(send_query(folder_.path() / "no" / "control", "a", 100ms).status().code(),
            Errc::kNotFound);
  start();
  EXPECT_THAT(send_query(path_, "nothing", 200ms).status().message(), HasSubstr("no answer"));
  EXPECT_EQ(send_query(path_, "", 1s).status().code(), Errc::kInvalidArgument);
  EXPECT_EQ(send_query(path_, std::string(kMaxQueryBytes + 1, 'x'), 1s).status().code(),
            Errc::kInvalidArgument);
  server_.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_EQ(send_query(path_, "a", 100ms).status().code(), Errc::kUnavailable);
}

// A socket that a killed process has left is replaced; another file is not.
TEST_F(QueryServerTest, ReplacesASocketOnly) {
  {
    const UniqueFd left(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.string().copy(static_cast<char*>(address.sun_path), sizeof address.sun_path - 1);
    ASSERT_EQ(::bind(left.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  ASSERT_TRUE(std::filesystem::exists(path_));
  start();
  EXPECT_EQ(send_query(path_, "a", 10s).value(), "you asked a");
  const std::filesystem::path file = folder_.path() / "file";
  std::ofstream(file) << "a file";
  EXPECT_FALSE(QueryServer::listen(file, [](const std::string&) { return ""; }).ok());
  EXPECT_TRUE(std::filesystem::is_regular_file(file));
}

// Its asker has told the user that there was no answer.
TEST_F(QueryServerTest, AQueryWhoseAskerHasGoneIsNotAnswered) {
  start();
  UniqueFd silent(::socket(AF_UNIX, SOCK_SEQPACKET, 0));  // holds the server up
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path_.string().copy(static_cast<char*>(address.sun_path), sizeof address.sun_path - 1);
  ASSERT_EQ(::connect(silent.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
            0);
  EXPECT_EQ(send_query(path_, "late", 100ms).status().code(), Errc::kTimeout);
  EXPECT_EQ(send_query(path_, "a", 10s).value(), "you asked a");
  EXPECT_EQ(answered_, 1);
}

// The query waits in the queue of the socket meanwhile.
TEST_F(QueryServerTest, ALackOfDescriptorsIsSaidAndTheQueryIsAnsweredLater) {
  std::promise<std::string> trouble;
  std::atomic<bool> first = true;
  auto server = QueryServer::listen(
      path_, [](const std::string& query) { return "you asked " + query; },
      [&](const Status& why) {
        if (first.exchange(false)) {
          trouble.set_value(why.to_string());
        }
      });
  ASSERT_TRUE(server.ok()) << server.status().to_string();
  const UniqueFd asker(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path_.string().copy(static_cast<char*>(address.sun_path), sizeof address.sun_path - 1);
  auto said = trouble.get_future();
  {
    const test::SoftLimit limit(RLIMIT_NOFILE, test::next_descriptor());
    ASSERT_EQ(::connect(asker.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
              0);
    ASSERT_EQ(::send(asker.get(), "a", 1, 0), 1);
    ASSERT_EQ(said.wait_for(30s), std::future_status::ready);
  }
  EXPECT_EQ(said.get(), "resource_exhausted: cannot accept a connection: Too many open files");
  std::string answer(100, '\0');
  answer.resize(
      static_cast<std::size_t>(std::max<ssize_t>(::recv(asker.get(), answer.data(), 100, 0), 0)));
  EXPECT_EQ(answer, "you asked a");
}

// Those who connect and ask nothing, or too much, hold the server up for a second each at most.
TEST_F(QueryServerTest, AConnectionWithoutAQueryIsClosed) {
  start();
  const UniqueFd silent(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path_.string().copy(static_cast<char*>(address.sun_path), sizeof address.sun_path - 1);
  ASSERT_EQ(::connect(silent.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
            0);
  EXPECT_EQ(send_query(path_, "a", 10s).value(), "you asked a");
  char byte = 0;
  EXPECT_EQ(::recv(silent.get(), &byte, 1, 0), 0) << "closed";
  EXPECT_EQ(answered_, 1);
}

}  // namespace
}  // namespace tidemill::transport
