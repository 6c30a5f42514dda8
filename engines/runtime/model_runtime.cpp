// SPDX-License-Identifier: Apache-2.0
// Opens a model: checks it, creates the context, lays out the weights once, and makes the rollout
// view and the policy's job.
#include "engines/runtime/model_runtime.hpp"

#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/digest.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/peft/adapter_spec.hpp"
#include "engines/runtime/backends.hpp"
#include "engines/runtime/rollout_view.hpp"
#include "engines/runtime/runtime_context.hpp"
#include "engines/runtime/runtime_job.hpp"
#include "engines/runtime/weight_cache.hpp"

namespace tidemill::engines {
namespace {

// Larger sizes would overflow in the arithmetic of reservations.
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50U;
constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max();

Status check_size(const std::string& option, std::int64_t value, std::int64_t max) {
  if (value >= 0 && value <= max) {
    return {};
  }
  return invalid_argument(option + ": " + std::to_string(value) +
                          (value < 0 ? " is negative" : " is more than " + std::to_string(max)));
}

Status check_sizes(const RuntimeOptions& options) {
  for (const auto& [option, value] :
       {std::pair("device_bytes", options.device_bytes), std::pair("kv_bytes", options.kv_bytes),
        std::pair("generated_bytes", options.generated_bytes),
        std::pair("activation_bytes", options.activation_bytes),
        std::pair("adapter_bytes", options.adapter_bytes)}) {
    TIDEMILL_RETURN_IF_ERROR(check_size(option, value, kMaxBytes));
  }
  for (const auto& [option, value] :
       {std::pair("window_tokens", options.window_tokens),
        std::pair("limits.rollout_rows", options.limits.rollout_rows),
        std::pair("limits.sampled_rows", options.limits.sampled_rows),
        std::pair("limits.train_rows", options.limits.train_rows),
        std::pair("limits.sequence_rows", options.limits.sequence_rows),
        std::pair("limits.prompt_rows", options.limits.prompt_rows)}) {
    TIDEMILL_RETURN_IF_ERROR(check_size(option, value, kMaxRows));
  }
  return {};
}

Status check_options(const RuntimeOptions& options) {
  TIDEMILL_RETURN_IF_ERROR(check_sizes(options));
  if (options.max_running < 1) {
    return invalid_argument("max_running: " + std::to_string(options.max_running) +
                            " is less than 1");
  }
  if (options.limits.rollout_rows < 1) {
    return invalid_argument("limits.rollout_rows: " + std::to_string(options.limits.rollout_rows) +
                            " is less than 1");
  }
  if (!options.optimizer.has_value()) {
    return {};
  }
  const bool nf4 = options.compute == DType::kNf4;
  if ((options.compute == DType::kBlockI8 || nf4) && !options.adapter.has_value()) {
    return invalid_argument(
        std::string("compute: ") + (nf4 ? "nf4" : "int8") +
        " weights cannot be trained; train an adapter over them, or choose f32 or "
        "bf16");
  }
  TIDEMILL_RETURN_IF_ERROR(validate(*options.optimizer));
  if (options.activation_bytes < 1) {
    return invalid_argument("activation_bytes: " + std::to_string(options.activation_bytes) +
                            " is less than 1");
  }
  return check_cuts(backend_factory(options), options);
}

// Returns the spec of an adapter on `model`.
Result<AdapterSpec> read_spec(const ModelConfig& model, const AdapterFiles& adapter, bool trains) {
  auto spec = adapter_spec(adapter.config, adapter.modules, model);
  if (!spec.ok()) {
    return spec.status().with_context(adapter.location);
  }
  if (trains) {
    const Status trainable = check_adapter_training(adapter.config);
    TIDEMILL_RETURN_IF_ERROR(trainable.with_context(adapter.location));
  }
  TIDEMILL_RETURN_IF_ERROR(check_tensors(adapter_shapes(spec.value()), adapter.tensors, "adapter"));
  return spec;
}

// Returns the snapshot that a runtime starts from. A trained base is published in the compute type.
// A frozen base keeps the types of its file, and an adapter is f32. Without training, the digest of
// the base is computed only on demand, because it costs a pass over the file and most such runtimes
// never need it.
Snapshot initial_snapshot(const ModelFiles& model, const RuntimeOptions& options) {
  Snapshot snapshot;
  const bool trains_base = options.optimizer.has_value() && !options.adapter.has_value();
  snapshot.base = trains_base ? to_float_type(model.tensors, options.compute) : model.tensors;
  if (options.optimizer.has_value()) {
    snapshot.base_digest = digest_tensors(snapshot.base);
  }
  if (options.adapter.has_value()) {
    snapshot.adapter = to_float_type(options.adapter->tensors, DType::kF32);
    snapshot.adapter_digest = digest_tensors(snapshot.adapter);
  }
  return snapshot;
}

// Returns whether the base is quantized. Quantizing a non-finite value is undefined, so the weights
// are then checked before they are laid out.
bool quantizes(const RuntimeOptions& options) {
  return options.compute == DType::kBlockI8 || options.compute == DType::kNf4;
}

// Fails if a weight is NaN or infinite, for models whose files were opened without that check.
// `laid_out` may be null. If laying it out saw only finite weights, only an untied embedding table
// is read again, because the layout does not read the table.
Status check_finite_base(const ModelFiles& model, const ModelWeights* laid_out) {
  if (model.unchecked.empty()) {
    return {};
  }
  if (laid_out == nullptr || !laid_out->seen_finite()) {
    return check_finite_weights(model.tensors, model.unchecked);
  }
  if (model.config.tie_word_embeddings) {
    return {};  // the head, which was laid out, is the table
  }
  const std::string table = weight_name(model.config, kTablePath);
  return check_finite_weights({{table, model.tensors.at(table)}}, model.unchecked);
}

class LocalModelRuntime final : public ModelRuntime {
public:
  LocalModelRuntime(std::unique_ptr<RuntimeContext> context, AdapterSpec spec,
                    const RuntimeOptions& options, Snapshot initial)
      : context_(std::move(context)),
        weight_cache_(context_->config, std::move(spec), options.compute,
                      options.adapter_bytes > 0 || options.trains_adapters ? KeepBase::kAlways
                                                                           : KeepBase::kIfNeeded,
                      *context_->ops),
        options_(options),
        initial_(std::move(initial)) {
    options_.adapter.reset();  // its tensors are in `initial_`
  }

