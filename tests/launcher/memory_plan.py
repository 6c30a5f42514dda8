#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that a run's process peaks at what the run expects of it before its first step, and that
what it would keep for speed alone gives way to `device.memory_bytes`.

Usage: memory_plan.py PROGRAM SOURCE_DIR

Runs the README's configurations and a short run, each in a process of its own, and compares the
printed estimate with the peak of the process as the system counts it.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

# What the allocator keeps between blocks, and what of the program's code runs, are not known before.
BOUND = 0.10

RUNS = (
    ["quickstart"],
    ["quickstart-sft"],
    # Ends before its first commit and holds one evaluation: less is cached at a time.
    ["quickstart", "train.steps=30"],
)


def folder_of(source: str) -> tempfile.TemporaryDirectory:
    """Returns a folder to run in, with the configurations and their data."""
    folder = tempfile.TemporaryDirectory()
    for entry in ("configs", "examples"):
        os.symlink(os.path.join(source, entry), os.path.join(folder.name, entry))
    return folder


def peak_of(arguments: list, folder: str) -> tuple:
    """Returns what a program printed, and the most memory it held, in bytes."""
    process = subprocess.Popen(arguments, cwd=folder, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    printed = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(arguments)}: status {status}\n{printed}")
    return printed, usage.ru_maxrss * 1024


def plan_of(program: str, folder: str, *over: str) -> dict:
    """Returns what the quickstart on policy says of its memory before it begins, in bytes by part."""
    printed = subprocess.run([program, "run", "configs/quickstart.yaml", "staleness.max=0", "--dry-run", "--json", *over],
                             cwd=folder, capture_output=True, text=True)
    if printed.returncode != 0:
        sys.exit(f"{over}: status {printed.returncode}\n{printed.stderr}")
    return json.loads(printed.stdout)


def check_rows_give_way(program: str, folder: str) -> None:
    """Checks that rows are kept for training only where memory allows it; another process than the
    first, as a process grows by what it has tried."""
    most = plan_of(program, folder)["memory_bytes"]
    less = plan_of(program, folder, f"device.memory_bytes={most['total'] - most['generated'] // 2}")
    left = [less[which]["generated"] for which in ("memory_bytes", "expected_memory_bytes")]
    print(f"rows kept: {most['generated']} bytes, and {left} where half of them fit")
    if most["generated"] <= 0 or left != [0, 0]:
        sys.exit("rows are kept, or not, against what memory allows")


def main() -> None:
    program, source = sys.argv[1:]
    with folder_of(source) as folder:
        check_rows_give_way(program, folder)
    failed = False
    for name, *over in RUNS:
        with folder_of(source) as folder:
            printed, peak = peak_of([program, "run", f"configs/{name}.yaml", *over], folder)
        expected = float(re.search(r"memory: expected peak ([0-9.]+) MiB", printed).group(1))
        share = peak / (1 << 20) / expected
        print(f"{' '.join([name, *over])}: expected {expected} MiB, peak {peak / (1 << 20):.1f} MiB, {share:.3f}")
        failed = failed or abs(share - 1) > BOUND
    if failed:
        sys.exit("the estimate is off")


if __name__ == "__main__":
    main()
