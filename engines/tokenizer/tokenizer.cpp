// SPDX-License-Identifier: Apache-2.0
// The tokenizer: the pipeline from text to ids, the table from ids to bytes, and named tokens.
//
// Lower bound of the tokens of a text. A token covers at most as many bytes of the text that is
// merged as its own spelling has, so there are at least (bytes of the longest token)-th as many
// tokens as bytes. This needs to know how many bytes are left when a text is merged:
//   - If no step removes bytes, all of them. A space that becomes another character, or that is
//     added, makes the text only longer.
//   - Unicode normalization, stripping, and added tokens that take the white space around them
//     remove bytes. But a character of printable ASCII stays, or is composed with marks to a
//     character that contains no other one. So there are at least as many bytes as these.
//   - A replacement that shortens the text, or that replaces what stays otherwise, and an unknown
//     token that stands for any number of characters permit no bound.
#include "engines/tokenizer/tokenizer.hpp"

#include <algorithm>
#include <limits>
#include <span>
#include <unordered_map>
#include <utility>

#include "base/digest.hpp"
#include "base/text/quote.hpp"
#include "base/text/utf8.hpp"
#include "engines/tokenizer/aligned_text.hpp"
#include "engines/tokenizer/byte_alphabet.hpp"
#include "engines/tokenizer/pipeline.hpp"
#include "engines/tokenizer/tokenizer_spec.hpp"

namespace tidemill::engines {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

// The data for decoding one id.
struct TokenText {
  std::string bytes;
  std::string first_bytes;  // if it is the first token; only for `DecoderSpec::dropped_in_first`
  bool exists = false;
  bool special = false;
  bool is_byte = false;  // a byte of a character, by byte fallback
};

// Returns `text` with `content` instead of each `pattern`. Requires a pattern that is not empty.
std::string with_replacements(const std::string& text, std::string_view pattern,
                              std::string_view content) {
  std::string result;
  std::size_t done = 0;
  for (std::size_t at = text.find(pattern); at != std::string::npos;
       at = text.find(pattern, done)) {
    result.append(text, done, at - done).append(content);
    done = at + pattern.size();
  }
  return result.append(text, done);
}

// Returns how a token with this content decodes.
TokenText text_of_token(const DecoderSpec& decoder, const std::string& content) {
  TokenText text;
  text.exists = true;
  if (decoder.alphabet == Alphabet::kBytes) {
    // If all characters of a token are in the byte alphabet, it decodes to the bytes they
    // represent. This includes added tokens, as in the reference implementation. Any other token
    // decodes to its own text.
    text.bytes = bytes_of_token(content).value_or(content);
    return text;
  }
  text.bytes = content;
  if (!decoder.dropped_in_first.empty()) {
    text.first_bytes = with_replacements(content, decoder.dropped_in_first, "");
  }
  for (const DecoderSpec::Replacement& replacement : decoder.replacements) {
    for (std::string* bytes : {&text.bytes, &text.first_bytes}) {
      *bytes = with_replacements(*bytes, replacement.pattern, replacement.content);
    }
  }
  if (const auto byte = byte_of_token(text.bytes); byte.has_value() && decoder.byte_fallback) {
    text.bytes.assign(1, *byte);
    text.is_byte = true;
  }
  return text;
}

// What the lower bound of the tokens of a text counts; see the top of this file.
enum class CountedBytes : std::uint8_t { kNone, kPrintableAscii, kAll };

CountedBytes counted_bytes(const TokenizerSpec& spec) {
  using Kind = NormalizerStep::Kind;
  if (spec.alphabet == Alphabet::kCharacters && !spec.byte_fallback &&
      spec.unknown_id.has_value()) {
    return CountedBytes::kNone;
  }
  bool removes = std::any_of(spec.added_tokens.begin(), spec.added_tokens.end(),
                             [](const AddedToken& token) { return token.lstrip || token.rstrip; });
  bool replaces = false;
  for (const NormalizerStep& step : spec.normalizers) {
    if (step.kind == Kind::kReplace && step.content.size() < step.pattern.size()) {
      return CountedBytes::kNone;
    }
    replaces = replaces || step.kind == Kind::kReplace;
    removes = removes || step.kind == Kind::kUnicode || step.kind == Kind::kStrip;
  }
  if (!removes) {
    return CountedBytes::kAll;
  }
  return replaces ? CountedBytes::kNone : CountedBytes::kPrintableAscii;
}

// Each text is preceded by its size, so that different texts have different digests.
std::string digest_of(std::string_view tokenizer_json, const TokenizerConfig& config) {
  DigestHasher hasher;
  const auto add = [&hasher](std::string_view text) {
    const std::string size = std::to_string(text.size()) + ':';
    hasher.update(std::as_bytes(std::span(size)));
    hasher.update(std::as_bytes(std::span(text)));
  };
  add(tokenizer_json);
  for (const auto* token : {&config.bos_token, &config.eos_token, &config.pad_token}) {
    add(token->has_value() ? "token" : "none");
    add(token->value_or(""));
  }
  for (const auto& [name, text] : config.chat_templates) {
    add(name);
    add(text);
  }
  return hasher.digest();
}

}  // namespace

