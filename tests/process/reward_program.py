#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reward program of the process tests. Its only argument is a folder.

The reward is the number of capital letters in the response, so rewards differ but are reproducible. The
file `behavior` in the folder, which is read at each start, says how the program misbehaves:
  gate N       before the N-th reply: writes a byte to the FIFO `reached`, then waits for a byte from the
               FIFO `go`
  hang | die | garbage | nan | error     always, instead of replying
  hang-once | die-once | garbage-once | nan-once      for the first request only
  nan-for P    for every request whose prompt begins with P
  nan-zero     for every response without a capital letter
  vanish N F   removes the file F and dies instead of the N-th reply
"garbage" prints a line that is not a reply; without "-once", the program then exits.
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
    """Misbehaves as `kind` says instead of replying."""
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
    """Returns whether this is the first call with `name` by any process in this folder."""
    try:
        os.close(os.open(os.path.join(folder, name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def must_misbehave(folder, behavior, more, request):
    """Returns whether to misbehave for this request."""
    if behavior.endswith("-once"):
        return first_time(folder, "misbehaved")
    if behavior == "nan-for":
        return request["prompt"].startswith(more[0])
    if behavior == "nan-zero":
        return capitals(request) == 0
    return behavior not in ("good", "gate", "vanish")


def capitals(request):
    return sum(c.isupper() for c in request["response"])


def main():
    folder = sys.argv[1]
    behavior, *more = read_words(os.path.join(folder, "behavior"))
    num_requests = 0
    for line in sys.stdin:
        request = json.loads(line)
        num_requests += 1
        if behavior == "gate" and num_requests == int(more[0]):
            with open(os.path.join(folder, "reached"), "w", encoding="utf-8") as reached:
                reached.write("x")
            with open(os.path.join(folder, "go"), encoding="utf-8") as go:
                go.read(1)
        if behavior == "vanish" and num_requests == int(more[0]):
            os.remove(os.path.join(folder, more[1]))
            sys.exit("the program is gone")
        if must_misbehave(folder, behavior, more, request):
            misbehave(behavior.partition("-")[0], request)
            if behavior == "garbage":
                break
            continue
        print(json.dumps({"id": request["id"], "reward": capitals(request)}), flush=True)


if __name__ == "__main__":
    main()
