// SPDX-License-Identifier: Apache-2.0
// Describes adapters: the modules that an adapter changes, and its tensors for each of them.
//
// A kind of adapter is defined by the tensors it has. Let W, b and x be the weight, bias and input
// of the base layer, and b' the adapter's own bias if it has one, otherwise b:
//
//   LoRA    y = W x + b' + scale * (B (A x) + c)
//   DoRA    y = m / |W + scale * B A| * (W x + scale * B (A x)) + b', with |.| the norm of each row
//   IA3     y = l * (W x + b), or y = W (l * x) + b in feed-forward modules
//   saved   y = W' x + b', where W' replaces W; the same for embedding tables and gains of norms
//   LoRA on an embedding table E    y = E[id] + scale * B A[:, id]
//
// Sources: Hu et al. 2021, "LoRA: Low-rank adaptation of large language models"; Liu et al. 2024,
// "DoRA: Weight-decomposed low-rank adaptation", equation 5, with the norm treated as a constant in
// the backward pass (section 4.3); Liu et al. 2022, "Few-shot parameter-efficient fine-tuning is
// better and cheaper than in-context learning" (IA3), section 3.3. Tensors have the names of PEFT
// checkpoints (`expected_adapter_tensors`).
//
// As in PEFT, the head of a tied model is a separate layer. LoRA on embed_tokens and a saved
// embed_tokens change only look-ups, and a saved lm_head changes only the logits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/tensor/tensor.hpp"
#include "engines/formats/adapter_config.hpp"
#include "engines/formats/model_files.hpp"

