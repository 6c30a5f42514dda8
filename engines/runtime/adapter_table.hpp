// SPDX-License-Identifier: Apache-2.0
// Named adapters laid out over the base that is served, and who still needs which.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engines/formats/model_config.hpp"
#include "engines/ops/ops.hpp"
#include "engines/runtime/named_adapters.hpp"
#include "engines/scheduler/iteration_planner.hpp"
#include "engines/transformer/adapter.hpp"
#include "engines/transformer/model_weights.hpp"

namespace tidemill::engines {

/// One version of a named adapter. Immutable.
struct ServedAdapter {
  std::shared_ptr<const Adapter> adapter;
  PolicyVersion version;
};

/// What a name stands for; requests that named it hold it, loaded or not.
struct AdapterSlot {
  ServedWeights weights;  // what those that start now are computed with
  std::shared_ptr<const ServedAdapter> served;
};

/// Threads: one call at a time.
class AdapterTable final : public NamedAdapters {
public:
  /// `ops` must outlive it. At most `byte_limit` bytes are laid out at a time.
  AdapterTable(const ModelConfig& config, Ops& ops, std::int64_t byte_limit)
      : config_(config), ops_(ops), byte_limit_(byte_limit) {}

  [[nodiscard]] Status load(NamedAdapter adapter) override;
  [[nodiscard]] Status unload(std::string_view name) override;
  [[nodiscard]] std::vector<LoadedAdapter> loaded() const override;

  /// Lays out what comes over `base`, named `base_name` by content. Requires that nothing is
  /// `in_use`, unless it is the same base.
  void set_base(std::shared_ptr<const ModelWeights> base, std::string base_name);
  [[nodiscard]] const std::shared_ptr<const ModelWeights>& base() const noexcept { return base_; }
  /// Returns whether an adapter is loaded, or a request still holds one that was.
  [[nodiscard]] bool in_use() const { return used_bytes() > 0; }

  /// Returns what `name` stands for. Errors: `kNotFound`.
  [[nodiscard]] Result<std::shared_ptr<const AdapterSlot>> find(std::string_view name) const;
  /// Appends what the weights of all that is loaded are named by.
  void append_weight_names(std::vector<std::string_view>& names) const;
  /// Returns a number that grows when something is replaced or unloaded.
  [[nodiscard]] std::uint64_t num_withdrawn() const noexcept { return num_withdrawn_; }

private:
  using Slots = std::map<std::string, std::shared_ptr<AdapterSlot>, std::less<>>;

  [[nodiscard]] Result<std::shared_ptr<const Adapter>> lay_out(const AdapterFiles& files) const;
  [[nodiscard]] Status check_room(const Adapter& adapter) const;
  [[nodiscard]] std::int64_t used_bytes() const;

  const ModelConfig& config_;
  Ops& ops_;
  std::int64_t byte_limit_;
  std::shared_ptr<const ModelWeights> base_;
  std::string base_name_;
  Slots slots_;
  std::vector<std::weak_ptr<const ServedAdapter>> laid_out_;  // alive as long as somebody needs it
  std::uint64_t num_withdrawn_ = 0;
};

}  // namespace tidemill::engines
