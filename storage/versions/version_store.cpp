// SPDX-License-Identifier: Apache-2.0
// Keeps published weights while readers hold them.
#include "storage/versions/version_store.hpp"

#include <limits>
#include <set>
#include <utility>
#include <vector>

namespace tidemill::storage {
namespace {

std::uint64_t tensor_bytes(const TensorMap& tensors) {
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    bytes += tensor.data.size_bytes();
  }
  return bytes;
}

PolicyVersion first_of_line(std::uint32_t line) {
  return {.line = line};
}

PolicyVersion last_of_line(std::uint32_t line) {
  return {.line = line,
          .incarnation = std::numeric_limits<std::uint32_t>::max(),
          .step = std::numeric_limits<std::uint64_t>::max()};
}

}  // namespace

Result<VersionStore> VersionStore::create(const VersionStoreOptions& options) {
  if (options.max_versions == 0) {
    return invalid_argument("version store: max_versions is 0, must be at least 1");
  }
  return VersionStore(options);
}

std::optional<PolicyVersion> VersionStore::newest(std::uint32_t line) const {
  auto after = versions_.upper_bound(last_of_line(line));
  if (after == versions_.begin() || (--after)->first.line != line) {
    return std::nullopt;
  }
  return after->first;
}

std::optional<PolicyVersion> VersionStore::oldest_needed(std::uint32_t line) const {
  const auto entry = versions_.lower_bound(first_of_line(line));
  if (entry == versions_.end() || entry->first.line != line) {
    return std::nullopt;
  }
  return entry->first;
}

bool VersionStore::is_newest(Versions::const_iterator entry) const {
  const auto next = std::next(entry);
  return next == versions_.end() || next->first.line != entry->first.line;
}

bool VersionStore::is_unused(Versions::const_iterator entry) const {
  return entry->second.readers.empty() && !is_newest(entry);
}

std::string VersionStore::describe_oldest_hold() const {
  for (const auto& [version, entry] : versions_) {
    if (!entry.readers.empty()) {
      return "; the oldest held version is " + to_string(version) + ", by " +
             entry.readers.begin()->second;
    }
  }
  return "; no version is held by a reader";
}

Status VersionStore::check_limits(const PublishedWeights& weights) const {
  // Publishing discards the version that is now the newest of its line, unless a reader holds it.
  std::size_t versions = versions_.size() + 1;
  std::map<const TensorMap*, std::uint32_t> released;
  if (const auto superseded = newest(weights.version.line)) {
    const Entry& entry = versions_.at(*superseded);
    if (entry.readers.empty()) {
      --versions;
      ++released[entry.weights.base.get()];
      ++released[entry.weights.adapter.get()];
    }
  }
  const std::set<const TensorMap*> added{weights.base.get(), weights.adapter.get()};
  std::uint64_t bytes = bytes_used_;
  for (const TensorMap* tensors : added) {
    if (tensors != nullptr && tensors_.find(tensors) == tensors_.end()) {
      bytes += tensor_bytes(*tensors);
    }
  }
  for (const auto& [tensors, references] : released) {
    const auto kept = tensors_.find(tensors);
    if (kept != tensors_.end() && kept->second.versions == references && !added.contains(tensors)) {
      bytes -= kept->second.bytes;
    }
  }
  if (versions > options_.max_versions) {
    return {Errc::kResourceExhausted,
            "version store: " + to_string(weights.version) + " would exceed max_versions " +
                std::to_string(options_.max_versions) + describe_oldest_hold()};
  }
  if (options_.max_bytes != 0 && bytes > options_.max_bytes) {
    return {Errc::kResourceExhausted, "version store: " + to_string(weights.version) + " needs " +
                                          std::to_string(bytes) + " bytes, above max_bytes " +
                                          std::to_string(options_.max_bytes) +
                                          describe_oldest_hold()};
  }
  return {};
}

void VersionStore::add_reference(const std::shared_ptr<const TensorMap>& tensors) {
  if (tensors == nullptr) {
    return;
  }
  Tensors& entry = tensors_[tensors.get()];
  if (entry.versions++ == 0) {
    entry.bytes = tensor_bytes(*tensors);
    bytes_used_ += entry.bytes;
  }
}

void VersionStore::remove_reference(const std::shared_ptr<const TensorMap>& tensors) {
  if (tensors == nullptr) {
    return;
  }
  const auto entry = tensors_.find(tensors.get());
  if (--entry->second.versions == 0) {
    bytes_used_ -= entry->second.bytes;
    tensors_.erase(entry);
  }
}

void VersionStore::discard(Versions::iterator entry) {
  remove_reference(entry->second.weights.base);
  remove_reference(entry->second.weights.adapter);
  versions_.erase(entry);
}

Status VersionStore::publish(PublishedWeights weights) {
  const PolicyVersion version = weights.version;
  if (weights.base_digest.empty()) {
    return invalid_argument("version store: " + to_string(version) + " has no base digest");
  }
  const auto superseded = newest(version.line);
  if (superseded && version == *superseded) {
    const PublishedWeights& kept = versions_.at(version).weights;
    if (kept.base_digest == weights.base_digest && kept.adapter_digest == weights.adapter_digest) {
      return {};
    }
    return {Errc::kVersionConflict,
            "version store: " + to_string(version) + " was published with other digests"};
  }
  if (superseded && version < *superseded) {
    return {Errc::kVersionConflict, "version store: " + to_string(version) + " is older than " +
                                        to_string(*superseded) + ", the newest of its line"};
  }
  TIDEMILL_RETURN_IF_ERROR(check_limits(weights));
  add_reference(weights.base);
  add_reference(weights.adapter);
  versions_.emplace(version, Entry{std::move(weights), {}});
  if (superseded) {
    const auto entry = versions_.find(*superseded);
    if (is_unused(entry)) {
      discard(entry);
    }
  }
  return {};
}

Result<VersionStore::Held> VersionStore::acquire(const PolicyVersion& version,
                                                 std::string_view reader) {
  const auto entry = versions_.find(version);
  if (entry == versions_.end()) {
    const auto latest = newest(version.line);
    if (latest && version < *latest) {
      return Status(Errc::kStaleVersion, "version store: " + to_string(version) +
                                             " was discarded; the newest is " + to_string(*latest));
    }
    return Status(Errc::kNotFound, "version store: " + to_string(version) + " was never published");
  }
  const VersionLease lease{++last_lease_};
  entry->second.readers.emplace(lease, reader);
  leases_.emplace(lease, version);
  return Held{lease, entry->second.weights};
}

Status VersionStore::release(VersionLease lease) {
  const auto held = leases_.find(lease);
  if (held == leases_.end()) {
    return {Errc::kNotFound, "version store: no hold " + std::to_string(lease.value)};
  }
  const auto entry = versions_.find(held->second);
  entry->second.readers.erase(lease);
  leases_.erase(held);
  if (is_unused(entry)) {
    discard(entry);
  }
  return {};
}

std::size_t VersionStore::drop_reader(std::string_view reader) {
  std::vector<VersionLease> leases;
  for (const auto& [version, entry] : versions_) {
    for (const auto& [lease, name] : entry.readers) {
      if (name == reader) {
        leases.push_back(lease);
      }
    }
  }
  for (const VersionLease lease : leases) {
    const Status released = release(lease);
    TIDEMILL_CHECK(released.ok()) << released.to_string();
  }
  return leases.size();
}

}  // namespace tidemill::storage
