# SPDX-License-Identifier: Apache-2.0
"""Clients of a server that is killed again and again. Each one checks that nothing which the server has confirmed is
lost or done twice, and repeats what it has not confirmed."""
import collections
import hashlib
import http.client
import json
import pathlib
import random
import threading
import time
from collections.abc import Callable

from server import Server

SECONDS = 120
POLL = 0.05
ENDED = ("succeeded", "failed", "cancelled")


class Closed(Exception):
    """The server has closed the connection before its response was complete."""


class Stopped(Exception):
    """The campaign has ended, or has failed elsewhere."""


def require(holds: bool, what: object) -> None:
    if not holds:
        raise AssertionError(what)


def exchange(server: Server, method: str, path: str, body: bytes | None = None,
             content_type: str = "application/json") -> tuple[int, bytes]:
    """Returns the status and the body of a complete response."""
    connection = server.connect()
    try:
        connection.request(method, path, body, {} if body is None else {"Content-Type": content_type})
        response = connection.getresponse()
        # Without a length, a response that was cut off would look complete.
        require(response.chunked or response.length is not None, "the response has no length")
        return response.status, response.read()
    except (ConnectionError, http.client.HTTPException) as error:
        raise Closed(repr(error)) from error
    finally:
        connection.close()


class Stage:
    """What the clients share: the server that runs now, and what is happening."""

    def __init__(self, folder: pathlib.Path):
        self.jobs = folder / "jobs"
        self.checkpoints = folder / "checkpoints"
        self.changed = threading.Condition()
        self.server: Server | None = None
        self.starts = 0
        self.ends = False  # clients complete what they have begun, and stop
        self.failure: BaseException | None = None
        self.count: collections.Counter = collections.Counter()
        self.in_flight: collections.Counter = collections.Counter()

    def check(self) -> None:
        if self.failure is not None:
            raise Stopped()

    def set_server(self, server: Server | None) -> None:
        with self.changed:
            self.server = server
            self.starts += server is not None
            self.changed.notify_all()

    def current(self, after: Server | None = None) -> Server:
        """Returns the server, once there is another one than `after`."""
        deadline = time.monotonic() + SECONDS
        with self.changed:
            while self.server is None or self.server is after:
                self.check()
                require(time.monotonic() < deadline, "no server has started")
                self.changed.wait(0.5)
            return self.server

    def once(self, server: Server, kind: str, method: str, path: str, body: bytes | None = None,
             content_type: str = "application/json") -> tuple[int, bytes]:
        """Sends a request. Raises `Closed` if the server was killed, and fails if it was not."""
        self.in_flight[kind] += 1
        try:
            result = exchange(server, method, path, body, content_type)
            self.count[kind] += 1
            return result
        except Closed as closed:
            try:
                server.process.wait(timeout=10)
            except Exception as error:
                raise AssertionError(f"{method} {path}: a server that runs closed: {closed}") from error
            self.count[kind + ", closed"] += 1
            raise
        finally:
            self.in_flight[kind] -= 1


class Client(threading.Thread):
    """Repeats `act` until the stage ends. `act` may raise `Closed`, and is then called again with the next server."""

    def __init__(self, stage: Stage, seed: int):
        super().__init__()
        self.stage = stage
        self.random = random.Random(seed)
        self.server: Server | None = None

    def run(self) -> None:
        try:
            while not self.has_ended():
                self.stage.check()
                try:
                    server = self.stage.current()
                    if server is not self.server:
                        self.check_again(server)
                        self.server = server
                    self.act(server)
                except Closed:
                    self.stage.current(after=server)
        except Stopped:
            pass
        except BaseException as error:  # pylint: disable=broad-except
            self.stage.failure = self.stage.failure or error

    def has_ended(self) -> bool:
        return self.stage.ends

    def check_again(self, server: Server) -> None:
        """Checks what an earlier server has confirmed."""

    def act(self, server: Server) -> None:
        raise NotImplementedError

    def call(self, server: Server, kind: str, method: str, path: str, body: object = None,
             expected: tuple[int, ...] = (200,)) -> dict:
        text = None if body is None else json.dumps(body).encode()
        status, data = self.stage.once(server, kind, method, path, text)
        require(status in expected, f"{method} {path}: {status} {data[:500]!r}")
        return {"status_code": status, **json.loads(data)}


