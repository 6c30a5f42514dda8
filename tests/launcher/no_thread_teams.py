#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that a program loads no library that starts its own compute threads.

Usage: no_thread_teams.py PROGRAM

Only the workers of a device may compute (engines/executor/workers.hpp). Threads of OpenMP or TBB would
compete with them for the cores. Their runtime would be among the libraries that the program loads,
directly or indirectly.
"""
import re
import subprocess
import sys

TEAMS = re.compile(r"lib(i?g?omp|iomp5|tbb|openblas|mkl|dnnl)[^/ ]*\.so")


def main() -> None:
    loaded = subprocess.run(["ldd", sys.argv[1]], capture_output=True, text=True, check=True,
                            timeout=60).stdout
    if "libc.so" not in loaded:
        sys.exit(f"{sys.argv[1]}: ldd reports no libraries:\n{loaded}")
    teams = [line.strip() for line in loaded.splitlines() if TEAMS.search(line)]
    if teams:
        sys.exit(f"{sys.argv[1]} loads:\n" + "\n".join(teams))
    print(f"{len(loaded.splitlines())} libraries, none with its own compute threads")


if __name__ == "__main__":
    main()
