// SPDX-License-Identifier: Apache-2.0
// The published weights of a run, kept for as long as a reader needs them.
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

/// One publication: immutable tensors that version and digests identify. Full-parameter runs
/// publish `base`. Adapter runs publish `adapter`, over a base that all their versions share.
struct PublishedWeights {
  PolicyVersion version;
  std::string base_digest;
  std::string adapter_digest;                // empty: no adapter
  std::shared_ptr<const TensorMap> base;     // null: readers already have the base of this digest
  std::shared_ptr<const TensorMap> adapter;  // null: no adapter
};

/// The limits of a `VersionStore`.
struct VersionStoreOptions {
  std::uint32_t max_versions = 8;  // at least 1
  std::uint64_t max_bytes = 0;     // of distinct tensor sets; 0: no limit
};

/// Names one reader's hold on one version. Never reused.
struct VersionLease {
  std::uint64_t value = 0;
  friend auto operator<=>(const VersionLease&, const VersionLease&) = default;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, PublishedWeights& x) {
  return f(x.version, x.base_digest, x.adapter_digest);  // the tensors have to travel separately
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, VersionLease& x) {
  return f(x.value);
}

/// Keeps the newest version of every line, and older versions while a reader holds them.
///
/// A version is discarded as soon as no reader holds it and it is not the newest of its line.
/// Tensor sets that several versions share are counted once.
/// Threads: one call at a time. Returned tensors may be read on any thread.
class VersionStore {
public:
  struct Held {
    VersionLease lease;
    PublishedWeights weights;
  };

  /// Makes an empty store.
  /// Errors: `kInvalidArgument` if `max_versions` is 0.
  [[nodiscard]] static Result<VersionStore> create(const VersionStoreOptions& options);

  /// Stores `weights` as the newest version of its line. Publishing the newest version again with
  /// equal digests changes nothing.
  /// Errors: `kVersionConflict` (older than the newest of its line, or the same version with other
  /// digests); `kInvalidArgument` (no digest); `kResourceExhausted` (readers hold so much that the
  /// new version would exceed a limit; names the oldest held version and its reader). After an
  /// error nothing has changed.
  [[nodiscard]] Status publish(PublishedWeights weights);

  /// Returns a version and holds it for `reader` until it is released.
  /// Errors: `kStaleVersion` (already discarded), `kNotFound` (never published here).
  [[nodiscard]] Result<Held> acquire(const PolicyVersion& version, std::string_view reader);

  /// Ends a hold.
  /// Errors: `kNotFound` (no such hold, or already released).
  [[nodiscard]] Status release(VersionLease lease);

  /// Ends all holds of a reader that is gone and returns how many there were.
  std::size_t drop_reader(std::string_view reader);

  /// Returns the newest version of a line, if one was published.
  [[nodiscard]] std::optional<PolicyVersion> newest(std::uint32_t line) const;
  /// Returns the oldest version of a line that is kept: held by a reader, or the newest itself.
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
  [[nodiscard]] bool is_unused(Versions::const_iterator entry) const;
  [[nodiscard]] Status check_limits(const PublishedWeights& weights) const;
  [[nodiscard]] std::string describe_oldest_hold() const;
  void add_reference(const std::shared_ptr<const TensorMap>& tensors);
  void remove_reference(const std::shared_ptr<const TensorMap>& tensors);
  void discard(Versions::iterator entry);

  VersionStoreOptions options_;
  Versions versions_;
  std::map<VersionLease, PolicyVersion> leases_;
  std::map<const TensorMap*, Tensors> tensors_;
  std::uint64_t bytes_used_ = 0;
  std::uint64_t last_lease_ = 0;
};

}  // namespace tidemill::storage
