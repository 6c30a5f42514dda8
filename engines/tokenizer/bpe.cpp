// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding with a heap over a linked list.
#include "engines/tokenizer/bpe.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>

#include "base/check.hpp"
#include "base/text/utf8.hpp"
#include "engines/tokenizer/byte_alphabet.hpp"

namespace tidemill::engines {
namespace {

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32U) |
         static_cast<std::uint32_t>(right);
}

// Names the character of `piece` that contains byte `at`, e.g. "é" (U+00E9).
std::string character_name(std::string_view piece, std::size_t at) {
  while (at > 0 && (static_cast<unsigned char>(piece[at]) & 0xC0U) == 0x80U) {
    --at;
  }
  const auto character = read_utf8(piece, at);
  std::array<char, 16> code{};
  std::snprintf(code.data(), code.size(), "U+%04X", static_cast<unsigned>(character.code_point));
  const bool printable = character.code_point > 0xA0U ||
                         (character.code_point > 0x20U && character.code_point < 0x7FU);
  return printable
             ? '"' + std::string(piece.substr(at, character.length)) + "\" (" + code.data() + ')'
             : code.data();
}

}  // namespace

Bpe::Bpe(const TokenizerSpec& spec) : alphabet_(spec.alphabet) {
  for (std::size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    std::string spelled;
    if (alphabet_ == Alphabet::kBytes) {
      append_utf8(byte_alphabet_character(static_cast<unsigned char>(byte)), spelled);
    } else {
      spelled = byte_token(static_cast<unsigned char>(byte));
    }
    const auto found = spec.vocabulary.find(spelled);
    byte_ids_[byte] = found == spec.vocabulary.end() ? -1 : found->second;
  }
  if (alphabet_ == Alphabet::kCharacters) {
    read_characters(spec);
  }
  merges_.reserve(spec.merges.size());
  std::uint32_t rank = 0;
  for (const MergeRule& rule : spec.merges) {
    merges_.emplace(pair_key(rule.left, rule.right), Merge{rank++, rule.merged});
  }
  if (!spec.ignore_merges) {
    return;
  }
  whole_pieces_.reserve(spec.vocabulary.size());
  for (const auto& [token, id] : spec.vocabulary) {
    auto text = alphabet_ == Alphabet::kBytes ? bytes_of_token(token) : std::optional(token);
    if (text.has_value()) {
      longest_piece_ = std::max(longest_piece_, text->size());
      whole_pieces_.emplace(*std::move(text), id);
    }
  }
}

void Bpe::read_characters(const TokenizerSpec& spec) {
  for (const auto& [token, id] : spec.vocabulary) {
    if (token.empty()) {
      continue;
    }
    const Utf8Step step = read_utf8(token, 0);
    if (step.length == token.size()) {
      character_ids_.emplace(step.code_point, id);
    }
  }
  falls_back_to_bytes_ = spec.byte_fallback;
  unknown_id_ = spec.unknown_id.value_or(-1);
  fuses_unknown_ = spec.fuse_unknown;
}

