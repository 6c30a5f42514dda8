# SPDX-License-Identifier: Apache-2.0
"""Runs a program on given cores, watches for foreign load on them, and repeats disturbed runs."""
import dataclasses
import json
import os
import pathlib
import subprocess
import tempfile
import threading
import time

TICK = 1.0 / os.sysconf("SC_CLK_TCK")
# Share of the cores' time that other processes may take before a run counts as disturbed.
MAX_FOREIGN = 0.03


@dataclasses.dataclass(frozen=True)
class Run:
    """The output of one process and the resources that it used."""
    lines: list[dict]  # the JSON objects among its lines
    first_line_s: float  # from its start to its first JSON object
    wall_s: float
    peak_rss_bytes: int
    foreign: float  # share of the cores' time that other processes and the hypervisor took
    error: str | None  # if it failed, the last line that it wrote to stderr

    @property
    def disturbed(self) -> bool:
        # /proc/stat counts in ticks, so two more ticks are allowed, which matters for short runs.
        return self.foreign > MAX_FOREIGN + 2 * TICK / max(self.wall_s, TICK)


def busy_seconds(cores: list[int]) -> float:
    """Returns the time that the cores have been busy, including stolen time. Units: seconds."""
    total = 0
    for line in pathlib.Path("/proc/stat").read_text().splitlines():
        words = line.split()
        if words and words[0] in {f"cpu{core}" for core in cores}:
            user, nice, system, _idle, _wait, irq, soft, steal = map(int, words[1:9])
            total += user + nice + system + irq + soft + steal
    return total * TICK


def parse_json(line: str) -> dict | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def run_once(command: list[str], cores: list[int], environment: dict[str, str],
             timeout_s: float) -> Run:
    pinned = ["taskset", "-c", ",".join(map(str, cores)), *command]
    with tempfile.TemporaryFile("w+") as errors:
        busy, start = busy_seconds(cores), time.monotonic()
        process = subprocess.Popen(pinned, stdout=subprocess.PIPE, stderr=errors, text=True,
                                   env={**os.environ, **environment})
        timer = threading.Timer(timeout_s, process.kill)
        timer.start()
        lines: list[dict] = []
        first = 0.0
        for line in process.stdout:
            if (value := parse_json(line)) is not None:
                first = first or time.monotonic() - start
                lines.append(value)
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - start
        others = busy_seconds(cores) - busy - usage.ru_utime - usage.ru_stime
        errors.seek(0)
        error_lines = errors.read().strip().splitlines()
    error = None
    if process.returncode != 0:
        error = error_lines[-1] if error_lines else f"ended with {process.returncode}"
        if wall >= timeout_s:
            error = f"not done after {timeout_s:.0f} s"
    return Run(lines, first, wall, usage.ru_maxrss * 1024,
               max(0.0, others) / (wall * len(cores)), error)


def run(command: list[str], cores: list[int], environment: dict[str, str] | None = None,
        timeout_s: float = 600.0, tries: int = 4) -> Run:
    """Repeats the command until a run is not disturbed. Returns the least disturbed of `tries`."""
    found: list[Run] = []
    for _ in range(tries):
        found.append(run_once(command, cores, environment or {}, timeout_s))
        if found[-1].error is not None or not found[-1].disturbed:
            return found[-1]
    return min(found, key=lambda one: one.foreign)
