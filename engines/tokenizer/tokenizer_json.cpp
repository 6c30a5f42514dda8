// SPDX-License-Identifier: Apache-2.0
// Parses tokenizer.json into a `TokenizerSpec`. Unknown fields and types are refused by name.
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/json/json.hpp"
#include "base/text/quote.hpp"
#include "base/text/utf8.hpp"
#include "engines/tokenizer/byte_alphabet.hpp"
#include "engines/tokenizer/json_node.hpp"
#include "engines/tokenizer/json_stages.hpp"
#include "engines/tokenizer/tokenizer_spec.hpp"

namespace tidemill::engines {
namespace {

constexpr std::size_t kMaxTemplateTokens = 16;

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
    TIDEMILL_ASSIGN_OR_RETURN(const JsonNode top, JsonNode::of(root, ""));
    TIDEMILL_RETURN_IF_ERROR(
        top.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer",
                        "pre_tokenizer", "post_processor", "decoder", "model"}));
    // Files that were saved after training on batches have these. They describe the batches of that
    // program. Transformers sets both anew for each call, by default to none, so they do not change
    // the ids of a text.
    for (const char* key : {"truncation", "padding"}) {
      if (const Json* given = top.find(key); given != nullptr) {
        TIDEMILL_RETURN_IF_ERROR(JsonNode::of(*given, key).status());
      }
    }
    TIDEMILL_ASSIGN_OR_RETURN(const JsonNode model, top.object("model"));
    TIDEMILL_RETURN_IF_ERROR(read_model(model));
    TIDEMILL_RETURN_IF_ERROR(read_added_tokens(top));
    TIDEMILL_RETURN_IF_ERROR(read_normalizer(top, spec_));
    TIDEMILL_RETURN_IF_ERROR(read_pre_tokenizer(top, spec_));
    TIDEMILL_RETURN_IF_ERROR(read_unknown_characters(model));
    TIDEMILL_RETURN_IF_ERROR(read_post_processor(top));
    TIDEMILL_RETURN_IF_ERROR(read_decoder(top, spec_));
    return std::move(spec_);
  }

private:
  Status read_model(const JsonNode& model) {
    TIDEMILL_RETURN_IF_ERROR(model.allow_only(
        {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
         "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
    if (model.find("type") != nullptr) {
      TIDEMILL_ASSIGN_OR_RETURN(const std::string type, model.type());
      if (type == "Unigram") {
        return {Errc::kUnimplemented,
                "model.type: \"Unigram\" (as of T5 and XLM-R) is not supported; use a model whose "
                "tokenizer is BPE"};
      }
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
    TIDEMILL_ASSIGN_OR_RETURN(spec_.byte_fallback, model.boolean("byte_fallback", false));
    TIDEMILL_ASSIGN_OR_RETURN(spec_.fuse_unknown, model.boolean("fuse_unk", false));
    TIDEMILL_ASSIGN_OR_RETURN(spec_.ignore_merges, model.boolean("ignore_merges", false));
    TIDEMILL_RETURN_IF_ERROR(read_vocabulary(model));
    return read_merges(model);
  }

  Status read_vocabulary(const JsonNode& model) {
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

  Status read_merges(const JsonNode& model) {
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

  // Reads what represents characters without a token.
  Status read_unknown_characters(const JsonNode& model) {
    return spec_.alphabet == Alphabet::kBytes ? check_byte_level_model(model)
                                              : read_unknown_token(model);
  }

  // In the byte alphabet the unknown token can occur only if the vocabulary lacks a byte.
  Status check_byte_level_model(const JsonNode& model) const {
    if (spec_.byte_fallback) {
      return unsupported("model.byte_fallback", "true with a ByteLevel pre-tokenizer");
    }
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

  Status read_unknown_token(const JsonNode& model) {
    for (unsigned byte = 0; spec_.byte_fallback && byte < 256; ++byte) {
      const std::string token = byte_token(static_cast<unsigned char>(byte));
      if (spec_.vocabulary.count(token) == 0) {
        return malformed("model.byte_fallback", "the vocabulary lacks " + quote(token));
      }
    }
    if (model.find("unk_token") == nullptr) {
      return {};
    }
    TIDEMILL_ASSIGN_OR_RETURN(const std::string token, model.string("unk_token"));
    const auto found = spec_.vocabulary.find(token);
    if (found == spec_.vocabulary.end()) {
      return malformed("model.unk_token", preview(token) + " is not in the vocabulary");
    }
    spec_.unknown_id = found->second;
    return {};
  }

  Status read_added_tokens(const JsonNode& top) {
    if (top.find("added_tokens") == nullptr) {
      return {};
    }
    TIDEMILL_ASSIGN_OR_RETURN(const Json::Array* tokens, top.array("added_tokens"));
    std::unordered_set<std::string> contents;
    spec_.added_tokens.reserve(tokens->size());  // `token_of_id_` views their contents
    for (std::size_t i = 0; i < tokens->size(); ++i) {
      TIDEMILL_ASSIGN_OR_RETURN(const JsonNode node,
                                JsonNode::of((*tokens)[i], indexed("added_tokens", i)));
      TIDEMILL_ASSIGN_OR_RETURN(AddedToken token, read_added_token(node));
      if (!contents.insert(token.content).second) {
        return malformed(node.path_of("content"), preview(token.content) + " appears twice");
      }
      spec_.added_tokens.push_back(std::move(token));
      TIDEMILL_RETURN_IF_ERROR(claim_id(spec_.added_tokens.back(), node.path_of("id")));
    }
    return {};
  }

  static Result<AddedToken> read_added_token(const JsonNode& node) {
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

  Status read_post_processor(const JsonNode& top) {
    if (top.find("post_processor") == nullptr) {
      return {};
    }
    TIDEMILL_ASSIGN_OR_RETURN(const JsonNode node, top.object("post_processor"));
    TIDEMILL_ASSIGN_OR_RETURN(const std::string type, node.type());
    if (type != "Sequence") {
      return read_processor(node, type);
    }
    TIDEMILL_RETURN_IF_ERROR(node.allow_only({"type", "processors"}));
    TIDEMILL_ASSIGN_OR_RETURN(const Json::Array* parts, node.array("processors"));
    for (std::size_t i = 0; i < parts->size(); ++i) {
      TIDEMILL_ASSIGN_OR_RETURN(const JsonNode part,
                                JsonNode::of((*parts)[i], indexed(node.path_of("processors"), i)));
      TIDEMILL_ASSIGN_OR_RETURN(const std::string part_type, part.type());
      TIDEMILL_RETURN_IF_ERROR(read_processor(part, part_type));
    }
    return {};
  }

  Status read_processor(const JsonNode& node, const std::string& type) {
    if (type == "ByteLevel") {
      return check_byte_level(node);
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
      TIDEMILL_ASSIGN_OR_RETURN(const JsonNode piece, JsonNode::of((*single)[i], path));
      TIDEMILL_RETURN_IF_ERROR(piece.allow_only({"SpecialToken", "Sequence"}));
      if (piece.find("Sequence") != nullptr) {
        ++num_sequences;
        continue;
      }
      TIDEMILL_ASSIGN_OR_RETURN(const JsonNode special, piece.object("SpecialToken"));
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

  Status append_template_ids(const JsonNode& node, const std::string& name,
                             std::vector<std::int32_t>& out) const {
    TIDEMILL_ASSIGN_OR_RETURN(const JsonNode tokens, node.object("special_tokens"));
    TIDEMILL_ASSIGN_OR_RETURN(const JsonNode token, tokens.object(name));
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
