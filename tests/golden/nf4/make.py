#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes nf4.safetensors: what bitsandbytes makes of some weights, and what it makes of that again.

Needs torch, safetensors and bitsandbytes (versions in README.md) on a processor; run it here.
"""
import bitsandbytes.functional as bnb
import torch
from safetensors.torch import save_file


def weights():
    """Yields names and weights; rows are multiples of 64 long."""
    draw = torch.Generator().manual_seed(20305)

    def normal(rows, cols, scale):
        return torch.randn(rows, cols, generator=draw) * scale

    yield "normal_f32", normal(6, 192, 0.02)
    # 320 blocks: the second group of scales is short.
    yield "normal_bf16", normal(20, 1024, 0.02).to(torch.bfloat16)
    yield "one_block", normal(1, 64, 0.5)
    spread = normal(8, 128, 1.0)
    spread *= 10.0 ** torch.arange(-5.0, 3.0).unsqueeze(1)  # a scale in every decade
    yield "spread", spread
    zeros = normal(4, 128, 0.1)
    zeros[1] = 0.0  # two blocks without a scale
    zeros[2, 64:] = 0.0
    zeros[3, :64] = -0.0
    yield "zeros", zeros
    yield "all_zero", torch.zeros(2, 64)
    outliers = normal(4, 256, 0.01)
    outliers[1, 70] = 30.0
    outliers[3, 255] = -70.0
    yield "outliers", outliers
    yield "equal_scales", torch.cat([normal(3, 128, 0.1).clamp(-0.05, 0.05), torch.full((1, 128), 0.05)])


def main():
    tensors = {
        "values": bnb.get_4bit_type("nf4", device="cpu"),
        "scale_values": bnb.create_dynamic_map(),
    }
    for name, weight in weights():
        codes, state = bnb.quantize_4bit(weight, blocksize=64, quant_type="nf4", compress_statistics=True)
        scales = bnb.dequantize_blockwise(state.absmax, state.state2) + state.offset
        tensors[name + ".weight"] = weight
        tensors[name + ".codes"] = codes.reshape(-1)
        tensors[name + ".block_codes"] = state.absmax.reshape(-1)
        tensors[name + ".group_scales"] = state.state2.absmax.reshape(-1)
        tensors[name + ".offset"] = state.offset.reshape(1)
        tensors[name + ".scales"] = scales.reshape(-1)
        state.dtype = torch.float32
        wide = bnb.dequantize_4bit(codes, state)
        state.dtype = torch.bfloat16
        tensors[name + ".bf16"] = bnb.dequantize_4bit(codes, state)
        assert torch.equal(tensors[name + ".bf16"], wide.to(torch.bfloat16)), name
        if weight.numel() < 4096:
            tensors[name + ".f32"] = wide
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, "nf4.safetensors")


if __name__ == "__main__":
    main()
