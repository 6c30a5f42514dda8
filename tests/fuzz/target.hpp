// SPDX-License-Identifier: Apache-2.0
// Building blocks of fuzz targets. A target reads one input like an untrusted file and throws if
// the reader violates one of its invariants. Sanitizers detect other errors.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"

namespace tidemill::fuzz {

/// Reports an invariant that an input violated.
class InvariantViolation : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
};

/// Throws `InvariantViolation` naming `invariant` unless `holds`.
void require(bool holds, const std::string& invariant);

/// Requires that `status` is a success. `what` names the invariant.
void require_ok(const Status& status, const std::string& what);

/// Requires that `status` is a failure whose message is one short line that begins with `location`
/// and contains no control characters.
void require_refusal(const Status& status, std::string_view location);

/// Cuts `input` at its first `count - 1` NUL bytes and returns `count` parts. Missing parts are
/// empty.
[[nodiscard]] std::vector<std::string_view> parts_of(std::string_view input, std::size_t count);

/// A file in memory. It has a path, so that file readers can open it.
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

/// Writes `bytes` to the file `path`, without making them durable.
void put_file(const std::string& path, std::string_view bytes);

/// A fuzz target: runs the checks on one input.
using Target = void (*)(std::string_view input);

void actor_message(std::string_view input);
void adapter_config(std::string_view input);
void api_request(std::string_view input);
void chat_template(std::string_view input);
void dataset_rows(std::string_view input);
void envelope(std::string_view input);
void gguf(std::string_view input);
void json_schema(std::string_view input);
void model_config(std::string_view input);
void nf4_tensors(std::string_view input);
void own_files(std::string_view input);
void run_file(std::string_view input);
void safetensors(std::string_view input);
void segment_handshake(std::string_view input);
void shard_index(std::string_view input);
void shm_handshake(std::string_view input);
void tinker_request(std::string_view input);
void tokenizer(std::string_view input);
void tokenizer_config(std::string_view input);
void uploaded_form(std::string_view input);
void zmq_handshake(std::string_view input);

}  // namespace tidemill::fuzz
