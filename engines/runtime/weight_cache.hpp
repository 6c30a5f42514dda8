// SPDX-License-Identifier: Apache-2.0
// Lays weights out for the device and finds them by digest, so that both views share one layout.
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

/// Returns a name for the content of the base. Results computed with one base hold for every base
/// with the same name. Only the base that a runtime was opened with may lack a digest. It gets a
/// fixed name.
[[nodiscard]] std::string base_name(const LaidOutWeights& weights);
/// Returns a name for the content of base and adapter.
[[nodiscard]] std::string weights_name(const LaidOutWeights& weights);

/// Whether the digests of a snapshot are verified.
enum class SnapshotTrust : std::uint8_t {
  kVerify,  // the snapshot came from another actor or process
  kOwn,     // this runtime made it; digests may be empty
};

/// Whether laid-out bases keep their tensors.
enum class KeepBase : std::uint8_t {
  kIfNeeded,  // if the runtime's own adapter needs them
  kAlways,    // adapters loaded later may need them
};

/// Lays weights out for one device, and holds weak references to what it laid out.
///
/// Threads: one call at a time.
class WeightCache {
public:
  /// `spec` describes the runtime's adapter, and is empty if there is none. `ops` must outlive the
  /// cache.
  WeightCache(ModelConfig config, AdapterSpec spec, DType compute, KeepBase keep_base, Ops& ops);

  /// Verifies the digests of `snapshot`, unless `trust` is kOwn, and lays it out for `use`. Shares
  /// the layout of a part with the same digest that is still in use. If `snapshot` has no base
  /// tensors, such a layout of the base must exist.
  /// Errors: `kCorruptData` (digest), `kInvalidArgument` (names or shapes, no base tensors and no
  /// layout of the base, an adapter for a runtime without one).
  [[nodiscard]] Result<LaidOutWeights> lay_out(const Snapshot& snapshot, WeightUse use,
                                               SnapshotTrust trust = SnapshotTrust::kVerify);

  /// Lays out tensors that have no digest yet.
  /// Errors: those of `ModelWeights::create`.
  [[nodiscard]] Result<std::shared_ptr<const ModelWeights>> lay_out_base(const TensorMap& tensors,
                                                                         WeightUse use);
  /// Lays out changed tensors, which the caller may change again. Reuses the memory of `old` if the
  /// caller holds the only reference to it.
  /// Errors: those of `ModelWeights::create`.
  [[nodiscard]] Result<std::shared_ptr<const ModelWeights>> update_base_layout(
      const TensorMap& tensors, WeightUse use, std::shared_ptr<const ModelWeights> old);
  /// Lays out the tensors of an adapter over `base`.
  /// Errors: those of `Adapter::create`.
  [[nodiscard]] Result<std::shared_ptr<const Adapter>> lay_out_adapter(const TensorMap& tensors,
                                                                       const ModelWeights& base,
                                                                       WeightUse use);

  /// Records `weights`, laid out for `use`, under their digests.
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

  ModelConfig config_;
  AdapterSpec spec_;
  DType compute_;
  bool keep_base_;
  Ops& ops_;
  Entries<ModelWeights> bases_;
  Entries<Adapter> adapters_;  // by the digests of adapter and base
};

}  // namespace tidemill::engines
