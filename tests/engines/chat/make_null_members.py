#!/usr/bin/env python3
"""Renders the requests in null_members.json with `apply_chat_template` of transformers 5.23.0 and rewrites the file.

The build and the tests do not need it. It documents where the expected texts come from. Each case is a template, a
request and a text. The requests have null members: those of messages are removed before rendering, all others are kept.
"""
import json
import pathlib

from transformers import PreTrainedTokenizerFast

FOLDER = pathlib.Path(__file__).parent
PATH = FOLDER / "null_members.json"
TOKENIZER = FOLDER.parent.parent / "golden/engine/chat/tokenizer/tokenizer.json"


def main():
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER))
    cases = json.loads(PATH.read_text())["cases"]
    for case in cases:
        request = dict(case[1])
        case[2] = tokenizer.apply_chat_template(request.pop("messages"), chat_template=case[0], tokenize=False,
                                                **request)
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    PATH.write_text('{\n "cases": [\n' + lines + "\n ]\n}\n")


if __name__ == "__main__":
    main()
