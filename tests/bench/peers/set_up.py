#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sets up the peers in a work folder, at the versions of versions.toml.

  WORK/llama.cpp/   libllama and llama-server, built from source with native flags
  WORK/llama_bench  the program of this folder that measures llama.cpp
  WORK/venv/        PyTorch, Transformers, PEFT and TRL

Usage: set_up.py [--work DIR] [--jobs N] [llama] [python]

Parts that exist already at the pinned version are not changed.
"""
import argparse
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
DEFAULT_WORK = HERE.parents[2] / "build" / "peers"
LINKED = ["src/libllama.a", "ggml/src/libggml.a", "ggml/src/libggml-cpu.a", "ggml/src/libggml-base.a"]


def run(*command: str | pathlib.Path) -> None:
    """Runs a command at low priority. Ends the program if the command fails."""
    words = [str(word) for word in command]
    print("+", " ".join(words), file=sys.stderr, flush=True)
    if subprocess.call(["nice", "-n", "10", *words]) != 0:
        sys.exit(f"set_up: failed: {' '.join(words)}")


def is_done(stamp: pathlib.Path, pins: dict) -> bool:
    return stamp.exists() and json.loads(stamp.read_text()) == pins


def fetch(pins: dict, into: pathlib.Path) -> pathlib.Path:
    """Downloads, checks and unpacks the source. Returns its folder."""
    stem = f"{pins['package'].replace('-', '_')}-{pins['version']}"
    archive = into / f"{stem}.tar.gz"
    if not archive.exists():
        run(sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", pins["package"],
            "-d", into, f"{pins['package']}=={pins['version']}")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != pins["sha256"]:
        sys.exit(f"set_up: {archive}: sha256 is {found}, expected {pins['sha256']}")
    source = into / stem / pins["source"]
    if not source.exists():
        with tarfile.open(archive) as packed:
            packed.extractall(into, filter="data")
    return source


def set_up_llama(pins: dict, work: pathlib.Path, jobs: int) -> None:
    """Builds libllama, llama-server and llama_bench."""
    stamp, build = work / "llama.json", work / "llama.cpp"
    source = fetch(pins, work)
    if not is_done(stamp, pins):
        run("cmake", "-S", source, "-B", build, *pins["cmake"])
        run("cmake", "--build", build, f"-j{jobs}", "--target", "llama", "llama-server")
        stamp.write_text(json.dumps(pins))
    libraries = [build / name for name in LINKED]
    run("g++", "-std=c++20", "-O2", "-Wall", "-Wextra", "-I", source / "include",
        "-I", source / "ggml/include", HERE / "llama_bench.cpp", *libraries,
        "-fopenmp", "-lpthread", "-ldl", "-o", work / "llama_bench")


def set_up_python(pins: dict, work: pathlib.Path) -> None:
    """Installs the Python packages into a separate virtual environment."""
    stamp, venv = work / "python.json", work / "venv"
    if is_done(stamp, pins):
        return
    shutil.rmtree(venv, ignore_errors=True)
    run(sys.executable, "-m", "venv", venv)
    run(venv / "bin/python", "-m", "pip", "install", "--no-cache-dir", "--no-deps",
        *pins["packages"])
    stamp.write_text(json.dumps(pins))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=pathlib.Path, default=DEFAULT_WORK)
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel compilers")
    parser.add_argument("parts", nargs="*", help="llama, python; default: both")
    args = parser.parse_args()
    parts = args.parts or ["llama", "python"]
    if unknown := set(parts) - {"llama", "python"}:
        parser.error(f"unknown part: {', '.join(sorted(unknown))}")
    args.work.mkdir(parents=True, exist_ok=True)
    pins = tomllib.loads((HERE / "versions.toml").read_text())
    if "llama" in parts:
        set_up_llama(pins["llama_cpp"], args.work.resolve(), args.jobs)
    if "python" in parts:
        set_up_python(pins["python"], args.work.resolve())


if __name__ == "__main__":
    main()
