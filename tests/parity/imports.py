#!/usr/bin/env python3
"""Imported models against PyTorch and transformers: logits, and the way back.

For each model: furlong convert imports it, furlong logits computes its logits (of models without a head their final
hidden states) for rows of different lengths, and the largest difference from transformers must be at most 1e-5 both in
float64, and that of Furlong's float32 at most 1e-4 from transformers in float32, or from what that rounds: transformers
in float64. Where the two float32 are further apart, both distances are printed, and for Llama that of PyTorch's float32
from itself with the neurons of each feedforward in other orders: the same function, other roundings. furlong export
writes the model back: every tensor must have the name, type and bits that it had (of GGUF: gguf-py's dequantized
values, in float32), and transformers must load all of them: from_pretrained of 4.46 loses the output bias of RoBERTa
and ALBERT, in the original too, which is then printed.

Models are the real ones that scripts/fetch_models.sh fetches, and random ones that transformers makes: GPT-2 (also in
bfloat16, in shards, as a pickle), Llama with grouped keys and each rotary scaling, Mistral and Qwen2 with and without
window, Qwen3, BERT with and without head, with segments, untied, RoBERTa, ALBERT and ESM-2 with and without head. What
the version of transformers does not support is skipped, with the reason. The decoders are also written as GGUF, by
gguf-py's table of names, and must give the same logits as the directory.

  tests/parity/imports.py --furlong build/release/bin/furlong --models data/models [--only gpt2,smollm2]

Run with torch 2.15.0, transformers 5.23.0, safetensors 0.8.0, gguf 0.19.0, tokenizers and h5py (requirements.txt), or
with transformers 4.46.3; minutes on two cores.
"""

import argparse
import copy
import json
import pathlib
import subprocess
import sys
import tempfile
import types

import h5py
import numpy as np
import torch
import transformers
from safetensors.torch import load_file

from random_models import byte_tokenizer, esm_tokenizer, pickled_only, random_models, save, unsupported, word_tokenizer

TOLERANCE = {"float32": 1e-4, "float64": 1e-5}
DTYPE = "dtype" if transformers.__version__ >= "5" else "torch_dtype"
DECODERS = ("llama", "mistral", "qwen2", "qwen3")
DECODER_ROTARY = [f"{name}RotaryEmbedding" for name in ("Llama", "Mistral", "Qwen2", "Qwen3")]
HEADLESS = ("BertModel", "AlbertModel", "RobertaModel", "EsmModel")


def furlong(program, *arguments):
    done = subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(
            f"furlong {' '.join(map(str, arguments))}: exit status {done.returncode}: "
            f"{done.stderr.strip().splitlines()[-1]}"
        )
    return done.stdout


# ---- GGUF of random models -------------------------------------------------------------------------------------------


def has_gguf(model):
    """GGUF has no windows, and the scaled ones are written in the tests of Furlong."""
    config = model.config
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    plain = rope.get("rope_type", "default") == "default"
    return config.model_type in DECODERS and plain and not getattr(config, "sliding_window", None)


def write_gguf(model, folder, path):
    """As llama.cpp's convert_hf_to_gguf.py writes it, in float32: the rows of queries and keys of Llama and Mistral are
    reordered, those of Qwen are not."""
    from gguf import MODEL_ARCH, GGUFWriter, TokenType, get_tensor_name_map

    config = model.config
    kind = "llama" if config.model_type == "mistral" else config.model_type
    names = get_tensor_name_map(MODEL_ARCH[kind.upper()], config.num_hidden_layers)
    writer = GGUFWriter(path, kind)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = sorted(tokenizer["vocab"], key=tokenizer["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2" if kind.startswith("qwen") else "gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] + [TokenType.NORMAL] * (len(tokens) - 1))
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["merges"]])
    state = {name: tensor.float() for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        state.pop("lm_head.weight")
    for name, tensor in state.items():
        values = tensor.numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if kind == "llama" and heads:
            values = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")) or name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return state


def check_gguf(program, model, folder, rows, checkpoint, work):
    """The same logits as from the directory, and all tensors back in float32."""
    state = write_gguf(model, folder, work / "model.gguf")
    furlong(program, "convert", work / "model.gguf", work / "gguf.h5")
    none = [None] * len(rows)
    found, wanted = (
        computed(program, file, model, rows, none, work, "float64") for file in (work / "gguf.h5", checkpoint)
    )
    assert np.array_equal(found, wanted), f"GGUF: logits differ by {np.abs(found - wanted).max():.1e}"
    furlong(program, "export", work / "gguf.h5", work / "back_gguf")
    again = transformers.AutoModelForCausalLM.from_pretrained(work / "back_gguf", **{DTYPE: torch.float32}).state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in state.items()), "GGUF: exported values differ"
    return compare_tensors(state, work / "back_gguf")


