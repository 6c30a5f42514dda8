// SPDX-License-Identifier: Apache-2.0
#include "engines/tokenizer/aligned_text.hpp"

#include <algorithm>
#include <utility>

#include "engines/tokenizer/white_space.hpp"

namespace tidemill::engines {

ByteOrigin AlignedText::origin_at(std::size_t i) const {
  if (!origins_.empty()) {
    return origins_[i];
  }
  const auto begin = static_cast<std::uint32_t>(base_ + i);
  return {begin, begin + 1};
}

Status AlignedText::check_size(std::size_t size) const {
  if (size > max_bytes_) {
    return invalid_argument("normalization makes more than " + std::to_string(max_bytes_) +
                            " bytes");
  }
  return {};
}

TextSpan AlignedText::origin(std::size_t begin, std::size_t end) const {
  return {origin_at(begin).begin, origin_at(end - 1).end};
}

AlignedText AlignedText::slice(std::size_t begin, std::size_t end) const {
  AlignedText part(text().substr(begin, end - begin), base_ + begin,
                   tracks_ ? Track::kYes : Track::kNo, max_bytes_);
  part.knows_origins_ = knows_origins_;
  if (!origins_.empty()) {
    part.origins_.assign(origins_.begin() + static_cast<std::ptrdiff_t>(begin),
                         origins_.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return part;
}

void AlignedText::assign(std::string text, std::vector<ByteOrigin> origins) {
  owned_ = std::move(text);
  owns_ = true;
  knows_origins_ = tracks_;
  origins_ = std::move(origins);
}

void AlignedText::prepend(std::string_view content) {
  const std::string_view old = text();
  if (old.empty()) {
    return;
  }
  std::vector<ByteOrigin> origins;
  if (tracks_) {
    const std::uint32_t begin = origin_at(0).begin;
    origins.assign(content.size(), {begin, begin});
    for (std::size_t i = 0; i < old.size(); ++i) {
      origins.push_back(origin_at(i));
    }
  }
  assign(std::string(content).append(old), std::move(origins));
}

Status AlignedText::replace(std::string_view pattern, std::string_view content) {
  const std::string_view old = text();
  std::size_t match = old.find(pattern);
  if (match == std::string_view::npos) {
    return {};
  }
  std::string result;
  std::vector<ByteOrigin> origins;
  std::size_t done = 0;
  const auto keep_until = [&](std::size_t end) {
    result.append(old.substr(done, end - done));
    for (std::size_t i = done; tracks_ && i < end; ++i) {
      origins.push_back(origin_at(i));
    }
  };
  for (; match != std::string_view::npos; match = old.find(pattern, done)) {
    keep_until(match);
    done = match + pattern.size();
    result.append(content);
    if (tracks_) {
      origins.insert(origins.end(), content.size(),
                     {origin_at(match).begin, origin_at(done - 1).end});
    }
    TIDEMILL_RETURN_IF_ERROR(check_size(result.size()));
  }
  keep_until(old.size());
  TIDEMILL_RETURN_IF_ERROR(check_size(result.size()));
  assign(std::move(result), std::move(origins));
  return {};
}

void AlignedText::strip(bool begin, bool end) {
  const std::size_t last = end ? white_space_begin(text(), text().size(), 0) : text().size();
  const std::size_t first = begin ? white_space_end(text().substr(0, last), 0) : 0;
  if (first == 0 && last == text().size()) {
    return;
  }
  AlignedText part = slice(first, last);
  if (owns_) {
    assign(std::string(part.text()), std::move(part.origins_));
  } else {  // a shorter view of the same text
    *this = std::move(part);
  }
}

Status AlignedText::normalize(NormalizationForm form) {
  const std::string_view old = text();
  TIDEMILL_ASSIGN_OR_RETURN(std::string result, normalize_unicode(old, form));
  TIDEMILL_RETURN_IF_ERROR(check_size(result.size()));
  if (result == old) {
    return {};
  }
  std::vector<ByteOrigin> origins;
  if (tracks_) {
    origins = align_normalized(old, result, form);
    for (ByteOrigin& origin : origins) {
      const std::size_t first = std::min<std::size_t>(origin.begin, old.size() - 1);
      const std::size_t last = origin.end > first ? origin.end - 1 : first;
      origin = {origin_at(first).begin, origin_at(last).end};
    }
  }
  assign(std::move(result), std::move(origins));
  return {};
}

Status AlignedText::apply(const NormalizerStep& step) {
  switch (step.kind) {
    case NormalizerStep::Kind::kUnicode: return normalize(step.form);
    case NormalizerStep::Kind::kPrepend: prepend(step.content); return check_size(text().size());
    case NormalizerStep::Kind::kReplace: return replace(step.pattern, step.content);
    case NormalizerStep::Kind::kStrip: strip(step.strips_begin, step.strips_end); return {};
  }
  return Status(Errc::kInternal, "unknown normalizer");
}

Result<std::string> normalized_by(const std::vector<NormalizerStep>& steps, std::string_view text,
                                  std::size_t max_bytes) {
  AlignedText result(text, 0, AlignedText::Track::kNo, max_bytes);
  for (const NormalizerStep& step : steps) {
    TIDEMILL_RETURN_IF_ERROR(result.apply(step));
  }
  return std::string(result.text());
}

}  // namespace tidemill::engines
