// SPDX-License-Identifier: Apache-2.0
// The syntax tree of a template. Nodes own their children and never change after parsing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engines/chat/builtins.hpp"
#include "engines/chat/value.hpp"

namespace tidemill::engines::chat {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<const Expr>;
using Body = std::vector<std::unique_ptr<const Stmt>>;

// ---- Expressions --------------------------------------------------------------------------------

enum class UnaryOp : std::uint8_t { kNot, kNegate, kPlus };
enum class BinaryOp : std::uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
};
enum class LogicalOp : std::uint8_t { kAnd, kOr };
enum class CompareOp : std::uint8_t {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

struct Constant {
  Value value;
};
struct Name {
  std::string name;
};
struct SequenceLiteral {
  SequenceKind kind = SequenceKind::kList;
  std::vector<ExprPtr> items;
};
struct DictLiteral {
  std::vector<std::pair<ExprPtr, ExprPtr>> entries;
};
struct Attribute {
  ExprPtr object;
  std::string name;
};
struct Subscript {
  ExprPtr object;
  ExprPtr index;
};
/// `object[begin:end:step]`; absent parts are null.
struct SliceOf {
  ExprPtr object;
  ExprPtr begin;
  ExprPtr end;
  ExprPtr step;
};
/// The arguments of a call. `splat` is *args and `named_splat` is **kwargs; each may be null.
struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr splat;
  ExprPtr named_splat;
};
struct Call {
  ExprPtr callee;
  CallArguments arguments;
};
/// `input | name(arguments)`. The input is null at the start of a block's filter chain.
struct FilterCall {
  ExprPtr input;
  Filter filter = nullptr;
  CallArguments arguments;
};
struct TestCall {
  ExprPtr input;
  Test test = nullptr;
  CallArguments arguments;
};
struct Unary {
  UnaryOp op = UnaryOp::kNot;
  ExprPtr operand;
};
struct Binary {
  BinaryOp op = BinaryOp::kAdd;
  ExprPtr left;
  ExprPtr right;
};
struct Logical {
  LogicalOp op = LogicalOp::kAnd;
  ExprPtr left;
  ExprPtr right;
};
/// `first op operand op operand ...`. Each operand is evaluated at most once.
struct Compare {
  ExprPtr first;
  std::vector<std::pair<CompareOp, ExprPtr>> rest;
};
/// `a ~ b ~ ...`.
struct Concat {
  std::vector<ExprPtr> parts;
};
/// `then if condition else otherwise`; `otherwise` may be null.
struct Conditional {
  ExprPtr condition;
  ExprPtr then;
  ExprPtr otherwise;
};

struct Expr {
  using Node = std::variant<Constant, Name, SequenceLiteral, DictLiteral, Attribute, Subscript,
                            SliceOf, Call, FilterCall, TestCall, Unary, Binary, Logical, Compare,
                            Concat, Conditional>;
  int line = 0;
  std::size_t depth = 1;  // height of this tree
  Node node;
};

// ---- Statements ---------------------------------------------------------------------------------

/// The target of an assignment: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  std::string name;
  std::string attribute;      // empty: the name itself
  std::vector<Target> parts;  // not empty: a tuple
};

/// A parameter of a macro or call block.
struct Parameter {
  std::string name;
  ExprPtr default_value;  // or null
};

struct Text {
  std::string text;
};
struct Output {
  ExprPtr value;
};
struct If {
  std::vector<std::pair<ExprPtr, Body>> branches;
  Body otherwise;
};
struct For {
  Target target;
  ExprPtr iterable;
  ExprPtr filter;  // or null
  bool recursive = false;
  Body body;
  Body otherwise;
};
struct Set {
  Target target;
  ExprPtr value;
};
/// Assigns the rendered body, after applying `filters` unless null.
struct SetBlock {
  Target target;
  ExprPtr filters;
  Body body;
};
struct Macro {
  std::string name;
  std::vector<Parameter> parameters;
  bool takes_varargs = false;  // the body mentions `varargs`
  bool takes_kwargs = false;   // the body mentions `kwargs`
  Body body;
};
/// Calls a macro with the body as its `caller`.
struct CallBlock {
  ExprPtr call;
  Macro caller;
};
struct FilterBlock {
  ExprPtr filters;
  Body body;
};
struct With {
  std::vector<std::pair<Target, ExprPtr>> assignments;
  Body body;
};
struct Break {};
struct Continue {};
/// Marks text that the model generates.
struct Generation {
  Body body;
};

struct Stmt {
  using Node = std::variant<Text, Output, If, For, Set, SetBlock, Macro, CallBlock, FilterBlock,
                            With, Break, Continue, Generation>;
  int line = 0;
  Node node;
};

}  // namespace tidemill::engines::chat
