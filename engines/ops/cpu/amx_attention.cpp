// SPDX-License-Identifier: Apache-2.0
// Attention with products in the tile registers of AMX.
//
// Pages of bfloat16 already have the layout of right operands: a tile of keys is sixteen pairs of
// features of sixteen positions, a tile of values eight pairs of positions of sixteen features.
//
// A row adds the values of positions [16 i, 16 i + 16) at once if it sees all of them. It adds the
// positions before and after those pair by pair, as at level AVX-512 BF16. So the bits of a row
// depend on its own position only (R1 of ops.hpp), and no tile holds a value that one of its rows
// does not see.
#include <cstdint>
#include <cstring>
#include <immintrin.h>

#include "engines/ops/cpu/amx_tiles.hpp"
#include "engines/ops/cpu/attention.hpp"
#include "engines/ops/cpu/attention_tiles.hpp"
#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {
namespace {

constexpr std::int64_t kBlockRows = 2 * kAmxTileRows;
constexpr std::int64_t kPositions = kLanes;  // of a tile

// A right operand in memory.
struct TileRows {
  const Pair* first = nullptr;
  std::int64_t row = 0;  // pairs between rows

  void prefetch(std::int64_t rows, std::int64_t ahead) const {
    for (std::int64_t i = 0; i < rows; ++i) {
      __builtin_prefetch(first + i * row + ahead, 0, 2);
    }
  }
};

// Copies 32 features from `feature` on of the keys of sixteen positions from `position` on.
// Features and positions that do not exist are 0.
void copy_keys(const AttentionJob& job, std::int64_t position, std::int64_t feature, Pair* to) {
  const std::int64_t page_tokens = job.layout.page_tokens;
  const std::int64_t end = smaller(position + kPositions, job.first_position + job.tokens);
  const std::int64_t depth = (job.layout.head_dim + 1) / 2;
  std::memset(to, 0, kAmxTileRows * kPositions * sizeof(Pair));
  for (std::int64_t p = position; p < end; ++p) {
    const std::int64_t page = p / page_tokens;
    const Pair* keys = page_head<Pair>(job, page).keys + (p - page * page_tokens);
    for (std::int64_t c = feature / 2; c < smaller(depth, feature / 2 + kAmxTileRows); ++c) {
      to[(c - feature / 2) * kPositions + p - position] = keys[c * page_tokens];
    }
  }
}

// Returns the keys of sixteen positions, in `copy` unless a page holds them as a tile.
TileRows keys_tile(const AttentionJob& job, std::int64_t position, std::int64_t feature,
                   Pair* copy) {
  const std::int64_t page_tokens = job.layout.page_tokens;
  if (page_tokens % kPositions == 0 && feature + kAmxTileDepth <= job.layout.head_dim) {
    const std::int64_t page = position / page_tokens;
    return {page_head<Pair>(job, page).keys + feature / 2 * page_tokens +
                (position - page * page_tokens),
            page_tokens};
  }
  copy_keys(job, position, feature, copy);
  return {copy, kPositions};
}

// Returns sixteen features of the values of sixteen positions, in `copy` unless a page holds them
// as a tile. All positions must exist.
TileRows values_tile(const AttentionJob& job, std::int64_t position, std::int64_t feature,
                     Pair* copy) {
  const std::int64_t page_tokens = job.layout.page_tokens;
  const std::int64_t head_dim = job.layout.head_dim;
  if (page_tokens % kPositions == 0) {
    const std::int64_t page = position / page_tokens;
    return {page_head<Pair>(job, page).values + (position - page * page_tokens) / 2 * head_dim +
                feature,
            head_dim};
  }
  for (std::int64_t i = 0; i < kPositions; i += 2) {
    WordRegister even[1];
    WordRegister odd[1];
    load_half(job, position + i, feature, kFirstOfPair, even);
    load_half(job, position + i + 1, feature, kSecondOfPair, odd);
    even[0] |= odd[0];
    std::memcpy(copy + i / 2 * kLanes, even, sizeof(even));
  }
  return {copy, kLanes};
}

// Calls f.template operator()<kLower, kRight>().
template <class F>
void with_halves(bool lower, bool right, F f) {
  if (lower) {
    right ? f.template operator()<true, true>() : f.template operator()<true, false>();
  } else {
    right ? f.template operator()<false, true>() : f.template operator()<false, false>();
  }
}

// Multiplies the rows at `a`, `a_row` elements apart, with one or two right operands of the same
// shape. Both are tiles of pages, or both are copies.
template <bool kLower, bool kRight>
void multiply(const Rounded* a, std::int64_t a_row, const TileRows& left, const TileRows& right) {
  tile_memory_barrier(left.first);
  tile_memory_barrier(right.first);
  add_step<kLower, kRight>({a, a + kAmxTileRows * a_row, a_row * 2},
                           {left.first, right.first, left.row * 4});
}

// Computes the scores of at most 32 rows from `row` on for one or two groups of sixteen positions.
template <bool kLower, bool kRight>
void score(const AttentionJob& job, const Workspace<TilePairs>& work, std::int64_t row,
           std::int64_t position) {
  clear_sums();
  for (std::int64_t feature = 0; feature < work.width; feature += kAmxTileDepth) {
    alignas(64) Pair copies[2][kAmxTileRows * kPositions];
    const TileRows left = keys_tile(job, position, feature, copies[0]);
    const TileRows right =
        kRight ? keys_tile(job, position + kPositions, feature, copies[1]) : TileRows{};
    if (reads_once(job)) {  // the values of a page follow its keys
      left.prefetch(kAmxTileRows, job.layout.key_units());
      right.prefetch(kRight ? kAmxTileRows : 0, job.layout.key_units());
    }
    multiply<kLower, kRight>(work.q + row * work.width + feature, work.width, left, right);
  }
  SumTiles{work.scores + row * work.columns + position - work.origin, work.columns, kLanes,
           kAmxTileRows * work.columns}
      .store<kLower, kRight>();
}

// Adds sixteen or 32 features, from `feature` on, of the values of the positions [first, end),
// multiples of 16, to at most 32 rows from `row` on.
template <bool kLower, bool kRight>
void add_features(const AttentionJob& job, const Workspace<TilePairs>& work, std::int64_t row,
                  std::int64_t feature, RowRange positions) {
  const std::int64_t ahead =
      reads_once(job) && continues(job) ? job.layout.head_units() - job.layout.key_units() : 0;
  const SumTiles sums{work.sums + row * work.width + feature, work.width, kLanes,
                      kAmxTileRows * work.width};
  sums.load<kLower, kRight>();
  for (std::int64_t at = positions.first; at < positions.end; at += kPositions) {
    alignas(64) Pair copies[2][kPositions / 2 * kLanes];
    const TileRows left = values_tile(job, at, feature, copies[0]);
    const TileRows right = kRight ? values_tile(job, at, feature + kLanes, copies[1]) : TileRows{};
    if (ahead > 0) {
      left.prefetch(kPositions / 2, ahead);
      right.prefetch(kRight ? kPositions / 2 : 0, ahead);
    }
    multiply<kLower, kRight>(work.weights(row, at), work.weight_stride(), left, right);
  }
  sums.store<kLower, kRight>();
}

// Adds the values of `positions`, multiples of 16, to `rows`.
void add_blocks(const AttentionJob& job, const Workspace<TilePairs>& work, RowRange rows,
                RowRange positions) {
  for (std::int64_t row = rows.first; row < rows.end; row += kBlockRows) {
    const std::int64_t count = smaller(kBlockRows, rows.end - row);
    configure_tiles(count, kPositions);
    for (std::int64_t c = 0; c < job.layout.head_dim; c += 2 * kLanes) {
      with_halves(count > kAmxTileRows, c + kLanes < job.layout.head_dim,
                  [&]<bool kLower, bool kRight>() {
                    add_features<kLower, kRight>(job, work, row, c, positions);
                  });
    }
  }
}

// The whole groups of sixteen positions that a token sees: positions [first, end). Empty if end <=
// first.
struct Groups {
  std::int64_t first = 0;
  std::int64_t end = 0;
};

Groups groups_of(const AttentionJob& job, std::int64_t token) {
  const Span seen = visible(job.window, job.first_position + token);
  return {round_up(seen.first), round_down(seen.last + 1)};
}

}  // namespace

