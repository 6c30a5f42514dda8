// SPDX-License-Identifier: Apache-2.0
#include "workflows/processes/run_control.hpp"

#include <system_error>
#include <unistd.h>
#include <utility>

#include "transport/query/query_server.hpp"
#include "workflows/process_memory.hpp"
#include "workflows/processes/connection_trouble.hpp"
#include "workflows/processes/process_table.hpp"
#include "workflows/processes/socket_folder.hpp"

namespace tidemill::workflows {
namespace {

constexpr Duration kMaxAnswerWait = std::chrono::seconds(5);
constexpr std::int64_t kMaxProcessesOfARole = 1'000'000;  // the table has smaller limits

std::filesystem::path socket_of(const std::filesystem::path& directory) {
  return socket_path(directory, "control");
}

Json count(std::uint64_t number) {
  return static_cast<std::int64_t>(number);
}

double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

const char* state_text(transport::PeerSession::State state) {
  switch (state) {
    case transport::PeerSession::State::kDisconnected: return "disconnected";
    case transport::PeerSession::State::kConnected: return "connected";
    case transport::PeerSession::State::kEnded: break;
  }
  return "ended";
}

Json memory_of(int pid) {
  const auto bytes = pid > 0 ? resident_bytes(pid) : std::nullopt;
  return bytes.has_value() ? Json(*bytes) : Json();
}

Json owner_json(const std::string& cores) {
  return Json::Object{{"name", "process of the run"},
                      {"role", "run"},
                      {"pid", std::int64_t{::getpid()}},
                      {"cores", cores},
                      {"memory_bytes", memory_of(::getpid())}};
}

Json process_json(const ProcessReport& of) {
  return Json::Object{{"name", of.name},
                      {"role", of.role},
                      {"pid", std::int64_t{of.pid}},
                      {"starts", count(of.starts)},
                      {"workers", count(of.workers)},
                      {"transport", of.transport},
                      {"reason", of.reason},
                      {"cores", to_text(of.cores)},
                      {"memory_bytes", memory_of(of.pid)},
                      {"sent_messages", count(of.link.counts.sent)},
                      {"sent_bytes", count(of.link.sent_bytes)},
                      {"received_messages", count(of.link.counts.taken)},
                      {"received_bytes", count(of.link.received_bytes)},
                      {"resent_messages", count(of.link.counts.resent)},
                      {"credit_used_bytes", count(of.link.unacknowledged_bytes)},
                      {"queued_bytes", count(of.queued_bytes)},
                      {"connection", state_text(of.link.state)},
                      {"problem", of.link.problem},
                      {"waiting_workers", count(of.waiting_workers)},
                      {"waiting_for", of.waiting_for},
                      {"waiting_seconds", seconds(of.waiting)}};
}

Json error_json(const std::string& why) {
  return Json::Object{{"error", why}};
}

// The error of a query that may succeed later has a member that says so.
Json error_json(const Status& why) {
  Json::Object error{{"error", why.message()}};
  if (why.code() == Errc::kUnavailable) {
    error.push_back({"later", true});
  }
  return error;
}

Json scale(ProcessTable& table, const Json& query) {
  const Json* role = query.find("role");
  const Json* processes = query.find("processes");
  const std::string* name = role != nullptr ? role->if_string() : nullptr;
  const std::int64_t* number = processes != nullptr ? processes->if_integer() : nullptr;
  if (name == nullptr || number == nullptr || *number < 0 || *number > kMaxProcessesOfARole) {
    return error_json("a query to scale needs a role and a number of processes");
  }
  const auto before = table.scale(*name, static_cast<std::uint32_t>(*number));
  return before.ok() ? Json(Json::Object{{"before", count(before.value())}})
                     : error_json(before.status());
}

// Says that queries cannot be accepted.
struct QueryTrouble {
  explicit QueryTrouble(std::function<void(const std::string&)> warn)
      : lines(clock, "`tidemill top` and `tidemill scale` cannot reach this run", std::move(warn)) {
  }

  SystemClock clock;
  ConnectionTrouble lines;
};

Json answer(ProcessTable& table, const std::string& owner_cores, const std::string& text) {
  const Result<Json> query = parse_json(text);
  if (!query.ok()) {
    return error_json(query.status().message());
  }
  const Json* ask = query.value().find("ask");
  const std::string* what = ask != nullptr ? ask->if_string() : nullptr;
  if (what != nullptr && *what == "scale") {
    return scale(table, query.value());
  }
  if (what == nullptr || *what != "processes") {
    return error_json("this query is unknown");
  }
  Json::Array processes{owner_json(owner_cores)};
  for (const ProcessReport& report : table.report()) {
    processes.push_back(process_json(report));
  }
  return Json::Object{{"processes", std::move(processes)}};
}

}  // namespace

Result<std::unique_ptr<transport::QueryServer>> serve_run_control(
    const std::filesystem::path& directory, RunControlOptions options) {
  const auto trouble = std::make_shared<QueryTrouble>(std::move(options.warn));
  return transport::QueryServer::listen(
      socket_of(directory),
      [table = std::move(options.table), cores = std::move(options.owner_cores)](
          const std::string& query) { return answer(*table, cores, query).to_line(); },
      [trouble](const Status& why) { trouble->lines.note(why); });
}

bool may_answer(const std::filesystem::path& directory) {
  std::error_code ignored;
  return std::filesystem::exists(socket_of(directory), ignored);
}

Result<Json> ask_run(const std::filesystem::path& directory, const Json& query) {
  const auto text = transport::send_query(socket_of(directory), query.to_line(), kMaxAnswerWait);
  if (text.status().code() == Errc::kTimeout) {
    return Status(Errc::kTimeout, directory.string() + ": the run does not answer");
  }
  if (!text.ok()) {
    return Status(Errc::kUnavailable,
                  directory.string() + ": no run with several processes is in progress here");
  }
  TIDEMILL_ASSIGN_OR_RETURN(Json answer, parse_json(text.value()));
  if (const Json* error = answer.find("error"); error != nullptr) {
    const std::string* why = error->if_string();
    return Status(answer.find("later") != nullptr ? Errc::kUnavailable : Errc::kInvalidArgument,
                  why != nullptr ? *why : "the run has refused the query");
  }
  return answer;
}

}  // namespace tidemill::workflows
