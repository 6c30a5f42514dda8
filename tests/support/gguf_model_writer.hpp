// SPDX-License-Identifier: Apache-2.0
// Writes models as GGUF files, in the way of a converter from Hugging Face's layout.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engines/formats/model_config.hpp"
#include "engines/formats/rope.hpp"
#include "tests/support/gguf_writer.hpp"

namespace tidemill::test {

/// Returns the name in GGUF files of the tensor that Hugging Face calls `name`.
[[nodiscard]] inline std::string gguf_name(std::string name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 15> kNames{
      {{"model.embed_tokens", "token_embd"},
       {"model.layers", "blk"},
       {"model.norm", "output_norm"},
       {"lm_head", "output"},
       {"input_layernorm", "attn_norm"},
       {"post_attention_layernorm", "ffn_norm"},
       {"self_attn.q_proj", "attn_q"},
       {"self_attn.k_proj", "attn_k"},
       {"self_attn.v_proj", "attn_v"},
       {"self_attn.o_proj", "attn_output"},
       {"self_attn.q_norm", "attn_q_norm"},
       {"self_attn.k_norm", "attn_k_norm"},
       {"mlp.gate_proj", "ffn_gate"},
       {"mlp.up_proj", "ffn_up"},
       {"mlp.down_proj", "ffn_down"}}};
  for (const auto& [hugging_face, gguf] : kNames) {
    const std::size_t at = name.find(hugging_face);
    if (at != std::string::npos) {
      name.replace(at, hugging_face.size(), gguf);
    }
  }
  return name;
}

/// Returns `tensor` with the rows of each head in the order of a Llama model's query and key
/// weights in GGUF: two rows that are rotated together are adjacent. Row (head, half, i) becomes
/// row (head, i, half).
[[nodiscard]] inline Tensor interleave_rope_halves(const Tensor& tensor, std::int64_t num_heads) {
  const auto rows = static_cast<std::size_t>(tensor.shape[0]);
  const std::size_t bytes = tensor.data.size_bytes() / rows;
  const std::size_t half = rows / static_cast<std::size_t>(num_heads) / 2;
  std::vector<std::byte> out;
  for (std::size_t head = 0; head < static_cast<std::size_t>(num_heads); ++head) {
    for (std::size_t i = 0; i < half; ++i) {
      for (std::size_t p = 0; p < 2; ++p) {
        const auto row =
            tensor.data.bytes().subspan((head * 2 * half + p * half + i) * bytes, bytes);
        out.insert(out.end(), row.begin(), row.end());
      }
    }
  }
  return {tensor.dtype, tensor.shape, Buffer::copy_of(out, tensor.dtype)};
}

/// Adds the keys that describe a model.
inline void add_gguf_keys(GgufWriter& writer, const engines::ModelConfig& config) {
  using engines::RopeKind;
  const std::string architecture(engines::family_name(config.family));
  const auto key = [&architecture](const char* name) { return architecture + "." + name; };
  const auto size = [&](const char* name, std::int64_t value) {
    writer.u32(key(name), static_cast<std::uint32_t>(value));
  };
  writer.text("general.architecture", architecture);
  writer.text("general.name", "a model");
  size("block_count", config.num_layers);
  size("context_length", config.max_positions);
  size("embedding_length", config.hidden_size);
  size("feed_forward_length", config.intermediate_size);
  size("attention.head_count", config.num_heads);
  size("attention.head_count_kv", config.num_kv_heads);
  size("attention.key_length", config.head_dim);
  size("attention.value_length", config.head_dim);
  size("rope.dimension_count", config.head_dim);
  writer.f32(key("attention.layer_norm_rms_epsilon"), static_cast<float>(config.rms_norm_eps));
  writer.f32(key("rope.freq_base"), static_cast<float>(config.rope.theta));
  if (config.rope.kind == RopeKind::kLinear || config.rope.kind == RopeKind::kYarn) {
    writer.text(key("rope.scaling.type"),
                config.rope.kind == RopeKind::kLinear ? "linear" : "yarn");
    writer.f32(key("rope.scaling.factor"), static_cast<float>(config.rope.factor));
  }
  if (config.rope.kind == RopeKind::kYarn) {
    size("rope.scaling.original_context_length", config.rope.original_max_positions);
  }
  const char* ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"};
  for (std::size_t i = 0; i < config.eos_token_ids.size(); ++i) {
    writer.u32(ends[i], static_cast<std::uint32_t>(config.eos_token_ids[i]));
  }
  if (config.bos_token_id) {
    writer.u32("tokenizer.ggml.bos_token_id", static_cast<std::uint32_t>(*config.bos_token_id));
  }
  if (config.pad_token_id) {
    writer.u32("tokenizer.ggml.padding_token_id", static_cast<std::uint32_t>(*config.pad_token_id));
  }
}

/// Adds the tensors of a model. Their types must exist in the format.
inline void add_gguf_tensors(GgufWriter& writer, const engines::ModelConfig& config,
                             const TensorMap& tensors) {
  if (config.rope.kind == engines::RopeKind::kLlama3) {
    engines::ModelConfig plain = config;
    plain.rope.kind = engines::RopeKind::kDefault;
    const auto frequencies = engines::rope_frequencies(plain).inverse;
    const auto scaled = engines::rope_frequencies(config).inverse;
    std::vector<float> factors;
    for (std::size_t i = 0; i < scaled.size(); ++i) {
      factors.push_back(frequencies[i] / scaled[i]);
    }
    writer.tensor("rope_freqs.weight",
                  Tensor{DType::kF32,
                         {config.head_dim / 2},
                         Buffer::copy_of(std::as_bytes(std::span(factors)), DType::kF32)});
  }
  for (const auto& [name, tensor] : tensors) {
    const bool llama = config.family == engines::ModelFamily::kLlama;
    const bool queries = name.find("self_attn.q_proj") != std::string::npos;
    const bool keys = name.find("self_attn.k_proj") != std::string::npos;
    const std::int64_t heads = queries ? config.num_heads : config.num_kv_heads;
    writer.tensor(gguf_name(name),
                  llama && (queries || keys) ? interleave_rope_halves(tensor, heads) : tensor);
  }
}

/// Returns the bytes of a file that holds a model.
[[nodiscard]] inline std::string gguf_model_bytes(const engines::ModelConfig& config,
                                                  const TensorMap& tensors) {
  GgufWriter writer;
  add_gguf_keys(writer, config);
  add_gguf_tensors(writer, config, tensors);
  return writer.bytes();
}

}  // namespace tidemill::test
