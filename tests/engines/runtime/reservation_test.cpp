// SPDX-License-Identifier: Apache-2.0
// A runtime reserves its device memory when it is opened: passes allocate nothing.
#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/engines/runtime/job_steps.hpp"
#include "tests/engines/runtime/runtime_bench.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

struct ReservedKind {
  Backend backend = Backend::kCpu;
  std::string adapter = {};  // of `adapter_samples`; empty: all parameters are trained
  DType dtype = DType::kF32;
  std::int64_t window_tokens = 0;
  Recompute recompute = Recompute::kNone;
  bool keeps_rows = false;
};

std::string text_of(const ReservedKind& kind) {
  return backend_name(kind.backend) + "_" + (kind.adapter.empty() ? "full" : kind.adapter) + "_" +
         std::string(dtype_name(kind.dtype)) + (kind.window_tokens > 0 ? "_windows" : "") + "_" +
         recompute_name(kind.recompute) + (kind.keeps_rows ? "_keeps" : "");
}

std::ostream& operator<<(std::ostream& out, const ReservedKind& kind) {
  return out << text_of(kind);
}

constexpr std::int64_t kCacheTokens = 512;

RuntimeOptions options_of(const ReservedKind& kind, const ModelFiles& model) {
  RuntimeOptions options =
      small_options(model.config, kind.backend, kCacheTokens, Training::kYes, kind.dtype);
  options.window_tokens = kind.window_tokens;
  options.recompute = kind.recompute;
  options.generated_bytes = kind.keeps_rows ? std::int64_t{16} << 20U : 0;
  options.adapter_bytes = std::int64_t{4} << 20U;
  options.trains_adapters = !kind.adapter.empty();
  options.limits.rollout_rows = 96;
  options.limits.prompt_rows = 64;
  if (!kind.adapter.empty()) {
    options.adapter = sample_adapter(model, kind.adapter, 9);
  }
  return options;
}

// Returns requests of which some share a prompt, some score it, and some use a named adapter.
std::vector<RolloutRequest> requests_of(const ModelConfig& model, bool named) {
  std::vector<RolloutRequest> all;
  std::uint64_t id = 0;
  for (const auto& [prompt_tokens, members] :
       std::vector<std::pair<std::int64_t, int>>{{16, 3}, {1, 2}, {150, 1}, {35, 3}}) {
    const auto prompt = sampling_request(id, model, prompt_tokens, 1).prompt_ids;
    for (int member = 0; member < members; ++member) {
      RolloutRequest request =
          sampling_request(id, model, 1, static_cast<std::int32_t>(2 + (id * 7) % 23));
      request.prompt_ids = prompt;
      request.keep_rows = true;
      all.push_back(std::move(request));
      ++id;
    }
  }
  for (const bool logprobs : {false, true}) {
    all.push_back(sampling_request(id++, model, 9, 4));
    all.back().prompt_logprobs = logprobs;
    all.back().prompt_logits = logprobs;
    all.back().adapter = named ? "other" : "";
  }
  return all;
}

class ReservationTest : public ::testing::TestWithParam<ReservedKind> {
protected:
  // Expects that nothing has been allocated since the last call.
  void expect_no_allocation(const char* what) {
    EXPECT_EQ(runtime_->device_use().num_allocations, num_allocations_) << what;
    EXPECT_EQ(runtime_->device_use().bytes, bytes_) << what;
    note_allocations();
  }
  void note_allocations() {
    num_allocations_ = runtime_->device_use().num_allocations;
    bytes_ = runtime_->device_use().bytes;
  }

  std::vector<TrainSequence> generate(bool named, std::int64_t budget) {
    std::vector<RolloutRequest> requests = requests_of(model_.config, named);
    ResultKeeper results;
    run_requests(runtime_->rollout(), requests, results, budget);
    std::vector<TrainSequence> sequences;
    for (const RolloutRequest& request : requests) {
      if (request.adapter.empty()) {
        sequences.push_back(to_sequence(request, results.at(request.id.value)));
      }
    }
    return sequences;
  }

  void train(TrainingJob& job, const std::vector<TrainSequence>& batch, std::int64_t budget) {
    WeightedLoss loss;
    ASSERT_TRUE(begin(job, batch, nullptr, 0.8F).ok());
    while (job.has_work()) {
      ASSERT_TRUE(job.advance({budget}).ok());
    }
    ASSERT_TRUE(begin(job, batch, &loss, 0.8F).ok());
    while (job.has_work()) {
      ASSERT_TRUE(job.advance({budget}).ok());
    }
  }

