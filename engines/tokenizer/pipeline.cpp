// SPDX-License-Identifier: Apache-2.0
// Encodes one text and records which part of the text each token came from.
#include "engines/tokenizer/pipeline.hpp"

#include <string>
#include <unordered_set>

#include "base/text/utf8.hpp"
#include "engines/tokenizer/aligned_text.hpp"

namespace tidemill::engines {
namespace {

bool is_continuation(std::string_view text, std::size_t i) {
  return i < text.size() && (static_cast<unsigned char>(text[i]) & 0xC0U) == 0x80U;
}

}  // namespace

// The state of encoding one text.
class Pipeline::Run {
public:
  Run(const Pipeline& pipeline, std::string_view text, Spans spans, std::size_t max_tokens)
      : pipeline_(pipeline),
        text_(text),
        wants_spans_(spans == Spans::kYes),
        max_tokens_(max_tokens) {
    for (const Split& split : pipeline.splits_) {
      if (split.regex.has_value()) {
        workspaces_.emplace_back(split.regex->make_workspace());
      } else {
        workspaces_.emplace_back();
      }
    }
  }

  Result<Encoding> encode() {
    TIDEMILL_ASSIGN_OR_RETURN(const auto sections, pipeline_.raw_tokens_.cut(text_));
    for (const TextSection& section : sections) {
      if (is_full()) {
        break;
      }
      if (section.id >= 0) {
        add_token(section.id, {section.begin, section.end});
      } else {
        TIDEMILL_RETURN_IF_ERROR(encode_section(section));
      }
    }
    return std::move(out_);
  }

  // Returns whether a failure names a byte that only a run with spans knows exactly.
  [[nodiscard]] bool must_track() const { return must_track_; }

private:
  // Whether there are so many tokens that the others do not matter.
  [[nodiscard]] bool is_full() const { return out_.ids.size() > max_tokens_; }

  void add_token(std::int32_t id, TextSpan span) {
    out_.ids.push_back(id);
    if (wants_spans_) {
      out_.spans.push_back(span);
    }
  }

  // Encodes a section that contains no added token of the raw text.
  Status encode_section(const TextSection& raw_section) {
    // Without normalizers, origins are known at the beginning of each part in any case.
    const bool tracks = wants_spans_ || (pipeline_.spaces_.prepend == SpaceStep::Prepend::kFirst &&
                                         !pipeline_.normalizers_.empty());
    AlignedText section(text_.substr(raw_section.begin, raw_section.end - raw_section.begin),
                        raw_section.begin,
                        tracks ? AlignedText::Track::kYes : AlignedText::Track::kNo);
    for (const NormalizerStep& step : pipeline_.normalizers_) {
      const Status applied = section.apply(step);
      if (!applied.ok()) {
        return located(applied, raw_section.begin);
      }
    }
    TIDEMILL_ASSIGN_OR_RETURN(const auto parts, pipeline_.normalized_tokens_.cut(section.text()));
    for (const TextSection& part : parts) {
      if (is_full()) {
        break;
      }
      if (part.id >= 0) {
        add_token(part.id, span_of(section, part.begin, part.end));
      } else {
        TIDEMILL_RETURN_IF_ERROR(encode_text(section.slice(part.begin, part.end)));
      }
    }
    return {};
  }

  // Encodes text that contains no added token. Requires that it is not empty.
  Status encode_text(AlignedText text) {
    const SpaceStep& spaces = pipeline_.spaces_;
    const bool prepends =
        spaces.prepend == SpaceStep::Prepend::kAlways ||
        (spaces.prepend == SpaceStep::Prepend::kFirst && text.origin(0, 1).begin == 0);
    if (!spaces.replacement.empty()) {
      const Status replaced = text.replace(" ", spaces.replacement);
      if (!replaced.ok()) {
        return located(replaced, text, 0);
      }
    }
    if (prepends && !text.text().starts_with(spaces.prefix)) {
      text.prepend(spaces.prefix);
    }
    return split(text, {0, text.text().size()}, 0);
  }

