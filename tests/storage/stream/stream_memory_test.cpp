// SPDX-License-Identifier: Apache-2.0
// Counts the allocations of a stream index: in steady state, there are none. A program of its own,
// since it replaces the operators that allocate.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <sys/types.h>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "base/tensor/aligned_bytes.hpp"
#include "tests/storage/stream/stream_fixture.hpp"

namespace {

std::atomic<std::uint64_t> num_allocations{0};

}  // namespace

// Replacements of the standard library's. Not inlined, since GCC would warn of the pairs.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++num_allocations;
  if (void* memory = std::malloc(size); memory != nullptr) {
    return memory;
  }
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*size*/) noexcept {
  std::free(memory);
}

#ifdef TIDEMILL_WRAPS_MALLOC
// The linker directs the calls of the libraries here (`--wrap`): blocks of slots come from `malloc`
// and `mmap`.
extern "C" {
void* __real_malloc(std::size_t size);  // NOLINT(readability-identifier-naming): the linker's name
void* __real_mmap(void* address, std::size_t length, int protection, int flags, int file,
                  off_t offset);  // NOLINT(readability-identifier-naming)

void* __wrap_malloc(std::size_t size) {  // NOLINT(readability-identifier-naming)
  ++num_allocations;
  return __real_malloc(size);
}
void* __wrap_mmap(void* address, std::size_t length, int protection, int flags, int file,
                  off_t offset) {  // NOLINT(readability-identifier-naming)
  ++num_allocations;
  return __real_mmap(address, length, protection, flags, file, offset);
}
}
#endif

namespace tidemill::storage {
namespace {

enum class Finish { kInOrder, kShuffled };

/// A stream of prompts that a rollout task and a reward task complete, and that a trainer consumes.
/// Holds the same number of rows between two passes. All memory of the calls is reused.
class SteadyStream {
public:
  SteadyStream(const StreamOptions& options, std::uint32_t group_size, std::uint64_t num_groups)
      : index_(StreamIndex::create(options).value()), group_size_(group_size) {
    for (const TaskOptions& task : index_->options().tasks) {
      std::vector<CellInfo>& cells = outputs_.emplace_back();
      for (const std::string& output : task.outputs) {
        cells.push_back({*index_->options().find_column(output), 4});
      }
    }
    for (std::uint64_t i = 0; i < num_groups; ++i) {
      admit();
    }
  }

  StreamIndex& operator*() { return *index_; }

  /// Admits a group, or a row that has none.
  void admit() {
    const std::uint64_t group = next_group_++;
    for (std::uint32_t i = 0; i < std::max(1U, group_size_); ++i) {
      const SampleRow row{{next_row_++}, {group}, i, group_size_};
      ASSERT_TRUE(index_->put(row, prompt_, {}).ok());
    }
  }

  /// Leases up to `units` units for a task and completes them in the order of `finish`. Returns the
  /// number of their rows.
  std::size_t pass(TaskId task, std::uint32_t units, Finish finish) {
    now_ += std::chrono::microseconds(10);
    EXPECT_TRUE(index_->lease({task, "worker", units}, now_, grant_).ok());
    held_.resize(grant_.shares[0].rows.size());
    for (std::size_t i = 0; i < held_.size(); ++i) {
      held_[i].lease = grant_.shares[0].rows[i].lease;
      held_[i].columns = outputs_[task.value];
      held_[i].facts = {1, 8};
    }
    if (finish == Finish::kShuffled) {
      shuffle(std::span<HeldRowInfo>(held_), random_);
    }
    EXPECT_TRUE(index_->complete({task, "worker"}, held_, now_, settlement_).ok());
    EXPECT_EQ(settlement_.done.size(), held_.size());
    index_->take_effects(effects_);
    return held_.size();
  }

  /// Passes `groups` groups through all tasks, and admits as many.
  void pass_all(std::uint32_t groups, Finish finish) {
    const std::uint32_t rows = groups * std::max(1U, group_size_);
    EXPECT_EQ(pass(kRollout, rows, finish), rows);
    EXPECT_EQ(pass(kReward, rows, finish), rows);
    EXPECT_EQ(pass(kTrain, groups, finish), rows);
    for (std::uint32_t i = 0; i < groups; ++i) {
      admit();
    }
  }

