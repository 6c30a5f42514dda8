// SPDX-License-Identifier: Apache-2.0
#include "actors/recorder/metrics_events.hpp"

#include <algorithm>
#include <span>
#include <vector>

#include "base/files/file.hpp"
#include "base/json/json.hpp"
#include "storage/events/event_file.hpp"

namespace tidemill::actors {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{1} << 20U;
constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20U;

std::string record_of(std::string_view line, double wall_seconds) {
  storage::EventTime time{wall_seconds, 0};
  std::vector<storage::EventScalar> scalars;
  const Result<Json> parsed = parse_json(line);
  const Json::Object* object = parsed.ok() ? parsed.value().if_object() : nullptr;
  if (object != nullptr) {  // a line that is not an object becomes a record without scalars
    const Json* kind = parsed.value().find("kind");
    const std::string group =
        kind != nullptr && kind->if_string() != nullptr ? *kind->if_string() + '/' : "";
    for (const Json::Member& member : *object) {
      const std::optional<double> number = member.value.number();
      if (member.name == "step" && member.value.if_integer() != nullptr) {
        time.step = *member.value.if_integer();
      } else if (number.has_value()) {
        scalars.push_back({group + member.name, static_cast<float>(*number)});
      }
    }
  }
  return storage::event_record(time, scalars);
}

}  // namespace

std::string event_records(std::string_view lines, double wall_seconds) {
  std::string records;
  while (!lines.empty()) {
    const std::size_t end = std::min(lines.find('\n'), lines.size() - 1);
    records += record_of(lines.substr(0, end), wall_seconds);
    lines.remove_prefix(end + 1);
  }
  return records;
}

Status for_each_block(const std::filesystem::path& path, std::uint64_t bytes,
                      const std::function<Status(std::string_view lines)>& take) {
  TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile file, ReadableFile::open(path));
  std::string block;
  for (std::uint64_t offset = 0; offset < bytes;) {
    const std::size_t begun = block.size();
    block.resize(begun +
                 static_cast<std::size_t>(std::min<std::uint64_t>(kBlockBytes, bytes - offset)));
    const auto fresh = std::as_writable_bytes(std::span(block)).subspan(begun);
    TIDEMILL_RETURN_IF_ERROR(file.read_at(offset, fresh));
    offset += fresh.size();
    const std::size_t whole = block.rfind('\n') + 1;  // 0 if there is no newline
    TIDEMILL_RETURN_IF_ERROR(take(std::string_view(block).substr(0, whole)));
    block.erase(0, whole);
    if (block.size() > kMaxLineBytes) {
      return corrupt_data(path.string() + ": holds a line of more than 64 MiB");
    }
  }
  return {};
}

}  // namespace tidemill::actors
