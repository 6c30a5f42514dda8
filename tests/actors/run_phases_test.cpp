// SPDX-License-Identifier: Apache-2.0
// Tests the phases of a run: every event in every phase, and every state that a run can reach.
#include "actors/trainer/run_phases.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemill::test {
namespace {

using actors::BestSoFar;
using actors::Phase;
using actors::PhaseRow;
using actors::Reaction;
using actors::RunAction;
using actors::RunEnd;
using actors::RunEvent;
using actors::RunKind;
using actors::RunPhaseOptions;
using actors::RunPhases;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr RunKind kKinds[] = {RunKind::kReinforcement, RunKind::kSupervised};

Phase phase_at(std::size_t index) {
  return static_cast<Phase>(index);
}
RunEvent event_at(std::size_t index) {
  return static_cast<RunEvent>(index);
}

char letter(Reaction reaction) {
  switch (reaction) {
    case Reaction::kNever: return '-';
    case Reaction::kNothing: return '.';
    case Reaction::kTrain: return 'T';
    case Reaction::kBegin: return 'B';
    case Reaction::kEvaluateIfDue: return 'E';
    case Reaction::kCommitIfDue: return 'D';
    case Reaction::kWrite: return 'W';
    case Reaction::kFetchOrEnd: return 'F';
    case Reaction::kCommit: return 'C';
  }
  return '?';
}

engines::Snapshot weights_of(std::uint64_t step) {
  engines::Snapshot weights;
  weights.version.step = step;
  weights.base_digest = "step " + std::to_string(step);
  return weights;
}

// -- the table ------------------------------------------------------------------------------------

// One letter for each event, in the order of `RunEvent`: start, batch, no batch yet, data ended, no
// signal, step recorded, evaluation recorded, evaluation abandoned, captured, written, stop.
TEST(RunPhasesTable, HasAReactionToEveryEventInEveryPhase) {
  const std::map<RunKind, std::vector<std::string>> expected = {
      {RunKind::kReinforcement,
       {
           "B---------.",  // ready
           "-TFFF-..-..",  // fetching
           "-----E..-..",  // training
           "------D--.D",  // evaluating
           "------CC-CC",  // commit waiting
           "------..W-.",  // capturing
           "------..--.",  // ended
       }},
      {RunKind::kSupervised,
       {
           "B---------F",  // ready
           "-TFFF----.F",  // fetching
           "-----E---..",  // training
           "------DD-..",  // evaluating
           "---------CC",  // commit waiting
           "--------W-.",  // capturing
           "----------.",  // ended
       }},
  };
  std::size_t pairs = 0;
  for (const RunKind kind : kKinds) {
    for (std::size_t phase = 0; phase < actors::kNumPhases; ++phase) {
      std::string row;
      for (std::size_t event = 0; event < actors::kNumRunEvents; ++event) {
        row += letter(actors::reaction_to(kind, phase_at(phase), event_at(event)));
        ++pairs;
      }
      EXPECT_EQ(row, expected.at(kind).at(phase)) << "phase " << phase;
    }
  }
  EXPECT_EQ(pairs, 2U * 7U * 11U);
}

TEST(RunPhasesTable, HasOneRowForEachPairAndAReasonInEach) {
  std::set<std::tuple<RunKind, Phase, RunEvent>> seen;
  for (const PhaseRow& row : actors::phase_table()) {
    EXPECT_FALSE(row.reason.empty());
    EXPECT_NE(row.reaction, Reaction::kNever);
    for (const RunKind kind : kKinds) {
      if (row.kind.value_or(kind) == kind) {
        EXPECT_TRUE(seen.emplace(kind, row.phase, row.event).second)
            << "two rows for phase " << static_cast<int>(row.phase) << " and event "
            << static_cast<int>(row.event);
      }
    }
  }
  EXPECT_EQ(seen.size(), 49U);
}

TEST(RunPhasesTable, AnEventThatCannotOccurIsABug) {
  RunPhases phases;
  EXPECT_DEATH(static_cast<void>(phases.on(RunEvent::kBatch)), "phase=0 event=1");
}

// -- every reachable state ------------------------------------------------------------------------

// What the peers of a trainer may still do: the requests and the work that it has begun.
struct Peers {
  bool fetching = false;
  bool training = false;
  bool evaluating = false;
  bool capturing = false;
  bool writing = false;
  bool finished = false;
  friend auto operator<=>(const Peers&, const Peers&) = default;
};

// A run together with its peers. Two runs with the same key behave alike from there on.
struct Run {
  RunPhases phases;
  Peers peers;
  std::uint64_t evaluating_step = 0;
  std::uint64_t written_step = 0;
  std::uint64_t written_evaluation = 0;  // the last evaluation in the commit that is written
  std::uint64_t captured_evaluation = 0;

