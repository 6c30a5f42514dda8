// SPDX-License-Identifier: Apache-2.0
// DESIGN I7: a row has the same bits in a decode step, a prefill chunk and a training window,
// whatever shares its batch, however its sequence is cut, and whichever pages hold its keys.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/engines/transformer/model_bench.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

// A sequence on its way through random batches.
struct Journey {
  std::vector<std::int32_t> ids;
  const Adapter* adapter = nullptr;
  bool training = false;  // in one window
  std::vector<std::int32_t> pages;
  std::int64_t done = 0;
  Rows hidden;    // of the positions done, from `reused` on
  Rows expected;  // the whole sequence alone, as one inference chunk

  [[nodiscard]] std::int64_t length() const { return static_cast<std::int64_t>(ids.size()); }
};

class Fleet {
public:
  // Inference rows are of any of `adapters` (null: of none), training rows of `trained`.
  Fleet(ModelBench& bench, const std::vector<const Adapter*>& adapters, const Adapter* trained,
        RandomStream& random)
      : bench_(bench), random_(random) {
    for (int i = 0; i < 7; ++i) {
      Journey journey;
      journey.ids =
          random_ids(bench.config, static_cast<std::int64_t>(1 + random.below(45)), random);
      journey.adapter = adapters[random.below(adapters.size())];
      add(std::move(journey));
    }
    for (int i = 0; i < 3; ++i) {
      Journey journey;
      journey.ids =
          random_ids(bench.config, static_cast<std::int64_t>(1 + random.below(45)), random);
      journey.adapter = trained;
      journey.training = true;
      add(std::move(journey));
    }
  }

  // Runs batches of random sequences and chunks until all have arrived.
  void run() {
    while (step()) {
      ++steps;
    }
  }

  // Lets new sequences begin with the full pages of a finished one, then diverge.
  void run_with_reused_prefixes() {
    std::vector<Journey> followers;
    for (const Journey& donor : journeys) {
      const std::int64_t shared_pages = donor.length() / 16;
      if (donor.training || shared_pages == 0) {
        continue;
      }
      Journey follower;
      follower.ids.assign(donor.ids.begin(), donor.ids.begin() + shared_pages * 16);
      const auto tail = random_ids(bench_.config, 9, random_);
      follower.ids.insert(follower.ids.end(), tail.begin(), tail.end());
      follower.adapter = donor.adapter;
      follower.pages.assign(donor.pages.begin(), donor.pages.begin() + shared_pages);
      bench_.cache->share(follower.pages);
      follower.done = shared_pages * 16;
      followers.push_back(std::move(follower));
    }
    for (Journey& follower : followers) {
      reused += follower.done;
      add(std::move(follower));
    }
    run();
  }

  void expect_same_bits() const {
    for (const Journey& journey : journeys) {
      const std::int64_t rows = journey.hidden.size();
      const auto skipped =
          static_cast<std::ptrdiff_t>((journey.length() - rows) * journey.expected.cols);
      ASSERT_TRUE(std::equal(journey.hidden.values.begin(), journey.hidden.values.end(),
                             journey.expected.values.begin() + skipped,
                             journey.expected.values.end()))
          << "a sequence of " << journey.length() << (journey.training ? ", training" : "");
    }
  }

  std::vector<Journey> journeys;
  int steps = 0;
  std::int64_t reused = 0;

private:
  void add(Journey journey) {
    journey.expected = bench_.hidden(journey.ids, journey.adapter);
    const std::int64_t missing =
        bench_.cache->pages_for(journey.length()) - static_cast<std::int64_t>(journey.pages.size());
    EXPECT_TRUE(bench_.cache->allocate(missing, journey.pages));
    journeys.push_back(std::move(journey));
  }

  bool step() {
    std::vector<Journey*> waiting;
    for (Journey& journey : journeys) {
      if (journey.done < journey.length()) {
        waiting.push_back(&journey);
      }
    }
    if (waiting.empty()) {
      return false;
    }
    shuffle(std::span<Journey*>(waiting), random_);
    waiting.resize(1 + random_.below(waiting.size()));
    std::stable_partition(waiting.begin(), waiting.end(),
                          [](const Journey* j) { return !j->training; });
    Batch batch;
    for (const Journey* journey : waiting) {
      const std::int64_t left = journey->length() - journey->done;
      // Often one token, as in decoding.
      const auto drawn = static_cast<std::int64_t>(
          random_.uniform() < 0.3 ? 1 : 1 + random_.below(static_cast<std::uint64_t>(left)));
      const std::int64_t count = journey->training ? left : drawn;
      batch.ids.insert(batch.ids.end(), journey->ids.begin() + journey->done,
                       journey->ids.begin() + journey->done + count);
      batch.segments.push_back(
          {count, journey->done, journey->pages, journey->adapter,
           journey->training ? SegmentMode::kTraining : SegmentMode::kInference});
    }
    Activations activations(bench_.config, 0);
    const ConstMatrix hidden =
        bench_.model.forward(*bench_.weights, batch, *bench_.cache, {&activations, {}});
    std::int64_t row = 0;
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      const std::int64_t count = batch.segments[i].num_tokens;
      waiting[i]->hidden.append(hidden.slice_rows(row, count));
      waiting[i]->done += count;
      row += count;
    }
    return true;
  }

  ModelBench& bench_;
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
  RowBitsTest() : bench_(GetParam().backend, config_, random_weights(config_, 5), options()) {}

  static BenchOptions options() {
    const bool bf16 = GetParam().dtype == DType::kBF16;
    return {{GetParam().dtype, bf16 ? WeightUse::kForward : WeightUse::kForwardAndBackward,
             /*keep_tensors=*/true},
            GetParam().dtype};
  }

  ModelConfig config_ = small_config(GetParam().features);
  ModelBench bench_;
};

