#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Captures the requests that the Python package tinker sends, and writes responses as it reads them.

Usage: capture.py FOLDER
Starts a server that accepts everything, lets the package talk to it, and writes one file for each
captured body to FOLDER. The README next to this file says which version made the stored files.
"""
import collections
import http.server
import json
import os
import pathlib
import sys
import threading

FOLDER = pathlib.Path(sys.argv[1])
SESSION = "11111111-2222-3333-4444-555555555555"
MODEL = SESSION + ":train:0"
CONFIG = {"proto_compress_fwdbwd": False, "fwdbwd_max_chunk_len": 2, "use_pyqwest_transport": False}
captured = collections.defaultdict(list)
futures = {}


def answer(path: str, body: bytes) -> tuple[bytes, str]:
    """Returns the body and the type of the response to a request."""
    name = path.removeprefix("/api/v1/").partition("?")[0]
    if name == "retrieve_future":
        return futures[json.loads(body)["request_id"]]
    number = sum(map(len, captured.values()))
    future = {"request_id": f"f{number}", "model_id": MODEL}
    as_json = lambda value: (json.dumps(value).encode(), "application/json")
    results = {
        "create_model": {"model_id": MODEL, "type": "create_model"},
        "optim_step": {"metrics": {"grad_norm": 0.5}},
        "save_weights": {"path": f"tinker://{MODEL}/weights/a", "type": "save_weights"},
        "load_weights": {"path": f"tinker://{MODEL}/weights/a", "model_id": MODEL},
        "save_weights_for_sampler": {"path": f"tinker://{MODEL}/sampler_weights/s",
                                     "sampling_session_id": SESSION + ":sample:9"},
        "save_weights_external": {"path": f"tinker://{MODEL}/external_weights/e"},
    }
    if name == "forward_backward":
        from tinker.proto import tinker_public_pb2 as wire
        futures[future["request_id"]] = (wire.ForwardBackwardOutput(
            loss_fn_output_type="ArrayRecord", metrics={"loss:sum": 1.0}).SerializeToString(),
            "application/x-protobuf")
        return as_json(future)
    if name == "asample":
        from tinker.proto import tinker_public_pb2 as wire
        count = json.loads(body)["num_samples"]
        sequence = wire.SampledSequence(stop_reason=0, tokens=b"\1\0\0\0", logprobs=b"\0\0\0\0")
        futures[future["request_id"]] = (wire.SampleResponse(
            sequences=[sequence] * count).SerializeToString(), "application/x-protobuf")
        return as_json(future | {"sample_sequence_ids": [f"s{i}" for i in range(count)]})
    if name in results:
        futures[future["request_id"]] = as_json(results[name])
        return as_json(future)
    return as_json({
        "client/config": CONFIG,
        "create_session": {"type": "create_session", "session_id": SESSION},
        "create_sampling_session": {"type": "create_sampling_session",
                                    "sampling_session_id": SESSION + ":sample:0"},
        "samplers/" + SESSION + ":sample:0": {"sampler_id": SESSION + ":sample:0", "base_model": "base"},
        "get_info": {"model_id": MODEL, "model_data": {"model_name": "base"}},
        "telemetry": {"status": "accepted"},
    }.get(name, {}))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        response, kind = answer(self.path, body)
        name = self.path.removeprefix("/api/v1/").partition("?")[0]
        if name not in ("telemetry", "session_heartbeat"):
            captured[name].append((dict(self.headers), body))
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(response)))
        self.end_headers()
        self.wfile.write(response)

    do_GET = do_POST = do_PUT = do_DELETE = handle_any

    def log_message(self, *_: object) -> None:
        pass


def talk() -> None:
    """Uses the package as programs do."""
    import numpy as np
    import tinker
    from tinker import types

    def datum(tokens: list[int], **inputs: list) -> types.Datum:
        return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs={
            "target_tokens": np.array(tokens[1:], np.int64),
            **{name: np.array(value, np.float32) for name, value in inputs.items()}})

    service = tinker.ServiceClient(user_metadata={"who": "me"}, display_name="demo")
    client = service.create_lora_training_client("base", rank=4, seed=7, train_mlp=False).result()
    data = [datum([1, 2, 3], weights=[0, 1]), datum([4, 5, 6, 7], weights=[-0.5, 1.5, 0]),
            datum([8, 9], weights=[1])]
    client.forward(data[:1], "cross_entropy").result()
    client.forward_backward(data, "cross_entropy").result()  # two requests
    rl = dict(logprobs=[0, -1.25], advantages=[0, 0.5])
    client.forward_backward([datum([1, 2, 3], **rl)], "ppo",
                            {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}).result()
    client.forward_backward([datum([1, 2, 3], sequence_ratio_mask=[0, 1], **rl)], "gspo").result()
    client.forward_backward([types.Datum(
        model_input=types.ModelInput(chunks=[
            types.EncodedTextChunk(tokens=[1]),
            types.ImageChunk(data=b"\x89PNG", format="png", expected_tokens=2)]),
        loss_fn_inputs={"target_tokens": np.array([2, 3, 4]), "weights": np.ones(3, np.float32)})],
        "cross_entropy").result()
    client.forward_backward([types.Datum(
        model_input=types.ModelInput.from_ints([1, 2]),
        loss_fn_inputs={"target_tokens": np.array([[2, 3], [4, 5]]),
                        "weights": np.ones((2, 2), np.float32)})], "cross_entropy").result()
    client.forward_backward(data[:1], "stable_reinforce", {"mode": "fast"}).result()
    client.optim_step(types.AdamParams(learning_rate=3e-4, weight_decay=0.01,
                                       grad_clip_norm=1.0)).result()
    client.optim_step(types.DimuonParams(learning_rate=1e-3)).result()
    client.save_state("a", ttl_seconds=3600, overwrite=True, user_metadata={"k": "v"}).result()
    client.save_weights_for_sampler("s").result()
    client.save_weights_external("e", ttl_seconds=7200).result()
    client.save_weights_and_get_sampling_client().result()
    service.create_training_client_from_state(f"tinker://{MODEL}/weights/a").result()
    sampler = service.create_sampling_client(model_path=f"tinker://{MODEL}/sampler_weights/s").result()
    prompt = types.ModelInput.from_ints([5, 6, 7])
    sampler.sample(prompt, 2, types.SamplingParams(
        max_tokens=4, seed=3, stop=["\n", "END"], temperature=0.5, top_k=40, top_p=0.9),
        include_prompt_logprobs=True, topk_prompt_logprobs=2, topk_sample_logprobs=3).result()
    sampler.sample(prompt, 1, types.SamplingParams(max_tokens=1, stop=[9, 10])).result()
    sampler.sample(prompt, 1, types.SamplingParams(), prompt_logprobs_last_n=1,
                   include_prompt_logprobs=True).result()
    service.close("success", "done").result()


def write_responses() -> None:
    """Writes the bytes of two responses, with known values, as the package's own classes make them."""
    import numpy as np
    from tinker.proto import tinker_public_pb2 as wire

    floats = lambda *values: np.array(values, np.float32).tobytes()
    ints = lambda *values: np.array(values, np.int32).tobytes()
    field = wire.BatchedTensor(data=floats(-0.5, -1.25, -2), dtype=wire.DTYPE_FLOAT32,
                               offsets=np.array([0, 8, 12], np.int64).tobytes())
    output = wire.ForwardBackwardOutput(
        loss_fn_output_type="ArrayRecord", metrics={"loss:sum": 1.75},
        loss_fn_outputs=[wire.ArrayRecord(type_tag="ArrayRecord", fields={"logprobs": field},
                                          num_datums=2)])
    (FOLDER / "forward_backward_output.pb").write_bytes(output.SerializeToString())
    sample = wire.SampleResponse(
        sequences=[
            wire.SampledSequence(stop_reason=wire.STOP_REASON_STOP, tokens=ints(3, 4),
                                 logprobs=floats(-0.5, -1),
                                 topk_sampled_logprobs=wire.TopkLogprobs(
                                     token_ids=ints(3, 9, 4, 8), logprobs=floats(-0.5, -2, -1, -3),
                                     k=2, length=2)),
            wire.SampledSequence(stop_reason=wire.STOP_REASON_LENGTH, tokens=ints(5),
                                 logprobs=floats(-0.25))],
        prompt_logprobs=floats(np.nan, -0.75),
        topk_prompt_logprobs=wire.TopkLogprobs(token_ids=ints(0, 7), logprobs=floats(-99999, -0.125),
                                               k=1, length=2),
        prompt_cache_hit_tokens=6)
    (FOLDER / "sample_response.pb").write_bytes(sample.SerializeToString())


def main() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["TINKER_BASE_URL"] = f"http://127.0.0.1:{server.server_port}"
    os.environ["TINKER_API_KEY"] = "tml-none"
    talk()
    CONFIG["proto_compress_fwdbwd"] = True
    compressed = len(captured["forward_backward"])
    talk_compressed()
    for name, requests in sorted(captured.items()):
        for i, (headers, body) in enumerate(requests):
            kind = "json"
            if headers.get("Content-Type") == "application/x-protobuf":
                kind = "pb.zst" if i >= compressed else "pb"
            if body and name not in ("retrieve_future", "client/config", "client/dynamic_config",
                                     "get_info"):
                file = name.replace("/", "_").replace(SESSION, "ID") + f"_{i}.{kind}"
                (FOLDER / file).write_bytes(body)
    write_responses()


def talk_compressed() -> None:
    import numpy as np
    import tinker
    from tinker import types
    client = tinker.ServiceClient().create_lora_training_client("base").result()
    client.forward_backward([types.Datum(
        model_input=types.ModelInput.from_ints([1, 2]),
        loss_fn_inputs={"target_tokens": np.array([2, 3]),
                        "weights": np.ones(2, np.float32)})], "cross_entropy").result()


if __name__ == "__main__":
    main()
