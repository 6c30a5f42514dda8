// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/commit_witness.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "actors/stream/stream_image.hpp"
#include "base/digest.hpp"
#include "base/json/json.hpp"
#include "storage/run_files/sample_line.hpp"

namespace tidemill::test {
namespace {

std::string of_step(const char* what, std::uint64_t step) {
  return "commit of step " + std::to_string(step) + ": " + what;
}

// Calls `take` with each line of `text`. Returns whether the last line is complete.
template <class Take>
bool for_each_line(std::string_view text, Take take) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) {
      return false;
    }
    take(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  return true;
}

std::uint64_t count_of(const Json& line, const char* name) {
  const Json* value = line.find(name);
  return value == nullptr ? 0 : static_cast<std::uint64_t>(value->number().value_or(0.0));
}

}  // namespace

CommitWitness::CommitWitness(const SimulationOptions& options, SimulatedDisk& disk, Violate violate)
    : options_(options), disk_(disk), violate_(std::move(violate)) {}

void CommitWitness::check_commit(const actors::RunCommit& commit) {
  ++commits_checked_;
  const std::uint64_t step = commit.weights.version.step;
  const SimulatedRecordText& text = disk_.text;
  if (commit.records.metrics_bytes > text.metrics.size() ||
      commit.records.samples_bytes > text.samples.size()) {
    violate_(of_step("it names more bytes of the record files than exist", step));
    return;
  }
  const auto metrics = std::string_view(text.metrics).substr(0, commit.records.metrics_bytes);
  const Recorded recorded = read_metrics(metrics);
  if (recorded.steps != step) {
    violate_(of_step("the record files that it names hold a different number of steps: ", step) +
             std::to_string(recorded.steps));
  }
  remember_digests(commit);
  check_stream(commit);
  check_evaluations(commit, recorded.evaluations);
}

// Remembers the digests that were published since the commit before, by step.
void CommitWitness::remember_digests(const actors::RunCommit& commit) {
  const PolicyVersion& version = commit.weights.version;
  const std::uint64_t before = disk_.last.has_value() ? disk_.last->weights.version.step + 1 : 0;
  for (std::uint64_t step = before; step <= version.step; ++step) {
    const auto published = disk_.published.find({version.incarnation, step});
    if (published != disk_.published.end()) {
      disk_.committed[step] = published->second;
    }
  }
  if (digest_tensors(commit.weights.base) != commit.weights.base_digest) {
    violate_(of_step("its weights do not match its digest", version.step));
  }
  const auto known = disk_.committed.find(version.step);
  if (known != disk_.committed.end() && known->second != commit.weights.base_digest) {
    violate_(of_step("its weights are not the published ones", version.step));
  }
}

// Returns the draw after those of the first `groups` groups.
std::uint64_t CommitWitness::draw_after(std::uint64_t groups) const {
  const auto prompts =
      SimulatedPrompts(options_).read(0, static_cast<std::uint32_t>(groups)).value();
  return prompts.size() < groups || groups == 0 ? 0 : prompts.back().draw + 1;
}

void CommitWitness::check_stream(const actors::RunCommit& commit) const {
  const std::uint64_t step = commit.weights.version.step;
  const auto image = actors::decode_stream_image(commit.stream);
  if (!image.ok()) {
    violate_(of_step("its stream: ", step) + image.status().message());
    return;
  }
  if (image.value() == nullptr) {
    violate_(of_step("its stream is empty", step));
    return;
  }
  const storage::IndexSnapshot& index = image.value()->snapshot.index;
  const actors::StreamOrigin& origin = image.value()->origin;
  if (index.version != step) {
    violate_(of_step("its stream has version ", step) + std::to_string(index.version));
  }
  // Prompts are taken from the data in order, one for each group.
  if (origin.next_draw != draw_after(origin.next_group) || index.next_group > origin.next_group) {
    violate_(of_step("its data position contradicts its groups: draw ", step) +
             std::to_string(origin.next_draw) + ", group " + std::to_string(origin.next_group));
  }
  const auto samples = std::string_view(disk_.text.samples).substr(0, commit.records.samples_bytes);
  const std::set<std::uint64_t> trained = read_samples(samples);
  if (index.totals.trained != trained.size()) {
    violate_(of_step("rows trained according to its stream, and according to the records: ", step) +
             std::to_string(index.totals.trained) + ", " + std::to_string(trained.size()));
  }
  for (const storage::RowSnapshot& row : index.rows) {
    if (trained.contains(row.row.id.value)) {
      violate_(of_step("live in its stream, but recorded as trained: sample ", step) +
               std::to_string(row.row.id.value));
    }
  }
}

// Checks that each evaluation is of the weights that its step names.
void CommitWitness::check_evaluations(const actors::RunCommit& commit,
                                      const std::vector<Evaluation>& evaluations) {
  const std::uint64_t step = commit.weights.version.step;
  std::uint64_t last = 0;
  for (const Evaluation& evaluation : evaluations) {
    if (evaluation.step > step) {
      violate_(of_step("it records an evaluation of step ", step) +
               std::to_string(evaluation.step));
    }
    if (!options_.best.enabled()) {
      continue;
    }
    if (evaluation.step <= last || !options_.evaluates(evaluation.step)) {
      violate_(of_step("evaluated twice, or although it was not due: step ", step) +
               std::to_string(evaluation.step));
    }
    last = evaluation.step;
    const auto weights = disk_.committed.find(evaluation.step);
    if (weights == disk_.committed.end()) {
      violate_(of_step("evaluated, although no engine had the weights: step ", step) +
               std::to_string(evaluation.step));
      continue;
    }
    const auto [expected, fresh] = evaluated_.try_emplace(weights->second);
    if (fresh) {
      expected->second = simulated_evaluation(options_, weights->second);
    }
    if (evaluation.scored != expected->second.has_value() ||
        (evaluation.scored && evaluation.value != *expected->second)) {
      violate_(of_step("the recorded evaluation is of other weights: step ", step) +
               std::to_string(evaluation.step));
    }
  }
  check_best(commit.best, evaluations);
}

