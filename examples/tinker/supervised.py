#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Supervised training with Tinker's API: the model learns from correct sums.

Usage: supervised.py [--steps N] [--batch N] [--learning-rate X] [--seed N]
Prints the loss of each step, and the accuracy on held-out sums before and after.
"""
import argparse

import numpy as np
import tinker
from tinker import types

import sums


def datum(tokenizer, row: dict, weight: float) -> types.Datum:
    """Returns a prompt with its answer and the end token. The targets are all but the prompt."""
    prompt = tokenizer.encode(row["prompt"])
    tokens = prompt + tokenizer.encode(row["answer"]) + [tokenizer.eos_token_id]
    weights = [0.0] * (len(prompt) - 1) + [weight] * (len(tokens) - len(prompt))
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": np.array(tokens[1:], np.int64),
                        "weights": np.array(weights, np.float32)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=64, help="sequences of a step")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    service = tinker.ServiceClient()
    client = service.create_lora_training_client("arithmetic", rank=8, seed=args.seed,
                                                 train_unembed=False).result()
    tokenizer = client.get_tokenizer()
    base = service.create_sampling_client(base_model="arithmetic").result()
    print(f"accuracy before {sums.accuracy(base, tokenizer):.3f}", flush=True)

    adam = types.AdamParams(learning_rate=args.learning_rate, beta1=0.9, beta2=0.999, eps=1e-8,
                            grad_clip_norm=1.0)
    batches = sums.batches(sums.read("train.jsonl"), args.batch, args.seed)
    for step in range(1, args.steps + 1):
        rows = next(batches)
        # The loss is a sum, so weights of 1 / (number of targets) make it the mean of the targets.
        targets = sum(len(tokenizer.encode(row["answer"])) + 1 for row in rows)
        passed = client.forward_backward([datum(tokenizer, row, 1 / targets) for row in rows],
                                         "cross_entropy")
        client.optim_step(adam).result()
        print(f"step {step} loss {passed.result().metrics['loss:sum']:.4f}", flush=True)

    trained = client.save_weights_and_get_sampling_client().result()
    print(f"accuracy after {sums.accuracy(trained, tokenizer):.3f}")
    print("checkpoint", client.save_weights_for_sampler("sums").result().path)
    service.close("success").result()


if __name__ == "__main__":
    main()
