// SPDX-License-Identifier: Apache-2.0
// Parses the expressions of templates: a token cursor and a recursive-descent parser.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engines/chat/ast.hpp"
#include "engines/chat/lexer.hpp"

namespace tidemill::engines::chat {

/// Parses expressions at a cursor that moves through the tokens. Members throw `TemplateError` with
/// the line of the current token.
class ExpressionParser {
public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

protected:
  enum class FilterStart : std::uint8_t { kAfterPipe, kInline };
  enum class NamespaceTargets : std::uint8_t { kNo, kYes };

  // ---- Cursor
  [[nodiscard]] const Token& current() const { return tokens_[position_]; }
  [[nodiscard]] int line() const { return current().line; }
  [[nodiscard]] std::size_t position() const { return position_; }
  [[nodiscard]] bool current_is(Token::Kind kind) const { return current().kind == kind; }
  [[nodiscard]] bool is_name(std::string_view name) const {
    return current_is(Token::Kind::kName) && current().text == name;
  }
  [[nodiscard]] bool is_operator(std::string_view op) const {
    return current_is(Token::Kind::kOperator) && current().text == op;
  }
  /// Returns the current token and moves past it, except at the end.
  const Token& next();
  bool skip_name(std::string_view name);
  bool skip_operator(std::string_view op);
  void expect(Token::Kind kind, std::string_view what);
  void expect_name(std::string_view name);
  void expect_operator(std::string_view op);
  /// Returns whether a token from `first` up to the current one is this name.
  [[nodiscard]] bool names_since(std::size_t first, std::string_view name) const;
  [[nodiscard]] static std::string describe(const Token& token);
  [[noreturn]] void syntax(const std::string& message, int at_line = 0) const;

  // ---- Expressions
  ExprPtr expression();
  /// Parses an expression, or a tuple of expressions separated by commas.
  ExprPtr tuple();
  /// Parses like `tuple`, but without inline `if`. The tuple may end before the name `end`.
  ExprPtr tuple_without_condition(std::string_view end);
  /// Parses filters after `input`, which may be null. Returns `input` if no filter follows.
  ExprPtr filter_chain(ExprPtr input, FilterStart start);
  /// Parses the target of an assignment, up to the name `end` if it is not empty.
  Target target(NamespaceTargets namespaces, std::string_view end);
  std::string name_to_assign();

private:
  enum class Conditions : std::uint8_t { kNo, kYes };

  template <class Node>
  ExprPtr make(int at_line, Node node) const;
  [[nodiscard]] const Token& ahead() const;

  ExprPtr tuple(Conditions conditions, std::string_view end, bool may_be_empty);
  ExprPtr conditional();
  ExprPtr or_chain();
  ExprPtr and_chain();
  ExprPtr not_chain();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filters);
  ExprPtr primary();
  ExprPtr list();
  ExprPtr dict();
  ExprPtr postfix(ExprPtr node);
  ExprPtr subscript(ExprPtr object);
  ExprPtr slice(ExprPtr object, ExprPtr begin, int at_line);
  ExprPtr filters_and_tests(ExprPtr node);
  ExprPtr test(ExprPtr input);
  Target simple_target(NamespaceTargets namespaces);
  CallArguments call_arguments();
  [[nodiscard]] bool at_tuple_end(std::string_view end) const;

  std::vector<Token> tokens_;
  std::size_t position_ = 0;
  std::size_t nesting_ = 0;
};

}  // namespace tidemill::engines::chat
