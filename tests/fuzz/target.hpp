// SPDX-License-Identifier: Apache-2.0
// What fuzz targets are made of. A target reads one input as if it were a file of somebody else's,
// and throws when a promise of the reader is broken; a sanitizer sees the rest.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"

namespace tidemill::fuzz {

/// A promise that an input showed to be broken.
class BrokenPromise : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
};

/// Throws `BrokenPromise` unless `holds`.
void require(bool holds, const std::string& promise);

/// Requires that `status` is success; `what` says whose.
void require_ok(const Status& status, const std::string& what);

/// Requires that a refusal is one short line that begins with `place`, without control characters.
void require_refusal(const Status& status, std::string_view place);

/// Cuts `input` at its first `count - 1` NUL bytes; what is not there is empty.
[[nodiscard]] std::vector<std::string_view> parts_of(std::string_view input, std::size_t count);

/// A regular file in memory, with a path by which readers of files open it.
class MemoryFile {
public:
  MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile();

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Replaces the content.
  void fill(std::string_view bytes);

private:
  int descriptor_;
  std::string path_;
};

/// Writes `bytes` as `path`, without making them durable.
void put_file(const std::string& path, std::string_view bytes);

/// Reads one input.
using Target = void (*)(std::string_view input);

void adapter_config(std::string_view input);
void chat_template(std::string_view input);
void dataset_rows(std::string_view input);
void gguf(std::string_view input);
void model_config(std::string_view input);
void nf4_tensors(std::string_view input);
void own_files(std::string_view input);
void run_file(std::string_view input);
void safetensors(std::string_view input);
void shard_index(std::string_view input);
void tokenizer(std::string_view input);
void tokenizer_config(std::string_view input);

}  // namespace tidemill::fuzz
