#!/usr/bin/env python3
"""Writes sentencepiece_cases.json: tokenizers in the style of SentencePiece, with expected results.

The build and the tests do not need it. It documents where the expected ids, spans and texts come from:
tokenizers 0.23.3 and transformers 5.23.0. All tokenizers share one vocabulary, which is trained on the
text below, with merges derived from it as transformers does for a SentencePiece model. What varies are
the normalizer, the pre-tokenizer, the decoder and the added tokens, as in Llama 2, TinyLlama, Mistral,
Code Llama and Gemma.

The expected results differ from the reference's in two points:
- A token that consists of an added space only covers no byte of the text. The reference gives it the
  span of the next character.
- Decoding without special tokens drops every special token. The reference keeps one whose content
  changes when it is normalized.
"""
import copy
import itertools
import json
import pathlib
import random

import tokenizers
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

PATH = pathlib.Path(__file__).with_name("sentencepiece_cases.json")
NUM_RANDOM_TEXTS = 38
SPACE = "\u2581"
TRAINING_TEXT = """
The quick brown fox jumps over the lazy dog. A model reads text as tokens, and each token has a number.
Pack my box with five dozen liquor jugs; how vexingly quick daft zebras jump! What is 12 + 30 * 7 = 222?
We hold these tokens to be evident: that text is made of bytes, that bytes make characters, and that the
characters of a language make words. The reader who reads the words need not read the bytes.
def add(left, right):\n    return left + right\n\nfor i in range(10):\n    print(add(i, 2 * i))\n
Der Zug f\u00e4hrt um 9 Uhr ab. Caf\u00e9 au lait, s'il vous pla\u00eet. Na\u00efve r\u00e9sum\u00e9s are read in the caf\u00e9.
The user says hello and the assistant answers: hello, what is the question? [INST] <<SYS>> [/INST] {x} @ # $ % ^ & ~ `
\u6c34 \u706b \u6728 water fire wood 0123456789 -- (the end) 'quoted' "twice" a/b a_b a|b a\\b
"""