struct Tokenizer::Impl {
  Impl(TokenizerSpec spec, Pipeline built_pipeline);

  // Stores `new_config` and looks up the tokens that it names.
  [[nodiscard]] Status set_config(TokenizerConfig new_config);
  [[nodiscard]] std::optional<std::int32_t> find(std::string_view token) const;
  [[nodiscard]] const TokenText* text_of(std::int32_t id) const noexcept;

  Pipeline pipeline;
  std::vector<std::int32_t> prefix_ids;
  std::vector<std::int32_t> suffix_ids;
  DecoderSpec decoder;
  std::unordered_map<std::string, std::int32_t> ids;  // vocabulary and added tokens
  std::vector<TokenText> texts;                       // by id
  CountedBytes counted = CountedBytes::kNone;
  std::size_t longest_token = 1;  // bytes of the longest spelling
  TokenizerConfig config;
  std::optional<std::int32_t> bos;
  std::optional<std::int32_t> eos;
  std::optional<std::int32_t> pad;
  std::string digest;
};

Tokenizer::Impl::Impl(TokenizerSpec spec, Pipeline built_pipeline)
    : pipeline(std::move(built_pipeline)),
      prefix_ids(std::move(spec.prefix_ids)),
      suffix_ids(std::move(spec.suffix_ids)),
      decoder(std::move(spec.decoder)),
      ids(std::move(spec.vocabulary)),
      counted(counted_bytes(spec)) {
  const auto put = [this](std::int32_t id, const std::string& content, bool special) {
    const auto index = static_cast<std::size_t>(id);
    if (index >= texts.size()) {
      texts.resize(index + 1);
    }
    texts[index] = text_of_token(decoder, content);
    texts[index].special = special;
  };
  for (const auto& [token, id] : ids) {
    put(id, token, false);
    longest_token = std::max(longest_token, decoder.alphabet == Alphabet::kBytes
                                                ? texts[static_cast<std::size_t>(id)].bytes.size()
                                                : token.size());
  }
  for (const AddedToken& token : spec.added_tokens) {
    // The reference implementation finds a normalized token by its content as written, and decodes
    // it to its normalized content. `Pipeline::build` has checked that it can be normalized.
    const std::string content =
        token.normalized
            ? normalized_by(spec.normalizers, token.content, kMaxNormalizedTokenBytes).value()
            : token.content;
    put(token.id, content, token.special);
    longest_token = std::max(longest_token, content.size());
    ids.emplace(token.content, token.id);
  }
}

std::optional<std::int32_t> Tokenizer::Impl::find(std::string_view token) const {
  const auto found = ids.find(std::string(token));
  if (found == ids.end()) {
    return std::nullopt;
  }
  return found->second;
}

const TokenText* Tokenizer::Impl::text_of(std::int32_t id) const noexcept {
  const auto index = static_cast<std::size_t>(id);
  return id >= 0 && index < texts.size() && texts[index].exists ? &texts[index] : nullptr;
}

