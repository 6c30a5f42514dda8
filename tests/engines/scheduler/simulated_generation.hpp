// SPDX-License-Identifier: Apache-2.0
// A planner with everything around it but a model: requests whose lengths are known beforehand, and
// pages that remember which tokens they hold.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engines/scheduler/iteration_planner.hpp"

namespace tidemill::engines {

/// A request and how long its response is going to be.
struct SimulatedRequest {
  std::vector<std::int32_t> prompt;
  std::int64_t max_new_tokens = 1;
  std::int64_t response_length = 1;  // at most `max_new_tokens`
  std::uint64_t seed = 0;            // of the response's tokens
  std::uint64_t min_step = 0;
  PrefixUse prefix_use = PrefixUse::kShared;
};

/// Runs a planner, token by token, and checks what must hold at every moment: pages are computed in
/// order, hold the tokens they should under the weights they should, and are written by one
/// sequence at a time; each row drawn from is that of the right token.
class SimulatedGeneration {
public:
  /// What became of all requests so far.
  struct Totals {
    std::int64_t iterations = 0;
    std::int64_t computed_tokens = 0;
    std::int64_t prefill_tokens = 0;
    std::int64_t cached_tokens = 0;
    std::int64_t preemptions = 0;
    std::int64_t preempted_requests = 0;  // once or more often
    std::int64_t finished = 0;
  };

  enum class Pages : std::uint8_t { kChecked, kCounted };

  /// `kCounted`: what pages hold is not looked at, which is much faster.
  SimulatedGeneration(std::int64_t num_pages, const PlannerOptions& options,
                      Pages pages = Pages::kChecked);

  /// Returns the request's number.
  std::size_t submit(SimulatedRequest request);
  void cancel(std::size_t number);
  /// Changes the weights. Requires that nothing is in flight.
  void serve(std::string weights, std::uint64_t step);
  /// Runs one iteration. Requires that something can run.
  void step(const IterationBudget& budget);

  [[nodiscard]] bool has_work() const;
  [[nodiscard]] bool finished(std::size_t number) const { return !requests_[number]->in_queue; }
  [[nodiscard]] const PlannedSequence& sequence(std::size_t number) const {
    return requests_[number]->sequence;
  }
  [[nodiscard]] std::size_t num_requests() const { return requests_.size(); }
  [[nodiscard]] const Totals& totals() const { return totals_; }
  /// Share of all pages that running sequences hold.
  [[nodiscard]] double utilisation() const;
  [[nodiscard]] IterationPlanner& planner() { return planner_; }
  [[nodiscard]] PagePool& pool() { return pool_; }
  /// Takes free pages away, as training does, and gives them back.
  void borrow(std::int64_t pages);
  void give_back();

private:
  struct Request {
    SimulatedRequest request;
    PlannedSequence sequence;
    bool in_queue = true;
    bool was_preempted = false;
    bool ran = false;
  };

  [[nodiscard]] AdmissionRule rule() const { return {true, step_, weights_}; }
  [[nodiscard]] std::int32_t token_at(const Request& request, std::int64_t position) const;
  [[nodiscard]] float row_after(const PlannedSequence& sequence, std::int64_t position) const;
  void write(const PlannedChunk& chunk);
  void check_cached(const PlannedSequence& sequence, std::int64_t num_cached) const;
  void count_preempted();

  PagePool pool_;
  PlannerOptions options_;
  Pages pages_;
  IterationPlanner planner_;
  std::string weights_ = "w0";
  std::uint64_t step_ = 0;
  std::vector<std::unique_ptr<Request>> requests_;
  std::map<const PlannedSequence*, Request*> by_sequence_;
  // What each page holds: a hash of weights, and all tokens up to each position.
  std::vector<std::vector<std::uint64_t>> memory_;
  std::vector<std::int32_t> borrowed_;
  Totals totals_;
};

}  // namespace tidemill::engines
