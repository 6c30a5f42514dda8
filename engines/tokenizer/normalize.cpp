// SPDX-License-Identifier: Apache-2.0
// Unicode normalization with utf8proc. No other file calls its normalizer.
#include "engines/tokenizer/normalize.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utf8proc.h>

#include "base/text/utf8.hpp"

namespace tidemill::engines {
namespace {

constexpr std::size_t kMaxMarks = 1024;

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

Status check_mark_runs(std::string_view text) {
  std::size_t run = 0;
  std::size_t run_begin = 0;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = read_utf8(text, i);
    const auto* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(step.code_point));
    if (property->combining_class == 0) {
      run = 0;
    } else if (run++ == 0) {
      run_begin = i;
    } else if (run > kMaxMarks) {
      return invalid_argument("more than " + std::to_string(kMaxMarks) +
                              " combining marks in a row at byte " + std::to_string(run_begin));
    }
    i += step.length;
  }
  return {};
}

struct Free {
  void operator()(utf8proc_uint8_t* p) const {
    std::free(p);
  }  // NOLINT: utf8proc allocates with malloc
};

Result<std::string> compose(std::string_view text) {
  utf8proc_uint8_t* bytes = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &bytes,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE |
                                                  UTF8PROC_COMPOSE));  // NOLINT: a set of flags
  const std::unique_ptr<utf8proc_uint8_t, Free> owner(bytes);
  if (length < 0) {
    return Status(Errc::kInternal, std::string("normalization: ") + utf8proc_errmsg(length));
  }
  return std::string(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(length));
}

// Returns the end of the grapheme cluster that begins at `begin`. Normalization never combines
// characters across the end of a cluster.
std::size_t cluster_end(std::string_view text, std::size_t begin) {
  utf8proc_int32_t state = 0;
  Utf8Step previous = read_utf8(text, begin);
  std::size_t i = begin + previous.length;
  while (i < text.size()) {
    const Utf8Step next = read_utf8(text, i);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(previous.code_point),
                                         static_cast<utf8proc_int32_t>(next.code_point), &state)) {
      return i;
    }
    previous = next;
    i += next.length;
  }
  return i;
}

}  // namespace

Result<std::string> normalize_nfc(std::string_view text) {
  if (is_ascii(text)) {
    return std::string(text);
  }
  TIDEMILL_RETURN_IF_ERROR(check_mark_runs(text));
  return compose(text);
}

std::vector<std::size_t> align_nfc(std::string_view text, std::string_view normalized) {
  std::vector<std::size_t> origin;
  origin.reserve(normalized.size() + 1);
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = cluster_end(text, i);
    const std::string_view cluster = text.substr(i, end - i);
    const Result<std::string> composed =
        is_ascii(cluster) ? std::string(cluster) : compose(cluster);
    TIDEMILL_CHECK(composed.ok()) << composed.status().to_string();
    const bool same = composed.value() == cluster;
    for (std::size_t k = 0; k < composed.value().size(); ++k) {
      origin.push_back(same ? i + k : i);
    }
    i = end;
  }
  origin.push_back(text.size());
  // If normalization ever does combine across clusters, this keeps all spans inside the text.
  origin.resize(normalized.size() + 1, text.size());
  return origin;
}

}  // namespace tidemill::engines
