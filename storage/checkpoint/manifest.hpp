// SPDX-License-Identifier: Apache-2.0
// Manifests: the small files that turn a set of objects into a commit.
//
// The file is called `commit-SEQUENCE-DIGEST.json`. DIGEST is the digest of its content, so damage
// to any byte of name or content is detected. The manifest lists each object with its size and
// digest. The file of an object is named by that digest, so equal objects of two commits are one
// file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "storage/checkpoint/checkpoint.hpp"

namespace tidemill::storage {

/// The format version of everything in `checkpoints/`. A store of a newer format is refused.
inline constexpr std::int64_t kCheckpointFormat = 1;

/// The format of an object's bytes.
enum class ObjectKind : std::uint8_t { kTensors, kBlob };

/// One named part of a checkpoint and the file that holds it.
struct ObjectRef {
  std::string name;
  ObjectKind kind = ObjectKind::kBlob;
  std::uint64_t size_bytes = 0;
  std::string digest;  // of the file's bytes

  /// Returns the file's name: "DIGEST.safetensors" or "DIGEST.blob".
  [[nodiscard]] std::string file_name() const;
};

/// The content of a manifest.
struct Manifest {
  std::string run_id;
  std::uint64_t sequence = 0;
  std::uint64_t step = 0;
  std::string previous;  // digest of the previous manifest; empty for the first
  std::vector<ObjectRef> objects;
};

/// The parts of a manifest's name.
struct ManifestName {
  std::uint64_t sequence = 0;
  std::string digest;
};

/// Returns the text of `manifest`. Equal manifests have equal texts.
[[nodiscard]] std::string render_manifest(const Manifest& manifest);
/// Returns the file name of a manifest with that sequence and digest.
[[nodiscard]] std::string manifest_file_name(const ManifestName& name);
/// Parses a file name. Returns nothing if `manifest_file_name` would not produce it.
[[nodiscard]] std::optional<ManifestName> parse_manifest_name(std::string_view file_name);

/// Parses the text of the manifest called `name`; `location` names the file in errors.
/// Errors: `kCorruptData` if the content does not match the name or is not a manifest;
/// `kInvalidArgument` if it has a newer format.
[[nodiscard]] Result<Manifest> parse_manifest(std::string_view text, const ManifestName& name,
                                              const std::string& location);

/// Returns whether `text` is 32 lowercase hexadecimal digits.
[[nodiscard]] bool is_digest(std::string_view text) noexcept;

}  // namespace tidemill::storage
