// SPDX-License-Identifier: Apache-2.0
// Weights laid out for the device, found by digest: what two views both need exists once.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/result.hpp"
#include "engines/snapshot.hpp"
#include "engines/transformer/adapter.hpp"
#include "engines/transformer/model_weights.hpp"

namespace tidemill::engines {

/// What a forward pass computes with. `adapter` is null when there is none; digests are empty for
/// weights that were never published.
struct LaidOutWeights {
  std::shared_ptr<const ModelWeights> base;
  std::shared_ptr<const Adapter> adapter;
  std::string base_digest;
  std::string adapter_digest;
};

/// Names weights by their content: what was computed with weights of one name is right for all.
/// Only the base that a runtime was opened with can be without a digest, and there is one.
[[nodiscard]] std::string base_name(const LaidOutWeights& weights);
/// The same of base and adapter.
[[nodiscard]] std::string weights_name(const LaidOutWeights& weights);

/// Whether a snapshot's digests are checked.
enum class SnapshotTrust : std::uint8_t {
  kVerify,  // it came from elsewhere
  kOwn,     // this process has just made it; an empty digest is then allowed
};

/// Whether bases keep their tensors.
enum class KeepBase : std::uint8_t {
  kIfNeeded,  // by the runtime's own adapter
  kAlways,    // others may come that need them
};

/// Lays weights out for one device and remembers, without keeping alive, what it laid out.
///
/// Threads: one call at a time.
class WeightShelf {
public:
  /// `spec` is that of the runtime's adapter; empty: the runtime has none. `ops` must outlive it.
  WeightShelf(ModelConfig config, AdapterSpec spec, DType compute, KeepBase keep_base, Ops& ops);

  /// Verifies the digests of `snapshot`, unless it is trusted, and lays it out for `use`. Parts
  /// that somebody still holds are shared; an empty base stands for one that somebody holds.
  /// Errors: `kCorruptData` (digest), `kInvalidArgument` (names or shapes, a base that nobody
  /// holds, an adapter for a runtime without one).
  [[nodiscard]] Result<LaidOutWeights> lay_out(const Snapshot& snapshot, WeightUse use,
                                               SnapshotTrust trust = SnapshotTrust::kVerify);

  /// Lays out tensors that have no digest yet.
  /// Errors: those of `ModelWeights::create` and `Adapter::create`.
  [[nodiscard]] Result<std::shared_ptr<const ModelWeights>> lay_out_base(const TensorMap& tensors,
                                                                         WeightUse use);
  /// The same of tensors that will change, in place of `old`: in its memory, unless somebody else
  /// holds it.
  [[nodiscard]] Result<std::shared_ptr<const ModelWeights>> lay_out_base_again(
      const TensorMap& tensors, WeightUse use, std::shared_ptr<const ModelWeights> old);
  [[nodiscard]] Result<std::shared_ptr<const Adapter>> lay_out_adapter(const TensorMap& tensors,
                                                                       const ModelWeights& base,
                                                                       WeightUse use);

  /// Remembers weights under their digests, laid out for `use`.
  void remember(const LaidOutWeights& weights, WeightUse use);

  [[nodiscard]] const AdapterSpec& spec() const noexcept { return spec_; }

private:
  template <class T>
  struct Entry {
    std::weak_ptr<const T> weights;
    WeightUse use = WeightUse::kForward;
  };
  template <class T>
  using Shelf = std::map<std::string, Entry<T>>;

  ModelConfig config_;
  AdapterSpec spec_;
  DType compute_;
  bool keep_base_;
  Ops& ops_;
  Shelf<ModelWeights> bases_;
  Shelf<Adapter> adapters_;  // by the digests of adapter and base
};

}  // namespace tidemill::engines
