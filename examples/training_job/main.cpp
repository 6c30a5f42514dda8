// SPDX-License-Identifier: Apache-2.0
// Trains two adapters over one base model, which generates at the same time:
//   training_job MODEL OUTPUT
#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>
#include <tidemill/base/files/file.hpp>
#include <tidemill/engines/formats/adapter_files.hpp>
#include <utility>
#include <vector>

#include "adapter_training.hpp"

namespace training_job {
namespace {

using namespace tidemill::engines;  // NOLINT(google-build-using-namespace): used throughout
using tidemill::Status;

// Prints tokens as the engine generates them.
class PrintingSink final : public RolloutSink {
public:
  explicit PrintingSink(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}
  void on_tokens(const RolloutTokens& tokens) override {
    std::cout << tokenizer_.decode(tokens.ids, SpecialTokenText::kDrop) << std::flush;
  }
  void on_rollout(RolloutResult result) override { std::cout << result.error << ' '; }

private:
  Tokenizer tokenizer_;
};

// Prints a prompt and queues it. If `adapter` is empty, the base model generates.
Status submit(ModelRuntime& runtime, const Tokenizer& tokenizer, const std::string& prompt,
              const std::string& adapter, RolloutSink& sink) {
  RolloutRequest request;
  TIDEMILL_ASSIGN_OR_RETURN(request.prompt_ids, tokenizer.encode(prompt, AddSpecialTokens::kNo));
  request.sampling.temperature = 0;
  request.max_new_tokens = 4;
  request.stop_ids = {tokenizer.eos_id().value()};
  request.adapter = adapter;
  std::cout << prompt;
  return runtime.rollout().submit(std::move(request), sink);
}

// Trains all of `trainings` while the base model extends `prompts`, one after the other. One thread
// takes turns: an iteration of generation, then a few units of each job.
Status train_and_generate(ModelRuntime& runtime, std::array<AdapterTraining*, 2> trainings,
                          const Tokenizer& tokenizer, const std::vector<std::string>& prompts,
                          RolloutSink& sink) {
  std::cout << "base model: ";
  std::size_t num_submitted = 0;
  for (bool trains = true; trains || runtime.rollout().has_work();) {
    if (!runtime.rollout().has_work() && num_submitted < prompts.size()) {
      TIDEMILL_RETURN_IF_ERROR(submit(runtime, tokenizer, prompts[num_submitted++], "", sink));
    }
    TIDEMILL_RETURN_IF_ERROR(runtime.rollout().step({}).status());
    trains = false;
    for (AdapterTraining* training : trainings) {
      if (training->losses.size() < kSteps) {
        TIDEMILL_RETURN_IF_ERROR(advance(*training));
        trains = true;
      }
    }
  }
  std::cout << '\n';
  return {};
}

// Runs one more optimizer step, with the learning rate of the job's options.
Status train_once_more(TrainingJob& job, AdapterTraining& training) {
  TIDEMILL_RETURN_IF_ERROR(job.forward_backward(training.batch, training.loss));
  TIDEMILL_RETURN_IF_ERROR(run_to_end(job));
  TIDEMILL_RETURN_IF_ERROR(job.optim_step());
  return run_to_end(job);
}

// Prints whether two jobs compute the same log-probabilities.
Status compare(const std::string& when, TrainingJob& a, TrainingJob& b, const TrainBatch& batch) {
  TIDEMILL_ASSIGN_OR_RETURN(const std::vector<float> x, logprobs(a, batch));
  TIDEMILL_ASSIGN_OR_RETURN(const std::vector<float> y, logprobs(b, batch));
  const bool same =
      x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
  std::cout << when << ": " << (same ? "the same bits" : "different bits") << '\n';
  return {};
}

Status run(const std::filesystem::path& model_path, const std::filesystem::path& output) {
  TIDEMILL_ASSIGN_OR_RETURN(const ModelFiles model, open_model(model_path));
  TIDEMILL_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::load(model_path));
  PrintingSink sink(tokenizer);  // outlives the runtime, and so all requests
  RuntimeOptions options;
  options.trains_adapters = true;
  options.adapter_bytes = std::int64_t{4} << 20U;  // for adapters that requests name
  TIDEMILL_ASSIGN_OR_RETURN(const auto runtime, open_runtime(model, options));

