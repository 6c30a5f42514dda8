// SPDX-License-Identifier: Apache-2.0
#include "bench/transport_figures.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <linux/futex.h>
#include <memory>
#include <mutex>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

#include <zmq.hpp>

#include "base/check.hpp"
#include "base/files/unique_fd.hpp"
#include "bench/two_processes.hpp"
#include "transport/peer_link.hpp"
#include "transport/shm/shm_connection.hpp"
#include "transport/zmq/zmq_connection.hpp"

namespace tidemill::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

struct Times {
  std::vector<double> us;

  void add(const Times& more) { us.insert(us.end(), more.us.begin(), more.us.end()); }
  [[nodiscard]] double at(double share) {
    std::ranges::sort(us);
    return us.empty() ? 0.0
                      : us[static_cast<std::size_t>(share * static_cast<double>(us.size() - 1))];
  }
};

double us_since(SteadyClock::time_point start) {
  return std::chrono::duration<double, std::micro>(SteadyClock::now() - start).count();
}

// Measures `round_trip` often.
Times time_round_trips(const TransportMeasure& how, const std::function<void()>& round_trip) {
  Times times;
  for (std::uint64_t i = 0; i < how.round_trips + how.round_trips / 10; ++i) {
    const auto start = SteadyClock::now();
    round_trip();
    if (i >= how.round_trips / 10) {
      times.us.push_back(us_since(start));
    }
  }
  return times;
}

// -- primitives -----------------------------------------------------------------------------------

// Two words in memory that both processes share.
struct SharedWords {
  std::atomic<std::uint32_t> ping{0};
  alignas(64) std::atomic<std::uint32_t> pong{0};
};

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, nullptr, nullptr, 0);
}
void futex_wake(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Waits until the word has changed from `value`, in the kernel or spinning.
std::uint32_t wait_change(std::atomic<std::uint32_t>& word, std::uint32_t value, bool spin) {
  std::uint32_t now = word.load(std::memory_order_acquire);
  while (now == value) {
    if (!spin) {
      futex_wait(word, value);
    }
    now = word.load(std::memory_order_acquire);
  }
  return now;
}

Result<Times> time_words(const TransportMeasure& how, bool spin) {
  void* memory = ::mmap(nullptr, sizeof(SharedWords), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return Status(Errc::kUnavailable, "cannot share memory");
  }
  auto& words = *new (memory) SharedWords();
  const ForkedProcess echo([&words, spin] {
    for (std::uint32_t seen = 0;;) {
      seen = wait_change(words.ping, seen, spin);
      words.pong.store(seen, std::memory_order_release);
      if (!spin) {
        futex_wake(words.pong);
      }
    }
  });
  std::uint32_t sent = 0;
  Times times = time_round_trips(how, [&] {
    words.ping.store(++sent, std::memory_order_release);
    if (!spin) {
      futex_wake(words.ping);
    }
    wait_change(words.pong, sent - 1, spin);
  });
  return times;
}

Result<Times> time_socket(const TransportMeasure& how) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return Status(Errc::kUnavailable, "cannot make a socket");
  }
  const UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  std::vector<std::byte> bytes(how.body_bytes);
  const ForkedProcess echo([&] {
    while (::read(theirs.get(), bytes.data(), bytes.size()) > 0) {
      TIDEMILL_CHECK(::write(theirs.get(), bytes.data(), bytes.size()) > 0);
    }
  });
  return time_round_trips(how, [&] {
    TIDEMILL_CHECK(::write(ours.get(), bytes.data(), bytes.size()) > 0);
    TIDEMILL_CHECK(::read(ours.get(), bytes.data(), bytes.size()) > 0);
  });
}

// Sends and receives whole messages with sockets of ZeroMQ, as the connections do, but with one
// thread in each process and nothing around it. Requires that `endpoint` is not used.
Result<Times> time_zmq(const TransportMeasure& how, const std::string& endpoint) {
  const ForkedProcess echo([&] {
    zmq::context_t context;
    zmq::socket_t socket(context, zmq::socket_type::dealer);
    socket.connect(endpoint);
    socket.send(zmq::message_t(), zmq::send_flags::none);  // tells the other side the route
    for (zmq::message_t message; socket.recv(message);) {
      socket.send(message, zmq::send_flags::none);
    }
  });
  try {
    zmq::context_t context;
    zmq::socket_t socket(context, zmq::socket_type::router);
    socket.set(zmq::sockopt::linger, 0);
    socket.bind(endpoint);
    zmq::message_t route;
    zmq::message_t body;
    const auto receive = [&] {
      TIDEMILL_CHECK(socket.recv(route).has_value() && socket.recv(body).has_value());
    };
    receive();
    const std::vector<std::byte> bytes(how.body_bytes);
    return time_round_trips(how, [&] {
      socket.send(route, zmq::send_flags::sndmore);
      socket.send(zmq::buffer(bytes), zmq::send_flags::none);
      receive();
    });
  } catch (const zmq::error_t& error) {
    return Status(Errc::kUnavailable, std::string("zmq: ") + error.what());
  }
}

