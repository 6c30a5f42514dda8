// SPDX-License-Identifier: Apache-2.0
#include "engines/scheduler/prefix_tree.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace tidemill::engines {

struct PrefixTree::Node {
  Tokens tokens;                 // of its page; fewer than a page for the end of a prompt
  std::int32_t page = -1;        // -1 for a root
  Node* parent = nullptr;        // null for a root
  const RootKey* key = nullptr;  // of a root
  bool ready = false;            // the page has been computed
  std::int64_t users = 0;      // sequences with the node on their path; never fewer than of a child
  std::int64_t row_after = 0;  // tokens of the page up to which `row` is, or will be; 0: none
  HiddenRow row;
  std::uint64_t last_use = 0;
  std::uint64_t serial = 0;
  std::map<Tokens, std::unique_ptr<Node>> children;
};

namespace {

bool begins_with(std::span<const std::int32_t> tokens, std::span<const std::int32_t> beginning) {
  return tokens.size() >= beginning.size() &&
         std::ranges::equal(tokens.first(beginning.size()), beginning);
}

PrefixTree::Match waiting_match() {
  PrefixTree::Match match;
  match.wait = true;
  return match;
}

}  // namespace

PrefixTree::PrefixTree(PagePool& pool, std::int64_t page_tokens)
    : pool_(pool), page_tokens_(static_cast<std::size_t>(page_tokens)) {
  TIDEMILL_CHECK(page_tokens >= 1) << page_tokens;
}

// Destroys nodes one by one, without recursion, because a path may be as long as a context.
PrefixTree::~PrefixTree() {
  for (const auto& [weights, root] : roots_) {
    Node* node = root.get();
    while (node != root.get() || !node->children.empty()) {
      if (!node->children.empty()) {
        node = node->children.begin()->second.get();
        continue;
      }
      Node* parent = node->parent;
      pool_.release({&node->page, 1});
      parent->children.erase(node->tokens);
      node = parent;
    }
  }
}

PrefixTree::Tokens PrefixTree::page_of(std::span<const std::int32_t> tokens,
                                       std::size_t index) const {
  const auto rest = tokens.subspan(index * page_tokens_);
  const auto page = rest.first(std::min(page_tokens_, rest.size()));
  return {page.begin(), page.end()};
}

// The caller adds a child if the root has none yet.
PrefixTree::Node& PrefixTree::root_of(const CacheScope& scope) {
  auto found = roots_.find(scope);
  if (found == roots_.end()) {
    RootKey key{std::string(scope.weights), std::string(scope.salt)};
    found = roots_.emplace(std::move(key), std::make_unique<Node>()).first;
    found->second->key = &found->first;
  }
  return *found->second;
}

PrefixTree::Match PrefixTree::find(const CacheScope& scope,
                                   std::span<const std::int32_t> tokens) const {
  Match match;
  const auto root = roots_.find(scope);
  if (root == roots_.end() || tokens.empty()) {
    return match;
  }
  const Node* node = root->second.get();
  const std::size_t num_whole = tokens.size() / page_tokens_;
  for (std::size_t i = 0; i < num_whole; ++i) {
    const auto found = node->children.find(page_of(tokens, i));
    if (found == node->children.end()) {
      return match;
    }
    Node& child = *found->second;
    const bool last = (i + 1) * page_tokens_ == tokens.size();
    if (last && child.row_after != static_cast<std::int64_t>(page_tokens_)) {
      return match;  // the last token must be computed, and a page is written only once
    }
    if (!child.ready) {
      return waiting_match();
    }
    match.shared.push_back(&child);
    match.num_tokens += static_cast<std::int64_t>(page_tokens_);
    if (last) {
      match.row = child.row;
      return match;
    }
    node = &child;
  }
  const Tokens rest = page_of(tokens, num_whole);
  for (auto it = node->children.lower_bound(rest);
       it != node->children.end() && begins_with(it->first, rest); ++it) {
    Node& child = *it->second;
    if (child.row_after == static_cast<std::int64_t>(rest.size())) {
      if (!child.ready) {
        return waiting_match();
      }
      match.partial = &child;
      match.partial_page = child.page;
      match.num_tokens += child.row_after;
      match.row = child.row;
      return match;
    }
  }
  return match;
}

std::int64_t PrefixTree::num_idle(const Match& match) const {
  return std::ranges::count_if(match.shared, [](const Node* node) { return node->users == 0; });
}

