// SPDX-License-Identifier: Apache-2.0
// Training: equal bits for every split, exact restoring, agreement with rollout, and errors.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/digest.hpp"
#include "base/random.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/formats/adapter_files.hpp"
#include "engines/runtime/new_adapter.hpp"
#include "tests/engines/runtime/job_steps.hpp"
#include "tests/engines/runtime/runtime_bench.hpp"
#include "tests/engines/transformer/random_model.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::engines {
namespace {

// A loss with gradients of many sizes: the sum of weight * logprob^2 and of entropies.
class SquareLoss final : public TokenLoss {
public:
  Status evaluate(std::span<const LossSequence> rows, LossSums& sums) override {
    for (const LossSequence& row : rows) {
      ++num_rows;
      for (std::size_t t = 1; t < row.logprobs.size(); ++t) {
        if (row.sequence->response_mask[t] == 0) {
          EXPECT_EQ(row.logprobs[t], 0.0F);
          continue;
        }
        const float weight = 0.01F * static_cast<float>(row.sequence->id.value % 5 + 1);
        sums["loss"] += double{weight} * double{row.logprobs[t]} * double{row.logprobs[t]};
        row.dlogprobs[t] = 2.0F * weight * row.logprobs[t] * scale;
        row.dentropies[t] = row.sequence->id.value % 2 == 0 ? 0.0F : 0.02F;
        EXPECT_GT(row.entropies[t], 0.0F);
      }
    }
    return status;
  }

  bool is_token_local() const override { return token_local; }

  Status token_gradients(const LossTokens& tokens) override {
    EXPECT_TRUE(token_local);
    const TrainSequence& sequence = *tokens.sequence;
    num_tokens += tokens.logprobs.size();
    for (std::size_t i = 0; i < tokens.logprobs.size(); ++i) {
      if (sequence.response_mask[tokens.first + i] != 0) {
        const float weight = 0.01F * static_cast<float>(sequence.id.value % 5 + 1);
        tokens.dlogprobs[i] = 2.0F * weight * tokens.logprobs[i] * scale * error;
        tokens.dentropies[i] = sequence.id.value % 2 == 0 ? 0.0F : 0.02F;
        EXPECT_GT(tokens.entropies[i], 0.0F);
      }
    }
    return status;
  }

  bool token_local = false;
  std::size_t num_rows = 0;
  std::size_t num_tokens = 0;  // of `token_gradients`
  float error = 1.0F;          // a factor of the gradients of single tokens
  float scale = 1.0F;
  Status status;
};

struct JobKind {
  Backend backend;
  std::string adapter;  // of `adapter_samples`; empty: all parameters are trained
  DType dtype = DType::kF32;
};

std::string describe(const JobKind& kind) {
  return backend_name(kind.backend) + "_" + (kind.adapter.empty() ? "full" : kind.adapter) +
         (kind.dtype == DType::kBF16 ? "_bf16" : "");
}

std::ostream& operator<<(std::ostream& out, const JobKind& kind) {
  return out << describe(kind);
}

std::string kind_name(const ::testing::TestParamInfo<JobKind>& test) {
  return describe(test.param);
}

class TrainingJobTest : public ::testing::TestWithParam<JobKind> {
protected:
  TrainingJobTest() : model_(small_model(5)), runtime_(open()) {}

  [[nodiscard]] static bool trains_adapter() { return !GetParam().adapter.empty(); }

  [[nodiscard]] RuntimeOptions options(std::int64_t cache_tokens = 512) const {
    RuntimeOptions options = small_options(model_.config, GetParam().backend, cache_tokens,
                                           Training::kYes, GetParam().dtype);
    if (trains_adapter()) {
      options.adapter = sample_adapter(model_, GetParam().adapter, 9);
    }
    return options;
  }

  [[nodiscard]] std::unique_ptr<ModelRuntime> open() const {
    return open_runtime(model_, options()).value();
  }

