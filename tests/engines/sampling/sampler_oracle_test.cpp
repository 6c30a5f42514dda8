// SPDX-License-Identifier: Apache-2.0
// Compares the sampler with its oracle, which sorts: the same tokens, probabilities and refusals,
// bit for bit.
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "engines/sampling/sampler.hpp"
#include "tests/engines/sampling/sorting_sampler.hpp"

namespace tidemill::engines {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

using Logits = std::vector<float>;

struct RowKind {
  const char* name;
  std::function<float(std::size_t i, std::size_t size, RandomStream& random)> logit;
};

float normal(RandomStream& random, double deviation) {
  return static_cast<float>(deviation * random.normal());
}

std::vector<RowKind> row_kinds() {
  return {
      {"normal", [](auto, auto, auto& r) { return normal(r, 3.0); }},
      {"narrow", [](auto, auto, auto& r) { return normal(r, 1e-3); }},
      {"wide", [](auto, auto, auto& r) { return normal(r, 40.0); }},
      {"peaked",
       [](auto, auto, auto& r) { return -static_cast<float>(std::log(r.uniform() + 1e-9)); }},
      {"all equal", [](auto, auto, auto&) { return -2.5F; }},
      {"all zero with signs", [](auto i, auto, auto&) { return i % 2 == 0 ? 0.0F : -0.0F; }},
      {"one dominant",
       [](auto i, auto size, auto& r) { return i == size / 2 ? 200.0F : normal(r, 1.0); }},
      {"three values", [](auto, auto, auto& r) { return static_cast<float>(r.below(3)); }},
      {"steps of one ulp",
       [](auto, auto, auto& r) { return 1.0F + static_cast<float>(r.below(40)) * 0x1p-23F; }},
      {"ascending", [](auto i, auto, auto&) { return static_cast<float>(i) * 1e-3F; }},
      {"descending", [](auto i, auto, auto&) { return -static_cast<float>(i) * 1e-3F; }},
      {"mostly minus infinity",
       [](auto i, auto, auto& r) { return i == 0 || r.below(50) == 0 ? normal(r, 2.0) : -kInf; }},
      {"only the last", [](auto i, auto size, auto&) { return i + 1 == size ? -7.0F : -kInf; }},
      {"around the smallest weight",
       [](auto i, auto, auto& r) { return i == 0 ? 0.0F : -87.0F + normal(r, 0.5); }},
      {"large floats", [](auto, auto, auto& r) { return normal(r, 1e30); }},
      {"near 30000", [](auto, auto, auto& r) { return 30000.0F + normal(r, 1.0); }},
      {"flat", [](auto, auto, auto& r) { return normal(r, 1.0); }},
      // An estimate from every sixteenth token is wrong.
      {"larger every sixteenth",
       [](auto i, auto, auto& r) { return (i % 16 == 0 ? 3.0F : 0.0F) + normal(r, 1.0); }},
      {"smaller every sixteenth",
       [](auto i, auto, auto& r) { return (i % 16 == 0 ? -30.0F : 0.0F) + normal(r, 1.0); }},
  };
}

struct Choice {
  std::string name;
  SamplingOptions options;
};

std::vector<Choice> choices() {
  std::vector<Choice> all;
  const auto add = [&](std::string name, float temperature, std::int32_t top_k, float top_p,
                       float min_p) {
    SamplingOptions options;
    options.temperature = temperature;
    options.top_k = top_k;
    options.top_p = top_p;
    options.min_p = min_p;
    all.push_back({std::move(name), options});
  };
  const float tiny = std::numeric_limits<float>::denorm_min();
  add("plain", 1.0F, 0, 1.0F, 0.0F);
  add("cold", 0.3F, 0, 1.0F, 0.0F);
  add("greedy", 0.0F, 0, 1.0F, 0.0F);
  for (const float top_p : {tiny, 1e-6F, 0.05F, 0.5F, 0.95F, 0.999F, std::nextafter(1.0F, 0.0F)}) {
    add("top_p " + std::to_string(top_p), 1.0F, 0, top_p, 0.0F);
  }
  for (const std::int32_t top_k : {1, 2, 20, 300, 100000}) {
    add("top_k " + std::to_string(top_k), 1.0F, top_k, 1.0F, 0.0F);
  }
  for (const float min_p : {1e-30F, 0.05F, 1.0F}) {
    add("min_p " + std::to_string(min_p), 1.0F, 0, 1.0F, min_p);
  }
  add("top_k and top_p", 0.7F, 50, 0.9F, 0.0F);
  add("all top_k and top_p", 1.3F, 100000, 0.9F, 0.0F);
  add("top_p and min_p", 1.0F, 0, 0.9F, 0.1F);
  add("everything", 0.8F, 40, 0.95F, 0.02F);
  return all;
}

// Divides blocks into ranges of one to three and processes the last ones first.
void in_reverse(std::size_t count, const std::function<void(std::size_t, std::size_t)>& body) {
  for (std::size_t end = count; end > 0;) {
    const std::size_t begin = end - std::min(end, 1 + end % 3);
    body(begin, end);
    end = begin;
  }
}

class SamplerOracle : public ::testing::Test {
protected:
  void compare(const Logits& logits, const SamplingOptions& options, const TokenHistory& history) {
    const SortedRow want = sort_row(logits, options, history);
    for (Sampler* sampler : {&whole_, &divided_}) {
      Logits got(logits.size());
      const auto kept = sampler->distribution(logits, options, history, got);
      ASSERT_EQ(kept.ok(), !want.refused);
      if (want.refused) {
        ASSERT_FALSE(sampler->sample_with(logits, options, history, 0.5).ok());
        ++refused_;
        continue;
      }
      ASSERT_EQ(kept.value(), want.kept);
      ASSERT_EQ(got, want.probabilities);
      for (const double uniform :
           {0.0, 0.25, random_.uniform(), random_.uniform(), std::nextafter(1.0, 0.0)}) {
        ASSERT_EQ(sampler->sample_with(logits, options, history, uniform).value(),
                  sample_sorted(want, uniform))
            << uniform;
      }
      ++compared_;
    }
  }

