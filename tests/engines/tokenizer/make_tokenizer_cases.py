#!/usr/bin/env python3
"""Encodes and decodes the cases of tokenizer_cases.json with tokenizers 0.23.3 and writes the file.

The build and the tests do not need it. It documents where the expected ids and texts come from.
The tokenizers are small: every byte is a token, and there are few merges. What varies is the added
tokens (beginnings of each other, next to each other, with stripped white space, single words,
matched after normalization) and the template of special tokens.
"""
import itertools
import json
import pathlib
import random

import tokenizers

PATH = pathlib.Path(__file__).with_name("tokenizer_cases.json")


def byte_alphabet():
    """Returns the characters that spell bytes 0 to 255."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelled = {byte: chr(byte) for byte in plain}
    for i, byte in enumerate(byte for byte in range(256) if byte not in spelled):
        spelled[byte] = chr(256 + i)
    return [spelled[byte] for byte in range(256)]


def tokenizer(added, merges=(), normalizer=None, template=None, **model):
    vocabulary = {text: i for i, text in enumerate(byte_alphabet())}
    for pair in merges:
        vocabulary.setdefault("".join(pair), len(vocabulary))
    for word in model.get("words", ()):  # that no merges lead to
        vocabulary.setdefault(word, len(vocabulary))
    ids = dict(vocabulary)  # an added token may also be in the vocabulary
    tokens = []
    for content, changes in added:
        options = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=False)
        ids.setdefault(content, len(ids))
        tokens.append(dict(id=ids[content], content=content, **{**options, **changes}))
    return dict(
        version="1.0", truncation=None, padding=None, added_tokens=tokens,
        normalizer=normalizer and {"type": normalizer},
        pre_tokenizer=dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True,
                           use_regex=True),
        post_processor=template and template(ids),
        decoder=dict(type="ByteLevel", add_prefix_space=True, trim_offsets=True, use_regex=True),
        model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None,
                   end_of_word_suffix=None, fuse_unk=False, byte_fallback=False,
                   ignore_merges=model.get("ignore_merges", False), vocab=vocabulary,
                   merges=[list(pair) for pair in merges]))


def ends(ids):
    """Returns a template that puts <s> <t> before a text and </s> after it."""
    special = {name: {"id": name, "ids": [ids[name]], "tokens": [name]}
               for name in ("<s>", "<t>", "</s>")}
    piece = [{"SpecialToken": {"id": name, "type_id": 0}} for name in ("<s>", "<t>", "</s>")]
    text = [{"Sequence": {"id": name, "type_id": 0}} for name in ("A", "B")]
    return dict(type="TemplateProcessing", single=[*piece[:2], text[0], piece[2]],
                pair=[*piece[:2], text[0], text[1], piece[2]], special_tokens=special)


SPECIAL = dict(special=True)
TOKENIZERS = {
    "beginnings of each other": tokenizer(
        [("<a", {}), ("<ab>", {}), ("<ab", SPECIAL), ("<", {}), ("b>", {}), (">>", {}), ("<ab>c", {}),
         ("é", {}), ("é水", SPECIAL)]),
    "stripped white space": tokenizer(
        [("<l>", dict(lstrip=True)), ("<r>", dict(rstrip=True)),
         ("<b>", dict(lstrip=True, rstrip=True)), ("<n>", SPECIAL),
         ("\n\n", {}), ("<w> ", {})]),
    "single words": tokenizer(
        [("ab", dict(single_word=True)), ("abc", dict(single_word=True)), ("-", {}),
         ("b-", dict(single_word=True)), ("é", dict(single_word=True)), ("c", SPECIAL)]),
    "normalized": tokenizer(
        [("é<", dict(normalized=True)), ("<é", {}), ("x", dict(normalized=True, lstrip=True)),
         ("Å", SPECIAL), ("e\u0301>", dict(normalized=True))], normalizer="NFC"),
    "a template": tokenizer([("<s>", SPECIAL), ("<t>", SPECIAL), ("</s>", SPECIAL)], template=ends),
    "merges": tokenizer(
        [("<x>", SPECIAL)],
        [("a", "b"), ("b", "c"), ("ab", "c"), ("c", "ab"), ("a", "a"), ("aa", "aa"), ("b", "b"),
         ("Ã", "©"), ("Ġ", "a"), ("Ġa", "b")]),
    "whole pieces": tokenizer(
        [("<x>", SPECIAL)],
        [("b", "c"), ("a", "bc"), ("a", "b"), ("ab", "c"), ("c", "a"), ("abc", "a"), ("Ġ", "a")],
        ignore_merges=True, words=["cab", "bcbcbc"]),
}
PIECES = {
    "beginnings of each other": ["<", "<a", "<ab", "<ab>", "b>", ">", "c", "a", "é", "水", " "],
    "stripped white space": ["<l>", "<r>", "<b>", "<n>", " ", "\n", "\u3000", "x", "\u00a0", "<w>"],
    "single words": ["ab", "abc", "c", "-", "b-", "é", " ", "_", "\u0301", "1", "."],
    "normalized": ["é", "e\u0301", "<", "x", " ", "Å", "A\u030a", "\u212b", "\u0301", ">"],
    "a template": ["<s>", "</s>", "<t>", "a", " ", "<s", "é"],
    "merges": ["a", "b", "c", "aa", "é", " ", "ab", "<x>", "abc"],
    "whole pieces": ["a", "b", "c", "abc", "abca", " a", "bc", "<x>", "bcbcbc", "cab"],
}
# Ids whose bytes are parts of characters, next to special tokens and unknown ids.
PARTS = [0xC3, 0xA9, 0xE6, 0xB0, 0xB4, 0xF0, 0x41, 0x80, 0xFF]


def texts_of(name, rng):
    pieces = PIECES[name]
    texts = ["".join(pair) for n in (1, 2) for pair in itertools.product(pieces, repeat=n)]
    texts += ["".join(rng.choice(pieces) for _ in range(rng.randrange(3, 9))) for _ in range(150)]
    return list(dict.fromkeys(texts))


def main():
    rng = random.Random(20261123)
    out = {"made_with": "tokenizers " + tokenizers.__version__, "tokenizers": []}
    for name, definition in TOKENIZERS.items():
        made = tokenizers.Tokenizer.from_str(json.dumps(definition))
        encode = []
        for text in texts_of(name, rng):
            try:
                ids = made.encode(text, add_special_tokens=False).ids
            except BaseException as error:  # the library panics if two tokens strip one space
                if "bad split" not in str(error):
                    raise
                continue
            special = made.encode(text, add_special_tokens=True).ids
            encode.append([text, ids] if ids == special else [text, ids, special])
        added = [token["id"] for token in definition["added_tokens"]]
        decode = []
        for _ in range(60):
            ids = [rng.choice(PARTS + added) for _ in range(rng.randrange(1, 8))]
            decode.append([ids, made.decode(ids, skip_special_tokens=False),
                           made.decode(ids, skip_special_tokens=True)])
        out["tokenizers"].append(dict(name=name, definition=definition, encode=encode, decode=decode))
    text = json.dumps(out, ensure_ascii=True, separators=(",", ":"))
    for key in ('{"name"', '"encode":', '"decode":'):  # a few lines instead of one
        text = text.replace(key, "\n" + key)
    PATH.write_text(text + "\n")


if __name__ == "__main__":
    main()
