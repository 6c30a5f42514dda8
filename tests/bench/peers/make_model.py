#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes one random Llama or Qwen3 model in every format that the compared engines read.

  OUT/{config,tokenizer,tokenizer_config,generation_config}.json
  OUT/model.safetensors    F32
  OUT/bf16/...             the same directory with BF16 weights
  OUT/model-f32.gguf, OUT/model-bf16.gguf, OUT/model-q8_0.gguf

Weights have the distribution N(0, 0.02); gains are 1. Every weight is rounded to bf16 before it is
written, so that the F32 and the BF16 files contain the same numbers. The vocabulary consists of the
256 bytes, merged letters, and an end token. No digit and no space is merged.

Usage: make_model.py PRESET OUT [--seed N] [--dtypes f32 bf16 q8_0]     needs numpy

--dtypes leaves out the weights of other types, which take 22 GB in all types of qwen3-1.7b.
"""
import argparse
import dataclasses
import itertools
import json
import pathlib
import struct
from collections.abc import Callable, Iterator, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of a Llama model with a head of its own, or of a Qwen3 model with a tied head."""
    hidden: int
    layers: int
    ffn: int
    heads: int
    kv_heads: int
    vocabulary: int
    context: int = 4096
    head_size: int = 0  # 0: hidden / heads
    family: str = "llama"  # or "qwen3", which has norms of queries and keys and a tied head

    @property
    def head_dim(self) -> int:
        return self.head_size or self.hidden // self.heads

    @property
    def is_qwen3(self) -> bool:
        return self.family == "qwen3"

    @property
    def epsilon(self) -> float:
        return 1e-6 if self.is_qwen3 else 1e-5

    @property
    def rope_theta(self) -> float:
        return 1e6 if self.is_qwen3 else 1e4


# The presets of `tidemill-bench engine --preset` have the same sizes. Those of Qwen3 are the sizes
# of Qwen/Qwen3-0.6B and Qwen/Qwen3-1.7B.
PRESETS = {
    "3.7m": Shape(hidden=256, layers=4, ffn=688, heads=4, kv_heads=4, vocabulary=1024),
    "15m": Shape(hidden=320, layers=8, ffn=864, heads=5, kv_heads=5, vocabulary=8192),
    "197m": Shape(hidden=1024, layers=16, ffn=2816, heads=16, kv_heads=4, vocabulary=8192),
    "600m": Shape(hidden=1536, layers=22, ffn=4096, heads=24, kv_heads=8, vocabulary=16384),
    "qwen3-0.6b": Shape(hidden=1024, layers=28, ffn=3072, heads=16, kv_heads=8, vocabulary=151936,
                        context=40960, head_size=128, family="qwen3"),
    "qwen3-1.7b": Shape(hidden=2048, layers=28, ffn=6144, heads=16, kv_heads=8, vocabulary=151936,
                        context=40960, head_size=128, family="qwen3"),
}
DTYPES = ("f32", "bf16", "q8_0")
END = "<|end|>"
ALIGNMENT = 32
Q8_BLOCK = 32

# A tensor to write: its name and its values.
Named = tuple[str, np.ndarray]


# -- weights ---------------------------------------------------------------------------------------

def tensor_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of all tensors by Hugging Face name. Linear weights are (out, in)."""
    hidden, q, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocabulary, hidden)}
    for i in range(shape.layers):
        at = f"model.layers.{i}."
        shapes |= {
            at + "input_layernorm.weight": (hidden,),
            at + "self_attn.q_proj.weight": (q, hidden),
            at + "self_attn.k_proj.weight": (kv, hidden),
            at + "self_attn.v_proj.weight": (kv, hidden),
            at + "self_attn.o_proj.weight": (hidden, q),
            at + "post_attention_layernorm.weight": (hidden,),
            at + "mlp.gate_proj.weight": (shape.ffn, hidden),
            at + "mlp.up_proj.weight": (shape.ffn, hidden),
            at + "mlp.down_proj.weight": (hidden, shape.ffn),
        }
        if shape.is_qwen3:
            shapes |= {at + "self_attn.q_norm.weight": (shape.head_dim,),
                       at + "self_attn.k_norm.weight": (shape.head_dim,)}
    shapes["model.norm.weight"] = (hidden,)
    return shapes if shape.is_qwen3 else shapes | {"lm_head.weight": (shape.vocabulary, hidden)}


def num_parameters(shape: Shape) -> int:
    return sum(int(np.prod(dims)) for dims in tensor_shapes(shape).values())


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """Rounds finite f32 to the nearest bf16, ties to even. Returns the bits as uint16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def random_weights(shape: Shape, seed: int) -> dict[str, np.ndarray]:
    """Returns random f32 weights that are exact in bf16. Each tensor has its own random stream."""
    weights = {}
    for number, (name, dims) in enumerate(tensor_shapes(shape).items()):
        if len(dims) == 1:
            weights[name] = np.ones(dims, np.float32)
        else:
            values = np.random.default_rng([seed, number]).standard_normal(dims, np.float32)
            weights[name] = from_bf16(bf16_bits(values * np.float32(0.02)))
    return weights


