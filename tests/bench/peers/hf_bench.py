#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures PyTorch + Transformers + PEFT on the CPU: one figure per process, as a line of JSON.

Usage: hf_bench.py MODEL WHAT [options]     MODEL is a directory of make_model.py

  prefill      tokens per second over a prompt of --tokens
  decode       tokens per second, --sequences in one batch, after prompts of --prompt
  lora_step    tokens per second of forward, backward and AdamW: rank 16, alpha 32, all linear
               layers, --batch sequences of --tokens
  lora_loop    lora_step for --seconds; prints when each step ended
  full_step    the same for all parameters
  logits       writes f32 (tokens, vocabulary) of --ids to --output; times nothing
  first_token  prints the first greedy token; the caller measures the time

There is no gradient checkpointing without --checkpoint. Peak memory is that of the whole process. The output also has
the memory after the imports and before the first step, the share of the CUDA libraries, and the
activations that autograd keeps.
"""
import argparse
import contextlib
import json
import pathlib
import resource
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel, StaticCache

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def peak_rss() -> int:
    """Returns the peak resident memory of this process. Units: bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident() -> int:
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def resident_cuda() -> int:
    """Returns the resident memory of the CUDA libraries, which this build loads without using them.

    Units: bytes.
    """
    total, counted = 0, False
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(maxsplit=1)[0]:
            counted = any(name in line for name in ("/nvidia/", "torch_cuda", "c10_cuda", "nvshmem"))
        elif counted and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def made_ids(vocabulary: int, count: int, sequences: int) -> torch.Tensor:
    """Returns ids (sequences, count) that follow the rule of llama_bench."""
    rows = [[(17 + 31 * i + 101 * s) % vocabulary for i in range(count)] for s in range(sequences)]
    return torch.tensor(rows)


def load(args: argparse.Namespace) -> PreTrainedModel:
    path = args.model if args.dtype == "f32" else args.model / "bf16"
    return AutoModelForCausalLM.from_pretrained(path, dtype=DTYPES[args.dtype],
                                                attn_implementation=args.attention)


def compiled(model: torch.nn.Module, args: argparse.Namespace) -> Callable:
    return torch.compile(model) if args.compile else model


# -- inference -------------------------------------------------------------------------------------

def prefill(args: argparse.Namespace) -> dict:
    model = load(args).eval()
    forward = compiled(model, args)
    ids = made_ids(model.config.vocab_size, args.tokens, 1)
    runs = []
    with torch.inference_mode():
        for _ in range(args.repeat + 1):
            start = time.perf_counter()
            forward(input_ids=ids, use_cache=True, logits_to_keep=1).logits.argmax()
            runs.append(args.tokens / (time.perf_counter() - start))
    return {"unit": "tok/s", "runs": runs[1:]}


def decode(args: argparse.Namespace) -> dict:
    model = load(args).eval()
    step = compiled(model, args)
    ids = made_ids(model.config.vocab_size, args.prompt, args.sequences)
    longest = args.prompt + args.tokens + 1
    runs = []
    with torch.inference_mode():
        for _ in range(args.repeat + 1):
            cache = (StaticCache(config=model.config, max_cache_len=longest) if args.static
                     else DynamicCache(config=model.config))
            out = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            next_ids = out.logits[:, -1].argmax(-1, keepdim=True)
            start = time.perf_counter()
            for i in range(args.tokens):
                at = torch.full((args.sequences, 1), args.prompt + i)
                out = step(input_ids=next_ids, past_key_values=cache, use_cache=True,
                           position_ids=at)
                next_ids = out.logits[:, -1].argmax(-1, keepdim=True)
            runs.append(args.tokens * args.sequences / (time.perf_counter() - start))
    return {"unit": "tok/s", "runs": runs[1:]}


def first_token(args: argparse.Namespace) -> dict:
    model = load(args).eval()
    with torch.inference_mode():
        ids = made_ids(model.config.vocab_size, args.prompt, 1)
        token = model(input_ids=ids, logits_to_keep=1).logits.argmax().item()
    return {"token": token}


