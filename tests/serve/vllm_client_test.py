#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs vLLM's benchmark client on `tidemill serve`, unchanged.

Usage: vllm_client_test.py PROGRAM SOURCE_DIR
The environment variable TIDEMILL_VLLM_BENCHMARKS names the folder `benchmarks` of vLLM's sources (the
sources of 0.7.3 were used, whose client does not need vLLM itself).
Exits with 77 if it is not set, or if a package that the client imports is not installed.
"""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BENCHMARKS = os.environ.get("TIDEMILL_VLLM_BENCHMARKS")
if not BENCHMARKS:
    print("skipped: TIDEMILL_VLLM_BENCHMARKS is not set")
    sys.exit(77)
MISSING = [name for name in ("aiohttp", "datasets", "numpy", "PIL", "tqdm", "transformers")
           if importlib.util.find_spec(name) is None]
if MISSING:
    print("skipped: not installed:", ", ".join(MISSING))
    sys.exit(77)

from server import Server

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
MODEL = SOURCE / "examples/models/arithmetic"
NUM_PROMPTS, PROMPT, NEW = 100, 16, 16


class VllmClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server(PROGRAM, MODEL)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.server.__exit__()

    def measure(self, *arguments: str) -> dict:
        """Returns what the client measures of requests that arrive at random times."""
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run(
                [sys.executable, f"{BENCHMARKS}/benchmark_serving.py", "--base-url",
                 f"http://127.0.0.1:{self.server.port}", "--model", "arithmetic", "--tokenizer",
                 str(MODEL), "--dataset-name", "random", "--random-input-len", str(PROMPT),
                 "--random-output-len", str(NEW), "--num-prompts", str(NUM_PROMPTS),
                 "--request-rate", "50", "--save-result", "--result-dir", folder,
                 "--result-filename", "result.json", *arguments],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240,
                check=False)
            self.assertEqual(run.returncode, 0, run.stdout[-2000:])
            return json.loads(pathlib.Path(folder, "result.json").read_text())

    def test_completions(self) -> None:
        result = self.measure("--backend", "openai", "--endpoint", "/v1/completions",
                              "--ignore-eos")
        self.assertEqual(result["completed"], NUM_PROMPTS)
        self.assertEqual(result["total_output_tokens"], NUM_PROMPTS * NEW)

    def test_chat_completions(self) -> None:
        result = self.measure("--backend", "openai-chat", "--endpoint", "/v1/chat/completions")
        self.assertEqual(result["completed"], NUM_PROMPTS)
        self.assertGreater(result["total_output_tokens"], 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
