// SPDX-License-Identifier: Apache-2.0
#include "bench/row_figures.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <linux/futex.h>
#include <memory>
#include <numeric>
#include <span>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include <caf/all.hpp>

#include "actors/atoms.hpp"
#include "actors/remote/segment_buffers.hpp"
#include "actors/remote/spawn.hpp"
#include "actors/stream/sample_columns.hpp"
#include "actors/stream/spawn.hpp"
#include "base/buffer_allocator.hpp"
#include "base/check.hpp"
#include "base/random.hpp"
#include "bench/times.hpp"
#include "bench/two_processes.hpp"
#include "transport/peer_link.hpp"
#include "transport/segments/segment_pool.hpp"
#include "transport/segments/segment_reader.hpp"
#include "transport/segments/segment_server.hpp"
#include "transport/shm/shm_connection.hpp"
#include "workflows/actor_system.hpp"

namespace tidemill::bench {
namespace {

using actors::SampleColumn;
using actors::SampleTask;
using SteadyClock = std::chrono::steady_clock;

constexpr const char* kWake = "store_wake";
constexpr const char* kPutGet = "store_putget";
constexpr const char* kRagged = "store_putget_ragged";

constexpr const char* kConsumer = "consumer";
constexpr std::uint32_t kOwner = 0;
constexpr std::uint32_t kProcess = 1;
constexpr std::uint32_t kGroupSize = 8;  // of `store_putget*`
constexpr std::uint64_t kCellBytes = 32 << 10;
constexpr std::uint64_t kMaxUnits = 4;  // groups of a lease
constexpr std::size_t kMaxPuts = 16;    // groups that a producer puts before it waits for the first
constexpr auto kPatience = std::chrono::minutes(2);
// So long after the last wake, the consumer waits again.
constexpr auto kSettle = std::chrono::milliseconds(2);
constexpr std::uint64_t kMaxWakes = 1 << 20;

// What both processes see.
struct Shared {
  std::atomic<std::uint64_t> rows{0};   // that the consumer has read
  std::atomic<std::uint64_t> sum{0};    // of their bytes
  std::atomic<std::uint64_t> wakes{0};  // written to `wake_ns`
  std::atomic<std::uint32_t> word{0};   // of the futex
  std::array<std::int64_t, kMaxWakes> wake_ns{};
};

std::int64_t now_ns() {
  return SteadyClock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

std::uint64_t sum_of(std::span<const std::byte> bytes) {
  std::uint64_t sum = 0;
  std::size_t i = 0;
  for (; i + sizeof(std::uint64_t) <= bytes.size(); i += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, sizeof(word));
    sum += word;
  }
  for (; i < bytes.size(); ++i) {
    sum += static_cast<std::uint64_t>(bytes[i]);
  }
  return sum;
}

// The sockets of the messages and of the memory of rows.
std::filesystem::path messages_in(const std::filesystem::path& folder) {
  return folder / "shm";
}
std::filesystem::path rows_in(const std::filesystem::path& folder) {
  return folder / "rows";
}

// -- the consumer ---------------------------------------------------------------------------------

// Leases rows of the task `train`, reads all of their cells, and acks them.
caf::behavior consume(caf::event_based_actor* self, const actors::StreamConsumerActor& stream,
                      Shared* shared) {
  const auto lease = [self, stream] {
    actors::LeaseRequest request;
    request.task = task_id(SampleTask::kTrain);
    request.consumer = kConsumer;
    request.max_units = kMaxUnits;
    request.wait = std::chrono::seconds(10);
    self->request(stream, caf::infinite, atom::lease_v, request)
        .then([self](const actors::LeaseReply& reply) { self->send(self, reply); },
              [self](const caf::error& error) { self->quit(error); });
  };
  lease();
  return {[self, stream, lease, shared](const actors::LeaseReply& reply) {
    const std::int64_t now = now_ns();
    actors::AckRequest ack{task_id(SampleTask::kTrain), kConsumer, {}};
    std::uint64_t sum = 0;
    for (const storage::LeasedRow& row : reply.rows) {
      for (const storage::ColumnValue& cell : row.columns) {
        sum += sum_of(cell.value.bytes());
      }
      ack.rows.push_back({row.lease});
    }
    if (!reply.rows.empty()) {
      // The data position of a row says when its producer began to put it.
      const std::uint64_t wake = shared->wakes.load();
      shared->wake_ns[wake % kMaxWakes] =
          now - static_cast<std::int64_t>(reply.rows[0].row.data_position);
      shared->wakes.store(wake + 1);
      shared->sum += sum;
      const std::uint64_t rows = reply.rows.size();
      self->request(stream, caf::infinite, atom::ack_v, std::move(ack))
          .then([rows, shared](const storage::Settlement&) { shared->rows += rows; },
                [self](const caf::error& error) { self->quit(error); });
    }
    lease();
  }};
}

// Connects to the memory of rows, as a worker process does.
Result<std::shared_ptr<actors::BufferResolver>> open_row_memory(
    const actors::SegmentAddress& segments) {
  TIDEMILL_ASSIGN_OR_RETURN(std::shared_ptr<transport::SegmentReader> reader,
                            transport::SegmentReader::connect(actors::reader_options(segments)));
  return actors::make_segment_resolver(std::move(reader));
}

// Runs a consumer, as a worker process does, until the process is killed.
void run_consumer(const std::filesystem::path& folder, Shared& shared) {
  const SystemClock clock;
  const std::unique_ptr<transport::Connector> connector =
      transport::make_shm_connector(messages_in(folder));
  transport::PeerLinkThread links;
  workflows::ActorSystem actor_system;
  const auto port = std::make_shared<actors::PeerPort>(clock);
  const actors::StreamConsumerActor stream =
      actors::spawn_stream_proxy(actor_system.system(), port, open_row_memory);
  actors::WorkerHostDeps deps;
  deps.port = port;
  deps.make_worker = [&](const std::string& kind,
                         std::uint32_t /*number*/) -> Result<actors::WorkerSpec> {
    return actors::WorkerSpec{
        kConsumer, [&] { return actor_system.system().spawn(consume, stream, &shared); }, kind};
  };
  deps.on_end = [](const std::string& /*reason*/) {};
  const actors::WorkerHostActor host =
      actors::spawn_worker_host(actor_system.system(), std::move(deps));
  transport::PeerLinkOptions link = link_options(kProcess, kOwner);
  link.connector = connector.get();
  port->open(links.links(), link, caf::actor_cast<caf::strong_actor_ptr>(host));
  while (true) {
    ::pause();
  }
}

// -- the producer ---------------------------------------------------------------------------------

// The memory from which cells are lent: room for the rows of two repetitions.
transport::SegmentPoolOptions pool_options() {
  transport::SegmentPoolOptions options;
  options.pool = 1;
  options.max_bytes = std::uint64_t{1} << 30U;
  options.max_free_bytes = options.max_bytes;
  return options;
}

// Returns a cell of about `bytes` bytes in `memory`, of which `fill` writes each element.
template <class T, class Fill>
storage::ColumnValue make_cell_in(BufferAllocator& memory, SampleColumn column, std::uint64_t bytes,
                                  DType dtype, Fill fill) {
  auto made = memory.allocate_unwritten(bytes / sizeof(T) * sizeof(T), dtype);
  TIDEMILL_CHECK(made.ok()) << made.status().to_string();
  const std::span<std::byte> written = made.value().bytes;
  fill(std::span<T>(reinterpret_cast<T*>(written.data()), written.size() / sizeof(T)));
  return {{static_cast<std::uint32_t>(column)}, std::move(made.value().buffer)};
}

// Nine columns with cells of these bytes, whose every byte it writes, and three short ones.
std::vector<storage::ColumnValue> make_cells(BufferAllocator& memory, std::uint64_t bytes,
                                             std::uint64_t ragged_bytes) {
  const auto ints = [&memory](SampleColumn column, std::uint64_t size) {
    return make_cell_in<std::int32_t>(memory, column, size, DType::kI32, [](auto values) {
      std::iota(values.begin(), values.end(), 0);
    });
  };
  const auto filled = [&memory]<class T>(SampleColumn column, std::uint64_t size, DType dtype,
                                         T value) {
    return make_cell_in<T>(memory, column, size, dtype, [value](auto values) {
      std::fill(values.begin(), values.end(), value);
    });
  };
  using enum SampleColumn;
  std::vector<storage::ColumnValue> cells;
  cells.push_back(ints(kPromptIds, ragged_bytes));
  cells.push_back(filled(kPrompt, ragged_bytes, DType::kU8, 'x'));
  cells.push_back(filled(kReferenceAnswer, ragged_bytes, DType::kU8, 'x'));
  cells.push_back(ints(kResponseIds, bytes));
  for (const SampleColumn column :
       {kBehaviorLogprobs, kReferenceLogprobs, kValues, kTokenAdvantages}) {
    cells.push_back(filled(column, bytes, DType::kF32, 0.5F));
  }
  cells.push_back(filled(kReward, ragged_bytes, DType::kU8, 1.0));
  const engines::VersionSpan version{{}, static_cast<std::uint32_t>(bytes / sizeof(float))};
  cells.push_back(actors::make_versions_cell({&version, 1}));
  cells.push_back(actors::make_cell(kFinish, std::vector<std::uint8_t>{0}));
  cells.push_back(actors::make_cell(kAdvantage, std::vector<float>{0.0F}));
  return cells;
}

// The process of the stream, as far as rows need it.
class Owner {
public:
  Owner(const std::filesystem::path& folder, std::uint32_t group_size)
      : folder_(folder),
        group_size_(group_size),
        pool_(pool_options()),
        copies_(std::make_shared<actors::SegmentCopies>(pool_)) {}