  [[nodiscard]] std::vector<TrainSequence> sequences(std::uint64_t seed) const {
    RandomStream random(seed);
    std::vector<TrainSequence> all;
    for (std::uint64_t id = 0; id < 9; ++id) {
      RolloutRequest request =
          sampling_request(id, model_.config, 2 + static_cast<std::int64_t>(random.below(30)), 1);
      TrainSequence sequence;
      sequence.id = request.id;
      sequence.ids = request.prompt_ids;
      for (std::size_t t = 0; t < sequence.ids.size(); ++t) {
        sequence.response_mask.push_back(id != 4 && random.below(2) == 0 ? 1 : 0);
      }
      all.push_back(std::move(sequence));
    }
    return all;
  }

  // Trains on one batch, in micro-batches of `budget` tokens.
  static UpdateReport train(TrainingJob& engine, const std::vector<TrainSequence>& batch,
                            std::int64_t budget, bool token_local = false) {
    SquareLoss loss;
    loss.token_local = token_local;
    EXPECT_TRUE(begin(engine, batch, &loss, 0.8F).ok());
    while (engine.has_work()) {
      const auto report = engine.advance({budget});
      EXPECT_TRUE(report.ok()) << report.status().to_string();
      EXPECT_EQ(report.value().more, engine.has_work());
    }
    EXPECT_EQ(loss.num_rows, batch.size());
    EXPECT_EQ(loss.num_tokens > 0, token_local);
    const auto report = update(engine);
    EXPECT_TRUE(report.ok()) << report.status().to_string();
    return report.value();
  }

  static TensorMap weights(TrainingJob& engine, std::uint64_t step) {
    const Snapshot snapshot = publish(engine, {0, 0, step}).value();
    return trains_adapter() ? snapshot.adapter : snapshot.base;
  }

  void expect_refused(const TrainSequence& sequence, Errc code, const std::string& message) {
    const Status status = begin(engine(), {sequence}, nullptr);
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_NE(status.message().find(message), std::string::npos) << status.message();
  }

  TrainingJob& engine() { return *runtime_->policy_job(); }

  ModelFiles model_;
  std::unique_ptr<ModelRuntime> runtime_;
};

// Counts the buffers that it makes, and has none while `empty` is set.
class CountingAllocator final : public BufferAllocator {
public:
  Result<UnwrittenBuffer> allocate_unwritten(std::size_t size, DType dtype) override {
    if (empty) {
      return Status(Errc::kResourceExhausted, "no memory");
    }
    bytes += size;
    return heap_.allocate_unwritten(size, dtype);
  }
  std::size_t bytes = 0;
  bool empty = false;

private:
  HeapAllocator heap_;
};

TEST_P(TrainingJobTest, AnAllocatorSuppliesTheMemoryOfPublishedWeights) {
  CountingAllocator allocator;
  RuntimeOptions with_allocator = options();
  with_allocator.allocator = &allocator;
  runtime_ = open_runtime(model_, with_allocator).value();
  const Snapshot plain = publish(*open()->policy_job(), {0, 0, 1}).value();
  const Snapshot snapshot = publish(*runtime_->policy_job(), {0, 0, 1}).value();
  const TensorMap& tensors = trains_adapter() ? snapshot.adapter : snapshot.base;
  std::size_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    bytes += tensor.data.size_bytes();
  }
  EXPECT_EQ(allocator.bytes, bytes);
  EXPECT_EQ(snapshot.base_digest, plain.base_digest);
  EXPECT_EQ(snapshot.adapter_digest, plain.adapter_digest);
  allocator.empty = true;
  EXPECT_EQ(publish(*runtime_->policy_job(), {0, 0, 2}).status().code(), Errc::kResourceExhausted);
  allocator.empty = false;
  EXPECT_TRUE(publish(*runtime_->policy_job(), {0, 0, 2}).ok());
}

TEST_P(TrainingJobTest, AnySplitAndOrderGiveTheSameBits) {
  const UpdateReport expected = train(engine(), sequences(1), 100000);
  const TensorMap whole = weights(engine(), 1);
  const TensorMap initial =
      trains_adapter() ? runtime_->initial().adapter : runtime_->initial().base;
  EXPECT_FALSE(same_tensors(whole, initial));
  for (const std::int64_t budget : {1, 7, 20, 33, 64}) {
    const auto other = open();
    std::vector<TrainSequence> batch = sequences(1);
    RandomStream random(static_cast<std::uint64_t>(budget));
    shuffle(std::span(batch), random);
    const UpdateReport report = train(*other->policy_job(), std::move(batch), budget);
    EXPECT_EQ(report.sums, expected.sums);
    EXPECT_EQ(report.gradient_norm, expected.gradient_norm);
    EXPECT_TRUE(same_tensors(weights(*other->policy_job(), 1), whole)) << budget;
  }
}

