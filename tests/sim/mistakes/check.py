#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants each mistake of this folder in a copy of the tree and shows whether the tests catch it.

check.py                        copies the tree to build/mistakes and works there
check.py --in-place             works in this tree, which must be a copy that nothing else uses
check.py --only 04 --only lost  tries only the mistakes whose names contain one of these words
check.py --applies              builds nothing; checks that every patch applies and is in README.md
check.py --self-test            builds nothing; checks that deadlines are counted separately

Each patch begins with a sentence that says what goes wrong, then `Breaks: ` with the invariants, and
`Suites: ` with the test programs to run in addition to the simulation. A program may take ten times as
long as it does without mistakes. A mistake that only such a deadline catches is counted separately.
The exit code is 0 if the tree without mistakes passes and at least nine in ten mistakes are caught.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
MIN_CAUGHT_SHARE = 0.9
# How long a test program may run. The first limit is for the tree without mistakes, the others are for
# a tree with a mistake. A mistake or a busy machine may make a program slower, but only a program that
# hangs takes ten times as long.
FIRST_LIMIT_SECONDS = 3600
MIN_LIMIT_SECONDS = 120
LIMIT_FACTOR = 10


class Failure:
    """The failure of a test program. `hung` is true if the program ran past its deadline."""

    def __init__(self, suite, message, hung=False):
        self.suite = suite
        self.message = message
        self.hung = hung

    def __repr__(self):
        return f"{self.suite}: {self.message}"


class Mistake:
    def __init__(self, path):
        self.path = path
        self.name = path.stem
        head = path.read_text().split("\n--- a/")[0].split("\n")
        self.summary = head[0]
        self.fields = dict(re.findall(r"^(\w+): *(.*)$", "\n".join(head[1:]), re.MULTILINE))
        self.breaks = self.fields.get("Breaks", "")
        self.suites = self.fields.get("Suites", "").split()


def mistakes(parts):
    found = [Mistake(path) for path in sorted(HERE.glob("*.patch"))]
    return [one for one in found if not parts or any(part in one.name for part in parts)]


def git_apply(tree, *arguments):
    """Runs `git apply` on the files of `tree`, even if they belong to no repository."""
    environment = dict(os.environ, GIT_CEILING_DIRECTORIES=str(tree.parent), GIT_DIR=str(tree / ".none"))
    return subprocess.run(["git", "apply", *map(str, arguments)], cwd=tree, env=environment,
                          capture_output=True, text=True)


def check_applies():
    findings = []
    readme = (HERE / "README.md").read_text()
    every = mistakes([])
    for one in every:
        done = git_apply(ROOT, "--check", one.path)
        if done.returncode:
            findings.append(f"{one.name}: does not apply: {done.stderr.strip()}")
        if not one.summary.endswith(".") or not one.breaks:
            findings.append(f"{one.name}: does not begin with a sentence and `Breaks:`")
        if f"`{one.name}`" not in readme:
            findings.append(f"{one.name}: is not listed in README.md")
    for name in re.findall(r"`(\d\d-[\w-]+)`", readme):
        if not (HERE / f"{name}.patch").exists():
            findings.append(f"{name}: listed in README.md, but the patch does not exist")
    if len(every) < 20:
        findings.append(f"only {len(every)} mistakes")
    print("\n".join(findings) or f"{len(every)} patches apply")
    return 1 if findings else 0


def copy_tree(target):
    """Copies this tree to `target`, except the files that `target` already has with the same content."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.splitlines()
    for name in listed:
        source, copy = ROOT / name, target / name
        if not source.is_file():
            continue
        if not copy.exists() or copy.read_bytes() != source.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)


class Checker:
    def __init__(self, tree, seeds, jobs):
        self.tree = tree
        self.build = tree / "build" / "release"
        self.seeds = seeds
        self.jobs = jobs
        self.seconds = {}  # run time by suite, without mistakes

    def configure(self):
        if (self.build / "build.ninja").exists():
            return
        launcher = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"]
        subprocess.run(["cmake", "--preset", "release", *(launcher if shutil.which("ccache") else [])],
                       cwd=self.tree, check=True, stdout=subprocess.DEVNULL)

    def compile(self, suites):
        """Builds the programs. Returns the end of the build's output if it fails, else an empty string."""
        done = subprocess.run(["ninja", "-C", str(self.build), f"-j{self.jobs}", "sim_soak", *suites],
                              capture_output=True, text=True)
        return done.stdout[-2000:] if done.returncode else ""

    def limit(self, suite):
        if suite not in self.seconds:
            return FIRST_LIMIT_SECONDS
        return max(MIN_LIMIT_SECONDS, LIMIT_FACTOR * self.seconds[suite])

    def command(self, suite):
        program = next(path for path in self.build.glob(f"tests/**/{suite}") if path.is_file())
        return [str(program), *([f"--seeds={self.seeds}", "--max-failures=1"] if suite == "sim_soak"
                                else ["--gtest_brief=1", "--gtest_fail_fast"])]

    def run(self, suite):
        """Runs a test program. Returns its first failure, or None."""
        limit = self.limit(suite)
        try:
            done = subprocess.run(self.command(suite), capture_output=True, text=True, errors="replace",
                                  timeout=limit)
        except subprocess.TimeoutExpired:
            return Failure(suite, f"still running after {limit:.0f} s", hung=True)
        if done.returncode == 0:
            return None
        return Failure(suite, first_failure(done.stdout + done.stderr) or f"exit code {done.returncode}")

    def find(self, suites):
        """Runs the simulation and the suites. Returns the failures."""
        return [found for found in (self.run(suite) for suite in ["sim_soak", *suites]) if found]

    def measure(self, suites):
        """Runs all programs without a mistake, and measures how long each takes. Returns the failures."""
        failures = []
        for suite in ["sim_soak", *suites]:
            started = time.monotonic()
            failure = self.run(suite)
            if failure:
                failures.append(failure)
            else:
                self.seconds[suite] = time.monotonic() - started
        return failures