  [[nodiscard]] auto key() const {
    const auto& best = phases.best();
    return std::make_tuple(phases.phase(), peers, phases.step(), phases.committed_step(),
                           phases.evaluated_step(), captured_evaluation, evaluating_step,
                           phases.stop_requested(), phases.end(), best.has_value() ? best->step : 0,
                           best.has_value() ? best->num_worse : 0);
  }
};

// Tries every order in which the peers of a trainer can reply.
class Explorer {
public:
  Explorer(const RunPhaseOptions& options, std::uint64_t step, std::uint64_t evaluated_step)
      : options_(options) {
    Run run;
    run.phases = RunPhases(options, {step, evaluated_step, std::nullopt});
    run.written_step = step;
    run.written_evaluation = run.captured_evaluation = evaluated_step;
    explore(run);
  }

  std::set<std::pair<Phase, RunEvent>> pairs;  // that occurred
  std::size_t ended = 0;
  std::size_t states() const { return seen_.size(); }

private:
  void explore(const Run& first) {
    std::vector<Run> todo = {first};
    while (!todo.empty()) {
      const Run run = todo.back();
      todo.pop_back();
      if (!seen_.insert(run.key()).second) {
        continue;
      }
      check(run);
      for (const RunEvent event : possible(run)) {
        for (const double value : {1.0, 2.0}) {  // of an evaluation
          if (value == 1.0 || event == RunEvent::kEvaluationRecorded) {
            todo.push_back(after(run, event, value));
          }
        }
      }
    }
  }

  // Returns the events that can come next. An evaluation that was scored before a stop may be
  // recorded after it.
  static std::vector<RunEvent> possible(const Run& run) {
    std::vector<RunEvent> events = {RunEvent::kStop};
    if (run.phases.phase() == Phase::kReady) {
      events.push_back(RunEvent::kStart);
    }
    if (run.peers.fetching) {
      events.insert(events.end(), {RunEvent::kBatch, RunEvent::kNoBatchYet, RunEvent::kDataEnded,
                                   RunEvent::kNoSignal});
    }
    if (run.peers.training) {
      events.push_back(RunEvent::kStepRecorded);
    }
    if (run.peers.evaluating) {
      events.push_back(RunEvent::kEvaluationRecorded);
      if (run.phases.stop_requested()) {
        events.push_back(RunEvent::kEvaluationAbandoned);
      }
    }
    if (run.peers.capturing) {
      events.push_back(RunEvent::kCaptured);
    }
    if (run.peers.writing) {
      events.push_back(RunEvent::kCommitWritten);
    }
    return events;
  }

  Run after(Run run, RunEvent event, double value) {
    Peers& peers = run.peers;
    pairs.emplace(run.phases.phase(), event);
    const bool fetched = event == RunEvent::kBatch || event == RunEvent::kNoBatchYet ||
                         event == RunEvent::kDataEnded || event == RunEvent::kNoSignal;
    peers.fetching = peers.fetching && !fetched;
    peers.training = peers.training && event != RunEvent::kStepRecorded;
    if (event == RunEvent::kEvaluationRecorded || event == RunEvent::kEvaluationAbandoned) {
      peers.evaluating = false;
      if (event == RunEvent::kEvaluationRecorded && options_.best.enabled()) {
        run.phases.take_evaluation(value, weights_of(run.evaluating_step));
      }
    }
    if (event == RunEvent::kCommitWritten) {
      peers.writing = false;
      run.written_step = run.phases.committed_step();
      run.written_evaluation = run.captured_evaluation;
    }
    peers.capturing = peers.capturing && event != RunEvent::kCaptured;
    if (event == RunEvent::kCaptured) {
      run.captured_evaluation = run.phases.evaluated_step();
    }
    if (event == RunEvent::kStop && options_.kind == RunKind::kSupervised) {
      peers.fetching = false;  // a batch that is being read is dropped
    }
    for (const RunAction action : run.phases.on(event)) {
      act(run, action);
    }
    return run;
  }

