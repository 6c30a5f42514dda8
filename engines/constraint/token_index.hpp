// SPDX-License-Identifier: Apache-2.0
// A byte trie of the vocabulary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace tidemill::engines {

/// A tree whose paths are the bytes of tokens. Node 0 is the empty prefix. Nodes are numbered in
/// depth-first order, so that a subtree is a range of numbers. Immutable.
///
/// Threads: safe to call concurrently.
class TokenIndex {
public:
  /// Indexes the tokens 0 to `vocabulary` - 1. `bytes_of` returns the bytes of one, which are
  /// copied, and nothing for tokens that no text contains, such as special tokens. Takes time in
  /// proportion to the bytes, about 0.1 s for 150,000 tokens.
  TokenIndex(std::int32_t vocabulary,
             const std::function<std::string_view(std::int32_t token)>& bytes_of);

  /// Returns the number of tokens.
  [[nodiscard]] std::int32_t vocabulary() const noexcept { return vocabulary_; }
  /// Returns the bytes of a token, or nothing if no text contains it. Requires a token from 0 to
  /// `vocabulary` - 1.
  [[nodiscard]] std::string_view bytes(std::int32_t token) const noexcept;

  [[nodiscard]] std::int32_t num_nodes() const noexcept {
    return static_cast<std::int32_t>(nodes_.size());
  }
  /// Returns the last byte of a prefix, and its length.
  [[nodiscard]] std::uint8_t byte(std::int32_t node) const noexcept { return at(node).byte; }
  [[nodiscard]] std::int32_t depth(std::int32_t node) const noexcept { return at(node).depth; }
  /// Returns the first node after those that begin with the prefix.
  [[nodiscard]] std::int32_t end(std::int32_t node) const noexcept { return at(node).end; }
  /// Returns the tokens that are exactly this prefix.
  [[nodiscard]] std::span<const std::int32_t> tokens(std::int32_t node) const noexcept {
    const auto first = static_cast<std::size_t>(at(node).first_token);
    const auto last = static_cast<std::size_t>(at(node).last_token);
    return std::span(tokens_).subspan(first, last - first);
  }
  /// Returns the length of the longest token.
  [[nodiscard]] std::int32_t max_depth() const noexcept { return max_depth_; }

private:
  struct Node {
    std::int32_t end = 0;
    std::int32_t first_token = 0;  // in `tokens_`
    std::int32_t last_token = 0;
    std::int32_t depth = 0;
    std::uint8_t byte = 0;
  };
  [[nodiscard]] const Node& at(std::int32_t node) const noexcept {
    return nodes_[static_cast<std::size_t>(node)];
  }

  std::int32_t vocabulary_;
  std::int32_t max_depth_ = 0;
  std::vector<char> text_;            // of all tokens
  std::vector<std::size_t> offsets_;  // by token, and one more
  std::vector<Node> nodes_;
  std::vector<std::int32_t> tokens_;  // by bytes
};

}  // namespace tidemill::engines
