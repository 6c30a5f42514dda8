// SPDX-License-Identifier: Apache-2.0
// Converts text to token ids and back, as the tokenizer files of a model prescribe.
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

/// A BPE tokenizer: byte-level (GPT-2, Llama 3, Qwen) or in the style of SentencePiece (Llama 2,
/// Mistral, Gemma). Immutable; copies share the data.
///
/// Threads: all members are safe to call concurrently.
class Tokenizer {
public:
  /// The largest text that can be encoded.
  static constexpr std::size_t kMaxTextBytes = std::size_t{16} << 20U;

  /// Loads the tokenizer of `model`, which is a GGUF file or a directory with tokenizer.json and
  /// optionally tokenizer_config.json, special_tokens_map.json and chat_template.jinja. See
  /// `read_tokenizer_source`.
  /// Errors: `kNotFound`, `kInvalidArgument`, `kCorruptData`, `kUnimplemented`; messages name the
  /// file and the field.
  [[nodiscard]] static Result<Tokenizer> load(const std::filesystem::path& model);

  /// Creates a tokenizer from the content of a tokenizer.json and a configuration.
  /// Errors: as `load`.
  [[nodiscard]] static Result<Tokenizer> from_json(std::string_view tokenizer_json,
                                                   TokenizerConfig config = {});

  /// Returns the ids of `text`.
  /// Errors: `kInvalidArgument` (invalid UTF-8, more than `kMaxTextBytes`, more than 32 MiB after
  /// normalization, a character or a run of combining marks that cannot be encoded),
  /// `kResourceExhausted` (a split pattern reached its match limit); messages name the byte offset.
  [[nodiscard]] Result<std::vector<std::int32_t>> encode(std::string_view text,
                                                         AddSpecialTokens special) const;

  /// Does the same, but may stop once there are more than `max_tokens` ids: the result is then a
  /// longer prefix of the ids than that, and what follows in `text` is not checked.
  [[nodiscard]] Result<std::vector<std::int32_t>> encode_at_most(std::string_view text,
                                                                 AddSpecialTokens special,
                                                                 std::size_t max_tokens) const;

  /// Returns a lower bound of the number of ids of `text`, if it can be encoded: 0 if the files of
  /// the tokenizer permit no bound. Reads `text` once, at most.
  [[nodiscard]] std::size_t least_tokens(std::string_view text) const noexcept;

  /// Returns the ids of `text` and the bytes of `text` that each one covers. Errors: as `encode`.
  [[nodiscard]] Result<Encoding> encode_with_spans(std::string_view text,
                                                   AddSpecialTokens special) const;

  /// Returns the text of `ids`. Bytes that are not valid UTF-8 become U+FFFD: each invalid step of
  /// a byte-level tokenizer, and each byte of a run of byte tokens if the run is not valid. Ids
  /// without a token are skipped; a model's vocabulary may be larger than its tokenizer's.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids,
                                   SpecialTokenText special) const;

  /// Returns the bytes that a token adds to the text; empty if no token has this id. Tokenizers
  /// that add a space before a text remove it from the first token of a decoded text, but not from
  /// this.
  [[nodiscard]] std::string_view token_bytes(std::int32_t id) const noexcept;

  /// Returns whether a token has this id.
  [[nodiscard]] bool contains(std::int32_t id) const noexcept;
  /// Returns whether `SpecialTokenText::kDrop` drops this token.
  [[nodiscard]] bool is_special(std::int32_t id) const noexcept;
  /// Returns the id of a token, given as the content of an added token or as an entry of the
  /// vocabulary in the file's spelling (in the byte alphabet, or with U+2581 for a space).
  [[nodiscard]] std::optional<std::int32_t> find(std::string_view token) const;

  /// Returns one more than the largest id.
  [[nodiscard]] std::int32_t vocabulary_size() const noexcept;

  /// Returns the ids of the tokens that begin texts, end texts and pad batches, if the files name
  /// them.
  [[nodiscard]] std::optional<std::int32_t> bos_id() const noexcept;
  [[nodiscard]] std::optional<std::int32_t> eos_id() const noexcept;
  [[nodiscard]] std::optional<std::int32_t> pad_id() const noexcept;

  /// Returns the digest of the tokenizer.json, the named special tokens and the chat templates.
  [[nodiscard]] const std::string& digest() const noexcept;

  /// Returns the names of special tokens and the chat templates.
  [[nodiscard]] const TokenizerConfig& config() const noexcept;

private:
  friend class IncrementalDecoder;
  struct Impl;
  enum class WantSpans : std::uint8_t { kNo, kYes };

  [[nodiscard]] static Result<std::shared_ptr<Impl>> build(std::string_view tokenizer_json);
  [[nodiscard]] Result<Encoding> run(std::string_view text, AddSpecialTokens special,
                                     WantSpans spans, std::size_t max_tokens) const;
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

  std::shared_ptr<const Impl> impl_;
};

/// Decodes token by token. Complete characters are returned immediately; only the bytes of an
/// incomplete character are held back. With byte fallback, a run of byte tokens is held back until
/// another token ends it, because one invalid byte changes the text of the whole run.
///
/// The results of all `push` calls and of `finish` together equal `Tokenizer::decode` of all ids.
class IncrementalDecoder {
public:
  explicit IncrementalDecoder(Tokenizer tokenizer, SpecialTokenText special)
      : tokenizer_(std::move(tokenizer)), special_(special) {}

  /// Returns the text that this token completes. It may be empty.
  [[nodiscard]] std::string push(std::int32_t id);

  /// Returns the remaining text, with U+FFFD for incomplete characters, and resets the decoder.
  [[nodiscard]] std::string finish();

private:
  // Returns the text of the bytes that are held back, which are a whole run of byte tokens.
  [[nodiscard]] std::string take_run();
  // Strips the characters from `text` that the decoder strips from the beginning of all text.
  [[nodiscard]] std::string stripped(std::string text);

  Tokenizer tokenizer_;
  SpecialTokenText special_;
  std::string held_;              // the bytes of an incomplete character, or of a run
  bool is_first_ = true;          // no token has been decoded
  bool is_stripping_ = true;      // all text so far has been stripped
  std::size_t num_stripped_ = 0;  // characters
};

}  // namespace tidemill::engines
