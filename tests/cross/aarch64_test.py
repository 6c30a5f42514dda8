#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the CPU operations and their tests for aarch64, and runs them under an emulator.

Usage: aarch64_test.py ROOT BUILD

Needs aarch64-linux-gnu-g++ (Debian: g++-aarch64-linux-gnu) and, to run the tests,
qemu-aarch64-static (qemu-user-static) and the sources of GoogleTest (googletest). Exits with status
77 without the compiler. Without the others, it compiles the operations and prints that it ran no
tests. Object files stay in BUILD and are rebuilt if a file that they include has changed.
"""
import pathlib
import shutil
import subprocess
import sys

COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64-static"
GOOGLETEST = pathlib.Path("/usr/src/googletest/googletest")
# The flags of the build. ARMv8.2 includes every instruction that the kernels use.
FLAGS = ["-std=c++20", "-march=armv8.2-a", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror",
         "-Wno-psabi"]
# The files that the operations depend on.
BASE = ["base/tensor/aligned_bytes.cpp", "base/tensor/block_int8.cpp", "base/tensor/block_nf4.cpp", "base/buffer.cpp",
        "base/check.cpp", "base/tensor/dtype.cpp", "base/files/file.cpp", "base/files/file_write.cpp",
        "base/tensor/float_tensor.cpp", "base/text/quote.cpp", "base/random.cpp", "base/status.cpp",
        "base/tensor/tensor.cpp",
        "engines/executor/workers.cpp", "engines/optimizer/adamw.cpp", "engines/optimizer/gradient_norm.cpp"]
SECONDS = 3000


def sources(root: pathlib.Path) -> list[pathlib.Path]:
    operations = sorted((root / "engines/ops").rglob("*.cpp"))
    sampling = sorted((root / "engines/sampling").glob("*.cpp"))
    return [*(root / name for name in BASE), *operations, *sampling]


def current(target: pathlib.Path) -> bool:
    """Returns whether the object file exists and is newer than every file that it depends on."""
    listed = target.with_suffix(".d")
    if not target.exists() or not listed.exists():
        return False
    names = listed.read_text().replace("\\\n", " ").split(":", 1)[1].split()
    return all(pathlib.Path(name).exists() and
               pathlib.Path(name).stat().st_mtime < target.stat().st_mtime for name in names)


def compile_one(source: pathlib.Path, target: pathlib.Path, more: list[str]) -> None:
    if current(target):
        return
    command = [COMPILER, *FLAGS, *more, "-MMD", "-c", str(source), "-o", str(target)]
    if subprocess.run(command, timeout=SECONDS, check=False).returncode != 0:
        sys.exit(f"{source}: does not compile for aarch64")


def main() -> None:
    root, build = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    if shutil.which(COMPILER) is None:
        print(f"skipped: {COMPILER} is not installed")
        sys.exit(77)
    build.mkdir(parents=True, exist_ok=True)
    objects = []

    def add(source: pathlib.Path, *more: str) -> None:
        target = build / (str(source).replace("/", "_") + ".o")
        compile_one(source, target, list(more))
        objects.append(str(target))

    for source in sources(root):
        add(source, f"-I{root}")
    if not GOOGLETEST.exists() or shutil.which(EMULATOR) is None:
        print(f"compiled {len(objects)} files; not run: needs {EMULATOR} and {GOOGLETEST}")
        return
    include = f"-I{GOOGLETEST / 'include'}"
    for source in sorted((root / "tests/engines/ops").glob("*.cpp")):
        add(source, f"-I{root}", include)
    for name in ("src/gtest-all.cc", "src/gtest_main.cc"):
        add(GOOGLETEST / name, include, f"-I{GOOGLETEST}", "-w")
    program = build / "ops_test"
    subprocess.run([COMPILER, "-static", "-o", str(program), *objects, "-lpthread"], check=True,
                   timeout=SECONDS)
    # The emulated processor has 128-bit registers and fused multiply-adds, like every aarch64.
    # These tests compare operations with their oracles. Tests that take minutes under an emulator,
    # such as those of bits, are left out.
    tests = "*LinearTest*cpu_baseline:*RowsTest*cpu_baseline:*AttentionTest*cpu_baseline"
    sys.exit(subprocess.run([EMULATOR, str(program), "--gtest_brief=1", f"--gtest_filter={tests}"],
                            timeout=SECONDS, check=False).returncode)


if __name__ == "__main__":
    main()