# -- generation -----------------------------------------------------------------------------------

GENERATIONS = [{"prompt": f"{a}+{b}=", "max_tokens": 24, "seed": a, "ignore_eos": True, "temperature": 1.0,
                "stream": stream} for a, b, stream in ((38, 86, False), (12, 7, True), (99, 1, True), (5, 50, False))]
CHAT = {"messages": [{"role": "user", "content": "38+86="}], "max_tokens": 16, "seed": 3}


def generate(server: Server, send: Callable, number: int) -> str:
    """Returns the text of a response."""
    if number == len(GENERATIONS):
        path, body = "/v1/chat/completions", CHAT
    else:
        path, body = "/v1/completions", GENERATIONS[number]
    status, data = send(server, "generate", "POST", path,
                        json.dumps({"model": server.model, **body}).encode())
    require(status == 200, (status, data[:500]))
    if not body.get("stream"):
        choice = json.loads(data)["choices"][0]
        return choice["message"]["content"] if path.endswith("chat/completions") else choice["text"]
    events = data.decode().split("\n\n")
    require(events[-2:] == ["data: [DONE]", ""], f"a stream that is not cut off ends with {events[-2:]}")
    return "".join(json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events[:-2])


class Generator(Client):
    """Has responses generated, which must be those of the undisturbed server."""

    def __init__(self, stage: Stage, seed: int, expected: list[str]):
        super().__init__(stage, seed)
        self.expected = expected
        self.next = 0

    def act(self, server: Server) -> None:
        got = generate(server, self.stage.once, self.next)
        require(got == self.expected[self.next], f"request {self.next} gives {got!r}")
        self.next = self.random.randrange(len(self.expected))


# -- files ----------------------------------------------------------------------------------------

def form(content: bytes) -> bytes:
    return (b'--xx\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
            b'--xx\r\nContent-Disposition: form-data; name="file"; filename="rows.jsonl"\r\n\r\n'
            + content + b"\r\n--xx--\r\n")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Uploader(Client):
    """Uploads, reads and deletes files."""

    MAX_FILES = 8

    def __init__(self, stage: Stage, seed: int, kept: dict[str, str]):
        super().__init__(stage, seed)
        self.files = dict(kept)  # digests, by id
        self.kept = set(kept)
        self.sent: set[str] = set()  # digests of uploads that were not confirmed
        self.gone: set[str] = set()  # ids that the server has confirmed to be deleted
        self.leaving: set[str] = set()  # ids whose deletion was not confirmed

    def check_again(self, server: Server) -> None:
        found = {one["id"]: one["bytes"] for one in self.call(server, "list", "GET", "/v1/files")["data"]}
        lost = self.files.keys() - self.leaving - found.keys()
        require(not lost, f"files that were confirmed are lost: {lost}")
        require(not self.gone & found.keys(), "a file that was deleted is there again")
        for one in sorted(found):
            status, data = self.stage.once(server, "download", "GET", f"/v1/files/{one}/content")
            require(status == 200 and len(data) == found[one], (one, status, len(data)))
            if one in self.files:
                require(digest(data) == self.files[one], f"{one}: the bytes have changed")
            else:
                require(digest(data) in self.sent, f"{one}: holds bytes that were not uploaded")
                self.files[one] = digest(data)
                self.stage.count["files stored without a confirmation"] += 1
        on_disk = {path.name for path in (self.stage.jobs / "files").iterdir()}
        require(on_disk == found.keys(), f"the disk has {on_disk ^ found.keys()} besides the list")
        for one in self.leaving - found.keys():
            del self.files[one]
            self.gone.add(one)
        self.leaving &= found.keys()
        self.sent.clear()

    def act(self, server: Server) -> None:
        if len(self.files) < self.MAX_FILES and self.random.random() < 0.7:
            content = self.random.randbytes(self.random.choice((1, 1000, 200_000, 3_000_000)))
            self.sent.add(digest(content))
            status, data = self.stage.once(server, "upload", "POST", "/v1/files", form(content),
                                           "multipart/form-data; boundary=xx")
            require(status == 200, (status, data))
            stored = json.loads(data)
            require(stored["bytes"] == len(content), stored)
            self.sent.discard(digest(content))
            self.files[stored["id"]] = digest(content)
            return
        loose = sorted(self.files.keys() - self.kept)
        if not loose:
            return
        chosen = self.random.choice(loose)
        self.leaving.add(chosen)
        self.call(server, "delete", "DELETE", f"/v1/files/{chosen}")
        self.leaving.discard(chosen)
        del self.files[chosen]
        self.gone.add(chosen)


