// SPDX-License-Identifier: Apache-2.0
// The model is opened once, before the processes are forked, so that they share the memory of its
// base. The first process trains with it, and the others generate with it.
#include "bench/adapter_update.hpp"

#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <caf/all.hpp>

#include "actors/device/spawn.hpp"
#include "actors/errors.hpp"
#include "actors/keeper/spawn.hpp"
#include "actors/remote/segment_buffers.hpp"
#include "actors/remote/serving.hpp"
#include "base/check.hpp"
#include "base/digest.hpp"
#include "bench/bench_adapters.hpp"
#include "bench/random_model.hpp"
#include "bench/times.hpp"
#include "bench/two_processes.hpp"
#include "engines/rl/sft_token_loss.hpp"
#include "engines/runtime/memory_estimate.hpp"
#include "engines/runtime/new_adapter.hpp"
#include "transport/peer_link.hpp"
#include "transport/segments/segment_server.hpp"
#include "transport/shm/shm_connection.hpp"
#include "workflows/actor_system.hpp"
#include "workflows/process_limits.hpp"

namespace tidemill::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::uint32_t kTrainerProcess = 0;
constexpr auto kUpdatePatience = std::chrono::minutes(2);
constexpr double kMaxStartSeconds = 60.0;  // of the first process, after the others were forked
constexpr std::int64_t kTrainTokens = 8;   // of the sequence that changes the adapter
// Until then, segments are made, and engines get the memory of two adapters.
constexpr std::uint64_t kWarmUps = 3;
// A trainer keeps so many versions if `staleness.max` is 0.
constexpr std::size_t kKeptVersions = 2;

// The sockets of the first process, in the folder for temporary files.
struct Sockets {
  std::filesystem::path link;
  std::filesystem::path segments;
};

Sockets make_sockets() {
  const std::filesystem::path folder = std::filesystem::temp_directory_path();
  const std::string name = "tidemill-bench-" + std::to_string(::getpid());
  return {folder / (name + "-link"), folder / (name + "-weights")};
}

transport::ReaderToken token_of(std::uint32_t process) {
  transport::ReaderToken token{};
  token.fill(static_cast<std::byte>(process));
  return token;
}

// -- the processes of the engines -----------------------------------------------------------------

