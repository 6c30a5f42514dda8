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
  context_.job_pages -= num_pages_;
  for (const Run& run : runs_) {
    context_.cache->release(run.pages);
  }
  for (const Prompt& prompt : prompts_) {
    context_.cache->release(prompt.pages);
  }
  if (reserved_ != nullptr) {
    reserved_->reset();
  }
}

// Returns whether a sequence with `prompt` is the first in this micro-batch that shares it.
bool MicroBatch::starts_prompt(const SharedPrompt& prompt) const noexcept {
  return prompt.num_tokens > 0 && !open_;
}

std::int64_t MicroBatch::rows_of(const TrainSequence& sequence,
                                 const SharedPrompt& prompt) const noexcept {
  return num_rows(sequence) - (starts_prompt(prompt) ? 0 : prompt.num_tokens);
}

// Allocates pages that the cache shares.
bool MicroBatch::take_shared(std::int64_t needed, std::vector<std::int32_t>& pages) {
  KvCache& cache = *context_.cache;
  if (needed > cache.num_shared_pages() - context_.job_pages) {
    return false;  // generation could not give up enough
  }
  if (needed > cache.num_free_pages()) {
    context_.make_room(needed, rows() == 0 ? ReclaimFrom::kRunning : ReclaimFrom::kCached);
  }
  if (!cache.allocate(needed, pages)) {
    return false;
  }
  num_pages_ += needed;
  context_.job_pages += needed;
  return true;
}

