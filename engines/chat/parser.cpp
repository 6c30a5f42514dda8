// SPDX-License-Identifier: Apache-2.0
// Parses the statements of templates. Expressions are in expression_parser.cpp.
#include "engines/chat/parser.hpp"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "engines/chat/budget.hpp"
#include "engines/chat/expression_parser.hpp"

namespace tidemill::engines::chat {
namespace {

constexpr std::size_t kMaxNesting = 100;

class Parser : private ExpressionParser {
public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  Body run() {
    Body body = statements({});
    if (!current_is(Token::Kind::kEnd)) {
      syntax("unexpected " + describe(current()));
    }
    return body;
  }

private:
  using EndTags = std::initializer_list<std::string_view>;

  template <class Node>
  static std::unique_ptr<const Stmt> make(int line, Node node) {
    auto statement = std::make_unique<Stmt>();
    statement->line = line;
    statement->node = std::move(node);
    return statement;
  }

  // Parses up to a block that begins with one of `ends`, and leaves the cursor at that name.
  // Without `ends`, parses to the end of the template.
  Body statements(EndTags ends) {
    Body body;
    const int begin_line = line();
    while (!current_is(Token::Kind::kEnd)) {
      const int at_line = line();
      if (current_is(Token::Kind::kData)) {
        body.push_back(make(at_line, Text{next().text}));
      } else if (current_is(Token::Kind::kVariableBegin)) {
        next();
        ExprPtr value = tuple();
        expect(Token::Kind::kVariableEnd, "'}}'");
        body.push_back(make(at_line, Output{std::move(value)}));
      } else {
        next();  // {%
        const bool is_end = std::any_of(ends.begin(), ends.end(),
                                        [this](std::string_view tag) { return is_name(tag); });
        if (is_end) {
          return body;
        }
        body.push_back(statement());
        expect(Token::Kind::kBlockEnd, "'%}'");
      }
    }
    if (ends.size() > 0) {
      throw TemplateError(
          TemplateError::Kind::kSyntax,
          "unexpected end of template, expected {% " + std::string(*(ends.end() - 1)) + " %}",
          begin_line);
    }
    return body;
  }

  // Parses the body of a tag: the end of the tag, then statements up to one of `ends`.
  Body body_until(EndTags ends) {
    if (++nesting_ > kMaxNesting) {
      syntax("tags nested deeper than " + std::to_string(kMaxNesting));
    }
    skip_operator(":");
    expect(Token::Kind::kBlockEnd, "'%}'");
    Body body = statements(ends);
    --nesting_;
    return body;
  }

  Body body_and_end(std::string_view end) {
    Body body = body_until({end});
    next();
    return body;
  }

  std::unique_ptr<const Stmt> statement() {
    const int at_line = line();
    if (!current_is(Token::Kind::kName)) {
      syntax("expected the name of a tag");
    }
    const std::string tag = next().text;
    if (tag == "for") {
      return for_loop(at_line);
    }
    if (tag == "if") {
      return if_chain(at_line);
    }
    if (tag == "set") {
      return assignment(at_line);
    }
    if (tag == "macro") {
      return macro(at_line);
    }
    if (tag == "call") {
      return call_block(at_line);
    }
    if (tag == "filter") {
      FilterBlock block;
      block.filters = filter_chain(nullptr, FilterStart::kInline);
      block.body = body_and_end("endfilter");
      return make(at_line, std::move(block));
    }
    if (tag == "with") {
      return with(at_line);
    }
    if (tag == "generation") {
      return make(at_line, Generation{outside_loops("endgeneration")});
    }
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) {
        syntax("'" + tag + "' outside a loop");
      }
      if (tag == "break") {
        return make(at_line, Break{});
      }
      return make(at_line, Continue{});
    }
    syntax("unknown tag '" + tag + "'", at_line);
  }

  // Parses a body that is rendered separately, so that break and continue cannot leave it.
  Body outside_loops(std::string_view end) {
    const std::size_t loops = std::exchange(loops_, 0);
    Body body = body_and_end(end);
    loops_ = loops;
    return body;
  }

