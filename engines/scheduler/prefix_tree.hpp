// SPDX-License-Identifier: Apache-2.0
// What is cached, found by tokens: a radix tree over pages of keys and values.
//
// An edge is one page. A node at depth k therefore stands for k pages of tokens under one set of
// weights, and whoever begins with those tokens may start from those pages: keys and values of a
// position are a pure function of the weights and of the tokens up to it, and every operation gives
// a row the same bits whatever is computed beside it (R1 in engines/ops/ops.hpp). What must be
// right for that is the key, so it holds both parts: the roots are named by the digests of the
// weights, the edges by the tokens themselves. Weights that are loaded again under another version
// have the same digests, so what was cached under them may be used again.
//
// A sequence that starts makes nodes for the pages it is going to compute. Until they are computed
// whoever would share them waits, so that no token is computed twice: the samples of one prompt
// start together once the first of them has computed it. The page with a prompt's last tokens is
// rarely full; its node holds what is there, and those who start from it copy the page. The hidden
// state after the prompt's last token is kept with it: they draw their first token from that.
//
// The tree owns its pages beside the sequences that use them. Pages that no sequence uses are
// evicted, least recently used first and leaves before their parents, when pages are needed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engines/scheduler/page_pool.hpp"

namespace tidemill::engines {

/// The final hidden state after one token. Immutable, shared by those who draw from it.
using HiddenRow = std::shared_ptr<const std::vector<float>>;

/// Threads: one call at a time.
class PrefixTree {
public:
  struct Node;

  /// What of a sequence is cached.
  struct Match {
    /// A running sequence is computing more of it: ask again when that is done. The rest is unset.
    bool wait = false;
    std::vector<Node*> shared;  // whole pages to start from, in order
    Node* partial = nullptr;    // its page begins with the rest of the tokens; to be copied
    std::int32_t partial_page = -1;
    std::int64_t num_tokens = 0;  // that need not be computed
    HiddenRow row;                // after the last token; null unless all tokens are cached
  };

  /// A running sequence's place in the tree: page i of the sequence is that of `path[i]`; pages
  /// behind are the sequence's alone.
  struct Hold {
    std::vector<Node*> path;
    std::size_t num_ready = 0;  // of `path`: computed, by whomever
  };

  /// A running sequence as the tree sees it.
  struct Sequence {
    std::string_view weights;
    std::span<const std::int32_t> tokens;
    std::int64_t prompt_length = 0;
  };

  /// `pool` must outlive it. Requires `page_tokens` >= 1.
  PrefixTree(PagePool& pool, std::int64_t page_tokens);
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;
  /// Gives all pages back.
  ~PrefixTree();

  /// Looks up how much of `tokens` need not be computed under `weights`. At least one token is left
  /// to compute, unless the hidden state after the last one is kept. Changes nothing. The answer
  /// holds until the tree changes.
  [[nodiscard]] Match find(std::string_view weights, std::span<const std::int32_t> tokens) const;

  /// Returns how many pages of `match` stop being evictable once they are used.
  [[nodiscard]] std::int64_t num_idle(const Match& match) const;

  /// Starts using `match`: appends its shared pages to `pages` and counts the sequence as their
  /// owner. Call `expect` when the sequence has the rest of its pages.
  void use(const Match& match, std::vector<std::int32_t>& pages, Hold& hold);

  /// Makes nodes for the pages that the sequence is going to compute from here on. `pages` cover
  /// all its tokens.
  void expect(const Sequence& sequence, std::span<const std::int32_t> pages, Hold& hold);

  /// Tells that the first `num_cached` tokens have been computed. Completed pages are taken in; one
  /// that is in the tree already takes the place of the sequence's own in `pages`.
  /// `row`: the hidden state after the prompt's last token, if it has just been computed.
  void advance(const Sequence& sequence, std::int64_t num_cached, std::vector<std::int32_t>& pages,
               Hold& hold, HiddenRow row);

  /// Ends the use, and empties `hold` and `pages`: what was computed stays until it is evicted.
  void leave(Hold& hold, std::vector<std::int32_t>& pages);

  /// Returns the number of pages at the end of `pages` that nobody else uses: what ends with the
  /// sequence.
  [[nodiscard]] std::int64_t num_exclusive(const Hold& hold,
                                           std::span<const std::int32_t> pages) const;

  /// Allocates, evicting what is needed. Returns false, changing nothing, when pages in use leave
  /// too few.
  [[nodiscard]] bool allocate(std::int64_t count, std::vector<std::int32_t>& pages);
  /// Evicts until `count` pages are free or nothing more can be evicted.
  void evict_until_free(std::int64_t count);
  /// Evicts what no sequence uses and was not computed by one of `weights`.
  void keep_only(std::span<const std::string_view> weights);

  /// Returns the number of pages that can be allocated: free ones and evictable ones.
  [[nodiscard]] std::int64_t num_available() const noexcept {
    return pool_.num_free() + num_evictable_;
  }
  /// Returns the number of pages that the tree owns and no sequence uses.
  [[nodiscard]] std::int64_t num_evictable() const noexcept { return num_evictable_; }
  [[nodiscard]] std::int64_t num_nodes() const noexcept { return num_nodes_; }

private:
  using Tokens = std::vector<std::int32_t>;
  using Age = std::pair<std::uint64_t, std::uint64_t>;  // last use; then order of making

  [[nodiscard]] Tokens page_of(std::span<const std::int32_t> tokens, std::size_t index) const;
  [[nodiscard]] const Node* find_root(std::string_view weights) const;
  Node& root_of(std::string_view weights);
  Node& parent_of_next(const Sequence& sequence, const Hold& hold);
  Node& add_child(Node& parent, Tokens tokens, std::int32_t page);
  bool complete_page(const Sequence& sequence, std::int64_t num_cached,
                     std::vector<std::int32_t>& pages, Hold& hold);
  bool take_over(Node& existing, std::size_t index, std::vector<std::int32_t>& pages, Hold& hold);
  void begin_use(Node& node);
  void end_use(Node& node);
  void remove(Node& leaf);
  void update_leaf(Node& node);
  void evict_subtree(Node& root);

  PagePool& pool_;
  std::size_t page_tokens_;
  std::map<std::string, std::unique_ptr<Node>, std::less<>> roots_;  // by the weights' digests
  std::map<Age, Node*> evictable_leaves_;
  std::uint64_t now_ = 0;  // counts uses
  std::uint64_t next_serial_ = 0;
  std::int64_t num_evictable_ = 0;
  std::int64_t num_nodes_ = 0;
};

}  // namespace tidemill::engines
