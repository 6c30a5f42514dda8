// SPDX-License-Identifier: Apache-2.0
#include "bench/serve_traffic.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <thread>

#include "base/files/unique_fd.hpp"
#include "base/random.hpp"

namespace tidemill::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr time_t kTimeoutS = 60;

double elapsed_since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

// A connection to the server.
class Client {
public:
  explicit Client(const TrafficOptions& options)
      : options_(options), fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}

  [[nodiscard]] Status connect() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(options_.port);
    if (::inet_pton(AF_INET, options_.host.c_str(), &address.sin_addr) != 1) {
      return failed("not an IPv4 address");
    }
    const timeval timeout{kTimeoutS, 0};
    const int no_delay = 1;
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &no_delay, sizeof(no_delay));
    if (::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      return failed("cannot connect");
    }
    return {};
  }

  // Sends a request. `body` is empty for a GET request.
  [[nodiscard]] Status send(const std::string& path, const std::string& body) {
    received_.clear();
    std::string text =
        (body.empty() ? "GET " : "POST ") + path + " HTTP/1.1\r\nHost: localhost\r\n";
    if (!body.empty()) {
      text += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n";
    }
    text += "\r\n" + body;
    for (std::size_t sent = 0; sent < text.size();) {
      const ssize_t size = ::send(fd_.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (size < 0) {
        return failed("cannot send");
      }
      sent += static_cast<std::size_t>(size);
    }
    return {};
  }

  // Reads until the response contains `mark`.
  [[nodiscard]] Status read_until(const std::string& mark) {
    while (received_.find(mark) == std::string::npos) {
      std::array<char, 16384> bytes{};
      const ssize_t size = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
      if (size <= 0) {
        return failed("the response ended, or took too long, before " + mark + ": " +
                      received_.substr(0, 300));
      }
      received_.append(bytes.data(), static_cast<std::size_t>(size));
    }
    return {};
  }

  [[nodiscard]] const std::string& received() const { return received_; }
  [[nodiscard]] Status failed(const std::string& what) const {
    return {Errc::kUnavailable, options_.host + ":" + std::to_string(options_.port) + ": " + what};
  }

private:
  const TrafficOptions& options_;
  UniqueFd fd_;
  std::string received_;
};

std::string request_body(const TrafficOptions& options, RandomStream& random) {
  std::string ids;
  for (std::int64_t i = 0; i < options.prompt_tokens; ++i) {
    const std::uint64_t id = 10 + random.below(static_cast<std::uint64_t>(options.vocabulary - 10));
    ids += (i > 0 ? "," : "") + std::to_string(id);
  }
  return R"({"model":")" + options.model + R"(","prompt":[)" + ids + R"(],"max_tokens":)" +
         std::to_string(options.new_tokens) +
         R"(,"temperature":1,"ignore_eos":true,"stream":true,)" +
         R"("stream_options":{"include_usage":true}})";
}

// Returns the number after the last `name` in `text`, or -1.
std::int64_t last_number(const std::string& text, const std::string& name) {
  const std::size_t found = text.rfind(name);
  std::int64_t number = -1;
  if (found != std::string::npos) {
    std::from_chars(text.data() + found + name.size(), text.data() + text.size(), number);
  }
  return number;
}

// Sends the requests of stream `index`.
Status run_stream(const TrafficOptions& options, int index, std::vector<ResponseTimes>& times) {
  RandomStream random(options.seed, static_cast<std::uint64_t>(index));
  for (int i = 0; i < options.requests; ++i) {
    const std::string body = request_body(options, random);
    const auto start = SteadyClock::now();
    ResponseTimes response;
    // A new connection each time, because some servers close theirs after a stream.
    Client client(options);
    TIDEMILL_RETURN_IF_ERROR(client.connect());
    TIDEMILL_RETURN_IF_ERROR(client.send("/v1/completions", body));
    TIDEMILL_RETURN_IF_ERROR(client.read_until("data: {"));
    response.first_token_s = elapsed_since(start);
    TIDEMILL_RETURN_IF_ERROR(client.read_until("data: [DONE]"));
    response.last_token_s = elapsed_since(start);
    const std::int64_t count = last_number(client.received(), "\"completion_tokens\":");
    if (count != options.new_tokens) {
      return client.failed("returned " + std::to_string(count) + " tokens instead of " +
                           std::to_string(options.new_tokens));
    }
    times.push_back(response);
  }
  return {};
}

}  // namespace

Result<TrafficTimes> run_traffic(const TrafficOptions& options) {
  const auto count = static_cast<std::size_t>(options.streams);
  std::vector<std::vector<ResponseTimes>> times(count);
  std::vector<Status> statuses(count);
  std::vector<std::thread> threads;
  const auto start = SteadyClock::now();
  for (std::size_t i = 0; i < count; ++i) {
    threads.emplace_back(
        [&, i] { statuses[i] = run_stream(options, static_cast<int>(i), times[i]); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  TrafficTimes all;
  all.seconds = elapsed_since(start);
  for (std::size_t i = 0; i < count; ++i) {
    TIDEMILL_RETURN_IF_ERROR(statuses[i]);
    all.responses.insert(all.responses.end(), times[i].begin(), times[i].end());
  }
  all.new_tokens = static_cast<std::int64_t>(all.responses.size()) * options.new_tokens;
  return all;
}

Result<std::vector<double>> time_requests(const TrafficOptions& options, const std::string& path,
                                          int count) {
  Client client(options);
  TIDEMILL_RETURN_IF_ERROR(client.connect());
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    const auto start = SteadyClock::now();
    TIDEMILL_RETURN_IF_ERROR(client.send(path, ""));
    TIDEMILL_RETURN_IF_ERROR(client.read_until("}"));
    times.push_back(elapsed_since(start));
    if (client.received().find(" 200 ") == std::string::npos) {
      return client.failed(path + " does not respond with 200");
    }
  }
  std::sort(times.begin(), times.end());
  return times;
}

double quantile_of(const std::vector<double>& values, double quantile) {
  if (values.empty()) {
    return 0.0;
  }
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<std::size_t>(std::lround(quantile * last))];
}

}  // namespace tidemill::bench
