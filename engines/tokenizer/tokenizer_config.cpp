// SPDX-License-Identifier: Apache-2.0
// Reads the small files next to tokenizer.json.
#include "engines/tokenizer/tokenizer_config.hpp"

#include <charconv>
#include <utility>

#include "base/files/file.hpp"
#include "base/json/json.hpp"
#include "base/text/quote.hpp"
#include "base/text/utf8.hpp"
#include "engines/formats/gguf_model.hpp"
#include "engines/formats/gguf_tokenizer.hpp"

namespace tidemill::engines {
namespace {

constexpr std::size_t kMaxConfigBytes = std::size_t{64} << 20U;
constexpr std::size_t kMaxTemplateBytes = std::size_t{1} << 20U;
constexpr std::size_t kMaxTokenizerBytes = std::size_t{128} << 20U;
constexpr const char* kTokenizerName = "tokenizer.json";
constexpr const char* kConfigName = "tokenizer_config.json";

// Returns the JSON object in `path`, or an empty one if there is no such file.
Result<Json> read_object(const std::filesystem::path& path) {
  const auto text = read_text_file(path, kMaxConfigBytes);
  if (text.status().code() == Errc::kNotFound) {
    return Json(Json::Object());
  }
  if (!text.ok()) {
    return text.status();
  }
  Result<Json> root = parse_json(text.value());
  TIDEMILL_RETURN_IF_ERROR(root.status().with_context(path.string()));
  if (root.value().if_object() == nullptr) {
    return corrupt_data(path.string() + ": must be an object");
  }
  return root;
}

// A token is a string, or an object with `content` (older files).
Status read_token(const Json& root, const char* key, std::optional<std::string>& out) {
  const Json* value = root.find(key);
  if (value == nullptr || value->is_null() || out.has_value()) {
    return {};
  }
  if (const Json* content = value->find("content"); content != nullptr) {
    value = content;
  }
  if (value->if_string() == nullptr) {
    return corrupt_data(std::string(key) + ": must be a token");
  }
  out = *value->if_string();
  return {};
}

Status read_tokens(const Json& root, TokenizerConfig& out) {
  TIDEMILL_RETURN_IF_ERROR(read_token(root, "bos_token", out.bos_token));
  TIDEMILL_RETURN_IF_ERROR(read_token(root, "eos_token", out.eos_token));
  return read_token(root, "pad_token", out.pad_token);
}

Status read_declared_tokens(const Json& root, TokenizerConfig& out) {
  const Json* found = root.find("added_tokens_decoder");
  if (found == nullptr || found->is_null()) {
    return {};
  }
  if (found->if_object() == nullptr) {
    return corrupt_data("added_tokens_decoder: must be an object");
  }
  for (const auto& [key, value] : *found->if_object()) {
    const std::string path = "added_tokens_decoder[" + quote(key) + "]";
    DeclaredToken token;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), token.id);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || token.id < 0) {
      return corrupt_data(path + ": must be a token id");
    }
    const Json* content = value.find("content");
    if (content == nullptr || content->if_string() == nullptr) {
      return corrupt_data(path + ".content: must be a string");
    }
    token.content = *content->if_string();
    out.declared_tokens.push_back(std::move(token));
  }
  return {};
}

// `chat_template` is one template, or a list of {name, template}.
Status read_templates(const Json& root, TokenizerConfig& out) {
  const Json* found = root.find("chat_template");
  if (found == nullptr || found->is_null()) {
    return {};
  }
  if (const std::string* text = found->if_string()) {
    out.chat_templates["default"] = *text;
    return {};
  }
  const Json::Array* entries = found->if_array();
  if (entries == nullptr) {
    return corrupt_data("chat_template: must be a string or a list");
  }
  for (std::size_t i = 0; i < entries->size(); ++i) {
    const Json& entry = (*entries)[i];
    const std::string path = "chat_template[" + std::to_string(i) + "]";
    for (const char* key : {"name", "template"}) {
      const Json* member = entry.find(key);
      if (member == nullptr || member->if_string() == nullptr) {
        return corrupt_data(path + "." + key + ": must be a string");
      }
    }
    const std::string& name = *entry.find("name")->if_string();
    if (!out.chat_templates.emplace(name, *entry.find("template")->if_string()).second) {
      return corrupt_data(std::string(path).append(".name: " + quote(name) + " appears twice"));
    }
  }
  return {};
}

Status read_template_file(const std::filesystem::path& path, TokenizerConfig& out) {
  auto text = read_text_file(path, kMaxTemplateBytes);
  if (text.status().code() == Errc::kNotFound) {
    return {};
  }
  if (!text.ok()) {
    return text.status();
  }
  if (const auto bad = find_invalid_utf8(text.value())) {
    return corrupt_data(path.string() + ": invalid UTF-8 at byte " + std::to_string(*bad));
  }
  out.chat_templates["default"] = std::move(text).value();
  return {};
}

