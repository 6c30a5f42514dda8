// SPDX-License-Identifier: Apache-2.0
// Computes layers over rows of several adapters: the base layer for all rows, the changes by run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engines/peft/linear_bypass.hpp"
#include "engines/transformer/batch_plan.hpp"
#include "engines/transformer/device_matrix.hpp"

namespace tidemill::engines {

/// Which rows of a plan have which adapter, in a prepared pass.
struct AdapterLists {
  std::vector<const Adapter*> adapters;  // which the runs number
  RunList runs;
  RunList before_kept;  // the parts of the runs before the rows whose activations are kept
};

/// The positions of these lists in the contents of a pass.
struct AdapterRanges {
  std::vector<const Adapter*> adapters;
  PassRange runs;
  PassRange before_kept;
};

/// Adds `runs`. The rows from `first_kept` on are those whose activations are kept.
[[nodiscard]] AdapterRanges add_adapters(std::span<const AdapterRun> runs, std::int64_t first_kept,
                                         PassContents& contents);
/// Returns the lists that were added at `ranges`.
[[nodiscard]] AdapterLists lists_at(const AdapterRanges& ranges, const PreparedPass& pass);

/// Divides rows [0, num_rows) between the base model and adapters that replace a part of it:
/// `find(adapter)` returns the replacement or null. Calls `own(replacement, first_row, num_rows)`
/// for each run with a replacement, and `base(first_row, num_rows)` for all other rows, as few
/// times as possible.
template <class Find, class Base, class Own>
void split_rows(std::span<const AdapterRun> runs, std::int64_t num_rows, const Find& find,
                const Base& base, const Own& own) {
  std::int64_t done = 0;
  for (const AdapterRun& run : runs) {
    if (const auto* found = find(*run.adapter)) {
      if (done < run.first_row) {
        base(done, run.first_row - done);
      }
      own(*found, run.first_row, run.num_rows);
      done = run.first_row + run.num_rows;
    }
  }
  if (done < num_rows) {
    base(done, num_rows - done);
  }
}

/// Destination of the scaled A x of the last `num_rows` rows, if their adapter only adds a low-rank
/// product: rows [first_row, first_row + num_rows) of `total_rows` rows.
struct KeptLowRank {
  DeviceMatrix* rows = nullptr;  // null: A x is not kept
  std::int64_t num_rows = 0;
  std::int64_t first_row = 0;
  std::int64_t total_rows = 0;
};

/// Returns whether the adapter of each run changes a layer at most by adding a low-rank product:
/// `find(adapter)` returns its change to the layer, or null.
template <class Find>
[[nodiscard]] bool all_only_add(std::span<const AdapterRun> runs, const Find& find) {
  return std::ranges::all_of(runs, [&find](const AdapterRun& run) {
    const LinearBypass* bypass = find(*run.adapter);
    return bypass == nullptr || bypass->only_adds();
  });
}

/// Adds to y (T, O) the low-rank products of the runs whose adapter only adds one to the layer.
/// `lists` are those of `runs`, and of the rows that `kept` says are kept.
template <class Find>
void add_low_rank_runs(std::span<const AdapterRun> runs, const AdapterLists& lists,
                       const Find& find, ConstMatrix x, Matrix y, const KeptLowRank& kept,
                       Ops& ops) {
  const std::int64_t first_kept = kept.rows != nullptr ? x.rows - kept.num_rows : x.rows;
  for (const AdapterRun& run : runs) {
    const LinearBypass* bypass = find(*run.adapter);
    const std::int64_t end = run.first_row + run.num_rows;
    const std::int64_t first = std::max(first_kept, run.first_row);
    if (bypass != nullptr && bypass->only_adds() && first < end) {
      const Matrix scaled_u = kept.rows->reshape(kept.total_rows, bypass->rank());
      bypass->add(x.slice_rows(first, end - first),
                  scaled_u.slice_rows(kept.first_row + first - first_kept, end - first),
                  y.slice_rows(first, end - first), ops);
    }
  }
  const RunList others = kept.rows != nullptr ? lists.before_kept : lists.runs;
  if (others.empty()) {
    return;
  }
  std::vector<LowRankTerm> terms;
  terms.reserve(lists.adapters.size());
  bool any = false;
  for (const Adapter* adapter : lists.adapters) {
    const LinearBypass* bypass = find(*adapter);
    const bool adds = bypass != nullptr && bypass->only_adds();
    terms.push_back(adds ? bypass->term() : LowRankTerm());
    any |= adds;
  }
  if (any) {
    ops.add_low_rank(x, others, terms, y);
  }
}

/// Computes y (T, O) = or += a linear layer on x (T, I), with the adapter of each run:
/// `find(adapter)` returns its change to the layer, or null. Runs whose adapter only adds a
/// low-rank product share one base product with all other rows. A row has the same bits either way
/// (R1 of ops.hpp). `lists` are those of `runs`; they may be empty if no adapter only adds.
template <class Find>
void adapted_linear(const BaseLinear& layer, std::span<const AdapterRun> runs,
                    const AdapterLists& lists, const Find& find, ConstMatrix x, Store store,
                    Matrix y, const KeptLowRank& kept, Ops& ops) {
  const auto find_whole = [&find](const Adapter& adapter) {
    const LinearBypass* bypass = find(adapter);
    return bypass != nullptr && !bypass->only_adds() ? bypass : nullptr;
  };
  split_rows(
      runs, x.rows, find_whole,
      [&](std::int64_t first, std::int64_t count) {
        ops.linear(x.slice_rows(first, count), *layer.weight, layer.bias, store,
                   y.slice_rows(first, count));
      },
      [&](const LinearBypass& bypass, std::int64_t first, std::int64_t count) {
        bypass.forward(layer, x.slice_rows(first, count), store, y.slice_rows(first, count), ops);
      });
  add_low_rank_runs(runs, lists, find, x, y, kept, ops);
}

}  // namespace tidemill::engines
