// SPDX-License-Identifier: Apache-2.0
#include "engines/constraint/mask_store.hpp"

#include <algorithm>
#include <limits>

namespace tidemill::engines {
namespace {

constexpr std::int32_t kNoLimit = std::numeric_limits<std::int32_t>::max() / 2;
// Configurations after one prefix, and steps of a call. Only schemas whose alternatives cannot be
// told apart reach them.
constexpr std::size_t kMaxLocals = 64;
constexpr std::int64_t kMaxSteps = 20'000'000;
// A set of more than one in so many tokens is kept as bits.
constexpr std::size_t kTokensPerBitSet = 32;

Status too_ambiguous() {
  return {Errc::kResourceExhausted,
          "the schema has too many alternatives that begin with the same text"};
}

}  // namespace

void TokenSet::add(std::span<const std::int32_t> tokens, std::int32_t vocabulary) {
  if (words_.empty()) {
    list_.insert(list_.end(), tokens.begin(), tokens.end());
    if (list_.size() * kTokensPerBitSet <= static_cast<std::size_t>(vocabulary)) {
      return;
    }
    words_.resize((static_cast<std::size_t>(vocabulary) + 63) / 64);
    tokens = list_;
  }
  for (const std::int32_t token : tokens) {
    words_[static_cast<std::size_t>(token) / 64] |= std::uint64_t{1} << (token % 64);
  }
  if (!list_.empty()) {
    list_ = {};
  }
}

void TokenSet::merge_into(std::span<std::uint64_t> words) const {
  for (std::size_t i = 0; i < words_.size(); ++i) {
    words[i] |= words_[i];
  }
  for (const std::int32_t token : list_) {
    words[static_cast<std::size_t>(token) / 64] |= std::uint64_t{1} << (token % 64);
  }
}

// Adds a configuration to those from `first` on, and those that follow because its rule may end.
Status MaskStore::add(Local local, std::size_t first, Walk& walk) {
  for (;;) {
    const bool known = std::any_of(locals_.begin() + static_cast<std::ptrdiff_t>(first),
                                   locals_.end(), [&](const Local& one) {
                                     if (one.state != local.state) {
                                       return false;
                                     }
                                     std::int32_t a = one.frame;
                                     std::int32_t b = local.frame;
                                     while (a != b && a >= 0 && b >= 0 &&
                                            frames_[static_cast<std::size_t>(a)].state ==
                                                frames_[static_cast<std::size_t>(b)].state) {
                                       a = frames_[static_cast<std::size_t>(a)].below;
                                       b = frames_[static_cast<std::size_t>(b)].below;
                                     }
                                     return a == b;
                                   });
    if (!known && !grammar_.entries_of(local.state).empty()) {
      locals_.push_back(local);
    }
    if (locals_.size() - first > kMaxLocals) {
      return too_ambiguous();
    }
    if (!grammar_.accepts_at(local.state)) {
      return {};
    }
    if (local.frame < 0) {
      walk.ended = true;
      return {};
    }
    const Frame& top = frames_[static_cast<std::size_t>(local.frame)];
    local = {top.state, top.below};
  }
}

// Appends the configurations after `byte` to `locals_`.
Status MaskStore::step(const Level& from, std::uint8_t byte, Walk& walk) {
  const std::size_t end = locals_.size();
  for (std::size_t i = from.first; i < end; ++i) {
    const Local local = locals_[i];
    const std::int32_t depth =
        local.frame < 0 ? 0 : frames_[static_cast<std::size_t>(local.frame)].depth;
    for (const GrammarEntry& entry : grammar_.entries_of(local.state)) {
      const std::int32_t to = grammar_.after(entry.state, byte);
      ++steps_;
      if (to < 0) {
        continue;
      }
      const std::int32_t reach =
          depth + std::max(entry.reach, entry.num_frames + grammar_.need_of(to));
      walk.node->reach = std::max(walk.node->reach, reach);
      if (reach > walk.room) {
        continue;
      }
      Local next{to, local.frame};
      for (const std::int32_t state : grammar_.frames_of(entry)) {
        const std::int32_t below =
            next.frame < 0 ? 0 : frames_[static_cast<std::size_t>(next.frame)].depth;
        frames_.push_back({state, next.frame, below + 1});
        next.frame = static_cast<std::int32_t>(frames_.size()) - 1;
      }
      TIDEMILL_RETURN_IF_ERROR(add(next, end, walk));
    }
  }
  return {};
}

// Finds the tokens that begin with `prefix` and go on in `state`.
Status MaskStore::walk(std::int32_t state, std::int32_t prefix, Walk& walk) {
  const std::int32_t base = index_.depth(prefix);
  locals_.clear();
  frames_.clear();
  levels_.assign(1, {});
  walk.ended = false;
  TIDEMILL_RETURN_IF_ERROR(add({state, -1}, 0, walk));
  // What follows the end of a rule at the empty prefix has a configuration of its own.
  if (walk.ended && prefix > 0) {
    walk.node->pending.push_back(prefix);
  }
  for (std::int32_t node = prefix + 1; node < index_.end(prefix);) {
    // Configurations of longer prefixes are dropped.
    const auto level = static_cast<std::size_t>(index_.depth(node) - base);
    if (levels_.size() > level) {
      locals_.resize(levels_[level].first);
      frames_.resize(levels_[level].num_frames);
      levels_.resize(level);
    }
    const Level added{locals_.size(), frames_.size()};
    walk.ended = false;
    TIDEMILL_RETURN_IF_ERROR(step(levels_.back(), index_.byte(node), walk));
    if (steps_ > kMaxSteps) {
      return too_ambiguous();
    }
    const bool goes_on = locals_.size() > added.first;
    if (goes_on || walk.ended) {
      walk.node->tokens.add(index_.tokens(node), index_.vocabulary());
    }
    if (walk.ended && index_.end(node) > node + 1) {
      walk.node->pending.push_back(node);
    }
    if (goes_on) {
      levels_.push_back(added);
      ++node;
    } else {
      locals_.resize(added.first);
      frames_.resize(added.num_frames);
      node = index_.end(node);
    }
  }
  return {};
}

void MaskStore::account(const Node& node) {
  bytes_ += sizeof(Node) + node.tokens.bytes() + node.pending.capacity() * sizeof(std::int32_t);
}

Status MaskStore::compute(std::int32_t state, std::span<const std::int32_t> prefixes,
                          std::int32_t room, Node& node) {
  Walk walk{&node, room, false};
  for (const std::int32_t prefix : prefixes) {
    TIDEMILL_RETURN_IF_ERROR(this->walk(state, prefix, walk));
  }
  node.tokens.shrink();
  node.pending.shrink_to_fit();
  account(node);
  return {};
}

// Collects the nodes of a configuration. If `limited`, they are those for exactly its depth;
// otherwise `valid` tells whether its depth has enough room for all their tokens.
Status MaskStore::merge_path(std::int32_t state, std::span<const std::int32_t> stack, bool limited,
                             bool& valid, std::vector<const Node*>& path) {
  const std::int32_t room = grammar_.max_depth - static_cast<std::int32_t>(stack.size());
  constexpr std::int32_t kRoot[] = {0};
  std::unique_ptr<Node>* slot = &roots_[{state, limited ? room : -1}];
  std::span<const std::int32_t> prefixes = kRoot;
  std::int32_t at = state;
  for (std::size_t level = 0;; ++level) {
    const std::int32_t room_here = room + static_cast<std::int32_t>(level);
    if (*slot == nullptr) {
      auto made = std::make_unique<Node>();
      TIDEMILL_RETURN_IF_ERROR(compute(at, prefixes, limited ? room_here : kNoLimit, *made));
      *slot = std::move(made);
    }
    Node& node = **slot;
    path.push_back(&node);
    valid = limited || node.reach <= room_here;
    if (!valid || node.pending.empty() || level == stack.size()) {
      return {};
    }
    at = stack[stack.size() - 1 - level];
    prefixes = node.pending;
    slot = &node.children[at];
  }
}

Status MaskStore::merge(std::int32_t state, std::span<const std::int32_t> stack,
                        std::span<std::uint64_t> words) {
  const std::scoped_lock lock(mutex_);
  if (bytes_ > max_bytes_) {
    roots_.clear();
    bytes_ = 0;
  }
  steps_ = 0;
  std::vector<const Node*> path;
  bool valid = true;
  TIDEMILL_RETURN_IF_ERROR(merge_path(state, stack, false, valid, path));
  if (!valid) {
    path.clear();
    TIDEMILL_RETURN_IF_ERROR(merge_path(state, stack, true, valid, path));
  }
  for (const Node* node : path) {
    node->tokens.merge_into(words);
  }
  return {};
}

}  // namespace tidemill::engines