void PrefixTree::use(const Match& match, std::vector<std::int32_t>& pages, Hold& hold) {
  TIDEMILL_CHECK(!match.wait && hold.path.empty() && pages.empty());
  ++now_;
  for (Node* node : match.shared) {
    begin_use(*node);
    pages.push_back(node->page);
    hold.path.push_back(node);
  }
  pool_.share(pages);
  hold.num_ready = hold.path.size();
  if (match.partial != nullptr) {  // about to be copied, so it must not be evicted soon
    begin_use(*match.partial);
    end_use(*match.partial);
  }
}

PrefixTree::Node& PrefixTree::parent_of_next(const Sequence& sequence, const Hold& hold) {
  return hold.path.empty() ? root_of(sequence.scope) : *hold.path.back();
}

void PrefixTree::expect(const Sequence& sequence, std::span<const std::int32_t> pages, Hold& hold) {
  const auto end = static_cast<std::size_t>(sequence.prompt_length);
  const std::size_t last_of_prompt = (end - 1) / page_tokens_;
  for (std::size_t i = hold.path.size(); i * page_tokens_ < sequence.tokens.size(); ++i) {
    Tokens tokens = page_of(sequence.tokens, i);
    // Before its page is full, only the end of a prompt gets a node.
    if (tokens.size() < page_tokens_ && end != sequence.tokens.size()) {
      return;
    }
    Node& parent = parent_of_next(sequence, hold);
    if (parent.children.contains(tokens)) {
      return;  // `advance` switches to it once the sequence has computed its own page
    }
    Node& node = add_child(parent, std::move(tokens), pages[i]);
    begin_use(node);
    if (i == last_of_prompt) {
      node.row_after = static_cast<std::int64_t>(end - i * page_tokens_);
    }
    hold.path.push_back(&node);
  }
}

void PrefixTree::advance(const Sequence& sequence, std::int64_t num_cached,
                         std::vector<std::int32_t>& pages, Hold& hold, HiddenRow row) {
  const auto computed = static_cast<std::size_t>(num_cached);
  for (; hold.num_ready < hold.path.size(); ++hold.num_ready) {
    Node& node = *hold.path[hold.num_ready];
    if (hold.num_ready * page_tokens_ + node.tokens.size() > computed) {
      break;
    }
    node.ready = true;
  }
  if (hold.num_ready == hold.path.size()) {
    while (complete_page(sequence, num_cached, pages, hold)) {
    }
  }
  const auto end = static_cast<std::size_t>(sequence.prompt_length);
  const std::size_t last_of_prompt = (end - 1) / page_tokens_;
  if (row != nullptr && last_of_prompt < hold.path.size()) {
    Node& node = *hold.path[last_of_prompt];
    node.row_after = static_cast<std::int64_t>(end - last_of_prompt * page_tokens_);
    node.row = std::move(row);
  }
}

// Adds the sequence's next page to the tree if it is full. Returns whether it did.
bool PrefixTree::complete_page(const Sequence& sequence, std::int64_t num_cached,
                               std::vector<std::int32_t>& pages, Hold& hold) {
  const bool grows = !hold.path.empty() && hold.path.back()->tokens.size() < page_tokens_;
  const std::size_t index = hold.path.size() - (grows ? 1 : 0);
  if ((index + 1) * page_tokens_ > static_cast<std::size_t>(num_cached)) {
    return false;
  }
  Tokens tokens = page_of(sequence.tokens, index);
  Node& parent = index == 0 ? root_of(sequence.scope) : *hold.path[index - 1];
  if (const auto found = parent.children.find(tokens); found != parent.children.end()) {
    return take_over(*found->second, index, pages, hold);
  }
  if (grows) {  // the node of the end of a prompt becomes that of a whole page
    Node& node = *hold.path.back();
    auto handle = parent.children.extract(node.tokens);
    node.tokens = tokens;
    handle.key() = std::move(tokens);
    parent.children.insert(std::move(handle));
    return true;
  }
  Node& node = add_child(parent, std::move(tokens), pages[index]);
  node.ready = true;
  begin_use(node);
  hold.path.push_back(&node);
  ++hold.num_ready;
  return true;
}

