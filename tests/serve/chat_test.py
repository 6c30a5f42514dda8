#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `tidemill chat`.

Usage: chat_test.py PROGRAM SOURCE_DIR
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
MODEL = SOURCE / "examples/models/arithmetic"


class ChatTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def chat(self, lines: str) -> subprocess.CompletedProcess:
        return subprocess.run([PROGRAM, "chat", str(MODEL), "--temperature", "0", "--threads", "1"],
                              input=lines, capture_output=True, text=True, cwd=self.folder.name,
                              check=True)

    def test_answers_and_saves(self) -> None:
        run = self.chat("11+27=\n/save talk.json\n/reset\n11+27=\n/save again.json\n")
        answers = run.stdout.splitlines()
        self.assertEqual(answers[0], answers[2])
        talk = json.loads(pathlib.Path(self.folder.name, "talk.json").read_text())
        self.assertEqual([one["role"] for one in talk["messages"]], ["user", "assistant"])
        self.assertEqual(talk["messages"][1]["content"], answers[0])
        again = json.loads(pathlib.Path(self.folder.name, "again.json").read_text())
        self.assertEqual(again, talk)

    def test_remembers_the_conversation(self) -> None:
        self.chat("11+27=\n12+20=\n/save talk.json\n")
        talk = json.loads(pathlib.Path(self.folder.name, "talk.json").read_text())
        self.assertEqual([one["content"] for one in talk["messages"]][::2], ["11+27=", "12+20="])

    def test_explains_what_it_cannot_do(self) -> None:
        run = self.chat("/fly\n/save\n" + "1" * 70 + "\n/system be brief\n1+1=\n")
        errors = run.stderr.splitlines()
        self.assertIn("/fly: unknown", errors[0])
        self.assertIn("/save: needs a file", errors[1])
        self.assertIn("70 tokens, which fills the model's context of 64", errors[2])
        self.assertIn("this model knows only the roles", errors[3])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
