// SPDX-License-Identifier: Apache-2.0
// Fuzzes tensor files.
#include "base/digest.hpp"
#include "base/files/tensor_file.hpp"
#include "tests/fuzz/target.hpp"

namespace tidemill::fuzz {

void safetensors(std::string_view input) {
  static MemoryFile file;
  file.fill(input);
  const auto copied = read_tensor_file(file.path(), TensorPlacement::kCopied);
  const auto mapped = read_tensor_file(file.path(), TensorPlacement::kMapped);
  require(copied.status().message() == mapped.status().message(),
          "a refusal does not depend on placement");
  if (!copied.ok()) {
    require_refusal(copied.status(), file.path() + ": ");
    return;
  }
  const std::string digest = digest_tensors(copied.value().tensors);
  require(digest == digest_tensors(mapped.value().tensors), "tensors do not depend on placement");

  std::string written;
  const auto sink = [&written](std::span<const std::byte> bytes) {
    written.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return Status();
  };
  require_ok(stream_tensor_file(mapped.value().tensors, mapped.value().metadata, sink),
             "tensors that were read can be written");
  static MemoryFile again;
  again.fill(written);
  const auto reread = read_tensor_file(again.path(), TensorPlacement::kMapped);
  require_ok(reread.status(), "a written file can be read");
  require(digest == digest_tensors(reread.value().tensors), "tensors survive a round trip");
  require(copied.value().metadata == reread.value().metadata, "metadata survives a round trip");
}

}  // namespace tidemill::fuzz
