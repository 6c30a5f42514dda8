// SPDX-License-Identifier: Apache-2.0
// Low-rank products of a few rows each, executed one after the other.
//
// With few rows, a product takes as long as reading its weights from memory. While it multiplies
// one cache line, it prefetches lines that come later, beyond the end of the current weight too.
// The hardware prefetcher alone would start over with every page and every weight.
//
// Each element is the chain of multiply-adds of product_kernels.cpp, over A and then over B. It has
// the bits of two products with a scaling between them.
#include <cstdint>

#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {
namespace {

// Rows of the tallest tile. Its sums, one step of a panel and a broadcast fill the registers.
constexpr int kTallestTile = kRegisterFloats == 16 ? 8 : kRegisterFloats == 8 ? 4 : 2;

// Panels of B that are multiplied together, for more independent chains. They must be short enough
// (`kMaxRankOfTwo`) that the prefetched lines cover both.
template <int kRows>
constexpr int kPanelsOfB = 2 * kRows <= kTallestTile ? 2 : 1;
constexpr std::int64_t kMaxRankOfTwo = 32;

// Prefetches cache lines in the order in which jobs use them. A line is one step of a panel of
// floats.
class LookAhead {
public:
  LookAhead(const LowRankJob* jobs, std::int64_t count) : job_(jobs), end_of_jobs_(jobs + count) {
    enter();
    for (int i = 0; i < kLinesAhead; ++i) {
      next();
    }
  }

  void next() {
    __builtin_prefetch(line_);
    line_ += step_;
    if (line_ == end_) {
      leave();
    }
  }

private:
  static constexpr int kLinesAhead = 48;

  void enter() {
    const LowRankJob& job = *job_;
    line_ = in_b_ ? job.b : job.a;
    end_ = line_ +
           (in_b_ ? panels_for(job.cols) * job.rank : panels_for(job.rank) * job.depth) * kPanel;
  }

  [[gnu::noinline]] void leave() {
    job_ += in_b_ ? 1 : 0;
    in_b_ = !in_b_;
    if (job_ != end_of_jobs_) {
      enter();
      return;
    }
    line_ -= step_;  // prefetches the last line from now on
    step_ = 0;
  }

  const LowRankJob* job_;
  const LowRankJob* end_of_jobs_;
  bool in_b_ = false;
  const float* line_ = nullptr;
  const float* end_ = nullptr;
  std::int64_t step_ = kPanel;
};

// Prefetches nothing: for rows whose weights are in the cache already.
class NoLookAhead {
public:
  void next() {}
};

template <int kRows, int kPanels>
struct Sums {
  Vec value[kRows][kPanels];
};

// Computes out = x (kRows, depth) times consecutive panels. Not inlined: the code after a call
// would make the compiler keep the sums in memory.
template <int kRows, int kPanels, class Ahead>
[[gnu::noinline]] void multiply(const float* x, std::int64_t x_stride, std::int64_t depth,
                                const float* panels, Ahead& look_ahead, Sums<kRows, kPanels>& out) {
  Sums<kRows, kPanels> sums = {};
  Ahead ahead = look_ahead;
  for (std::int64_t k = 0; k < depth; ++k) {
    Vec weights[kPanels];
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      weights[p] = load(panels + (p * depth + k) * kPanel);
      ahead.next();
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec factor = broadcast(x[r * x_stride + k]);
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) {
        sums.value[r][p] = multiply_add(factor, weights[p], sums.value[r][p]);
      }
    }
  }
  look_ahead = ahead;
  out = sums;
}

// Computes the columns of `kPanels` panels of B from `panel` on.
template <int kRows, int kPanels, class Ahead>
void add_columns(const LowRankJob& job, std::int64_t first, std::int64_t panel, Ahead& ahead) {
  Sums<kRows, kPanels> sums;
  multiply(job.u, panels_for(job.rank) * kPanel, job.rank, job.b + panel * job.rank * kPanel, ahead,
           sums);
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      const std::int64_t column = (panel + p) * kPanel;
      const std::int64_t count = job.cols - column;
      float* y = job.y + (first + r) * job.y_stride + column;
      Vec value = sums.value[r][p];
      if (job.c != nullptr) {
        value = value + load_some(job.c + column, count);
      }
      store_some(y, load_some(y, count) + value, count);
    }
  }
}

// Computes the rows [first, first + kRows) of a job.
template <int kRows, class Ahead>
void add_rows(const LowRankJob& job, std::int64_t first, Ahead& ahead) {
  const std::int64_t u_stride = panels_for(job.rank) * kPanel;
  const Vec scale = broadcast(job.scale);
  Sums<kRows, 1> sums;
  for (std::int64_t p = 0; p < panels_for(job.rank); ++p) {
    multiply(job.x + first * job.x_stride, job.x_stride, job.depth, job.a + p * job.depth * kPanel,
             ahead, sums);
    for (int r = 0; r < kRows; ++r) {
      store(job.u + r * u_stride + p * kPanel, scale * sums.value[r][0]);
    }
  }
  const std::int64_t panels = panels_for(job.cols);
  const std::int64_t wide = job.rank <= kMaxRankOfTwo ? panels / kPanelsOfB<kRows> : 0;
  for (std::int64_t p = 0; p < wide; ++p) {
    add_columns<kRows, kPanelsOfB<kRows>>(job, first, p * kPanelsOfB<kRows>, ahead);
  }
  for (std::int64_t p = wide * kPanelsOfB<kRows>; p < panels; ++p) {
    add_columns<kRows, 1>(job, first, p, ahead);
  }
}

// Computes `count` <= kMax rows from `first` on.
template <int kMax, class Ahead>
void add_few(const LowRankJob& job, std::int64_t first, std::int64_t count, Ahead& ahead) {
  if constexpr (kMax > 1) {
    if (count < kMax) {
      add_few<kMax - 1>(job, first, count, ahead);
      return;
    }
  }
  add_rows<kMax>(job, first, ahead);
}

void low_rank(const LowRankJob* jobs, std::int64_t count) {
  LookAhead ahead(jobs, count);
  NoLookAhead nothing;
  for (const LowRankJob* job = jobs; job != jobs + count; ++job) {
    add_few<kTallestTile>(*job, 0, job->rows < kTallestTile ? job->rows : kTallestTile, ahead);
    for (std::int64_t first = kTallestTile; first < job->rows; first += kTallestTile) {
      const std::int64_t left = job->rows - first;
      add_few<kTallestTile>(*job, first, left < kTallestTile ? left : kTallestTile, nothing);
    }
  }
}

}  // namespace

void add_low_rank_kernels(KernelTable& table) noexcept {
  table.low_rank = low_rank;
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