  Status open() {
    caf::actor_system& system = actors_.system();
    // The stream tells the keeper of the slots that rows use. Here, none is counted.
    keeper_ = system.spawn([](caf::event_based_actor*) -> caf::behavior {
      return {[](atom::record, const storage::SlotChanges&) {}};
    });
    actors::StreamDeps stream;
    stream.options.group_size = group_size_;
    stream.keeper = caf::actor_cast<actors::KeeperActor>(keeper_);
    stream_ = actors::spawn_stream(system, std::move(stream));
    port_ = std::make_shared<actors::PeerPort>(clock_);
    actors::WorkerGateDeps gate;
    gate.process = "the consumer";
    gate.port = port_;
    gate.stream = caf::actor_cast<actors::StreamConsumerActor>(stream_);
    transport::SegmentServerOptions server;
    server.path = rows_in(folder_);
    TIDEMILL_ASSIGN_OR_RETURN(server_, transport::SegmentServer::listen(pool_, std::move(server)));
    const transport::SegmentReaderGrant grant{kProcess, {}, pool_.max_bytes()};
    TIDEMILL_RETURN_IF_ERROR(pool_.add_reader(grant));
    gate.rows.lender = actors::make_segment_lender(copies_, kProcess);
    gate.rows.segments = {rows_in(folder_).string(), kProcess, grant.token};
    gate_ = actors::spawn_worker_gate(system, std::move(gate));
    TIDEMILL_ASSIGN_OR_RETURN(
        acceptor_, transport::listen_shm(messages_in(folder_),
                                         [this](std::unique_ptr<transport::Connection> connection) {
                                           links_.links().accept(std::move(connection));
                                         }));
    port_->open(links_.links(), link_options(kOwner, kProcess),
                caf::actor_cast<caf::strong_actor_ptr>(gate_));
    worker_ = actors::spawn_remote_worker(system, gate_, {kConsumer, kConsumer, 0});
    return {};
  }
  ~Owner() {
    for (const caf::strong_actor_ptr& actor : {caf::actor_cast<caf::strong_actor_ptr>(worker_),
                                               caf::actor_cast<caf::strong_actor_ptr>(gate_),
                                               caf::actor_cast<caf::strong_actor_ptr>(stream_),
                                               caf::actor_cast<caf::strong_actor_ptr>(keeper_)}) {
      if (actor != nullptr) {
        caf::anon_send_exit(caf::actor_cast<caf::actor>(actor), caf::exit_reason::kill);
      }
    }
    if (port_ != nullptr) {
      port_->close("measured");
    }
  }

