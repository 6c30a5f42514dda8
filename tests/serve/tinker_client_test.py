#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `tidemill serve` with the tinker Python package, unchanged.

Usage: tinker_client_test.py PROGRAM SOURCE_DIR
Exits with 77 if the package is not installed.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import unittest
import urllib.error
import urllib.request

try:
    import numpy as np
    import tinker
    from tinker import types
except ImportError:
    print("skipped: the Python package tinker is not installed")
    sys.exit(77)

from server import Server
from tinker_data import PROBLEMS, batch, datum, ids_of

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])


def logprobs_of(output: types.ForwardBackwardOutput) -> list[list[float]]:
    return [one["logprobs"].tolist() for one in output.loss_fn_outputs]


class TinkerClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server(PROGRAM, SOURCE / "examples/models/arithmetic",
                            "serve.checkpoints_path=checkpoints")
        os.environ["TINKER_BASE_URL"] = cls.server.url
        os.environ["TINKER_API_KEY"] = "tml-none"
        cls.service = tinker.ServiceClient(user_metadata={"test": "yes"})
        cls.rest = tinker.RestClient()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.service.close("success").result()
        cls.server.__exit__()

    def new_client(self, service: tinker.ServiceClient | None = None,
                   **options: object) -> tinker.TrainingClient:
        return (service or self.service).create_lora_training_client(
            "arithmetic", **{"rank": 8, "seed": 5, **options}).result()

    def train(self, client: tinker.TrainingClient, steps: int) -> list[float]:
        """Trains on the batch and returns the losses. The requests of a step overlap."""
        losses = []
        for _ in range(steps):
            passed = client.forward_backward(batch(), "cross_entropy")
            stepped = client.optim_step(types.AdamParams(learning_rate=1e-3))
            losses.append(passed.result().metrics["loss:sum"])
            self.assertGreater(stepped.result().metrics["grad_norm"], 0.0)
        return losses

    def test_capabilities(self) -> None:
        models = self.rest.get_server_capabilities().result().supported_models
        self.assertEqual([model.model_name for model in models], ["arithmetic"])
        self.assertTrue(models[0].trainable)

    def test_training_lowers_the_loss(self) -> None:
        client = self.new_client()
        info = client.get_info()
        self.assertEqual((info.lora_rank, info.model_data.model_name), (8, "arithmetic"))
        losses = self.train(client, 8)
        self.assertLess(losses[-1], 0.5 * losses[0], losses)
        # The same seed and the same requests give the same bits.
        self.assertEqual(self.train(self.new_client(), 8), losses)

    def test_clients_do_not_change_each_others_bits(self) -> None:
        def run(seed: int, results: dict[int, list]) -> None:
            """Has a session of its own train, and sample from its own weights between the steps."""
            service = tinker.ServiceClient()
            client = self.new_client(service, seed=seed)
            bits: list = []
            for step in range(3):
                bits.append(self.train(client, 2))
                sampler = client.save_weights_and_get_sampling_client().result()
                sampled = [sampler.sample(types.ModelInput.from_ints(ids_of(f"{a}+{b}=")), 2,
                                          types.SamplingParams(max_tokens=4, seed=seed + step))
                           for a, b in PROBLEMS[:8]]
                bits += [(one.tokens, one.logprobs) for future in sampled
                         for one in future.result().sequences]
            bits.append(logprobs_of(client.forward(batch(), "cross_entropy").result()))
            results[seed] = bits
            service.close("success").result()

        alone: dict[int, list] = {}
        together: dict[int, list] = {}
        for seed in range(4):
            run(seed, alone)
        threads = [threading.Thread(target=run, args=(seed, together)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len({str(bits) for bits in alone.values()}), 4)
        self.assertEqual(together, alone)

    def test_forward_gives_the_logprobs_of_sampling(self) -> None:
        sampler = self.service.create_sampling_client(base_model="arithmetic").result()
        prompt = "12+13="
        sampled = sampler.sample(types.ModelInput.from_ints(ids_of(prompt)), 3,
                                 types.SamplingParams(max_tokens=4, seed=1),
                                 include_prompt_logprobs=True, topk_prompt_logprobs=2,
                                 topk_sample_logprobs=3).result()
        self.assertEqual(len(sampled.sequences), 3)
        self.assertEqual(len({one.sequence_id for one in sampled.sequences}), 3)
        client = self.new_client()  # a new adapter changes nothing
        for one in sampled.sequences:
            tokens = ids_of(prompt) + one.tokens
            passed = client.forward([types.Datum(
                model_input=types.ModelInput.from_ints(tokens[:-1]),
                loss_fn_inputs={"target_tokens": np.array(tokens[1:], np.int64),
                                "weights": np.ones(len(tokens) - 1, np.float32)})],
                "cross_entropy").result()
            logprobs = logprobs_of(passed)[0]
            self.assertEqual(logprobs[len(prompt) - 1:], one.logprobs)
            self.assertEqual(logprobs[:len(prompt) - 1], sampled.prompt_logprobs[1:])
            self.assertAlmostEqual(passed.metrics["loss:sum"], -sum(logprobs), places=4)
            self.assertEqual([len(top) for top in one.topk_logprobs], [3] * len(one.tokens))
        self.assertIsNone(sampled.topk_prompt_logprobs[0])
        self.assertEqual([len(top) for top in sampled.topk_prompt_logprobs[1:]], [2] * 5)
        again = sampler.sample(types.ModelInput.from_ints(ids_of(prompt)), 3,
                               types.SamplingParams(max_tokens=4, seed=1)).result()
        self.assertEqual([one.tokens for one in again.sequences],
                         [one.tokens for one in sampled.sequences])

    def test_stops(self) -> None:
        sampler = self.service.create_sampling_client(base_model="arithmetic").result()
        prompt = types.ModelInput.from_ints(ids_of("12+13="))
        greedy = lambda **options: sampler.sample(prompt, 1, types.SamplingParams(
            temperature=0, max_tokens=8, **options)).result().sequences[0]
        free = greedy(stop=[])
        self.assertEqual((free.stop_reason, len(free.tokens)), ("length", 8))
        by_text = greedy(stop=[chr(free.tokens[1])])
        self.assertEqual((by_text.stop_reason, by_text.tokens), ("stop", free.tokens[:2]))
        by_id = greedy(stop=[free.tokens[1]])
        self.assertEqual((by_id.stop_reason, by_id.tokens), ("stop", free.tokens[:2]))
        scores = sampler.compute_logprobs(prompt).result()
        self.assertIsNone(scores[0])
        self.assertEqual(len(scores), 6)

    def test_a_sampler_has_the_trained_weights(self) -> None:
        client = self.new_client()
        self.train(client, 8)
        named = client.save_weights_for_sampler("trained").result().path
        samplers = [client.save_weights_and_get_sampling_client().result(),
                    self.service.create_sampling_client(model_path=named).result()]
        wanted = logprobs_of(client.forward(batch()[:1], "cross_entropy").result())[0]
        for sampler in samplers:
            a, b = PROBLEMS[0]
            scores = sampler.compute_logprobs(
                types.ModelInput.from_ints(ids_of(f"{a}+{b}={a + b}"))).result()
            self.assertEqual(scores[1:], wanted)
        # Later steps do not change what was saved.
        self.train(client, 1)
        self.assertNotEqual(logprobs_of(client.forward(batch()[:1], "cross_entropy").result())[0],
                            wanted)
        scores = samplers[0].compute_logprobs(
            types.ModelInput.from_ints(ids_of(f"{a}+{b}={a + b}"))).result()
        self.assertEqual(scores[1:], wanted)

    def test_a_checkpoint_continues_with_the_same_bits(self) -> None:
        client = self.new_client()
        self.train(client, 3)
        path = client.save_state("three", user_metadata={"step": "3"}).result().path
        rest = self.train(client, 3)
        continued = self.service.create_training_client_from_state_with_optimizer(path).result()
        self.assertEqual(self.train(continued, 3), rest)
        weights_only = self.service.create_training_client_from_state(path).result()
        losses = self.train(weights_only, 3)
        self.assertEqual(losses[0], rest[0])
        self.assertNotEqual(losses[1:], rest[1:])  # the moments are missing
        with self.assertRaises(tinker.RequestFailedError) as exists:
            client.save_state("three").result()
        self.assertIn("exists already", str(exists.exception))

    def test_policy_losses(self) -> None:
        client = self.new_client()
        sampler = self.service.create_sampling_client(base_model="arithmetic").result()
        data = []
        for i, (a, b) in enumerate(PROBLEMS[:4]):
            prompt = f"{a}+{b}="
            one = sampler.sample(types.ModelInput.from_ints(ids_of(prompt)), 1,
                                 types.SamplingParams(max_tokens=4, seed=i)).result().sequences[0]
            data.append((prompt, one.tokens, one.logprobs, 1.0 if i % 2 else -0.5))
        total = sum(advantage * len(response) for _, response, _, advantage in data)
        make = lambda **more: [datum(prompt, response, logprobs=logprobs,
                                     advantages=[advantage] * len(response),
                                     **{name: [1.0] * len(response) for name in more})
                               for prompt, response, logprobs, advantage in data]
        # On the policy that sampled, all ratios are exactly 1.
        for loss in ("importance_sampling", "ppo"):
            passed = client.forward_backward(make(), loss).result()
            self.assertAlmostEqual(passed.metrics["loss:sum"], -total, places=5)
        passed = client.forward_backward(make(sequence_ratio_mask=1), "gspo").result()
        self.assertAlmostEqual(passed.metrics["loss:sum"], -total, places=5)
        expected = -sum(advantage * sum(logprobs) for _, _, logprobs, advantage in data)
        passed = client.forward_backward(
            make(), "cispo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}).result()
        self.assertAlmostEqual(passed.metrics["loss:sum"], expected, places=4)
        client.optim_step(types.AdamParams(learning_rate=1e-3)).result()

    def test_a_large_batch_comes_in_parts(self) -> None:
        client = self.new_client()
        data = batch() * 30  # more than the 1024 data that the package puts into one request
        passed = client.forward_backward(data, "cross_entropy").result()
        self.assertEqual(len(passed.loss_fn_outputs), len(data))
        small = client.forward(batch(), "cross_entropy").result()
        self.assertEqual(logprobs_of(passed), logprobs_of(small) * 30)
        self.assertAlmostEqual(passed.metrics["loss:sum"], 30 * small.metrics["loss:sum"], places=2)

    def test_the_longest_sequence(self) -> None:
        client = self.new_client()
        long = lambda length: datum("1", [ord("1")] * length)
        for length in (62, 63):  # with the prompt, the context of 64 tokens
            passed = client.forward_backward([long(length)] * 40, "cross_entropy").result()
            self.assertEqual(len(passed.loss_fn_outputs[0]["logprobs"].tolist()), length)
        with self.assertRaises(tinker.RequestFailedError) as refused:
            client.forward_backward([long(64)], "cross_entropy").result()
        self.assertIn("data[0].model_input: has 65 tokens with the target", str(refused.exception))

    def test_linear_losses_of_either_sign(self) -> None:
        # forward_backward_custom sends the gradients of the client's loss as weights.
        client = self.new_client()
        forward = client.forward(batch()[:2], "cross_entropy").result()
        logprobs = [np.array(one["logprobs"].tolist()) for one in forward.loss_fn_outputs]
        data = [types.Datum(model_input=one.model_input, loss_fn_inputs={
            "target_tokens": one.loss_fn_inputs["target_tokens"],
            "weights": (-2.0 * lp).astype(np.float32)})  # of the loss sum(lp^2)
            for one, lp in zip(batch()[:2], logprobs)]
        passed = client.forward_backward(data, "cross_entropy").result()
        self.assertAlmostEqual(passed.metrics["loss:sum"],
                               sum(float(np.sum(2 * lp * lp)) for lp in logprobs), places=3)
        client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
        after = client.forward(batch()[:2], "cross_entropy").result()
        squares = lambda output: sum(float(np.sum(np.square(row))) for row in logprobs_of(output))
        self.assertLess(squares(after), squares(forward))

    def test_custom_losses(self) -> None:
        try:
            import torch
        except ImportError:
            self.skipTest("the Python package torch is not installed")
        client = self.new_client()
        loss = lambda data, rows: (torch.stack([(row ** 2).sum() for row in rows]).sum(), {})
        first = client.forward_backward_custom(batch()[:2], loss)
        client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
        second = client.forward_backward_custom(batch()[:2], loss).result()
        self.assertLess(second.metrics["loss:sum"], first.result().metrics["loss:sum"])

    def test_what_is_not_supported_is_named(self) -> None:
        client = self.new_client()
        image = types.Datum(
            model_input=types.ModelInput(chunks=[
                types.EncodedTextChunk(tokens=[49]),
                types.ImageChunk(data=b"\x89PNG", format="png", expected_tokens=1)]),
            loss_fn_inputs={"target_tokens": np.array([50, 51]), "weights": np.ones(2, np.float32)})
        cases = [(client.forward_backward([image], "cross_entropy"), "images are not supported"),
                 (client.forward_backward(batch()[:1], "stable_reinforce"), "stable_reinforce"),
                 (client.optim_step(types.DimuonParams(learning_rate=1e-3)), "adamw"),
                 (client.save_state("../a"), "path")]
        for future, message in cases:
            with self.assertRaises(tinker.RequestFailedError) as refused:
                future.result()
            self.assertIn(message, str(refused.exception))
        # The client goes on.
        with self.assertRaises(tinker.RequestFailedError) as incomplete:
            client.optim_step(types.AdamParams(learning_rate=1e-3)).result()
        self.assertIn("gradients are incomplete", str(incomplete.exception))
        self.train(client, 1)
        with self.assertRaises(tinker.BadRequestError):
            self.service.create_lora_training_client("other-model").result()

    def test_checkpoints_are_listed_downloaded_and_removed(self) -> None:
        client = self.new_client(train_unembed=False)
        self.train(client, 1)
        run = client.model_id
        state = client.save_state("state", ttl_seconds=3600).result().path
        external = client.save_weights_external("adapter").result().path
        listed = self.rest.list_checkpoints(run).result().checkpoints
        self.assertEqual({one.tinker_path for one in listed}, {state, external})
        self.assertEqual([one.expires_at is not None for one in listed
                          if one.tinker_path == state], [True])
        self.assertEqual(self.rest.get_training_run(run).result().lora_rank, 8)
        self.assertIn(run, [one.training_run_id for one in
                            self.rest.list_training_runs(limit=100).result().training_runs])
        self.assertTrue(self.rest.get_weights_info_by_tinker_path(state).result().is_lora)
        self.rest.set_checkpoint_ttl_from_tinker_path(external, 7200).result()
        urls = self.rest.get_external_weights_urls(external).result().urls
        self.assertEqual(set(urls), {"adapter_config.json", "adapter_model.safetensors"})
        with urllib.request.urlopen(urls["adapter_config.json"]) as response:
            config = json.load(response)
        self.assertEqual((config["r"], config["lora_alpha"]), (8, 32))
        self.assertEqual(set(config["target_modules"]), {
            "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})
        with urllib.request.urlopen(urls["adapter_model.safetensors"]) as response:
            self.assertGreater(len(response.read()), 1000)
        with self.assertRaises(urllib.error.HTTPError) as forged:
            urllib.request.urlopen(urls["adapter_config.json"].partition("token=")[0] + "token=0")
        self.assertEqual(forged.exception.code, 403)
        forged.exception.close()
        self.rest.delete_checkpoint_from_tinker_path(external).result()
        self.assertEqual(len(self.rest.list_checkpoints(run).result().checkpoints), 1)

    def test_exports_are_encrypted_to_recipients(self) -> None:
        try:
            import pyrage
        except ImportError:
            self.skipTest("the Python package pyrage is not installed")
        identity = pyrage.x25519.Identity.generate()
        client = self.new_client()
        exports = {}
        for name, recipients in (("plain", None), ("secret", [str(identity.to_public())])):
            path = client.save_weights_external(
                name, age_encryption_recipients=recipients).result().path
            for file, url in self.rest.get_external_weights_urls(path).result().urls.items():
                with urllib.request.urlopen(url) as response:
                    exports[name, file] = response.read()
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            self.assertEqual(pyrage.decrypt(exports["secret", file + ".age"], [identity]),
                             exports["plain", file])
        self.assertEqual(len(exports), 4)

    def test_a_client_that_dies_leaves_its_checkpoints(self) -> None:
        # The end of its session after missed heartbeats is tested in virtual time
        # (tests/actors/tinker/service_test.cpp), because it takes 5 minutes.
        client = self.new_client()
        self.train(client, 3)
        rest = self.train(client, 3)
        script = pathlib.Path(__file__).with_name("tinker_endless_client.py")
        with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE) as process:
            path = process.stdout.readline().decode().strip()
            steps = [process.stdout.readline() for _ in range(2)]
            process.kill()
        self.assertEqual(process.returncode, -signal.SIGKILL)
        self.assertEqual(steps, [b"step\n"] * 2)
        continued = self.service.create_training_client_from_state_with_optimizer(path).result()
        self.assertEqual(self.train(continued, 3), rest)


class KeysTest(unittest.TestCase):
    def test_keys_need_scopes(self) -> None:
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            keys = {}
            for scope in ("infer", "tune"):
                made = subprocess.run(
                    [PROGRAM, "keys", "add", f"{folder}/keys.json", "--name", scope, "--scope",
                     scope], stdout=subprocess.PIPE, check=True)
                keys[scope] = "tml-" + made.stdout.decode().split()[0]
            with Server(PROGRAM, SOURCE / "examples/models/arithmetic",
                        f"serve.checkpoints_path={folder}/checkpoints",
                        f"serve.keys_file={folder}/keys.json") as server:
                tune = tinker.ServiceClient(base_url=server.url, api_key=keys["tune"])
                client = tune.create_lora_training_client("arithmetic", rank=2).result()
                path = client.save_weights_external("e").result().path
                urls = tinker.RestClient(base_url=server.url, api_key=keys["tune"]) \
                    .get_external_weights_urls(path).result().urls
                with urllib.request.urlopen(urls["adapter_config.json"]) as response:
                    self.assertEqual(json.load(response)["r"], 2)  # without a key
                infer = tinker.ServiceClient(base_url=server.url, api_key=keys["infer"])
                sampler = infer.create_sampling_client(base_model="arithmetic").result()
                sampler.sample(types.ModelInput.from_ints(ids_of("1+1=")), 1,
                               types.SamplingParams(max_tokens=1)).result()
                with self.assertRaises(tinker.PermissionDeniedError):
                    infer.create_lora_training_client("arithmetic", rank=2).result()
                with self.assertRaises(tinker.AuthenticationError):
                    tinker.ServiceClient(base_url=server.url, api_key="tml-wrong") \
                        .create_sampling_client(base_model="arithmetic").result()
                for service in (tune, infer):
                    service.close("success").result()


class RestartTest(unittest.TestCase):
    def test_checkpoints_outlive_the_server(self) -> None:
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            path = None
            for _ in range(2):
                with Server(PROGRAM, SOURCE / "examples/models/arithmetic",
                            f"serve.checkpoints_path={folder}/checkpoints") as server:
                    service = tinker.ServiceClient(base_url=server.url, api_key="tml-none")
                    if path is None:
                        client = service.create_lora_training_client("arithmetic", rank=2).result()
                        path = client.save_state("kept").result().path
                    else:
                        client = service.create_training_client_from_state(path).result()
                        self.assertEqual(client.get_info().lora_rank, 2)
                    service.close("success").result()


if __name__ == "__main__":
    print("tinker", tinker.__version__)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
