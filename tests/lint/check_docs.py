#!/usr/bin/env python3
"""Fails if a document names a file that does not exist.

In every *.md the check follows links between files, with their #headings, and paths in backticks that
start with one of the repository's folders. Braces and stars in a path stand for several files, and
each alternative must exist. Text in fenced code, or with a <placeholder>, is not a path.

Usage: check_docs.py ROOT
"""
import itertools
import pathlib
import re
import sys

NOT_OURS = {"build", "runs"}
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`]+)`")
PATH = re.compile(r"[A-Za-z0-9_.+*{},/-]+")
BRACES = re.compile(r"\{([^{}]*)\}")
FENCE = re.compile(r"^\s*(```|~~~)")
HEADING = re.compile(r"^#+\s+(.*?)\s*#*$")


def prose(text):
    """Yields (number, line) for each line outside fenced code."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number, line


def anchors(text):
    """Returns the anchors of a page's headings."""
    names = set()
    for _, line in prose(text):
        match = HEADING.match(line)
        if match:
            kept = re.sub(r"[^\w\- ]", "", match[1].lower())
            names.add(kept.replace(" ", "-"))
    return names


def link_problem(page, target):
    """Returns what is wrong with a link on `page`, or None."""
    if re.match(r"[a-z]+:", target):
        return None
    name, _, anchor = target.partition("#")
    path = page.parent / name if name else page
    if not path.exists():
        return f"link to {target}: there is no such file"
    if anchor and path.suffix == ".md" and anchor not in anchors(path.read_text()):
        return f"link to {target}: there is no such heading"
    return None


def alternatives(path):
    """Returns the paths for which a path with braces stands."""
    parts = BRACES.split(path)  # text, choice, text, ...
    choices = [part.split(",") if i % 2 else [part] for i, part in enumerate(parts)]
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def path_problem(root, folders, code):
    """Returns what is wrong with a path in backticks, or None."""
    path = re.sub(r":\d+$", "", code)
    if not PATH.fullmatch(path) or "/" not in path or path.split("/")[0] not in folders:
        return None
    for one in alternatives(path):
        found = any(root.glob(one)) if "*" in one else (root / one).exists()
        if not found:
            return f"`{one}`: there is no such file"
    return None


def problems_of(root):
    """Yields "path:line: problem" for every violation under `root`."""
    folders = {path.name for path in root.iterdir() if path.is_dir() and path.name not in NOT_OURS
               and (path.name == ".ci" or not path.name.startswith("."))}
    pages = list(root.glob("*.md"))
    for folder in folders:
        pages += (root / folder).rglob("*.md")
    for page in sorted(pages):
        for number, line in prose(page.read_text()):
            problems = [link_problem(page, target) for target in LINK.findall(CODE.sub("", line))]
            problems += [path_problem(root, folders, code) for code in CODE.findall(line)]
            for problem in filter(None, problems):
                yield f"{page.relative_to(root)}:{number}: {problem}"


def main(root):
    bad = list(problems_of(root))
    print("\n".join(bad) or "docs ok")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
