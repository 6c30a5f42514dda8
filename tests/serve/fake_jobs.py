# SPDX-License-Identifier: Apache-2.0
"""A server with the pages of this source tree and a small copy of OpenAI's fine-tuning API.

A running job advances by one step whenever the list of jobs is read, so that tests need no clock.
"""
import http.server
import json
import pathlib
import re
import threading

POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
          "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
STEPS = 120
ATTACK = '<img src=x onerror="window.attacked = true"><script>window.attacked = true</script>'


class Jobs:
    """The state of the server."""

    def __init__(self) -> None:
        self.jobs: list[dict] = []
        self.events: dict[str, list[dict]] = {}
        self.files = [{"id": "file-quickstart", "filename": "arithmetic.jsonl",
                       "purpose": "fine-tune", "object": "file"}]
        self.models = ["base"]
        self.requests: list[tuple[str, str, object]] = []
        self.key = ""
        self.closed = threading.Event()  # a client has closed the connection of a response
        self.step_of_list = 1  # steps per reading of the list

    def create(self, body: dict) -> dict:
        job = {"id": f"ftjob-{len(self.jobs) + 1}", "object": "fine_tuning.job", "status": "running",
               "model": body["model"], "training_file": body["training_file"],
               "method": body.get("method", {"type": "supervised"}), "created_at": 1_700_000_000,
               "finished_at": None, "fine_tuned_model": None, "trained_tokens": None, "error": None}
        self.jobs.insert(0, job)
        self.events[job["id"]] = []
        self.add_event(job["id"], f"Created {ATTACK}")
        return job

    def add_event(self, job: str, message: str, data: dict | None = None) -> None:
        count = len(self.events[job])
        self.events[job].append({"id": f"ftevent-{job}-{count}", "created_at": 1_700_000_000 + count,
                                 "level": "info", "message": message, "data": data or {},
                                 "type": "metrics" if data else "message"})

    def advance(self) -> None:
        for job in self.jobs:
            for _ in range(self.step_of_list):
                if job["status"] != "running":
                    break
                events = self.events[job["id"]]
                step = sum(1 for one in events if one["data"])
                if step == STEPS:
                    job.update(status="succeeded", finished_at=1_700_001_000, trained_tokens=4321,
                               fine_tuned_model=f"base:{job['id']}")
                    self.models.append(job["fine_tuned_model"])
                    self.add_event(job["id"], "Succeeded")
                else:
                    self.add_event(job["id"], f"Step {step + 1}", {
                        "step": step + 1, "train_loss": 2.0 / (1 + 0.05 * step) + 0.1 * (step % 3),
                        "learning_rate": 1e-4})

    def events_page(self, job: str, after: str | None, limit: int) -> dict:
        newest = self.events[job][::-1]
        start = next((i + 1 for i, one in enumerate(newest) if one["id"] == after), 0)
        return {"object": "list", "data": newest[start:start + limit],
                "has_more": start + limit < len(newest)}

    def change(self, job: dict, verb: str) -> dict:
        job["status"] = {"pause": "paused", "resume": "running", "cancel": "cancelled"}[verb]
        self.add_event(job["id"], verb)
        return job

    def respond(self, method: str, path: str, body: object) -> tuple[int, object]:
        path, _, query = path.partition("?")
        if path == "/v1/models":
            return 200, {"data": [{"id": name, "parent": "base" if ":" in name else None}
                                  for name in self.models]}
        if path == "/v1/files" and method == "GET":
            return 200, {"data": self.files}
        if path == "/v1/files":
            name = re.search(r'name="file"; filename="([^"]*)"', body)[1]
            self.files.append({"id": f"file-{len(self.files)}", "filename": name,
                               "purpose": "fine-tune"})
            return 200, self.files[-1]
        if path == "/v1/chat/completions":
            prompt = body["messages"][-1]["content"]
            text = ATTACK if "attack" in prompt else f"{body['model']} says {prompt}"
            return 200, {"choices": [{"message": {"content": text}}]}
        if path == "/v1/fine_tuning/jobs" and method == "POST":
            return 200, self.create(body)
        if path == "/v1/fine_tuning/jobs":
            self.advance()
            return 200, {"object": "list", "data": self.jobs, "has_more": False}
        match = re.fullmatch(r"/v1/fine_tuning/jobs/([^/]+)/(\w+)", path)
        job = next((one for one in self.jobs if match and one["id"] == match[1]), None)
        if job is None:
            return 404, {"error": {"message": f"there is nothing at {path}"}}
        if match[2] == "events":
            after = re.search(r"after=([^&]*)", query)
            limit = re.search(r"limit=(\d+)", query)
            return 200, self.events_page(job["id"], after and after[1], int(limit[1]))
        if match[2] == "checkpoints":
            return 200, {"data": [{"id": "ftckpt-1", "step_number": 60,
                                   "fine_tuned_model_checkpoint": "base:ckpt-step-60",
                                   "metrics": {"step": 60, "train_loss": 0.512345}}]}
        return 200, self.change(job, match[2])


