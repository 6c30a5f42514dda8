// SPDX-License-Identifier: Apache-2.0
// docs/architecture.md, I7: a row has the same bits in a decode step, a prefill chunk and a
// training window, whatever shares its batch, however its sequence is cut, and whichever pages hold
// its keys.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/engines/ops/device_values.hpp"
#include "tests/engines/transformer/model_harness.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

// A sequence that random batches process in pieces.
struct ScheduledSequence {
  std::vector<std::int32_t> ids;
  const Adapter* adapter = nullptr;
  bool training = false;  // processed as one window
  std::vector<std::int32_t> pages;
  std::int64_t done = 0;
  Rows hidden;    // of the processed positions, without those of a reused prefix
  Rows expected;  // of the whole sequence alone, as one inference chunk

  [[nodiscard]] std::int64_t length() const { return static_cast<std::int64_t>(ids.size()); }
};

class RandomSchedule {
public:
  // Inference sequences use random adapters of `adapters` (null: none), training sequences use
  // `trained`.
  RandomSchedule(ModelHarness& harness, const std::vector<const Adapter*>& adapters,
                 const Adapter* trained, RandomStream& random)
      : harness_(harness), random_(random) {
    for (int i = 0; i < 7; ++i) {
      ScheduledSequence sequence;
      sequence.ids =
          random_ids(harness.config, static_cast<std::int64_t>(1 + random.below(45)), random);
      sequence.adapter = adapters[random.below(adapters.size())];
      add(std::move(sequence));
    }
    for (int i = 0; i < 3; ++i) {
      ScheduledSequence sequence;
      sequence.ids =
          random_ids(harness.config, static_cast<std::int64_t>(1 + random.below(45)), random);
      sequence.adapter = trained;
      sequence.training = true;
      add(std::move(sequence));
    }
  }

  // Runs batches of random sequences and chunks until all sequences are done.
  void run() {
    while (step()) {
      ++steps;
    }
  }

  // Runs new sequences that start with the full pages of a finished one and then diverge.
  void run_with_reused_prefixes() {
    std::vector<ScheduledSequence> continuations;
    for (const ScheduledSequence& donor : sequences) {
      const std::int64_t shared_pages = donor.length() / 16;
      if (donor.training || shared_pages == 0) {
        continue;
      }
      ScheduledSequence continuation;
      continuation.ids.assign(donor.ids.begin(), donor.ids.begin() + shared_pages * 16);
      const auto tail = random_ids(harness_.config, 9, random_);
      continuation.ids.insert(continuation.ids.end(), tail.begin(), tail.end());
      continuation.adapter = donor.adapter;
      continuation.pages.assign(donor.pages.begin(), donor.pages.begin() + shared_pages);
      harness_.cache->share(continuation.pages);
      continuation.done = shared_pages * 16;
      continuations.push_back(std::move(continuation));
    }
    for (ScheduledSequence& continuation : continuations) {
      reused += continuation.done;
      add(std::move(continuation));
    }
    run();
  }

  void expect_same_bits() const {
    for (const ScheduledSequence& sequence : sequences) {
      const std::int64_t rows = sequence.hidden.size();
      const auto skipped =
          static_cast<std::ptrdiff_t>((sequence.length() - rows) * sequence.expected.cols);
      ASSERT_TRUE(std::equal(sequence.hidden.values.begin(), sequence.hidden.values.end(),
                             sequence.expected.values.begin() + skipped,
                             sequence.expected.values.end()))
          << "a sequence of " << sequence.length() << (sequence.training ? ", training" : "");
    }
  }

  std::vector<ScheduledSequence> sequences;
  int steps = 0;
  std::int64_t reused = 0;

private:
  void add(ScheduledSequence sequence) {
    sequence.expected = harness_.hidden(sequence.ids, sequence.adapter);
    const std::int64_t missing = harness_.cache->pages_for(sequence.length()) -
                                 static_cast<std::int64_t>(sequence.pages.size());
    EXPECT_TRUE(harness_.cache->allocate(missing, sequence.pages));
    sequences.push_back(std::move(sequence));
  }