Status Tokenizer::Impl::set_config(TokenizerConfig new_config) {
  config = std::move(new_config);
  const auto resolve = [this](const std::optional<std::string>& token, const char* key,
                              std::optional<std::int32_t>& id) -> Status {
    if (!token.has_value()) {
      return {};
    }
    id = find(*token);
    if (id.has_value()) {
      return {};
    }
    return corrupt_data(std::string(key) + ": " + quote(*token) +
                        " is not a token of tokenizer.json");
  };
  TIDEMILL_RETURN_IF_ERROR(resolve(config.bos_token, "bos_token", bos));
  TIDEMILL_RETURN_IF_ERROR(resolve(config.eos_token, "eos_token", eos));
  TIDEMILL_RETURN_IF_ERROR(resolve(config.pad_token, "pad_token", pad));
  for (const DeclaredToken& token : config.declared_tokens) {
    if (find(token.content) == token.id) {
      continue;
    }
    return corrupt_data("added_tokens_decoder[\"" + std::to_string(token.id) + "\"]: " +
                        quote(token.content) + " does not have this id in tokenizer.json");
  }
  return {};
}

Result<std::shared_ptr<Tokenizer::Impl>> Tokenizer::build(std::string_view tokenizer_json) {
  TIDEMILL_ASSIGN_OR_RETURN(TokenizerSpec spec, parse_tokenizer_json(tokenizer_json));
  TIDEMILL_ASSIGN_OR_RETURN(Pipeline pipeline, Pipeline::build(spec));
  return std::make_shared<Impl>(std::move(spec), std::move(pipeline));
}

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& model) {
  TIDEMILL_ASSIGN_OR_RETURN(TokenizerSource source, read_tokenizer_source(model));
  const auto impl = build(source.tokenizer_json);
  if (!impl.ok()) {
    return impl.status().with_context(source.location);
  }
  impl.value()->digest = digest_of(source.tokenizer_json, source.config);
  TIDEMILL_RETURN_IF_ERROR(
      impl.value()->set_config(std::move(source.config)).with_context(source.config_location));
  return Tokenizer(impl.value());
}

Result<Tokenizer> Tokenizer::from_json(std::string_view tokenizer_json, TokenizerConfig config) {
  TIDEMILL_ASSIGN_OR_RETURN(const auto impl, build(tokenizer_json));
  impl->digest = digest_of(tokenizer_json, config);
  TIDEMILL_RETURN_IF_ERROR(impl->set_config(std::move(config)));
  return Tokenizer(impl);
}

Result<Encoding> Tokenizer::run(std::string_view text, AddSpecialTokens special, WantSpans spans,
                                std::size_t max_tokens) const {
  if (text.size() > kMaxTextBytes) {
    return invalid_argument("text of " + std::to_string(text.size()) +
                            " bytes exceeds the limit of " + std::to_string(kMaxTextBytes));
  }
  if (const auto bad = find_invalid_utf8(text)) {
    return invalid_argument("text is not valid UTF-8 at byte " + std::to_string(*bad));
  }
  TIDEMILL_ASSIGN_OR_RETURN(
      Encoding encoding,
      impl_->pipeline.encode(
          text, spans == WantSpans::kYes ? Pipeline::Spans::kYes : Pipeline::Spans::kNo,
          max_tokens));
  if (special == AddSpecialTokens::kYes) {
    const auto& prefix = impl_->prefix_ids;
    const auto& suffix = impl_->suffix_ids;
    encoding.ids.insert(encoding.ids.begin(), prefix.begin(), prefix.end());
    encoding.ids.insert(encoding.ids.end(), suffix.begin(), suffix.end());
    if (spans == WantSpans::kYes) {
      encoding.spans.insert(encoding.spans.begin(), prefix.size(), TextSpan{});
      encoding.spans.insert(encoding.spans.end(), suffix.size(), TextSpan{});
    }
  }
  return encoding;
}

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text,
                                                    AddSpecialTokens special) const {
  return encode_at_most(text, special, kNoLimit);
}

Result<std::vector<std::int32_t>> Tokenizer::encode_at_most(std::string_view text,
                                                            AddSpecialTokens special,
                                                            std::size_t max_tokens) const {
  TIDEMILL_ASSIGN_OR_RETURN(Encoding encoding, run(text, special, WantSpans::kNo, max_tokens));
  return std::move(encoding.ids);
}

