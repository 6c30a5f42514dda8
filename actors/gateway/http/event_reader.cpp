// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/http/event_reader.hpp"

namespace tidemill::actors {

void EventReader::end_line(const std::function<void(const std::string& data)>& on_data) {
  if (line_.empty()) {
    if (has_data_) {
      on_data(data_);
    }
    data_.clear();
    has_data_ = false;
    return;
  }
  const std::string_view line = line_;
  const std::size_t colon = line.find(':');
  if (line.substr(0, colon) == "data") {
    std::string_view value = colon == std::string_view::npos ? "" : line.substr(colon + 1);
    if (value.starts_with(' ')) {
      value.remove_prefix(1);
    }
    data_ += has_data_ ? "\n" : "";
    data_ += value;
    has_data_ = true;
  }
  line_.clear();
}

Status EventReader::add(std::string_view part,
                        const std::function<void(const std::string& data)>& on_data) {
  for (const char c : part) {
    const bool rest_of_line_end = c == '\n' && after_cr_;
    after_cr_ = c == '\r';
    if (rest_of_line_end) {
      continue;
    }
    if (c == '\n' || c == '\r') {
      end_line(on_data);
    } else if (line_.size() + data_.size() < kMaxEventBytes) {
      line_ += c;
    } else {
      return corrupt_data("an event of the stream is longer than " +
                          std::to_string(kMaxEventBytes) + " bytes");
    }
  }
  return {};
}

}  // namespace tidemill::actors
