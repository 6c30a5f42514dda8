# SPDX-License-Identifier: Apache-2.0
"""What the tests of the pages share: a browser, and what a user does with it."""
import json
import sys
import unittest

from browser import Browser, find_program


class PageCase(unittest.TestCase):
    """A test with a browser, whose pages may neither fail nor run text of a model as a script."""

    def setUp(self) -> None:
        self.browser = Browser(find_program())
        self.addCleanup(self.browser.__exit__)
        self.browser.size(1100, 800)

    def tearDown(self) -> None:
        self.assertEqual(self.browser.problems, [])
        self.assertIsNone(self.browser.evaluate("window.attacked"))

    def fill(self, field: str, value: object) -> None:
        self.browser.evaluate(f"document.getElementById('{field}').value = {json.dumps(value)}")

    def error(self) -> str:
        return self.browser.wait("!document.getElementById('error').hidden && "
                                 "document.getElementById('error').textContent")

    def comparison(self) -> list[list[str]]:
        """Waits until all models of a comparison have responded, and returns its rows."""
        return self.browser.wait(
            "(() => { const rows = [...document.querySelectorAll('#comparison tbody tr')]"
            ".map(row => [...row.cells].map(cell => cell.textContent)); return rows.length && "
            "rows.every(row => row[1] !== '...' && row[2] !== '...') && rows; })()")


def main() -> None:
    """Runs the tests of the script, or says why there are none."""
    if find_program() is None:
        print("skipped: not installed: chromium")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
