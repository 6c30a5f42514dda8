// SPDX-License-Identifier: Apache-2.0
// Attention of the CPU backend.
#include <algorithm>
#include <vector>

#include "base/check.hpp"
#include "engines/ops/cpu/cpu_ops.hpp"
#include "engines/ops/shapes.hpp"
#include "engines/ops/weight_elements.hpp"

namespace tidemill::engines::cpu {
namespace {

// Rows of a tile: enough to use each loaded key several times, and few enough that their scores
// stay in a near cache.
constexpr std::int64_t kTileRows = 24;
// Rows of a tile of the backward pass. More rows mean fewer loads and stores of the sums over rows.
constexpr std::int64_t kBackwardRows = 48;
// The same for bfloat16, where a pair of rows is one step.
constexpr std::int64_t kBackwardPairRows = 64;

std::int64_t tile_tokens(const AttentionShape& shape, std::int64_t rows) {
  return std::max<std::int64_t>(1, rows * shape.num_kv_heads / shape.num_heads);
}

// One kernel call: consecutive tokens of a segment over one kv head.
struct Task {
  const AttentionSegment* segment;
  std::int64_t first_token;
  std::int64_t tokens;
  std::int64_t kv_head;
};

AttentionJob job_for(const AttentionShape& shape, KvLayer cache, const Task& task, ConstMatrix q) {
  const std::int64_t ratio = shape.num_heads / shape.num_kv_heads;
  const std::int64_t row = task.segment->first_row + task.first_token;
  AttentionJob job;
  job.layout = PageLayout(shape);
  job.cache = cache.data;
  job.pages = task.segment->pages.data();
  job.kv_head = task.kv_head;
  job.ratio = ratio;
  job.window = shape.window;
  job.scale = shape.scale;
  job.tokens = task.tokens;
  job.first_position = task.segment->first_position + task.first_token;
  job.q = q.row(row) + task.kv_head * ratio * shape.head_dim;
  job.q_stride = q.stride;
  return job;
}

}  // namespace

void CpuOps::attention(const AttentionShape& shape, std::span<const AttentionSegment> segments,
                       ConstMatrix q, KvLayer cache, Matrix out, Matrix lse) {
  check_attention(shape, segments, q, out, lse);
  const std::int64_t tile = tile_tokens(shape, kTileRows);
  std::vector<Task> tasks;
  std::vector<std::int64_t> costs;
  for (const AttentionSegment& segment : segments) {
    for (std::int64_t token = 0; token < segment.num_tokens; token += tile) {
      const std::int64_t tokens = std::min(tile, segment.num_tokens - token);
      const std::int64_t position = segment.first_position + token + tokens;
      const std::int64_t seen = shape.window == 0 ? position : std::min(position, shape.window);
      for (std::int64_t head = 0; head < shape.num_kv_heads; ++head) {
        tasks.push_back({&segment, token, tokens, head});
        // Every row and position costs two products of head_dim elements and an exponential.
        costs.push_back(tokens * shape.num_heads / shape.num_kv_heads *
                        ((seen + kPanel) * (shape.head_dim / 6 + 2) + 200));
      }
    }
  }
  const auto kernel =
      shape.kv_dtype == DType::kBF16 ? kernels_.attention_bf16 : kernels_.attention_f32;
  const auto job_of = [&](const Task& task) {
    AttentionJob job = job_for(shape, cache, task, q);
    const std::int64_t row = task.segment->first_row + task.first_token;
    job.out = out.row(row) + task.kv_head * job.ratio * shape.head_dim;
    job.out_stride = out.stride;
    if (lse.data != nullptr) {
      job.lse = lse.row(row) + task.kv_head * job.ratio;
      job.lse_stride = lse.stride;
    }
    return job;
  };
  team_.parallel_for(costs, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    AttentionJob next;
    for (std::int64_t i = begin; i < end; ++i) {
      AttentionJob job = i == begin ? job_of(tasks[static_cast<std::size_t>(i)]) : next;
      if (i + 1 < end) {
        next = job_of(tasks[static_cast<std::size_t>(i + 1)]);
        job.next = &next;
      }
      kernel(job, team_.scratch(part).floats(kernels_.attention_scratch(job)));
    }
  });
}

void CpuOps::attention_backward_windows(const AttentionShape& shape,
                                        std::span<const AttentionSegment> segments,
                                        std::span<const KvGradient> gradients, ConstMatrix q,
                                        KvLayer cache, ConstMatrix out, ConstMatrix lse,
                                        ConstMatrix dout, Matrix dq) {
  check_attention_backward(shape, segments, gradients, q, out, lse, dout, dq);
  std::vector<Task> tasks;
  std::vector<std::int64_t> costs;
  for (const AttentionSegment& segment : segments) {
    if (segment.num_tokens == 0) {
      continue;
    }
    // Twice the average number of positions that a query of the window sees.
    const std::int64_t twice = 2 * segment.first_position + segment.num_tokens;
    const std::int64_t seen = shape.window == 0 ? twice : std::min(twice, 2 * shape.window);
    for (std::int64_t head = 0; head < shape.num_kv_heads; ++head) {
      tasks.push_back({&segment, 0, segment.num_tokens, head});
      costs.push_back(segment.num_tokens * shape.num_heads / shape.num_kv_heads *
                          (seen / 2 + kPanel) * (shape.head_dim / 3 + 3) +
                      segment.num_tokens * shape.head_dim * 8);
    }
  }
  const bool pairs = shape.kv_dtype == DType::kBF16;
  const auto kernel = pairs ? kernels_.attention_backward_bf16 : kernels_.attention_backward_f32;
  const auto scratch_of =
      pairs ? kernels_.attention_backward_scratch_bf16 : kernels_.attention_backward_scratch_f32;
  team_.parallel_for(costs, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Task& task = tasks[static_cast<std::size_t>(i)];
      const KvGradient& gradient =
          gradients[static_cast<std::size_t>(task.segment - segments.data())];
      const std::int64_t row = task.segment->first_row;
      AttentionBackwardJob in;
      in.job = job_for(shape, cache, task, q);
      const std::int64_t column = task.kv_head * in.job.ratio * shape.head_dim;
      const std::int64_t kv_column = task.kv_head * shape.head_dim;
      in.out = out.row(row) + column;
      in.out_stride = out.stride;
      in.lse = lse.row(row) + task.kv_head * in.job.ratio;
      in.lse_stride = lse.stride;
      in.tile_tokens = tile_tokens(shape, pairs ? kBackwardPairRows : kBackwardRows);
      in.dout = dout.row(row) + column;
      in.dout_stride = dout.stride;
      in.dq = dq.row(row) + column;
      in.dq_stride = dq.stride;
      in.dk = gradient.dk.data + kv_column;
      in.dk_stride = gradient.dk.stride;
      in.dv = gradient.dv.data + kv_column;
      in.dv_stride = gradient.dv.stride;
      kernel(in, team_.scratch(part).floats(scratch_of(in)));
    }
  });
}

}  // namespace tidemill::engines::cpu
