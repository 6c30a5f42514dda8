// SPDX-License-Identifier: Apache-2.0
// One model on one device, which generates and trains.
#pragma once

#include <memory>
#include <string_view>

#include "base/result.hpp"
#include "engines/formats/model_files.hpp"
#include "engines/rollout_engine.hpp"
#include "engines/runtime/named_adapters.hpp"
#include "engines/runtime/runtime_options.hpp"
#include "engines/snapshot.hpp"
#include "engines/train_engine.hpp"

namespace tidemill::engines {

/// A model that generates and trains on one device.
///
/// The base weights of a snapshot are laid out once for both views. Rollout and training run the
/// same forward pass with the same operations, so equal weights give log-probabilities with equal
/// bits.
/// Threads: one call at a time over the runtime and its views. The runtime owns its workers.
class ModelRuntime {
public:
  ModelRuntime() = default;
  ModelRuntime(const ModelRuntime&) = delete;
  ModelRuntime& operator=(const ModelRuntime&) = delete;
  virtual ~ModelRuntime() = default;

  [[nodiscard]] virtual RolloutEngine& rollout() = 0;
  /// Returns the training view, or null if the runtime was opened without an optimizer.
  [[nodiscard]] virtual TrainEngine* train() = 0;
  /// Returns the adapters that requests may name.
  [[nodiscard]] virtual NamedAdapters& adapters() = 0;
  /// Returns the weights that both views start from, as version 0 of line 0.
  [[nodiscard]] virtual const Snapshot& initial() const = 0;
  /// Returns a one-line description: operations, threads, and the types of weights and cache.
  [[nodiscard]] virtual std::string_view description() const = 0;
};

/// Opens a runtime for a model.
/// Errors: `kInvalidArgument` (a bad option; tensors or an adapter that do not fit the model),
/// `kUnimplemented` (training an adapter with dropout), `kResourceExhausted` (a cache too small for
/// one page); for a model that is `unchecked`, those of `check_finite_weights`.
[[nodiscard]] Result<std::unique_ptr<ModelRuntime>> open_runtime(const ModelFiles& model,
                                                                 const RuntimeOptions& options);

}  // namespace tidemill::engines