# -- jobs -----------------------------------------------------------------------------------------

class JobResult:
    """What a job has left behind, and what must be the same however often its server was killed."""

    def __init__(self, jobs: pathlib.Path, record: dict):
        run = jobs / "runs" / record["id"]
        self.adapter = {path.name: digest(path.read_bytes())
                        for path in sorted((run / "export/adapter").iterdir())}
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        self.losses = [(line["step"], line["loss"]) for line in lines if line["kind"] == "train"]
        self.trained_tokens = record["trained_tokens"]

    def check_against(self, other: "JobResult") -> None:
        require([step for step, loss in self.losses] == list(range(1, len(self.losses) + 1)),
                f"the records have the steps {[step for step, loss in self.losses]}")
        require(self.losses == other.losses, "the losses differ from those of the undisturbed run")
        require(self.adapter == other.adapter, "the adapter differs from that of the undisturbed run")
        require(self.trained_tokens == other.trained_tokens,
                f"{self.trained_tokens} tokens instead of {other.trained_tokens}")


def check_events(events: list[dict], steps: int, last: str) -> None:
    """Checks the events of a job, newest first."""
    shown = [event["data"]["step"] for event in reversed(events) if event["type"] == "metrics"]
    require(shown == sorted(set(shown)), f"steps are repeated or out of order: {shown}")
    ends = [event["message"] for event in events
            if event["message"].startswith(("The job has completed", "The job has failed", "The job was cancelled"))]
    require(len(ends) == 1 and ends[0].startswith(last), f"the job has ended with {ends}")
    require(events[0]["message"] == ends[0], f"after its end, the job had the event {events[0]}")
    if last.startswith("The job has completed"):
        require(bool(shown) and shown[-1] == steps, f"the last step is {shown[-1:]}, not {steps}")