namespace tidemill::engines {

/// One module that an adapter changes. The strings after `scale` are the checkpoint names of the
/// adapter's tensors, and are empty for tensors that the adapter does not have.
struct AdaptedModule {
  std::string path;  // of the module in the model, e.g. "model.layers.0.self_attn.q_proj"
  std::int64_t in_features = 0;  // of an embedding table: the vocabulary; of a norm: its width
  std::int64_t out_features = 0;
  std::int64_t rank = 0;          // 0 if there is no low-rank product
  float scale = 0.0F;             // alpha / rank, or alpha / sqrt(rank) with rslora
  std::string a = {};             // (R, I)
  std::string b = {};             // (O, R)
  std::string c = {};             // (O), the bias of B
  std::string magnitude = {};     // (O), DoRA's m
  std::string input_scale = {};   // (1, I), IA3's l of a feed-forward module
  std::string output_scale = {};  // (O, 1), IA3's l
  std::string weight = {};        // W' (O, I); of an embedding table (V, D), of a norm (O)
  std::string bias = {};          // b' (O)
  friend bool operator==(const AdaptedModule&, const AdaptedModule&) = default;
};

/// Returns whether the adapter has only a low-rank product for the module. The product is then
/// added to the output of the base layer.
[[nodiscard]] inline bool only_adds(const AdaptedModule& module) noexcept {
  return module.rank > 0 && module.magnitude.empty() && module.input_scale.empty() &&
         module.output_scale.empty() && module.weight.empty() && module.bias.empty();
}

/// The modules that an adapter changes, each once, in path order. Empty if there is no adapter.
using AdapterSpec = std::vector<AdaptedModule>;

/// The paths of the embedding table and of the head in a model.
inline constexpr std::string_view kTablePath = "model.embed_tokens";
inline constexpr std::string_view kHeadPath = "lm_head";

/// Returns a linear layer with a low-rank product only, whose tensors have PEFT's names.
[[nodiscard]] AdaptedModule lora_module(const std::string& path, std::int64_t in_features,
                                        std::int64_t out_features, std::int64_t rank, float scale);
/// Returns the checkpoint name of the A matrix of the linear layer at `path`.
[[nodiscard]] std::string lora_a_name(std::string_view path);
/// Returns the checkpoint name of the B matrix of the linear layer at `path`.
[[nodiscard]] std::string lora_b_name(std::string_view path);

/// Returns the modules of `model` that an adapter with `config` changes. `modules` are the target
/// modules that `resolve_adapter` returned.
/// Errors, in one line: `kInvalidArgument` if an entry of modules_to_save is not a layer, norm or
/// embedding table of the model, or is also a target, and for lora_bias with DoRA.
[[nodiscard]] Result<AdapterSpec> adapter_spec(const AdapterConfig& config,
                                               const std::vector<AdapterModule>& modules,
                                               const ModelConfig& model);

/// Checks that adapters with `config` can be trained.
/// Errors: `kUnimplemented` for a dropout other than 0. Rollout ignores dropout.
[[nodiscard]] Status check_adapter_training(const AdapterConfig& config);

/// Returns the shapes of the adapter's tensors by checkpoint name.
[[nodiscard]] TensorShapes adapter_shapes(const AdapterSpec& spec);

/// Returns the shape of the weight of `module`, which is the same in the model and in the adapter.
[[nodiscard]] std::vector<std::int64_t> weight_shape(const AdaptedModule& module);

/// Returns whether the adapter needs tensors of the base model (DoRA: for the norms of rows).
[[nodiscard]] bool needs_base_tensors(const AdapterSpec& spec);

/// Returns the name of the tensor that holds the weight of the module at `path`. For the head of a
/// tied model, that is the embedding table.
[[nodiscard]] std::string weight_name(const ModelConfig& model, std::string_view path);

/// Describes the weight of a base layer.
struct BaseWeight {
  const Tensor* tensor = nullptr;  // (O, I), as in the file; null if no module needs it
  /// The type that the backend computes its products in. If that is kBlockI8 or kNf4, W is the
  /// quantized weight (`ProductRows` in engines/ops/weight_elements.hpp).
  DType compute = DType::kF32;
};

/// Returns the norm |W + scale * B A| of every row (O), with the scale and the shapes of `module`.
/// Products are summed in f32, squares in double.
/// Requires `base` to have a tensor that `check_preparable` accepts, and `a` and `b` to have the
/// shapes of the module and a float type.
[[nodiscard]] std::vector<float> adapted_row_norms(const AdaptedModule& module,
                                                   const BaseWeight& base, const Tensor& a,
                                                   const Tensor& b);

/// The types that the backend computes the products of the base's layers and head in.
struct BaseTypes {
  DType layers = DType::kF32;
  DType head = DType::kF32;
};

/// Returns the f32 tensors of a new adapter, which initially changes nothing.
///
/// As in PEFT, A is uniform in +-1 / sqrt(in_features) (Kaiming initialization with a = sqrt(5))
/// and B is zero. For an embedding table, A is zero and B is normal. m holds the norms of the rows
/// of W, l is one, and biases and saved modules are copies of those of the base. Random numbers are
/// keyed by (seed, module, element), so that a module gets the same values whatever other modules
/// are adapted.
///
/// The norms are those of the weights that the backend computes with. An adapter with m that is
/// used over a base in another type keeps its m, and m / |W| is then no longer exactly 1.
/// Errors: `kInvalidArgument` naming a tensor that `base` lacks; `kUnimplemented` naming a tensor
/// that a module with m needs and that cannot be quantized to its type.
[[nodiscard]] Result<TensorMap> init_adapter(const AdapterSpec& spec, const ModelConfig& model,
                                             const TensorMap& base, std::uint64_t seed,
                                             const BaseTypes& types = {});

/// A model with an adapter merged into it.
struct MergedModel {
  ModelConfig config;
  TensorMap tensors;  // exactly those of `config`
};

/// Merges `adapter` into `base`, whose tensors are W also if the adapter was trained over a
/// quantized form of them. Every changed weight is computed in f32 and rounded once to the
/// type of the base's, or stored as f32 if that type is not a float type. Other tensors are shared,
/// not copied. If the adapter changes the embedding table or the head of a tied model, the merged
/// model is untied.
/// Errors: `kInvalidArgument` naming a tensor of `adapter` that is missing, unknown or has the
/// wrong shape, a tensor that `base` lacks, or a layer without a bias for which the adapter has a
/// bias of B.
[[nodiscard]] Result<MergedModel> merge_adapter(const AdapterSpec& spec, const TensorMap& adapter,
                                                const ModelConfig& model, const TensorMap& base);

}  // namespace tidemill::engines