// The head computes the gradients of each chunk of rows before it computes the next chunk. With
// windows of 8 tokens, sequences are cut between chunks.
TEST_P(TrainingJobTest, ATokenLocalLossGivesTheSameBits) {
  for (const std::int64_t window_tokens : {0, 8}) {
    RuntimeOptions windowed = options();
    windowed.window_tokens = window_tokens;
    const auto whole = open_runtime(model_, windowed).value();
    const UpdateReport expected = train(*whole->policy_job(), sequences(1), 33);
    const auto local = open_runtime(model_, windowed).value();
    const UpdateReport report = train(*local->policy_job(), sequences(1), 33, true);
    EXPECT_EQ(report.sums, expected.sums);
    EXPECT_EQ(report.gradient_norm, expected.gradient_norm);
    EXPECT_TRUE(same_tensors(weights(*local->policy_job(), 1), weights(*whole->policy_job(), 1)))
        << window_tokens;
  }
}

TEST_P(TrainingJobTest, ALossWhoseTokensDisagreeWithItsSequencesFails) {
  const TensorMap before = weights(engine(), 0);
  SquareLoss loss;
  loss.token_local = true;
  loss.error = 1.5F;
  ASSERT_TRUE(begin(engine(), sequences(1), &loss, 1.0F).ok());
  const auto step = engine().advance({100000});
  EXPECT_EQ(step.status().code(), Errc::kInternal);
  EXPECT_NE(step.status().message().find("token-local"), std::string::npos)
      << step.status().message();
  EXPECT_NE(step.status().message().find("sample_id="), std::string::npos)
      << step.status().message();
  EXPECT_FALSE(engine().has_work());
  EXPECT_EQ(update(engine()).status().code(), Errc::kInvalidArgument);
  EXPECT_TRUE(same_tensors(weights(engine(), 0), before));
}

TEST_P(TrainingJobTest, SmallCachesAndActivationBudgetsGiveTheSameBits) {
  train(engine(), sequences(1), 100000);
  RuntimeOptions tight = options(32);
  tight.activation_bytes = 300000;
  tight.threads = 1;
  const auto other = open_runtime(model_, tight).value();
  train(*other->policy_job(), sequences(1), 100000);
  EXPECT_TRUE(same_tensors(weights(*other->policy_job(), 1), weights(engine(), 1)));
}

TEST_P(TrainingJobTest, AnySplitGivesTheSameBitsWithWindows) {
  // The moments after one step represent the gradients, not rounded to the type of the weights.
  const auto moments = [&](std::int64_t window_tokens, std::int64_t budget) {
    RuntimeOptions windows = options();
    windows.window_tokens = window_tokens;
    const auto runtime = open_runtime(model_, windows).value();
    train(*runtime->policy_job(), sequences(1), budget);
    return optimizer_state(*runtime->policy_job()).value();
  };
  const TensorMap whole = moments(0, 100000);
  EXPECT_TRUE(same_tensors(moments(32, 100000), whole));  // longer than any sequence
  const TensorMap windowed = moments(8, 100000);
  EXPECT_FALSE(same_tensors(windowed, whole));  // sums in another order
  for (const std::int64_t budget : {1, 20, 33}) {
    EXPECT_TRUE(same_tensors(moments(8, budget), windowed)) << budget;
  }
}