  std::vector<std::string> prompts;
  TrainBatch sums;
  TrainBatch differences;
  for (const int a : {17, 28, 39, 46}) {
    for (const int b : {25, 36, 47, 58}) {
      const std::string sum = std::to_string(a + b);
      prompts.push_back(std::to_string(a) + "+" + std::to_string(b) + "=");
      TIDEMILL_RETURN_IF_ERROR(add_sequence(tokenizer, prompts.back(), sum, sums));
      TIDEMILL_RETURN_IF_ERROR(add_sequence(tokenizer, sum + "-" + std::to_string(a) + "=",
                                            std::to_string(b), differences));
    }
  }
  TIDEMILL_ASSIGN_OR_RETURN(AdapterTraining adding, open_training(*runtime, model, sums, 1));
  TIDEMILL_ASSIGN_OR_RETURN(AdapterTraining subtracting,
                            open_training(*runtime, model, differences, 2));
  TIDEMILL_RETURN_IF_ERROR(
      train_and_generate(*runtime, {&adding, &subtracting}, tokenizer, prompts, sink));
  std::cout << "sums: loss " << adding.losses.front() << " to " << adding.losses.back()
            << "\ndifferences: loss " << subtracting.losses.front() << " to "
            << subtracting.losses.back() << '\n';

  // The snapshot has the weights, and the capture what `load` needs in addition.
  TrainingJob& job = *adding.job;
  TIDEMILL_RETURN_IF_ERROR(job.save({.line = 0, .incarnation = 0, .step = kSteps}));
  TIDEMILL_RETURN_IF_ERROR(run_to_end(job));
  const Snapshot snapshot = job.take_snapshot();
  TIDEMILL_RETURN_IF_ERROR(job.capture());
  TIDEMILL_RETURN_IF_ERROR(run_to_end(job));
  const tidemill::TensorMap optimizer_state = job.take_optimizer_state();

  TIDEMILL_ASSIGN_OR_RETURN(const auto fresh, open_runtime(model, options));
  TIDEMILL_ASSIGN_OR_RETURN(const auto reloaded, fresh->open_job(adding.options));
  TIDEMILL_RETURN_IF_ERROR(reloaded->load(snapshot, optimizer_state));
  TIDEMILL_RETURN_IF_ERROR(compare("reloaded", job, *reloaded, adding.batch));
  TIDEMILL_RETURN_IF_ERROR(train_once_more(job, adding));
  TIDEMILL_RETURN_IF_ERROR(train_once_more(*reloaded, adding));
  TIDEMILL_RETURN_IF_ERROR(compare("one step later", job, *reloaded, adding.batch));

  // The initial adapter with the tensors of the snapshot is the trained adapter.
  NamedAdapter trained{"sums", snapshot.version, adding.options.adapter};
  trained.files.tensors = snapshot.adapter;
  TIDEMILL_RETURN_IF_ERROR(fresh->adapters().load(trained));
  std::cout << "adapter: ";
  TIDEMILL_RETURN_IF_ERROR(submit(*fresh, tokenizer, prompts.front(), trained.name, sink));
  while (fresh->rollout().has_work()) {
    TIDEMILL_RETURN_IF_ERROR(fresh->rollout().step({}).status());
  }
  tidemill::PosixFileSystem files;
  TIDEMILL_RETURN_IF_ERROR(
      write_adapter(files, output, trained.files.config, model.config, trained.files.tensors));
  std::cout << "\nwrote " << output.string() << '\n';
  return {};
}

}  // namespace
}  // namespace training_job

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: training_job MODEL OUTPUT\n";
    return 2;
  }
  const tidemill::Status status = training_job::run(argv[1], argv[2]);
  if (!status.ok()) {
    std::cerr << status.to_string() << '\n';
    return 1;
  }
  return 0;
}
