// SPDX-License-Identifier: Apache-2.0
// A tree-walking interpreter with lexical scopes.
//
// A scope is a local variable of the function that runs the statement, and a macro points to the
// scope in which it was defined. This is safe because a macro cannot outlive that scope:
// assignments in an inner scope do not change outer scopes, macros return text, and namespaces
// refuse macros.
//
// One difference from Jinja: Jinja decides statically which variable a name refers to. Here, if a
// scope assigns a name only further down, blocks before the assignment see the outer variable.
#include "engines/chat/interpreter.hpp"

#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/text/utf8.hpp"
#include "engines/chat/budget.hpp"
#include "engines/chat/builtins.hpp"
#include "engines/chat/operators.hpp"
#include "engines/chat/text.hpp"

namespace tidemill::engines::chat {
namespace {

// Variables and their values. The names view strings in the syntax tree or the request.
struct Scope {
  const Scope* parent = nullptr;
  std::unordered_map<std::string_view, Value> names;
};

// How a statement ended.
enum class Flow : std::uint8_t { kNormal, kBreak, kContinue };

class Interpreter {
public:
  Interpreter(const std::vector<std::pair<std::string, Value>>& variables, std::string now) {
    runtime_.now = std::move(now);
    for (const auto& [name, value] : functions_) {
      globals_.names.insert_or_assign(name, value);
    }
    for (const auto& [name, value] : variables) {
      globals_.names.insert_or_assign(name, value);
    }
    root_.parent = &globals_;
  }

  Rendering run(const Body& body) {
    try {
      run_body(body);
    } catch (const TemplateError& error) {
      throw TemplateError(error.kind(), error.what(), error.line() == 0 ? line_ : error.line());
    }
    return std::move(rendering_);
  }

private:
  class DepthGuard {
  public:
    explicit DepthGuard(std::size_t& depth) : depth_(depth) {
      if (++depth_ > Budget::kMaxDepth) {
        --depth_;
        Budget::exceeded("evaluation nested deeper than " + std::to_string(Budget::kMaxDepth));
      }
    }
    DepthGuard(const DepthGuard&) = delete;
    DepthGuard& operator=(const DepthGuard&) = delete;
    ~DepthGuard() { --depth_; }

  private:
    std::size_t& depth_;
  };

  // Opens a scope below the given scope or the current one, and closes it on destruction.
  class ScopeGuard {
  public:
    explicit ScopeGuard(Interpreter& owner) : ScopeGuard(owner, owner.scope_) {}
    ScopeGuard(Interpreter& owner, const Scope* parent) : owner_(owner), outer_(owner.scope_) {
      scope_.parent = parent;
      owner.scope_ = &scope_;
    }
    ScopeGuard(const ScopeGuard&) = delete;
    ScopeGuard& operator=(const ScopeGuard&) = delete;
    ~ScopeGuard() { owner_.scope_ = outer_; }

    Scope& scope() { return scope_; }

  private:
    Interpreter& owner_;
    Scope* outer_;
    Scope scope_;
  };

  // Captures the output as a separate text until destruction.
  class CaptureGuard {
  public:
    explicit CaptureGuard(Interpreter& owner) : owner_(owner), outer_(owner.out_) {
      owner.out_ = &text_;
    }
    CaptureGuard(const CaptureGuard&) = delete;
    CaptureGuard& operator=(const CaptureGuard&) = delete;
    ~CaptureGuard() { owner_.out_ = outer_; }

    std::string take() { return std::move(text_); }

  private:
    Interpreter& owner_;
    std::string* outer_;
    std::string text_;
  };

  // ---- Statements

  Flow run_body(const Body& body) {
    for (const auto& statement : body) {
      const DepthGuard guard(depth_);
      runtime_.budget.step();
      line_ = statement->line;
      const Flow flow = std::visit(
          [&](const auto& node) { return run_statement(node, statement->line); }, statement->node);
      if (flow != Flow::kNormal) {
        return flow;
      }
    }
    return Flow::kNormal;
  }

  // Renders a body in a new scope and returns the text.
  std::string capture(const Body& body) {
    const ScopeGuard scope(*this);
    CaptureGuard text(*this);
    run_body(body);
    return text.take();
  }

