// SPDX-License-Identifier: Apache-2.0
// Limits what the requests of all tenants hold together, and leaves room for tenants that hold
// little.
//
// With several tenants, a tenant may hold at most as much as is free. A tenant that is alone
// therefore fills half of the room, two that want all fill a third each, and n of them leave an
// (n + 1)th part free. A tenant that holds nothing is refused only if its request is larger than
// that part.
//
// Source: Choudhury and Hahne 1998, "Dynamic queue length thresholds for shared-memory packet
// switches", with alpha = 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace tidemill::actors {

/// Whether the requests of a gateway belong to one tenant or to several.
enum class Tenancy : std::uint8_t { kOne, kSeveral };

/// A limit on an amount that requests hold; see the top of this file.
///
/// Threads: one call at a time.
class FairLimit {
public:
  /// Permits nothing, until it is assigned to.
  FairLimit() = default;
  FairLimit(std::size_t limit, Tenancy tenancy) : limit_(limit), tenancy_(tenancy) {}

  /// Returns whether `tenant` may hold `amount` more. Nothing more always fits.
  [[nodiscard]] bool fits(const std::string& tenant, std::size_t amount) const {
    return amount <= left(tenant);
  }
  /// Returns the most that `tenant` may hold in addition.
  [[nodiscard]] std::size_t left(const std::string& tenant) const {
    const std::size_t free = limit_ - total_;
    const std::size_t held = tenancy_ == Tenancy::kOne ? 0 : held_by(tenant);
    return free - (held < free ? held : free);
  }
  /// Returns the part of the limit that a tenant fills if no other holds anything.
  [[nodiscard]] std::size_t largest() const noexcept {
    return limit_ / (tenancy_ == Tenancy::kOne ? 1 : 2);
  }
  /// Adds to what `tenant` holds. Requires `fits`.
  void take(const std::string& tenant, std::size_t amount);
  /// Ends a `take`, or a part of it.
  void give_back(const std::string& tenant, std::size_t amount);

  [[nodiscard]] std::size_t held_by(const std::string& tenant) const {
    const auto found = held_.find(tenant);
    return found != held_.end() ? found->second : 0;
  }
  [[nodiscard]] std::size_t total() const noexcept { return total_; }
  /// Returns what each tenant holds that holds anything.
  [[nodiscard]] const std::map<std::string, std::size_t>& held() const noexcept { return held_; }

private:
  std::size_t limit_ = 0;
  Tenancy tenancy_ = Tenancy::kOne;
  std::size_t total_ = 0;
  std::map<std::string, std::size_t> held_;  // no zeros
};

/// An amount of one tenant that changes, such as a body that arrives. It must fit as a whole.
///
/// Threads: those of its limit.
class HeldAmount {
public:
  HeldAmount() = default;  // stays 0
  HeldAmount(FairLimit& limit, std::string tenant) : limit_(&limit), tenant_(std::move(tenant)) {}

  /// Changes the amount to `size`. Returns false, and changes nothing, if that does not fit. An
  /// amount that does not grow always fits.
  [[nodiscard]] bool resize(std::size_t size);
  /// Ends the amount.
  void give_back();
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

private:
  FairLimit* limit_ = nullptr;  // borrowed
  std::string tenant_;
  std::size_t size_ = 0;
};

}  // namespace tidemill::actors
