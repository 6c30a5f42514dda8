// SPDX-License-Identifier: Apache-2.0
#include "engines/tokenizer/strict_json.hpp"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/text/quote.hpp"

namespace tidemill::engines {
namespace {

using Json = nlohmann::json;

// Builds and checks the value in one pass. nlohmann's SAX interface prescribes the method names.
// Every handler returns whether to continue. Handlers may move from the strings they are given.
class Builder {
public:
  explicit Builder(std::size_t max_depth) : max_depth_(max_depth) {}

  [[nodiscard]] Json take() { return std::move(root_); }
  [[nodiscard]] Status take_failure() { return std::move(failure_); }

  // NOLINTBEGIN(readability-identifier-naming, readability-named-parameter)
  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(std::int64_t value) { return put(value); }
  bool number_unsigned(std::uint64_t value) { return put(value); }
  bool number_float(double value, const std::string&) { return put(value); }
  bool string(std::string& value) { return put(std::move(value)); }
  bool binary(Json::binary_t&) { return false; }  // not in text
  bool start_object(std::size_t) { return open(Json::value_t::object); }
  bool start_array(std::size_t) { return open(Json::value_t::array); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    const auto [member, is_new] = open_.back()->emplace(std::move(name), nullptr);
    if (is_new) {
      member_ = &*member;
      return true;
    }
    failure_ = corrupt_data("key " + quote(member.key()) + " appears twice in one object");
    return false;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    failure_ = corrupt_data("not JSON at byte " + std::to_string(position));
    return false;
  }
  // NOLINTEND(readability-identifier-naming, readability-named-parameter)

private:
  // Inserts a value at the current position of the document and returns a pointer to it.
  template <class Value>
  Json* attach(Value&& value) {
    if (open_.empty()) {
      root_ = std::forward<Value>(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      return &open_.back()->emplace_back(std::forward<Value>(value));
    }
    *member_ = std::forward<Value>(value);
    return member_;
  }
  template <class Value>
  bool put(Value&& value) {
    attach(std::forward<Value>(value));
    return true;
  }
  bool open(Json::value_t kind) {
    if (open_.size() == max_depth_) {
      failure_ = corrupt_data("nested deeper than " + std::to_string(max_depth_));
      return false;
    }
    open_.push_back(attach(Json(kind)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::size_t max_depth_;
  Json root_;
  std::vector<Json*> open_;  // open containers; only the last one grows, so pointers stay valid
  Json* member_ = nullptr;   // current member of the last container, if that is an object
  Status failure_;
};

}  // namespace

Result<Json> read_strict_json(std::string_view text, std::size_t max_depth) {
  Builder builder(max_depth);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return builder.take_failure();
  }
  return builder.take();
}

}  // namespace tidemill::engines
