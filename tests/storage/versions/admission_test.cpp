// SPDX-License-Identifier: Apache-2.0
// The admission ledger: edge cases, and its bound on staleness under random events.
#include "storage/versions/admission.hpp"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace tidemill::storage {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

AdmissionLedger ledger_of(const AdmissionOptions& options) {
  auto ledger = AdmissionLedger::create(options);
  EXPECT_TRUE(ledger.ok()) << ledger.status().to_string();
  return ledger.value();
}

TEST(AdmissionLedger, RefusesNegativeBounds) {
  EXPECT_EQ(AdmissionLedger::create({.max_staleness = -1}).status().code(), Errc::kInvalidArgument);
  EXPECT_EQ(AdmissionLedger::create({.version = -1}).status().code(), Errc::kInvalidArgument);
}

TEST(AdmissionLedger, NothingOverflows) {
  AdmissionLedger ledger =
      ledger_of({.max_concurrent = kMax, .batch = kMax, .max_staleness = kMax, .version = kMax});
  EXPECT_EQ(ledger.capacity(), kMax);
  EXPECT_EQ(ledger.submit(kMax).value(), kMax);
  EXPECT_EQ(ledger.force_submit(1).code(), Errc::kInvalidArgument);
  EXPECT_TRUE(ledger.accept(kMax).ok());
  EXPECT_EQ(ledger.untrained(), 0);
  EXPECT_TRUE(ledger.force_submit(kMax).ok());
  EXPECT_EQ(ledger.accept(1).code(), Errc::kInvalidArgument) << "accepted would not fit";
  EXPECT_TRUE(ledger.abort(kMax).ok());
  EXPECT_EQ(ledger.restart(kMax, 0).code(), Errc::kInvalidArgument) << "accepted would not fit";
  EXPECT_EQ(ledger.restart(1, kMax).code(), Errc::kInvalidArgument);
  EXPECT_EQ(ledger.restart(-1, 0).code(), Errc::kInvalidArgument);
  EXPECT_EQ(ledger.restart(0, -1).code(), Errc::kInvalidArgument);
  EXPECT_TRUE(ledger.restart(1, 0).ok());
  EXPECT_EQ(ledger.state().accepted, kMax);
  EXPECT_EQ(ledger.refused(Refusal::kBadCount), 6U);
}

TEST(AdmissionLedger, AppliesAllChangesOrNone) {
  AdmissionLedger ledger = ledger_of({.max_concurrent = 8, .batch = 8});
  ASSERT_EQ(ledger.submit(8).value(), 8);
  ASSERT_TRUE(ledger.apply({.accepted = 4, .aborted = 1, .rejected = 1, .forfeited = 2}).ok());
  const AdmissionState then{.running = 2, .accepted = 2, .rejected = 1, .aborted = 1};
  EXPECT_EQ(ledger.state(), then);
  EXPECT_FALSE(ledger.apply({.accepted = 1, .aborted = 1, .rejected = 1}).ok());
  EXPECT_EQ(ledger.state(), then);
  EXPECT_FALSE(ledger.apply({.accepted = 1, .forfeited = 4}).ok());
  EXPECT_EQ(ledger.state(), then);
  EXPECT_EQ(ledger.refused(Refusal::kUnderflow), 2U);
}

// -- the bound ------------------------------------------------------------------

/// How a trainer picks the groups of its batch.
enum class TrainerOrder { kAdmission, kCompletion };

/// A run without a stream: groups, the versions that generated them, and a trainer. It does not
/// know the ledger's arithmetic. It requests slots and measures how stale the trained groups are.
class PlainRun {
public:
  struct Group {
    std::int64_t generated_by = 0;  // the oldest version any of its tokens can have
    std::int64_t finished = 0;      // rows whose slots count as accepted
  };

  PlainRun(std::uint64_t seed, TrainerOrder order)
      : random_(seed),
        order_(order),
        size_(1 + pick(4)),
        prompts_(1 + pick(3)),
        max_staleness_(pick(4)),
        ledger_(ledger_of({.max_concurrent = 1 + pick(40),
                           .batch = size_ * prompts_,
                           .max_staleness = max_staleness_})) {}

  void step() {
    const std::int64_t kind = pick(100);
    if (kind < 25) {
      admit();
    } else if (kind < 70) {
      finish_rows();
    } else if (kind < 76) {
      lose_group();
    } else if (kind < 92) {
      train();
    } else if (kind < 94) {
      ledger_.resize(pick(60));
    } else if (kind < 97) {
      commit();
    } else if (kind < 98) {
      crash();
    }
    std::int64_t running = 0;
    std::int64_t finished = 0;
    for (const Group& group : groups_) {
      running += size_ - group.finished;
      finished += group.finished;
    }
    EXPECT_EQ(ledger_.state().running, running);
    EXPECT_EQ(ledger_.untrained(), finished);
  }

