# SPDX-License-Identifier: Apache-2.0
"""Drives headless Chromium over the pipe of its DevTools protocol, with the standard library."""
import base64
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time

SECONDS = 60
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), "ArrowRight": (39, ""),
        "ArrowLeft": (37, ""), "ArrowDown": (40, ""), " ": (32, " ")}


def find_program() -> str | None:
    return next((path for path in map(shutil.which, PROGRAMS) if path), None)


class Browser:
    """A browser process with one page. Use it in a `with` statement."""

    def __init__(self, program: str):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.log = open(os.path.join(self.folder.name, "stderr"), "w+b")
        read_end, self.to_browser = os.pipe()
        self.from_browser, write_end = os.pipe()
        # Chromium reads messages from file 3 and writes to file 4.
        command = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
        self.process = subprocess.Popen(
            ["bash", "-c", command, "bash", str(read_end), str(write_end), program,
             "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--disable-background-networking", "--no-first-run", "--remote-debugging-pipe",
             f"--user-data-dir={self.folder.name}/profile", "about:blank"],
            pass_fds=(read_end, write_end), stdout=self.log, stderr=self.log,
            start_new_session=True)
        os.close(read_end)
        os.close(write_end)
        self.replies: queue.Queue = queue.Queue()
        self.problems: list[str] = []  # exceptions of scripts and violations of the policy
        self.sent = 0
        self.session = None
        threading.Thread(target=self._read, daemon=True).start()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.to_browser)
        self.log.close()
        self.folder.cleanup()

    def _read(self) -> None:
        rest = b""
        while True:
            part = os.read(self.from_browser, 1 << 20)
            if not part:
                self.replies.put({"id": None})
                return
            *messages, rest = (rest + part).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self.replies.put(message)
                else:
                    self._note(message.get("method"), message.get("params", {}))

    def _note(self, method: str, event: dict) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(event["exceptionDetails"]))
        elif method == "Log.entryAdded" and event["entry"]["source"] != "network":
            self.problems.append(event["entry"]["text"])

    def call(self, method: str, **params: object) -> dict:
        self.sent += 1
        message = {"id": self.sent, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to_browser, data):]
        while True:
            reply = self.replies.get(timeout=SECONDS)
            if reply["id"] is None:
                self.log.seek(0)
                raise RuntimeError(f"the browser has ended: {self.log.read().decode()[-2000:]}")
            if reply["id"] == self.sent:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']}")
                return reply["result"]

    def evaluate(self, expression: str) -> object:
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True,
                           returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {json.dumps(result['exceptionDetails'])[:500]}")
        return result["result"].get("value")

    def wait(self, expression: str) -> object:
        """Waits until an expression is true in JavaScript's sense, and returns its value."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            try:
                if value := self.evaluate(expression):
                    return value
            except RuntimeError:
                pass  # the page is being loaded
            time.sleep(0.02)
        page = self.evaluate("document.body.innerText")
        raise AssertionError(f"never true: {expression}\n{page}\n{self.problems}")

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def size(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)

    def scheme(self, name: str) -> None:
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": name}])

    def press(self, key: str, modifiers: int = 0) -> None:
        code, text = KEYS[key]
        event = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def hover(self, selector: str) -> None:
        box = self.evaluate(f"(() => {{ const b = document.querySelector({json.dumps(selector)})"
                            ".getBoundingClientRect(); return [b.x + b.width / 2, "
                            "b.y + b.height / 2]; })()")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])

    def text(self, selector: str) -> str:
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")

    def screenshot(self, path: pathlib.Path) -> None:
        image = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(image["data"]))
