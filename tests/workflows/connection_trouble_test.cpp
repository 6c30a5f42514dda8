// SPDX-License-Identifier: Apache-2.0
// Tests workflows/processes/connection_trouble.hpp.
#include "workflows/processes/connection_trouble.hpp"

#include <chrono>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tidemill::test {
namespace {

using namespace std::chrono_literals;

class HandClock final : public Clock {
public:
  [[nodiscard]] TimePoint now() const override { return now_; }
  void advance(Duration by) { now_ += by; }

private:
  TimePoint now_{};
};

TEST(ConnectionTrouble, IsSaidOnceAMinuteAndEnds) {
  HandClock clock;
  std::vector<std::string> lines;
  workflows::ConnectionTrouble trouble(clock, "the run cannot accept its worker processes",
                                       [&](const std::string& line) { lines.push_back(line); });
  const Status why(Errc::kResourceExhausted, "too many open files");
  EXPECT_TRUE(trouble.lasting(0s).ok());
  for (int i = 0; i < 601; ++i) {
    trouble.note(why);
    EXPECT_EQ(trouble.lasting(10s).ok(), i < 100) << i;
    clock.advance(100ms);
  }
  EXPECT_EQ(lines, std::vector<std::string>(
                       2,
                       "the run cannot accept its worker processes: too many open files; "
                       "trying again"));
  EXPECT_EQ(trouble.lasting(0s).message(), "too many open files");
  clock.advance(workflows::ConnectionTrouble::kOver);
  EXPECT_TRUE(trouble.lasting(0s).ok()) << "it is over";
  trouble.note(why);
  EXPECT_TRUE(trouble.lasting(10s).ok()) << "it has begun again";
  EXPECT_FALSE(trouble.lasting(0s).ok());
}

}  // namespace
}  // namespace tidemill::test