// Allocates the pages of the first `count` tokens of a sequence. It shares the whole pages of a
// shared prompt and allocates the others. The first sequence that shares a prompt allocates the
// prompt's pages too: it continues in the page in which the prompt ends.
bool MicroBatch::allocate(std::int64_t count, const SharedPrompt& prompt,
                          std::vector<std::int32_t>& pages) {
  KvCache& cache = *context_.cache;
  const std::int64_t page_tokens = cache.options().page_tokens;
  const std::int64_t given = starts_prompt(prompt) ? 0 : prompt.num_tokens / page_tokens;
  const std::int64_t needed = cache.pages_for(count) - given;
  std::vector<std::int32_t> taken;
  if (!(reserved_ != nullptr ? reserved_->take(needed, taken) : take_shared(needed, taken))) {
    return false;
  }
  if (given > 0) {
    pages.assign(prompts_.back().pages.begin(), prompts_.back().pages.begin() + given);
    cache.share(pages);
  }
  pages.insert(pages.end(), taken.begin(), taken.end());
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
  if (starts_prompt(prompt)) {
    const auto of_prompt = static_cast<std::size_t>(context_.cache->pages_for(prompt.num_tokens));
    const auto first = std::span(std::as_const(pages)).first(of_prompt);
    context_.cache->share(first);
    prompts_.push_back({ids.first(shared), {first.begin(), first.end()}});
  }
  ranges_.push_back({&sequence, shared + 1, targets_.size(), ids.size() - shared});
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

// Appends the rows of the last prompt after those of all sequences that share it.
void MicroBatch::train_prompt() {
  Prompt& prompt = prompts_.back();
  prompt.run = std::ssize(runs_);
  targets_.insert(targets_.end(), prompt.ids.size(), -1);
  runs_.push_back({prompt.ids, std::exchange(prompt.pages, {}), 0, 0});
}

// Returns the segment of a run. Segment `first_run` of the batch is the first run.
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

// Returns the number of rows that go through a layer together, forward as backward.
std::int64_t MicroBatch::window_rows(std::int64_t window_tokens) const {
  std::int64_t longest = 0;
  for (const Segment& segment : batch_.segments) {
    longest = std::max(longest, segment.num_tokens);
  }
  return layer_rows(batch_.num_rows(), longest, {window_tokens});
}

std::unique_ptr<UnitSequence> MicroBatch::start_forward(Transformer& transformer,
                                                        const LaidOutWeights& weights,
                                                        Activations& activations,
                                                        std::int64_t window_tokens) {
  make_batch(weights.adapter.get());
  ForwardOptions options{.activations = &activations};
  options.window_tokens = window_rows(window_tokens);
  return transformer.start_forward(*weights.base, batch_, *context_.cache, options);
}

ConstMatrix MicroBatch::hidden(const Transformer& transformer) const {
  const ConstMatrix all = transformer.hidden();
  const std::int64_t count = batch_.num_training_rows();
  return all.slice_rows(all.rows - count, count);
}

// Returns the keys of the rows of the batch.
std::vector<DigestKey> MicroBatch::row_keys(const LaidOutWeights& weights) const {
  const TokenChain empty(weights_name(weights));
  std::vector<DigestKey> keys;
  const auto append = [&keys](TokenChain& chain, std::span<const std::int32_t> ids) {
    for (const std::int32_t id : ids) {
      keys.push_back(chain.append(id));
    }
  };
  std::vector<TokenChain> prompts;  // at the ends of `prompts_`
  for (const Prompt& prompt : prompts_) {
    append(prompts.emplace_back(empty), prompt.ids);
    if (!open_ || &prompt != &prompts_.back()) {
      keys.clear();  // its rows are those of a run, added below
    }
  }
  for (const Run& run : runs_) {
    TokenChain chain = run.first_position > 0 ? prompts[run.prompt] : empty;
    append(chain, run.ids);
  }
  return keys;
}

std::unique_ptr<UnitSequence> MicroBatch::start_recall(Transformer& transformer,
                                                       const LaidOutWeights& weights,
                                                       Activations& activations,
                                                       GeneratedRows& generated,
                                                       std::int64_t window_tokens) {
  if (!generated.find(row_keys(weights))) {
    return nullptr;
  }
  make_batch(weights.adapter.get());
  KeySource keys = generated.load(batch_.num_training_rows(), activations);
  return transformer.start_recall(*weights.base, batch_, *context_.cache, activations,
                                  std::move(keys), window_rows(window_tokens));
}

std::vector<std::int64_t> MicroBatch::sequence_rows() const {
  std::vector<std::int64_t> rows;
  for (const Run& run : runs_) {
    rows.push_back(std::ssize(run.ids));
  }
  return rows;
}

std::vector<MicroBatch::TokenRange> MicroBatch::tokens_of(std::int64_t first,
                                                          std::int64_t end) const {
  std::vector<TokenRange> ranges;
  for (const TokenRange& all : ranges_) {
    const std::size_t begin = std::max(all.first_row, static_cast<std::size_t>(first));
    const std::size_t stop = std::min(all.first_row + all.count, static_cast<std::size_t>(end));
    if (begin < stop) {
      ranges.push_back(
          {all.sequence, all.first_token + (begin - all.first_row), begin, stop - begin});
    }
  }
  return ranges;
}

std::vector<std::vector<float>> MicroBatch::to_columns(std::span<const float> rows) const {
  TIDEMILL_CHECK(rows.size() == targets_.size());
  std::vector<std::vector<float>> columns;
  for (const TokenRange& range : ranges_) {
    std::vector<float>& column = columns.emplace_back(range.sequence->ids.size());
    const auto values = rows.subspan(range.first_row, range.count);
    std::ranges::copy(values, column.begin() + static_cast<std::ptrdiff_t>(range.first_token));
  }
  return columns;
}

std::vector<float> MicroBatch::to_rows(const std::vector<std::vector<float>>& columns) const {
  std::vector<float> rows(targets_.size());
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    const TokenRange& range = ranges_[i];
    const auto values = std::span(columns[i]).subspan(range.first_token, range.count);
    std::ranges::copy(values, rows.begin() + static_cast<std::ptrdiff_t>(range.first_row));
  }
  return rows;
}

}  // namespace tidemill::engines
