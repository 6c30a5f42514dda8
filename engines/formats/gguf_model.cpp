// SPDX-License-Identifier: Apache-2.0
#include "engines/formats/gguf_model.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text/quote.hpp"
#include "engines/formats/gguf_config.hpp"

namespace tidemill::engines {
namespace {

// A tensor's names in GGUF and in Hugging Face's layout.
struct NameRow {
  std::string_view gguf;
  std::string_view hugging_face;
};
// The tensors of a block, without ".weight" or ".bias".
constexpr std::array<NameRow, 11> kBlockTensors{{
    {"attn_norm", "input_layernorm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
}};
constexpr std::array<NameRow, 3> kModelTensors{{
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
}};

// Returns Hugging Face's name of a tensor, or nullopt if no model has a tensor with this GGUF name.
std::optional<std::string> hugging_face_name(std::string_view name) {
  for (const NameRow& row : kModelTensors) {
    if (row.gguf == name) {
      return std::string(row.hugging_face);
    }
  }
  constexpr std::string_view kBlock = "blk.";
  if (!name.starts_with(kBlock)) {
    return std::nullopt;
  }
  name.remove_prefix(kBlock.size());
  const std::size_t dot = name.find('.');
  const std::size_t last = name.rfind('.');
  std::int64_t layer = 0;
  const auto number = std::from_chars(name.data(), name.data() + std::min(dot, name.size()), layer);
  if (dot == std::string_view::npos || last == dot || number.ec != std::errc() ||
      number.ptr != name.data() + dot || std::to_string(layer) != name.substr(0, dot)) {
    return std::nullopt;
  }
  const std::string_view part = name.substr(dot + 1, last - dot - 1);
  const std::string_view kind = name.substr(last);
  for (const NameRow& row : kBlockTensors) {
    if (row.gguf == part && (kind == ".weight" || kind == ".bias")) {
      std::string full_name = "model.layers." + std::to_string(layer) + ".";
      full_name += row.hugging_face;
      full_name += kind;
      return full_name;
    }
  }
  return std::nullopt;
}

// Returns `tensor` with the rows of each head in Hugging Face's order: rows that are adjacent in
// `tensor` end up half a head apart. The first dimension of `tensor` are the rows of `num_heads`
// heads.
Tensor deinterleave_heads(const Tensor& tensor, std::int64_t num_heads) {
  const std::int64_t rows = tensor.shape[0];
  const std::int64_t half = rows / num_heads / 2;
  const std::size_t row_bytes = tensor.data.size_bytes() / static_cast<std::size_t>(rows);
  std::vector<std::byte> bytes(tensor.data.size_bytes());
  const std::byte* from = tensor.data.bytes().data();
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t head = row / (2 * half);
    const std::int64_t in_head = row % (2 * half);
    const std::int64_t source = head * 2 * half + 2 * (in_head % half) + in_head / half;
    std::memcpy(bytes.data() + static_cast<std::size_t>(row) * row_bytes,
                from + static_cast<std::size_t>(source) * row_bytes, row_bytes);
  }
  const std::size_t size = bytes.size();
  Buffer data = Buffer::adopt(std::move(bytes), DType::kU8).slice(0, size, tensor.dtype);
  return {tensor.dtype, tensor.shape, std::move(data)};
}

// Returns the number of heads of a tensor whose rows the converter interleaved, or 0 for others.
std::int64_t interleaved_heads(const ModelConfig& config, std::string_view name) {
  if (config.family != ModelFamily::kLlama) {
    return 0;
  }
  if (name.find(".self_attn.q_proj.") != std::string_view::npos) {
    return config.num_heads;
  }
  return name.find(".self_attn.k_proj.") != std::string_view::npos ? config.num_kv_heads : 0;
}

Result<TensorMap> with_hugging_face_names(const ModelConfig& config, const TensorMap& tensors,
                                          const std::string& location) {
  TensorMap renamed;
  for (const auto& [name, stored] : tensors) {
    Tensor tensor = stored;
    const std::string here = location + ": tensor " + quote(name) + ": ";
    if (name == kRopeFactorsName) {
      continue;
    }
    const std::optional<std::string> new_name = hugging_face_name(name);
    if (!new_name.has_value()) {
      return invalid_argument(here + "unexpected: a " + std::string(family_name(config.family)) +
                              " model has no such tensor");
    }
    if (tensor.shape.size() == 1 && tensor.dtype == DType::kBlockI8) {
      return invalid_argument(here + "type Q8_0 is supported for matrices only");
    }
    if (const std::int64_t heads = interleaved_heads(config, *new_name); heads > 0) {
      if (tensor.shape[0] != heads * config.head_dim) {
        return invalid_argument(here + std::to_string(tensor.shape[0]) + " rows, but " +
                                std::to_string(heads) + " heads have " +
                                std::to_string(heads * config.head_dim));
      }
      tensor = deinterleave_heads(tensor, heads);
    }
    renamed.emplace(*new_name, std::move(tensor));
  }
  return renamed;
}

bool file_exists(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace

Result<GgufModel> open_gguf_model(const std::filesystem::path& path, GgufPart part,
                                  const std::optional<ModelConfig>& config,
                                  TensorPlacement placement) {
  TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile file, ReadableFile::open(path));
  TIDEMILL_ASSIGN_OR_RETURN(const GgufHeader header, read_gguf_header(file, GgufLists::kSkip));
  GgufModel model;
  TIDEMILL_ASSIGN_OR_RETURN(model.config, gguf_config(file, header, config));
  if (part == GgufPart::kConfig) {
    return model;
  }
  TIDEMILL_ASSIGN_OR_RETURN(const TensorMap tensors, read_gguf_tensors(file, header, placement));
  TIDEMILL_ASSIGN_OR_RETURN(model.tensors,
                            with_hugging_face_names(model.config, tensors, path.string()));
  return model;
}

Result<ModelLocation> find_model(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) {
    const std::filesystem::path parent = path.parent_path();
    return ModelLocation{parent.empty() ? "." : parent, path};
  }
  ModelLocation location{path, std::nullopt};
  if (file_exists(path / "model.safetensors") ||
      file_exists(path / "model.safetensors.index.json")) {
    return location;
  }
  const Result<std::vector<std::string>> names = list_directory(path);
  for (const std::string& name : names.ok() ? names.value() : std::vector<std::string>()) {
    if (!name.ends_with(".gguf")) {
      continue;
    }
    if (location.gguf.has_value()) {
      return invalid_argument(path.string() + ": contains several GGUF files, including " +
                              quote_unless_plain(location.gguf->filename().string()) + " and " +
                              quote_unless_plain(name) + "; name one");
    }
    location.gguf = path / name;
  }
  return location;
}

}  // namespace tidemill::engines