class FakeJobs:
    """The server, on a free port. Use it in a `with` statement."""

    def __init__(self, source: pathlib.Path):
        self.jobs = jobs = Jobs()
        folder = source / "actors/gateway/pages"
        lock = threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            def reply(self, status: int, kind: str, data: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.send_header("content-security-policy", POLICY)
                self.end_headers()
                self.wfile.write(data)

            def handle_request(self) -> None:
                data = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
                is_json = self.headers.get("content-type") == "application/json"
                body = json.loads(data) if is_json else data
                page = {"/": "chat.html", "/chat": "chat.html", "/jobs": "jobs.html",
                        "/server": "server.html"}.get(self.path)
                name = page or self.path.removeprefix("/pages/")
                if page or self.path.startswith("/pages/"):
                    self.reply(200, TYPES[pathlib.Path(name).suffix], (folder / name).read_bytes())
                    return
                if self.path == "/v1/chat/completions" and "hold" in body["messages"][-1]["content"]:
                    self.hold()
                    return
                with lock:
                    if jobs.key and self.headers.get("authorization") != f"Bearer {jobs.key}":
                        status, answer = 401, {"error": {"message": "a key is needed"}}
                    else:
                        jobs.requests.append((self.command, self.path, body))
                        if self.path == "/v1/chat/completions" and body.get("stream"):
                            self.reply(200, "text/event-stream", stream_of(body))
                            return
                        status, answer = jobs.respond(self.command, self.path, body)
                self.reply(status, "application/json", json.dumps(answer).encode())

            def hold(self) -> None:
                """Sends the beginning of a stream and waits until the client closes the connection."""
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                event = {"choices": [{"delta": {"content": "begun"}, "finish_reason": None}]}
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.connection.recv(1)
                jobs.closed.set()

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True  # the page has been closed

            do_GET = do_POST = handle_request

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self) -> "FakeJobs":
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def stream_of(body: dict) -> bytes:
    """Returns a streamed response to a chat: hostile text, a cut character, or an error."""
    prompt = body["messages"][-1]["content"]
    text = ATTACK if "attack" in prompt else "h\u00e9 " + prompt
    events = [{"choices": [{"delta": {"content": text[i:i + 7]}, "finish_reason": None}]}
              for i in range(0, len(text), 7)]
    if body.get("logprobs"):
        tokens = [{"token": chr(byte) if byte < 128 else "\ufffd", "bytes": [byte], "logprob": -0.5,
                   "top_logprobs": [{"token": ATTACK, "logprob": -1.5, "bytes": None}]}
                  for byte in text.encode()]
        events[-1]["choices"][0]["logprobs"] = {"content": tokens}
    if "cut" in prompt:
        return "".join(f"data: {json.dumps(one)}\n\n" for one in events).encode()
    if "fail" in prompt:
        events.append({"error": {"message": "out of pages"}})
    else:
        events[-1]["choices"][0]["finish_reason"] = "stop"
    return ("".join(f"data: {json.dumps(one)}\n\n" for one in events) + "data: [DONE]\n\n").encode()
