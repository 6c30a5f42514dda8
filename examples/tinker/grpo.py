#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GRPO with Tinker's API: the model learns from rewards for the right sums.

Usage: grpo.py [--steps N] [--prompts N] [--group N] [--learning-rate X] [--seed N]
Prints the mean reward of each step, and the accuracy on held-out sums before and after.
"""
import argparse

import numpy as np
import tinker
from tinker import types

import sums


def datum(prompt: types.ModelInput, response: types.SampledSequence, advantage: float,
          num_responses: int) -> types.Datum:
    """Returns a response. Its loss is the mean over its tokens, and that over the responses."""
    tokens = prompt.to_ints() + response.tokens
    start = prompt.length - 1
    each = advantage / (len(response.tokens) * num_responses)
    row = lambda values: np.array([0.0] * start + values, np.float32)
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": np.array(tokens[1:], np.int64),
                        "logprobs": row(response.logprobs),
                        "advantages": row([each] * len(response.tokens))})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--prompts", type=int, default=32, help="prompts of a step")
    parser.add_argument("--group", type=int, default=8, help="responses to each prompt")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    service = tinker.ServiceClient()
    client = service.create_lora_training_client("arithmetic", rank=8, seed=args.seed,
                                                 train_unembed=False).result()
    tokenizer = client.get_tokenizer()
    sampler = service.create_sampling_client(base_model="arithmetic").result()
    print(f"accuracy before {sums.accuracy(sampler, tokenizer):.3f}", flush=True)

    adam = types.AdamParams(learning_rate=args.learning_rate, beta1=0.9, beta2=0.999, eps=1e-8,
                            grad_clip_norm=1.0)
    batches = sums.batches(sums.read("train.jsonl"), args.prompts, args.seed)
    for step in range(1, args.steps + 1):
        rows = next(batches)
        prompts = [sums.prompt_of(tokenizer, row) for row in rows]
        sampled = [sampler.sample(prompt, args.group, types.SamplingParams(
            max_tokens=sums.MAX_TOKENS, seed=step * args.prompts + i))
            for i, prompt in enumerate(prompts)]
        data, rewards = [], []
        for row, prompt, future in zip(rows, prompts, sampled):
            responses = future.result().sequences
            right = [sums.is_right(tokenizer, one.tokens, row) for one in responses]
            group = np.array(right, float)
            rewards.extend(group)
            advantages = (group - group.mean()) / (group.std(ddof=1) + 1e-6)
            data += [datum(prompt, one, advantage, args.prompts * args.group)
                     for one, advantage in zip(responses, advantages)]
        client.forward_backward(data, "ppo")
        client.optim_step(adam)
        sampler = client.save_weights_and_get_sampling_client().result()
        print(f"step {step} reward {np.mean(rewards):.3f}", flush=True)

    print(f"accuracy after {sums.accuracy(sampler, tokenizer):.3f}")
    print("checkpoint", client.save_weights_for_sampler("sums").result().path)
    service.close("success").result()


if __name__ == "__main__":
    main()