// -- the steps of attention.hpp
// ---------------------------------------------------------------------

/// Computes scores[row][position] = q[row] . key[position].
inline void compute_scores(const AttentionJob& job, const Workspace<TilePairs>& work) {
  tile_memory_barrier(work.q);
  for (std::int64_t row = 0; row < work.rows; row += kBlockRows) {
    const std::int64_t rows = smaller(kBlockRows, work.rows - row);
    const Span first = visible(job.window, job.first_position + row / job.ratio);
    const std::int64_t last = job.first_position + (row + rows - 1) / job.ratio;
    configure_tiles(rows);
    for (std::int64_t at = round_down(first.first); at <= last; at += 2 * kPositions) {
      with_halves(rows > kAmxTileRows, at + kPositions <= last,
                  [&]<bool kLower, bool kRight>() { score<kLower, kRight>(job, work, row, at); });
    }
  }
}

/// Adds the values of all tokens.
inline void add_all_values(const AttentionJob& job, const Workspace<TilePairs>& work) {
  const auto add_pairs_of = [&](std::int64_t token, std::int64_t first, std::int64_t last) {
    add_values(job, work, token * job.ratio, job.ratio, {first, last});
  };
  for (std::int64_t t = 0; t < job.tokens; ++t) {
    const Span seen = visible(job.window, job.first_position + t);
    add_pairs_of(t, seen.first, smaller(seen.last, groups_of(job, t).first - 1));
  }
  // Tokens see more groups at their end, and with a window fewer at their beginning, the later they
  // are: those that see a group are consecutive.
  tile_memory_barrier(work.scores);
  const std::int64_t end = groups_of(job, job.tokens - 1).end;
  const auto seen_by = [&](std::int64_t group) {
    RowRange tokens{0, job.tokens};
    while (tokens.first < tokens.end && groups_of(job, tokens.first).end <= group) {
      ++tokens.first;
    }
    while (tokens.first < tokens.end && groups_of(job, tokens.end - 1).first > group) {
      --tokens.end;
    }
    return tokens;
  };
  for (std::int64_t group = groups_of(job, 0).first; group < end;) {
    const RowRange tokens = seen_by(group);
    std::int64_t next = group + kPositions;
    for (; next < end; next += kPositions) {
      const RowRange same = seen_by(next);
      if (same.first != tokens.first || same.end != tokens.end) {
        break;
      }
    }
    if (tokens.first < tokens.end) {
      add_blocks(job, work, {tokens.first * job.ratio, tokens.end * job.ratio}, {group, next});
    }
    group = next;
  }
  for (std::int64_t t = 0; t < job.tokens; ++t) {
    const Groups groups = groups_of(job, t);
    add_pairs_of(t, larger(groups.first, groups.end), job.first_position + t);
  }
}

namespace {

void attention_tiles(const AttentionJob& job, float* scratch) {
  attention<TilePairs>(job, scratch);
  _tile_release();
}

std::int64_t attention_scratch(const AttentionJob& job) {
  return Workspace<TilePairs>(job, nullptr).size();
}

}  // namespace

void add_amx_attention_kernels(KernelTable& table) noexcept {
  table.attention_scratch = attention_scratch;
  table.attention_bf16 = attention_tiles;
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