class Tuner(Client):
    """Creates jobs, a few at a time, pauses and cancels some, and compares the results of the others."""

    MAX_OPEN = 2

    def __init__(self, stage: Stage, seed: int, specs: dict[str, dict], expected: dict[str, JobResult]):
        super().__init__(stage, seed)
        self.specs = specs
        self.expected = expected
        self.open: dict[str, str] = {}     # names of specs, by the id of the job
        self.states: dict[str, dict] = {}  # of jobs that have ended, by id
        self.plans: dict[str, str] = {}    # what is to be done to a job: "pause", "resume" or "cancel"
        self.key = 0
        self.doubtful = False  # the last job may have been created without a confirmation

    def has_ended(self) -> bool:
        return self.stage.ends and not self.open

    def list(self, server: Server, what: str, path: str) -> list[dict]:
        """Returns the entries of all pages of a list."""
        found: list[dict] = []
        more = True
        while more:
            after = f"&after={found[-1]['id']}" if found else ""
            page = self.call(server, what, "GET", f"{path}?limit=100{after}")
            found += page["data"]
            more = page["has_more"]
        return found

    def check_again(self, server: Server) -> None:
        found = {job["id"]: job for job in self.list(server, "list", "/v1/fine_tuning/jobs")}
        lost = (self.open.keys() | self.states.keys()) - found.keys()
        require(not lost, f"jobs that were confirmed are lost: {lost}")
        for job, state in self.states.items():
            require(found[job] == state, f"a job that had ended has changed: {state} {found[job]}")
        keys = collections.Counter(job["metadata"]["key"] for job in found.values() if job["metadata"])
        require(max(keys.values(), default=1) == 1, f"jobs were created twice: {keys}")
        if self.doubtful:
            for job in found.values():
                if job["metadata"] and job["metadata"]["key"] == str(self.key):
                    self.begin(job)
                    self.stage.count["jobs stored without a confirmation"] += 1

    def begin(self, job: dict) -> None:
        self.doubtful = False
        self.open[job["id"]] = job["metadata"]["spec"]
        self.plans[job["id"]] = self.random.choice(("", "", "", "pause", "cancel"))

    def create(self, server: Server) -> None:
        if not self.doubtful:
            self.key += 1
        name = self.random.choice(sorted(self.specs))
        self.doubtful = True
        self.begin(self.call(server, "create", "POST", "/v1/fine_tuning/jobs",
                             {"model": server.model, **self.specs[name],
                              "metadata": {"key": str(self.key), "spec": name}}))

    def act(self, server: Server) -> None:
        if len(self.open) < self.MAX_OPEN and not self.stage.ends:
            self.create(server)
        for job in list(self.open):
            record = self.call(server, "job", "GET", f"/v1/fine_tuning/jobs/{job}")
            if record["status"] in ENDED:
                self.check_end(server, record)
            elif record["status"] == "running" and self.plans[job] in ("pause", "cancel"):
                self.change(server, job)
            elif record["status"] == "paused":
                self.plans[job] = ""
                self.call(server, "resume", "POST", f"/v1/fine_tuning/jobs/{job}/resume")
        time.sleep(POLL)

    def change(self, server: Server, job: str) -> None:
        plan = self.plans[job]
        changed = self.call(server, plan, "POST", f"/v1/fine_tuning/jobs/{job}/{plan}", expected=(200, 400))
        if changed["status_code"] == 200:
            require(changed["status"] == {"pause": "paused", "cancel": "cancelled"}[plan], changed)
        else:
            self.plans[job] = ""  # it has ended meanwhile

    def wait_for_model(self, server: Server, name: str) -> None:
        """A server that has just started loads adapters one after another."""
        deadline = time.monotonic() + SECONDS
        while name not in [model["id"] for model in self.call(server, "list", "GET", "/v1/models")["data"]]:
            require(time.monotonic() < deadline, f"{name} is not served")
            time.sleep(0.1)

    def check_end(self, server: Server, record: dict) -> None:
        job, name = record["id"], self.open[record["id"]]
        events = self.list(server, "events", f"/v1/fine_tuning/jobs/{job}/events")
        checkpoints = self.call(server, "events", "GET", f"/v1/fine_tuning/jobs/{job}/checkpoints")["data"]
        steps = len(self.expected[name].losses)
        if record["status"] == "cancelled":
            require(self.plans[job] == "cancel", f"{job} was cancelled by nobody")
            check_events(events, steps, "The job was cancelled")
            require(not checkpoints, checkpoints)
        else:
            require(record["status"] == "succeeded", record["error"])
            check_events(events, steps, "The job has completed")
            require([one["step_number"] for one in checkpoints] == [steps], checkpoints)
            JobResult(self.stage.jobs, record).check_against(self.expected[name])
            self.wait_for_model(server, record["fine_tuned_model"])
        self.stage.count[f"{name} jobs {record['status']}"] += 1
        del self.open[job]
        del record["status_code"]
        self.states[job] = record


# -- Tinker's API ---------------------------------------------------------------------------------

