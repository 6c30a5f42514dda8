// SPDX-License-Identifier: Apache-2.0
// Low-rank products of many adapters.
#include <algorithm>

#include "base/check.hpp"
#include "engines/ops/cpu/cpu_ops.hpp"
#include "engines/ops/cpu/product_cuts.hpp"
#include "engines/ops/shapes.hpp"

namespace tidemill::engines::cpu {
namespace {

// A term with more rows gets a product of its own, with larger tiles and divided among all workers.
constexpr std::int64_t kFewRows = 8;
// Approximate elements of a weight that are read per cycle.
constexpr std::int64_t kReadRate = 2;

const PanelWeight& float_panels(const PreparedWeight& weight) {
  const auto* mine = dynamic_cast<const PanelWeight*>(&weight);
  TIDEMILL_CHECK(mine != nullptr) << "the weight belongs to another backend";
  TIDEMILL_CHECK(mine->dtype() == DType::kF32) << "low-rank weights must be f32";
  return *mine;
}

LowRankJob job_of(ConstMatrix x, const LowRankTerm& term, Matrix y) {
  LowRankJob job;
  job.x = x.row(term.first_row);
  job.x_stride = x.stride;
  job.rows = term.num_rows;
  job.depth = x.cols;
  job.a = reinterpret_cast<const float*>(float_panels(*term.a).data());
  job.rank = term.a->out_features();
  job.scale = term.scale;
  job.b = reinterpret_cast<const float*>(float_panels(*term.b).data());
  job.cols = y.cols;
  job.c = term.scaled_c.empty() ? nullptr : term.scaled_c.data();
  job.y = y.row(term.first_row);
  job.y_stride = y.stride;
  return job;
}

std::int64_t cost_of(const LowRankJob& job) {
  const std::int64_t elements = job.rank * (job.depth + job.cols);
  return elements / kReadRate + elements * job.rows / kRate;
}

}  // namespace

void CpuOps::add_low_rank(ConstMatrix x, std::span<const LowRankTerm> terms, Matrix y) {
  check_add_low_rank(x, terms, y);
  low_rank_jobs_.clear();
  costs_.clear();
  std::int64_t u_floats = 0;
  const bool together = std::ssize(terms) >= team_.size();
  for (const LowRankTerm& term : terms) {
    if (together && term.num_rows <= kFewRows) {
      const LowRankJob job = job_of(x, term, y);
      u_floats = std::max(u_floats, kFewRows * panels_for(job.rank) * kPanel);
      costs_.push_back(cost_of(job));
      low_rank_jobs_.push_back(job);
    } else {
      add_one_low_rank(x.slice_rows(term.first_row, term.num_rows), term,
                       y.slice_rows(term.first_row, term.num_rows));
    }
  }
  team_.parallel_for(costs_, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    if (begin == end) {
      return;
    }
    float* u = team_.scratch(part).floats(u_floats);
    for (std::int64_t i = begin; i < end; ++i) {
      low_rank_jobs_[static_cast<std::size_t>(i)].u = u;
    }
    kernels_.low_rank(low_rank_jobs_.data() + begin, end - begin);
  });
}

void CpuOps::add_one_low_rank(ConstMatrix x, const LowRankTerm& term, Matrix y) {
  const std::int64_t rank = term.a->out_features();
  const Matrix u{low_rank_rows_.floats(x.rows * rank), x.rows, rank, rank};
  linear(x, *term.a, {}, Store::kOverwrite, u);
  scale(term.scale, u);
  linear(u, *term.b, term.scaled_c, Store::kAdd, y);
}

}  // namespace tidemill::engines::cpu
