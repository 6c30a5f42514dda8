// SPDX-License-Identifier: Apache-2.0
#include "actors/tinker/future_table.hpp"

#include <map>
#include <string>

#include <gtest/gtest.h>

namespace tidemill::test {
namespace {

using actors::ExchangeId;
using actors::HttpResponse;
using actors::tinker::FutureTable;

class FutureTableTest : public ::testing::Test {
protected:
  std::uint32_t status_of(const std::string& id, TimePoint now = TimePoint()) {
    table_.poll(id, ++exchange_, now);
    return sent_.at(exchange_);
  }
  std::string add_ready(const std::string& session, int number, TimePoint now = TimePoint()) {
    std::string id = session + ":train:0:" + std::to_string(number);
    table_.add(id, "tenant", "");
    table_.complete(id, {"{}"}, now);
    return id;
  }

  std::map<ExchangeId, std::uint32_t> sent_;
  ExchangeId exchange_ = 0;
  FutureTable table_{{}, [this](ExchangeId exchange, const HttpResponse& response) {
                       sent_[exchange] = response.status;
                     }};
};

// With a search for each dropped result, this takes minutes: the limit of the test's time decides.
TEST_F(FutureTableTest, ManyResultsOfASessionAreDroppedInTime) {
  constexpr int kResults = 90'000;
  for (int i = 0; i < kResults; ++i) {
    add_ready("a", kResults - i);
  }
  const std::string kept = add_ready("ab", 1);  // its id begins with that of the other session
  table_.drop_session("a");
  EXPECT_EQ(table_.size(), 1U);
  EXPECT_EQ(table_.bytes(), 2 + actors::tinker::kResultOverheadBytes);
  EXPECT_EQ(status_of(kept), 200U);
}

TEST_F(FutureTableTest, ResultsEndInTheOrderOfTheirDeadlines) {
  const TimePoint start;
  const std::string unread = add_ready("a", 1, start);
  const std::string read = add_ready("a", 2, start + std::chrono::minutes(1));
  EXPECT_EQ(status_of(read, start + std::chrono::minutes(2)), 200U);
  table_.drop_expired(start + std::chrono::minutes(3));
  EXPECT_EQ(status_of(read), 410U);
  EXPECT_EQ(table_.size(), 1U);
  table_.drop_expired(start + std::chrono::hours(1));
  EXPECT_EQ(status_of(unread), 410U);
  EXPECT_EQ(table_.bytes(), 0U);
}

TEST_F(FutureTableTest, ExchangesOfADroppedFutureAreForgotten) {
  table_.add("a:1", "tenant", "");
  table_.poll("a:1", 1, TimePoint());
  table_.poll("a:1", 2, TimePoint());
  table_.forget(1);
  table_.drop_session("a");
  EXPECT_EQ(sent_, (std::map<ExchangeId, std::uint32_t>{{2, 410}}));
  table_.end_waits(TimePoint::max());
  EXPECT_EQ(sent_.size(), 1U);
}

}  // namespace
}  // namespace tidemill::test
