// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding with a heap over a linked list.
#include "engines/tokenizer/bpe.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

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

Bpe::Bpe(const TokenizerSpec& spec) {
  for (std::size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    std::string spelled;
    append_utf8(byte_alphabet_character(static_cast<unsigned char>(byte)), spelled);
    const auto found = spec.vocabulary.find(spelled);
    byte_ids_[byte] = found == spec.vocabulary.end() ? -1 : found->second;
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
    if (auto bytes = bytes_of_token(token)) {
      longest_piece_ = std::max(longest_piece_, bytes->size());
      whole_pieces_.emplace(*std::move(bytes), id);
    }
  }
}

const Bpe::Merge* Bpe::find_merge(std::int32_t left, std::int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

Status Bpe::encode(std::string_view piece, Workspace& workspace, std::vector<BpeToken>& out) const {
  TIDEMILL_CHECK(piece.size() < Workspace::kNone) << piece.size();
  if (piece.size() <= longest_piece_) {
    if (const auto found = whole_pieces_.find(piece); found != whole_pieces_.end()) {
      out.push_back({found->second, static_cast<std::uint32_t>(piece.size())});
      return {};
    }
  }
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
  apply_merges(workspace);
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
    if (symbol.next == Workspace::kNone) {
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