// Checks that the best is the first of the highest evaluations in the committed history.
void CommitWitness::check_best(const std::optional<actors::BestSoFar>& best,
                               const std::vector<Evaluation>& evaluations) {
  const Evaluation* highest = nullptr;
  std::uint32_t worse = 0;
  for (const Evaluation& evaluation : evaluations) {
    if (!options_.best.enabled() || !evaluation.scored) {
      continue;
    }
    ++worse;
    if (highest == nullptr || evaluation.value > highest->value + options_.best.min_improvement) {
      highest = &evaluation;
      worse = 0;
    }
  }
  if (best.has_value() != (highest != nullptr)) {
    violate_(best.has_value() ? "a commit has a best evaluation that is not recorded"
                              : "a commit lacks its best evaluation");
    return;
  }
  if (highest == nullptr) {
    return;
  }
  ++bests_checked_;
  if (best->value != highest->value || best->step != highest->step || best->num_worse != worse) {
    violate_("the best evaluation of a commit is of step " + std::to_string(best->step) + ", " +
             std::to_string(best->num_worse) + " worse since; recorded are step " +
             std::to_string(highest->step) + ", " + std::to_string(worse));
  }
  if (!options_.best.keep) {
    return;
  }
  const auto weights = disk_.committed.find(highest->step);
  if (weights == disk_.committed.end() || best->weights.base_digest != weights->second ||
      digest_tensors(best->weights.base) != weights->second) {
    violate_("the best weights of a commit are not those of step " + std::to_string(highest->step));
  }
}

void CommitWitness::check_host_and_origin(const std::optional<actors::RunCommit>& origin) const {
  const bool same =
      origin.has_value() == disk_.last.has_value() &&
      (!origin.has_value() || origin->weights.base_digest == disk_.last->weights.base_digest);
  if (!same) {
    violate_("a run did not start from its last commit");
  }
}

void CommitWitness::check_end(std::uint64_t steps, const std::string& digest) const {
  const std::uint64_t recorded = read_metrics(disk_.text.metrics).steps;
  if (recorded != steps) {
    violate_("steps recorded: " + std::to_string(recorded) + " of " + std::to_string(steps));
  }
  if (steps == 0) {
    return;
  }
  if (!disk_.last.has_value() || disk_.last->weights.version.step != steps) {
    violate_("the run ended after step " + std::to_string(steps) + " without a commit of it");
    return;
  }
  const auto& best = disk_.last->best;
  const bool kept = options_.best.keep && best.has_value();
  if (digest != (kept ? best->weights : disk_.last->weights).base_digest) {
    violate_("the run ended with weights that are not those of its last commit");
  }
}

bool CommitWitness::all_evaluated(std::uint64_t steps) const {
  if (!options_.best.enabled()) {
    return true;
  }
  const bool is_last_extra = steps == options_.steps && steps % options_.eval_every != 0;
  return read_metrics(disk_.text.metrics).evaluations.size() ==
         steps / options_.eval_every + (is_last_extra ? 1 : 0);
}

CommitWitness::Recorded CommitWitness::read_metrics(std::string_view text) const {
  Recorded recorded;
  if (!for_each_line(text, [&](std::string_view line) { read_metrics_line(line, recorded); })) {
    violate_("the metrics end inside a line");
  }
  return recorded;
}

void CommitWitness::read_metrics_line(std::string_view line, Recorded& recorded) const {
  const auto parsed = parse_json(line);
  if (!parsed.ok()) {
    violate_("a metrics line cannot be read: " + parsed.status().message());
    return;
  }
  const Json& record = parsed.value();
  const std::string kind = *record.find("kind")->if_string();
  const std::uint64_t step = count_of(record, "step");
  if (kind == "train") {
    if (step != ++recorded.steps) {
      violate_("step " + std::to_string(step) + " is recorded in the position of step " +
               std::to_string(recorded.steps));
    }
    return;
  }
  Evaluation evaluation;
  evaluation.step = step;
  evaluation.value = record.find("eval_mean_at_k")->number().value_or(0.0);
  evaluation.scored = count_of(record, "eval_failed") <
                      count_of(record, "eval_prompts") * count_of(record, "eval_samples");
  recorded.evaluations.push_back(evaluation);
}

std::set<std::uint64_t> CommitWitness::read_samples(std::string_view text) const {
  std::set<std::uint64_t> samples;
  const bool whole = for_each_line(text, [&](std::string_view line) {
    const auto parsed = storage::parse_sample_line(line);
    if (!parsed.ok()) {
      violate_("a sample line cannot be read: " + parsed.status().message());
      return;
    }
    const std::string sample = "sample " + std::to_string(parsed.value().sample);
    if (!samples.insert(parsed.value().sample).second) {
      violate_("trained twice: " + sample);
    }
    if (parsed.value().response != simulated_text(parsed.value().response_ids)) {
      violate_(sample + ": its response text does not match its tokens");
    }
  });
  if (!whole) {
    violate_("the samples end inside a line");
  }
  return samples;
}

}  // namespace tidemill::test
