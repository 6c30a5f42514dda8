// SPDX-License-Identifier: Apache-2.0
// Files of ours that may be damaged: the text of a manifest, the records of an event file, and what
// a checkpoint keeps of a stream.
#include <cstring>
#include <span>
#include <vector>

#include "base/archive.hpp"
#include "base/digest.hpp"
#include "storage/checkpoint/manifest.hpp"
#include "storage/events/event_file.hpp"
#include "storage/stream/index_snapshot.hpp"
#include "tests/fuzz/target.hpp"

namespace tidemill::fuzz {
namespace {

std::string digest_of(std::string_view text) {
  return digest_bytes(std::as_bytes(std::span(text)));
}

// The name carries the digest, so that only what the text says is in doubt.
void read_manifest(std::string_view text) {
  const auto manifest = storage::parse_manifest(text, {1, digest_of(text)}, "FILE");
  if (!manifest.ok()) {
    require_refusal(manifest.status(), "FILE: ");
    return;
  }
  const std::string written = storage::render_manifest(manifest.value());
  const auto again = storage::parse_manifest(written, {1, digest_of(written)}, "AGAIN");
  require_ok(again.status(), "what was written can be read");
  require(storage::render_manifest(again.value()) == written, "a manifest survives writing");
}

void read_events(std::string_view bytes) {
  constexpr std::uint64_t kMostRecords = 1000;
  static MemoryFile file;
  file.fill(bytes);
  const auto found = storage::find_event_records(file.path(), kMostRecords);
  require_ok(found.status(), "damage in an event file ends it");
  require(found.value().bytes <= bytes.size(), "records lie in the file");
  file.fill(bytes.substr(0, found.value().bytes));
  const auto again = storage::find_event_records(file.path(), kMostRecords);
  require(again.ok() && again.value().bytes == found.value().bytes &&
              again.value().num_records == found.value().num_records,
          "whole records stay whole");
}

void read_snapshot(std::string_view bytes) {
  storage::IndexSnapshot snapshot;
  ArchiveReader reader(std::as_bytes(std::span(bytes)));
  reader(snapshot);
  if (const Status status = reader.finish(); !status.ok()) {
    require_refusal(status, "");
    return;
  }
  ArchiveWriter writer;
  writer(snapshot);
  const std::vector<std::byte> written = writer.take();
  require(written.size() == bytes.size() &&
              std::memcmp(written.data(), bytes.data(), bytes.size()) == 0,
          "a snapshot has one spelling");
}

}  // namespace

void own_files(std::string_view input) {
  read_manifest(input);
  read_events(input);
  read_snapshot(input);
}

}  // namespace tidemill::fuzz
