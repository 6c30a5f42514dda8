// SPDX-License-Identifier: Apache-2.0
#include "launcher/program.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "base/schema_suggest.hpp"
#include "launcher/log_sinks.hpp"

namespace tidemill::launcher {
namespace {

constexpr const char* kFooter =
    "Exit codes: 0 done; 1 the work failed; 2 the command line, or what it names, cannot be used.\n"
    "Example: tidemill check configs/quickstart.yaml";

// A parser's message may have several lines; an error is one.
std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// The parser would call a misspelled command an argument that was not expected.
std::string unknown_command(const std::string& word,
                            const std::vector<std::unique_ptr<Command>>& commands) {
  std::vector<std::string> names;
  names.reserve(commands.size());
  for (const auto& command : commands) {
    names.push_back(command->name());
  }
  if (word.starts_with('-') || std::find(names.begin(), names.end(), word) != names.end()) {
    return {};
  }
  const std::string meant = schema::closest_name(word, names);
  return schema::clipped(word) + ": unknown command" +
         (meant.empty() ? "; tidemill --help lists them" : "; did you mean " + meant + '?');
}

struct Parsed {
  Command* command = nullptr;
  bool json = false;
  std::string log_level = "info";
};

void declare(CLI::App& app, const std::vector<std::unique_ptr<Command>>& commands, Parsed& parsed) {
  app.set_version_flag("--version", "tidemill " TIDEMILL_VERSION);
  app.require_subcommand(1);
  app.footer(kFooter);
  for (const auto& command : commands) {
    CLI::App* sub = app.add_subcommand(command->name(), command->summary());
    sub->footer("Example: " + command->example());
    sub->add_flag("--json", parsed.json, "Print one JSON object a line");
    sub->add_option("--log-level", parsed.log_level, "debug, info, warning or error")
        ->capture_default_str();
    command->declare(*sub);
    sub->callback([&parsed, chosen = command.get()] { parsed.command = chosen; });
  }
}

Status run_command(const Parsed& parsed, const std::vector<std::string>& arguments,
                   std::ostream& out, std::ostream& err) {
  TIDEMILL_ASSIGN_OR_RETURN(const LogLevel level, parse_log_level(parsed.log_level));
  const SystemClock clock;
  Log log(clock, level);
  log.add_sink(make_stderr_sink());
  Session session{out,      err, log, clock, parsed.json ? OutputForm::kJson : OutputForm::kText,
                  arguments};
  return parsed.command->run(session);
}

}  // namespace

ExitCode exit_code(const Status& status) {
  switch (status.code()) {
    case Errc::kOk: return kDone;
    case Errc::kInvalidArgument:
    case Errc::kNotFound:
    case Errc::kCorruptData:
    case Errc::kUnimplemented: return kRefused;
    default: return kFailed;
  }
}

int run_program(const std::vector<std::string>& arguments,
                const std::vector<std::unique_ptr<Command>>& commands, std::ostream& out,
                std::ostream& err) {
  CLI::App app("Post-training of language models on an actor-based dataflow.", "tidemill");
  Parsed parsed;
  declare(app, commands, parsed);
  if (arguments.empty()) {
    err << app.help();
    return kRefused;
  }
  if (const std::string problem = unknown_command(arguments.front(), commands); !problem.empty()) {
    err << "tidemill: " << problem << '\n';
    return kRefused;
  }
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // last one first
  } catch (const CLI::Success& wish) {                                          // --help, --version
    return app.exit(wish, out, err);
  } catch (const CLI::Error& error) {
    err << "tidemill: " << one_line(error.what()) << '\n';
    return kRefused;
  }
  Status status;
  try {
    status = run_command(parsed, arguments, out, err);
  } catch (const std::bad_alloc&) {
    status = Status(Errc::kResourceExhausted, "tidemill: out of memory");
  } catch (const std::exception& error) {
    status = Status(Errc::kInternal, "tidemill: " + one_line(error.what()));
  }
  if (!status.ok()) {
    if (parsed.json) {
      const auto replace = nlohmann::json::error_handler_t::replace;
      out << nlohmann::json{{"error", status.message()}}.dump(-1, ' ', false, replace) << '\n';
    }
    err << status.message() << '\n';
  }
  out.flush();
  return exit_code(status);
}

}  // namespace tidemill::launcher
