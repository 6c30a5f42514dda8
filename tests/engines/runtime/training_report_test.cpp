// SPDX-License-Identifier: Apache-2.0
// What a training job reports, compared with values computed here: rows of every micro-batch,
// norms, learning rates, sums, log-probabilities and entropies.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "engines/transformer/activations.hpp"
#include "tests/engines/runtime/job_steps.hpp"
#include "tests/engines/runtime/runtime_bench.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

constexpr std::int64_t kLargeBudget = 100000;

// Keeps the log-probabilities and entropies that it is given.
class KeepingLoss final : public TokenLoss {
public:
  Status evaluate(std::span<const LossSequence> rows, LossSums& sums) override {
    for (const LossSequence& row : rows) {
      logprobs.emplace_back(row.logprobs.begin(), row.logprobs.end());
      entropies.emplace_back(row.entropies.begin(), row.entropies.end());
      for (std::size_t t = 1; t < row.logprobs.size(); ++t) {
        if (row.sequence->response_mask[t] != 0) {
          sums["loss"] += double{row.logprobs[t]};
          sums["tokens"] += 1.0;
          row.dlogprobs[t] = 1.0F;
        }
      }
    }
    return {};
  }

  std::vector<std::vector<float>> logprobs;
  std::vector<std::vector<float>> entropies;
};

class TrainingReportTest : public ::testing::Test {
protected:
  TrainingReportTest() : model_(small_model(5)) {}

  [[nodiscard]] RuntimeOptions options() const {
    return small_options(model_.config, Backend::kCpu, 512, Training::kYes);
  }

  // Returns sequences of mixed lengths without a common beginning. One has no target, one has only
  // its last token as target, and one has masked tokens at its end.
  [[nodiscard]] std::vector<TrainSequence> sequences(std::uint64_t seed) const {
    RandomStream random(seed);
    std::vector<TrainSequence> all;
    for (const std::int64_t length : {9, 1, 20, 14, 2, 31, 7, 12}) {
      TrainSequence sequence;
      sequence.id = {all.size()};
      sequence.ids = random_ids(model_.config, length, random);
      sequence.ids[0] = static_cast<std::int32_t>(all.size());
      for (std::int64_t t = 0; t < length; ++t) {
        sequence.response_mask.push_back(random.below(3) != 0 ? 1 : 0);
      }
      all.push_back(std::move(sequence));
    }
    all[2].response_mask.assign(20, 0);
    all[3].response_mask.assign(14, 0);
    all[3].response_mask.back() = 1;
    std::fill(all[5].response_mask.begin() + 11, all[5].response_mask.end(), std::uint8_t{0});
    all[5].response_mask[10] = 1;
    return all;
  }

  // Returns the rows that a sequence needs: one for each token before its last target.
  static std::int64_t rows_of(const TrainSequence& sequence) {
    std::int64_t rows = 0;
    for (std::size_t t = 1; t < sequence.ids.size(); ++t) {
      rows = sequence.response_mask[t] != 0 ? static_cast<std::int64_t>(t) : rows;
    }
    return rows;
  }

  static std::int64_t targets_of(const std::vector<TrainSequence>& batch) {
    std::int64_t targets = 0;
    for (const TrainSequence& sequence : batch) {
      for (std::size_t t = 1; t < sequence.ids.size(); ++t) {
        targets += sequence.response_mask[t];
      }
    }
    return targets;
  }

  static void add(TrainingJob& engine, const std::vector<TrainSequence>& batch, TokenLoss* loss,
                  float temperature = 1.0F) {
    const Status status = begin(engine, batch, loss, temperature);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }

  // Steps to the end and returns the rows of each micro-batch.
  static std::vector<std::int64_t> step_to_end(TrainingJob& engine,
                                               std::int64_t budget = kLargeBudget) {
    std::vector<std::int64_t> rows;
    while (engine.has_work()) {
      const auto report = engine.advance({budget});
      EXPECT_TRUE(report.ok()) << report.status().to_string();
      rows.push_back(report.value().train_tokens);
      EXPECT_EQ(report.value().prefill_tokens + report.value().decode_tokens, 0);
    }
    return rows;
  }

  static UpdateReport train(TrainingJob& engine, const std::vector<TrainSequence>& batch) {
    KeepingLoss loss;
    add(engine, batch, &loss);
    step_to_end(engine);
    return update(engine).value();
  }

