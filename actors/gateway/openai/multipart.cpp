// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/openai/multipart.hpp"

#include <algorithm>
#include <utility>

#include "actors/gateway/http/http_message.hpp"
#include "base/text/quote.hpp"
#include "base/text/utf8.hpp"

namespace tidemill::actors::openai {
namespace {

constexpr std::size_t kMaxBoundaryBytes = 70;  // RFC 2046
constexpr std::string_view kLineEnd = "\r\n";

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// RFC 9110, section 5.6.2.
bool is_token_character(char c) {
  return is_letter_or_digit(c) ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_boundary_character(char c) {
  return is_letter_or_digit(c) ||
         std::string_view("'()+_,-./:=? ").find(c) != std::string_view::npos;
}

bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20U || c == 0x7F;
}

void skip_spaces(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
}

// Takes a token off the front. Returns "" if there is none.
std::string_view take_token(std::string_view& text) {
  const auto end = std::find_if_not(text.begin(), text.end(), is_token_character);
  const std::string_view token = text.substr(0, static_cast<std::size_t>(end - text.begin()));
  text.remove_prefix(token.size());
  return token;
}

// Takes a quoted text off the front, which begins with a quote. A backslash escapes a quote or a
// backslash; before anything else it stands for itself, as in paths that browsers send.
std::optional<std::string> take_quoted(std::string_view& text) {
  std::string value;
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '"') {
      text.remove_prefix(i + 1);
      return value;
    }
    const bool escapes =
        text[i] == '\\' && i + 1 < text.size() && (text[i + 1] == '"' || text[i + 1] == '\\');
    i += escapes ? 1 : 0;
    value += text[i];
  }
  return std::nullopt;
}

struct Parameter {
  std::string name;  // in lower case
  std::string value;
};

// Takes "; name=value" off the front.
Result<Parameter> take_parameter(std::string_view& text) {
  if (text.front() != ';') {
    return invalid_argument("a parameter must follow a semicolon");
  }
  text.remove_prefix(1);
  skip_spaces(text);
  Parameter parameter{lower_case(take_token(text)), {}};
  if (parameter.name.empty() || text.empty() || text.front() != '=') {
    return invalid_argument("a parameter must have the form name=value");
  }
  text.remove_prefix(1);
  if (!text.empty() && text.front() == '"') {
    auto value = take_quoted(text);
    if (!value.has_value()) {
      return invalid_argument("the quotes of " + quote(parameter.name) + " do not end");
    }
    parameter.value = std::move(*value);
  } else {
    parameter.value = take_token(text);
    if (parameter.value.empty()) {
      return invalid_argument("the parameter " + quote(parameter.name) + " has no value");
    }
  }
  skip_spaces(text);
  return parameter;
}

// Reads all parameters. Refuses a name that occurs twice.
Result<std::vector<Parameter>> read_parameters(std::string_view text) {
  constexpr std::size_t kMaxParameters = 8;
  std::vector<Parameter> parameters;
  skip_spaces(text);
  while (!text.empty()) {
    TIDEMILL_ASSIGN_OR_RETURN(Parameter next, take_parameter(text));
    const bool twice = std::any_of(parameters.begin(), parameters.end(),
                                   [&](const Parameter& one) { return one.name == next.name; });
    if (twice || parameters.size() == kMaxParameters) {
      return invalid_argument(twice ? "the parameter " + quote(next.name) + " occurs twice"
                                    : std::string("too many parameters"));
    }
    parameters.push_back(std::move(next));
  }
  return parameters;
}

const std::string* find(const std::vector<Parameter>& parameters, std::string_view name) {
  for (const Parameter& one : parameters) {
    if (one.name == name) {
      return &one.value;
    }
  }
  return nullptr;
}

// Decodes the value of `filename*`, such as "UTF-8''r%C3%A4te.jsonl".
Result<std::string> decode_extended(std::string_view value) {
  constexpr std::string_view kCharset = "utf-8'";
  const std::size_t end = value.find('\'', kCharset.size());
  const bool is_utf8 = lower_case(value.substr(0, kCharset.size())) == kCharset;
  const auto decoded =
      is_utf8 && end != std::string::npos ? decode_path(value.substr(end + 1)) : std::nullopt;
  return decoded.has_value() ? Result<std::string>(*decoded)
                             : invalid_argument("filename* must have the form UTF-8''NAME");
}

// Reads the value of a header Content-Disposition into a part.
Status read_disposition(std::string_view value, FormPart& part) {
  if (lower_case(take_token(value)) != "form-data") {
    return invalid_argument("the Content-Disposition must be form-data");
  }
  TIDEMILL_ASSIGN_OR_RETURN(const std::vector<Parameter> parameters, read_parameters(value));
  const std::string* name = find(parameters, "name");
  if (name == nullptr || name->empty()) {
    return invalid_argument("the Content-Disposition needs a name");
  }
  part.name = *name;
  if (const std::string* extended = find(parameters, "filename*")) {
    TIDEMILL_ASSIGN_OR_RETURN(part.filename, decode_extended(*extended));
  } else if (const std::string* filename = find(parameters, "filename")) {
    part.filename = *filename;
  }
  if (find_invalid_utf8(part.name + part.filename.value_or("")).has_value()) {
    return invalid_argument("the names must be UTF-8");
  }
  return {};
}

Status check_encoding(std::string_view value) {
  const std::string encoding = lower_case(value);
  return encoding == "binary" || encoding == "8bit" || encoding == "7bit"
             ? Status()
             : invalid_argument("the Content-Transfer-Encoding " + quote(encoding) +
                                " is not supported");
}

