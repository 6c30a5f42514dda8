# SPDX-License-Identifier: Apache-2.0
"""Starts `tidemill serve` for tests and talks to it with the standard library."""
import http.client
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable

SECONDS = 60


def run_json(program: str, *arguments: str, lines: str = "") -> list[dict]:
    """Returns the JSON lines that a command of the program prints."""
    run = subprocess.run([program, *arguments, "--json"], input=lines, capture_output=True, text=True,
                         check=True)
    return [json.loads(line) for line in run.stdout.splitlines()]


class Server:
    """A server process on a free port. Use it in a `with` statement.

    `model` is a model or, if its name ends with .yaml, a server file of the source tree.
    """

    def __init__(self, program: str, model: pathlib.Path, *overrides: str,
                 on_spawn: Callable[[subprocess.Popen], None] = lambda process: None):
        self.folder = tempfile.TemporaryDirectory()
        self.errors = open(os.path.join(self.folder.name, "stderr"), "w+b")
        file, folder, text = "-", self.folder.name, f"workflow: serve\nmodel: {{path: {model}}}\n"
        if model.suffix == ".yaml":
            file, folder, text = str(model), str(model.parent.parent), ""
        self.process = subprocess.Popen(
            [program, "serve", file, "--json", "serve.port=0", *overrides], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self.errors, cwd=folder)
        self.process.stdin.write(text.encode())
        self.process.stdin.close()
        on_spawn(self.process)
        # A server that never gets ready must not make the test wait.
        timer = threading.Timer(SECONDS, self.process.kill)
        timer.start()
        ready = json.loads(self.process.stdout.readline() or "{}")
        timer.cancel()
        if "url" not in ready:
            self.process.wait()
            problem = f"the server has not started: {ready} {self.stderr()}"
            self.__exit__()
            raise RuntimeError(problem)
        self.url = ready["url"]
        self.model = ready["model"]
        self.port = int(self.url.rsplit(":", 1)[1])

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()
        self.folder.cleanup()

    def stderr(self) -> str:
        self.errors.flush()
        self.errors.seek(0)
        return self.errors.read().decode()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)

    def request(self, method: str, path: str, body: object = None,
                headers: dict[str, str] | None = None) -> tuple[int, dict]:
        """Returns the status and the JSON body of a response."""
        connection = self.connect()
        text = None if body is None else json.dumps(body)
        sent = {} if body is None else {"Content-Type": "application/json"}
        connection.request(method, path, text, {**sent, **(headers or {})})
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, json.loads(data)

    def post(self, path: str, **body: object) -> dict:
        status, data = self.request("POST", path, {"model": self.model, **body})
        if status != 200:
            raise AssertionError(f"{path}: {status} {data}")
        return data

    def stream(self, path: str, **body: object) -> list[dict]:
        """Returns the events of a streamed response, without the end mark."""
        connection = self.connect()
        connection.request("POST", path, json.dumps({"model": self.model, "stream": True, **body}),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise AssertionError(f"{path}: {response.status} {response.read()!r}")
        events = [part.removeprefix("data: ") for part in response.read().decode().split("\n\n")]
        connection.close()
        if events[-2:] != ["[DONE]", ""]:
            raise AssertionError(f"{path}: the stream ends with {events[-2:]}")
        return [json.loads(event) for event in events[:-2]]

    def stop(self, kind: int = signal.SIGTERM) -> int:
        """Sends a signal and returns the exit code."""
        self.process.send_signal(kind)
        return self.process.wait(timeout=SECONDS)


class Clients:
    """Two clients that send one request after another, as long as the `with` block runs."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.threads = [threading.Thread(target=self._run) for _ in range(2)]

    def send(self) -> None:
        """Sends requests and receives their responses. Called again and again by each client."""
        raise NotImplementedError

    def _run(self) -> None:
        while not self.done.is_set():
            self.send()

    def __enter__(self) -> "Clients":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        for thread in self.threads:
            thread.join()
