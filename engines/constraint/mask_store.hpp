// SPDX-License-Identifier: Apache-2.0
// Private to engines/constraint/. Finds the tokens that may follow in a configuration, and keeps
// what it has found.
//
// Most tokens are decided by the state on top of the stack alone: their bytes end within its rule.
// The others are those with a prefix that ends the rule, and for these the frame below decides, and
// so on. XGrammar (Dong et al. 2024, arXiv:2411.15100) calls the two kinds context-independent and
// context-dependent, computes the first for each state, and tests the second at run time. Here, the
// second are kept too. The masks form a tree: a root for each state holds the tokens that its rule
// decides, and the prefixes that end the rule. Its child for a frame continues from those prefixes
// in the frame, and holds the additional tokens and the prefixes that end its rule as well. The
// tokens of a configuration are those on a path from its state's root, as many frames deep as
// tokens reach. A path that has been computed is never computed again, so a mask costs one lookup
// per frame that tokens reach, and one merge of bits per node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "engines/constraint/grammar.hpp"
#include "engines/constraint/token_index.hpp"

namespace tidemill::engines {

/// A set of tokens: their list, or a bit for each token if they are many.
class TokenSet {
public:
  void add(std::span<const std::int32_t> tokens, std::int32_t vocabulary);
  /// Sets the bits of the tokens.
  void merge_into(std::span<std::uint64_t> words) const;
  [[nodiscard]] std::size_t bytes() const noexcept {
    return list_.capacity() * sizeof(std::int32_t) + words_.capacity() * sizeof(std::uint64_t);
  }
  /// Releases memory that is not in use.
  void shrink() { list_.shrink_to_fit(); }

private:
  std::vector<std::int32_t> list_;
  std::vector<std::uint64_t> words_;
};

/// Computes and keeps masks.
/// Threads: safe to call concurrently; a mutex serializes calls.
class MaskStore {
public:
  /// Keeps at most about `max_bytes` of masks. If they need more, all are dropped and computed
  /// again. `grammar` and `index` must outlive the store.
  MaskStore(const Grammar& grammar, const TokenIndex& index, std::size_t max_bytes)
      : grammar_(grammar), index_(index), max_bytes_(max_bytes) {}

  /// Sets the bits of the tokens that may follow in the configuration of `state` and `stack`, of
  /// which the last frame is the top.
  /// Errors: `kResourceExhausted` if the schema is too ambiguous.
  [[nodiscard]] Status merge(std::int32_t state, std::span<const std::int32_t> stack,
                             std::span<std::uint64_t> words);

private:
  struct Node {
    TokenSet tokens;
    std::vector<std::int32_t> pending;  // nodes of the index at which the rule has ended
    std::int32_t reach = 0;             // frames that its tokens may need above its own
    std::map<std::int32_t, std::unique_ptr<Node>> children;  // by frame
  };
  // A configuration during a walk. Its frames are in `frames_`.
  struct Local {
    std::int32_t state = 0;
    std::int32_t frame = -1;  // the top, or -1: that from which the walk began
  };
  struct Frame {
    std::int32_t state = 0;
    std::int32_t below = -1;
    std::int32_t depth = 0;  // with this one
  };
  struct Level {
    std::size_t first = 0;       // of its configurations in `locals_`
    std::size_t num_frames = 0;  // in `frames_`
  };
  struct Walk {
    Node* node = nullptr;
    std::int32_t room = 0;  // frames that may be pushed
    bool ended = false;     // the rule from which the walk began has ended at this prefix
  };

  [[nodiscard]] Status merge_path(std::int32_t state, std::span<const std::int32_t> stack,
                                  bool limited, bool& valid, std::vector<const Node*>& path);
  [[nodiscard]] Status compute(std::int32_t state, std::span<const std::int32_t> prefixes,
                               std::int32_t room, Node& node);
  [[nodiscard]] Status walk(std::int32_t state, std::int32_t prefix, Walk& walk);
  [[nodiscard]] Status add(Local local, std::size_t first, Walk& walk);
  [[nodiscard]] Status step(const Level& from, std::uint8_t byte, Walk& walk);
  void account(const Node& node);

  const Grammar& grammar_;
  const TokenIndex& index_;
  std::size_t max_bytes_;
  std::mutex mutex_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::unique_ptr<Node>> roots_;
  std::size_t bytes_ = 0;
  std::int64_t steps_ = 0;  // of the current call
  std::vector<Local> locals_;
  std::vector<Frame> frames_;
  std::vector<Level> levels_;
};

}  // namespace tidemill::engines