  // Returns the rows of each micro-batch if sequences are taken in order while they fit.
  static std::vector<std::int64_t> packed(const std::vector<TrainSequence>& batch,
                                          std::int64_t limit) {
    std::vector<std::int64_t> parts = {0};
    for (const TrainSequence& sequence : batch) {
      const std::int64_t rows = rows_of(sequence);
      if (rows > 0 && parts.back() > 0 && parts.back() + rows > limit) {
        parts.push_back(0);
      }
      parts.back() += rows;
    }
    return parts;
  }

  [[nodiscard]] double moment_norm(TrainingJob& engine) const {
    double squares = 0.0;
    const TensorMap state = optimizer_state(engine).value();
    for (const auto& [name, tensor] : state) {
      if (name.starts_with("first_moment.")) {
        for (const float value : tensor.data.as<float>()) {
          squares += double{value} * double{value};
        }
      }
    }
    return std::sqrt(squares);
  }

  ModelFiles model_;
};

TEST_F(TrainingReportTest, EveryStepReportsTheRowsThatItComputed) {
  const auto batch = sequences(1);
  for (const std::int64_t budget : {1, 9, 20, 21, 40, 1000}) {
    const auto runtime = open_runtime(model_, options()).value();
    KeepingLoss loss;
    add(*runtime->policy_job(), batch, &loss);
    EXPECT_EQ(step_to_end(*runtime->policy_job(), budget), packed(batch, budget)) << budget;
    ASSERT_TRUE(update(*runtime->policy_job()).ok());
  }
}

// The limit holds for every micro-batch, whatever the budget of a step, and it is used to the row.
TEST_F(TrainingReportTest, AMicroBatchKeepsAtMostTheRowsOfItsActivationBudget) {
  const auto batch = sequences(2);
  std::int64_t longest = 0;
  std::int64_t all = 0;
  for (const TrainSequence& sequence : batch) {
    longest = std::max(longest, rows_of(sequence));
    all += rows_of(sequence);
  }
  for (const std::int64_t limit : {longest, longest + 1, longest + 9, all - 1, all}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kLayer}) {
      RuntimeOptions tight = options();
      tight.recompute = recompute;
      const std::int64_t row_bytes = Activations::bytes_per_row(
          model_.config, 0, KeepOptions::for_compute(tight.compute, recompute));
      tight.activation_bytes = limit * row_bytes + row_bytes - 1;
      const auto runtime = open_runtime(model_, tight).value();
      TrainingJob& engine = *runtime->policy_job();
      KeepingLoss loss;
      add(engine, batch, &loss);
      const auto rows = step_to_end(engine);
      EXPECT_EQ(rows, packed(batch, limit)) << limit;
      EXPECT_LE(*std::ranges::max_element(rows), limit);
      EXPECT_EQ(std::accumulate(rows.begin(), rows.end(), std::int64_t{0}), all);
      ASSERT_TRUE(update(engine).ok());
    }
  }
  RuntimeOptions small = options();
  small.activation_bytes = longest * Activations::bytes_per_row(model_.config, 0) - 1;
  const auto runtime = open_runtime(model_, small).value();
  for (const TrainSequence& sequence : batch) {
    runtime->policy_job()->cancel();
    const Status status = begin(*runtime->policy_job(), {sequence}, nullptr);
    EXPECT_EQ(status.ok(), rows_of(sequence) < longest) << status.to_string();
    if (!status.ok()) {
      EXPECT_EQ(status.code(), Errc::kResourceExhausted);
    }
  }
}

// The rows of a shared prompt count once in each micro-batch.
TEST_F(TrainingReportTest, AMicroBatchCountsASharedPromptOnce) {
  RandomStream random(3);
  const auto prompt = random_ids(model_.config, 20, random);
  std::vector<TrainSequence> group;
  for (const std::int64_t response : {5, 9, 1, 7}) {
    TrainSequence sequence;
    sequence.id = {group.size()};
    sequence.ids = prompt;
    const auto tokens = random_ids(model_.config, response, random);
    sequence.ids.insert(sequence.ids.end(), tokens.begin(), tokens.end());
    sequence.response_mask.assign(20, 0);
    sequence.response_mask.resize(sequence.ids.size(), 1);
    group.push_back(sequence);
  }
  // The row of the prompt's last token predicts the first target, so it belongs to each sequence.
  const std::int64_t all = 19 + 5 + 9 + 1 + 7;
  for (const std::int64_t limit : {all, all - 1}) {
    RuntimeOptions tight = options();
    tight.activation_bytes = limit * Activations::bytes_per_row(model_.config, 0);
    const auto runtime = open_runtime(model_, tight).value();
    KeepingLoss loss;
    add(*runtime->policy_job(), group, &loss);
    const auto rows = step_to_end(*runtime->policy_job());
    EXPECT_EQ(rows.size(), limit == all ? 1U : 2U);
    EXPECT_LE(*std::ranges::max_element(rows), limit);
    // A second micro-batch needs the keys and values of the prompt again.
    EXPECT_EQ(std::accumulate(rows.begin(), rows.end(), std::int64_t{0}),
              limit == all ? all : all + 19);
    ASSERT_TRUE(update(*runtime->policy_job()).ok());
  }
}

