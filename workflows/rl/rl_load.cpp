// SPDX-License-Identifier: Apache-2.0
#include "workflows/rl/rl_load.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "workflows/rl/rl_settings.hpp"

namespace tidemill::workflows {
namespace {

using engines::kPageTokens;

// Sequences that the trainer's probe computes again. It compares the result with rollout.
constexpr std::int64_t kProbes = 2;

// The trainer holds the published weights of every version that rows in flight may come from, and
// of the version before them.
std::int64_t num_snapshots(const RlOptions& options) {
  return options.staleness.max + 2;
}

std::int64_t pages_for(std::int64_t tokens) {
  return (tokens + kPageTokens - 1) / kPageTokens;
}

// The cache pages that the samples of one prompt of mean length hold under one version of the
// weights.
struct SamplePages {
  SamplePages(const actors::Lengths& prompts, std::int64_t new_tokens) {
    const auto prompt = static_cast<std::int64_t>(std::ceil(prompts.mean()));
    // The last token is sampled but never fed to the model.
    const std::int64_t whole = prompt + new_tokens - 1;
    shared = prompt / kPageTokens;
    running = pages_for(whole) - shared;
    finished = whole / kPageTokens - shared;
    prompt_end = finished > 0 ? 0 : pages_for(prompt) - shared;
  }

  std::int64_t shared = 0;    // full pages of the prompt
  std::int64_t running = 0;   // further pages of a sample while it is generated
  std::int64_t finished = 0;  // those of them that stay cached afterwards: the full ones
  // 1 if the page with the end of the prompt does not become full. The first sample's copy of it
  // stays cached for requests with the same prompt.
  std::int64_t prompt_end = 0;
};

// Samples that are generated under one version of the weights, `size` for each prompt.
struct Generated {
  std::int64_t groups = 0;
  std::int64_t size = 1;
  std::int64_t running = 0;  // samples still being generated; the others have finished

