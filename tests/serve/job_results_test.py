#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests what fine-tuning jobs of `tidemill serve` leave behind: runs, events and models.

Usage: job_results_test.py PROGRAM SOURCE_DIR [TEST...]
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from server import run_json
from tuning_test import PROGRAM, ROWS, SUPERVISED, Jobs

SHORT = {**SUPERVISED, "tidemill": {"train.steps": 20}}


class JobResultsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.jobs = Jobs(pathlib.Path(folder.name) / "jobs", "serve.drain_seconds=1")
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


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
