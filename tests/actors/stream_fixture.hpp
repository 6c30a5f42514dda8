// SPDX-License-Identifier: Apache-2.0
// The fixture for tests of a stream whose groups have two rows.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "actors/stream/spawn.hpp"
#include "tests/actors/sample_rows.hpp"
#include "tests/support/fake_actors.hpp"
#include "tests/support/remote_consumers.hpp"

namespace tidemill::test {

/// Starts a stream whose invariants are checked after every message. The constructor of a derived
/// class may change `options_`.
class StreamFixture : public ConsumerTest {
protected:
  StreamFixture() {
    options_.group_size = 2;
    options_.lease = std::chrono::minutes(1);
  }
  void SetUp() override {
    stream_ = keep(actors::spawn_stream(
        system(), {options_,
                   keep(spawn_fake_keeper(system(), std::make_shared<FakeKeeper>())),
                   {},
                   [](const Status& status, const actors::StreamStatus&) {
                     EXPECT_TRUE(status.ok()) << status.message();
                   }}));
  }
  actors::StreamConsumerActor consumers() { return consumers_of(stream_); }
  void put(std::uint64_t group) {
    const auto reply =
        ask<storage::Settlement>(stream_, atom::put_v, sample_group(group, options_.group_size));
    drain();
    ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  }
  /// Requests up to `units` rows or groups, and is ready to wait for them.
  Reply<actors::LeaseReply> lease(actors::SampleTask task, Duration wait, std::uint32_t units = 2) {
    auto reply =
        ask<actors::LeaseReply>(consumers(), atom::lease_v, sample_lease(task, units, wait));
    drain();
    return reply;
  }
  /// Leases what is ready now.
  std::vector<storage::LeasedRow> rows_of(actors::SampleTask task, std::uint32_t units) {
    const auto reply = lease(task, Duration{0}, units);
    advance(Duration{0});
    return reply.ok() ? reply.value().rows : std::vector<storage::LeasedRow>{};
  }
  void ack(actors::SampleTask task, const std::vector<storage::LeasedRow>& rows,
           const std::vector<storage::ColumnValue>& cells) {
    ask<storage::Settlement>(consumers(), atom::ack_v, ack_of(task, rows, cells));
    drain();
  }
  void nack(actors::SampleTask task, const std::vector<storage::LeasedRow>& rows,
            const std::string& why) {
    ask<storage::Settlement>(consumers(), atom::nack_v, lease_update_of(task, rows, why));
    drain();
  }
  void renew(actors::SampleTask task, const std::vector<storage::LeasedRow>& rows) {
    ask<storage::Settlement>(consumers(), atom::renew_v, lease_update_of(task, rows));
    drain();
  }
  void retire(std::uint64_t group, storage::VerdictKind kind) {
    ask<storage::Settlement>(consumers(), atom::retire_v,
                             actors::GroupVerdict{{group}, {kind, "why"}});
    drain();
  }
  actors::StreamStatus counts() {
    const auto reply = ask<actors::StreamStatus>(stream_, atom::status_v);
    drain();
    return reply.value();
  }

  actors::SampleStreamOptions options_;
  actors::StreamActor stream_;
};

}  // namespace tidemill::test
