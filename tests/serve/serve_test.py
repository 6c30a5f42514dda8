#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `tidemill serve` as a process, with clients of the standard library.

Usage: serve_test.py PROGRAM SOURCE_DIR
"""
import concurrent.futures
import json
import pathlib
import signal
import sys
import tempfile
import time
import unittest

from fake_jobs import POLICY
from server import Server, run_json

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
MODEL = SOURCE / "examples/models/arithmetic"


def program(*arguments: str, lines: str = "") -> list[dict]:
    """Returns the JSON lines that a command prints."""
    return run_json(PROGRAM, *arguments, lines=lines)


class ServeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server(PROGRAM, MODEL, "serve.name=sums")

    @classmethod
    def tearDownClass(cls) -> None:
        cls.server.__exit__()

    def complete(self, prompt: object, **more: object) -> dict:
        return self.server.post("/v1/completions", prompt=prompt, **more)

    def test_lists_the_model(self) -> None:
        status, models = self.server.request("GET", "/v1/models")
        self.assertEqual(status, 200)
        self.assertEqual([model["id"] for model in models["data"]], ["sums"])
        self.assertEqual(self.server.request("GET", "/v1/models/sums")[1]["max_model_len"], 64)
        self.assertEqual(self.server.request("GET", "/health"), (200, {"status": "ok"}))

    def test_generates_what_the_command_generates(self) -> None:
        for prompt in ("11+27=", "17+25="):
            response = self.complete(prompt, temperature=0, max_tokens=8, logprobs=0)
            line, = program("generate", str(MODEL), "--greedy", "--max-new-tokens", "8",
                            "--threads", "1", prompt)
            choice = response["choices"][0]
            self.assertEqual(choice["text"], line["text"])
            self.assertEqual(choice["finish_reason"], line["finish_reason"])
            self.assertEqual(choice["logprobs"]["token_logprobs"],
                             line["logprobs"][:len(choice["logprobs"]["token_logprobs"])])

    def test_a_chat_renders_its_messages(self) -> None:
        messages = [{"role": "user", "content": "11+27="}]
        chat = self.server.post("/v1/chat/completions", messages=messages, temperature=0)
        plain = self.complete("11+27=", temperature=0, max_tokens=8)
        self.assertEqual(chat["choices"][0]["message"]["content"], plain["choices"][0]["text"])
        self.assertEqual(chat["choices"][0]["finish_reason"], "stop")
        self.assertEqual(chat["usage"]["prompt_tokens"], 6)

    def test_a_stream_has_the_text_of_the_whole_response(self) -> None:
        for seed in range(5):
            settings = {"seed": seed, "temperature": 1.5, "max_tokens": 20, "n": 3,
                        "ignore_eos": True, "logprobs": 1}
            whole = self.complete("11+27=", **settings)
            events = self.server.stream("/v1/completions", prompt="11+27=",
                                        stream_options={"include_usage": True}, **settings)
            texts = ["", "", ""]
            logprobs: list[list] = [[], [], []]
            for event in events:
                for choice in event["choices"]:
                    texts[choice["index"]] += choice["text"]
                    logprobs[choice["index"]] += choice["logprobs"]["token_logprobs"]
            self.assertEqual(texts, [choice["text"] for choice in whole["choices"]])
            self.assertEqual(logprobs,
                             [choice["logprobs"]["token_logprobs"] for choice in whole["choices"]])
            self.assertEqual(events[-1]["usage"]["completion_tokens"],
                             whole["usage"]["completion_tokens"])

    def test_a_seed_gives_the_same_tokens_under_load(self) -> None:
        def ask(seed: int) -> list:
            response = self.complete(f"{seed % 90 + 10}+27=", seed=seed, temperature=1.3, n=2,
                                     max_tokens=30, ignore_eos=True, logprobs=3)
            return response["choices"]

        alone = [ask(seed) for seed in range(24)]
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            together = list(pool.map(ask, range(24)))
        self.assertEqual(alone, together)

    def test_scores_a_prompt_as_the_command_does(self) -> None:
        prompt = "11+27=38"
        response = self.complete(prompt, max_tokens=0, echo=True, logprobs=2)
        line, = program("score", str(MODEL), "--threads", "1", "--input", "-",
                        lines=json.dumps({"prompt": prompt}))
        choice = response["choices"][0]
        self.assertEqual(choice["text"], prompt)
        self.assertEqual(choice["logprobs"]["token_logprobs"], line["logprobs"])
        self.assertEqual(choice["logprobs"]["text_offset"], list(range(8)))

    def test_stop_strings_end_the_text(self) -> None:
        whole = self.complete("11+27=", temperature=0, max_tokens=8)["choices"][0]
        stop = whole["text"][1]
        cut = self.complete("11+27=", temperature=0, max_tokens=8, stop=[stop])["choices"][0]
        self.assertEqual(cut["text"], whole["text"][:1])
        self.assertEqual(cut["finish_reason"], "stop")

    def test_constrained_responses_satisfy_their_schema(self) -> None:
        # The model has never seen JSON, so that only the constraint makes it.
        schema = {"type": "object", "properties": {
            "sum": {"type": "integer", "minimum": 0, "maximum": 198}, "even": {"type": "boolean"},
            "odd": {"type": "array", "items": {"type": "boolean"}, "maxItems": 1}},
            "required": ["sum", "even", "odd"], "additionalProperties": False}
        body = {"model": self.server.model, "messages": [{"role": "user", "content": "38+86="}], "n": 8, "seed": 3, "max_tokens": 56,
                "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}
        for temperature in (0, 1, 2):
            status, made = self.server.request("POST", "/v1/chat/completions", {**body, "temperature": temperature})
            self.assertEqual(status, 200, made)
            for choice in made["choices"]:
                self.assertEqual(choice["finish_reason"], "stop", choice)
                value = json.loads(choice["message"]["content"])
                self.assertEqual(list(value), ["sum", "even", "odd"])
                self.assertIn(value["sum"], range(199))
                self.assertIsInstance(value["even"], bool)
                self.assertIn(value["odd"], ([], [False], [True]))
        status, made = self.server.request("POST", "/v1/chat/completions", {**body, "max_tokens": 5})
        self.assertEqual({choice["finish_reason"] for choice in made["choices"]}, {"length"})
        schema["properties"]["sum"] = {"type": "integer", "multipleOf": 2}
        status, made = self.server.request("POST", "/v1/chat/completions", body)
        self.assertEqual(status, 400)
        self.assertEqual(made["error"]["param"],
                         "response_format.json_schema.schema.properties.sum.multipleOf")

    def test_errors_name_the_field(self) -> None:
        for body, status, param in (
                ({"model": "sums", "prompt": "x", "temperature": 9}, 400, "temperature"),
                ({"model": "other", "prompt": "x"}, 404, "model"),
                ({"model": "sums", "prompt": "x", "beams": 2}, 400, "beams"),
                ({"model": "sums", "prompt": "x" * 64}, 400, "prompt")):
            answered, error = self.server.request("POST", "/v1/completions", body)
            self.assertEqual((answered, error["error"]["param"]), (status, param), error)

    def errors(self, status: int) -> float:
        """Returns how many errors /metrics has counted."""
        connection = self.server.connect()
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines
                   if line.startswith("tidemill:errors_total{") and f'status="{status}"' in line)

    def test_browsers_of_other_pages_are_refused(self) -> None:
        before = self.errors(421), self.errors(403)
        status, _ = self.server.request("GET", "/v1/models", None, {"Host": "attacker.example"})
        self.assertEqual(status, 421)
        status, _ = self.server.request("GET", "/v1/models", None,
                                        {"Origin": "http://attacker.example"})
        self.assertEqual(status, 403)
        self.assertEqual((self.errors(421), self.errors(403)), (before[0] + 1, before[1] + 1))

    def test_pages_have_their_files_and_headers(self) -> None:
        connection = self.server.connect()
        for path, kind in (("/", "text/html"), ("/chat", "text/html"), ("/jobs", "text/html"),
                           ("/server", "text/html"), ("/pages/chat.js", "text/javascript"),
                           ("/pages/style.css", "text/css")):
            connection.request("GET", path)
            response = connection.getresponse()
            data = response.read()
            name = {"/": "chat.html"}.get(path, path[1:].removeprefix("pages/"))
            name += "" if "." in name else ".html"
            self.assertEqual(data, (SOURCE / "actors/gateway/pages" / name).read_bytes())
            self.assertEqual(response.headers["content-type"], kind + "; charset=utf-8")
            self.assertEqual(response.headers["content-security-policy"], POLICY)
            self.assertEqual(response.headers["x-content-type-options"], "nosniff")
            self.assertEqual(response.headers["referrer-policy"], "no-referrer")
            connection.request("GET", path, headers={"If-None-Match": response.headers["etag"]})
            response = connection.getresponse()
            self.assertEqual((response.status, response.read()), (304, b""))
        connection.close()
        self.assertEqual(self.server.request("POST", "/chat", {})[0], 405)
        for path in ("/pages/", "/pages/none.js", "/pages/../chat.html", "/pages/chat.html/"):
            self.assertEqual(self.server.request("GET", path)[0], 404)

    def test_prompts_share_the_cache(self) -> None:
        prompt = "99+98=197;12+34="
        self.complete(prompt, max_tokens=1)
        usage = self.complete(prompt, max_tokens=1)["usage"]
        self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"], 1)


class ServerLifeTest(unittest.TestCase):
    def test_a_server_that_is_stopped_completes_its_responses(self) -> None:
        with Server(PROGRAM, MODEL) as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
            stopped = []

            def ask(index: int) -> int:
                done = 0
                while not stopped:
                    try:
                        events = server.stream("/v1/completions", prompt="11+27=", max_tokens=50,
                                               ignore_eos=True, n=16, seed=index)
                    except (AssertionError, OSError):
                        break  # refused
                    ends = [choice["finish_reason"] for event in events
                            for choice in event["choices"] if choice["finish_reason"]]
                    self.assertEqual(ends, ["length"] * 16)
                    done += 1
                return done

            clients = [pool.submit(ask, index) for index in range(8)]
            time.sleep(1.0)
            self.assertEqual(server.stop(), 0)
            stopped.append(True)
            self.assertGreater(sum(client.result() for client in clients), 0)
            self.assertNotIn("given up", server.stderr())

    def test_a_killed_server_starts_again(self) -> None:
        with Server(PROGRAM, MODEL) as server:
            server.post("/v1/completions", prompt="1+1=", max_tokens=1)
            port = server.port
            self.assertEqual(server.stop(signal.SIGKILL), -signal.SIGKILL)
        with Server(PROGRAM, MODEL, f"serve.port={port}") as server:
            self.assertEqual(server.port, port)
            server.post("/v1/completions", prompt="1+1=", max_tokens=1)

    def test_metrics_count_the_requests_of_tinker(self) -> None:
        with Server(PROGRAM, MODEL, "serve.checkpoints_path=runs/checkpoints") as server:
            def call(path: str, status: int = 200, **body: object) -> dict:
                got, data = server.request("POST", "/api/v1/" + path, body)
                self.assertEqual(got, status, data)
                return data

            session = call("create_session", type="create_session")["session_id"]
            sampler = call("create_sampling_session", session_id=session, sampling_session_seq_id=1,
                           base_model=server.model)["sampling_session_id"]
            prompt = {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7]}]}
            request = {"sampling_session_id": sampler, "seq_id": 1, "num_samples": 3, "prompt": prompt,
                       "sampling_params": {"max_tokens": 4, "stop": []}}
            sent = call("asample", **request)
            call("asample", 400, **{**request, "seq_id": 2, "num_samples": 0})
            connection = server.connect()
            connection.request("POST", "/api/v1/retrieve_future", json.dumps({"request_id": sent["request_id"]}),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            self.assertEqual((response.status, bool(response.read())), (200, True))
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
            connection.close()

            def value(name: str, label: str = "") -> float:
                return sum(float(line.rsplit(" ", 1)[1]) for line in lines
                           if line.startswith(name + "{") and label in line)

            self.assertEqual(value("vllm:request_success_total", 'finished_reason="length"'), 3)
            self.assertEqual(value("vllm:generation_tokens_total"), 12)
            self.assertEqual(value("vllm:prompt_tokens_total"), 9)
            self.assertEqual(value("tidemill:errors_total", 'status="400"'), 1)

    def test_a_port_in_use_is_named(self) -> None:
        with Server(PROGRAM, MODEL) as server:
            with self.assertRaisesRegex(RuntimeError, f"127.0.0.1:{server.port}"):
                Server(PROGRAM, MODEL, f"serve.port={server.port}")

    def test_tenants_share_no_cached_prefixes(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            keys = pathlib.Path(folder, "keys.json")
            secrets = {}
            for name, tenant in (("a", "red"), ("b", "red"), ("c", "blue"), ("d", None)):
                more = [] if tenant is None else ["--tenant", tenant]
                made, = program("keys", "add", str(keys), "--name", name, *more)
                secrets[name] = made["key"]
            with Server(PROGRAM, MODEL, f"serve.keys_file={keys}") as server:
                def cached(name: str, salt: str | None = None) -> int:
                    status, response = server.request(
                        "POST", "/v1/completions",
                        {"model": server.model, "prompt": "11+22+33+44+55+66+77+88+99=",
                         "max_tokens": 4, "temperature": 0, "cache_salt": salt},
                        {"Authorization": "Bearer " + secrets[name]})
                    self.assertEqual(status, 200, response)
                    texts.add(response["choices"][0]["text"])
                    return response["usage"]["prompt_tokens_details"]["cached_tokens"]

                texts: set[str] = set()
                self.assertEqual([cached(name) for name in "acd"], [0, 0, 0])
                self.assertTrue(all(cached(name) >= 16 for name in "abcd"))
                self.assertEqual(cached("a", "one user"), 0)
                self.assertGreaterEqual(cached("b", "one user"), 16)
                self.assertEqual(cached("c", "one user"), 0)
                self.assertEqual(len(texts), 1)

    def test_keys_are_checked(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            keys = pathlib.Path(folder, "keys.json")
            made, = program("keys", "add", str(keys), "--name", "alice", "--scope", "infer")
            program("keys", "add", str(keys), "--name", "bob", "--tenant", "red", "--priority",
                    "high")
            self.assertEqual(program("keys", "list", str(keys)),
                             [{"name": "alice", "scopes": "infer", "tenant": "",
                               "priority": "normal"},
                              {"name": "bob", "scopes": "infer", "tenant": "red",
                               "priority": "high"}])
            program("keys", "remove", str(keys), "--name", "bob")
            self.assertNotIn(made["key"], keys.read_text())
            self.assertEqual(keys.stat().st_mode & 0o777, 0o600)
            with Server(PROGRAM, MODEL, f"serve.keys_file={keys}", "serve.host=0.0.0.0") as server:
                self.assertEqual(server.request("GET", "/v1/models")[0], 401)
                connection = server.connect()
                connection.request("GET", "/chat")  # asks for the key itself
                self.assertEqual(connection.getresponse().status, 200)
                connection.close()
                good = {"Authorization": "Bearer " + made["key"]}
                self.assertEqual(server.request("GET", "/v1/models", None, good)[0], 200)
                self.assertEqual(server.request("GET", "/v1/models", None,
                                                {**good, "Host": "other.example"})[0], 200)
                self.assertEqual(server.request("POST", "/v1/unload_lora_adapter",
                                                {"lora_name": "a"}, good)[0], 403)
            program("keys", "remove", str(keys), "--name", "alice")
            self.assertEqual(program("keys", "list", str(keys)), [])

    def test_other_addresses_need_a_key(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "serve.host: must be"):
            Server(PROGRAM, MODEL, "serve.host=0.0.0.0")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
