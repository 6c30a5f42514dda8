// SPDX-License-Identifier: Apache-2.0
// Compares the tree with a list of all cached prefixes, then tests its operations one by one.
#include "engines/scheduler/prefix_tree.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace tidemill::engines {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr std::size_t kPage = 4;

// A running sequence.
struct Running {
  std::string weights;
  Tokens tokens;
  std::vector<std::int32_t> pages;
  PrefixTree::Hold hold;

  [[nodiscard]] PrefixTree::Sequence seen() const {
    return {{weights}, tokens, static_cast<std::int64_t>(tokens.size())};
  }
};

HiddenRow row_of(const Tokens& tokens) {
  return std::make_shared<const std::vector<float>>(tokens.begin(), tokens.end());
}

// A plain list of all cached prefixes: those of whole pages, and whole prompts.
class Oracle {
public:
  using Key = std::pair<std::string, Tokens>;

  struct Found {
    std::size_t num_tokens = 0;
    bool row = false;
  };

  [[nodiscard]] Found find(const std::string& weights, const Tokens& tokens) const {
    Found found;
    for (std::size_t end = kPage; end <= tokens.size(); end += kPage) {
      const auto entry = entries_.find({weights, first(tokens, end)});
      if (entry == entries_.end() || (end == tokens.size() && !entry->second.row)) {
        return found;
      }
      found = {end, end == tokens.size()};
    }
    if (tokens.size() % kPage != 0 && entries_.contains({weights, tokens})) {
      found = {tokens.size(), true};
    }
    return found;
  }

  // Uses the cached prefixes, evicts `evictions` others and adds the new ones. Returns false if too
  // few could be evicted.
  bool start(const std::string& weights, const Tokens& tokens, std::int64_t evictions) {
    ++now_;
    const Found found = find(weights, tokens);
    const std::size_t shared = found.num_tokens / kPage;
    if (found.num_tokens == tokens.size() && tokens.size() % kPage != 0) {
      entries_.at({weights, tokens}).last_use = now_;  // copied
    }
    const std::vector<Tokens> prefixes = path(tokens, found);
    for (std::size_t i = 0; i < shared; ++i) {
      use(weights, prefixes[i], tokens);
    }
    for (std::int64_t i = 0; i < evictions; ++i) {
      if (!evict()) {
        return false;
      }
    }
    for (std::size_t i = shared; i < prefixes.size(); ++i) {
      use(weights, prefixes[i], tokens);
    }
    return true;
  }

  void use(const std::string& weights, const Tokens& prefix, const Tokens& tokens) {
    Entry& entry =
        entries_.try_emplace({weights, prefix}, Entry{0, 0, serial_++, false}).first->second;
    ++entry.users;
    entry.last_use = now_;
    entry.row = entry.row || prefix.size() == tokens.size();
  }

  void leave(const std::string& weights, const std::vector<Tokens>& prefixes) {
    ++now_;
    for (const Tokens& prefix : prefixes) {
      Entry& entry = entries_.at({weights, prefix});
      --entry.users;
      entry.last_use = now_;
    }
  }

  [[nodiscard]] static std::vector<Tokens> path(const Tokens& tokens, const Found& before) {
    std::vector<Tokens> prefixes;
    for (std::size_t end = kPage; end <= tokens.size(); end += kPage) {
      prefixes.push_back(first(tokens, end));
    }
    if (tokens.size() % kPage != 0 && !before.row) {
      prefixes.push_back(tokens);
    }
    return prefixes;
  }

  // Removes the least recently used prefix that no sequence uses and no other prefix extends.
  bool evict() {
    auto oldest = entries_.end();
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      const auto continues = [&](const auto& other) {
        return other.first.first == it->first.first &&
               other.first.second.size() > it->first.second.size() &&
               it->first.second.size() % kPage == 0 &&
               first(other.first.second, it->first.second.size()) == it->first.second;
      };
      if (it->second.users == 0 && std::ranges::none_of(entries_, continues) &&
          (oldest == entries_.end() || it->second.age() < oldest->second.age())) {
        oldest = it;
      }
    }
    if (oldest == entries_.end()) {
      return false;
    }
    entries_.erase(oldest);
    return true;
  }

  void keep_only(const std::string& weights) {
    std::erase_if(entries_, [&](const auto& entry) {
      return entry.first.first != weights && entry.second.users == 0;
    });
  }

  [[nodiscard]] std::size_t size() const { return entries_.size(); }

private:
  struct Entry {
    int users = 0;
    std::uint64_t last_use = 0;
    std::uint64_t serial = 0;
    bool row = false;
    [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> age() const { return {last_use, serial}; }
  };

  static Tokens first(const Tokens& tokens, std::size_t count) {
    return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)};
  }

  std::map<Key, Entry> entries_;
  std::uint64_t now_ = 0;
  std::uint64_t serial_ = 0;
};

