// SPDX-License-Identifier: Apache-2.0
#include "storage/dataset/array_rows.hpp"

#include <utility>

namespace tidemill::storage {
namespace {

bool is_json_space(char byte) {
  return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n';
}

}  // namespace

Status ArrayRows::take(std::string_view bytes) {
  for (const char byte : bytes) {
    if (state_ == State::kElement) {
      TIDEMILL_RETURN_IF_ERROR(take_inside(byte));
    } else if (!is_json_space(byte)) {
      TIDEMILL_RETURN_IF_ERROR(take_outside(byte));
    }
    ++offset_;
    line_ += byte == '\n' ? 1 : 0;
  }
  return {};
}

Status ArrayRows::finish() {
  return state_ == State::kEnd ? Status() : invalid_argument("the JSON array has no end");
}

// Takes a byte that is not white space and not part of an element.
Status ArrayRows::take_outside(char byte) {
  switch (state_) {
    case State::kStart:
      state_ = State::kFirst;
      return byte == '[' ? Status() : invalid_argument("not a JSON array");
    case State::kFirst:
      if (byte == ']') {
        state_ = State::kEnd;
        return {};
      }
      break;
    case State::kNext:
    case State::kElement: break;
    case State::kEnd: return invalid_argument("text after the end of the JSON array");
  }
  if (byte == ',' || byte == ']') {
    return invalid_argument("a comma of the JSON array has no row on one side");
  }
  state_ = State::kElement;
  element_ = {{}, offset_, 0, line_};
  depth_ = 0;
  in_string_ = false;
  escaped_ = false;
  text_.clear();
  return take_inside(byte);
}

// Takes a byte of an element, of the white space after it, or the comma or bracket that ends it.
Status ArrayRows::take_inside(char byte) {
  if (in_string_) {
    in_string_ = byte != '"' || escaped_;
    escaped_ = byte == '\\' && !escaped_;
  } else if (depth_ == 0 && (byte == ',' || byte == ']')) {
    TIDEMILL_RETURN_IF_ERROR(end_element());
    state_ = byte == ',' ? State::kNext : State::kEnd;
    return {};
  } else if (byte == '"') {
    in_string_ = true;
  } else if (byte == '{' || byte == '[') {
    ++depth_;
  } else if ((byte == '}' || byte == ']') && depth_ > 0) {
    --depth_;
  }
  keep(byte);
  return {};
}

void ArrayRows::keep(char byte) {
  if (text_.size() < max_bytes_) {
    text_ += byte;
  }
  if (!is_json_space(byte)) {
    element_.size_bytes = offset_ - element_.offset + 1;
  }
}

Status ArrayRows::end_element() {
  if (element_.size_bytes <= max_bytes_) {
    const std::string_view text = text_;
    element_.text = text.substr(0, element_.size_bytes);
  }
  return on_row_(element_);
}

}  // namespace tidemill::storage
