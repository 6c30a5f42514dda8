// SPDX-License-Identifier: Apache-2.0
#include "engines/sampling/adjusted_logits.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>

#include "base/check.hpp"

namespace tidemill::engines {

bool reads_history(const SamplingOptions& options) noexcept {
  return options.repetition_penalty != 1.0F || options.frequency_penalty != 0.0F ||
         options.presence_penalty != 0.0F;
}

AdjustedLogits::Changed& AdjustedLogits::change(std::int32_t token) {
  const auto at = static_cast<std::size_t>(token);
  if (slots_[at] < 0) {
    std::int32_t& head = heads_[at / kMassBlock];
    Changed added;
    added.token = token;
    added.next = head;
    added.logit = static_cast<double>(logits_[at]);
    head = static_cast<std::int32_t>(changed_.size());
    slots_[at] = head;
    changed_.push_back(added);
  }
  return changed_[static_cast<std::size_t>(slots_[at])];
}

void AdjustedLogits::penalize(const SamplingOptions& options, const TokenHistory& history) {
  for (const std::int32_t id : history.output_ids) {
    ++change(id).count;
  }
  // Each token is penalized once, at its first occurrence. The order does not matter, since the
  // penalties of one token do not affect any other.
  for (const std::span<const std::int32_t> ids : {history.prompt_ids, history.output_ids}) {
    for (const std::int32_t id : ids) {
      Changed& changed = change(id);
      if (changed.penalized) {
        continue;
      }
      changed.penalized = true;
      const auto factor = static_cast<double>(options.repetition_penalty);
      double& logit = changed.logit;
      logit = logit > 0.0 ? logit / factor : logit * factor;
      if (changed.count > 0) {
        logit -= static_cast<double>(options.frequency_penalty) * changed.count +
                 static_cast<double>(options.presence_penalty);
      }
    }
  }
}

Status AdjustedLogits::apply(std::span<const float> logits, const SamplingOptions& options,
                             const TokenHistory& history, TokenMask mask) {
  TIDEMILL_CHECK(mask.words.empty() || mask.words.size() * 64 >= logits.size())
      << mask.words.size();
  for (const Changed& changed : changed_) {
    slots_[static_cast<std::size_t>(changed.token)] = -1;
    heads_[static_cast<std::size_t>(changed.token) / kMassBlock] = -1;
  }
  changed_.clear();
  logits_ = logits;
  mask_ = mask;
  const bool penalizes = reads_history(options);
  if (options.logit_bias.empty() && !penalizes) {
    return {};
  }
  for (const std::span<const std::int32_t> ids : {history.prompt_ids, history.output_ids}) {
    for (const std::int32_t id : penalizes ? ids : std::span<const std::int32_t>()) {
      if (id < 0 || static_cast<std::size_t>(id) >= logits.size()) {
        return invalid_argument("token " + std::to_string(id) + " is outside the vocabulary");
      }
    }
  }
  slots_.resize(std::max(slots_.size(), logits.size()), -1);
  heads_.resize(std::max(heads_.size(), num_blocks()), -1);
  for (const auto& [token, bias] : options.logit_bias) {
    change(token).logit += static_cast<double>(bias);
  }
  if (penalizes) {
    penalize(options, history);
  }
  for (Changed& changed : changed_) {
    if (!mask.allows(static_cast<std::size_t>(changed.token))) {
      changed.logit = -std::numeric_limits<double>::infinity();
    }
  }
  return {};
}

// Sets the logits of a block that are not allowed to minus infinity. Words have few bits of one
// kind if they have any.
void AdjustedLogits::mask_block(std::size_t begin, std::span<float> block) const {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  for (std::size_t at = 0; at < block.size(); at += 64) {
    const std::span<float> part = block.subspan(at, std::min<std::size_t>(64, block.size() - at));
    const std::uint64_t word = mask_.words[(begin + at) / 64];
    if (word == 0) {
      std::ranges::fill(part, kNone);
      continue;
    }
    for (std::uint64_t refused = ~word; refused != 0; refused &= refused - 1) {
      const auto bit = static_cast<std::size_t>(std::countr_zero(refused));
      if (bit >= part.size()) {
        break;
      }
      part[bit] = kNone;
    }
  }
}

std::span<const float> AdjustedLogits::block(std::size_t block,
                                             std::array<float, kMassBlock>& copy) const {
  const std::size_t begin = block * kMassBlock;
  const auto row = logits_.subspan(begin, std::min(kMassBlock, logits_.size() - begin));
  if (!changes(block) && mask_.words.empty()) {
    return row;
  }
  std::ranges::copy(row, copy.begin());
  if (!mask_.words.empty()) {
    mask_block(begin, std::span(copy).first(row.size()));
  }
  each_changed(block, [&](const Changed& changed) {
    copy[static_cast<std::size_t>(changed.token) - begin] = -std::numeric_limits<float>::infinity();
  });
  return std::span(copy).first(row.size());
}

}  // namespace tidemill::engines
