// SPDX-License-Identifier: Apache-2.0
#include "engines/runtime/micro_batch.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.hpp"

namespace tidemill::engines {

std::int64_t num_rows(const TrainSequence& sequence) noexcept {
  std::size_t last = sequence.response_mask.size();
  while (last > 1 && sequence.response_mask[last - 1] == 0) {
    --last;
  }
  return last > 1 ? static_cast<std::int64_t>(last) - 1 : 0;
}

MicroBatch::~MicroBatch() {
  for (const Run& run : runs_) {
    device_.cache->release(run.pages);
  }
  for (const Prompt& prompt : prompts_) {
    device_.cache->release(prompt.pages);
  }
}

// Whether a sequence with `prompt` is the first of those that share it here.
bool MicroBatch::opens(const SharedPrompt& prompt) const noexcept {
  return prompt.num_tokens > 0 && !open_;
}

std::int64_t MicroBatch::rows_of(const TrainSequence& sequence,
                                 const SharedPrompt& prompt) const noexcept {
  return num_rows(sequence) - (opens(prompt) ? 0 : prompt.num_tokens);
}

// Gets the pages of a sequence's first `count` tokens: whole ones of its prompt from that, the
// others fresh. The first to share a prompt has its pages too: the prompt ends where that one goes
// on.
bool MicroBatch::allocate(std::int64_t count, const SharedPrompt& prompt,
                          std::vector<std::int32_t>& pages) {
  KvCache& cache = *device_.cache;
  const std::int64_t page_tokens = cache.options().page_tokens;
  const std::int64_t given = opens(prompt) ? 0 : prompt.num_tokens / page_tokens;
  const std::int64_t needed = cache.pages_for(count) - given;
  if (needed > cache.num_free_pages()) {
    device_.make_room(needed, rows() == 0 ? RoomFrom::kRunning : RoomFrom::kCached);
  }
  if (given > 0) {
    pages.assign(prompts_.back().pages.begin(), prompts_.back().pages.begin() + given);
  }
  if (!cache.allocate(needed, pages)) {
    return false;
  }
  cache.share(std::span(pages).first(static_cast<std::size_t>(given)));
  return true;
}

bool MicroBatch::add(const TrainSequence& sequence, const SharedPrompt& prompt) {
  const std::int64_t count = num_rows(sequence);
  std::vector<std::int32_t> pages;
  if (!allocate(count, prompt, pages)) {
    return false;
  }
  num_rows_ += rows_of(sequence, prompt);
  sequences_.push_back(&sequence);
  const auto ids = std::span(sequence.ids).first(static_cast<std::size_t>(count));
  const auto shared = static_cast<std::size_t>(prompt.num_tokens);
  if (opens(prompt)) {
    const auto of_prompt = static_cast<std::size_t>(device_.cache->pages_for(prompt.num_tokens));
    const auto first = std::span(std::as_const(pages)).first(of_prompt);
    device_.cache->share(first);
    prompts_.push_back({ids.first(shared), {first.begin(), first.end()}});
  }
  places_.push_back({targets_.size(), shared + 1, ids.size() - shared});
  for (std::size_t t = shared + 1; t <= ids.size(); ++t) {
    targets_.push_back(sequence.response_mask[t] != 0 ? sequence.ids[t] : -1);
  }
  if (count > 0) {
    runs_.push_back({ids.subspan(shared), std::move(pages), prompt.num_tokens,
                     prompts_.empty() ? 0 : prompts_.size() - 1});
  }
  open_ = !prompt.last;
  if (shared > 0 && prompt.last) {
    train_prompt();
  }
  return true;
}

// Puts the rows of the last prompt behind those of all that share it.
void MicroBatch::train_prompt() {
  Prompt& prompt = prompts_.back();
  prompt.run = std::ssize(runs_);
  targets_.insert(targets_.end(), prompt.ids.size(), -1);
  runs_.push_back({prompt.ids, std::exchange(prompt.pages, {}), 0, 0});
}

// The segment of a run; the batch's segment `first_run` is the first run.
Segment MicroBatch::segment_of(const Run& run, std::int64_t first_run,
                               const Adapter* adapter) const {
  Segment segment{std::ssize(run.ids), run.first_position, run.pages, adapter,
                  SegmentMode::kTraining};
  if (run.first_position > 0) {
    const Prompt& prompt = prompts_[run.prompt];
    segment.prefix = prompt.run >= 0 ? first_run + prompt.run : 0;
  }
  return segment;
}

void MicroBatch::make_batch(const Adapter* adapter) {
  batch_ = {};
  if (open_) {
    const Prompt& prompt = prompts_.back();
    batch_.ids.assign(prompt.ids.begin(), prompt.ids.end());
    batch_.segments.push_back({std::ssize(prompt.ids), 0, prompt.pages, adapter});
    batch_.segments.back().num_hidden = 0;
  }
  const auto first_run = std::ssize(batch_.segments);
  for (const Run& run : runs_) {
    batch_.ids.insert(batch_.ids.end(), run.ids.begin(), run.ids.end());
    batch_.segments.push_back(segment_of(run, first_run, adapter));
  }
}

ConstMatrix MicroBatch::training_rows(ConstMatrix hidden) const {
  const std::int64_t count = batch_.num_training_rows();
  return hidden.slice_rows(hidden.rows - count, count);
}

ConstMatrix MicroBatch::forward(const LaidOutWeights& weights, Activations& activations) {
  make_batch(weights.adapter.get());
  return training_rows(
      device_.transformer->forward(*weights.base, batch_, *device_.cache, {&activations}));
}

// The names of the batch's rows.
std::vector<DigestKey> MicroBatch::row_names(const LaidOutWeights& weights) const {
  const TokenChain nothing(weights_name(weights));
  std::vector<DigestKey> names;
  const auto append = [&names](TokenChain& chain, std::span<const std::int32_t> ids) {
    for (const std::int32_t id : ids) {
      names.push_back(chain.append(id));
    }
  };
  std::vector<TokenChain> prompts;  // of `prompts_`, at their ends
  for (const Prompt& prompt : prompts_) {
    append(prompts.emplace_back(nothing), prompt.ids);
    if (!open_ || &prompt != &prompts_.back()) {
      names.clear();  // its rows are those of a run
    }
  }
  for (const Run& run : runs_) {
    TokenChain chain = run.first_position > 0 ? prompts[run.prompt] : nothing;
    append(chain, run.ids);
  }
  return names;
}

std::optional<ConstMatrix> MicroBatch::recall(const LaidOutWeights& weights,
                                              Activations& activations, GeneratedRows& generated) {
  if (!generated.find(row_names(weights))) {
    return std::nullopt;
  }
  make_batch(weights.adapter.get());
  const KeySource keys = generated.load(batch_.num_training_rows());
  return training_rows(
      device_.transformer->recall(*weights.base, batch_, *device_.cache, activations, keys));
}

std::vector<std::vector<float>> MicroBatch::to_columns(std::span<const float> rows) const {
  TIDEMILL_CHECK(rows.size() == targets_.size());
  std::vector<std::vector<float>> columns;
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    const Place& place = places_[i];
    std::vector<float>& column = columns.emplace_back(sequences_[i]->ids.size());
    const auto values = rows.subspan(place.first_row, place.count);
    std::ranges::copy(values, column.begin() + static_cast<std::ptrdiff_t>(place.first_token));
  }
  return columns;
}

std::vector<float> MicroBatch::to_rows(const std::vector<std::vector<float>>& columns) const {
  std::vector<float> rows(targets_.size());
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    const Place& place = places_[i];
    const auto values = std::span(columns[i]).subspan(place.first_token, place.count);
    std::ranges::copy(values, rows.begin() + static_cast<std::ptrdiff_t>(place.first_row));
  }
  return rows;
}

}  // namespace tidemill::engines