const Bpe::Merge* Bpe::find_merge(std::int32_t left, std::int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

Status Bpe::begin_with_bytes(std::string_view piece, Workspace& workspace) const {
  auto& symbols = workspace.symbols_;
  symbols.assign(piece.size(), {});
  for (std::uint32_t i = 0; i < symbols.size(); ++i) {
    const auto byte = static_cast<unsigned char>(piece[i]);
    if (byte_ids_[byte] < 0) {
      return invalid_argument("no token represents the character " + character_name(piece, i) +
                              " at offset " + std::to_string(i));
    }
    symbols[i].id = byte_ids_[byte];
    symbols[i].previous = i == 0 ? Workspace::kNone : i - 1;
    symbols[i].next = i + 1 == symbols.size() ? Workspace::kNone : i + 1;
  }
  return {};
}

Status Bpe::begin_with_characters(std::string_view piece, Workspace& workspace) const {
  auto& symbols = workspace.symbols_;
  symbols.assign(piece.size(), {});
  std::uint32_t last = Workspace::kNone;
  const auto put = [&symbols, &last](std::uint32_t at, std::int32_t id) {
    symbols[at].id = id;
    symbols[at].previous = last;
    if (last != Workspace::kNone) {
      symbols[last].next = at;
    }
    last = at;
  };
  bool after_unknown = false;
  for (std::uint32_t i = 0; i < symbols.size();) {
    const Utf8Step step = read_utf8(piece, i);
    const auto known = character_ids_.find(step.code_point);
    const bool is_unknown = known == character_ids_.end() && !falls_back_to_bytes_;
    if (is_unknown && unknown_id_ < 0) {
      return invalid_argument("no token represents the character " + character_name(piece, i) +
                              " at offset " + std::to_string(i));
    }
    const auto length = static_cast<std::uint32_t>(step.length);
    if (known != character_ids_.end()) {
      put(i, known->second);
    } else if (falls_back_to_bytes_) {
      for (std::uint32_t k = i; k < i + length; ++k) {
        put(k, byte_ids_[static_cast<unsigned char>(piece[k])]);
      }
    } else if (!after_unknown || !fuses_unknown_) {
      put(i, unknown_id_);
    }
    after_unknown = is_unknown;
    i += length;
  }
  return {};
}

Status Bpe::encode(std::string_view piece, Workspace& workspace, std::vector<BpeToken>& out) const {
  TIDEMILL_CHECK(piece.size() < Workspace::kNone) << piece.size();
  if (piece.size() <= longest_piece_) {
    if (const auto found = whole_pieces_.find(piece); found != whole_pieces_.end()) {
      out.push_back({found->second, static_cast<std::uint32_t>(piece.size())});
      return {};
    }
  }
  const Status begun = alphabet_ == Alphabet::kBytes ? begin_with_bytes(piece, workspace)
                                                     : begin_with_characters(piece, workspace);
  if (!begun.ok()) {
    return begun;
  }
  apply_merges(workspace);
  const auto& symbols = workspace.symbols_;
  for (std::uint32_t i = 0; i != Workspace::kNone && i < symbols.size(); i = symbols[i].next) {
    const std::uint32_t next = symbols[i].next;
    const auto end = next == Workspace::kNone ? static_cast<std::uint32_t>(piece.size()) : next;
    out.push_back({symbols[i].id, end - i});
  }
  return {};
}

void Bpe::apply_merges(Workspace& workspace) const {
  auto& symbols = workspace.symbols_;
  auto& heap = workspace.heap_;
  heap.clear();
  // Adds the merge of a symbol with the next one to the heap. Returns whether such a merge exists.
  const auto note_pair = [&](std::uint32_t i) {
    Workspace::Symbol& symbol = symbols[i];
    symbol.rank = Workspace::kNone;
    if (symbol.id < 0 || symbol.next == Workspace::kNone) {
      return false;
    }
    const Merge* merge = find_merge(symbol.id, symbols[symbol.next].id);
    if (merge == nullptr) {
      return false;
    }
    symbol.rank = merge->rank;
    heap.push_back((std::uint64_t{merge->rank} << 32U) | i);
    return true;
  };
  for (std::uint32_t i = 0; i < symbols.size(); ++i) {
    note_pair(i);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto push_pair = [&](std::uint32_t i) {
    if (note_pair(i)) {
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  };
  while (!heap.empty()) {
    const auto rank = static_cast<std::uint32_t>(heap.front() >> 32U);
    const auto i = static_cast<std::uint32_t>(heap.front());
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    Workspace::Symbol& left = symbols[i];
    // An entry is stale if either of its symbols has taken part in another merge.
    if (left.id < 0 || left.rank != rank) {
      continue;
    }
    Workspace::Symbol& right = symbols[left.next];
    left.id = find_merge(left.id, right.id)->merged;
    left.next = right.next;
    right.id = -1;
    if (left.next != Workspace::kNone) {
      symbols[left.next].previous = i;
    }
    push_pair(i);
    if (left.previous != Workspace::kNone) {
      push_pair(left.previous);
    }
  }
}

}  // namespace tidemill::engines
