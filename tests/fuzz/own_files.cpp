// SPDX-License-Identifier: Apache-2.0
// Fuzzes files that the program writes itself but that may be damaged: a manifest, an event file,
// and the snapshot of a stream index in a checkpoint.
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

// Passes the correct digest, so that the text is parsed and not refused for its digest.
void read_manifest(std::string_view text) {
  const auto manifest = storage::parse_manifest(text, {1, digest_of(text)}, "FILE");
  if (!manifest.ok()) {
    require_refusal(manifest.status(), "FILE: ");
    return;
  }
  const std::string written = storage::render_manifest(manifest.value());
  const auto again = storage::parse_manifest(written, {1, digest_of(written)}, "AGAIN");
  require_ok(again.status(), "a written manifest can be read");
  require(storage::render_manifest(again.value()) == written, "a manifest survives a round trip");
}

void read_events(std::string_view bytes) {
  constexpr std::uint64_t kMaxRecords = 1000;
  static MemoryFile file;
  file.fill(bytes);
  const auto found = storage::find_event_records(file.path(), kMaxRecords);
  require_ok(found.status(), "a damaged event file ends at the damage");
  require(found.value().bytes <= bytes.size(), "records are inside the file");
  file.fill(bytes.substr(0, found.value().bytes));
  const auto again = storage::find_event_records(file.path(), kMaxRecords);
  require(again.ok() && again.value().bytes == found.value().bytes &&
              again.value().num_records == found.value().num_records,
          "complete records stay complete");
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
          "a snapshot has exactly one serialized form");
}

}  // namespace

void own_files(std::string_view input) {
  read_manifest(input);
  read_events(input);
  read_snapshot(input);
}

}  // namespace tidemill::fuzz
