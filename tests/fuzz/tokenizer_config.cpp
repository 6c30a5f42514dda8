// SPDX-License-Identifier: Apache-2.0
// Fuzzes the files next to a tokenizer.json. The input is tokenizer_config.json,
// special_tokens_map.json and chat_template.jinja, separated by NUL bytes.
#include "engines/tokenizer/tokenizer_config.hpp"

#include "base/text/utf8.hpp"
#include "tests/fuzz/target.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::fuzz {

void tokenizer_config(std::string_view input) {
  static const test::TemporaryDirectory directory(test::memory_directory_path());
  const std::string folder = directory.path().string() + "/";
  const auto parts = parts_of(input, 3);
  put_file(folder + "tokenizer_config.json", parts[0]);
  put_file(folder + "special_tokens_map.json", parts[1].empty() ? "{}" : parts[1]);
  put_file(folder + "chat_template.jinja", parts[2]);
  const auto config = engines::load_tokenizer_config(directory.path());
  if (!config.ok()) {
    require_refusal(config.status(), folder);
    return;
  }
  for (const auto& [name, text] : config.value().chat_templates) {
    require(!find_invalid_utf8(name) && !find_invalid_utf8(text), "templates are UTF-8");
  }
  for (const engines::DeclaredToken& token : config.value().declared_tokens) {
    require(token.id >= 0, "ids of declared tokens are not negative");
  }
}

}  // namespace tidemill::fuzz
