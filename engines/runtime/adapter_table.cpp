// SPDX-License-Identifier: Apache-2.0
#include "engines/runtime/adapter_table.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <span>
#include <utility>

#include "base/check.hpp"
#include "base/digest.hpp"
#include "base/text/quote.hpp"
#include "engines/formats/model_files.hpp"
#include "engines/peft/adapter_spec.hpp"

namespace tidemill::engines {
namespace {

// Returns a name for everything that the results of an adapter depend on. Adapters with equal
// tensors may still have different scales.
std::string content_name(const AdapterSpec& spec, const TensorMap& tensors) {
  std::string text;
  for (const AdaptedModule& module : spec) {
    for (const std::string& part :
         {module.path, std::to_string(std::bit_cast<std::uint32_t>(module.scale)), module.a,
          module.b, module.c, module.magnitude, module.input_scale, module.output_scale,
          module.weight, module.bias}) {
      text += part + "\n";
    }
  }
  return digest_tensors(tensors) + " " + digest_bytes(std::as_bytes(std::span(text)));
}

// Returns the version of an adapter with this content name. Its line is not 0, which is the line of
// the policy.
PolicyVersion version_of(const std::string& content) {
  constexpr std::size_t kDigits = 8;  // of 4 bits
  const std::string digest = digest_bytes(std::as_bytes(std::span(content)));
  PolicyVersion version;
  std::from_chars(digest.data(), digest.data() + std::min(kDigits, digest.size()), version.line,
                  16);
  version.line = std::max<std::uint32_t>(version.line, 1);
  return version;
}

bool is_older(const PolicyVersion& version, const PolicyVersion& than) {
  return version.line == than.line && version < than;
}

}  // namespace

void AdapterTable::set_base(std::shared_ptr<const ModelWeights> base, std::string base_name) {
  TIDEMILL_CHECK(base == base_ || !in_use()) << "adapters over another base are in use";
  base_ = std::move(base);
  base_name_ = std::move(base_name);
}

Result<std::shared_ptr<const Adapter>> AdapterTable::lay_out(const AdapterFiles& files) const {
  auto spec = adapter_spec(files.config, files.modules, config_);
  if (!spec.ok()) {
    return spec.status().with_context(files.location);
  }
  TIDEMILL_RETURN_IF_ERROR(
      check_tensors(adapter_shapes(spec.value()), files.tensors, files.location));
  TIDEMILL_RETURN_IF_ERROR(check_finite_weights(files.tensors, files.location));
  TIDEMILL_RETURN_IF_ERROR(
      ops_.scratch().reserve(scratch_bytes(spec.value(), rows_)).with_context(files.location));
  auto adapter =
      Adapter::create(config_, spec.value(), files.tensors, *base_, WeightUse::kForward, ops_);
  return adapter.ok() ? std::move(adapter) : adapter.status().with_context(files.location);
}

std::int64_t AdapterTable::used_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& weak : laid_out_) {
    const auto served = weak.lock();
    bytes += served != nullptr ? served->adapter->size_bytes() : 0;
  }
  return bytes;
}

Status AdapterTable::check_capacity(const Adapter& adapter) const {
  const std::int64_t used = used_bytes();
  if (adapter.size_bytes() > byte_limit_ - used) {
    return {Errc::kResourceExhausted, "needs " + std::to_string(adapter.size_bytes()) +
                                          " bytes, but " + std::to_string(used) + " of the " +
                                          std::to_string(byte_limit_) +
                                          " for named adapters are in use (adapter_bytes)"};
  }
  return {};
}

Status AdapterTable::load(NamedAdapter adapter) {
  if (adapter.name.empty()) {
    return invalid_argument("adapter has no name: the empty name denotes the policy");
  }
  const std::string location = "adapter " + quote(adapter.name);
  if (byte_limit_ <= 0) {
    return Status(Errc::kResourceExhausted,
                  location + ": this runtime has no memory for named adapters (adapter_bytes)");
  }
  const auto slot = slots_.find(adapter.name);
  if (slot != slots_.end() && adapter.version.has_value() &&
      is_older(*adapter.version, slot->second->served->version)) {
    return {Errc::kStaleVersion, location + ": version " + to_string(*adapter.version) +
                                     " is older than " + to_string(slot->second->served->version)};
  }
  auto laid_out = lay_out(adapter.files);
  if (!laid_out.ok()) {
    return laid_out.status().with_context(location);
  }
  TIDEMILL_RETURN_IF_ERROR(check_capacity(*laid_out.value()).with_context(location));
  const std::string content = content_name(laid_out.value()->spec(), adapter.files.tensors);
  const PolicyVersion version = adapter.version.value_or(version_of(content));
  ServedWeights weights{base_name_ + " + " + content, version.step};
  auto served = std::make_shared<const ServedAdapter>(
      ServedAdapter{std::move(laid_out).value(), version, adapter.created});
  std::erase_if(laid_out_, [](const auto& weak) { return weak.expired(); });
  laid_out_.push_back(served);
  if (slot != slots_.end()) {
    *slot->second = {std::move(weights), std::move(served)};
    ++num_removals_;
  } else {
    slots_.emplace(std::move(adapter.name), std::make_shared<AdapterSlot>(AdapterSlot{
                                                std::move(weights), std::move(served)}));
  }
  return {};
}

Status AdapterTable::unload(std::string_view name) {
  TIDEMILL_RETURN_IF_ERROR(find(name).status());
  slots_.erase(slots_.find(name));
  ++num_removals_;
  return {};
}

std::vector<LoadedAdapter> AdapterTable::loaded() const {
  std::vector<LoadedAdapter> loaded;
  for (const auto& [name, slot] : slots_) {
    loaded.push_back({name, slot->served->version, slot->served->adapter->size_bytes(),
                      static_cast<std::int64_t>(slot.use_count()) - 1, slot->served->created});
  }
  return loaded;
}

Result<std::shared_ptr<const AdapterSlot>> AdapterTable::find(std::string_view name) const {
  const auto slot = slots_.find(name);
  if (slot == slots_.end()) {
    return Status(Errc::kNotFound, "adapter " + quote(name) + " is not loaded");
  }
  return std::shared_ptr<const AdapterSlot>(slot->second);
}

void AdapterTable::append_weight_names(std::vector<std::string_view>& names) const {
  for (const auto& [name, slot] : slots_) {
    names.emplace_back(slot->weights.name);
  }
}

}  // namespace tidemill::engines