// -- links ----------------------------------------------------------------------------------------

constexpr std::uint16_t kEchoKind = 100;

// Replies to every message with its own body.
class Echo final : public transport::PeerLinkListener {
public:
  void set_link(transport::PeerLink& link) {
    link_ = &link;
    link_.notify_all();
  }
  void on_message(const transport::IncomingMessage& message) override {
    transport::OutgoingMessage reply;
    reply.kind = kEchoKind;
    reply.reply_to = message.number;
    reply.body = message.body;
    link_.wait(nullptr);  // the first message may be faster than `set_link`
    transport::PeerLink& link = *link_.load();
    link.release(message);
    TIDEMILL_CHECK(link.send(reply).ok());
  }
  void on_failure(const transport::FailedRequest& /*failed*/) override {}
  void on_room() override {}
  void on_ended(const Status& /*reason*/) override { ::_exit(0); }

private:
  std::atomic<transport::PeerLink*> link_{nullptr};
};

// Sends requests, `in_flight` at a time, and measures how long each takes.
class Caller final : public transport::PeerLinkListener {
public:
  Caller(const TransportMeasure& how, std::uint64_t in_flight)
      : how_(how), total_(how.round_trips + how.round_trips / 10), in_flight_(in_flight) {
    body_ = Buffer::adopt(std::vector<std::byte>(how.body_bytes), DType::kU8);
  }

  // Measures. Returns false if the requests take too long.
  bool run(transport::PeerLink& link) {
    link_ = &link;
    sent_at_.resize(total_ + in_flight_ + 1);
    begin_ = SteadyClock::now();
    for (std::uint64_t i = 0; i < in_flight_; ++i) {
      send();
    }
    std::unique_lock lock(mutex_);
    return ended_.wait_for(lock, std::chrono::seconds(60), [this] { return done_; });
  }
  [[nodiscard]] Times& times() { return times_; }
  [[nodiscard]] double per_second() const { return per_second_; }

  void on_message(const transport::IncomingMessage& message) override {
    link_->release(message);
    ++replies_;
    if (replies_ == how_.round_trips / 10) {
      begin_ = SteadyClock::now();
    } else if (replies_ > how_.round_trips / 10 && replies_ <= total_) {
      times_.us.push_back(us_since(sent_at_[message.reply_to % sent_at_.size()]));
    }
    if (replies_ == total_) {
      per_second_ = static_cast<double>(how_.round_trips) * 1e6 / us_since(begin_);
      const std::lock_guard lock(mutex_);
      done_ = true;
      ended_.notify_one();
    } else if (sent_ < total_) {
      send();
    }
  }
  void on_failure(const transport::FailedRequest& /*failed*/) override {}
  void on_room() override {}
  void on_ended(const Status& /*reason*/) override {}

private:
  void send() {
    transport::OutgoingMessage request;
    request.kind = kEchoKind;
    request.body = body_;
    const TimePoint now = std::chrono::time_point_cast<Duration>(SteadyClock::now());
    request.expires = now + std::chrono::seconds(60);
    const std::uint64_t number = ++sent_;
    sent_at_[number % sent_at_.size()] = now;
    TIDEMILL_CHECK(link_->send(request).ok());
  }

  const TransportMeasure how_;
  const std::uint64_t total_;
  const std::uint64_t in_flight_;
  Buffer body_;
  transport::PeerLink* link_ = nullptr;
  std::vector<SteadyClock::time_point> sent_at_;  // by the number of the message
  SteadyClock::time_point begin_;
  std::atomic<std::uint64_t> sent_ = 0;
  std::uint64_t replies_ = 0;
  Times times_;
  double per_second_ = 0.0;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
};

// How two processes connect.
struct Backend {
  std::function<Result<std::unique_ptr<transport::Acceptor>>(transport::Acceptor::OnAccept)> listen;
  std::function<Result<std::unique_ptr<transport::Connector>>()> connector;
};

void echo_forever(const Backend& backend) {
  Echo echo;
  transport::PeerLinkThread thread;
  auto connector = backend.connector();
  TIDEMILL_CHECK(connector.ok()) << connector.status().message();
  transport::PeerLinkOptions options = link_options(2, 1);
  options.connector = connector.value().get();
  const auto link = thread.links().open(options, echo);
  echo.set_link(*link);
  while (true) {
    ::pause();
  }
}

