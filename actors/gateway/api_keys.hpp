// SPDX-License-Identifier: Apache-2.0
// The keys of a server's clients. Only their hashes are stored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "engines/priority.hpp"

namespace tidemill::actors {

/// What a key permits.
enum class KeyScope : std::uint8_t {
  kInfer,  // generate, and read what the server serves
  kTune,   // fine-tune
  kAdmin,  // load and unload adapters
};

/// Returns "infer", "tune" or "admin".
[[nodiscard]] std::string_view scope_name(KeyScope scope) noexcept;
/// Returns the scope of this name. Errors: `kInvalidArgument` listing the names.
[[nodiscard]] Result<KeyScope> parse_scope(std::string_view name);

/// Returns "low", "normal" or "high". Keys have no other priority.
[[nodiscard]] std::string_view priority_name(engines::Priority priority) noexcept;
/// Returns the priority of this name. Errors: `kInvalidArgument` listing the names.
[[nodiscard]] Result<engines::Priority> parse_priority(std::string_view name);

/// A client's key, without the key itself.
struct ApiKey {
  std::string name;
  std::vector<KeyScope> scopes;  // ascending
  std::string hash;              // BLAKE2b-256 of the key, in hexadecimal digits
  /// Keys of one tenant share what the tenant gets. All keys without a tenant belong to one, whose
  /// name is empty.
  std::string tenant = {};
  engines::Priority priority = engines::Priority::kNormal;  // of the key's requests

  [[nodiscard]] bool permits(KeyScope scope) const noexcept;
};

/// Returns 64 random bits that cannot be predicted.
[[nodiscard]] std::uint64_t unpredictable_bits();

/// Returns a new key: "tm-" and 256 random bits, so that it cannot be guessed from its hash.
[[nodiscard]] std::string make_api_key();
/// Returns the hash of a key, as `ApiKey` has it.
[[nodiscard]] std::string hash_api_key(std::string_view key);

/// The keys that a server accepts.
///
/// Threads: safe to read concurrently.
class ApiKeys {
public:
  /// The maximum number of keys. Each request is compared with all of them.
  static constexpr std::size_t kMaxKeys = 1000;

  ApiKeys() = default;
  /// Parses the text of a file of keys, `{"keys": [{"name", "scopes", "blake2b"}, ...]}`. A key may
  /// have "tenant" and "priority".
  /// Errors: `kInvalidArgument` or `kCorruptData`, beginning with `location`.
  [[nodiscard]] static Result<ApiKeys> parse(std::string_view text, const std::string& location);
  /// Returns the text of a file that `parse` reads.
  [[nodiscard]] std::string to_text() const;

  /// Adds a key. Errors: `kInvalidArgument` (a name that exists or is not a valid name, a tenant
  /// that is not a valid name, no scope, more than `kMaxKeys`).
  [[nodiscard]] Status add(ApiKey key);
  /// Removes the key of this name. Errors: `kNotFound`.
  [[nodiscard]] Status remove(std::string_view name);
  /// Returns the entry of `key`, or null. Compares with every entry in constant time, so the time
  /// does not reveal a match.
  [[nodiscard]] const ApiKey* find(std::string_view key) const;
  [[nodiscard]] const std::vector<ApiKey>& all() const noexcept { return keys_; }
  /// Returns whether the keys belong to several tenants.
  [[nodiscard]] bool have_tenants() const noexcept;

private:
  std::vector<ApiKey> keys_;
};

}  // namespace tidemill::actors