  [[nodiscard]] std::int64_t samples() const noexcept { return groups * size; }
};

// Returns the pages that are cached for the samples `of`, whose prompts have the lengths `lengths`.
// Groups with the same prompt share its pages.
std::int64_t cached_pages(const Generated& of, const actors::Lengths& lengths,
                          std::int64_t new_tokens) {
  const SamplePages pages(lengths, new_tokens);
  const std::int64_t prompts = std::min(of.groups, lengths.count());
  // While samples of a prompt run, its end is in a page of the first of them.
  const std::int64_t ended = std::min(of.groups - of.running / of.size, prompts);
  return prompts * pages.shared + of.running * pages.running +
         (of.samples() - of.running) * pages.finished + ended * pages.prompt_end;
}

std::int64_t rows_of_step(const RlOptions& options) {
  return std::int64_t{options.train.prompts_per_step} * options.rollout.group_size;
}

// Returns how many tokens of a step training takes from generation instead of computing them again;
// `prompts` of them are prompt tokens. It can only do so on policy, if this process generates them.
std::int64_t kept_tokens(const RlOptions& options, std::int64_t prompts) {
  const bool kept = trains_on_policy(options) && options.placement.rollout.processes == 0;
  // The last token is sampled but never fed to the model.
  return kept ? prompts + rows_of_step(options) * (options.rollout.max_new_tokens - 1) : 0;
}

// Returns the number of samples that may be in flight. A short run has no more than it trains.
std::int64_t rows_in_flight(const RlOptions& options, const RlFacts& facts) {
  return std::min(max_concurrent_rows(options),
                  static_cast<std::int64_t>(facts.steps) * rows_of_step(options));
}

// The same of samples that the process of the run generates itself: none with rollout processes.
std::int64_t own_rows_in_flight(const RlOptions& options, const RlFacts& facts) {
  return options.placement.rollout.processes > 0 ? 0 : rows_in_flight(options, facts);
}

// Returns the number of responses of one evaluation, or 0 if the run has none.
std::int64_t num_evaluated(const RlOptions& options, const RlFacts& facts) {
  const bool evaluates = options.eval.common.every_steps > 0;
  return evaluates ? facts.eval_prompts.count() * options.eval.samples : 0;
}

// Returns whether training waits for evaluations to end: to find the best weights, or to commit the
// result of an evaluation.
bool waits_for_evaluation(const RlOptions& options, const RlFacts& facts) {
  const std::int64_t commits = options.run.checkpoint.every_steps;
  const std::int64_t evals = options.eval.common.every_steps;
  return options.eval.common.keep_best || options.eval.common.patience > 0 ||
         options.run.checkpoint.every_seconds > 0 ||
         (commits > 0 && static_cast<std::uint64_t>(std::lcm(commits, evals)) < facts.steps);
}

// Adds the load of training. A micro-batch holds groups of one minibatch, each with its prompt
// once. Returns the cache pages that a micro-batch holds.
std::int64_t add_training(const RlOptions& options, const RlFacts& facts,
                          engines::MemoryLoad& load) {
  const std::int64_t size = options.rollout.group_size;
  const std::int64_t response = options.rollout.max_new_tokens;
  const std::int64_t groups =
      (options.train.prompts_per_step + options.train.minibatches - 1) / options.train.minibatches;
  const std::int64_t batch =
      facts.prompts.expected_max(groups, facts.steps) + groups * size * response;
  load.sequence_tokens = facts.prompts.longest() + response;
  load.train_tokens = std::max(std::min(options.train.common.micro_batch_tokens, batch),
                               std::min(load.sequence_tokens, batch));
  const double of_group = facts.prompts.mean() + static_cast<double>(size * response);
  const double share =
      std::min(static_cast<double>(load.train_tokens) / of_group, static_cast<double>(groups));
  load.shared_tokens = size > 1 ? static_cast<std::int64_t>(share * facts.prompts.mean()) : 0;
  load.prompt_tokens = size > 1 && batch > load.train_tokens ? facts.prompts.longest() : 0;
  const SamplePages pages(facts.prompts, response);
  return static_cast<std::int64_t>(share *
                                   static_cast<double>(pages.shared + size * pages.running));
}

// Returns the pages that are held at the start of the run, when all rows that may be in flight are
// generated with the initial weights. `micro` are the pages of a micro-batch, which exists only
// after a batch has been generated.
std::int64_t opening_pages(const RlOptions& options, const RlFacts& facts, std::int64_t micro) {
  const std::int64_t rows = own_rows_in_flight(options, facts);
  if (rows == 0) {
    return micro;
  }
  const std::int64_t response = options.rollout.max_new_tokens;
  Generated samples{rows / options.rollout.group_size, options.rollout.group_size,
                    std::min(facts.max_running, rows)};
  const std::int64_t generated = cached_pages(samples, facts.prompts, response);
  samples.running = std::min(samples.running, rows - rows_of_step(options));
  return std::max(generated, cached_pages(samples, facts.prompts, response) + micro);
}

// Returns the pages that are held while the weights of a later step are evaluated. The pages of
// older weights have been dropped.
std::int64_t evaluation_pages(const RlOptions& options, const RlFacts& facts, std::int64_t micro) {
  const std::int64_t evaluated = num_evaluated(options, facts);
  if (evaluated == 0) {
    return 0;
  }
  const std::int64_t response = options.rollout.max_new_tokens;
  const std::int64_t size = options.rollout.group_size;
  const std::int64_t rows = own_rows_in_flight(options, facts) > 0 ? rows_of_step(options) : 0;
  Generated evals{facts.eval_prompts.count(), options.eval.samples,
                  std::min(facts.max_running, evaluated)};
  if (facts.steps <= static_cast<std::uint64_t>(options.eval.common.every_steps)) {
    return cached_pages(evals, facts.eval_prompts, response);  // the run has no other work left
  }
  // The samples of a step are admitted when its weights are published. The next weights follow
  // soon, and no further sample starts before they are served. So these weights generate only the
  // samples that fit next to the evaluation. If the next weights wait for the evaluation or for the
  // samples, these weights generate all samples of the step.
  const std::int64_t beside = std::min(facts.max_running - evals.running, rows);
  Generated samples{beside / size, size, beside / size * size};
  const bool alternate = options.staleness.max == 0;
  if (alternate || waits_for_evaluation(options, facts)) {
    samples = {rows / size, size, std::min(facts.max_running, rows)};
    evals.running = std::min(evaluated, facts.max_running - samples.running);
  }
  const std::int64_t of_evals = cached_pages(evals, facts.eval_prompts, response);
  const std::int64_t generated = cached_pages(samples, facts.prompts, response);
  samples.running = alternate ? 0 : samples.running;
  return of_evals + std::max(generated, cached_pages(samples, facts.prompts, response) + micro);
}

// Returns how many tokens an iteration computes at most if `running` sequences run and `prefill`
// more tokens of prompts are left to compute.
std::int64_t max_rollout_tokens(const RlOptions& options, std::int64_t running,
                                std::int64_t prefill) {
  const std::int64_t most = options.rollout.prefill_tokens.value_or(prefill);
  return std::min(engines::StepBudget{}.tokens, running + std::min(prefill, most));
}

// Adds the load of generation: all rows that may be in flight, and an evaluation at the same time.
void add_generation(const RlOptions& options, const RlFacts& facts, engines::MemoryLoad& load) {
  const std::int64_t rows = own_rows_in_flight(options, facts);
  const std::int64_t evaluated = num_evaluated(options, facts);
  const std::int64_t running = std::min(facts.max_running, rows + evaluated);
  // The samples of a prompt wait until the first of them has read it, and later samples overtake
  // them. A sample that reads its prompt does not sample tokens in that iteration.
  const std::int64_t firsts = std::min(rows / options.rollout.group_size, running);
  const std::int64_t evals = evaluated > 0 ? std::min(facts.eval_prompts.count(), running) : 0;
  const std::int64_t prefill = std::max(facts.prompts.expected_max(firsts, facts.steps) - firsts,
                                        facts.eval_prompts.expected_max(evals, 1) - evals);
  load.rollout_tokens = max_rollout_tokens(options, running, prefill);
  load.sampled_tokens = running;
}

}  // namespace

bool trains_on_policy(const RlOptions& options) noexcept {
  return options.staleness.max == 0 && options.train.minibatches == 1;
}

std::int64_t longest_sequence(const RlOptions& options, std::int64_t longest_prompt) {
  return longest_prompt + options.rollout.max_new_tokens;
}

engines::MemoryLoad peak_load(const RlOptions& options, const RlFacts& facts,
                              std::int64_t longest_prompt) {
  const std::int64_t size = options.rollout.group_size;
  const std::int64_t groups =
      (options.train.prompts_per_step + options.train.minibatches - 1) / options.train.minibatches;
  const std::int64_t longest = longest_sequence(options, longest_prompt);
  const std::int64_t batch =
      groups * (longest_prompt + size * std::int64_t{options.rollout.max_new_tokens});
  engines::MemoryLoad load;
  load.shares_base = facts.shares_base;
  load.sequence_tokens = longest;
  load.train_tokens = std::max(longest, std::min(options.train.common.micro_batch_tokens, batch));
  load.snapshots = num_snapshots(options) + 1;  // and the one that is being made
  load.score_tokens = kProbes * longest;
  load.shared_tokens = size > 1 ? std::min(load.train_tokens, groups * longest_prompt) : 0;
  load.prompt_tokens = size > 1 ? longest_prompt : 0;
  load.kept_tokens = kept_tokens(options, options.train.prompts_per_step * longest_prompt);
  const std::int64_t running =
      std::clamp(own_rows_in_flight(options, facts) + num_evaluated(options, facts),
                 std::int64_t{1}, facts.max_running);
  load.rollout_tokens = max_rollout_tokens(options, running, engines::StepBudget{}.tokens);
  const std::int64_t trained = std::min(load.train_tokens, groups * size);  // sequences
  const std::int64_t at_once =
      kPageTokens * (running * pages_for(longest) + pages_for(load.train_tokens) + trained);
  // What stays cached for later requests is not needed, but it saves work.
  load.kv_tokens = std::max(at_once, likely_load(options, facts).kv_tokens);
  return load;
}

engines::MemoryLoad rollout_process_load(const RlOptions& options, const RlFacts& facts,
                                         std::int64_t longest_prompt) {
  // Its own workers hold their share of the rows. The router may send it all evaluations.
  const std::int64_t processes = std::max(options.placement.rollout.processes, 1);
  const std::int64_t rows = (rows_in_flight(options, facts) + processes - 1) / processes;
  const std::int64_t running = std::min(facts.max_running, rows + num_evaluated(options, facts));
  engines::MemoryLoad load;
  load.sequence_tokens = longest_sequence(options, longest_prompt);
  load.rollout_tokens = max_rollout_tokens(options, running, engines::StepBudget{}.tokens);
  load.sampled_tokens = running;
  load.kv_tokens = kPageTokens * running * pages_for(load.sequence_tokens);
  load.snapshots = 2;
  load.commits = false;
  return load;
}

engines::MemoryLoad likely_load(const RlOptions& options, const RlFacts& facts) {
  engines::MemoryLoad load;
  load.shares_base = facts.shares_base;
  load.snapshots = num_snapshots(options);
  const std::int64_t micro = add_training(options, facts, load);
  load.score_tokens = kProbes * load.sequence_tokens;
  add_generation(options, facts, load);
  load.kept_tokens =
      kept_tokens(options, facts.prompts.expected_max(options.train.prompts_per_step, facts.steps));
  load.kv_tokens = kPageTokens * std::max(opening_pages(options, facts, micro),
                                          evaluation_pages(options, facts, micro));
  // The last commit is written after generation and training have ended.
  const auto every = static_cast<std::uint64_t>(options.run.checkpoint.every_steps);
  load.commits = options.run.checkpoint.every_seconds > 0 || (every > 0 && every < facts.steps);
  return load;
}

}  // namespace tidemill::workflows
