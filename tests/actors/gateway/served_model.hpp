// SPDX-License-Identifier: Apache-2.0
// A served model for tests: the tokenizer of the shipped model, in which every byte is a token, and
// a chat template with roles.
#pragma once

#include <memory>
#include <string>

#include "actors/gateway/served_model.hpp"

namespace tidemill::test {

inline std::shared_ptr<actors::ServedModel> make_served_model() {
  const std::string path = std::string(TIDEMILL_SOURCE_DIR) + "/examples/models/arithmetic";
  engines::Tokenizer tokenizer = engines::Tokenizer::load(path).value();
  engines::TokenizerConfig config = tokenizer.config();
  config.chat_templates["default"] =
      "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
      "{% if tools %}<tools:{{ tools | length }}>{% endif %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}{{ extra }}";
  auto constraints = std::make_shared<engines::ConstraintCache>(tokenizer, 257);
  return std::make_shared<actors::ServedModel>(
      actors::ServedModel{"base",
                          1700000000,
                          std::move(tokenizer),
                          engines::chat::ChatRenderer::open("base", config, std::nullopt).value(),
                          257,
                          64,
                          engines::SamplingOptions(),
                          std::nullopt,
                          {256},
                          std::move(constraints)});
}

/// Returns the token ids of `text`, one for each byte.
inline std::vector<std::int32_t> byte_ids(std::string_view text) {
  std::vector<std::int32_t> ids;
  for (const char c : text) {
    ids.push_back(static_cast<unsigned char>(c));
  }
  return ids;
}

}  // namespace tidemill::test
