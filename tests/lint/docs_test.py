#!/usr/bin/env python3
"""Plants wrong names in small documents and checks that exactly these are found."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import check_docs  # noqa: E402

TREE = {
    "base/a.hpp": "",
    "base/a.cpp": "",
    "actors/trainer/handles.hpp": "",
    "docs/other.md": "# What `a` is, in short\n",
}


def problems(page, text):
    """Returns the problems found in a small tree with the document `page`."""
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        for path, content in {**TREE, page: text}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content)
        return list(check_docs.problems_of(root))


class DocsTest(unittest.TestCase):
    def test_true_documents(self):
        for line in [
            "[a](../base/a.hpp), [home](https://example.org/x), [there](other.md#what-a-is-in-short)",
            "`base/a.hpp`, `base/a.{hpp,cpp}`, `base/*.hpp`, `base/a.hpp:12`, `actors/trainer/`",
            "`actors/<family>/handles.hpp`, `runs/NAME/export`, `a/b`, `base`, `base / a.hpp`",
            "`[not](a-link.md)`",
            "```\nbase/none.hpp, `base/none.hpp`, [a](none.md)\n```",
        ]:
            with self.subTest(line=line):
                self.assertEqual([], problems("docs/page.md", line + "\n"))

    def test_each_planted_violation_is_found(self):
        planted = [
            ("docs/page.md", "[a](base/a.hpp)", "link to base/a.hpp: there is no such file"),
            ("docs/page.md", "[a](other.md#who)", "link to other.md#who: there is no such heading"),
            ("page.md", "[a](#nowhere)", "link to #nowhere: there is no such heading"),
            ("page.md", "see `base/b.hpp`.", "`base/b.hpp`: there is no such file"),
            ("base/page.md", "`base/a.{hpp,h}`", "`base/a.h`: there is no such file"),
            ("docs/page.md", "`base/*.cu`", "`base/*.cu`: there is no such file"),
            ("docs/page.md", "`base/b.hpp:12`", "`base/b.hpp`: there is no such file"),
        ]
        for page, line, problem in planted:
            with self.subTest(page=page, line=line):
                self.assertEqual([f"{page}:2: {problem}"], problems(page, f"first\n{line}\n"))


if __name__ == "__main__":
    unittest.main()