def train():
    """Returns the vocabulary: special tokens, bytes, then characters and words in the order of merging."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=True)
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=620, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([TRAINING_TEXT] * 3, trainer)
    vocabulary = tokenizer.get_vocab()
    for run in (2, 4, 8):  # runs of spaces and line breaks, as in Llama's and Gemma's vocabularies
        vocabulary.setdefault(SPACE * run, len(vocabulary))
        vocabulary.setdefault("\n" * run, len(vocabulary))
    return dict(sorted(vocabulary.items(), key=lambda item: item[1]))


def merges_of(vocabulary):
    """Returns all pairs of tokens that make up a token, in the order of the tokens that they make."""
    merges = []
    for token in vocabulary:
        if token.startswith("<0x") or token in ("<unk>", "<s>", "</s>"):
            continue
        pairs = [(token[:i], token[i:]) for i in range(1, len(token))]
        known = [pair for pair in pairs if pair[0] in vocabulary and pair[1] in vocabulary]
        merges += sorted(known, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
    return merges


def replace(pattern, content):
    return dict(type="Replace", pattern={"String": pattern}, content=content)


def sequence(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def metaspace(**options):
    return dict(type="Metaspace", replacement=SPACE, **options)


PREPEND = dict(type="Prepend", prepend=SPACE)
TO_SPACE = replace(SPACE, " ")
FROM_SPACE = replace(" ", SPACE)
FALLBACK, FUSE = dict(type="ByteFallback"), dict(type="Fuse")
STRIP = dict(type="Strip", content=" ", start=1, stop=0)
LLAMA_NORMALIZER = sequence("normalizers", PREPEND, FROM_SPACE)
LLAMA_DECODER = sequence("decoders", TO_SPACE, FALLBACK, FUSE, STRIP)
GEMMA_DECODER = sequence("decoders", TO_SPACE, FALLBACK, FUSE)
GEMMA_SPLIT = dict(type="Split", pattern={"String": " "}, behavior="MergedWithPrevious", invert=False)
SPECIAL = dict(special=True)
ENDS = [("<unk>", SPECIAL), ("<s>", SPECIAL), ("</s>", SPECIAL)]
TOOLS = [("<l>", dict(lstrip=True)), ("<r>", dict(rstrip=True)), ("<b>", dict(lstrip=True, rstrip=True)),
         ("word", dict(single_word=True)), ("<n>", dict(normalized=True)), ("x y", {})]


def definition(ids, normalizer, pre_tokenizer, decoder, added=(), bos="<s>", **model):
    """Returns a tokenizer.json without vocabulary and merges."""
    ids = dict(ids)
    tokens = []
    for content, changes in (*ENDS, *added):
        ids.setdefault(content, len(ids))
        options = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=False)
        tokens.append(dict(id=ids[content], content=content, **{**options, **changes}))
    template = dict(
        type="TemplateProcessing",
        single=[{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        pair=[{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        special_tokens={bos: {"id": bos, "ids": [ids[bos]], "tokens": [bos]}})
    return dict(
        version="1.0", truncation=None, padding=None, added_tokens=tokens, normalizer=normalizer,
        pre_tokenizer=pre_tokenizer, post_processor=template, decoder=decoder,
        model={**dict(type="BPE", dropout=None, unk_token="<unk>", continuing_subword_prefix=None,
                      end_of_word_suffix=None, fuse_unk=True, byte_fallback=True, ignore_merges=False),
               **model})


def definitions(ids):
    def make(*args, **options):
        return definition(ids, *args, **options)
    unicode_steps = [dict(type="Strip", strip_left=True, strip_right=True), PREPEND, FROM_SPACE]
    return {
        "llama 2": make(LLAMA_NORMALIZER, None, LLAMA_DECODER),
        "mistral": make(LLAMA_NORMALIZER, None, LLAMA_DECODER, added=TOOLS),
        "tinyllama with normalized tokens": make(
            LLAMA_NORMALIZER, None, LLAMA_DECODER,
            added=[("<|user|>", dict(normalized=True)), ("<|x|>", dict(normalized=True, special=True)),
                   ("the", dict(normalized=True, single_word=True))]),
        "llama of transformers 5": make(None, metaspace(prepend_scheme="first", split=False), LLAMA_DECODER,
                                        added=TOOLS),
        "code llama": make(None, metaspace(prepend_scheme="always", split=False), LLAMA_DECODER,
                           added=[("▁<PRE>", SPECIAL), ("▁<SUF>", SPECIAL), ("▁<EOT>", SPECIAL)]),
        "gemma": make(FROM_SPACE, GEMMA_SPLIT, GEMMA_DECODER, bos="<bos>",
                      added=[("<bos>", SPECIAL), ("<start_of_turn>", SPECIAL), ("\n\n", {}), ("\n\n\n", {}),
                             ("\u2581\u2581\u2581", {}), ("<td>", {})]),
        "words, first": make(None, metaspace(prepend_scheme="first", split=True), LLAMA_DECODER, added=TOOLS),
        "words, legacy with a space": make(None, metaspace(add_prefix_space=True),
                                           metaspace(add_prefix_space=True), added=TOOLS),
        "words, legacy without a space": make(None, metaspace(add_prefix_space=False, str_rep=SPACE),
                                              metaspace(add_prefix_space=False), added=TOOLS),
        "unknown, fused": make(LLAMA_NORMALIZER, None, LLAMA_DECODER, byte_fallback=False),
        "unknown, not fused": make(None, metaspace(prepend_scheme="never", split=False), GEMMA_DECODER,
                                   byte_fallback=False, fuse_unk=False, added=TOOLS),
        "whole words": make(None, metaspace(prepend_scheme="always", split=True),
                            sequence("decoders", metaspace(prepend_scheme="always", split=True), FALLBACK),
                            ignore_merges=True, added=TOOLS),
        "compatibility forms": make(
            sequence("normalizers", dict(type="NFKC"), *unicode_steps), None, LLAMA_DECODER,
            added=[("<n>", dict(normalized=True))]),
        "decomposed": make(sequence("normalizers", sequence("normalizers", dict(type="NFD")), FROM_SPACE),
                           metaspace(prepend_scheme="first", split=True), LLAMA_DECODER),
        "composed": make(sequence("normalizers", dict(type="NFC"), FROM_SPACE), None, GEMMA_DECODER),
        "decomposed compatibility forms": make(dict(type="NFKD"), metaspace(prepend_scheme="always"),
                                               LLAMA_DECODER),
    }


UNICODE = ("compatibility forms", "decomposed", "composed", "decomposed compatibility forms")
STRING_MERGES = ("tinyllama with normalized tokens", "gemma", "whole words")
FIXED_TEXTS = ["", " ", "  ", "the tokens of a text", " the", "the  words ", "a\tb\n", "\u6c34\U0001f642",
               SPACE + "a", "Caf\u00e9 e\u0301"]
PIECES = ["the", " the", "token", "s", " ", "  ", "   ", "\t", "\n", "\n\n", "a", "hello", "12", "+", ".", "Caf\u00e9",
          "e\u0301", "\u0301", "\u6c34", "\ud55c\uad6d", "\U0001f642", "\U0001f469\u200d\U0001f467", "\u00a0", "\u3000",
          SPACE, SPACE * 3, "<s>", "</s>", "<unk>", "<0x41>", "\u2460", "\ufb01", "\uff76\uff9e", "x", "word"]


def load(defined, vocabulary, merges):
    """Returns the reference tokenizer. It refuses the legacy way to write that no space is added."""
    changed = copy.deepcopy(defined)
    for key in ("pre_tokenizer", "decoder"):
        if (changed[key] or {}).get("add_prefix_space") is False:
            changed[key]["prepend_scheme"] = "never"
    changed["model"].update(vocab=vocabulary, merges=[list(pair) for pair in merges])
    return Tokenizer.from_str(json.dumps(changed))


def texts_of(defined, rng):
    added = [token["content"] for token in defined["added_tokens"][3:]]
    pieces = PIECES + added * 2
    texts = list(FIXED_TEXTS)
    for content in added:
        texts += [content, f" {content} ", f"a{content}b"]
    for _ in range(NUM_RANDOM_TEXTS):
        texts.append("".join(rng.choice(pieces) for _ in range(rng.randrange(2, 9))))
    return list(dict.fromkeys(texts))


def spans_of(defined, encoding, text):
    """Returns the byte spans of the tokens, one number after the other."""
    at = list(itertools.accumulate((len(c.encode()) for c in text), initial=0))
    added = {token["id"]: token for token in defined["added_tokens"]}
    scheme = defined["pre_tokenizer"] or {}
    scheme = scheme.get("prepend_scheme", "always" if scheme.get("add_prefix_space") else "never")
    prepends = PREPEND in (defined["normalizer"] or {}).get("normalizers", ())
    spans = []
    before = None  # the added token before this token; None at other positions
    for i, (id_, token, (begin, end)) in enumerate(zip(encoding.ids, encoding.tokens, encoding.offsets)):
        if token == SPACE and id_ not in added and (i == 0 or before is not None):
            if prepends:
                is_inserted = i == 0 or not before["normalized"]
            else:
                is_inserted = (text[begin] not in (" ", SPACE) and
                               (scheme == "always" or (scheme == "first" and begin == 0)))
            if is_inserted:
                end = begin
        spans += [at[begin], at[end]]
        before = added.get(id_)
        if before is not None and before["content"] not in text[begin:end]:
            before = None  # an unknown character
    return spans


def encode_cases(name, defined, made, rng):
    cases = []
    for text in texts_of(defined, rng):
        try:
            encoding = made.encode(text, add_special_tokens=False)
        except BaseException as error:  # the library panics if two tokens strip one space
            if "bad split" not in str(error):
                raise
            continue
        assert made.encode(text).ids[1:] == encoding.ids
        case = [text, encoding.ids]
        if name not in UNICODE:
            case.append(spans_of(defined, encoding, text))
        cases.append(case)
    return cases


def decode_cases(defined, made, vocabulary, rng):
    """Returns [ids, text, text without special tokens, texts of a stream] of random ids."""
    special = {token["id"] for token in defined["added_tokens"] if token["special"]}
    added = [token["id"] for token in defined["added_tokens"]]
    byte = [vocabulary[f"<0x{b:02X}>"] for b in (0xE6, 0xB0, 0xB4, 0xF0, 0x9F, 0x99, 0x82, 0x20, 0x41, 0xFF)]
    words = [id_ for token, id_ in vocabulary.items() if SPACE in token] + [vocabulary["a"], vocabulary["1"]]
    runs = [[vocabulary[f"<0x{b:02X}>"] for b in c.encode()] for c in "\u6c34\U0001f642\u00e9 "]
    falls_back = FALLBACK in defined["decoder"].get("decoders", ())
    cases = []
    for _ in range(14):
        ids = []
        for _ in range(rng.randrange(1, 8)):
            ids += rng.choice([[rng.choice(byte)], [rng.choice(words)], [rng.choice(words)], rng.choice(runs),
                               [rng.choice(added)], [rng.choice(words)], [5000]])
        kept = [id_ for id_ in ids if id_ not in special]
        # What the tokens so far determine: all but the bytes at the end.
        chunks, done = [], ""
        for i, id_ in enumerate(ids):
            if falls_back and id_ in vocabulary.values() and 3 <= id_ < 259 or id_ == 5000:
                chunks.append("")
                continue
            text = made.decode(ids[:i + 1], skip_special_tokens=False)
            assert text.startswith(done)
            chunks.append(text[len(done):])
            done = text
        cases.append([ids, made.decode(ids, skip_special_tokens=False),
                      made.decode(kept, skip_special_tokens=False), chunks])
    return cases


LLAMA_TEMPLATE = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}")


def chat_cases(made):
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    turns = [("user", " What is 12 + 30? "), ("assistant", "222 \U0001f642"), ("user", "the caf\u00e9\nreads"),
             ("assistant", "\u6c34")]
    conversations = [turns[:1], turns[:2], turns[:3], turns, [("system", "A model reads text."), *turns]]
    cases = []
    for conversation in conversations:
        messages = [dict(role=role, content=content) for role, content in conversation]
        text = tokenizer.apply_chat_template(messages, chat_template=LLAMA_TEMPLATE, tokenize=False)
        cases.append(dict(messages=messages, text=text, ids=made.encode(text, add_special_tokens=False).ids))
    return cases


def main():
    rng = random.Random(20261124)
    vocabulary = train()
    merges = merges_of(vocabulary)
    out = dict(made_with=f"tokenizers {tokenizers.__version__}, transformers {transformers.__version__}",
               vocab=vocabulary, merges=[f"{left} {right}" for left, right in merges], tokenizers=[])
    for name, defined in definitions(vocabulary).items():
        made = load(defined, vocabulary, merges)
        out["tokenizers"].append(dict(
            name=name, string_merges=name in STRING_MERGES, definition=defined,
            encode=encode_cases(name, defined, made, rng),
            decode=decode_cases(defined, made, vocabulary, rng)))
        if name == "llama 2":
            out["chat"] = dict(template=LLAMA_TEMPLATE, cases=chat_cases(made))
    text = json.dumps(out, ensure_ascii=True, separators=(",", ":"))
    for key in ('{"name"', '"encode":', '"decode":', '"chat":', '"merges":["'):  # a few lines instead of one
        text = text.replace(key, "\n" + key)
    PATH.write_text(text + "\n")
    print(len(vocabulary), len(merges), len(text), sum(len(t["encode"]) for t in out["tokenizers"]),
          sum(len(t["decode"]) for t in out["tokenizers"]))


if __name__ == "__main__":
    main()
