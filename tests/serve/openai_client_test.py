#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `tidemill serve` with the openai Python package, unchanged.

Usage: openai_client_test.py PROGRAM SOURCE_DIR
Exits with 77 if the package is not installed.
"""
import asyncio
import pathlib
import sys
import unittest

try:
    import openai
except ImportError:
    print("skipped: the Python package openai is not installed")
    sys.exit(77)

from server import Server

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
MESSAGES = [{"role": "user", "content": "11+27="}]


class OpenAiClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server(PROGRAM, SOURCE / "examples/models/arithmetic")
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.client.close()
        cls.server.__exit__()

    def test_chat(self) -> None:
        response = self.client.chat.completions.create(
            model="arithmetic", messages=MESSAGES, temperature=0, logprobs=True, top_logprobs=3)
        choice = response.choices[0]
        self.assertEqual(choice.message.role, "assistant")
        self.assertEqual(choice.finish_reason, "stop")
        self.assertEqual("".join(one.token for one in choice.logprobs.content),
                         choice.message.content)
        self.assertEqual(len(choice.logprobs.content[0].top_logprobs), 3)
        self.assertEqual(response.usage.total_tokens,
                         response.usage.prompt_tokens + response.usage.completion_tokens)

    def test_streaming(self) -> None:
        whole = self.client.chat.completions.create(model="arithmetic", messages=MESSAGES, seed=3)
        stream = self.client.chat.completions.create(
            model="arithmetic", messages=MESSAGES, seed=3, stream=True,
            stream_options={"include_usage": True})
        chunks = list(stream)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual([chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1],
                         whole.choices[0].finish_reason)

    def test_completions(self) -> None:
        response = self.client.completions.create(
            model="arithmetic", prompt=["11+27=", "1+1="], max_tokens=4, n=2, logprobs=2, echo=True)
        self.assertEqual([choice.index for choice in response.choices], [0, 1, 2, 3])
        for choice in response.choices:
            self.assertEqual(len(choice.logprobs.tokens), len(choice.logprobs.token_logprobs))

    def test_models(self) -> None:
        self.assertEqual([model.id for model in self.client.models.list()], ["arithmetic"])
        self.assertEqual(self.client.models.retrieve("arithmetic").owned_by, "tidemill")
        with self.assertRaises(openai.PermissionDeniedError):
            self.client.models.delete("arithmetic")

    def test_values_that_ask_for_what_the_server_does(self) -> None:
        self.client.chat.completions.create(
            model="arithmetic", messages=MESSAGES, max_tokens=1, store=False, service_tier="auto", user="a",
            metadata={"a": "b"}, modalities=["text"])

    def test_errors(self) -> None:
        with self.assertRaises(openai.NotFoundError) as missing:
            self.client.chat.completions.create(model="none", messages=MESSAGES)
        self.assertEqual(missing.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as bad:
            self.client.chat.completions.create(model="arithmetic", messages=MESSAGES,
                                                temperature=-1)
        self.assertEqual(bad.exception.param, "temperature")

    def test_concurrent_clients(self) -> None:
        async def ask_all() -> list[str]:
            async with openai.AsyncOpenAI(base_url=self.server.url + "/v1",
                                          api_key="none") as client:
                responses = await asyncio.gather(*(
                    client.chat.completions.create(model="arithmetic", messages=MESSAGES, seed=seed)
                    for seed in range(16)))
            return [response.choices[0].message.content for response in responses]

        one_by_one = [
            self.client.chat.completions.create(model="arithmetic", messages=MESSAGES, seed=seed)
            .choices[0].message.content for seed in range(16)]
        self.assertEqual(asyncio.run(ask_all()), one_by_one)


if __name__ == "__main__":
    print("openai", openai.__version__)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
