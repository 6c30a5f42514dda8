#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the engine with its peers on this machine. Their runs are interleaved.

Usage: compare.py --tidemill PROGRAM [--work DIR] [--threads N ...] [--figure NAME ...]
                  [--preset NAME] [--rounds N] [--peers-only] [--variant NAME]

Names may contain *. Figures of real models have to be named. --preset measures the figures on that
model instead of their own. Every process is pinned to cores 0 to N-1 (with one thread, to the last
core). A round consists of our run and one run of each peer. The first round runs every variant of a
peer, later rounds run its best one. Runs disturbed by foreign load are repeated. The value is the
best of all rounds on both sides; each row also has the medians. Prints a JSON object for each
figure and peer, then a table to stderr.
"""
import argparse
import dataclasses
import fnmatch
import json
import os
import pathlib
import statistics
import sys

from figures import HERE, Figure, Variant, Work, all_figures
from pinned_run import Run, run
from set_up import DEFAULT_WORK

UNITS = {"ms": ("s", 1e-3), "us": ("s", 1e-6), "MiB": ("bytes", 2.0**20), "KiB": ("bytes", 1024.0)}


@dataclasses.dataclass
class Side:
    """The measurements of one side."""
    name: str
    values: list[float] = dataclasses.field(default_factory=list)
    problem: str | None = None
    foreign: float = 0.0
    variant: str = ""

    def add(self, values: list[float], measured: Run) -> None:
        self.values += values
        self.foreign = max(self.foreign, measured.foreign)


class Comparison:
    """Measures figures. Keeps the runs of peers, since one run may provide several figures."""

    def __init__(self, work: Work, threads: int, args: argparse.Namespace) -> None:
        self._work = work
        self._threads = threads
        self._args = args
        count = len(os.sched_getaffinity(0))
        cores = sorted(os.sched_getaffinity(0))
        if threads > count:
            sys.exit(f"compare: {threads} threads, but {count} cores")
        self._cores = cores[-1:] if threads == 1 else cores[:threads]
        self._kept: dict[tuple[str, ...], Run] = {}

    def rows(self, figure: Figure) -> list[dict]:
        """Measures a figure. Returns a row for each peer."""
        ours = Side("tidemill")
        best: dict[str, Variant] = {}
        peers = {name: Side(name) for name in figure.peers}
        tried: dict[str, dict[str, float]] = {name: {} for name in figure.peers}
        timed = figure.unit != "bytes"
        for turn in range(self._args.rounds if timed else 1):
            if not self._args.peers_only and ours.problem is None:
                self._run_ours(figure, ours)
            for name, every in figure.peers.items():
                variants = [v for v in every if fnmatch.fnmatchcase(v.name, self._args.variant)]
                for variant in variants if turn == 0 else [best[name]] if name in best else []:
                    self._run_peer(figure, variant, peers[name], tried[name], again=timed)
                if turn == 0 and tried[name]:
                    chosen = figure.best(list(tried[name].values()))
                    best[name] = next(v for v in variants if tried[name].get(v.name) == chosen)
                    peers[name].variant = best[name].name
        return [self._row(figure, ours, side, tried[name]) for name, side in peers.items()
                if side.values or side.problem]

    def _fill(self, command: list[str], figure: Figure) -> list[str]:
        known = {"work": self._work.folder, "here": HERE, "threads": self._threads,
                 "model": self._work.model(figure.preset), "tidemill": self._work.tidemill}
        return [word.format(**known) for word in command]

    def _run(self, command: list[str], figure: Figure, warm: bool = False) -> Run:
        """Runs a command; a warm run executes it twice and returns the second run. After a large
        process has ended, the machine may have given its memory back to the host. The next process
        would then wait for memory, and its measurement would include that."""
        if warm:
            self._run(command, figure)
        return run(command, self._cores,
                   {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1",
                    "OMP_NUM_THREADS": str(self._threads),
                    "TORCHINDUCTOR_CACHE_DIR": str(self._work.folder / "inductor"),
                    "TORCHINDUCTOR_COMPILE_THREADS": "1"}, timeout_s=figure.timeout_s)

    def _run_ours(self, figure: Figure, side: Side) -> None:
        model = self._work.model(figure.preset) / figure.directory
        if figure.ours:
            measured = self._run(self._fill(figure.ours, figure), figure, figure.warm)
        else:
            command = [str(self._work.tidemill_bench), "engine", "--model", str(model), "--figure",
                       figure.bench_name, "--json", "--threads", str(self._threads)]
            key = tuple(command)
            if not figure.note or key not in self._kept:
                self._kept[key] = self._run(command, figure)
            measured = self._kept[key]
        if measured.error:
            side.problem = f"missing: {measured.error}"
        elif figure.ours:
            side.add(figure.read(measured), measured)
        else:
            lines = [line for line in measured.lines if line.get("figure") == figure.bench_name]
            for line in lines:
                if figure.note:
                    side.add([line[figure.note]], measured)
                    continue
                unit, factor = UNITS.get(line["unit"], (line["unit"], 1.0))
                if unit != figure.unit:
                    side.problem = f"missing: its unit is {unit}, not {figure.unit}"
                    return
                side.add([line["value"] * factor], measured)
            if not lines:
                side.problem = f"missing: tidemill-bench does not print {figure.bench_name}"

    def _run_peer(self, figure: Figure, variant: Variant, side: Side, tried: dict[str, float],
                  again: bool) -> None:
        command = self._fill(variant.command, figure)
        key = tuple(command)
        if again or key not in self._kept:
            self._kept[key] = self._run(command, figure, figure.warm)
        measured = self._kept[key]
        if measured.error:
            print(f"{figure.name}: {side.name}, {variant.name}: {measured.error}", file=sys.stderr)
            side.problem = f"missing: {measured.error}"
            return
        values = figure.read(measured)
        if values:
            side.add(values, measured)
            tried[variant.name] = figure.best([*values, tried.get(variant.name, values[0])])

    def _row(self, figure: Figure, ours: Side, peer: Side, tried: dict[str, float]) -> dict:
        row = {"figure": figure.name, "unit": figure.unit, "threads": self._threads,
               "preset": figure.preset, "settings": figure.settings, "peer": peer.name, "variant": peer.variant,
               "variants": tried, "reach": figure.reach.get(peer.name)}
        if ours.values:
            row |= {"value": figure.best(ours.values), "median": statistics.median(ours.values)}
        elif ours.problem:
            row["problem"] = ours.problem
        if peer.values:
            row |= {"peer_value": figure.best(peer.values),
                    "peer_median": statistics.median(peer.values)}
        if peer.problem:
            row["peer_problem"] = peer.problem
        if ours.values and peer.values:
            row["ratio"] = figure.ratio(row["value"], row["peer_value"])
        row["foreign"] = max(ours.foreign, peer.foreign)
        return row


def shown(row: dict, key: str, problem: str) -> str:
    if key not in row:
        return "missing" if row.get(problem) else "-"
    value = row[key]
    return f"{value / 2**20:.0f} MiB" if row["unit"] == "bytes" else f"{value:.4g} {row['unit']}"


def print_table(rows: list[dict]) -> None:
    cells = [["figure", "threads", "ours", "peer", "peer value", "ratio", "target", "foreign"]]
    cells += [[row["figure"], str(row["threads"]), shown(row, "value", "problem"),
               f"{row['peer']} ({row['variant']})", shown(row, "peer_value", "peer_problem"),
               f"{row['ratio']:.2f}" if "ratio" in row else "-", row["reach"] or "-",
               f"{row['foreign']:.0%}"] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip(),
              file=sys.stderr)


def parse(known: dict[str, Figure]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tidemill", default="tidemill", help="path of the tidemill program")
    parser.add_argument("--work", type=pathlib.Path, default=DEFAULT_WORK)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--figure", action="append", metavar="NAME")
    parser.add_argument("--preset", metavar="NAME", help="model of all figures")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers-only", action="store_true")
    parser.add_argument("--variant", default="*", metavar="NAME", help="variant of the peers")
    args = parser.parse_args()
    args.names = []
    for pattern in args.figure or ["*"]:
        found = [name for name, figure in known.items() if fnmatch.fnmatchcase(name, pattern)
                 and (args.figure or not figure.by_name)]
        if not found:
            parser.error(f"unknown figure: {pattern}; known figures: {', '.join(known)}")
        args.names += [name for name in found if name not in args.names]
    return args


def main() -> None:
    known = all_figures()
    args = parse(known)
    work = Work(args.work.resolve(), args.tidemill)
    ids = [(17 + 31 * i) % 8192 for i in range(64)]
    (work.folder / "prompt.jsonl").write_text(json.dumps({"ids": ids}) + "\n")
    rows = []
    for threads in args.threads:
        comparison = Comparison(work, threads, args)
        for name in args.names:
            figure = known[name]
            if args.preset:
                figure = dataclasses.replace(figure, preset=args.preset)
            for row in comparison.rows(figure):
                rows.append(row)
                print(json.dumps(row), flush=True)
    print_table(rows)


if __name__ == "__main__":
    main()