  std::unique_ptr<const Stmt> for_loop(int at_line) {
    For loop;
    loop.target = target(NamespaceTargets::kNo, "in");
    expect_name("in");
    loop.iterable = tuple_without_condition("recursive");
    if (skip_name("if")) {
      loop.filter = expression();
    }
    loop.recursive = skip_name("recursive");
    ++loops_;
    loop.body = body_until({"else", "endfor"});
    --loops_;
    if (next().text == "else") {
      loop.otherwise = body_and_end("endfor");
    }
    return make(at_line, std::move(loop));
  }

  std::unique_ptr<const Stmt> if_chain(int at_line) {
    If chain;
    while (true) {
      ExprPtr condition = tuple_without_condition("");
      Body body = body_until({"elif", "else", "endif"});
      chain.branches.emplace_back(std::move(condition), std::move(body));
      const std::string tag = next().text;
      if (tag == "elif") {
        continue;
      }
      if (tag == "else") {
        chain.otherwise = body_and_end("endif");
      }
      return make(at_line, std::move(chain));
    }
  }

  std::unique_ptr<const Stmt> assignment(int at_line) {
    Target to = target(NamespaceTargets::kYes, "");
    if (skip_operator("=")) {
      Set set;
      set.target = std::move(to);
      set.value = tuple();
      return make(at_line, std::move(set));
    }
    SetBlock set;
    set.target = std::move(to);
    set.filters = filter_chain(nullptr, FilterStart::kAfterPipe);
    set.body = body_and_end("endset");
    return make(at_line, std::move(set));
  }

  std::vector<Parameter> parameters() {
    std::vector<Parameter> list;
    expect_operator("(");
    while (!is_operator(")")) {
      if (!list.empty()) {
        expect_operator(",");
      }
      Parameter parameter;
      parameter.name = name_to_assign();
      if (skip_operator("=")) {
        parameter.default_value = expression();
      } else if (!list.empty() && list.back().default_value != nullptr) {
        syntax("a parameter without a default follows one with a default");
      }
      list.push_back(std::move(parameter));
    }
    expect_operator(")");
    return list;
  }

  // Parses the body of a macro and records which special variables it mentions.
  void macro_body(Macro& macro, std::string_view end) {
    const std::size_t first = position();
    macro.body = outside_loops(end);
    macro.takes_varargs = names_since(first, "varargs");
    macro.takes_kwargs = names_since(first, "kwargs");
  }

  std::unique_ptr<const Stmt> macro(int at_line) {
    Macro definition;
    definition.name = name_to_assign();
    definition.parameters = parameters();
    macro_body(definition, "endmacro");
    return make(at_line, std::move(definition));
  }

  std::unique_ptr<const Stmt> call_block(int at_line) {
    CallBlock block;
    block.caller.name = "caller";
    if (is_operator("(")) {
      block.caller.parameters = parameters();
    }
    block.call = expression();
    if (!std::holds_alternative<Call>(block.call->node)) {
      syntax("expected a call", at_line);
    }
    macro_body(block.caller, "endcall");
    return make(at_line, std::move(block));
  }

  std::unique_ptr<const Stmt> with(int at_line) {
    With block;
    while (!current_is(Token::Kind::kBlockEnd)) {
      if (!block.assignments.empty()) {
        expect_operator(",");
      }
      Target to = target(NamespaceTargets::kNo, "");
      expect_operator("=");
      block.assignments.emplace_back(std::move(to), expression());
    }
    block.body = body_and_end("endwith");
    return make(at_line, std::move(block));
  }

  std::size_t nesting_ = 0;
  std::size_t loops_ = 0;  // open loops in the body that is being parsed
};

}  // namespace

Body parse_template(std::vector<Token> tokens) {
  return Parser(std::move(tokens)).run();
}

}  // namespace tidemill::engines::chat