TEST_P(TrainingJobTest, ContinuingFromRestoredStateIsExact) {
  train(engine(), sequences(1), 50);
  train(engine(), sequences(2), 50);
  const Snapshot snapshot = publish(engine(), {0, 0, 2}).value();
  const TensorMap state = optimizer_state(engine()).value();
  const auto restored = open();
  ASSERT_TRUE(restored->policy_job()->load(snapshot, state).ok());
  EXPECT_TRUE(same_tensors(weights(*restored->policy_job(), 2), weights(engine(), 2)));
  for (const std::uint64_t seed : {3U, 4U}) {
    const UpdateReport on = train(engine(), sequences(seed), 50);
    const UpdateReport again = train(*restored->policy_job(), sequences(seed), 30);
    EXPECT_EQ(on.optimizer_step, again.optimizer_step);
    EXPECT_EQ(on.learning_rate, again.learning_rate);
    EXPECT_EQ(on.gradient_norm, again.gradient_norm);
  }
  EXPECT_TRUE(same_tensors(weights(*restored->policy_job(), 4), weights(engine(), 4)));
  EXPECT_TRUE(same_tensors(optimizer_state(*restored->policy_job()).value(),
                           optimizer_state(engine()).value()));
}

TEST_P(TrainingJobTest, DamagedStateIsRefusedAndChangesNothing) {
  train(engine(), sequences(1), 50);
  const Snapshot snapshot = publish(engine(), {0, 0, 1}).value();
  const TensorMap state = optimizer_state(engine()).value();
  const auto other = open();
  const TensorMap before = weights(*other->policy_job(), 0);
  Snapshot damaged = snapshot;
  std::string& digest = trains_adapter() ? damaged.adapter_digest : damaged.base_digest;
  digest[3] = digest[3] == '0' ? '1' : '0';
  EXPECT_EQ(other->policy_job()->load(damaged, state).code(), Errc::kCorruptData);
  for (const auto& [name, tensor] : state) {
    TensorMap partial = state;
    partial.erase(name);
    EXPECT_EQ(other->policy_job()->load(snapshot, partial).code(), Errc::kInvalidArgument) << name;
  }
  TensorMap more = state;
  more.emplace("else", state.at("step"));
  EXPECT_EQ(other->policy_job()->load(snapshot, more).code(), Errc::kInvalidArgument);
  EXPECT_EQ(other->policy_job()->load(Snapshot{}, state).code(), Errc::kInvalidArgument);
  EXPECT_TRUE(same_tensors(weights(*other->policy_job(), 0), before));
}

// docs/architecture.md, I7: rollout and training give a token the same log-probability, bit for
// bit.
TEST_P(TrainingJobTest, RolloutAndTrainingAgreeToTheBit) {
  train(engine(), sequences(1), 50);
  const Snapshot snapshot = publish(engine(), {0, 0, 1}).value();
  ASSERT_TRUE(runtime_->rollout().load(snapshot, WeightArrival::kFinish).ok());
  const float temperature = 0.8F;
  std::vector<RolloutRequest> requests;
  for (std::uint64_t id = 0; id < 12; ++id) {
    RolloutRequest request =
        sampling_request(id, model_.config, 1 + static_cast<std::int64_t>(3 * id), 20);
    request.sampling.temperature = temperature;
    request.sampling.top_p = id % 2 == 0 ? 1.0F : 0.9F;
    requests.push_back(request);
  }
  ResultKeeper results;
  run_requests(runtime_->rollout(), requests, results, 17);
  std::vector<TrainSequence> batch;
  for (const RolloutRequest& request : requests) {
    batch.push_back(to_sequence(request, results.at(request.id.value)));
  }
  ASSERT_TRUE(begin(engine(), batch, nullptr, temperature).ok());
  while (engine().has_work()) {
    ASSERT_TRUE(engine().advance({70}).ok());
  }
  const auto scored = engine().score(snapshot, batch, temperature).value();
  std::size_t tokens = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const RolloutResult& result = results.at(requests[i].id.value);
    const std::vector<float> stepped = engine().logprobs(requests[i].id).value();
    ASSERT_EQ(stepped.size(), batch[i].ids.size());
    ASSERT_EQ(scored[i].size(), batch[i].ids.size());
    EXPECT_EQ(result.response_ids.size(), 20U);
    for (std::size_t t = 0; t < result.response_ids.size(); ++t, ++tokens) {
      const auto bits = std::bit_cast<std::uint32_t>(result.behavior_logprobs[t]);
      const std::size_t at = requests[i].prompt_ids.size() + t;
      ASSERT_EQ(bits, std::bit_cast<std::uint32_t>(stepped[at])) << i << " " << t;
      ASSERT_EQ(bits, std::bit_cast<std::uint32_t>(scored[i][at])) << i << " " << t;
    }
  }
  EXPECT_EQ(tokens, 240U);
  EXPECT_EQ(update(engine()).status().code(), Errc::kInvalidArgument);
  EXPECT_TRUE(
      same_tensors(weights(engine(), 1), trains_adapter() ? snapshot.adapter : snapshot.base))
      << "a batch without a loss changes nothing";
}