  void print(const Value& value) {
    append_text(value, runtime_.budget, *out_);
    if (rendering_.text.size() > Budget::kMaxOutput) {
      Budget::exceeded("more than " + std::to_string(Budget::kMaxOutput) + " bytes of output");
    }
  }

  Flow run_statement(const Text& node, int /*line*/) {
    runtime_.budget.allocate(node.text.size());
    out_->append(node.text);
    return Flow::kNormal;
  }

  Flow run_statement(const Output& node, int line) {
    const Value value = evaluate(*node.value);
    line_ = line;
    print(value);
    return Flow::kNormal;
  }

  Flow run_statement(const If& node, int /*line*/) {
    for (const auto& [condition, body] : node.branches) {
      if (evaluate(*condition).truthy()) {
        return run_body(body);
      }
    }
    return run_body(node.otherwise);
  }

  Flow run_statement(const For& node, int line) {
    const Value iterable = evaluate(*node.iterable);
    line_ = line;
    return run_loop(node, iterable, /*depth=*/0, scope_, line);
  }

  // Returns the flow of `else`, because a break in it leaves the enclosing loop.
  Flow run_loop(const For& node, const Value& iterable, std::size_t depth, const Scope* parent,
                int line) {
    auto loop = std::make_shared<Loop>();
    loop->depth = depth;
    loop->last_changed = std::make_shared<std::optional<List>>();
    loop->items = iterate(runtime_, iterable);
    if (node.filter != nullptr) {
      loop->items = filtered(node, std::move(loop->items), parent, line);
    }
    if (node.recursive) {
      loop->recurse = [this, &node, depth, parent, line](const Arguments& arguments) {
        const BoundArguments bound("loop", arguments, {"iterable"});
        const DepthGuard guard(depth_);
        CaptureGuard text(*this);
        run_loop(node, bound.require(0), depth + 1, parent, line);
        return Value(text.take());
      };
    }
    bool reached_end = false;
    for (loop->index = 0; loop->index < loop->items.size(); ++loop->index) {
      runtime_.budget.step();
      ScopeGuard scope(*this, parent);
      scope.scope().names.emplace("loop", Value(std::shared_ptr<const Loop>(loop)));
      line_ = line;
      assign(node.target, loop->items[loop->index]);
      const Flow flow = run_body(node.body);
      if (flow == Flow::kBreak) {
        break;
      }
      reached_end = reached_end || flow == Flow::kNormal;
    }
    // As in Jinja, else also runs if every iteration ended with break or continue.
    if (reached_end) {
      return Flow::kNormal;
    }
    const ScopeGuard scope(*this, parent);
    return run_body(node.otherwise);
  }

  List filtered(const For& node, List items, const Scope* parent, int line) {
    List kept;
    for (Value& item : items) {
      runtime_.budget.step();
      const ScopeGuard scope(*this, parent);
      line_ = line;
      assign(node.target, item);
      if (evaluate(*node.filter).truthy()) {
        kept.push_back(std::move(item));
      }
    }
    return kept;
  }

  Flow run_statement(const Set& node, int line) {
    Value value = evaluate(*node.value);
    line_ = line;
    assign(node.target, std::move(value));
    return Flow::kNormal;
  }

  Flow run_statement(const SetBlock& node, int line) {
    Value value(capture(node.body));
    if (node.filters != nullptr) {
      value = filter_through(*node.filters, std::move(value));
    }
    line_ = line;
    assign(node.target, std::move(value));
    return Flow::kNormal;
  }

  Flow run_statement(const FilterBlock& node, int line) {
    const Value value = filter_through(*node.filters, Value(capture(node.body)));
    line_ = line;
    print(value);
    return Flow::kNormal;
  }

  Flow run_statement(const Macro& node, int /*line*/) {
    scope_->names.insert_or_assign(node.name, make_macro(node));
    return Flow::kNormal;
  }

  Flow run_statement(const CallBlock& node, int line) {
    const auto& call = std::get<Call>(node.call->node);
    const Value callee = evaluate(*call.callee);
    Arguments arguments = evaluate_arguments(call.arguments);
    arguments.named.emplace_back("caller", make_macro(node.caller));
    line_ = line;
    print(invoke(callee, arguments));
    return Flow::kNormal;
  }

