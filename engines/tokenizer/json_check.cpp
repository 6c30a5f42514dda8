// SPDX-License-Identifier: Apache-2.0
// A pass over JSON events that builds nothing but the sets of keys of the open objects.
#include "engines/tokenizer/json_check.hpp"

#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/quote.hpp"

namespace tidemill::engines {
namespace {

// The names are those of nlohmann's SAX interface. Every handler returns whether to go on.
class Checker {
public:
  explicit Checker(std::size_t max_depth) : max_depth_(max_depth) {}

  [[nodiscard]] Status take_failure() { return std::move(failure_); }

  // NOLINTBEGIN(readability-identifier-naming, readability-named-parameter)
  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(std::int64_t) { return true; }
  bool number_unsigned(std::uint64_t) { return true; }
  bool number_float(double, const std::string&) { return true; }
  bool string(std::string&) { return true; }
  bool binary(nlohmann::json::binary_t&) { return true; }
  bool start_object(std::size_t) { return open(); }
  bool start_array(std::size_t) { return open(); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    if (keys_.back().insert(name).second) {
      return true;
    }
    failure_ = corrupt_data("key " + quote(name) + " comes twice in one object");
    return false;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    failure_ = corrupt_data("not JSON at byte " + std::to_string(position));
    return false;
  }
  // NOLINTEND(readability-identifier-naming, readability-named-parameter)

private:
  bool open() {
    if (keys_.size() == max_depth_) {
      failure_ = corrupt_data("nested deeper than " + std::to_string(max_depth_));
      return false;
    }
    keys_.emplace_back();
    return true;
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  std::size_t max_depth_;
  std::vector<std::unordered_set<std::string>> keys_;  // one entry per open container
  Status failure_;
};

}  // namespace

Status check_json(std::string_view text, std::size_t max_depth) {
  Checker checker(max_depth);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &checker)) {
    return checker.take_failure();
  }
  return {};
}

}  // namespace tidemill::engines
