#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the pages of the quickstart's server, which trains, in headless Chromium.

Usage: job_pages_test.py PROGRAM SOURCE_DIR
"""
import json
import pathlib
import re
import sys
import tempfile

from page_case import PageCase, main
from server import Clients, Server

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
FILE = SOURCE / "configs/serve-quickstart.yaml"
JOBS = "/v1/fine_tuning/jobs"
# A job that goes on until a test cancels it.
ENDLESS = {"method": {"type": "supervised", "supervised": {"hyperparameters": {"batch_size": 8}}},
           "tidemill": {"train.steps": 1_000_000}}
# Keeps the texts that the page reads from /metrics.
RECORD_METRICS = """
window.readings = [];
const send = window.fetch;
window.fetch = async (path, options) => {
  const response = await send(path, options);
  if (path === "/metrics") {
    readings.push(await response.clone().text());
  }
  return response;
};
"""
# What the page shows of its last two readings, if both training and generation have got time between
# them. The page shows the last one if it says how many responses, which never fewer, have ended.
SHOWN = """
(() => {
  const last = readings.slice(-2);
  const value = (text, name) => Number(new RegExp(`^${name}.* (.*)$`, "m").exec(text)?.[1]);
  const grew = (kind) => value(last[1], `tidemill:${kind}_seconds_total`) >
      value(last[0], `tidemill:${kind}_seconds_total`);
  const rows = [...document.querySelectorAll("#latency tbody tr")]
      .map(row => [...row.cells].map(cell => cell.textContent));
  const pairs = (id) => Object.fromEntries([...document.querySelectorAll(`#${id} dt`)]
      .map(one => [one.textContent, one.nextElementSibling.textContent]));
  const ended = value(last[1], "vllm:e2e_request_latency_seconds_count")?.toLocaleString("en");
  return last.length === 2 && grew("train") && grew("generation") && rows[2]?.[1] === ended &&
      {readings: last, rows, tiles: pairs("tiles"), training: pairs("training")};
})()
"""


class Metrics:
    """What a text of /metrics says, read without the code of the page."""

    def __init__(self, text: str):
        self.lines = [line.rsplit(" ", 1) for line in text.splitlines() if line[:1] not in "#"]

    def total(self, name: str) -> float:
        values = [float(value) for key, value in self.lines if key.partition("{")[0] == name]
        if not values:
            raise AssertionError(f"no metric {name}")
        return sum(values)


class Load(Clients):
    """Requests for responses and, in turn with them, for the metrics."""

    def __init__(self, server: Server):
        super().__init__()
        self.server = server

    def send(self) -> None:
        self.server.post("/v1/completions", prompt="38+86=", max_tokens=12, ignore_eos=True)
        connection = self.server.connect()
        connection.request("GET", "/metrics")
        connection.getresponse().read()
        connection.close()


class JobPagesTest(PageCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = Server(PROGRAM, FILE, f"serve.jobs_path={cls.folder.name}/jobs")

    @classmethod
    def tearDownClass(cls) -> None:
        cls.server.__exit__()
        cls.folder.cleanup()

    def get(self, path: str) -> dict:
        status, data = self.server.request("GET", path)
        self.assertEqual(status, 200, data)
        return data

    def response(self, model: str, prompt: str) -> str:
        data = self.server.post("/v1/chat/completions", model=model, temperature=0,
                                messages=[{"role": "user", "content": prompt}])
        return data["choices"][0]["message"]["content"]

    def metrics_of(self, job: str) -> list[dict]:
        """Returns the metrics of all events of a job, oldest first."""
        events: list[dict] = []
        more = True
        while more:
            after = f"&after={events[-1]['id']}" if events else ""
            page = self.get(f"{JOBS}/{job}/events?limit=50{after}")
            events += page["data"]
            more = page["has_more"]
        return [event["data"] for event in reversed(events) if event["type"] == "metrics"]

    def points(self, metric: str) -> int:
        """Chooses a metric and returns the number of points of its curve."""
        self.fill("metric", metric)
        return self.browser.evaluate(
            "document.getElementById('metric').dispatchEvent(new Event('change')); "
            "document.querySelector('#curve path').getAttribute('d').split(/[ML]/).length - 1")

    def test_two_clicks_show_responses_before_and_after_a_job(self) -> None:
        self.browser.open(self.server.url + "/chat")
        self.browser.click("nav a[href='/jobs']")
        self.browser.wait("document.getElementById('quickstart') && "
                          "!document.getElementById('quickstart').hidden && "
                          "document.getElementById('base').value")
        self.browser.click("#try")
        rows = self.comparison()
        self.browser.wait("document.getElementById('facts').innerText.includes('succeeded')")
        job = self.get(f"{JOBS}?limit=1")["data"][0]
        self.assertGreater(job["trained_tokens"], 0)
        self.assertIn(f"Trained tokens\n{job['trained_tokens']}", self.browser.text("#facts"))
        right = [0, 0]
        for prompt, *shown in rows:
            self.assertEqual(shown, [self.response(job["model"], prompt),
                                     self.response(job["fine_tuned_model"], prompt)])
            value = str(sum(map(int, prompt.rstrip("=").split("+"))))
            right = [count + (text == value) for count, text in zip(right, shown)]
        self.assertGreater(right[1], right[0])
        self.assertEqual(self.browser.evaluate(
            "[...document.getElementById('comparison').tFoot.rows[0].cells]"
            ".map(cell => cell.textContent)"), ["Right"] + [f"{n} of {len(rows)}" for n in right])
        self.check_progress(job["id"])
        self.check_chat(job["fine_tuned_model"])

    def check_progress(self, job: str) -> None:
        reported = self.metrics_of(job)
        self.assertGreater(len(reported), 2)
        self.browser.wait("document.getElementById('events').innerText.includes('has completed')")
        self.assertEqual(self.browser.evaluate("document.getElementById('metric').value"),
                         "reward_mean")
        for metric in ("reward_mean", "train_loss"):
            self.assertEqual(self.points(metric), sum(metric in data for data in reported))
        for step in (reported[0]["step"], reported[-1]["step"]):
            self.assertIn(f"Step {step}/{reported[-1]['step']}: ", self.browser.text("#events"))

    def check_chat(self, model: str) -> None:
        self.browser.open(self.server.url + "/chat")
        self.browser.wait("document.getElementById('model').value")
        shown = self.browser.evaluate(
            "[...document.getElementById('model').options].map(option => option.value)")
        self.assertEqual(shown, [one["id"] for one in self.get("/v1/models")["data"]])
        self.assertIn(model, shown)
        self.fill("model", model)
        self.fill("temperature", "0")
        self.fill("prompt", "38+86=")
        self.browser.click("#send")
        self.browser.wait("document.querySelectorAll('.message.assistant .row').length")
        self.assertEqual(self.browser.text(".assistant p"), self.response(model, "38+86="))
        self.assertEqual(self.browser.text(".assistant h3"), model)

    def test_the_server_page_shows_the_metrics_of_a_server_that_trains(self) -> None:
        status, job = self.server.request("POST", JOBS, {
            "model": self.server.model, "training_file": "file-quickstart", **ENDLESS})
        self.assertEqual(status, 200, job)
        self.browser.call("Page.addScriptToEvaluateOnNewDocument", source=RECORD_METRICS)
        with Load(self.server):
            self.browser.open(self.server.url + "/server")
            shown = self.browser.wait(SHOWN)
        self.server.request("POST", f"{JOBS}/{job['id']}/cancel")
        self.compare(shown, *map(Metrics, shown["readings"]))

    def compare(self, shown: dict, before: Metrics, now: Metrics) -> None:
        """Compares what the page shows with its last two readings."""
        def count(name: str) -> str:
            return f"{now.total(name):,.0f}"

        def percent(value: float) -> str:
            return f"{100 * value:.1f} %"

        def grown(kind: str) -> float:
            name = f"tidemill:{kind}_seconds_total"
            return now.total(name) - before.total(name)

        hits, queries = (now.total(f"vllm:prefix_cache_{name}_total") for name in ("hits", "queries"))
        share = grown("train") / (grown("train") + grown("generation"))
        for name, value in {
                "Running": count("vllm:num_requests_running"),
                "Waiting": count("vllm:num_requests_waiting"),
                "Cache in use": percent(now.total("vllm:kv_cache_usage_perc")),
                "Prompt tokens from the cache": percent(hits / queries),
                "Generated tokens": count("vllm:generation_tokens_total"),
                "Training's share of the time": percent(share)}.items():
            self.assertEqual(shown["tiles"][name], value, name)
        facts = shown["training"]
        self.assertEqual(facts["Open jobs"], count("tidemill:jobs_open"))
        self.assertEqual(facts["Trained tokens"], count("tidemill:train_tokens_total"))
        for name, kind in (("training", "train"), ("generation", "generation")):
            self.assertAlmostEqual(float(facts[f"Seconds given to {name}"]),
                                   now.total(f"tidemill:{kind}_seconds_total"), delta=0.006)
        rows = shown["rows"]
        for row, time, late, goal in ((rows[0], "time_to_first_token", "late_first_tokens", 2.0),
                                      (rows[1], "inter_token_latency", "late_next_tokens", 0.1)):
            counted = now.total(f"vllm:{time}_seconds_count")
            self.assertEqual(now.total(f"tidemill:{time}_goal_seconds"), goal)
            self.assertEqual(row[1], f"{counted:,.0f}")
            self.assertEqual(float(row[5]), goal)
            self.assertEqual(row[6], percent(1 - now.total(f"tidemill:{late}_total") / counted))
            self.assertTrue(all(re.fullmatch(r"[\d.]+", value) for value in row[2:5]), row)
        self.assertEqual(rows[2][5:], ["none", ""])


if __name__ == "__main__":
    main()
