// SPDX-License-Identifier: Apache-2.0
#include "launcher/runs/run_state.hpp"

#include "base/json/fields.hpp"
#include "base/json/json.hpp"

namespace tidemill::launcher {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 16U;

}  // namespace

Status write_run_state(FileSystem& files, const std::filesystem::path& directory,
                       const RunStateNote& note) {
  const Json document(Json::Object{{"state", note.state},
                                   {"steps", static_cast<std::int64_t>(note.steps)},
                                   {"reason", note.reason}});
  return write_file(files, directory / kRunStateFile, document.to_line());
}

Result<std::optional<RunStateNote>> read_run_state(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kRunStateFile;
  auto text = read_text_file(path, kMaxBytes);
  if (text.status().code() == Errc::kNotFound) {
    return std::optional<RunStateNote>();
  }
  TIDEMILL_RETURN_IF_ERROR(text.status());
  const auto parsed = parse_json(text.value());
  if (!parsed.ok()) {
    return corrupt_data(path.string() + ": " + parsed.status().message());
  }
  JsonFields fields(parsed.value(), path.string());
  RunStateNote note;
  note.state = fields.string("state").value_or("");
  note.steps = static_cast<std::uint64_t>(fields.required_integer("steps", {}));
  note.reason = fields.string("reason").value_or("");
  const bool known = note.state == "running" || note.state == "finished" ||
                     note.state == "stopped" || note.state == "failed";
  if (!fields.status().ok() || !known) {
    return corrupt_data(fields.status().ok() ? path.string() + ": state: not a known state"
                                             : fields.status().message());
  }
  return std::optional(std::move(note));
}

}  // namespace tidemill::launcher
