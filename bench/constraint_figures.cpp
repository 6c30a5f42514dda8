// SPDX-License-Identifier: Apache-2.0
// The figures of constraints: masks of a large vocabulary, and sampling under them.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json.hpp"
#include "base/random.hpp"
#include "bench/figure_spec.hpp"
#include "bench/times.hpp"
#include "engines/constraint/constraint.hpp"
#include "engines/executor/workers.hpp"
#include "engines/ops/cpu/factory.hpp"

namespace tidemill::bench {
namespace {

using engines::Constraint;
using engines::ConstraintState;
using engines::DeviceBlock;
using engines::Matrix;
using engines::Ops;

constexpr double kSeconds = 0.3;
constexpr std::int32_t kVocabulary = 151'936;  // that of Qwen3
constexpr std::int64_t kRows = 16;
constexpr double kMaskSeconds = 0.0002;

constexpr std::string_view kSchema = R"({"type": "object",
  "properties": {
    "title": {"type": "string"},
    "year": {"type": "integer", "minimum": 1900, "maximum": 2100},
    "rating": {"type": ["number", "null"]},
    "genre": {"enum": ["drama", "comedy", "documentary"]},
    "cast": {"type": "array", "items": {"$ref": "#/$defs/person"}, "maxItems": 8},
    "notes": {"type": "object"}},
  "required": ["title", "year", "rating", "genre", "cast", "notes"], "additionalProperties": false,
  "$defs": {"person": {"type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "knows": {"type": "array",
      "items": {"$ref": "#/$defs/person"}}},
    "required": ["name"], "additionalProperties": false}}})";

// A text that satisfies the schema.
constexpr std::string_view kText =
    R"({"title": "The \"old\" sea", "year": 1987, "rating": 7.25, "genre": "documentary", )"
    R"("cast": [{"name": "Ada B", "knows": [{"name": "Bo", "knows": []}]}, {"name": "Cy"}], )"
    R"("notes": {"a": [1, {"b": [true, null]}], "c": "d"}})";

// Makes a vocabulary: the bytes, words with and without a space, and one token in 30 that is mostly
// punctuation, so that it may end several values.
std::vector<std::string> make_tokens() {
  std::vector<std::string> tokens;
  tokens.reserve(kVocabulary);
  for (int byte = 0; byte < 256; ++byte) {
    tokens.emplace_back(1, static_cast<char>(byte));
  }
  RandomStream random(7);
  constexpr std::string_view kMarks = "\"\"}]{[:,, \\_.-()0";
  while (std::ssize(tokens) < kVocabulary - 1) {
    const bool marks = random.below(30) == 0;
    std::string token = !marks && random.below(2) == 0 ? " " : "";
    for (std::uint64_t i = 2 + random.below(marks ? 4 : 8); i > 0; --i) {
      token += marks ? kMarks[random.below(kMarks.size())]
                     : static_cast<char>('a' + static_cast<int>(random.below(26)));
    }
    tokens.push_back(std::move(token));
  }
  tokens.emplace_back();  // ends texts
  return tokens;
}

std::shared_ptr<const engines::TokenIndex> index_of(const std::vector<std::string>& tokens) {
  return std::make_shared<const engines::TokenIndex>(kVocabulary, [&](std::int32_t token) {
    return std::string_view{tokens[static_cast<std::size_t>(token)]};
  });
}

Result<std::shared_ptr<const Constraint>> make_constraint() {
  TIDEMILL_ASSIGN_OR_RETURN(const Json schema, parse_json(kSchema));
  std::string refused;
  TIDEMILL_ASSIGN_OR_RETURN(engines::Grammar grammar,
                            engines::json_schema_grammar(schema, "schema", refused));
  return std::make_shared<const Constraint>(std::move(grammar), index_of(make_tokens()));
}

// Calls `body` with the state before each token of the text, whose tokens are single bytes.
template <class Body>
Status along_text(const std::shared_ptr<const Constraint>& constraint, const Body& body) {
  ConstraintState state(constraint);
  for (const char c : kText) {
    TIDEMILL_RETURN_IF_ERROR(body(state));
    TIDEMILL_RETURN_IF_ERROR(state.accept(static_cast<unsigned char>(c)));
  }
  return body(state);
}

