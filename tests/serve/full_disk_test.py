#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fills the disks of `tidemill serve`. Uploads, jobs and checkpoints get a clear error, nothing that is stored is lost,
responses are generated all the time, and all goes on once there is room.

The disks are small file systems in memory, in a user namespace of the test. If the machine refuses one, the test says
so and is skipped.

Usage: full_disk_test.py PROGRAM SOURCE_DIR
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from kill_clients import JobResult, Stage, TinkerTrainer, exchange, form, forward_backward
from server import Server

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
INSIDE = "inside"
MODEL = SOURCE / "examples/models/arithmetic"
ROWS = "\n".join((SOURCE / "examples/arithmetic/data/train.jsonl").read_text().splitlines()[::5]) + "\n"
SECONDS = 120
SKIPPED = 77


class Disk:
    """A file system of some MiB."""

    def __init__(self, mebibytes: int):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", self.path], check=True)

    def fill(self) -> None:
        descriptor = os.open(self.path / "fill", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            while os.write(descriptor, bytes(4096)):
                pass
        except OSError:
            pass
        finally:
            os.close(descriptor)

    def make_room(self) -> None:
        (self.path / "fill").unlink()

    def close(self) -> None:
        subprocess.run(["umount", self.path], check=True)
        self.folder.cleanup()


class Generation(threading.Thread):
    """Requests one after another, each of which must give the text of the first one."""

    def __init__(self, server: Server):
        super().__init__()
        self.server = server
        self.done = threading.Event()
        self.texts: list[str] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.done.is_set():
                response = self.server.post("/v1/completions", prompt="38+86=", max_tokens=12, seed=5, ignore_eos=True)
                self.texts.append(response["choices"][0]["text"])
        except BaseException as error:  # pylint: disable=broad-except
            self.failure = error

    def __enter__(self) -> "Generation":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.join()


class FullDiskTest(unittest.TestCase):
    def upload(self, server: Server, content: bytes) -> tuple[int, dict]:
        status, data = exchange(server, "POST", "/v1/files", form(content), "multipart/form-data; boundary=xx")
        return status, json.loads(data)

    def spec(self, server: Server) -> dict:
        status, file = self.upload(server, ROWS.encode())
        self.assertEqual(status, 200, file)
        return {"model": server.model, "training_file": file["id"], "seed": 7,
                "method": {"type": "supervised", "supervised": {
                    "hyperparameters": {"batch_size": 16, "learning_rate_multiplier": 20}}},
                "tidemill": {"train.steps": 400, "checkpoint.every_steps": 10}}

    def create(self, server: Server, spec: dict) -> str:
        status, job = server.request("POST", "/v1/fine_tuning/jobs", spec)
        self.assertEqual(status, 200, job)
        return job["id"]

    def job(self, server: Server, job: str) -> dict:
        status, data = server.request("GET", f"/v1/fine_tuning/jobs/{job}")
        self.assertEqual(status, 200, data)
        return data

    def wait(self, server: Server, job: str, *states: str) -> dict:
        deadline = time.monotonic() + SECONDS
        while (found := self.job(server, job))["status"] not in states:
            self.assertLess(time.monotonic(), deadline, found)
            time.sleep(0.02)
        return found

    def wait_for_metrics(self, server: Server, job: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not any(event["type"] == "metrics" and event["data"]["step"] > 20 for event in self.events(server, job)):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def events(self, server: Server, job: str) -> list[dict]:
        return server.request("GET", f"/v1/fine_tuning/jobs/{job}/events?limit=100")[1]["data"]

    def expect_full(self, status: int, data: dict) -> None:
        self.assertEqual(status, 507, data)
        self.assertEqual(data["error"]["code"], "insufficient_storage", data)
        self.assertRegex(data["error"]["message"], "No space left on device|disk is full")
        self.assertNotIn("/tmp", data["error"]["message"])

    def run_undisturbed(self) -> JobResult:
        with tempfile.TemporaryDirectory() as folder:
            jobs = pathlib.Path(folder) / "jobs"
            with Server(PROGRAM, MODEL, f"serve.jobs_path={jobs}", "device.threads=1") as server:
                job = self.create(server, self.spec(server))
                return JobResult(jobs, self.wait(server, job, "succeeded", "failed"))

    def test_jobs_can_be_cancelled_and_paused(self) -> None:
        disk = Disk(24)
        self.addCleanup(disk.close)
        jobs = disk.path / "jobs"
        with Server(PROGRAM, MODEL, f"serve.jobs_path={jobs}", "device.threads=1") as server:
            spec = self.spec(server)
            first, second = self.create(server, spec), self.create(server, spec)
            self.wait_for_metrics(server, first)
            self.wait_for_metrics(server, second)
            for job, verb in ((first, "pause"), (first, "cancel"), (second, "cancel"), (second, "cancel")):
                disk.fill()
                status, changed = server.request("POST", f"/v1/fine_tuning/jobs/{job}/{verb}")
                self.assertEqual(status, 200, changed)
                self.assertEqual(changed["status"], {"pause": "paused", "cancel": "cancelled"}[verb])
            server.stop(signal.SIGKILL)
        disk.make_room()
        with Server(PROGRAM, MODEL, f"serve.jobs_path={jobs}", "device.threads=1") as again:
            for job in (first, second):
                self.assertEqual(self.job(again, job)["status"], "cancelled")

    def test_jobs_pause_and_uploads_are_refused(self) -> None:
        expected = self.run_undisturbed()
        disk = Disk(24)
        self.addCleanup(disk.close)
        jobs = disk.path / "jobs"
        with Server(PROGRAM, MODEL, f"serve.jobs_path={jobs}", "device.threads=1") as server, \
                Generation(server) as generation:
            spec = self.spec(server)
            stored = server.request("GET", "/v1/files")[1]["data"]
            job = self.create(server, spec)
            self.wait_for_metrics(server, job)
            disk.fill()
            paused = self.wait(server, job, "paused", "failed", "succeeded")
            self.assertEqual(paused["status"], "paused", paused["error"])
            self.assertRegex(paused["error"]["message"], "No space left on device")
            self.assertNotIn("/tmp", paused["error"]["message"])
            disk.fill()  # what the run has given back
            for size in (1, 100_000):
                self.expect_full(*self.upload(server, bytes(size)))
            self.assertEqual(server.request("GET", "/v1/files")[1]["data"], stored)
            self.assertEqual({path.name for path in (jobs / "files").iterdir()}, {one["id"] for one in stored})
            self.expect_full(*server.request("POST", "/v1/fine_tuning/jobs", spec))
            self.expect_full(*server.request("POST", f"/v1/fine_tuning/jobs/{job}/resume"))
            self.assertEqual(self.job(server, job)["status"], "paused")
            so_far = len(generation.texts)
            disk.make_room()
            status, file = self.upload(server, b"{}\n")
            self.assertEqual(status, 200, file)
            status, resumed = server.request("POST", f"/v1/fine_tuning/jobs/{job}/resume")
            self.assertEqual((status, resumed["status"], resumed["error"]), (200, "queued", None))
            ended = self.wait(server, job, "succeeded", "failed")
            self.assertEqual(ended["status"], "succeeded", ended["error"])
            JobResult(jobs, ended).check_against(expected)
            self.assertTrue(any(event["message"].startswith("The job was paused: ") and event["level"] == "warn"
                                for event in self.events(server, job)))
            generation.done.set()
            generation.join()
            self.assertIsNone(generation.failure)
            self.assertGreater(so_far, 1)
            self.assertGreater(len(generation.texts), so_far)
            self.assertEqual(set(generation.texts), {generation.texts[0]})

    def test_a_job_that_waits_begins_once_there_is_room(self) -> None:
        disk = Disk(24)
        self.addCleanup(disk.close)
        with Server(PROGRAM, MODEL, f"serve.jobs_path={disk.path / 'jobs'}", "device.threads=1") as server:
            spec = self.spec(server)
            first, second = self.create(server, spec), self.create(server, spec)
            self.wait_for_metrics(server, first)
            disk.fill()
            self.wait(server, first, "paused")
            disk.fill()
            server.stop(signal.SIGKILL)
        disk.fill()
        with Server(PROGRAM, MODEL, f"serve.jobs_path={disk.path / 'jobs'}", "device.threads=1") as server:
            server.post("/v1/completions", prompt="38+86=", max_tokens=4)
            self.assertNotIn(self.job(server, second)["status"], ("succeeded", "failed"))
            disk.make_room()
            for job in (first, second):
                if self.job(server, job)["status"] == "paused":
                    self.assertEqual(server.request("POST", f"/v1/fine_tuning/jobs/{job}/resume")[0], 200)
                self.assertEqual(self.wait(server, job, "succeeded", "failed", "paused")["status"], "succeeded")

    def test_checkpoints_of_tinker_are_refused(self) -> None:
        disk = Disk(8)
        self.addCleanup(disk.close)
        checkpoints = disk.path / "checkpoints"
        with Server(PROGRAM, MODEL, f"serve.checkpoints_path={checkpoints}", "device.threads=1") as server:
            stage = Stage(disk.path)
            stage.set_server(server)
            client = TinkerTrainer(stage, 0, 100, {})
            client.check_again(server)
            client.act(server)
            kept = client.path
            disk.fill()
            model = client.model
            for name in ("step-1", "other"):
                status, data = self.save(client, server, name)
                self.assertEqual((status, data["category"]), (200, "server"))  # so the API reports failures
                self.assertIn("No space left on device", data["error"])
                self.assertNotIn("/tmp", data["error"])
            client.require_state()
            ids = [2, 5, 8, 1, 4]
            client.future(server, "tinker", "forward_backward", forward_backward(model, client.next_seq(), ids))
            client.future(server, "tinker", "optim_step",
                          {"model_id": model, "seq_id": client.next_seq(), "adam_params": {"learning_rate": 0.01}})
            self.assertEqual(server.request("POST", "/api/v1/weights_info", {"tinker_path": kept})[0], 200)
            listed = server.request("GET", "/api/v1/checkpoints")[1]["checkpoints"]
            self.assertEqual([one["tinker_path"] for one in listed], [kept])
            disk.make_room()
            status, data = self.save(client, server, "other")
            self.assertEqual((status, data.get("error")), (200, None))

    def save(self, client: TinkerTrainer, server: Server, name: str) -> tuple[int, dict]:
        """Asks for a checkpoint, and returns the status and the result of the future."""
        status, sent = server.request("POST", "/api/v1/save_weights",
                                      {"model_id": client.model, "seq_id": client.next_seq(), "path": name,
                                       "overwrite": True, "type": "save_weights"})
        self.assertEqual(status, 200, sent)
        while True:
            status, data = server.request("POST", "/api/v1/retrieve_future", {"request_id": sent["request_id"]})
            if status != 408:
                return status, data


def main() -> int:
    if len(sys.argv) > 3:
        unittest.main(argv=sys.argv[:1] + sys.argv[4:])
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    probe = subprocess.run([*namespace, "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /mnt"], capture_output=True,
                           text=True, check=False)
    if probe.returncode != 0:
        print(f"skipped: cannot mount in a user namespace: {probe.stderr.strip()}")
        return SKIPPED
    return subprocess.run([*namespace, sys.executable, *sys.argv, INSIDE], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
