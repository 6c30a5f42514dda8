// SPDX-License-Identifier: Apache-2.0
#include "engines/constraint/constraint.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "engines/constraint/grammar_builder.hpp"
#include "engines/constraint/json_rules.hpp"
#include "engines/constraint/mask_store.hpp"
#include "engines/constraint/schema_compiler.hpp"

namespace tidemill::engines {
namespace {

// As many as `MaskStore` follows.
constexpr std::size_t kMaxConfigurations = 64;

// Compiles the automaton of `whole`.
Result<Grammar> build(GrammarBuilder& builder, Fragment whole, std::int32_t max_depth) {
  const GrammarBuilder::RuleId start = builder.declare_rule();
  if (!builder.is_full()) {
    builder.define_rule(start, whole);
  }
  return builder.build(start, max_depth);
}

// Returns one call of a tool, without tags.
Fragment call_of(const CallableTool& tool, ToolCallForm form, Fragment arguments,
                 GrammarBuilder& builder, JsonRules& rules) {
  const Fragment name =
      form == ToolCallForm::kTags
          ? builder.text("\"arguments\"")
          : builder.choice({builder.text("\"arguments\""), builder.text("\"parameters\"")});
  return builder.sequence({builder.text("{\"name\""), rules.separator(':'),
                           rules.literal(Json(tool.name)), rules.separator(','), name,
                           rules.separator(':'), arguments, builder.text("}")});
}

}  // namespace

Result<Grammar> json_object_grammar() {
  GrammarBuilder builder;
  JsonRules rules(builder);
  return build(builder, rules.any_object(), kMaxConstraintDepth);
}

Result<Grammar> json_schema_grammar(const Json& schema, const std::string& path,
                                    std::string& refused) {
  refused.clear();
  GrammarBuilder builder;
  JsonRules rules(builder);
  SchemaCompiler compiler(schema, builder, rules);
  const Fragment whole = compiler.compile(path);
  if (!compiler.status().ok()) {
    refused = compiler.refused();
    return compiler.status();
  }
  auto grammar = build(builder, whole, kMaxConstraintDepth);
  if (!grammar.ok()) {
    refused = path;
    return grammar.status().with_context(path);
  }
  return grammar;
}

Result<Grammar> tool_call_grammar(std::span<const CallableTool> tools, ToolCallForm form,
                                  ToolCallCount count, std::string& refused) {
  refused.clear();
  GrammarBuilder builder;
  JsonRules rules(builder);
  std::vector<Fragment> calls;
  for (const CallableTool& tool : tools) {
    if (tool.parameters == nullptr) {
      calls.push_back(call_of(tool, form, rules.any_object(), builder, rules));
      continue;
    }
    SchemaCompiler compiler(*tool.parameters, builder, rules);
    const Fragment arguments = compiler.compile(tool.path);
    if (!compiler.status().ok()) {
      refused = compiler.refused();
      return compiler.status();
    }
    calls.push_back(call_of(tool, form, arguments, builder, rules));
  }
  // A rule, since it may occur twice.
  const GrammarBuilder::RuleId one = builder.declare_rule();
  const bool has_tags = form == ToolCallForm::kTags;
  if (!builder.is_full()) {
    builder.define_rule(
        one, builder.sequence({builder.text(has_tags ? "<tool_call>\n" : ""), builder.choice(calls),
                               builder.text(has_tags ? "\n</tool_call>" : "")}));
  }
  std::vector<Fragment> whole{builder.call(one)};
  if (has_tags && count == ToolCallCount::kOneOrMore) {
    whole.push_back(builder.repeat(0, GrammarBuilder::kUnbounded, [&] {
      return builder.sequence({builder.text("\n"), builder.call(one)});
    }));
  }
  auto grammar = build(builder, builder.sequence(whole), kMaxCallDepth);
  if (!grammar.ok()) {
    refused = "tools";
    return grammar.status().with_context("tools");
  }
  return grammar;
}

// -- constraints and states -----------------------------------------------------------------------

Constraint::Constraint(Grammar grammar, std::shared_ptr<const TokenIndex> index,
                       std::size_t mask_bytes)
    : grammar_(std::move(grammar)),
      index_(std::move(index)),
      masks_(std::make_unique<MaskStore>(grammar_, *index_, mask_bytes)) {}

Constraint::~Constraint() = default;

ConstraintState::ConstraintState(std::shared_ptr<const Constraint> constraint)
    : constraint_(std::move(constraint)) {
  const Status added = add({constraint_->grammar().start, {}}, configurations_);
  TIDEMILL_CHECK(added.ok());
}

// Adds a configuration, and those that follow because its rule may end. The last two are the same
// only at the end of the text.
Status ConstraintState::add(Configuration one, std::vector<Configuration>& to) const {
  const Grammar& grammar = constraint_->grammar();
  for (;;) {
    const bool ends = grammar.accepts_at(one.state);
    const bool goes_on = !grammar.entries_of(one.state).empty();
    if ((goes_on || (ends && one.stack.empty())) && std::ranges::find(to, one) == to.end()) {
      to.push_back(one);
    }
    if (to.size() > kMaxConfigurations) {
      return {Errc::kResourceExhausted,
              "the schema has too many alternatives that begin with the same text"};
    }
    if (!ends || one.stack.empty()) {
      return {};
    }
    one.state = one.stack.back();
    one.stack.pop_back();
  }
}

Status ConstraintState::accept(std::int32_t token) {
  const Grammar& grammar = constraint_->grammar();
  const auto cannot_follow = [&] {
    return invalid_argument("token " + std::to_string(token) + " cannot follow in this constraint");
  };
  if (token < 0 || token >= constraint_->index().vocabulary() ||
      constraint_->index().bytes(token).empty()) {
    return cannot_follow();
  }
  std::vector<Configuration> current = configurations_;
  for (const char c : constraint_->index().bytes(token)) {
    std::vector<Configuration> next;
    for (const Configuration& from : current) {
      const auto depth = static_cast<std::int32_t>(from.stack.size());
      for (const GrammarEntry& entry : grammar.entries_of(from.state)) {
        const std::int32_t to = grammar.after(entry.state, static_cast<std::uint8_t>(c));
        if (to < 0 || depth + std::max(entry.reach, entry.num_frames + grammar.need_of(to)) >
                          grammar.max_depth) {
          continue;
        }
        Configuration one{to, from.stack};
        const auto frames = grammar.frames_of(entry);
        one.stack.insert(one.stack.end(), frames.begin(), frames.end());
        TIDEMILL_RETURN_IF_ERROR(add(std::move(one), next));
      }
    }
    if (next.empty()) {
      return cannot_follow();
    }
    current = std::move(next);
  }
  configurations_ = std::move(current);
  return {};
}

bool ConstraintState::may_end() const noexcept {
  return std::ranges::any_of(configurations_, [&](const Configuration& one) {
    return one.stack.empty() && constraint_->grammar().accepts_at(one.state);
  });
}

bool ConstraintState::must_end() const noexcept {
  return std::ranges::all_of(configurations_, [&](const Configuration& one) {
    return constraint_->grammar().entries_of(one.state).empty();
  });
}

Status ConstraintState::mask(std::span<const std::int32_t> end_ids,
                             std::span<std::uint64_t> words) const {
  const std::int32_t vocabulary = constraint_->index().vocabulary();
  TIDEMILL_CHECK(words.size() == mask_words(vocabulary)) << words.size();
  std::ranges::fill(words, 0);
  for (const Configuration& one : configurations_) {
    TIDEMILL_RETURN_IF_ERROR(constraint_->masks_->merge(one.state, one.stack, words));
  }
  if (may_end()) {
    for (const std::int32_t id : end_ids) {
      TIDEMILL_CHECK(id >= 0 && id < vocabulary) << id;
      words[static_cast<std::size_t>(id) / 64] |= std::uint64_t{1} << (id % 64);
    }
  }
  if (std::ranges::all_of(words, [](std::uint64_t word) { return word == 0; })) {
    return invalid_argument("no token can follow in this constraint");
  }
  return {};
}

}  // namespace tidemill::engines
