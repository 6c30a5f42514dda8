// SPDX-License-Identifier: Apache-2.0
// Writes the completion scripts. The parts that depend on the commands and keys are functions of
// `case` statements, which bash and zsh share. Each shell has its own code that uses them.
#include "launcher/commands/completion_script.hpp"

#include <algorithm>

namespace tidemill::launcher {
namespace {

std::string joined_words(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) {
    out += (out.empty() ? "" : " ") + word;
  }
  return out;
}

// Quotes a text for a shell. Only single quotes themselves need escaping in single quotes.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return out + "'";
}

std::string kind_word(const CompletedValue& value) {
  switch (value.kind) {
    case CompletedKind::kNothing: return "nothing";
    case CompletedKind::kText: return "text";
    case CompletedKind::kNames: return "names " + joined_words(value.names);
    case CompletedKind::kFile: return "file";
    case CompletedKind::kYaml: return "yaml";
    case CompletedKind::kFolder: return "folder";
    case CompletedKind::kRun: return "run";
    case CompletedKind::kKey: return "key";
    case CompletedKind::kOverride: return "override";
  }
  return "text";
}

// Returns the cases that print the kind of each argument: `COMMAND NUMBER)`, counted from 0, with
// `*` as the number of the last argument, which may be repeated.
std::string arguments_text(const CompletedCommand& command) {
  std::string out;
  for (std::size_t i = 0; i < command.arguments.size(); ++i) {
    const bool last = i + 1 == command.arguments.size();
    out += "    " + quoted(command.name + " ") + (last ? "*" : std::to_string(i)) + ") echo " +
           quoted(kind_word(command.arguments[i])) + " ;;\n";
  }
  return out;
}

std::string facts_text(const CompletionFacts& facts) {
  std::string commands;
  std::string options;
  std::string values;
  std::string arguments;
  for (const CompletedCommand& command : facts.commands) {
    commands += (commands.empty() ? "" : " ") + command.name;
    options += "    " + command.name + ") echo '";
    for (const CompletedOption& option : command.options) {
      options += (&option == &command.options.front() ? "" : " ") + option.name;
      values += "    " + quoted(command.name + ' ' + option.name) + ") echo " +
                quoted(kind_word(option.value)) + " ;;\n";
    }
    options += "' ;;\n";
    arguments += arguments_text(command);
  }
  std::vector<std::string> all_workflows;
  std::vector<std::string> all_keys;
  std::string names;
  for (const CompletedKey& key : facts.keys) {
    all_keys.push_back(key.path);
    for (const std::string& workflow : key.workflows) {
      if (std::find(all_workflows.begin(), all_workflows.end(), workflow) == all_workflows.end()) {
        all_workflows.push_back(workflow);
      }
    }
    if (!key.names.empty()) {
      names += "    " + key.path + ") echo " + quoted(joined_words(key.names)) + " ;;\n";
    }
  }
  std::string keys;
  for (const std::string& workflow : all_workflows) {
    std::vector<std::string> of_workflow;
    for (const CompletedKey& key : facts.keys) {
      if (std::find(key.workflows.begin(), key.workflows.end(), workflow) != key.workflows.end()) {
        of_workflow.push_back(key.path);
      }
    }
    keys += "    " + workflow + ") echo " + quoted(joined_words(of_workflow)) + " ;;\n";
  }
  return "_tidemill_commands='" + commands + "'\n" +
         "# Prints the options of COMMAND.\n_tidemill_options() {\n  case $1 in\n" + options +
         "  esac\n}\n"
         "# Prints the kind of the value of COMMAND OPTION.\n_tidemill_value() {\n  case \"$1 $2\" "
         "in\n" +
         values +
         "    *) echo nothing ;;\n  esac\n}\n"
         "# Prints the kind of the argument COMMAND NUMBER.\n_tidemill_argument() {\n"
         "  case \"$1 $2\" in\n" +
         arguments +
         "    *) echo text ;;\n  esac\n}\n"
         "# Prints the keys of a run's file, of one WORKFLOW or of all.\n_tidemill_keys() {\n  "
         "case $1 in\n" +
         keys + "    *) echo " + quoted(joined_words(all_keys)) +
         " ;;\n  esac\n}\n"
         "# Prints the values that KEY may have, if it has a fixed set.\n_tidemill_names() {\n  "
         "case $1 in\n" +
         names +
         "  esac\n}\n"
         "# Prints the workflow of FILE.\n_tidemill_workflow() {\n"
         "  sed -n 's/^workflow: *\\([a-z]*\\).*/\\1/p' \"$1\" 2>/dev/null | head -n 1\n}\n";
}

