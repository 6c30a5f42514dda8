// SPDX-License-Identifier: Apache-2.0
#include "actors/reward/judge_engine.hpp"

#include <condition_variable>
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

// Where answers wait for the next step; shared with the actor that asks.
struct Mailbox {
  void put(std::uint64_t key, RewardResult result) {
    {
      const std::lock_guard lock(mutex);
      answers.emplace_back(key, std::move(result));
    }
    changed.notify_one();
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::pair<std::uint64_t, RewardResult>> answers;  // by key
};

caf::behavior asker(caf::event_based_actor* self, const std::shared_ptr<Mailbox>& mailbox,
                    const JudgeActor& judge, Duration deadline) {
  return {[self, mailbox, judge, deadline](atom::score, std::uint64_t key,
                                           const RewardRequest& request) {
    const SampleId id = request.id;
    self->request(judge, caf::duration{deadline}, atom::score_v, request)
        .then(
            [mailbox, key, id](const RewardResult& result) {
              RewardResult own = result;
              own.id = id;
              mailbox->put(key, std::move(own));
            },
            [mailbox, key, id](const caf::error& error) {
              RewardResult result;
              result.id = id;
              result.error = "the judge: " + from_caf_error(error).message();
              mailbox->put(key, std::move(result));
            });
  }};
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
    sinks_.emplace(key, &sink);
    caf::anon_send(asker_, atom::score_v, key, std::move(request));
    return {};
  }
  bool has_work() const override { return !sinks_.empty(); }
  Status step(Duration patience) override {
    std::vector<std::pair<std::uint64_t, RewardResult>> answers;
    {
      std::unique_lock lock(mailbox_->mutex);
      mailbox_->changed.wait_for(lock, patience, [this] { return !mailbox_->answers.empty(); });
      answers.swap(mailbox_->answers);
    }
    for (auto& [key, result] : answers) {
      RewardSink* sink = sinks_.extract(key).mapped();
      sink->on_reward(std::move(result));
    }
    return {};
  }

private:
  std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  JudgeActor judge_;
  caf::actor asker_;
  std::map<std::uint64_t, RewardSink*> sinks_;  // of what is unanswered
  std::uint64_t next_key_ = 0;
};

}  // namespace

std::unique_ptr<engines::RewardEngine> make_judge_engine(caf::actor_system& system,
                                                         JudgeActor judge, Duration deadline) {
  return std::make_unique<JudgeEngine>(system, std::move(judge), deadline);
}

}  // namespace tidemill::actors
