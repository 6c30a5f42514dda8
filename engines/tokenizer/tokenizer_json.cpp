// SPDX-License-Identifier: Apache-2.0
// Parses tokenizer.json into a `TokenizerSpec`. Unknown fields and types are refused by name.
#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/json/json.hpp"
#include "base/text/clip.hpp"
#include "base/text/quote.hpp"
#include "base/text/utf8.hpp"
#include "engines/tokenizer/byte_alphabet.hpp"
#include "engines/tokenizer/tokenizer_spec.hpp"

namespace tidemill::engines {
namespace {

constexpr std::size_t kMaxTemplateTokens = 16;
constexpr std::size_t kMaxPreTokenizers = 8;
// The pattern by which GPT-2 splits text. ByteLevel uses it if use_regex is set.
// Source: huggingface/tokenizers, pre_tokenizers/byte_level.
constexpr const char* kGpt2Split =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Status unsupported(const std::string& field, const std::string& what) {
  return {Errc::kUnimplemented, field + ": " + what + " is not supported"};
}

Status malformed(const std::string& field, const std::string& why) {
  return corrupt_data(field.empty() ? why : field + ": " + why);
}

// Returns a value as text, shortened for an error message.
std::string preview(const Json& value) {
  std::string text = value.to_line();
  text.pop_back();  // the newline
  return clipped(text);
}

// A JSON object and the path that leads to it.
class Node {
public:
  static Result<Node> of(const Json& value, std::string path) {
    if (value.if_object() == nullptr) {
      return malformed(path, "must be an object, not " + preview(value));
    }
    return Node(&value, std::move(path));
  }

  [[nodiscard]] std::string path_of(std::string_view key) const {
    const std::string shown_key = quote_unless_plain(key);
    return path_.empty() ? shown_key : path_ + "." + shown_key;
  }
  [[nodiscard]] const std::string& path() const { return path_; }

  // Returns the member, or nullptr if it is absent or null.
  [[nodiscard]] const Json* find(std::string_view key) const {
    const Json* found = value_->find(key);
    return found == nullptr || found->is_null() ? nullptr : found;
  }

  [[nodiscard]] Result<const Json*> require(std::string_view key) const {
    const Json* found = find(key);
    if (found == nullptr) {
      return malformed(path_of(key), "missing");
    }
    return found;
  }

  [[nodiscard]] Result<Node> object(std::string_view key) const {
    TIDEMILL_ASSIGN_OR_RETURN(const Json* value, require(key));
    return Node::of(*value, path_of(key));
  }

  [[nodiscard]] Result<const Json::Array*> array(std::string_view key) const {
    TIDEMILL_ASSIGN_OR_RETURN(const Json* value, require(key));
    if (value->if_array() == nullptr) {
      return malformed(path_of(key), "must be a list, not " + preview(*value));
    }
    return value->if_array();
  }

  [[nodiscard]] Result<std::string> string(std::string_view key) const {
    TIDEMILL_ASSIGN_OR_RETURN(const Json* value, require(key));
    if (value->if_string() == nullptr) {
      return malformed(path_of(key), "must be a string, not " + preview(*value));
    }
    return *value->if_string();
  }

  [[nodiscard]] Result<bool> boolean(std::string_view key, bool when_absent) const {
    const Json* value = find(key);
    if (value == nullptr) {
      return when_absent;
    }
    if (value->if_bool() == nullptr) {
      return malformed(path_of(key), "must be true or false, not " + preview(*value));
    }
    return *value->if_bool();
  }

  [[nodiscard]] Result<std::string> type() const { return string("type"); }

  // Refuses all members but the known ones, because others could change what the tokenizer does.
  [[nodiscard]] Status allow_only(std::initializer_list<const char*> known) const {
    for (const Json::Member& member : *value_->if_object()) {
      const auto is_key = [&member](const char* key) { return member.name == key; };
      if (std::none_of(known.begin(), known.end(), is_key)) {
        return unsupported(path_of(member.name), "this field");
      }
    }
    return {};
  }

private:
  Node(const Json* value, std::string path) : value_(value), path_(std::move(path)) {}