// So do its whole pages: a cache of four pages holds two sequences of three pages that share two.
TEST_F(TrainingReportTest, AGroupTakesThePagesOfItsPromptOnce) {
  RandomStream random(3);
  const auto prompt = random_ids(model_.config, 33, random);
  const auto runtime =
      open_runtime(model_, small_options(model_.config, Backend::kCpu, 64, Training::kYes)).value();
  std::vector<TrainSequence> group(2);
  group[1].id = {1};
  for (TrainSequence& sequence : group) {
    sequence.ids = prompt;
    const auto tokens = random_ids(model_.config, 8, random);
    sequence.ids.insert(sequence.ids.end(), tokens.begin(), tokens.end());
    sequence.response_mask.assign(33, 0);
    sequence.response_mask.resize(41, 1);
  }
  KeepingLoss loss;
  add(*runtime->policy_job(), group, &loss);
  EXPECT_EQ(step_to_end(*runtime->policy_job()), (std::vector<std::int64_t>{32 + 8 + 8}));
  ASSERT_TRUE(update(*runtime->policy_job()).ok());
}

// The first moment after one step is (1 - beta1) times the clipped gradient.
TEST_F(TrainingReportTest, TheGradientNormIsThatBeforeClipping) {
  const auto report_with = [&](double max_grad_norm, double& moment) {
    RuntimeOptions clipping = options();
    clipping.optimizer->max_grad_norm = max_grad_norm;
    const auto runtime = open_runtime(model_, clipping).value();
    const UpdateReport report = train(*runtime->policy_job(), sequences(4));
    moment = moment_norm(*runtime->policy_job()) / (1.0 - clipping.optimizer->adamw.beta1);
    return report;
  };
  double unclipped = 0.0;
  double clipped = 0.0;
  double loose = 0.0;
  const UpdateReport report = report_with(0.0, unclipped);
  EXPECT_GT(report.gradient_norm, 1.0);
  EXPECT_NEAR(report.gradient_norm, unclipped, 1e-5 * unclipped);
  EXPECT_EQ(report_with(0.5, clipped).gradient_norm, report.gradient_norm);
  EXPECT_NEAR(clipped, 0.5, 1e-5);
  EXPECT_EQ(report_with(2.0 * unclipped, loose).gradient_norm, report.gradient_norm);
  EXPECT_NEAR(loose, unclipped, 1e-5 * unclipped) << "a norm below the limit is not changed";
}

TEST_F(TrainingReportTest, LearningRatesFollowTheSchedule) {
  RuntimeOptions scheduled = options();
  scheduled.optimizer->schedule.kind = LearningRateScheduleKind::kLinear;
  scheduled.optimizer->schedule.learning_rate = 0.01;
  scheduled.optimizer->schedule.warmup_steps = 2;
  scheduled.optimizer->total_steps = 6;
  const auto runtime = open_runtime(model_, scheduled).value();
  TrainingJob& engine = *runtime->policy_job();
  const std::vector<double> expected = {0.005, 0.01, 0.01, 0.0075, 0.005, 0.0025, 0.0};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const UpdateReport report = train(engine, sequences(5 + i));
    EXPECT_NEAR(report.learning_rate, expected[i], 1e-15) << i;
    EXPECT_EQ(report.optimizer_step, static_cast<std::int64_t>(i) + 1);
    if (i == 2) {  // a batch that is only scored is no optimizer step
      add(engine, sequences(1), nullptr);
      step_to_end(engine);
      EXPECT_EQ(update(engine).status().code(), Errc::kInvalidArgument);
    }
  }
}

