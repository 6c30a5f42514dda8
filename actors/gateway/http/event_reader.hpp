// SPDX-License-Identifier: Apache-2.0
// Reads a stream of server-sent events, which arrives in parts that are cut anywhere.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.hpp"

namespace tidemill::actors {

/// The longest event that a reader accepts.
constexpr std::size_t kMaxEventBytes = std::size_t{16} << 20U;

/// Finds the data of the events in a stream.
/// Source: HTML Living Standard, section 9.2.6. Names and ids of events are ignored, because
/// OpenAI's API gives them no meaning, and so are times to reconnect.
class EventReader {
public:
  /// Adds a part and calls `on_data` with the data of each event that it ends.
  /// Errors: `kCorruptData` if an event is too long.
  [[nodiscard]] Status add(std::string_view part,
                           const std::function<void(const std::string& data)>& on_data);

private:
  void end_line(const std::function<void(const std::string& data)>& on_data);

  std::string line_;
  std::string data_;
  bool has_data_ = false;  // the event has a field "data", which may be empty
  bool after_cr_ = false;  // a line feed now belongs to the last line end
};

}  // namespace tidemill::actors
