// SPDX-License-Identifier: Apache-2.0
#include "transport/loopback/loopback_connection.hpp"

#include <cstring>
#include <thread>
#include <vector>

#include "base/check.hpp"
#include "tests/transport/connection_suite.hpp"
#include "tests/transport/shm_host.hpp"

namespace tidemill::transport {
namespace {

// Listens at a name and keeps the last connection that it accepts.
class Host {
public:
  explicit Host(const std::string& name) : connector_(make_loopback_connector(name)) {
    auto acceptor = listen_loopback(name, [this](std::unique_ptr<Connection> connection) {
      accepted_ = std::move(connection);
      ++num_accepted_;
    });
    TIDEMILL_CHECK(acceptor.ok()) << acceptor.status().to_string();
    acceptor_ = std::move(acceptor).value();
  }

  Connector& connector() { return *connector_; }
  std::unique_ptr<Connection> accepted() { return std::move(accepted_); }
  [[nodiscard]] int num_accepted() const { return num_accepted_; }
  void stop_listening() { acceptor_.reset(); }

private:
  std::unique_ptr<Connection> accepted_;
  int num_accepted_ = 0;
  std::unique_ptr<Connector> connector_;
  std::unique_ptr<Acceptor> acceptor_;
};

class LoopbackConnectionRig final : public ConnectionRig {
public:
  Pair connect() override {
    auto first = host_.connector().connect(Duration::zero());
    TIDEMILL_CHECK(first.ok()) << first.status().to_string();
    return {std::move(first).value(), host_.accepted()};
  }
  bool run_until(const std::function<bool()>& done) override { return wait_until(done); }
  void settle() override { wait_for_quiet(); }

private:
  Host host_{"rig"};
};

INSTANTIATE_TEST_SUITE_P(LoopbackConnection, ConnectionSuite, ::testing::Values([] {
                           return std::make_unique<LoopbackConnectionRig>();
                         }));

TEST(LoopbackConnections, OneAcceptorListensAtAName) {
  const Host host("one");
  EXPECT_EQ(listen_loopback("one", {}).status().to_string(),
            "unavailable: one: this process listens there already");
  EXPECT_TRUE(listen_loopback("two", {}).ok());
}

TEST(LoopbackConnections, WithoutAnAcceptorNoneIsMade) {
  Host host("gone");
  const auto connection = host.connector().connect(Duration::zero());
  EXPECT_TRUE(connection.ok());
  host.stop_listening();
  EXPECT_EQ(host.connector().connect(Duration::zero()).status().to_string(),
            "unavailable: gone: this process does not listen there");
  EXPECT_EQ(host.num_accepted(), 1);
  const Host again("gone");
  EXPECT_TRUE(host.connector().connect(Duration::zero()).ok());
  EXPECT_EQ(again.num_accepted(), 1);
}

TEST(LoopbackConnections, SendersOfManyThreadsKeepTheirOrder) {
  constexpr std::uint32_t kSenders = 4;
  constexpr std::uint32_t kFrames = 2000;
  RecordingListener at_sender;
  RecordingListener at_receiver;
  LoopbackConnectionRig rig;
  const ConnectionRig::Pair sides = rig.connect();
  sides.first->start(at_sender);
  sides.second->start(at_receiver);
  std::vector<std::thread> senders;
  for (std::uint32_t sender = 0; sender < kSenders; ++sender) {
    senders.emplace_back([&, sender] {
      for (std::uint32_t i = 0; i < kFrames; ++i) {
        const std::uint32_t number = sender * kFrames + i;
        EXPECT_TRUE(sides.first->send(Buffer::copy_of(std::as_bytes(std::span(&number, 1)))).ok());
      }
    });
  }
  for (std::thread& sender : senders) {
    sender.join();
  }
  ASSERT_TRUE(rig.run_until([&] { return at_receiver.frames().size() == kSenders * kFrames; }));
  std::vector<std::uint32_t> next(kSenders);
  for (const Buffer& frame : at_receiver.frames()) {
    std::uint32_t number = 0;
    std::memcpy(&number, frame.bytes().data(), sizeof number);
    EXPECT_EQ(number % kFrames, next[number / kFrames]++);
  }
}

}  // namespace
}  // namespace tidemill::transport
