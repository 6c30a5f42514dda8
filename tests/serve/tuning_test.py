#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests fine-tuning jobs of `tidemill serve` as a process.

Usage: tuning_test.py PROGRAM SOURCE_DIR [TEST...]
"""
import hashlib
import json
import pathlib
import shutil
import signal
import sys
import tempfile
import time
import unittest

from server import Clients, Server, run_json

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

    MODEL = MODEL

    def __init__(self, folder: pathlib.Path, *overrides: str):
        self.folder = folder
        self.overrides = overrides
        self.start()

    def start(self) -> None:
        self.server = Server(PROGRAM, self.MODEL, f"serve.jobs_path={self.folder}", "device.threads=1",
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
                ({"tidemill": {"model.path": "/etc"}}, 400, "tidemill.model.path"),
                ({"tidemill": {"data.train": "/etc/passwd"}}, 400, "tidemill.data.train"),
                ({"tidemill": {"train.weight_decay": "fast"}}, 400, "tidemill.train.weight_decay"),
                ({"tidemill": {"train.unknown": 1}}, 400, "tidemill.train.unknown"),
                ({"tidemill": {"reward.kind": "command"}}, 400, "tidemill.reward.kind")):
            got, data = self.jobs.server.request("POST", "/v1/fine_tuning/jobs", {**good, **change})
            self.assertEqual((got, data["error"]["param"]), (status, param), data)

    def test_a_refused_key_says_what_to_use(self) -> None:
        file = self.jobs.upload("\n".join(ROWS[:50]) + "\n")
        good = {"model": "arithmetic", "training_file": file}
        refused = "is not a key that a job may set"
        reinforcement = {"type": "reinforcement", "reinforcement": {"grader": {"type": "tidemill", "reward": {
            "kind": "regex", "pattern": "("}}}}
        many = {"type": "reinforcement", "reinforcement": {"grader": {"type": "tidemill", "reward": [
            {"kind": "number", "name": f"r{i}"} for i in range(65)]}}}
        epochs = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}}
        rate = {"type": "supervised", "supervised": {"hyperparameters": {"learning_rate_multiplier": 2}}}
        for change, text in (
                ({"tidemill": {"train.sequences_per_step": 4}},
                 f"train.sequences_per_step: {refused}; use batch_size"),
                ({"tidemill": {"data.epochs": 4}}, f"data.epochs: {refused}; use n_epochs"),
                ({"tidemill": {"train.adapter.rnk": 4}}, "; did you mean train.adapter.rank?"),
                ({"tidemill": {"train.group_size": 4}}, "; did you mean rollout.group_size?"),
                ({"tidemill": {"train.adapter.kind": "given"}}, "must be lora or ia3"),
                ({"tidemill": {"train.steps": 4}, "method": epochs},
                 "tidemill.train.steps: cannot be combined with n_epochs"),
                ({"tidemill": {"train.learning_rate": 1e-3}, "method": rate},
                 "tidemill.train.learning_rate: cannot be combined with learning_rate_multiplier"),
                ({"tidemill": {"eval.keep_best": True}}, "tidemill.eval.keep_best: needs validation_file"),
                ({"tidemill": {"eval.every_steps": 5}}, "tidemill.eval.every_steps: needs validation_file"),
                ({"tidemill": {"train.gradient_accumulation_steps": 4}}, f": {refused}; use batch_size"),
                ({"tidemill": {"lora_r": 4}}, "; did you mean train.adapter.rank?"),
                ({"tidemill": {"train.warmup_ratio": 0.1}}, "; did you mean train.warmup_steps?"),
                ({"tidemill": {"train.lr_scheduler_type": "cosine"}}, "; did you mean train.schedule?"),
                ({"tidemill": {"per_device_train_batch_size": 4}}, f": {refused}; use batch_size"),
                ({"tidemill": {"rollout.num_generations": 4}}, "; did you mean rollout.group_size?"),
                ({"tidemill": {"max_length": 64}}, "; did you mean data.max_prompt_tokens?"),
                ({"tidemill": {"train.adapter.dropout": 0.1}}, f": {refused}; there is no dropout"),
                ({"tidemill": {"lora_dropout": 0.1}}, f": {refused}; there is no dropout"),
                ({"method": reinforcement}, "method.reinforcement.grader.reward.pattern: offset 1: "),
                ({"method": many}, "65 rewards; a job may have at most 64")):
            status, data = self.jobs.server.request("POST", "/v1/fine_tuning/jobs", {**good, **change})
            self.assertEqual(status, 400, data)
            self.assertIn(text, data["error"]["message"])
        self.assertEqual(self.jobs.server.request(
            "POST", "/v1/fine_tuning/jobs", {**good, "tidemill": {"train.odd_steps": 4}})[1]["error"]["message"],
                         f"tidemill.train.odd_steps: {refused}")

    def test_an_adapter_may_be_of_either_kind(self) -> None:
        for kind in ("lora", "ia3"):
            job = self.jobs.create({"tidemill": {
                "train.steps": 2, "train.adapter.kind": kind,
                "data.chat_template_kwargs": {"enable_thinking": False}}}, ROWS[:20])
            ended = self.jobs.wait(job)
            self.assertEqual(ended["status"], "succeeded", ended["error"])
            self.jobs.call("POST", "/v1/completions",
                           {"model": ended["fine_tuned_model"], "prompt": "1+1=", "max_tokens": 2})

    def test_rewards_without_a_signal_cause_a_warning(self) -> None:
        job = self.jobs.create({"method": {"type": "reinforcement", "reinforcement": {
            "grader": {"type": "tidemill", "reward": {"kind": "regex", "pattern": "never"}}}},
            "tidemill": {"train.steps": 5, "rollout.max_new_tokens": 2}}, ROWS[:20])
        ended = self.jobs.wait(job)
        self.assertEqual(ended["status"], "succeeded", ended["error"])
        warnings = [event["message"] for event in self.jobs.events(job) if event["level"] == "warn"]
        self.assertTrue(any("no signal for 5 steps" in warning for warning in warnings), warnings)

    def test_a_pattern_that_cannot_be_matched_fails_its_job(self) -> None:
        job = self.jobs.create({"method": {"type": "reinforcement", "reinforcement": {
            "grader": {"type": "tidemill", "reward": {"kind": "regex", "pattern": "(?R)?(a|(?R))*"}}}},
            "tidemill": {"train.steps": 2, "rollout.max_new_tokens": 4}}, ROWS[:20])
        ended = self.jobs.wait(job, ("failed", "paused", "succeeded"))
        self.assertEqual(ended["status"], "failed")
        self.assertIn("the pattern cannot be matched: ", ended["error"]["message"])

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


class LimitsTest(unittest.TestCase):
    """What jobs may take, on a server whose jobs may have sequences of 32 tokens."""

    TOKENS = 32

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.jobs = Jobs(pathlib.Path(cls.folder.name) / "jobs",
                        f"serve.tuning.job_tokens={cls.TOKENS}")

    @classmethod
    def tearDownClass(cls) -> None:
        cls.jobs.__exit__()
        cls.folder.cleanup()

    def sequence(self, tokens: int) -> str:
        return json.dumps({"input_ids": [1 + i % 5 for i in range(tokens)]})

    def failure_of(self, job: str) -> str:
        failed = self.jobs.wait(job)
        self.assertEqual(failed["status"], "failed")
        message = failed["error"]["message"]
        self.assertNotIn(self.folder.name, message)
        return message

    def refusal(self, spec: dict, rows: list[str] = ROWS[:50]) -> dict:
        file = self.jobs.upload("\n".join(rows) + "\n")
        status, data = self.jobs.server.request(
            "POST", "/v1/fine_tuning/jobs", {"model": "arithmetic", "training_file": file, **spec})
        self.assertEqual(status, 400, data)
        return data["error"]

    def test_a_sequence_has_at_most_job_tokens(self) -> None:
        spec = {"method": {"type": "supervised",
                           "supervised": {"hyperparameters": {"batch_size": 1}}},
                "tidemill": {"train.steps": 2}}
        fits = self.jobs.create(spec, [self.sequence(5), self.sequence(self.TOKENS)])
        self.assertEqual(self.jobs.wait(fits)["status"], "succeeded")
        long = [self.sequence(5), self.sequence(self.TOKENS + 1), self.sequence(self.TOKENS + 2)]
        message = self.failure_of(self.jobs.create(spec, long))
        self.assertTrue(message.startswith("rows.jsonl:2: "), message)
        self.assertIn(f"has {self.TOKENS + 1} tokens", message)
        self.assertIn(f"at most {self.TOKENS} tokens (serve.tuning.job_tokens)", message)
        skipped = self.jobs.create(
            {**spec, "tidemill": {"train.steps": 2, "data.on_long_prompt": "skip"}}, long)
        self.assertEqual(self.jobs.wait(skipped)["status"], "succeeded")

    def test_a_prompt_leaves_room_for_a_response(self) -> None:
        rows = [json.dumps({"prompt": "1" * length, "answer": "2"}) for length in (3, 20)]
        spec = {**REINFORCEMENT, "method": {"type": "reinforcement", "reinforcement": {
            "grader": {"type": "tidemill", "reward": {"kind": "number"}},
            "hyperparameters": {"batch_size": 1}}}}
        limits = {"train.steps": 1, "rollout.max_new_tokens": 20}
        job = self.jobs.create({**spec, "tidemill": limits}, rows)
        message = self.failure_of(job)
        self.assertTrue(message.startswith("rows.jsonl:2: "), message)
        self.assertIn("serve.tuning.job_tokens", message)
        job = self.jobs.create({**spec, "tidemill": {**limits, "data.on_long_prompt": "skip"}}, rows)
        self.assertEqual(self.jobs.wait(job)["status"], "succeeded")

    def test_a_reinforcement_job_with_defaults_fits_the_model(self) -> None:
        grader = {"type": "tidemill", "reward": {"kind": "number"}}
        job = self.jobs.create({"method": {"type": "reinforcement",
                                           "reinforcement": {"grader": grader}}}, ROWS[:3])
        ended = self.jobs.wait(job)
        self.assertEqual(ended["status"], "succeeded", ended["error"])

    def test_what_is_known_before_the_run_is_refused(self) -> None:
        for spec, text in (
                ({**REINFORCEMENT, "tidemill": {"rollout.max_new_tokens": 64}},
                 "rollout.max_new_tokens: 64 leaves no room for a prompt"),
                ({**REINFORCEMENT, "tidemill": {"rollout.max_new_tokens": self.TOKENS}},
                 f"in the {self.TOKENS} tokens of a sequence of a job (serve.tuning.job_tokens)"),
                ({**SUPERVISED, "tidemill": {"data.max_prompt_tokens": 65}},
                 f"data.max_prompt_tokens: 65 exceeds the {self.TOKENS} tokens of a sequence of a job"),
                ({**SUPERVISED, "tidemill": {"train.adapter.target_modules": ["q_proj", "query"]}},
                 "tidemill.train.adapter.target_modules: `query` is not a layer of this model")):
            error = self.refusal(spec)
            self.assertTrue(error["param"].startswith("tidemill."), error)
            self.assertIn(text, error["message"])
        few = {"method": {"type": "supervised",
                          "supervised": {"hyperparameters": {"batch_size": 8, "n_epochs": 2}}}}
        error = self.refusal(few, ROWS[:3])
        self.assertEqual(error["param"], "training_file")
        self.assertIn("3 rows in 2 epochs are fewer than one batch of 8", error["message"])
        self.assertEqual(self.jobs.wait(self.jobs.create(few, ROWS[:4]))["status"], "succeeded")

    def documented(self) -> list[tuple[str, str, str]]:
        """Returns the rows of the table of defaults."""
        lines = (SOURCE / "docs/fine-tuning.md").read_text().splitlines()
        begin = lines.index("| key | supervised | reinforcement |") + 2
        end = lines.index("", begin)
        return [tuple(cell.strip(" `") for cell in line.strip("|").split("|"))
                for line in lines[begin:end]]

    def test_the_documented_defaults_are_those_of_jobs(self) -> None:
        rows = self.documented()
        self.assertEqual(len(rows), 16)
        grader = {"type": "tidemill", "reward": {"kind": "number"}}
        file = self.jobs.upload("\n".join(ROWS[:20]) + "\n")
        for column, method in ((1, {"type": "supervised"}),
                               (2, {"type": "reinforcement", "reinforcement": {"grader": grader}})):
            job = self.jobs.create({"method": method, "validation_file": file}, ROWS[:20])
            self.assertEqual(self.jobs.wait(job)["status"], "succeeded", self.jobs.job(job))
            run = self.jobs.folder / "runs" / job / "run.yaml"
            config = run_json(PROGRAM, "run", str(run), "--dry-run")[0]["config"]
            for row in rows:
                value = config
                for name in row[0].split("."):
                    value = value.get(name, {}) if isinstance(value, dict) else {}
                expected = row[column]
                if row[0] == "rollout.max_new_tokens" and column == 2:
                    self.assertEqual(value, min(int(expected), self.TOKENS // 2))
                elif expected == "-":
                    self.assertEqual(value, {}, row)
                elif isinstance(value, (int, float)):
                    self.assertEqual(value, float(expected), row)
                else:
                    self.assertEqual([value] if isinstance(value, str) else value, [expected], row)

    def test_a_job_that_memory_does_not_permit_says_what_to_do(self) -> None:
        with tempfile.TemporaryDirectory() as folder, \
                Jobs(pathlib.Path(folder) / "jobs", "device.memory_bytes=1GiB") as jobs:
            spec = {**SUPERVISED, "tidemill": {"train.steps": 2, "train.adapter.rank": 1024}}
            status, data = jobs.server.request(
                "POST", "/v1/fine_tuning/jobs",
                {"model": "arithmetic", "training_file": jobs.upload("\n".join(ROWS) + "\n"), **spec})
            self.assertEqual(status, 400, data)
            self.assertEqual(data["error"]["param"], "tidemill.train.adapter.rank")
            self.assertRegex(data["error"]["message"],
                             "^tidemill.train.adapter.rank: a job of rank 1024 needs at least .*, and "
                             r"each of 4 jobs \(serve.tuning.max_running\) may have .*; rank \d+ fits")

    def test_hyperparameters_are_those_that_the_job_uses(self) -> None:
        job = self.jobs.create({"tidemill": {"train.steps": 2, "train.learning_rate": 1e-3}})
        found = self.jobs.wait(job)
        self.assertEqual(found["status"], "succeeded", found["error"])
        self.assertEqual(found["hyperparameters"],
                         {"batch_size": 3, "learning_rate_multiplier": 5.0, "n_epochs": "auto"})
        job = self.jobs.create({}, ROWS[:8])
        found = self.jobs.wait(job)
        self.assertEqual(found["hyperparameters"],
                         {"batch_size": 1, "learning_rate_multiplier": 1.0, "n_epochs": 3})


class ConversationTest(unittest.TestCase):
    """Rows in OpenAI's form, on a model whose chat template renders tools."""

    TEMPLATE = ("{% if tools %}{% for t in tools %}[{{ t.function.name }}]{% endfor %}{% endif %}"
                "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
                "{% for c in m.tool_calls %}{{ c.function.name }}({{ c.function.arguments.x }}){% endfor %}"
                "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}")
    TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    CALL = {"role": "assistant", "content": "", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"x": 12}'}}]}
    USER = {"role": "user", "content": "1+1="}

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(cls.folder.name)
        shutil.copytree(MODEL, folder / "model")
        (folder / "model/chat_template.jinja").write_text(cls.TEMPLATE)
        cls.jobs = Jobs(folder / "jobs", f"model.path={folder / 'model'}")

    @classmethod
    def tearDownClass(cls) -> None:
        cls.jobs.__exit__()
        cls.folder.cleanup()

    def trained(self, row: dict) -> dict:
        """Returns the metrics of a step on a row."""
        job = self.jobs.create({"method": {"type": "supervised", "supervised": {
            "hyperparameters": {"batch_size": 1, "n_epochs": 1}}}}, [json.dumps(row)])
        ended = self.jobs.wait(job)
        self.assertEqual(ended["status"], "succeeded", ended["error"])
        return json.loads((self.jobs.folder / "runs" / job / "metrics.jsonl").read_text().splitlines()[0])

    def test_training_and_serving_render_the_same_tokens(self) -> None:
        for row in ({"messages": [self.USER, self.CALL], "tools": self.TOOLS},
                    {"messages": [self.USER, self.CALL]}):
            count = self.jobs.call("POST", "/tokenize",
                                   {"model": self.jobs.server.model, "add_generation_prompt": False, **row})["count"]
            self.assertEqual(self.trained(row)["batch_tokens"], count)

    def test_a_turn_of_weight_zero_is_not_trained_on(self) -> None:
        first, last = {"role": "assistant", "content": "20"}, {"role": "assistant", "content": "2"}
        both = self.trained({"messages": [self.USER, first, self.USER, last]})
        one = self.trained({"messages": [self.USER, {**first, "weight": 0}, self.USER, {**last, "weight": 1}]})
        self.assertEqual((both["tokens"], one["tokens"]), (3, 1))
        self.assertEqual(both["batch_tokens"], one["batch_tokens"])


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

    def test_events_say_how_far_the_step_is(self) -> None:
        job = self.begin()
        self.assertRegex(self.jobs.events(job)[0]["message"],
                         r"A step trains on 65536 sequences \(about \d+ tokens\)\.$")
        self.wait_for_event(job, " of 65536 sequences trained on")  # the first comes after 30 s
        self.assertIsNotNone(self.jobs.job(job)["estimated_finish"])
        self.expect_no_step(job)

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
