# SPDX-License-Identifier: Apache-2.0
"""Starts servers and trainers for compare_serve.py, and puts load on them."""
from __future__ import annotations

import dataclasses
import http.client
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time

from figures import HERE, Work
from pinned_run import TICK, busy_seconds, parse_json

START_S = 300.0
STOP_S = 60.0
JOB_TOKENS = 512  # of each row of a job
Row = dict[str, object]


class Program:
    """A program on given cores. Its stderr and its working directory are in a temporary folder; stdout
    is a pipe. Use it in a `with` statement."""

    def __init__(self, command: list[str], cores: list[int], nice: int = 0,
                 environment: dict[str, str] | None = None) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.started_s = time.monotonic()
        self._errors = pathlib.Path(self.folder.name, "stderr").open("w+")
        pinned = ["taskset", "-c", ",".join(map(str, cores))]
        if nice:
            pinned = ["nice", "-n", str(nice), *pinned]
        self.process = subprocess.Popen([*pinned, *command], stdout=subprocess.PIPE,
                                        stderr=self._errors, text=True, cwd=self.folder.name,
                                        env={**os.environ, **(environment or {})})

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self._errors.close()
        self.folder.cleanup()

    def cpu_seconds(self) -> float:
        """Returns the processor time that the program has used."""
        words = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) * TICK

    def peak_rss_bytes(self) -> int:
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return 0

    def problem(self) -> str:
        """Returns the last line that the program wrote to stderr."""
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1] if lines else f"ended with {self.process.returncode}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server(Program):
    """A server of OpenAI's API. The constructor returns when it has generated a token."""

    def __init__(self, command: list[str], cores: list[int], port: int) -> None:
        super().__init__(command, cores)
        self.port = port
        while not self._completes():
            if self.process.poll() is not None or time.monotonic() > self.started_s + START_S:
                problem = self.problem()
                self.__exit__()
                raise RuntimeError(f"{command[0]} does not serve: {problem}")
            time.sleep(0.002)
        self.start_s = time.monotonic() - self.started_s
        # Drain stdout, so that the server never blocks on a full pipe.
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def _completes(self) -> bool:
        try:
            status, _ = self.request("POST", "/v1/completions",
                                     {"model": "m", "prompt": [17, 48, 79], "max_tokens": 1})
        except OSError:
            return False
        return status == 200

    def request(self, method: str, path: str, body: object = None,
                content: str = "application/json") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_S)
        data = body if isinstance(body, bytes) else json.dumps(body) if body is not None else None
        try:
            connection.request(method, path, data, {"Content-Type": content} if data else {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def call(self, method: str, path: str, body: object = None,
             content: str = "application/json") -> dict:
        status, data = self.request(method, path, body, content)
        if status != 200:
            raise RuntimeError(f"{path}: {status} {data[:300]!r}")
        return json.loads(data)


class Tidemill(Server):
    """`tidemill serve`, with room for `slots` responses of `slot_tokens`."""

    def __init__(self, work: Work, preset: str, cores: list[int], slots: int, slot_tokens: int,
                 *overrides: str) -> None:
        self.state = tempfile.TemporaryDirectory()
        port = free_port()
        model = work.model(preset) / "bf16"
        shape = json.loads((model / "config.json").read_text())
        head_dim = shape.get("head_dim", shape["hidden_size"] // shape["num_attention_heads"])
        # Keys and values in f16 or bf16, as llama-server keeps them.
        token_bytes = 4 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * head_dim
        config = pathlib.Path(self.state.name, "serve.yaml")
        config.write_text(f"workflow: serve\nmodel: {{path: {model}}}\n"
                          f"serve: {{port: {port}, name: m, max_running: {slots},"
                          f" kv_bytes: {slots * slot_tokens * token_bytes}}}\n")
        super().__init__([str(pathlib.Path(work.tidemill).resolve()), "serve", str(config),
                          f"device.threads={len(cores)}", *overrides], cores, port)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.state.cleanup()

    def create_job(self, batch: int, vocabulary: int, steps: int = 100_000) -> str:
        """Starts a supervised job on rows of JOB_TOKENS random tokens, with rank 16 on all linear
        layers. Returns its id."""
        draw = random.Random(7)
        rows = [json.dumps({"input_ids": [draw.randrange(10, vocabulary) for _ in range(JOB_TOKENS)]})
                for _ in range(64)]
        boundary = "tidemill-rows"
        parts = [f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune',
                 f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="rows.jsonl"'
                 "\r\nContent-Type: application/jsonl\r\n\r\n" + "\n".join(rows) + "\n",
                 f"--{boundary}--\r\n"]
        file = self.call("POST", "/v1/files", "\r\n".join(parts).encode(),
                         f"multipart/form-data; boundary={boundary}")
        parameters = {"batch_size": batch, "n_epochs": max(1, steps * batch // len(rows))}
        job = self.call("POST", "/v1/fine_tuning/jobs",
                        {"model": "m", "training_file": file["id"], "seed": 1,
                         "method": {"type": "supervised",
                                    "supervised": {"hyperparameters": parameters}},
                         "tidemill": {"train.adapter.rank": 16, "train.adapter.alpha": 32}})
        return job["id"]

    def cancel_job(self, job: str) -> None:
        self.call("POST", f"/v1/fine_tuning/jobs/{job}/cancel", b"{}")

    def metric(self, name: str) -> float:
        """Returns the sum of the series of a metric."""
        _, text = self.request("GET", "/metrics")
        found = [line.rsplit(" ", 1)[1] for line in text.decode().splitlines()
                 if line.split("{")[0].split(" ")[0] == name]
        if not found:
            raise RuntimeError(f"/metrics has no {name}")
        return sum(map(float, found))

    def trained_tokens(self) -> tuple[float, float]:
        """Waits until the number of tokens trained on changes. Returns when, and the number."""
        first = self.metric("tidemill:train_tokens_total")
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            count = self.metric("tidemill:train_tokens_total")
            if count != first:
                return time.monotonic(), count
            time.sleep(0.05)
        raise RuntimeError(f"the jobs have trained on nothing for {START_S:.0f} s")


class LlamaServer(Server):
    """llama-server with room for `slots` responses of `slot_tokens`."""

    VARIANTS = {"flash": ["-fa", "on"], "no flash": ["-fa", "off"]}

    def __init__(self, work: Work, preset: str, cores: list[int], slots: int, slot_tokens: int,
                 variant: str = "flash") -> None:
        port = free_port()
        threads = str(len(cores))
        super().__init__([str(work.folder / "llama.cpp/bin/llama-server"), "-m",
                          str(work.model(preset) / "model-bf16.gguf"), "--port", str(port),
                          "-c", str(slots * slot_tokens), "-np", str(slots), "-t", threads,
                          "-tb", threads, "--no-webui", *self.VARIANTS[variant]], cores, port)


class Peft(Program):
    """HF + PEFT, training with rank 16 on all linear layers until it is stopped."""

    def __init__(self, work: Work, preset: str, cores: list[int], batch: int, words: list[str],
                 nice: int = 0) -> None:
        environment = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1",
                       "OMP_NUM_THREADS": str(len(cores)),
                       "TORCHINDUCTOR_CACHE_DIR": str(work.folder / "inductor"),
                       "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        super().__init__([str(work.folder / "venv/bin/python"), "-W", "ignore",
                          str(HERE / "hf_bench.py"), str(work.model(preset)), "lora_loop",
                          "--dtype", "bf16", "--threads", str(len(cores)), "--tokens",
                          str(JOB_TOKENS), "--batch", str(batch), *words], cores, nice, environment)
        self._steps: list[tuple[float, int]] = []
        self._two_steps = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        # Compiling the first time takes minutes.
        if not self._two_steps.wait(2 * START_S):
            problem = self.problem()
            self.__exit__()
            raise RuntimeError(f"PEFT has not done two steps: {problem}")

    def _read(self) -> None:
        for line in self.process.stdout:
            step = parse_json(line)
            if step is not None and "ended_s" in step:
                self._steps.append((step["ended_s"], step["tokens"]))
                if len(self._steps) >= 2:
                    self._two_steps.set()

    def rate_between(self, start_s: float, end_s: float) -> float:
        """Returns tokens/s from the first step that ended in that time to the last one."""
        inside = [step for step in self._steps if start_s <= step[0] <= end_s]
        if len(inside) < 2:
            raise RuntimeError(f"PEFT has ended {len(inside)} steps in {end_s - start_s:.0f} s")
        return sum(tokens for _, tokens in inside[1:]) / (inside[-1][0] - inside[0][0])


@dataclasses.dataclass(frozen=True)
class Load:
    """What `tidemill-bench serve` puts on a server."""
    words: tuple[str, ...]

    @staticmethod
    def streams(count: int, requests: int, prompt: int, new: int, *words: str) -> Load:
        return Load(("--streams", str(count), "--requests", str(requests), "--prompt-tokens",
                     str(prompt), "--new-tokens", str(new), *words))

    @staticmethod
    def arrivals(rate: float, seconds: float, prompt: int, new: int, *words: str) -> Load:
        return Load(("--rate", f"{rate:.4g}", "--seconds", f"{seconds:.4g}", "--prompt-tokens",
                     str(prompt), "--new-tokens", str(new), *words))

    def put_on(self, server: Server, work: Work, vocabulary: int, seed: int,
               others: list[Program] | None = None) -> Row:
        """Puts the load on `server` and returns the row. Its member `foreign` is the share of the
        cores' time that programs other than the server, `others` and the client took."""
        cores = sorted(os.sched_getaffinity(0))
        watched = [server, *(others or [])]
        used, busy, start = sum(p.cpu_seconds() for p in watched), busy_seconds(cores), time.monotonic()
        before = os.times()
        done = subprocess.run([str(work.tidemill_bench), "serve", "--json", "--port",
                               str(server.port), "--name", "m", "--vocabulary", str(vocabulary),
                               "--seed", str(seed), *self.words], capture_output=True, text=True)
        after = os.times()
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        used = sum(p.cpu_seconds() for p in watched) - used
        used += after.children_user + after.children_system
        used -= before.children_user + before.children_system
        foreign = busy_seconds(cores) - busy - used
        wall = time.monotonic() - start
        return {**json.loads(done.stdout), "foreign": max(0.0, foreign) / (wall * len(cores))}
