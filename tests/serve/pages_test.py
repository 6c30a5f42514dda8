#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the pages of `tidemill serve` in headless Chromium.

Usage: pages_test.py PROGRAM SOURCE_DIR
"""
import json
import os
import pathlib
import re
import sys
import tempfile

from browser import SECONDS
from fake_jobs import ATTACK, STEPS, FakeJobs
from page_case import PageCase, main
from server import Server, run_json

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
MODEL = SOURCE / "examples/models/arithmetic"
SHIFT = 8
IDLE = "!document.getElementById('send').disabled"
REPLIES = "document.querySelectorAll('.message.assistant').length"


# The texts of a page, each with its color and that of the background behind it.
CONTRASTS = """
(() => {
  document.querySelectorAll("[hidden]").forEach((one) => { one.hidden = false; });
  document.querySelectorAll("button, select, textarea, input").forEach((one) => {
    one.disabled = false;
  });
  document.querySelectorAll("details").forEach((one) => { one.open = true; });
  document.getElementById("error").textContent = "an error";
  const ground = (one) => {
    const color = getComputedStyle(one).backgroundColor;
    return color === "rgba(0, 0, 0, 0)" && one.parentElement ? ground(one.parentElement) : color;
  };
  return [...document.body.querySelectorAll("*")]
      .filter((one) => one.matches("input, textarea, select") || [...one.childNodes].some(
          (node) => node.nodeType === Node.TEXT_NODE && node.data.trim() !== ""))
      .flatMap((one) => ["", "::placeholder"].map((part) => {
        const style = getComputedStyle(one, part);
        return [`${one.tagName} ${one.id} ${one.textContent.slice(0, 20)}${part}`,
          one.matches("svg *") ? style.fill : style.color, ground(one)];
      }));
})()
"""


def contrast(one: str, other: str) -> float:
    """Returns the contrast of two colors "rgb(r, g, b)". Source: WCAG 2.2, contrast ratio."""
    def luminance(color: str) -> float:
        parts = [int(part) / 255 for part in re.fullmatch(r"rgb\((\d+), (\d+), (\d+)\)", color).groups()]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
                            for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


class PagesTest(PageCase):
    def open_chat(self, url: str) -> None:
        self.browser.open(url + "/chat")
        self.browser.wait("document.getElementById('model').value")

    def say(self, text: str) -> None:
        self.fill("prompt", text)
        self.browser.click("#send")
        self.browser.wait(IDLE)


class RealServerTest(PagesTest):
    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server(PROGRAM, MODEL, "serve.name=sums")

    @classmethod
    def tearDownClass(cls) -> None:
        cls.server.__exit__()

    def test_chat_streams_what_the_server_generates(self) -> None:
        self.open_chat(self.server.url)
        self.fill("temperature", "0")
        self.say("11+27=")
        expected = self.server.post("/v1/chat/completions", temperature=0, logprobs=True,
                                    messages=[{"role": "user", "content": "11+27="}])
        choice = expected["choices"][0]
        self.assertEqual(self.browser.text(".assistant p"), choice["message"]["content"])
        self.assertEqual(self.browser.evaluate(
            "[...document.querySelectorAll('.tok')].map(one => one.textContent).join('')"),
            choice["message"]["content"])
        self.browser.hover(".tok")
        shown = self.browser.wait("!document.getElementById('token').hidden && "
                                  "document.getElementById('token').innerText")
        first = choice["logprobs"]["content"][0]
        self.assertIn(f"{first['logprob']:.3f}", shown)
        self.assertGreaterEqual(shown.count("%"), 5)

    def test_the_settings_reach_the_server(self) -> None:
        self.open_chat(self.server.url)
        for field, value in (("temperature", "1.5"), ("seed", "7"), ("max-tokens", "5"),
                             ("top-p", "0.9")):
            self.fill(field, value)
        self.say("11+27=")
        expected = self.server.post("/v1/chat/completions", temperature=1.5, seed=7, max_tokens=5,
                                    top_p=0.9, messages=[{"role": "user", "content": "11+27="}])
        self.assertEqual(self.browser.text(".assistant p"),
                         expected["choices"][0]["message"]["content"])
        self.fill("temperature", "9")
        self.browser.evaluate("document.getElementById('temperature').removeAttribute('max')")
        self.say("11+27=")
        self.assertIn("temperature", self.error())
        self.assertEqual(self.browser.evaluate("document.getElementById('prompt').value"), "11+27=")
        self.assertEqual(self.browser.evaluate(REPLIES), 1)

    def test_a_server_without_jobs_says_so(self) -> None:
        self.browser.open(self.server.url + "/jobs")
        self.browser.wait("document.getElementById('no-jobs').textContent === "
                          "'This server runs no fine-tuning jobs.'")
        self.assertTrue(self.browser.evaluate("document.getElementById('error').hidden && "
                                              "document.getElementById('create').hidden"))

    def test_the_server_page_shows_the_metrics(self) -> None:
        for _ in range(5):
            self.server.post("/v1/completions", prompt="1+1=", max_tokens=4, ignore_eos=True)
        self.browser.open(self.server.url + "/server")
        tiles = self.browser.wait("document.querySelector('#tiles dd') && "
                                  "document.getElementById('tiles').innerText")
        self.assertRegex(tiles, r"Running\s+\d+\s+Waiting\s+\d+\s+Cache in use\s+[\d.]+ %")
        self.assertRegex(tiles, r"Training's share of the time\s+(0\.0 %|idle)")
        rows = self.browser.evaluate("[...document.querySelectorAll('#latency tbody tr')]"
                                     ".map(row => row.innerText)")
        self.assertEqual(len(rows), 3)
        for row in rows:
            self.assertRegex(row, r"\d+\s+[\d.]+\s+[\d.]+\s+[\d.]+\s+([\d.]+\s+[\d.]+ %|none\s*)$")

    def test_quantiles_and_metrics_are_parsed(self) -> None:
        self.browser.open(self.server.url + "/server")
        text = "\n".join(('# HELP x a', 'x_bucket{le="1"} 2', 'x_bucket{le="3"} 6',
                          'x_bucket{le="+Inf"} 8', 'j{a="b\\"\\\\n\\n,}",c="d"} 1e3', 'k NaN'))
        found = self.browser.evaluate(
            "import('/pages/server.js').then(({parseMetrics, quantile}) => { const all = "
            f"parseMetrics({json.dumps(text)}); return [all[3].labels, all[3].value, "
            "quantile(all, 'x', 0.25), quantile(all, 'x', 0.5), quantile(all, 'x', 0.99), "
            "quantile(all, 'y', 0.5) === undefined]; })")
        self.assertEqual(found, [{"a": 'b"\\n\n,}', "c": "d"}, 1000, 1, 2, 3, True])

    def test_a_server_with_keys_asks_for_one(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            keys = os.path.join(folder, "keys.json")
            key = run_json(PROGRAM, "keys", "add", keys, "--name", "a", "--scope", "infer")[0]["key"]
            with Server(PROGRAM, MODEL, f"serve.keys_file={keys}") as server:
                self.browser.open(server.url + "/chat")
                self.browser.wait("document.getElementById('key-dialog').open")
                self.browser.type("wrong")
                self.browser.press("Enter")
                self.browser.wait("document.getElementById('key-dialog').open && "
                                  "document.getElementById('key-input').value === 'wrong'")
                self.fill("key-input", key)
                self.browser.press("Enter")
                self.browser.wait("document.getElementById('model').value")
                self.say("1+1=")
                self.assertEqual(self.browser.evaluate(REPLIES), 1)
                self.browser.evaluate("sessionStorage.clear()")
                self.browser.open(server.url + "/server")
                self.browser.wait("document.getElementById('key-dialog').open")
                self.browser.press("Escape")
                self.assertIn("401", self.error())
                self.browser.click("#key")
                self.fill("key-input", key)
                self.browser.click("#key-form button[type=submit]")
                self.browser.wait("document.querySelector('#tiles dd') !== null")


class FakeServerTest(PagesTest):
    def setUp(self) -> None:
        super().setUp()
        self.fake = FakeJobs(SOURCE)
        self.addCleanup(self.fake.__exit__)

    def sent(self, path: str) -> list:
        return [body for method, where, body in self.fake.jobs.requests
                if method == "POST" and where == path]

    def test_text_of_a_model_never_becomes_markup(self) -> None:
        self.fake.jobs.models.insert(0, ATTACK)
        self.open_chat(self.fake.url)
        self.say("attack")
        self.assertEqual(self.browser.text(".assistant p"), ATTACK)
        self.browser.hover(".tok")
        self.browser.wait("!document.getElementById('token').hidden")
        self.browser.click("#logprobs")
        self.say("attack again")
        self.assertEqual(self.browser.evaluate(REPLIES), 2)
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('main img').length"), 0)

    def test_the_policy_stops_markup_all_the_same(self) -> None:
        self.open_chat(self.fake.url)
        blocked = self.browser.evaluate(
            "new Promise(resolve => { document.addEventListener('securitypolicyviolation', "
            "event => resolve(event.effectiveDirective)); "
            "document.getElementById('log').innerHTML = '<img src=\"data:,\" "
            "onerror=\"window.attacked = true\">'; })")
        self.assertEqual(blocked, "script-src-attr")
        self.browser.problems.clear()  # the violation

    def test_chat_by_keyboard_alone(self) -> None:
        self.open_chat(self.fake.url)
        self.assertEqual(self.browser.evaluate("document.activeElement.id"), "prompt")
        self.browser.type("first line")
        self.browser.press("Enter", SHIFT)
        self.browser.type("second line")
        self.browser.press("Enter")
        self.browser.wait(f"{REPLIES} === 1 && {IDLE}")
        self.assertEqual(self.sent("/v1/chat/completions")[0]["messages"],
                         [{"role": "user", "content": "first line\nsecond line"}])
        self.assertEqual(self.browser.evaluate("document.activeElement.id"), "prompt")
        self.browser.press("Tab", SHIFT)  # Regenerate
        self.assertEqual(self.browser.evaluate("document.activeElement.textContent"), "Regenerate")
        self.browser.press("Enter")
        self.browser.wait(f"{IDLE} && document.querySelectorAll('.tok').length")
        self.assertEqual(len(self.sent("/v1/chat/completions")), 2)
        self.browser.evaluate("document.querySelector('.assistant p').focus()")
        self.browser.press("ArrowRight")
        self.browser.press("ArrowRight")
        self.assertIn('"\u00e9"', self.browser.evaluate(
            "document.querySelector('.tok.shown') && JSON.stringify("
            "document.querySelector('.tok.shown').textContent)"))
        self.browser.press("Escape")
        self.assertTrue(self.browser.evaluate("document.getElementById('token').hidden"))
        order = []
        self.browser.evaluate("document.activeElement.blur(); getSelection().removeAllRanges()")
        self.browser.open(self.fake.url + "/chat")
        self.browser.evaluate("document.querySelector('.skip').focus()")
        for _ in range(15):
            self.browser.press("Tab")
            order.append(self.browser.evaluate("document.activeElement.id || "
                                               "document.activeElement.textContent"))
        self.assertEqual(order[:8], ["Chat", "Jobs", "Server", "key", "theme", "model", "system",
                                     "Sampling"])

    def test_stop_ends_a_response_and_keeps_its_text(self) -> None:
        for stop in (lambda: self.browser.press("Escape"), lambda: self.browser.click("#stop")):
            self.open_chat(self.fake.url)
            self.fake.jobs.closed.clear()
            self.fill("prompt", "hold")
            self.browser.click("#send")
            self.browser.wait("document.querySelector('.assistant p')?.textContent === 'begun'")
            self.assertTrue(self.browser.evaluate("document.getElementById('send').disabled"))
            stop()
            self.browser.wait(IDLE)
            self.assertTrue(self.fake.jobs.closed.wait(SECONDS))
            self.assertEqual(self.browser.text(".assistant .note"), "stopped")
            self.say("on")
            self.assertEqual([one["content"] for one in self.sent("/v1/chat/completions")[-1]
                              ["messages"]], ["hold", "begun", "on"])

    def test_system_prompt_copy_and_new_conversation(self) -> None:
        self.open_chat(self.fake.url)
        self.fill("system", "be brief")
        self.say("one")
        self.assertEqual(self.sent("/v1/chat/completions")[0]["messages"],
                         [{"role": "system", "content": "be brief"},
                          {"role": "user", "content": "one"}])
        self.browser.evaluate("Object.defineProperty(navigator, 'clipboard', {value: "
                              "{writeText: async (text) => { window.copied = text; }}})")
        self.browser.click(".assistant button")
        self.browser.wait("window.copied === 'hé one'")
        self.browser.click("#clear")
        self.assertEqual(self.browser.evaluate("document.getElementById('log').childElementCount"), 0)

    def test_a_stream_that_fails_leaves_the_message_to_send_again(self) -> None:
        self.open_chat(self.fake.url)
        for text, why in (("fail", "out of pages"), ("cut", "the stream ended before")):
            self.say(text)
            self.assertIn(why, self.error())
            self.assertEqual(self.browser.evaluate(REPLIES), 0)
            self.assertEqual(self.browser.evaluate("document.getElementById('prompt').value"), text)

    def tab_to(self, name: str) -> None:
        """Presses Tab until an element with this id or text has the focus. All must show it."""
        for _ in range(60):
            self.browser.press("Tab")
            found, style, width = self.browser.evaluate(
                "(() => { const one = document.activeElement, style = getComputedStyle(one); "
                f"return [[one.id, one.textContent].includes({json.dumps(name)}), "
                "style.outlineStyle, parseFloat(style.outlineWidth)]; })()")
            self.assertTrue(style != "none" and width >= 2, self.focused())
            if found:
                return
        raise AssertionError(f"Tab never reaches {name}")

    def focused(self) -> str:
        return self.browser.evaluate("document.activeElement.id || "
                                     "document.activeElement.textContent")

    def test_jobs_by_keyboard_alone(self) -> None:
        jobs = self.fake.jobs
        jobs.step_of_list = 0  # the job runs until it is cancelled
        jobs.models.append("base:tuned")
        jobs.create({"model": "base", "training_file": "file-quickstart"})
        jobs.jobs[0].update(status="succeeded", fine_tuned_model="base:tuned")
        self.browser.open(self.fake.url + "/jobs")
        self.browser.wait("document.getElementById('training-file').options.length === 2 && "
                          "document.querySelector('[data-job]') !== null")
        self.browser.evaluate("document.querySelector('.skip').focus()")
        self.tab_to("training-file")
        self.browser.press("ArrowDown")
        self.tab_to("suffix")
        self.browser.type("mine")
        self.tab_to("Create the job")
        self.browser.press("Enter")
        self.browser.wait("document.getElementById('facts').innerText.includes('running') && "
                          "document.activeElement.id === 'detail-title'")
        self.assertEqual(self.sent("/v1/fine_tuning/jobs"), [{
            "model": "base", "training_file": "file-quickstart", "suffix": "mine",
            "method": {"type": "supervised", "supervised": {"hyperparameters": {}}}}])
        self.tab_to("cancel")
        self.browser.press("Enter")
        self.browser.wait("document.getElementById('facts').innerText.includes('cancelled')")
        self.assertEqual(self.focused(), "detail-title")  # the button is disabled
        self.browser.evaluate("document.querySelector('.skip').focus()")
        self.tab_to("ftjob-1: succeeded, supervised on base")
        self.browser.press("Enter")
        self.browser.wait("document.getElementById('facts').innerText.includes('succeeded')")
        self.assertEqual(self.focused(), "ftjob-1: succeeded, supervised on base")
        self.tab_to("compare")
        self.browser.press(" ")
        for prompt, before, after in self.comparison():
            self.assertEqual((before, after), (f"base says {prompt}", f"base:tuned says {prompt}"))

    def test_every_field_has_a_label(self) -> None:
        for page in ("chat", "jobs", "server"):
            self.browser.open(f"{self.fake.url}/{page}")
            self.assertEqual(self.browser.evaluate(
                "[...document.querySelectorAll('input, select, textarea')]"
                ".filter(one => !one.labels.length).map(one => one.id)"), [])

    def test_both_themes_and_all_widths(self) -> None:
        color = "getComputedStyle(document.body).backgroundColor"
        for page in ("chat", "jobs", "server"):
            seen = {}
            for scheme in ("light", "dark"):
                self.browser.scheme(scheme)
                self.browser.open(f"{self.fake.url}/{page}")
                self.browser.evaluate("localStorage.clear()")
                self.browser.open(f"{self.fake.url}/{page}")
                seen[scheme] = self.browser.evaluate(color)
                self.browser.click("#theme")  # light
                self.browser.click("#theme")  # dark
                seen["chosen"] = self.browser.evaluate(color)
                self.assertEqual(self.browser.text("#theme"), "Theme: dark")
                self.browser.click("#theme")
            self.assertNotEqual(seen["light"], seen["dark"])
            self.assertEqual(seen["chosen"], seen["dark"])
            for width in (360, 1600):
                self.browser.size(width, 700)
                self.assertLessEqual(self.browser.evaluate("document.documentElement.scrollWidth"),
                                     width, page)

    def test_all_text_stands_out_in_both_themes(self) -> None:
        """Computes the contrast of all text, also of what is hidden, as WCAG 2.2 defines it."""
        jobs = self.fake.jobs
        job = jobs.create({"model": "base", "training_file": "file-quickstart"})
        jobs.add_event(job["id"], "Step 1", {"step": 1, "train_loss": 2.0})
        ready = {"chat": f"{REPLIES} && {IDLE}",
                 "jobs": "document.querySelectorAll('[data-job], #curve text').length > 1",
                 "server": "document.querySelectorAll('#error').length"}
        for scheme in ("light", "dark"):
            self.browser.scheme(scheme)
            for page, is_ready in ready.items():
                self.browser.open(f"{self.fake.url}/{page}")
                if page == "chat":
                    self.browser.wait("document.getElementById('model').value")
                    self.say("some text")
                self.browser.wait(is_ready)
                found = self.browser.evaluate(CONTRASTS)
                self.assertGreater(len(found), 20)
                low = [one for one in found if contrast(one[1], one[2]) < 4.5]
                self.assertEqual(low, [], f"{page} {scheme}")
            names = ("main", "edge", "back", "panel")
            colors = dict(zip(names, self.browser.evaluate(
                f"{json.dumps(names)}.map(name => {{ document.body.style.color = `var(--${{name}})`; "
                "return getComputedStyle(document.body).color; })")))
            for mark in ("main", "edge"):  # of the focus, and of fields
                for ground in ("back", "panel"):
                    self.assertGreaterEqual(contrast(colors[mark], colors[ground]), 3.0, mark)

    def test_the_quickstart_takes_two_clicks(self) -> None:
        jobs = self.fake.jobs
        self.browser.open(self.fake.url + "/chat")
        self.browser.click("nav a[href='/jobs']")
        self.browser.wait("document.getElementById('quickstart') && "
                          "!document.getElementById('quickstart').hidden && "
                          "document.getElementById('base').value")
        jobs.step_of_list = STEPS
        self.browser.click("#try")
        rows = self.comparison()
        self.assertEqual(self.sent("/v1/fine_tuning/jobs"),
                         [{"model": "base", "training_file": "quickstart"}])
        for prompt, before, after in rows:
            self.assertEqual((before, after), (f"base says {prompt}",
                                               f"base:ftjob-1 says {prompt}"))
        self.assertIn("succeeded", self.browser.text("#facts"))
        # All events, from several pages, are in the curve.
        self.browser.wait("document.getElementById('curve').innerHTML.includes("
                          f"'step {STEPS}')")
        self.assertEqual(self.browser.evaluate(
            "document.querySelector('#curve path').getAttribute('d').split(/[ML]/).length - 1"),
            STEPS)
        self.assertIn(ATTACK, self.browser.text("#events"))
        self.assertIn("step 60: base:ckpt-step-60", self.browser.text("#checkpoints"))

    def test_without_the_file_there_is_no_quickstart(self) -> None:
        self.fake.jobs.files.clear()
        self.browser.open(self.fake.url + "/jobs")
        self.browser.wait("document.getElementById('training-file').options.length === 1")
        self.assertTrue(self.browser.evaluate("document.getElementById('quickstart').hidden"))

    def test_creates_and_steers_a_job(self) -> None:
        self.browser.open(self.fake.url + "/jobs")
        self.browser.wait("document.getElementById('training-file').options.length === 2")
        self.browser.evaluate(
            "(() => { const data = new DataTransfer(); data.items.add(new File(['{}\\n'], "
            "'mine.jsonl')); document.getElementById('upload').files = data.files; })()")
        self.fill("method", "reinforcement")
        self.browser.evaluate("document.getElementById('method').dispatchEvent(new Event('change'))")
        self.assertFalse(self.browser.evaluate("document.getElementById('grader-row').hidden"))
        for field, value in (("epochs", "2"), ("batch", "4"), ("rate", "0.5"), ("suffix", "try"),
                             ("job-seed", "3"), ("grader", '{"type": "x"}')):
            self.fill(field, value)
        self.browser.click("#create button[type=submit]")
        self.browser.wait("document.getElementById('facts').innerText.includes('running')")
        self.assertEqual(self.sent("/v1/fine_tuning/jobs"), [{
            "model": "base", "training_file": "file-1", "suffix": "try", "seed": 3,
            "method": {"type": "reinforcement", "reinforcement": {
                "grader": {"type": "x"}, "hyperparameters": {
                    "n_epochs": 2, "batch_size": 4, "learning_rate_multiplier": 0.5}}}}])
        for verb, status in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
            self.browser.click(f"#{verb}")
            self.browser.wait(f"document.getElementById('facts').innerText.includes('{status}')")
        self.assertTrue(self.browser.evaluate("document.getElementById('cancel').disabled"))

    def test_errors_of_the_form_are_shown(self) -> None:
        self.browser.open(self.fake.url + "/jobs")
        self.browser.wait("document.getElementById('base').value")
        self.browser.click("#create button[type=submit]")
        self.assertIn("Training file: choose one", self.error())
        self.fill("method", "reinforcement")
        self.fill("grader", "{oops")
        self.browser.click("#create button[type=submit]")
        self.browser.wait("document.getElementById('error').textContent.startsWith('Grader: ')")

    def test_hidden_tabs_do_not_poll(self) -> None:
        self.browser.open(self.fake.url + "/jobs")
        self.browser.wait("document.getElementById('no-jobs').textContent.includes('no jobs')")
        count = self.browser.evaluate(
            "import('/pages/page.js').then(async ({poll}) => { let calls = 0; "
            "Object.defineProperty(document, 'hidden', {value: true, configurable: true}); "
            "const run = poll(async () => { ++calls; }, 1); await run(); const hidden = calls; "
            "delete document.hidden; document.dispatchEvent(new Event('visibilitychange')); "
            "while (calls < 3) { await new Promise(done => setTimeout(done, 1)); } "
            "return hidden; })")
        self.assertEqual(count, 0)


if __name__ == "__main__":
    main()
