// SPDX-License-Identifier: Apache-2.0
// Finds cached keys and values by tokens: a radix tree over pages.
//
// An edge is one page, so a node at depth k represents k pages of tokens under one set of weights.
// Every sequence that begins with those tokens can start from those pages. This is exact: the keys
// and values of a position are a pure function of the weights and of the tokens up to it, and every
// operation gives a row the same bits whatever else is in its batch (R1 in engines/ops/ops.hpp).
// The key of a page therefore has both parts: the digests of the weights name the root, and the
// tokens themselves name the edges. Weights that are loaded again under another version have the
// same digests, so the pages cached under them can be used again.
//
// The key of a root has a salt too, which changes no bit. A sequence finds only pages of its own
// salt, so the time that it takes tells nothing about the prompts of sequences with other salts.
//
// A sequence that starts adds nodes for the pages that it is going to compute. Sequences that would
// share these pages wait until they are computed, so that no token is computed twice. The samples
// of one prompt therefore start together once the first of them has computed the prompt. The page
// with the last tokens of a prompt is rarely full. Its node holds these tokens only, and sequences
// that start from it copy the page. The node also keeps the hidden state after the last token of
// the prompt, from which those sequences sample their first token.
//
// The tree is an owner of its pages, in addition to the sequences that use them. When pages are
// needed, it evicts pages that no sequence uses: least recently used first, leaves before their
// parents.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engines/scheduler/page_pool.hpp"

namespace tidemill::engines {

/// The final hidden state after one token. Immutable, shared by the sequences that sample from it.
using HiddenRow = std::shared_ptr<const std::vector<float>>;

/// What sequences must have in common to share pages, besides their first tokens.
struct CacheScope {
  std::string_view weights;    // the digests of the weights
  std::string_view salt = {};  // any text
};

/// The tree of cached pages; see the top of this file.
///
/// Threads: one call at a time.
class PrefixTree {
public:
  struct Node;

  /// The cached part of a sequence.
  struct Match {
    /// True if a running sequence is computing more of it. Then the other fields are unset, and the
    /// caller must ask again later.
    bool wait = false;
    std::vector<Node*> shared;  // the whole pages to start from, in order
    Node* partial = nullptr;    // its page begins with the remaining tokens and must be copied
    std::int32_t partial_page = -1;
    std::int64_t num_tokens = 0;  // that need not be computed again
    HiddenRow row;                // after the last token; null unless all tokens are cached
  };

  /// The path of a running sequence in the tree. Page i of the sequence is the page of `path[i]`.
  /// Any further pages belong to the sequence alone.
  struct Hold {
    std::vector<Node*> path;
    std::size_t num_ready = 0;  // nodes of `path` whose pages are computed
  };

  /// A running sequence as the tree sees it.
  struct Sequence {
    CacheScope scope;
    std::span<const std::int32_t> tokens;
    std::int64_t prompt_length = 0;
  };

  /// `pool` must outlive the tree. Requires `page_tokens` >= 1.
  PrefixTree(PagePool& pool, std::int64_t page_tokens);
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;
  /// Releases all pages.
  ~PrefixTree();

  /// Looks up how many of `tokens` need not be computed in `scope`. At least one token remains to
  /// be computed unless the tree has the hidden state after the last one. Changes nothing. The
  /// result is valid until the tree changes.
  [[nodiscard]] Match find(const CacheScope& scope, std::span<const std::int32_t> tokens) const;

  /// Returns how many pages of `match` can be evicted now, but no longer after `use`.
  [[nodiscard]] std::int64_t num_idle(const Match& match) const;

  /// Starts using `match`: appends its shared pages to `pages` and makes the sequence an owner of
  /// them. Call `expect` once the sequence has all its other pages.
  void use(const Match& match, std::vector<std::int32_t>& pages, Hold& hold);

  /// Adds nodes for the pages that the sequence is going to compute from now on. `pages` must cover
  /// all its tokens.
  void expect(const Sequence& sequence, std::span<const std::int32_t> pages, Hold& hold);

  /// Reports that the first `num_cached` tokens of the sequence have been computed. Adds completed
  /// pages to the tree. If the tree already has an equal page, it replaces the sequence's own page
  /// in `pages`. `row` is the hidden state after the last token of the prompt if it has just been
  /// computed, otherwise null.
  void advance(const Sequence& sequence, std::int64_t num_cached, std::vector<std::int32_t>& pages,
               Hold& hold, HiddenRow row);

  /// Ends the use and clears `hold` and `pages`. Computed pages stay cached until they are evicted.
  void leave(Hold& hold, std::vector<std::int32_t>& pages);

  /// Returns the number of pages at the end of `pages` that no other sequence uses. These are the
  /// pages that become available when the sequence ends.
  [[nodiscard]] std::int64_t num_exclusive(const Hold& hold,
                                           std::span<const std::int32_t> pages) const;

  /// Appends `count` free pages to `pages`, evicting others if necessary. Returns false and changes
  /// nothing if too few pages are free or evictable.
  [[nodiscard]] bool allocate(std::int64_t count, std::vector<std::int32_t>& pages);
  /// Evicts pages until `count` pages are free or no page can be evicted.
  void evict_until_free(std::int64_t count);
  /// Evicts all unused pages except those computed under one of `weights`.
  void keep_only(std::span<const std::string_view> weights);

  /// Returns the number of pages that can be allocated, which are free or evictable.
  [[nodiscard]] std::int64_t num_available() const noexcept {
    return pool_.num_free() + num_evictable_;
  }
  /// Returns the number of pages that the tree owns and no sequence uses.
  [[nodiscard]] std::int64_t num_evictable() const noexcept { return num_evictable_; }
  [[nodiscard]] std::int64_t num_nodes() const noexcept { return num_nodes_; }
  /// Returns the number of scopes that have pages.
  [[nodiscard]] std::int64_t num_scopes() const noexcept { return std::ssize(roots_); }

private:
  using Tokens = std::vector<std::int32_t>;
  using Age = std::pair<std::uint64_t, std::uint64_t>;  // (last use, order of creation)

  // Owns the text of a `CacheScope`.
  struct RootKey {
    std::string weights;
    std::string salt;
  };
  struct RootOrder {
    using is_transparent = void;
    template <class A, class B>
    bool operator()(const A& a, const B& b) const noexcept {
      const int order = std::string_view{a.weights}.compare(b.weights);
      return order != 0 ? order < 0 : std::string_view{a.salt}.compare(b.salt) < 0;
    }
  };

  [[nodiscard]] Tokens page_of(std::span<const std::int32_t> tokens, std::size_t index) const;
  Node& root_of(const CacheScope& scope);
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
  std::map<RootKey, std::unique_ptr<Node>, RootOrder> roots_;  // each has children
  std::map<Age, Node*> evictable_leaves_;
  std::uint64_t now_ = 0;  // counts uses
  std::uint64_t next_serial_ = 0;
  std::int64_t num_evictable_ = 0;
  std::int64_t num_nodes_ = 0;
};

}  // namespace tidemill::engines
