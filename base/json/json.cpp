// SPDX-License-Identifier: Apache-2.0
#include "base/json/json.hpp"

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/text/quote.hpp"

namespace tidemill {
namespace {

// Builds the document from the parser's events. A false return stops the parser.
class Builder final : public nlohmann::json_sax<nlohmann::json> {
public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  [[nodiscard]] Status status() const { return status_; }
  [[nodiscard]] Json take() { return std::move(root_); }

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(std::int64_t{value}); }
  bool number_unsigned(number_unsigned_t value) override {
    constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    return value <= kMax ? add(static_cast<std::int64_t>(value))
                         : add(Json::large_integer(std::to_string(value)));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    const bool integer = text.find_first_of(".eE") == std::string::npos;
    return integer ? add(Json::large_integer(text)) : add(value);
  }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }  // not part of JSON text

  bool start_object(std::size_t /*size*/) override { return open(Frame::kObject); }
  bool key(string_t& name) override {
    Frame& frame = stack_.back();
    if (!frame.names.insert(name).second) {
      return refuse(corrupt_data("the name " + quote(name) + " occurs twice in one object"));
    }
    frame.name = std::move(name);
    return true;
  }
  bool end_object() override {
    Json value(std::move(stack_.back().members));
    stack_.pop_back();
    return place(std::move(value));
  }
  bool start_array(std::size_t /*size*/) override { return open(Frame::kArray); }
  bool end_array() override {
    Json value(std::move(stack_.back().items));
    stack_.pop_back();
    return place(std::move(value));
  }
  bool parse_error(std::size_t position, const std::string& /*last_token*/,
                   const nlohmann::detail::exception& error) override {
    // The library's message quotes the input at full length. The position is enough.
    constexpr int kNumberOutOfRange = 406;
    return refuse(
        corrupt_data("not JSON at byte " + std::to_string(position) +
                     (error.id == kNumberOutOfRange ? ": a number is out of range" : "")));
  }

private:
  struct Frame {
    enum Kind : std::uint8_t { kArray, kObject };
    Kind kind;
    Json::Array items;
    Json::Object members;
    std::unordered_set<std::string> names;
    std::string name;  // of the member whose value comes next
  };

  bool refuse(Status status) {
    status_ = std::move(status);
    return false;
  }
  bool count_value() {
    if (++num_values_ > limits_.max_values) {
      return refuse(
          invalid_argument("more than " + std::to_string(limits_.max_values) + " JSON values"));
    }
    return true;
  }
  bool open(Frame::Kind kind) {
    if (stack_.size() >= limits_.max_depth) {
      return refuse(
          invalid_argument("JSON nested deeper than " + std::to_string(limits_.max_depth)));
    }
    stack_.push_back({kind, {}, {}, {}, {}});
    return count_value();
  }
  bool add(Json value) { return count_value() && place(std::move(value)); }
  bool place(Json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
    } else if (stack_.back().kind == Frame::kArray) {
      stack_.back().items.push_back(std::move(value));
    } else {
      stack_.back().members.push_back({std::move(stack_.back().name), std::move(value)});
    }
    return true;
  }

  const JsonLimits& limits_;
  Status status_;
  Json root_;
  std::vector<Frame> stack_;
  std::size_t num_values_ = 0;
};

nlohmann::ordered_json to_library(const Json& value) {
  if (const bool* flag = value.if_bool()) {
    return *flag;
  }
  if (const std::int64_t* integer = value.if_integer()) {
    return *integer;
  }
  if (const std::string* text = value.if_string()) {
    return *text;
  }
  if (const Json::Array* items = value.if_array()) {
    auto array = nlohmann::ordered_json::array();
    for (const Json& item : *items) {
      array.push_back(to_library(item));
    }
    return array;
  }
  if (const Json::Object* members = value.if_object()) {
    auto object = nlohmann::ordered_json::object();
    // Not by `operator[]`, which searches all members before: names occur once.
    auto& list = object.get_ref<nlohmann::ordered_json::object_t&>();
    list.reserve(members->size());
    for (const Json::Member& member : *members) {
      list.push_back({member.name, to_library(member.value)});
    }
    return object;
  }
  if (const std::string* digits = value.if_large_integer()) {
    std::uint64_t integer = 0;
    const char* end = digits->data() + digits->size();
    const auto [rest, error] = std::from_chars(digits->data(), end, integer);
    if (error == std::errc() && rest == end) {
      return integer;
    }
  }
  const std::optional<double> real = value.number();
  return real ? nlohmann::ordered_json(*real) : nlohmann::ordered_json(nullptr);
}

}  // namespace

Json::Json() noexcept = default;
Json::Json(bool value) : value_(value) {}
Json::Json(int value) : value_(std::int64_t{value}) {}
Json::Json(std::int64_t value) : value_(value) {}
Json::Json(double value) : value_(value) {}
Json::Json(std::string value) : value_(std::move(value)) {}
Json::Json(const char* value) : value_(std::string(value)) {}
Json::Json(Array value) : value_(std::move(value)) {}
Json::Json(Object value) : value_(std::move(value)) {}

Json Json::large_integer(std::string digits) {
  Json json;
  json.value_ = LargeInteger{std::move(digits)};
  return json;
}

std::optional<double> Json::number() const noexcept {
  if (const auto* real = std::get_if<double>(&value_)) {
    return *real;
  }
  if (const std::int64_t* integer = if_integer()) {
    return static_cast<double>(*integer);
  }
  if (const std::string* digits = if_large_integer()) {
    double nearest = 0.0;
    std::from_chars(digits->data(), digits->data() + digits->size(), nearest);
    return nearest;
  }
  return std::nullopt;
}

const Json* Json::find(std::string_view name) const noexcept {
  if (const Object* members = if_object()) {
    for (const Member& member : *members) {
      if (member.name == name) {
        return &member.value;
      }
    }
  }
  return nullptr;
}

std::string Json::to_text() const {
  constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
  return to_library(*this).dump(2, ' ', false, kReplace) + "\n";
}

std::string Json::to_line() const {
  constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
  return to_library(*this).dump(-1, ' ', false, kReplace) + "\n";
}

Result<Json> parse_json(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return invalid_argument(std::to_string(text.size()) + " bytes of JSON; at most " +
                            std::to_string(limits.max_bytes) + " are read");
  }
  // The library takes a NUL byte for the end of the text.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return corrupt_data("not JSON at byte " + std::to_string(nul + 1));
  }
  Builder builder(limits);
  if (!nlohmann::json::sax_parse(text, &builder)) {
    return builder.status().ok() ? corrupt_data("not JSON") : builder.status();
  }
  return builder.take();
}

}  // namespace tidemill