def logits(args: argparse.Namespace) -> dict:
    model = load(args).eval()
    with torch.inference_mode():
        rows = model(input_ids=torch.tensor([args.ids])).logits[0].float()
    args.output.write_bytes(rows.numpy().tobytes())
    return {"rows": rows.shape[0], "columns": rows.shape[1]}


# -- training --------------------------------------------------------------------------------------

@contextlib.contextmanager
def counting_activations(model: torch.nn.Module) -> Iterator[dict[int, int]]:
    """Yields {address: bytes} of the storages that autograd keeps, without weights."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    weights |= {b.untyped_storage().data_ptr() for b in model.buffers()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept


def with_adapter(model: PreTrainedModel, args: argparse.Namespace) -> torch.nn.Module:
    from peft import LoraConfig, get_peft_model
    adapter = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear",
                         task_type="CAUSAL_LM")
    return get_peft_model(model, adapter, autocast_adapter_dtype=args.adapter_dtype == "f32")


def made_step(model: torch.nn.Module, args: argparse.Namespace) -> Callable[[], float]:
    """Returns a function that does an optimizer step of the parameters that require gradients and
    returns its loss."""
    model.train()
    if args.checkpoint:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    forward = compiled(model, args)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    ids = made_ids(model.config.vocab_size, args.tokens, args.batch)

    def step() -> float:
        loss = forward(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def train_steps(model: torch.nn.Module, args: argparse.Namespace) -> dict:
    """Times optimizer steps."""
    step = made_step(model, args)
    loaded = resident()
    runs, losses = [], []
    for _ in range(args.repeat + 1):
        start = time.perf_counter()
        losses.append(step())
        runs.append(args.batch * args.tokens / (time.perf_counter() - start))
    result = {"unit": "tok/s", "runs": runs[1:], "losses": losses, "rss_before_steps": loaded,
              "peak_rss_bytes": peak_rss(),
              "trained": sum(p.numel() for p in model.parameters() if p.requires_grad)}
    if not args.compile and not args.checkpoint:
        ids = made_ids(model.config.vocab_size, args.tokens, args.batch)
        with counting_activations(model) as kept:
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        result["activation_bytes"] = sum(kept.values())
    return result


def lora_step(args: argparse.Namespace) -> dict:
    return train_steps(with_adapter(load(args), args), args)


def lora_loop(args: argparse.Namespace) -> dict:
    """Trains for `--seconds`. Prints the tokens of each step and when it ended, by the clock of the
    whole machine (CLOCK_MONOTONIC)."""
    step = made_step(with_adapter(load(args), args), args)
    end = time.monotonic() + args.seconds
    while time.monotonic() < end:
        step()
        print(json.dumps({"tokens": args.batch * args.tokens, "ended_s": time.monotonic()}),
              flush=True)
    return {}


def full_step(args: argparse.Namespace) -> dict:
    return train_steps(load(args), args)


WHAT = {f.__name__: f for f in (prefill, decode, first_token, logits, lora_step, lora_loop, full_step)}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--adapter-dtype", choices=["f32", "base"], default="base",
                        help="type of the adapter of a bf16 model; the default of PEFT is f32")
    parser.add_argument("--attention", choices=["sdpa", "eager"], default="sdpa")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--checkpoint", action="store_true",
                        help="compute the layers again in the backward pass")
    parser.add_argument("--static", action="store_true", help="use a cache of fixed size")
    parser.add_argument("--ids", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--output", type=pathlib.Path)
    for name, value in (("threads", 1), ("tokens", 64), ("prompt", 64), ("sequences", 1),
                        ("batch", 1), ("repeat", 3), ("seconds", 3600)):
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def main() -> None:
    imported, cuda = resident(), resident_cuda()
    args = parse()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    result = {key: value for key, value in vars(args).items()
              if key not in ("model", "ids", "output")}
    result |= {"rss_after_imports": imported, "rss_cuda_libraries": cuda} | WHAT[args.what](args)
    result.setdefault("peak_rss_bytes", peak_rss())
    if "runs" in result:
        result |= {"best": max(result["runs"]), "median": statistics.median(result["runs"])}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
