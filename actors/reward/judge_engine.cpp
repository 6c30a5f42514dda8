// SPDX-License-Identifier: Apache-2.0
// The engine hands every sample to its asker, an actor, which keeps a bounded number of them with
// the judge. A sample's time begins when it is sent, and anew with each answer to one sent before
// it: a judge that takes one sample after another needs its time for each. A judge that says
// nothing for the deadline loses all that it has.
#include "actors/reward/judge_engine.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <caf/all.hpp>

#include "actors/errors.hpp"

namespace tidemill::actors {
namespace {

using engines::RewardRequest;
using engines::RewardResult;
using engines::RewardSink;

constexpr int kMaxInFlight = 64;  // samples with the judge

// Where answers wait for the next step; shared with the actor that asks.
struct Mailbox {
  void put(std::uint64_t key, RewardResult result) {
    {
      const std::lock_guard lock(mutex);
      answers.emplace_back(key, std::move(result));
    }
    changed.notify_one();
  }
  void end(Status why) {
    {
      const std::lock_guard lock(mutex);
      ended = std::move(why);
    }
    changed.notify_one();
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::pair<std::uint64_t, RewardResult>> answers;  // by key
  Status ended;                                                 // why there is no judge any more
};

RewardResult unanswered(SampleId id, const std::string& why) {
  RewardResult result;
  result.id = id;
  result.error = "the judge: " + why;
  return result;
}

// Says more than that it has ended only when the judge gave a reason.
std::string end_text(const caf::error& reason) {
  const bool plain = !reason || reason.category() == caf::atom("exit");
  return "it has ended" + (plain ? std::string() : ": " + from_caf_error(reason).message());
}

// A sample that is with the judge.
struct Asked {
  SampleId id;
  caf::actor_clock::time_point since;  // never earlier than that of one asked before
};

struct AskerState {
  static inline const char* name = "judge_asker";
  AskerState() = default;  // not an aggregate: CAF would build it from `self`

  std::shared_ptr<Mailbox> mailbox;
  JudgeActor judge;
  Duration deadline{0};
  std::deque<std::pair<std::uint64_t, RewardRequest>> waiting;  // by key
  std::map<std::uint64_t, Asked> asked;                         // by key, as they were sent
  bool timed = false;                                           // a wake is on its way
};

using Asker = caf::stateful_actor<AskerState>*;

void ask_more(Asker self);

void answer(Asker self, std::uint64_t key, RewardResult result) {
  auto& state = self->state;
  const auto it = state.asked.find(key);
  if (it == state.asked.end()) {
    return;  // too late
  }
  result.id = it->second.id;
  const auto now = self->clock().now();
  for (auto later = state.asked.erase(it); later != state.asked.end(); ++later) {
    later->second.since = now;
  }
  state.mailbox->put(key, std::move(result));
  ask_more(self);
}

void ask(Asker self, std::uint64_t key, RewardRequest request) {
  auto& state = self->state;
  const SampleId id = request.id;
  state.asked.emplace(key, Asked{id, self->clock().now()});
  // No sample is waited for longer: those sent before it are fewer than the window.
  const Duration longest = std::min(state.deadline, Duration::max() / kMaxInFlight) * kMaxInFlight;
  self->request(state.judge, caf::duration{longest}, atom::score_v, std::move(request))
      .then([self, key](const RewardResult& result) { answer(self, key, result); },
            [self, key, id](const caf::error& error) {
              // That the judge is no more is said once, for all.
              if (error != caf::sec::request_receiver_down) {
                answer(self, key, unanswered(id, from_caf_error(error).message()));
              }
            });
}

void ask_more(Asker self) {
  auto& state = self->state;
  while (!state.waiting.empty() && std::ssize(state.asked) < kMaxInFlight) {
    auto [key, request] = std::move(state.waiting.front());
    state.waiting.pop_front();
    ask(self, key, std::move(request));
  }
  if (!state.asked.empty() && !state.timed) {
    state.timed = true;
    const auto due = state.asked.begin()->second.since + state.deadline;
    self->delayed_send(self, std::max(Duration{due - self->clock().now()}, Duration{0}),
                       atom::wake_v);
  }
}

// Gives up those whose time is over: the first ones, as none of them was asked later than the next.
void expire(Asker self) {
  auto& state = self->state;
  state.timed = false;
  const auto now = self->clock().now();
  while (!state.asked.empty() && now - state.asked.begin()->second.since >= state.deadline) {
    const auto [key, asked] = *state.asked.begin();
    state.asked.erase(state.asked.begin());
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(state.deadline).count();
    state.mailbox->put(key, unanswered(asked.id, "no answer within " + std::to_string(ms) + " ms"));
  }
  ask_more(self);
}

caf::behavior asker(Asker self, std::shared_ptr<Mailbox> mailbox, JudgeActor judge,
                    Duration deadline) {
  self->state.mailbox = std::move(mailbox);
  self->state.judge = std::move(judge);
  self->state.deadline = deadline;
  self->set_down_handler([self](const caf::down_msg& down) {
    self->state.mailbox->end({Errc::kUnavailable, "the judge: " + end_text(down.reason)});
  });
  self->monitor(self->state.judge);
  return {[self](atom::score, std::uint64_t key, const RewardRequest& request) {
            self->state.waiting.emplace_back(key, request);
            ask_more(self);
          },
          [self](atom::wake) { expire(self); }};
}

class JudgeEngine final : public engines::RewardEngine {
public:
  JudgeEngine(caf::actor_system& system, JudgeActor judge, Duration deadline)
      : judge_(std::move(judge)), asker_(system.spawn(asker, mailbox_, judge_, deadline)) {}
  ~JudgeEngine() override {
    caf::anon_send_exit(asker_, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(judge_, caf::exit_reason::user_shutdown);
  }

  Status submit(RewardRequest request, RewardSink& sink) override {
    const std::uint64_t key = next_key_++;
    open_.emplace(key, Open{&sink, request.id});
    caf::anon_send(asker_, atom::score_v, key, std::move(request));
    return {};
  }
  bool has_work() const override { return !open_.empty(); }
  Status step(Duration patience) override {
    std::vector<std::pair<std::uint64_t, RewardResult>> answers;
    Status ended;
    {
      std::unique_lock lock(mailbox_->mutex);
      mailbox_->changed.wait_for(
          lock, patience, [this] { return !mailbox_->answers.empty() || !mailbox_->ended.ok(); });
      answers.swap(mailbox_->answers);
      ended = mailbox_->ended;
    }
    for (auto& [key, result] : answers) {
      RewardSink* sink = open_.extract(key).mapped().sink;
      sink->on_reward(std::move(result));
    }
    // What the judge still said counts first; that it has ended is the next step's news.
    if (ended.ok() || !answers.empty()) {
      return {};
    }
    for (const auto& [key, open] : std::exchange(open_, {})) {
      RewardResult result;
      result.id = open.id;
      result.error = ended.message();
      open.sink->on_reward(std::move(result));
    }
    return ended;
  }

private:
  struct Open {
    RewardSink* sink = nullptr;
    SampleId id;
  };

  std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  JudgeActor judge_;
  caf::actor asker_;
  std::map<std::uint64_t, Open> open_;  // what is unanswered
  std::uint64_t next_key_ = 0;
};

}  // namespace

std::unique_ptr<engines::RewardEngine> make_judge_engine(caf::actor_system& system,
                                                         JudgeActor judge, Duration deadline) {
  return std::make_unique<JudgeEngine>(system, std::move(judge), deadline);
}

}  // namespace tidemill::actors
