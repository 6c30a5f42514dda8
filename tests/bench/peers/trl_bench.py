#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures TRL's GRPO steps on the CPU.

Usage: trl_bench.py MODEL [--dtype f32|bf16|autocast] [--threads N] [--steps N] [--prompts N]
                    [--samples N] [--prompt-tokens N] [--response-tokens N] [--micro-batch N]

A step generates 8 samples of 32 tokens for each of 8 prompts of 16 tokens, or as many as the
options say, scores them with a rule of negligible cost, and updates a LoRA adapter (rank 16, alpha
32, all linear layers) once, without gradient checkpointing. A micro-batch holds all samples of a
step, or as many as --micro-batch says. `autocast` keeps weights in f32 and computes in bf16.

Prints {"what": "first_step"} at the end of the first step, so that the caller can measure the time
since the start of the process. At the end, prints a line with the seconds of each step except the
first, and with memory.
"""
import argparse
import json
import pathlib
import statistics
import tempfile
import time

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import (AutoModelForCausalLM, AutoTokenizer, PrinterCallback,
                          TrainerCallback)
from trl import GRPOConfig, GRPOTrainer

from hf_bench import peak_rss, resident_cuda


class StepClock(TrainerCallback):
    """Records how long each step takes, and prints a line at the end of the first one."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._started = 0.0

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        self._started = time.perf_counter()

    def on_step_end(self, args, state, control, model=None, **kwargs) -> None:
        if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
            raise SystemExit("trl_bench: gradient checkpointing is on")
        self.seconds.append(time.perf_counter() - self._started)
        if len(self.seconds) == 1:
            print(json.dumps({"what": "first_step", "seconds": self.seconds[0]}), flush=True)


def digit_prompts(tokenizer, count: int, tokens: int) -> list[str]:
    """Returns texts of exactly `tokens` tokens: digits and spaces, no two of which merge."""
    texts = ["".join(str((3 * i + n) % 10) + " " for i in range(tokens // 2))
             for n in range(count)]
    for text in texts:
        if len(tokenizer(text)["input_ids"]) != tokens:
            raise SystemExit(f"trl_bench: {text!r} is not {tokens} tokens")
    return texts


def reward(completion_ids: list[list[int]], **_: object) -> list[float]:
    """Returns the fraction of even ids in each response."""
    return [sum(i % 2 == 0 for i in ids) / max(len(ids), 1) for ids in completion_ids]


def make_trainer(args: argparse.Namespace, clock: StepClock, folder: str) -> GRPOTrainer:
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    path, dtype = ((args.model / "bf16", torch.bfloat16) if args.dtype == "bf16"
                   else (args.model, torch.float32))
    samples = args.prompts * args.samples
    micro_batch = args.micro_batch or samples
    if samples % micro_batch != 0:
        raise SystemExit(f"trl_bench: {samples} samples do not divide into micro-batches of "
                         f"{micro_batch}")
    config = GRPOConfig(
        output_dir=folder, max_steps=args.steps, use_cpu=True, bf16=args.dtype == "autocast",
        fp16=False, gradient_checkpointing=False, report_to="none", save_strategy="no",
        logging_strategy="no", disable_tqdm=True, seed=0, learning_rate=1e-4,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=samples // micro_batch, num_generations=args.samples,
        max_completion_length=args.response_tokens, temperature=1.0, beta=0.0,
        # Random weights would occasionally end a response early.
        generation_kwargs={"min_new_tokens": args.response_tokens})
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(path, dtype=dtype), reward_funcs=reward, args=config,
        train_dataset=Dataset.from_dict(
            {"prompt": digit_prompts(tokenizer, args.prompts, args.prompt_tokens)}),
        processing_class=tokenizer, callbacks=[clock],
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear",
                               task_type="CAUSAL_LM"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--dtype", choices=["f32", "bf16", "autocast"], default="f32")
    parser.add_argument("--threads", type=int, default=1)
    for name, value in (("steps", 6), ("prompts", 8), ("samples", 8), ("prompt-tokens", 16),
                        ("response-tokens", 32), ("micro-batch", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = StepClock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(args, clock, folder)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    later = clock.seconds[1:]
    print(json.dumps({
        "what": "grpo_step", "unit": "s", "dtype": args.dtype, "threads": args.threads,
        "micro_batch": args.micro_batch or args.prompts * args.samples,
        "runs": later, "best": min(later), "median": statistics.median(later),
        "peak_rss_bytes": peak_rss(), "rss_cuda_libraries": resident_cuda()}))


if __name__ == "__main__":
    main()
