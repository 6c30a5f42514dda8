// SPDX-License-Identifier: Apache-2.0
// Measures messages between two processes of this host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace tidemill::bench {

/// What is measured.
struct TransportMeasure {
  std::uint64_t round_trips = 20'000;  // of each figure, after a tenth as many to warm up
  std::uint64_t body_bytes = 64;
  std::vector<std::string> figures = {};  // names, as `transport_figures` returns them; empty: all
};

/// The times of round trips over what a transport is built on, without the transport.
struct TransportPrimitive {
  std::string name;
  double p50_us = 0.0;
  double p99_us = 0.0;
};

/// A figure: the times of round trips over a transport, and over the primitives below it.
struct TransportFigure {
  std::string name;
  double p50_us = 0.0;  // of requests and replies between two programs
  double p99_us = 0.0;
  std::vector<TransportPrimitive> primitives;
  /// Round trips at a time: the requests that a program has sent and that have no reply.
  std::uint64_t in_flight = 1;
  double per_second = 0.0;  // round trips
};

/// Returns the names of all figures.
[[nodiscard]] std::vector<std::string> transport_figures();

/// Measures figures. Starts processes by forking, so the caller must have no other thread.
/// Errors: `kUnavailable` if a process or a socket cannot be made.
[[nodiscard]] Result<std::vector<TransportFigure>> measure_transport(const TransportMeasure& how);

}  // namespace tidemill::bench