constexpr const char* kBash = R"SCRIPT(
_tidemill() {
  # Splits the line only at spaces, since bash itself also splits words at `=`.
  local line=${COMP_LINE:0:COMP_POINT} words word command='' want='' file='' position=0 kind
  read -ra words <<< "$line"
  [[ $line == *[[:space:]] ]] && words+=('')
  local cur=${words[-1]}
  for word in "${words[@]:1:${#words[@]}-2}"; do
    if [[ -n $want ]]; then
      want=''
    elif [[ $word == -* ]]; then
      [[ $word == *=* || $(_tidemill_value "$command" "$word") == nothing ]] || want=$word
    elif [[ -z $command ]]; then
      command=$word
    else
      file=${file:-$word}
      position=$((position + 1))
    fi
  done
  if [[ -n $want ]]; then
    kind=$(_tidemill_value "$command" "$want")
  elif [[ $cur == -* ]]; then
    kind="names $(_tidemill_options "$command")"
  elif [[ -z $command ]]; then
    kind="names $_tidemill_commands"
  else
    kind=$(_tidemill_argument "$command" "$position")
  fi
  COMPREPLY=()
  case $kind in
    names*) mapfile -t COMPREPLY < <(compgen -W "${kind#names}" -- "$cur") ;;
    yaml)
      compopt -o filenames 2> /dev/null
      mapfile -t COMPREPLY < <(compgen -f -X '!*.y*ml' -- "$cur"; compgen -d -- "$cur") ;;
    file)
      compopt -o filenames 2> /dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    folder)
      compopt -o filenames 2> /dev/null
      mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
    run)
      local runs='' run
      for run in runs/*/run.yaml; do
        [[ -e $run ]] && runs+=" ${run%/run.yaml}"
      done
      mapfile -t COMPREPLY < <(compgen -W "$runs" -- "$cur")
      if ((${#COMPREPLY[@]} == 0)); then
        compopt -o filenames 2> /dev/null
        mapfile -t COMPREPLY < <(compgen -d -- "$cur")
      fi ;;
    key) mapfile -t COMPREPLY < <(compgen -W "$(_tidemill_keys)" -- "$cur") ;;
    override)
      if [[ $cur == *=* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_tidemill_names "${cur%%=*}")" -- "${cur#*=}")
        # If `=` breaks words, bash replaces only the part behind it.
        [[ $COMP_WORDBREAKS == *=* ]] || COMPREPLY=("${COMPREPLY[@]/#/${cur%%=*}=}")
      else
        compopt -o nospace 2> /dev/null
        mapfile -t COMPREPLY < <(compgen -S = -W "$(_tidemill_keys \
          "$(_tidemill_workflow "$file")")" -- "$cur")
      fi ;;
  esac
}
complete -F _tidemill tidemill mill
)SCRIPT";

constexpr const char* kZsh = R"SCRIPT(
_tidemill() {
  local word command='' want='' file='' kind cur=${words[CURRENT]}
  local -i position=0 i
  for ((i = 2; i < CURRENT; ++i)); do
    word=${words[i]}
    if [[ -n $want ]]; then
      want=''
    elif [[ $word == -* ]]; then
      [[ $word == *=* || $(_tidemill_value "$command" "$word") == nothing ]] || want=$word
    elif [[ -z $command ]]; then
      command=$word
    else
      file=${file:-$word}
      position+=1
    fi
  done
  if [[ -n $want ]]; then
    kind=$(_tidemill_value "$command" "$want")
  elif [[ $cur == -* ]]; then
    kind="names $(_tidemill_options "$command")"
  elif [[ -z $command ]]; then
    kind="names $_tidemill_commands"
  else
    kind=$(_tidemill_argument "$command" "$position")
  fi
  case $kind in
    names*) compadd -- ${=kind#names} ;;
    yaml) _files -g '*.(yaml|yml)' ;;
    file) _files ;;
    folder) _files -/ ;;
    run)
      local -a runs=(runs/*/run.yaml(N:h))
      compadd -- $runs || _files -/ ;;
    key) compadd -- ${=$(_tidemill_keys)} ;;
    override)
      if [[ $cur == *=* ]]; then
        compset -P '*='
        compadd -- ${=$(_tidemill_names "${cur%%=*}")}
      else
        compadd -S = -- ${=$(_tidemill_keys "$(_tidemill_workflow "$file")")}
      fi ;;
  esac
}
compdef _tidemill tidemill mill
)SCRIPT";

std::string first_sentence(const std::string& help) {
  return help.substr(0, help.find(". "));
}

// Returns the options of fish's `complete` that offer values of a kind.
std::string fish_value(const CompletedValue& value) {
  switch (value.kind) {
    case CompletedKind::kNames: return " -x -a " + quoted(joined_words(value.names));
    case CompletedKind::kFile:
    case CompletedKind::kYaml: return " -r -F";
    case CompletedKind::kFolder: return " -x -a '(__fish_complete_directories)'";
    case CompletedKind::kRun: return " -x -a '(__tidemill_runs)'";
    case CompletedKind::kKey: return " -x -a '(__tidemill_keys \"\" \"\")'";
    case CompletedKind::kNothing: return "";
    default: return " -x";
  }
}

