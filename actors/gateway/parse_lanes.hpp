// SPDX-License-Identifier: Apache-2.0
// Chooses when and on which port the body of a request is parsed.
//
// A body that takes long to parse must not delay the others. So there are three lanes, each with
// its own port, and a body waits only for bodies of its own lane. In each lane, tenants take turns.
// A large body costs its tenant several turns.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "actors/gateway/tenant_turns.hpp"
#include "actors/work/work_port.hpp"

namespace tidemill::actors {

/// Which bodies are parsed one after the other.
enum class ParseLane : std::uint8_t {
  kSmall,
  kConstrained,  // small ones that may need a grammar, which may take seconds to compile
  kLarge,
};
inline constexpr std::size_t kNumParseLanes = 3;

/// Longer bodies are large.
inline constexpr std::size_t kMaxSmallBodyBytes = std::size_t{64} << 10U;

/// The port of each lane. Borrowed.
using ParsePorts = std::array<WorkPort*, kNumParseLanes>;

/// Returns the lane of a JSON body, without parsing it.
[[nodiscard]] ParseLane lane_of_json(std::string_view body) noexcept;

/// Returns the lane of a body that needs no grammar.
[[nodiscard]] constexpr ParseLane lane_of_size(std::size_t bytes) noexcept {
  return bytes > kMaxSmallBodyBytes ? ParseLane::kLarge : ParseLane::kSmall;
}

/// Holds the bodies that wait for the ports. At most two bodies of a lane are at its port: the one
/// that is being parsed, and the next one, so that the port need not wait for it.
///
/// Threads: one call at a time.
template <class Item>
class ParseLanes {
public:
  ParseLanes() = default;
  explicit ParseLanes(const ParsePorts& ports) : ports_(ports) {}

  /// Adds an item of a tenant, whose body has `bytes`.
  void push(ParseLane lane, const std::string& tenant, std::size_t bytes, Item item) {
    lane_at(lane).waiting.push(tenant, std::move(item), 1 + bytes / (kMaxSmallBodyBytes + 1));
  }
  /// Calls `start(port, item)` for each item whose turn has come.
  template <class Start>
  void start(ParseLane lane, Start start) {
    Lane& one = lane_at(lane);
    while (one.num_at_port < kMaxAtPort && !one.waiting.empty()) {
      ++one.num_at_port;
      start(*ports_[static_cast<std::size_t>(lane)], one.waiting.pop());
    }
  }
  /// Reports that a port has run the work of an item.
  void end(ParseLane lane) { --lane_at(lane).num_at_port; }

private:
  static constexpr std::size_t kMaxAtPort = 2;
  struct Lane {
    TenantTurns<Item> waiting;
    std::size_t num_at_port = 0;
  };
  [[nodiscard]] Lane& lane_at(ParseLane lane) { return lanes_[static_cast<std::size_t>(lane)]; }

  ParsePorts ports_{};
  std::array<Lane, kNumParseLanes> lanes_;
};

}  // namespace tidemill::actors
