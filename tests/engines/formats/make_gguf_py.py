#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes gguf_py.gguf, a small file, with the reference writer.

Needs the packages gguf 0.19.0 and numpy. Usage: make_gguf_py.py OUT
"""
import sys

import gguf
import numpy as np


def values():
    """Returns the values that gguf_test.cpp expects."""
    i = np.arange(3 * 64, dtype=np.float32)
    factor = np.where(np.arange(3 * 64) % 7 == 0, np.float32(9), np.float32(1))
    return ((i - np.float32(40)) / np.float32(8) * factor).reshape(3, 64)


def main(out):
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_block_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(["a", "b", "c"])
    writer.add_token_types([1, 1, 3])
    writer.add_array("nested", [[1, 2], [3]])
    x = values()
    writer.add_tensor("f32", x)
    writer.add_tensor("f16", x.astype(np.float16))
    for kind in (gguf.GGMLQuantizationType.BF16, gguf.GGMLQuantizationType.Q8_0):
        writer.add_tensor(kind.name.lower(), gguf.quantize(x, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1])