Result<std::pair<Times, double>> time_link(const TransportMeasure& how, const Backend& backend,
                                           std::uint64_t in_flight) {
  const ForkedProcess process([&] { echo_forever(backend); });  // before any thread of ours
  if (!process.started()) {
    return Status(Errc::kUnavailable, "cannot start a process");
  }
  transport::PeerLinkThread thread;
  TIDEMILL_ASSIGN_OR_RETURN(const std::unique_ptr<transport::Acceptor> acceptor,
                            backend.listen([&](std::unique_ptr<transport::Connection> connection) {
                              thread.links().accept(std::move(connection));
                            }));
  Caller caller(how, in_flight);
  const auto link = thread.links().open(link_options(1, 2), caller);
  if (!caller.run(*link)) {
    return Status(Errc::kUnavailable, "the round trips take longer than a minute");
  }
  return std::pair(caller.times(), caller.per_second());
}

// -- figures --------------------------------------------------------------------------------------

// What a figure is compared with.
struct Primitive {
  std::string name;
  std::function<Result<Times>(const TransportMeasure&)> time;
};

// How a figure is measured.
struct FigurePlan {
  std::string name;
  Backend backend;
  std::vector<Primitive> primitives;
  std::uint64_t in_flight = 1;
};

// Measures a figure and its primitives in turns, so that another program which takes a core for a
// while slows all of them.
Result<TransportFigure> measure_figure(const TransportMeasure& how, const FigurePlan& plan) {
  constexpr std::uint64_t kRounds = 5;
  TransportMeasure round = how;
  round.round_trips = how.round_trips / kRounds;
  std::vector<Times> raw(plan.primitives.size());
  Times linked;
  double seconds = 0.0;
  for (std::uint64_t i = 0; i < kRounds; ++i) {
    for (std::size_t j = 0; j < raw.size(); ++j) {
      TIDEMILL_ASSIGN_OR_RETURN(const Times times, plan.primitives[j].time(round));
      raw[j].add(times);
    }
    TIDEMILL_ASSIGN_OR_RETURN(const auto measured, time_link(round, plan.backend, plan.in_flight));
    linked.add(measured.first);
    seconds += static_cast<double>(round.round_trips) / measured.second;
  }
  TransportFigure figure{plan.name, linked.at(0.5), linked.at(0.99), {}, plan.in_flight, 0.0};
  figure.per_second = static_cast<double>(kRounds * round.round_trips) / seconds;
  for (std::size_t j = 0; j < raw.size(); ++j) {
    figure.primitives.push_back({plan.primitives[j].name, raw[j].at(0.5), raw[j].at(0.99)});
  }
  return figure;
}

std::vector<FigurePlan> figure_plans(const std::filesystem::path& folder) {
  const std::filesystem::path shm = folder / "shm";
  const std::string zmq = "ipc://" + (folder / "zmq").string();
  const std::string raw = "ipc://" + (folder / "raw").string();
  const Backend over_shm{
      [shm](auto accept) { return transport::listen_shm(shm, std::move(accept)); },
      [shm]() -> Result<std::unique_ptr<transport::Connector>> {
        return transport::make_shm_connector(shm);
      }};
  const Backend over_zmq{
      [zmq](auto accept) { return transport::listen_zmq(zmq, std::move(accept)); },
      [zmq] { return transport::new_zmq_connector(zmq); }};
  const Primitive word{"a word, both sides spinning",
                       [](const TransportMeasure& how) { return time_words(how, true); }};
  const Primitive futex{"a futex",
                        [](const TransportMeasure& how) { return time_words(how, false); }};
  const Primitive socket{"a Unix socket", time_socket};
  const Primitive raw_zmq{"raw ZeroMQ",
                          [raw](const TransportMeasure& how) { return time_zmq(how, raw); }};
  constexpr std::uint64_t kMany = 64;
  return {{"rpc_shm", over_shm, {futex}, 1},
          {"rpc_shm_spinning", over_shm, {word}, 1},
          {"rpc_shm_64", over_shm, {futex}, kMany},
          {"rpc_ipc", over_zmq, {socket, raw_zmq}, 1},
          {"rpc_ipc_64", over_zmq, {socket, raw_zmq}, kMany}};
}

}  // namespace

std::vector<std::string> transport_figures() {
  std::vector<std::string> names;
  for (FigurePlan& plan : figure_plans({})) {
    names.push_back(std::move(plan.name));
  }
  return names;
}

Result<std::vector<TransportFigure>> measure_transport(const TransportMeasure& how) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("tidemill-bench-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  std::vector<TransportFigure> figures;
  for (const FigurePlan& plan : figure_plans(folder)) {
    if (how.figures.empty() || std::ranges::count(how.figures, plan.name) > 0) {
      TIDEMILL_ASSIGN_OR_RETURN(TransportFigure figure, measure_figure(how, plan));
      figures.push_back(std::move(figure));
    }
  }
  std::filesystem::remove_all(folder);
  return figures;
}

}  // namespace tidemill::bench
