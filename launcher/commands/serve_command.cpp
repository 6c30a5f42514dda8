// SPDX-License-Identifier: Apache-2.0
// `tidemill serve`: serves a model over HTTP.
#include <CLI/App.hpp>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <ostream>
#include <string_view>
#include <sys/resource.h>
#include <unistd.h>

#include "base/json/json.hpp"
#include "base/text/mebibytes.hpp"
#include "launcher/additions.hpp"
#include "launcher/commands/commands.hpp"
#include "launcher/commands/dry_run.hpp"
#include "launcher/runs/run_directory.hpp"
#include "launcher/runs/run_file.hpp"
#include "workflows/actor_system.hpp"
#include "workflows/process_limits.hpp"
#include "workflows/serve/run_serve.hpp"

namespace tidemill::launcher {
namespace {

// State of the signal handler, of which a process has only one.
volatile std::sig_atomic_t stops = 0;

void on_stop(int signal) {
  stops = stops + 1;
  if (stops > 1) {
    ::_exit(128 + signal);
  }
  constexpr std::string_view kText =
      "completing the responses that have begun; interrupt again to stop immediately\n";
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText.data(), kText.size());
  errno = error;
}

void set_signals() {
  stops = 0;
  struct sigaction action {};
  action.sa_handler = on_stop;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &action, nullptr);
}

// Lets the process open as many files as it may: each connection is one.
void raise_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

// Reads the configuration of the run of a fine-tuning job.
Result<workflows::JobWorkflow> parse_run(const std::string& text, const std::string& source,
                                         const Session& session) {
  TIDEMILL_ASSIGN_OR_RETURN(const Schema<configs::RunConfig> schema, run_schema(session));
  TIDEMILL_ASSIGN_OR_RETURN(const Resolved<configs::RunConfig> resolved,
                            configs::read_run_config(schema, text, source));
  if (const auto* sft = resolved.value.workflow.get<workflows::SftOptions>()) {
    return workflows::JobWorkflow(*sft);
  }
  if (const auto* rl = resolved.value.workflow.get<workflows::RlOptions>()) {
    return workflows::JobWorkflow(*rl);
  }
  return invalid_argument(source + ": workflow: a job cannot be of this kind");
}

class ServeCommand final : public Command {
public:
  [[nodiscard]] std::string name() const override { return "serve"; }
  [[nodiscard]] std::string summary() const override {
    return "Serves a model to clients of OpenAI's API";
  }
  [[nodiscard]] std::string example() const override {
    return "tidemill serve configs/serve-quickstart.yaml serve.port=8080";
  }

  void declare(CLI::App& app) override {
    file_.declare(app, "a server", "serve.port=8080");
    app.add_flag(
        "--dry-run", dry_run_,
        "Print the resolved configuration and the memory that the server needs, but do not start "
        "it");
  }

  [[nodiscard]] Status run(Session& session) override {
    TIDEMILL_ASSIGN_OR_RETURN(const Resolved<configs::RunConfig> resolved, file_.load(session));
    if (!dry_run_ || session.form != OutputForm::kJson) {
      print_warnings(resolved, session);
    }
    const auto* options = resolved.value.workflow.get<workflows::ServeOptions>();
    if (options == nullptr) {
      return invalid_argument(file_.path() + ": workflow: must be serve; to start a run: " +
                              "tidemill run " + file_.path());
    }
    if (dry_run_) {
      return print_plan(resolved, *options, session);
    }
    set_signals();
    raise_file_limit();
    TIDEMILL_RETURN_IF_ERROR(workflows::check_threads(workflows::kActorSystemThreads));
    workflows::ActorSystem actor_system;
    const workflows::ServeEnvironment run{
        actor_system.system(),
        session.clock,
        [] { return static_cast<std::int64_t>(std::time(nullptr)); },
        [] { return local_time(); },
        [&](const workflows::ReadyServer& server) { print_ready(server, session); },
        [&](const std::string& line) { session.log.warning(line); },
        [&](const std::string& line) { session.log.info(line); },
        [] { return stops > 0; },
        [&session](const std::string& text, const std::string& source) {
          return parse_run(text, source, session);
        }};
    return workflows::run_serve(*options, run);
  }

private:
  static void print_ready(const workflows::ReadyServer& server, Session& session) {
    if (session.form == OutputForm::kJson) {
      session.out << Json(Json::Object{
                              {"kind", "ready"}, {"url", server.url}, {"model", server.model}})
                         .to_line()
                  << std::flush;
      return;
    }
    session.out << "serving " << server.model << " at " << server.url << "\n"
                << "  OpenAI clients: base_url=" << server.url << "/v1, "
                << (server.keys_file.empty()
                        ? "any api_key"
                        : "an api_key from `tidemill keys add " + server.keys_file + "`")
                << '\n'
                << std::flush;
  }

  [[nodiscard]] Status print_plan(const Resolved<configs::RunConfig>& resolved,
                                  const workflows::ServeOptions& options, Session& session) const {
    TIDEMILL_RETURN_IF_ERROR(workflows::check_access(options.serve));
    TIDEMILL_ASSIGN_OR_RETURN(const workflows::ServerPlan plan,
                              workflows::plan_memory(options, session.clock));
    std::vector<MemoryLine> lines{memory_line("memory, at most", "memory_bytes", plan.server)};
    if (plan.max_jobs > 0) {
      lines.push_back({"memory, " + workflows::jobs_text(plan.max_jobs) + " at most",
                       mebibytes_text(plan.job_bytes) + (plan.note.empty() ? "" : "; " + plan.note),
                       "job_memory_bytes", plan.job_bytes});
    }
    print_dry_run(file_.schema(), resolved, lines, session);
    return {};
  }

  RunFile file_;
  bool dry_run_ = false;
};

}  // namespace

std::unique_ptr<Command> make_serve_command() {
  return std::make_unique<ServeCommand>();
}

}  // namespace tidemill::launcher