  // Where cells are made.
  BufferAllocator& memory() { return pool_; }

  // Puts a group of rows that `make` makes, and does not wait for it.
  void put(const std::function<std::vector<storage::ColumnValue>()>& make) {
    actors::NewGroup group;
    group.draw = groups_;
    for (std::uint32_t i = 0; i < group_size_; ++i) {
      actors::NewRow row;
      row.row.id = {groups_ * group_size_ + i};
      row.row.group = {groups_};
      row.row.index_in_group = i;
      row.row.group_size = group_size_;
      row.columns = make();
      group.rows.push_back(std::move(row));
    }
    ++groups_;
    const std::int64_t begin = now_ns();
    for (actors::NewRow& row : group.rows) {
      row.row.data_position = static_cast<std::uint64_t>(begin);
    }
    puts_.push_back(self_->request(stream_, kPatience, atom::put_v, std::move(group)));
    if (puts_.size() > kMaxPuts) {
      finish_put();
    }
  }
  // Waits until all groups are in the stream.
  void finish_puts() {
    while (!puts_.empty()) {
      finish_put();
    }
  }
  // Removes the rows that were read. The stream would keep them for its other tasks.
  void remove_rows() {
    for (; removed_groups_ < groups_; ++removed_groups_) {
      finish(self_->request(
          stream_, kPatience, atom::retire_v,
          actors::GroupVerdict{{removed_groups_}, {storage::VerdictKind::kFilter, "read"}}));
    }
  }

private:
  using Put = decltype(std::declval<caf::scoped_actor&>()->request(
      std::declval<const actors::StreamActor&>(), kPatience, atom::put_v,
      std::declval<actors::NewGroup>()));