  // Lays the weights out once, and makes the rollout view and the policy's job.
  Status open_views(const RuntimeOptions& options, const ModelFiles& model) {
    const WeightUse use = options.optimizer.has_value() || options.trains_adapters
                              ? WeightUse::kForwardAndBackward
                              : WeightUse::kForward;
    Result<LaidOutWeights> laid_out = weight_cache_.lay_out(initial_, use, SnapshotTrust::kOwn);
    if (!quantizes(options)) {
      TIDEMILL_RETURN_IF_ERROR(
          check_finite_base(model, laid_out.ok() ? laid_out.value().base.get() : nullptr));
    }
    TIDEMILL_ASSIGN_OR_RETURN(const LaidOutWeights weights, std::move(laid_out));
    opened_ = weights.base;
    rollout_.emplace(*context_, weight_cache_, options, weights, initial_.version);
    TIDEMILL_RETURN_IF_ERROR(rollout_->reserve());
    if (options.optimizer.has_value()) {
      TIDEMILL_ASSIGN_OR_RETURN(
          policy_job_,
          RuntimeJob::create({*context_, weight_cache_, nullptr, nullptr}, options,
                             options.adapter.has_value() ? initial_.adapter : model.tensors,
                             weights));
      if (GeneratedRows* rows = policy_job_->generated()) {
        rollout_->keep_rows_in(*rows);
      }
    }
    return {};
  }

