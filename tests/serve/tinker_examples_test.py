#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of examples/tinker and compares them with Tidemill's own workflows, and runs that of docs/tinker.md.

Usage: tinker_examples_test.py PROGRAM SOURCE_DIR
Exits with 77 if the Python package tinker is not installed.
"""
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

try:
    import tinker
except ImportError:
    print("skipped: the Python package tinker is not installed")
    sys.exit(77)

from server import Server

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
MODEL = SOURCE / "examples/models/arithmetic"
DATA = SOURCE / "examples/arithmetic/data"
# Both programs train this adapter.
ADAPTER = "train.adapter={kind: lora, rank: 8, alpha: 32}"
SUPERVISED = f"""
workflow: sft
model: {{path: {MODEL}}}
data: {{train: {DATA}/train.jsonl}}
train: {{steps: 40, sequences_per_step: 64, learning_rate: 2e-3}}
seed: 1
"""
# As configs/quickstart.yaml, but on policy, as the program is.
GRPO = f"""
workflow: rl
model: {{path: {MODEL}}}
data: {{train: {DATA}/train.jsonl}}
rollout: {{group_size: 8, max_new_tokens: 4, workers: 2}}
reward: {{kind: number}}
algorithm: {{name: grpo}}
staleness: {{max: 0}}
train: {{steps: 30, prompts_per_step: 32, learning_rate: 1e-3}}
seed: 1
"""


def accuracy(*options: object) -> float:
    """Returns the share of the held-out problems that `tidemill generate` solves."""
    generated = subprocess.run(
        [PROGRAM, "generate", MODEL, "--greedy", "--max-new-tokens", "4", "--json", "--input",
         DATA / "eval.jsonl", *options], stdout=subprocess.PIPE, check=True)
    rows = (DATA / "eval.jsonl").read_text().splitlines()
    lines = generated.stdout.decode().splitlines()
    pairs = list(zip(rows, lines, strict=True))
    return sum(json.loads(row)["answer"] == json.loads(line)["text"]
               for row, line in pairs) / len(pairs)


class TinkerExamplesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def of_workflow(self, config: str) -> float:
        """Returns the accuracy after a run of our own."""
        made = subprocess.run([PROGRAM, "run", "-", "--json", ADAPTER], input=config.encode(),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              cwd=self.folder.name, check=False)
        self.assertEqual(made.returncode, 0, made.stdout.decode())
        adapter, = pathlib.Path(self.folder.name).glob("runs/*/export/adapter")
        return accuracy("--adapter", adapter)

    def of_program(self, name: str) -> float:
        """Returns the accuracy with the checkpoint of a program of examples/tinker."""
        checkpoints = pathlib.Path(self.folder.name) / "checkpoints"
        with Server(PROGRAM, MODEL, f"serve.checkpoints_path={checkpoints}") as server:
            ran = subprocess.run(
                [sys.executable, SOURCE / "examples/tinker" / name], stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, env={"TINKER_BASE_URL": server.url,
                                               "TINKER_API_KEY": "tml-none",
                                               "PYTHONDONTWRITEBYTECODE": "1"}, check=False)
        output = ran.stdout.decode()
        self.assertEqual(ran.returncode, 0, output)
        results = dict(line.rsplit(" ", 1) for line in output.splitlines())
        path = results["checkpoint"].removeprefix("tinker://").replace(":", ".")
        measured = accuracy("--adapter", checkpoints / path)
        # The program has measured the same through the API.
        self.assertAlmostEqual(float(results["accuracy before"]), accuracy(), places=3)
        self.assertAlmostEqual(float(results["accuracy after"]), measured, places=3)
        return measured

    def compare(self, name: str, config: str) -> None:
        before, own, program = accuracy(), self.of_workflow(config), self.of_program(name)
        print(f"{name}: {before:.3f} before, {own:.3f} after our workflow, "
              f"{program:.3f} after the program", flush=True)
        # The batches differ, and so do the sampled responses. Three standard errors of the
        # difference of two shares of 200 problems separate that from a mistake.
        share = (own + program) / 2
        self.assertGreaterEqual(program, own - 3 * math.sqrt(2 * share * (1 - share) / 200))
        self.assertGreater(own, before + 0.25)

    def test_supervised(self) -> None:
        self.compare("supervised.py", SUPERVISED)

    def test_the_program_of_the_page(self) -> None:
        page = (SOURCE / "docs/tinker.md").read_text()
        program = page.split("```python\n", 1)[1].split("```", 1)[0]
        with Server(PROGRAM, MODEL, f"serve.checkpoints_path={self.folder.name}/checkpoints") as server:
            self.assertIn("http://127.0.0.1:8000", program)
            ran = subprocess.run([sys.executable, "-c", program.replace("http://127.0.0.1:8000", server.url)],
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=SOURCE, check=False)
        output = ran.stdout.decode()
        self.assertEqual(ran.returncode, 0, output)
        results = dict(line.rsplit(" ", 1) for line in output.splitlines())
        before, after = float(results["accuracy before"]), float(results["accuracy after"])
        print(f"docs/tinker.md: {before:.3f} before, {after:.3f} after", flush=True)
        self.assertAlmostEqual(before, accuracy(), places=3)
        self.assertGreater(after, before + 0.25)

    def test_grpo(self) -> None:
        self.compare("grpo.py", GRPO)


if __name__ == "__main__":
    print("tinker", tinker.__version__)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
