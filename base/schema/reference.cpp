// SPDX-License-Identifier: Apache-2.0
#include "base/schema/reference.hpp"

#include <algorithm>

#include "base/schema/schema.hpp"
#include "base/schema/suggest.hpp"

namespace tidemill {
namespace {

using schema::FieldSchema;
using schema::KindSchema;
using schema::StructSchema;
using schema::TagSchema;
using schema::ValueSchema;

class Lister {
public:
  std::vector<KeyReference> take() && { return std::move(keys_); }

  // `object` holds the default values at this level.
  void list(const StructSchema& structure, const std::string& prefix, void* object) {
    if (structure.tag) {
      list_tag(structure, prefix, object);
    }
    list_fields(structure, prefix, object);
    if (!structure.tag) {
      return;
    }
    for (const KindSchema& kind : structure.tag->kinds) {
      if (kind.members) {
        when_.push_back(prefix + structure.tag->name + ": " + kind.name);
        const std::shared_ptr<void> chosen = structure.make();
        kind.choose(chosen.get());
        list(*kind.members, prefix, kind.value(chosen.get()));
        when_.pop_back();
      }
    }
  }

private:
  void list_tag(const StructSchema& structure, const std::string& prefix, void* object) {
    const TagSchema& tag = *structure.tag;
    KeyReference key;
    key.path = prefix + tag.name;
    key.type = kinds_phrase(tag);
    const std::string chosen = tag.chosen(object);
    key.default_value = chosen.empty() ? "null" : chosen;
    key.help = tag.help;
    key.required = tag.required;
    key.when = when_;
    for (const KindSchema& kind : tag.kinds) {
      const std::string sets = preset_differences(structure, kind, object);
      const bool sentence = sets.empty() || kind.help.ends_with('.');
      key.names.push_back(kind.name + ": " + kind.help + (sentence ? "" : ".") + sets);
    }
    keys_.push_back(std::move(key));
  }

  // What a preset sets differently from the default preset.
  static std::string preset_differences(const StructSchema& structure, const KindSchema& kind,
                                        void* object) {
    if (structure.tag->one_of) {
      return {};
    }
    const std::shared_ptr<void> chosen = structure.make();
    kind.choose(chosen.get());
    std::string out;
    for (const FieldSchema& field : structure.fields) {
      const std::string initial = printed(structure, field.name, object);
      const std::string value = printed(structure, field.name, chosen.get());
      if (value != initial) {
        out += (out.empty() ? " Sets " : ", ") + field.name + " " + value;
      }
    }
    return out.empty() ? out : out + '.';
  }

  static std::string printed(const StructSchema& structure, const std::string& field,
                             void* object) {
    const ConfigNode map = schema::print_struct(structure, object);
    const ConfigEntry* entry = map.find(field);
    return entry == nullptr ? "" : to_flow_text(entry->value);
  }

  void list_fields(const StructSchema& structure, const std::string& prefix, void* object) {
    for (const FieldSchema& field : structure.fields) {
      const ValueSchema& value = field.value;
      KeyReference key;
      key.path = prefix + field.name;
      key.type = type_phrase(value);
      key.default_value = printed(structure, field.name, object);
      key.unit = value.unit;
      key.help = field.help;
      key.also_called = field.also_called;
      key.required = field.required;
      key.when = when_;
      const ValueSchema& scalar = value.item ? *value.item : value;
      for (const schema::EnumName& name : scalar.names) {
        key.names.push_back(name.name + ": " + name.help);
      }
      const StructSchema* members = scalar.members.get();
      key.has_keys = members != nullptr;
      keys_.push_back(std::move(key));
      if (members != nullptr) {
        list_members(*members, field, prefix, object);
      }
    }
  }

  void list_members(const StructSchema& members, const FieldSchema& field,
                    const std::string& prefix, void* object) {
    const ValueSchema& value = field.value;
    void* held = field.member(object);
    if (value.optional) {
      held = value.peek(held);
    }
    const bool list = value.shape == schema::Shape::kList;
    const std::shared_ptr<void> fresh = held == nullptr || list ? members.make() : nullptr;
    // A single element may be written without brackets.
    const char* inside = list && !value.one_or_many ? "[]." : ".";
    this->list(members, prefix + field.name + inside, fresh ? fresh.get() : held);
  }

  std::vector<KeyReference> keys_;
  std::vector<std::string> when_;
};

std::string joined(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (const std::string& part : parts) {
    out += (out.empty() ? "" : std::string(separator)) + part;
  }
  return out;
}

std::string default_phrase(const KeyReference& key) {
  if (key.required) {
    return "required";
  }
  return key.default_value == "null" ? "default none" : "default " + key.default_value;
}

// "rollout.group_size: an integer from 1 to 1024, default 8 (workflow: rl)" and its help.
std::string explanation(const KeyReference& key, const std::string& when) {
  std::string out = key.path + ": " + key.type;
  if (!key.unit.empty() && key.unit != "bytes") {
    out += " (" + key.unit + ")";
  }
  if (!key.has_keys || key.default_value == "null") {
    out += ", " + default_phrase(key);
  }
  out += when.empty() ? "\n" : "  [" + when + "]\n";
  out += "  " + key.help + '\n';
  for (const std::string& name : key.names) {
    out += "    " + name + '\n';
  }
  if (!key.also_called.empty()) {
    out += "  Other programs call it " + joined(key.also_called, ", ") + ".\n";
  }
  return out;
}

// {"workflow: rl"} and {"workflow: sft"} make {"workflow: rl or sft"}.
void add_choices(const std::vector<std::string>& from, std::vector<std::string>& to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::string value = from[i].substr(from[i].find(": ") + 2);
    const std::size_t known = (to[i] + ' ').find(' ' + value + ' ');
    if (known == std::string::npos) {
      to[i] += " or " + value;
    }
  }
}

// Escapes bars, which would end the cell of a Markdown table.
std::string cell(std::string text) {
  for (std::size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2)) {
    text.insert(at, 1, '\\');
  }
  return text;
}

