#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `tidemill chat URL`, against a server of this build and against one that misbehaves.

Usage: chat_url_test.py PROGRAM SOURCE_DIR
"""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

from server import SECONDS, Server, run_json

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
MODEL = SOURCE / "examples/models/arithmetic"
DONE = "data: [DONE]\n\n"


def event(text: str | None = None, finish: str | None = None) -> str:
    delta = {} if text is None else {"content": text}
    return "data: " + json.dumps({"choices": [{"delta": delta, "finish_reason": finish}]}) + "\n\n"


def stream(body: str, length: int | None = None) -> str:
    size = "" if length is None else f"content-length: {length}\r\n"
    return f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{size}\r\n{body}"


def answer(status: int, body: object) -> str:
    text = body if isinstance(body, str) else json.dumps(body)
    return f"HTTP/1.1 {status} X\r\ncontent-length: {len(text.encode())}\r\n\r\n{text}"


MODELS = answer(200, {"data": [{"id": "fake"}, {"id": "other"}]})


class FakeServer:
    """Sends fixed bytes for each request to a path; one connection serves one request."""

    def __init__(self, chat: str, models: str = MODELS, hold: bool = False):
        self.chat, self.models, self.hold = chat, models, hold
        self.requests: list[tuple[str, str]] = []  # head and body
        self.arrived = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self) -> "FakeServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()

    def accept(self) -> None:
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(peer,), daemon=True).start()

    def serve(self, peer: socket.socket) -> None:
        peer.settimeout(SECONDS)
        data = b""
        while b"\r\n\r\n" not in data:
            part = peer.recv(65536)
            if not part:
                return
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        lines = [line.partition(":") for line in head.decode().split("\r\n")[1:]]
        size = int(next((value for name, _, value in lines if name == "content-length"), "0"))
        while len(body) < size:
            body += peer.recv(65536)
        self.requests.append((head.decode(), body.decode()))
        is_chat = b"/chat/completions" in head
        peer.sendall((self.chat if is_chat else self.models).encode())
        if is_chat and self.hold:
            self.arrived.set()
            peer.recv(1)  # until the client closes the connection
        peer.close()


def chat(url: str, lines: str, *options: str, key: str = "",
         check: bool = True) -> subprocess.CompletedProcess:
    environment = {**os.environ, "TIDEMILL_API_KEY": key}
    return subprocess.run([PROGRAM, "chat", url, *options], input=lines, capture_output=True,
                          text=True, timeout=SECONDS, check=check, env=environment)


class RealServerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server(PROGRAM, MODEL, "serve.name=sums")

    @classmethod
    def tearDownClass(cls) -> None:
        cls.server.__exit__()

    def test_says_what_the_model_says_on_this_machine(self) -> None:
        lines = "11+27=\n/reset\n45+10=\n"
        local = subprocess.run([PROGRAM, "chat", str(MODEL), "--temperature", "0", "--threads", "1"],
                               input=lines, capture_output=True, text=True, check=True)
        for url in (self.server.url, self.server.url + "/v1", self.server.url + "/v1/"):
            run = chat(url, lines, "--temperature", "0")
            self.assertEqual((run.stdout, run.stderr), (local.stdout, ""))

    def test_sends_the_conversation_and_saves_it(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "talk.json")
            run = chat(self.server.url, f"1+1=\n2+2=\n/save {path}\n/reset\n/save {path}2\n",
                       "--temperature", "0")
            talk = json.loads(path.read_text())["messages"]
            self.assertEqual([one["role"] for one in talk], ["user", "assistant"] * 2)
            self.assertEqual([one["content"] for one in talk][1::2], run.stdout.splitlines()[:2])
            self.assertEqual(json.loads(pathlib.Path(f"{path}2").read_text())["messages"], [])

    def test_an_unknown_model_names_those_that_there_are(self) -> None:
        run = chat(self.server.url, "1+1=\n", "--model", "other")
        self.assertEqual(run.stderr, f"{self.server.url[7:]}: there is no model \"other\"; "
                                     "the server has sums\n")

    def test_the_server_checks_the_settings(self) -> None:
        run = chat(self.server.url, "1+1=\n", "--temperature", "9")
        self.assertIn("the server responded with 400: temperature", run.stderr)

    def test_keys(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            keys = os.path.join(folder, "keys.json")
            key = run_json(PROGRAM, "keys", "add", keys, "--name", "a", "--scope", "infer")[0]["key"]
            with Server(PROGRAM, MODEL, f"serve.keys_file={keys}") as server:
                run = chat(server.url, "", check=False)
                self.assertEqual(run.returncode, 1)
                self.assertRegex(run.stderr, "^127.0.0.1:[0-9]+: the server responded with 401: .*"
                                             "; give a key by --api-key or TIDEMILL_API_KEY\n$")
                run = chat(server.url, "", "--api-key", "wrong", check=False)
                self.assertIn("does not accept the API key", run.stderr)
                for run in (chat(server.url, "1+1=\n", "--api-key", key),
                            chat(server.url, "1+1=\n", key=key)):
                    self.assertEqual(run.stderr, "")
                    self.assertGreater(len(run.stdout), 1)


class FakeServerTest(unittest.TestCase):
    def error_of(self, reply: str, *options: str, models: str = MODELS, code: int = 0) -> str:
        """Returns the line on stderr, without the address."""
        with FakeServer(reply, models) as server:
            run = chat(server.url, "hello\n", *options, check=False)
            self.assertEqual(run.returncode, code, run.stderr)
            self.assertEqual(run.stderr.count("\n"), 1, run.stderr)
            address = server.url[7:] + ": "
            self.assertTrue(run.stderr.startswith(address), run.stderr)
            return run.stderr[len(address):-1]

    def test_sends_what_was_asked_for(self) -> None:
        with FakeServer(stream(event("Hi") + event(" you") + event(finish="stop") + DONE)) as server:
            run = chat(server.url, "hello\n/system be brief\nagain\n", "--model", "other", "--seed",
                       "18446744073709551615", "--top-p", "0.5", "--max-new-tokens", "7",
                       "--system", "be kind")
            self.assertEqual(run.stdout, "Hi you\nHi you\n\n")
            _, first, second = server.requests
            self.assertIn("POST /v1/chat/completions HTTP/1.1", first[0])
            self.assertNotIn("authorization", first[0])
            self.assertEqual(json.loads(first[1]), {
                "model": "other", "stream": True, "seed": 18446744073709551615, "top_p": 0.5,
                "max_tokens": 7, "messages": [{"role": "system", "content": "be kind"},
                                              {"role": "user", "content": "hello"}]})
            self.assertEqual(json.loads(second[1])["messages"],
                             [{"role": "system", "content": "be brief"},
                              {"role": "user", "content": "again"}])

    def test_takes_the_first_model_and_sends_only_what_is_set(self) -> None:
        with FakeServer(stream(event("Hi", "stop"))) as server:
            chat(server.url, "hello\n", key="secret")
            self.assertEqual(sorted(json.loads(server.requests[1][1])),
                             ["messages", "model", "stream"])
            self.assertEqual(json.loads(server.requests[1][1])["model"], "fake")
            for head, _ in server.requests:
                self.assertIn("authorization: Bearer secret", head)

    def test_a_response_cannot_control_the_terminal(self) -> None:
        with FakeServer(stream(event("a\x1b[2Jb\nc", "stop"))) as server:
            self.assertEqual(chat(server.url, "hello\n").stdout, "a\\x1b[2Jb\nc\n\n")
        error = self.error_of(answer(500, {"error": {"message": "a\x1b[2Jb\nc"}}))
        self.assertNotIn("\x1b", error)

    def test_failures_during_a_stream(self) -> None:
        failed = "data: " + json.dumps({"error": {"message": "out of pages"}}) + "\n\n" + DONE
        for body, why in (
                (event("Hi"), "the stream ended before the response did"),
                (event("Hi") + failed, "the response failed: out of pages"),
                ("data: {oops\n\n", "an event of the stream: "),
                ("", "the server sent no stream of events"),
                ("<html></html>", "the server sent no stream of events")):
            self.assertIn(why, self.error_of(stream(body)))
        self.assertIn("the connection ended before the response did",
                      self.error_of(stream(event("Hi"), 5000)))

    def test_responses_that_are_no_stream(self) -> None:
        for reply, why in (
                (answer(200, {"choices": []}), "the server sent no stream of events"),
                (answer(429, {"error": {"message": "slow down"}}), "429: slow down"),
                (answer(400, {"error": "as text"}), "400: as text"),
                (answer(502, "<html>Bad gateway</html>"), "502: <html>Bad gateway</html>"),
                (answer(404, {"error": {"message": "nothing here"}}), "404: nothing here"),
                ("SSH-2.0-OpenSSH_9\r\n\r\n", "not valid HTTP"),
                ("", "without a response")):
            self.assertIn(why, self.error_of(reply))

    def test_servers_that_list_no_models(self) -> None:
        for models, why in (
                (answer(404, "nothing"), "the server responded with 404: nothing"),
                (answer(200, {"data": []}), "the server has no models"),
                (answer(302, ""), "the server responded with 302")):
            self.assertEqual(self.error_of("", models=models, code=1), why)
        self.assertIn("is no list of models", self.error_of("", models=answer(200, {}), code=2))
        with FakeServer(stream(event("Hi", "stop")), answer(404, "")) as server:
            self.assertEqual(chat(server.url, "a\n", "--model", "x").stdout, "Hi\n\n")

    def test_a_silent_server_meets_the_deadline(self) -> None:
        for reply in ("", stream(event("Hi"))):
            with FakeServer(reply, hold=True) as server:
                run = chat(server.url, "hello\n", "--timeout", "1")
                self.assertIn("within 1 s", run.stderr)

    def test_ctrl_c_ends_the_response_and_not_the_chat(self) -> None:
        with FakeServer(stream(event("Hi")), hold=True) as server:
            process = subprocess.Popen([PROGRAM, "chat", server.url], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True)
            process.stdin.write("hello\n")
            process.stdin.flush()
            self.assertEqual(process.stdout.read(2), "Hi")
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.stdout.read(1), "\n")
            out, _ = process.communicate("/exit\n", timeout=SECONDS)
            self.assertEqual((out, process.returncode), ("", 0))

    def test_addresses_that_cannot_be_used(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            address = f"127.0.0.1:{closed.getsockname()[1]}"
        for url, options, why in (
                (f"http://{address}", (), f"{address}: cannot connect: Connection refused"),
                ("https://host", (), "https://host: https is not supported"),
                ("ftp://host", (), "ftp://host: must begin with http://"),
                ("http://host:x", (), "http://host:x: the port must be"),
                (f"http://{address}", ("--threads", "2"), "--threads: is chosen by the server"),
                (str(MODEL), ("--model", "x"), "--model: needs the URL of a server")):
            run = chat(url, "", *options, check=False)
            self.assertNotEqual(run.returncode, 0)
            self.assertTrue(run.stderr.startswith(why), run.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
