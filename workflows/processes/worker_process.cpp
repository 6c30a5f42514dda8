// SPDX-License-Identifier: Apache-2.0
#include "workflows/processes/worker_process.hpp"

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <caf/all.hpp>

#include "actors/remote/segment_buffers.hpp"
#include "actors/remote/spawn.hpp"
#include "transport/segments/segment_reader.hpp"
#include "workflows/actor_system.hpp"
#include "workflows/process_limits.hpp"
#include "workflows/processes/local_processes.hpp"

namespace tidemill::workflows {

using namespace tidemill::actors;  // NOLINT(google-build-using-namespace): this file connects them

namespace {

// How long the process tries to reach the run for the first time. A run listens before it starts a
// process, so the process lacks something, and ends with the reason before the run gives it up.
constexpr Duration kMaxFirstWait = std::chrono::seconds(5);

// A thread that waits for SIGTERM, with which a run ends its processes, and then calls `on_signal`.
// Workers end before the process does, so that the programs that they have started end too.
class EndSignalWaiter {
public:
  explicit EndSignalWaiter(std::function<void()> on_signal)
      : thread_([this, on_signal = std::move(on_signal)] {
          sigset_t set;
          ::sigemptyset(&set);
          ::sigaddset(&set, SIGTERM);
          int signal = 0;
          ::sigwait(&set, &signal);
          if (!stopping_) {
            on_signal();
          }
        }) {}
  EndSignalWaiter(const EndSignalWaiter&) = delete;
  EndSignalWaiter& operator=(const EndSignalWaiter&) = delete;
  ~EndSignalWaiter() {
    stopping_ = true;
    // All threads block the signal, and `sigwait` takes it.
    // NOLINTNEXTLINE(bugprone-bad-signal-to-kill-thread)
    ::pthread_kill(thread_.native_handle(), SIGTERM);
    thread_.join();
  }

private:
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

// Connects to the memory of rows. If the connection breaks, the run may write to it again, so the
// process ends.
Result<std::shared_ptr<BufferResolver>> open_row_memory(
    const SegmentAddress& segments, const std::shared_ptr<WorkerHostActor>& host) {
  transport::SegmentReaderOptions options = reader_options(segments);
  // A thread of the link waits, which must not let the link become silent.
  options.max_connect_wait = std::chrono::seconds(1);
  options.max_segment_wait = std::chrono::seconds(1);
  options.on_lost = [host](const Status& why) {
    caf::anon_send(*host, atom::closed_v, "the memory of rows: " + why.message());
  };
  TIDEMILL_ASSIGN_OR_RETURN(std::shared_ptr<transport::SegmentReader> reader,
                            transport::SegmentReader::connect(options));
  return make_segment_resolver(std::move(reader));
}

}  // namespace

Status run_worker_process(const WorkerProcessAddress& address, const PrepareProcess& prepare,
                          const std::stop_token& stop) {
  TIDEMILL_RETURN_IF_ERROR(check_threads(kActorSystemThreads));
  TIDEMILL_ASSIGN_OR_RETURN(const std::unique_ptr<transport::Connector> connector,
                            connector_to(address));
  SystemClock clock;
  std::promise<std::string> ended;
  std::future<std::string> end = ended.get_future();
  transport::PeerLinkThread links;
  ActorSystem actors;
  const auto port = std::make_shared<PeerPort>(clock);
  const auto host = std::make_shared<WorkerHostActor>();
  const StreamConsumerActor stream = spawn_stream_proxy(
      actors.system(), port,
      [host](const SegmentAddress& segments) { return open_row_memory(segments, host); });
  const auto log = [host](const std::string& line) { caf::anon_send(*host, atom::record_v, line); };
  WorkerHostDeps deps;
  deps.port = port;
  deps.make_worker = prepare({actors.system(), stream, log, port});
  deps.on_end = [&ended](const std::string& reason) { ended.set_value(reason); };
  *host = spawn_worker_host(actors.system(), std::move(deps));
  transport::PeerLinkOptions link;
  link.session.run = address.run;
  link.session.incarnation = address.incarnation;
  link.session.self = address.process;
  link.session.peer = 0;
  link.session.max_first_wait = kMaxFirstWait;
  link.connector = connector.get();
  port->open(links.links(), link, caf::actor_cast<caf::strong_actor_ptr>(*host));
  std::atomic<bool> asked_to_end = false;
  const std::function<void()> ask = [host, &asked_to_end] {
    asked_to_end = true;
    caf::anon_send(*host, atom::closed_v, "the run has ended the process");
  };
  const std::stop_callback on_stop(stop, ask);
  std::optional<EndSignalWaiter> waiter;
  Status problem;
  try {
    if (!is_of_this_process(address)) {
      waiter.emplace(ask);
    }
  } catch (const std::system_error&) {  // not further up: the actor system waits for its actors
    problem = with_limits({Errc::kResourceExhausted, "a thread cannot be started"});
    caf::anon_send(*host, atom::closed_v, problem.message());
  }
  const std::string reason = end.get();
  caf::anon_send_exit(stream, caf::exit_reason::user_shutdown);
  TIDEMILL_RETURN_IF_ERROR(problem);
  if (asked_to_end) {
    return {};
  }
  return {Errc::kUnavailable, "the link to the process of the run has ended: " + reason};
}

}  // namespace tidemill::workflows
