#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants ruled-out words in small sources and documents and checks that exactly these are found."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import check_words  # noqa: E402

STYLE = """# Style
| word | meaning | not |
|---|---|---|
| scorer | computes rewards | judge |
| response | what the model generated | completion, trajectory |
| stream, column | the table | `replay_buffer`, column |
"""


def found(path, text):
    """Returns the words found in a small tree with the file `path`."""
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        for file, content in {"docs/style.md": STYLE, path: text}.items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_text(content)
        return [line.split(": ")[1] for line in check_words.findings(root)]


class WordsTest(unittest.TestCase):
    def test_clean_texts(self):
        for path, text in {
            "base/a.hpp": "// A scorer reads the column of the response.\nint judge = 0;\n",
            "docs/a.md": "The shell's completion. `judge` is a name.\n```\njudge\n```\n",
            "launcher/a.cpp": 'f("a figure of a benchmark");\n',
        }.items():
            with self.subTest(path=path):
                self.assertEqual([], found(path, text))

    def test_words_of_the_table(self):
        self.assertEqual(["judge"], found("base/a.hpp", "// A judge.\n"))
        self.assertEqual(["Judges"], found("base/a.hpp", "int a;  // Judges\n"))
        self.assertEqual(["trajectory"], found("base/a.cpp", 'f("no trajectory");\n'))
        self.assertEqual(["replay_buffer"], found("docs/a.md", "The replay_buffer.\n"))

    def test_phrases_and_spellings(self):
        for word in ["nobody", "fares", "stands over", "turned round", "waiting room", "the door to",
                     "behaviour", "quantised"]:
            with self.subTest(word=word):
                self.assertEqual([word], found("docs/a.md", f"It says {word} here.\n"))

    def test_terms_in_foreign_folders(self):
        self.assertEqual(["figures"], found("actors/a.hpp", "// The figures of a step.\n"))


if __name__ == "__main__":
    unittest.main()