std::string fish_keys(const CompletionFacts& facts) {
  std::string out =
      "# Prints the keys of a run's file, of one WORKFLOW or of all, followed by SUFFIX, and their "
      "help.\n"
      "function __tidemill_keys\n";
  for (const CompletedKey& key : facts.keys) {
    out += "  contains -- \"$argv[1]\" ''";
    for (const std::string& workflow : key.workflows) {
      out += ' ' + workflow;
    }
    out += "; and printf '%s%s\\t%s\\n' " + key.path + " \"$argv[2]\" " +
           quoted(first_sentence(key.help)) + '\n';
  }
  out +=
      "end\n# Prints `key=value` for each value that KEY may have, if it has a fixed "
      "set.\nfunction __tidemill_names\n";
  for (const CompletedKey& key : facts.keys) {
    if (!key.names.empty()) {
      out += "  test \"$argv[1]\" = " + key.path + "; and printf '%s\\n' " + key.path + "=" +
             [&key] {
               std::string all;
               for (const std::string& name : key.names) {
                 all += (all.empty() ? "" : " " + key.path + "=") + name;
               }
               return all;
             }() +
             '\n';
    }
  }
  return out + "end\n";
}

constexpr const char* kFish = R"SCRIPT(function __tidemill_runs
  for run in runs/*/run.yaml
    string replace /run.yaml '' $run
  end
end
# Prints the arguments after the command, without options.
function __tidemill_arguments
  string match -v -- '-*' (commandline -opc)[3..]
end
function __tidemill_overrides
  set -l current (commandline -ct)
  if string match -q '*=*' -- $current
    __tidemill_names (string split -m 1 = -- $current)[1]
  else
    set -l file (__tidemill_arguments)[1]
    __tidemill_keys (sed -n 's/^workflow: *\([a-z]*\).*/\1/p' $file 2>/dev/null)[1] =
  end
end
function __tidemill_at
  test (count (__tidemill_arguments)) -eq $argv[1]
end
function __tidemill_from
  test (count (__tidemill_arguments)) -ge $argv[1]
end
)SCRIPT";

std::string fish_arguments(const CompletedCommand& command, const std::string& seen) {
  std::string out;
  for (std::size_t i = 0; i < command.arguments.size(); ++i) {
    const CompletedValue& argument = command.arguments[i];
    const bool last = i + 1 == command.arguments.size();
    const std::string when = " -n '" + seen + "; and " +
                             (last ? "__tidemill_from " : "__tidemill_at ") + std::to_string(i) +
                             "'";
    switch (argument.kind) {
      case CompletedKind::kOverride:
        out += "complete -c tidemill" + when + " -f -a '(__tidemill_overrides)'\n";
        break;
      case CompletedKind::kYaml:
      case CompletedKind::kFile: out += "complete -c tidemill" + when + " -F\n"; break;
      case CompletedKind::kText: break;
      default: {
        std::string value = fish_value(argument);
        value.replace(value.find("-x"), 2, "-f");  // an argument follows no option
        out.append("complete -c tidemill").append(when).append(value).append("\n");
      }
    }
  }
  return out;
}

}  // namespace

std::string bash_completion(const CompletionFacts& facts) {
  return "# bash completion of tidemill. Source it, or save it as\n"
         "# ~/.local/share/bash-completion/completions/tidemill\n" +
         facts_text(facts) + kBash;
}

std::string zsh_completion(const CompletionFacts& facts) {
  return "#compdef tidemill mill\n# zsh completion of tidemill. Source it after compinit.\n" +
         facts_text(facts) + kZsh;
}

std::string fish_completion(const CompletionFacts& facts) {
  std::string out =
      "# fish completion of tidemill. Save it as ~/.config/fish/completions/tidemill.fish\n" +
      fish_keys(facts) + kFish + "complete -c tidemill -f\ncomplete -c mill -w tidemill\n";
  for (const CompletedCommand& command : facts.commands) {
    out += "complete -c tidemill -n __fish_use_subcommand -a " + command.name + " -d " +
           quoted(command.help) + '\n';
    const std::string seen = "__fish_seen_subcommand_from " + command.name;
    for (const CompletedOption& option : command.options) {
      out += "complete -c tidemill -n '" + seen + "' -l " + option.name.substr(2) +
             fish_value(option.value) + " -d " + quoted(first_sentence(option.help)) + '\n';
    }
    out += fish_arguments(command, seen);
  }
  return out;
}

}  // namespace tidemill::launcher
