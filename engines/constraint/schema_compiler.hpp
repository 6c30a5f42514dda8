// SPDX-License-Identifier: Apache-2.0
// Private to engines/constraint/. Turns JSON schemas into fragments of an automaton.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "base/json/json.hpp"
#include "engines/constraint/json_rules.hpp"

namespace tidemill::engines {

/// The limits of a schema, besides those of its grammar.
inline constexpr std::size_t kMaxSchemaDepth = 48;   // schemas inside each other
inline constexpr std::size_t kMaxProperties = 1024;  // of one object, with as many required names
inline constexpr std::size_t kMaxEnumValues = 4096;
inline constexpr std::int64_t kMaxSchemaCount = 10'000;  // minItems, maxLength and the like

/// Compiles one document. `constraint.hpp` says what is supported.
///
/// The first refusal is kept, and what is returned then matches nothing.
/// Threads: one call at a time. Borrows its arguments.
class SchemaCompiler {
public:
  SchemaCompiler(const Json& root, GrammarBuilder& builder, JsonRules& rules)
      : root_(root), builder_(builder), rules_(rules) {}

  /// Returns a fragment that matches the values of the document. `path` is where it was found.
  [[nodiscard]] Fragment compile(const std::string& path);

  /// Returns the first refusal.
  [[nodiscard]] const Status& status() const noexcept { return status_; }
  /// Returns the path of what was refused, or "".
  [[nodiscard]] const std::string& refused() const noexcept { return refused_; }

private:
  struct Property {
    std::string name;
    const Json* schema = nullptr;
    bool required = false;
    std::string path;
  };
  struct Counts {
    std::int32_t min = 0;
    std::int32_t max = GrammarBuilder::kUnbounded;
  };

  Fragment refuse(const std::string& path, const std::string& problem);
  [[nodiscard]] GrammarBuilder::RuleId rule(const Json& schema, const std::string& path);
  [[nodiscard]] Fragment nested(const Json& schema, const std::string& path);
  [[nodiscard]] Fragment value(const Json& schema, const std::string& path);
  [[nodiscard]] Fragment restricted(const Json& schema, const std::string& path);
  [[nodiscard]] bool check_keywords(const Json& schema, const std::string& path);
  [[nodiscard]] Fragment reference(const Json& schema, const std::string& path);
  [[nodiscard]] Fragment flat(const Json& schema, const std::string& path);
  [[nodiscard]] Fragment alternatives(const Json& schema, const char* keyword,
                                      const std::string& path);
  [[nodiscard]] Fragment enumeration(const Json& schema, const std::string& path);
  [[nodiscard]] std::vector<std::string> types_of(const Json& schema, const std::string& path);
  [[nodiscard]] Fragment of_type(const std::string& type, const Json& schema,
                                 const std::string& path);
  [[nodiscard]] std::vector<Property> properties_of(const Json& schema, const std::string& path);
  [[nodiscard]] const Json* additional_of(const Json& schema);
  [[nodiscard]] Fragment object(const Json& schema, const std::string& path);
  [[nodiscard]] Fragment array(const Json& schema, const std::string& path);
  [[nodiscard]] Fragment string(const Json& schema, const std::string& path);
  [[nodiscard]] Fragment number(const Json& schema, const std::string& path, bool is_integer);
  [[nodiscard]] std::optional<NumberBound> bound(const Json& schema, const char* inclusive,
                                                 const char* exclusive, bool is_min,
                                                 bool is_integer, const std::string& path);
  [[nodiscard]] Counts counts(const Json& schema, const char* min, const char* max,
                              const std::string& path);

  const Json& root_;
  GrammarBuilder& builder_;
  JsonRules& rules_;
  std::map<const Json*, GrammarBuilder::RuleId> known_;
  std::deque<Json> merged_;  // schemas that are not part of the document
  std::size_t depth_ = 0;
  int merges_ = 0;
  Status status_;
  std::string refused_;
};

}  // namespace tidemill::engines