TEST_P(TrainingJobTest, ScoresWeightsOtherThanItsOwn) {
  const Snapshot initial = runtime_->initial();
  const std::vector<TrainSequence> batch = sequences(1);
  const auto before = engine().score(initial, batch, 1.0F).value();
  train(engine(), sequences(1), 50);
  EXPECT_EQ(engine().score(initial, batch, 1.0F).value(), before);
  const Snapshot trained = publish(engine(), {0, 0, 1}).value();
  EXPECT_NE(engine().score(trained, batch, 1.0F).value(), before);
  const auto other = open();
  EXPECT_EQ(other->policy_job()->score(trained, batch, 1.0F).value(),
            engine().score(trained, batch, 1.0F).value());
}

// Both views share one cache. Training takes pages from generation, which costs time but changes no
// bit.
TEST_P(TrainingJobTest, TrainingAndGenerationShareTheCache) {
  const auto shared = open_runtime(model_, options(64)).value();
  const auto apart = open();
  std::vector<RolloutRequest> requests;
  for (std::uint64_t id = 0; id < 5; ++id) {
    requests.push_back(sampling_request(id, model_.config, 8, 40));
  }
  ResultKeeper expected;
  run_requests(apart->rollout(), requests, expected);
  train(*apart->policy_job(), sequences(1), 60);

  SquareLoss loss;
  ResultKeeper results;
  TrainingJob& trainer = *shared->policy_job();
  ASSERT_TRUE(begin(trainer, sequences(1), &loss, 0.8F).ok());
  for (const RolloutRequest& request : requests) {
    ASSERT_TRUE(shared->rollout().submit(request, results).ok());
  }
  while (trainer.has_work() || shared->rollout().has_work()) {
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(shared->rollout().step({64}).ok());
    }
    ASSERT_TRUE(trainer.advance({10}).ok());
  }
  ASSERT_TRUE(update(trainer).ok());
  for (const RolloutRequest& request : requests) {
    expect_same_result(results.at(request.id.value), expected.at(request.id.value));
  }
  EXPECT_TRUE(same_tensors(weights(trainer, 1), weights(*apart->policy_job(), 1)));
}

// Exclusion depends on name and shape: the gains of IA3 are stored as matrices and still excluded.
TEST_P(TrainingJobTest, GainsAndBiasesDoNotDecay) {
  const auto trained_with = [&](double decay, DecayExclude exclude) {
    RuntimeOptions decaying = options();
    decaying.optimizer->weight_decay = decay;
    decaying.optimizer->weight_decay_exclude = exclude;
    const auto runtime = open_runtime(model_, decaying).value();
    train(*runtime->policy_job(), sequences(1), 100000);
    return weights(*runtime->policy_job(), 1);
  };
  const TensorMap undecayed = trained_with(0.0, DecayExclude::kNormsAndBiases);
  const TensorMap decayed = trained_with(10.0, DecayExclude::kNormsAndBiases);
  const TensorMap all_decayed = trained_with(10.0, DecayExclude::kNone);
  for (const auto& [name, tensor] : undecayed) {
    const bool spared = tensor.shape.size() < 2 || name.ends_with(".ia3_l");
    EXPECT_EQ(same_tensors({{name, tensor}}, {{name, decayed.at(name)}}), spared) << name;
    EXPECT_FALSE(same_tensors({{name, tensor}}, {{name, all_decayed.at(name)}})) << name;
  }
}

