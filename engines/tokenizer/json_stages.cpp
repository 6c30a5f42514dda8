// SPDX-License-Identifier: Apache-2.0
#include "engines/tokenizer/json_stages.hpp"

#include <array>
#include <utility>

namespace tidemill::engines {
namespace {

constexpr std::size_t kMaxPreTokenizers = 8;
// The pattern by which GPT-2 splits text. ByteLevel uses it if use_regex is set.
// Source: huggingface/tokenizers, pre_tokenizers/byte_level.
constexpr const char* kGpt2Split =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::array<std::pair<std::string_view, NormalizationForm>, 4> kForms{
    {{"NFC", NormalizationForm::kNfc},
     {"NFD", NormalizationForm::kNfd},
     {"NFKC", NormalizationForm::kNfkc},
     {"NFKD", NormalizationForm::kNfkd}}};

Status not_in_position(const JsonNode& node, const std::string& type) {
  return unsupported(node.path_of("type"), quote(type) + " in this position");
}

// Reads a text that a step looks for or inserts.
Result<std::string> read_step_text(const JsonNode& node, std::string_view key,
                                   std::size_t min_bytes) {
  TIDEMILL_ASSIGN_OR_RETURN(std::string text, node.string(key));
  if (text.size() < min_bytes || text.size() > kMaxInsertedBytes) {
    return unsupported(node.path_of(key), "a text of " + std::to_string(text.size()) + " bytes");
  }
  return text;
}

// Reads a Replace, which is a normalizer or a decoder.
Result<DecoderSpec::Replacement> read_replace(const JsonNode& node) {
  TIDEMILL_RETURN_IF_ERROR(node.allow_only({"type", "pattern", "content"}));
  TIDEMILL_ASSIGN_OR_RETURN(const JsonNode pattern, node.object("pattern"));
  TIDEMILL_RETURN_IF_ERROR(pattern.allow_only({"String"}));
  DecoderSpec::Replacement replacement;
  TIDEMILL_ASSIGN_OR_RETURN(replacement.pattern, read_step_text(pattern, "String", 1));
  TIDEMILL_ASSIGN_OR_RETURN(replacement.content, read_step_text(node, "content", 0));
  return replacement;
}

// A Metaspace, which is a pre-tokenizer or a decoder.
struct Metaspace {
  std::string replacement;
  SpaceStep::Prepend prepend = SpaceStep::Prepend::kAlways;
  bool split = true;
};

Result<Metaspace> read_metaspace(const JsonNode& node) {
  TIDEMILL_RETURN_IF_ERROR(node.allow_only(
      {"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"}));
  Metaspace metaspace;
  TIDEMILL_ASSIGN_OR_RETURN(metaspace.replacement, node.character("replacement"));
  TIDEMILL_ASSIGN_OR_RETURN(metaspace.split, node.boolean("split", true));
  // Older files have `add_prefix_space` only, newer ones `prepend_scheme` only.
  TIDEMILL_ASSIGN_OR_RETURN(const bool adds, node.boolean("add_prefix_space", true));
  if (!adds) {
    metaspace.prepend = SpaceStep::Prepend::kNever;
  }
  if (node.find("prepend_scheme") == nullptr) {
    return metaspace;
  }
  TIDEMILL_ASSIGN_OR_RETURN(const std::string scheme, node.string("prepend_scheme"));
  if (scheme == "first") {
    metaspace.prepend = SpaceStep::Prepend::kFirst;
  } else if (scheme == "never") {
    metaspace.prepend = SpaceStep::Prepend::kNever;
  } else if (scheme != "always") {
    return unsupported(node.path_of("prepend_scheme"), quote(scheme));
  }
  if (!adds && scheme != "never") {
    return malformed(node.path_of("prepend_scheme"),
                     quote(scheme) + " contradicts add_prefix_space, which is false");
  }
  return metaspace;
}

Status read_normalizer_step(const JsonNode& node, TokenizerSpec& spec) {
  TIDEMILL_ASSIGN_OR_RETURN(const std::string type, node.type());
  if (type == "Sequence") {
    TIDEMILL_RETURN_IF_ERROR(node.allow_only({"type", "normalizers"}));
    TIDEMILL_ASSIGN_OR_RETURN(const Json::Array* parts, node.array("normalizers"));
    for (std::size_t i = 0; i < parts->size(); ++i) {
      TIDEMILL_ASSIGN_OR_RETURN(const JsonNode part,
                                JsonNode::of((*parts)[i], indexed(node.path_of("normalizers"), i)));
      TIDEMILL_RETURN_IF_ERROR(read_normalizer_step(part, spec));
    }
    return {};
  }
  NormalizerStep step;
  const auto* form = std::find_if(kForms.begin(), kForms.end(),
                                  [&type](const auto& row) { return row.first == type; });
  if (form != kForms.end()) {
    TIDEMILL_RETURN_IF_ERROR(node.allow_only({"type"}));
    step.form = form->second;
  } else if (type == "Prepend") {
    TIDEMILL_RETURN_IF_ERROR(node.allow_only({"type", "prepend"}));
    step.kind = NormalizerStep::Kind::kPrepend;
    TIDEMILL_ASSIGN_OR_RETURN(step.content, read_step_text(node, "prepend", 1));
  } else if (type == "Replace") {
    step.kind = NormalizerStep::Kind::kReplace;
    TIDEMILL_ASSIGN_OR_RETURN(auto replacement, read_replace(node));
    step.pattern = std::move(replacement.pattern);
    step.content = std::move(replacement.content);
  } else if (type == "Strip") {
    TIDEMILL_RETURN_IF_ERROR(node.allow_only({"type", "strip_left", "strip_right"}));
    step.kind = NormalizerStep::Kind::kStrip;
    TIDEMILL_RETURN_IF_ERROR(node.require("strip_left").status());
    TIDEMILL_RETURN_IF_ERROR(node.require("strip_right").status());
    TIDEMILL_ASSIGN_OR_RETURN(step.strips_begin, node.boolean("strip_left", true));
    TIDEMILL_ASSIGN_OR_RETURN(step.strips_end, node.boolean("strip_right", true));
  } else {
    return unsupported(node.path_of("type"), quote(type));
  }
  if (spec.normalizers.size() == kMaxSteps) {
    return unsupported("normalizer", "more than " + std::to_string(kMaxSteps) + " steps");
  }
  spec.normalizers.push_back(std::move(step));
  return {};
}

// Reads the ByteLevel that ends the pre-tokenizers.
Status read_byte_level(const JsonNode& node, TokenizerSpec& spec) {
  TIDEMILL_RETURN_IF_ERROR(check_byte_level(node));
  TIDEMILL_ASSIGN_OR_RETURN(const bool add_prefix_space, node.boolean("add_prefix_space", true));
  TIDEMILL_ASSIGN_OR_RETURN(const bool use_regex, node.boolean("use_regex", true));
  if (!spec.spaces.replacement.empty()) {
    return not_in_position(node, "ByteLevel");
  }
  // After a Split, the space would be added to every piece.
  if (add_prefix_space && !spec.splits.empty()) {
    return unsupported(node.path_of("add_prefix_space"), "true after a Split");
  }
  spec.alphabet = Alphabet::kBytes;
  if (add_prefix_space) {
    spec.spaces = {"", " ", SpaceStep::Prepend::kAlways};
  }
  if (use_regex) {
    spec.splits.push_back({SplitStep::Kind::kRegex, kGpt2Split});
  }
  return {};
}

Status read_split(const JsonNode& split, TokenizerSpec& spec) {
  TIDEMILL_RETURN_IF_ERROR(split.allow_only({"type", "pattern", "behavior", "invert"}));
  TIDEMILL_ASSIGN_OR_RETURN(const JsonNode pattern, split.object("pattern"));
  TIDEMILL_RETURN_IF_ERROR(pattern.allow_only({"Regex", "String"}));
  TIDEMILL_ASSIGN_OR_RETURN(const std::string behavior, split.string("behavior"));
  const bool is_text = pattern.find("String") != nullptr;
  if (behavior != (is_text ? "MergedWithPrevious" : "Isolated")) {
    return unsupported(split.path_of("behavior"),
                       quote(behavior) + (is_text ? " of a String" : ""));
  }
  TIDEMILL_ASSIGN_OR_RETURN(const bool invert, split.boolean("invert", false));
  if (invert) {
    return unsupported(split.path_of("invert"), "true");
  }
  SplitStep step;
  if (is_text) {
    step.kind = SplitStep::Kind::kAfter;
    TIDEMILL_ASSIGN_OR_RETURN(step.pattern, read_step_text(pattern, "String", 1));
  } else {
    TIDEMILL_ASSIGN_OR_RETURN(step.pattern, pattern.string("Regex"));
  }
  spec.splits.push_back(std::move(step));
  return {};
}

Status read_metaspace_split(const JsonNode& node, TokenizerSpec& spec) {
  TIDEMILL_ASSIGN_OR_RETURN(Metaspace metaspace, read_metaspace(node));
  spec.spaces = {metaspace.replacement, metaspace.replacement, metaspace.prepend};
  if (metaspace.split) {
    spec.splits.push_back({SplitStep::Kind::kBefore, std::move(metaspace.replacement)});
  }
  return {};
}

// Reads a pre-tokenizer, which is the only one or part of a sequence. A Metaspace must be the first
// one and a ByteLevel the last one.
Status read_pre_tokenizer_step(const JsonNode& node, bool is_first, bool is_last,
                               TokenizerSpec& spec) {
  TIDEMILL_ASSIGN_OR_RETURN(const std::string type, node.type());
  if (type == "ByteLevel" && is_last) {
    return read_byte_level(node, spec);
  }
  if (type == "Metaspace" && is_first) {
    return read_metaspace_split(node, spec);
  }
  if (type == "Split") {
    return read_split(node, spec);
  }
  return is_first && is_last ? unsupported(node.path_of("type"), quote(type))
                             : not_in_position(node, type);
}

// Reads a decoder of tokens that are spelled in characters. A Metaspace must be the first one.
Status read_decoder_step(const JsonNode& node, bool is_first, bool& is_fused,
                         DecoderSpec& decoder) {
  TIDEMILL_ASSIGN_OR_RETURN(const std::string type, node.type());
  const bool is_per_token = !decoder.byte_fallback && !is_fused;
  if (type == "Metaspace" && is_first) {
    TIDEMILL_ASSIGN_OR_RETURN(Metaspace metaspace, read_metaspace(node));
    if (metaspace.prepend != SpaceStep::Prepend::kNever) {
      decoder.dropped_in_first = metaspace.replacement;
    }
    decoder.replacements.push_back({std::move(metaspace.replacement), " "});
    return {};
  }
  if (type == "Replace" && is_per_token) {
    TIDEMILL_ASSIGN_OR_RETURN(auto replacement, read_replace(node));
    if (replacement.content.size() > replacement.pattern.size()) {
      return unsupported(node.path_of("content"), "a text longer than the pattern");
    }
    decoder.replacements.push_back(std::move(replacement));
    return {};
  }
  if (type == "ByteFallback" && is_per_token) {
    decoder.byte_fallback = true;
    return node.allow_only({"type"});
  }
  if (type == "Fuse") {
    is_fused = true;
    return node.allow_only({"type"});
  }
  if (type == "Strip" && is_fused && decoder.stripped.empty()) {
    TIDEMILL_RETURN_IF_ERROR(node.allow_only({"type", "content", "start", "stop"}));
    TIDEMILL_ASSIGN_OR_RETURN(decoder.stripped, node.character("content"));
    for (const char* key : {"start", "stop"}) {
      TIDEMILL_ASSIGN_OR_RETURN(const Json* count, node.require(key));
      const std::int64_t* number = count->if_integer();
      if (number == nullptr || *number < 0) {
        return malformed(node.path_of(key),
                         "must be a number of characters, not " + preview(*count));
      }
      if (*number > 0 && std::string_view(key) == "stop") {
        return unsupported(node.path_of(key), preview(*count));
      }
      decoder.max_stripped = std::max(decoder.max_stripped, static_cast<std::size_t>(*number));
    }
    return {};
  }
  return not_in_position(node, type);
}

}  // namespace

Status check_byte_level(const JsonNode& node) {
  TIDEMILL_ASSIGN_OR_RETURN(const std::string type, node.type());
  if (type != "ByteLevel") {
    return not_in_position(node, type);
  }
  TIDEMILL_RETURN_IF_ERROR(
      node.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  TIDEMILL_RETURN_IF_ERROR(node.boolean("add_prefix_space", true).status());
  return node.boolean("use_regex", true).status();
}

Status read_normalizer(const JsonNode& top, TokenizerSpec& spec) {
  if (top.find("normalizer") == nullptr) {
    return {};
  }
  TIDEMILL_ASSIGN_OR_RETURN(const JsonNode node, top.object("normalizer"));
  return read_normalizer_step(node, spec);
}

Status read_pre_tokenizer(const JsonNode& top, TokenizerSpec& spec) {
  if (top.find("pre_tokenizer") == nullptr) {
    return {};
  }
  TIDEMILL_ASSIGN_OR_RETURN(const JsonNode node, top.object("pre_tokenizer"));
  TIDEMILL_ASSIGN_OR_RETURN(const std::string type, node.type());
  if (type != "Sequence") {
    return read_pre_tokenizer_step(node, true, true, spec);
  }
  TIDEMILL_RETURN_IF_ERROR(node.allow_only({"type", "pretokenizers"}));
  TIDEMILL_ASSIGN_OR_RETURN(const Json::Array* parts, node.array("pretokenizers"));
  const std::string list = node.path_of("pretokenizers");
  if (parts->empty() || parts->size() > kMaxPreTokenizers) {
    return unsupported(list, "a list of " + std::to_string(parts->size()) + " pre-tokenizers");
  }
  for (std::size_t i = 0; i < parts->size(); ++i) {
    TIDEMILL_ASSIGN_OR_RETURN(const JsonNode part, JsonNode::of((*parts)[i], indexed(list, i)));
    TIDEMILL_RETURN_IF_ERROR(read_pre_tokenizer_step(part, i == 0, i + 1 == parts->size(), spec));
  }
  return {};
}

Status read_decoder(const JsonNode& top, TokenizerSpec& spec) {
  TIDEMILL_ASSIGN_OR_RETURN(const JsonNode node, top.object("decoder"));
  DecoderSpec& decoder = spec.decoder;
  decoder.alphabet = spec.alphabet;
  if (spec.alphabet == Alphabet::kBytes) {
    return check_byte_level(node);
  }
  TIDEMILL_ASSIGN_OR_RETURN(const std::string type, node.type());
  if (type == "ByteLevel") {
    return unsupported(node.path_of("type"), "\"ByteLevel\" without a ByteLevel pre-tokenizer");
  }
  bool is_fused = false;
  if (type != "Sequence") {
    return read_decoder_step(node, true, is_fused, decoder);
  }
  TIDEMILL_RETURN_IF_ERROR(node.allow_only({"type", "decoders"}));
  TIDEMILL_ASSIGN_OR_RETURN(const Json::Array* parts, node.array("decoders"));
  const std::string list = node.path_of("decoders");
  if (parts->size() > kMaxSteps) {
    return unsupported(list, "a list of " + std::to_string(parts->size()) + " decoders");
  }
  for (std::size_t i = 0; i < parts->size(); ++i) {
    TIDEMILL_ASSIGN_OR_RETURN(const JsonNode part, JsonNode::of((*parts)[i], indexed(list, i)));
    TIDEMILL_RETURN_IF_ERROR(read_decoder_step(part, i == 0, is_fused, decoder));
  }
  return {};
}

}  // namespace tidemill::engines
