#!/usr/bin/env python3
"""Makes tests/conversion/families/NAME: tiny random models that transformers saves, and its logits of them.

Each directory has config.json, model.safetensors (bfloat16), vocab.txt, and expected.safetensors with `tokens` [n] and
the `logits` [n, vocabulary] (of a model without a head its final hidden states) that transformers computes in float64.
tests/conversion/test_families.cpp compares imports with them.

    PYTHON tests/parity/make_import_goldens.py

Made with torch 2.15.0 and transformers 5.23.0.
"""

import pathlib
import shutil

import torch
import transformers
from safetensors.torch import save_file

from imports import doubled, reference
from random_models import ESM_TOKENS, esm_tokenizer, randomized

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "conversion" / "families"
MASK = ESM_TOKENS.index("<mask>")
TOKENS = [0, 5, 9, MASK, 24, 3, 7, 7, 11, MASK, 20, 2]
SIZES = dict(
    vocab_size=len(ESM_TOKENS) + 2,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
)
DECODER = dict(num_key_value_heads=2, max_position_embeddings=64, pad_token_id=None, bos_token_id=0, eos_token_id=2)
ENCODER = dict(max_position_embeddings=18, pad_token_id=1)
ESM = dict(position_embedding_type="rotary", token_dropout=True, mask_token_id=MASK)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
YARN = dict(rope_type="yarn", factor=4.0)
ROPE = dict(rope_theta=10000.0, original_max_position_embeddings=16)
WINDOW = dict(use_sliding_window=True, sliding_window=5, max_window_layers=0)


def families():
    """name -> class, config."""
    return {
        "gpt2": ("GPT2LMHeadModel", dict(n_positions=18, n_inner=24, bos_token_id=0, eos_token_id=2)),
        "llama3": ("LlamaForCausalLM", dict(DECODER, rope_parameters=dict(ROPE, **LLAMA3))),
        "llama_yarn": ("LlamaForCausalLM", dict(DECODER, rope_parameters=dict(ROPE, **YARN))),
        "bert": ("BertForMaskedLM", ENCODER),
        "albert": ("AlbertForMaskedLM", dict(ENCODER, embedding_size=8, bos_token_id=0, eos_token_id=2)),
        "mistral": ("MistralForCausalLM", dict(DECODER, sliding_window=5, head_dim=6)),
        "qwen2": ("Qwen2ForCausalLM", DECODER),
        "qwen2_window": ("Qwen2ForCausalLM", dict(DECODER, tie_word_embeddings=True, **WINDOW)),
        "qwen3": ("Qwen3ForCausalLM", dict(DECODER, head_dim=6)),
        "roberta": ("RobertaForMaskedLM", ENCODER),
        "roberta_headless": ("RobertaModel", dict(ENCODER, type_vocab_size=1)),
        "esm": ("EsmForMaskedLM", dict(ENCODER, **ESM)),
    }


def main():
    for name, (kind, keys) in families().items():
        kind = getattr(transformers, kind)
        folder = FOLDER / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        randomized(kind(kind.config_class(**SIZES, **keys))).to(torch.bfloat16).save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        esm_tokenizer(folder)
        model = doubled(kind.from_pretrained(folder, dtype=torch.float32).eval())
        logits = torch.from_numpy(reference(model, [TOKENS], [None])[0]).float().contiguous()
        save_file({"tokens": torch.tensor(TOKENS), "logits": logits}, folder / "expected.safetensors")
        print(name, tuple(logits.shape), f"up to {logits.abs().max():.2f}")


if __name__ == "__main__":
    main()