  Flow run_statement(const With& node, int line) {
    List values;
    for (const auto& assignment : node.assignments) {
      values.push_back(evaluate(*assignment.second));
    }
    const ScopeGuard scope(*this);
    line_ = line;
    for (std::size_t i = 0; i < values.size(); ++i) {
      assign(node.assignments[i].first, std::move(values[i]));
    }
    return run_body(node.body);
  }

  Flow run_statement(const Break& /*node*/, int /*line*/) { return Flow::kBreak; }
  Flow run_statement(const Continue& /*node*/, int /*line*/) { return Flow::kContinue; }

  Flow run_statement(const Generation& node, int /*line*/) {
    const std::size_t begin = rendered_code_points();
    const Value text(capture(node.body));
    runtime_.budget.scan(text.as_string().size());
    rendering_.generation_spans.push_back({begin, begin + count_code_points(text.as_string())});
    print(text);
    return Flow::kNormal;
  }

  // Returns the number of code points rendered so far. Each byte is scanned only once.
  std::size_t rendered_code_points() {
    const std::string_view fresh = std::string_view{rendering_.text}.substr(counted_bytes_);
    counted_code_points_ += count_code_points(fresh);
    counted_bytes_ += fresh.size();
    return counted_code_points_;
  }

  void assign(const Target& target, Value value) {
    if (!target.parts.empty()) {
      return assign_parts(target, value);
    }
    if (target.attribute.empty()) {
      scope_->names.insert_or_assign(target.name, std::move(value));
      return;
    }
    const Value owner = look_up(target.name);
    require_defined(owner);
    if (!owner.is(Value::Kind::kNamespace)) {
      fail("cannot assign attribute on non-namespace object");
    }
    if (target.attribute.front() == '_') {
      fail("namespace attributes must be names that do not begin with _");
    }
    if (value.holds_reference()) {
      fail("a namespace cannot hold namespaces, macros or loops");
    }
    owner.as_namespace().attributes.insert_or_assign(target.attribute, std::move(value));
  }

  void assign_parts(const Target& target, const Value& value) {
    require_defined(value);
    List items = iterate(runtime_, value);
    const std::size_t wanted = target.parts.size();
    if (items.size() != wanted) {
      fail(items.size() < wanted
               ? "not enough values to unpack (expected " + std::to_string(wanted) + ", got " +
                     std::to_string(items.size()) + ")"
               : "too many values to unpack (expected " + std::to_string(wanted) + ")");
    }
    for (std::size_t i = 0; i < wanted; ++i) {
      assign(target.parts[i], std::move(items[i]));
    }
  }

  // ---- Calls

  Value make_macro(const Macro& macro) {
    auto callable = std::make_shared<Callable>();
    callable->name = macro.name;
    callable->call = [this, &macro, definition = scope_](const Arguments& arguments) {
      return call_macro(macro, definition, arguments);
    };
    return std::shared_ptr<const Callable>(std::move(callable));
  }

  Value call_macro(const Macro& macro, const Scope* definition, const Arguments& arguments) {
    const DepthGuard guard(depth_);
    ScopeGuard scope(*this, definition);
    bind(macro, arguments, scope.scope());
    CaptureGuard text(*this);
    run_body(macro.body);
    return Value(text.take());
  }

  void bind(const Macro& macro, const Arguments& arguments, Scope& scope) {
    const std::size_t given = arguments.positional.size();
    const std::size_t wanted = macro.parameters.size();
    for (std::size_t i = 0; i < std::min(given, wanted); ++i) {
      scope.names.insert_or_assign(macro.parameters[i].name, arguments.positional[i]);
    }
    if (given > wanted && !macro.takes_varargs) {
      fail("macro '" + macro.name + "' takes not more than " + std::to_string(wanted) +
           " argument(s)");
    }
    bind_named(macro, arguments, scope);
    if (macro.takes_varargs) {
      List rest;
      for (std::size_t i = wanted; i < given; ++i) {
        rest.push_back(arguments.positional[i]);
      }
      scope.names.insert_or_assign("varargs",
                                   make_sequence(runtime_, std::move(rest), SequenceKind::kTuple));
    }
    for (const Parameter& parameter : macro.parameters) {
      if (scope.names.count(parameter.name) > 0) {
        continue;
      }
      scope.names.emplace(parameter.name, parameter.default_value != nullptr
                                              ? evaluate(*parameter.default_value)
                                              : Value::undefined("parameter '" + parameter.name +
                                                                 "' was not provided"));
    }
  }

