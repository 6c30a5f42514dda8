// SPDX-License-Identifier: Apache-2.0
// The writer of tensor files.
#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/check.hpp"
#include "base/files/tensor_file.hpp"
#include "base/text/quote.hpp"

namespace tidemill {
namespace {

constexpr std::size_t kAlignment = 8;

// Returns a string as JSON text. Fails for bytes that are not UTF-8.
Result<std::string> json_string(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    return invalid_argument(quote(text) + " is not UTF-8");
  }
}

using Ordered = std::vector<const TensorMap::value_type*>;

Ordered in_file_order(const TensorMap& tensors) {
  Ordered order;
  for (const auto& entry : tensors) {
    order.push_back(&entry);
  }
  // Stable, because the map is already in name order.
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return dtype_block_bytes(a->second.dtype) > dtype_block_bytes(b->second.dtype);
  });
  return order;
}

Result<std::string> entry_text(const TensorMap::value_type& entry, std::uint64_t begin) {
  const TensorFileLimits limits;
  const auto& [name, tensor] = entry;
  if (name.empty() || name.size() > limits.max_name_bytes || name == "__metadata__" ||
      tensor.shape.size() > limits.max_dimensions) {
    return invalid_argument("cannot write a tensor named " + quote(name) + " with " +
                            std::to_string(tensor.shape.size()) + " dimensions");
  }
  if (dtype_block_elements(tensor.dtype) > 1) {
    return invalid_argument("tensor " + quote(name) + ": type " +
                            std::string(dtype_name(tensor.dtype)) +
                            " cannot be stored in a safetensors file");
  }
  TIDEMILL_CHECK(tensor.data.size_bytes() == tensor_bytes(tensor.dtype, tensor.shape))
      << name << ": " << tensor.data.size_bytes() << " bytes";
  TIDEMILL_ASSIGN_OR_RETURN(std::string text, json_string(name));
  text += ":{\"dtype\":\"";
  text += dtype_name(tensor.dtype);
  text += "\",\"shape\":[";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    text += i == 0 ? "" : ",";
    text += std::to_string(tensor.shape[i]);
  }
  text += "],\"data_offsets\":[" + std::to_string(begin) + "," +
          std::to_string(begin + tensor.data.size_bytes()) + "]}";
  return text;
}

// The length and the JSON, padded.
Result<std::string> header_bytes(const Ordered& order, const TensorMetadata& metadata) {
  const TensorFileLimits limits;
  if (order.size() > limits.max_tensors) {
    return invalid_argument(std::to_string(order.size()) + " tensors; at most " +
                            std::to_string(limits.max_tensors) + " are written");
  }
  std::string json = "{";
  for (const auto& [name, value] : metadata) {
    json += json.size() == 1 ? "\"__metadata__\":{" : ",";
    TIDEMILL_ASSIGN_OR_RETURN(const std::string name_text, json_string(name));
    TIDEMILL_ASSIGN_OR_RETURN(const std::string value_text, json_string(value));
    json += name_text;
    json += ':';
    json += value_text;
  }
  json += metadata.empty() ? "" : "}";
  std::uint64_t position = 0;
  for (const auto* entry : order) {
    TIDEMILL_ASSIGN_OR_RETURN(const std::string text, entry_text(*entry, position));
    json += json.size() == 1 ? "" : ",";
    json += text;
    position += entry->second.data.size_bytes();
  }
  json += '}';
  json.resize((json.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  if (json.size() > limits.max_header_bytes) {
    return invalid_argument("a header of " + std::to_string(json.size()) + " bytes; at most " +
                            std::to_string(limits.max_header_bytes) + " are written");
  }
  const auto length = std::bit_cast<std::array<char, 8>>(std::uint64_t{json.size()});
  return std::string(length.begin(), length.end()) + json;
}

}  // namespace

TensorMetadata default_tensor_metadata() {
  return {{"format", "pt"}};
}

Status stream_tensor_file(const TensorMap& tensors, const TensorMetadata& metadata,
                          const ByteSink& sink) {
  const Ordered order = in_file_order(tensors);
  TIDEMILL_ASSIGN_OR_RETURN(const std::string header, header_bytes(order, metadata));
  TIDEMILL_RETURN_IF_ERROR(sink(std::as_bytes(std::span(header))));
  for (const auto* entry : order) {
    if (entry->second.data.size_bytes() > 0) {
      TIDEMILL_RETURN_IF_ERROR(sink(entry->second.data.bytes()));
    }
  }
  return {};
}

Status write_tensor_file(FileSystem& files, const std::filesystem::path& path,
                         const TensorMap& tensors, const TensorMetadata& metadata) {
  DurableFile file(files, path);
  TIDEMILL_RETURN_IF_ERROR(stream_tensor_file(
      tensors, metadata, [&file](std::span<const std::byte> bytes) { return file.write(bytes); }));
  return file.commit();
}

}  // namespace tidemill
