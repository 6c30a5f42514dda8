// SPDX-License-Identifier: Apache-2.0
#include "workflows/rl/rl_load.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "workflows/rl/rl_settings.hpp"

namespace tidemill::workflows {
namespace {

using engines::kPageTokens;

// Sequences that probes of the trainer compute again.
constexpr std::int64_t kProbes = 2;

// Versions as they were published: the trainer holds those that rows may still be of, and one
// before them.
std::int64_t num_snapshots(const RlOptions& options) {
  return options.staleness.max + 2;
}

std::int64_t pages_for(std::int64_t tokens) {
  return (tokens + kPageTokens - 1) / kPageTokens;
}

// The pages that samples of one prompt of usual length hold under one set of weights.
struct SamplePages {
  SamplePages(const actors::Lengths& prompts, std::int64_t new_tokens) {
    const auto prompt = static_cast<std::int64_t>(std::ceil(prompts.mean()));
    // The last token is drawn, not computed with.
    const std::int64_t whole = prompt + new_tokens - 1;
    shared = prompt / kPageTokens;
    running = pages_for(whole) - shared;
    finished = whole / kPageTokens - shared;
    prompt_end = finished > 0 ? 0 : pages_for(prompt) - shared;
  }

  std::int64_t shared = 0;    // whole pages of the prompt
  std::int64_t running = 0;   // a sample's own, while it is generated
  std::int64_t finished = 0;  // of those, what stays cached: those that became full
  // The page with the prompt's end, unless it became full: the first sample's stays, for those who
  // may begin alike.
  std::int64_t prompt_end = 0;
};

// Samples that are generated under one set of weights, `size` of each prompt.
struct Generated {
  std::int64_t groups = 0;
  std::int64_t size = 1;
  std::int64_t running = 0;  // of all samples, while the others have finished

