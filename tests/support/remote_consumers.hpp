// SPDX-License-Identifier: Apache-2.0
// The fixture for tests of a stream whose consumers are in the same process or in another one.
#pragma once

#include <optional>
#include <vector>

#include <caf/all.hpp>

#include "actors/stream/handles.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/remote_workers.hpp"

namespace tidemill::test {

/// A process that runs two workers, under whose names a test uses a stream.
class RemoteConsumers {
public:
  RemoteConsumers(caf::actor_system& system, const actors::StreamConsumerActor& stream)
      : workers_(system, stream, [&system](const actors::StreamConsumerActor&) {
          return system.spawn(
              [](caf::event_based_actor*) { return caf::behavior{[](atom::drain) {}}; });
        }) {
    workers_.start("consumer", 0);
    workers_.start("consumer", 1);
  }
  void stop() { workers_.stop(); }
  [[nodiscard]] const actors::StreamConsumerActor& stream() const { return workers_.stream(); }

private:
  RemoteWorkers workers_;
};

/// Gives a test the stream as its consumers see it. If they are remote, their names are
/// "consumer-0" and "consumer-1".
class ConsumerTest : public ActorTest {
protected:
  void TearDown() override {
    if (remote_.has_value()) {
      remote_->stop();
    }
    ActorTest::TearDown();
  }
  /// Returns the handle through which the consumers of `stream` use it.
  actors::StreamConsumerActor consumers_of(const actors::StreamActor& stream) {
    if (!is_remote_) {
      return stream;
    }
    if (!remote_.has_value() || remote_of_ != stream) {
      if (remote_.has_value()) {
        remote_->stop();
        drain();
      }
      remote_of_ = stream;
      remote_.emplace(system(), stream);
      drain();
    }
    return remote_->stream();
  }

  bool is_remote_ = false;  // set before the first request

private:
  actors::StreamActor remote_of_;
  std::optional<RemoteConsumers> remote_;
};

}  // namespace tidemill::test
