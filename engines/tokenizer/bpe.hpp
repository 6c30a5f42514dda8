// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding: merges the bytes of one piece of text into tokens.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.hpp"
#include "engines/tokenizer/tokenizer_spec.hpp"

namespace tidemill::engines {

/// A token and the number of bytes it covers.
struct BpeToken {
  std::int32_t id = 0;
  std::uint32_t num_bytes = 0;
};

/// The merge rules of a tokenizer. Immutable.
///
/// Until no rule applies, the neighbouring pair with the lowest rank is merged, the leftmost first.
/// A heap of candidate pairs over a linked list of symbols keeps that at O(n log n) in time and
/// 24 bytes of memory per byte of the piece.
class Bpe {
public:
  /// The memory that one piece at a time needs: one per thread.
  class Workspace;

  /// Builds the tables. Requires rules whose ids are in the vocabulary.
  explicit Bpe(const TokenizerSpec& spec);

  /// Appends the tokens of `piece` (raw bytes) to `out`.
  /// Errors: `kInvalidArgument` names the byte, and its offset in the piece, that no token spells.
  /// Threads: safe to call concurrently with distinct workspaces.
  [[nodiscard]] Status encode(std::string_view piece, Workspace& workspace,
                              std::vector<BpeToken>& out) const;

private:
  struct Merge {
    std::uint32_t rank = 0;
    std::int32_t merged = 0;
  };
  struct StringHash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  [[nodiscard]] const Merge* find_merge(std::int32_t left, std::int32_t right) const;
  void apply_merges(Workspace& workspace) const;

  std::array<std::int32_t, 256> byte_ids_{};  // -1: no token spells this byte
  std::unordered_map<std::uint64_t, Merge> merges_;
  // Raw bytes to id; filled only when whole pieces are looked up first.
  std::unordered_map<std::string, std::int32_t, StringHash, std::equal_to<>> whole_pieces_;
  std::size_t longest_piece_ = 0;
};

class Bpe::Workspace {
private:
  friend class Bpe;
  static constexpr std::uint32_t kNone = UINT32_MAX;
  // A run of bytes that is one token so far. A symbol merged into its left neighbour is dead.
  struct Symbol {
    std::int32_t id = 0;  // -1: dead
    std::uint32_t previous = kNone;
    std::uint32_t next = kNone;
    std::uint32_t rank = kNone;  // of the merge with the next symbol; kNone: there is none
  };
  std::vector<Symbol> symbols_;
  std::vector<std::uint64_t> heap_;  // rank << 32 | position: smallest first
};

}  // namespace tidemill::engines
