#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes chat_masks.json: conversations rendered by transformers with return_assistant_tokens_mask.

The template is that of the fixture qwen3-tiny, which strips earlier reasoning as Qwen3's does, with
{% generation %} tags around what the assistant says. Run it in an environment with transformers:
python3 tests/actors/make_chat_masks.py
"""
import json
import pathlib

from transformers import AutoTokenizer

HERE = pathlib.Path(__file__).parent
MODEL = HERE.parent / "golden/engine/models/qwen3-tiny"


def tagged(template):
    """Puts {% generation %} tags around the text of the assistant, after its header."""

    def replace(old, new, count):
        nonlocal template
        assert template.count(old) == count, (old, template.count(old))
        template = template.replace(old, new)

    first = "        {%- if loop.index0 > ns.last_query %}\n"
    replace(first, "        {{- '<|im_start|>' + message.role + '\\n' }}\n        {%- generation %}\n" + first, 1)
    replace("'<|im_start|>' + message.role + '\\n<think>\\n' + reasoning", "'<think>\\n' + reasoning", 1)
    replace("{{- '<|im_start|>' + message.role + '\\n' + content }}", "{{- content }}", 2)
    end = "        {{- '<|im_end|>\\n' }}\n    {%- elif message.role == \"tool\" %}"
    replace(end, "        {{- '<|im_end|>' }}\n        {%- endgeneration %}\n        {{- '\\n' }}\n"
            "    {%- elif message.role == \"tool\" %}", 1)
    return template


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    plain = tokenizer.chat_template
    marked = tagged(plain)
    user = lambda text: {"role": "user", "content": text}
    says = lambda text: {"role": "assistant", "content": text}
    conversations = {
        "one turn": [user("two and two?"), says("four")],
        "turns with reasoning": [
            user("two and two?"), says("<think>\nit is even\n</think>\n\nfour"),
            user("and three?"), says("<think>\none more\n</think>\n\nseven")],
        "turns without reasoning": [user("a"), says("one"), user("b"), says("two"), user("c"), says("three")],
        "a tool call": [
            user("weather?"),
            {"role": "assistant", "content": "", "tool_calls": [
                {"type": "function", "function": {"name": "look", "arguments": {"at": "sky"}}}]},
            {"role": "tool", "content": "rain"}, says("It rains.")],
        "text beyond ASCII": [user("grüße"), says("Größe 水车"), user("?"), says("né")],
    }
    cases = []
    for name, messages in conversations.items():
        marks = tokenizer.apply_chat_template(
            messages, chat_template=marked, return_dict=True, return_assistant_tokens_mask=True)
        assert tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"] == marks["input_ids"]
        prompts = {
            key: tokenizer.apply_chat_template(
                messages[:-1], add_generation_prompt=True, return_dict=True, **kwargs)["input_ids"]
            for key, kwargs in (("prompt_ids", {}), ("prompt_ids_no_thinking", {"enable_thinking": False}))}
        cases.append({"name": name, "messages": messages, "ids": marks["input_ids"],
                      "mask": marks["assistant_masks"], **prompts})
    out = {"template": marked, "cases": cases}
    (HERE / "chat_masks.json").write_text(json.dumps(out, indent=None, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
