// SPDX-License-Identifier: Apache-2.0
// Jinja's expression grammar, loosest binding first: if-else, or, and, not, comparisons, + and -,
// ~, * / // %, **, signs, then calls, attributes, filters and tests.
#include "engines/chat/expression_parser.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "engines/chat/budget.hpp"

namespace tidemill::engines::chat {
namespace {

// Limits for nested brackets, signs and `not`, and for the height of a tree, which chains such as
// a + b + c increase too. Both limit the recursion over the tree.
constexpr std::size_t kMaxNesting = 60;
constexpr std::size_t kMaxTreeDepth = 200;

std::size_t depth_of(const ExprPtr& node) {
  return node == nullptr ? 0 : node->depth;
}

std::size_t depth_of(const std::vector<ExprPtr>& nodes) {
  std::size_t depth = 0;
  for (const ExprPtr& node : nodes) {
    depth = std::max(depth, depth_of(node));
  }
  return depth;
}

std::size_t depth_of(const CallArguments& arguments) {
  std::size_t depth = std::max(
      {depth_of(arguments.positional), depth_of(arguments.splat), depth_of(arguments.named_splat)});
  for (const auto& argument : arguments.named) {
    depth = std::max(depth, depth_of(argument.second));
  }
  return depth;
}

// Returns the height of the tree below a node.
struct DepthBelow {
  std::size_t operator()(const Constant& /*n*/) const { return 0; }
  std::size_t operator()(const Name& /*n*/) const { return 0; }
  std::size_t operator()(const SequenceLiteral& n) const { return depth_of(n.items); }
  std::size_t operator()(const DictLiteral& n) const {
    std::size_t depth = 0;
    for (const auto& entry : n.entries) {
      depth = std::max({depth, depth_of(entry.first), depth_of(entry.second)});
    }
    return depth;
  }
  std::size_t operator()(const Attribute& n) const { return depth_of(n.object); }
  std::size_t operator()(const Subscript& n) const {
    return std::max(depth_of(n.object), depth_of(n.index));
  }
  std::size_t operator()(const SliceOf& n) const {
    return std::max({depth_of(n.object), depth_of(n.begin), depth_of(n.end), depth_of(n.step)});
  }
  std::size_t operator()(const Call& n) const {
    return std::max(depth_of(n.callee), depth_of(n.arguments));
  }
  std::size_t operator()(const FilterCall& n) const {
    return std::max(depth_of(n.input), depth_of(n.arguments));
  }
  std::size_t operator()(const TestCall& n) const {
    return std::max(depth_of(n.input), depth_of(n.arguments));
  }
  std::size_t operator()(const Unary& n) const { return depth_of(n.operand); }
  std::size_t operator()(const Binary& n) const {
    return std::max(depth_of(n.left), depth_of(n.right));
  }
  std::size_t operator()(const Logical& n) const {
    return std::max(depth_of(n.left), depth_of(n.right));
  }
  std::size_t operator()(const Compare& n) const {
    std::size_t depth = depth_of(n.first);
    for (const auto& operand : n.rest) {
      depth = std::max(depth, depth_of(operand.second));
    }
    return depth;
  }
  std::size_t operator()(const Concat& n) const { return depth_of(n.parts); }
  std::size_t operator()(const Conditional& n) const {
    return std::max({depth_of(n.condition), depth_of(n.then), depth_of(n.otherwise)});
  }
};

}  // namespace

// ---- Cursor -------------------------------------------------------------------------------------

const Token& ExpressionParser::next() {
  const Token& token = current();
  if (token.kind != Token::Kind::kEnd) {
    ++position_;
  }
  return token;
}

const Token& ExpressionParser::ahead() const {
  return tokens_[std::min(position_ + 1, tokens_.size() - 1)];
}

bool ExpressionParser::skip_name(std::string_view name) {
  if (!is_name(name)) {
    return false;
  }
  next();
  return true;
}

bool ExpressionParser::skip_operator(std::string_view op) {
  if (!is_operator(op)) {
    return false;
  }
  next();
  return true;
}

void ExpressionParser::expect(Token::Kind kind, std::string_view what) {
  if (!current_is(kind)) {
    syntax("expected " + std::string(what) + ", got " + describe(current()));
  }
  next();
}

void ExpressionParser::expect_name(std::string_view name) {
  if (!skip_name(name)) {
    syntax("expected '" + std::string(name) + "', got " + describe(current()));
  }
}

void ExpressionParser::expect_operator(std::string_view op) {
  if (!skip_operator(op)) {
    syntax("expected '" + std::string(op) + "', got " + describe(current()));
  }
}

bool ExpressionParser::names_since(std::size_t first, std::string_view name) const {
  return std::any_of(tokens_.begin() + static_cast<std::ptrdiff_t>(first),
                     tokens_.begin() + static_cast<std::ptrdiff_t>(position_),
                     [name](const Token& token) {
                       return token.kind == Token::Kind::kName && token.text == name;
                     });
}

std::string ExpressionParser::describe(const Token& token) {
  switch (token.kind) {
    case Token::Kind::kData: return "text";
    case Token::Kind::kVariableBegin: return "'{{'";
    case Token::Kind::kVariableEnd: return "'}}'";
    case Token::Kind::kBlockBegin: return "'{%'";
    case Token::Kind::kBlockEnd: return "'%}'";
    case Token::Kind::kLiteral: return "a literal";
    case Token::Kind::kName:
    case Token::Kind::kOperator: return "'" + token.text + "'";
    case Token::Kind::kEnd: return "the end of the template";
  }
  return "";
}

void ExpressionParser::syntax(const std::string& message, int at_line) const {
  throw TemplateError(TemplateError::Kind::kSyntax, message, at_line == 0 ? line() : at_line);
}

template <class Node>
ExprPtr ExpressionParser::make(int at_line, Node node) const {
  auto expr = std::make_unique<Expr>();
  expr->line = at_line;
  expr->depth = 1 + DepthBelow()(node);
  expr->node = std::move(node);
  if (expr->depth > kMaxTreeDepth) {
    syntax("expression tree deeper than " + std::to_string(kMaxTreeDepth) + " levels");
  }
  return expr;
}

// ---- Tuples and targets -------------------------------------------------------------------------

bool ExpressionParser::at_tuple_end(std::string_view end) const {
  return current_is(Token::Kind::kVariableEnd) || current_is(Token::Kind::kBlockEnd) ||
         is_operator(")") || (!end.empty() && is_name(end));
}

ExprPtr ExpressionParser::tuple(Conditions conditions, std::string_view end, bool may_be_empty) {
  const int at_line = line();
  SequenceLiteral items;
  items.kind = SequenceKind::kTuple;
  bool is_tuple = false;
  while (true) {
    if (!items.items.empty()) {
      expect_operator(",");
    }
    if (at_tuple_end(end)) {
      break;
    }
    items.items.push_back(conditions == Conditions::kYes ? expression() : or_chain());
    if (!is_operator(",")) {
      break;
    }
    is_tuple = true;
  }
  if (!is_tuple && !items.items.empty()) {
    return std::move(items.items.front());
  }
  if (!is_tuple && !may_be_empty) {
    syntax("expected an expression, got " + describe(current()));
  }
  return make(at_line, std::move(items));
}

ExprPtr ExpressionParser::tuple() {
  return tuple(Conditions::kYes, "", false);
}

ExprPtr ExpressionParser::tuple_without_condition(std::string_view end) {
  return tuple(Conditions::kNo, end, false);
}

std::string ExpressionParser::name_to_assign() {
  static constexpr std::array<std::string_view, 6> kConstants = {"true", "false", "none",
                                                                 "True", "False", "None"};
  if (!current_is(Token::Kind::kName)) {
    syntax("expected a name, got " + describe(current()));
  }
  const std::string& name = current().text;
  if (std::find(kConstants.begin(), kConstants.end(), name) != kConstants.end()) {
    syntax("can't assign to '" + name + "'");
  }
  return next().text;
}

Target ExpressionParser::simple_target(NamespaceTargets namespaces) {
  Target to;
  if (skip_operator("(")) {
    to = target(namespaces, "");
    expect_operator(")");
    return to;
  }
  to.name = name_to_assign();
  if (namespaces == NamespaceTargets::kYes && skip_operator(".")) {
    if (!current_is(Token::Kind::kName)) {
      syntax("expected a name, got " + describe(current()));
    }
    to.attribute = next().text;
  }
  return to;
}

Target ExpressionParser::target(NamespaceTargets namespaces, std::string_view end) {
  if (++nesting_ > kMaxNesting) {
    syntax("targets nested too deeply");
  }
  Target first = simple_target(namespaces);
  if (is_operator(",")) {
    Target tuple_target;
    tuple_target.parts.push_back(std::move(first));
    while (skip_operator(",")) {
      if (at_tuple_end(end) || is_operator("=")) {
        break;
      }
      tuple_target.parts.push_back(simple_target(namespaces));
    }
    first = std::move(tuple_target);
  }
  --nesting_;
  return first;
}

// ---- Operators ----------------------------------------------------------------------------------

ExprPtr ExpressionParser::expression() {
  if (++nesting_ > kMaxNesting) {
    syntax("expressions nested deeper than " + std::to_string(kMaxNesting));
  }
  ExprPtr node = conditional();
  --nesting_;
  return node;
}

ExprPtr ExpressionParser::conditional() {
  ExprPtr node = or_chain();
  while (is_name("if")) {
    const int at_line = line();
    next();
    Conditional conditional_node;
    conditional_node.then = std::move(node);
    conditional_node.condition = or_chain();
    if (skip_name("else")) {
      conditional_node.otherwise = expression();
    }
    node = make(at_line, std::move(conditional_node));
  }
  return node;
}

ExprPtr ExpressionParser::or_chain() {
  ExprPtr node = and_chain();
  while (is_name("or")) {
    const int at_line = line();
    next();
    ExprPtr right = and_chain();
    node = make(at_line, Logical{LogicalOp::kOr, std::move(node), std::move(right)});
  }
  return node;
}

ExprPtr ExpressionParser::and_chain() {
  ExprPtr node = not_chain();
  while (is_name("and")) {
    const int at_line = line();
    next();
    ExprPtr right = not_chain();
    node = make(at_line, Logical{LogicalOp::kAnd, std::move(node), std::move(right)});
  }
  return node;
}

ExprPtr ExpressionParser::not_chain() {
  if (!is_name("not")) {
    return comparison();
  }
  const int at_line = line();
  next();
  if (++nesting_ > kMaxNesting) {
    syntax("'not' nested too deeply");
  }
  ExprPtr operand = not_chain();
  --nesting_;
  return make(at_line, Unary{UnaryOp::kNot, std::move(operand)});
}

ExprPtr ExpressionParser::comparison() {
  static constexpr std::array<std::pair<std::string_view, CompareOp>, 6> kOperators = {{
      {"==", CompareOp::kEqual},
      {"!=", CompareOp::kNotEqual},
      {"<", CompareOp::kLess},
      {"<=", CompareOp::kLessEqual},
      {">", CompareOp::kGreater},
      {">=", CompareOp::kGreaterEqual},
  }};
  const int at_line = line();
  Compare compare;
  compare.first = sum();
  while (true) {
    const auto* op = std::find_if(kOperators.begin(), kOperators.end(),
                                  [this](const auto& entry) { return is_operator(entry.first); });
    if (op != kOperators.end()) {
      next();
      compare.rest.emplace_back(op->second, sum());
    } else if (skip_name("in")) {
      compare.rest.emplace_back(CompareOp::kIn, sum());
    } else if (is_name("not") && ahead().kind == Token::Kind::kName && ahead().text == "in") {
      next();
      next();
      compare.rest.emplace_back(CompareOp::kNotIn, sum());
    } else {
      break;
    }
  }
  if (compare.rest.empty()) {
    return std::move(compare.first);
  }
  return make(at_line, std::move(compare));
}

ExprPtr ExpressionParser::sum() {
  ExprPtr node = concatenation();
  while (is_operator("+") || is_operator("-")) {
    const int at_line = line();
    const BinaryOp op = next().text == "+" ? BinaryOp::kAdd : BinaryOp::kSubtract;
    ExprPtr right = concatenation();
    node = make(at_line, Binary{op, std::move(node), std::move(right)});
  }
  return node;
}

ExprPtr ExpressionParser::concatenation() {
  const int at_line = line();
  Concat concat;
  concat.parts.push_back(product());
  while (skip_operator("~")) {
    concat.parts.push_back(product());
  }
  if (concat.parts.size() == 1) {
    return std::move(concat.parts.front());
  }
  return make(at_line, std::move(concat));
}

ExprPtr ExpressionParser::product() {
  static constexpr std::array<std::pair<std::string_view, BinaryOp>, 4> kOperators = {{
      {"*", BinaryOp::kMultiply},
      {"/", BinaryOp::kDivide},
      {"//", BinaryOp::kFloorDivide},
      {"%", BinaryOp::kModulo},
  }};
  ExprPtr node = power();
  while (true) {
    const auto* op = std::find_if(kOperators.begin(), kOperators.end(),
                                  [this](const auto& entry) { return is_operator(entry.first); });
    if (op == kOperators.end()) {
      return node;
    }
    const int at_line = line();
    next();
    ExprPtr right = power();
    node = make(at_line, Binary{op->second, std::move(node), std::move(right)});
  }
}

ExprPtr ExpressionParser::power() {
  ExprPtr node = unary(/*with_filters=*/true);
  while (is_operator("**")) {
    const int at_line = line();
    next();
    ExprPtr right = unary(/*with_filters=*/true);
    node = make(at_line, Binary{BinaryOp::kPower, std::move(node), std::move(right)});
  }
  return node;
}

ExprPtr ExpressionParser::unary(bool with_filters) {
  ExprPtr node;
  if (is_operator("-") || is_operator("+")) {
    const int at_line = line();
    const UnaryOp op = next().text == "-" ? UnaryOp::kNegate : UnaryOp::kPlus;
    if (++nesting_ > kMaxNesting) {
      syntax("signs nested too deeply");
    }
    ExprPtr operand = unary(/*with_filters=*/false);
    --nesting_;
    node = make(at_line, Unary{op, std::move(operand)});
  } else {
    node = primary();
  }
  node = postfix(std::move(node));
  return with_filters ? filters_and_tests(std::move(node)) : std::move(node);
}

// ---- Operands -----------------------------------------------------------------------------------

ExprPtr ExpressionParser::primary() {
  const int at_line = line();
  if (current_is(Token::Kind::kName)) {
    const std::string name = next().text;
    if (name == "true" || name == "True") {
      return make(at_line, Constant{true});
    }
    if (name == "false" || name == "False") {
      return make(at_line, Constant{false});
    }
    if (name == "none" || name == "None") {
      return make(at_line, Constant{});
    }
    return make(at_line, Name{name});
  }
  if (current_is(Token::Kind::kLiteral)) {
    const Value value = next().literal;
    if (!value.is_string() || !current_is(Token::Kind::kLiteral)) {
      return make(at_line, Constant{value});
    }
    std::string text = value.as_string();  // adjacent strings are joined
    while (current_is(Token::Kind::kLiteral) && current().literal.is_string()) {
      text += next().literal.as_string();
    }
    return make(at_line, Constant{Value(std::move(text))});
  }
  if (skip_operator("(")) {
    if (++nesting_ > kMaxNesting) {
      syntax("parentheses nested too deeply");
    }
    ExprPtr node = tuple(Conditions::kYes, "", /*may_be_empty=*/true);
    --nesting_;
    expect_operator(")");
    return node;
  }
  if (is_operator("[")) {
    return list();
  }
  if (is_operator("{")) {
    return dict();
  }
  syntax("unexpected " + describe(current()));
}

ExprPtr ExpressionParser::list() {
  const int at_line = line();
  expect_operator("[");
  SequenceLiteral literal;
  while (!is_operator("]")) {
    if (!literal.items.empty()) {
      expect_operator(",");
    }
    if (is_operator("]")) {
      break;
    }
    literal.items.push_back(expression());
  }
  expect_operator("]");
  return make(at_line, std::move(literal));
}

ExprPtr ExpressionParser::dict() {
  const int at_line = line();
  expect_operator("{");
  DictLiteral literal;
  while (!is_operator("}")) {
    if (!literal.entries.empty()) {
      expect_operator(",");
    }
    if (is_operator("}")) {
      break;
    }
    ExprPtr key = expression();
    expect_operator(":");
    ExprPtr value = expression();
    literal.entries.emplace_back(std::move(key), std::move(value));
  }
  expect_operator("}");
  return make(at_line, std::move(literal));
}

ExprPtr ExpressionParser::postfix(ExprPtr node) {
  while (true) {
    const int at_line = line();
    if (is_operator(".") || is_operator("[")) {
      node = subscript(std::move(node));
    } else if (is_operator("(")) {
      CallArguments arguments = call_arguments();
      node = make(at_line, Call{std::move(node), std::move(arguments)});
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::subscript(ExprPtr object) {
  const int at_line = line();
  if (skip_operator(".")) {
    if (current_is(Token::Kind::kName)) {
      return make(at_line, Attribute{std::move(object), next().text});
    }
    if (!current_is(Token::Kind::kLiteral) || !current().literal.is(Value::Kind::kInt)) {
      syntax("expected a name or number, got " + describe(current()));
    }
    ExprPtr index = make(at_line, Constant{next().literal});
    return make(at_line, Subscript{std::move(object), std::move(index)});
  }
  expect_operator("[");
  ExprPtr index;
  if (!is_operator(":")) {
    index = expression();
  }
  if (is_operator(":")) {
    return slice(std::move(object), std::move(index), at_line);
  }
  if (is_operator(",")) {
    syntax("a subscript of several values is not supported");
  }
  expect_operator("]");
  return make(at_line, Subscript{std::move(object), std::move(index)});
}

ExprPtr ExpressionParser::slice(ExprPtr object, ExprPtr begin, int at_line) {
  SliceOf node;
  node.object = std::move(object);
  node.begin = std::move(begin);
  expect_operator(":");
  if (!is_operator(":") && !is_operator("]")) {
    node.end = expression();
  }
  if (skip_operator(":") && !is_operator("]")) {
    node.step = expression();
  }
  expect_operator("]");
  return make(at_line, std::move(node));
}

CallArguments ExpressionParser::call_arguments() {
  CallArguments arguments;
  expect_operator("(");
  bool first = true;
  while (!is_operator(")")) {
    if (!first) {
      expect_operator(",");
      if (is_operator(")")) {
        break;
      }
    }
    first = false;
    if (skip_operator("*")) {
      if (arguments.splat || arguments.named_splat) {
        syntax(arguments.splat ? "more than one * argument in a call"
                               : "* argument follows ** argument");
      }
      arguments.splat = expression();
    } else if (skip_operator("**")) {
      if (arguments.named_splat) {
        syntax("more than one ** argument in a call");
      }
      arguments.named_splat = expression();
    } else if (current_is(Token::Kind::kName) && ahead().kind == Token::Kind::kOperator &&
               ahead().text == "=") {
      if (arguments.named_splat) {
        syntax("keyword argument follows ** argument");
      }
      const std::string name = next().text;
      next();
      arguments.named.emplace_back(name, expression());
    } else {
      if (arguments.splat || arguments.named_splat || !arguments.named.empty()) {
        syntax("positional argument follows keyword argument");
      }
      arguments.positional.push_back(expression());
    }
  }
  expect_operator(")");
  return arguments;
}

// ---- Filters and tests --------------------------------------------------------------------------

ExprPtr ExpressionParser::filter_chain(ExprPtr input, FilterStart start) {
  bool is_inline = start == FilterStart::kInline;
  while (is_inline || is_operator("|")) {
    if (!is_inline) {
      next();
    }
    is_inline = false;
    const int at_line = line();
    if (!current_is(Token::Kind::kName)) {
      syntax("expected the name of a filter, got " + describe(current()));
    }
    const std::string name = next().text;
    FilterCall call;
    call.filter = find_filter(name);
    if (call.filter == nullptr) {
      syntax("no filter named '" + name + "'", at_line);
    }
    call.input = std::move(input);
    if (is_operator("(")) {
      call.arguments = call_arguments();
    }
    input = make(at_line, std::move(call));
  }
  return input;
}

ExprPtr ExpressionParser::filters_and_tests(ExprPtr node) {
  while (true) {
    const int at_line = line();
    if (is_operator("|")) {
      node = filter_chain(std::move(node), FilterStart::kAfterPipe);
    } else if (is_name("is")) {
      node = test(std::move(node));
    } else if (is_operator("(")) {
      CallArguments arguments = call_arguments();
      node = make(at_line, Call{std::move(node), std::move(arguments)});
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::test(ExprPtr input) {
  const int at_line = line();
  expect_name("is");
  const bool negated = skip_name("not");
  if (!current_is(Token::Kind::kName)) {
    syntax("expected the name of a test, got " + describe(current()));
  }
  const std::string name = next().text;
  TestCall call;
  call.test = find_test(name);
  if (call.test == nullptr) {
    syntax("no test named '" + name + "'", at_line);
  }
  call.input = std::move(input);
  const bool has_operand =
      current_is(Token::Kind::kLiteral) || is_operator("[") || is_operator("{") ||
      (current_is(Token::Kind::kName) && !is_name("else") && !is_name("or") && !is_name("and"));
  if (is_operator("(")) {
    call.arguments = call_arguments();
  } else if (has_operand) {
    if (is_name("is")) {
      syntax("tests with 'is' cannot be chained");
    }
    call.arguments.positional.push_back(postfix(primary()));
  }
  ExprPtr node = make(at_line, std::move(call));
  return negated ? make(at_line, Unary{UnaryOp::kNot, std::move(node)}) : std::move(node);
}

}  // namespace tidemill::engines::chat
