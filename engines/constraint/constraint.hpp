// SPDX-License-Identifier: Apache-2.0
// Constrains a response to JSON, to a JSON schema, or to calls of tools.
//
// A schema is compiled to an automaton over bytes (grammar.hpp). Each sequence has a
// `ConstraintState`, which yields the tokens that may follow and takes the one that was sampled. A
// response can always be completed. Texts have no unbounded white space: they are compact, except
// that one space may follow a colon and a comma.
//
// Schemas are those of JSON Schema 2020-12 with these keywords:
//
//   all values  type (also a list), enum, const, anyOf, oneOf (as anyOf: the alternatives are not
//               tested against each other), allOf and $ref beside other keywords if they can be
//               merged, $ref within the document, which may be recursive
//   objects     properties, required, additionalProperties
//   arrays      items, prefixItems, minItems, maxItems
//   strings     minLength, maxLength, or pattern (pattern.hpp), or format (date, time, date-time,
//               uuid, email, ipv4)
//   numbers     minimum, maximum, exclusiveMinimum and exclusiveMaximum; limits of numbers other
//               than integers must be integers
//   annotations title, description, default, examples, deprecated, readOnly, writeOnly, $comment,
//               $schema, $id, and names that begin with x-
//
// Any other keyword is refused. Every generated value satisfies its schema, but not every such
// value can be generated: properties have the order of the schema; objects that list properties
// have no others unless the schema mentions `additionalProperties`, and likewise lists with
// `prefixItems` and `items`; a schema without a type whose keywords apply to some types has only
// these; numbers have a limited number of digits. The names of additional properties may repeat.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/json/json.hpp"
#include "base/result.hpp"
#include "engines/constraint/grammar.hpp"
#include "engines/constraint/token_index.hpp"

namespace tidemill::engines {

class MaskStore;

/// The maximum number of frames of a response: about the number of values inside each other.
inline constexpr std::int32_t kMaxConstraintDepth = 60;
/// The same for the arguments of a call, which clients and the server parse again.
inline constexpr std::int32_t kMaxCallDepth = 26;

/// A function that a response may call.
struct CallableTool {
  std::string name;
  const Json* parameters = nullptr;  // a schema; null: any object
  std::string path;                  // where the schema was found
};

/// How a response calls tools.
enum class ToolCallForm : std::uint8_t {
  kTags,   // <tool_call>, a line with {"name": NAME, "arguments": {...}}, </tool_call>
  kPlain,  // {"name": NAME, "arguments" or "parameters": {...}}
};
enum class ToolCallCount : std::uint8_t { kOne, kOneOrMore };

/// Return the automata of any JSON object, of the values of a schema, and of calls of `tools`.
/// `path` is where the schema was found; `refused` becomes the path of what was refused, or "" if
/// the schema as a whole was.
/// Errors: `kInvalidArgument` ("PATH: what is not supported", or no value can satisfy the schema),
/// `kResourceExhausted` (too large).
/// Threads: safe to call concurrently. Takes up to about a second for schemas at the limits.
[[nodiscard]] Result<Grammar> json_object_grammar();
[[nodiscard]] Result<Grammar> json_schema_grammar(const Json& schema, const std::string& path,
                                                  std::string& refused);
[[nodiscard]] Result<Grammar> tool_call_grammar(std::span<const CallableTool> tools,
                                                ToolCallForm form, ToolCallCount count,
                                                std::string& refused);

/// An automaton with a vocabulary, and the masks of its states. The automaton is immutable; masks
/// are computed when they are first needed, and kept.
///
/// Threads: safe to use concurrently.
class Constraint {
public:
  /// The memory for masks, about.
  static constexpr std::size_t kMaskBytes = std::size_t{16} << 20U;

  Constraint(Grammar grammar, std::shared_ptr<const TokenIndex> index,
             std::size_t mask_bytes = kMaskBytes);
  Constraint(const Constraint&) = delete;
  Constraint& operator=(const Constraint&) = delete;
  ~Constraint();

  [[nodiscard]] const Grammar& grammar() const noexcept { return grammar_; }
  [[nodiscard]] const TokenIndex& index() const noexcept { return *index_; }

private:
  friend class ConstraintState;

  Grammar grammar_;
  std::shared_ptr<const TokenIndex> index_;
  std::unique_ptr<MaskStore> masks_;
};

/// The number of words of a mask with a bit for each token.
[[nodiscard]] constexpr std::size_t mask_words(std::int64_t vocabulary) noexcept {
  return (static_cast<std::size_t>(vocabulary) + 63) / 64;
}

/// What a sequence has generated, as far as its constraint is concerned. A value.
///
/// Threads: one call at a time; copies are independent.
class ConstraintState {
public:
  /// What may follow is one of these configurations.
  struct Configuration {
    std::int32_t state = 0;
    std::vector<std::int32_t> stack;  // the last frame is the top
    friend bool operator==(const Configuration&, const Configuration&) = default;
  };

  explicit ConstraintState(std::shared_ptr<const Constraint> constraint);

  /// Writes the tokens that may follow: those of the text, and `end_ids` if the text may end here.
  /// Shapes: `words` (`mask_words` of the vocabulary); bit t % 64 of word t / 64 is token t.
  /// Errors: `kResourceExhausted` (the schema is too ambiguous), `kInvalidArgument` (no token can
  /// follow, because the vocabulary lacks bytes or `end_ids` is empty and the text is complete).
  [[nodiscard]] Status mask(std::span<const std::int32_t> end_ids,
                            std::span<std::uint64_t> words) const;

  /// Takes the next token of the text, which is none of the tokens that end it.
  /// Errors: `kInvalidArgument` (the token cannot follow; the state is unchanged),
  /// `kResourceExhausted` (the schema is too ambiguous).
  [[nodiscard]] Status accept(std::int32_t token);

  /// Returns whether the text may end here.
  [[nodiscard]] bool may_end() const noexcept;
  /// Returns whether the text must end here.
  [[nodiscard]] bool must_end() const noexcept;
  /// Returns the configurations, at least one.
  [[nodiscard]] const std::vector<Configuration>& configurations() const noexcept {
    return configurations_;
  }

private:
  [[nodiscard]] Status add(Configuration one, std::vector<Configuration>& to) const;

  std::shared_ptr<const Constraint> constraint_;
  std::vector<Configuration> configurations_;
};

}  // namespace tidemill::engines
