// SPDX-License-Identifier: Apache-2.0
#include "engines/constraint/constraint_cache.hpp"

#include <algorithm>
#include <string_view>

namespace tidemill::engines {

std::shared_ptr<const TokenIndex> index_tokens(const Tokenizer& tokenizer,
                                               std::int32_t vocabulary) {
  return std::make_shared<const TokenIndex>(vocabulary, [&](std::int32_t token) {
    const bool in_text = tokenizer.contains(token) && !tokenizer.is_special(token);
    return in_text ? tokenizer.token_bytes(token) : std::string_view();
  });
}

// Returns a constraint and makes it the last used, or null.
std::shared_ptr<const Constraint> ConstraintCache::find(const std::string& key) {
  const std::scoped_lock lock(mutex_);
  const auto found = std::ranges::find(entries_, key, &Entry::key);
  if (found == entries_.end()) {
    return nullptr;
  }
  entries_.splice(entries_.begin(), entries_, found);
  return found->constraint;
}

Result<std::shared_ptr<const Constraint>> ConstraintCache::get(
    const std::string& key, const std::function<Result<Grammar>()>& compile) {
  if (auto known = find(key)) {
    return known;
  }
  TIDEMILL_ASSIGN_OR_RETURN(Grammar grammar, compile());
  std::call_once(indexed_, [this] { index_ = index_tokens(tokenizer_, vocabulary_); });
  auto made = std::make_shared<const Constraint>(std::move(grammar), index_);
  if (key.size() > kMaxKeyBytes) {
    return std::shared_ptr<const Constraint>(std::move(made));
  }
  const std::scoped_lock lock(mutex_);
  entries_.push_front({key, made});
  if (entries_.size() > kMaxConstraints) {
    entries_.pop_back();
  }
  return std::shared_ptr<const Constraint>(std::move(made));
}

}  // namespace tidemill::engines
