#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on words that docs/style.md rules out, in comments, messages and documents.

The column "not" of the table "Terms" lists words that are not used for one of our terms. Words that are
needed in another sense are exempt: those in ORDINARY, and those that are one of our terms themselves.
FOREIGN lists terms that do not belong in some folders. PHRASES are constructions and spellings that the
section "English" of that page rules out.

Usage: check_words.py ROOT
"""
import pathlib
import re
import sys

from lint import sources, tracked

TABLE_ROW = re.compile(r"^\| (?!word \|)(?!---)(.*?) \| (.*?) \| ?(.*?) ?\|$")
FENCE = re.compile(r"^\s*(```|~~~)")
COMMENT = re.compile(r"//(.*)$")
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')

# Words of the column "not" that have an ordinary meaning too, which a program cannot tell from the other.
ORDINARY = {
    "answer": "the key of a row of data, and what a reference answer is",
    "output": "what a program or a layer returns",
    "completion": "what a shell does with a command line",
    "continue": "what a run does after a resume",
    "label": "of a test or an axis",
    "inference": "the mode of a segment, as opposed to training",
    "chunk": "of a prompt in chunked prefill, or of memory",
    "epoch": "a pass over the data",
    "save": "what a program does to a file, or an optimization to time",
    "sync": "what makes a file durable",
    "lock": "of a run's folder, or a mutex",
    "broadcast": "of a scalar in a vector register or a row of a table",
    "discard": "what happens to a value",
    "place": "as in \"in place\"",
    "bench": "the command",
    "tick": "an event of a trace",
    "num_generations": "what other programs call rollout.group_size",
    "weight_version": "a member of the usage in responses over HTTP",
    "executor": "what divides a device between rollout and training",
}

# Terms that do not belong in some folders.
FOREIGN = {
    "figure": (("actors/", "configs/", "engines/rl/", "storage/", "workflows/"), "a run records metrics"),
}

PHRASES = [
    (r"\b(somebody|nobody|everybody|whoever)\b", "name the part of the program that acts"),
    (r"\bfares?\b", "say what happens"),
    (r"\bstands? (over|beside|still)\b", "use a plain verb"),
    (r"\bturned round\b", "transposed"),
    (r"\bwaiting rooms?\b", "pending requests"),
    (r"\b(the|a) door (for|to|of|through)\b", "no metaphors"),
    (r"\bfor its sake\b", "say why"),
    (r"\b(behaviour|colour|honour|favour|neighbour|centre|licence|labelled|modelled|grey|catalogue)(s|ed|ing)?\b",
     "American spelling"),
    (r"\b(quant|normal|serial|initial|optim|recogn|organ|summar|minim|maxim|synchron|general|special|util|token)"
     r"is(e|ed|es|ing|ation|ations)\b", "American spelling"),
]


def banned_terms(style):
    """Returns {word: term that it is not used for} from the table of terms."""
    rows = [match.groups() for match in map(TABLE_ROW.match, style.splitlines()) if match]
    ours = {word.strip(" `*").lower() for term, _, _ in rows
            for word in re.split(r"[,;:]|\(|\)", term.replace("**", ""))}
    banned = {}
    for term, _, others in rows:
        for word in others.split(","):
            word = word.strip(" `")
            if word and word.lower() not in ours and "," not in word:
                banned[word] = term.replace("**", "")
    return banned


def prose_of(path):
    """Yields (number, text) of the prose in a source or document."""
    fenced = False
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if path.suffix == ".md":
            if FENCE.match(line):
                fenced = not fenced
            elif not fenced:
                yield number, re.sub(r"`[^`]*`", "", line)
        else:
            for match in STRING.finditer(line):
                yield number, match[1]
            comment = COMMENT.search(STRING.sub('""', line))
            if comment:
                yield number, re.sub(r"`[^`]*`", "", comment[1])


def findings(root):
    style = root / "docs" / "style.md"
    terms = banned_terms(style.read_text())
    everywhere = ("",)
    rules = [(re.compile(rf"\b{re.escape(word)}s?\b", re.IGNORECASE), everywhere,
              f"our word is {term} (docs/style.md)")
             for word, term in terms.items() if word not in ORDINARY]
    rules += [(re.compile(rf"\b{word}s?\b", re.IGNORECASE), folders, why)
              for word, (folders, why) in FOREIGN.items()]
    rules += [(re.compile(phrase, re.IGNORECASE), everywhere, why) for phrase, why in PHRASES]
    paths = [path for path in tracked(root) if path.suffix == ".md"] + sources(root)
    for path in paths:
        name = path.relative_to(root).as_posix()
        if path == style or name.startswith("tests/golden/"):
            continue
        for number, text in prose_of(path):
            for rule, folders, why in rules:
                found = rule.search(text) if name.startswith(folders) else None
                if found:
                    yield f"{name}:{number}: {found[0]}: {why}"


def main():
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    found = list(findings(pathlib.Path(sys.argv[1]).resolve()))
    print("\n".join(found) or "words ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
