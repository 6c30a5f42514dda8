#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sends hostile bytes to `tidemill serve`. Each request must be refused, with one response, and must not disturb others.

Usage: hostile_test.py PROGRAM SOURCE_DIR
"""
import json
import pathlib
import resource
import socket
import sys
import time
import unittest

from server import SECONDS, Server

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
HOST = b"Host: localhost\r\n"
JSON = HOST + b"Content-Type: application/json\r\n"
POISON = b"GET /poison HTTP/1.1\r\nHost: localhost\r\n\r\n"


def start_lines() -> list[bytes]:
    lines = [b"", b" ", b"GET", b"GET /", b"GET /health ", b"GET /health HTTP", b"GET /health HTTP/", b"GET /health HTTP/1",
             b"GET /health HTTP/1.", b"GET /health HTTP/1.1x", b"GET /health HTTP/11", b"GET /health HTTP/0.9",
             b"GET /health HTTP/1.2", b"GET /health HTTP/2", b"GET /health HTTP/2.0", b"GET /health HTTP/3.0",
             b"GET /health http/1.1", b"GET /health HTTP /1.1", b"GET  /health HTTP/1.1", b"GET /health  HTTP/1.1",
             b" GET /health HTTP/1.1", b"GET\t/health\tHTTP/1.1", b"G\x00T / HTTP/1.1", b"GET /\x00 HTTP/1.1",
             b"GET /\x7f HTTP/1.1", b"GET /\x1b[31m HTTP/1.1", b"GET /health HTTP/1.1 extra",
             b"(GET) /health HTTP/1.1", b"GE T /health HTTP/1.1", b"GET /health a HTTP/1.1", b"\x16\x03\x01\x02\x00",
             b"\x80\x80\x80", b"SSH-2.0-OpenSSH_9.2", b"*1\r\n$4\r\nPING", b"<xml/>", b"{}"]
    return [line + b"\r\n" + HOST + b"\r\n" for line in lines]


def header_lines() -> list[bytes]:
    lines = [b"NoColon", b": empty name", b"Bad Name: 1", b"Bad\tName: 1", b"Bad\x00Name: 1",
             b"Bad(Name: 1", b"Bad@Name: 1", b"Bad/Name: 1", b"Bad\"Name: 1", b"N\xc3\xa4me: 1",
             b"X : 1", b"X\r: 1", b"X: a\x00b", b"X: a\x01b", b"X: a\x1bb", b"X: a\x7fb",
             b"X: a\rb",
             b"Host: other", b"Host: localhost", b"Expect: tea", b"X: " + b"y" * 20000,
             b"\r\n".join(b"X%d: 1" % i for i in range(200))]
    return [b"GET /health HTTP/1.1\r\n" + HOST + line + b"\r\n\r\n" for line in lines]


def hosts() -> list[bytes]:
    values = [b"attacker.example", b"attacker.example:80", b"localhost.attacker.example",
              b"127.0.0.1.attacker.example", b"0.0.0.0", b"[::2]", b"", b"localhost@attacker.example",
              b"http://localhost", b"169.254.169.254"]
    requests = [b"GET /health HTTP/1.1\r\nHost: " + value + b"\r\n\r\n" for value in values]
    origins = [b"http://attacker.example", b"null", b"file://", b"http://localhost.attacker.example",
               b"http://localhost:1", b"chrome-extension://abc", b"https://attacker.example"]
    requests += [b"GET /health HTTP/1.1\r\n" + HOST + b"Origin: " + value + b"\r\n\r\n"
                 for value in origins]
    return requests + [b"GET /health HTTP/1.1\r\n\r\n"]


def lengths() -> list[bytes]:
    values = [b"+3", b"-1", b"-0", b"0x3", b"0b1", b"3.0", b"3e0", b"3, 3", b"3,4", b"3 3", b"3;", b"three",
              b"", b" ", b"\xd9\xa3", b"99999999999999999999", b"18446744073709551616",
              b"9223372036854775808", b"67108865", b"4294967296000", b"3\x00", b"3\x0b", b"'3'"]
    requests = [b"POST /v1/completions HTTP/1.1\r\n" + JSON + b"Content-Length: " + value +
                b"\r\n\r\nabc" for value in values]
    pairs = [(b"Content-Length: 3", b"Content-Length: 4"), (b"Content-Length: 3", b"Content-Length: 3"),
             (b"Content-Length: 3", b"Transfer-Encoding: chunked"),
             (b"Transfer-Encoding: chunked", b"Content-Length: 3"),
             (b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
             (b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"),
             (b"Content-Length: 0", b"transfer-encoding: chunked")]
    return requests + [b"POST /v1/completions HTTP/1.1\r\n" + JSON + one + b"\r\n" + two +
                       b"\r\n\r\n0\r\n\r\n" for one, two in pairs]


def encodings() -> list[bytes]:
    values = [b"gzip", b"gzip, chunked", b"chunked, gzip", b"identity", b"chunked, identity",
              b"chunked;q=1", b"\"chunked\"", b"xchunked", b"chunkedx", b"chunked chunked", b"", b",",
              b"\x0bchunked", b"chun\x00ked"]
    requests = [b"POST /v1/completions HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: " + value +
                b"\r\n\r\n0\r\n\r\n" for value in values]
    requests += [b"POST / HTTP/1.0\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                 b"POST / HTTP/1.1\r\n" + JSON + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
                 b"POST / HTTP/1.1\r\n" + JSON + b"Transfer-Encoding\x0b: chunked\r\n\r\n0\r\n\r\n"]
    chunks = [b"x\r\n", b"-1\r\n", b"+1\r\na\r\n", b" 1\r\na\r\n", b"0x1\r\na\r\n", b"1g\r\na\r\n",
              b"g\r\n", b"\r\n", b"1\na\r\n0\r\n\r\n", b"3\r\nabcd\r\n0\r\n\r\n", b"3\r\nab\r\n\r\n0\r\n\r\n",
              b"ffffffffffffffff\r\n", b"10000000000000000\r\n", b"fffffffffffffffff\r\n",
              b"7fffffffffffffff\r\n", b"4000001\r\n", b"1\r\nab\r\n", b"1\r\na\n0\r\n\r\n",
              b"0\r\nBad Trailer: 1\r\n\r\n", b"0\r\nNoColon\r\n\r\n", b"1;\x00\r\na\r\n0\r\n\r\n",
              b"\x001\r\na\r\n", b"1,1\r\na\r\n", b"1.0\r\na\r\n"]
    return requests + [b"POST /v1/completions HTTP/1.1\r\n" + JSON +
                       b"Transfer-Encoding: chunked\r\n\r\n" + chunk for chunk in chunks]


def line_ends() -> list[bytes]:
    return [b"GET /health HTTP/1.1\nHost: localhost\n\n", b"GET /health HTTP/1.1\rHost: localhost\r\r",
            b"GET /health HTTP/1.1\r\nHost: localhost\n\r\n",
            b"GET /health HTTP/1.1\n\rHost: localhost\n\r\n\r"]


def bodies() -> list[bytes]:
    """Returns requests whose framing is right and whose bodies are not."""
    texts = [b"", b" ", b"{", b"}", b"[", b"]", b"[]", b"null", b"true", b"1", b"\"x\"", b"{}", b"{]",
             b"{\"model\"}", b"{\"model\":}", b"{\"model\":\"a\",}", b"{'model':'a'}", b"{model:1}",
             b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}", b"\x00", b"{\"model\":\"\xff\"}",
             b"{\"model\":\"\xed\xa0\x80\"}", b"{\"model\":\"\\ud800\"}", b"{\"model\":\"\\x\"}",
             b"{\"model\":\"a\x00b\"}", b"{\"model\":\"a\nb\"}", b"NaN", b"{\"n\":NaN}",
             b"{\"n\":Infinity}", b"{\"n\":1e999}", b"{\"n\":-1e999}", b"{\"n\":01}", b"{\"n\":+1}",
             b"{\"n\":.5}", b"{\"n\":1.}", b"{\"n\":0x1}", b"{\"n\":1}{\"n\":1}", b"{\"n\":1} x",
             b"{\"model\":\"a\",\"model\":\"b\"}", b"[" * 100000, b"{\"a\":" * 50000,
             b"[" * 33 + b"]" * 33, b"// comment\n{}", b"{\"n\":1/*x*/}"]
    fields = {"model": [1, [], {}, "", "x" * 100000], "prompt": [1, {}, True, [None], [[None]], [[-1]],
              [[257]], [2**63], [1.5], "x" * 70], "n": [0, -1, 1025, 2**31, 2**63, 10**30, 1.5, "1", True],
              "max_tokens": [-1, 65, 2**31, 2**64, 0.5], "temperature": [-1, 2.1, 1e-9, 1e308, "1", [], True],
              "top_p": [-1, 0, 1.1], "top_k": [-2, 2**31, 0.5], "min_p": [-0.1, 1.1],
              "repetition_penalty": [0, -1, 1e9], "stop": [1, [1], "", ["a"] * 65, "x" * 2000],
              "logit_bias": [[], 1, {"x": 1}, {"-1": 1}, {"999": 1}, {"1": "x"}, {"1": 1e9}],
              "logprobs": [-1, 21, "x"], "seed": [1.5, "x", 10**30], "stream": [1, "true"],
              "stream_options": [1, {"x": 1}], "suffix": ["x"], "unknown": [1], "__proto__": [{}]}
    for name, values in fields.items():
        for value in values:
            texts.append(json.dumps({"model": "arithmetic", "prompt": "1+1=", name: value}).encode())
    return [b"POST /v1/completions HTTP/1.1\r\n" + JSON + b"Content-Length: %d\r\n\r\n" % len(text) + text
            for text in texts]


class HostileTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
        cls.server = Server(PROGRAM, SOURCE / "examples/models/arithmetic")

    @classmethod
    def tearDownClass(cls) -> None:
        cls.server.__exit__()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=SECONDS)

    def exchange(self, request: bytes) -> bytes:
        """Returns what the server sends until it closes the connection, or for half a second."""
        received = b""
        with self.connect() as connection:
            connection.settimeout(0.5)
            try:
                connection.sendall(request)
                while data := connection.recv(65536):
                    received += data
            except TimeoutError:
                pass  # it waits for the rest of the request, or for the next one
            except (BrokenPipeError, ConnectionResetError):
                pass  # it closed the connection before it had read everything
        return received

    def assert_served(self) -> None:
        self.assertEqual(self.server.request("GET", "/health"), (200, {"status": "ok"}))

    def test_bad_framing_is_refused_once(self) -> None:
        requests = start_lines() + header_lines() + lengths() + encodings() + line_ends()
        self.assertGreater(len(requests), 100)
        for request in requests:
            # What follows a request that could be understood in two ways must not be processed.
            received = self.exchange(request + POISON)
            with self.subTest(request[:80]):
                self.assertRegex(received[:12], rb"^HTTP/1\.1 [45]|^$")
                self.assertEqual(received.count(b"HTTP/1.1 "), 1 if received else 0)
                # The gateway, which gets only what the HTTP server understands, closes none.
                self.assertIn(b"connection: close" if received else b"", received)
                self.assertNotIn(b"poison", received)
        self.assert_served()

    def test_other_hosts_and_pages_are_refused(self) -> None:
        for request in hosts():
            with self.subTest(request[:80]):
                self.assertRegex(self.exchange(request)[:12], rb"^HTTP/1\.1 4")
        self.assert_served()

    def test_bad_bodies_are_refused(self) -> None:
        requests = bodies()
        self.assertGreater(len(requests), 100)
        for request in requests:
            with self.connect() as connection:
                connection.sendall(request)
                received = connection.recv(65536)
            with self.subTest(request[:200]):
                self.assertRegex(received[:12], rb"^HTTP/1\.1 4")
                error = json.loads(received.partition(b"\r\n\r\n")[2])["error"]
                self.assertLess(len(error["message"]), 1000)
        self.assert_served()

    def latencies(self, count: int) -> list[float]:
        """Returns the sorted times of completions of two tokens. Units: seconds."""
        times = []
        for _ in range(count):
            begin = time.monotonic()
            self.server.post("/v1/completions", prompt="1+1=", max_tokens=2)
            times.append(time.monotonic() - begin)
        return sorted(times)

    def test_slow_and_idle_connections_do_not_stop_others(self) -> None:
        count = 200
        alone = self.latencies(count)
        slow = [self.connect() for _ in range(1000)]
        for index, connection in enumerate(slow):
            if index % 2 == 0:
                connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: local")
        beside = self.latencies(count)
        p99 = count * 99 // 100 - 1
        print(f"p99 of {count} requests: {alone[p99] * 1e3:.2f} ms alone,"
              f" {beside[p99] * 1e3:.2f} ms beside {len(slow)} slow connections")
        for connection in slow:
            connection.close()
        self.assert_served()


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
