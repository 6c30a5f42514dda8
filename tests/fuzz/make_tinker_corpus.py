#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the corpus of the target tinker_request from the bodies that the Python package tinker sends
(tests/golden/tinker). Each input is a byte for the path and a body.

Usage: make_tinker_corpus.py
"""
import pathlib

FUZZ = pathlib.Path(__file__).resolve().parent
GOLDEN = FUZZ.parent / "golden/tinker"
PATHS = {"forward_backward": "f", "create_session": "s", "create_model": "m", "load_weights": "l",
         "save_weights": "w", "save_weights_for_sampler": "p", "save_weights_external": "e", "optim_step": "o",
         "create_sampling_session": "c", "asample": "a"}
# Bodies that no golden file has.
OTHERS = {"retrieve_futures": b'r{"target":{"type":"sampling_session","sampling_session_id":"s"},"prev_cursor":1,'
                              b'"timeout":2.5,"retrieved_request_ids":["a"]}',
          "get_info": b'n{"model_id":"a:train:0","type":"get_info"}', "ttl": b't{"ttl_seconds":3600}'}


def main() -> None:
    folder = FUZZ / "corpus/tinker_request"
    folder.mkdir(exist_ok=True)
    for name, body in OTHERS.items():
        (folder / name).write_bytes(body)
    for golden in sorted(GOLDEN.iterdir()):
        kind, _, number = golden.name.split(".")[0].rpartition("_")
        if kind in PATHS and number.isdigit():
            path = "z" if golden.suffix == ".zst" else PATHS[kind]
            (folder / f"{kind}_{number}").write_bytes(path.encode() + golden.read_bytes())


if __name__ == "__main__":
    main()
