# SPDX-License-Identifier: Apache-2.0
"""What the two programs of this folder share: the problems, and the accuracy on those held out."""
import json
import pathlib
import random
import re
from collections.abc import Iterator

import tinker
from tinker import types

DATA = pathlib.Path(__file__).parent.parent / "arithmetic" / "data"
MAX_TOKENS = 4  # a sum has at most 3 digits, and the end token follows


def read(name: str) -> list[dict]:
    """Returns the problems of a file: {"prompt": "17+25=", "answer": "42"}."""
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def batches(rows: list[dict], size: int, seed: int) -> Iterator[list[dict]]:
    """Yields batches without end. Each pass over the rows has another order."""
    order = random.Random(seed)
    left: list[dict] = []
    while True:
        while len(left) < size:
            left += order.sample(rows, len(rows))
        yield left[:size]
        left = left[size:]


def prompt_of(tokenizer, row: dict) -> types.ModelInput:
    return types.ModelInput.from_ints(tokenizer.encode(row["prompt"]))


def is_right(tokenizer, tokens: list[int], row: dict) -> bool:
    """Returns whether the last number of a response is the sum."""
    numbers = re.findall(r"\d+", tokenizer.decode(tokens, skip_special_tokens=True))
    return bool(numbers) and numbers[-1] == row["answer"]


def accuracy(sampler: tinker.SamplingClient, tokenizer) -> float:
    """Returns the share of the 200 held-out problems that the model solves greedily."""
    rows = read("eval.jsonl")
    greedy = types.SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    sampled = [sampler.sample(prompt_of(tokenizer, row), 1, greedy) for row in rows]
    right = sum(is_right(tokenizer, future.result().sequences[0].tokens, row)
                for future, row in zip(sampled, rows))
    return right / len(rows)
