#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that a program loads no library that starts threads of its own to compute.

Usage: no_thread_teams.py PROGRAM

The workers of a device are all the threads that compute (engines/executor/workers.hpp). A team of
OpenMP's or TBB's would share their cores, and its runtime would have to be among the libraries that
the program loads, itself or through others.
"""
import re
import subprocess
import sys

TEAMS = re.compile(r"lib(i?g?omp|iomp5|tbb|openblas|mkl|dnnl)[^/ ]*\.so")


def main() -> None:
    loaded = subprocess.run(["ldd", sys.argv[1]], capture_output=True, text=True, check=True,
                            timeout=60).stdout
    if "libc.so" not in loaded:
        sys.exit(f"{sys.argv[1]}: ldd tells no libraries:\n{loaded}")
    teams = [line.strip() for line in loaded.splitlines() if TEAMS.search(line)]
    if teams:
        sys.exit(f"{sys.argv[1]} loads:\n" + "\n".join(teams))
    print(f"{len(loaded.splitlines())} libraries, none with threads of its own")


if __name__ == "__main__":
    main()
