// SPDX-License-Identifier: Apache-2.0
// Runs a planner without a model: the lengths of responses are given, and pages record which tokens
// they hold.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engines/scheduler/iteration_planner.hpp"

namespace tidemill::engines {

/// A request, and the length that its response will have.
struct SimulatedRequest {
  std::vector<std::int32_t> prompt;
  std::int64_t max_new_tokens = 1;
  std::int64_t response_length = 1;  // at most `max_new_tokens`
  std::uint64_t seed = 0;            // determines the response's tokens
  std::uint64_t min_step = 0;
  PrefixUse prefix_use = PrefixUse::kShared;
  Priority priority = Priority::kNormal;
  std::string tenant = {};
  std::string cache_salt = {};
};

/// Runs a planner, iteration by iteration, and checks its invariants: pages are computed in order,
/// hold the right tokens under the right weights, and are written by one sequence at a time; every
/// row that a token is sampled from is the row of the right token.
class SimulatedGeneration {
public:
  /// Totals over all requests until now.
  struct Totals {
    std::int64_t iterations = 0;
    std::int64_t computed_tokens = 0;
    std::int64_t prefill_tokens = 0;
    std::int64_t cached_tokens = 0;
    std::int64_t preemptions = 0;
    std::int64_t preempted_requests = 0;  // at least once
    std::int64_t finished = 0;
  };

  enum class Pages : std::uint8_t { kChecked, kCounted };

  /// `kCounted` does not check the contents of pages and is much faster.
  SimulatedGeneration(std::int64_t num_pages, const PlannerOptions& options,
                      Pages pages = Pages::kChecked);

  /// Returns the request's number.
  std::size_t submit(SimulatedRequest request);
  void cancel(std::size_t number);
  /// Changes the weights. Requires that no sequence is in flight.
  void serve(std::string weights, std::uint64_t step);
  /// Runs one iteration. Requires `has_work()`.
  void step(const IterationBudget& budget);

  [[nodiscard]] bool has_work() const;
  [[nodiscard]] bool finished(std::size_t number) const { return !requests_[number]->in_queue; }
  [[nodiscard]] const PlannedSequence& sequence(std::size_t number) const {
    return requests_[number]->sequence;
  }
  [[nodiscard]] std::size_t num_requests() const { return requests_.size(); }
  [[nodiscard]] const Totals& totals() const { return totals_; }
  /// Returns the share of all pages that running sequences hold.
  [[nodiscard]] double utilization() const;
  [[nodiscard]] IterationPlanner& planner() { return planner_; }
  [[nodiscard]] PagePool& pool() { return pool_; }
  /// Takes pages from the planner, as training does.
  void borrow(std::int64_t pages);
  /// Releases the borrowed pages.
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
  // The contents of each page: per position, a hash of the weights and all tokens up to it.
  std::vector<std::vector<std::uint64_t>> memory_;
  std::vector<std::int32_t> borrowed_;
  Totals totals_;
};

}  // namespace tidemill::engines