# -- vocabulary ------------------------------------------------------------------------------------

def byte_letters() -> list[str]:
    """Returns the character that byte-level BPE writes for each byte (GPT-2's table)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def vocabulary(size: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Returns `size` tokens in the order of their ids, with the end token last, and the merges.

    Merges are pairs of letters, and then a pair with a third letter."""
    letters = byte_letters()
    merged = [letter for i, letter in enumerate(letters) if chr(i) not in " 0123456789"]
    pairs = [(a, b) for a in merged for b in merged]
    triples = ((a + b, c) for a, b in pairs for c in merged)
    merges = list(itertools.islice(itertools.chain(pairs, triples), size - 257))
    return [*letters, *(a + b for a, b in merges), END], merges


# -- Hugging Face ----------------------------------------------------------------------------------

def config(shape: Shape, dtype: str) -> dict:
    return {
        "architectures": ["Qwen3ForCausalLM" if shape.is_qwen3 else "LlamaForCausalLM"],
        "model_type": shape.family, "hidden_act": "silu",
        "hidden_size": shape.hidden, "num_hidden_layers": shape.layers,
        "intermediate_size": shape.ffn, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "vocab_size": shape.vocabulary, "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.epsilon, "rope_theta": shape.rope_theta, "attention_bias": False,
        "mlp_bias": False, "tie_word_embeddings": shape.is_qwen3, "initializer_range": 0.02,
        "bos_token_id": None, "eos_token_id": shape.vocabulary - 1,
        "pad_token_id": shape.vocabulary - 1, "use_cache": True,
        "dtype": dtype, "torch_dtype": dtype,
    }


def tokenizer(shape: Shape) -> dict:
    tokens, merges = vocabulary(shape.vocabulary)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": len(tokens) - 1, "content": END, "single_word": False,
                          "lstrip": False, "rstrip": False, "normalized": False,
                          "special": True}],
        "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: i for i, token in enumerate(tokens[:-1])},
                  "merges": [list(pair) for pair in merges]},
    }


