// SPDX-License-Identifier: Apache-2.0
// Parses JSON text into values. Keeps the order of keys, and checks depth and numbers.
#include <limits>
#include <nlohmann/json.hpp>

#include "base/text/quote.hpp"
#include "engines/chat/value.hpp"

namespace tidemill::engines::chat {
namespace {

constexpr std::size_t kMaxDepth = 64;

// nlohmann's SAX interface prescribes the method names. Every handler returns whether to continue.
class Builder {
public:
  [[nodiscard]] Status take_failure() { return std::move(failure_); }
  [[nodiscard]] Value take() { return std::move(root_); }

  // NOLINTBEGIN(readability-identifier-naming, readability-named-parameter)
  bool null() { return put({}); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(std::int64_t value) { return put(value); }
  bool number_unsigned(std::uint64_t value) {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return refuse("integer " + std::to_string(value) + " does not fit in 64 bits");
    }
    return put(static_cast<std::int64_t>(value));
  }
  bool number_float(double value, const std::string& text) {
    if (text.find_first_of(".eE") == std::string::npos) {
      return refuse("integer " + text.substr(0, 40) + " does not fit in 64 bits");
    }
    return put(value);
  }
  bool string(std::string& text) { return put(Value(std::move(text))); }
  bool binary(nlohmann::json::binary_t&) { return refuse("binary data"); }
  bool start_object(std::size_t) { return open(true); }
  bool start_array(std::size_t) { return open(false); }
  bool key(std::string& name) {
    Open& object = open_.back();
    if (object.dict.member(name) != nullptr) {
      return refuse("key " + quote(name) + " appears twice in one object");
    }
    object.key = std::move(name);
    return true;
  }
  bool end_object() {
    Value value(std::move(open_.back().dict));
    open_.pop_back();
    return put(std::move(value));
  }
  bool end_array() {
    Value value = Value::sequence(std::move(open_.back().items));
    open_.pop_back();
    return put(std::move(value));
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    return refuse("not JSON at byte " + std::to_string(position));
  }
  // NOLINTEND(readability-identifier-naming, readability-named-parameter)

private:
  struct Open {
    bool is_object = false;
    Dict dict;
    std::string key;
    List items;
  };

  bool refuse(std::string reason) {
    failure_ = corrupt_data(std::move(reason));
    return false;
  }

  bool open(bool is_object) {
    if (open_.size() == kMaxDepth) {
      return refuse("nested deeper than " + std::to_string(kMaxDepth));
    }
    open_.emplace_back();
    open_.back().is_object = is_object;
    return true;
  }

  bool put(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_object) {
      open_.back().dict.insert(Value(std::move(open_.back().key)), std::move(value));
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }

  std::vector<Open> open_;
  Value root_;
  Status failure_;
};

}  // namespace

Result<Value> Value::parse_json(std::string_view text) {
  Builder builder;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    return builder.take_failure();
  }
  return builder.take();
}

}  // namespace tidemill::engines::chat
