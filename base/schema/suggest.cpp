// SPDX-License-Identifier: Apache-2.0
#include "base/schema/suggest.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>

namespace tidemill::schema {
namespace {

constexpr std::size_t kMaxLength = 60;
constexpr std::size_t kMaxListedKeys = 12;

// Optimal string alignment distance: Damerau-Levenshtein without editing a pair twice.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    last[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1,
                         last[j - 1] + static_cast<std::size_t>(a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
    std::swap(before_last, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

// `text` in lowercase, with `_` for `-`.
std::string folded(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c == '-' ? '_' : c;
  }
  return out;
}

std::vector<std::string_view> words_of(std::string_view name) {
  std::vector<std::string_view> words;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('_', begin), name.size());
    words.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

// How many words the longer name has in addition to the shorter one, or nothing unless it contains
// all words of the shorter one in order: `timeout` and `timeout_ms`, `max_tokens` and
// `max_new_tokens`, `lora_alpha` and `alpha`.
std::optional<std::size_t> words_between(std::string_view a, std::string_view b) {
  std::vector<std::string_view> more = words_of(a);
  std::vector<std::string_view> fewer = words_of(b);
  if (more.size() < fewer.size()) {
    std::swap(more, fewer);
  }
  std::size_t found = 0;
  for (const std::string_view word : more) {
    found += found < fewer.size() && word == fewer[found] && !word.empty() ? 1 : 0;
  }
  return found == fewer.size() ? std::optional(more.size() - found) : std::nullopt;
}

// The first letters of a name's words: `lr` of `learning_rate`. Empty for a single word.
std::string initials(std::string_view name) {
  std::string out;
  const std::vector<std::string_view> words = words_of(name);
  for (const std::string_view word : words) {
    out += words.size() > 1 ? word.substr(0, 1) : "";
  }
  return out;
}

void append_names(const StructSchema& structure, std::vector<std::string>& names) {
  for (const FieldSchema& field : structure.fields) {
    names.push_back(field.name);
  }
}

// Appends the paths of all keys called `name`, including those of every kind.
void append_paths(const StructSchema& structure, std::string_view name, const std::string& prefix,
                  std::vector<std::string>& paths) {
  for (const FieldSchema& field : structure.fields) {
    if (field.name == name) {
      paths.push_back(joined(prefix, name));
    }
    if (field.value.members) {
      append_paths(*field.value.members, name, joined(prefix, field.name), paths);
    }
  }
  if (structure.tag) {
    for (const KindSchema& kind : structure.tag->kinds) {
      if (kind.members) {
        append_paths(*kind.members, name, prefix, paths);
      }
    }
  }
}

// Returns the path of the key that other programs call `name`, or "".
std::string path_of_synonym(const StructSchema& structure, std::string_view name,
                            const std::string& prefix) {
  for (const FieldSchema& field : structure.fields) {
    std::string path = joined(prefix, field.name);
    if (std::ranges::find(field.also_called, name) != field.also_called.end()) {
      return path;
    }
    std::string inside =
        field.value.members ? path_of_synonym(*field.value.members, name, path) : "";
    if (!inside.empty()) {
      return inside;
    }
  }
  if (structure.tag) {
    for (const KindSchema& kind : structure.tag->kinds) {
      std::string inside = kind.members ? path_of_synonym(*kind.members, name, prefix) : "";
      if (!inside.empty()) {
        return inside;
      }
    }
  }
  return {};
}

// Completes "unknown key" for the name of a setting of another program, or returns "".
std::string other_program_phrase(const StructSchema& root, std::string_view path,
                                 std::string_view key) {
  const std::string name = folded(key);
  if (const std::string meant = path_of_synonym(root, name, ""); !meant.empty()) {
    const bool here = meant.substr(0, meant.rfind('.')) == path;
    return "did you mean " + (here ? meant.substr(path.size() + 1) : meant) + '?';
  }
  return absence_of(root, key);
}

// Returns a kind other than the chosen one that has a key at `path`, or null.
const KindSchema* owner_of(const ChosenStruct& chosen, const std::string& path,
                           std::string_view key) {
  if (!chosen.structure.tag) {
    return nullptr;
  }
  for (const KindSchema& kind : chosen.structure.tag->kinds) {
    std::vector<std::string> paths;
    if (&kind != chosen.kind && kind.members) {
      append_paths(*kind.members, key, "", paths);
    }
    if (std::find(paths.begin(), paths.end(), path) != paths.end()) {
      return &kind;
    }
  }
  return nullptr;
}

std::string belongs_phrase(const ChosenStruct& chosen, const KindSchema& owner) {
  return "belongs to " + chosen.structure.tag->name + ' ' + owner.name + ", not to " +
         (chosen.kind != nullptr ? chosen.kind->name : "this one");
}

}  // namespace

std::string joined(std::string_view path, std::string_view key) {
  std::string out(path);
  out += out.empty() ? "" : ".";
  return out.append(key);
}

std::string path_of_name(const StructSchema& root, std::string_view name) {
  std::string path = path_of_synonym(root, folded(name), "");
  if (path.empty()) {
    std::vector<std::string> paths;
    append_paths(root, name, "", paths);
    path = paths.size() == 1 ? paths.front() : "";
  }
  return path;
}

std::string absence_of(const StructSchema& root, std::string_view name) {
  for (const AbsentKeys& absent : root.absent) {
    if (std::ranges::find(absent.names, folded(name)) != absent.names.end()) {
      return absent.why;
    }
  }
  if (root.tag) {
    for (const KindSchema& kind : root.tag->kinds) {
      std::string why = kind.members ? absence_of(*kind.members, name) : "";
      if (!why.empty()) {
        return why;
      }
    }
  }
  return {};
}

std::string closest_name(std::string_view text, const std::vector<std::string>& candidates) {
  if (text.size() > kMaxLength) {
    return {};
  }
  const std::string wanted = folded(text);
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, text.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(wanted, candidate);
    if (distance < best_distance && distance < candidate.size()) {
      best = candidate;
      best_distance = distance;
    }
  }
  if (!best.empty()) {
    return best;
  }
  std::optional<std::size_t> best_words;
  for (const std::string& candidate : candidates) {
    const std::optional<std::size_t> words = words_between(wanted, candidate);
    if (words.has_value() && words < best_words.value_or(kMaxLength)) {
      best = candidate;
      best_words = words;
    }
  }
  const auto short_for =
      std::ranges::find(candidates, wanted, [](const auto& name) { return initials(name); });
  const bool abbreviated = best.empty() && !wanted.empty() && short_for != candidates.end();
  return abbreviated ? *short_for : best;
}

std::string keys_phrase(const ChosenStruct& chosen) {
  std::vector<std::string> names;
  if (chosen.structure.tag) {
    names.push_back(chosen.structure.tag->name);
  }
  append_names(chosen.structure, names);
  if (chosen.kind != nullptr && chosen.kind->members) {
    append_names(*chosen.kind->members, names);
  }
  std::string out;
  for (const std::string& name : names) {
    out += (out.empty() ? "" : ", ") + name;
  }
  const bool more = chosen.structure.tag && chosen.kind == nullptr;  // the kind adds some
  return names.size() > kMaxListedKeys ? "" : out + (more ? ", ..." : "");
}

std::string unknown_key_phrase(const ChosenStruct& root, const ChosenStruct& structure,
                               std::string_view path, std::string_view key) {
  if (const KindSchema* owner = owner_of(structure, std::string(key), key)) {
    return belongs_phrase(structure, *owner);
  }
  if (const KindSchema* owner = owner_of(root, joined(path, key), key)) {
    return belongs_phrase(root, *owner);
  }
  const bool chosen = root.kind != nullptr && root.kind->members;
  const StructSchema& all = chosen ? *root.kind->members : root.structure;
  if (const std::string phrase = other_program_phrase(all, path, key); !phrase.empty()) {
    return "unknown key; " + phrase;
  }
  std::vector<std::string> names;
  append_names(structure.structure, names);
  const TagSchema* tag = structure.structure.tag ? &*structure.structure.tag : nullptr;
  if (tag != nullptr) {
    names.push_back(tag->name);
  }
  if (structure.kind != nullptr && structure.kind->members) {
    append_names(*structure.kind->members, names);
  }
  std::string meant = closest_name(key, names);
  const std::size_t colon = key.find(':');
  if (const std::string_view head = key.substr(0, colon);
      colon != std::string_view::npos && std::ranges::find(names, head) != names.end()) {
    meant = std::string(head) + ": " + clipped(key.substr(colon + 1));  // the space was left out
  }
  if (meant.empty() && tag != nullptr && tag->find(key) != nullptr) {
    meant = tag->name + ": " + std::string(key);
  }
  const std::string keys = keys_phrase(structure);
  if (meant.empty()) {  // perhaps the key is at the wrong level, or the path is reversed
    std::vector<std::string> paths;
    append_paths(all, path, "", paths);
    const auto reversed = std::ranges::find(paths, joined(key, path));
    meant = reversed != paths.end() ? *reversed : "";
    paths.clear();
    append_paths(all, key, "", paths);
    if (meant.empty() && (paths.size() == 1 || (keys.empty() && !paths.empty()))) {
      meant = paths.front();
    }
  }
  if (!meant.empty()) {
    return "unknown key; did you mean " + meant + '?';
  }
  if (!key.empty() && key.find_first_not_of("0123456789") == std::string_view::npos) {
    return "unknown key; write numbers without commas";
  }
  return "unknown key" + (keys.empty() ? "" : "; known keys: " + keys);
}

}  // namespace tidemill::schema
