// SPDX-License-Identifier: Apache-2.0
#include "bench/idle_figure.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <sys/resource.h>
#include <thread>
#include <utility>
#include <vector>

#include <caf/all.hpp>

#include "actors/atoms.hpp"
#include "actors/errors.hpp"
#include "actors/stream/sample_columns.hpp"
#include "actors/stream/spawn.hpp"
#include "workflows/actor_system.hpp"

namespace tidemill::bench {
namespace {

using actors::SampleColumn;
using actors::SampleTask;
using SteadyClock = std::chrono::steady_clock;

constexpr std::uint32_t kGroupSize = 1000;
constexpr auto kPatience = std::chrono::minutes(2);

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Waits for rows with a response, of which there are none, as a reward worker does.
caf::behavior wait_for_rows(caf::event_based_actor* self, const actors::StreamActor& stream,
                            std::uint32_t number) {
  self->send(self, atom::wake_v);
  return {[self, stream, number](atom::wake) {
    actors::LeaseRequest request;
    request.task = task_id(SampleTask::kReward);
    request.consumer = "consumer-" + std::to_string(number);
    request.wait = actors::kLeaseWait;
    self->request(stream, kPatience, atom::lease_v, std::move(request))
        .then([self](const actors::LeaseReply&) { self->send(self, atom::wake_v); },
              [self](const caf::error& error) { self->quit(error); });
  }};
}

actors::NewGroup prompts(std::uint64_t number) {
  actors::NewGroup group;
  group.draw = number;
  for (std::uint32_t i = 0; i < kGroupSize; ++i) {
    actors::NewRow& row = group.rows.emplace_back();
    row.row.id = {number * kGroupSize + i};
    row.row.group = {number};
    row.row.index_in_group = i;
    row.row.group_size = kGroupSize;
    row.columns = {actors::make_cell(SampleColumn::kPromptIds, std::vector<std::int32_t>{1, 2}),
                   actors::make_text_cell(SampleColumn::kPrompt, "12+34="),
                   actors::make_text_cell(SampleColumn::kReferenceAnswer, "46")};
  }
  return group;
}

template <class Reply, class... Ts>
Result<Reply> ask(caf::scoped_actor& self, const actors::StreamActor& stream, Ts... message) {
  Result<Reply> result = Status(Errc::kInternal, "no reply");
  self->request(stream, kPatience, std::move(message)...)
      .receive([&](Reply& reply) { result = std::move(reply); },
               [&](const caf::error& error) { result = actors::from_caf_error(error); });
  return result;
}

}  // namespace

Result<IdleFigure> measure_idle(const IdleMeasure& how) {
  workflows::ActorSystem actors;
  caf::scoped_actor self(actors.system());
  // The stream tells the keeper of the slots that rows use. Here, none is counted.
  const caf::actor keeper = actors.system().spawn([](caf::event_based_actor*) -> caf::behavior {
    return {[](atom::record, const storage::SlotChanges&) {}};
  });
  actors::StreamDeps deps;
  deps.options.group_size = kGroupSize;
  deps.keeper = caf::actor_cast<actors::KeeperActor>(keeper);
  const actors::StreamActor stream = actors::spawn_stream(actors.system(), std::move(deps));
  std::vector<caf::actor> consumers;
  const auto end = [&] {
    for (const caf::actor& consumer : consumers) {
      caf::anon_send_exit(consumer, caf::exit_reason::kill);
    }
    caf::anon_send_exit(caf::actor_cast<caf::actor>(stream), caf::exit_reason::kill);
    caf::anon_send_exit(keeper, caf::exit_reason::kill);
  };
  for (std::uint64_t group = 0; group * kGroupSize < how.rows; ++group) {
    const auto put = ask<storage::Settlement>(self, stream, atom::put_v, prompts(group));
    if (!put.ok()) {
      end();
      return put.status();
    }
  }
  for (std::uint32_t i = 0; i < how.consumers; ++i) {
    // Spread over the time of a wait, as workers that become idle one after the other.
    std::this_thread::sleep_for(actors::kLeaseWait / how.consumers);
    consumers.push_back(actors.system().spawn(wait_for_rows, stream, i));
  }
  const auto before = ask<actors::StreamStatus>(self, stream, atom::status_v);
  const double cpu = cpu_seconds();
  const auto start = SteadyClock::now();
  std::this_thread::sleep_for(std::chrono::seconds(how.seconds));
  const double seconds = std::chrono::duration<double>(SteadyClock::now() - start).count();
  IdleFigure figure;
  figure.core_share = (cpu_seconds() - cpu) / seconds;
  const auto after = ask<actors::StreamStatus>(self, stream, atom::status_v);
  end();
  TIDEMILL_RETURN_IF_ERROR(before.status());
  TIDEMILL_RETURN_IF_ERROR(after.status());
  figure.lease_attempts_per_second =
      static_cast<double>(after.value().lease_attempts - before.value().lease_attempts) / seconds;
  return figure;
}

}  // namespace tidemill::bench
