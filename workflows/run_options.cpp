// SPDX-License-Identifier: Apache-2.0
#include "workflows/run_options.hpp"

#include <algorithm>

namespace tidemill::workflows {
namespace {

// Settings of other programs that no workflow has.
void add_absent(Schema<RunOptions>& s) {
  s.absent({"beta", "kl_coef", "kl_loss_coef", "init_kl_coef", "use_kl_loss", "use_kl_in_reward",
            "ref_model"},
           "there is no KL term against a reference model");
  s.absent(
      {"use_vllm", "vllm_mode", "vllm_server_host", "tensor_parallel_size",
       "tensor_model_parallel_size", "nnodes", "n_gpus_per_node", "deepspeed", "fsdp"},
      "a run is on one machine, and placement.rollout.processes says how many of its processes "
      "generate");
  s.absent({"packing", "group_by_length", "padding_free"},
           "rows are never padded, and train.micro_batch_tokens says how many tokens are computed "
           "together");
  s.absent({"assistant_only_loss", "completion_only_loss", "train_on_prompt"},
           "the kind of a row says which tokens are targets; prompts never are");
  s.absent({"logging_steps", "log_freq", "report_to", "logger"},
           "every step is recorded, for TensorBoard too");
  s.absent({"dropout", "lora_dropout"}, "there is no dropout");
  s.absent({"optim", "optimizer", "optimizer_type"}, "the optimizer is AdamW");
  s.absent({"neftune_noise_alpha"}, "embeddings get no noise");
  s.absent({"save_total_limit", "resume_from_checkpoint"},
           "a run keeps its last two commits, and `tidemill resume` continues it");
  s.absent({"actor_rollout_ref", "critic", "trainer", "training_args", "grpo_config"},
           "this is a section of another program; `tidemill explain NAME` finds the key that "
           "another program calls NAME");
}

}  // namespace

bool is_run_name(std::string_view name) {
  return !name.empty() && name.size() <= 128 && name.front() != '.' && name.front() != '-' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == '-';
         });
}

void describe(Schema<CheckpointOptions>& s) {
  s.field("every_steps", &CheckpointOptions::every_steps,
          "Steps between commits; 0: only at the end.")
      .range(0, 1e9)
      .also_called({"save_steps", "save_freq", "save_strategy"});
  s.field("every_seconds", &CheckpointOptions::every_seconds,
          "A step is also committed if this time has passed since the last commit; 0: it is not.")
      .range(0, 1e9)
      .unit("seconds");
}

void describe(Schema<RecordOptions>& s) {
  s.field(
       "samples_bytes", &RecordOptions::samples_bytes,
       "Maximum size of samples.jsonl; samples that no longer fit are not recorded; 0: none are.")
      .at_least(0)
      .unit("bytes");
}

void describe(Schema<DeviceOptions>& s) {
  s.field("threads", &DeviceOptions::threads,
          "Compute threads; 0: one for each core that CPU affinity and control groups allow.")
      .range(0, 1024);
  s.field("memory_bytes", &DeviceOptions::memory_bytes,
          "Memory that the run may use; 0: what the machine, its control groups and ulimit allow. "
          "A run that may need more is refused.")
      .at_least(0)
      .unit("bytes")
      .also_called({"gpu_memory_utilization", "vllm_gpu_memory_utilization"});
}

void describe(Schema<RunOptions>& s) {
  s.field(
       "name", &RunOptions::name,
       "The run's directory is runs/NAME. Default: the file name without its suffix, then with -2, "
       "-3, ... appended if that is taken.")
      .also_called(
          {"run_name", "output_dir", "experiment_name", "project_name", "default_local_dir"});
  s.field("seed", &RunOptions::seed, "Seed of all random numbers of the run.").at_least(0);
  s.field("checkpoint", &RunOptions::checkpoint, "When the run saves a commit to resume from.");
  s.field("record", &RunOptions::record, "What the run records.");
  s.field("device", &RunOptions::device, "Threads and memory that the run may use.");
  add_absent(s);
  s.check("name", [](const RunOptions& o) {
    return o.name && !is_run_name(*o.name) ? "must be 1 to 128 letters, digits, dots, dashes or "
                                             "underscores, and not begin with a dot or a dash"
                                           : "";
  });
}

}  // namespace tidemill::workflows
