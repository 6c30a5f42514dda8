#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A reward program in Python that checks sums, differences and products.

The prompt contains a term such as "17 + 25 =", and the last number of the response must be its value.
The reward is 1.0 for the correct number, 0.1 for another number and 0.0 for no number. See README.md
for the protocol.
"""
import json
import re
import sys

TERM = re.compile(r"(\d+(?:\s*[-+*]\s*\d+)+)")
NUMBER = re.compile(r"-?\d+")


def value_of(term):
    """Returns the value of a term of +, - and *, with the usual precedence."""
    total = 0
    for sign, product in re.findall(r"([-+]?)((?:\d+\*?)+)", term.replace(" ", "")):
        value = 1
        for factor in product.split("*"):
            value *= int(factor)
        total += -value if sign == "-" else value
    return total


def score(request):
    """Returns the reward of the response in `request`; raises ValueError if there is no term."""
    term = TERM.search(request["prompt"])
    if term is None:
        raise ValueError("no arithmetic in the prompt")
    numbers = NUMBER.findall(request["response"])
    if not numbers:
        return 0.0
    return 1.0 if int(numbers[-1]) == value_of(term.group(1)) else 0.1


def main():
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = {"id": request["id"], "reward": score(request)}
        except ValueError as problem:
            reply = {"id": request["id"], "error": str(problem)}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