// Computes a whole prompt; the sequence keeps running.
void compute(PrefixTree& tree, Running& sequence) {
  const PrefixTree::Match match = tree.find({sequence.weights}, sequence.tokens);
  ASSERT_FALSE(match.wait);
  tree.use(match, sequence.pages, sequence.hold);
  const auto needed = static_cast<std::int64_t>((sequence.tokens.size() + kPage - 1) / kPage);
  ASSERT_TRUE(
      tree.allocate(needed - static_cast<std::int64_t>(sequence.pages.size()), sequence.pages));
  if (match.row == nullptr) {
    tree.expect(sequence.seen(), sequence.pages, sequence.hold);
    tree.advance(sequence.seen(), static_cast<std::int64_t>(sequence.tokens.size()), sequence.pages,
                 sequence.hold, row_of(sequence.tokens));
  }
}

TEST(PrefixTreeTest, AgreesWithAListOfPrefixes) {
  std::int64_t hits = 0;
  std::int64_t evicted = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    RandomStream random(7, seed);
    PagePool pool(24);
    PrefixTree tree(pool, kPage);
    Oracle oracle;
    std::vector<std::pair<Running, std::vector<Tokens>>> running;
    for (int action = 0; action < 300; ++action) {
      const std::string weights = random.below(4) == 0 ? "b" : "a";
      Tokens tokens(1 + random.below(3 * kPage));
      for (std::int32_t& token : tokens) {
        token = static_cast<std::int32_t>(random.below(2));
      }
      const auto found = oracle.find(weights, tokens);
      const PrefixTree::Match match = tree.find({weights}, tokens);
      ASSERT_EQ(match.num_tokens, static_cast<std::int64_t>(found.num_tokens)) << "seed " << seed;
      ASSERT_EQ(match.row != nullptr, found.row);
      if (found.row) {
        EXPECT_EQ(*match.row, *row_of(tokens));
      }
      hits += match.num_tokens > 0 ? 1 : 0;
      const std::int64_t needed = static_cast<std::int64_t>((tokens.size() + kPage - 1) / kPage) -
                                  static_cast<std::int64_t>(match.shared.size());
      if (random.below(3) != 0 && tree.num_available() - tree.num_idle(match) >= needed) {
        Running sequence{weights, tokens, {}, {}};
        auto prefixes = Oracle::path(tokens, found);
        const std::int64_t missing = std::max<std::int64_t>(needed - pool.num_free(), 0);
        ASSERT_TRUE(oracle.start(weights, tokens, missing));
        compute(tree, sequence);
        evicted += missing;
        running.emplace_back(std::move(sequence), std::move(prefixes));
      } else if (!running.empty()) {
        const std::size_t index = random.below(running.size());
        auto& [sequence, prefixes] = running[index];
        tree.leave(sequence.hold, sequence.pages);
        oracle.leave(sequence.weights, prefixes);
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(index));
      }
      if (random.below(60) == 0) {
        tree.keep_only(std::vector<std::string_view>{"a"});
        oracle.keep_only("a");
      }
      ASSERT_EQ(tree.num_nodes(), static_cast<std::int64_t>(oracle.size())) << "seed " << seed;
    }
    for (auto& [sequence, prefixes] : running) {
      tree.leave(sequence.hold, sequence.pages);
    }
    EXPECT_EQ(tree.num_available(), pool.num_pages());
    EXPECT_EQ(tree.num_evictable(), tree.num_nodes());
    tree.evict_until_free(pool.num_pages());
    EXPECT_EQ(pool.num_free(), pool.num_pages());
    EXPECT_EQ(tree.num_nodes(), 0);
  }
  EXPECT_GT(hits, 2000);
  EXPECT_GT(evicted, 500);
}

