#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes row_cases.json: rows to train on, with the tokens and targets of TRL's SFTTrainer.

The build and the tests do not need it. It documents where the expected ids and masks come from. TRL's own
functions (trl/trainer/sft_trainer.py: add_eos, tokenize_fn; data_collator with completion_only_loss) are
repeated below on top of transformers 5.23.0, because they need torch. Run it in the root of the tree.

One rule is not TRL's: if a token spans the border of prompt and completion, TRL warns and masks as many
tokens as the prompt alone has. Here both parts are encoded apart.
"""
import datetime
import json
import pathlib

import transformers
from transformers.utils import chat_template_utils

MODELS = pathlib.Path("tests/golden/engine/models")
NOW = datetime.datetime(2026, 1, 31, 12, 0, 0)
NO_TARGET = -100

TEXTS = ["The tide turns.", "one", " leading and trailing ", "two\n\nparagraphs\n", "caf\u00e9 \u6f6e \U0001f30a",
         "already ended{eos}", "{eos} in front", "{eos}{eos}"]
PAIRS = [("17+25=", "42"), ("Q: what?\nA:", " that"), ("Q: what?\nA: ", "that"), ("the ti", "de turns"),
         ("a line\n", "\nanother"), ("two  ", "  spaces"), ("caf", "\u00e9"), ("x", "ended{eos}"), ("{eos}", "y"),
         ("The tide ", " turns")]
CHATS = [([("user", "hi")], [("assistant", "hello")]),
         ([("system", "be brief"), ("user", "hi")], [("assistant", "yes, it is")]),
         ([("user", "a"), ("assistant", "one"), ("user", "b")], [("assistant", "two")]),
         ([("user", "a")], [("assistant", "one"), ("user", "b"), ("assistant", "two")]),
         ([("user", "caf\u00e9\n")], [("assistant", "\u6f6e\n\nand more")])]
LABELS = ["all", "none but the last", "every other", "the first too", None]


class FrozenDate(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def with_eos(text, tokenizer):
    return text if text.endswith(tokenizer.eos_token) else text + tokenizer.eos_token


def text_case(tokenizer, text):
    ids = tokenizer(text=with_eos(text, tokenizer))["input_ids"]
    return {"text": text}, ids, list(ids)


def masked(prompt_ids, ids):
    return [NO_TARGET] * len(prompt_ids) + ids[len(prompt_ids):]


def pair_case(tokenizer, prompt, completion):
    end = with_eos(completion, tokenizer)
    prompt_ids = tokenizer(text=prompt)["input_ids"]
    ids = tokenizer(text=prompt + end)["input_ids"]
    if ids[:len(prompt_ids)] != prompt_ids:
        ids = prompt_ids + tokenizer(text=end, add_special_tokens=False)["input_ids"]
    return {"prompt": prompt, "completion": completion}, ids, masked(prompt_ids, ids)


def chat_case(tokenizer, prompt, completion):
    prompt, completion = ([{"role": role, "content": text} for role, text in part] for part in (prompt, completion))
    render = dict(tokenize=True, return_dict=True)
    prompt_ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, **render)["input_ids"]
    ids = tokenizer.apply_chat_template(prompt + completion, **render)["input_ids"]
    assert ids[:len(prompt_ids)] == prompt_ids
    return {"prompt": prompt, "completion": completion}, ids, masked(prompt_ids, ids)


def label_case(tokenizer, rule):
    ids = tokenizer(text="The tide turns twice.")["input_ids"]
    kept = {"all": range(len(ids)), "none but the last": [len(ids) - 1], "every other": range(1, len(ids), 2),
            "the first too": [0, 1]}
    if rule is None:
        return {"input_ids": ids}, ids, list(ids)
    labels = [token if i in kept[rule] else NO_TARGET for i, token in enumerate(ids)]
    return {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": labels}, ids, labels


def main():
    chat_template_utils.datetime = FrozenDate
    models = []
    for name in ("llama-tiny", "qwen2-tiny", "qwen3-tiny"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(MODELS / name)
        ended = [[part.replace("{eos}", tokenizer.eos_token) for part in parts]
                 for parts in [[text] for text in TEXTS] + [list(pair) for pair in PAIRS]]
        cases = [text_case(tokenizer, *parts) if len(parts) == 1 else pair_case(tokenizer, *parts)
                 for parts in ended]
        cases += [chat_case(tokenizer, *chat) for chat in CHATS]
        cases += [label_case(tokenizer, rule) for rule in LABELS]
        # The loss compares the output at t - 1 with the label at t, so the label at 0 is never used.
        models.append({"model": name, "cases": [
            {"row": json.dumps(row, ensure_ascii=False), "ids": ids,
             "targets": [t for t in range(1, len(ids)) if labels[t] != NO_TARGET]}
            for row, ids, labels in cases]})
    path = pathlib.Path("tests/actors/row_cases.json")
    text = json.dumps({"now": NOW.isoformat(), "models": models}, ensure_ascii=True)
    path.write_text(text.replace(', {"row"', ',\n{"row"').replace('[{"row"', '[\n{"row"') + "\n")


if __name__ == "__main__":
    main()
