// SPDX-License-Identifier: Apache-2.0
#include "workflows/serve/step_notes.hpp"

#include <gtest/gtest.h>

#include "actors/algorithm/algorithm.hpp"

namespace tidemill::workflows {
namespace {

using engines::LossSequence;
using engines::TrainSequence;

std::vector<TrainSequence> three_sequences() {
  TrainSequence sequence;
  sequence.ids = {1, 2};
  sequence.response_mask = {0, 1};
  return {sequence, sequence, sequence};
}

// Has `loss` compute the gradients of a sequence.
void evaluate(engines::TokenLoss& loss, const TrainSequence& sequence) {
  const std::vector<float> logprobs = {0.0F, -1.0F};
  const std::vector<float> entropies = {0.0F, 0.0F};
  std::vector<float> dlogprobs(2);
  std::vector<float> dentropies(2);
  const LossSequence of_loss{&sequence, logprobs, entropies, dlogprobs, dentropies};
  engines::LossSums sums;
  EXPECT_TRUE(loss.evaluate({&of_loss, 1}, sums).ok());
  EXPECT_FLOAT_EQ(dlogprobs[1], -1.0F / 3.0F) << "as without counting";
}

TEST(CountedLosses, CountTheSequencesOfAMinibatch) {
  const auto progress = std::make_shared<MinibatchProgress>();
  const actors::LossFactory make_loss = counted_losses(actors::make_sft_loss(), progress);
  const std::vector<TrainSequence> sequences = three_sequences();
  for (int minibatch = 0; minibatch < 2; ++minibatch) {
    const auto loss = make_loss(sequences);
    ASSERT_TRUE(loss.ok());
    EXPECT_EQ(progress->done, 0);
    EXPECT_EQ(progress->total, 3);
    evaluate(*loss.value(), sequences[0]);
    evaluate(*loss.value(), sequences[1]);
    EXPECT_EQ(progress->done, 2);
  }
}

class StepNotesTest : public ::testing::Test {
protected:
  std::string message_after(Duration time) {
    clock.advance(time);
    const auto note = notes.note(clock.now());
    return note.has_value() ? note->message : "";
  }

  ManualClock clock;
  std::shared_ptr<MinibatchProgress> progress = std::make_shared<MinibatchProgress>();
  StepNotes notes = StepNotes(progress, true);
};

TEST_F(StepNotesTest, FollowTheInterval) {
  EXPECT_EQ(message_after(kNoteInterval), "") << "no step has begun";
  notes.begin(1, 2, clock.now());
  EXPECT_EQ(message_after(kNoteInterval - Duration(1)), "");
  EXPECT_EQ(message_after(Duration(1)),
            "Step 1/2: no sequence trained on yet; an evaluation or rollouts come first");
  progress->total = 8;
  progress->done = 2;
  EXPECT_EQ(message_after(kNoteInterval - Duration(1)), "");
  EXPECT_EQ(message_after(Duration(1)), "Step 1/2: 2 of 8 sequences trained on");
  notes.begin(2, 2, clock.now());
  EXPECT_EQ(message_after(kNoteInterval),
            "Step 2/2: no sequence trained on yet; an evaluation or rollouts come first");
  notes.begin(3, 2, clock.now());
  EXPECT_EQ(message_after(kNoteInterval), "") << "the run is over";
}

TEST_F(StepNotesTest, EstimateTheEndInTheFirstStep) {
  notes.begin(5, 8, clock.now());
  progress->total = 8;
  progress->done = 2;
  clock.advance(std::chrono::seconds(40));
  const auto note = notes.note(clock.now());
  ASSERT_TRUE(note.has_value());
  // Four steps of 160 s, of which 40 s are over.
  EXPECT_EQ(note->seconds_left, 600.0);
  notes.begin(6, 8, clock.now());
  progress->total = 8;
  progress->done = 2;
  clock.advance(std::chrono::seconds(40));
  EXPECT_EQ(notes.note(clock.now())->seconds_left, std::nullopt);
}

TEST_F(StepNotesTest, EstimateNothingIfAStepAlsoGenerates) {
  StepNotes of_rl(progress, false);
  of_rl.begin(1, 8, clock.now());
  progress->total = 8;
  progress->done = 2;
  clock.advance(kNoteInterval);
  const auto note = of_rl.note(clock.now());
  ASSERT_TRUE(note.has_value());
  EXPECT_EQ(note->message, "Step 1/8: 2 of 8 sequences trained on");
  EXPECT_EQ(note->seconds_left, std::nullopt);
}

}  // namespace
}  // namespace tidemill::workflows
