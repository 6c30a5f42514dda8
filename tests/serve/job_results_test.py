#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests what fine-tuning jobs of `tidemill serve` leave behind: runs, events and models.

Usage: job_results_test.py PROGRAM SOURCE_DIR [TEST...]
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from server import run_json
from tuning_test import MODEL, PROGRAM, ROWS, SECONDS, SUPERVISED, Jobs

SHORT = {**SUPERVISED, "tidemill": {"train.steps": 20}}


class RelativeJobs(Jobs):
    MODEL = pathlib.Path(os.path.relpath(MODEL, pathlib.Path(tempfile.gettempdir()) / "server"))


class JobResultsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.jobs = RelativeJobs(pathlib.Path(folder.name) / "jobs", "serve.drain_seconds=1")
        cls.addClassCleanup(lambda: cls.jobs.__exit__())

    def succeed(self, job: str) -> dict:
        ended = self.jobs.wait(job)
        self.assertEqual(ended["status"], "succeeded", ended["error"])
        return ended

    def restart(self) -> None:
        self.jobs.server.__exit__()
        self.jobs.start()

    def run_state(self, job: str) -> str:
        """Returns the state of a run as `tidemill runs` and `tidemill show` print it."""
        folder = self.jobs.folder / "runs"
        listed, = (run for run in run_json(PROGRAM, "runs", "--dir", str(folder)) if run["run"].endswith(job))
        shown = subprocess.run([PROGRAM, "show", folder / job], capture_output=True, text=True, check=True).stdout
        self.assertIn(listed["state"], shown.splitlines()[0])
        return listed["state"]

    def warnings(self, job: str) -> list[str]:
        return [event["message"] for event in self.jobs.events(job) if event["level"] == "warn"]

    def test_the_run_of_a_job_says_how_it_has_ended(self) -> None:
        done = self.jobs.create(SHORT)
        self.succeed(done)
        self.assertEqual(self.run_state(done), "finished")
        failed = self.jobs.create(SHORT, [*ROWS[:3], '{"prompt": 3}'])
        self.assertEqual(self.jobs.wait(failed)["status"], "failed")
        self.assertEqual(self.run_state(failed), "failed")
        cancelled = self.jobs.create(SUPERVISED)
        self.jobs.wait_for_step(cancelled, 1)
        self.assertEqual(self.run_state(cancelled), "running")
        self.jobs.call("POST", f"/v1/fine_tuning/jobs/{cancelled}/cancel")
        self.assertEqual(self.jobs.server.stop(), 0)
        self.restart()
        self.assertEqual(self.run_state(cancelled), "stopped")

    def test_warnings_of_a_run_are_events_without_paths(self) -> None:
        spec = {**SHORT, "tidemill": {"train.steps": 5, "data.on_error": "skip"}}
        job = self.jobs.create(spec, [*ROWS[:64], '{"prompt": 3}'])
        self.succeed(job)
        warning, = self.warnings(job)
        self.assertIn("rows skipped: 1", warning)
        self.assertIn("file-", warning)
        self.assertNotIn(str(self.jobs.folder.parent), warning)

    def test_an_adapter_names_its_model_by_an_absolute_path(self) -> None:
        job = self.jobs.create({**SUPERVISED, "tidemill": {"train.steps": 2}})
        self.succeed(job)
        config = self.jobs.folder / "runs" / job / "export/adapter/adapter_config.json"
        self.assertEqual(json.loads(config.read_text())["base_model_name_or_path"], str(MODEL.absolute()))

    def test_a_preference_row_is_not_supported(self) -> None:
        row = {"input": {"messages": []}, "preferred_output": [], "non_preferred_output": []}
        job = self.jobs.create({"tidemill": {"train.steps": 1}}, [*ROWS[:3], json.dumps(row)])
        self.assertEqual(self.jobs.wait(job)["error"]["message"],
                         'rows.jsonl:4: has preferred_output: preference rows are not supported')

    def test_the_last_step_is_evaluated(self) -> None:
        file = self.jobs.upload("".join(row + "\n" for row in ROWS[:16]))
        job = self.jobs.create({**SUPERVISED, "validation_file": file, "tidemill": {"train.steps": 3}})
        self.succeed(job)
        checkpoint, = self.jobs.call("GET", f"/v1/fine_tuning/jobs/{job}/checkpoints")["data"]
        metrics = checkpoint["metrics"]
        self.assertEqual(metrics["step"], 3)
        self.assertGreater(metrics["train_loss"], 0)
        self.assertGreater(metrics["valid_loss"], 0)
        self.assertEqual(metrics["full_valid_loss"], metrics["valid_loss"])
        evaluated = [event["data"]["step"] for event in self.jobs.events(job) if "valid_loss" in event["data"]]
        self.assertEqual(evaluated, [3])

    def test_a_job_whose_files_are_gone_says_that_it_starts_again(self) -> None:
        for name in (".", "checkpoints"):
            job = self.jobs.create(SUPERVISED)
            self.jobs.wait_for_step(job, 50)
            self.assertEqual(self.jobs.server.stop(), 0)
            shutil.rmtree((self.jobs.folder / "runs" / job / name).resolve())
            self.restart()
            self.succeed(job)
            self.assertEqual(self.warnings(job),
                             ["The commits of the run are gone. The job starts again from its first step."])

    def models(self) -> list[str]:
        return [model["id"] for model in self.jobs.call("GET", "/v1/models")["data"]]

    def test_a_deleted_model_stays_deleted(self) -> None:
        job = self.jobs.create(SHORT)
        name = self.succeed(job)["fine_tuned_model"]
        self.assertIn(name, self.models())
        for model, status in (("arithmetic", 403), ("ft:arithmetic::none", 404)):
            self.assertEqual(self.jobs.server.request("DELETE", f"/v1/models/{model}")[0], status)
        self.assertEqual(self.jobs.call("DELETE", f"/v1/models/{name}"),
                         {"id": name, "object": "model", "deleted": True})
        self.assertNotIn(name, self.models())
        status, _ = self.jobs.server.request("POST", "/v1/completions", {"model": name, "prompt": "1+1="})
        self.assertEqual(status, 404)
        self.assertIsNone(self.jobs.job(job)["fine_tuned_model"])
        self.assertEqual(self.jobs.events(job)[0]["message"], f"The model {name} was deleted.")
        self.assertEqual(self.jobs.call("GET", f"/v1/fine_tuning/jobs/{job}/checkpoints")["data"], [])
        self.assertEqual(self.jobs.server.request("DELETE", f"/v1/models/{name}")[0], 404)
        self.assertEqual(self.jobs.server.stop(), 0)
        self.assertFalse((self.jobs.folder / "runs" / job / "export").exists())
        self.restart()
        self.succeed(self.jobs.create(SHORT))  # what was loaded at the start is loaded now
        self.assertNotIn(name, self.models())

    def test_an_unloaded_model_returns_after_a_restart(self) -> None:
        name = self.succeed(self.jobs.create(SHORT))["fine_tuned_model"]
        self.jobs.call("POST", "/v1/unload_lora_adapter", {"lora_name": name})
        self.assertNotIn(name, self.models())
        self.restart()
        self.wait_for_model(name)

    def wait_for_model(self, name: str) -> None:
        deadline = time.monotonic() + SECONDS
        while name not in self.models():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)

    def weight_version(self, name: str) -> str:
        made = self.jobs.call("POST", "/v1/completions", {"model": name, "prompt": "1+1=", "max_tokens": 1})
        return made["usage"]["weight_version"]

    def test_a_model_keeps_its_time_and_its_weight_version(self) -> None:
        one, two = (self.succeed(self.jobs.create({**SHORT, "seed": seed})) for seed in (1, 2))
        name = one["fine_tuned_model"]
        version = self.weight_version(name)
        self.assertEqual(self.jobs.call("GET", f"/v1/models/{name}")["created"], one["finished_at"])
        self.assertEqual(self.weight_version("arithmetic"), "0.0.0")
        self.assertEqual(len({"0.0.0", version, self.weight_version(two["fine_tuned_model"])}), 3)
        self.assertEqual(self.jobs.server.stop(), 0)
        self.restart()
        self.wait_for_model(name)
        self.assertEqual(self.weight_version(name), version)
        self.assertEqual(self.jobs.call("GET", f"/v1/models/{name}")["created"], one["finished_at"])
        versions = []
        for job in (one, two):
            folder = self.jobs.folder / "runs" / job["id"] / "export" / "adapter"
            self.jobs.call("POST", "/v1/load_lora_adapter", {"lora_name": "copy", "lora_path": str(folder.resolve())})
            versions.append(self.weight_version("copy"))
        self.assertEqual(versions[0], version)
        self.assertNotEqual(versions[1], version)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
