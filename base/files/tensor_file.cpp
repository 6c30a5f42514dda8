// SPDX-License-Identifier: Apache-2.0
// The reader of tensor files. The writer is in `tensor_file_write.cpp`.
#include "base/files/tensor_file.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

#include "base/json/json.hpp"
#include "base/text/quote.hpp"
#include "base/text/utf8.hpp"

namespace tidemill {
namespace {

static_assert(std::endian::native == std::endian::little, "mapped files are used unconverted");

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::string_view kMetadataName = "__metadata__";

// One entry of the header, checked without regard to the others.
struct Entry {
  const std::string* name = nullptr;
  DType dtype = DType::kU8;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

Result<std::vector<std::int64_t>> parse_shape(const Json& value, const TensorFileLimits& limits) {
  const Json::Array* items = value.if_array();
  if (items == nullptr) {
    return corrupt_data("shape must be a list");
  }
  if (items->size() > limits.max_dimensions) {
    return invalid_argument(std::to_string(items->size()) + " dimensions; at most " +
                            std::to_string(limits.max_dimensions) + " are read");
  }
  std::vector<std::int64_t> shape;
  for (const Json& item : *items) {
    const std::int64_t* extent = item.if_integer();
    if (extent == nullptr || *extent < 0) {
      return corrupt_data("shape must hold integers from 0 to 2^63-1");
    }
    shape.push_back(*extent);
  }
  return shape;
}

Result<std::pair<std::uint64_t, std::uint64_t>> parse_offsets(const Json& value) {
  const Json::Array* items = value.if_array();
  if (items == nullptr || items->size() != 2 || (*items)[0].if_integer() == nullptr ||
      (*items)[1].if_integer() == nullptr || *(*items)[0].if_integer() < 0) {
    return corrupt_data("data_offsets must be two integers from 0 to 2^63-1");
  }
  const std::int64_t begin = *(*items)[0].if_integer();
  const std::int64_t end = *(*items)[1].if_integer();
  if (end < begin) {
    return corrupt_data("data_offsets end before they begin");
  }
  return std::pair{static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(end)};
}

Result<Entry> parse_entry(const Json& value, const TensorFileLimits& limits) {
  const Json::Object* members = value.if_object();
  if (members == nullptr) {
    return corrupt_data("must be a JSON object");
  }
  for (const Json::Member& member : *members) {
    if (member.name != "dtype" && member.name != "shape" && member.name != "data_offsets") {
      return corrupt_data("unknown field " + quote(member.name));
    }
  }
  const Json* dtype = value.find("dtype");
  const Json* shape = value.find("shape");
  const Json* offsets = value.find("data_offsets");
  if (dtype == nullptr || shape == nullptr || offsets == nullptr) {
    return corrupt_data("dtype, shape and data_offsets are all required");
  }
  if (dtype->if_string() == nullptr) {
    return corrupt_data("dtype must be a string");
  }
  const std::optional<DType> known = parse_dtype(*dtype->if_string());
  if (!known) {
    return invalid_argument("dtype " + quote(*dtype->if_string()) + " is not supported");
  }
  Entry entry;
  entry.dtype = *known;
  TIDEMILL_ASSIGN_OR_RETURN(entry.shape, parse_shape(*shape, limits));
  TIDEMILL_ASSIGN_OR_RETURN(const auto range, parse_offsets(*offsets));
  entry.begin = range.first;
  entry.end = range.second;
  const std::optional<std::uint64_t> bytes = tensor_bytes(entry.dtype, entry.shape);
  if (!bytes.has_value()) {  // a 0 extent makes no difference: no writer makes such a shape
    return corrupt_data("shape times element size exceeds 2^63-1 bytes");
  }
  if (*bytes != entry.end - entry.begin) {
    return corrupt_data("shape and dtype need " + std::to_string(*bytes) +
                        " bytes, data_offsets give " + std::to_string(entry.end - entry.begin));
  }
  return entry;
}

Result<TensorMetadata> parse_metadata(const Json& value) {
  const Json::Object* members = value.if_object();
  if (members == nullptr) {
    return corrupt_data("must be a JSON object");
  }
  TensorMetadata metadata;
  for (const Json::Member& member : *members) {
    const std::string* text = member.value.if_string();
    if (text == nullptr) {
      return corrupt_data(quote(member.name) + " must be a string");
    }
    metadata.emplace(member.name, *text);
  }
  return metadata;
}

Status check_tensor_name(const std::string& name, const TensorFileLimits& limits) {
  if (name.empty() || name.size() > limits.max_name_bytes) {
    return invalid_argument("a name must have 1 to " + std::to_string(limits.max_name_bytes) +
                            " bytes");
  }
  if (has_control(name)) {
    return corrupt_data("a name must not hold control characters");
  }
  return {};
}

// Tensors must fill the data area in order of their offsets. Empty tensors may be at any boundary.
Status check_tiling(std::vector<Entry>& entries, std::uint64_t data_size) {
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t position = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != position) {
      const char* problem = entry.begin < position ? ": overlaps the tensor before it: starts at "
                                                   : ": leaves a gap: starts at ";
      return corrupt_data("tensor " + quote(*entry.name) + problem + std::to_string(entry.begin) +
                          ", expected " + std::to_string(position));
    }
    if (entry.end > data_size) {
      return corrupt_data("tensor " + quote(*entry.name) + ": ends at byte " +
                          std::to_string(entry.end) + " of a data area of " +
                          std::to_string(data_size));
    }
    position = entry.end;
  }
  if (position != data_size) {
    return corrupt_data(std::to_string(data_size - position) + " bytes follow the last tensor");
  }
  return {};
}

struct Header {
  Json document;  // owns the names
  std::vector<Entry> entries;
  TensorMetadata metadata;
};

Result<Header> parse_header(const std::string& text, std::uint64_t data_size,
                            const TensorFileLimits& limits) {
  constexpr std::size_t kMaxDepth = 3;
  constexpr std::size_t kValuesPerTensor = 8;
  Header header;
  if (text.empty() || text.front() != '{') {
    return corrupt_data("the header must start with '{'");
  }
  JsonLimits json_limits;
  json_limits.max_depth = kMaxDepth;
  json_limits.max_values = limits.max_tensors * kValuesPerTensor;
  TIDEMILL_ASSIGN_OR_RETURN(header.document, parse_json(text, json_limits));
  const Json::Object& members = *header.document.if_object();
  if (members.size() > limits.max_tensors) {
    return invalid_argument(std::to_string(members.size()) + " tensors; at most " +
                            std::to_string(limits.max_tensors) + " are read");
  }
  for (const Json::Member& member : members) {
    if (member.name == kMetadataName) {
      auto metadata = parse_metadata(member.value);
      TIDEMILL_RETURN_IF_ERROR(metadata.status().with_context(kMetadataName));
      header.metadata = std::move(metadata).value();
      continue;
    }
    const std::string location = "tensor " + quote(member.name);
    TIDEMILL_RETURN_IF_ERROR(check_tensor_name(member.name, limits).with_context(location));
    Result<Entry> entry = parse_entry(member.value, limits);
    TIDEMILL_RETURN_IF_ERROR(entry.status().with_context(location));
    entry.value().name = &member.name;
    header.entries.push_back(std::move(entry).value());
  }
  TIDEMILL_RETURN_IF_ERROR(check_tiling(header.entries, data_size));
  return header;
}

// Returns the bytes of a tensor that begin at `begin` in `file`: a part of `mapped`, which holds
// the whole file, or, if `mapped` is null, memory of their own. Copies bytes that are misaligned.
Result<Buffer> read_data(const ReadableFile& file, const Buffer* mapped, std::uint64_t begin,
                         const Entry& entry) {
  const auto size = static_cast<std::size_t>(entry.end - entry.begin);
  if (mapped == nullptr) {
    return read_copy(file, begin, size, entry.dtype);
  }
  const Buffer part = mapped->slice(static_cast<std::size_t>(begin), size, entry.dtype);
  const auto address = reinterpret_cast<std::uintptr_t>(part.bytes().data());
  return address % dtype_bytes(entry.dtype) == 0 ? part
                                                 : Buffer::copy_of(part.bytes(), entry.dtype);
}

Result<TensorFile> read_checked(const ReadableFile& file, TensorPlacement placement,
                                const TensorFileLimits& limits) {
  if (file.size_bytes() < kLengthBytes) {
    return corrupt_data(std::to_string(file.size_bytes()) + " bytes; a tensor file has at least 8");
  }
  std::array<std::byte, kLengthBytes> length_bytes{};
  TIDEMILL_RETURN_IF_ERROR(file.read_at(0, length_bytes));
  const auto length = std::bit_cast<std::uint64_t>(length_bytes);
  constexpr std::array<char, kLengthBytes> kPointer{'v', 'e', 'r', 's', 'i', 'o', 'n', ' '};
  if (length == std::bit_cast<std::uint64_t>(kPointer)) {
    return invalid_argument("is a Git LFS pointer, not the file itself; run git lfs pull");
  }
  if (length > limits.max_header_bytes) {
    return invalid_argument("a header of " + std::to_string(length) + " bytes; at most " +
                            std::to_string(limits.max_header_bytes) + " are read");
  }
  if (length > file.size_bytes() - kLengthBytes) {
    return corrupt_data("a header of " + std::to_string(length) + " bytes in a file of " +
                        std::to_string(file.size_bytes()));
  }
  std::string text(static_cast<std::size_t>(length), '\0');
  TIDEMILL_RETURN_IF_ERROR(file.read_at(kLengthBytes, std::as_writable_bytes(std::span(text))));
  const std::uint64_t data_start = kLengthBytes + length;
  TIDEMILL_ASSIGN_OR_RETURN(Header header,
                            parse_header(text, file.size_bytes() - data_start, limits));
  Buffer mapped;
  if (placement == TensorPlacement::kMapped) {
    TIDEMILL_ASSIGN_OR_RETURN(mapped, file.map());
  }
  TensorFile out;
  out.metadata = std::move(header.metadata);
  for (Entry& entry : header.entries) {
    TIDEMILL_ASSIGN_OR_RETURN(
        Buffer data, read_data(file, placement == TensorPlacement::kMapped ? &mapped : nullptr,
                               data_start + entry.begin, entry));
    out.tensors.emplace(*entry.name, Tensor{entry.dtype, std::move(entry.shape), std::move(data)});
  }
  return out;
}

}  // namespace

Result<Buffer> read_copy(const ReadableFile& file, std::uint64_t offset, std::size_t size_bytes,
                         DType dtype) {
  std::vector<std::byte> bytes(size_bytes);
  TIDEMILL_RETURN_IF_ERROR(file.read_at(offset, bytes));
  return Buffer::adopt(std::move(bytes), DType::kU8).slice(0, size_bytes, dtype);
}

Result<TensorFile> read_tensor_file(const ReadableFile& file, TensorPlacement placement,
                                    const TensorFileLimits& limits) {
  Result<TensorFile> result = read_checked(file, placement, limits);
  const std::string location = file.path().string();
  if (!result.ok() && !result.status().message().starts_with(location)) {
    return result.status().with_context(location);
  }
  return result;
}

Result<TensorFile> read_tensor_file(const std::filesystem::path& path, TensorPlacement placement,
                                    const TensorFileLimits& limits) {
  TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile file, ReadableFile::open(path));
  return read_tensor_file(file, placement, limits);
}

}  // namespace tidemill