Tokens counting(std::size_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

TEST(PrefixTreeTest, OthersWaitForPagesBeingComputed) {
  PagePool pool(16);
  PrefixTree tree(pool, kPage);
  Running first{"w", counting(10), {}, {}};
  tree.use({}, first.pages, first.hold);
  ASSERT_TRUE(tree.allocate(3, first.pages));
  tree.expect(first.seen(), first.pages, first.hold);
  EXPECT_TRUE(tree.find({"w"}, counting(10)).wait);
  EXPECT_TRUE(tree.find({"w"}, counting(6)).wait) << "its first page is being computed";
  EXPECT_FALSE(tree.find({"w"}, counting(3)).wait) << "no prompt ends after three tokens";
  EXPECT_FALSE(tree.find({"w"}, counting(4)).wait) << "its last token must be computed anyway";
  EXPECT_FALSE(tree.find({"v"}, counting(10)).wait) << "other weights";
  tree.advance(first.seen(), 7, first.pages, first.hold, nullptr);
  EXPECT_FALSE(tree.find({"w"}, counting(6)).wait);
  EXPECT_EQ(tree.find({"w"}, counting(6)).num_tokens, 4);
  EXPECT_TRUE(tree.find({"w"}, counting(10)).wait);
  tree.advance(first.seen(), 10, first.pages, first.hold, row_of(first.tokens));
  const PrefixTree::Match match = tree.find({"w"}, counting(10));
  EXPECT_EQ(match.num_tokens, 10);
  EXPECT_EQ(match.partial_page, first.pages[2]);
  EXPECT_EQ(*match.row, *row_of(first.tokens));
}

TEST(PrefixTreeTest, NoSequenceWaitsForOneThatHasLeft) {
  PagePool pool(16);
  PrefixTree tree(pool, kPage);
  Running first{"w", counting(10), {}, {}};
  tree.use({}, first.pages, first.hold);
  ASSERT_TRUE(tree.allocate(3, first.pages));
  tree.expect(first.seen(), first.pages, first.hold);
  tree.advance(first.seen(), 5, first.pages, first.hold, nullptr);
  tree.leave(first.hold, first.pages);
  const PrefixTree::Match match = tree.find({"w"}, counting(10));
  EXPECT_FALSE(match.wait);
  EXPECT_EQ(match.num_tokens, 4) << "computed pages stay cached";
  EXPECT_EQ(tree.num_nodes(), 1);
}

// The page with the end of a prompt fills up with the response. It is then found as either.
TEST(PrefixTreeTest, ThePageWithTheEndOfAPromptGrows) {
  PagePool pool(16);
  PrefixTree tree(pool, kPage);
  Running first{"w", counting(6), {}, {}};
  compute(tree, first);
  PrefixTree::Sequence grown = first.seen();
  const Tokens longer = counting(8);
  grown.tokens = longer;
  tree.advance(grown, 7, first.pages, first.hold, nullptr);
  EXPECT_EQ(tree.find({"w"}, counting(9)).num_tokens, 4);
  tree.advance(grown, 8, first.pages, first.hold, nullptr);
  EXPECT_EQ(tree.find({"w"}, counting(9)).num_tokens, 8);
  EXPECT_EQ(tree.find({"w"}, counting(6)).num_tokens, 6);
  EXPECT_EQ(tree.num_nodes(), 2);
  tree.leave(first.hold, first.pages);
}

// Two sequences that compute equal pages separately continue with one copy.
TEST(PrefixTreeTest, AnEqualPageInTheTreeReplacesTheSequencesOwn) {
  PagePool pool(16);
  PrefixTree tree(pool, kPage);
  Running first{"w", counting(6), {}, {}};
  Running second{"w", counting(6), {}, {}};
  compute(tree, first);
  compute(tree, second);
  EXPECT_NE(first.pages[1], second.pages[1]) << "only one sequence writes a page";
  const Tokens longer = counting(8);
  for (Running* sequence : {&first, &second}) {
    PrefixTree::Sequence grown = sequence->seen();
    grown.tokens = longer;
    tree.advance(grown, 8, sequence->pages, sequence->hold, nullptr);
  }
  EXPECT_EQ(first.pages, second.pages);
  EXPECT_EQ(pool.num_free(), 14);
  EXPECT_EQ(tree.num_exclusive(first.hold, first.pages), 0);
  tree.leave(second.hold, second.pages);
  EXPECT_EQ(tree.num_exclusive(first.hold, first.pages), 2);
  tree.leave(first.hold, first.pages);
}

TEST(PrefixTreeTest, PagesInUseAreNeverEvicted) {
  PagePool pool(6);
  PrefixTree tree(pool, kPage);
  Running first{"w", counting(12), {}, {}};
  compute(tree, first);
  Running second{"w", {7, 7, 7, 7, 7}, {}, {}};
  compute(tree, second);
  tree.leave(second.hold, second.pages);
  EXPECT_EQ(tree.num_available(), 3);
  std::vector<std::int32_t> pages;
  EXPECT_FALSE(tree.allocate(4, pages));
  EXPECT_EQ(tree.num_nodes(), 5) << "a failed allocation evicts nothing";
  ASSERT_TRUE(tree.allocate(3, pages));
  for (const std::int32_t page : first.pages) {
    EXPECT_EQ(std::ranges::count(pages, page), 0);
  }
  EXPECT_EQ(tree.num_nodes(), 3);
  tree.leave(first.hold, first.pages);
}

// 100,000 nodes deep, as in a context of more than a million tokens with pages of 16.
TEST(PrefixTreeTest, AVeryLongPathIsDestroyed) {
  PagePool pool(100000);
  Running first{"w", counting(400000), {}, {}};
  {
    PrefixTree tree(pool, kPage);
    compute(tree, first);
    tree.leave(first.hold, first.pages);
    EXPECT_EQ(pool.num_free(), 0);
  }
  EXPECT_EQ(pool.num_free(), 100000);
}

}  // namespace
}  // namespace tidemill::engines
