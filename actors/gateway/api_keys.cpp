// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/api_keys.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <sodium.h>
#include <utility>

#include "base/check.hpp"
#include "base/json/fields.hpp"
#include "base/text/quote.hpp"

namespace tidemill::actors {
namespace {

constexpr std::array kScopes{KeyScope::kInfer, KeyScope::kTune, KeyScope::kAdmin};
constexpr std::array kPriorities{engines::Priority::kLow, engines::Priority::kNormal,
                                 engines::Priority::kHigh};
constexpr std::size_t kHashBytes = 32;
constexpr std::size_t kMaxNameBytes = 128;
constexpr std::string_view kNameRule =
    "must be 1 to 128 letters, digits, dots, dashes, underscores or @";

void init_sodium() {
  // May be called any number of times, by any thread. Fails only without a source of randomness.
  TIDEMILL_CHECK(sodium_init() >= 0) << "libsodium cannot be initialized";
}

std::string to_hex(const unsigned char* bytes, std::size_t size) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < size; ++i) {
    text += kDigits[bytes[i] / 16];
    text += kDigits[bytes[i] % 16];
  }
  return text;
}

bool is_hash(std::string_view text) {
  return text.size() == 2 * kHashBytes && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == '-' || c == '@';
         });
}

Result<ApiKey> parse_key(const Json& json, const std::string& location) {
  JsonFields fields(json, location);
  ApiKey key;
  key.name = fields.string("name").value_or("");
  key.hash = fields.string("blake2b").value_or("");
  for (const std::string& name : fields.strings("scopes").value_or(std::vector<std::string>())) {
    const auto scope = parse_scope(name);
    if (!scope.ok()) {
      fields.refuse("scopes", scope.status().message());
    } else {
      key.scopes.push_back(scope.value());
    }
  }
  key.tenant = fields.string("tenant").value_or("");
  if (const auto name = fields.string("priority")) {
    const auto priority = parse_priority(*name);
    if (!priority.ok()) {
      fields.refuse("priority", priority.status().message());
    } else {
      key.priority = priority.value();
    }
  }
  if (!is_hash(key.hash)) {
    fields.refuse("blake2b", "must be 64 hexadecimal digits");
  }
  TIDEMILL_RETURN_IF_ERROR(fields.status());
  return key;
}

}  // namespace

std::string_view scope_name(KeyScope scope) noexcept {
  switch (scope) {
    case KeyScope::kInfer: return "infer";
    case KeyScope::kTune: return "tune";
    case KeyScope::kAdmin: return "admin";
  }
  return "";
}

Result<KeyScope> parse_scope(std::string_view name) {
  for (const KeyScope scope : kScopes) {
    if (scope_name(scope) == name) {
      return scope;
    }
  }
  return invalid_argument("must be infer, tune or admin, not " + quote(name));
}

std::string_view priority_name(engines::Priority priority) noexcept {
  switch (priority) {
    case engines::Priority::kBackground: break;
    case engines::Priority::kLow: return "low";
    case engines::Priority::kNormal: return "normal";
    case engines::Priority::kHigh: return "high";
  }
  return "";
}

Result<engines::Priority> parse_priority(std::string_view name) {
  for (const engines::Priority priority : kPriorities) {
    if (priority_name(priority) == name) {
      return priority;
    }
  }
  return invalid_argument("must be low, normal or high, not " + quote(name));
}

bool ApiKey::permits(KeyScope scope) const noexcept {
  return std::find(scopes.begin(), scopes.end(), scope) != scopes.end();
}

std::uint64_t unpredictable_bits() {
  init_sodium();
  std::uint64_t bits = 0;
  randombytes_buf(&bits, sizeof(bits));
  return bits;
}

std::string make_api_key() {
  init_sodium();
  std::array<unsigned char, kHashBytes> bytes{};
  randombytes_buf(bytes.data(), bytes.size());
  return "tm-" + to_hex(bytes.data(), bytes.size());
}

