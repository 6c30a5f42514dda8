#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the files of make_model.py with independent readers. Exits with status 77 without numpy."""
import json
import pathlib
import struct
import sys
import tempfile
import unittest

try:
    import numpy as np
except ImportError:
    print("not run: numpy is not installed")
    sys.exit(77)

import make_model
from make_model import Shape

# 8 query heads share 2 key/value heads; rows divide into blocks of 32 values.
SMALL = Shape(hidden=64, layers=2, ffn=96, heads=8, kv_heads=2, vocabulary=300, context=128)
# The heads of Qwen3 are wider than its hidden state divided by their number.
SMALL_QWEN3 = Shape(hidden=64, layers=2, ffn=96, heads=4, kv_heads=2, vocabulary=300, context=128,
                    head_size=32, family="qwen3")


class Reader:
    """Reads the values of a GGUF file one after the other."""
    SCALARS = {4: "<I", 5: "<i", 6: "<f", 7: "<?"}

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def scalar(self, form: str):
        value, = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self) -> str:
        size = self.scalar("<Q")
        self.at += size
        return self.data[self.at - size:self.at].decode()

    def value(self, kind: int):
        if kind == 8:
            return self.text()
        if kind == 9:
            of, count = self.scalar("<I"), self.scalar("<Q")
            return [self.value(of) for _ in range(count)]
        return self.scalar(self.SCALARS[kind])


