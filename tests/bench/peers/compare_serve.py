#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `tidemill serve` with its peers on this machine, over HTTP.

Usage: compare_serve.py --tidemill PROGRAM [--work DIR] [--figure NAME ...] [--preset NAME]
                        [--rounds N] [--seconds S]

The peers are llama-server and, for fine-tuning beside it, HF + PEFT. Servers, trainers and the
client (`tidemill-bench serve`) share all cores of this process; only in the mode `split` of
coserve_peers, server and trainer have one each. Prompts have 128 tokens and responses 128, those of
co-serving 64; weights, keys and values are bf16 (llama-server: keys and values f16).

Each figure prints a JSON object for each of its rows. A round runs one side after the other, and
`ratio` is the median of the ratios of the rounds. Exceptions: serve_bursty searches the highest rate
of one side, then of the other, and coserve_burst is a ratio of medians.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median

from figures import Work, steps
from serving import JOB_TOKENS, LlamaServer, Load, Peft, Program, Row, Server, Tidemill
from set_up import DEFAULT_WORK

PROMPT, NEW, NEW_COSERVE = 128, 128, 64
SLOT = 512
SLOTS = 16
# Requests per second, Poisson.
RATES = {"light": 0.1, "heavy": 0.5}
# A list that is still open after NEW tokens.
SCHEMA = ('"response_format":{"type":"json_schema","json_schema":{"name":"list","schema":{"type":'
          '"array","minItems":1000,"items":{"type":"object","properties":{"name":{"type":"string"},'
          '"size":{"type":"integer"}},"required":["name","size"]}}}}')


