// SPDX-License-Identifier: Apache-2.0
#include "base/schema_suggest.hpp"

#include <algorithm>
#include <cstddef>

namespace tidemill::schema {
namespace {

constexpr std::size_t kMaxLength = 60;

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

void append_names(const StructSchema& structure, std::vector<std::string>& names) {
  for (const FieldSchema& field : structure.fields) {
    names.push_back(field.name);
  }
}

// Appends the paths of all keys called `name`, those of every kind included.
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

// The kind that has a key at `path` while the chosen one has not, or null.
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

std::string closest_name(std::string_view text, const std::vector<std::string>& candidates) {
  if (text.size() > kMaxLength) {
    return {};
  }
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, text.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(text, candidate);
    if (distance < best_distance && distance < candidate.size()) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string clipped(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kMaxLength)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20U || byte == 0x7FU ? '?' : c;
  }
  // A cut in the middle of a UTF-8 character would leave a broken one.
  if (text.size() > kMaxLength) {
    while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xC0U) == 0x80U) {
      out.pop_back();
    }
    if (!out.empty() && static_cast<unsigned char>(out.back()) >= 0xC0U) {
      out.pop_back();
    }
    out += "...";
  }
  return out;
}

std::string unknown_key_phrase(const ChosenStruct& root, const ChosenStruct& structure,
                               std::string_view path, std::string_view key) {
  if (const KindSchema* owner = owner_of(structure, std::string(key), key)) {
    return belongs_phrase(structure, *owner);
  }
  if (const KindSchema* owner = owner_of(root, joined(path, key), key)) {
    return belongs_phrase(root, *owner);
  }
  std::vector<std::string> names;
  append_names(structure.structure, names);
  if (structure.structure.tag) {
    names.push_back(structure.structure.tag->name);
  }
  if (structure.kind != nullptr && structure.kind->members) {
    append_names(*structure.kind->members, names);
  }
  std::string meant = closest_name(key, names);
  if (meant.empty()) {  // perhaps it was written one level too high or too low
    std::vector<std::string> paths;
    const bool chosen = root.kind != nullptr && root.kind->members;
    append_paths(chosen ? *root.kind->members : root.structure, key, "", paths);
    meant = paths.empty() ? "" : paths.front();
  }
  return "unknown key" + (meant.empty() ? "" : "; did you mean " + meant + '?');
}

}  // namespace tidemill::schema
