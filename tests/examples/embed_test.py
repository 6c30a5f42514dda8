#!/usr/bin/env python3
"""Builds examples/embed and examples/training_job from an install tree, as separate projects, and runs them.

Usage: embed_test.py ROOT BUILD [COMPILER_LAUNCHER]
"""
import json
import pathlib
import subprocess
import sys
import tempfile

from training_job_test import check as check_training_job, expect


def run(*command, cwd=None, code=0):
    """Runs a command, which must exit with `code`. Returns its standard output and standard error."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True,
                          timeout=600)
    if done.returncode != code:
        sys.exit(f"{command}: ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def check_headers(prefix):
    """Checks that installed headers include each other as `<tidemill/...>`, and that all of these exist."""
    headers = sorted((prefix / "include/tidemill").rglob("*.hpp"))
    expect(len(headers) > 100, f"{len(headers)} headers are installed")
    for header in headers:
        for line in header.read_text().splitlines():
            expect(not line.startswith('#include "'), f"{header}: {line}")
            if line.startswith("#include <tidemill/"):
                name = line.split("<")[1].split(">")[0]
                expect((prefix / "include" / name).exists(), f"{header}: {line} is installed")
    return len(headers)


def main():
    root, build = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    launcher = sys.argv[3] if len(sys.argv) > 3 else ""
    with tempfile.TemporaryDirectory(prefix="tidemill-embed-") as name:
        folder = pathlib.Path(name)
        prefix = folder / "prefix"
        run("cmake", "--install", build, "--prefix", prefix)
        print(f"{check_headers(prefix)} headers installed")
        expect("tidemill" in run(prefix / "bin/tidemill", "--version"), "the program is installed")
        for example in ("embed", "training_job"):
            run("cmake", "-S", root / "examples" / example, "-B", folder / example, "-G", "Ninja",
                f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}")
            run("cmake", "--build", folder / example)
        check_training_job(folder / "training_job/training_job", prefix / "bin/tidemill",
                           root / "examples/models/arithmetic")
        program = folder / "embed/closeness"

        explained = run(program, "explain", "reward")
        expect("closeness: Higher for responses closer to the reference answer." in explained, explained)
        expect("median: rewards minus the median" in run(program, "explain", "algorithm"), "the row")
        config = root / "examples/embed/run.yaml"
        arithmetic = root / "examples"
        keys = [f"model.path={arithmetic}/models/arithmetic",
                f"data.train={arithmetic}/arithmetic/data/train.jsonl",
                f"data.eval={arithmetic}/arithmetic/data/eval.jsonl"]
        refused = run(program, "check", config, *keys, "reward.scale=0", code=2)
        expect("reward.scale: needs a finite number above 0, found 0" in refused, refused)
        unknown = run(prefix / "bin/tidemill", "check", config, *keys, code=2)
        expect("closeness" in unknown, "tidemill itself does not know the kind")

        printed = run(program, "run", config, *keys, cwd=folder)
        expect("done: step 3" in printed, printed)
        lines = [json.loads(line) for line in
                 (folder / "runs/closeness/metrics.jsonl").read_text().splitlines()]
        expect([line["step"] for line in lines if line["kind"] == "train"] == [1, 2, 3], lines)
        samples = [json.loads(line) for line in
                   (folder / "runs/closeness/samples.jsonl").read_text().splitlines()]
        expect(len(samples) == 48, f"{len(samples)} samples")
        for sample in samples:
            group = sorted(s["reward"] for s in samples if s["group"] == sample["group"])
            median = (group[1] + group[2]) / 2
            expect(abs(sample["advantage"] - (sample["reward"] - median)) < 1e-6, sample)
            if sample["response"] == sample["answer"]:
                expect(sample["reward"] == 1.0, sample)
        rewards = {sample["reward"] for sample in samples}
        expect(any(0 < reward < 1 for reward in rewards), f"rewards in between: {rewards}")
        print(next(line for line in printed.splitlines() if line.startswith("done:")))


main()
