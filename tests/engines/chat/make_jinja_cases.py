#!/usr/bin/env python3
"""Renders the templates in jinja_cases.json with Jinja 3.1.6, markupsafe 3.0.4 and Python 3.11 and
rewrites the file.

The build and the tests do not need it. It documents where the expected texts come from. A text of
null means that the template fails.
"""
import copy
import datetime
import json
import pathlib

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

PATH = pathlib.Path(__file__).with_name("jinja_cases.json")


def environment(now):
    """Returns the environment of transformers for chat templates, without generation blocks."""
    result = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    result.filters["tojson"] = tojson
    result.globals["raise_exception"] = raise_exception
    result.globals["strftime_now"] = datetime.datetime.fromisoformat(now).strftime
    return result


def main():
    golden = json.loads(PATH.read_text())
    jinja = environment(golden["now"])
    for case in golden["cases"]:
        try:
            case[1] = jinja.from_string(case[0]).render(
                tools=None, documents=None, add_generation_prompt=False,
                **copy.deepcopy(golden["variables"]))
        except Exception:
            case[1] = None
    cases = ",\n".join("  " + json.dumps(case) for case in golden.pop("cases"))
    head = json.dumps(golden, indent=1)[:-2]
    PATH.write_text(head + ',\n "cases": [\n' + cases + "\n ]\n}\n")


if __name__ == "__main__":
    main()