// Reads one header of a part.
Status read_header(std::string_view line, FormPart& part, bool& has_disposition) {
  const std::string name = lower_case(take_token(line));
  if (name.empty() || line.empty() || line.front() != ':' ||
      std::any_of(line.begin(), line.end(), [](char c) { return is_control(c) && c != '\t'; })) {
    return invalid_argument("a header must have the form Name: value");
  }
  line.remove_prefix(1);
  skip_spaces(line);
  line = line.substr(0, line.find_last_not_of(" \t") + 1);
  if (name == "content-disposition") {
    if (std::exchange(has_disposition, true)) {
      return invalid_argument("Content-Disposition occurs twice");
    }
    return read_disposition(line, part);
  }
  // RFC 7578, section 4.8: other headers are to be ignored.
  return name == "content-transfer-encoding" ? check_encoding(line) : Status();
}

// Takes the headers of a part and the empty line after them off the front of `rest`.
Result<FormPart> take_headers(std::string_view& rest, const FormLimits& limits) {
  FormPart part;
  bool has_disposition = false;
  const std::size_t start = rest.size();
  for (;;) {
    const std::size_t allowed = limits.max_header_bytes - (start - rest.size());
    const std::size_t end = rest.substr(0, allowed).find(kLineEnd);
    if (end == std::string_view::npos) {
      return invalid_argument(rest.size() >= allowed ? "the headers are too long"
                                                     : "the headers do not end");
    }
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end + kLineEnd.size());
    if (line.empty()) {
      return has_disposition ? Result<FormPart>(std::move(part))
                             : invalid_argument("has no Content-Disposition");
    }
    TIDEMILL_RETURN_IF_ERROR(read_header(line, part, has_disposition));
  }
}

enum class Delimiter : std::uint8_t { kNext, kLast };

// Takes what follows "--boundary" off the front of `rest`.
Result<Delimiter> take_delimiter_end(std::string_view& rest) {
  if (rest.starts_with("--")) {
    rest.remove_prefix(2);
    skip_spaces(rest);
    if (!rest.empty() && rest != kLineEnd) {
      return invalid_argument("text follows the last boundary");
    }
    return Delimiter::kLast;
  }
  skip_spaces(rest);
  if (!rest.starts_with(kLineEnd)) {
    return invalid_argument("a line begins with the boundary but has more text");
  }
  rest.remove_prefix(kLineEnd.size());
  return Delimiter::kNext;
}

// Takes a part with the delimiter after it off the front of `rest`.
Result<Delimiter> take_part(std::string_view& rest, std::string_view delimiter,
                            const FormLimits& limits, std::vector<FormPart>& parts) {
  TIDEMILL_ASSIGN_OR_RETURN(FormPart part, take_headers(rest, limits));
  // The line end before a boundary belongs to it. An empty part has only that of its headers.
  std::size_t end = 0;
  std::size_t next = delimiter.size() - kLineEnd.size();
  if (!rest.starts_with(delimiter.substr(kLineEnd.size()))) {
    end = rest.find(delimiter);
    next = end + delimiter.size();
    if (end == std::string_view::npos) {
      return invalid_argument("no boundary follows");
    }
  }
  part.content = rest.substr(0, end);
  rest.remove_prefix(next);
  parts.push_back(std::move(part));
  return take_delimiter_end(rest);
}

}  // namespace

Result<std::string> form_boundary(std::string_view content_type) {
  constexpr std::string_view kType = "multipart/form-data";
  const std::string what = "the Content-Type";
  if (lower_case(content_type.substr(0, kType.size())) != kType) {
    return invalid_argument(what + " must be " + std::string(kType));
  }
  content_type.remove_prefix(kType.size());
  auto parameters = read_parameters(content_type);
  if (!parameters.ok()) {
    return parameters.status().with_context(what);
  }
  const std::string* boundary = find(parameters.value(), "boundary");
  if (boundary == nullptr) {
    return invalid_argument(what + " needs a boundary");
  }
  if (boundary->empty() || boundary->size() > kMaxBoundaryBytes || boundary->back() == ' ' ||
      !std::all_of(boundary->begin(), boundary->end(), is_boundary_character)) {
    return invalid_argument(what +
                            ": the boundary must be 1 to 70 characters that RFC 2046 allows");
  }
  return *boundary;
}

Result<std::vector<FormPart>> parse_form(std::string_view body, std::string_view boundary,
                                         const FormLimits& limits) {
  const std::string what = "the body is not valid multipart/form-data";
  const std::string line = "\r\n--" + std::string(boundary);
  const std::string_view delimiter = line;
  std::string_view rest = body;
  if (rest.starts_with(kLineEnd)) {
    rest.remove_prefix(kLineEnd.size());
  }
  if (!rest.starts_with(delimiter.substr(kLineEnd.size()))) {
    return invalid_argument(what + ": it must begin with the boundary");
  }
  rest.remove_prefix(delimiter.size() - kLineEnd.size());
  std::vector<FormPart> parts;
  auto found = take_delimiter_end(rest);
  while (found.ok() && found.value() == Delimiter::kNext) {
    if (parts.size() == limits.max_parts) {
      return invalid_argument(what + ": it has more than " + std::to_string(limits.max_parts) +
                              " parts");
    }
    const std::size_t number = parts.size() + 1;
    found = take_part(rest, delimiter, limits, parts);
    if (!found.ok()) {
      return found.status().with_context(what + ": part " + std::to_string(number));
    }
  }
  if (!found.ok()) {
    return found.status().with_context(what);
  }
  return parts;
}

}  // namespace tidemill::actors::openai
