#!/usr/bin/env python3
"""Checks the sources without running them: form, headers, clang-tidy.

Usage: lint.py CHECK ROOT BUILD

  files    first line, include guard, length, file names, marks of unfinished work
  format   clang-format
  headers  every header but those of tests compiles alone
  tidy     clang-tidy on sources changed since the main branch (TIDEMILL_LINT_BASE names another base)

Exits with 1 if it has a finding, and with 77 if a tool is missing, which ctest reports as skipped.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

MAX_LINES = 800
SKIPPED = 77
CODE = {".hpp", ".cpp", ".h", ".cu", ".cuh"}
GENERIC_NAMES = re.compile(r"(^|_)(utils?|helpers?|common|managers?)(_|$)")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def tracked(root):
    """Returns the project's files, without build outputs and generated files."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard"],
                            capture_output=True, text=True)
    if listed.returncode == 0:
        paths = [root / name for name in listed.stdout.splitlines()]
    else:  # an exported tree
        paths = [path for path in root.rglob("*") if "build" not in path.relative_to(root).parts]
    return sorted(path for path in paths if path.is_file())


def sources(root):
    return [path for path in tracked(root) if path.suffix in CODE]


def tool(name):
    """Returns the path of version 14 of the program, or ends the check as skipped."""
    for candidate in (f"{name}-14", name):
        found = shutil.which(candidate)
        if found:
            version = subprocess.run([found, "--version"], capture_output=True, text=True).stdout
            if "version 14." in version:
                return found
    print(f"not run: {name} 14 is not installed")
    sys.exit(SKIPPED)


def run_all(commands, root):
    """Runs each (label, command, stdin) on all cores. Returns the output of the commands that failed."""
    def run(job):
        label, command, text = job
        done = subprocess.run(command, cwd=root, input=text, capture_output=True, text=True)
        return (label, done.stdout + done.stderr) if done.returncode else None

    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        failed = [result for result in pool.map(run, commands) if result]
    return [f"{label}: failed\n{output}" for label, output in failed]


def check_files(root, _build):
    findings = []
    for path in sources(root):
        where = path.relative_to(root)
        lines = path.read_text().splitlines()
        if not lines or "SPDX-License-Identifier: Apache-2.0" not in lines[0]:
            findings.append(f"{where}:1: the first line is not the SPDX license line")
        if path.suffix == ".hpp" and "#pragma once" not in lines:
            findings.append(f"{where}: lacks #pragma once")
        if len(lines) > MAX_LINES:
            findings.append(f"{where}: has {len(lines)} lines; the maximum is {MAX_LINES}")
        if GENERIC_NAMES.search(path.stem):
            findings.append(f"{where}: the name is too general; name the file after its purpose")
        for number, line in enumerate(lines, 1):
            if UNFINISHED.search(line):
                findings.append(f"{where}:{number}: unfinished work belongs in an issue")
    return findings


def check_format(root, _build):
    program = tool("clang-format")
    return run_all([(path.relative_to(root), [program, "--dry-run", "-Werror", str(path)], None)
                    for path in sources(root)], root)


def check_headers(root, build):
    headers = [path.relative_to(root) for path in sources(root)
               if path.suffix == ".hpp" and path.relative_to(root).parts[0] != "tests"]
    with tempfile.TemporaryDirectory() as installed:
        # The examples include the headers as they are installed. The build holds the generated ones.
        pathlib.Path(installed, "tidemill").symlink_to(root)
        compiler = ["g++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
                    f"-I{root}", "-isystem", installed, "-isystem", build, "-x", "c++", "-"]
        return run_all([(header, compiler, f'#include "{header}"\n') for header in headers], root)


def sources_of(compiled):
    """Returns the sources that a compiled file stands for: those that a file of a unity build includes."""
    path = pathlib.Path(compiled)
    if path.parent.name != "Unity":
        return [compiled]
    return re.findall(r'^#include "(.*)"$', path.read_text(), re.MULTILINE)


def compile_commands(build):
    """Returns {source: flags}, with only the flags for include paths, macros, the language version and tile registers.

    Kernel files have code for every processor, so that they compile without other flags. Only tiles have no substitute.
    """
    path = build / "compile_commands.json"
    if not path.exists():
        print(f"not run: {path} is missing; configure first")
        sys.exit(SKIPPED)
    commands = {}
    for entry in json.loads(path.read_text()):
        words = shlex.split(entry["command"])
        flags = []
        for i, word in enumerate(words):
            if word.startswith(("-I", "-D", "-std=", "-mamx")):
                flags.append(word)
            elif word == "-isystem":
                flags += [word, words[i + 1]]
        commands.update(dict.fromkeys(sources_of(entry["file"]), flags))
    return commands


def changed_files(root):
    """Returns the names of files changed since the base, or ends the check as skipped."""
    def git(*words):
        return subprocess.run(["git", "-C", root, *words], capture_output=True, text=True)

    head = git("rev-parse", "HEAD").stdout.strip()
    for base in (os.environ.get("TIDEMILL_LINT_BASE"), "origin/main", "main", "HEAD~1"):
        if not base:
            continue
        fork = git("merge-base", base, "HEAD")
        if fork.returncode == 0 and fork.stdout.strip() != head:
            print(f"changed since {base}")
            listed = git("diff", "--name-only", fork.stdout.strip()).stdout
            new = git("ls-files", "-o", "--exclude-standard").stdout
            return set(listed.splitlines()) | set(new.splitlines())
    print("not run: there is no earlier commit to compare with")
    sys.exit(SKIPPED)


def check_tidy(root, build):
    program = tool("clang-tidy")
    commands = compile_commands(build)
    # A changed header is checked through the source with the same name, which includes it first.
    names = {str(pathlib.Path(name).with_suffix(".cpp")) for name in changed_files(root)
             if pathlib.Path(name).suffix in CODE and not name.startswith("tests/")}
    chosen = sorted(name for name in names if str(root / name) in commands)
    print(f"{len(chosen)} sources")
    return run_all([(name, [program, "--quiet", str(root / name), "--", "-x", "c++",
                            *commands[str(root / name)]], None) for name in chosen], root)


CHECKS = {"files": check_files, "format": check_format, "headers": check_headers, "tidy": check_tidy}


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in CHECKS:
        print(__doc__)
        return 2
    findings = CHECKS[sys.argv[1]](pathlib.Path(sys.argv[2]).resolve(),
                                   pathlib.Path(sys.argv[3]).resolve())
    print("\n".join(findings) or f"{sys.argv[1]} ok")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
