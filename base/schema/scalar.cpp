// SPDX-License-Identifier: Apache-2.0
#include "base/schema/scalar.hpp"

#include <charconv>
#include <cmath>

#include "base/schema/suggest.hpp"

namespace tidemill::schema {
namespace {

std::optional<std::int64_t> parse_integer(std::string_view text) {
  if (text.starts_with('+')) {
    text.remove_prefix(1);
  }
  const std::string_view digits = text.starts_with('-') ? text.substr(1) : text;
  // Some YAML readers take a leading zero for octal, so it is refused rather than guessed.
  if (digits.empty() || (digits.size() > 1 && digits.front() == '0')) {
    return std::nullopt;
  }
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  return whole ? std::optional(value) : std::nullopt;
}

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  std::int64_t factor = 1;
  for (const std::string_view suffix : {"KiB", "MiB", "GiB", "TiB"}) {
    factor *= 1024;
    if (text.ends_with(suffix)) {
      text.remove_suffix(suffix.size());
      const std::optional<std::int64_t> count = parse_integer(text);
      const bool fits =
          count && *count >= 0 && *count <= std::numeric_limits<std::int64_t>::max() / factor;
      return fits ? std::optional(*count * factor) : std::nullopt;
    }
  }
  return parse_integer(text);
}

std::optional<double> parse_number(std::string_view text) {
  if (text.starts_with('+')) {
    text.remove_prefix(1);
  }
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  return whole && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

bool within(const Limits& limits, double value) {
  if (limits.or_zero && value == 0.0) {
    return true;
  }
  return !(limits.low && (value < *limits.low || (limits.low_excluded && value == *limits.low))) &&
         !(limits.high && value > *limits.high);
}

}  // namespace

std::optional<Scalar> parse_scalar(const ValueSchema& value, const ConfigNode& node) {
  const bool plain = node.kind == ConfigNode::Kind::kPlain;
  const bool text = plain || node.kind == ConfigNode::Kind::kQuoted;
  switch (value.shape) {
    case Shape::kBool:
      if (plain && (node.text == "true" || node.text == "false")) {
        return Scalar(node.text == "true");
      }
      return std::nullopt;
    case Shape::kInteger: {
      const auto number = !plain                  ? std::nullopt
                          : value.unit == "bytes" ? parse_bytes(node.text)
                                                  : parse_integer(node.text);
      const bool fits = number && within(value.limits, static_cast<double>(*number));
      return fits ? std::optional<Scalar>(*number) : std::nullopt;
    }
    case Shape::kNumber: {
      const auto number = plain ? parse_number(node.text) : std::nullopt;
      return number && within(value.limits, *number) ? std::optional<Scalar>(*number)
                                                     : std::nullopt;
    }
    case Shape::kEnum:
      for (const EnumName& name : value.names) {
        if (text && name.name == node.text) {
          return Scalar(name.value);
        }
      }
      return std::nullopt;
    default: return text ? std::optional<Scalar>(node.text) : std::nullopt;
  }
}

std::string found_phrase(const ConfigNode& node) {
  switch (node.kind) {
    case ConfigNode::Kind::kNull: return "nothing";
    case ConfigNode::Kind::kPlain: return clipped(node.text);
    case ConfigNode::Kind::kQuoted: return '"' + clipped(node.text) + '"';
    case ConfigNode::Kind::kList: return "a list";
    case ConfigNode::Kind::kMap: return "keys and values";
  }
  return {};
}

std::string mistyped_phrase(const ValueSchema& value, const ConfigNode& node) {
  std::vector<std::string> names;
  for (const EnumName& name : value.names) {
    names.push_back(name.name);
  }
  const std::string meant = closest_name(node.text, names);
  const std::string unit = value.unit == "bytes" ? " (KiB, MiB, GiB or TiB may follow)"
                           : value.unit.empty()  ? ""
                                                 : " (" + value.unit + ')';
  return "needs " + type_phrase(value) + unit + ", found " + found_phrase(node) +
         (meant.empty() ? "" : "; did you mean " + meant + '?');
}

}  // namespace tidemill::schema
