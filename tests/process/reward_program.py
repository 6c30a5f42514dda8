#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reward program of the process tests; its one argument is a folder.

Scores by the letters of the response, so that rewards differ and are the same each time. What it
does wrong, the file `behaviour` in the folder says, read at each start; one of:
  gate N       before its N-th answer: writes a byte to the FIFO `reached`, then waits
               for one from the FIFO `go`
  hang | die | garbage | nan | error     always, instead of an answer
  hang-once | die-once | garbage-once | nan-once      for the first request it ever sees
  nan-for P    for every request whose prompt begins with P
  nan-zero     for every response without a capital letter
"garbage" is a line that is no answer; always: the program ends after it.
"""
import json
import os
import sys
import time


def read_words(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().split() or ["good"]
    except FileNotFoundError:
        return ["good"]


def misbehave(kind, request):
    """Does what `kind` says instead of answering."""
    if kind == "hang":
        time.sleep(3600)
    elif kind == "die":
        sys.exit("out of cheese")  # the text goes to stderr, the exit status is 1
    elif kind == "garbage":
        print("I like this one", flush=True)
    elif kind == "nan":
        print('{"id": %d, "reward": NaN}' % request["id"], flush=True)
    elif kind == "error":
        print(json.dumps({"id": request["id"], "error": "no opinion"}), flush=True)


def first_time(folder, name):
    """Tells whether `name` has not been asked for before, by any process in this folder."""
    try:
        os.close(os.open(os.path.join(folder, name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def is_wrong(folder, behaviour, more, request):
    """Tells whether to misbehave now."""
    if behaviour.endswith("-once"):
        return first_time(folder, "misbehaved")
    if behaviour == "nan-for":
        return request["prompt"].startswith(more[0])
    if behaviour == "nan-zero":
        return capitals(request) == 0
    return behaviour not in ("good", "gate")


def capitals(request):
    return sum(c.isupper() for c in request["response"])


def main():
    folder = sys.argv[1]
    behaviour, *more = read_words(os.path.join(folder, "behaviour"))
    asked = 0
    for line in sys.stdin:
        request = json.loads(line)
        asked += 1
        if behaviour == "gate" and asked == int(more[0]):
            with open(os.path.join(folder, "reached"), "w", encoding="utf-8") as reached:
                reached.write("x")
            with open(os.path.join(folder, "go"), encoding="utf-8") as go:
                go.read(1)
        if is_wrong(folder, behaviour, more, request):
            misbehave(behaviour.partition("-")[0], request)
            if behaviour == "garbage":
                break
            continue
        print(json.dumps({"id": request["id"], "reward": capitals(request)}), flush=True)


if __name__ == "__main__":
    main()
