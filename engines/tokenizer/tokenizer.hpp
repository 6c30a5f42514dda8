// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back, as the tokenizer files of a Hugging Face model say.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "engines/tokenizer/encoding.hpp"
#include "engines/tokenizer/tokenizer_config.hpp"

namespace tidemill::engines {

/// Whether decoding keeps the text of special tokens.
enum class SpecialTokenText : std::uint8_t { kKeep, kDrop };

/// A byte-level BPE tokenizer of the GPT-2, Llama 3 and Qwen kinds. Immutable; copies share it.
///
/// Threads: all members are safe to call concurrently.
class Tokenizer {
public:
  /// A text to encode is at most this long.
  static constexpr std::size_t kMaxTextBytes = std::size_t{16} << 20U;

  /// Loads the tokenizer of `model`: a directory with tokenizer.json and what lies beside it
  /// (tokenizer_config.json, special_tokens_map.json, chat_template.jinja), or a GGUF file; see
  /// `read_tokenizer_source`.
  /// Errors: `kNotFound`, `kCorruptData`, `kUnimplemented`, `kResourceExhausted`; messages name
  /// file and field.
  [[nodiscard]] static Result<Tokenizer> load(const std::filesystem::path& model);

  /// Makes a tokenizer from the content of a tokenizer.json and a configuration.
  /// Errors: as `load`.
  [[nodiscard]] static Result<Tokenizer> from_json(std::string_view tokenizer_json,
                                                   TokenizerConfig config = {});

  /// Returns the ids of `text`.
  /// Errors: `kInvalidArgument` (invalid UTF-8, more than `kMaxTextBytes`, a byte or a run of
  /// combining marks that cannot be encoded), `kResourceExhausted` (a split pattern's match limit);
  /// messages name the byte offset.
  [[nodiscard]] Result<std::vector<std::int32_t>> encode(std::string_view text,
                                                         AddSpecialTokens special) const;

  /// Returns the ids of `text` and the bytes of `text` behind each. Errors: as `encode`.
  [[nodiscard]] Result<Encoding> encode_with_spans(std::string_view text,
                                                   AddSpecialTokens special) const;

  /// Returns the text of `ids`. Bytes that are not valid UTF-8 become U+FFFD; ids that no token has
  /// (a model's vocabulary may be larger than its tokenizer's) give nothing.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids,
                                   SpecialTokenText special) const;

  /// Returns the bytes that one token adds to the text; empty if no token has this id.
  [[nodiscard]] std::string_view token_bytes(std::int32_t id) const noexcept;

  /// Returns whether a token has this id.
  [[nodiscard]] bool contains(std::int32_t id) const noexcept;
  /// Returns whether the token is dropped by `SpecialTokenText::kDrop`.
  [[nodiscard]] bool is_special(std::int32_t id) const noexcept;
  /// Returns the id of an added token's content or of a vocabulary entry as the file spells it.
  [[nodiscard]] std::optional<std::int32_t> find(std::string_view token) const;

  /// Returns one more than the largest id.
  [[nodiscard]] std::int32_t vocabulary_size() const noexcept;

  /// The tokens that begin and end texts and fill batches, where the files name them.
  [[nodiscard]] std::optional<std::int32_t> bos_id() const noexcept;
  [[nodiscard]] std::optional<std::int32_t> eos_id() const noexcept;
  [[nodiscard]] std::optional<std::int32_t> pad_id() const noexcept;

  /// Returns token names and chat templates.
  [[nodiscard]] const TokenizerConfig& config() const noexcept;

private:
  struct Impl;
  enum class WantSpans : std::uint8_t { kNo, kYes };

  [[nodiscard]] static Result<std::shared_ptr<Impl>> build(std::string_view tokenizer_json);
  [[nodiscard]] Result<Encoding> run(std::string_view text, AddSpecialTokens special,
                                     WantSpans spans) const;
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

  std::shared_ptr<const Impl> impl_;
};

/// Decodes token by token: every complete character is given out at once, and only the bytes of an
/// unfinished one are held back.
///
/// The concatenation of all `push` results and `finish` equals `Tokenizer::decode` of all ids.
class StreamDecoder {
public:
  explicit StreamDecoder(Tokenizer tokenizer, SpecialTokenText special)
      : tokenizer_(std::move(tokenizer)), special_(special) {}

  /// Returns the text that became complete with this token; often empty.
  [[nodiscard]] std::string push(std::int32_t id);

  /// Returns what is left, U+FFFD for an unfinished character, and starts over.
  [[nodiscard]] std::string finish();

private:
  Tokenizer tokenizer_;
  SpecialTokenText special_;
  std::string held_;  // less than one character
};

}  // namespace tidemill::engines
