// SPDX-License-Identifier: Apache-2.0
// The published weights of a run, kept as long as somebody reads them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/ids.hpp"
#include "base/result.hpp"
#include "base/tensor.hpp"

namespace tidemill::storage {

/// One publication: immutable tensors named by version and digests. Full-parameter runs publish
/// `base`; adapter runs publish `adapter` over a base that all of them share.
struct PublishedWeights {
  PolicyVersion version;
  std::string base_digest;
  std::string adapter_digest;                // empty: no adapter
  std::shared_ptr<const TensorMap> base;     // null: readers hold the base with this digest
  std::shared_ptr<const TensorMap> adapter;  // null: no adapter
};

/// Bounds a `VersionStore`.
struct VersionStoreOptions {
  std::uint32_t max_versions = 8;  // at least 1
  std::uint64_t max_bytes = 0;     // of distinct tensor sets; 0: no limit
};

/// Names one reader's hold on one version. Never used again.
struct VersionLease {
  std::uint64_t value = 0;
  friend auto operator<=>(const VersionLease&, const VersionLease&) = default;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, PublishedWeights& x) {
  return f(x.version, x.base_digest, x.adapter_digest);  // tensors travel on the bulk plane
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, VersionLease& x) {
  return f(x.value);
}

/// Keeps the newest version of every line, and any older one while a reader's lease holds it.
///
/// What no reader holds and is not the newest of its line is given up at once. Tensor sets that
/// versions share are counted once.
/// Threads: one call at a time; the tensors handed out may be read anywhere.
class VersionStore {
public:
  struct Held {
    VersionLease lease;
    PublishedWeights weights;
  };

  /// Makes an empty store.
  /// Errors: `kInvalidArgument` if `max_versions` is 0.
  [[nodiscard]] static Result<VersionStore> create(const VersionStoreOptions& options);

  /// Keeps `weights` as the newest version of its line. Publishing the newest version again with
  /// equal digests changes nothing.
  /// Errors: `kVersionConflict` (older than the newest of its line, or equal with other digests),
  /// `kInvalidArgument` (no digest), `kResourceExhausted` (readers hold so much that the new one
  /// would pass a limit; names the oldest held version and its reader; nothing changes).
  [[nodiscard]] Status publish(PublishedWeights weights);

  /// Returns a version and holds it for `reader` until released.
  /// Errors: `kStaleVersion` (given up already), `kNotFound` (never published here).
  [[nodiscard]] Result<Held> acquire(const PolicyVersion& version, std::string_view reader);

  /// Ends a hold.
  /// Errors: `kNotFound` (no such hold; a second release says so too).
  [[nodiscard]] Status release(VersionLease lease);

  /// Ends all holds of a reader that is gone and returns how many there were.
  std::size_t drop_reader(std::string_view reader);

  /// Returns the newest version of a line, if one was published.
  [[nodiscard]] std::optional<PolicyVersion> newest(std::uint32_t line) const;
  /// Returns the oldest version of a line that is kept: held by a reader, or the newest.
  [[nodiscard]] std::optional<PolicyVersion> oldest_needed(std::uint32_t line) const;
  [[nodiscard]] std::size_t num_versions() const noexcept { return versions_.size(); }
  [[nodiscard]] std::uint64_t bytes_used() const noexcept { return bytes_used_; }

private:
  struct Entry {
    PublishedWeights weights;
    std::map<VersionLease, std::string> readers;
  };
  struct Tensors {
    std::uint64_t bytes = 0;
    std::uint32_t versions = 0;
  };
  using Versions = std::map<PolicyVersion, Entry>;

  explicit VersionStore(const VersionStoreOptions& options) : options_(options) {}
  [[nodiscard]] bool is_newest(Versions::const_iterator entry) const;
  [[nodiscard]] bool is_spare(Versions::const_iterator entry) const;
  [[nodiscard]] Status check_room(const PublishedWeights& weights) const;
  [[nodiscard]] std::string oldest_hold() const;
  void count(const std::shared_ptr<const TensorMap>& tensors);
  void discount(const std::shared_ptr<const TensorMap>& tensors);
  void give_up(Versions::iterator entry);

  VersionStoreOptions options_;
  Versions versions_;
  std::map<VersionLease, PolicyVersion> leases_;
  std::map<const TensorMap*, Tensors> tensors_;
  std::uint64_t bytes_used_ = 0;
  std::uint64_t last_lease_ = 0;
};

}  // namespace tidemill::storage
