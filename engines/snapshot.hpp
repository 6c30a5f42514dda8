// SPDX-License-Identifier: Apache-2.0
// Weights as they are published: immutable, named by version and digest.
#pragma once

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
  /// Tensors by Hugging Face name; empty when the base is the one already loaded (equal digest).
  TensorMap base;
  /// Tensors by PEFT name; empty when there is no adapter.
  TensorMap adapter;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Snapshot& x) {
  return f(x.version, x.base_digest, x.adapter_digest, x.base, x.adapter);
}

}  // namespace tidemill::engines
