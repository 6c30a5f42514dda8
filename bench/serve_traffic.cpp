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
    HttpClient client({options.host, options.port, ""});
    std::string received;
    TIDEMILL_RETURN_IF_ERROR(request(client, "/v1/completions", body, [&](std::string_view part) {
      const auto note = [&](double& time, std::string_view mark) {
        const std::size_t seen = std::max(received.size() - part.size(), mark.size()) - mark.size();
        if (time == 0.0 && received.find(mark, seen) != std::string::npos) {
          time = elapsed_since(start);
        }
      };
      received += part;
      note(response.first_token_s, "data: {");
      note(response.last_token_s, "data: [DONE]");
    }));
    const std::int64_t count = last_number(received, "\"completion_tokens\":");
    if (count != options.new_tokens || response.last_token_s == 0.0) {
      return failed(client, "returned " + std::to_string(count) + " tokens instead of " +
                                std::to_string(options.new_tokens) + ": " +
                                clipped(received, kMaxShownBytes));
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