  /// Leases units for the rollout task and lets the lease expire.
  void expire(std::uint32_t units) {
    EXPECT_TRUE(index_->lease({kRollout, "sleeper", units}, now_, grant_).ok());
    now_ += std::chrono::seconds(30);
    EXPECT_TRUE(index_->expire(now_).ok());
    index_->take_effects(effects_);
  }

private:
  std::unique_ptr<StreamIndex> index_;
  const std::uint32_t group_size_;
  const std::vector<CellInfo> prompt_{{kPrompt, 4}};
  std::vector<std::vector<CellInfo>> outputs_;
  std::uint64_t next_row_ = 0;
  std::uint64_t next_group_ = 0;
  TimePoint now_{};
  RandomStream random_{11};
  Grant grant_;
  std::vector<HeldRowInfo> held_;
  Settlement settlement_;
  StreamEffects effects_;
};

/// Returns how often the index allocates while 20,000 rows pass a table that has seen as many.
std::uint64_t allocations_in_steady_state(const StreamOptions& options, std::uint32_t group_size,
                                          std::uint32_t groups_per_pass, Finish finish) {
  const std::uint32_t rows_per_group = std::max(1U, group_size);
  SteadyStream stream(options, group_size, 2'000 / rows_per_group);
  const auto pass_rows = [&] {
    for (std::uint32_t rows = 0; rows < 20'000; rows += groups_per_pass * rows_per_group) {
      stream.pass_all(groups_per_pass, finish);
      stream.expire(groups_per_pass);
    }
  };
  pass_rows();
  const std::uint64_t before = num_allocations;
  pass_rows();
  const std::uint64_t counted = num_allocations - before;
  EXPECT_TRUE((*stream).check_invariants().ok());
  EXPECT_EQ((*stream).num_live(), 2'000U);
  EXPECT_GT((*stream).totals().trained, 40'000U - 2'000U);
  return counted;
}

TEST(StreamMemory, TheCounterCounts) {
  const std::uint64_t before = num_allocations;
  const std::vector<int> allocated(100);
  EXPECT_GT(num_allocations, before) << allocated.size();
#ifdef TIDEMILL_WRAPS_MALLOC
  for (const std::int64_t bytes : {std::int64_t{100}, std::int64_t{4} << 20U}) {
    const std::uint64_t before_block = num_allocations;
    const AlignedBytes block(bytes);
    EXPECT_EQ(num_allocations - before_block, 1U) << bytes;
  }
#endif
}

TEST(StreamMemory, RowsPassWithoutAllocations) {
  for (const Finish finish : {Finish::kInOrder, Finish::kShuffled}) {
    EXPECT_EQ(allocations_in_steady_state(pipeline(0), 0, 1, finish), 0U);
    EXPECT_EQ(allocations_in_steady_state(pipeline(0), 0, 64, finish), 0U);
  }
}

TEST(StreamMemory, GroupsPassWithoutAllocations) {
  for (const Finish finish : {Finish::kInOrder, Finish::kShuffled}) {
    EXPECT_EQ(allocations_in_steady_state(pipeline(8), 8, 1, finish), 0U);
    EXPECT_EQ(allocations_in_steady_state(pipeline(8), 8, 16, finish), 0U);
  }
}

TEST(StreamMemory, StaleUnitsMoveWithoutAllocations) {
  StreamOptions options = pipeline(0);
  options.tasks[kTrain.value].max_staleness = 2;
  EXPECT_EQ(allocations_in_steady_state(options, 0, 64, Finish::kShuffled), 0U);
}

/// One row that is never finished keeps only its own memory, however many others pass.
TEST(StreamMemory, DoesNotGrowBehindARowThatStays) {
  StreamOptions options = pipeline(0);
  options.tasks[kTrain.value].order = DeliveryOrder::kOldestReady;
  SteadyStream stream(options, 0, 300);
  ASSERT_TRUE((*stream).lease({kRollout, "stuck"}, at(0)).ok());
  const auto pass_rows = [&](int passes) {
    for (int i = 0; i < passes; ++i) {
      stream.pass_all(50, Finish::kInOrder);
    }
  };
  pass_rows(200);
  const std::uint64_t before = num_allocations;
  pass_rows(2'000);  // ids reach far beyond what was ever live together
  EXPECT_EQ(num_allocations - before, 0U);
  EXPECT_EQ((*stream).num_live(), 300U);
  EXPECT_EQ((*stream).find({0})->id, SampleId{0});
}

}  // namespace
}  // namespace tidemill::storage