  template <class Request>
  static void finish(Request request) {
    request.receive(
        [](const storage::Settlement&) {},
        [](const caf::error& error) { TIDEMILL_CHECK(false) << caf::to_string(error); });
  }
  void finish_put() {
    finish(puts_.front());
    puts_.pop_front();
  }

  const std::filesystem::path folder_;
  const std::uint32_t group_size_;
  transport::SegmentPool pool_;
  const std::shared_ptr<actors::SegmentCopies> copies_;
  std::unique_ptr<transport::SegmentServer> server_;
  SystemClock clock_;
  workflows::ActorSystem actors_;
  caf::scoped_actor self_{actors_.system()};
  std::deque<Put> puts_;  // that may not be in the stream yet
  transport::PeerLinkThread links_;
  std::unique_ptr<transport::Acceptor> acceptor_;
  std::shared_ptr<actors::PeerPort> port_;
  actors::StreamActor stream_;
  actors::WorkerGateActor gate_;
  actors::RemoteWorkerActor worker_;
  caf::actor keeper_;
  std::uint64_t groups_ = 0;          // that were put
  std::uint64_t removed_groups_ = 0;  // of these, from the first
};

Status wait_for(const std::atomic<std::uint64_t>& count, std::uint64_t wanted) {
  const auto deadline = SteadyClock::now() + kPatience;
  while (count.load() < wanted) {
    if (SteadyClock::now() > deadline) {
      return {Errc::kUnavailable, "the consumer has got " + std::to_string(count.load()) + " of " +
                                      std::to_string(wanted) + " in two minutes"};
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return {};
}

// A folder for the sockets, which only this user may enter.
class SocketFolder {
public:
  SocketFolder()
      : path_(std::filesystem::temp_directory_path() /
              ("tidemill-bench-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all);
  }
  SocketFolder(const SocketFolder&) = delete;
  SocketFolder& operator=(const SocketFolder&) = delete;
  ~SocketFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

private:
  std::filesystem::path path_;
};

// -- figures --------------------------------------------------------------------------------------

// Passes whole groups of at least so many rows. Returns how many bytes they have. If `verify`,
// checks that the consumer has read these bytes.
Result<std::uint64_t> pass_rows(Owner& owner, Shared& shared, std::uint64_t rows, bool ragged,
                                RandomStream& random, bool verify) {
  std::uint64_t bytes = 0;
  std::uint64_t sum = shared.sum.load();
  std::uint64_t wanted = shared.rows.load();
  for (std::uint64_t row = 0; row < rows; row += kGroupSize) {
    wanted += kGroupSize;
    owner.put([&] {
      constexpr std::uint64_t kStep = 1 << 10;
      const auto draw = [&] {
        return ragged ? kStep * (1 + random.below(2 * kCellBytes / kStep - 1)) : kCellBytes;
      };
      auto cells = make_cells(owner.memory(), draw(), draw());
      for (const storage::ColumnValue& cell : cells) {
        bytes += cell.value.size_bytes();
        sum += verify ? sum_of(cell.value.bytes()) : 0;
      }
      return cells;
    });
  }
  owner.finish_puts();
  TIDEMILL_RETURN_IF_ERROR(wait_for(shared.rows, wanted));
  TIDEMILL_CHECK(!verify || shared.sum.load() == sum) << "the consumer has read other bytes";
  return bytes;
}

// How long one thread writes so many bytes into memory that was used before, and reads them.
double time_copy(std::uint64_t bytes, std::uint64_t repetitions) {
  std::vector<std::byte> memory(bytes);
  std::vector<double> seconds;
  for (std::uint64_t i = 0; i < repetitions; ++i) {
    const auto start = SteadyClock::now();
    std::memset(memory.data(), static_cast<int>(i + 1), memory.size());
    const std::uint64_t sum = sum_of(memory);
    seconds.push_back(elapsed_seconds(start));
    TIDEMILL_CHECK(sum != 0);
  }
  return median(seconds);
}

Result<RowFigure> measure_putget(const RowMeasure& how, Owner& owner, Shared& shared, bool ragged) {
  RowFigure figure;
  figure.name = ragged ? kRagged : kPutGet;
  RandomStream random(1);
  std::vector<double> seconds;
  for (std::uint64_t i = 0; i <= how.repetitions; ++i) {
    const auto start = SteadyClock::now();
    const bool warms_up = i == 0;
    TIDEMILL_ASSIGN_OR_RETURN(figure.bytes,
                              pass_rows(owner, shared, how.rows, ragged, random, warms_up));
    if (!warms_up) {
      seconds.push_back(elapsed_seconds(start));
    }
    owner.remove_rows();
  }
  figure.seconds = median(seconds);
  figure.copy_seconds = time_copy(figure.bytes, how.repetitions);
  return figure;
}

// The times from waking a process that sleeps at a futex until it runs.
std::vector<double> time_futex(Shared& shared, std::uint64_t wakes) {
  const ForkedProcess sleeper([&shared] {
    for (std::uint32_t seen = 0;; seen = shared.word.load()) {
      ::syscall(SYS_futex, &shared.word, FUTEX_WAIT, seen, nullptr, nullptr, 0);
      if (shared.word.load() != seen) {
        const std::uint64_t wake = shared.wakes.load();
        shared.wake_ns[wake] = now_ns() - shared.wake_ns[wake];
        shared.wakes.store(wake + 1);
      }
    }
  });
  std::vector<double> us;
  for (std::uint64_t i = 0; i < wakes && sleeper.started(); ++i) {
    std::this_thread::sleep_for(kSettle);
    shared.wake_ns[i] = now_ns();
    ++shared.word;
    ::syscall(SYS_futex, &shared.word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    if (!wait_for(shared.wakes, i + 1).ok()) {
      break;
    }
    us.push_back(static_cast<double>(shared.wake_ns[i]) * 1e-3);
  }
  shared.wakes = 0;
  return us;
}

// Starts a consumer and opens the process of a stream with groups of this size, and measures.
Status between_processes(std::uint32_t group_size, Shared& shared,
                         const std::function<Status(Owner&)>& measure) {
  shared.rows = 0;
  const SocketFolder folder;
  // Before any thread of this process.
  const ForkedProcess consumer([&] { run_consumer(folder.path(), shared); });
  if (!consumer.started()) {
    return {Errc::kUnavailable, "cannot start a process"};
  }
  Owner owner(folder.path(), group_size);
  TIDEMILL_RETURN_IF_ERROR(owner.open());
  return measure(owner);
}

Result<RowFigure> measure_wake(const RowMeasure& how, Owner& owner, Shared& shared,
                               const std::vector<double>& futex) {
  RowFigure figure;
  figure.name = kWake;
  constexpr std::uint64_t kShortCell = 8;
  shared.wakes = 0;
  const std::uint64_t total = how.wakes + how.wakes / 10;
  std::vector<double> us;
  for (std::uint64_t i = 0; i < total; ++i) {
    std::this_thread::sleep_for(kSettle);
    owner.put([&owner] { return make_cells(owner.memory(), kShortCell, kShortCell); });
    TIDEMILL_RETURN_IF_ERROR(wait_for(shared.wakes, i + 1));
    owner.finish_puts();
    if (i >= how.wakes / 10) {
      us.push_back(static_cast<double>(shared.wake_ns[i]) * 1e-3);
    }
  }
  // The next figure counts the rows and the bytes that are read from here on.
  TIDEMILL_RETURN_IF_ERROR(wait_for(shared.rows, total));
  owner.remove_rows();
  figure.wake_p50_us = quantile_of_unsorted(us, 0.5);
  figure.wake_p99_us = quantile_of_unsorted(us, 0.99);
  figure.futex_p50_us = quantile_of_unsorted(futex, 0.5);
  figure.futex_p99_us = quantile_of_unsorted(futex, 0.99);
  return figure;
}

}  // namespace

std::vector<std::string> row_figures() {
  return {kWake, kPutGet, kRagged};
}

Result<std::vector<RowFigure>> measure_rows(const RowMeasure& how) {
  const auto wanted = [&how](const char* name) {
    return how.figures.empty() || std::ranges::find(how.figures, name) != how.figures.end();
  };
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return Status(Errc::kUnavailable, "cannot share memory");
  }
  auto& shared = *new (memory) Shared();
  std::vector<RowFigure> figures;
  if (wanted(kWake)) {
    const std::vector<double> futex = time_futex(shared, how.wakes);
    TIDEMILL_RETURN_IF_ERROR(between_processes(1, shared, [&](Owner& owner) -> Status {
      TIDEMILL_ASSIGN_OR_RETURN(figures.emplace_back(), measure_wake(how, owner, shared, futex));
      return {};
    }));
  }
  for (const bool ragged : {false, true}) {
    if (wanted(ragged ? kRagged : kPutGet)) {
      TIDEMILL_RETURN_IF_ERROR(between_processes(kGroupSize, shared, [&](Owner& owner) -> Status {
        TIDEMILL_ASSIGN_OR_RETURN(figures.emplace_back(),
                                  measure_putget(how, owner, shared, ragged));
        return {};
      }));
    }
  }
  return figures;
}

}  // namespace tidemill::bench
