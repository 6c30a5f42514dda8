// SPDX-License-Identifier: Apache-2.0
// Creates random weights and exports models.
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "base/random.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/formats/gguf_model.hpp"
#include "engines/formats/gguf_tokenizer.hpp"
#include "engines/formats/model_files.hpp"

namespace tidemill::engines {
namespace {

constexpr std::array<std::string_view, 11> kModelFileNames{"config.json",
                                                           "model.safetensors",
                                                           "tokenizer.json",
                                                           "tokenizer_config.json",
                                                           "special_tokens_map.json",
                                                           "added_tokens.json",
                                                           "vocab.json",
                                                           "merges.txt",
                                                           "chat_template.jinja",
                                                           "chat_template.json",
                                                           "generation_config.json"};
constexpr std::string_view kModelConfigName = kModelFileNames[0];
constexpr std::string_view kModelWeightsName = kModelFileNames[1];
// The files besides config and weights that make a directory usable.
constexpr std::span<const std::string_view> kCopiedNames = std::span(kModelFileNames).subspan<2>();

template <class T, class Convert>
Buffer filled(std::size_t count, DType dtype, Convert convert) {
  std::vector<T> values(count);
  for (T& value : values) {
    value = convert();
  }
  return Buffer::adopt(std::move(values), dtype);
}

// Returns `count` elements of `dtype`, each one a result of `next`.
template <class Next>
Buffer filled_as(DType dtype, std::size_t count, Next next) {
  switch (dtype) {
    case DType::kBF16:
      return filled<std::uint16_t>(count, dtype, [&next] { return float_to_bf16(next()); });
    case DType::kF16:
      return filled<std::uint16_t>(count, dtype, [&next] { return float_to_f16(next()); });
    default: return filled<float>(count, DType::kF32, next);
  }
}

// Copies a file durably. Does nothing if the source does not exist.
Status copy_if_present(FileSystem& files, const std::filesystem::path& from,
                       const std::filesystem::path& to) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{256} << 20U;
  const Result<std::string> text = read_text_file(from, kMaxBytes);
  if (text.status().code() == Errc::kNotFound) {
    return {};
  }
  TIDEMILL_RETURN_IF_ERROR(text.status());
  return write_file(files, to, text.value());
}

Status remove_if_present(FileSystem& files, const std::filesystem::path& path) {
  Status status = remove_file(files, path);
  return status.code() == Errc::kNotFound ? Status() : status;
}

Status export_config(FileSystem& files, const std::filesystem::path& path,
                     const ModelConfig& config, const std::optional<ModelLocation>& origin) {
  if (origin) {
    const Result<ModelConfig> source_config =
        read_model_config(origin->directory / kModelConfigName);
    if (source_config.ok() && source_config.value() == config) {
      return copy_if_present(files, origin->directory / kModelConfigName, path / kModelConfigName);
    }
  }
  return write_model_config(files, path / kModelConfigName, config);
}

Result<std::optional<ModelLocation>> locate_source(
    const std::optional<std::filesystem::path>& source) {
  if (!source) {
    return std::optional<ModelLocation>();
  }
  TIDEMILL_ASSIGN_OR_RETURN(ModelLocation location, find_model(*source));
  return std::optional(std::move(location));
}

// Converts the tokenizer of a GGUF file, unless a tokenizer.json was copied. Writes nothing if the
// tokenizer is missing or unsupported, because the weights are useful without it.
Status export_gguf_tokenizer(FileSystem& files, const std::filesystem::path& path,
                             const ModelLocation& origin) {
  std::error_code ignored;
  if (!origin.gguf.has_value() || std::filesystem::exists(path / "tokenizer.json", ignored)) {
    return {};
  }
  const Result<TokenizerTexts> texts = read_gguf_tokenizer(*origin.gguf);
  const Errc code = texts.status().code();
  if (code == Errc::kUnimplemented || code == Errc::kNotFound) {
    return {};
  }
  TIDEMILL_RETURN_IF_ERROR(texts.status());
  TIDEMILL_RETURN_IF_ERROR(
      write_file(files, path / "tokenizer.json", texts.value().tokenizer_json));
  return write_file(files, path / "tokenizer_config.json", texts.value().tokenizer_config_json);
}

}  // namespace

TensorMap random_model_tensors(const ModelConfig& config, std::uint64_t seed) {
  constexpr double kDeviation = 0.02;
  TensorMap tensors;
  std::uint64_t stream = 0;
  for (const auto& [name, shape] : expected_tensors(config)) {
    Tensor tensor{config.dtype, shape, {}};
    const auto count = static_cast<std::size_t>(tensor.num_elements());
    if (shape.size() == 2) {
      RandomStream random(seed, stream);
      tensor.data = filled_as(config.dtype, count, [&random] {
        return static_cast<float>(kDeviation * random.normal());
      });
    } else {
      const float value = name.ends_with(".bias") ? 0.0F : 1.0F;
      tensor.data = filled_as(config.dtype, count, [value] { return value; });
    }
    tensors.emplace(name, std::move(tensor));
    ++stream;
  }
  return tensors;
}

std::span<const std::string_view> exported_model_names() {
  return kModelFileNames;
}

Status export_model(FileSystem& files, const std::filesystem::path& path, const ModelConfig& config,
                    const TensorMap& tensors, const std::optional<std::filesystem::path>& source) {
  const std::filesystem::path weights = path / kModelWeightsName;
  TIDEMILL_ASSIGN_OR_RETURN(const std::optional<ModelLocation> origin, locate_source(source));
  TIDEMILL_RETURN_IF_ERROR(check_tensors(expected_tensors(config), tensors, weights.string()));
  std::error_code ignored;
  if (origin && std::filesystem::equivalent(origin->directory, path, ignored)) {
    return invalid_argument(path.string() + ": a model cannot be exported over its own source");
  }
  TIDEMILL_RETURN_IF_ERROR(make_directory(files, path));
  TIDEMILL_RETURN_IF_ERROR(remove_temporary_files(files, path));
  TIDEMILL_RETURN_IF_ERROR(remove_if_present(files, weights));
  TIDEMILL_RETURN_IF_ERROR(remove_if_present(files, path / "model.safetensors.index.json"));
  TIDEMILL_RETURN_IF_ERROR(export_config(files, path, config, origin));
  for (const std::string_view name : kCopiedNames) {
    TIDEMILL_RETURN_IF_ERROR(origin ? copy_if_present(files, origin->directory / name, path / name)
                                    : Status());
  }
  TIDEMILL_RETURN_IF_ERROR(origin ? export_gguf_tokenizer(files, path, *origin) : Status());
  return write_tensor_file(files, weights, without_blocks(tensors));
}

}  // namespace tidemill::engines