  void bind_named(const Macro& macro, const Arguments& arguments, Scope& scope) {
    Dict rest;
    for (const auto& [name, value] : arguments.named) {
      const Parameter* parameter = nullptr;
      for (const Parameter& candidate : macro.parameters) {
        if (candidate.name == name) {
          parameter = &candidate;
        }
      }
      if (parameter != nullptr) {
        if (!scope.names.emplace(parameter->name, value).second) {
          fail("macro '" + macro.name + "' got the argument '" + name + "' twice");
        }
      } else if (name == "caller") {
        scope.names.insert_or_assign("caller", value);
      } else if (macro.takes_kwargs) {
        insert(runtime_, rest, Value(name), value);
      } else {
        fail("macro '" + macro.name + "' takes no keyword argument '" + name + "'");
      }
    }
    if (macro.takes_kwargs) {
      scope.names.insert_or_assign("kwargs", make_dict(runtime_, std::move(rest)));
    }
  }

  Value invoke(const Value& callee, const Arguments& arguments) {
    require_defined(callee);
    if (callee.is(Value::Kind::kCallable)) {
      return callee.as_callable().call(arguments);
    }
    if (callee.is(Value::Kind::kLoop)) {
      const Loop& loop = callee.as_loop();
      if (loop.recurse == nullptr) {
        fail("The loop must have the 'recursive' marker to be called recursively.");
      }
      return loop.recurse(arguments);
    }
    fail("'" + std::string(callee.type_name()) + "' object is not callable");
  }

  Arguments evaluate_arguments(const CallArguments& from) {
    Arguments arguments;
    for (const ExprPtr& argument : from.positional) {
      arguments.positional.push_back(evaluate(*argument));
    }
    for (const auto& [name, argument] : from.named) {
      arguments.named.emplace_back(name, evaluate(*argument));
    }
    if (from.splat != nullptr) {
      for (Value& value : iterate(runtime_, evaluate(*from.splat))) {
        arguments.positional.push_back(std::move(value));
      }
    }
    if (from.named_splat != nullptr) {
      const Value named = evaluate(*from.named_splat);
      if (!named.is_dict()) {
        fail("the argument after ** must be a mapping");
      }
      for (const Dict::Entry& entry : named.as_dict().entries()) {
        if (!entry.key.is_string()) {
          fail("keywords must be strings");
        }
        arguments.named.emplace_back(entry.key.as_string(), entry.value);
      }
    }
    return arguments;
  }

  // Passes a value through a chain of filters whose innermost input is null.
  Value filter_through(const Expr& chain, Value value) {
    const auto& call = std::get<FilterCall>(chain.node);
    if (call.input != nullptr) {
      value = filter_through(*call.input, std::move(value));
    }
    const Arguments arguments = evaluate_arguments(call.arguments);
    line_ = chain.line;
    return call.filter(runtime_, value, arguments);
  }

  // ---- Expressions

  Value look_up(const std::string& name) const {
    for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
      const auto found = scope->names.find(name);
      if (found != scope->names.end()) {
        return found->second;
      }
    }
    return Value::undefined("'" + name + "' is undefined");
  }

  Value evaluate(const Expr& expr) {
    const DepthGuard guard(depth_);
    runtime_.budget.step();
    line_ = expr.line;
    return std::visit([&](const auto& node) { return evaluate_node(node, expr.line); }, expr.node);
  }

  Value evaluate_node(const Constant& node, int /*line*/) { return node.value; }
  Value evaluate_node(const Name& node, int /*line*/) { return look_up(node.name); }

  Value evaluate_node(const SequenceLiteral& node, int /*line*/) {
    List items;
    for (const ExprPtr& item : node.items) {
      items.push_back(evaluate(*item));
    }
    return make_sequence(runtime_, std::move(items), node.kind);
  }

  Value evaluate_node(const DictLiteral& node, int line) {
    Dict dict;
    for (const auto& [key, value] : node.entries) {
      Value new_key = evaluate(*key);
      Value new_value = evaluate(*value);
      line_ = line;
      insert(runtime_, dict, std::move(new_key), std::move(new_value));
    }
    return make_dict(runtime_, std::move(dict));
  }