  RolloutEngine& rollout() override { return *rollout_; }
  NamedAdapters& adapters() override { return rollout_->adapters(); }
  TrainingJob* policy_job() override { return policy_job_.get(); }
  Result<std::unique_ptr<TrainingJob>> open_job(const JobOptions& job) override {
    RuntimeOptions options = options_;
    options.adapter = job.adapter;
    options.optimizer = job.optimizer;
    options.activation_bytes = job.activation_bytes;
    options.recompute = job.recompute;
    options.window_tokens = job.window_tokens;
    options.allocator = job.allocator;
    options.generated_bytes = 0;  // only the policy's rows are kept
    options.limits = job.limits;
    options.limits.rollout_rows = RowLimits().rollout_rows;  // the job does not generate
    options.limits.sampled_rows = 0;
    TIDEMILL_RETURN_IF_ERROR(check_options(options));
    TIDEMILL_RETURN_IF_ERROR(check_size("reserved_tokens", job.reserved_tokens,
                                        std::numeric_limits<std::int64_t>::max()));
    TIDEMILL_ASSIGN_OR_RETURN(AdapterSpec spec, read_spec(context_->config, job.adapter, true));
    const std::shared_ptr<const ModelWeights> base = opened_.lock();
    if (!options.trains_adapters || base == nullptr) {
      return invalid_argument(base == nullptr
                                  ? "the base that the runtime was opened with is no longer in use"
                                  : "the runtime was opened without `trains_adapters`");
    }
    auto weight_cache = std::make_unique<WeightCache>(
        context_->config, std::move(spec), options.compute, KeepBase::kIfNeeded, *context_->ops);
    const TensorMap adapter = to_float_type(job.adapter.tensors, DType::kF32);
    LaidOutWeights weights{base, nullptr, initial().base_digest, digest_tensors(adapter)};
    TIDEMILL_ASSIGN_OR_RETURN(weights.adapter, weight_cache->lay_out_adapter(
                                                   adapter, *base, WeightUse::kForwardAndBackward));
    weight_cache->remember(weights, WeightUse::kForwardAndBackward);
    std::unique_ptr<ReservedPages> reserved;
    if (job.reserved_tokens > 0) {
      TIDEMILL_ASSIGN_OR_RETURN(reserved, ReservedPages::create(*context_, job.reserved_tokens));
    }
    WeightCache& cache = *weight_cache;
    TIDEMILL_ASSIGN_OR_RETURN(
        std::unique_ptr<RuntimeJob> opened,
        RuntimeJob::create({*context_, cache, std::move(weight_cache), std::move(reserved)},
                           options, adapter, std::move(weights)));
    if (job.keeps_anchor) {
      TIDEMILL_RETURN_IF_ERROR(
          opened->keep_anchor().with_context("memory of the weights of proximal terms"));
    }
    return std::unique_ptr<TrainingJob>(std::move(opened));
  }
  const Snapshot& initial() const override {
    if (initial_.base_digest.empty()) {
      initial_.base_digest = digest_tensors(initial_.base);
      if (auto base = opened_.lock()) {
        weight_cache_.remember({std::move(base), nullptr, initial_.base_digest, ""},
                               WeightUse::kForward);
      }
    }
    return initial_;
  }
  DeviceUse device_use() const override {
    const DeviceMemory& memory = context_->ops->memory();
    return {memory.used_bytes(), memory.num_allocations()};
  }
  std::string_view description() const override { return context_->description; }

private:
  std::unique_ptr<RuntimeContext> context_;
  mutable WeightCache weight_cache_;
  RuntimeOptions options_;
  std::weak_ptr<const ModelWeights> opened_;
  mutable Snapshot initial_;  // the digest of the base is computed on demand
  std::optional<RolloutView> rollout_;
  std::unique_ptr<RuntimeJob> policy_job_;
};

}  // namespace

Result<std::unique_ptr<ModelRuntime>> open_runtime(const ModelFiles& model,
                                                   const RuntimeOptions& options) {
  TIDEMILL_RETURN_IF_ERROR(check_options(options));
  AdapterSpec spec;
  if (options.adapter.has_value()) {
    TIDEMILL_ASSIGN_OR_RETURN(
        spec, read_spec(model.config, *options.adapter, options.optimizer.has_value()));
  }
  TIDEMILL_RETURN_IF_ERROR(check_tensors(expected_tensors(model.config), model.tensors, "model"));
  TIDEMILL_ASSIGN_OR_RETURN(std::unique_ptr<RuntimeContext> context,
                            RuntimeContext::create(model.config, options, spec));
  if (quantizes(options)) {
    TIDEMILL_RETURN_IF_ERROR(check_finite_base(model, nullptr));
  }
  auto runtime = std::make_unique<LocalModelRuntime>(std::move(context), std::move(spec), options,
                                                     initial_snapshot(model, options));
  TIDEMILL_RETURN_IF_ERROR(runtime->open_views(options, model));
  return std::unique_ptr<ModelRuntime>(std::move(runtime));
}

}  // namespace tidemill::engines