def write_json(path: pathlib.Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_safetensors(path: pathlib.Path, weights: dict[str, np.ndarray], dtype: str) -> None:
    """Writes a safetensors file; `dtype` is "F32" or "BF16"."""
    width = {"F32": 4, "BF16": 2}[dtype]
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, value in weights.items():
        end = offset + value.size * width
        header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for value in weights.values():
            file.write((value if dtype == "F32" else bf16_bits(value)).tobytes())


def write_model_directory(path: pathlib.Path, shape: Shape, weights: dict[str, np.ndarray],
                          dtype: str, with_weights: bool = True) -> None:
    """Writes a Hugging Face model directory; `dtype` is "float32" or "bfloat16"."""
    path.mkdir(parents=True, exist_ok=True)
    end = shape.vocabulary - 1
    write_json(path / "config.json", config(shape, dtype))
    write_json(path / "generation_config.json", {"eos_token_id": end, "pad_token_id": end})
    write_json(path / "tokenizer.json", tokenizer(shape))
    write_json(path / "tokenizer_config.json",
               {"add_bos_token": False, "bos_token": None, "eos_token": END, "pad_token": END,
                "clean_up_tokenization_spaces": False, "model_max_length": shape.context,
                "tokenizer_class": "PreTrainedTokenizerFast"})
    if with_weights:
        write_safetensors(path / "model.safetensors", weights,
                          {"float32": "F32", "bfloat16": "BF16"}[dtype])


# -- GGUF: ggml-org/ggml, docs/gguf.md --------------------------------------------------------------

GGML_F32, GGML_Q8_0, GGML_BF16 = 0, 8, 30
FILE_TYPE = {GGML_F32: 0, GGML_Q8_0: 7, GGML_BF16: 32}
LAYER_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP_NAMES = {"model.embed_tokens.weight": "token_embd.weight",
             "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}


def gguf_name(name: str) -> str:
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    _, _, layer, module = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[module]}.weight"


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Orders the rows of each head as the llama architecture of GGUF requires.

    RoPE rotates row i with row i + head_dim / 2 in the layout of Hugging Face, and row 2 i with row
    2 i + 1 in this one. Source: ggml-org/llama.cpp, conversion of Llama models, `permute`.
    """
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, columns)


def gguf_tensors(shape: Shape, weights: dict[str, np.ndarray]) -> Iterator[Named]:
    """Yields the tensors of a GGUF file. Its qwen3 architecture orders rows as Hugging Face does."""
    for name, value in weights.items():
        if ".q_proj." in name and not shape.is_qwen3:
            value = interleave(value, shape.heads)
        elif ".k_proj." in name and not shape.is_qwen3:
            value = interleave(value, shape.kv_heads)
        yield gguf_name(name), value


def q8_0_bytes(values: np.ndarray) -> bytes:
    """Packs blocks of 32 values: a scale in f16, then 32 int8. Rounds halves away from zero."""
    blocks = values.reshape(-1, Q8_BLOCK)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    scaled = blocks * inverse
    rounded = np.copysign(np.floor(np.abs(scaled) + np.float32(0.5)), scaled)
    packed = np.empty(len(blocks), np.dtype([("scale", "<f2"), ("values", "i1", Q8_BLOCK)]))
    packed["scale"] = scale[:, 0]
    packed["values"] = rounded
    return packed.tobytes()


ENCODERS: dict[int, Callable[[np.ndarray], bytes]] = {
    GGML_F32: lambda values: values.tobytes(),
    GGML_BF16: lambda values: bf16_bits(values).tobytes(),
    GGML_Q8_0: q8_0_bytes,
}


def encoded_size(count: int, kind: int) -> int:
    return {GGML_F32: 4 * count, GGML_BF16: 2 * count, GGML_Q8_0: count // Q8_BLOCK * 34}[kind]


def gguf_string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_pair(key: str, value: str | int | float | bool | list[str] | list[int]) -> bytes:
    """Returns a key and a value: string, u32, f32, bool, or an array of strings or i32."""
    if isinstance(value, list):
        kind = 8 if isinstance(value[0], str) else 5
        items = (gguf_string(v) if isinstance(v, str) else struct.pack("<i", v) for v in value)
        body = struct.pack("<IIQ", 9, kind, len(value)) + b"".join(items)
    elif isinstance(value, str):
        body = struct.pack("<I", 8) + gguf_string(value)
    elif isinstance(value, bool):
        body = struct.pack("<I?", 7, value)
    elif isinstance(value, int):
        body = struct.pack("<II", 4, value)
    else:
        body = struct.pack("<If", 6, value)
    return gguf_string(key) + body


def gguf_pairs(shape: Shape, kind: int) -> dict:
    tokens, merges = vocabulary(shape.vocabulary)
    normal, control = 1, 3
    sizes = {
        "vocab_size": shape.vocabulary, "context_length": shape.context,
        "embedding_length": shape.hidden, "block_count": shape.layers,
        "feed_forward_length": shape.ffn, "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads, "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": shape.epsilon,
        "rope.dimension_count": shape.head_dim, "rope.freq_base": shape.rope_theta,
    }
    return {
        "general.architecture": shape.family, "general.name": "random",
        "general.alignment": ALIGNMENT, "general.file_type": FILE_TYPE[kind],
        **{f"{shape.family}.{key}": value for key, value in sizes.items()},
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [normal] * (len(tokens) - 1) + [control],
        "tokenizer.ggml.merges": [f"{a} {b}" for a, b in merges],
        "tokenizer.ggml.eos_token_id": shape.vocabulary - 1,
        "tokenizer.ggml.padding_token_id": shape.vocabulary - 1,
        "tokenizer.ggml.add_bos_token": False,
    }


def write_gguf(path: pathlib.Path, shape: Shape, weights: dict[str, np.ndarray],
               kind: int) -> None:
    """Writes a GGUF file with matrices of type `kind` (GGML_...) and gains in f32."""
    pairs = gguf_pairs(shape, kind)
    tensors = list(gguf_tensors(shape, weights))
    kinds = [kind if value.ndim == 2 else GGML_F32 for _, value in tensors]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    head += b"".join(gguf_pair(key, value) for key, value in pairs.items())
    offset = 0
    for (name, value), of in zip(tensors, kinds):
        head += gguf_string(name) + struct.pack("<I", value.ndim)
        head += struct.pack(f"<{value.ndim}Q", *reversed(value.shape))
        head += struct.pack("<IQ", of, offset)
        offset += encoded_size(value.size, of)
        offset += -offset % ALIGNMENT
    with path.open("wb") as file:
        file.write(head + b"\0" * (-len(head) % ALIGNMENT))
        for (_, value), of in zip(tensors, kinds):
            data = ENCODERS[of](value)
            file.write(data + b"\0" * (-len(data) % ALIGNMENT))


# -- all of it -------------------------------------------------------------------------------------

def make_model(shape: Shape, out: pathlib.Path, seed: int, dtypes: Sequence[str] = DTYPES) -> None:
    weights = random_weights(shape, seed)
    write_model_directory(out, shape, weights, "float32", with_weights="f32" in dtypes)
    if "f32" in dtypes:
        write_gguf(out / "model-f32.gguf", shape, weights, GGML_F32)
    if "bf16" in dtypes:
        write_model_directory(out / "bf16", shape, weights, "bfloat16")
        write_gguf(out / "model-bf16.gguf", shape, weights, GGML_BF16)
    if shape.ffn % Q8_BLOCK != 0 or shape.hidden % Q8_BLOCK != 0:
        print(f"no Q8_0: rows of {shape.ffn} values do not divide into blocks of {Q8_BLOCK}")
    elif "q8_0" in dtypes:
        write_gguf(out / "model-q8_0.gguf", shape, weights, GGML_Q8_0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("preset", choices=PRESETS)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    args = parser.parse_args()
    shape = PRESETS[args.preset]
    make_model(shape, args.out, args.seed, args.dtypes)
    print(f"{args.out}: {args.preset}, {num_parameters(shape):,} parameters, seed {args.seed}")


if __name__ == "__main__":
    main()
