// SPDX-License-Identifier: Apache-2.0
// Lays weights out for a device. Finds existing layouts by digest, so that rollout and training can
// share them.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/result.hpp"
#include "engines/snapshot.hpp"
#include "engines/transformer/adapter.hpp"
#include "engines/transformer/model_weights.hpp"

namespace tidemill::engines {

/// The weights that a forward pass computes with. `adapter` is null if there is none. Digests are
/// empty for weights that were never published.
struct LaidOutWeights {
  std::shared_ptr<const ModelWeights> base;
  std::shared_ptr<const Adapter> adapter;
  std::string base_digest;
  std::string adapter_digest;
};

/// Returns a name for the content of the base: its digest, or a fixed name if it has none. Only the
/// base that a runtime was opened with may lack a digest, so bases with equal names have equal
/// weights.
[[nodiscard]] std::string base_name(const LaidOutWeights& weights);
/// Returns a name for the content of the base and the adapter.
[[nodiscard]] std::string weights_name(const LaidOutWeights& weights);

/// Says whether the digests of a snapshot are verified.
enum class SnapshotTrust : std::uint8_t {
  kVerify,  // the snapshot came from another actor or process
  kOwn,     // this runtime made it; digests may be empty
};

/// Says whether the layout of a base keeps the tensors that it was made from.
enum class KeepBase : std::uint8_t {
  kIfNeeded,  // only if the runtime's own adapter needs them
  kAlways,    // because adapters loaded later may need them
};

/// Lays weights out for one device, and holds weak references to the layouts that have digests.
///
/// Threads: one call at a time.
class WeightCache {
public:
  /// `spec` describes the runtime's adapter, and is empty if there is none. `ops` must outlive the
  /// cache.
  WeightCache(ModelConfig config, AdapterSpec spec, DType compute, KeepBase keep_base, Ops& ops);

  /// Lays `snapshot` out for `use`. Verifies its digests first, unless `trust` is kOwn. Shares
  /// existing layouts of the base and the adapter that are still alive and fit `use`. A base is
  /// identified by its digest, and an adapter by its own digest and that of its base. A snapshot
  /// without base tensors requires an existing layout of its base.
  /// Errors: `kCorruptData` (a digest does not match), `kInvalidArgument` (base tensors are needed
  /// but missing, or the runtime was opened without an adapter), those of `ModelWeights::create`
  /// and `Adapter::create`.
  [[nodiscard]] Result<LaidOutWeights> lay_out(const Snapshot& snapshot, WeightUse use,
                                               SnapshotTrust trust = SnapshotTrust::kVerify);

  /// Starts to lay out the working weights of a job after an optimizer step, rounded to
  /// `published`. They must not change before the layout is done. Reuses the memory of `old` if the
  /// caller passes the only reference to it.
  [[nodiscard]] ModelWeights::Layout start_base_layout(const ParameterSet& parameters,
                                                       DType published, WeightUse use,
                                                       std::shared_ptr<const ModelWeights> old);
  /// Starts to lay out the tensors of an adapter over `base`, which must outlive the layout.
  /// Errors: those of `Adapter::start_layout`.
  [[nodiscard]] Result<Adapter::Layout> start_adapter_layout(TensorMap tensors,
                                                             const ModelWeights& base,
                                                             WeightUse use);
  /// Lays out the tensors of an adapter over `base`.
  /// Errors: those of `Adapter::create`.
  [[nodiscard]] Result<std::shared_ptr<const Adapter>> lay_out_adapter(const TensorMap& tensors,
                                                                       const ModelWeights& base,
                                                                       WeightUse use);

  /// Records the layouts in `weights`, made for `use`, under their digests. Ignores a layout
  /// without a digest, and one whose digest already has a layout that suits `use`.
  void remember(const LaidOutWeights& weights, WeightUse use);

  [[nodiscard]] const AdapterSpec& spec() const noexcept { return spec_; }

private:
  template <class T>
  struct Entry {
    std::weak_ptr<const T> weights;
    WeightUse use = WeightUse::kForward;
  };
  template <class T>
  using Entries = std::map<std::string, Entry<T>>;

  [[nodiscard]] Result<std::shared_ptr<const ModelWeights>> lay_out_base(const TensorMap& tensors,
                                                                         WeightUse use);

  ModelConfig config_;
  AdapterSpec spec_;
  DType compute_;
  bool keep_base_;
  Ops& ops_;
  Entries<ModelWeights> bases_;
  Entries<Adapter> adapters_;  // by the digests of adapter and base
};

}  // namespace tidemill::engines
