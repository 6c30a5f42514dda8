// SPDX-License-Identifier: Apache-2.0
// The stored state of a run, and the name of a stored state.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/tensor/tensor.hpp"

namespace tidemill::storage {

/// The whole state of a run at one step, in named parts. Names are unique across both maps and obey
/// `check_name`.
struct Checkpoint {
  std::uint64_t step = 0;
  /// Weights, optimizer moments, ...; each becomes one safetensors file.
  std::map<std::string, TensorMap> tensors;
  /// JSON documents and other bytes: live rows, random state, data position, ...
  std::map<std::string, std::string> blobs;
};

/// Names a commit.
struct CommitInfo {
  /// Increases with every attempt to commit in this run. Numbers may be skipped.
  std::uint64_t sequence = 0;
  std::uint64_t step = 0;
  /// Digest of the manifest, which contains the digest of the previous commit: a hash chain.
  std::string digest;
  friend bool operator==(const CommitInfo&, const CommitInfo&) = default;
};

}  // namespace tidemill::storage
