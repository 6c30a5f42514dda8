// SPDX-License-Identifier: Apache-2.0
// Opens models. `model_files_write.cpp` creates and exports them.
#include "engines/formats/model_files.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "base/json/json.hpp"
#include "base/tensor/float_tensor.hpp"
#include "base/text/quote.hpp"
#include "engines/formats/gguf_model.hpp"
#include "engines/formats/nf4_tensors.hpp"

namespace tidemill::engines {
namespace {

constexpr std::string_view kWeightsName = "model.safetensors";
constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kHeadName = "lm_head.weight";
constexpr std::string_view kTableName = "model.embed_tokens.weight";

using Shape = std::vector<std::int64_t>;

std::string shape_text(const Shape& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) {
    text += (text.size() == 1 ? "" : ", ") + std::to_string(extent);
  }
  return text + "]";
}

// Adds the tensors of a linear layer.
void add_linear(TensorShapes& shapes, const std::string& name, Shape weight, bool bias) {
  if (bias) {
    shapes[name + ".bias"] = {weight[0]};
  }
  shapes[name + ".weight"] = std::move(weight);
}

// Maps each tensor to the file that contains it.
using WeightMap = std::map<std::string, std::string>;

Result<WeightMap> read_index(const std::filesystem::path& path) {
  constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{16} << 20U;
  const std::string location = path.string();
  TIDEMILL_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxIndexBytes));
  const Result<Json> json = parse_json(text);
  TIDEMILL_RETURN_IF_ERROR(json.status().with_context(location));
  const Json* map = json.value().find("weight_map");
  const Json::Object* members = map == nullptr ? nullptr : map->if_object();
  if (members == nullptr || members->empty()) {
    return invalid_argument(location +
                            ": weight_map: must be a non-empty object of tensor and file names");
  }
  WeightMap weights;
  for (const Json::Member& member : *members) {
    const std::string* file = member.value.if_string();
    if (file == nullptr) {
      return invalid_argument(location + ": weight_map: tensor " + quote(member.name) +
                              ": must be a file name");
    }
    const Status name = check_name(*file);
    TIDEMILL_RETURN_IF_ERROR(
        name.with_context(location + ": weight_map: tensor " + quote(member.name)));
    weights.emplace(member.name, *file);
  }
  return weights;
}

Result<TensorMap> read_shards(const std::filesystem::path& directory, TensorPlacement placement) {
  const std::filesystem::path index = directory / kIndexName;
  TIDEMILL_ASSIGN_OR_RETURN(const WeightMap weights, read_index(index));
  std::set<std::string> names;
  for (const auto& [tensor, file] : weights) {
    names.insert(file);
  }
  TensorMap tensors;
  for (const std::string& name : names) {
    Result<TensorFile> file = read_tensor_file(directory / name, placement);
    TIDEMILL_RETURN_IF_ERROR(file.status().with_context(std::string(kIndexName)));
    for (auto& [tensor, value] : file.value().tensors) {
      const auto location = weights.find(tensor);
      if (location == weights.end() || location->second != name) {
        return corrupt_data(
            (directory / name).string() + ": tensor " + quote(tensor) + ": " +
            std::string(kIndexName) +
            (location == weights.end() ? " does not list it" : " lists it in " + location->second));
      }
      tensors.emplace(tensor, std::move(value));
    }
  }
  for (const auto& [tensor, file] : weights) {
    if (!tensors.contains(tensor)) {
      return corrupt_data((directory / file).string() + ": tensor " + quote(tensor) +
                          ": missing, but " + std::string(kIndexName) + " lists it in this file");
    }
  }
  return tensors;
}

struct Weights {
  TensorMap tensors;
  std::string location;  // the file to name in messages
};

Result<Weights> read_weights(const std::filesystem::path& directory, TensorPlacement placement) {
  Result<TensorFile> single = read_tensor_file(directory / kWeightsName, placement);
  if (single.ok()) {
    return Weights{std::move(single.value().tensors), (directory / kWeightsName).string()};
  }
  std::error_code ignored;
  if (std::filesystem::exists(directory / kWeightsName, ignored)) {
    return single.status();
  }
  if (!std::filesystem::exists(directory / kIndexName, ignored)) {
    return Status(Errc::kNotFound, directory.string() + ": contains neither " +
                                       std::string(kWeightsName) + " nor " +
                                       std::string(kIndexName) +
                                       " nor a GGUF file; other formats are not supported");
  }
  TIDEMILL_ASSIGN_OR_RETURN(TensorMap tensors, read_shards(directory, placement));
  return Weights{std::move(tensors), (directory / kIndexName).string()};
}

// Removes the extra tensors that `open_model` tolerates.
void drop_tolerated(const ModelConfig& config, TensorMap& tensors) {
  std::erase_if(tensors,
                [](const auto& entry) { return entry.first.ends_with(".rotary_emb.inv_freq"); });
  const auto head = tensors.find(std::string(kHeadName));
  const auto table = tensors.find(std::string(kTableName));
  if (config.tie_word_embeddings && head != tensors.end() && table != tensors.end() &&
      head->second.shape == table->second.shape) {
    tensors.erase(head);
  }
}

