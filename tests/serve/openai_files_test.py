#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the files of `tidemill serve` with the openai Python package, unchanged, and the shapes of fine-tuning jobs
with its types.

Usage: openai_files_test.py PROGRAM SOURCE_DIR SHAPES
SHAPES is the program tuning_shapes, which writes one object of each type.
Exits with 77 if the package is not installed.
"""
import io
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import openai
except ImportError:
    print("skipped: the Python package openai is not installed")
    sys.exit(77)

from openai.pagination import SyncCursorPage
from openai.types import FileDeleted, FileObject, ModelDeleted
from openai.types.fine_tuning import FineTuningJob, FineTuningJobEvent
from openai.types.fine_tuning.jobs import FineTuningJobCheckpoint
from server import Server

PROGRAM, SOURCE, SHAPES = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
MODEL = SOURCE / "examples/models/arithmetic"


class FilesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.start()

    def tearDown(self) -> None:
        self.stop()
        self.folder.cleanup()

    def start(self) -> None:
        self.server = Server(PROGRAM, MODEL, f"serve.jobs_path={self.folder.name}/jobs")
        self.client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0)

    def stop(self) -> None:
        self.client.close()
        self.server.__exit__()

    def upload(self, content: bytes, name: str = "a.jsonl") -> FileObject:
        return self.client.files.create(file=(name, io.BytesIO(content)), purpose="fine-tune")

    def test_files(self) -> None:
        content = b'{"a": "b"}\r\n--x\r\n' * 1000
        names = ["plain.jsonl", 'quo"ted.jsonl', "r\u00e4te.jsonl", "back\\slash.jsonl"]
        files = [self.upload(content, name) for name in names]
        for file in files:
            FileObject.model_validate(file.to_dict(), strict=True)
            self.assertEqual(file.bytes, len(content))
            self.assertEqual(self.client.files.retrieve(file.id), file)
            self.assertEqual(self.client.files.content(file.id).read(), content)
        self.assertEqual(files[0].filename, names[0])
        self.assertEqual(files[2].filename, names[2])
        self.assertEqual([file.id for file in self.client.files.list(limit=1)],
                         [file.id for file in reversed(files)])
        deleted = self.client.files.delete(files[0].id)
        FileDeleted.model_validate(deleted.to_dict(), strict=True)
        self.assertEqual((deleted.id, deleted.deleted), (files[0].id, True))
        with self.assertRaises(openai.NotFoundError):
            self.client.files.retrieve(files[0].id)

    def test_a_killed_server_keeps_its_files(self) -> None:
        file = self.upload(b"kept")
        self.server.stop(signal.SIGKILL)
        self.stop()
        self.start()
        self.assertEqual(self.client.files.content(file.id).read(), b"kept")
        self.assertEqual(self.client.files.list().data, [file])

    def test_large_files(self) -> None:
        content = bytes(range(256)) * (80 * 4096)  # 80 MiB, more than other bodies may have
        file = self.upload(content)
        self.assertEqual(file.bytes, len(content))
        self.assertEqual(self.client.files.content(file.id).read(), content)

    def test_errors(self) -> None:
        for arguments, param in (({"purpose": "assistants"}, "purpose"),
                                 ({"purpose": "fine-tune",
                                   "expires_after": {"anchor": "created_at", "seconds": 3600}},
                                  "expires_after[anchor]")):
            with self.assertRaises(openai.BadRequestError) as bad:
                self.client.files.create(file=("a", b"x"), **arguments)
            self.assertEqual(bad.exception.param, param)
        with self.assertRaises(openai.NotFoundError):
            self.client.files.content("file-none")
        with self.assertRaises(openai.NotFoundError):
            self.client.fine_tuning.jobs.retrieve("ftjob-none")
        self.assertEqual(list(self.client.fine_tuning.jobs.list()), [])

    def test_jobs_and_their_models(self) -> None:
        rows = (SOURCE / "examples/arithmetic/data/train.jsonl").read_bytes().splitlines()[:64]
        jobs = self.client.fine_tuning.jobs
        job = jobs.create(model="arithmetic", training_file=self.upload(b"\n".join(rows)).id,
                          method={"type": "supervised"}, metadata={"team": "a"},
                          extra_body={"tidemill": {"train.steps": 3}})
        self.assertEqual([one.id for one in jobs.list(metadata={"team": "a"})], [job.id])
        self.assertEqual(list(jobs.list(metadata={"team": "b"})), [])
        deadline = time.monotonic() + 60
        while (job := jobs.retrieve(job.id)).status not in ("succeeded", "failed"):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        self.assertEqual(job.status, "succeeded", job.error)
        deleted = self.client.models.delete(job.fine_tuned_model)
        ModelDeleted.model_validate(deleted.to_dict(), strict=True)
        self.assertEqual((deleted.id, deleted.deleted), (job.fine_tuned_model, True))
        self.assertEqual([model.id for model in self.client.models.list()], ["arithmetic"])
        self.assertIsNone(jobs.retrieve(job.id).fine_tuned_model)


class DocumentTest(unittest.TestCase):
    """The examples of reinforcement jobs in docs/fine-tuning.md, as they are there, on the server of the quickstart."""

    def test_the_reinforcement_job_succeeds(self) -> None:
        text = (SOURCE / "docs/fine-tuning.md").read_text()
        blocks = [block.split("```")[0] for block in text.split("```python\n")[1:]]
        example, grader = [block for block in blocks if '"reinforcement"' in block]
        with tempfile.TemporaryDirectory() as folder, \
                Server(PROGRAM, SOURCE / "configs/serve-quickstart.yaml",
                       f"serve.jobs_path={folder}/jobs") as server, \
                openai.OpenAI(base_url=server.url + "/v1", api_key="none") as client:
            names = {"client": client}
            exec(example.replace('open("', f'open("{SOURCE}/'), names)
            self.assertEqual(names["job"].status, "succeeded", names["job"].error)
            tuned = client.completions.create(model=names["job"].fine_tuned_model, prompt="38+86=",
                                              max_tokens=4)
            self.assertEqual(len(tuned.choices), 1)
            exec(grader, names)
            job = client.fine_tuning.jobs.create(
                model="arithmetic", training_file=names["file"].id, method=names["method"],
                extra_body={"tidemill": {"train.steps": 1, "rollout.max_new_tokens": 4}})
            client.fine_tuning.jobs.cancel(job.id)


class ShapesTest(unittest.TestCase):
    """Jobs, events and checkpoints have the members that the package's types require."""

    @classmethod
    def setUpClass(cls) -> None:
        run = subprocess.run([SHAPES], capture_output=True, text=True, check=True)
        cls.shapes = [json.loads(line) for line in run.stdout.splitlines()]

    def test_shapes(self) -> None:
        types = {"fine_tuning.job": FineTuningJob, "fine_tuning.job.event": FineTuningJobEvent,
                 "fine_tuning.job.checkpoint": FineTuningJobCheckpoint}
        counts = dict.fromkeys(types, 0)
        for page in self.shapes:
            SyncCursorPage.model_validate(page)
            self.assertEqual(page["object"], "list")
            self.assertEqual(page["first_id"], page["data"][0]["id"])
            self.assertEqual(page["last_id"], page["data"][-1]["id"])
            for entry in page["data"]:
                types[entry["object"]].model_validate(entry, strict=True)
                counts[entry["object"]] += 1
        self.assertEqual(counts, {"fine_tuning.job": 3, "fine_tuning.job.event": 2,
                                  "fine_tuning.job.checkpoint": 2})


if __name__ == "__main__":
    print("openai", openai.__version__)
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
