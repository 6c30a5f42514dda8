// SPDX-License-Identifier: Apache-2.0
// Weights as they are published: immutable, named by version and digest.
#pragma once

#include <memory>
#include <string>

#include "base/ids.hpp"
#include "base/tensor.hpp"

namespace tidemill::engines {

/// An immutable set of weights. A full-parameter run publishes `base`; an adapter run publishes
/// `adapter` over a base that all engines already hold.
struct Snapshot {
  PolicyVersion version;
  /// xxh3-128 of the canonical tensors, 32 hex digits; see base/digest.hpp.
  std::string base_digest;
  /// Empty when there is no adapter.
  std::string adapter_digest;
  /// Tensors by Hugging Face name; null when the base is the one already loaded (equal digest).
  std::shared_ptr<const TensorMap> base;
  /// Tensors by PEFT name; null when there is no adapter.
  std::shared_ptr<const TensorMap> adapter;
};

}  // namespace tidemill::engines
