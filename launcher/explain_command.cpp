// SPDX-License-Identifier: Apache-2.0
// `tidemill explain`: says what a configuration key means, or what all of them mean.
#include <CLI/App.hpp>
#include <nlohmann/json.hpp>
#include <ostream>

#include "base/schema_reference.hpp"
#include "configs/run_config.hpp"
#include "launcher/commands.hpp"

namespace tidemill::launcher {
namespace {

nlohmann::ordered_json key_json(const KeyReference& key) {
  nlohmann::ordered_json line{{"key", key.path}, {"type", key.type}, {"required", key.required}};
  // As a file would write it; null where nothing is given.
  if (key.required || key.default_value == "null") {
    line["default"] = nullptr;
  } else {
    line["default"] = key.default_value;
  }
  line["unit"] = key.unit;
  line["help"] = key.help;
  line["names"] = key.names;
  line["when"] = key.when;
  return line;
}

class ExplainCommand final : public Command {
public:
  [[nodiscard]] std::string name() const override { return "explain"; }
  [[nodiscard]] std::string summary() const override {
    return "Explains a configuration key, or lists all keys";
  }
  [[nodiscard]] std::string example() const override {
    return "tidemill explain rollout.group_size";
  }

  void declare(CLI::App& app) override {
    app.add_option("KEY", key_, "A key, e.g. train.adapter; all keys without it")->type_name("");
    app.add_flag("--markdown", markdown_, "Print the reference page of all keys");
  }

  [[nodiscard]] Status run(Session& session) override {
    const auto schema = Schema<configs::RunConfig>::described();
    if (markdown_) {
      session.out << reference_page(schema.structure(), "Configuration keys");
      return {};
    }
    std::string text;
    if (!key_.empty()) {
      TIDEMILL_ASSIGN_OR_RETURN(text, explain_key(schema.structure(), key_));
    }
    if (session.form == OutputForm::kText && !key_.empty()) {
      session.out << text;
      return {};
    }
    for (const KeyReference& key : list_keys(schema.structure())) {
      const bool wanted = key_.empty() || key.path == key_ || key.path.starts_with(key_ + '.');
      if (wanted && session.form == OutputForm::kJson) {
        session.out << key_json(key).dump() << '\n';
      } else if (wanted) {
        session.out << key.path << ": " << key.help << '\n';
      }
    }
    return {};
  }

private:
  std::string key_;
  bool markdown_ = false;
};

}  // namespace

std::unique_ptr<Command> make_explain_command() {
  return std::make_unique<ExplainCommand>();
}

}  // namespace tidemill::launcher
