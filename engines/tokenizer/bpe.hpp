// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding: merges the bytes or characters of one piece of text into tokens.
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
/// The adjacent pair with the lowest rank is merged, the leftmost first among equal ranks, until no
/// rule applies. A heap of candidate pairs over a linked list of symbols does this in O(n log n)
/// time and with 24 bytes of memory per byte of the piece. The symbols are the bytes of the piece
/// at first, or its characters, depending on the alphabet of the vocabulary.
class Bpe {
public:
  /// The scratch memory for encoding a piece. Each thread needs its own.
  class Workspace;

  /// Builds the tables. All ids in the merge rules must be in the vocabulary.
  explicit Bpe(const TokenizerSpec& spec);

  /// Appends the tokens of `piece` (valid UTF-8) to `out`.
  /// Errors: `kInvalidArgument` if no token represents a byte or character of the piece; the
  /// message names the character, and its offset in the piece.
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

  void read_characters(const TokenizerSpec& spec);
  [[nodiscard]] const Merge* find_merge(std::int32_t left, std::int32_t right) const;
  // Fill the workspace with the symbols that the merges begin with.
  [[nodiscard]] Status begin_with_bytes(std::string_view piece, Workspace& workspace) const;
  [[nodiscard]] Status begin_with_characters(std::string_view piece, Workspace& workspace) const;
  void apply_merges(Workspace& workspace) const;

  Alphabet alphabet_;
  std::array<std::int32_t, 256> byte_ids_{};  // -1: no token represents this byte
  // For an alphabet of characters. The bytes of a character without a token are in `byte_ids_`, or
  // the unknown token represents it.
  std::unordered_map<char32_t, std::int32_t> character_ids_;
  bool falls_back_to_bytes_ = false;
  std::int32_t unknown_id_ = -1;  // -1: none
  bool fuses_unknown_ = false;
  std::unordered_map<std::uint64_t, Merge> merges_;
  // Maps raw bytes to ids. Filled only if whole pieces are looked up before merging.
  std::unordered_map<std::string, std::int32_t, StringHash, std::equal_to<>> whole_pieces_;
  std::size_t longest_piece_ = 0;
};

/// Holds the symbols and candidate pairs of the piece that is being encoded.
class Bpe::Workspace {
private:
  friend class Bpe;
  static constexpr std::uint32_t kNone = UINT32_MAX;
  // A run of bytes that currently forms one token. Its index is the offset of its first byte.
  struct Symbol {
    std::int32_t id = -1;  // -1: no token begins here
    std::uint32_t previous = kNone;
    std::uint32_t next = kNone;
    std::uint32_t rank = kNone;  // of the merge with the next symbol; kNone: no such merge
  };
  std::vector<Symbol> symbols_;
  std::vector<std::uint64_t> heap_;  // rank << 32 | position, smallest first
};

}  // namespace tidemill::engines
