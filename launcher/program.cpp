// SPDX-License-Identifier: Apache-2.0
#include "launcher/program.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <ostream>
#include <system_error>

#include "base/schema/reference.hpp"
#include "base/schema/suggest.hpp"
#include "launcher/additions.hpp"
#include "launcher/option_checks.hpp"
#include "launcher/runs/log_sinks.hpp"
#include "workflows/process_limits.hpp"

namespace tidemill::launcher {
namespace {

constexpr const char* kFooter =
    "Exit codes: 0 success; 1 the work failed; 2 the command line or a file it names cannot be "
    "used; 128 + N a signal N ended the program at once, as a second Ctrl-C does (130).\n"
    "Example: tidemill check configs/quickstart.yaml";

// Joins the lines of a parser's message, since an error is one line.
std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// Returns `text` on one line. A message may quote what the user typed, which may hold newlines and
// codes that control a terminal.
std::string printable_line(const std::string& text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      line += "\\n";
    } else if (byte < 0x20U || byte == 0x7FU) {
      line += {'\\', 'x', kDigits[byte >> 4U], kDigits[byte & 0xFU]};
    } else {
      line += c;
    }
  }
  return line;
}

// Returns an error message if `word` is not a command, else "". The parser itself would only report
// an unexpected argument.
std::string unknown_command(const std::string& word,
                            const std::vector<std::unique_ptr<Command>>& commands) {
  std::vector<std::string> names;
  names.reserve(commands.size());
  for (const auto& command : commands) {
    if (!command->hidden() || command->name() == word) {
      names.push_back(command->name());
    }
  }
  if (word.starts_with('-') || std::find(names.begin(), names.end(), word) != names.end()) {
    return {};
  }
  const std::string meant = schema::closest_name(word, names);
  return schema::clipped(word) + ": unknown command" +
         (meant.empty() ? "; tidemill --help lists all commands" : "; did you mean " + meant + '?');
}

// Returns the path of the key that `name` stands for: the path itself, its end, or the name that
// another program gives the key. Returns "" if there is none.
std::string key_called(const std::string& name, const Additions& additions) {
  const auto schema = run_schema(additions);
  if (!schema.ok()) {
    return {};
  }
  for (const KeyReference& key : list_keys(schema.value().structure())) {
    const bool called =
        std::find(key.also_called.begin(), key.also_called.end(), name) != key.also_called.end();
    if (key.path == name || key.path.ends_with('.' + name) || called) {
      return key.path;
    }
  }
  return {};
}

// Returns how `option` is written as a key of a run's file, or "" if `command` takes no keys or
// none has this name.
std::string override_hint(const std::string& command, const std::string& option,
                          const Additions& additions) {
  constexpr std::array<std::string_view, 4> kTakeOverrides = {"run", "check", "resume", "serve"};
  if (std::find(kTakeOverrides.begin(), kTakeOverrides.end(), command) == kTakeOverrides.end()) {
    return {};
  }
  const std::size_t equals = std::min(option.find('='), option.size());
  const std::string key = key_called(option.substr(2, equals - 2), additions);
  const std::string value = equals < option.size() ? option.substr(equals + 1) : "VALUE";
  return key.empty() ? key
                     : "; keys are written without dashes: " + schema::clipped(key + '=' + value);
}

// Returns the option of `command` that `option` most likely stands for, or "".
std::string closest_option(const CLI::App& command, const std::string& option) {
  const auto replaced = [](std::string text, char from, char to) {
    std::replace(text.begin(), text.end(), from, to);
    return text;
  };
  std::vector<std::string> names;
  for (const CLI::Option* known : command.get_options()) {
    for (const std::string& name : known->get_lnames()) {
      names.push_back(replaced(name, '-', '_'));
    }
  }
  const std::string wanted = option.substr(2, option.find('=') - 2);
  const std::string meant = schema::closest_name(replaced(wanted, '-', '_'), names);
  return meant.empty() ? meant : "--" + replaced(meant, '_', '-');
}

// Returns the message about the first unknown option, or else the first argument too many.
std::string unexpected_argument(CLI::App& app, const std::vector<std::string>& arguments,
                                const Additions& additions) {
  const std::vector<std::string> left = app.remaining(true);
  const auto is_left = [&](const std::string& argument) {
    return std::find(left.begin(), left.end(), argument) != left.end();
  };
  const auto option = std::find_if(
      arguments.begin(), arguments.end(),
      [&](const std::string& argument) { return argument.starts_with("--") && is_left(argument); });
  if (option == arguments.end()) {
    const auto first = std::find_if(arguments.begin(), arguments.end(), is_left);
    return schema::clipped(first == arguments.end() ? left.front() : *first) +
           ": is one argument too many";
  }
  std::string problem = schema::clipped(*option) + ": unknown option";
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  if (parsed.empty()) {
    return problem;
  }
  const std::string command = parsed.front()->get_name();
  if (const std::string hint = override_hint(command, *option, additions); !hint.empty()) {
    return problem + hint;
  }
  const std::string meant = closest_option(*parsed.front(), *option);
  return problem + (meant.empty() ? "; tidemill " + command + " --help lists all options"
                                  : "; did you mean " + meant + '?');
}

