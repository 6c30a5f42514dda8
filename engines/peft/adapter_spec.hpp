// SPDX-License-Identifier: Apache-2.0
// What an adapter consists of: for each module that it changes, the pieces that change it.
//
// Every kind of adapter is a choice of pieces. With W, b, x of the base layer and b' its own bias
// where it has one, else b:
//
//   LoRA    y = W x + b' + scale * (B (A x) + c)
//   DoRA    y = m / |W + scale * B A| * (W x + scale * B (A x)) + b', |.| the norm of each row
//   IA3     y = l * (W x + b), or y = W (l * x) + b in feed-forward modules
//   saved   y = W' x + b', W' in place of W; tables and norm gains are replaced likewise
//   LoRA on a table E    y = E[id] + scale * B A[:, id]
//
// Sources: Hu et al. 2021, "LoRA: Low-rank adaptation of large language models"; Liu et al. 2024,
// "DoRA: Weight-decomposed low-rank adaptation", equation 5, with the norm constant in the backward
// pass (section 4.3); Liu et al. 2022, "Few-shot parameter-efficient fine-tuning is better and
// cheaper than in-context learning" (IA3), section 3.3. Names as in PEFT checkpoints
// (`expected_adapter_tensors`).
//
// A tied model's head is a layer of its own here, as in PEFT: LoRA on embed_tokens and a saved
// embed_tokens change look-ups alone, a saved lm_head the logits alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/tensor.hpp"
#include "engines/formats/adapter_config.hpp"
#include "engines/formats/model_files.hpp"

namespace tidemill::engines {

/// One module that an adapter changes. Pieces are checkpoint names of tensors; empty: no such
/// piece.
struct AdaptedModule {
  std::string path;  // of the module in the model, e.g. "model.layers.0.self_attn.q_proj"
  std::int64_t in_features = 0;  // of a table: the vocabulary; of a norm: its width
  std::int64_t out_features = 0;
  std::int64_t rank = 0;          // 0: no low-rank pieces
  float scale = 0.0F;             // alpha / rank, or alpha / sqrt(rank) with rslora
  std::string a = {};             // (R, I)
  std::string b = {};             // (O, R)
  std::string c = {};             // (O), the bias of B
  std::string magnitude = {};     // (O), DoRA's m
  std::string input_scale = {};   // (1, I), IA3's l of a feed-forward module
  std::string output_scale = {};  // (O, 1), IA3's l
  std::string weight = {};        // W' (O, I); of a table (V, D), of a norm (O)
  std::string bias = {};          // b' (O)
  friend bool operator==(const AdaptedModule&, const AdaptedModule&) = default;
};

/// Returns whether the module has nothing but a low-rank product, which is added to the base's
/// output.
[[nodiscard]] inline bool only_adds(const AdaptedModule& module) noexcept {
  return module.rank > 0 && module.magnitude.empty() && module.input_scale.empty() &&
         module.output_scale.empty() && module.weight.empty() && module.bias.empty();
}

/// All modules of one adapter, each once, in path order. Empty: there is no adapter.
using AdapterSpec = std::vector<AdaptedModule>;

/// The path of the table and of the head in a model.
inline constexpr std::string_view kTablePath = "model.embed_tokens";
inline constexpr std::string_view kHeadPath = "lm_head";

/// Returns a linear layer with LoRA alone, its pieces named as PEFT names them.
[[nodiscard]] AdaptedModule lora_module(const std::string& path, std::int64_t in_features,
                                        std::int64_t out_features, std::int64_t rank, float scale);
/// Returns the checkpoint name of the A matrix of the linear layer at `path`.
[[nodiscard]] std::string lora_a_name(std::string_view path);
/// Returns the checkpoint name of the B matrix of the linear layer at `path`.
[[nodiscard]] std::string lora_b_name(std::string_view path);

/// Returns what `config` comes to on `model`, with `modules` from `resolve_adapter`.
/// Errors, in one line: `kInvalidArgument` for an entry of modules_to_save that is no layer, norm
/// or table of the model, or one that is a target too, and for lora_bias with DoRA.
[[nodiscard]] Result<AdapterSpec> adapter_spec(const AdapterConfig& config,
                                               const std::vector<AdapterModule>& modules,
                                               const ModelConfig& model);

/// Checks that training `config` means what it says.
/// Errors: `kUnimplemented` for a dropout other than 0, which inference ignores.
[[nodiscard]] Status check_adapter_training(const AdapterConfig& config);

/// Returns the tensors of an adapter by checkpoint name.
[[nodiscard]] TensorShapes adapter_shapes(const AdapterSpec& spec);

/// Returns the shape of the weight of `module`, in the model as in the adapter.
[[nodiscard]] std::vector<std::int64_t> weight_shape(const AdaptedModule& module);

/// Returns whether the adapter needs the base's own tensors (DoRA: the norms of rows).
[[nodiscard]] bool needs_base_tensors(const AdapterSpec& spec);

/// Returns the name of the tensor that holds the weight of the module at `path`: of the head of a
/// tied model, the table.
[[nodiscard]] std::string weight_name(const ModelConfig& model, std::string_view path);

/// Returns |W + scale * B A| of every row (O), for the low-rank pieces of `module`. Products are
/// summed in f32, squares in double.
/// Requires `weight` (O, I), and `a` and `b` of the shapes of the module, all of a float type.
[[nodiscard]] std::vector<float> adapted_row_norms(const AdaptedModule& module,
                                                   const Tensor& weight, const Tensor& a,
                                                   const Tensor& b);

/// Makes the tensors of a fresh adapter, f32, so that it changes nothing at first.
///
/// As PEFT: A uniform in +-1 / sqrt(in_features) (what Kaiming initialisation with a = sqrt(5)
/// comes to) and B zero; on tables A zero and B normal; m the norms of W's rows; l one; biases and
/// saved modules copies of the base's. Draws are keyed by (seed, module, element): a module gets
/// the same values whatever else is adapted.
/// Errors: `kInvalidArgument` naming a tensor that `base` lacks.
[[nodiscard]] Result<TensorMap> init_adapter(const AdapterSpec& spec, const ModelConfig& model,
                                             const TensorMap& base, std::uint64_t seed);

/// A model with an adapter merged into it.
struct MergedModel {
  ModelConfig config;
  TensorMap tensors;  // exactly those of `config`
};

/// Merges `adapter` into `base`: every changed weight is computed in f32 and rounded once to the
/// base's type; other tensors are shared, not copied. A tied model whose table and head are no
/// longer one comes out untied.
/// Errors: `kInvalidArgument` naming a tensor of `adapter` that is missing, unknown or misshapen, a
/// tensor that `base` lacks, or a bias of B on a layer without one.
[[nodiscard]] Result<MergedModel> merge_adapter(const AdapterSpec& spec, const TensorMap& adapter,
                                                const ModelConfig& model, const TensorMap& base);

}  // namespace tidemill::engines