TEST_P(RowBitsTest, DependOnTheSequenceAlone) {
  const AdapterSpec spec = lora_on_all(config_, 0);
  const AdapterSpec upper = lora_on_all(config_, 2);
  const auto first = bench_.adapter(spec, random_lora(spec, 6));
  const auto second = bench_.adapter(upper, random_lora(upper, 7));
  int steps = 0;
  std::int64_t reused = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    RandomStream random(seed);
    bench_.cache = KvCache::create(config_, bench_.cache->options(), *bench_.ops).value();
    Fleet fleet(bench_, {nullptr, first.get(), second.get()}, first.get(), random);
    fleet.run();
    fleet.run_with_reused_prefixes();
    ASSERT_NO_FATAL_FAILURE(fleet.expect_same_bits()) << "seed " << seed;
    steps += fleet.steps;
    reused += fleet.reused;
  }
  EXPECT_GT(steps, 100);
  EXPECT_GT(reused, 100);
}

TEST_P(RowBitsTest, DependOnTheirOwnAdapterAlone) {
  const TensorMap base = random_weights(config_, 5);
  std::vector<std::shared_ptr<const Adapter>> owned;
  std::vector<const Adapter*> adapters = {nullptr};
  for (const AdapterSample& sample : adapter_samples()) {
    const AdapterSpec spec = spec_of(sample.config, config_);
    owned.push_back(bench_.adapter(spec, random_adapter(spec, config_, base, 6)));
    adapters.push_back(owned.back().get());
  }
  int steps = 0;
  for (std::uint64_t seed = 0; seed < 14; ++seed) {
    RandomStream random(seed);
    bench_.cache = KvCache::create(config_, bench_.cache->options(), *bench_.ops).value();
    Fleet fleet(bench_, adapters, adapters[seed % adapters.size()], random);
    fleet.run();
    fleet.run_with_reused_prefixes();
    ASSERT_NO_FATAL_FAILURE(fleet.expect_same_bits()) << "seed " << seed;
    steps += fleet.steps;
  }
  EXPECT_GT(steps, 100);
}

// What is not wanted is not computed; what is has the bits of the whole, and so has what the cache
// gets.
TEST_P(RowBitsTest, OfWantedHiddenStatesAreThoseOfAll) {
  const AdapterSpec spec = lora_on_all(config_, 0);
  const auto adapter = bench_.adapter(spec, random_lora(spec, 92));
  RandomStream random(93);
  for (int trial = 0; trial < 20; ++trial) {
    Batch batch;
    std::vector<std::vector<std::int32_t>> pages;
    for (int i = 0; i < 4; ++i) {
      const auto ids = random_ids(config_, static_cast<std::int64_t>(1 + random.below(40)), random);
      batch.ids.insert(batch.ids.end(), ids.begin(), ids.end());
      pages.push_back(bench_.pages_for(std::ssize(ids) + 1));
      batch.segments.push_back({std::ssize(ids), 0, {}, i % 2 == 0 ? adapter.get() : nullptr});
    }
    Batch next;  // a step that reads what the cache got
    for (std::size_t i = 0; i < 4; ++i) {
      batch.segments[i].pages = pages[i];
      next.ids.push_back(3);
      next.segments.push_back(
          {1, batch.segments[i].num_tokens, pages[i], batch.segments[i].adapter});
    }
    const auto run = [&](const Batch& of) {
      const ConstMatrix hidden = bench_.model.forward(*bench_.weights, of, *bench_.cache);
      return std::vector<float>(hidden.data, hidden.data + hidden.rows * hidden.cols);
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
      bench_.cache->release(used);
    }
  }
}

TEST_P(RowBitsTest, OfLogprobsAgreeBetweenScoringAndGenerating) {
  RandomStream random(41);
  const auto ids = random_ids(config_, 40, random);
  const Rows hidden = bench_.hidden(ids);
  std::vector<std::int32_t> targets(ids.begin() + 1, ids.end());
  targets.push_back(-1);
  targets[7] = -1;
  std::vector<float> whole(ids.size());
  std::vector<float> entropies(ids.size());
  bench_.model.token_logprobs(*bench_.weights, nullptr, hidden.view(), targets, {0.7F, 64}, whole,
                              entropies);
  for (const std::int64_t chunk_rows : {1, 3, 17}) {
    std::vector<float> part(ids.size());
    bench_.model.token_logprobs(*bench_.weights, nullptr, hidden.view(), targets,
                                {0.7F, chunk_rows}, part, {});
    EXPECT_EQ(part, whole) << chunk_rows;
  }
  // As a sampler does: one row of logits, then the log-probability of the token it drew.
  for (std::size_t t = 0; t < targets.size(); ++t) {
    const Rows logits = bench_.logits(hidden.view().slice_rows(static_cast<std::int64_t>(t), 1));
    std::vector<float> one(1);
    bench_.ops->log_softmax_gather(logits.view(), std::span(targets).subspan(t, 1), 1.0F / 0.7F,
                                   one, {});
    EXPECT_EQ(one[0], whole[t]) << t;
  }
  EXPECT_EQ(whole[7], 0.0F);
  EXPECT_EQ(entropies[7], 0.0F);
}

INSTANTIATE_TEST_SUITE_P(Backends, RowBitsTest, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tidemill::engines