  void act(Run& run, RunAction action) {
    Peers& peers = run.peers;
    switch (action) {
      case RunAction::kFetch:
        EXPECT_FALSE(peers.fetching || peers.training || peers.capturing);
        EXPECT_FALSE(run.phases.end().has_value());
        peers.fetching = true;
        break;
      case RunAction::kTrain: peers.training = true; break;
      case RunAction::kEvaluate:
        EXPECT_FALSE(peers.evaluating || run.phases.stop_requested());
        peers.evaluating = true;
        run.evaluating_step = run.phases.step();
        break;
      case RunAction::kCapture:
        // A commit is of one state: no step, no other commit, and no evaluation that counts.
        EXPECT_FALSE(peers.fetching || peers.training || peers.writing);
        EXPECT_TRUE(!peers.evaluating || run.phases.stop_requested());
        peers.capturing = true;
        break;
      case RunAction::kWrite: peers.writing = true; break;
      case RunAction::kFinish:
        EXPECT_FALSE(peers.fetching || peers.training || peers.capturing || peers.writing);
        EXPECT_EQ(run.written_step, run.phases.step());
        EXPECT_EQ(run.written_evaluation, run.phases.evaluated_step());
        EXPECT_FALSE(peers.finished);
        peers.finished = true;
        ++ended;
        break;
    }
  }

  // Nothing waits forever: each phase has a peer that will reply.
  void check(const Run& run) const {
    const Peers& peers = run.peers;
    EXPECT_LE(run.phases.step(), options_.total_steps);
    switch (run.phases.phase()) {
      case Phase::kReady: break;
      case Phase::kFetching: EXPECT_TRUE(peers.fetching); break;
      case Phase::kTraining: EXPECT_TRUE(peers.training); break;
      case Phase::kEvaluating: EXPECT_TRUE(peers.evaluating); break;
      case Phase::kCommitWaiting: EXPECT_TRUE(peers.writing || peers.evaluating); break;
      case Phase::kCapturing: EXPECT_TRUE(peers.capturing); break;
      case Phase::kEnded: EXPECT_TRUE(peers.finished); break;
    }
    EXPECT_EQ(peers.finished, run.phases.phase() == Phase::kEnded);
  }