class Comparison:
    """Measures figures of one model."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.work = Work(args.work.resolve(), args.tidemill)
        self.preset, self.rounds, self.seconds = args.preset, args.rounds, args.seconds
        self.cores = sorted(os.sched_getaffinity(0))
        model = self.work.model(self.preset) / "config.json"
        self.vocabulary = json.loads(model.read_text())["vocab_size"]
        self._seed = 0

    # -- one run -------------------------------------------------------------------------------

    def put(self, load: Load, server: Server, others: list[Program] | None = None,
            seed: int | None = None) -> Row:
        """Puts a load on a server. Without `seed`, no earlier load had the same prompts."""
        self._seed += 1
        return load.put_on(server, self.work, self.vocabulary, seed or self._seed, others)

    def tidemill(self, *overrides: str) -> Tidemill:
        return Tidemill(self.work, self.preset, self.cores, SLOTS, SLOT, *overrides)

    def llama(self, variant: str = "flash", cores: list[int] | None = None) -> LlamaServer:
        return LlamaServer(self.work, self.preset, cores or self.cores, SLOTS, SLOT, variant)

    def jobs_server(self, *overrides: str) -> Tidemill:
        return self.tidemill("serve.jobs_path=jobs", *overrides)

    # -- serving -------------------------------------------------------------------------------

    def serve(self, streams: int) -> Iterator[Row]:
        """Output tokens/s, TTFT and TPOT of requests that follow each other in each stream."""
        load = Load.streams(streams, {1: 4, 4: 3}.get(streams, 2), PROMPT, NEW)
        ours, theirs, variants = [], [], list(LlamaServer.VARIANTS)
        for _ in range(self.rounds):
            with self.tidemill() as server:
                self.put(Load.streams(1, 1, PROMPT, 16), server)
                ours.append(self.put(load, server))
            runs = {}
            for variant in variants:
                with self.llama(variant) as server:
                    self.put(Load.streams(1, 1, PROMPT, 16), server)
                    runs[variant] = self.put(load, server)
            best = max(runs, key=lambda name: runs[name]["value"])
            variants = [best]
            theirs.append(runs[best])
        row = {"figure": f"serve_{streams}", "unit": "tok/s", "peer": "llama-server",
               "variant": variants[0], "target": {1: ">= 1.15", 4: ">= 1.6", 16: ">= 2.2"}[streams]}
        for key in ("value", "ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s"):
            row[key] = median([run[key] for run in ours])
            row[f"peer_{key}"] = median([run[key] for run in theirs])
            row["ratio" if key == "value" else f"ratio_{key}"] = median(
                [a[key] / b[key] for a, b in zip(ours, theirs)])
        row["ratios"] = [a["value"] / b["value"] for a, b in zip(ours, theirs)]
        row["foreign"] = max(run["foreign"] for run in ours + theirs)
        yield row

    def http_overhead(self) -> Iterator[Row]:
        """The rollout figure of the engine, as 32 streams over HTTP; and /health. `generation` is the
        share of the time over HTTP in which the engine generates: 1 minus what HTTP makes it wait. It
        does not depend on the speed of the host, which changes between the two sides of a round."""
        load = Load.streams(32, 1, 64, 256, "--extra-body", '"top_p":0.95', "--health")
        ratios, shares, health, foreign = [], [], [], 0.0
        words = [str(self.work.tidemill_bench), "engine", "--model",
                 str(self.work.model(self.preset) / "bf16"), "--figure", "rollout_32_bf16", "--json",
                 "--threads", str(len(self.cores)), "--repetitions", "1"]  # as often as over HTTP

        def engine() -> float:
            done = subprocess.run(words, check=True, capture_output=True, text=True)
            return json.loads(done.stdout.splitlines()[-1])["value"]

        for turn in range(self.rounds):
            before = engine() if turn % 2 else None
            with Tidemill(self.work, self.preset, self.cores, 32, SLOT) as server:
                self.put(Load.streams(1, 1, 64, 16), server)
                spent = server.metric("tidemill:generation_seconds_total")
                run = self.put(load, server)
                spent = server.metric("tidemill:generation_seconds_total") - spent
                shares.append(spent / run["seconds"])
            ratios.append(run["value"] / (before or engine()))
            health.append(run["health_p50_s"])
            foreign = max(foreign, run["foreign"])
        yield {"figure": "http_overhead", "ratio": median(ratios), "ratios": ratios,
               "generation": median(shares),
               "peer": "engine, rollout_32_bf16", "target": ">= 0.97", "foreign": foreign}
        yield {"figure": "health_p50", "value": median(health), "unit": "s", "target": "<= 150 us"}

    def footprint(self) -> Iterator[Row]:
        """The time from the start to the first token, peak memory after 16 streams, and the share of
        one core that an idle server uses.

        Each side starts twice in a row, and the second start counts. The first one brings the model
        into the page cache. In a virtual machine it also makes the host give memory back that it took
        while the machine was idle, which costs about as much as the rest of our start. The times of
        the first starts are in the row."""
        sides: dict[str, Callable[[], Server]] = {"ours": self.tidemill, "peer": self.llama}
        found: dict[str, list[tuple[float, int, float, float]]] = {name: [] for name in sides}
        for _ in range(self.rounds):
            for name, start in sides.items():
                with start() as server:
                    first = server.start_s
                with start() as server:
                    started = server.start_s
                    self.put(Load.streams(SLOTS, 1, PROMPT, 32), server)
                    time.sleep(1.0)
                    used, since = server.cpu_seconds(), time.monotonic()
                    time.sleep(min(20.0, self.seconds))
                    idle = (server.cpu_seconds() - used) / (time.monotonic() - since)
                    found[name].append((started, server.peak_rss_bytes(), idle, first))
        for index, (figure, unit, target) in enumerate(
                (("serve_start", "s", "<= 1.0"), ("serve_rss", "bytes", "<= 1.2"))):
            ours, theirs = ([run[index] for run in found[name]] for name in ("ours", "peer"))
            row = {"figure": figure, "unit": unit, "value": median(ours),
                   "peer": "llama-server", "peer_value": median(theirs), "target": target,
                   "ratio": median([a / b for a, b in zip(ours, theirs)])}
            if figure == "serve_start":
                row["first"], row["peer_first"] = (median([run[3] for run in found[name]])
                                                   for name in ("ours", "peer"))
            yield row
        yield {"figure": "idle_cpu", "unit": "share of a core", "target": "< 1%",
               **{name: median([run[2] for run in runs]) for name, runs in found.items()}}

    def schema_overhead(self) -> Iterator[Row]:
        """16 streams whose responses satisfy a schema, and the same without it."""
        free = Load.streams(SLOTS, 1, PROMPT, NEW)
        bound = Load.streams(SLOTS, 1, PROMPT, NEW, "--extra-body", SCHEMA)
        ratios, foreign = [], 0.0
        with self.tidemill() as server:
            self.put(bound, server)  # the first use of a schema computes its masks
            for _ in range(self.rounds):
                runs = [self.put(load, server) for load in (free, bound)]
                ratios.append(runs[1]["value"] / runs[0]["value"])
                foreign = max([foreign] + [run["foreign"] for run in runs])
        yield {"figure": "schema_overhead", "ratio": median(ratios), "ratios": ratios,
               "peer": "the same without a schema", "target": ">= 0.95", "foreign": foreign}

    def bursty(self) -> Iterator[Row]:
        """The highest rate of bursty requests of which 99% are within the goal."""
        def highest(start: Callable[[], Server], first: float) -> tuple[float, list[Row]]:
            rate, kept, tried = first, 0.0, []
            while True:
                load = Load.arrivals(rate, self.seconds, PROMPT, NEW_COSERVE, "--cv", "3",
                                     "--length-sigma", "0.6")
                with start() as server:
                    self.put(Load.streams(1, 1, PROMPT, 16), server)
                    run = self.put(load, server, seed=11)
                tried.append({key: run[key] for key in ("goodput", "ttft_p99_s", "tpot_p99_s",
                                                        "responses", "failures")} | {"rate": rate})
                print(json.dumps({"bursty": start.__name__, **tried[-1]}), file=sys.stderr)
                if run["goodput"] >= 0.99:
                    kept = max(kept, rate)
                    rate *= 1.25
                elif kept > 0.0 or rate < 0.05:
                    return kept, tried
                else:
                    rate /= 1.25
        theirs, peer_tried = highest(self.llama, 0.5)
        ours, tried = highest(self.tidemill, max(0.5, 2.0 * theirs))
        yield {"figure": "serve_bursty", "value": ours, "unit": "requests/s", "peer": "llama-server",
               "peer_value": theirs, "ratio": ours / theirs if theirs > 0.0 else None,
               "target": ">= 2", "tried": tried, "peer_tried": peer_tried}

    # -- fine-tuning beside requests ------------------------------------------------------------

    def _load(self, name: str) -> Load:
        return Load.arrivals(RATES[name], self.seconds, PROMPT, NEW_COSERVE)

    def _rate(self, server: Tidemill, load: Load | None, seed: int = 21) -> tuple[float, Row]:
        """Returns the tokens/s of the jobs during a load, and its row, with the share of the time that
        generation took."""
        since, first = server.trained_tokens()
        spent = server.metric("tidemill:generation_seconds_total")
        row: Row = {}
        if load is None:
            time.sleep(self.seconds / 2)
        else:
            row = self.put(load, server, seed=seed)
        until, last = server.trained_tokens()
        spent = server.metric("tidemill:generation_seconds_total") - spent
        row["generation"] = spent / (until - since)
        return (last - first) / (until - since), row

    def _bursts(self, server: Tidemill) -> list[float]:
        """Returns the 99th percentiles of the TTFT of bursts of 16 requests."""
        found = []
        for _ in range(5):
            time.sleep(2.0)
            found.append(self.put(Load.streams(SLOTS, 1, PROMPT, 16), server)["ttft_p99_s"])
        return found

    def coserve(self) -> Iterator[Row]:
        """One job of 4 x 512 tokens beside requests, compared with the job or the requests alone."""
        kept: dict[str, list[float]] = {name: [] for name in RATES}
        inflation: dict[str, list[float]] = {name: [] for name in RATES}
        busy: dict[str, list[float]] = {name: [] for name in RATES}
        rows: dict[str, list[Row]] = {name: [] for name in RATES}
        rates, alone, bursts, burst_alone = {name: [] for name in RATES}, [], [], []
        for turn in range(self.rounds):
            with self.jobs_server() as server:
                self.put(Load.streams(1, 1, PROMPT, 16), server)
                seed = 100 + turn
                before = {}
                for name in RATES:
                    spent = server.metric("tidemill:generation_seconds_total")
                    before[name] = self.put(self._load(name), server, seed=seed)
                    spent = server.metric("tidemill:generation_seconds_total") - spent
                    busy[name].append(spent / before[name]["seconds"])
                burst_alone += self._bursts(server)
                server.create_job(4, self.vocabulary)
                server.trained_tokens()
                alone.append(self._rate(server, None)[0])
                for name in RATES:
                    # Prompts of a seed that the server has seen would be cached.
                    rate, row = self._rate(server, self._load(name), seed + 1000)
                    rows[name].append(row)
                    rates[name].append(rate)
                    inflation[name].append(row["tpot_p99_s"] / before[name]["tpot_p99_s"])
                alone[-1] = (alone[-1] + self._rate(server, None)[0]) / 2
                for name in RATES:
                    kept[name].append(rates[name][-1] / alone[-1])
                bursts += self._bursts(server)
                errors = server.request("GET", "/metrics")[1].decode().splitlines()
        for name in RATES:
            yield {"figure": f"coserve_kept_{name}", "value": median(kept[name]), "values": kept[name],
                   "busy_alone": median(busy[name]),
                   "generation": median([row["generation"] for row in rows[name]]),
                   "tok_s": median(rates[name]), "alone_tok_s": median(alone),
                   "goodput": min(row["goodput"] for row in rows[name]),
                   "responses": sum(row["responses"] for row in rows[name]),
                   "ttft_p99_s": median([row["ttft_p99_s"] for row in rows[name]]),
                   "tpot_p99_s": median([row["tpot_p99_s"] for row in rows[name]]),
                   "max_gap_p99_s": median([row["max_gap_p99_s"] for row in rows[name]]),
                   "foreign": max(row["foreign"] for row in rows[name]),
                   "target": {"light": ">= 0.85", "heavy": ">= 0.70"}[name]}
            yield {"figure": f"coserve_tpot_p99_{name}", "ratio": median(inflation[name]),
                   "ratios": inflation[name], "peer": "serving alone",
                   "target": {"light": "<= 1.5", "heavy": "within the goal"}[name]}
        yield {"figure": "coserve_burst", "ratio": median(bursts) / median(burst_alone), "value": median(bursts),
               "unit": "s", "peer": "without a job", "peer_value": median(burst_alone),
               "target": "<= 1.1 plus one unit"}
        yield {"figure": "time_prediction_error",
               "series": [line for line in errors if line.startswith("tidemill:time_prediction")]}

    def coserve_peers(self) -> Iterator[Row]:
        """llama-server and PEFT at the same time: on a core each, on all cores, and there with PEFT
        at the lowest priority."""
        ways = steps("bf16")
        alone = {name: self._peft_rate(words) for name, words in ways.items()}
        best = max(alone, key=alone.get)
        yield {"figure": "peft_alone", "unit": "tok/s", "value": alone[best], "variant": best,
               "variants": alone}
        one, other = self.cores[:1], self.cores[1:2]
        modes = {"split": (one, other, 0), "shared": (self.cores, self.cores, 0),
                 "nice": (self.cores, self.cores, 19)}
        for name in RATES:
            for mode, (server_cores, peft_cores, nice) in modes.items():
                with self.llama(cores=server_cores) as server, \
                        Peft(self.work, self.preset, peft_cores, 4, ways[best], nice) as trainer:
                    start = time.monotonic()
                    row = self.put(self._load(name), server, [trainer], seed=100)
                    rate = trainer.rate_between(start, start + row["seconds"])
                yield {"figure": f"coserve_peers_{name}", "mode": mode, "tok_s": rate,
                       "value": rate / alone[best],
                       **{key: row[key] for key in ("goodput", "ttft_p99_s", "tpot_p99_s",
                                                    "responses", "foreign")}}

    def _peft_rate(self, words: list[str]) -> float:
        with Peft(self.work, self.preset, self.cores, 4, words) as trainer:
            start = time.monotonic()
            time.sleep(min(30.0, self.seconds))
            return trainer.rate_between(start, time.monotonic())

    def multi_job(self) -> Iterator[Row]:
        """Four jobs of 512 tokens a step under light load, compared with one of them before and after."""
        sums, spreads = [], []
        for turn in range(self.rounds):
            with self.jobs_server("serve.tuning.max_running=4") as server:
                self.put(Load.streams(1, 1, PROMPT, 16), server)
                jobs = [server.create_job(1, self.vocabulary)]
                server.trained_tokens()
                one = [self._rate(server, self._load("light"), 200 + turn)[0]]
                jobs += [server.create_job(1, self.vocabulary) for _ in range(3)]
                while any(self._steps(server, job) < 2 for job in jobs):
                    time.sleep(0.2)
                before = [self._steps(server, job) for job in jobs]
                four = self._rate(server, self._load("light"), 300 + turn)[0]
                done = [self._steps(server, job) - b for job, b in zip(jobs, before)]
                for job in jobs[1:]:
                    server.cancel_job(job)
                one.append(self._rate(server, self._load("light"), 400 + turn)[0])
                sums.append(four / (sum(one) / 2))
                spreads.append(max(abs(4 * count / sum(done) - 1) for count in done))
        yield {"figure": "multi_job", "ratio": median(sums), "ratios": sums,
               "peer": "one job under the same load", "target": ">= 0.95"}
        yield {"figure": "multi_job_shares", "value": median(spreads), "values": spreads,
               "unit": "deviation from a quarter", "target": "<= 5%"}

    @staticmethod
    def _steps(server: Tidemill, job: str) -> int:
        path = pathlib.Path(server.folder.name, "jobs/runs", job, "metrics.jsonl")
        return len(path.read_text().splitlines()) if path.exists() else 0


FIGURES: dict[str, Callable[[Comparison], Iterator[Row]]] = {
    "serve_1": lambda c: c.serve(1), "serve_4": lambda c: c.serve(4),
    "serve_16": lambda c: c.serve(16), "http_overhead": Comparison.http_overhead,
    "footprint": Comparison.footprint, "schema_overhead": Comparison.schema_overhead,
    "coserve": Comparison.coserve, "coserve_peers": Comparison.coserve_peers,
    "multi_job": Comparison.multi_job, "serve_bursty": Comparison.bursty}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tidemill", default="tidemill", help="path of the tidemill program")
    parser.add_argument("--work", type=pathlib.Path, default=DEFAULT_WORK)
    parser.add_argument("--figure", action="append", choices=FIGURES, metavar="NAME",
                        help=", ".join(FIGURES))
    parser.add_argument("--preset", default="197m", metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0,
                        help="length of the loads of co-serving and of serve_bursty")
    return parser.parse_args()


def main() -> None:
    args = parse()
    comparison = Comparison(args)
    for name in args.figure or FIGURES:
        for row in FIGURES[name](comparison):
            print(json.dumps({**row, "preset": args.preset, "rounds": args.rounds}), flush=True)


if __name__ == "__main__":
    main()