// Waits until the first process serves its segments.
std::unique_ptr<transport::SegmentReader> connect_to(const Sockets& sockets,
                                                     std::uint32_t process) {
  transport::SegmentReaderOptions options;
  options.path = sockets.segments;
  options.reader = process;
  options.token = token_of(process);
  const auto start = SteadyClock::now();
  while (true) {
    auto reader = transport::SegmentReader::connect(options);
    if (reader.ok()) {
      return std::move(reader).value();
    }
    TIDEMILL_CHECK(elapsed_seconds(start) < kMaxStartSeconds) << reader.status().message();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Serves with `runtime` until the process is killed, as a rollout process does.
void run_engine(engines::ModelRuntime& runtime, const Sockets& sockets, std::uint32_t process) {
  auto reader = connect_to(sockets, process);
  const auto work = workflows::start_port("device");
  TIDEMILL_CHECK(work.ok()) << work.status().message();
  const SystemClock clock;
  const std::unique_ptr<transport::Connector> connector =
      transport::make_shm_connector(sockets.link);
  transport::PeerLinkThread links;
  workflows::ActorSystem actor_system;
  const auto port = std::make_shared<actors::PeerPort>(clock);
  actors::DeviceDeps deps;
  deps.rollout = &runtime.rollout();
  deps.port = work.value().get();
  const actors::ServingActor device = actors::spawn_device(actor_system.system(), std::move(deps));
  const actors::ServingGateActor gate = actors::spawn_serving_gate(
      actor_system.system(),
      {port, device, actors::make_segment_resolver(std::move(reader)), work.value().get()});
  transport::PeerLinkOptions link = link_options(process, kTrainerProcess);
  link.connector = connector.get();
  port->open(links.links(), link, caf::actor_cast<caf::strong_actor_ptr>(gate));
  while (true) {
    ::pause();
  }
}

// -- the process that trains ----------------------------------------------------------------------

// Publishes snapshots to the engines, as a run does.
class Publisher {
public:
  Publisher(transport::SegmentPool& pool, Sockets sockets)
      : pool_(pool),
        sockets_(std::move(sockets)),
        copies_(std::make_shared<actors::SegmentCopies>(pool)) {}

  Status open(std::uint32_t engines, const engines::Snapshot& initial) {
    TIDEMILL_ASSIGN_OR_RETURN(work_, workflows::start_port("weights"));
    transport::SegmentServerOptions serving;
    serving.path = sockets_.segments;
    TIDEMILL_ASSIGN_OR_RETURN(segments_, transport::SegmentServer::listen(pool_, serving));
    TIDEMILL_ASSIGN_OR_RETURN(
        acceptor_, transport::listen_shm(sockets_.link,
                                         [this](std::unique_ptr<transport::Connection> connection) {
                                           links_.links().accept(std::move(connection));
                                         }));
    actors::KeeperDeps keeper;
    for (std::uint32_t process = 1; process <= engines; ++process) {
      keeper.devices.push_back(open_proxy(process));
    }
    keeper.weights = initial;
    keeper.options.total_steps = 1U << 30U;
    keeper_ = actors::spawn_keeper(actors_.system(), std::move(keeper));
    return {};
  }
  ~Publisher() {
    // The keeper first: it would take the end of a device for a failure.
    kill(keeper_);
    for (const actors::ServingActor& proxy : proxies_) {
      kill(proxy);
    }
    for (const auto& port : ports_) {
      port->close("measured");
    }
  }

  // Returns once all engines have accepted the snapshot.
  Status publish(engines::Snapshot snapshot) {
    const std::uint64_t step = snapshot.version.step;
    TIDEMILL_RETURN_IF_ERROR(ask(keeper_, atom::publish_v, std::move(snapshot)));
    return ask(keeper_, atom::waits_v, step);
  }

private:
  template <class Actor>
  static void kill(const Actor& actor) {
    if (actor) {
      caf::anon_send_exit(actor, caf::exit_reason::kill);
    }
  }

  actors::ServingDevice open_proxy(std::uint32_t process) {
    ports_.push_back(std::make_shared<actors::PeerPort>(clock_));
    actors::ServingProxyDeps deps;
    deps.name = "engine " + std::to_string(process);
    deps.port = ports_.back();
    deps.buffers = actors::make_segment_lender(copies_, process);
    deps.work = work_.get();
    deps.has_base = true;
    actors::ServingDevice device{deps.name, {}};
    device.actor = actors::spawn_serving_proxy(actors_.system(), std::move(deps));
    ports_.back()->open(links_.links(), link_options(kTrainerProcess, process),
                        caf::actor_cast<caf::strong_actor_ptr>(device.actor));
    proxies_.push_back(device.actor);
    return device;
  }

  template <class Actor, class... Message>
  Status ask(const Actor& actor, Message... message) {
    Status status;
    caf::scoped_actor self(actors_.system());
    self->request(actor, kUpdatePatience, std::move(message)...)
        .receive([](const PolicyVersion&) {},
                 [&](const caf::error& error) { status = actors::from_caf_error(error); });
    return status;
  }

  transport::SegmentPool& pool_;
  const Sockets sockets_;
  const SystemClock clock_;
  const std::shared_ptr<actors::SegmentCopies> copies_;
  std::unique_ptr<actors::WorkPort> work_;
  transport::PeerLinkThread links_;
  workflows::ActorSystem actors_;
  std::unique_ptr<transport::SegmentServer> segments_;
  std::unique_ptr<transport::Acceptor> acceptor_;
  std::vector<std::shared_ptr<actors::PeerPort>> ports_;
  std::vector<actors::ServingActor> proxies_;
  actors::KeeperActor keeper_;
};

// Opens a random model with a new adapter that is trained, and published from `pool`.
Result<std::unique_ptr<engines::ModelRuntime>> open_model(const engines::ModelConfig& config,
                                                          transport::SegmentPool& pool) {
  const engines::ModelFiles model = random_model(config, DType::kBF16);
  engines::RuntimeOptions options;
  options.compute = DType::kBF16;
  options.kv_dtype = DType::kBF16;
  options.optimizer.emplace();
  options.allocator = &pool;
  engines::MemoryLoad load;
  load.train_tokens = kTrainTokens + 1;
  load.sequence_tokens = kTrainTokens + 1;
  load.kv_tokens = engines::kPageTokens;
  engines::set_budgets(model.config, load, options);
  TIDEMILL_ASSIGN_OR_RETURN(options.adapter,
                            engines::make_adapter(bench_adapter_config(), model, DType::kBF16, 1));
  return engines::open_runtime(model, options);
}

// Takes an optimizer step, which changes every tensor of the adapter.
Status train(engines::TrainingJob& job) {
  engines::SftTokenLoss loss(engines::BatchCounts{.tokens = kTrainTokens});
  engines::TrainSequence sequence;
  for (std::int32_t id = 0; id <= kTrainTokens; ++id) {
    sequence.ids.push_back(id);
  }
  sequence.response_mask.assign(sequence.ids.size(), 1);
  sequence.response_mask[0] = 0;
  engines::TrainBatch batch;
  batch.sequences.push_back(std::move(sequence));
  TIDEMILL_RETURN_IF_ERROR(job.forward_backward(std::move(batch), loss));
  TIDEMILL_RETURN_IF_ERROR(engines::run_to_end(job));
  TIDEMILL_RETURN_IF_ERROR(job.optim_step());
  return engines::run_to_end(job);
}

Result<engines::Snapshot> save(engines::TrainingJob& job, std::uint64_t step) {
  TIDEMILL_RETURN_IF_ERROR(job.save({0, 0, step}));
  TIDEMILL_RETURN_IF_ERROR(engines::run_to_end(job));
  return job.take_snapshot();
}

// The tensors of an adapter, copied to memory that is used again.
class Copy {
public:
  void of(const TensorMap& tensors) {
    for (const auto& [name, tensor] : tensors) {
      const std::span<const std::byte> bytes = tensor.data.bytes();
      std::vector<std::byte>& copy = copies_[name];
      copy.resize(bytes.size());
      std::memcpy(copy.data(), bytes.data(), bytes.size());
    }
  }
  [[nodiscard]] std::string digest() const {
    TensorHasher hasher(copies_.size());
    for (const auto& [name, bytes] : copies_) {
      const std::int64_t size = std::ssize(bytes);
      hasher.begin(name, DType::kU8, {&size, 1}, bytes.size());
      hasher.append(bytes);
    }
    return hasher.digest();
  }

private:
  std::map<std::string, std::vector<std::byte>> copies_;
};

// The times of each repetition, in seconds.
struct Samples {
  std::vector<double> total, save, load, copy, digest;
};

Status measure(const AdapterUpdateMeasure& how, engines::TrainingJob& job, Publisher& publisher,
               AdapterUpdateFigure& figure) {
  Samples samples;
  Copy copy;
  std::deque<engines::Snapshot> recent;
  for (std::uint64_t step = 1; step <= how.repetitions + kWarmUps; ++step) {
    TIDEMILL_RETURN_IF_ERROR(train(job));
    const auto start = SteadyClock::now();
    TIDEMILL_ASSIGN_OR_RETURN(engines::Snapshot snapshot, save(job, step));
    const double saved = elapsed_seconds(start);
    recent.push_back(snapshot);
    TIDEMILL_RETURN_IF_ERROR(publisher.publish(snapshot));
    const double total = elapsed_seconds(start);
    if (recent.size() > kKeptVersions) {
      recent.pop_front();
    }
    const auto copy_start = SteadyClock::now();
    copy.of(snapshot.adapter);
    const double copied = elapsed_seconds(copy_start);
    const auto digest_start = SteadyClock::now();
    TIDEMILL_CHECK(!copy.digest().empty());
    const double digested = elapsed_seconds(digest_start);
    if (step <= kWarmUps) {
      continue;
    }
    samples.total.push_back(total);
    samples.save.push_back(saved);
    samples.load.push_back(total - saved);
    samples.copy.push_back(copied);
    samples.digest.push_back(digested);
  }
  for (const auto& [name, tensor] : recent.back().adapter) {
    figure.bytes += tensor.data.size_bytes();
  }
  figure.seconds = median(samples.total);
  figure.save_seconds = median(samples.save);
  figure.load_seconds = median(samples.load);
  figure.copy_seconds = median(samples.copy);
  figure.digest_seconds = median(samples.digest);
  return {};
}

}  // namespace

Result<AdapterUpdateFigure> measure_adapter_update(const AdapterUpdateMeasure& how) {
  TIDEMILL_ASSIGN_OR_RETURN(const engines::ModelConfig config, preset_config(how.preset));
  transport::SegmentPoolOptions memory;
  memory.pool = 1;
  memory.max_bytes = std::uint64_t{2} << 30U;
  memory.max_free_bytes = memory.max_bytes;
  transport::SegmentPool pool(memory);
  TIDEMILL_ASSIGN_OR_RETURN(const auto runtime, open_model(config, pool));
  const Sockets sockets = make_sockets();
  std::vector<std::unique_ptr<ForkedProcess>> processes;
  for (std::uint32_t process = 1; process <= how.engines; ++process) {
    TIDEMILL_RETURN_IF_ERROR(pool.add_reader({process, token_of(process), memory.max_bytes}));
    // Before any thread of this process.
    processes.push_back(
        std::make_unique<ForkedProcess>([&] { run_engine(*runtime, sockets, process); }));
    if (!processes.back()->started()) {
      return Status(Errc::kUnavailable, "cannot start a process");
    }
  }
  AdapterUpdateFigure figure;
  Publisher publisher(pool, sockets);
  TIDEMILL_RETURN_IF_ERROR(publisher.open(how.engines, runtime->initial()));
  TIDEMILL_RETURN_IF_ERROR(measure(how, *runtime->policy_job(), publisher, figure));
  return figure;
}

}  // namespace tidemill::bench
