#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the peak memory of a run's process is what the run expected before its first step, and
that generated rows, which are kept only to save time, are not kept if `device.memory_bytes` is too
small.

Usage: memory_plan.py PROGRAM SOURCE_DIR

Runs the README's configurations and a short run, each in a separate process, and compares the
printed estimate with the peak that the system reports for the process.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

# A resumed run reads a commit in addition, and has to free what it read before its first step ends.
RESUMED_BOUND = 0.04

# The overhead of the allocator and the part of the program's code that runs cannot be predicted.
BOUND = 0.10

RUNS = (
    ["quickstart"],
    ["quickstart-sft"],
    # Ends before its first commit and has only one evaluation, so less is cached at a time.
    ["quickstart", "train.steps=30"],
)


def folder_of(source: str) -> tempfile.TemporaryDirectory:
    """Returns a folder for runs, with links to the configurations and their data."""
    folder = tempfile.TemporaryDirectory()
    for entry in ("configs", "examples"):
        os.symlink(os.path.join(source, entry), os.path.join(folder.name, entry))
    return folder


def peak_of(arguments: list, folder: str) -> tuple:
    """Runs a program. Returns its standard error and its peak memory in bytes."""
    process = subprocess.Popen(arguments, cwd=folder, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    printed = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(arguments)}: status {status}\n{printed}")
    return printed, usage.ru_maxrss * 1024


def plan_of(program: str, folder: str, *over: str) -> dict:
    """Returns the memory plan of an on-policy quickstart run: bytes by part."""
    printed = subprocess.run([program, "run", "configs/quickstart.yaml", "staleness.max=0", "--dry-run", "--json", *over],
                             cwd=folder, capture_output=True, text=True)
    if printed.returncode != 0:
        sys.exit(f"{over}: status {printed.returncode}\n{printed.stderr}")
    return json.loads(printed.stdout)


def check_rows_give_way(program: str, folder: str) -> None:
    """Checks that generated rows are kept for training only if memory allows. Uses one process for each
    plan, since planning itself makes a process grow."""
    most = plan_of(program, folder)["memory_bytes"]
    less = plan_of(program, folder, f"device.memory_bytes={most['total'] - most['generated'] // 2}")
    left = [less[which]["generated"] for which in ("memory_bytes", "expected_memory_bytes")]
    print(f"rows kept: {most['generated']} bytes, and {left} bytes if only half of them fit")
    if most["generated"] <= 0 or left != [0, 0]:
        sys.exit("rows are not kept although they fit, or kept although they do not")


def check_resumed_peak(program: str, source: str) -> None:
    """Checks that a resumed run has the peak of a fresh one of as many steps."""
    with folder_of(source) as folder:
        model = os.path.join(folder, "model")
        os.mkdir(model)
        shipped = os.path.join(source, "examples/models/arithmetic")
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            os.symlink(os.path.join(shipped, name), os.path.join(model, name))
        with open(os.path.join(shipped, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        config.update(hidden_size=512, intermediate_size=1024, num_hidden_layers=4,
                      num_attention_heads=8, num_key_value_heads=8, head_dim=64)
        with open(os.path.join(model, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        run = [program, "run", "configs/quickstart-sft.yaml", "model.path=model", "train.schedule=constant",
               "train.warmup_steps=0", "train.sequences_per_step=16", "train.steps=2", "name=run"]
        fresh = peak_of(run, folder)[1]
        resumed = peak_of([program, "resume", "runs/run", "train.steps=4"], folder)[1]
    print(f"resumed: peak {resumed / (1 << 20):.1f} MiB, of the fresh run {fresh / (1 << 20):.1f} MiB")
    if resumed > (1 + RESUMED_BOUND) * fresh:
        sys.exit("a resumed run needs more memory than a fresh one")


def main() -> None:
    program, source = sys.argv[1:]
    with folder_of(source) as folder:
        check_rows_give_way(program, folder)
    check_resumed_peak(program, source)
    failed = False
    for name, *over in RUNS:
        with folder_of(source) as folder:
            printed, peak = peak_of([program, "run", f"configs/{name}.yaml", *over], folder)
        expected = float(re.search(r"memory: ([0-9.]+) MiB expected", printed).group(1))
        share = peak / (1 << 20) / expected
        print(f"{' '.join([name, *over])}: expected {expected} MiB, peak {peak / (1 << 20):.1f} MiB, {share:.3f}")
        failed = failed or abs(share - 1) > BOUND
    if failed:
        sys.exit("an estimate is wrong by more than 10%")


if __name__ == "__main__":
    main()