  RandomStream random_{29};
  Sampler whole_;
  Sampler divided_{portable_mass_kernels(), in_reverse};
  int compared_ = 0;
  int refused_ = 0;
};

TEST_F(SamplerOracle, EveryKindOfRowAndEveryFilter) {
  const std::vector<Choice> options = choices();
  const std::vector<RowKind> kinds = row_kinds();
  const std::vector<std::size_t> sizes = {1, 2, 16, 17, 511, 512, 513, 1500, 3001};
  for (const RowKind& kind : kinds) {
    for (const std::size_t size : sizes) {
      Logits logits(size);
      for (std::size_t i = 0; i < size; ++i) {
        logits[i] = kind.logit(i, size, random_);
      }
      for (const Choice& choice : options) {
        SCOPED_TRACE(std::string(kind.name) + ", " + std::to_string(size) + ", " + choice.name);
        ASSERT_NO_FATAL_FAILURE(compare(logits, choice.options, {}));
      }
    }
  }
  const std::size_t cases = kinds.size() * sizes.size() * options.size();
  EXPECT_EQ(static_cast<std::size_t>(compared_), 2 * cases);
}

// Bias and penalties change some logits of some blocks, among them the largest.
TEST_F(SamplerOracle, BiasAndPenalties) {
  for (const RowKind& kind : row_kinds()) {
    for (const std::size_t size : {1UL, 40UL, 1500UL}) {
      Logits logits(size);
      std::vector<std::int32_t> prompt;
      std::vector<std::int32_t> output;
      for (std::size_t i = 0; i < size; ++i) {
        logits[i] = kind.logit(i, size, random_);
        prompt.push_back(static_cast<std::int32_t>(random_.below(size)));
        output.push_back(static_cast<std::int32_t>(random_.below((size + 1) / 2)));
      }
      const auto top = std::ranges::max_element(logits) - logits.begin();
      prompt.resize(size / 3);
      output.push_back(static_cast<std::int32_t>(top));
      for (Choice& choice : choices()) {
        SCOPED_TRACE(std::string(kind.name) + ", " + std::to_string(size) + ", " + choice.name);
        choice.options.repetition_penalty = 1.3F;
        choice.options.frequency_penalty = 0.1F;
        choice.options.presence_penalty = -0.3F;
        ASSERT_NO_FATAL_FAILURE(compare(logits, choice.options, {prompt, output}));
        choice.options.logit_bias = {
            {static_cast<std::int32_t>(top), 0.37F}, {0, -1.5F}, {0, 0.2F}};
        ASSERT_NO_FATAL_FAILURE(compare(logits, choice.options, {prompt, output}));
      }
    }
  }
  EXPECT_EQ(static_cast<std::size_t>(compared_), 2 * 2 * 3 * row_kinds().size() * choices().size());
}

TEST_F(SamplerOracle, ManyRandomRows) {
  for (int i = 0; i < 400; ++i) {
    const std::size_t size = 1 + random_.below(1200);
    Logits logits(size);
    const double deviation = std::pow(10.0, 3.0 * random_.uniform() - 1.5);
    // Rounding to few values makes ties at the threshold.
    const bool rounds = random_.below(2) == 0;
    for (float& logit : logits) {
      logit = normal(random_, deviation);
      logit = rounds ? std::nearbyint(4.0F * logit) / 4.0F : logit;
    }
    SamplingOptions options;
    options.temperature = static_cast<float>(0.2 + 2.0 * random_.uniform());
    options.top_p = static_cast<float>(std::max(1e-3, random_.uniform()));
    options.top_k = static_cast<std::int32_t>(random_.below(2) * random_.below(size + 10));
    options.min_p =
        static_cast<float>(random_.below(2)) * 0.1F * static_cast<float>(random_.uniform());
    SCOPED_TRACE(i);
    ASSERT_NO_FATAL_FAILURE(compare(logits, options, {}));
  }
  EXPECT_EQ(compared_, 2 * 400);
}

// A token that is not allowed is as one whose logit is minus infinity, whatever else changes it.
TEST_F(SamplerOracle, MasksAreLogitsOfMinusInfinity) {
  for (int trial = 0; trial < 400; ++trial) {
    const std::size_t size = 1 + random_.below(1500);
    Logits logits(size);
    std::ranges::generate(logits, [&] { return normal(random_, 3.0); });
    std::vector<std::uint64_t> words((size + 63) / 64);
    const std::uint64_t kind = random_.below(4);
    for (std::uint64_t& word : words) {  // none, few, some or many of a word
      word = kind == 0   ? (random_.below(3) == 0 ? ~std::uint64_t{0} : 0)
             : kind == 1 ? random_.bits() & random_.bits() & random_.bits() & random_.bits()
             : kind == 2 ? random_.bits()
                         : random_.bits() | random_.bits() | random_.bits();
    }
    words[0] |= 1;
    const TokenMask mask{words};
    Logits masked = logits;
    for (std::size_t i = 0; i < size; ++i) {
      masked[i] = mask.allows(i) ? logits[i] : -kInf;
    }
    SamplingOptions options = choices()[random_.below(choices().size())].options;
    std::vector<std::int32_t> output;
    if (random_.below(2) == 0) {
      for (int i = 0; i < 20; ++i) {
        output.push_back(static_cast<std::int32_t>(random_.below(size)));
      }
      options.repetition_penalty = 1.3F;
      options.frequency_penalty = 0.4F;
      options.logit_bias = {{output[0], 5.0F}};
    }
    const TokenHistory history{{}, output};
    for (Sampler* sampler : {&whole_, &divided_}) {
      Logits want(size);
      Logits got(size);
      const auto kept = sampler->distribution(masked, options, history, want);
      ASSERT_TRUE(kept.ok());
      ASSERT_EQ(sampler->distribution(logits, options, history, got, mask).value(), kept.value());
      ASSERT_EQ(got, want);
      const double uniform = random_.uniform();
      const auto token = sampler->sample_with(logits, options, history, uniform, mask);
      ASSERT_EQ(token.value(), sampler->sample_with(masked, options, history, uniform).value());
      ASSERT_TRUE(mask.allows(static_cast<std::size_t>(token.value())));
    }
  }
}

TEST_F(SamplerOracle, RefusesTheSameRows) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::int32_t> output = {0};
  int cases = 0;
  for (const float bad : {nan, kInf}) {
    for (const std::size_t at : {0UL, 5UL, 511UL, 512UL, 899UL}) {
      Logits logits(900, 1.0F);
      logits[at] = bad;
      for (Choice& choice : choices()) {
        ASSERT_NO_FATAL_FAILURE(compare(logits, choice.options, {}));
        choice.options.presence_penalty = 1.0F;
        ASSERT_NO_FATAL_FAILURE(compare(logits, choice.options, {{}, output}));
        cases += 2;
      }
    }
  }
  ASSERT_NO_FATAL_FAILURE(compare(Logits(700, -kInf), {}, {}));
  EXPECT_EQ(refused_, 2 * (cases + 1));
  EXPECT_EQ(compared_, 0);
}

// A wide vocabulary, in which the histogram and the bounds leave few tokens to compare.
TEST_F(SamplerOracle, AWideVocabulary) {
  constexpr std::size_t kVocabulary = 20011;
  const std::set<std::string> names = {"normal",
                                       "peaked",
                                       "all equal",
                                       "steps of one ulp",
                                       "flat",
                                       "larger every sixteenth",
                                       "smaller every sixteenth"};
  for (const RowKind& one : row_kinds()) {
    if (!names.contains(one.name)) {
      continue;
    }
    Logits logits(kVocabulary);
    for (std::size_t i = 0; i < kVocabulary; ++i) {
      logits[i] = one.logit(i, kVocabulary, random_);
    }
    for (const Choice& choice : choices()) {
      SCOPED_TRACE(std::string(one.name) + ", " + choice.name);
      ASSERT_NO_FATAL_FAILURE(compare(logits, choice.options, {}));
    }
  }
  EXPECT_EQ(static_cast<std::size_t>(compared_), 2 * names.size() * choices().size());
}

}  // namespace
}  // namespace tidemill::engines
