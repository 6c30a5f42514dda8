// SPDX-License-Identifier: Apache-2.0
// Encodes one text and records which part of the text each token came from.
#include "engines/tokenizer/pipeline.hpp"

#include <string>
#include <unordered_set>

#include "base/text/utf8.hpp"
#include "engines/tokenizer/normalize.hpp"

namespace tidemill::engines {
namespace {

bool is_continuation(std::string_view text, std::size_t i) {
  return i < text.size() && (static_cast<unsigned char>(text[i]) & 0xC0U) == 0x80U;
}

}  // namespace

// The state of encoding one text.
class Pipeline::Run {
public:
  Run(const Pipeline& pipeline, std::string_view text, Spans spans)
      : pipeline_(pipeline), text_(text), wants_spans_(spans == Spans::kYes) {
    for (const Regex& split : pipeline.splits_) {
      workspaces_.push_back(split.make_workspace());
    }
  }

  Result<Encoding> encode() {
    TIDEMILL_ASSIGN_OR_RETURN(const auto sections, pipeline_.raw_tokens_.cut(text_));
    for (const TextSection& section : sections) {
      if (section.id >= 0) {
        add_token(section.id, {section.begin, section.end});
      } else {
        TIDEMILL_RETURN_IF_ERROR(encode_section(section));
      }
    }
    return std::move(out_);
  }

private:
  void add_token(std::int32_t id, TextSpan span) {
    out_.ids.push_back(id);
    if (wants_spans_) {
      out_.spans.push_back(span);
    }
  }

  // Encodes a section that contains no added token of the raw text.
  Status encode_section(const TextSection& raw_section) {
    const std::string_view raw =
        text_.substr(raw_section.begin, raw_section.end - raw_section.begin);
    section_begin_ = raw_section.begin;
    origin_.clear();
    std::string normalized;
    std::string_view section = raw;
    if (pipeline_.normalizer_ == TokenizerSpec::Normalizer::kNfc) {
      auto result = normalize_nfc(raw);
      if (!result.ok()) {
        return located(result.status(), 0);
      }
      normalized = std::move(result).value();
      section = normalized;
      if (normalized != raw) {
        origin_ = align_nfc(raw, normalized);
      }
    }
    TIDEMILL_ASSIGN_OR_RETURN(const auto parts, pipeline_.normalized_tokens_.cut(section));
    for (const TextSection& part : parts) {
      if (part.id >= 0) {
        add_token(part.id, span_of(part.begin, part.end));
      } else {
        TIDEMILL_RETURN_IF_ERROR(
            encode_text(section.substr(part.begin, part.end - part.begin), part.begin));
      }
    }
    return {};
  }

  // Encodes text that contains no added token and begins at `offset` of the section.
  Status encode_text(std::string_view text, std::size_t offset) {
    std::string with_space;
    text_offset_ = offset;
    prefix_bytes_ = 0;
    if (pipeline_.add_prefix_space_ && text.front() != ' ') {
      with_space.reserve(text.size() + 1);
      with_space.append(" ").append(text);
      text = with_space;
      prefix_bytes_ = 1;
    }
    return split(text, 0, 0);
  }

  // Splits `text` by the pattern at `level`, and the resulting pieces by the patterns after it.
  // `at` is the offset of `text` in the text that is being split. Each match and each stretch of
  // text between two matches becomes a piece.
  Status split(std::string_view text, std::size_t at, std::size_t level) {
    if (level == pipeline_.splits_.size()) {
      return encode_piece(text, at);
    }
    std::size_t done = 0;
    const auto emit = [&](std::size_t end) -> Status {
      const std::size_t begin = std::exchange(done, end);
      if (begin == end) {
        return {};
      }
      return split(text.substr(begin, end - begin), at + begin, level + 1);
    };
    for (std::size_t from = 0; from < text.size();) {
      const auto found = pipeline_.splits_[level].find(text, from, workspaces_[level]);
      if (!found.ok()) {
        return located(found.status(), at);
      }
      if (!found.value().has_value()) {
        break;
      }
      const Regex::Match match = *found.value();
      TIDEMILL_RETURN_IF_ERROR(emit(match.begin));
      TIDEMILL_RETURN_IF_ERROR(emit(match.end));
      from = match.end;
      if (match.begin == match.end && from < text.size()) {
        from += read_utf8(text, from).length;
      }
    }
    return emit(text.size());
  }