std::string hash_api_key(std::string_view key) {
  init_sodium();
  std::array<unsigned char, kHashBytes> hash{};
  crypto_generichash(hash.data(), hash.size(), reinterpret_cast<const unsigned char*>(key.data()),
                     key.size(), nullptr, 0);
  return to_hex(hash.data(), hash.size());
}

Result<ApiKeys> ApiKeys::parse(std::string_view text, const std::string& location) {
  const auto json = parse_json(text, {.max_depth = 8});
  if (!json.ok()) {
    return json.status().with_context(location);
  }
  const Json* list = json.value().find("keys");
  if (list == nullptr || list->if_array() == nullptr) {
    return invalid_argument(location + ": needs a list keys");
  }
  ApiKeys keys;
  for (std::size_t i = 0; i < list->if_array()->size(); ++i) {
    const std::string where = location + ": keys[" + std::to_string(i) + "]";
    TIDEMILL_ASSIGN_OR_RETURN(ApiKey key, parse_key((*list->if_array())[i], where));
    if (Status added = keys.add(std::move(key)); !added.ok()) {
      return added.with_context(where);
    }
  }
  return keys;
}

std::string ApiKeys::to_text() const {
  Json::Array all;
  for (const ApiKey& key : keys_) {
    Json::Array scopes;
    for (const KeyScope scope : key.scopes) {
      scopes.emplace_back(std::string(scope_name(scope)));
    }
    Json::Object entry{{"name", key.name}, {"scopes", std::move(scopes)}, {"blake2b", key.hash}};
    if (!key.tenant.empty()) {
      entry.push_back({"tenant", key.tenant});
    }
    if (key.priority != engines::Priority::kNormal) {
      entry.push_back({"priority", std::string(priority_name(key.priority))});
    }
    all.emplace_back(std::move(entry));
  }
  return Json(Json::Object{{"keys", std::move(all)}}).to_text();
}

Status ApiKeys::add(ApiKey key) {
  if (!is_name(key.name)) {
    return invalid_argument("name: " + std::string(kNameRule));
  }
  if (!key.tenant.empty() && !is_name(key.tenant)) {
    return invalid_argument("tenant: " + std::string(kNameRule));
  }
  if (priority_name(key.priority).empty()) {
    return invalid_argument("priority: must be low, normal or high");
  }
  if (key.scopes.empty()) {
    return invalid_argument("scopes: needs at least one of infer, tune and admin");
  }
  if (keys_.size() >= kMaxKeys) {
    return invalid_argument("at most " + std::to_string(kMaxKeys) + " keys");
  }
  for (const ApiKey& other : keys_) {
    if (other.name == key.name) {
      return invalid_argument("name: there is a key " + quote(key.name) + " already");
    }
  }
  const std::set<KeyScope> scopes(key.scopes.begin(), key.scopes.end());
  key.scopes.assign(scopes.begin(), scopes.end());
  keys_.push_back(std::move(key));
  return {};
}

Status ApiKeys::remove(std::string_view name) {
  const auto found =
      std::find_if(keys_.begin(), keys_.end(), [&](const ApiKey& key) { return key.name == name; });
  if (found == keys_.end()) {
    return {Errc::kNotFound, "there is no key " + quote(name)};
  }
  keys_.erase(found);
  return {};
}

bool ApiKeys::have_tenants() const noexcept {
  return std::any_of(keys_.begin(), keys_.end(),
                     [&](const ApiKey& key) { return key.tenant != keys_.front().tenant; });
}

const ApiKey* ApiKeys::find(std::string_view key) const {
  const std::string hash = hash_api_key(key);
  const ApiKey* found = nullptr;
  for (const ApiKey& one : keys_) {
    found = sodium_memcmp(one.hash.data(), hash.data(), hash.size()) == 0 ? &one : found;
  }
  return found;
}

}  // namespace tidemill::actors
