// SPDX-License-Identifier: Apache-2.0
#include "storage/checkpoint/manifest.hpp"

#include <algorithm>
#include <charconv>
#include <set>
#include <span>

#include "base/digest.hpp"
#include "base/files/file.hpp"
#include "base/json/fields.hpp"
#include "base/json/json.hpp"

namespace tidemill::storage {
namespace {

constexpr std::string_view kPrefix = "commit-";
constexpr std::string_view kSuffix = ".json";
constexpr std::size_t kSequenceDigits = 12;
constexpr std::size_t kDigestDigits = 32;
constexpr std::size_t kMaxObjects = 100'000;

std::int64_t to_integer(std::uint64_t value) {
  return static_cast<std::int64_t>(value);
}

Result<ObjectRef> parse_object(const Json& value, const std::string& location, std::size_t index) {
  JsonFields fields(value, location, "objects[" + std::to_string(index) + "].");
  ObjectRef object;
  object.name = fields.string("name").value_or("");
  object.digest = fields.string("digest").value_or("");
  object.size_bytes = static_cast<std::uint64_t>(fields.required_integer("size_bytes", {}));
  const std::string kind = fields.string("kind").value_or("");
  object.kind = kind == "tensors" ? ObjectKind::kTensors : ObjectKind::kBlob;
  if (kind != "tensors" && kind != "blob") {
    fields.refuse("kind", "must be tensors or blob");
  }
  if (!check_name(object.name).ok()) {
    fields.refuse("name", "must be a name");
  }
  if (!is_digest(object.digest)) {
    fields.refuse("digest", "must be 32 hexadecimal digits");
  }
  TIDEMILL_RETURN_IF_ERROR(fields.status());
  return object;
}

Result<Manifest> parse_fields(const Json& json, const std::string& location) {
  JsonFields fields(json, location);
  Manifest manifest;
  manifest.run_id = fields.string("run").value_or("");
  manifest.sequence = static_cast<std::uint64_t>(fields.required_integer("sequence", {}));
  manifest.step = static_cast<std::uint64_t>(fields.required_integer("step", {}));
  manifest.previous = fields.string("previous").value_or("");
  if (!manifest.previous.empty() && !is_digest(manifest.previous)) {
    fields.refuse("previous", "must be 32 hexadecimal digits or empty");
  }
  const Json* list = fields.find("objects");
  const Json::Array* objects = list != nullptr ? list->if_array() : nullptr;
  if (objects == nullptr || objects->size() > kMaxObjects) {
    fields.refuse("objects", "must be a list of at most 100000 objects");
    return fields.status();
  }
  TIDEMILL_RETURN_IF_ERROR(fields.status());
  std::set<std::string> names;
  for (std::size_t i = 0; i < objects->size(); ++i) {
    TIDEMILL_ASSIGN_OR_RETURN(ObjectRef object, parse_object((*objects)[i], location, i));
    if (!names.insert(object.name).second) {
      return invalid_argument(location + ": objects: " + object.name + " occurs twice");
    }
    manifest.objects.push_back(std::move(object));
  }
  return manifest;
}

}  // namespace

std::string ObjectRef::file_name() const {
  return digest + (kind == ObjectKind::kTensors ? ".safetensors" : ".blob");
}

std::string render_manifest(const Manifest& manifest) {
  Json::Array objects;
  for (const ObjectRef& object : manifest.objects) {
    objects.push_back(Json::Object{
        {"name", object.name},
        {"kind", object.kind == ObjectKind::kTensors ? "tensors" : "blob"},
        {"size_bytes", to_integer(object.size_bytes)},
        {"digest", object.digest},
    });
  }
  return Json(Json::Object{
                  {"format", kCheckpointFormat},
                  {"run", manifest.run_id},
                  {"sequence", to_integer(manifest.sequence)},
                  {"step", to_integer(manifest.step)},
                  {"previous", manifest.previous},
                  {"objects", std::move(objects)},
              })
      .to_text();
}

std::string manifest_file_name(const ManifestName& name) {
  std::string digits = std::to_string(name.sequence);
  digits.insert(0, kSequenceDigits - std::min(kSequenceDigits, digits.size()), '0');
  std::string file_name(kPrefix);
  file_name += digits;
  file_name += '-';
  file_name += name.digest;
  file_name += kSuffix;
  return file_name;
}

std::optional<ManifestName> parse_manifest_name(std::string_view file_name) {
  if (!file_name.starts_with(kPrefix) || !file_name.ends_with(kSuffix)) {
    return std::nullopt;
  }
  const std::string_view middle =
      file_name.substr(kPrefix.size(), file_name.size() - kPrefix.size() - kSuffix.size());
  const std::size_t dash = middle.find('-');
  if (dash == std::string_view::npos || dash < kSequenceDigits ||
      !is_digest(middle.substr(dash + 1))) {
    return std::nullopt;
  }
  ManifestName name;
  const auto [end, error] = std::from_chars(middle.data(), middle.data() + dash, name.sequence);
  name.digest = middle.substr(dash + 1);
  if (error != std::errc{} || manifest_file_name(name) != file_name) {
    return std::nullopt;
  }
  return name;
}

Result<Manifest> parse_manifest(std::string_view text, const ManifestName& name,
                                const std::string& location) {
  if (digest_bytes(std::as_bytes(std::span(text))) != name.digest) {
    return corrupt_data(location + ": damaged: its content does not match the digest in its name");
  }
  // From here on the bytes are those that were written, so any fault was made when writing.
  auto json = parse_json(text, {.max_values = 10 * kMaxObjects});
  if (!json.ok()) {
    return corrupt_data(location + ": " + json.status().message());
  }
  JsonFields fields(json.value(), location);
  const std::int64_t format = fields.required_integer("format", {.min = 1});
  if (fields.status().ok() && format > kCheckpointFormat) {
    return invalid_argument(location + ": made by a newer version of tidemill (format " +
                            std::to_string(format) + "; this one reads up to " +
                            std::to_string(kCheckpointFormat) + ")");
  }
  auto manifest = parse_fields(json.value(), location);
  if (!fields.status().ok() || !manifest.ok()) {
    return corrupt_data((fields.status().ok() ? manifest.status() : fields.status()).message());
  }
  if (manifest.value().sequence != name.sequence) {
    return corrupt_data(location + ": damaged: it is commit " +
                        std::to_string(manifest.value().sequence));
  }
  return manifest;
}

bool is_digest(std::string_view text) noexcept {
  return text.size() == kDigestDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace tidemill::storage