// Reads the configs and, for a GGUF file if `part` says so, the tensors.
Result<ModelFiles> open_parts(const ModelLocation& location, GgufPart part,
                              TensorPlacement placement) {
  ModelFiles model;
  Result<ModelConfig> config = read_model_config(location.directory / "config.json");
  if (location.gguf.has_value()) {
    if (!config.ok() && config.status().code() != Errc::kNotFound) {
      return config.status();
    }
    const auto given = config.ok() ? std::optional(std::move(config).value()) : std::nullopt;
    TIDEMILL_ASSIGN_OR_RETURN(GgufModel gguf,
                              open_gguf_model(*location.gguf, part, given, placement));
    model.config = std::move(gguf.config);
    model.tensors = std::move(gguf.tensors);
  } else {
    TIDEMILL_ASSIGN_OR_RETURN(model.config, std::move(config));
  }
  Result<GenerationConfig> generation =
      read_generation_config(location.directory / "generation_config.json");
  if (generation.ok()) {
    model.generation = std::move(generation).value();
  } else if (generation.status().code() != Errc::kNotFound) {
    return generation.status();
  }
  return model;
}

}  // namespace

TensorShapes expected_tensors(const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t queries = config.num_heads * config.head_dim;
  const std::int64_t keys = config.num_kv_heads * config.head_dim;
  const std::int64_t inner = config.intermediate_size;
  TensorShapes shapes;
  shapes[std::string(kTableName)] = {config.vocab_size, hidden};
  shapes["model.norm.weight"] = {hidden};
  if (!config.tie_word_embeddings) {
    shapes[std::string(kHeadName)] = {config.vocab_size, hidden};
  }
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    shapes[prefix + "input_layernorm.weight"] = {hidden};
    shapes[prefix + "post_attention_layernorm.weight"] = {hidden};
    add_linear(shapes, prefix + "self_attn.q_proj", {queries, hidden}, config.qkv_bias);
    add_linear(shapes, prefix + "self_attn.k_proj", {keys, hidden}, config.qkv_bias);
    add_linear(shapes, prefix + "self_attn.v_proj", {keys, hidden}, config.qkv_bias);
    add_linear(shapes, prefix + "self_attn.o_proj", {hidden, queries}, config.output_bias);
    add_linear(shapes, prefix + "mlp.gate_proj", {inner, hidden}, config.mlp_bias);
    add_linear(shapes, prefix + "mlp.up_proj", {inner, hidden}, config.mlp_bias);
    add_linear(shapes, prefix + "mlp.down_proj", {hidden, inner}, config.mlp_bias);
    if (config.qk_norm) {
      shapes[prefix + "self_attn.q_norm.weight"] = {config.head_dim};
      shapes[prefix + "self_attn.k_norm.weight"] = {config.head_dim};
    }
  }
  return shapes;
}

std::int64_t num_parameters(const ModelConfig& config) {
  std::int64_t total = 0;
  for (const auto& [name, shape] : expected_tensors(config)) {
    total += shape.size() == 1 ? shape[0] : shape[0] * shape[1];
  }
  return total;
}

Status check_tensors(const TensorShapes& expected, const TensorMap& tensors,
                     const std::string& location) {
  for (const auto& [name, tensor] : tensors) {
    const std::string here = location + ": tensor " + quote(name) + ": ";
    const auto shape = expected.find(name);
    if (shape == expected.end()) {
      return invalid_argument(here + "unexpected: the config asks for no such tensor");
    }
    if (tensor.shape != shape->second) {
      return invalid_argument(here + "shape " + shape_text(tensor.shape) +
                              ", but the config asks for " + shape_text(shape->second));
    }
    if (!is_weight_type(tensor.dtype)) {
      return invalid_argument(here + "type " + std::string(dtype_name(tensor.dtype)) +
                              "; only F32, F16, BF16, Q8_0 and NF4 are supported");
    }
  }
  for (const auto& [name, shape] : expected) {
    if (!tensors.contains(name)) {
      const std::size_t others = expected.size() - tensors.size() - 1;
      return invalid_argument(location + ": tensor " + quote(name) + ": missing" +
                              (others == 0 ? "" : ", and " + std::to_string(others) + " more"));
    }
  }
  return {};
}

Status check_finite_weights(const TensorMap& tensors, const std::string& location) {
  for (const auto& [name, tensor] : tensors) {
    const Status finite = check_finite(tensor).with_context("tensor " + quote(name));
    if (finite.code() == Errc::kInvalidArgument) {
      return finite.with_context(location);
    }
    TIDEMILL_RETURN_IF_ERROR(finite);  // reading failed; the message already names the file
    tensor.data.release_pages();       // keeps the mapped file from filling memory
  }
  return {};
}

Result<ModelFiles> open_model_config(const std::filesystem::path& path) {
  TIDEMILL_ASSIGN_OR_RETURN(const ModelLocation location, find_model(path));
  return open_parts(location, GgufPart::kConfig, TensorPlacement::kMapped);
}

Result<ModelFiles> open_model(const std::filesystem::path& path, TensorPlacement placement,
                              FiniteCheck check) {
  TIDEMILL_ASSIGN_OR_RETURN(const ModelLocation location, find_model(path));
  TIDEMILL_ASSIGN_OR_RETURN(ModelFiles model, open_parts(location, GgufPart::kWhole, placement));
  std::string weights_location =
      location.gguf.has_value() ? location.gguf->string() : std::string();
  if (!location.gguf.has_value()) {
    TIDEMILL_ASSIGN_OR_RETURN(Weights weights, read_weights(location.directory, placement));
    weights_location = std::move(weights.location);
    TIDEMILL_ASSIGN_OR_RETURN(model.tensors,
                              join_nf4_tensors(std::move(weights.tensors), weights_location));
  }
  drop_tolerated(model.config, model.tensors);
  TIDEMILL_RETURN_IF_ERROR(
      check_tensors(expected_tensors(model.config), model.tensors, weights_location));
  if (check == FiniteCheck::kInRuntime) {
    model.unchecked = std::move(weights_location);
    return model;
  }
  TIDEMILL_RETURN_IF_ERROR(check_finite_weights(model.tensors, weights_location));
  return model;
}

}  // namespace tidemill::engines
