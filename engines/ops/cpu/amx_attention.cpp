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

constexpr std::int64_t kBlockRows = 2 * kAmxRows;
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
  std::memset(to, 0, kAmxRows * kPositions * sizeof(Pair));
  for (std::int64_t p = position; p < end; ++p) {
    const std::int64_t page = p / page_tokens;
    const Pair* keys = page_head<Pair>(job, page).keys + (p - page * page_tokens);
    for (std::int64_t c = feature / 2; c < smaller(depth, feature / 2 + kAmxRows); ++c) {
      to[(c - feature / 2) * kPositions + p - position] = keys[c * page_tokens];
    }
  }
}

// Returns the keys of sixteen positions, in `copy` unless a page holds them as a tile.
TileRows keys_tile(const AttentionJob& job, std::int64_t position, std::int64_t feature,
                   Pair* copy) {
  const std::int64_t page_tokens = job.layout.page_tokens;
  if (page_tokens % kPositions == 0 && feature + kAmxDepth <= job.layout.head_dim) {
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

// Multiplies the rows of A (at most 32, `a_row` elements apart) with the right operands.
void multiply(const Rounded* a, std::int64_t a_row, bool lower, const TileRows& left,
              const TileRows* right) {
  finish_writes(left.first);
  _tile_loadd(6, left.first, left.row * 4);
  _tile_loadd(4, a, a_row * 2);
  _tile_dpbf16ps(0, 4, 6);
  if (right != nullptr) {
    finish_writes(right->first);
    _tile_loadd(7, right->first, right->row * 4);
    _tile_dpbf16ps(1, 4, 7);
  }
  if (lower) {
    _tile_loadd(5, a + kAmxRows * a_row, a_row * 2);
    _tile_dpbf16ps(2, 5, 6);
    if (right != nullptr) {
      _tile_dpbf16ps(3, 5, 7);
    }
  }
}

// Sums of at most 32 rows in memory, `row` floats apart: one or two tiles wide.
struct Sums {
  float* first = nullptr;
  std::int64_t row = 0;
  bool right = false;
  bool lower = false;

  void load() const {
    finish_writes(first);
    float* below = first + kAmxRows * row;
    _tile_loadd(0, first, row * 4);
    if (right) {
      _tile_loadd(1, first + kLanes, row * 4);
    }
    if (lower) {
      _tile_loadd(2, below, row * 4);
      if (right) {
        _tile_loadd(3, below + kLanes, row * 4);
      }
    }
  }
  void store() const {
    float* below = first + kAmxRows * row;
    _tile_stored(0, first, row * 4);
    if (right) {
      _tile_stored(1, first + kLanes, row * 4);
    }
    if (lower) {
      _tile_stored(2, below, row * 4);
      if (right) {
        _tile_stored(3, below + kLanes, row * 4);
      }
    }
    finish_writes(first);
  }
};

// Computes the scores of at most 32 rows from `row` on for one or two groups of sixteen positions.
void score(const AttentionJob& job, const Workspace<TilePairs>& work, std::int64_t row,
           std::int64_t position, bool right, bool lower) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (std::int64_t feature = 0; feature < work.width; feature += kAmxDepth) {
    alignas(64) Pair copies[2][kAmxRows * kPositions];
    const TileRows first = keys_tile(job, position, feature, copies[0]);
    const TileRows second =
        right ? keys_tile(job, position + kPositions, feature, copies[1]) : TileRows{};
    if (reads_once(job)) {  // the values of a page follow its keys
      first.prefetch(kAmxRows, job.layout.key_units());
      if (right) {
        second.prefetch(kAmxRows, job.layout.key_units());
      }
    }
    multiply(work.q + row * work.width + feature, work.width, lower, first,
             right ? &second : nullptr);
  }
  Sums{work.scores + row * work.columns + position - work.origin, work.columns, right, lower}
      .store();
}

// Adds the values of the positions [first, end), multiples of 16, to `rows` rows from `row` on.
void add_blocks(const AttentionJob& job, const Workspace<TilePairs>& work, std::int64_t row,
                std::int64_t rows, std::int64_t first, std::int64_t end) {
  const std::int64_t ahead =
      reads_once(job) && continues(job) ? job.layout.head_units() - job.layout.key_units() : 0;
  for (const std::int64_t last = row + rows; row < last; row += kBlockRows) {
    const std::int64_t count = smaller(kBlockRows, last - row);
    const bool lower = count > kAmxRows;
    configure_tiles(count, kPositions);
    for (std::int64_t c = 0; c < job.layout.head_dim; c += 2 * kLanes) {
      const bool right = c + kLanes < job.layout.head_dim;
      const Sums sums{work.sums + row * work.width + c, work.width, right, lower};
      sums.load();
      for (std::int64_t position = first; position < end; position += kPositions) {
        alignas(64) Pair copies[2][kPositions / 2 * kLanes];
        const TileRows left = values_tile(job, position, c, copies[0]);
        const TileRows second =
            right ? values_tile(job, position, c + kLanes, copies[1]) : TileRows{};
        if (ahead > 0) {
          left.prefetch(kPositions / 2, ahead);
          if (right) {
            second.prefetch(kPositions / 2, ahead);
          }
        }
        multiply(work.weights(row, position), work.weight_stride(), lower, left,
                 right ? &second : nullptr);
      }
      sums.store();
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
  finish_writes(work.q);
  for (std::int64_t row = 0; row < work.rows; row += kBlockRows) {
    const std::int64_t rows = smaller(kBlockRows, work.rows - row);
    const Span first = visible(job.window, job.first_position + row / job.ratio);
    const std::int64_t last = job.first_position + (row + rows - 1) / job.ratio;
    configure_tiles(rows);
    for (std::int64_t at = round_down(first.first); at <= last; at += 2 * kPositions) {
      score(job, work, row, at, at + kPositions <= last, rows > kAmxRows);
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
  finish_writes(work.scores);
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
      add_blocks(job, work, tokens.first * job.ratio, (tokens.end - tokens.first) * job.ratio,
                 group, next);
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
