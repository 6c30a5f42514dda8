#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A reward in Python: checks sums, differences and products by computing them.

The prompt holds a term such as "17 + 25 ="; the last number of the response must be its value.
1.0 for the right number, 0.1 for a wrong one, 0.0 for none. See README.md for the protocol.
"""
import json
import re
import sys

TERM = re.compile(r"(\d+(?:\s*[-+*]\s*\d+)+)")
NUMBER = re.compile(r"-?\d+")


def value_of(term):
    """Computes a term of +, - and *, products first."""
    total = 0
    for sign, product in re.findall(r"([-+]?)((?:\d+\*?)+)", term.replace(" ", "")):
        value = 1
        for factor in product.split("*"):
            value *= int(factor)
        total += -value if sign == "-" else value
    return total


def judge(request):
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
            answer = {"id": request["id"], "reward": judge(request)}
        except ValueError as problem:
            answer = {"id": request["id"], "error": str(problem)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