  Value evaluate_node(const Attribute& node, int line) {
    const Value object = evaluate(*node.object);
    line_ = line;
    return get_attribute(runtime_, object, node.name);
  }

  Value evaluate_node(const Subscript& node, int line) {
    const Value object = evaluate(*node.object);
    const Value index = evaluate(*node.index);
    line_ = line;
    return get_item(runtime_, object, index);
  }

  Value evaluate_node(const SliceOf& node, int line) {
    const Value object = evaluate(*node.object);
    const auto bound = [&](const ExprPtr& expr) -> std::optional<std::int64_t> {
      if (expr == nullptr) {
        return std::nullopt;
      }
      const Value value = evaluate(*expr);
      if (value.is_none()) {
        return std::nullopt;
      }
      line_ = line;
      require_defined(value);
      if (!value.integer()) {
        fail("slice indices must be integers");
      }
      return value.integer();
    };
    SliceBounds bounds;
    bounds.begin = bound(node.begin);
    bounds.end = bound(node.end);
    bounds.step = bound(node.step).value_or(1);
    line_ = line;
    return get_slice(runtime_, object, bounds);
  }

  Value evaluate_node(const Call& node, int line) {
    const Value callee = evaluate(*node.callee);
    const Arguments arguments = evaluate_arguments(node.arguments);
    line_ = line;
    return invoke(callee, arguments);
  }

  Value evaluate_node(const FilterCall& node, int line) {
    const Value input = evaluate(*node.input);
    const Arguments arguments = evaluate_arguments(node.arguments);
    line_ = line;
    return node.filter(runtime_, input, arguments);
  }

  Value evaluate_node(const TestCall& node, int line) {
    const Value input = evaluate(*node.input);
    const Arguments arguments = evaluate_arguments(node.arguments);
    line_ = line;
    return node.test(runtime_, input, arguments);
  }

  Value evaluate_node(const Unary& node, int line) {
    const Value operand = evaluate(*node.operand);
    line_ = line;
    return apply(runtime_, node.op, operand);
  }

  Value evaluate_node(const Binary& node, int line) {
    const Value left = evaluate(*node.left);
    const Value right = evaluate(*node.right);
    line_ = line;
    return apply(runtime_, node.op, left, right);
  }

  Value evaluate_node(const Logical& node, int /*line*/) {
    Value left = evaluate(*node.left);
    if (left.truthy() == (node.op == LogicalOp::kOr)) {
      return left;
    }
    return evaluate(*node.right);
  }

  Value evaluate_node(const Compare& node, int line) {
    Value left = evaluate(*node.first);
    for (const auto& [op, operand] : node.rest) {
      Value right = evaluate(*operand);
      line_ = line;
      if (!apply(runtime_, op, left, right)) {
        return false;
      }
      left = std::move(right);
    }
    return true;
  }

  Value evaluate_node(const Concat& node, int line) {
    std::string text;
    for (const ExprPtr& part : node.parts) {
      const Value value = evaluate(*part);
      line_ = line;
      append_text(value, runtime_.budget, text);
    }
    return Value(std::move(text));
  }

  Value evaluate_node(const Conditional& node, int /*line*/) {
    if (evaluate(*node.condition).truthy()) {
      return evaluate(*node.then);
    }
    if (node.otherwise != nullptr) {
      return evaluate(*node.otherwise);
    }
    return Value::undefined("the inline if-expression evaluated to false and no else was given");
  }

  Runtime runtime_;
  std::vector<std::pair<std::string, Value>> functions_ = global_functions(runtime_);
  Scope globals_;
  Scope root_;
  Scope* scope_ = &root_;
  Rendering rendering_;
  std::string* out_ = &rendering_.text;
  std::size_t depth_ = 0;
  int line_ = 1;
  std::size_t counted_bytes_ = 0;
  std::size_t counted_code_points_ = 0;
};

}  // namespace

Rendering run_template(const Body& body,
                       const std::vector<std::pair<std::string, Value>>& variables,
                       std::string now) {
  return Interpreter(variables, std::move(now)).run(body);
}

}  // namespace tidemill::engines::chat