std::size_t Tokenizer::least_tokens(std::string_view text) const noexcept {
  std::size_t bytes = 0;
  switch (impl_->counted) {
    case CountedBytes::kNone: break;
    case CountedBytes::kPrintableAscii:
      bytes = static_cast<std::size_t>(
          std::count_if(text.begin(), text.end(), [](char c) { return c > ' ' && c < '\x7F'; }));
      break;
    case CountedBytes::kAll: bytes = text.size(); break;
  }
  return (bytes + impl_->longest_token - 1) / impl_->longest_token;
}

Result<Encoding> Tokenizer::encode_with_spans(std::string_view text,
                                              AddSpecialTokens special) const {
  return run(text, special, WantSpans::kYes, kNoLimit);
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, SpecialTokenText special) const {
  IncrementalDecoder decoder(*this, special);
  std::string text;
  for (const std::int32_t id : ids) {
    text += decoder.push(id);
  }
  return text + decoder.finish();
}

std::string_view Tokenizer::token_bytes(std::int32_t id) const noexcept {
  const TokenText* text = impl_->text_of(id);
  return text == nullptr ? std::string_view() : std::string_view{text->bytes};
}

bool Tokenizer::contains(std::int32_t id) const noexcept {
  return impl_->text_of(id) != nullptr;
}

bool Tokenizer::is_special(std::int32_t id) const noexcept {
  const TokenText* text = impl_->text_of(id);
  return text != nullptr && text->special;
}

std::optional<std::int32_t> Tokenizer::find(std::string_view token) const {
  return impl_->find(token);
}

std::int32_t Tokenizer::vocabulary_size() const noexcept {
  return static_cast<std::int32_t>(impl_->texts.size());
}

std::optional<std::int32_t> Tokenizer::bos_id() const noexcept {
  return impl_->bos;
}
std::optional<std::int32_t> Tokenizer::eos_id() const noexcept {
  return impl_->eos;
}
std::optional<std::int32_t> Tokenizer::pad_id() const noexcept {
  return impl_->pad;
}
const std::string& Tokenizer::digest() const noexcept {
  return impl_->digest;
}

const TokenizerConfig& Tokenizer::config() const noexcept {
  return impl_->config;
}

std::string IncrementalDecoder::push(std::int32_t id) {
  const TokenText* token = tokenizer_.impl_->text_of(id);
  if (token == nullptr || (special_ == SpecialTokenText::kDrop && token->special)) {
    return {};
  }
  const DecoderSpec& decoder = tokenizer_.impl_->decoder;
  std::string text;
  if (decoder.alphabet == Alphabet::kBytes) {
    held_.append(token->bytes);
    held_.erase(0, append_repaired_utf8(held_, text));
    return text;
  }
  const bool is_first = std::exchange(is_first_, false);
  if (token->is_byte) {
    held_.append(token->bytes);
    return {};
  }
  text = take_run();
  text += is_first && !decoder.dropped_in_first.empty() ? token->first_bytes : token->bytes;
  return stripped(std::move(text));
}

std::string IncrementalDecoder::take_run() {
  std::string run = std::exchange(held_, {});
  if (!find_invalid_utf8(run).has_value()) {
    return run;
  }
  std::string text;
  for (std::size_t i = 0; i < run.size(); ++i) {
    text += kReplacement;
  }
  return text;
}

std::string IncrementalDecoder::stripped(std::string text) {
  if (!is_stripping_ || text.empty()) {
    return text;
  }
  const DecoderSpec& decoder = tokenizer_.impl_->decoder;
  std::size_t begin = 0;
  while (num_stripped_ < decoder.max_stripped && begin < text.size() &&
         std::string_view{text}.substr(begin).starts_with(decoder.stripped)) {
    begin += decoder.stripped.size();
    ++num_stripped_;
  }
  text.erase(0, begin);
  is_stripping_ = text.empty();
  return text;
}

std::string IncrementalDecoder::finish() {
  std::string text;
  if (tokenizer_.impl_->decoder.alphabet == Alphabet::kBytes) {
    text = held_.empty() ? std::string_view() : kReplacement;
  } else {
    text = stripped(take_run());
  }
  held_.clear();
  is_first_ = true;
  is_stripping_ = true;
  num_stripped_ = 0;
  return text;
}

}  // namespace tidemill::engines
