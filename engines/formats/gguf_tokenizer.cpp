// SPDX-License-Identifier: Apache-2.0
#include "engines/formats/gguf_tokenizer.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/text/quote.hpp"
#include "engines/formats/gguf.hpp"

namespace tidemill::engines {
namespace {

constexpr std::string_view kPrefix = "tokenizer.ggml.";

// A way to split text into pieces, and the other properties of the tokenizers that use it.
struct SplitRow {
  std::string_view name;
  std::string_view pattern;  // empty: the pattern that is built into ByteLevel
  bool ignore_merges = false;
  bool nfc = false;
  bool adds_bos = false;  // the default of "add_bos_token"
};
// Source: tokenizer.json of models of these kinds.
constexpr std::array<SplitRow, 3> kSplits{{
    {"llama-bpe",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     true, false, true},
    {"qwen2",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     false, true, false},
    {"gpt-2", "", false, false, false},
}};

// Kinds of tokens, with their numbers in "token_type".
enum TokenKind : std::int64_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

Status bad_key(std::string_view key, const std::string& problem) {
  return corrupt_data("key \"" + std::string(kPrefix) + std::string(key) + "\": " + problem);
}

Status unsupported(std::string_view key, const std::string& problem) {
  return {Errc::kUnimplemented,
          "key \"" + std::string(kPrefix) + std::string(key) + "\": " + problem};
}

class TokenizerMaker {
public:
  explicit TokenizerMaker(const Json& keys) : keys_(keys) {}

  Result<TokenizerTexts> make();

private:
  [[nodiscard]] const Json* find(std::string_view key) const {
    return keys_.find(std::string(kPrefix) + std::string(key));
  }
  [[nodiscard]] Result<std::string> string(std::string_view key) const;
  [[nodiscard]] Result<bool> boolean(std::string_view key, bool when_absent) const;
  [[nodiscard]] Result<const Json::Array*> list(std::string_view key) const;
  Status read_split();
  Status read_tokens();
  Status read_token(std::size_t id, const Json& text, std::int64_t kind);
  Status read_merges();
  // Returns the token whose id is the value of the key, or nullopt without the key.
  [[nodiscard]] Result<std::optional<std::string>> named_token(std::string_view key) const;
  [[nodiscard]] Result<Json> post_processor() const;
  [[nodiscard]] Json pre_tokenizer() const;
  [[nodiscard]] Result<Json> config() const;

  const Json& keys_;
  const SplitRow* split_ = nullptr;
  std::vector<std::string> tokens_;  // by id; empty: unused
  Json::Object vocabulary_;
  Json::Array added_;
  Json::Array merges_;
};

Result<std::string> TokenizerMaker::string(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr || value->if_string() == nullptr) {
    return bad_key(key, value == nullptr ? "missing" : "must be a string");
  }
  return *value->if_string();
}

Result<bool> TokenizerMaker::boolean(std::string_view key, bool when_absent) const {
  const Json* value = find(key);
  if (value != nullptr && value->if_bool() == nullptr) {
    return bad_key(key, "must be true or false");
  }
  return value == nullptr ? when_absent : *value->if_bool();
}

Result<const Json::Array*> TokenizerMaker::list(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr || value->if_array() == nullptr) {
    return bad_key(key, value == nullptr ? "missing" : "must be a list");
  }
  return value->if_array();
}

Status TokenizerMaker::read_split() {
  if (find("model") == nullptr) {
    return {Errc::kNotFound, "has no tokenizer (no key \"tokenizer.ggml.model\")"};
  }
  TIDEMILL_ASSIGN_OR_RETURN(const std::string model, string("model"));
  if (model != "gpt2") {
    return unsupported("model", quote(model) +
                                    " is not supported, only \"gpt2\" (byte-level BPE); put the "
                                    "model's tokenizer.json next to the file");
  }
  TIDEMILL_ASSIGN_OR_RETURN(const std::string split, string("pre"));
  const auto* row = std::find_if(kSplits.begin(), kSplits.end(),
                                 [&split](const SplitRow& r) { return r.name == split; });
  if (row == kSplits.end()) {
    return unsupported("pre", quote(split) +
                                  " is not supported, only \"llama-bpe\", \"qwen2\" and \"gpt-2\"; "
                                  "put the model's tokenizer.json next to the file");
  }
  split_ = row;
  TIDEMILL_ASSIGN_OR_RETURN(const bool ends, boolean("add_eos_token", false));
  TIDEMILL_ASSIGN_OR_RETURN(const bool spaces, boolean("add_space_prefix", false));
  if (ends || spaces) {
    return unsupported(ends ? "add_eos_token" : "add_space_prefix", "true is not supported");
  }
  return {};
}