Result<double> masks_per_second(BenchModel& bench) {
  TIDEMILL_ASSIGN_OR_RETURN(const auto constraint, make_constraint());
  std::vector<std::uint64_t> words(engines::mask_words(kVocabulary));
  const std::int32_t ends[] = {kVocabulary - 1};
  double slowest = 0.0;
  double computing = 0.0;
  std::int64_t masks = 0;
  const auto measure = [&](const ConstraintState& state) {
    const auto start = std::chrono::steady_clock::now();
    Status made = state.mask(ends, words);
    const double took = elapsed_seconds(start);
    slowest = std::max(slowest, took);
    computing += took;
    ++masks;
    return made;
  };
  TIDEMILL_RETURN_IF_ERROR(along_text(constraint, measure));
  bench.notes() = {{"slowest first mask, ms", 1e3 * slowest},
                   {"mean first mask, ms", 1e3 * computing / static_cast<double>(masks)}};
  slowest = computing = 0.0;
  masks = 0;
  for (const auto start = std::chrono::steady_clock::now(); elapsed_seconds(start) < kSeconds;) {
    TIDEMILL_RETURN_IF_ERROR(along_text(constraint, measure));
  }
  bench.notes().push_back({"slowest later mask, ms", 1e3 * slowest});
  return static_cast<double>(masks) / computing;
}

// Returns the rows per second that are sampled, each with the mask of its own state, or without.
Result<double> sampled_rows(Ops& ops, Matrix logits, const std::vector<ConstraintState>& states) {
  engines::SamplingOptions options;
  std::vector<std::vector<std::uint64_t>> words(kRows);
  std::vector<engines::SampleRequest> requests;
  for (std::int64_t row = 0; row < kRows; ++row) {
    requests.push_back({row, &options, {}, {1, SampleId{static_cast<std::uint64_t>(row)}, 0}});
  }
  const std::int32_t ends[] = {kVocabulary - 1};
  std::int64_t sampled = 0;
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t round = 0; elapsed_seconds(start) < kSeconds; ++round) {
    for (std::size_t row = 0; row < requests.size(); ++row) {
      ++requests[row].key.position;
      if (!states.empty()) {
        words[row].resize(engines::mask_words(kVocabulary));
        const ConstraintState& state = states[(7 * row + round) % states.size()];
        TIDEMILL_RETURN_IF_ERROR(state.mask(ends, words[row]));
        requests[row].mask = {words[row]};
      }
    }
    TIDEMILL_ASSIGN_OR_RETURN(const auto outcomes, ops.sample(logits, requests));
    if (!outcomes.front().error.empty()) {
      return Status{Errc::kInternal, outcomes.front().error};
    }
    sampled += kRows;
  }
  return static_cast<double>(sampled) / elapsed_seconds(start);
}

Result<double> sample_masked(BenchModel& bench) {
  TIDEMILL_ASSIGN_OR_RETURN(const auto constraint, make_constraint());
  engines::Workers workers(bench.options().threads);
  TIDEMILL_ASSIGN_OR_RETURN(const std::unique_ptr<Ops> ops, engines::make_cpu_ops(workers));
  const std::int64_t count = kRows * kVocabulary;
  TIDEMILL_ASSIGN_OR_RETURN(const DeviceBlock block, ops->memory().allocate(count * 4));
  const Matrix logits{block.address(), kRows, kVocabulary, kVocabulary};
  std::vector<float> values(static_cast<std::size_t>(count));
  RandomStream random(1);
  for (float& value : values) {
    value = static_cast<float>(3.0 * random.normal());
  }
  ops->write(values, logits);
  std::vector<ConstraintState> states;
  std::vector<std::uint64_t> words(engines::mask_words(kVocabulary));
  TIDEMILL_RETURN_IF_ERROR(along_text(constraint, [&](const ConstraintState& state) {
    states.push_back(state);
    const std::int32_t ends[] = {kVocabulary - 1};
    return state.mask(ends, words);  // the first use
  }));
  TIDEMILL_ASSIGN_OR_RETURN(const double without, sampled_rows(*ops, logits, {}));
  bench.peer_values().push_back(without);
  return sampled_rows(*ops, logits, states);
}

Result<double> goal(BenchModel& /*bench*/, const engines::MachinePeaks& /*peaks*/,
                    const FigureSpec& /*spec*/) {
  return 1.0 / kMaskSeconds;
}

Result<double> without_masks(BenchModel& bench, const engines::MachinePeaks& /*peaks*/,
                             const FigureSpec& /*spec*/) {
  std::vector<double> all = bench.peer_values();
  all.erase(all.begin(), all.begin() + (all.size() > 1 ? 1 : 0));  // a warm-up
  std::ranges::sort(all);
  return all[all.size() / 2];
}

}  // namespace

std::vector<FigureSpec> constraint_figures() {
  return {
      {"mask_152k",
       {},
       "masks/s",
       "0.2 ms a mask",
       masks_per_second,
       goal,
       RunsIn::kThisProcessWithoutModel},
      {"sample_masked_16_152k",
       {},
       "rows/s",
       "without masks",
       sample_masked,
       without_masks,
       RunsIn::kThisProcessWithoutModel},
  };
}

}  // namespace tidemill::bench
