// SPDX-License-Identifier: Apache-2.0
#include "bench/serve_traffic.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <functional>
#include <string_view>
#include <thread>
#include <utility>

#include "actors/gateway/http/http_client.hpp"
#include "base/random.hpp"
#include "base/text/clip.hpp"

namespace tidemill::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;
using actors::HttpCall;
using actors::HttpClient;
using actors::HttpReply;

constexpr std::size_t kMaxShownBytes = 300;

double elapsed_since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

Status failed(const HttpClient& client, const std::string& what) {
  return {Errc::kUnavailable, client.url().authority() + ": " + what};
}

// Sends a request, and returns an error if its status is not 200. `body` is empty for GET.
Status request(HttpClient& client, const std::string& path, const std::string& body,
               std::function<void(std::string_view)> on_part) {
  HttpCall call;
  call.path = path;
  call.on_part = std::move(on_part);
  if (!body.empty()) {
    call.method = "POST";
    call.headers = {{"content-type", "application/json"}};
    call.body = body;
  }
  TIDEMILL_ASSIGN_OR_RETURN(const HttpReply reply, client.call(call));
  if (reply.response.status != 200) {
    return failed(client, path + " responds with " + std::to_string(reply.response.status) + ": " +
                              clipped(reply.response.body, kMaxShownBytes));
  }
  return {};
}

std::string request_body(const TrafficOptions& options, const PlannedRequest& planned,
                         RandomStream& random) {
  std::string ids;
  for (std::int64_t i = 0; i < planned.prompt_tokens; ++i) {
    const std::uint64_t id = 10 + random.below(static_cast<std::uint64_t>(options.vocabulary - 10));
    ids += (i > 0 ? "," : "") + std::to_string(id);
  }
  return R"({"model":")" + options.model + R"(","prompt":[)" + ids + R"(],"max_tokens":)" +
         std::to_string(planned.new_tokens) + R"(,"temperature":1,"ignore_eos":true,)" +
         options.extra_body + (options.extra_body.empty() ? "" : ",") +
         R"("stream":true,"stream_options":{"include_usage":true}})";
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

// Notes when the events of a stream arrive.
class EventTimes {
public:
  void add(std::string_view part, double now) {
    text_ += part;
    // A mark may be cut into two parts.
    for (std::size_t found = 0; (found = text_.find(kEvent, scanned_)) != std::string::npos;) {
      scanned_ = found + kEvent.size();
      if (last_event_s_ > 0.0) {
        times_.max_gap_s = std::max(times_.max_gap_s, now - last_event_s_);
      }
      times_.ttft_s = times_.ttft_s > 0.0 ? times_.ttft_s : now;
      last_event_s_ = now;
    }
    if (times_.done_s == 0.0 && text_.find(kEnd, scanned_) != std::string::npos) {
      times_.done_s = now;
    }
  }

  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  [[nodiscard]] ResponseTimes times() const noexcept { return times_; }

private:
  static constexpr std::string_view kEvent = "data: {";
  static constexpr std::string_view kEnd = "data: [DONE]";
  std::string text_;
  std::size_t scanned_ = 0;
  double last_event_s_ = 0.0;
  ResponseTimes times_;
};

Result<ResponseTimes> complete(const TrafficOptions& options, const PlannedRequest& planned,
                               RandomStream& random) {
  const std::string body = request_body(options, planned, random);
  const auto start = SteadyClock::now();
  // A new connection each time, because some servers close theirs after a stream.
  HttpClient client({options.host, options.port, ""});
  EventTimes events;
  TIDEMILL_RETURN_IF_ERROR(request(client, "/v1/completions", body, [&](std::string_view part) {
    events.add(part, elapsed_since(start));
  }));
  ResponseTimes times = events.times();
  times.new_tokens = last_number(events.text(), "\"completion_tokens\":");
  if (times.new_tokens != planned.new_tokens || times.done_s == 0.0) {
    return failed(client, "returned " + std::to_string(times.new_tokens) + " tokens instead of " +
                              std::to_string(planned.new_tokens) + ": " +
                              clipped(events.text(), kMaxShownBytes));
  }
  return times;
}

// Sends the requests of stream `index`.
Status run_stream(const TrafficOptions& options, int index, std::vector<ResponseTimes>& times) {
  RandomStream random(options.seed, static_cast<std::uint64_t>(index));
  const PlannedRequest planned{0.0, options.prompt_tokens, options.new_tokens};
  for (int i = 0; i < options.requests; ++i) {
    TIDEMILL_ASSIGN_OR_RETURN(const ResponseTimes response, complete(options, planned, random));
    times.push_back(response);
  }
  return {};
}

}  // namespace

std::int64_t TrafficTimes::new_tokens() const noexcept {
  std::int64_t sum = 0;
  for (const ResponseTimes& response : responses) {
    sum += response.new_tokens;
  }
  return sum;
}

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
  return all;
}

TrafficTimes run_arrivals(const TrafficOptions& options,
                          const std::vector<PlannedRequest>& requests) {
  std::vector<Result<ResponseTimes>> outcomes(requests.size(), ResponseTimes());
  std::vector<std::thread> threads;
  const auto start = SteadyClock::now();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    std::this_thread::sleep_until(start + std::chrono::duration_cast<SteadyClock::duration>(
                                              std::chrono::duration<double>(requests[i].start_s)));
    threads.emplace_back([&, i] {
      RandomStream random(options.seed, i);
      outcomes[i] = complete(options, requests[i], random);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  TrafficTimes all;
  all.seconds = elapsed_since(start);
  for (const Result<ResponseTimes>& outcome : outcomes) {
    if (outcome.ok()) {
      all.responses.push_back(outcome.value());
    } else {
      all.failures.push_back(outcome.status());
    }
  }
  return all;
}

Result<std::vector<double>> time_requests(const TrafficOptions& options, const std::string& path,
                                          int count) {
  HttpClient client({options.host, options.port, ""});
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    const auto start = SteadyClock::now();
    TIDEMILL_RETURN_IF_ERROR(request(client, path, "", {}));
    times.push_back(elapsed_since(start));
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
