#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that a run's process peaks at what the run expects of it before its first step.

Usage: memory_plan.py PROGRAM SOURCE_DIR

Runs the README's configurations, each in a process of its own, and compares the printed estimate
with the peak of the process as the system counts it.
"""
import os
import re
import subprocess
import sys
import tempfile

# What the allocator keeps between blocks, and what of the program's code runs, are not known before.
BOUND = 0.10

RUNS = ("quickstart", "quickstart-sft")


def peak_of(arguments: list, folder: str) -> tuple:
    """Returns what a program printed, and the most memory it held, in bytes."""
    process = subprocess.Popen(arguments, cwd=folder, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    printed = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(arguments)}: status {status}\n{printed}")
    return printed, usage.ru_maxrss * 1024


def main() -> None:
    program, source = sys.argv[1:]
    failed = False
    for name in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            for entry in ("configs", "examples"):
                os.symlink(os.path.join(source, entry), os.path.join(folder, entry))
            printed, peak = peak_of([program, "run", f"configs/{name}.yaml"], folder)
        expected = float(re.search(r"memory: expected peak ([0-9.]+) MiB", printed).group(1))
        share = peak / (1 << 20) / expected
        print(f"{name}: expected {expected} MiB, peak {peak / (1 << 20):.1f} MiB, {share:.3f}")
        failed = failed or abs(share - 1) > BOUND
    if failed:
        sys.exit("the estimate is off")


if __name__ == "__main__":
    main()
