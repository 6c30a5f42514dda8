// SPDX-License-Identifier: Apache-2.0
#include "workflows/serve/tinker_server.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "actors/gateway/api_keys.hpp"
#include "actors/tinker/disk_store.hpp"
#include "actors/tinker/lora_config.hpp"
#include "engines/runtime/new_adapter.hpp"
#include "workflows/memory_plan.hpp"
#include "workflows/model_run.hpp"
#include "workflows/process_limits.hpp"
#include "workflows/serve/tinker_memory.hpp"

namespace tidemill::workflows {
namespace {

// The share of the memory that all jobs may take, and that of the activations of one.
constexpr std::int64_t kShareOfJobs = 2;
constexpr std::int64_t kShareOfJob = 8;

TinkerMemory memory_of(const ServeOptions& options, const actors::ServedModel& model) {
  return {std::min(model.max_positions, options.serve.tuning.job_tokens),
          allowed_memory(options.device) / kShareOfJob};
}

// Returns what makes the options of a job. `files` must outlive the result.
actors::MakeJobOptions make_job_options(const ServeOptions& options,
                                        const engines::ModelFiles& files,
                                        const actors::ServedModel& model) {
  const DType compute = compute_type(options.model, files.config);
  const TinkerMemory memory = memory_of(options, model);
  return [&files, compute, memory, base = model.id](
             const actors::tinker::LoraSettings& lora, std::uint64_t seed,
             const TensorMap* tensors) -> Result<engines::JobOptions> {
    const engines::AdapterConfig config = actors::tinker::to_adapter_config(lora, base);
    engines::JobOptions job;
    job.window_tokens = window_beside_generation(files.config);
    if (tensors != nullptr) {
      TIDEMILL_ASSIGN_OR_RETURN(
          job.adapter, engines::assemble_adapter(config, *tensors, files.config, "checkpoint"));
    } else {
      TIDEMILL_ASSIGN_OR_RETURN(job.adapter,
                                engines::make_adapter(config, files, compute, seed, "lora_config"));
    }
    set_job_memory(files.config, compute, memory, job);
    return job;
  };
}

// Limits the memory of all models and snapshots: to half of what the server may use, and to what
// its own plan leaves, but to no less than one small model with a snapshot takes. Most activations
// are those of the base, so that the activations of a small adapter stand for those of all.
void limit_models(const ServeOptions& options, const engines::ModelFiles& files,
                  const TinkerPlace& place, actors::TinkerDeps& deps) {
  actors::tinker::LoraSettings small;
  small.rank = 1;
  const auto job = deps.make_job_options(small, 0, nullptr);
  const std::int64_t activations = job.ok() ? job.value().activation_bytes : 0;
  deps.model_bytes = [&config = files.config, activations,
                      base = place.model->id](const actors::tinker::LoraSettings& lora) {
    return tinker_model_bytes(actors::tinker::to_adapter_config(lora, base), config, activations);
  };
  deps.snapshot_bytes = [&config = files.config,
                         base = place.model->id](const actors::tinker::LoraSettings& lora) {
    return tinker_snapshot_bytes(actors::tinker::to_adapter_config(lora, base), config);
  };
  const std::int64_t allowed = allowed_memory(options.device);
  const std::int64_t left = std::min(allowed / kShareOfJobs, allowed - place.server_bytes);
  deps.limits.max_model_bytes = std::max(static_cast<std::size_t>(std::max<std::int64_t>(left, 0)),
                                         deps.model_bytes(small) + deps.snapshot_bytes(small));
}

// Returns what clients pass to AutoTokenizer.from_pretrained: the folder of the model, which they
// can read on the machine of the server.
std::string tokenizer_of(const std::string& path, const std::string& name) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path, error);
  return error || !std::filesystem::is_directory(whole, error) ? name : whole.string();
}

}  // namespace

Result<std::unique_ptr<TinkerServer>> open_tinker(const ServeOptions& options,
                                                  const engines::ModelFiles& files) {
  if (!options.serve.checkpoints_path.has_value()) {
    return std::unique_ptr<TinkerServer>();
  }
  auto tinker = std::make_unique<TinkerServer>();
  TIDEMILL_ASSIGN_OR_RETURN(tinker->port, start_port("io"));
  const std::filesystem::path folder = *options.serve.checkpoints_path;
  std::error_code ignored;  // `open_disk_store` then says what is missing
  std::filesystem::create_directories(folder.parent_path(), ignored);
  auto store = actors::tinker::open_disk_store(tinker->files, folder, files.config);
  if (!store.ok()) {
    return store.status().with_context("serve.checkpoints_path");
  }
  tinker->store = std::move(store).value();
  return tinker;
}

void start_tinker(TinkerServer& tinker, const ServeOptions& options,
                  const engines::ModelFiles& files, const TinkerPlace& place,
                  const ServeEnvironment& run) {
  const actors::ServedModel& model = *place.model;
  actors::TinkerDeps deps;
  deps.http = place.http;
  deps.device = place.device;
  deps.make_job_options = make_job_options(options, files, model);
  limit_models(options, files, place, deps);
  deps.warn = run.warn;
  deps.store = tinker.store;
  deps.parse_ports = place.parse_ports;
  deps.io_port = tinker.port.get();
  deps.metrics = place.metrics;
  deps.tenancy = place.tenancy;
  deps.clock = &run.clock;
  deps.unix_time = run.unix_time;
  deps.random = actors::unpredictable_bits;
  deps.model_limits = {model.vocab_size, model.max_positions,
                       memory_of(options, model).longest_tokens, model.stop_ids};
  deps.base = {model.id, tokenizer_of(options.model.path, model.id), model.max_positions};
  tinker.actor = actors::spawn_tinker(run.system, std::move(deps));
}

}  // namespace tidemill::workflows
