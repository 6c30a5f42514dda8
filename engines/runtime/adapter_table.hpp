// SPDX-License-Identifier: Apache-2.0
// Named adapters laid out over the served base, and the requests that still use them.
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
  std::int64_t created = 0;  // as in `NamedAdapter`
};

/// The adapter behind a name. Requests that named it hold the slot, even after `unload`.
struct AdapterSlot {
  ServedWeights weights;  // the weights for requests that start now
  std::shared_ptr<const ServedAdapter> served;
};

/// The adapters loaded by name.
///
/// Threads: one call at a time.
class AdapterTable final : public NamedAdapters {
public:
  /// `config` and `ops` must outlive the table. The layouts take at most `byte_limit` bytes. `rows`
  /// go through a layer together.
  AdapterTable(const ModelConfig& config, Ops& ops, std::int64_t byte_limit, const BypassRows& rows)
      : config_(config), ops_(ops), byte_limit_(byte_limit), rows_(rows) {}

  [[nodiscard]] Status load(NamedAdapter adapter) override;
  [[nodiscard]] Status unload(std::string_view name) override;
  [[nodiscard]] std::vector<LoadedAdapter> loaded() const override;

  /// Sets the base that adapters loaded from now on are laid out over, and the name of its content.
  /// Requires that `in_use()` is false unless the base is the same.
  void set_base(std::shared_ptr<const ModelWeights> base, std::string base_name);
  [[nodiscard]] const std::shared_ptr<const ModelWeights>& base() const noexcept { return base_; }
  /// Returns whether an adapter is loaded, or a request still uses an unloaded one.
  [[nodiscard]] bool in_use() const { return used_bytes() > 0; }

  /// Returns the slot of `name`. Errors: `kNotFound`.
  [[nodiscard]] Result<std::shared_ptr<const AdapterSlot>> find(std::string_view name) const;
  /// Appends the names of the weights of all loaded adapters.
  void append_weight_names(std::vector<std::string_view>& names) const;
  /// Returns how many adapters have been replaced or unloaded.
  [[nodiscard]] std::uint64_t num_removals() const noexcept { return num_removals_; }

private:
  using Slots = std::map<std::string, std::shared_ptr<AdapterSlot>, std::less<>>;

  [[nodiscard]] Result<std::shared_ptr<const Adapter>> lay_out(const AdapterFiles& files) const;
  [[nodiscard]] Status check_capacity(const Adapter& adapter) const;
  [[nodiscard]] std::int64_t used_bytes() const;

  const ModelConfig& config_;
  Ops& ops_;
  std::int64_t byte_limit_;
  BypassRows rows_;
  std::shared_ptr<const ModelWeights> base_;
  std::string base_name_;
  Slots slots_;
  std::vector<std::weak_ptr<const ServedAdapter>> laid_out_;  // null once unused
  std::uint64_t num_removals_ = 0;
};

}  // namespace tidemill::engines
