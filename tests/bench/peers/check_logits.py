#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the engine and its peers compute the same logits from the same weights.

Usage: check_logits.py [--work DIR] [--tidemill PROGRAM] [PRESET]     with WORK/venv/bin/python

Compares every logit of 64 tokens with that of Transformers in f32: the root mean square of the
differences, divided by that of the logits. llama.cpp keeps keys and values in f32 here, so that
engines differ only in the type of the weights. Exits with status 1 if an engine differs by more
than its type allows, or does not run.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

from set_up import DEFAULT_WORK, HERE

TOKENS = 64
# bf16 has 8 significant bits: a rounding has an error of up to 1/512, and dozens of roundings add
# up over the layers. q8_0 rounds weights and the inputs of products to 1/254 of the largest value
# of a block.
ALLOWED = {"f32": 1e-4, "bf16": 0.03, "q8_0": 0.06}


def tensor_of(path: pathlib.Path, name: str) -> np.ndarray:
    """Reads an f32 tensor from a safetensors file."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    entry = json.loads(data[8:8 + size])[name]
    begin, end = entry["data_offsets"]
    return np.frombuffer(data[8 + size + begin:8 + size + end], "<f4").reshape(entry["shape"])


class Engines:
    """Runs each engine on the same ids. A run returns logits (tokens, vocabulary) or an error."""

    def __init__(self, work: pathlib.Path, tidemill: str, preset: str, folder: pathlib.Path):
        self._work, self._tidemill, self._folder = work, tidemill, folder
        self._model = work / "models" / preset
        self._vocabulary = json.loads((self._model / "config.json").read_text())["vocab_size"]
        self._ids = [(17 + 31 * i) % self._vocabulary for i in range(TOKENS)]

    def has_q8(self) -> bool:
        return (self._model / "model-q8_0.gguf").exists()

    def _run(self, *command: str | pathlib.Path) -> str | None:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        return None if done.returncode == 0 else (done.stderr.strip() or "failed").splitlines()[-1]

    def _raw(self, *command: str | pathlib.Path) -> np.ndarray | str:
        output = self._folder / "logits.bin"
        ids = ",".join(map(str, self._ids))
        error = self._run(*command, "--ids", ids, "--output", output)
        return error or np.fromfile(output, "<f4").reshape(TOKENS, self._vocabulary)

    def transformers(self, dtype: str) -> np.ndarray | str:
        return self._raw(sys.executable, HERE / "hf_bench.py", self._model, "logits",
                         "--dtype", dtype)

    def llama(self, kind: str) -> np.ndarray | str:
        return self._raw(self._work / "llama_bench", self._model / f"model-{kind}.gguf", "logits",
                         "--kv_f32", "1")

    def tidemill(self, kind: str) -> np.ndarray | str:
        lines, output = self._folder / "ids.jsonl", self._folder / "logits.safetensors"
        lines.write_text(json.dumps({"ids": self._ids}) + "\n")
        model = self._model / "bf16" if kind == "bf16" else self._model
        dtype = {"q8_0": "int8"}.get(kind, kind)
        error = self._run(self._tidemill, "score", model, "--input", lines, "--json", "--dtype",
                          dtype, "--logits", output)
        return error or tensor_of(output, "0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=pathlib.Path, default=DEFAULT_WORK)
    parser.add_argument("--tidemill", default="tidemill", help="path of the tidemill program")
    parser.add_argument("preset", nargs="?", default="197m")
    args = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        engines = Engines(args.work.resolve(), args.tidemill, args.preset, pathlib.Path(folder))
        exact = engines.transformers("f32")
        if isinstance(exact, str):
            sys.exit(f"check_logits: transformers: {exact}")
        scale = np.sqrt((exact.astype(np.float64)**2).mean())
        for name, run, kinds in (("transformers", engines.transformers, ["bf16"]),
                                 ("llama.cpp", engines.llama, ["f32", "bf16", "q8_0"]),
                                 ("tidemill", engines.tidemill, ["f32", "bf16", "q8_0"])):
            for kind in kinds:
                if kind == "q8_0" and not engines.has_q8():
                    print(f"{name:12}  {kind:4}  not run: the rows do not divide into blocks")
                    continue
                found = run(kind)
                if isinstance(found, str):
                    print(f"{name:12}  {kind:4}  did not run: {found}")
                    failed = True
                    continue
                difference = found.astype(np.float64) - exact
                rms = np.sqrt((difference**2).mean()) / scale
                result = "ok" if rms <= ALLOWED[kind] else "TOO LARGE"
                failed |= result != "ok"
                print(f"{name:12}  {kind:4}  rms {rms:.2e}, worst "
                      f"{np.abs(difference).max() / scale:.2e}, allowed rms {ALLOWED[kind]:.0e}: "
                      f"{result}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
