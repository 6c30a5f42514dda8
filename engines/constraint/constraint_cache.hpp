// SPDX-License-Identifier: Apache-2.0
// Keeps the constraints that requests share.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/result.hpp"
#include "engines/constraint/constraint.hpp"
#include "engines/tokenizer/tokenizer.hpp"

namespace tidemill::engines {

/// An LRU cache of compiled constraints for one tokenizer. The index of its tokens is made at the
/// first use. At most `kMaxConstraints` are kept; requests in progress keep theirs.
///
/// Threads: safe to call concurrently.
class ConstraintCache {
public:
  static constexpr std::size_t kMaxConstraints = 16;
  /// The memory of all that are kept, at most about. Each has up to `Constraint::kMaskBytes` of
  /// masks and 10 MiB of states.
  static constexpr std::size_t kMaxBytes =
      kMaxConstraints * (Constraint::kMaskBytes + (std::size_t{10} << 20U));
  /// Constraints with longer keys are not kept.
  static constexpr std::size_t kMaxKeyBytes = std::size_t{256} << 10U;

  /// `vocabulary` is that of the model, which may have more tokens than the tokenizer.
  ConstraintCache(Tokenizer tokenizer, std::int32_t vocabulary)
      : tokenizer_(std::move(tokenizer)), vocabulary_(vocabulary) {}

  /// Returns the constraint of `key`, or makes it from what `compile` returns. Two concurrent calls
  /// with a new key may both compile.
  /// Errors: those of `compile`, which are not kept.
  [[nodiscard]] Result<std::shared_ptr<const Constraint>> get(
      const std::string& key, const std::function<Result<Grammar>()>& compile);

private:
  struct Entry {
    std::string key;
    std::shared_ptr<const Constraint> constraint;
  };
  [[nodiscard]] std::shared_ptr<const Constraint> find(const std::string& key);

  Tokenizer tokenizer_;
  std::int32_t vocabulary_;
  std::once_flag indexed_;
  std::shared_ptr<const TokenIndex> index_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // the last used first
};

/// Returns the index of a tokenizer's tokens. No text contains its special tokens.
[[nodiscard]] std::shared_ptr<const TokenIndex> index_tokens(const Tokenizer& tokenizer,
                                                             std::int32_t vocabulary);

}  // namespace tidemill::engines