// Replaces the sequence's own page with an equal page that another sequence has computed. Returns
// false if that page is not computed yet.
bool PrefixTree::take_over(Node& existing, std::size_t index, std::vector<std::int32_t>& pages,
                           Hold& hold) {
  if (!existing.ready) {
    return false;
  }
  pool_.share({&existing.page, 1});
  pool_.release({&pages[index], 1});
  pages[index] = existing.page;
  begin_use(existing);
  if (index < hold.path.size()) {
    end_use(*hold.path[index]);
    hold.path[index] = &existing;
  } else {
    hold.path.push_back(&existing);
    ++hold.num_ready;
  }
  return true;
}

void PrefixTree::leave(Hold& hold, std::vector<std::int32_t>& pages) {
  pool_.release(pages);
  pages.clear();
  ++now_;
  for (std::size_t i = hold.path.size(); i > 0; --i) {
    Node& node = *hold.path[i - 1];
    end_use(node);
    if (!node.ready) {
      remove(node);
    }
  }
  hold = {};
}

std::int64_t PrefixTree::num_exclusive(const Hold& hold,
                                       std::span<const std::int32_t> pages) const {
  const auto first =
      std::ranges::partition_point(hold.path, [](const Node* node) { return node->users > 1; });
  return static_cast<std::int64_t>(pages.size()) - (first - hold.path.begin());
}

bool PrefixTree::allocate(std::int64_t count, std::vector<std::int32_t>& pages) {
  if (count > num_available()) {
    return false;
  }
  evict_until_free(count);
  return pool_.allocate(count, pages);
}

void PrefixTree::evict_until_free(std::int64_t count) {
  while (pool_.num_free() < count && !evictable_leaves_.empty()) {
    remove(*evictable_leaves_.begin()->second);
  }
}

void PrefixTree::keep_only(std::span<const std::string_view> weights) {
  for (auto it = roots_.begin(); it != roots_.end();) {
    const auto root = it++;  // `evict_subtree` may remove it
    if (std::ranges::find(weights, root->first.weights) == weights.end()) {
      evict_subtree(*root->second);
    }
  }
}

void PrefixTree::evict_subtree(Node& root) {
  std::vector<Node*> nodes{&root};  // parents before their children
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (const auto& [tokens, child] : nodes[i]->children) {
      nodes.push_back(child.get());
    }
  }
  for (std::size_t i = nodes.size(); i > 1; --i) {
    if (nodes[i - 1]->users == 0) {
      remove(*nodes[i - 1]);
    }
  }
}

PrefixTree::Node& PrefixTree::add_child(Node& parent, Tokens tokens, std::int32_t page) {
  auto child = std::make_unique<Node>();
  child->tokens = tokens;
  child->page = page;
  child->parent = &parent;
  child->serial = next_serial_++;
  Node& node = *child;
  TIDEMILL_CHECK(parent.children.emplace(std::move(tokens), std::move(child)).second);
  pool_.share({&page, 1});
  ++num_nodes_;
  ++num_evictable_;
  update_leaf(parent);
  return node;
}

void PrefixTree::begin_use(Node& node) {
  evictable_leaves_.erase({node.last_use, node.serial});
  node.last_use = now_;
  if (node.users++ == 0) {
    --num_evictable_;
  }
}

void PrefixTree::end_use(Node& node) {
  node.last_use = now_;
  if (--node.users == 0) {
    ++num_evictable_;
    update_leaf(node);
  }
}

void PrefixTree::remove(Node& leaf) {
  TIDEMILL_CHECK(leaf.users == 0 && leaf.children.empty());
  evictable_leaves_.erase({leaf.last_use, leaf.serial});
  pool_.release({&leaf.page, 1});
  --num_evictable_;
  --num_nodes_;
  Node& parent = *leaf.parent;
  parent.children.erase(parent.children.find(leaf.tokens));
  if (parent.key != nullptr && parent.children.empty()) {
    roots_.erase(roots_.find(*parent.key));
  } else {
    update_leaf(parent);
  }
}

// Updates the node's entry in `evictable_leaves_` after its users or children have changed.
void PrefixTree::update_leaf(Node& node) {
  if (node.parent == nullptr) {
    return;
  }
  if (node.users == 0 && node.children.empty()) {
    evictable_leaves_.insert_or_assign({node.last_use, node.serial}, &node);
  } else {
    evictable_leaves_.erase({node.last_use, node.serial});
  }
}

}  // namespace tidemill::engines