# ---- real models -----------------------------------------------------------------------------------------------------


def gguf_state(path):
    """Tensors of a Llama in GGUF under transformers' names: dequantized by gguf-py, rotary rows put back into
    halves."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    reader = GGUFReader(path)
    field = lambda key: reader.fields[key].contents()
    heads, key_heads = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    inner = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    outer = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    state = {}
    for tensor in reader.tensors:
        values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        values = values.reshape([int(n) for n in reversed(tensor.shape)])
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            if parts[2] in ("attn_q", "attn_k"):
                n = heads if parts[2] == "attn_q" else key_heads
                values = values.reshape(n, -1, 2, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
            name = f"model.layers.{parts[1]}.{inner[parts[2]]}.weight"
        else:
            name = outer[parts[0]] + ".weight"
        state[name] = torch.from_numpy(values.copy())
    config = transformers.LlamaConfig(
        vocab_size=state["model.embed_tokens.weight"].shape[0],
        hidden_size=field("llama.embedding_length"),
        intermediate_size=field("llama.feed_forward_length"),
        num_hidden_layers=field("llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        max_position_embeddings=field("llama.context_length"),
        rms_norm_eps=field("llama.attention.layer_norm_rms_epsilon"),
        tie_word_embeddings="lm_head.weight" not in state,
        rope_parameters={"rope_type": "default", "rope_theta": field("llama.rope.freq_base")},
    )
    model = transformers.LlamaForCausalLM(config)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model.eval(), state


def pickled(kind, folder):
    """A model from config.json and a state dict, whatever heads there are besides."""
    config = transformers.AutoConfig.from_pretrained(folder)
    state = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    model = kind(config)
    missing, _ = model.load_state_dict(state, strict=False)
    assert all("position_ids" in name or "pooler" in name for name in missing), missing
    model.tie_weights()
    return model.eval(), state


def real_models(models):
    """name -> (source, function that gives the model and the tensors it came from)."""
    return {
        "antiberty": (models / "antiberty", lambda path: pickled(transformers.BertForMaskedLM, path)),
        "rxnmapper": (models / "rxnmapper", lambda path: pickled(transformers.AlbertForMaskedLM, path)),
        "minilm": (
            models / "minilm",
            lambda path: (
                transformers.BertModel.from_pretrained(path, **{DTYPE: torch.float32}).eval(),
                load_file(path / "model.safetensors"),
            ),
        ),
        "smollm2": (models / "smollm2" / "model.gguf", gguf_state),
    }


# ---- comparison ------------------------------------------------------------------------------------------------------


def rows_for(model, longest):
    random = np.random.default_rng(3)
    lengths = [longest, longest // 2 + 1, 1, longest - 3]
    # Of RoBERTa and ESM the padding token has a position of its own, also within a text.
    first = 2 if model.config.model_type in ("roberta", "esm") else 0
    return [random.integers(first, model.config.vocab_size, n).tolist() for n in lengths]


def reference(model, rows, segments):
    results = []
    with torch.no_grad():
        for row, kinds in zip(rows, segments):
            keys = {"token_type_ids": torch.tensor([kinds])} if kinds else {}
            out = model(input_ids=torch.tensor([row]), attention_mask=torch.ones(1, len(row), dtype=torch.long), **keys)
            # A pretraining head calls them prediction_logits.
            result = getattr(out, "logits", None)
            result = getattr(out, "prediction_logits", None) if result is None else result
            results.append((out.last_hidden_state if result is None else result)[0].double().numpy())
    return results


def doubled(model):
    """The model in float64 throughout: transformers keeps Llama's norms and rotary angles in float32, whatever the
    model is in."""
    model = copy.deepcopy(model).double()

    def norm(self, x):
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon))

    def rotary(self, x, position_ids):
        config = model.config  # of 4.46's modules, some have none
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        base = (getattr(config, "rope_parameters", None) or vars(config))["rope_theta"]
        frequency = base ** (torch.arange(0, width, 2, dtype=torch.float64) / -width)
        angle = (position_ids[..., None] * frequency).repeat(1, 1, 2)
        return angle.cos(), angle.sin()

    def rotated(self, q, k):
        frequency = 10000.0 ** (torch.arange(0, q.shape[-1], 2, dtype=torch.float64) / -q.shape[-1])
        angle = (torch.arange(q.shape[-2])[:, None] * frequency).repeat(1, 2)
        turn = lambda x: torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1)
        return tuple(x * angle.cos() + turn(x) * angle.sin() for x in (q, k))

    for module in model.modules():
        kind = type(module).__name__
        if kind.endswith("RMSNorm"):
            module.forward = types.MethodType(norm, module)
        if kind in DECODER_ROTARY and getattr(module, "rope_type", "default") == "default":
            module.forward = types.MethodType(rotary, module)
        if kind == "EsmRotaryEmbedding":  # 5.x
            module.forward = types.MethodType(rotary, module)
        if kind == "RotaryEmbedding":  # ESM of 4.46
            module.forward = types.MethodType(rotated, module)
    return model


def reordered(model, generator):
    """A Llama with the neurons of each feedforward in another order."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for layer in model.model.layers:
            order = torch.randperm(model.config.intermediate_size, generator=generator)
            for rows in (layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight):
                rows.copy_(rows[order])
            layer.mlp.down_proj.weight.copy_(layer.mlp.down_proj.weight[:, order])
    return model