// The sums of a batch are those of its own sequences, also in the second minibatch.
TEST_F(TrainingReportTest, SumsAreThoseOfOneBatch) {
  const auto runtime = open_runtime(model_, options()).value();
  TrainingJob& engine = *runtime->policy_job();
  for (std::uint64_t seed = 6; seed < 9; ++seed) {
    const auto batch = sequences(seed);
    KeepingLoss loss;
    add(engine, batch, &loss);
    step_to_end(engine, 20);
    double sum = 0.0;
    for (const TrainSequence& sequence : batch) {
      for (const float logprob : engine.logprobs(sequence.id).value()) {
        sum += double{logprob};
      }
    }
    EXPECT_LT(sum, 0.0);
    const UpdateReport report = update(engine).value();
    EXPECT_EQ(report.sums.at("tokens"), static_cast<double>(targets_of(batch)));
    EXPECT_NEAR(report.sums.at("loss"), sum, 1e-9 * std::abs(sum));
    EXPECT_EQ(report.recalled_tokens, 0);
  }
}

// Log-probabilities and entropies are those of softmax(logits / temperature) with the temperature
// of their own batch. The logits come from generation.
TEST_F(TrainingReportTest, LogprobsAndEntropiesAreThoseOfTheTemperature) {
  const auto runtime = open_runtime(model_, options()).value();
  const auto batch = sequences(9);
  const auto vocabulary = static_cast<std::size_t>(model_.config.vocab_size);
  std::vector<std::vector<float>> logits;
  for (const TrainSequence& sequence : batch) {
    RolloutRequest request;
    request.id = sequence.id;
    request.prompt_ids = sequence.ids;
    request.max_new_tokens = 0;
    request.prompt_logits = true;
    ResultKeeper results;
    run_requests(runtime->rollout(), {request}, results);
    logits.push_back(results.at(sequence.id.value).prompt_logits);
  }
  for (const float temperature : {0.7F, 1.9F, 1.0F}) {
    KeepingLoss loss;
    add(*runtime->policy_job(), batch, &loss, temperature);
    step_to_end(*runtime->policy_job());
    for (std::size_t i = 0; i < batch.size(); ++i) {
      for (std::size_t t = 1; t < batch[i].ids.size(); ++t) {
        if (batch[i].response_mask[t] == 0) {
          EXPECT_EQ(loss.logprobs[i][t], 0.0F);
          EXPECT_EQ(loss.entropies[i][t], 0.0F);
          continue;
        }
        const auto row = std::span(logits[i]).subspan((t - 1) * vocabulary, vocabulary);
        const double largest = *std::ranges::max_element(row);
        double total = 0.0;
        for (const float logit : row) {
          total += std::exp((double{logit} - largest) / double{temperature});
        }
        double entropy = 0.0;
        for (const float logit : row) {
          const double log_p = (double{logit} - largest) / double{temperature} - std::log(total);
          entropy -= std::exp(log_p) * log_p;
        }
        const double target = row[static_cast<std::size_t>(batch[i].ids[t])];
        // Logits have magnitudes up to 10 and six digits.
        EXPECT_NEAR(loss.logprobs[i][t], (target - largest) / double{temperature} - std::log(total),
                    1e-4);
        EXPECT_NEAR(loss.entropies[i][t], entropy, 1e-4);
        EXPECT_GT(loss.entropies[i][t], 0.0F);
      }
    }
    runtime->policy_job()->cancel();
  }
}

// A loss that falls with the entropy and does not depend on log-probabilities.
class EntropyLoss final : public TokenLoss {
public:
  Status evaluate(std::span<const LossSequence> rows, LossSums& sums) override {
    for (const LossSequence& row : rows) {
      for (std::size_t t = 1; t < row.logprobs.size(); ++t) {
        if (row.sequence->response_mask[t] != 0) {
          sums["entropy"] += double{row.entropies[t]};
          row.dentropies[t] = -1.0F;
        }
      }
    }
    return {};
  }
};

TEST_F(TrainingReportTest, AGradientOfEntropiesRaisesThem) {
  for (const char* adapter : {"", "lora"}) {
    RuntimeOptions slow = options();
    slow.optimizer->schedule.learning_rate = 1e-3;
    slow.optimizer->weight_decay = 0.0;
    if (*adapter != '\0') {
      slow.adapter = sample_adapter(model_, adapter, 9);
    }
    const auto runtime = open_runtime(model_, slow).value();
    TrainingJob& engine = *runtime->policy_job();
    double before = 0.0;
    for (int step = 0; step < 4; ++step) {
      EntropyLoss loss;
      add(engine, sequences(1), &loss);
      step_to_end(engine, 20);
      const UpdateReport report = update(engine).value();
      EXPECT_GT(report.gradient_norm, 0.0);
      EXPECT_GT(report.sums.at("entropy"), before) << adapter << " " << step;
      before = report.sums.at("entropy");
    }
  }
}

}  // namespace
}  // namespace tidemill::engines
