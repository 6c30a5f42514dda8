#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reward programs of the tests. The first argument selects the function to run."""
import json
import os
import sys


def requests():
    for line in sys.stdin:
        yield json.loads(line)


def say(text):
    print(text, flush=True)


def answer(request, reward):
    say(json.dumps({"id": request["id"], "reward": reward}))


def lengths():
    for request in requests():
        answer(request, len(request["response"]))


def reversed_order(count):
    held = []
    for request in requests():
        held.append(request)
        if len(held) == int(count):
            for each in reversed(held):
                answer(each, len(each["response"]))
            held = []


def noisy():
    say("loading the scorer ...")
    say("[1, 2]")
    say('{"reward": 1}')
    say('{"id": "one", "reward": 1}')
    say("x" * (2 << 20))
    for request in requests():
        say("thinking")
        answer(request, 1)


def strange_ids():
    for request in requests():
        say(json.dumps({"id": request["id"] + 1000, "reward": 5}))
        answer(request, 1)
        answer(request, 2)


def verbatim():
    """Replies with the response itself, in which ID is replaced by the id."""
    for request in requests():
        say(request["response"].replace("ID", str(request["id"])))


def poison():
    for request in requests():
        if request["response"] == "poison":
            print("cannot handle this", file=sys.stderr, flush=True)
            os._exit(3)
        answer(request, 1)


def batches():
    """Scores all lines that it has received together, with their number as the reward. Dies if one is poison."""
    waiting = b""
    while chunk := os.read(sys.stdin.fileno(), 1 << 16):
        *lines, waiting = (waiting + chunk).split(b"\n")
        batch = [json.loads(line) for line in lines]
        if any(request["response"] == "poison" for request in batch):
            os._exit(3)
        for request in batch:
            answer(request, len(batch))


def fifth_dies():
    for number, request in enumerate(requests(), start=1):
        if number == 5:
            os._exit(3)
        answer(request, 1)


def third_kills_first_start(flag):
    """The first process reads three requests and dies; later ones are `poison`."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        poison()
    for number, _ in enumerate(requests(), start=1):
        if number == 3:
            os._exit(3)


def careful(path, count, alone):
    """Ends after `count` requests when started first. Later it answers `alone` of them one by one, each
    before it reads the next, and then answers groups of `count` in reversed order."""
    count, alone = int(count), int(alone)
    first = not os.path.exists(path)
    open(path, "w", encoding="utf-8").close()
    for number, request in enumerate(requests(), start=1):
        if first and number == count:
            os._exit(3)
        if not first:
            answer(request, 1)
            if number == alone:
                break
    if not first:
        reversed_order(count)


def row():
    """Computes the reward from keys of the row, and writes the request to stderr."""
    for request in requests():
        print(json.dumps(request, sort_keys=True), file=sys.stderr, flush=True)
        answer(request, request["level"] + len(request["tags"]))


def pipes():
    """Replies with the number of pipes that this process has open."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink("/proc/self/fd/" + name))
        except OSError:
            pass  # the descriptor of the directory listing
    for request in requests():
        answer(request, sum(link.startswith("pipe:") for link in links))


def gate(path):
    """Replies only after the test has opened the named pipe `path` for writing."""
    with open(path, encoding="utf-8") as opened:
        opened.read()
    lengths()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
