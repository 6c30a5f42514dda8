// SPDX-License-Identifier: Apache-2.0
// The small file that makes a set of objects a commit.
//
// `commit-SEQUENCE-DIGEST.json`: the name carries the digest of the content, so that damage of any
// byte of either shows. Each object is listed with size and digest, and is a file named by the
// digest: objects of two commits that are equal are one file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "storage/checkpoint/checkpoint.hpp"

namespace tidemill::storage {

/// The version of everything below `checkpoints/`. A store of a newer one is refused.
inline constexpr std::int64_t kCheckpointFormat = 1;

/// How the bytes of an object are read.
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
  std::string previous;  // digest of the manifest before; empty for the first
  std::vector<ObjectRef> objects;
};

/// What the name of a manifest says.
struct ManifestName {
  std::uint64_t sequence = 0;
  std::string digest;
};

/// Returns the one text of `manifest`.
[[nodiscard]] std::string render_manifest(const Manifest& manifest);
/// Returns the name under which a manifest with that sequence and digest lies.
[[nodiscard]] std::string manifest_file_name(const ManifestName& name);
/// Reads a name; nothing when it is not one that `manifest_file_name` makes.
[[nodiscard]] std::optional<ManifestName> parse_manifest_name(std::string_view file_name);

/// Reads the text of a manifest that lies under `name`; `place` names the file in errors.
/// Errors: `kCorruptData` when the content is not what the name says, or is no manifest;
/// `kInvalidArgument` when it is of a newer format.
[[nodiscard]] Result<Manifest> parse_manifest(std::string_view text, const ManifestName& name,
                                              const std::string& place);

/// Returns whether `text` is 32 lower-case hexadecimal digits.
[[nodiscard]] bool is_digest(std::string_view text) noexcept;

}  // namespace tidemill::storage