TEST_P(TrainingJobTest, AFailedBatchDoesNotChangeTheWeights) {
  const TensorMap before = weights(engine(), 0);
  for (const bool token_local : {false, true}) {
    SquareLoss loss;
    loss.token_local = token_local;
    loss.scale = std::numeric_limits<float>::infinity();
    ASSERT_TRUE(begin(engine(), sequences(1), &loss, 1.0F).ok());
    const auto step = engine().advance({100000});
    EXPECT_EQ(step.status().code(), Errc::kInternal);
    EXPECT_NE(step.status().message().find("gradient of the loss not finite sample_id="),
              std::string::npos)
        << step.status().message();
    EXPECT_FALSE(engine().has_work());
    EXPECT_EQ(update(engine()).status().code(), Errc::kInvalidArgument);

    // Finite for each token, but not after the backward pass through the model.
    loss.scale = 3e38F;
    ASSERT_TRUE(begin(engine(), sequences(1), &loss, 1.0F).ok());
    ASSERT_TRUE(engine().advance({100000}).ok());
    const auto updated = update(engine());
    EXPECT_EQ(updated.status().code(), Errc::kInternal);
    EXPECT_NE(updated.status().message().find("gradient of tensor "), std::string::npos)
        << updated.status().message();
    EXPECT_TRUE(same_tensors(weights(engine(), 0), before));

    loss.scale = 1.0F;
    loss.status = invalid_argument("no advantage");
    ASSERT_TRUE(begin(engine(), {sequences(1)[0]}, &loss).ok());
    EXPECT_EQ(engine().advance({10}).status().message(), "no advantage");
  }

  // The failed batches left nothing in the gradients.
  train(engine(), sequences(1), 50);
  const auto fresh = open();
  train(*fresh->policy_job(), sequences(1), 50);
  EXPECT_TRUE(same_tensors(weights(engine(), 1), weights(*fresh->policy_job(), 1)));
}

