#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests fine-tuning jobs of `tidemill serve` as a process.

Usage: tuning_test.py PROGRAM SOURCE_DIR [TEST...]
"""
import hashlib
import json
import pathlib
import signal
import sys
import tempfile
import time
import unittest

from server import Clients, Server

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
MODEL = SOURCE / "examples/models/arithmetic"
ROWS = (SOURCE / "examples/arithmetic/data/train.jsonl").read_text().splitlines()[::5]
SECONDS = 120
STEPS = 400
SUPERVISED = {
    "method": {"type": "supervised",
               "supervised": {"hyperparameters": {"batch_size": 16,
                                                  "learning_rate_multiplier": 20}}},
    "tidemill": {"train.steps": STEPS, "checkpoint.every_steps": 20}, "seed": 7}
REINFORCEMENT = {
    "method": {"type": "reinforcement",
               "reinforcement": {"grader": {"type": "tidemill", "reward": {"kind": "number"}},
                                 "hyperparameters": {"batch_size": 8,
                                                     "learning_rate_multiplier": 40}}},
    "tidemill": {"train.steps": 40, "rollout.max_new_tokens": 4, "checkpoint.every_steps": 5},
    "seed": 7}
ENDED = ("succeeded", "failed", "cancelled")


class Jobs:
    """A server with a directory of jobs, and requests to it."""

    def __init__(self, folder: pathlib.Path, *overrides: str):
        self.folder = folder
        self.overrides = overrides
        self.start()

    def start(self) -> None:
        self.server = Server(PROGRAM, MODEL, f"serve.jobs_path={self.folder}", "device.threads=1",
                             *self.overrides)

    def __enter__(self) -> "Jobs":
        return self

    def __exit__(self, *_: object) -> None:
        self.server.__exit__()

    def call(self, method: str, path: str, body: object = None) -> dict:
        status, data = self.server.request(method, path, body)
        if status != 200:
            raise AssertionError(f"{method} {path}: {status} {data}")
        return data

    def upload(self, text: str) -> str:
        form = (b'--xx\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
                b'--xx\r\nContent-Disposition: form-data; name="file"; filename="rows.jsonl"\r\n\r\n'
                + text.encode() + b"\r\n--xx--\r\n")
        connection = self.server.connect()
        connection.request("POST", "/v1/files", form,
                           {"Content-Type": "multipart/form-data; boundary=xx"})
        response = connection.getresponse()
        data = json.loads(response.read())
        connection.close()
        if response.status != 200:
            raise AssertionError(f"upload: {response.status} {data}")
        return data["id"]

    def create(self, spec: dict, rows: list[str] = ROWS, **more: object) -> str:
        file = self.upload("\n".join(rows) + "\n")
        job = self.call("POST", "/v1/fine_tuning/jobs",
                        {"model": self.server.model, "training_file": file, **spec, **more})
        return job["id"]

    def job(self, job: str) -> dict:
        return self.call("GET", f"/v1/fine_tuning/jobs/{job}")

    def events(self, job: str) -> list[dict]:
        return self.call("GET", f"/v1/fine_tuning/jobs/{job}/events?limit=100")["data"]

    def wait(self, job: str, states: tuple[str, ...] = ENDED) -> dict:
        deadline = time.monotonic() + SECONDS
        while (found := self.job(job))["status"] not in states:
            if time.monotonic() > deadline:
                raise AssertionError(f"{job} is still {found['status']}: {self.events(job)[:3]}")
            time.sleep(0.05)
        return found

    def wait_for_step(self, job: str, step: int) -> None:
        deadline = time.monotonic() + SECONDS
        while not any(event["type"] == "metrics" and event["data"]["step"] >= step
                      for event in self.events(job)):
            if time.monotonic() > deadline or self.job(job)["status"] in ENDED:
                raise AssertionError(f"{job} has not reached step {step}: {self.job(job)}")
            time.sleep(0.02)

    def digest(self, job: str) -> str:
        """Returns a digest of the adapter that a job has exported."""
        path = self.folder / "runs" / job / "export/adapter/adapter_model.safetensors"
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def losses(self, job: str) -> list[tuple]:
        """Returns the loss of each step, once for each time that the records have it."""
        path = self.folder / "runs" / job / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [(line["step"], line["metrics"]["loss"] if "metrics" in line else line["loss"])
                for line in lines if line.get("kind") == "train"]


class Load(Clients):
    """Equal requests, and the texts of their responses."""

    def __init__(self, server: Server):
        super().__init__()
        self.server = server
        self.texts: list[str] = []

    def send(self) -> None:
        response = self.server.post("/v1/completions", prompt="38+86=", max_tokens=12, seed=5,
                                    ignore_eos=True)
        self.texts.append(response["choices"][0]["text"])


class TuningTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.jobs = Jobs(pathlib.Path(cls.folder.name) / "jobs")
        cls.alone = {}
        for name, spec in (("supervised", SUPERVISED), ("reinforcement", REINFORCEMENT)):
            job = cls.jobs.create(spec)
            ended = cls.jobs.wait(job)
            if ended["status"] != "succeeded":
                raise AssertionError(ended)
            cls.alone[name] = job

    @classmethod
    def tearDownClass(cls) -> None:
        cls.jobs.__exit__()
        cls.folder.cleanup()

    def succeed(self, job: str) -> dict:
        ended = self.jobs.wait(job)
        self.assertEqual(ended["status"], "succeeded", ended["error"])
        return ended

    def expect_bits_of(self, job: str, name: str) -> None:
        self.assertEqual(self.jobs.digest(job), self.jobs.digest(self.alone[name]))
        self.assertEqual(self.jobs.losses(job), self.jobs.losses(self.alone[name]))

    def test_the_result_is_a_model_of_its_own(self) -> None:
        job = self.jobs.job(self.alone["supervised"])
        name = job["fine_tuned_model"]
        self.assertTrue(name.startswith("ft:arithmetic:"), name)
        self.assertGreater(job["trained_tokens"], 0)
        models = [model["id"] for model in self.jobs.call("GET", "/v1/models")["data"]]
        self.assertIn(name, models)
        self.assertFalse([model for model in models if "\x01" in model])
        request = {"prompt": "38+86=", "max_tokens": 4, "temperature": 0, "logprobs": 1}
        base, tuned = (self.jobs.call("POST", "/v1/completions", {"model": model, **request})
                       for model in ("arithmetic", name))
        self.assertNotEqual(base["choices"][0]["logprobs"], tuned["choices"][0]["logprobs"])
        events = self.jobs.events(self.alone["supervised"])
        self.assertTrue(events[0]["message"].startswith("The job has completed"), events[0])
        steps = [event["data"]["step"] for event in events if event["type"] == "metrics"]
        self.assertEqual(steps[0], STEPS)
        self.assertEqual(steps, sorted(set(steps), reverse=True))
        checkpoints = self.jobs.call(
            "GET", f"/v1/fine_tuning/jobs/{job['id']}/checkpoints")["data"]
        self.assertEqual([one["step_number"] for one in checkpoints], [STEPS])

    def test_jobs_under_load_have_the_bits_of_jobs_alone(self) -> None:
        expected = self.jobs.server.post("/v1/completions", prompt="38+86=", max_tokens=12, seed=5,
                                         ignore_eos=True)["choices"][0]["text"]
        with Load(self.jobs.server) as load:
            created = [self.jobs.create(SUPERVISED), self.jobs.create(REINFORCEMENT),
                       self.jobs.create(SUPERVISED)]
            for job in created:
                self.succeed(job)
        self.assertGreater(len(load.texts), 10)
        self.assertEqual(set(load.texts), {expected})
        self.expect_bits_of(created[0], "supervised")
        self.expect_bits_of(created[1], "reinforcement")
        self.expect_bits_of(created[2], "supervised")

    def test_a_job_is_served_while_it_trains_and_ends_well(self) -> None:
        with tempfile.TemporaryDirectory() as folder, \
                Jobs(pathlib.Path(folder) / "jobs", "serve.tuning.publish_every_steps=2") as jobs:
            job = jobs.create(SUPERVISED)
            ended = jobs.wait(job)
            self.assertEqual(ended["status"], "succeeded", ended["error"])
            self.assertEqual(jobs.digest(job), self.jobs.digest(self.alone["supervised"]))
            request = {"prompt": "38+86=", "max_tokens": 4, "temperature": 0, "logprobs": 1}
            alone = self.jobs.job(self.alone["supervised"])
            answers, expected = (server.call("POST", "/v1/completions", {"model": job["fine_tuned_model"], **request})
                                 for server, job in ((jobs, ended), (self.jobs, alone)))
            self.assertEqual(answers["choices"][0]["logprobs"], expected["choices"][0]["logprobs"])

    def test_a_paused_job_goes_on_where_it_was(self) -> None:
        for name, spec, step in (("supervised", SUPERVISED, 50), ("reinforcement", REINFORCEMENT, 8)):
            job = self.jobs.create(spec)
            self.jobs.wait_for_step(job, step)
            paused = self.jobs.call("POST", f"/v1/fine_tuning/jobs/{job}/pause")
            self.assertEqual(paused["status"], "paused")
            resumed = self.jobs.call("POST", f"/v1/fine_tuning/jobs/{job}/resume")
            self.assertEqual(resumed["status"], "queued")
            self.succeed(job)
            self.expect_bits_of(job, name)

    def test_a_cancelled_job_ends_and_is_not_served(self) -> None:
        job = self.jobs.create(SUPERVISED)
        self.jobs.wait(job, ("running",))
        cancelled = self.jobs.call("POST", f"/v1/fine_tuning/jobs/{job}/cancel")
        self.assertEqual(cancelled["status"], "cancelled")
        status, data = self.jobs.server.request("POST", f"/v1/fine_tuning/jobs/{job}/resume")
        self.assertEqual(status, 400, data)
        self.succeed(self.jobs.create(SUPERVISED))  # the place is free again
        models = [model["id"] for model in self.jobs.call("GET", "/v1/models")["data"]]
        self.assertNotIn("ft:arithmetic::" + job[-8:], models)

    def test_mistakes_name_their_field(self) -> None:
        file = self.jobs.upload("\n".join(ROWS[:50]) + "\n")
        good = {"model": "arithmetic", "training_file": file, **SUPERVISED}
        for change, status, param in (
                ({"model": "other"}, 404, "model"),
                ({"training_file": "file-aaaaaaaaaaaaaaaaaaaaaaaa"}, 404, "training_file"),
                ({"tidemill": {"model.path": "/etc"}}, 400, "tidemill"),
                ({"tidemill": {"data.train": "/etc/passwd"}}, 400, "tidemill"),
                ({"tidemill": {"train.learning_rate": "fast"}}, 400, "tidemill"),
                ({"tidemill": {"train.unknown": 1}}, 400, "tidemill"),
                ({"tidemill": {"reward.kind": "command"}}, 400, "tidemill")):
            got, data = self.jobs.server.request("POST", "/v1/fine_tuning/jobs", {**good, **change})
            self.assertEqual((got, data["error"]["param"]), (status, param), data)

    def test_rows_that_cannot_be_read_fail_the_job(self) -> None:
        file = self.jobs.upload('{"prompt": "1+1=", "answer": "2"}\n{"prompt": 3}\n')
        job = self.jobs.call("POST", "/v1/fine_tuning/jobs",
                             {"model": "arithmetic", "training_file": file, **SUPERVISED})["id"]
        failed = self.jobs.wait(job)
        self.assertEqual(failed["status"], "failed")
        self.assertIn(":2:", failed["error"]["message"])
        self.assertNotIn(self.folder.name, failed["error"]["message"])

    def test_a_killed_server_loses_and_repeats_no_step(self) -> None:
        for name, spec, step in (("supervised", SUPERVISED, 50), ("reinforcement", REINFORCEMENT, 8)):
            job = self.jobs.create(spec)
            self.jobs.wait_for_step(job, step)
            self.jobs.server.stop(signal.SIGKILL)
            self.jobs.server.__exit__()
            self.jobs.start()
            self.succeed(job)
            self.expect_bits_of(job, name)
        served = [model["id"] for model in self.jobs.call("GET", "/v1/models")["data"]]
        self.assertIn("ft:arithmetic::" + self.alone["supervised"][-8:], served)

    def test_a_stopped_server_continues_its_jobs(self) -> None:
        job = self.jobs.create(SUPERVISED)
        self.jobs.wait_for_step(job, 50)
        self.assertEqual(self.jobs.server.stop(), 0)
        self.jobs.server.__exit__()
        self.jobs.start()
        self.succeed(job)
        self.expect_bits_of(job, "supervised")


class LongStepTest(unittest.TestCase):
    """A step that takes far longer than the server waits for one."""

    LONG = {"method": {"type": "supervised", "supervised": {"hyperparameters": {"batch_size": 65536}}},
            "tidemill": {"train.steps": 3}, "seed": 7}

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.jobs = Jobs(pathlib.Path(folder.name) / "jobs", "serve.drain_seconds=1",
                         "serve.tuning.max_running=1")
        self.addCleanup(lambda: self.jobs.__exit__())

    def wait_for_event(self, job: str, text: str, count: int = 1) -> None:
        deadline = time.monotonic() + SECONDS
        while sum(text in event["message"] for event in self.jobs.events(job)) < count:
            if time.monotonic() > deadline:
                raise AssertionError(f"{job} has no event {text!r}: {self.jobs.events(job)}")
            time.sleep(0.05)

    def begin(self) -> str:
        """Returns a job that is in its first step."""
        row = json.dumps({"prompt": "1+1=", "completion": "2" * 50})
        job = self.jobs.create(self.LONG, [row] * 100)
        self.wait_for_event(job, "The files are valid")
        deadline = time.monotonic() + SECONDS
        while self.train_tokens() == 0.0:
            self.assertLess(time.monotonic(), deadline, self.jobs.events(job))
            time.sleep(0.05)
        return job

    def train_tokens(self) -> float:
        connection = self.jobs.server.connect()
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        return next(float(line.split()[-1]) for line in lines
                    if line.startswith("tidemill:train_tokens_total"))

    def expect_no_step(self, job: str) -> None:
        self.assertFalse([event for event in self.jobs.events(job) if event["type"] == "metrics"])

    def test_cancel_frees_the_place_at_once(self) -> None:
        job = self.begin()
        self.jobs.call("POST", f"/v1/fine_tuning/jobs/{job}/cancel")
        short = self.jobs.create(SUPERVISED)
        self.assertEqual(self.jobs.wait(short)["status"], "succeeded")
        self.expect_no_step(job)
        self.assertEqual(self.jobs.job(job)["status"], "cancelled")

    def test_pause_gives_the_step_up_in_time(self) -> None:
        job = self.begin()
        self.jobs.call("POST", f"/v1/fine_tuning/jobs/{job}/pause")
        self.wait_for_event(job, "ended within a step")
        self.assertEqual(self.jobs.job(job)["status"], "paused")
        self.jobs.call("POST", f"/v1/fine_tuning/jobs/{job}/resume")
        self.wait_for_event(job, "The files are valid", 2)
        self.expect_no_step(job)
        self.assertEqual(self.jobs.job(job)["status"], "running")

    def test_a_server_that_stops_gives_the_step_up_in_time(self) -> None:
        job = self.begin()
        self.assertEqual(self.jobs.server.stop(), 0)
        errors = self.jobs.server.stderr()
        self.assertIn("ended within a step", errors)
        self.assertNotIn("did not end", errors)
        self.jobs.server.__exit__()
        self.jobs.start()
        self.wait_for_event(job, "The files are valid", 2)
        self.expect_no_step(job)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