def report_rounding(model, rows, segments, found, narrow, wide):
    """Whose float32 is how far from float64, and whether PyTorch's is any nearer to itself."""
    print(
        f"    from float64: Furlong's float32 {largest(found, wide):.1e}, "
        f"root mean square {root_mean_square(found, wide):.1e}; "
        f"PyTorch's {largest(narrow, wide):.1e}, {root_mean_square(narrow, wide):.1e}"
    )
    if model.config.model_type in DECODERS:
        generator = torch.Generator().manual_seed(1)
        others = [reference(reordered(model, generator), rows, segments) for _ in range(4)]
        print(
            f"    PyTorch's float32 with its neurons in 4 other orders: "
            f"from itself {max(largest(o, narrow) for o in others):.1e}, "
            f"from float64 {max(largest(o, wide) for o in others):.1e}"
        )


def has_logits(model):
    return type(model).__name__ not in HEADLESS


def largest(a, b):
    return max(float(np.abs(x[: len(y)] - y).max()) for x, y in zip(a, b))


def root_mean_square(a, b):
    return float(np.sqrt(np.concatenate([np.square(x[: len(y)] - y).ravel() for x, y in zip(a, b)]).mean()))


def computed(program, checkpoint, model, rows, segments, work, dtype):
    kind = "logits" if has_logits(model) else "hidden"
    source, target = work / "ids.h5", work / "out.h5"
    n = max(map(len, rows))
    with h5py.File(source, "w") as file:
        file["tokens"] = np.array([row + [0] * (n - len(row)) for row in rows], dtype=np.int32)
        file["lengths"] = np.array([len(row) for row in rows], dtype=np.int64)
        if segments[0]:
            file["segments"] = np.array([row + [0] * (n - len(row)) for row in segments], dtype=np.int32)
    furlong(
        program,
        "logits",
        checkpoint,
        source,
        "--output",
        target,
        "--dtype",
        dtype,
        *(["--hidden"] if kind == "hidden" else []),
    )
    with h5py.File(target) as file:
        return file[kind][:].astype(np.float64)


def compare_logits(program, checkpoint, model, rows, segments, work):
    """Largest differences of Furlong's float32 and float64, and PyTorch's float32 from its float64; the largest
    logit."""
    narrow = reference(model, rows, segments)
    wide = reference(doubled(model), rows, segments)
    found = computed(program, checkpoint, model, rows, segments, work, "model")
    exact = computed(program, checkpoint, model, rows, segments, work, "float64")
    pooled = None
    if not has_logits(model):  # sentence embeddings: the mean of the states, of length 1
        unit = lambda x: x / np.linalg.norm(x)
        pooled = max(
            float(np.abs(unit(found[i, : len(row)].mean(0)) - unit(narrow[i].mean(0))).max())
            for i, row in enumerate(rows)
        )
    if largest(found, narrow) > TOLERANCE["float32"]:
        report_rounding(model, rows, segments, found, narrow, wide)
    differences = {
        "float32": largest(found, narrow),
        "from float64": largest(found, wide),
        "float64": largest(exact, wide),
    }
    return differences, largest(narrow, wide), max(float(np.abs(w).max()) for w in wide), pooled


def compare_tensors(state, folder):
    """Names, types and bits; returns how many tensors there are."""
    found = load_file(folder / "model.safetensors")
    assert set(found) == set(state), f"names differ: {sorted(set(found) ^ set(state))[:4]}"
    for name, tensor in state.items():
        assert found[name].dtype == tensor.dtype, f"{name}: {found[name].dtype}, expected {tensor.dtype}"
        assert torch.equal(found[name], tensor), f"{name}: other values"
    return len(state)