def read_gguf(path: pathlib.Path) -> tuple[dict, dict[str, np.ndarray]]:
    """Returns the key/value pairs, and the tensors as f32."""
    reader = Reader(path.read_bytes())
    assert reader.data[:4] == b"GGUF"
    reader.at = 4
    assert reader.scalar("<I") == 3
    num_tensors, num_pairs = reader.scalar("<Q"), reader.scalar("<Q")
    pairs = {}
    for _ in range(num_pairs):
        key = reader.text()
        pairs[key] = reader.value(reader.scalar("<I"))
    infos = []
    for _ in range(num_tensors):
        name = reader.text()
        dims = [reader.scalar("<Q") for _ in range(reader.scalar("<I"))]
        infos.append((name, dims[::-1], reader.scalar("<I"), reader.scalar("<Q")))
    start = -(-reader.at // 32) * 32
    return pairs, {name: decoded(reader.data[start + offset:], dims, kind)
                   for name, dims, kind, offset in infos}


def decoded(data: bytes, dims: list[int], kind: int) -> np.ndarray:
    count = int(np.prod(dims))
    if kind == 0:
        values = np.frombuffer(data, "<f4", count)
    elif kind == 30:
        values = (np.frombuffer(data, "<u2", count).astype(np.uint32) << 16).view(np.float32)
    else:
        assert kind == 8
        blocks = [(struct.unpack_from("<e", data, i * 34)[0],
                   np.frombuffer(data, "i1", 32, i * 34 + 2)) for i in range(count // 32)]
        values = np.concatenate([scale * ints.astype(np.float32) for scale, ints in blocks])
    return values.reshape(dims)


def rotated_pairs(weight: np.ndarray, heads: int, interleaved: bool) -> set[tuple[bytes, bytes]]:
    """Returns the pairs of rows that RoPE rotates with each other, for all heads."""
    per_head = weight.reshape(heads, -1, weight.shape[1])
    half = per_head.shape[1] // 2
    pairs = [(head[2 * i], head[2 * i + 1]) if interleaved else (head[i], head[i + half])
             for head in per_head for i in range(half)]
    return {(a.tobytes(), b.tobytes()) for a, b in pairs}


class MakeModelTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.weights = make_model.random_weights(SMALL, seed=3)

    def test_presets_have_the_sizes_in_their_names(self) -> None:
        for name, shape in make_model.PRESETS.items():
            size = name.removeprefix("qwen3-")
            named = float(size[:-1]) * {"m": 1e6, "b": 1e9}[size[-1]]
            self.assertAlmostEqual(make_model.num_parameters(shape) / named, 1.0, delta=0.08,
                                   msg=name)

    def test_the_same_seed_gives_the_same_weights_exact_in_bf16(self) -> None:
        again = make_model.random_weights(SMALL, seed=3)
        other = make_model.random_weights(SMALL, seed=4)
        for name, value in self.weights.items():
            self.assertTrue((value == again[name]).all())
            self.assertTrue((value.view(np.uint32) & 0xFFFF == 0).all())
            self.assertEqual(value.ndim == 1, bool((value == other[name]).all()))
            if value.ndim == 2:
                self.assertAlmostEqual(float(value.std()), 0.02, delta=0.001)

    def test_bf16_rounds_to_nearest_even(self) -> None:
        bits = np.array([0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0xBF807FFF], np.uint32)
        self.assertEqual(make_model.bf16_bits(bits.view(np.float32)).tolist(),
                         [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0xBF80])

    def test_safetensors_hold_the_weights(self) -> None:
        for dtype, form in (("F32", "<f4"), ("BF16", "<u2")):
            path = self.folder / "model.safetensors"
            make_model.write_safetensors(path, self.weights, dtype)
            data = path.read_bytes()
            size, = struct.unpack_from("<Q", data)
            self.assertEqual(size % 8, 0)
            header = json.loads(data[8:8 + size])
            header.pop("__metadata__")
            self.assertEqual(set(header), set(self.weights))
            for name, entry in header.items():
                begin, end = entry["data_offsets"]
                raw = np.frombuffer(data[8 + size + begin:8 + size + end], form)
                if dtype == "BF16":
                    raw = (raw.astype(np.uint32) << 16).view(np.float32)
                self.assertTrue((raw.reshape(entry["shape"]) == self.weights[name]).all())

    def test_gguf_holds_the_weights_with_interleaved_rope_rows(self) -> None:
        for kind, tolerance in ((make_model.GGML_F32, 0.0), (make_model.GGML_BF16, 0.0),
                                (make_model.GGML_Q8_0, 0.5 / 127 + 2**-11)):
            path = self.folder / "model.gguf"
            make_model.write_gguf(path, SMALL, self.weights, kind)
            pairs, tensors = read_gguf(path)
            self.assertEqual(pairs["general.architecture"], "llama")
            self.assertEqual(pairs["llama.attention.head_count_kv"], SMALL.kv_heads)
            self.assertEqual(len(pairs["tokenizer.ggml.tokens"]), SMALL.vocabulary)
            self.assertEqual(len(tensors), len(self.weights))
            for name, value in self.weights.items():
                found = tensors[make_model.gguf_name(name)]
                heads = {"q_proj": SMALL.heads, "k_proj": SMALL.kv_heads}.get(name.split(".")[-2])
                if heads and kind != make_model.GGML_Q8_0:
                    self.assertEqual(rotated_pairs(found, heads, True),
                                     rotated_pairs(value, heads, False))
                elif not heads:
                    worst = np.abs(value).max()
                    self.assertLessEqual(np.abs(found - value).max(), tolerance * worst, name)

    def test_gguf_holds_qwen3_in_the_order_of_hugging_face(self) -> None:
        weights = make_model.random_weights(SMALL_QWEN3, seed=3)
        self.assertNotIn("lm_head.weight", weights)
        self.assertEqual(weights["model.layers.1.self_attn.q_proj.weight"].shape, (128, 64))
        self.assertEqual(weights["model.layers.1.self_attn.k_norm.weight"].shape, (32,))
        path = self.folder / "model.gguf"
        make_model.write_gguf(path, SMALL_QWEN3, weights, make_model.GGML_F32)
        pairs, tensors = read_gguf(path)
        self.assertEqual(pairs["general.architecture"], "qwen3")
        self.assertEqual(pairs["qwen3.attention.key_length"], 32)
        self.assertEqual(pairs["qwen3.rope.freq_base"], 1e6)
        self.assertEqual(len(tensors), len(weights))
        for name, value in weights.items():
            self.assertTrue((tensors[make_model.gguf_name(name)] == value).all(), name)

    def test_a_model_has_only_the_types_that_were_asked_for(self) -> None:
        make_model.make_model(SMALL_QWEN3, self.folder, 0, ["bf16"])
        found = {str(path.relative_to(self.folder)) for path in self.folder.rglob("model*")}
        self.assertEqual(found, {"model-bf16.gguf", "bf16/model.safetensors"})
        self.assertEqual(json.loads((self.folder / "config.json").read_text())["head_dim"], 32)

    def test_tokens_are_distinct_and_every_merge_makes_one(self) -> None:
        for size in (SMALL.vocabulary, make_model.PRESETS["qwen3-0.6b"].vocabulary):
            tokens, merges = make_model.vocabulary(size)
            self.assertEqual(len(tokens), size)
            self.assertEqual(len(set(tokens)), size)
            self.assertEqual([a + b for a, b in merges], tokens[256:-1])
            made = {*make_model.byte_letters()}
            for a, b in merges:
                self.assertTrue(a in made and b in made)
                made.add(a + b)


if __name__ == "__main__":
    unittest.main()