  ModelFiles model_ = small_model(5);
  std::unique_ptr<ModelRuntime> runtime_;
  std::int64_t num_allocations_ = 0;
  std::int64_t bytes_ = 0;
};

TEST_P(ReservationTest, PassesAllocateNothing) {
  runtime_ = open_runtime(model_, options_of(GetParam(), model_)).value();
  TrainingJob& job = *runtime_->policy_job();
  const bool full = GetParam().adapter.empty();
  for (std::uint64_t step = 1; step <= 3; ++step) {
    const bool named = step == 2 && !full;  // a base that is trained has no named adapters
    if (named) {
      const NamedAdapter other{"other", {}, sample_adapter(model_, "dora", 3)};
      ASSERT_TRUE(runtime_->adapters().load(other).ok());
    }
    note_allocations();
    const auto batch = generate(named, step == 1 ? 64 : 10000);
    expect_no_allocation("generation");
    train(job, batch, step == 3 ? 40 : 10000);
    expect_no_allocation("training");
    ASSERT_TRUE(job.score(runtime_->initial(), batch, 1.0F).ok() || step > 1);
    note_allocations();  // of the weights to score with
    ASSERT_TRUE(update(job).ok());
    // What is allocated holds the vectors of the changed weights, in place of those before.
    note_allocations();
    ASSERT_TRUE(job.save({0, 0, step}).ok());
    ASSERT_TRUE(run_to_end(job).ok());
    expect_no_allocation("saving");
    ASSERT_TRUE(runtime_->rollout().load(job.take_snapshot(), WeightArrival::kFinish).ok());
    if (named) {
      ASSERT_TRUE(runtime_->adapters().unload("other").ok());
    }
  }
}

// Steps with a proximal term and a hook, and a second job beside the policy's.
TEST_P(ReservationTest, OtherJobsAllocateNothing) {
  if (GetParam().adapter.empty()) {
    return;  // such a base can have no other jobs
  }
  runtime_ = open_runtime(model_, options_of(GetParam(), model_)).value();
  JobOptions options;
  options.adapter = sample_adapter(model_, "dora", 4);
  options.optimizer = *options_of(GetParam(), model_).optimizer;
  options.activation_bytes = std::int64_t{4} << 20U;
  options.recompute = GetParam().recompute;
  options.window_tokens = GetParam().window_tokens;
  options.keeps_anchor = true;
  const auto job = runtime_->open_job(options).value();
  const auto batch = generate(false, 64);
  WeightedLoss loss;
  ASSERT_TRUE(begin(*job, batch, &loss).ok());  // reserves the memory of its shared prompts
  job->cancel();
  note_allocations();
  for (int step = 0; step < 2; ++step) {
    train(*job, batch, step == 0 ? 40 : 10000);
    train(*runtime_->policy_job(), batch, 10000);
    expect_no_allocation("training");
    OptimStep proximal;
    proximal.proximal = 0.1;
    proximal.on_gradient = [&](const std::string&, std::span<const float>) {
      expect_no_allocation("the step");
    };
    ASSERT_TRUE(job->optim_step(proximal).ok());
    ASSERT_TRUE(run_to_end(*job).ok());
    note_allocations();
  }
}

// With too little memory, opening fails and says what there is too little memory for.
TEST_P(ReservationTest, TooLittleMemoryIsAStatusAtOpen) {
  RuntimeOptions options = options_of(GetParam(), model_);
  const std::int64_t needed = open_runtime(model_, options).value()->device_use().bytes;
  std::set<std::string> reasons;
  for (std::int64_t part = 0; part < 40; ++part) {
    options.device_bytes = std::max<std::int64_t>(needed * part / 40, 1);
    const Status refused = open_runtime(model_, options).status();
    ASSERT_EQ(refused.code(), Errc::kResourceExhausted) << options.device_bytes;
    EXPECT_NE(refused.message().find(" bytes do not fit beside "), std::string::npos)
        << refused.message();
    reasons.insert(refused.message().substr(0, refused.message().find(':')));
  }
  EXPECT_GT(reasons.size(), 2U);
  options.device_bytes = needed;
  EXPECT_TRUE(open_runtime(model_, options).ok());
}