Status TokenizerMaker::read_token(std::size_t id, const Json& text, std::int64_t kind) {
  const std::string location = "token " + std::to_string(id);
  if (text.if_string() == nullptr) {
    return bad_key("tokens", location + ": must be a string");
  }
  const std::string& content = *text.if_string();
  if (content.empty()) {
    return bad_key("tokens", location + ": must not be empty");
  }
  const auto number = static_cast<std::int64_t>(id);
  switch (kind) {
    case kNormal: vocabulary_.push_back({content, number}); break;
    case kControl:
    case kUserDefined:
      added_.emplace_back(Json::Object{{"id", number},
                                       {"content", content},
                                       {"single_word", false},
                                       {"lstrip", false},
                                       {"rstrip", false},
                                       {"normalized", false},
                                       {"special", kind == kControl}});
      break;
    case kUnused: return {};
    default:
      return unsupported("token_type", location + ": type " + std::to_string(kind) +
                                           " does not belong to byte-level BPE");
  }
  tokens_[id] = content;
  return {};
}

Status TokenizerMaker::read_tokens() {
  TIDEMILL_ASSIGN_OR_RETURN(const Json::Array* texts, list("tokens"));
  TIDEMILL_ASSIGN_OR_RETURN(const Json::Array* kinds, list("token_type"));
  if (kinds->size() != texts->size()) {
    return bad_key("token_type", std::to_string(kinds->size()) + " types for " +
                                     std::to_string(texts->size()) + " tokens");
  }
  tokens_.resize(texts->size());
  std::unordered_set<std::string_view> seen;
  for (std::size_t id = 0; id < texts->size(); ++id) {
    const std::int64_t* kind = (*kinds)[id].if_integer();
    if (kind == nullptr) {
      return bad_key("token_type", "token " + std::to_string(id) + ": must be an integer");
    }
    TIDEMILL_RETURN_IF_ERROR(read_token(id, (*texts)[id], *kind));
    if (*kind != kUnused && !seen.insert(*(*texts)[id].if_string()).second) {
      return bad_key("tokens",
                     "token " + std::to_string(id) + ": " + quote(tokens_[id]) + " appears twice");
    }
  }
  return {};
}

Status TokenizerMaker::read_merges() {
  TIDEMILL_ASSIGN_OR_RETURN(const Json::Array* merges, list("merges"));
  for (std::size_t i = 0; i < merges->size(); ++i) {
    const std::string* text = (*merges)[i].if_string();
    if (text == nullptr) {
      return bad_key("merges", "merge " + std::to_string(i) + ": must be a string");
    }
    merges_.emplace_back(*text);
  }
  return {};
}

Result<std::optional<std::string>> TokenizerMaker::named_token(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) {
    return std::optional<std::string>();
  }
  const std::int64_t* id = value->if_integer();
  if (id == nullptr || *id < 0 || *id >= static_cast<std::int64_t>(tokens_.size()) ||
      tokens_[static_cast<std::size_t>(*id)].empty()) {
    return bad_key(key,
                   "must be the id of one of the " + std::to_string(tokens_.size()) + " tokens");
  }
  return std::optional(tokens_[static_cast<std::size_t>(*id)]);
}

Json byte_level(bool use_regex) {
  return Json::Object{{"type", "ByteLevel"},
                      {"add_prefix_space", false},
                      {"trim_offsets", true},
                      {"use_regex", use_regex}};
}