def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: bytes | int) -> bytes:
    """Returns a field of a protobuf message: bytes, or a number that is not negative."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def tensor(values: list, kind: str) -> bytes:
    import struct
    number, letter = {"float32": (1, "f"), "int64": (2, "q")}[kind]
    return field(1, struct.pack(f"<{len(values)}{letter}", *values)) + field(3, number)


def forward_backward(model: str, seq: int, ids: list[int]) -> bytes:
    """Returns the body of a request that trains on all tokens of a sequence."""
    import struct
    count = len(ids) - 1
    chunk = field(1, field(1, struct.pack(f"<{count}i", *ids[:-1])))
    inputs = {"target_tokens": tensor(ids[1:], "int64"), "weights": tensor([1.0] * count, "float32")}
    datum = field(1, chunk) + b"".join(
        field(2, field(1, name.encode()) + field(2, value)) for name, value in inputs.items())
    return field(1, model.encode()) + field(2, seq) + field(3, datum) + field(4, b"cross_entropy")


class TinkerTrainer(Client):
    """Trains a model step by step with Tinker's API, and saves its state after each. After a kill it continues from
    the last state that was saved."""

    def __init__(self, stage: Stage, seed: int, steps: int, expected: dict[int, str]):
        super().__init__(stage, seed)
        self.steps = steps
        self.expected = expected  # digests of the state after each step, or nothing to collect them
        self.saved: dict[int, str] = {}
        self.step = 0
        self.path = ""
        self.model = ""
        self.seq = 0

    def has_ended(self) -> bool:
        return self.stage.ends if self.expected else self.step == self.steps

    def future(self, server: Server, kind: str, path: str, body: dict | bytes) -> dict:
        """Sends a request whose result is a future, and returns the result."""
        if isinstance(body, bytes):
            status, data = self.stage.once(server, kind, "POST", "/api/v1/" + path, body, "application/x-protobuf")
            require(status == 200, (path, status, data))
            sent = json.loads(data)
        else:
            sent = self.call(server, kind, "POST", "/api/v1/" + path, body)
        deadline = time.monotonic() + SECONDS
        while True:
            status, data = self.stage.once(server, kind, "POST", "/api/v1/retrieve_future",
                                           json.dumps({"request_id": sent["request_id"]}).encode())
            if status == 200:
                return {} if isinstance(body, bytes) else json.loads(data)
            require(status == 408 and time.monotonic() < deadline, (path, status, data))

    def check_again(self, server: Server) -> None:
        for path in sorted(self.stage.checkpoints.glob("*/weights/*")):
            info = json.loads((path / "checkpoint.json").read_text())
            require(info["path"].rsplit("/", 1)[1] == path.name, info)
        if self.path:
            info = {"status_code": 503}  # while the checkpoints are listed
            while info["status_code"] == 503:
                info = self.call(server, "tinker", "POST", "/api/v1/weights_info", {"tinker_path": self.path},
                                 expected=(200, 503))
            self.require_state()
        session = self.call(server, "tinker", "POST", "/api/v1/create_session",
                            {"tags": [], "user_metadata": {}, "sdk_version": "0.38.0", "type": "create_session"})
        begin = {"session_id": session["session_id"], "model_seq_id": 0}
        if self.path:
            made = self.future(server, "tinker", "load_weights", {**begin, "path": self.path, "optimizer": True})
        else:
            made = self.future(server, "tinker", "create_model",
                               {**begin, "base_model": server.model,
                                "lora_config": {"rank": 4, "seed": 7, "train_unembed": False, "train_mlp": True,
                                                "train_attn": True}})
        self.model = made["model_id"]
        self.seq = 0

    def folder(self) -> pathlib.Path:
        run, kind, name = self.path.removeprefix("tinker://").split("/")
        return self.stage.checkpoints / run.replace(":", ".") / kind / name

    def require_state(self) -> None:
        state = "".join(digest((self.folder() / name).read_bytes())
                        for name in ("adapter_model.safetensors", "optimizer.safetensors"))
        require(self.saved.setdefault(self.step, state) == state, f"the state of step {self.step} has changed")
        if self.expected:
            require(state == self.expected[self.step], f"the state of step {self.step} differs from the undisturbed one")

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def act(self, server: Server) -> None:
        if self.step == self.steps:  # once more, from the start
            self.step, self.path = 0, ""
            self.check_again(server)
        step = self.step + 1
        ids = [(step * 5 + i * 3) % 10 + 2 for i in range(12)]
        self.future(server, "tinker", "forward_backward", forward_backward(self.model, self.next_seq(), ids))
        self.future(server, "tinker", "optim_step",
                    {"model_id": self.model, "seq_id": self.next_seq(), "adam_params": {"learning_rate": 0.01}})
        path = self.future(server, "save", "save_weights",
                           {"model_id": self.model, "seq_id": self.next_seq(), "path": f"step-{step}",
                            "overwrite": True, "type": "save_weights"})["path"]
        self.step, self.path = step, path
        self.require_state()
        self.stage.count["Tinker steps"] += 1