// Returns a sequence of `num_tokens` tokens of which all but the first are targets.
TrainSequence random_sequence(std::uint64_t id, const ModelConfig& model, std::int64_t num_tokens) {
  TrainSequence sequence;
  sequence.id = SampleId{id};
  sequence.ids = sampling_request(id, model, num_tokens, 1).prompt_ids;
  sequence.response_mask.assign(sequence.ids.size(), 1);
  sequence.response_mask[0] = 0;
  return sequence;
}

// The head of a pass needs logits of its own if few rows go through a layer together. The limits
// allow more of them, but the batch below has no sequence that is so long.
TEST(ReservedPassTest, BatchesOfShorterSequencesAllocateNothing) {
  ModelFiles model;
  model.config = small_config({});
  model.config.vocab_size = 16384;  // 1,024 rows of logits at a time
  model.config.intermediate_size = 6000;
  model.config.num_layers = 1;
  model.config.max_positions = 2048;
  model.tensors = random_weights(model.config, 3);
  RuntimeOptions options = small_options(model.config, Backend::kCpu, 2048, Training::kYes);
  options.activation_bytes = std::int64_t{1} << 30U;
  options.limits.rollout_rows = 1;
  options.limits.train_rows = 1500;
  options.limits.sequence_rows = 1400;
  const auto runtime = open_runtime(model, options).value();
  TrainingJob& job = *runtime->policy_job();
  const std::int64_t before = runtime->device_use().num_allocations;
  for (const std::int64_t longest : {1400, 1023, 932, 931}) {
    std::vector<TrainSequence> batch;
    for (std::int64_t rows = 1500; rows > 0; rows -= longest) {
      batch.push_back(random_sequence(batch.size(), model.config, std::min(rows, longest)));
    }
    WeightedLoss loss;
    ASSERT_TRUE(begin(job, batch, &loss).ok());
    ASSERT_TRUE(run_to_end(job).ok());
    EXPECT_EQ(runtime->device_use().num_allocations, before) << longest;
  }
}

// Only gradients of a shared prompt need memory beyond the limits.
TEST(ReservedPassTest, ForwardOfALongSharedPromptAllocatesNothing) {
  const ModelFiles model = small_model(5);
  RuntimeOptions options = small_options(model.config, Backend::kCpu, kCacheTokens, Training::kYes);
  options.limits.prompt_rows = 16;
  const auto runtime = open_runtime(model, options).value();
  TrainingJob& job = *runtime->policy_job();
  std::vector<TrainSequence> batch;
  for (std::uint64_t i = 0; i < 3; ++i) {
    batch.push_back(random_sequence(0, model.config, 60));
    batch.back().id = SampleId{i};
    std::fill_n(batch.back().response_mask.begin(), 50, 0);
  }
  const std::int64_t before = runtime->device_use().num_allocations;
  ASSERT_TRUE(begin(job, batch, nullptr).ok());
  ASSERT_TRUE(run_to_end(job).ok());
  EXPECT_EQ(runtime->device_use().num_allocations, before);
  WeightedLoss loss;
  ASSERT_TRUE(begin(job, batch, &loss).ok());
  EXPECT_GT(runtime->device_use().num_allocations, before);
  job.cancel();
}

std::vector<ReservedKind> kinds() {
  std::vector<ReservedKind> all;
  for (const Backend backend : {Backend::kCpu, Backend::kReference, Backend::kGuarded}) {
    all.push_back({backend, "", DType::kF32});
    all.push_back({backend, "lora", DType::kF32, 16, Recompute::kNone, true});
  }
  const Backend cpu = Backend::kCpu;
  all.push_back({cpu, "", DType::kBF16, 16, Recompute::kLayer});
  all.push_back({cpu, "", DType::kBF16, 0, Recompute::kNone, true});
  all.push_back({cpu, "lora", DType::kBF16, 0, Recompute::kCheap});
  all.push_back({cpu, "dora", DType::kF32, 16, Recompute::kLayer});
  all.push_back({cpu, "ia3", DType::kBF16, 0, Recompute::kNone, true});
  all.push_back({cpu, "ends", DType::kF32, 16});
  all.push_back({cpu, "saved", DType::kF32, 0, Recompute::kNone, true});
  all.push_back({cpu, "biases", DType::kF32, 16, Recompute::kLayer});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Kinds, ReservationTest, ::testing::ValuesIn(kinds()),
                         [](const auto& test) { return text_of(test.param); });

}  // namespace
}  // namespace tidemill::engines
