// SPDX-License-Identifier: Apache-2.0
// `tidemill explain`: explains one configuration key, or lists all of them.
#include <CLI/App.hpp>
#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <ostream>

#include "base/schema/reference.hpp"
#include "base/schema/suggest.hpp"
#include "configs/run_config.hpp"
#include "launcher/additions.hpp"
#include "launcher/commands/commands.hpp"

namespace tidemill::launcher {
namespace {

nlohmann::ordered_json key_json(const KeyReference& key) {
  nlohmann::ordered_json line{{"key", key.path}, {"type", key.type}, {"required", key.required}};
  // The default as in a file; null if there is none.
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

nlohmann::ordered_json key_text(const KeyReference& key) {
  return key.path + ": " + key.help;
}

using Workflows = std::vector<std::string>;

// The description of a key, and the workflows to which it applies.
struct Line {
  nlohmann::ordered_json description;
  Workflows workflows;
};

// Removes the condition on the workflow from `key` and returns the workflows that have the key: the
// one of the condition, or `all` if there is none.
Workflows take_workflows(KeyReference& key, const Workflows& all) {
  constexpr std::string_view kChoice = "workflow: ";
  const auto choice = std::find_if(key.when.begin(), key.when.end(), [&](const std::string& when) {
    return when.starts_with(kChoice);
  });
  if (choice == key.when.end()) {
    return all;
  }
  Workflows one{choice->substr(kChoice.size())};
  key.when.erase(choice);
  return one;
}

// Returns whether `text` contains `word`, in upper or lower case.
bool contains_word(const std::string& text, const std::string& word) {
  const auto equal = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) ==
           std::tolower(static_cast<unsigned char>(b));
  };
  return std::search(text.begin(), text.end(), word.begin(), word.end(), equal) != text.end() ||
         word.empty();
}

// Returns whether the name of the key or an explanation of it contains `word`, or another program
// calls the key `word`.
bool is_about(const KeyReference& key, const std::string& word) {
  const auto contains = [&word](const std::string& text) { return contains_word(text, word); };
  return contains(key.path) || contains(key.help) ||
         std::any_of(key.names.begin(), key.names.end(), contains) ||
         std::any_of(key.also_called.begin(), key.also_called.end(), [&](const std::string& name) {
           return name.size() == word.size() && contains(name);
         });
}

// Describes the keys that are about `word`, or all keys if it is empty. Keys with equal
// descriptions share a line.
std::vector<Line> list_lines(const schema::StructSchema& root,
                             nlohmann::ordered_json (*describe)(const KeyReference&),
                             const std::string& word) {
  Workflows all;
  for (const schema::KindSchema& kind : root.tag->kinds) {
    all.push_back(kind.name);
  }
  std::vector<Line> lines;
  for (KeyReference& key : list_keys(root)) {
    if (!is_about(key, word)) {
      continue;
    }
    Workflows workflows = take_workflows(key, all);
    nlohmann::ordered_json description = describe(key);
    const auto same = std::find_if(lines.begin(), lines.end(), [&](const Line& line) {
      return line.description == description;
    });
    if (same == lines.end()) {
      lines.push_back({std::move(description), std::move(workflows)});
      continue;
    }
    for (std::string& name : workflows) {
      if (std::find(same->workflows.begin(), same->workflows.end(), name) ==
          same->workflows.end()) {
        same->workflows.push_back(std::move(name));
      }
    }
  }
  return lines;
}

std::string joined(const Workflows& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  }
  return text;
}

constexpr std::string_view kPageIntroduction =
    "If you write a run file, look up the type, the default and the meaning of its keys here. "
    "Parentheses name\nthe choice that a key depends on, such as (workflow: rl). A default of none "
    "means that the key has no value\nunless you give one. `tidemill explain KEY` prints the same "
    "text. This page is the output of\n`tidemill explain --markdown`.";

class ExplainCommand final : public Command {
public:
  [[nodiscard]] std::string name() const override { return "explain"; }
  [[nodiscard]] std::string summary() const override {
    return "Explains a configuration key, or lists all keys or those about a word";
  }
  [[nodiscard]] std::string example() const override {
    return "tidemill explain rollout.group_size";
  }

  void declare(CLI::App& app) override {
    app.add_option(
           "KEY", key_,
           "A key, e.g. train.adapter, or a word to search for in the names and meanings of "
           "keys; without it, all keys are listed")
        ->type_name("");
    app.add_flag("--markdown", markdown_, "Print the reference page of all keys, in Markdown");
  }

  [[nodiscard]] Status run(Session& session) override {
    TIDEMILL_ASSIGN_OR_RETURN(const auto schema, run_schema(session));
    if (markdown_) {
      session.out << reference_page(schema.structure(), "Configuration keys", kPageIntroduction);
      return {};
    }
    std::string word;  // to search, if `key_` is no key
    if (!key_.empty()) {
      const auto text = explain_key(schema.structure(), key_);
      if (text.ok() && session.form == OutputForm::kText) {
        session.out << text.value();
        return {};
      }
      word = text.ok() ? "" : key_;
      if (!text.ok() && list_lines(schema.structure(), key_text, word).empty()) {
        return text.status();
      }
    }
    if (session.form == OutputForm::kJson) {
      print_objects(list_lines(schema.structure(), key_json, word), word.empty() ? key_ : "",
                    session);
    } else {
      if (const std::string why = schema::absence_of(schema.structure(), word); !why.empty()) {
        session.out << word << ": unknown key; " << why << "\n\n";
      }
      print_list(list_lines(schema.structure(), key_text, word), session);
    }
    return {};
  }

private:
  // Prints `wanted` and the keys inside it, or all keys if it is empty.
  static void print_objects(const std::vector<Line>& lines, const std::string& wanted,
                            Session& session) {
    for (const Line& line : lines) {
      const std::string path = line.description.at("key");
      if (wanted.empty() || path == wanted || path.starts_with(wanted + '.')) {
        nlohmann::ordered_json object = line.description;
        object["workflows"] = line.workflows;
        session.out << object.dump() << '\n';
      }
    }
  }

  // Lists the keys that most workflows share first.
  static void print_list(const std::vector<Line>& lines, Session& session) {
    std::vector<Workflows> groups;
    for (const Line& line : lines) {
      if (std::find(groups.begin(), groups.end(), line.workflows) == groups.end()) {
        groups.push_back(line.workflows);
      }
    }
    std::stable_sort(groups.begin(), groups.end(),
                     [](const Workflows& a, const Workflows& b) { return a.size() > b.size(); });
    for (const Workflows& group : groups) {
      session.out << (group == groups.front() ? "" : "\n") << "Keys of " << joined(group) << ":\n";
      for (const Line& line : lines) {
        if (line.workflows == group) {
          session.out << line.description.get<std::string>() << '\n';
        }
      }
    }
  }

  std::string key_;
  bool markdown_ = false;
};

}  // namespace

std::unique_ptr<Command> make_explain_command() {
  return std::make_unique<ExplainCommand>();
}

}  // namespace tidemill::launcher
