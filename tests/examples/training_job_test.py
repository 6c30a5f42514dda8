#!/usr/bin/env python3
"""Runs examples/training_job and checks what it trained.

Usage: training_job_test.py PROGRAM TIDEMILL MODEL
"""
import pathlib
import re
import subprocess
import sys
import tempfile


def run(*command):
    """Runs a command, which must succeed. Returns its standard output."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"{command}: ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def expect(condition, what):
    if not condition:
        sys.exit(f"expected: {what}")


def check(program, tidemill, model):
    """Runs `program` and checks its output, and that `tidemill` generates with the adapter that it wrote."""
    with tempfile.TemporaryDirectory(prefix="tidemill-training-job-") as name:
        adapter = pathlib.Path(name) / "adapter"
        printed = run(program, model, adapter)
        expect("base model: 17+25=32 17+36=43 " in printed, f"the base model forgets the carry: {printed}")
        for task in ("sums", "differences"):
            losses = re.search(rf"^{task}: loss (\S+) to (\S+)$", printed, re.MULTILINE)
            expect(losses and float(losses[2]) < float(losses[1]) / 10, f"the loss of {task} falls: {printed}")
        for when in ("reloaded", "one step later"):
            expect(f"\n{when}: the same bits\n" in printed, printed)
        expect("\nadapter: 17+25=42 \n" in printed, f"the adapter adds: {printed}")
        generated = run(tidemill, "generate", model, "17+25=", "--greedy", "--adapter", adapter)
        expect(generated == "42\n", f"tidemill generates with the adapter: {generated}")


if __name__ == "__main__":
    check(*sys.argv[1:])
