// SPDX-License-Identifier: Apache-2.0
// GGUF files, versions 2 and 3: a checked reader.
//
// A file is a header (the magic "GGUF", version, number of tensors, number of keys), the keys with
// their typed values, the tensors' names, shapes, types and places, and, from the next multiple of
// the alignment on, the data. All numbers lie low byte first. Dimensions are written fastest first;
// here they stand in C order, as everywhere else.
// The reader trusts nothing: counts must fit what is left of the file before anything is reserved,
// and tensors must lie one behind the other, each at the first aligned place after the one before.
// Source: ggml-org/ggml, docs/gguf.md and include/gguf.h; the caps are stricter than there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/file.hpp"
#include "base/json.hpp"
#include "base/result.hpp"
#include "base/tensor.hpp"
#include "base/tensor_file.hpp"

namespace tidemill::engines {

/// What a GGUF file may hold.
struct GgufLimits {
  std::uint64_t max_header_bytes = std::uint64_t{64} << 20U;  // all that is not data
  std::uint64_t max_keys = 4096;
  std::uint64_t max_key_bytes = 512;
  std::uint64_t max_string_bytes = std::uint64_t{4} << 20U;
  std::uint64_t max_values = std::uint64_t{2} << 20U;  // of all lists together
  int max_depth = 4;                                   // of lists in lists
  std::uint64_t max_tensors = 100'000;
  std::uint64_t max_tensor_name_bytes = 64;
  std::uint32_t max_dimensions = 4;
};

/// Whether lists are read, or passed over as empty ones: vocabularies are large.
enum class GgufLists : std::uint8_t { kRead, kSkip };

/// A tensor as the header describes it.
struct GgufTensor {
  std::string name;
  DType dtype = DType::kF32;        // kF32, kF16, kBF16 or kBlockI8
  std::vector<std::int64_t> shape;  // in C order
  std::uint64_t begin = 0;          // of its data in the file
  std::uint64_t end = 0;
};

/// All of a file but its data.
struct GgufHeader {
  std::uint32_t version = 0;
  /// An object with a member for each key. Integers beyond 2^63 - 1 are reals; a 32-bit float is
  /// the real that its shortest decimal spelling means.
  Json keys;
  std::vector<GgufTensor> tensors;  // in the order of the file
};

/// Reads the header of `file` and checks it against the file's size.
/// Errors: `kCorruptData` in one line naming file and key or tensor; `kUnimplemented` for a version
/// or a tensor type that is not read; `kInvalidArgument` for a limit that is passed;
/// `kUnavailable`.
[[nodiscard]] Result<GgufHeader> read_gguf_header(const ReadableFile& file, GgufLists lists,
                                                  const GgufLimits& limits = {});

/// Returns the tensors that `header`, read from `file`, describes.
/// Errors: as `ReadableFile`.
[[nodiscard]] Result<TensorMap> read_gguf_tensors(const ReadableFile& file,
                                                  const GgufHeader& header,
                                                  TensorPlacement placement);

}  // namespace tidemill::engines