TEST_P(TrainingJobTest, BadBatchesAreRefused) {
  TrainSequence sequence = sequences(1)[0];
  EXPECT_EQ(update(engine()).status().code(), Errc::kInvalidArgument);
  for (const float temperature : {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_EQ(begin(engine(), {sequence}, nullptr, temperature).code(), Errc::kInvalidArgument);
  }
  expect_refused({}, Errc::kInvalidArgument, "empty sequence");
  TrainSequence bad = sequence;
  bad.response_mask.pop_back();
  expect_refused(bad, Errc::kInvalidArgument, "response_mask");
  bad = sequence;
  bad.advantages = {1.0F};
  expect_refused(bad, Errc::kInvalidArgument, "advantages has 1 entries");
  bad = sequence;
  bad.ids[0] = -3;
  expect_refused(bad, Errc::kInvalidArgument, "token -3 is outside the vocabulary");
  bad = sequence;
  bad.ids.assign(5000, 1);
  bad.response_mask.assign(5000, 1);
  expect_refused(bad, Errc::kResourceExhausted, "the context of 4096");
  bad.ids.resize(600);
  bad.response_mask.resize(600);
  expect_refused(bad, Errc::kResourceExhausted, "the cache of 512 tokens");
  const Status twice = begin(engine(), {sequence, sequence}, nullptr);
  EXPECT_EQ(twice.code(), Errc::kInvalidArgument);
  EXPECT_NE(twice.message().find("two sequences have the same id sample_id="), std::string::npos);
  EXPECT_FALSE(engine().has_work()) << "a refused batch starts nothing";
  ASSERT_TRUE(begin(engine(), {sequence}, nullptr).ok());
  EXPECT_EQ(begin(engine(), {sequence}, nullptr).code(), Errc::kUnavailable);
  EXPECT_EQ(engine().save({}).code(), Errc::kUnavailable);
  EXPECT_EQ(update(engine()).status().code(), Errc::kUnavailable);
  EXPECT_EQ(engine().score(runtime_->initial(), {}, 1.0F).status().code(), Errc::kUnavailable);
  EXPECT_EQ(engine().logprobs(sequence.id).status().code(), Errc::kNotFound);
  EXPECT_EQ(engine().logprobs({77}).status().code(), Errc::kNotFound);
}

class RoundedTrainingTest : public TrainingJobTest {
protected:
  // The weights that the optimizer works on.
  TensorMap unrounded() {
    TensorMap found;
    const TensorMap state = optimizer_state(engine()).value();
    for (const auto& [name, tensor] : state) {
      if (name.starts_with("weight.")) {
        found.emplace(name.substr(7), tensor);
      }
    }
    return found;
  }
};

TEST_P(RoundedTrainingTest, PublishedWeightsAreTheRoundedWorkingWeights) {
  EXPECT_TRUE(same_tensors(unrounded(), to_float_type(model_.tensors, DType::kF32)));
  train(engine(), sequences(1), 50);
  const Snapshot snapshot = publish(engine(), {0, 0, 1}).value();
  for (const auto& [name, tensor] : snapshot.base) {
    EXPECT_EQ(tensor.dtype, DType::kBF16) << name;
  }
  EXPECT_TRUE(same_tensors(snapshot.base, to_float_type(unrounded(), DType::kBF16)));
  EXPECT_FALSE(same_tensors(unrounded(), to_float_type(snapshot.base, DType::kF32)));
}

// Updates smaller than a rounding step of bf16 add up in the working weights until they show.
TEST_P(RoundedTrainingTest, SmallStepsAddUp) {
  RuntimeOptions slow = options();
  slow.optimizer->schedule.learning_rate = 1e-6;
  slow.optimizer->weight_decay = 0.0;
  slow.optimizer->total_steps = 200;
  runtime_ = open_runtime(model_, slow).value();
  const TensorMap first = weights(engine(), 0);
  const auto moved = [&](const TensorMap& now) {
    std::size_t count = 0;
    for (const auto& [name, tensor] : now) {
      const auto a = tensor.data.as<std::uint16_t>();
      const auto b = first.at(name).data.as<std::uint16_t>();
      for (std::size_t i = 0; i < a.size(); ++i) {
        count += a[i] == b[i] ? 0 : 1;
      }
    }
    return count;
  };
  train(engine(), sequences(1), 100000);
  const std::size_t after_one = moved(weights(engine(), 1));
  for (int step = 1; step < 40; ++step) {
    train(engine(), sequences(1), 100000);
  }
  EXPECT_GT(moved(weights(engine(), 40)), 10 * after_one + 100);
}

TEST_P(RoundedTrainingTest, AStateOfOtherWeightsIsRefused) {
  train(engine(), sequences(1), 50);
  const TensorMap state = optimizer_state(engine()).value();
  train(engine(), sequences(2), 50);
  const Snapshot later = publish(engine(), {0, 0, 2}).value();
  const Status refused = open()->policy_job()->load(later, state);
  EXPECT_EQ(refused.code(), Errc::kInvalidArgument);
  EXPECT_NE(refused.message().find("do not match the snapshot"), std::string::npos)
      << refused.message();
}

class AdapterTrainingTest : public TrainingJobTest {};

TEST_P(AdapterTrainingTest, AStepChangesTheWholeAdapterAndNothingElse) {
  const Snapshot before = runtime_->initial();
  train(engine(), sequences(1), 50);
  const Snapshot after = publish(engine(), {0, 0, 1}).value();
  EXPECT_TRUE(after.base.empty());
  EXPECT_EQ(after.base_digest, before.base_digest);
  EXPECT_EQ(digest_tensors(runtime_->initial().base), before.base_digest);
  ASSERT_EQ(after.adapter.size(), before.adapter.size());
  for (const auto& [name, tensor] : after.adapter) {
    EXPECT_FALSE(same_tensors({{name, tensor}}, {{name, before.adapter.at(name)}})) << name;
  }
}

TEST_P(AdapterTrainingTest, ASavedAndReopenedAdapterGivesTheSameBits) {
  train(engine(), sequences(1), 50);
  const Snapshot trained = publish(engine(), {0, 0, 1}).value();
  const auto expected = engine().score(trained, sequences(2), 0.9F).value();

  const test::TemporaryDirectory directory;
  const auto path = directory.path() / "adapter";
  PosixFileSystem files;
  RuntimeOptions saved = options();
  ASSERT_TRUE(
      write_adapter(files, path, saved.adapter->config, model_.config, trained.adapter).ok());
  saved.adapter = open_adapter(path, model_.config).value();
  const auto opened = open_runtime(model_, saved).value();
  EXPECT_EQ(opened->initial().adapter_digest, trained.adapter_digest);
  EXPECT_EQ(opened->policy_job()->score(opened->initial(), sequences(2), 0.9F).value(), expected);
}

TEST_P(AdapterTrainingTest, ANewAdapterTrains) {
  RuntimeOptions fresh = options();
  // A trained base is rounded to the compute type, and a frozen base is used as in its file. Here
  // both are equal, because the file is already rounded.
  ModelFiles model = model_;
  model.tensors = to_float_type(model.tensors, fresh.compute);
  fresh.adapter = make_adapter(fresh.adapter->config, model, fresh.compute, 3).value();
  const auto runtime = open_runtime(model, fresh).value();
  const auto before = runtime->policy_job()->score(runtime->initial(), sequences(2), 1.0F).value();
  RuntimeOptions bare = options();
  bare.adapter.reset();
  const auto base = open_runtime(model, bare).value();
  const auto expected = base->policy_job()->score(base->initial(), sequences(2), 1.0F).value();
  // A saved head is f32. The head of a bf16 base may round its input (AVX-512 BF16), by 2^-9 of
  // logits below 6.
  const bool f32_head = GetParam().adapter == "saved" && GetParam().dtype == DType::kBF16;
  const float allowed = f32_head ? 6.0F / 512.0F : 2e-5F;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (std::size_t t = 0; t < expected[i].size(); ++t) {
      ASSERT_NEAR(before[i][t], expected[i][t], allowed) << "a new adapter changes nothing";
    }
  }
  train(*runtime->policy_job(), sequences(1), 50);
  const Snapshot trained = publish(*runtime->policy_job(), {0, 0, 1}).value();
  EXPECT_NE(runtime->policy_job()->score(trained, sequences(2), 1.0F).value(), before);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, TrainingJobTest,
    ::testing::Values(
        JobKind{Backend::kCpu, ""}, JobKind{Backend::kCpu, "lora"},
        JobKind{Backend::kCpu, "biases"}, JobKind{Backend::kCpu, "dora"},
        JobKind{Backend::kCpu, "ia3"}, JobKind{Backend::kCpu, "ends"},
        JobKind{Backend::kCpu, "saved"}, JobKind{Backend::kCpu, "norms"},
        JobKind{Backend::kCpu, "", DType::kBF16}, JobKind{Backend::kCpu, "lora", DType::kBF16},
        JobKind{Backend::kCpu, "biases", DType::kBF16},
        JobKind{Backend::kCpu, "dora", DType::kBF16}, JobKind{Backend::kCpu, "ia3", DType::kBF16},
        JobKind{Backend::kCpu, "ends", DType::kBF16}, JobKind{Backend::kCpu, "saved", DType::kBF16},
        JobKind{Backend::kGuarded, "", DType::kBF16}, JobKind{Backend::kGuarded, "lora"},
        JobKind{Backend::kReference, ""}, JobKind{Backend::kReference, "", DType::kBF16},
        JobKind{Backend::kReference, "lora"}),
    kind_name);
