#!/usr/bin/env python3
"""Writes jinja_combinations.json: random expressions, rendered as by make_jinja_cases.py.

The build and the tests do not need it. It documents where the expected texts come from. The
expressions combine filters, tests, operators, methods and slices with values at their edges: empty,
equal, negative, undefined and of another type. A text of null means that the template fails.
"""
import copy
import json
import pathlib
import random

import make_jinja_cases

PATH = pathlib.Path(__file__).with_name("jinja_combinations.json")
NUM_RENDERED = 480
NUM_FAILING = 120

STRINGS = ["'abc'", "'a b c'", "'  x  '", "''", "'Hello World'", "'aXbXc'", "'line\\nline2\\n'", "'ß'",
           "'a,b,,c'", "'<b>&'", "'0'", "'12'", "'-7'", "'3.50'", "'1e3'", "'a b  c'", "s", "'ab' * 3"]
LISTS = ["[1, 2, 3]", "[3, 1, 2]", "[]", "['b', 'A', 'a', 'B']", "[1, 1.0, true, 2]", "[[1, 2], [3]]",
         "lst", "nums", "[none, 1]", "['a', 'a', 'b']", "[0.5, 1, 'x']", "range(5) | list",
         "[('b', 1), ('a', 2), ('B', 1)]"]
VALUES = STRINGS + LISTS + [
    "0", "1", "-1", "2", "5", "10", "-3", "255", "x", "0.5", "1.5", "2.5", "-0.5", "0.125", "2.675", "1e3",
    "{}", "{'b': 1, 'A': 2, 'a': 3}", "obj", "{'x': [1, 2]}", "{1: 'a', '1': 'b'}",
    "none", "true", "false", "undefinedvar"]
COUNT = ["0", "1", "2", "3", "4", "-1"]
FLAG = ["true", "false"]
# The arguments of filters, as alternatives of lists of choices, and what follows.
FILTERS = {
    "truncate": [[COUNT + ["5", "6", "7"], FLAG, ["''", "'.'", "'..'"], ["0", "1", "2", "3"]]],
    "batch": [[["1", "2", "3", "5"]], [["2", "3"], ["'-'", "0"]]],
    "slice": [[["1", "2", "3", "5"]], [["2", "3", "4"], ["'-'", "0"]]],
    "round": [[], [["0", "1", "2", "-1"]], [["0", "1"], ["'ceil'", "'floor'", "'common'"]]],
    "int": [[], [COUNT], [["0"], ["2", "8", "10", "16"]]],
    "float": [[], [["0.5", "-1.5"]]],
    "center": [[["0", "3", "4", "5", "6", "7"]]],
    "indent": [[["0", "2"], FLAG, FLAG]],
    "wordwrap": [[["1", "2", "3", "4", "5"]], [["2", "3", "5"], FLAG, ["'|'"]]],
    "default": [[["'d'"]], [["'d'"], ["true"]]],
    "replace": [[["'a'", "''", "'b'"], ["'Z'", "''"]], [["'a'"], ["'Z'"], COUNT]],
    "join": [[], [["'-'"]]],
    "sort": [[], [["true"]], [["false"], ["true"]], [["true"], ["true"]]],
    "dictsort": [[], [["true"]], [["false"], ["'value'"]], [["false"], ["'key'"], ["true"]]],
    "unique": [[], [["true"]]],
    "min": [[], [["true"]]],
    "max": [[], [["true"]]],
    "sum": [[], [["none"], ["10"]]],
    "trim": [[], [["'a'"]]],
    "tojson": [[], [["false"], ["1"]]],
    "filesizeformat": [[], [["true"]]],
    "groupby": [[["0", "1"]]],
    "map": [[["'upper'", "'string'", "'length'"]]],
    "select": [[], [["'odd'", "'string'"]], [["'gt'"], COUNT]],
    "reject": [[], [["'even'", "'none'"]], [["'le'"], COUNT]],
    "format": [[["1"]]],
    "attr": [[["'k'"]]],
    **{name: [[]] for name in (
        "first", "last", "length", "reverse", "list", "string", "title", "capitalize", "upper", "lower",
        "striptags", "e", "abs", "wordcount", "items", "urlencode", "pprint", "xmlattr")},
}
TESTS = ["defined", "none", "string", "number", "integer", "float", "mapping", "sequence", "iterable", "odd",
         "even", "true", "false", "boolean", "lower", "upper", "callable", "divisibleby(3)", "in [1, 'a']",
         "sameas none", "eq 1", "ge 2", "lt 2", "le 2", "ne 1", "escaped"]
METHODS = ["split()", "split('b')", "split(' ', 1)", "rsplit(none, 1)", "strip()", "strip('a')", "lstrip('ab')",
           "rstrip('c')", "startswith('a')", "endswith(('c', 'x'))", "find('b')", "rfind('c')", "count('a')",
           "replace('a', 'b', 1)", "swapcase()", "zfill(5)", "ljust(5, '.')", "partition('b')",
           "rpartition(' ')", "splitlines()", "splitlines(true)", "isdigit()", "isalpha()", "isspace()",
           "islower()", "isupper()", "removeprefix('a')", "removesuffix('c')", "join(['x', 'y'])",
           "format(1)", "index('z')"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "and", "or", "in",
             "not in"]


def filtered(rng, value):
    name = rng.choice(list(FILTERS))
    arguments = ", ".join(rng.choice(choices) for choices in rng.choice(FILTERS[name]))
    text = f"{value} | {name}" + (f"({arguments})" if arguments else "")
    is_generator = name in ("batch", "slice", "unique", "map", "select", "reject", "items", "reverse")
    return text + " | list" if is_generator else text


def expression(rng):
    kind = rng.random()
    value = rng.choice(VALUES)
    if kind < 0.35:
        return filtered(rng, value)
    if kind < 0.5:
        return filtered(rng, filtered(rng, value))
    if kind < 0.62:
        return f"({value}) {rng.choice(OPERATORS)} ({rng.choice(VALUES)})"
    if kind < 0.72:
        return f"{value} is {rng.choice(['', 'not '])}{rng.choice(TESTS)}"
    if kind < 0.87:
        return f"({rng.choice(STRINGS)}).{rng.choice(METHODS)}"
    first, end = (rng.choice(["", "0", "1", "2", "-1", "-2", "5", "-9"]) for _ in range(2))
    return f"({rng.choice(STRINGS + LISTS)})[{first}:{end}{rng.choice(['', ':-1', ':2', ':-2'])}]"


def main():
    golden = json.loads(make_jinja_cases.PATH.read_text())
    jinja = make_jinja_cases.environment(golden["now"])
    rng = random.Random(20261123)
    rendered, failing = {}, {}
    while len(rendered) < NUM_RENDERED or len(failing) < NUM_FAILING:
        source = "{{ " + expression(rng) + " }}"
        try:
            text = jinja.from_string(source).render(**copy.deepcopy(golden["variables"]))
        except Exception:
            text = None
        if text is None and len(failing) < NUM_FAILING:
            failing[source] = None
        elif text is not None and len(rendered) < NUM_RENDERED and " at 0x" not in text:
            rendered[source] = text
    cases = ",\n".join("  " + json.dumps(list(case)) for case in [*rendered.items(), *failing.items()])
    PATH.write_text('{\n "cases": [\n' + cases + "\n ]\n}\n")


if __name__ == "__main__":
    main()
