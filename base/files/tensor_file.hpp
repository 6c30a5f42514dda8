// SPDX-License-Identifier: Apache-2.0
// Tensor files in the safetensors format: a checked reader and a streaming writer.
//
// A file consists of an 8-byte little-endian length, that many bytes of JSON, and the data area.
// The JSON maps each name to {dtype, shape, data_offsets [begin, end)}; offsets count from the
// start of the data area. "__metadata__" maps strings to strings. Tensors are stored in C order,
// little-endian. The reader trusts nothing: in the order of their offsets, the tensors must fill
// the data area without gap or overlap, sizes must follow from shape and type, and the last tensor
// must end where the file ends.
// Source: huggingface/safetensors, safetensors/src/tensor.rs; the limits are stricter than there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "base/files/file.hpp"
#include "base/result.hpp"
#include "base/tensor/tensor.hpp"

namespace tidemill {

/// The limits of a tensor file, for the reader and the writer.
struct TensorFileLimits {
  std::uint64_t max_header_bytes = std::uint64_t{1} << 20U;
  std::size_t max_tensors = 100'000;
  std::size_t max_name_bytes = 512;
  std::size_t max_dimensions = 32;
};

/// Where the tensors of a file are stored once it is read.
enum class TensorPlacement : std::uint8_t {
  /// In the mapped file, paged in on use. Only for files that are replaced by renaming and never
  /// changed in place; see `ReadableFile::map`.
  kMapped,
  /// Each in memory of its own. Later changes to the file do not matter.
  kCopied,
};

/// Metadata of a tensor file.
using TensorMetadata = std::map<std::string, std::string>;

/// The content of a tensor file.
struct TensorFile {
  TensorMap tensors;
  TensorMetadata metadata;
};

/// Reads `file`. Every tensor starts at an address that is aligned for its type. A tensor that is
/// misaligned in the file is copied.
/// Errors: `kCorruptData`, one line that names file and tensor; `kInvalidArgument` for an
/// unsupported type or an exceeded limit; `kUnavailable`.
[[nodiscard]] Result<TensorFile> read_tensor_file(const ReadableFile& file,
                                                  TensorPlacement placement,
                                                  const TensorFileLimits& limits = {});
/// Opens and reads `path`. Errors: as above and as `ReadableFile::open`.
[[nodiscard]] Result<TensorFile> read_tensor_file(const std::filesystem::path& path,
                                                  TensorPlacement placement,
                                                  const TensorFileLimits& limits = {});

/// Reads the `size_bytes` bytes at `offset` of `file` into memory of their own, as elements of
/// `dtype`. Errors: as `ReadableFile::read_at`.
[[nodiscard]] Result<Buffer> read_copy(const ReadableFile& file, std::uint64_t offset,
                                       std::size_t size_bytes, DType dtype);

/// Receives the next bytes of a file.
using ByteSink = std::function<Status(std::span<const std::byte>)>;

/// Returns the metadata that Hugging Face's writers put into a file and some loaders require.
[[nodiscard]] TensorMetadata default_tensor_metadata();

/// Passes the bytes of a tensor file to `sink`, piece by piece, without copying the data. Tensors
/// are ordered by the alignment of their type, largest first, then by name. The header is padded
/// with spaces to a multiple of 8 bytes, so that every tensor is aligned in the file.
/// Requires every tensor's data to match its shape and type.
/// Errors: the first failure of `sink`; `kInvalidArgument` for tensors beyond the limits or of a
/// type with blocks, and for a name that is empty, not UTF-8, or "__metadata__".
[[nodiscard]] Status stream_tensor_file(const TensorMap& tensors, const TensorMetadata& metadata,
                                        const ByteSink& sink);

/// Writes `tensors` to `path`, durably and atomically. Errors: as `stream_tensor_file`,
/// `DurableFile`.
[[nodiscard]] Status write_tensor_file(FileSystem& files, const std::filesystem::path& path,
                                       const TensorMap& tensors,
                                       const TensorMetadata& metadata = default_tensor_metadata());

}  // namespace tidemill
