// SPDX-License-Identifier: Apache-2.0
// Limits what the requests of all tenants hold together, and leaves room for tenants that hold
// little.
//
// With several tenants, an amount fits if it and what its tenant already holds are together at most
// what is free beforehand. If amounts are small, a tenant that is alone therefore fills half of the
// limit, two that want all of it fill a third each, and n of them leave an (n + 1)th part free. A
// large amount can exceed these parts: a tenant that holds nothing may take all that is free at
// once, and other tenants are then refused until it gives some back.
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

  /// Returns whether `tenant` may hold `amount` more. An amount of 0 always fits.
  [[nodiscard]] bool fits(const std::string& tenant, std::size_t amount) const {
    return amount <= left(tenant);
  }
  /// Returns the most that `tenant` may hold in addition.
  [[nodiscard]] std::size_t left(const std::string& tenant) const {
    const std::size_t free = limit_ - total_;
    const std::size_t held = tenancy_ == Tenancy::kOne ? 0 : held_by(tenant);
    return free - (held < free ? held : free);
  }
  /// Returns the whole limit or, with several tenants, half of it: what one tenant can fill in
  /// small amounts while no other holds anything. A single large `take` may exceed it.
  [[nodiscard]] std::size_t max_share() const noexcept {
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
  /// Returns the amounts held, by tenant. Tenants that hold nothing are absent.
  [[nodiscard]] const std::map<std::string, std::size_t>& held() const noexcept { return held_; }

private:
  std::size_t limit_ = 0;
  Tenancy tenancy_ = Tenancy::kOne;
  std::size_t total_ = 0;
  std::map<std::string, std::size_t> held_;  // no zeros
};

/// An amount of one tenant that changes, such as a body that arrives. Each change is checked as if
/// the whole amount were taken at once.
///
/// Threads: those of its limit.
class HeldAmount {
public:
  HeldAmount() = default;  // stays 0
  HeldAmount(FairLimit& limit, std::string tenant) : limit_(&limit), tenant_(std::move(tenant)) {}

  /// Changes the amount to `size`. If that does not fit, changes nothing and returns false. An
  /// amount that does not grow always fits.
  [[nodiscard]] bool resize(std::size_t size);
  /// Changes the amount to 0.
  void give_back();
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

private:
  FairLimit* limit_ = nullptr;  // borrowed
  std::string tenant_;
  std::size_t size_ = 0;
};

}  // namespace tidemill::actors