  const Json* value_;
  std::string path_;
};

std::string indexed(const std::string& path, std::size_t index) {
  return path + "[" + std::to_string(index) + "]";
}

// Reads a token id. `path` is called only if an error has to name the location.
template <class Path>
Result<std::int32_t> read_id(const Json& value, const Path& path) {
  const std::int64_t* id = value.if_integer();
  if (id == nullptr && value.if_large_integer() == nullptr) {
    return malformed(path(), "must be an integer, not " + preview(value));
  }
  if (id == nullptr || *id < 0 || *id >= kMaxTokenId) {
    return malformed(
        path(), "id " + preview(value) + " is outside [0, " + std::to_string(kMaxTokenId) + ")");
  }
  return static_cast<std::int32_t>(*id);
}

class Reader {
public:
  Result<TokenizerSpec> read(const Json& root) {
    TIDEMILL_ASSIGN_OR_RETURN(const Node top, Node::of(root, ""));
    TIDEMILL_RETURN_IF_ERROR(
        top.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer",
                        "pre_tokenizer", "post_processor", "decoder", "model"}));
    // Files that were saved after training on batches have these. They describe the batches of that
    // program. Transformers sets both anew for each call, by default to none, so they do not change
    // the ids of a text.
    for (const char* key : {"truncation", "padding"}) {
      if (const Json* given = top.find(key); given != nullptr) {
        TIDEMILL_RETURN_IF_ERROR(Node::of(*given, key).status());
      }
    }
    TIDEMILL_ASSIGN_OR_RETURN(const Node model, top.object("model"));
    TIDEMILL_RETURN_IF_ERROR(read_model(model));
    TIDEMILL_RETURN_IF_ERROR(read_added_tokens(top));
    TIDEMILL_RETURN_IF_ERROR(read_normalizer(top));
    TIDEMILL_ASSIGN_OR_RETURN(const Node pre_tokenizer, top.object("pre_tokenizer"));
    TIDEMILL_RETURN_IF_ERROR(read_pre_tokenizer(pre_tokenizer));
    TIDEMILL_RETURN_IF_ERROR(read_post_processor(top));
    TIDEMILL_ASSIGN_OR_RETURN(const Node decoder, top.object("decoder"));
    TIDEMILL_RETURN_IF_ERROR(read_byte_level(decoder, nullptr));
    return std::move(spec_);
  }

private:
  Status read_model(const Node& model) {
    TIDEMILL_RETURN_IF_ERROR(model.allow_only(
        {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
         "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
    if (model.find("type") != nullptr) {
      TIDEMILL_ASSIGN_OR_RETURN(const std::string type, model.type());
      if (type != "BPE") {
        return unsupported("model.type", quote(type));
      }
    }
    if (const Json* dropout = model.find("dropout");
        dropout != nullptr && dropout->number() != 0.0) {
      return unsupported("model.dropout", preview(*dropout));
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json* affix = model.find(key);
      if (affix != nullptr && (affix->if_string() == nullptr || !affix->if_string()->empty())) {
        return unsupported(model.path_of(key), preview(*affix));
      }
    }
    TIDEMILL_ASSIGN_OR_RETURN(const bool byte_fallback, model.boolean("byte_fallback", false));
    if (byte_fallback) {
      return unsupported("model.byte_fallback", "true");
    }
    TIDEMILL_ASSIGN_OR_RETURN(spec_.ignore_merges, model.boolean("ignore_merges", false));
    TIDEMILL_RETURN_IF_ERROR(read_vocabulary(model));
    TIDEMILL_RETURN_IF_ERROR(read_merges(model));
    return check_unknown_token(model);
  }

  Status read_vocabulary(const Node& model) {
    TIDEMILL_ASSIGN_OR_RETURN(const Json* entries, model.require("vocab"));
    if (entries->if_object() == nullptr) {
      return malformed("model.vocab", "must be an object");
    }
    spec_.vocabulary.reserve(entries->if_object()->size());
    for (const auto& [token, value] : *entries->if_object()) {
      // Building the path costs more than reading the id, so it is done only for an error.
      const auto path = [&shown_token = token] {
        return "model.vocab[" + preview(shown_token) + "]";
      };
      TIDEMILL_ASSIGN_OR_RETURN(const std::int32_t id, read_id(value, path));
      const std::string& kept = spec_.vocabulary.emplace(token, id).first->first;
      const auto [owner, is_new] = token_of_id_.emplace(id, kept);
      if (!is_new) {
        return malformed(path(), "id " + std::to_string(id) + " already belongs to " +
                                     preview(std::string(owner->second)));
      }
    }
    return {};
  }

  Status read_merges(const Node& model) {
    TIDEMILL_ASSIGN_OR_RETURN(const Json::Array* merges, model.array("merges"));
    spec_.merges.reserve(merges->size());
    std::unordered_set<std::int64_t> seen;
    seen.reserve(merges->size());
    for (std::size_t i = 0; i < merges->size(); ++i) {
      TIDEMILL_ASSIGN_OR_RETURN(const MergeRule rule, read_merge((*merges)[i], i));
      if (!seen.insert(std::int64_t{rule.left} * kMaxTokenId + rule.right).second) {
        return malformed(indexed("model.merges", i), "appears twice");
      }
      spec_.merges.push_back(rule);
    }
    return {};
  }

  // A merge is "left right" in older files and ["left", "right"] in newer ones.
  Result<MergeRule> read_merge(const Json& value, std::size_t index) const {
    std::string left;
    std::string right;
    const Json::Array* pair = value.if_array();
    if (pair != nullptr && pair->size() == 2 && (*pair)[0].if_string() != nullptr &&
        (*pair)[1].if_string() != nullptr) {
      left = *(*pair)[0].if_string();
      right = *(*pair)[1].if_string();
    } else if (const std::string* text = value.if_string()) {
      const std::size_t space = text->find(' ');
      if (space != std::string::npos && text->find(' ', space + 1) == std::string::npos) {
        left = text->substr(0, space);
        right = text->substr(space + 1);
      }
    }
    if (left.empty() || right.empty()) {
      return malformed(indexed("model.merges", index), "must be two tokens, not " + preview(value));
    }
    const auto id_of = [&](const std::string& token) -> Result<std::int32_t> {
      const auto found = spec_.vocabulary.find(token);
      if (found == spec_.vocabulary.end()) {
        return malformed(indexed("model.merges", index),
                         preview(token) + " is not in the vocabulary");
      }
      return found->second;
    };
    MergeRule rule;
    TIDEMILL_ASSIGN_OR_RETURN(rule.left, id_of(left));
    TIDEMILL_ASSIGN_OR_RETURN(rule.right, id_of(right));
    TIDEMILL_ASSIGN_OR_RETURN(rule.merged, id_of(left + right));
    return rule;
  }

  // The unknown token can occur only if the vocabulary lacks a byte.
  Status check_unknown_token(const Node& model) const {
    if (model.find("unk_token") == nullptr) {
      return {};
    }
    for (unsigned byte = 0; byte < 256; ++byte) {
      std::string spelled;
      append_utf8(byte_alphabet_character(static_cast<unsigned char>(byte)), spelled);
      if (spec_.vocabulary.count(spelled) == 0) {
        return unsupported(
            "model.unk_token",
            "an unknown token with a vocabulary that lacks byte " + std::to_string(byte));
      }
    }
    return {};
  }

  Status read_added_tokens(const Node& top) {
    if (top.find("added_tokens") == nullptr) {
      return {};
    }
    TIDEMILL_ASSIGN_OR_RETURN(const Json::Array* tokens, top.array("added_tokens"));
    std::unordered_set<std::string> contents;
    spec_.added_tokens.reserve(tokens->size());  // `token_of_id_` views their contents
    for (std::size_t i = 0; i < tokens->size(); ++i) {
      TIDEMILL_ASSIGN_OR_RETURN(const Node node,
                                Node::of((*tokens)[i], indexed("added_tokens", i)));
      TIDEMILL_ASSIGN_OR_RETURN(AddedToken token, read_added_token(node));
      if (!contents.insert(token.content).second) {
        return malformed(node.path_of("content"), preview(token.content) + " appears twice");
      }
      spec_.added_tokens.push_back(std::move(token));
      TIDEMILL_RETURN_IF_ERROR(claim_id(spec_.added_tokens.back(), node.path_of("id")));
    }
    return {};
  }

  static Result<AddedToken> read_added_token(const Node& node) {
    TIDEMILL_RETURN_IF_ERROR(node.allow_only(
        {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
    AddedToken token;
    TIDEMILL_ASSIGN_OR_RETURN(const Json* id, node.require("id"));
    TIDEMILL_ASSIGN_OR_RETURN(token.id, read_id(*id, [&node] { return node.path_of("id"); }));
    TIDEMILL_ASSIGN_OR_RETURN(token.content, node.string("content"));
    if (token.content.empty() || token.content.size() > kMaxAddedTokenBytes) {
      return unsupported(node.path_of("content"),
                         "a token of " + std::to_string(token.content.size()) + " bytes");
    }
    TIDEMILL_ASSIGN_OR_RETURN(token.single_word, node.boolean("single_word", false));
    TIDEMILL_ASSIGN_OR_RETURN(token.lstrip, node.boolean("lstrip", false));
    TIDEMILL_ASSIGN_OR_RETURN(token.rstrip, node.boolean("rstrip", false));
    TIDEMILL_ASSIGN_OR_RETURN(token.special, node.boolean("special", false));
    TIDEMILL_ASSIGN_OR_RETURN(token.normalized, node.boolean("normalized", !token.special));
    return token;
  }

  // Reserves the id of an added token. The vocabulary may contain the token too, with the same id.
  Status claim_id(const AddedToken& token, const std::string& path) {
    const auto in_vocabulary = spec_.vocabulary.find(token.content);
    if (in_vocabulary != spec_.vocabulary.end() && in_vocabulary->second != token.id) {
      return malformed(path, preview(token.content) + " has id " + std::to_string(token.id) +
                                 " here and " + std::to_string(in_vocabulary->second) +
                                 " in model.vocab");
    }
    const auto [owner, is_new] = token_of_id_.emplace(token.id, token.content);
    if (!is_new && owner->second != token.content) {
      return malformed(path, "id " + std::to_string(token.id) + " already belongs to " +
                                 preview(std::string(owner->second)));
    }
    return {};
  }

  Status read_normalizer(const Node& top) {
    if (top.find("normalizer") == nullptr) {
      return {};
    }
    TIDEMILL_ASSIGN_OR_RETURN(const Node normalizer, top.object("normalizer"));
    TIDEMILL_ASSIGN_OR_RETURN(const std::string type, normalizer.type());
    if (type != "NFC") {
      return unsupported("normalizer.type", quote(type));
    }
    TIDEMILL_RETURN_IF_ERROR(normalizer.allow_only({"type"}));
    spec_.normalizer = TokenizerSpec::Normalizer::kNfc;
    return {};
  }

  // Accepts ByteLevel alone, or a Sequence of Splits that ends with ByteLevel.
  Status read_pre_tokenizer(const Node& node) {
    TIDEMILL_ASSIGN_OR_RETURN(const std::string type, node.type());
    if (type == "ByteLevel") {
      return read_byte_level(node, &spec_);
    }
    if (type != "Sequence") {
      return unsupported(node.path_of("type"), quote(type));
    }
    TIDEMILL_RETURN_IF_ERROR(node.allow_only({"type", "pretokenizers"}));
    TIDEMILL_ASSIGN_OR_RETURN(const Json::Array* parts, node.array("pretokenizers"));
    const std::string list = node.path_of("pretokenizers");
    if (parts->empty() || parts->size() > kMaxPreTokenizers) {
      return unsupported(list, "a list of " + std::to_string(parts->size()) + " pre-tokenizers");
    }
    for (std::size_t i = 0; i < parts->size(); ++i) {
      TIDEMILL_ASSIGN_OR_RETURN(const Node part, Node::of((*parts)[i], indexed(list, i)));
      TIDEMILL_RETURN_IF_ERROR(i + 1 == parts->size() ? read_byte_level(part, &spec_)
                                                      : read_split(part));
    }
    return {};
  }

  Status read_split(const Node& split) {
    TIDEMILL_ASSIGN_OR_RETURN(const std::string type, split.type());
    if (type != "Split") {
      return unsupported(split.path_of("type"), quote(type) + " in this position");
    }
    TIDEMILL_RETURN_IF_ERROR(split.allow_only({"type", "pattern", "behavior", "invert"}));
    TIDEMILL_ASSIGN_OR_RETURN(const std::string behavior, split.string("behavior"));
    if (behavior != "Isolated") {
      return unsupported(split.path_of("behavior"), quote(behavior));
    }
    TIDEMILL_ASSIGN_OR_RETURN(const bool invert, split.boolean("invert", false));
    if (invert) {
      return unsupported(split.path_of("invert"), "true");
    }
    TIDEMILL_ASSIGN_OR_RETURN(const Node pattern, split.object("pattern"));
    TIDEMILL_RETURN_IF_ERROR(pattern.allow_only({"Regex"}));
    TIDEMILL_ASSIGN_OR_RETURN(std::string regex, pattern.string("Regex"));
    spec_.split_patterns.push_back(std::move(regex));
    return {};
  }

  // Reads a ByteLevel. As a pre-tokenizer it changes `spec`. As a decoder or post-processor, for
  // which `spec` is null, it has no options that change ids or text.
  static Status read_byte_level(const Node& node, TokenizerSpec* spec) {
    TIDEMILL_ASSIGN_OR_RETURN(const std::string type, node.type());
    if (type != "ByteLevel") {
      return unsupported(node.path_of("type"), quote(type) + " in this position");
    }
    TIDEMILL_RETURN_IF_ERROR(
        node.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    TIDEMILL_ASSIGN_OR_RETURN(const bool add_prefix_space, node.boolean("add_prefix_space", true));
    TIDEMILL_ASSIGN_OR_RETURN(const bool use_regex, node.boolean("use_regex", true));
    if (spec == nullptr) {
      return {};
    }
    // After a Split, the space would be added to every piece.
    if (add_prefix_space && !spec->split_patterns.empty()) {
      return unsupported(node.path_of("add_prefix_space"), "true after a Split");
    }
    spec->add_prefix_space = add_prefix_space;
    if (use_regex) {
      spec->split_patterns.emplace_back(kGpt2Split);
    }
    return {};
  }

  Status read_post_processor(const Node& top) {
    if (top.find("post_processor") == nullptr) {
      return {};
    }
    TIDEMILL_ASSIGN_OR_RETURN(const Node node, top.object("post_processor"));
    TIDEMILL_ASSIGN_OR_RETURN(const std::string type, node.type());
    if (type != "Sequence") {
      return read_processor(node, type);
    }
    TIDEMILL_RETURN_IF_ERROR(node.allow_only({"type", "processors"}));
    TIDEMILL_ASSIGN_OR_RETURN(const Json::Array* parts, node.array("processors"));
    for (std::size_t i = 0; i < parts->size(); ++i) {
      TIDEMILL_ASSIGN_OR_RETURN(const Node part,
                                Node::of((*parts)[i], indexed(node.path_of("processors"), i)));
      TIDEMILL_ASSIGN_OR_RETURN(const std::string part_type, part.type());
      TIDEMILL_RETURN_IF_ERROR(read_processor(part, part_type));
    }
    return {};
  }

  Status read_processor(const Node& node, const std::string& type) {
    if (type == "ByteLevel") {
      return read_byte_level(node, nullptr);
    }
    if (type != "TemplateProcessing") {
      return unsupported(node.path_of("type"), quote(type));
    }
    if (has_template_) {
      return unsupported(node.path(), "a second TemplateProcessing");
    }
    has_template_ = true;
    TIDEMILL_RETURN_IF_ERROR(node.allow_only({"type", "single", "pair", "special_tokens"}));
    TIDEMILL_ASSIGN_OR_RETURN(const Json::Array* single, node.array("single"));
    std::size_t num_sequences = 0;
    for (std::size_t i = 0; i < single->size(); ++i) {
      const std::string path = indexed(node.path_of("single"), i);
      TIDEMILL_ASSIGN_OR_RETURN(const Node piece, Node::of((*single)[i], path));
      TIDEMILL_RETURN_IF_ERROR(piece.allow_only({"SpecialToken", "Sequence"}));
      if (piece.find("Sequence") != nullptr) {
        ++num_sequences;
        continue;
      }
      TIDEMILL_ASSIGN_OR_RETURN(const Node special, piece.object("SpecialToken"));
      TIDEMILL_ASSIGN_OR_RETURN(const std::string name, special.string("id"));
      auto& ids = num_sequences == 0 ? spec_.prefix_ids : spec_.suffix_ids;
      TIDEMILL_RETURN_IF_ERROR(append_template_ids(node, name, ids));
    }
    if (num_sequences != 1) {
      return unsupported(node.path_of("single"),
                         "a template with " + std::to_string(num_sequences) + " sequences");
    }
    return {};
  }

  Status append_template_ids(const Node& node, const std::string& name,
                             std::vector<std::int32_t>& out) const {
    TIDEMILL_ASSIGN_OR_RETURN(const Node tokens, node.object("special_tokens"));
    TIDEMILL_ASSIGN_OR_RETURN(const Node token, tokens.object(name));
    TIDEMILL_ASSIGN_OR_RETURN(const Json::Array* ids, token.array("ids"));
    for (std::size_t i = 0; i < ids->size(); ++i) {
      const std::string path = indexed(token.path_of("ids"), i);
      TIDEMILL_ASSIGN_OR_RETURN(
          const std::int32_t id,
          read_id((*ids)[i], [&path]() -> const std::string& { return path; }));
      if (token_of_id_.count(id) == 0) {
        return malformed(path, "no token has id " + std::to_string(id));
      }
      if (out.size() == kMaxTemplateTokens) {
        return unsupported(path, "more than " + std::to_string(kMaxTemplateTokens) + " tokens");
      }
      out.push_back(id);
    }
    return {};
  }

  TokenizerSpec spec_;
  std::unordered_map<std::int32_t, std::string_view> token_of_id_;  // views strings in `spec_`
  bool has_template_ = false;
};

}  // namespace

Result<TokenizerSpec> parse_tokenizer_json(std::string_view text) {
  TIDEMILL_ASSIGN_OR_RETURN(const Json root, parse_json(text));
  return Reader().read(root);
}

}  // namespace tidemill::engines