  RunPhaseOptions options_;
  std::set<decltype(std::declval<Run>().key())> seen_;
};

TEST(RunPhases, EveryReachableStateContinuesAndEveryRowIsReached) {
  std::set<std::tuple<RunKind, Phase, RunEvent>> reached;
  std::size_t states = 0;
  for (const RunKind kind : kKinds) {
    for (const std::uint64_t eval_every : {0U, 1U, 2U}) {
      for (const std::uint64_t commit_every : {0U, 1U, 2U}) {
        for (const std::uint32_t patience : {0U, 1U}) {
          for (const std::uint64_t first : {0U, 2U}) {
            RunPhaseOptions options;
            options.kind = kind;
            options.total_steps = first + 3;
            options.commit_every = commit_every;
            options.eval_every = eval_every;
            options.best.patience = patience;
            const Explorer explored(options, first, /*evaluated_step=*/0);
            EXPECT_GT(explored.ended, 0U);
            states += explored.states();
            for (const auto& [phase, event] : explored.pairs) {
              reached.emplace(kind, phase, event);
            }
          }
        }
      }
    }
  }
  EXPECT_GT(states, 1000U);
  for (const RunKind kind : kKinds) {
    for (std::size_t phase = 0; phase < actors::kNumPhases; ++phase) {
      for (std::size_t event = 0; event < actors::kNumRunEvents; ++event) {
        const bool occurs =
            actors::reaction_to(kind, phase_at(phase), event_at(event)) != Reaction::kNever;
        EXPECT_EQ(reached.contains({kind, phase_at(phase), event_at(event)}), occurs)
            << "kind " << static_cast<int>(kind) << " phase " << phase << " event " << event;
      }
    }
  }
}

// -- single runs ----------------------------------------------------------------------------------

TEST(RunPhases, AStepGoesFromTheBatchToTheNextBatch) {
  RunPhases phases({.total_steps = 9}, {});
  EXPECT_THAT(phases.on(RunEvent::kStart), ElementsAre(RunAction::kFetch));
  EXPECT_THAT(phases.on(RunEvent::kNoBatchYet), ElementsAre(RunAction::kFetch));
  EXPECT_THAT(phases.on(RunEvent::kBatch), ElementsAre(RunAction::kTrain));
  EXPECT_THAT(phases.on(RunEvent::kStepRecorded), ElementsAre(RunAction::kFetch));
  EXPECT_EQ(phases.step(), 1U);
  EXPECT_EQ(phases.committed_step(), 0U);
}

TEST(RunPhases, AnEvaluationRunsBesideStepsAndOnlyACommitWaitsForIt) {
  RunPhases phases({.total_steps = 9, .commit_every = 2, .eval_every = 1}, {});
  EXPECT_THAT(phases.on(RunEvent::kStart), ElementsAre(RunAction::kFetch));
  static_cast<void>(phases.on(RunEvent::kBatch));
  EXPECT_THAT(phases.on(RunEvent::kStepRecorded),
              ElementsAre(RunAction::kEvaluate, RunAction::kFetch));
  static_cast<void>(phases.on(RunEvent::kBatch));
  EXPECT_THAT(phases.on(RunEvent::kStepRecorded), IsEmpty());  // the second evaluation is skipped
  EXPECT_EQ(phases.phase(), Phase::kCommitWaiting);
  EXPECT_THAT(phases.on(RunEvent::kEvaluationRecorded), ElementsAre(RunAction::kCapture));
  EXPECT_EQ(phases.evaluated_step(), 1U);
  EXPECT_THAT(phases.on(RunEvent::kCaptured), ElementsAre(RunAction::kWrite, RunAction::kFetch));
  EXPECT_EQ(phases.committed_step(), 2U);
}

TEST(RunPhases, TheNextStepWaitsForAnEvaluationIfTheRunLooksForTheBestOrIsSupervised) {
  RunPhaseOptions options{.total_steps = 9, .eval_every = 1};
  for (const RunKind kind : kKinds) {
    options.kind = kind;
    options.best.keep = kind == RunKind::kReinforcement;
    RunPhases phases(options, {});
    static_cast<void>(phases.on(RunEvent::kStart));
    static_cast<void>(phases.on(RunEvent::kBatch));
    EXPECT_THAT(phases.on(RunEvent::kStepRecorded), ElementsAre(RunAction::kEvaluate));
    EXPECT_THAT(phases.on(RunEvent::kEvaluationRecorded), ElementsAre(RunAction::kFetch));
  }
}

TEST(RunPhases, ACommitIsWrittenDuringTheNextStepAndTheNextCommitWaits) {
  RunPhases phases({.total_steps = 9, .commit_every = 1}, {});
  static_cast<void>(phases.on(RunEvent::kStart));
  static_cast<void>(phases.on(RunEvent::kBatch));
  EXPECT_THAT(phases.on(RunEvent::kStepRecorded), ElementsAre(RunAction::kCapture));
  EXPECT_THAT(phases.on(RunEvent::kCaptured), ElementsAre(RunAction::kWrite, RunAction::kFetch));
  static_cast<void>(phases.on(RunEvent::kBatch));
  EXPECT_THAT(phases.on(RunEvent::kStepRecorded), IsEmpty());
  EXPECT_THAT(phases.on(RunEvent::kCommitWritten), ElementsAre(RunAction::kCapture));
}

TEST(RunPhases, AnOverdueCommitIsMadeOnce) {
  RunPhases phases({.total_steps = 9, .commit_every = 5}, {});
  static_cast<void>(phases.on(RunEvent::kStart));
  static_cast<void>(phases.on(RunEvent::kBatch));
  phases.set_commit_overdue();
  EXPECT_THAT(phases.on(RunEvent::kStepRecorded), ElementsAre(RunAction::kCapture));
  EXPECT_THAT(phases.on(RunEvent::kCaptured), ElementsAre(RunAction::kWrite, RunAction::kFetch));
  static_cast<void>(phases.on(RunEvent::kBatch));
  static_cast<void>(phases.on(RunEvent::kCommitWritten));
  EXPECT_THAT(phases.on(RunEvent::kStepRecorded), ElementsAre(RunAction::kFetch));
  EXPECT_EQ(phases.committed_step(), 1U);
}

TEST(RunPhases, TheLastCommitIsWrittenBeforeTheRunIsFinished) {
  RunPhases phases({.total_steps = 1, .commit_every = 1}, {});
  static_cast<void>(phases.on(RunEvent::kStart));
  static_cast<void>(phases.on(RunEvent::kBatch));
  EXPECT_THAT(phases.on(RunEvent::kStepRecorded), ElementsAre(RunAction::kCapture));
  EXPECT_THAT(phases.on(RunEvent::kCaptured), ElementsAre(RunAction::kWrite));
  EXPECT_THAT(phases.on(RunEvent::kCommitWritten), ElementsAre(RunAction::kFinish));
  EXPECT_EQ(phases.summary(weights_of(1)).end, RunEnd::kSteps);
  EXPECT_EQ(phases.summary(weights_of(1)).steps, 1U);
}

TEST(RunPhases, ARunWithoutAnythingNewFinishesWithoutACommit) {
  RunPhases phases({.total_steps = 9}, {4, 0, std::nullopt});
  static_cast<void>(phases.on(RunEvent::kStart));
  EXPECT_THAT(phases.on(RunEvent::kNoSignal, "all equal"), ElementsAre(RunAction::kFinish));
  const actors::RunSummary summary = phases.summary(weights_of(4));
  EXPECT_EQ(summary.end, RunEnd::kNoSignal);
  EXPECT_EQ(summary.reason, "all equal");
  EXPECT_EQ(summary.steps, 4U);
}

TEST(RunPhases, TheFirstReasonToEndCounts) {
  RunPhases phases({.total_steps = 9}, {});
  static_cast<void>(phases.on(RunEvent::kStart));
  EXPECT_THAT(phases.on(RunEvent::kStop), IsEmpty());
  EXPECT_THAT(phases.on(RunEvent::kDataEnded), ElementsAre(RunAction::kFinish));
  EXPECT_EQ(phases.summary({}).end, RunEnd::kStopped);
}

TEST(RunPhases, APlateauEndsTheRunAfterTheEvaluationIsRecorded) {
  RunPhaseOptions options{.total_steps = 9, .eval_every = 1};
  options.best = {.keep = true, .patience = 1};
  RunPhases phases(options, {});
  static_cast<void>(phases.on(RunEvent::kStart));
  for (std::uint64_t step = 1; step <= 2; ++step) {
    static_cast<void>(phases.on(RunEvent::kBatch));
    EXPECT_THAT(phases.on(RunEvent::kStepRecorded), ElementsAre(RunAction::kEvaluate));
    phases.take_evaluation(0.5, weights_of(step));
    EXPECT_THAT(phases.on(RunEvent::kEvaluationRecorded),
                ElementsAre(step == 1 ? RunAction::kFetch : RunAction::kCapture));
  }
  EXPECT_EQ(phases.end(), RunEnd::kPlateau);
  EXPECT_EQ(phases.summary(weights_of(2)).weights.base_digest, "step 1");
  EXPECT_NE(phases.summary(weights_of(2)).reason, "");
}

TEST(RunPhases, ACommitMadeAtAPlateauEndsTheResumedRunAtOnce) {
  RunPhaseOptions options{.total_steps = 9, .eval_every = 1};
  options.best.patience = 2;
  RunPhases phases(options, {5, 5, BestSoFar{0.75, 3, 2, {}}});
  EXPECT_THAT(phases.on(RunEvent::kStart), ElementsAre(RunAction::kFinish));
  EXPECT_EQ(phases.end(), RunEnd::kPlateau);
}

TEST(RunPhases, AnEvaluationThatAStopPreventedIsMadeUpFor) {
  RunPhaseOptions options{.total_steps = 9, .eval_every = 2};
  options.best.keep = true;
  RunPhases phases(options, {4, 2, std::nullopt});
  EXPECT_THAT(phases.on(RunEvent::kStart), ElementsAre(RunAction::kEvaluate));
  EXPECT_EQ(phases.evaluated_step(), 2U);
  EXPECT_THAT(phases.on(RunEvent::kEvaluationRecorded), ElementsAre(RunAction::kFetch));
  EXPECT_EQ(phases.evaluated_step(), 4U);
}

TEST(RunPhases, AStopDuringTheLastStepLeavesARunThatIsDone) {
  for (const RunKind kind : kKinds) {
    RunPhases phases({.kind = kind, .total_steps = 1}, {});
    static_cast<void>(phases.on(RunEvent::kStart));
    static_cast<void>(phases.on(RunEvent::kBatch));
    EXPECT_THAT(phases.on(RunEvent::kStop), IsEmpty());
    EXPECT_THAT(phases.on(RunEvent::kStepRecorded), ElementsAre(RunAction::kCapture));
    EXPECT_EQ(phases.end(), RunEnd::kSteps);
  }
}

TEST(RunPhases, TheWeightsOfTheLastStepAreEvaluated) {
  for (const RunKind kind : kKinds) {
    RunPhases phases({.kind = kind, .total_steps = 2, .eval_every = 10}, {});
    static_cast<void>(phases.on(RunEvent::kStart));
    static_cast<void>(phases.on(RunEvent::kBatch));
    EXPECT_THAT(phases.on(RunEvent::kStepRecorded), ElementsAre(RunAction::kFetch));
    static_cast<void>(phases.on(RunEvent::kBatch));
    EXPECT_THAT(phases.on(RunEvent::kStepRecorded), ElementsAre(RunAction::kEvaluate));
    EXPECT_THAT(phases.on(RunEvent::kEvaluationRecorded), ElementsAre(RunAction::kCapture));
    EXPECT_EQ(phases.evaluated_step(), 2U);
    EXPECT_EQ(phases.end(), RunEnd::kSteps);
  }
}

TEST(RunPhases, AStopDuringTheLastStepStopsARunThatIsDueToEvaluate) {
  RunPhases phases({.total_steps = 1, .eval_every = 1}, {});
  static_cast<void>(phases.on(RunEvent::kStart));
  static_cast<void>(phases.on(RunEvent::kBatch));
  EXPECT_THAT(phases.on(RunEvent::kStop), IsEmpty());
  EXPECT_THAT(phases.on(RunEvent::kStepRecorded), ElementsAre(RunAction::kCapture));
  EXPECT_EQ(phases.end(), RunEnd::kStopped);
}

TEST(RunPhases, AStopEndsTheWaitForAnEvaluationOnlyWhereAnotherActorMakesIt) {
  RunPhaseOptions options{.total_steps = 9, .eval_every = 1};
  for (const RunKind kind : kKinds) {
    options.kind = kind;
    options.best.keep = true;
    RunPhases phases(options, {});
    static_cast<void>(phases.on(RunEvent::kStart));
    static_cast<void>(phases.on(RunEvent::kBatch));
    static_cast<void>(phases.on(RunEvent::kStepRecorded));
    if (kind == RunKind::kReinforcement) {
      EXPECT_THAT(phases.on(RunEvent::kStop), ElementsAre(RunAction::kCapture));
    } else {
      EXPECT_THAT(phases.on(RunEvent::kStop), IsEmpty());
      EXPECT_THAT(phases.on(RunEvent::kEvaluationAbandoned), ElementsAre(RunAction::kCapture));
    }
    EXPECT_EQ(phases.evaluated_step(), 0U);
  }
}

TEST(RunPhases, ABestWithoutWeightsIsForgottenIfWeightsMustBeKept) {
  RunPhaseOptions options;
  const BestSoFar best{0.75, 3, 1, {}};
  EXPECT_TRUE(RunPhases(options, {4, 4, best}).best().has_value());
  options.best.keep = true;
  EXPECT_FALSE(RunPhases(options, {4, 4, best}).best().has_value());
}

}  // namespace
}  // namespace tidemill::test