  bool step() {
    std::vector<ScheduledSequence*> unfinished;
    for (ScheduledSequence& sequence : sequences) {
      if (sequence.done < sequence.length()) {
        unfinished.push_back(&sequence);
      }
    }
    if (unfinished.empty()) {
      return false;
    }
    shuffle(std::span<ScheduledSequence*>(unfinished), random_);
    unfinished.resize(1 + random_.below(unfinished.size()));
    std::stable_partition(unfinished.begin(), unfinished.end(),
                          [](const ScheduledSequence* j) { return !j->training; });
    Batch batch;
    for (const ScheduledSequence* sequence : unfinished) {
      const std::int64_t left = sequence->length() - sequence->done;
      // Often one token, as in decoding.
      const auto random_count = static_cast<std::int64_t>(
          random_.uniform() < 0.3 ? 1 : 1 + random_.below(static_cast<std::uint64_t>(left)));
      const std::int64_t count = sequence->training ? left : random_count;
      batch.ids.insert(batch.ids.end(), sequence->ids.begin() + sequence->done,
                       sequence->ids.begin() + sequence->done + count);
      batch.segments.push_back(
          {count, sequence->done, sequence->pages, sequence->adapter,
           sequence->training ? SegmentMode::kTraining : SegmentMode::kInference});
    }
    Activations activations(harness_.config, 0, harness_.ops->memory());
    const ConstMatrix hidden =
        harness_.model.forward(*harness_.weights, batch, *harness_.cache, {&activations, {}});
    std::int64_t row = 0;
    for (std::size_t i = 0; i < unfinished.size(); ++i) {
      const std::int64_t count = batch.segments[i].num_tokens;
      unfinished[i]->hidden.append(hidden.slice_rows(row, count), *harness_.ops);
      unfinished[i]->done += count;
      row += count;
    }
    return true;
  }

  ModelHarness& harness_;
  RandomStream& random_;
};

struct Case {
  Backend backend;
  DType dtype = DType::kF32;
  ModelFeatures features;
  std::string name;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Backend& backend : backends()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const std::string prefix = backend.name + (dtype == DType::kF32 ? "_f32" : "_bf16");
      all.push_back({backend, dtype, {false, false, false, true, false}, prefix + "_sliding"});
      all.push_back({backend, dtype, {true, true, true, false, true}, prefix + "_biases_norms"});
    }
  }
  return all;
}

class RowBitsTest : public ::testing::TestWithParam<Case> {
protected:
  RowBitsTest() : harness_(GetParam().backend, config_, random_weights(config_, 5), options()) {}

  static HarnessOptions options() {
    const bool bf16 = GetParam().dtype == DType::kBF16;
    return {{GetParam().dtype, bf16 ? WeightUse::kForward : WeightUse::kForwardAndBackward,
             /*keep_tensors=*/true},
            GetParam().dtype};
  }

  ModelConfig config_ = small_config(GetParam().features);
  ModelHarness harness_;
};

TEST_P(RowBitsTest, DependOnlyOnTheSequence) {
  const AdapterSpec spec = lora_on_all(config_, 0);
  const AdapterSpec upper = lora_on_all(config_, 2);
  const auto first = harness_.adapter(spec, random_lora(spec, 6));
  const auto second = harness_.adapter(upper, random_lora(upper, 7));
  int steps = 0;
  std::int64_t reused = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    RandomStream random(seed);
    harness_.cache = KvCache::create(config_, harness_.cache->options(), *harness_.ops).value();
    RandomSchedule schedule(harness_, {nullptr, first.get(), second.get()}, first.get(), random);
    schedule.run();
    schedule.run_with_reused_prefixes();
    ASSERT_NO_FATAL_FAILURE(schedule.expect_same_bits()) << "seed " << seed;
    steps += schedule.steps;
    reused += schedule.reused;
  }
  EXPECT_GT(steps, 100);
  EXPECT_GT(reused, 100);
}

TEST_P(RowBitsTest, DependOnlyOnTheirOwnAdapter) {
  const TensorMap base = random_weights(config_, 5);
  std::vector<std::shared_ptr<const Adapter>> owned;
  std::vector<const Adapter*> adapters = {nullptr};
  for (const AdapterSample& sample : adapter_samples()) {
    const AdapterSpec spec = spec_of(sample.config, config_);
    owned.push_back(harness_.adapter(spec, random_adapter(spec, config_, base, 6)));
    adapters.push_back(owned.back().get());
  }
  int steps = 0;
  for (std::uint64_t seed = 0; seed < 14; ++seed) {
    RandomStream random(seed);
    harness_.cache = KvCache::create(config_, harness_.cache->options(), *harness_.ops).value();
    RandomSchedule schedule(harness_, adapters, adapters[seed % adapters.size()], random);
    schedule.run();
    schedule.run_with_reused_prefixes();
    ASSERT_NO_FATAL_FAILURE(schedule.expect_same_bits()) << "seed " << seed;
    steps += schedule.steps;
  }
  EXPECT_GT(steps, 100);
}

