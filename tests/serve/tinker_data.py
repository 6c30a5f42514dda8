# SPDX-License-Identifier: Apache-2.0
"""The sums that clients of Tinker's API train on in tests."""
import numpy as np
from tinker import types

PROBLEMS = [(a, b) for a in range(11, 20) for b in range(12, 16)]


def ids_of(text: str) -> list[int]:
    """Returns the tokens of the shipped model, one for each byte."""
    return list(text.encode())


def datum(prompt: str, response: str | list[int], **inputs: list[float]) -> types.Datum:
    """Makes a datum of a prompt and a response; by default for cross_entropy on the response."""
    response = ids_of(response) if isinstance(response, str) else response
    tokens = ids_of(prompt) + response
    start = len(prompt) - 1
    inputs = inputs or {"weights": [1.0] * len(response)}
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": np.array(tokens[1:], np.int64),
                        **{name: np.array([0.0] * start + values, np.float32)
                           for name, values in inputs.items()}})


def batch() -> list[types.Datum]:
    return [datum(f"{a}+{b}=", f"{a + b}") for a, b in PROBLEMS]