  Status encode_piece(std::string_view piece, std::size_t at) {
    tokens_.clear();
    const Status status = pipeline_.bpe_.encode(piece, bpe_workspace_, tokens_);
    if (!status.ok()) {
      return located(status, at);
    }
    for (const BpeToken& token : tokens_) {
      const std::size_t end = at + token.num_bytes;
      add_token(token.id, span_of(section_offset(at), section_offset(end)));
      at = end;
    }
    return {};
  }

  // Adds the offset at which the piece begins to the message of a failure.
  [[nodiscard]] Status located(const Status& status, std::size_t at) const {
    const std::size_t offset = section_offset(at);
    const std::size_t location = section_begin_ + (origin_.empty() ? offset : origin_[offset]);
    return {status.code(),
            status.message() + " of the piece that begins at byte " + std::to_string(location)};
  }

  // Returns the offset in the normalized section of byte `at` of the text that is being split.
  [[nodiscard]] std::size_t section_offset(std::size_t at) const {
    return text_offset_ + (at < prefix_bytes_ ? 0 : at - prefix_bytes_);
  }

  // Returns the span of the text that [begin, end) of the normalized section came from, widened to
  // whole characters.
  [[nodiscard]] TextSpan span_of(std::size_t begin, std::size_t end) const {
    if (!wants_spans_) {
      return {};
    }
    if (!origin_.empty()) {
      // If normalization changed a character, all its bytes have the same origin.
      while (end > begin && end + 1 < origin_.size() && origin_[end] == origin_[end - 1]) {
        ++end;
      }
      begin = origin_[begin];
      end = origin_[end];
    }
    TextSpan span{section_begin_ + begin, section_begin_ + end};
    while (span.begin > 0 && is_continuation(text_, span.begin)) {
      --span.begin;
    }
    while (is_continuation(text_, span.end)) {
      ++span.end;
    }
    return span;
  }

  const Pipeline& pipeline_;
  std::string_view text_;
  bool wants_spans_;
  std::vector<Regex::Workspace> workspaces_;  // one per split
  Bpe::Workspace bpe_workspace_;
  std::vector<BpeToken> tokens_;
  Encoding out_;
  // The position of the text that is being split. Its section begins at `section_begin_` of the
  // whole text. `origin_` maps offsets in the normalized section to the raw section; it is empty if
  // both are equal. The text begins at `text_offset_` of the section, after `prefix_bytes_` bytes
  // that the section does not contain.
  std::size_t section_begin_ = 0;
  std::vector<std::size_t> origin_;
  std::size_t text_offset_ = 0;
  std::size_t prefix_bytes_ = 0;
};

Result<Pipeline> Pipeline::build(const TokenizerSpec& spec) {
  std::vector<Regex> splits;
  for (const std::string& pattern : spec.split_patterns) {
    auto split = Regex::compile(pattern);
    if (!split.ok()) {
      return split.status().with_context("pre_tokenizer");
    }
    splits.push_back(std::move(split).value());
  }
  std::vector<AddedToken> raw;
  std::vector<AddedToken> normalized;
  std::unordered_set<std::string> contents;
  for (std::size_t i = 0; i < spec.added_tokens.size(); ++i) {
    AddedToken token = spec.added_tokens[i];
    if (!token.normalized) {
      raw.push_back(std::move(token));
      continue;
    }
    const std::string path = "added_tokens[" + std::to_string(i) + "].content";
    if (spec.normalizer == TokenizerSpec::Normalizer::kNfc) {
      auto content = normalize_nfc(token.content);
      if (!content.ok()) {
        return content.status().with_context(path);
      }
      token.content = std::move(content).value();
    }
    if (!contents.insert(token.content).second) {
      return corrupt_data(path + ": equals another added token after normalization");
    }
    normalized.push_back(std::move(token));
  }
  TIDEMILL_ASSIGN_OR_RETURN(auto raw_tokens, AddedTokenMatcher::build(std::move(raw)));
  TIDEMILL_ASSIGN_OR_RETURN(auto normalized_tokens,
                            AddedTokenMatcher::build(std::move(normalized)));
  return Pipeline(spec, std::move(splits), std::move(raw_tokens), std::move(normalized_tokens));
}

Result<Encoding> Pipeline::encode(std::string_view text, Spans spans) const {
  return Run(*this, text, spans).encode();
}

}  // namespace tidemill::engines