  // Splits `piece` of `text` by the step at `level`, and the resulting pieces by the steps after
  // it.
  Status split(const AlignedText& text, TextSpan piece, std::size_t level) {
    if (is_full()) {
      return {};
    }
    if (level == pipeline_.splits_.size()) {
      return encode_piece(text, piece);
    }
    std::size_t done = piece.begin;
    const auto emit = [&](std::size_t end) -> Status {
      const std::size_t begin = std::exchange(done, end);
      return begin == end ? Status() : split(text, {begin, end}, level + 1);
    };
    const Split& step = pipeline_.splits_[level];
    const std::string_view subject = text.text().substr(piece.begin, piece.end - piece.begin);
    if (step.kind == SplitStep::Kind::kRegex) {
      TIDEMILL_RETURN_IF_ERROR(split_by_regex(text, piece, level, emit));
    } else {
      const std::size_t after = step.kind == SplitStep::Kind::kAfter ? step.text.size() : 0;
      for (std::size_t at = subject.find(step.text); at != std::string_view::npos && !is_full();
           at = subject.find(step.text, at + step.text.size())) {
        TIDEMILL_RETURN_IF_ERROR(emit(piece.begin + at + after));
      }
    }
    return emit(piece.end);
  }

  // Each match and each stretch of text between two matches becomes a piece.
  template <class Emit>
  Status split_by_regex(const AlignedText& text, TextSpan piece, std::size_t level,
                        const Emit& emit) {
    const std::string_view subject = text.text().substr(piece.begin, piece.end - piece.begin);
    for (std::size_t from = 0; from < subject.size() && !is_full();) {
      const auto found = pipeline_.splits_[level].regex->find(subject, from, *workspaces_[level]);
      if (!found.ok()) {
        return located(found.status(), text, piece.begin);
      }
      if (!found.value().has_value()) {
        break;
      }
      const Regex::Match match = *found.value();
      TIDEMILL_RETURN_IF_ERROR(emit(piece.begin + match.begin));
      TIDEMILL_RETURN_IF_ERROR(emit(piece.begin + match.end));
      from = match.end;
      if (match.begin == match.end && from < subject.size()) {
        from += read_utf8(subject, from).length;
      }
    }
    return {};
  }

  Status encode_piece(const AlignedText& text, TextSpan piece) {
    tokens_.clear();
    const Status status = pipeline_.bpe_.encode(
        text.text().substr(piece.begin, piece.end - piece.begin), bpe_workspace_, tokens_);
    if (!status.ok()) {
      return located(status, text, piece.begin);
    }
    std::size_t at = piece.begin;
    for (const BpeToken& token : tokens_) {
      const std::size_t end = at + token.num_bytes;
      add_token(token.id, span_of(text, at, end));
      at = end;
    }
    return {};
  }

  // Adds the byte of the whole text at which the piece begins to the message of a failure.
  [[nodiscard]] static Status located(const Status& status, std::size_t byte) {
    return {status.code(),
            status.message() + " of the piece that begins at byte " + std::to_string(byte)};
  }
  [[nodiscard]] Status located(const Status& status, const AlignedText& text, std::size_t at) {
    must_track_ = !text.knows_origins();
    return located(status, text.origin(at, at + 1).begin);
  }

  // Returns the bytes of the whole text that [begin, end) came from, widened to whole characters.
  [[nodiscard]] TextSpan span_of(const AlignedText& text, std::size_t begin,
                                 std::size_t end) const {
    if (!wants_spans_) {
      return {};
    }
    TextSpan span = text.origin(begin, end);
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
  std::size_t max_tokens_;
  bool must_track_ = false;
  std::vector<std::optional<Regex::Workspace>> workspaces_;  // one per split by a pattern
  Bpe::Workspace bpe_workspace_;
  std::vector<BpeToken> tokens_;
  Encoding out_;
};

Result<Pipeline> Pipeline::build(const TokenizerSpec& spec) {
  std::vector<Split> splits;
  for (const SplitStep& step : spec.splits) {
    Split split{step.kind, step.pattern, std::nullopt};
    if (step.kind == SplitStep::Kind::kRegex) {
      auto regex = Regex::compile(step.pattern);
      if (!regex.ok()) {
        return regex.status().with_context("pre_tokenizer");
      }
      split.regex = std::move(regex).value();
    }
    splits.push_back(std::move(split));
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
    auto content = normalized_by(spec.normalizers, token.content, kMaxNormalizedTokenBytes);
    if (!content.ok()) {
      return content.status().with_context(path);
    }
    token.content = std::move(content).value();
    if (token.content.empty()) {
      return corrupt_data(path + ": is empty after normalization");
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

Result<Encoding> Pipeline::encode(std::string_view text, Spans spans,
                                  std::size_t max_tokens) const {
  Run run(*this, text, spans, max_tokens);
  Result<Encoding> encoding = run.encode();
  return run.must_track() ? Run(*this, text, Spans::kYes, max_tokens).encode()
                          : std::move(encoding);
}

}  // namespace tidemill::engines
