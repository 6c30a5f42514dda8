#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills `tidemill serve` with SIGKILL again and again while clients use it, and starts it again in the same folders.

Nothing that the server has confirmed may be lost or done twice: files, states of jobs, steps, checkpoints. Clients see a
closed connection, never half a response, and get the same tokens when they send the request again. The adapters and
losses of jobs, and the states that a Tinker client saves, have the bits of an undisturbed server.

Usage: kill_test.py PROGRAM SOURCE_DIR [KILLS [SEED]]
"""
import collections
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time

import kill_clients
from kill_clients import (CHAT, GENERATIONS, SECONDS, Generator, JobResult, Stage, Stopped, TinkerTrainer, Tuner, Uploader,
                          digest, exchange, form, generate, require)
from server import Server

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
KILLS = int(sys.argv[3]) if len(sys.argv) > 3 else 8
SEED = int(sys.argv[4]) if len(sys.argv) > 4 else 1
MODEL = SOURCE / "examples/models/arithmetic"
ROWS = (SOURCE / "examples/arithmetic/data/train.jsonl").read_text().splitlines()[::5]
TINKER_STEPS = 40
PHASES = ("start", "upload", "commit", "end", "create", "save", "any", "any")
MAX_ANY = 2.0    # seconds
MAX_WAIT = 8.0   # seconds for a phase to begin; then the server is killed in another one


def specs(file: str) -> dict[str, dict]:
    return {
        "supervised": {
            "training_file": file, "seed": 7,
            "method": {"type": "supervised",
                       "supervised": {"hyperparameters": {"batch_size": 16, "learning_rate_multiplier": 20}}},
            "tidemill": {"train.steps": 200, "checkpoint.every_steps": 10}},
        "reinforcement": {
            "training_file": file, "seed": 7,
            "method": {"type": "reinforcement",
                       "reinforcement": {"grader": {"type": "tidemill", "reward": {"kind": "number"}},
                                         "hyperparameters": {"batch_size": 8, "learning_rate_multiplier": 40}}},
            "tidemill": {"train.steps": 30, "rollout.max_new_tokens": 4, "checkpoint.every_steps": 5}}}


class Campaign:
    def __init__(self, folder: pathlib.Path):
        self.random = random.Random(SEED)
        self.stage = Stage(folder)
        self.phases: collections.Counter = collections.Counter()
        self.kills = 0
        self.start_seconds = 0.0  # that the last server took to be ready

    def start(self, on_spawn=lambda process: None) -> Server:
        begun = time.monotonic()
        server = Server(PROGRAM, MODEL, f"serve.jobs_path={self.stage.jobs}",
                        f"serve.checkpoints_path={self.stage.checkpoints}", "device.threads=1", "serve.tuning.max_running=2",
                        on_spawn=on_spawn)
        self.start_seconds = time.monotonic() - begun
        return server

    # -- the undisturbed server -------------------------------------------------------------------

    def prepare(self) -> list[threading.Thread]:
        """Makes the expected results with a server that is not disturbed, and returns the clients."""
        with tempfile.TemporaryDirectory() as other:
            undisturbed = Campaign(pathlib.Path(other))
            with undisturbed.start() as server:
                texts = [generate(server, lambda s, kind, *more: exchange(s, *more), i)
                         for i in range(len(GENERATIONS) + 1)]
                results = undisturbed.run_jobs(server)
                undisturbed.stage.set_server(server)
                trainer = TinkerTrainer(undisturbed.stage, 0, TINKER_STEPS, {})
                trainer.run()
                require(undisturbed.stage.failure is None, undisturbed.stage.failure)
        with self.start() as server:  # once with the files of the campaign, to upload the rows
            file = self.upload(server)
        kept = {file: digest(self.rows())}
        return [Generator(self.stage, SEED, texts), Generator(self.stage, SEED + 1, texts),
                Uploader(self.stage, SEED + 2, kept), Tuner(self.stage, SEED + 3, specs(file), results),
                TinkerTrainer(self.stage, SEED + 4, TINKER_STEPS, trainer.saved)]

    @staticmethod
    def rows() -> bytes:
        return ("\n".join(ROWS) + "\n").encode()

    def upload(self, server: Server) -> str:
        status, data = exchange(server, "POST", "/v1/files", form(self.rows()), "multipart/form-data; boundary=xx")
        require(status == 200, data)
        return kill_clients.json.loads(data)["id"]

    def run_jobs(self, server: Server) -> dict[str, JobResult]:
        results = {}
        for name, spec in specs(self.upload(server)).items():
            job = server.post("/v1/fine_tuning/jobs", **spec)["id"]
            deadline = time.monotonic() + SECONDS
            while (record := server.request("GET", f"/v1/fine_tuning/jobs/{job}")[1])["status"] != "succeeded":
                require(time.monotonic() < deadline and record["status"] != "failed", record)
                time.sleep(0.05)
            results[name] = JobResult(self.stage.jobs, record)
        return results

    # -- kills ------------------------------------------------------------------------------------

    def wait_for(self, begins) -> bool:
        deadline = time.monotonic() + MAX_WAIT
        while not begins():
            self.stage.check()
            if time.monotonic() > deadline:
                return False
            time.sleep(0.0005)
        return True

    def commits(self) -> set[str]:
        return {str(path) for path in self.stage.jobs.glob("runs/*/checkpoints/objects/*")}

    def exports(self) -> set[str]:
        return {str(path) for path in self.stage.jobs.glob("runs/*/export")}

    def wait_for_phase(self, phase: str) -> str:
        """Waits for the moment of a kill, and returns the phase."""
        if phase == "commit":
            before = self.commits()
            begun = self.wait_for(lambda: self.commits() - before)
        elif phase == "end":
            before = self.exports()
            begun = self.wait_for(lambda: self.exports() - before)
        elif phase in ("upload", "create", "save"):
            begun = self.wait_for(lambda: self.stage.in_flight[phase] > 0)
        else:
            time.sleep(self.random.uniform(0, MAX_ANY))
            return phase
        time.sleep(self.random.choice((0, 0.002, 0.01, 0.03)) * self.random.random())
        return phase if begun else "any"

    def kill_at_start(self) -> None:
        delay = self.random.uniform(0, self.start_seconds)
        timers = []

        def on_spawn(process) -> None:
            timers.append(threading.Timer(delay, process.kill))
            timers[0].start()

        try:
            with self.start(on_spawn) as server:
                server.process.wait(timeout=SECONDS)
            self.phases["start, after it was ready"] += 1
        except RuntimeError as error:
            require("the server has not started: {}" in str(error), error)
            self.phases["start"] += 1
        timers[0].join()

    def run(self) -> None:
        """Runs the campaign. Raises the first failure of a client."""
        clients = self.prepare()
        try:
            self.run_with(clients)
        except Stopped:
            raise self.stage.failure from None
        finally:
            self.stage.failure = self.stage.failure or (None if self.stage.ends else Stopped())
            for client in clients:
                client.join(timeout=SECONDS)
        if self.stage.failure is not None:
            raise self.stage.failure

    def run_with(self, clients: list[threading.Thread]) -> None:
        for client in clients:
            client.start()
        while self.kills < KILLS:
            phase = PHASES[self.kills % len(PHASES)] if self.kills < len(PHASES) else self.random.choice(PHASES)
            self.kills += 1
            if phase == "start":
                self.kill_at_start()
                continue
            with self.start() as server:
                self.stage.set_server(server)
                self.phases[self.wait_for_phase(phase)] += 1
                require(server.stop(signal.SIGKILL) == -signal.SIGKILL, "the server had ended by itself")
                self.stage.set_server(None)
                warnings = [line for line in server.stderr().splitlines() if not line.startswith("info: ")]
                require(not warnings, warnings)
        with self.start() as server:
            self.stage.set_server(server)
            # Clients that have begun check what the killed servers had confirmed.
            self.wait_for(lambda: all(client.server is server for client in clients))
            self.stage.ends = True
            for client in clients:
                client.join(timeout=SECONDS)
                self.stage.check()
                require(not client.is_alive(), f"{client} does not end")
            require(self.wait_for(lambda: not list(self.stage.jobs.glob("runs/*/checkpoints"))),
                    "the commits of jobs that have ended are not removed")
            require(server.stop() == 0, "the last server has not ended well")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(pathlib.Path(folder))
        begun = time.monotonic()
        try:
            campaign.run()
        finally:
            phases = ", ".join(f"{name} {count}" for name, count in sorted(campaign.phases.items()))
            print(f"seed {SEED}: {campaign.kills} kills in {time.monotonic() - begun:.0f} s ({phases})")
            for name, count in sorted(campaign.stage.count.items()):
                print(f"  {name}: {count}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
