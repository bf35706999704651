"""Small models with random weights, and tokenizers for them, as transformers makes and saves them."""

import inspect
import json

import torch
import transformers
import transformers.modeling_rope_utils


def byte_tokenizer(folder, *special):
    """A byte-level BPE of 277 tokens, as GPT-2's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=277,
        special_tokens=list(special or ["<|endoftext|>"]),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog and then the other"] * 50, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {} if special else {"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


def word_tokenizer(folder, size):
    words = (
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        + [chr(97 + i) for i in range(26)]
        + ["##" + chr(97 + i) for i in range(26)]
    )
    (folder / "vocab.txt").write_text("\n".join(words + [f"w{i}" for i in range(size - len(words))]) + "\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": True, "tokenizer_class": "BertTokenizer"})
    )


def randomized(model):
    """Weights larger than initial ones, norms and biases other than one and zero: what is left out or mixed up
    shows."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(
                    noise
                    * (0.5 if "embed" in name or "wte" in name or "wpe" in name else 1.2 / parameter.shape[-1] ** 0.5)
                )
            elif name.endswith("weight"):
                parameter.copy_(1 + 0.3 * noise)
            else:
                parameter.copy_(0.3 * noise)
    return model.eval()


def gpt2(**changes):
    config = transformers.GPT2Config(
        vocab_size=300, n_positions=96, n_embd=48, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0, **changes
    )
    return randomized(transformers.GPT2LMHeadModel(config))


def llama(rope=None, family="Llama", **changes):
    """A Llama, Mistral, Qwen2 or Qwen3."""
    keys = dict(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=112,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=None,
    )
    keys.update(changes)
    if transformers.__version__ >= "5":
        keys["rope_parameters"] = {"rope_theta": 10000.0, "rope_type": "default", **(rope or {})}
    else:
        keys["rope_scaling"] = rope
    config = getattr(transformers, family + "Config")(**keys)
    return randomized(getattr(transformers, family + "ForCausalLM")(config))


def bert(kind, **changes):
    config = transformers.BertConfig(
        vocab_size=120,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=80,
        max_position_embeddings=64,
        **changes,
    )
    return randomized(kind(config))


def roberta(kind, **changes):
    config = transformers.RobertaConfig(
        vocab_size=300,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=80,
        max_position_embeddings=66,
        **changes,
    )
    return randomized(kind(config))


ESM_TOKENS = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]


def esm(kind, **changes):
    keys = dict(
        vocab_size=len(ESM_TOKENS),
        mask_token_id=ESM_TOKENS.index("<mask>"),
        pad_token_id=1,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=80,
        max_position_embeddings=66,
        position_embedding_type="rotary",
        token_dropout=True,
    )
    keys.update(changes)
    return randomized(kind(transformers.EsmConfig(**keys)))


def esm_tokenizer(folder):
    (folder / "vocab.txt").write_text("\n".join(ESM_TOKENS))
    names = dict(cls="<cls>", pad="<pad>", eos="<eos>", unk="<unk>", mask="<mask>")
    keys = {f"{name}_token": token for name, token in names.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "EsmTokenizer", **keys}))


def albert(kind, **changes):
    config = transformers.AlbertConfig(
        vocab_size=120,
        embedding_size=24,
        hidden_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=80,
        max_position_embeddings=64,
        **changes,
    )
    return randomized(kind(config))


def save(model, folder, shard="5GB", pickled=False):
    if pickled:
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
    else:
        model.save_pretrained(folder, max_shard_size=shard)


def unsupported():
    """name -> why this version of transformers cannot be compared with."""
    reasons = {}
    if not hasattr(transformers, "Qwen3Config"):
        reasons["qwen3"] = reasons["qwen3_tied_bfloat16"] = "it has no Qwen3"
    if '"mscale"' not in inspect.getsource(transformers.modeling_rope_utils):
        reasons["llama_yarn_magnitudes"] = "it ignores mscale and mscale_all_dim of yarn"
    return reasons


def random_models():
    """name -> (function that makes the model, how it is saved), also of the unsupported()."""
    Bert, Masked = transformers.BertModel, transformers.BertForMaskedLM
    llama3 = dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
    )
    yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
    magnitudes = dict(yarn, mscale=1.0, mscale_all_dim=0.8)
    table = {
        "gpt2": (gpt2, {}),
        "gpt2_bfloat16": (lambda: gpt2().to(torch.bfloat16), {}),
        "gpt2_shards": (gpt2, {"shard": "60KB"}),
        "gpt2_pickle": (lambda: gpt2(activation_function="gelu", n_inner=100), {"pickled": True}),
        "gpt2_untied": (lambda: gpt2(tie_word_embeddings=False), {}),
        "llama": (llama, {}),
        "llama_tied_float16": (lambda: llama(tie_word_embeddings=True).to(torch.float16), {}),
        "llama_wide_heads": (lambda: llama(head_dim=24), {}),
        "llama_llama3": (lambda: llama(llama3), {}),
        "llama_linear": (lambda: llama(dict(rope_type="linear", factor=3.0)), {}),
        "llama_yarn": (lambda: llama(yarn), {}),
        "llama_yarn_magnitudes": (lambda: llama(magnitudes), {}),
        "mistral": (lambda: llama(family="Mistral", head_dim=24, sliding_window=7), {}),
        "mistral_no_window": (lambda: llama(family="Mistral", sliding_window=None).to(torch.bfloat16), {}),
        "qwen2": (lambda: llama(family="Qwen2"), {}),
        "qwen2_window_yarn": (
            lambda: llama(yarn, "Qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=0),
            {},
        ),
        "qwen2_tied_pickle": (lambda: llama(family="Qwen2", tie_word_embeddings=True), {"pickled": True}),
        "qwen3": (lambda: llama(family="Qwen3", head_dim=24), {}),
        "qwen3_tied_bfloat16": (
            lambda: llama(family="Qwen3", head_dim=16, tie_word_embeddings=True).to(torch.bfloat16),
            {},
        ),
        "bert": (lambda: bert(Bert), {}),
        "bert_masked": (lambda: bert(Masked, type_vocab_size=3), {}),
        "bert_untied": (lambda: bert(Masked, tie_word_embeddings=False, hidden_act="relu"), {}),
        "bert_pretraining_pickle": (lambda: bert(transformers.BertForPreTraining), {"pickled": True}),
        "roberta": (lambda: roberta(transformers.RobertaModel), {}),
        "roberta_masked": (lambda: roberta(transformers.RobertaForMaskedLM, type_vocab_size=1), {}),
        "roberta_pickle": (lambda: roberta(transformers.RobertaForMaskedLM), {"pickled": True}),
        "esm": (lambda: esm(transformers.EsmModel), {}),
        "esm_masked": (lambda: esm(transformers.EsmForMaskedLM), {}),
        "esm_masked_pickle": (lambda: esm(transformers.EsmForMaskedLM), {"pickled": True}),
        "esm_embedding_norm": (
            lambda: esm(transformers.EsmForMaskedLM, token_dropout=False, emb_layer_norm_before=True),
            {},
        ),
        "albert": (lambda: albert(transformers.AlbertModel), {}),
        "albert_masked": (lambda: albert(transformers.AlbertForMaskedLM), {}),
        "albert_gelu_pickle": (lambda: albert(transformers.AlbertForMaskedLM, hidden_act="gelu"), {"pickled": True}),
    }
    return table


def pickled_only(how):
    return how.get("pickled", False)
