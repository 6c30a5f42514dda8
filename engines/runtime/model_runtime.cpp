// SPDX-License-Identifier: Apache-2.0
// Opens a model: checks it, creates the context, lays out the weights once and makes the two views.
#include "engines/runtime/model_runtime.hpp"

#include <optional>
#include <string>
#include <utility>

#include "base/digest.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/peft/adapter_spec.hpp"
#include "engines/runtime/rollout_view.hpp"
#include "engines/runtime/runtime_context.hpp"
#include "engines/runtime/train_view.hpp"
#include "engines/runtime/weight_cache.hpp"

namespace tidemill::engines {
namespace {

Status check_options(const RuntimeOptions& options) {
  if (options.max_running < 1) {
    return invalid_argument("max_running: " + std::to_string(options.max_running) +
                            " is less than 1");
  }
  if (options.adapter_bytes < 0) {
    return invalid_argument("adapter_bytes: " + std::to_string(options.adapter_bytes) +
                            " is negative");
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
  if (options.window_tokens < 0) {
    return invalid_argument("window_tokens: " + std::to_string(options.window_tokens) +
                            " is negative");
  }
  return {};
}

// Returns the spec of the adapter, which is empty if there is none.
Result<AdapterSpec> read_spec(const ModelConfig& model, const RuntimeOptions& options) {
  if (!options.adapter.has_value()) {
    return AdapterSpec{};
  }
  const AdapterFiles& adapter = *options.adapter;
  auto spec = adapter_spec(adapter.config, adapter.modules, model);
  if (!spec.ok()) {
    return spec.status().with_context(adapter.location);
  }
  if (options.optimizer.has_value()) {
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
                      options.adapter_bytes > 0 ? KeepBase::kAlways : KeepBase::kIfNeeded,
                      *context_->ops),
        initial_(std::move(initial)) {}

  // Lays the weights out once and makes both views.
  Status open_views(const RuntimeOptions& options, const ModelFiles& model) {
    const WeightUse use =
        options.optimizer.has_value() ? WeightUse::kForwardAndBackward : WeightUse::kForward;
    Result<LaidOutWeights> laid_out = weight_cache_.lay_out(initial_, use, SnapshotTrust::kOwn);
    if (!quantizes(options)) {
      TIDEMILL_RETURN_IF_ERROR(
          check_finite_base(model, laid_out.ok() ? laid_out.value().base.get() : nullptr));
    }
    TIDEMILL_ASSIGN_OR_RETURN(const LaidOutWeights weights, std::move(laid_out));
    opened_ = weights.base;
    rollout_.emplace(*context_, weight_cache_, options, weights, initial_.version);
    if (options.optimizer.has_value()) {
      train_.emplace(*context_, weight_cache_, options,
                     options.adapter.has_value() ? initial_.adapter : model.tensors, weights);
      if (GeneratedRows* rows = train_->generated()) {
        rollout_->keep_rows_in(*rows);
      }
    }
    return {};
  }

  RolloutEngine& rollout() override { return *rollout_; }
  NamedAdapters& adapters() override { return rollout_->adapters(); }
  TrainEngine* train() override { return train_.has_value() ? &*train_ : nullptr; }
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
  std::string_view description() const override { return context_->description; }

private:
  std::unique_ptr<RuntimeContext> context_;
  mutable WeightCache weight_cache_;
  std::weak_ptr<const ModelWeights> opened_;
  mutable Snapshot initial_;  // the digest of the base is computed on demand
  std::optional<RolloutView> rollout_;
  std::optional<TrainView> train_;
};

}  // namespace

Result<std::unique_ptr<ModelRuntime>> open_runtime(const ModelFiles& model,
                                                   const RuntimeOptions& options) {
  TIDEMILL_RETURN_IF_ERROR(check_options(options));
  TIDEMILL_ASSIGN_OR_RETURN(AdapterSpec spec, read_spec(model.config, options));
  TIDEMILL_RETURN_IF_ERROR(check_tensors(expected_tensors(model.config), model.tensors, "model"));
  TIDEMILL_ASSIGN_OR_RETURN(std::unique_ptr<RuntimeContext> context,
                            RuntimeContext::create(model.config, options));
  if (quantizes(options)) {
    TIDEMILL_RETURN_IF_ERROR(check_finite_base(model, nullptr));
  }
  auto runtime = std::make_unique<LocalModelRuntime>(std::move(context), std::move(spec), options,
                                                     initial_snapshot(model, options));
  TIDEMILL_RETURN_IF_ERROR(runtime->open_views(options, model));
  return std::unique_ptr<ModelRuntime>(std::move(runtime));
}

}  // namespace tidemill::engines
