#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes the pictures of the pages that docs/serving.md shows, in both themes, on the quickstart's
server.

Usage: page_images.py PROGRAM SOURCE_DIR OUT_DIR
"""
import pathlib
import sys
import tempfile

from browser import Browser, find_program
from job_pages_test import ENDLESS, FILE, JOBS, PROGRAM, Load
from server import Server

OUT = pathlib.Path(sys.argv[3])


def take(browser: Browser, name: str) -> None:
    for scheme, suffix in (("light", ""), ("dark", "-dark")):
        browser.scheme(scheme)
        browser.screenshot(OUT / f"{name}{suffix}.png")


def jobs(browser: Browser, server: Server) -> None:
    browser.size(1000, 1330)
    browser.open(server.url + "/jobs")
    browser.wait("!document.getElementById('quickstart').hidden && "
                 "document.getElementById('base').value")
    browser.click("#try")
    browser.wait("document.getElementById('facts').innerText.includes('succeeded') && "
                 "document.getElementById('comparison').tFoot.rows[0].cells[2].textContent")
    browser.evaluate("document.activeElement.blur()")
    take(browser, "jobs")


def chat(browser: Browser, server: Server) -> None:
    browser.size(1100, 800)
    browser.open(server.url + "/chat")
    browser.wait("document.getElementById('model').value")
    browser.evaluate("document.getElementById('temperature').value = 0")
    for model in server.request("GET", "/v1/models")[1]["data"]:
        browser.click("#clear")
        browser.evaluate(f"document.getElementById('model').value = '{model['id']}'; "
                         "document.getElementById('prompt').value = '38+86='")
        browser.click("#send")
        browser.wait("!document.getElementById('send').disabled")
    browser.hover(".message:last-child .tok:nth-child(2)")
    browser.wait("!document.getElementById('token').hidden")
    take(browser, "chat")


def state(browser: Browser, server: Server) -> None:
    browser.size(1100, 820)
    job = server.request("POST", JOBS, {"model": server.model, "training_file": "file-quickstart",
                                        **ENDLESS})[1]
    with Load(server):
        browser.open(server.url + "/server")
        # The second reading has rates.
        browser.wait("document.querySelectorAll('#tiles dd')[4]?.textContent.match(/[1-9]/)")
        take(browser, "server")
    server.request("POST", f"{JOBS}/{job['id']}/cancel")


def main() -> None:
    with (tempfile.TemporaryDirectory() as folder,
          Server(PROGRAM, FILE, f"serve.jobs_path={folder}/jobs") as server,
          Browser(find_program()) as browser):
        for page in (jobs, chat, state):
            page(browser, server)


if __name__ == "__main__":
    main()
