#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs lm-evaluation-harness on `tidemill serve`, unchanged, and compares its score with that of `tidemill score`.

Usage: lm_eval_test.py PROGRAM SOURCE_DIR
Exits with 77 if `lm_eval[api]` or transformers is not installed.
"""
import importlib.util
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

MISSING = [name for name in ("lm_eval", "tenacity", "transformers") if importlib.util.find_spec(name) is None]
if MISSING:
    print("skipped: not installed:", ", ".join(MISSING))
    sys.exit(77)

from server import Server, run_json

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
MODEL = SOURCE / "examples/models/arithmetic"
NUM_ROWS = 60
TASK = """
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{prompt}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: gold
target_delimiter: ""
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


def make_rows() -> list[dict]:
    """Returns sums with the right result and the one without the carry, in random order."""
    draw = random.Random(1)
    rows = []
    for line in (SOURCE / "examples/arithmetic/data/eval.jsonl").read_text().splitlines()[:NUM_ROWS]:
        row = json.loads(line)
        right = row["answer"]
        wrong = str(int(right) - 10 if int(right) >= 20 else int(right) + 10)
        choices = [right, wrong] if draw.random() < 0.5 else [wrong, right]
        rows.append({"prompt": row["prompt"], "choices": choices, "gold": choices.index(right)})
    return rows


def accuracy(rows: list[dict]) -> float:
    """Returns the share of rows whose right choice `tidemill score` finds more probable."""
    lines = "".join(json.dumps({"prompt": row["prompt"] + choice}) + "\n"
                    for row in rows for choice in row["choices"])
    scores = [line["logprobs"] for line in run_json(PROGRAM, "score", str(MODEL), "--input", "-",
                                                    lines=lines)]
    correct = 0
    for index, row in enumerate(rows):
        sums = [sum(score[len(row["prompt"]):]) for score in scores[2 * index:2 * index + 2]]
        correct += sums.index(max(sums)) == row["gold"]
    return correct / len(rows)


class LmEvalTest(unittest.TestCase):
    def test_has_the_score_of_the_command(self) -> None:
        rows = make_rows()
        with tempfile.TemporaryDirectory() as name, Server(PROGRAM, MODEL) as server:
            folder = pathlib.Path(name)
            (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            (folder / "sums.yaml").write_text(TASK.format(rows=folder / "rows.jsonl"))
            arguments = [f"model={server.model}", f"base_url={server.url}/v1/completions",
                         "num_concurrent=4", "tokenizer_backend=huggingface", f"tokenizer={MODEL}",
                         "max_length=64"]
            run = subprocess.run(
                [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions",
                 "--model_args", ",".join(arguments), "--tasks", "sums", "--include_path", name,
                 "--output_path", str(folder / "out")],
                capture_output=True, text=True, timeout=240,
                env={**os.environ, "HF_HOME": name, "HF_HUB_OFFLINE": "1"})
            self.assertEqual(run.returncode, 0, run.stderr[-2000:])
            result, = (folder / "out").rglob("results*.json")
            score = json.loads(result.read_text())["results"]["sums"]["acc,none"]
        self.assertAlmostEqual(score, accuracy(rows))
        self.assertGreater(score, 0.3)
        self.assertLess(score, 0.9)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