struct Parsed {
  Command* command = nullptr;
  SharedOptions shared;
};

void declare(CLI::App& app, const std::vector<std::unique_ptr<Command>>& commands, Parsed& parsed) {
  app.set_version_flag("--version", "tidemill " TIDEMILL_VERSION);
  app.require_subcommand(1);
  app.footer(kFooter);
  for (const auto& command : commands) {
    CLI::App* sub = app.add_subcommand(command->name(), command->summary());
    sub->footer("Example: " + command->example());
    if (command->hidden()) {
      sub->group("");
    }
    declare_options(*command, parsed.shared, *sub);
    sub->callback([&parsed, chosen = command.get()] { parsed.command = chosen; });
  }
}

Status run_command(const Parsed& parsed, const std::vector<std::string>& arguments,
                   std::ostream& out, std::ostream& err, const Additions& additions) {
  TIDEMILL_ASSIGN_OR_RETURN(const LogLevel level, parse_log_level(parsed.shared.log_level));
  const SystemClock clock;
  Log log(clock, level);
  log.add_sink(make_stderr_sink());
  Session session{out,      err,       log,
                  clock,    additions, parsed.shared.json ? OutputForm::kJson : OutputForm::kText,
                  arguments};
  return parsed.command->run(session);
}

bool wants_json(const std::vector<std::string>& arguments) {
  const auto options_end = std::find(arguments.begin(), arguments.end(), "--");
  return std::find(arguments.begin(), options_end, "--json") != options_end;
}

// Reports how the program ended.
class Reporter {
public:
  Reporter(bool json, std::ostream& out, std::ostream& err) : json_(json), out_(out), err_(err) {}

  // Prints the error message, if any, and returns the exit code. A result that could not be written
  // is a failure, too.
  [[nodiscard]] int end(Status status) const {
    out_.flush();
    if (status.ok() && !out_.good()) {
      status = Status(Errc::kUnavailable, "stdout: cannot be written");
    }
    if (!status.ok()) {
      if (json_) {
        const auto replace = nlohmann::json::error_handler_t::replace;
        out_ << nlohmann::json{{"error", status.message()}}.dump(-1, ' ', false, replace) << '\n';
        out_.flush();
      }
      err_ << printable_line(status.message()) << '\n';
    }
    return exit_code(status);
  }

private:
  bool json_;
  std::ostream& out_;
  std::ostream& err_;
};

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

void declare_options(Command& command, SharedOptions& shared, CLI::App& app) {
  app.add_flag("--json", shared.json, "Print one JSON object per line");
  auto* level =
      app.add_option("--log-level", shared.log_level, "Lowest level of messages on stderr")
          ->capture_default_str();
  accept_names(*level, {"debug", "info", "warning", "error"});
  command.declare(app);
}

int run_program(const std::vector<std::string>& arguments,
                const std::vector<std::unique_ptr<Command>>& commands, std::ostream& out,
                std::ostream& err, const Additions& additions) {
  CLI::App app("Post-training of language models, on an actor-based dataflow framework.",
               "tidemill");
  Parsed parsed;
  declare(app, commands, parsed);
  if (arguments.empty()) {
    err << app.help();
    return kRefused;
  }
  // Looks for --json before parsing, since errors of the parser are reported as JSON, too.
  const Reporter reporter(wants_json(arguments), out, err);
  if (const std::string problem = unknown_command(arguments.front(), commands); !problem.empty()) {
    return reporter.end(invalid_argument("tidemill: " + problem));
  }
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // last one first
  } catch (const CLI::Success& wish) {                                          // --help, --version
    app.exit(wish, out, err);
    return reporter.end(Status());
  } catch (const CLI::ValidationError& error) {  // names the option
    return reporter.end(invalid_argument(one_line(error.what())));
  } catch (const CLI::ExtrasError&) {
    return reporter.end(
        invalid_argument("tidemill: " + unexpected_argument(app, arguments, additions)));
  } catch (const CLI::Error& error) {
    return reporter.end(invalid_argument("tidemill: " + one_line(error.what())));
  }
  Status status;
  try {
    status = run_command(parsed, arguments, out, err, additions);
  } catch (const std::bad_alloc&) {
    status =
        Status(Errc::kResourceExhausted,
               "tidemill: out of memory" + workflows::limits_text(workflows::LimitKinds::kMemory));
  } catch (const std::system_error& error) {
    const bool refused = error.code() == std::errc::resource_unavailable_try_again;
    status =
        Status(Errc::kResourceExhausted,
               "tidemill: " + (refused ? "a thread cannot be started" : one_line(error.what())) +
                   workflows::limits_text(workflows::LimitKinds::kMemoryAndThreads));
  } catch (const std::exception& error) {
    status = Status(Errc::kInternal, "tidemill: " + one_line(error.what()));
  }
  return reporter.end(std::move(status));
}

}  // namespace tidemill::launcher