// A pass that skips hidden states gives the others, and the keys and values in the cache, the bits
// of a pass that computes all of them.
TEST_P(RowBitsTest, DoNotDependOnWhichHiddenStatesAreRequested) {
  const AdapterSpec spec = lora_on_all(config_, 0);
  const auto adapter = harness_.adapter(spec, random_lora(spec, 92));
  RandomStream random(93);
  for (int trial = 0; trial < 20; ++trial) {
    Batch batch;
    std::vector<std::vector<std::int32_t>> pages;
    for (int i = 0; i < 4; ++i) {
      const auto ids = random_ids(config_, static_cast<std::int64_t>(1 + random.below(40)), random);
      batch.ids.insert(batch.ids.end(), ids.begin(), ids.end());
      pages.push_back(harness_.pages_for(std::ssize(ids) + 1));
      batch.segments.push_back({std::ssize(ids), 0, {}, i % 2 == 0 ? adapter.get() : nullptr});
    }
    Batch next;  // a step that reads the cached keys and values
    for (std::size_t i = 0; i < 4; ++i) {
      batch.segments[i].pages = pages[i];
      next.ids.push_back(3);
      next.segments.push_back(
          {1, batch.segments[i].num_tokens, pages[i], batch.segments[i].adapter});
    }
    const auto run = [&](const Batch& of) {
      const ConstMatrix hidden = harness_.model.forward(*harness_.weights, of, *harness_.cache);
      return read_values(*harness_.ops, hidden);
    };
    const auto whole = run(batch);
    const auto whole_next = run(next);
    for (Segment& segment : batch.segments) {
      segment.num_hidden = static_cast<std::int64_t>(
          random.below(static_cast<std::uint64_t>(segment.num_tokens) + 1));
    }
    const auto trimmed = run(batch);
    ASSERT_EQ(run(next), whole_next);
    std::int64_t end = 0;
    for (const Segment& segment : batch.segments) {
      end += segment.num_tokens;
      const auto first = (end - segment.num_hidden) * config_.hidden_size;
      ASSERT_TRUE(std::equal(whole.begin() + first, whole.begin() + end * config_.hidden_size,
                             trimmed.begin() + first))
          << segment.num_hidden << " of " << segment.num_tokens;
    }
    for (const auto& used : pages) {
      harness_.cache->release(used);
    }
  }
}

TEST_P(RowBitsTest, OfLogprobsAgreeBetweenScoringAndGenerating) {
  RandomStream random(41);
  const auto ids = random_ids(config_, 40, random);
  const Rows hidden = harness_.hidden(ids);
  std::vector<std::int32_t> targets(ids.begin() + 1, ids.end());
  targets.push_back(-1);
  targets[7] = -1;
  const auto [whole, entropies] = harness_.token_logprobs(hidden, targets, {0.7F, 64});
  for (const std::int64_t chunk_rows : {1, 3, 17}) {
    for (const std::int64_t features : {0, 1, 100}) {
      EXPECT_EQ(harness_.token_logprobs(hidden, targets, {0.7F, chunk_rows, features}).logprobs,
                whole)
          << chunk_rows << " rows, " << features << " logits";
    }
  }
  // A sampler computes one row of logits, then the log-probability of the token that it sampled.
  for (std::size_t t = 0; t < targets.size(); ++t) {
    const float* row = hidden.row(static_cast<std::int64_t>(t));
    const Rows one{hidden.cols, {row, row + hidden.cols}};
    EXPECT_EQ(harness_.logprob(harness_.logits(one), targets[t], 1.0F / 0.7F), whole[t]) << t;
  }
  EXPECT_EQ(whole[7], 0.0F);
  EXPECT_EQ(entropies[7], 0.0F);
}

INSTANTIATE_TEST_SUITE_P(Backends, RowBitsTest, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tidemill::engines
