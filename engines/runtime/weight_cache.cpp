// SPDX-License-Identifier: Apache-2.0
#include "engines/runtime/weight_cache.hpp"

#include <utility>

#include "base/digest.hpp"

namespace tidemill::engines {
namespace {

// Returns the weights of `digest` if they still exist and are laid out for `use`, otherwise null.
template <class Entries>
auto find_live(const Entries& entries, const std::string& digest, WeightUse use) {
  const auto found = entries.find(digest);
  const bool usable =
      found != entries.end() && (found->second.use == use || use == WeightUse::kForward);
  return usable ? found->second.weights.lock() : nullptr;
}

// The key has the digest of the base, because the layout of an adapter with magnitudes depends on
// the base.
std::string adapter_key(const LaidOutWeights& weights) {
  return weights.adapter_digest + " " + weights.base_digest;
}

template <class Entries>
void erase_expired(Entries& entries) {
  std::erase_if(entries, [](const auto& entry) { return entry.second.weights.expired(); });
}

Status check_digest(const Snapshot& snapshot, const std::string& part, const TensorMap& tensors,
                    const std::string& digest) {
  if (digest_tensors(tensors) != digest) {
    return corrupt_data("snapshot " + to_string(snapshot.version) + ": digest of the " + part +
                        " does not match");
  }
  return {};
}

}  // namespace

std::string base_name(const LaidOutWeights& weights) {
  return weights.base_digest.empty() ? "as opened" : weights.base_digest;
}

std::string weights_name(const LaidOutWeights& weights) {
  return base_name(weights) + " " + weights.adapter_digest;
}

WeightCache::WeightCache(ModelConfig config, AdapterSpec spec, DType compute, KeepBase keep_base,
                         Ops& ops)
    : config_(std::move(config)),
      spec_(std::move(spec)),
      compute_(compute),
      keep_base_(keep_base == KeepBase::kAlways || needs_base_tensors(spec_)),
      ops_(ops) {}

Result<LaidOutWeights> WeightCache::lay_out(const Snapshot& snapshot, WeightUse use,
                                            SnapshotTrust trust) {
  const std::string location = "snapshot " + to_string(snapshot.version);
  const bool verify = trust == SnapshotTrust::kVerify;
  if (verify && !snapshot.base.empty()) {
    TIDEMILL_RETURN_IF_ERROR(check_digest(snapshot, "base", snapshot.base, snapshot.base_digest));
  }
  if (!snapshot.adapter.empty() || !snapshot.adapter_digest.empty()) {
    if (verify) {
      TIDEMILL_RETURN_IF_ERROR(
          check_digest(snapshot, "adapter", snapshot.adapter, snapshot.adapter_digest));
    }
    if (spec_.empty()) {
      return invalid_argument(location + " has an adapter, but the runtime was opened without one");
    }
  }
  LaidOutWeights weights;
  weights.base_digest = snapshot.base_digest;
  weights.adapter_digest = snapshot.adapter_digest;
  weights.base = find_live(bases_, snapshot.base_digest, use);
  if (weights.base == nullptr) {
    if (snapshot.base.empty()) {
      return invalid_argument(location + " has no base tensors, and base " + snapshot.base_digest +
                              " is not loaded");
    }
    auto base = lay_out_base(snapshot.base, use);
    if (!base.ok()) {
      return base.status().with_context(location);
    }
    weights.base = std::move(base).value();
  }
  if (!snapshot.adapter.empty()) {
    weights.adapter = find_live(adapters_, adapter_key(weights), use);
    if (weights.adapter == nullptr) {
      auto adapter = lay_out_adapter(snapshot.adapter, *weights.base, use);
      if (!adapter.ok()) {
        return adapter.status().with_context(location);
      }
      weights.adapter = std::move(adapter).value();
    }
  }
  remember(weights, use);
  return weights;
}

Result<std::shared_ptr<const ModelWeights>> WeightCache::lay_out_base(const TensorMap& tensors,
                                                                      WeightUse use) {
  return ModelWeights::create(config_, tensors,
                              {.compute = compute_, .use = use, .keep_tensors = keep_base_}, ops_);
}

ModelWeights::Layout WeightCache::start_base_layout(const ParameterSet& parameters, DType published,
                                                    WeightUse use,
                                                    std::shared_ptr<const ModelWeights> old) {
  return ModelWeights::start_layout(config_, parameters, published, {compute_, use, keep_base_},
                                    ops_, std::move(old));
}

Result<Adapter::Layout> WeightCache::start_adapter_layout(TensorMap tensors,
                                                          const ModelWeights& base, WeightUse use) {
  return Adapter::start_layout(config_, spec_, std::move(tensors), base, use, ops_);
}

Result<std::shared_ptr<const Adapter>> WeightCache::lay_out_adapter(const TensorMap& tensors,
                                                                    const ModelWeights& base,
                                                                    WeightUse use) {
  return Adapter::create(config_, spec_, tensors, base, use, ops_);
}

void WeightCache::remember(const LaidOutWeights& weights, WeightUse use) {
  erase_expired(bases_);
  erase_expired(adapters_);
  // Never replaces weights laid out for both directions by weights laid out for forward only.
  if (!weights.base_digest.empty() && find_live(bases_, weights.base_digest, use) == nullptr) {
    bases_[weights.base_digest] = {weights.base, use};
  }
  if (weights.adapter != nullptr && !weights.adapter_digest.empty() &&
      find_live(adapters_, adapter_key(weights), use) == nullptr) {
    adapters_[adapter_key(weights)] = {weights.adapter, use};
  }
}

}  // namespace tidemill::engines