  [[nodiscard]] std::int64_t samples() const noexcept { return groups * size; }
};

// What is cached of samples of the prompts of `lengths`: groups of one prompt share its pages.
std::int64_t cached_pages(const Generated& of, const actors::Lengths& lengths,
                          std::int64_t new_tokens) {
  const SamplePages pages(lengths, new_tokens);
  const std::int64_t prompts = std::min(of.groups, lengths.count());
  // A prompt whose samples run has its end in the first one's page.
  const std::int64_t ended = std::min(of.groups - of.running / of.size, prompts);
  return prompts * pages.shared + of.running * pages.running +
         (of.samples() - of.running) * pages.finished + ended * pages.prompt_end;
}

std::int64_t rows_of_step(const RlOptions& options) {
  return std::int64_t{options.train.prompts_per_step} * options.rollout.group_size;
}

// Tokens of one step that training finds computed, `prompts` of them in prompts: where it waits for
// samples of its own weights, and does not change them before the step's end.
std::int64_t kept_tokens(const RlOptions& options, std::int64_t prompts) {
  const bool on_policy = options.staleness.max == 0 && options.train.minibatches == 1;
  // The last token is drawn, not computed with.
  return on_policy ? prompts + rows_of_step(options) * (options.rollout.max_new_tokens - 1) : 0;
}

// Samples that may be in flight; a short run has no more than it trains.
std::int64_t rows_in_flight(const RlOptions& options, const RlFacts& facts) {
  return std::min(max_concurrent_rows(options),
                  static_cast<std::int64_t>(facts.steps) * rows_of_step(options));
}

// Answers of one evaluation; none where the run ends before the first.
std::int64_t num_evaluated(const RlOptions& options, const RlFacts& facts) {
  const auto every = static_cast<std::uint64_t>(options.eval.common.every_steps);
  return every > 0 && every <= facts.steps ? facts.eval_prompts.count() * options.eval.samples : 0;
}

// Whether training waits for the end of an evaluation: to look for the best weights, or to commit
// what it found.
bool waits_for_evaluation(const RlOptions& options, const RlFacts& facts) {
  const std::int64_t commits = options.run.checkpoint.every_steps;
  const std::int64_t evals = options.eval.common.every_steps;
  return options.eval.common.keep_best || options.eval.common.patience > 0 ||
         (commits > 0 && static_cast<std::uint64_t>(std::lcm(commits, evals)) < facts.steps);
}

// What training takes at a time: `groups` of one minibatch, each with its prompt once. Returns the
// pages that a micro-batch holds.
std::int64_t add_training(const RlOptions& options, const RlFacts& facts,
                          engines::MemoryLoad& load) {
  const std::int64_t size = options.rollout.group_size;
  const std::int64_t answer = options.rollout.max_new_tokens;
  const std::int64_t groups =
      (options.train.prompts_per_step + options.train.minibatches - 1) / options.train.minibatches;
  const std::int64_t batch =
      facts.prompts.likely_most(groups, facts.steps) + groups * size * answer;
  load.sequence_tokens = facts.prompts.longest() + answer;
  load.train_tokens = std::max(std::min(options.train.common.micro_batch_tokens, batch),
                               std::min(load.sequence_tokens, batch));
  const double of_group = facts.prompts.mean() + static_cast<double>(size * answer);
  const double share =
      std::min(static_cast<double>(load.train_tokens) / of_group, static_cast<double>(groups));
  load.shared_tokens = size > 1 ? static_cast<std::int64_t>(share * facts.prompts.mean()) : 0;
  load.prompt_tokens = size > 1 && batch > load.train_tokens ? facts.prompts.longest() : 0;
  const SamplePages pages(facts.prompts, answer);
  return static_cast<std::int64_t>(share *
                                   static_cast<double>(pages.shared + size * pages.running));
}

// The pages that are held at the beginning, when all that may be in flight is generated with the
// first weights; `micro` by a micro-batch, for which a batch has been generated.
std::int64_t opening_pages(const RlOptions& options, const RlFacts& facts, std::int64_t micro) {
  const std::int64_t rows = rows_in_flight(options, facts);
  const std::int64_t answer = options.rollout.max_new_tokens;
  Generated samples{rows / options.rollout.group_size, options.rollout.group_size,
                    std::min(facts.max_running, rows)};
  const std::int64_t generated = cached_pages(samples, facts.prompts, answer);
  samples.running = std::min(samples.running, rows - rows_of_step(options));
  return std::max(generated, cached_pages(samples, facts.prompts, answer) + micro);
}

// The pages that are held while weights are evaluated that a later step made. What was cached with
// older ones is gone.
std::int64_t evaluation_pages(const RlOptions& options, const RlFacts& facts, std::int64_t micro) {
  const std::int64_t evaluated = num_evaluated(options, facts);
  if (evaluated == 0) {
    return 0;
  }
  const std::int64_t answer = options.rollout.max_new_tokens;
  const std::int64_t size = options.rollout.group_size;
  Generated evals{facts.eval_prompts.count(), options.eval.samples,
                  std::min(facts.max_running, evaluated)};
  if (facts.steps == static_cast<std::uint64_t>(options.eval.common.every_steps)) {
    return cached_pages(evals, facts.eval_prompts, answer);  // nothing else is left to do
  }
  // The samples of a step are let in when its weights are there. The next weights come soon, and
  // nothing is begun before they serve: what finds room beside the evaluation is what these ones
  // generate. All of it does where the next weights wait for the evaluation, or for the samples.
  const std::int64_t beside = std::min(facts.max_running - evals.running, rows_of_step(options));
  Generated samples{beside / size, size, beside / size * size};
  const bool alternate = options.staleness.max == 0;
  if (alternate || waits_for_evaluation(options, facts)) {
    samples = {options.train.prompts_per_step, size,
               std::min(facts.max_running, rows_of_step(options))};
    evals.running = std::min(evaluated, facts.max_running - samples.running);
  }
  const std::int64_t of_evals = cached_pages(evals, facts.eval_prompts, answer);
  const std::int64_t generated = cached_pages(samples, facts.prompts, answer);
  samples.running = alternate ? 0 : samples.running;
  return of_evals + std::max(generated, cached_pages(samples, facts.prompts, answer) + micro);
}

// What generation takes at a time: all that may be in flight, and an evaluation beside it.
void add_generation(const RlOptions& options, const RlFacts& facts, engines::MemoryLoad& load) {
  const std::int64_t rows = rows_in_flight(options, facts);
  const std::int64_t evaluated = num_evaluated(options, facts);
  const std::int64_t running = std::min(facts.max_running, rows + evaluated);
  // Samples of one prompt wait for the first of them, and younger ones come before them. Those that
  // read their prompts draw nothing else meanwhile.
  const std::int64_t firsts = std::min(rows / options.rollout.group_size, running);
  const std::int64_t evals = evaluated > 0 ? std::min(facts.eval_prompts.count(), running) : 0;
  const std::int64_t iteration =
      running + std::max(facts.prompts.likely_most(firsts, facts.steps) - firsts,
                         facts.eval_prompts.likely_most(evals, 1) - evals);
  load.rollout_tokens = std::min(engines::StepBudget{}.tokens, iteration);
  load.draws = running;
}

}  // namespace

engines::MemoryLoad most_load(const RlOptions& options, const engines::ModelConfig& config) {
  engines::MemoryLoad load;
  load.train_tokens = std::max(options.train.common.micro_batch_tokens, config.max_positions);
  load.sequence_tokens = config.max_positions;
  load.snapshots = num_snapshots(options) + 1;  // and the one that is made
  load.score_tokens = kProbes * config.max_positions;
  const std::int64_t prompt = max_prompt_tokens(options, config);
  load.shared_tokens = options.rollout.group_size > 1 ? load.train_tokens : 0;
  load.prompt_tokens = options.rollout.group_size > 1 ? prompt : 0;
  load.kept_tokens = kept_tokens(options, options.train.prompts_per_step * prompt);
  return load;
}

engines::MemoryLoad likely_load(const RlOptions& options, const RlFacts& facts) {
  engines::MemoryLoad load;
  load.snapshots = num_snapshots(options);
  const std::int64_t micro = add_training(options, facts, load);
  load.score_tokens = kProbes * load.sequence_tokens;
  add_generation(options, facts, load);
  load.kept_tokens =
      kept_tokens(options, facts.prompts.likely_most(options.train.prompts_per_step, facts.steps));
  load.kv_tokens = kPageTokens * std::max(opening_pages(options, facts, micro),
                                          evaluation_pages(options, facts, micro));
  // The last commit is made when nothing is generated or trained any more.
  const auto every = static_cast<std::uint64_t>(options.run.checkpoint.every_steps);
  load.commits = every > 0 && every < facts.steps;
  return load;
}

}  // namespace tidemill::workflows