Json TokenizerMaker::pre_tokenizer() const {
  if (split_->pattern.empty()) {
    return byte_level(true);
  }
  Json split = Json::Object{{"type", "Split"},
                            {"pattern", Json::Object{{"Regex", std::string(split_->pattern)}}},
                            {"behavior", "Isolated"},
                            {"invert", false}};
  return Json::Object{{"type", "Sequence"},
                      {"pretokenizers", Json::Array{std::move(split), byte_level(false)}}};
}

Result<Json> TokenizerMaker::post_processor() const {
  TIDEMILL_ASSIGN_OR_RETURN(const bool adds_bos, boolean("add_bos_token", split_->adds_bos));
  if (!adds_bos) {
    return byte_level(true);
  }
  TIDEMILL_ASSIGN_OR_RETURN(const std::optional<std::string> bos, named_token("bos_token_id"));
  if (!bos.has_value()) {
    return bad_key("bos_token_id", "missing, but texts must begin with this token");
  }
  const std::int64_t id = *find("bos_token_id")->if_integer();
  Json first = Json::Object{{"SpecialToken", Json::Object{{"id", *bos}, {"type_id", 0}}}};
  Json text = Json::Object{{"Sequence", Json::Object{{"id", "A"}, {"type_id", 0}}}};
  Json known = Json::Object{
      {*bos, Json::Object{{"id", *bos}, {"ids", Json::Array{id}}, {"tokens", Json::Array{*bos}}}}};
  return Json(Json::Object{{"type", "TemplateProcessing"},
                           {"single", Json::Array{std::move(first), std::move(text)}},
                           {"pair", Json::Array()},
                           {"special_tokens", std::move(known)}});
}

Result<Json> TokenizerMaker::config() const {
  constexpr std::array<std::pair<const char*, const char*>, 3> kNamed{
      {{"bos_token", "bos_token_id"},
       {"eos_token", "eos_token_id"},
       {"pad_token", "padding_token_id"}}};
  Json::Object config;
  for (const auto& [name, key] : kNamed) {
    TIDEMILL_ASSIGN_OR_RETURN(const std::optional<std::string> token, named_token(key));
    if (token.has_value()) {
      config.push_back({name, *token});
    }
  }
  if (const Json* chat = keys_.find("tokenizer.chat_template")) {
    if (chat->if_string() == nullptr) {
      return corrupt_data("key \"tokenizer.chat_template\": must be a string");
    }
    config.push_back({"chat_template", *chat->if_string()});
  }
  return Json(std::move(config));
}

Result<TokenizerTexts> TokenizerMaker::make() {
  TIDEMILL_RETURN_IF_ERROR(read_split());
  TIDEMILL_RETURN_IF_ERROR(read_tokens());
  TIDEMILL_RETURN_IF_ERROR(read_merges());
  TIDEMILL_ASSIGN_OR_RETURN(Json post, post_processor());
  TIDEMILL_ASSIGN_OR_RETURN(const Json config, this->config());
  Json model = Json::Object{{"type", "BPE"},
                            {"ignore_merges", split_->ignore_merges},
                            {"vocab", std::move(vocabulary_)},
                            {"merges", std::move(merges_)}};
  const Json root =
      Json::Object{{"version", "1.0"},
                   {"added_tokens", std::move(added_)},
                   {"normalizer", split_->nfc ? Json(Json::Object{{"type", "NFC"}}) : Json()},
                   {"pre_tokenizer", pre_tokenizer()},
                   {"post_processor", std::move(post)},
                   {"decoder", byte_level(true)},
                   {"model", std::move(model)}};
  return TokenizerTexts{root.to_text(), config.to_text()};
}

}  // namespace

Result<TokenizerTexts> gguf_tokenizer(const Json& keys) {
  return TokenizerMaker(keys).make();
}

Result<TokenizerTexts> read_gguf_tokenizer(const std::filesystem::path& path) {
  TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile file, ReadableFile::open(path));
  TIDEMILL_ASSIGN_OR_RETURN(const GgufHeader header, read_gguf_header(file, GgufLists::kRead));
  Result<TokenizerTexts> texts = gguf_tokenizer(header.keys);
  return texts.ok() ? std::move(texts) : texts.status().with_context(path.string());
}

}  // namespace tidemill::engines