  std::int64_t worst() const { return worst_; }
  std::int64_t max_staleness() const { return max_staleness_; }
  std::int64_t batches() const { return batches_; }
  std::int64_t crashes() const { return crashes_; }
  std::int64_t forfeited() const { return forfeited_; }

private:
  std::int64_t pick(std::int64_t bound) {
    return static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(bound)));
  }

  void admit() {
    if (ledger_.capacity() >= size_) {
      EXPECT_EQ(ledger_.submit(size_).value(), size_);
      // The worst case: the version at its admission generates the whole group.
      groups_.push_back({version_, 0});
    }
  }

  void finish_rows() {
    if (groups_.empty()) {
      return;
    }
    Group& group = groups_[static_cast<std::size_t>(pick(std::ssize(groups_)))];
    const std::int64_t rows = std::min(1 + pick(size_), size_ - group.finished);
    EXPECT_TRUE(ledger_.accept(rows).ok());
    group.finished += rows;
  }

  /// Removes a group untrained: filtered, failed or dropped.
  void lose_group() {
    if (groups_.empty()) {
      return;
    }
    const auto lost = groups_.begin() + pick(std::ssize(groups_));
    const std::int64_t unfinished = size_ - lost->finished;
    EXPECT_TRUE(ledger_.forfeit(lost->finished).ok());
    EXPECT_TRUE((pick(2) == 0 ? ledger_.abort(unfinished) : ledger_.reject(unfinished)).ok());
    forfeited_ += lost->finished;
    groups_.erase(lost);
  }

  void train() {
    const auto is_finished = [&](const Group& group) { return group.finished == size_; };
    if (order_ == TrainerOrder::kCompletion) {
      std::stable_partition(groups_.begin(), groups_.end(), is_finished);
    }
    if (std::ssize(groups_) < prompts_ ||
        !std::all_of(groups_.begin(), groups_.begin() + prompts_, is_finished)) {
      return;
    }
    for (std::int64_t i = 0; i < prompts_; ++i) {
      worst_ = std::max(worst_, version_ - groups_[static_cast<std::size_t>(i)].generated_by);
    }
    groups_.erase(groups_.begin(), groups_.begin() + prompts_);
    ++version_;
    ++batches_;
    EXPECT_TRUE(ledger_.set_version(version_).ok());
  }

  void commit() {
    saved_groups_ = groups_;
    saved_version_ = version_;
  }

  void crash() {
    groups_ = saved_groups_;
    version_ = saved_version_;
    ++crashes_;
    std::int64_t finished = 0;
    std::int64_t unfinished = 0;
    for (const Group& group : groups_) {
      finished += group.finished;
      unfinished += size_ - group.finished;
    }
    EXPECT_TRUE(ledger_.restart(version_, finished).ok());
    EXPECT_TRUE(ledger_.force_submit(unfinished).ok());
  }

  RandomStream random_;
  TrainerOrder order_;
  std::int64_t size_;
  std::int64_t prompts_;
  std::int64_t max_staleness_;
  AdmissionLedger ledger_;
  std::vector<Group> groups_;  // in admission order
  std::vector<Group> saved_groups_;
  std::int64_t version_ = 0;
  std::int64_t saved_version_ = 0;
  std::int64_t worst_ = 0;
  std::int64_t batches_ = 0;
  std::int64_t crashes_ = 0;
  std::int64_t forfeited_ = 0;
};

TEST(AdmissionLedger, StalenessStaysWithinItsBoundInAdmissionOrder) {
  constexpr std::uint64_t kNumRuns = 400;
  std::int64_t batches = 0;
  std::int64_t crashes = 0;
  std::int64_t forfeited = 0;
  std::int64_t at_the_bound = 0;
  for (std::uint64_t seed = 0; seed < kNumRuns; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    PlainRun run(seed, TrainerOrder::kAdmission);
    for (int i = 0; i < 600; ++i) {
      run.step();
      ASSERT_LE(run.worst(), run.max_staleness()) << "step " << i;
      ASSERT_FALSE(HasFailure());
    }
    batches += run.batches();
    crashes += run.crashes();
    forfeited += run.forfeited();
    at_the_bound += run.worst() == run.max_staleness() ? 1 : 0;
  }
  std::cout << "staleness bound: " << kNumRuns << " runs, " << batches << " batches, " << crashes
            << " crashes, " << forfeited << " rows forfeited, " << at_the_bound
            << " runs reach their bound\n";
  EXPECT_GT(batches, 5000);
  EXPECT_GT(crashes, 500);
  EXPECT_GT(forfeited, 1000);
  EXPECT_GT(at_the_bound, 50) << "a bound that is never reached proves little";
}

TEST(AdmissionLedger, CompletionOrderDoesNotKeepTheBound) {
  // The ledger alone is not enough: out of order, rows become too stale. The test above detects
  // that.
  std::int64_t beyond = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    PlainRun run(seed, TrainerOrder::kCompletion);
    for (int i = 0; i < 600; ++i) {
      run.step();
    }
    beyond += run.worst() > run.max_staleness() ? 1 : 0;
  }
  EXPECT_GT(beyond, 10);
}

}  // namespace
}  // namespace tidemill::storage