def first_failure(output):
    lines = output.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("FAILED "):
            return line[len("FAILED "):]
        if line.endswith(": Failure"):
            test = next((re.sub(r" \(.*", "", later[len("[  FAILED  ] "):])
                         for later in lines[number:] if later.startswith("[  FAILED  ] ")), "")
            message = " ".join(text.strip() for text in lines[number + 1:number + 4])
            return f"{test}: {message}"
    return ""


def check_one(checker, one):
    applied = git_apply(checker.tree, one.path)
    if applied.returncode:
        return [], f"does not apply: {applied.stderr.strip()}"
    try:
        broken = checker.compile(one.suites)
        return ([], f"does not build: {broken}") if broken else (checker.find(one.suites), "")
    finally:
        git_apply(checker.tree, "-R", one.path)


def verdict(found):
    if not found:
        return "NOT CAUGHT"
    return "caught by its deadline" if all(one.hung for one in found) else "caught"


def report(one, found, problem, seconds):
    print(f"{verdict(found):<10} {one.name} ({one.breaks}; {seconds:.0f} s)"
          f"{': ' + problem if problem else ''}")
    for failure in found:
        print(f"             {failure.suite}: {failure.message[:200]}")
    sys.stdout.flush()


def summary(verdicts):
    """Returns the last line of the output. `verdicts` maps the name of each mistake to its verdict."""
    missed = [name for name, found in verdicts.items() if found == "NOT CAUGHT"]
    timed = [name for name, found in verdicts.items() if found == "caught by its deadline"]
    return (f"caught {len(verdicts) - len(missed)} of {len(verdicts)}"
            f"{f', {len(timed)} of them by a deadline alone: ' + ', '.join(timed) if timed else ''}"
            f"{'; not caught: ' + ', '.join(missed) if missed else ''}")


def check_all(arguments):
    tree = ROOT if arguments.in_place else pathlib.Path(arguments.scratch).resolve()
    if not arguments.in_place:
        tree.mkdir(parents=True, exist_ok=True)
        copy_tree(tree)
    chosen = mistakes(arguments.only)
    checker = Checker(tree, arguments.seeds, arguments.jobs)
    checker.configure()
    suites = sorted({suite for one in chosen for suite in one.suites})
    broken = checker.compile(suites)
    failures = [] if broken else checker.measure(suites)
    if broken or failures:
        print(f"the tree without mistakes does not pass: {broken or failures}")
        return 1
    print(f"without mistakes: {arguments.seeds} seeds and {', '.join(suites) or 'no suite'} pass")
    sys.stdout.flush()
    verdicts = {}
    for one in chosen:
        started = time.monotonic()
        found, problem = check_one(checker, one)
        report(one, found, problem, time.monotonic() - started)
        verdicts[one.name] = verdict(found)
    print(summary(verdicts))
    missed = sum(found == "NOT CAUGHT" for found in verdicts.values())
    return 0 if len(chosen) - missed >= MIN_CAUGHT_SHARE * len(chosen) else 1


def self_test():
    """Checks that a program that fails is caught, and one that hangs is caught by its deadline."""
    with tempfile.TemporaryDirectory() as folder:
        checker = Checker(pathlib.Path(folder), seeds=1, jobs=1)
        programs = checker.build / "tests"
        programs.mkdir(parents=True)
        for name, text in {"sim_soak": "true", "fails": "echo FAILED here; exit 1",
                           "hangs": "exec sleep 600"}.items():
            (programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (programs / name).chmod(0o755)
        findings = [] if not checker.measure([]) else ["sim_soak did not pass"]
        checker.seconds["hangs"] = 0.0
        checker.seconds["slow"] = 100.0
        limits = [checker.limit(suite) for suite in ("new", "hangs", "slow")]
        checker.limit = lambda suite: 0.2 if suite == "hangs" else 60
        verdicts = {"a": verdict(checker.find(["fails"])), "b": verdict(checker.find(["hangs"])),
                    "c": verdict(checker.find(["hangs", "fails"])), "d": verdict(checker.find([]))}
    for actual, expected in [(limits, [3600, 120, 1000]),
                             (list(verdicts.values()),
                              ["caught", "caught by its deadline", "caught", "NOT CAUGHT"]),
                             (summary(verdicts),
                              "caught 3 of 4, 1 of them by a deadline alone: b; not caught: d")]:
        if actual != expected:
            findings.append(f"{actual}, expected {expected}")
    print("\n".join(findings) or "deadlines are counted separately")
    return 1 if findings else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--applies", action="store_true", help="only check that the patches apply")
    parser.add_argument("--self-test", action="store_true", help="only check how deadlines count")
    parser.add_argument("--in-place", action="store_true", help="work in this tree, not in a copy")
    parser.add_argument("--scratch", default=str(ROOT / "build" / "mistakes"), help="directory of the copy")
    parser.add_argument("--seeds", type=int, default=1000, help="seeds to simulate for each mistake")
    parser.add_argument("--jobs", "-j", type=int, default=1, help="number of concurrent compilers")
    parser.add_argument("--only", action="append", default=[], help="part of a name; may be repeated")
    arguments = parser.parse_args()
    if arguments.applies or arguments.self_test:
        return check_applies() if arguments.applies else self_test()
    return check_all(arguments)


if __name__ == "__main__":
    sys.exit(main())
