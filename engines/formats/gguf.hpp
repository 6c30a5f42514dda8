// SPDX-License-Identifier: Apache-2.0
// A checked reader of GGUF files, versions 2 and 3.
//
// A file consists of a header (the magic "GGUF", version, number of tensors, number of keys), the
// keys with their typed values, the names, shapes, types and offsets of the tensors, and, from the
// next multiple of the alignment on, the data. All numbers are little-endian. The file lists
// dimensions fastest first; the reader returns them in C order, like the rest of the code.
// The reader trusts no value in the file. A count must fit the remaining bytes of the file before
// memory is reserved for it. Tensors must follow each other in the data, each at the first aligned
// offset after the previous one.
// Source: ggml-org/ggml, docs/gguf.md and include/gguf.h. The limits here are stricter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/files/file.hpp"
#include "base/files/tensor_file.hpp"
#include "base/json/json.hpp"
#include "base/result.hpp"
#include "base/tensor/tensor.hpp"

namespace tidemill::engines {

/// Limits on the content of a GGUF file.
struct GgufLimits {
  std::uint64_t max_header_bytes = std::uint64_t{64} << 20U;  // everything before the data
  std::uint64_t max_keys = 4096;
  std::uint64_t max_key_bytes = 512;
  std::uint64_t max_string_bytes = std::uint64_t{4} << 20U;
  std::uint64_t max_values = std::uint64_t{2} << 20U;  // in all lists together
  int max_depth = 4;                                   // of nested lists
  std::uint64_t max_tensors = 100'000;
  std::uint64_t max_tensor_name_bytes = 64;
  std::uint32_t max_dimensions = 4;
};

/// Whether lists are read or skipped. A skipped list is returned as an empty one. Skipping saves
/// memory, because vocabularies are large.
enum class GgufLists : std::uint8_t { kRead, kSkip };

/// A tensor as the header describes it.
struct GgufTensor {
  std::string name;
  DType dtype = DType::kF32;        // kF32, kF16, kBF16 or kBlockI8
  std::vector<std::int64_t> shape;  // in C order
  std::uint64_t begin = 0;          // byte range of its data in the file
  std::uint64_t end = 0;
};

/// The content of a file except its data.
struct GgufHeader {
  std::uint32_t version = 0;
  /// An object with a member for each key. Integers beyond 2^63 - 1 become reals. A 32-bit float
  /// becomes the real that its shortest decimal representation denotes.
  Json keys;
  std::vector<GgufTensor> tensors;  // in the order of the file
};

/// Reads the header of `file` and checks it against the file's size.
/// Errors: `kCorruptData` in one line that names the file and the key or tensor; `kUnimplemented`
/// for an unsupported version or tensor type and for split files; `kInvalidArgument` if a limit is
/// exceeded or the file is a Git LFS pointer; `kUnavailable`.
[[nodiscard]] Result<GgufHeader> read_gguf_header(const ReadableFile& file, GgufLists lists,
                                                  const GgufLimits& limits = {});

/// Returns the tensors that `header` describes. `header` must have been read from `file`.
/// Errors: as `ReadableFile`.
[[nodiscard]] Result<TensorMap> read_gguf_tensors(const ReadableFile& file,
                                                  const GgufHeader& header,
                                                  TensorPlacement placement);

}  // namespace tidemill::engines
