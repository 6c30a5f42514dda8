// SPDX-License-Identifier: Apache-2.0
#include "transport/loopback/loopback_network.hpp"

#include "tests/transport/connection_suite.hpp"

namespace tidemill::transport {
namespace {

using std::chrono::milliseconds;

class LoopbackRig final : public ConnectionRig {
public:
  Pair connect() override { return network_.connect(); }
  bool run_until(const std::function<bool()>& done) override {
    settle();
    return done();
  }
  void settle() override { network_.advance(TimePoint{}); }

private:
  LoopbackNetwork network_{1};
};

INSTANTIATE_TEST_SUITE_P(Loopback, ConnectionSuite,
                         ::testing::Values([] { return std::make_unique<LoopbackRig>(); }));

// What arrives at the second side of a connection when the first one sends ten frames.
struct Arrivals {
  std::vector<std::string> frames;
  int closed = 0;
  TimePoint last{};
};

Arrivals arrivals(std::uint64_t seed, const LoopbackFaults& faults) {
  LoopbackNetwork network(seed, faults);
  RecordingListener at_a;
  RecordingListener at_b;
  const LoopbackNetwork::Pair sides = network.connect();
  sides.first->start(at_a);
  sides.second->start(at_b);
  for (char text = '0'; text <= '9'; ++text) {
    (void)sides.first->send(Buffer::copy_of(std::as_bytes(std::span(&text, 1))));
  }
  Arrivals result;
  while (network.next_event() != TimePoint::max()) {
    result.last = network.next_event();
    network.advance(result.last);
  }
  for (const Buffer& frame : at_b.frames()) {
    result.frames.emplace_back(reinterpret_cast<const char*>(frame.bytes().data()),
                               frame.size_bytes());
  }
  result.closed = at_b.closed();
  EXPECT_EQ(at_a.closed(), at_b.closed());
  return result;
}

std::string joined(const std::vector<std::string>& frames) {
  std::string text;
  for (const std::string& frame : frames) {
    text += frame;
  }
  return text;
}

TEST(LoopbackNetwork, WithoutFaultsCarriesEverythingAtOnce) {
  const Arrivals got = arrivals(1, {});
  EXPECT_EQ(joined(got.frames), "0123456789");
  EXPECT_EQ(got.last, TimePoint{});
  EXPECT_EQ(got.closed, 0);
}

TEST(LoopbackNetwork, LosesFrames) {
  EXPECT_EQ(joined(arrivals(1, {.lost = 1.0}).frames), "");
  const std::string some = joined(arrivals(1, {.lost = 0.5}).frames);
  EXPECT_GT(some.size(), 0U);
  EXPECT_LT(some.size(), 10U);
}

TEST(LoopbackNetwork, RepeatsFrames) {
  EXPECT_EQ(joined(arrivals(1, {.repeated = 1.0}).frames), "00112233445566778899");
}

TEST(LoopbackNetwork, DamagesFrames) {
  const std::string damaged = joined(arrivals(1, {.damaged = 1.0}).frames);
  ASSERT_EQ(damaged.size(), 10U);
  for (std::size_t i = 0; i < damaged.size(); ++i) {
    EXPECT_NE(damaged[i], "0123456789"[i]);
  }
}

TEST(LoopbackNetwork, BreaksConnections) {
  const Arrivals got = arrivals(1, {.broken = 1.0});
  EXPECT_EQ(joined(got.frames), "");
  EXPECT_EQ(got.closed, 1);
}

TEST(LoopbackNetwork, DelaysFrames) {
  const Arrivals got = arrivals(1, {.max_delay = milliseconds(10)});
  EXPECT_EQ(joined(got.frames), "0123456789");
  EXPECT_GT(got.last, TimePoint{});
  EXPECT_LE(got.last, TimePoint{} + milliseconds(10));
}

TEST(LoopbackNetwork, ReordersFrames) {
  const Arrivals got = arrivals(1, {.reordered = 1.0, .max_delay = milliseconds(10)});
  std::string text = joined(got.frames);
  EXPECT_NE(text, "0123456789");
  std::ranges::sort(text);
  EXPECT_EQ(text, "0123456789");
  EXPECT_GT(got.last, TimePoint{});
  EXPECT_LE(got.last, TimePoint{} + milliseconds(10));
}

TEST(LoopbackNetwork, ASeedGivesTheSameEvents) {
  const LoopbackFaults faults{.lost = 0.3,
                              .repeated = 0.3,
                              .damaged = 0.3,
                              .broken = 0.01,
                              .reordered = 0.5,
                              .max_delay = milliseconds(5)};
  EXPECT_EQ(arrivals(3, faults).frames, arrivals(3, faults).frames);
  EXPECT_NE(arrivals(3, faults).frames, arrivals(4, faults).frames);
}

// What arrives of the frames 0 to 3, of which the test decides the fate of 1.
TEST(LoopbackNetwork, AFrameGetsTheFateThatIsChosen) {
  const struct {
    FrameFate fate;
    const char* arrived;
  } cases[] = {
      {FrameFate::kCarried, "0123"},   {FrameFate::kLost, "023"},
      {FrameFate::kRepeated, "01123"}, {FrameFate::kReordered, "0231"},
      {FrameFate::kDelayed, "0123"},   {FrameFate::kBroken, ""},
  };
  for (const auto& [fate, arrived] : cases) {
    LoopbackNetwork network(1);
    RecordingListener at_a;
    RecordingListener at_b;
    const LoopbackNetwork::Pair sides = network.connect();
    sides.first->start(at_a);
    sides.second->start(at_b);
    network.set_fates(
        [fate = fate](const Buffer& frame) {
          return frame.bytes()[0] == std::byte{'1'} ? fate : FrameFate::kCarried;
        },
        milliseconds(10));
    for (char text = '0'; text <= '3'; ++text) {
      (void)sides.first->send(Buffer::copy_of(std::as_bytes(std::span(&text, 1))));
    }
    network.advance(TimePoint{});
    const bool late = fate == FrameFate::kReordered || fate == FrameFate::kDelayed;
    EXPECT_EQ(network.next_event(), late ? TimePoint{} + milliseconds(10) : TimePoint::max());
    network.advance(TimePoint{} + milliseconds(10));
    std::string text;
    for (const Buffer& frame : at_b.frames()) {
      text += static_cast<char>(frame.bytes()[0]);
    }
    EXPECT_EQ(text, arrived);
    EXPECT_EQ(at_b.closed(), fate == FrameFate::kBroken ? 1 : 0);
  }
}

}  // namespace
}  // namespace tidemill::transport