Result<TokenizerConfig> read_config_files(const std::filesystem::path& directory) {
  TokenizerConfig config;
  const auto config_path = directory / kConfigName;
  TIDEMILL_ASSIGN_OR_RETURN(const Json root, read_object(config_path));
  TIDEMILL_RETURN_IF_ERROR(read_tokens(root, config).with_context(config_path.string()));
  TIDEMILL_RETURN_IF_ERROR(read_declared_tokens(root, config).with_context(config_path.string()));
  TIDEMILL_RETURN_IF_ERROR(read_templates(root, config).with_context(config_path.string()));
  const auto map_path = directory / "special_tokens_map.json";
  TIDEMILL_ASSIGN_OR_RETURN(const Json map, read_object(map_path));
  TIDEMILL_RETURN_IF_ERROR(read_tokens(map, config).with_context(map_path.string()));
  TIDEMILL_RETURN_IF_ERROR(read_template_file(directory / "chat_template.jinja", config));
  return config;
}

// Parses the text of a tokenizer_config.json.
Result<TokenizerConfig> read_config_text(const std::string& text, const std::string& location) {
  const Result<Json> root = parse_json(text);
  TIDEMILL_RETURN_IF_ERROR(root.status().with_context(location));
  TokenizerConfig config;
  TIDEMILL_RETURN_IF_ERROR(read_tokens(root.value(), config).with_context(location));
  TIDEMILL_RETURN_IF_ERROR(read_templates(root.value(), config).with_context(location));
  return config;
}

// Returns the directory of a model's tokenizer files.
std::filesystem::path directory_of(const std::filesystem::path& model) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(model, ignored)) {
    return model;
  }
  return model.has_parent_path() ? model.parent_path() : std::filesystem::path(".");
}

// Returns the GGUF file to read a model's tokenizer from, or nullopt if a tokenizer.json exists.
Result<std::optional<std::filesystem::path>> tokenizer_gguf(const std::filesystem::path& model) {
  std::error_code ignored;
  if (std::filesystem::exists(directory_of(model) / kTokenizerName, ignored)) {
    return std::optional<std::filesystem::path>();
  }
  TIDEMILL_ASSIGN_OR_RETURN(ModelLocation location, find_model(model));
  return std::move(location.gguf);
}

}  // namespace

Result<std::string> read_text_file(const std::filesystem::path& path, std::size_t max_bytes) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return Status(Errc::kNotFound, path.string() + ": no such file");
  }
  if (!std::filesystem::is_regular_file(path, error)) {  // reading a pipe could block forever
    return invalid_argument(path.string() + ": not a regular file");
  }
  TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile file, ReadableFile::open(path));
  // The size that the file system reports may differ from the content.
  TIDEMILL_ASSIGN_OR_RETURN(std::string text, file.read_prefix(max_bytes + 1));
  if (text.size() > max_bytes) {
    return invalid_argument(path.string() + ": larger than " + std::to_string(max_bytes) +
                            " bytes");
  }
  return text;
}

Result<TokenizerSource> read_tokenizer_source(const std::filesystem::path& model) {
  TIDEMILL_ASSIGN_OR_RETURN(const std::optional<std::filesystem::path> gguf, tokenizer_gguf(model));
  TokenizerSource source;
  if (gguf.has_value()) {
    source.location = gguf->string();
    source.config_location = source.location;
    TIDEMILL_ASSIGN_OR_RETURN(TokenizerTexts texts, read_gguf_tokenizer(*gguf));
    source.tokenizer_json = std::move(texts.tokenizer_json);
    TIDEMILL_ASSIGN_OR_RETURN(source.config,
                              read_config_text(texts.tokenizer_config_json, source.location));
    return source;
  }
  const std::filesystem::path directory = directory_of(model);
  source.location = (directory / kTokenizerName).string();
  source.config_location = (directory / kConfigName).string();
  Result<std::string> text = read_text_file(source.location, kMaxTokenizerBytes);
  std::error_code ignored;
  if (text.status().code() == Errc::kNotFound &&
      std::filesystem::exists(directory / "tokenizer.model", ignored)) {
    return Status(Errc::kNotFound,
                  text.status().message() +
                      "; tokenizer.model alone is not supported; convert it with transformers: "
                      "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)");
  }
  TIDEMILL_ASSIGN_OR_RETURN(source.tokenizer_json, std::move(text));
  TIDEMILL_ASSIGN_OR_RETURN(source.config, read_config_files(directory));
  return source;
}

Result<TokenizerConfig> load_tokenizer_config(const std::filesystem::path& model) {
  TIDEMILL_ASSIGN_OR_RETURN(const std::optional<std::filesystem::path> gguf, tokenizer_gguf(model));
  if (!gguf.has_value()) {
    return read_config_files(directory_of(model));
  }
  TIDEMILL_ASSIGN_OR_RETURN(const TokenizerTexts texts, read_gguf_tokenizer(*gguf));
  return read_config_text(texts.tokenizer_config_json, gguf->string());
}

}  // namespace tidemill::engines
