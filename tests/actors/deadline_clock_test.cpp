// SPDX-License-Identifier: Apache-2.0
// The contract of actors/deadline_clock.hpp, in an actor system with threads.
#include "actors/deadline_clock.hpp"

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <caf/all.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/atoms.hpp"
#include "actors/deadlines.hpp"
#include "actors/type_ids.hpp"
#include "tests/support/wait_until.hpp"

namespace tidemill::test {
namespace {

using actors::DeadlineClock;
using namespace std::chrono_literals;

constexpr std::chrono::seconds kPatience{30};

// Answers no request until it ends, and then all.
caf::behavior silent(caf::event_based_actor* self) {
  const auto promises = std::make_shared<std::vector<caf::response_promise>>();
  return {[self, promises](atom::wake) {
            promises->push_back(self->make_response_promise());
            return promises->back();
          },
          [self, promises](atom::drain) {
            for (caf::response_promise& promise : *promises) {
              promise.deliver(caf::make_error(caf::sec::runtime_error));
            }
            promises->clear();
            self->quit();
          }};
}

caf::behavior prompt(caf::event_based_actor* /*self*/) {
  return {[](atom::wake) { return true; }};
}

class DeadlineClockTest : public ::testing::Test {
protected:
  DeadlineClockTest() {
    actors::add_message_types(config_);
    actors::use_deadline_clock(config_);
    config_.set("scheduler.max-threads", 1);
    system_.emplace(config_);
    silent_ = caf::actor_cast<caf::actor>(system_->spawn(silent));
  }
  ~DeadlineClockTest() override { end(); }

  // Ends the actor system, once all requests have a reply.
  void end() {
    if (silent_) {
      caf::anon_send(silent_, atom::drain_v);
      silent_ = nullptr;
    }
    system_.reset();
  }

  DeadlineClock& clock() { return dynamic_cast<DeadlineClock&>(system_->clock()); }

  // Has an actor send `num_requests` requests, and returns what the last one got.
  std::future<caf::error> request(const caf::actor& server, caf::timespan deadline,
                                  int num_requests = 1, bool end_deadlines = true) {
    std::promise<caf::error> promise;
    std::future<caf::error> reply = promise.get_future();
    system_->spawn([=, promise = std::make_shared<std::promise<caf::error>>(std::move(promise))](
                       caf::event_based_actor* self) {
      for (int i = 0; i < num_requests; ++i) {
        const auto handle = self->request(server, deadline, atom::wake_v);
        const auto done = [=, id = handle.id()](const caf::error& error) {
          if (end_deadlines) {
            actors::end_deadline(self, id);
          }
          if (i + 1 == num_requests) {
            promise->set_value(error);
          }
        };
        handle.then([done](bool /*reply*/) { done({}); }, done);
      }
    });
    return reply;
  }

  caf::actor_system_config config_;
  std::optional<caf::actor_system> system_;
  caf::actor silent_;
};

TEST_F(DeadlineClockTest, ARequestWithoutAReplyGetsAnError) {
  EXPECT_EQ(request(silent_, 1ms).get(), caf::sec::request_timeout);
  EXPECT_EQ(clock().num_pending(), 0U);
}

TEST_F(DeadlineClockTest, ADeadlineThatPassesFirstIsNotHeldUpByEarlierRequests) {
  auto late = request(silent_, 1h);
  EXPECT_TRUE(wait_until([&] { return clock().num_pending() == 1; }, kPatience));
  EXPECT_EQ(request(silent_, 1ms).get(), caf::sec::request_timeout);
  EXPECT_EQ(late.wait_for(0s), std::future_status::timeout);
  EXPECT_EQ(clock().num_pending(), 1U);
}

// Many more than CAF's clock has room for before its thread takes some.
TEST_F(DeadlineClockTest, EveryDelayedMessageArrives) {
  std::promise<std::vector<int>> promise;
  std::future<std::vector<int>> arrived = promise.get_future();
  constexpr int kCount = 1000;
  system_->spawn([&promise](caf::event_based_actor* self) -> caf::behavior {
    for (int i = 0; i < kCount; ++i) {
      self->delayed_send(self, std::chrono::microseconds(100 * ((i * 7) % kCount)),
                         (i * 7) % kCount);
    }
    auto numbers = std::make_shared<std::vector<int>>();
    return {[self, &promise, numbers](int number) {
      numbers->push_back(number);
      if (numbers->size() == kCount) {
        promise.set_value(*numbers);
        self->quit();
      }
    }};
  });
  const std::vector<int> numbers = arrived.get();
  EXPECT_EQ(std::set<int>(numbers.begin(), numbers.end()).size(), std::size_t{kCount});
  EXPECT_EQ(clock().num_pending(), 0U);
}

TEST_F(DeadlineClockTest, AnActorThatGetsNothingIsToldSo) {
  std::promise<void> promise;
  system_->spawn([&promise](caf::event_based_actor* self) -> caf::behavior {
    return {[](int /*number*/) {}, caf::after(1ms) >>
                                       [self, &promise] {
                                         promise.set_value();
                                         self->quit();
                                       }};
  });
  EXPECT_EQ(promise.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_TRUE(wait_until([&] { return clock().num_pending() == 0; }, kPatience));
}

TEST_F(DeadlineClockTest, DeadlinesOfRepliesThatCameAreNotKept) {
  EXPECT_EQ(request(system_->spawn(prompt), 1h, 1000).get(), caf::error{});
  EXPECT_EQ(clock().num_pending(), 0U);
}

TEST_F(DeadlineClockTest, DeadlinesEndWithTheirActor) {
  auto late = request(silent_, 1h);
  EXPECT_EQ(request(system_->spawn(prompt), 1h, 1000, false).get(), caf::error{});
  // The actor has no behavior and no request left, so it ends.
  EXPECT_TRUE(wait_until([&] { return clock().num_pending() == 1; }, kPatience));
  EXPECT_EQ(late.wait_for(0s), std::future_status::timeout);
}

TEST_F(DeadlineClockTest, ASystemEndsWhileDeadlinesWereNotCancelled) {
  auto late = request(silent_, 1h, 100, false);
  EXPECT_TRUE(wait_until([&] { return clock().num_pending() == 100; }, kPatience));
  end();
  EXPECT_EQ(late.get(), caf::sec::runtime_error);
}

}  // namespace
}  // namespace tidemill::test
