// SPDX-License-Identifier: Apache-2.0
// The outcomes of requests to a device, on their way from its port to its actor. Private to the
// device.
#pragma once

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "actors/device/messages.hpp"
#include "base/result.hpp"

namespace tidemill::actors {

/// Identifies a request. Promises stay with the actor, and the work names them by their tickets.
using Ticket = std::uint64_t;

/// The outcome of a request.
template <class Value>
struct Outcome {
  Ticket ticket = 0;
  Result<Value> result;
};

/// A tuple of `Container` for each type that a device replies with.
template <template <class> class Container>
using PerReply =
    std::tuple<Container<engines::RolloutResult>, Container<PolicyVersion>, Container<AdapterList>,
               Container<OptimizerState>, Container<TrainOutcome>, Container<PassOutcome>,
               Container<engines::UpdateReport>, Container<engines::Snapshot>, Container<JobId>>;

/// The outcomes of an iteration, in order for each type.
class Outcomes {
public:
  template <class Value>
  void add(Ticket ticket, Result<Value> result) {
    std::get<List<Value>>(lists_).push_back({ticket, std::move(result)});
  }
  template <class Value>
  [[nodiscard]] std::vector<Outcome<Value>> take() {
    return std::exchange(std::get<List<Value>>(lists_), {});
  }

private:
  template <class Value>
  using List = std::vector<Outcome<Value>>;

  PerReply<List> lists_;
};

}  // namespace tidemill::actors