std::string parent_of(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

// The choices made in the struct at `parent` itself if `own`, otherwise those made around it.
std::string choices(const KeyReference& key, const std::string& parent, bool own) {
  std::vector<std::string> out;
  for (const std::string& choice : key.when) {
    if ((parent_of(choice.substr(0, choice.find(':'))) == parent) == own) {
      out.push_back(choice);
    }
  }
  return joined(out, ", ");
}

std::string row_text(const KeyReference& key, const std::string& parent) {
  const std::string name = key.path.substr(parent.empty() ? 0 : parent.size() + 1);
  const std::string condition = choices(key, parent, /*own=*/true);
  std::string help = key.help + (condition.empty() ? "" : " (" + condition + ")");
  for (const std::string& entry : key.names) {
    help += "<br>" + entry;
  }
  const std::string type = !key.has_keys ? key.type + (key.unit.empty() ? "" : ", in " + key.unit)
                           : key.type == "keys and values" ? "keys below"
                                                           : key.type + "; keys below";
  const std::string value = key.required                  ? "required"
                            : key.default_value == "null" ? "none"
                            : key.has_keys                ? ""
                                                          : '`' + key.default_value + '`';
  return "| `" + name + "` | " + cell(type) + " | " + cell(value) + " | " + cell(help) + " |\n";
}

}  // namespace

std::vector<KeyReference> list_keys(const StructSchema& root) {
  const std::shared_ptr<void> initial = root.make();
  Lister lister;
  lister.list(root, "", initial.get());
  return std::move(lister).take();
}

Result<std::string> explain_key(const StructSchema& root, std::string_view path) {
  const std::vector<KeyReference> keys = list_keys(root);
  // A key of several kinds is explained once if all explanations are equal.
  std::vector<KeyReference> found;
  std::vector<std::string> paths;
  for (const KeyReference& key : keys) {
    paths.push_back(key.path);
    const bool inside =
        key.path.size() > path.size() && key.path.starts_with(path) && key.path[path.size()] == '.';
    if (key.path != path && !inside) {
      continue;
    }
    const auto same = std::find_if(found.begin(), found.end(), [&key](const auto& other) {
      return explanation(other, "") == explanation(key, "") && other.when.size() == key.when.size();
    });
    if (same == found.end()) {
      found.push_back(key);
    } else {
      add_choices(key.when, same->when);
    }
  }
  if (found.empty()) {
    if (const std::string why = schema::absence_of(root, path); !why.empty()) {
      return Status(Errc::kNotFound, schema::clipped(path) + ": unknown key; " + why);
    }
    // The path may be the end of a known one, or similar to one.
    const std::string tail = '.' + std::string(path);
    const auto ending = std::find_if(paths.begin(), paths.end(),
                                     [&tail](const auto& p) { return p.ends_with(tail); });
    const std::string meant = ending != paths.end() ? *ending : schema::closest_name(path, paths);
    return Status(Errc::kNotFound, schema::clipped(path) + ": unknown key" +
                                       (meant.empty() ? "" : "; did you mean " + meant + '?'));
  }
  std::string out;
  for (const KeyReference& key : found) {
    out += explanation(key, joined(key.when, ", "));
  }
  return out;
}

std::string reference_page(const StructSchema& root, std::string_view title,
                           std::string_view introduction) {
  const std::vector<KeyReference> keys = list_keys(root);
  std::string out = "# " + std::string(title) + "\n";
  if (!introduction.empty()) {
    out += "\n" + std::string(introduction) + "\n";
  }
  std::vector<std::pair<std::string, std::string>> sections;  // heading, rows
  for (const KeyReference& key : keys) {
    const std::string parent = parent_of(key.path);
    const std::string around = choices(key, parent, /*own=*/false);
    const std::string heading = (parent.empty() ? std::string("Top level") : '`' + parent + '`') +
                                (around.empty() ? "" : " (" + around + ")");
    const auto same = std::find_if(sections.begin(), sections.end(),
                                   [&heading](const auto& s) { return s.first == heading; });
    std::string& rows = same == sections.end()
                            ? sections.emplace_back(heading, std::string()).second
                            : same->second;
    rows += row_text(key, parent);
  }
  for (const auto& [section, rows] : sections) {
    out += "\n## " + section + "\n\n";
    out += "| key | value | default | meaning |\n|---|---|---|---|\n" + rows;
  }
  return out;
}

}  // namespace tidemill
