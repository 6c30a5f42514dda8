#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures training steps through Tinker's API, relative to the engine alone.

Usage: tinker_step.py --tidemill PROGRAM --model DIR [options]
Needs the Python package tinker. `tidemill-bench` must be in the folder of PROGRAM. A step is
`forward_backward` and `optim_step` of 8 x 512 tokens with a LoRA adapter of rank 16 over all linear
layers but the head. Prints a line of JSON for each figure of each round, and then the medians:

  engine                tokens per second of lora_step_TYPE_b4, which has 4 x 512 tokens
  tinker_step           through the package, with 1 client and with 4 clients together
  tinker_step_raw       through HTTP requests whose bodies are made before the time starts
  peer_step             through the package, of the server --peer instead of ours

`ratio` is the rate of all clients together relative to the engine, which is measured before and after
the server in each round; `of_one_client` is relative to one client. `client_seconds` is the time of
the processor that this process spends per step, which the server lacks if they share cores.
"""
import argparse
import http.client
import itertools
import json
import pathlib
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import tinker
from tinker import types

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "serve"))
from server import Server  # noqa: E402

ADAM = types.AdamParams(learning_rate=1e-4)
Step = Callable[[], object]  # takes a step and waits for its end


def batch(sequences: int, tokens: int, vocabulary: int) -> list[types.Datum]:
    """Returns sequences whose ids follow the rule of llama_bench."""
    rows = [[(17 + 31 * i + 101 * s) % vocabulary for i in range(tokens + 1)]
            for s in range(sequences)]
    return [types.Datum(model_input=types.ModelInput.from_ints(row[:-1]),
                        loss_fn_inputs={"target_tokens": np.array(row[1:], np.int64),
                                        "weights": np.ones(tokens, np.float32)}) for row in rows]


def package_step(client: tinker.TrainingClient, data: list[types.Datum]) -> Step:
    def step() -> None:
        passed = client.forward_backward(data, "cross_entropy")
        stepped = client.optim_step(ADAM)
        stepped.result()
        passed.result()
    return step


class RawClient:
    """Takes steps of a model with the requests alone. The package must send none for the model."""

    def __init__(self, server: Server, model_id: str, data: list[types.Datum], steps: int):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
        self.model_id = model_id
        self.next = 1
        self.bodies = {}
        # Older versions of the package, which a peer may need, have no protobuf.
        from tinker.proto import request_conv
        from tinker.types.forward_backward_input import ForwardBackwardInput
        from tinker.types.forward_backward_request import ForwardBackwardRequest
        for seq_id in range(1, 2 * steps, 2):
            request = ForwardBackwardRequest(
                ForwardBackwardInput(data=data, loss_fn="cross_entropy"), model_id, seq_id)
            self.bodies[seq_id] = request_conv.forward_backward_request_to_proto(
                request).SerializeToString()

    def post(self, path: str, body: bytes, kind: str = "application/json") -> bytes:
        self.connection.request("POST", f"/api/v1/{path}", body,
                                {"Content-Type": kind, "X-API-Key": "tml-none"})
        response = self.connection.getresponse()
        data = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status} {data[:300]!r}")
        return data

    def wait(self, reply: bytes) -> bytes:
        """Returns the result of a request that has been accepted."""
        body = json.dumps({"request_id": json.loads(reply)["request_id"]}).encode()
        while True:
            try:
                result = self.post("retrieve_future", body)
            except RuntimeError as pending:
                if ": 408 " not in str(pending):  # the server asks to poll again
                    raise
                continue
            return result

    def step(self) -> None:
        self.connection.close()  # the server may have closed it during steps of other clients
        passed = self.post("forward_backward", self.bodies.pop(self.next), "application/x-protobuf")
        adam = json.dumps({"model_id": self.model_id, "seq_id": self.next + 1,
                           "type": "optim_step", "adam_params": ADAM.model_dump()}).encode()
        stepped = self.post("optim_step", adam)
        self.next += 2
        self.wait(passed)
        json.loads(self.wait(stepped))["metrics"]["grad_norm"]  # fails unless the step succeeded


def measure(clients: list[Step], steps: int, tokens: int) -> dict:
    """Returns the rate of all clients together. One step of each comes before the time starts."""
    for step in clients:
        step()
    results: list[list[float]] = [[] for _ in clients]

    def run(index: int) -> None:
        for _ in range(steps):
            begin = time.perf_counter()
            clients[index]()
            results[index].append(time.perf_counter() - begin)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(clients))]
    begin, processor = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begin
    taken = [one for times in results for one in times]
    if len(taken) != steps * len(clients):
        raise RuntimeError("a client has failed")
    return {"clients": len(clients), "tokens_per_second": round(len(taken) * tokens / seconds, 1),
            "seconds_per_step": round(statistics.median(taken), 4),
            "client_seconds": round((time.process_time() - processor) / len(taken), 4)}


def of_engine(args: argparse.Namespace, dtype: str) -> dict:
    figure = f"lora_step_{dtype}_b4"
    ran = subprocess.run(
        [args.tidemill.with_name("tidemill-bench"), "engine", "--json", "--model", args.model,
         "--threads", str(args.threads), "--figure", figure, "--repetitions", str(args.steps)],
        stdout=subprocess.PIPE, check=True)
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    row, = (row for row in rows if row.get("figure") == figure or row.get("name") == figure)
    return {"figure": "engine", "threads": args.threads, "tokens_per_second": row["value"]}


def of_clients(args: argparse.Namespace, url: str, model: str, figure: str, count: int,
               step_of: Callable[[tinker.TrainingClient], Step]) -> dict:
    service = tinker.ServiceClient(base_url=url, api_key="tml-none")
    opened = [service.create_lora_training_client(model, rank=16, seed=i, train_unembed=False)
              for i in range(count)]
    # Older versions return the client itself, and do not close sessions.
    opened = [one.result() if hasattr(one, "result") else one for one in opened]
    row = {"figure": figure, "threads": args.threads,
           **measure([step_of(one) for one in opened], args.steps, args.sequences * args.tokens)}
    if hasattr(service, "close"):
        service.close("success").result()
    return row


def of_server(args: argparse.Namespace, data: list[types.Datum]) -> list[dict]:
    with Server(str(args.tidemill), args.model, "serve.checkpoints_path=checkpoints",
                f"device.threads={args.threads}") as server:
        ways = {"tinker_step": lambda one: package_step(one, data),
                "tinker_step_raw": lambda one: RawClient(server, one.model_id, data,
                                                         args.steps + 1).step}
        return [of_clients(args, server.url, server.model, figure, count, step_of)
                for (figure, step_of), count in itertools.product(ways.items(), args.clients)]


def of_peer(args: argparse.Namespace, data: list[types.Datum]) -> list[dict]:
    return [of_clients(args, args.peer, str(args.model), "peer_step", count,
                       lambda one: package_step(one, data))
            for count in args.clients]


def measure_round(args: argparse.Namespace, dtype: str, data: list[types.Datum]) -> list[dict]:
    """Measures the engine before and after the server. `ratio` is relative to their mean."""
    before = of_engine(args, dtype)
    rows = of_peer(args, data) if args.peer else of_server(args, data)
    after = of_engine(args, dtype)
    engine = (before["tokens_per_second"] + after["tokens_per_second"]) / 2
    one = {row["figure"]: row["tokens_per_second"] for row in rows if row["clients"] == 1}
    for row in rows:
        row["ratio"] = round(row["tokens_per_second"] / engine, 3)
        if row["figure"] in one:
            row["of_one_client"] = round(row["tokens_per_second"] / one[row["figure"]], 3)
    return [before, after, *rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tidemill", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="timed steps of each client")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", metavar="URL", help="measures this server, which runs, instead of ours")
    args = parser.parse_args()
    args.tidemill, args.model = args.tidemill.resolve(), args.model.resolve()
    config = json.loads((args.model / "config.json").read_text())
    dtype = "bf16" if "bfloat16" in (config.get("dtype"), config.get("torch_dtype")) else "f32"

    data = batch(args.sequences, args.tokens, config["vocab_size"])
    ratios: dict[tuple[str, int], list[dict]] = {}
    for number in range(args.rounds):
        for row in measure_round(args, dtype, data):
            print(json.dumps({"round": number, **row}), flush=True)
            if "ratio" in row:
                ratios.setdefault((row["figure"], row["clients"]), []).append(row)
    for (figure, clients), rows in ratios.items():
        print(json.dumps({"figure": figure, "clients": clients, "model": args.model.parent.name,
                          "dtype": dtype, **{
                              name: statistics.median(row[name] for row in rows)
                              for name in ("ratio", "of_one_client") if name in rows[0]}}))


if __name__ == "__main__":
    main()
