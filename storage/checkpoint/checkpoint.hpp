// SPDX-License-Identifier: Apache-2.0
// What a run stores, and what names a stored state.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/tensor.hpp"

namespace tidemill::storage {

/// The whole state of a run at one step, in named parts. A name is used once over both maps and
/// keeps to `check_name`.
struct Checkpoint {
  std::uint64_t step = 0;
  /// Weights, optimizer moments, ...; each becomes one safetensors file.
  std::map<std::string, TensorMap> tensors;
  /// JSON documents and other bytes: live rows, random state, data position, ...
  std::map<std::string, std::string> blobs;
};

/// Names a commit.
struct CommitInfo {
  /// Grows with every attempt to commit in this run; numbers may be left out.
  std::uint64_t sequence = 0;
  std::uint64_t step = 0;
  /// Digest of the manifest, which holds the digest of the commit before it: a hash chain.
  std::string digest;
  friend bool operator==(const CommitInfo&, const CommitInfo&) = default;
};

}  // namespace tidemill::storage