def unlike(model, folder):
    """Names of weights that from_pretrained gives other bits than the model has."""
    # Bits of weights, not of logits: those depend on where in memory PyTorch finds the weights.
    weights = model.state_dict()
    found = type(model).from_pretrained(folder, **{DTYPE: torch.float32}).state_dict()
    assert set(weights) == set(found), f"weights differ: {sorted(set(weights) ^ set(found))[:4]}"
    return sorted(name for name in weights if not torch.equal(weights[name], found[name]))


def check(name, source, model, state, arguments, work):
    program, longest = arguments.furlong, 40
    encoder = model.config.model_type in ("bert", "roberta", "albert")
    rows = rows_for(model, longest)
    kinds = getattr(model.config, "type_vocab_size", 0) if encoder else 0
    segments = [
        (
            [i * kinds // len(row) for i in range(len(row))]
            if kinds > 1 and name not in ("antiberty", "rxnmapper", "minilm")
            else None
        )
        for row in rows
    ]
    checkpoint = work / "model.h5"
    furlong(program, "convert", source, checkpoint)
    differences, noise, most, pooled = compare_logits(program, checkpoint, model, rows, segments, work)
    back = work / "back"
    furlong(program, "export", checkpoint, back)
    tensors = compare_tensors(state, back)
    lost = unlike(model, back)
    same = not lost or (source.is_dir() and lost == unlike(model, source))
    loads = f"OTHER VALUES of {lost[:4]}" if lost else "them all"
    if lost and same:
        loads = f"all but {lost}, as from the original"
    text = f"{name:<24} float32 {differences['float32']:.1e}, from float64 {differences['from float64']:.1e} "
    text += f"(PyTorch's: {noise:.1e}), float64 {differences['float64']:.1e}, of up to {most:.3g}"
    if pooled is not None:
        text += f", of embeddings {pooled:.1e}"
    text += f"; {tensors} tensors back bit for bit; transformers loads {loads}"
    if has_gguf(model) and source.is_dir():
        text += f"; GGUF equal, {check_gguf(program, model, source, rows, checkpoint, work)} tensors"
    print(text, flush=True)
    near = min(differences["float32"], differences["from float64"]) <= TOLERANCE["float32"]
    return near and differences["float64"] <= TOLERANCE["float64"] and same


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--furlong", type=pathlib.Path, default=pathlib.Path("build/release/bin/furlong"))
    parser.add_argument("--models", type=pathlib.Path, default=pathlib.Path("data/models"))
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    only = set(filter(None, arguments.only.split(",")))
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    passed, failures, skipped = 0, [], []

    def attempt(name, make):
        nonlocal passed
        if only and name not in only:
            return
        with tempfile.TemporaryDirectory() as folder:
            work = pathlib.Path(folder)
            try:
                if check(name, *make(work), arguments, work):
                    passed += 1
                else:
                    failures.append(name)
            except (AssertionError, RuntimeError) as error:
                print(f"{name:<26} {error}", flush=True)
                failures.append(name)

    for name, (make, how) in random_models().items():
        if name in unsupported():
            skipped.append(f"{name} (transformers {transformers.__version__}: {unsupported()[name]})")
            continue

        def made(work, make=make, how=how):
            folder = work / "source"
            folder.mkdir()
            model = make()
            save(model, folder, **how)
            if model.config.model_type in ("gpt2", *DECODERS):
                byte_tokenizer(folder)
            elif model.config.model_type == "roberta":
                byte_tokenizer(folder, "<s>", "<pad>", "</s>", "<unk>", "<mask>")
            elif model.config.model_type == "esm":
                esm_tokenizer(folder)
            else:
                word_tokenizer(folder, model.config.vocab_size)
            files = list(folder.glob("*.safetensors"))
            state = {}
            for file in files:
                state.update(load_file(file))
            if not files:
                state = torch.load(folder / "pytorch_model.bin", weights_only=True)
            if pickled_only(how):
                return folder, model, state
            # Read back: model.float() would keep rotary frequencies that were rounded on the way.
            wide = type(model).from_pretrained(folder, **{DTYPE: torch.float32}).eval()
            wide.load_state_dict(model.state_dict())  # all weights, whatever from_pretrained lost
            return folder, wide, state

        attempt(name, made)
    for name, (source, load) in real_models(arguments.models).items():
        if not source.exists():
            skipped.append(f"{name} (not in {arguments.models}: scripts/fetch_models.sh)")
            continue
        attempt(name, lambda work, source=source, load=load: (source, *load(source)))
    skipped = [text for text in skipped if not only or text.split(" ")[0] in only]
    print(f"{passed} passed, {len(failures)} failed, {len(skipped)} skipped", *skipped, sep="\n    ")
    if failures:
        sys.exit(f"failed: {', '.join(failures)}")


if __name__ == "__main__":
    main()
