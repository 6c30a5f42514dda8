// SPDX-License-Identifier: Apache-2.0
// What a LoRA adapter consists of: which linear layers it bypasses, at which rank and scale.
//
// A bypassed layer computes y = W x + b + scale * B (A x), with A (R, I) and B (O, R) the trained
// matrices. Source: Hu et al. 2021, "LoRA: Low-rank adaptation of large language models"; names as
// in PEFT checkpoints: `base_model.model.<module path>.lora_A.weight`, ... `.lora_B.weight`.
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

/// One bypassed linear layer.
struct LoraModule {
  std::string path;  // of the module in the model, e.g. "model.layers.0.self_attn.q_proj"
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  std::int64_t rank = 0;
  float scale = 0.0F;  // alpha / rank, or alpha / sqrt(rank) with rslora
  friend bool operator==(const LoraModule&, const LoraModule&) = default;
};

/// All bypassed layers of one adapter, in path order.
using LoraSpec = std::vector<LoraModule>;

/// Returns the checkpoint name of the A matrix of the module at `path`.
[[nodiscard]] std::string lora_a_name(std::string_view path);
/// Returns the checkpoint name of the B matrix of the module at `path`.
[[nodiscard]] std::string lora_b_name(std::string_view path);

/// Returns what `config` comes to on the modules that `resolve_adapter` chose.
/// Errors: `kUnimplemented` naming the field, for what LoRA on the decoder's linear layers does not
/// cover: IA3, DoRA, biases, embeddings, the head, saved modules.
[[nodiscard]] Result<LoraSpec> lora_spec(const AdapterConfig& config,
                                         const std::vector<AdapterModule>& modules);

/// Checks that training `config` means what it says.
/// Errors: `kUnimplemented` for a dropout other than 0, which inference ignores.
[[nodiscard]] Status check_lora_training(const AdapterConfig& config);

/// Returns the tensors of an adapter by checkpoint name.
[[nodiscard]] TensorShapes lora_shapes(const LoraSpec& spec);

/// Makes the matrices of a fresh adapter, f32: A uniform in +-1 / sqrt(in_features) (what Kaiming
/// initialisation with a = sqrt(5) comes to), B zero, so that it changes nothing at first. Draws
/// are keyed by (seed, module, element): a module gets the same values whatever else is adapted.
[[nodiscard]] TensorMap init_lora(const LoraSpec& spec, std::uint64_t seed);

/// Returns a copy of `base` with W + scale * B A in place of every bypassed W: the sum is taken in
/// f32 and rounded once to the type of W. Other tensors are shared, not copied.
/// Errors: `kInvalidArgument` naming a tensor of `adapter` that is missing, unknown or misshapen,
/// or a weight that `base` lacks.
[[nodiscard]] Result<TensorMap> merge_lora(const LoraSpec& spec, const TensorMap& adapter,
                                           const TensorMap& base);

}  // namespace tidemill::engines
