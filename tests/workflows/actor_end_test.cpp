// SPDX-License-Identifier: Apache-2.0
// Tests how a server waits for the end of an actor.
#include "workflows/actor_end.hpp"

#include <atomic>
#include <chrono>
#include <ctime>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#include <caf/all.hpp>
#include <gtest/gtest.h>

#include "actors/errors.hpp"
#include "workflows/actor_system.hpp"

namespace tidemill::workflows {
namespace {

std::atomic<std::time_t> clock_offset = 0;  // of the clock of the day, in seconds

}  // namespace
}  // namespace tidemill::workflows

// Replaces the function of the C library in this program, so that a test can set the clock of the
// day.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto result = static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
  if (result == 0 && clock == CLOCK_REALTIME) {
    time->tv_sec += tidemill::workflows::clock_offset;
  }
  return result;
}

namespace tidemill::workflows {
namespace {

using namespace std::chrono_literals;

class ActorEndTest : public ::testing::Test {
protected:
  // Starts an actor that ends when it gets a message.
  caf::actor start() {
    return actor_system_.system().spawn([](caf::event_based_actor* self) -> caf::behavior {
      return {[self](bool fails) {
        self->quit(fails ? actors::to_caf_error({Errc::kUnavailable, "the device is gone"})
                         : caf::error());
      }};
    });
  }

private:
  ActorSystem actor_system_;
};

TEST_F(ActorEndTest, TellsWhyAnActorHasEnded) {
  for (const bool fails : {false, true}) {
    const caf::actor actor = start();
    const ActorEnd end(actor);
    EXPECT_FALSE(end.wait_for(1ms));
    EXPECT_TRUE(end.reason().ok());
    caf::anon_send(actor, fails);
    ASSERT_TRUE(end.wait_for(20s));
    EXPECT_EQ(end.reason().code(), fails ? Errc::kUnavailable : Errc::kOk);
    EXPECT_EQ(end.reason().message(), fails ? "the device is gone" : "");
    const ActorEnd late(actor);  // of an actor that has ended
    EXPECT_TRUE(late.wait_for(0s));
  }
}

TEST_F(ActorEndTest, WaitsAsLongAsBeforeWhenTheClockIsSetBack) {
  const caf::actor actor = start();
  const ActorEnd end(actor);
  std::atomic<int> waits = 0;
  std::thread waiting([&] {
    while (!end.wait_for(5ms)) {
      ++waits;
    }
  });
  const auto has_waited = [&waits](int more) {
    const int least = waits + more;
    const auto deadline = std::chrono::steady_clock::now() + 20s;
    while (waits < least && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(1ms);  // the other thread waits with the machine's clocks
    }
    return waits >= least;
  };
  EXPECT_TRUE(has_waited(1));
  const auto before = std::chrono::system_clock::now();
  clock_offset = -3600;
  EXPECT_LT(std::chrono::system_clock::now(), before);
  EXPECT_TRUE(has_waited(3));
  clock_offset = 0;
  caf::anon_send(actor, false);
  waiting.join();
}

}  // namespace
}  // namespace tidemill::workflows
