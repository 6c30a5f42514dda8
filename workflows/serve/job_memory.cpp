// SPDX-License-Identifier: Apache-2.0
#include "workflows/serve/job_memory.hpp"

#include <string>
#include <utility>

#include "base/text/mebibytes.hpp"
#include "workflows/sft/run_sft.hpp"

namespace tidemill::workflows {
namespace {

// A row needs a token to predict and one before it.
constexpr std::int64_t kShortestRow = 2;

// Returns what a job with this adapter takes at least. Units: bytes.
Result<std::int64_t> least_bytes(const TrainOptions& train, const NewLora& lora,
                                 const JobModel& model) {
  SftOptions job;
  job.model = model.options;
  job.train.common = train;
  TrainedModel trained{model.files, {}};
  TIDEMILL_ASSIGN_OR_RETURN(trained.adapter, outline_adapter(lora, model.files.config));
  std::int64_t parameters = 0;
  for (const auto& [name, tensor] : trained.adapter->tensors) {
    parameters += tensor.num_elements();
  }
  // The plan counts the tensors of the adapter by their data, which an outline lacks.
  return least_shared_plan(std::move(job), trained, kShortestRow).total() +
         parameters * static_cast<std::int64_t>(sizeof(float));
}

// Returns the largest rank below that of `lora` with which a job fits, or 0.
Result<std::int32_t> largest_rank(const TrainOptions& train, NewLora lora, const JobModel& model,
                                  std::int64_t bytes) {
  std::int32_t fits = 0;
  std::int32_t exceeds = lora.rank;
  while (exceeds - fits > 1) {
    lora.rank = fits + (exceeds - fits) / 2;
    TIDEMILL_ASSIGN_OR_RETURN(const std::int64_t needed, least_bytes(train, lora, model));
    (needed <= bytes ? fits : exceeds) = lora.rank;
  }
  return fits;
}

}  // namespace

Status check_rank(const TrainOptions& train, const JobModel& model, const JobShare& share) {
  const auto* lora = train.adapter.has_value() ? train.adapter->source.get<NewLora>() : nullptr;
  if (lora == nullptr) {
    return {};
  }
  TIDEMILL_ASSIGN_OR_RETURN(const std::int64_t needed, least_bytes(train, *lora, model));
  if (needed <= share.bytes) {
    return {};
  }
  TIDEMILL_ASSIGN_OR_RETURN(const std::int32_t fits,
                            largest_rank(train, *lora, model, share.bytes));
  const std::string of_share = share.jobs == 1 ? "the job may have "
                                               : "each of " + std::to_string(share.jobs) +
                                                     " jobs (serve.tuning.max_running) may have ";
  return invalid_argument(
      "train.adapter.rank: a job of rank " + std::to_string(lora->rank) + " needs at least " +
      mebibytes_text(needed) + ", and " + of_share + mebibytes_text(share.bytes) + "; " +
      (fits > 0 ? "rank " + std::to_string(fits) + " fits with short rows"
                : "no rank fits with these target_modules") +
      (share.jobs == 1 ? "" : "; lower serve.tuning.max_running to give each job more"));
}

}  // namespace tidemill::workflows
