// SPDX-License-Identifier: Apache-2.0
// Published weights: immutable, named by version and digest.
#pragma once

#include <string>

#include "base/ids.hpp"
#include "base/tensor/tensor.hpp"

namespace tidemill::engines {

/// An immutable set of weights. A run that trains all parameters publishes `base`. A run that
/// trains an adapter publishes `adapter`, over a base that all engines already hold.
struct Snapshot {
  PolicyVersion version;
  /// The xxh3-128 digest of the canonical tensors as 32 hex digits; see base/digest.hpp.
  std::string base_digest;
  /// Empty if there is no adapter.
  std::string adapter_digest;
  /// Tensors by Hugging Face name. Empty if the base is already loaded (equal digest).
  TensorMap base;
  /// Tensors by PEFT name. Empty if there is no adapter.
  TensorMap adapter;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Snapshot& x) {
  return f(x.version, x.base_digest, x.adapter_digest, x.base, x.adapter);
}

}  // namespace tidemill::engines