INSTANTIATE_TEST_SUITE_P(Kinds, RoundedTrainingTest,
                         ::testing::Values(JobKind{Backend::kCpu, "", DType::kBF16},
                                           JobKind{Backend::kReference, "", DType::kBF16}),
                         kind_name);
INSTANTIATE_TEST_SUITE_P(
    Kinds, AdapterTrainingTest,
    ::testing::Values(JobKind{Backend::kCpu, "lora"}, JobKind{Backend::kCpu, "biases"},
                      JobKind{Backend::kCpu, "dora"}, JobKind{Backend::kCpu, "ia3"},
                      JobKind{Backend::kCpu, "ends"}, JobKind{Backend::kCpu, "saved"},
                      JobKind{Backend::kCpu, "norms"}, JobKind{Backend::kCpu, "lora", DType::kBF16},
                      JobKind{Backend::kCpu, "biases", DType::kBF16},
                      JobKind{Backend::kCpu, "dora", DType::kBF16},
                      JobKind{Backend::kCpu, "ia3", DType::kBF16},
                      JobKind{Backend::kCpu, "ends", DType::kBF16},
                      JobKind{Backend::kCpu, "saved", DType::kBF16},
                      JobKind{Backend::kReference, "dora"}, JobKind{Backend::kReference, "ia3"}),
    kind_name);

}  // namespace
}  // namespace tidemill::engines
