#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes llama-nf4/: a small random model as transformers saves it when bitsandbytes has quantised it,
and logits.safetensors, what it computes.

Needs torch, transformers, accelerate and bitsandbytes (versions in README.md) on a processor.
"""
import shutil
import tempfile

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

IDS = [3, 1, 4, 1, 5, 9, 2, 6, 53, 58, 97]


def main():
    torch.manual_seed(14314)
    config = LlamaConfig(vocab_size=120, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                         tie_word_embeddings=False, initializer_range=0.1, bos_token_id=None, eos_token_id=0)
    with tempfile.TemporaryDirectory() as plain:
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(plain)
        model = AutoModelForCausalLM.from_pretrained(
            plain, dtype=torch.bfloat16, device_map="cpu",
            quantization_config=BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                bnb_4bit_compute_dtype=torch.bfloat16))
    shutil.rmtree("llama-nf4", ignore_errors=True)
    model.save_pretrained("llama-nf4")
    # Logits in float32 from the weights that the blocks stand for.
    wide = LlamaForCausalLM(config)
    state = {}
    for name, module in model.named_modules():
        if type(module).__name__ == "Linear4bit":
            import bitsandbytes.functional as bnb
            module.weight.quant_state.dtype = torch.float32
            state[name + ".weight"] = bnb.dequantize_4bit(module.weight.data, module.weight.quant_state)
        elif hasattr(module, "weight") and not list(module.children()):
            state[name + ".weight"] = module.weight.data.float()
    wide.load_state_dict(state)
    with torch.no_grad():
        logits = wide.float().eval()(torch.tensor([IDS])).logits[0]
    save_file({"ids": torch.tensor(IDS, dtype=torch.int32), "logits": logits.contiguous(),
               "q_proj": state["model.layers.1.self_attn.q_proj.weight"].contiguous()}, "logits.safetensors")


if __name__ == "__main__":
    main()
