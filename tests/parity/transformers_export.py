#!/usr/bin/env python3
"""Models that `furlong export` writes for transformers (trust_remote_code), against Furlong itself.

For each of a table of small models, whose weights are random:
  - AutoModel* loads the directory. Its logits in float64 are within 1e-6 of `furlong logits --dtype float64`. In
    float32 the two are within 1e-4, or Furlong's float32 is no farther from float64 than twice PyTorch's.
  - A decoder generates the same 200 greedy tokens with and without a cache, and from a prompt with left padding; with a
    cache it computes each token once, and of the prompt the last logits only.
  - Logits are the same in segments of 64 tokens, and of each row without padding; rows of padding alone and bfloat16
    give finite ones.
  - Random projections and constants of attention are those of the file in float16 and bfloat16, too.
  - Gradients are the same with gradient checkpointing, and over two batches that Trainer accumulates.
  - `furlong convert` reads the directory back bit for bit.
  - 20 steps of Trainer lower the loss. `furlong convert` reads what Trainer saved bit for bit, and Furlong's logits of
    it are those of transformers.

    PYTHON tests/parity/transformers_export.py --furlong build/release/bin/furlong [--only NAME,...]

Needs torch, transformers (4.46 or later), accelerate, safetensors and h5py.
"""

import argparse
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

import accelerate
import h5py
import torch

# transformers copies a model's code here, by the name of its folder: another run must not share it.
MODULES = tempfile.TemporaryDirectory()
os.environ["HF_MODULES_CACHE"] = MODULES.name

import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, Trainer, TrainingArguments

import random_models
from export_table import model_table

VOCABULARY, LENGTHS = 60, [1, 7, 67, 90]
DTYPE = "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"


def furlong(program, *arguments):
    result = subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True)
    assert result.returncode == 0, f"furlong {' '.join(map(str, arguments))}: {result.stderr.strip()}"
    return result.stdout


def labeled_data(program, work, objective):
    table, store = work / "labeled.tsv", work / "labeled.h5"
    words = ["alpha", "beta", "gamma", "delta", "one", "two", "three"]
    rows = []
    for i in range(60):
        text = " ".join(words[(i * k) % 7] for k in range(1, 5))
        label = {
            "pair_classification": f"{text[::-1]}\t{'even odd third'.split()[i % 3]}",
            "regression": f"{20 + i % 7}\t{-0.01 * i}",
            "multi_label_classification": ";".join("abc"[k] for k in range(3) if i >> k & 1),
            "token_classification": "".join("v" if letter in "aeiou" else "c" for letter in text),
        }.get(objective, "ab"[i % 2])
        rows.append(f"{text}\t{label}")
    table.write_text("\n".join(rows) + "\n")
    extra = {
        "pair_classification": ["--second-text-field", "2", "--label-field", "3"],
        "regression": ["--label-type", "number", "--label-field", "2,3"],
        "multi_label_classification": ["--label-type", "set"],
        "token_classification": ["--label-type", "token"],
    }.get(objective, [])
    furlong(program, "prepare", "labeled", table, "--output", store, "--split", "train:0.6,validation:0.4", *extra)
    return store


def trained(program, work, model, attention, objective):
    """A run of two steps (with adapters of 20: they begin as zero)."""
    model = {"n_layers": 2, "d_model": 32, "n_heads": 4, "d_feedforward": 48, "max_sequence_length": 256, **model}
    labels = objective not in ("next_token", "masked_tokens")
    pooling = model.pop("pooling", "mean")
    head = {"pooling": pooling} if labels and objective != "token_classification" else {}
    steps = 20 if "lora_rank" in model else 2
    if not labels:
        model["vocabulary_size"] = VOCABULARY
    data = {"task": "copy", "sequence_length": 32, "batch_size": 2}
    if labels:
        data = {"dataset": str(labeled_data(program, work, objective)), "sequence_length": 32, "batch_size": 2}
    config = {
        "seed": 1,
        "run_directory": str(work / "run"),
        "model": {**model, "attention": attention},
        "data": data,
        "objective": {"name": objective, **head},
        "optimizer": {"learning_rate": 0.02},
        "schedule": {"name": "constant", "warmup_steps": 0},
        "trainer": {"max_steps": steps, "validate_every": steps, "validation_batches": 1},
        "checkpoint": {"every": steps},
    }
    file = work / "config.yaml"
    file.write_text(json.dumps(config))
    furlong(program, "train", file)
    return work / "run"


def randomize(folder):
    """Weights larger than initial ones, gains, biases and constants other than one and zero."""
    generator = torch.Generator().manual_seed(7)
    tensors = load_file(folder / "model.safetensors")
    signed = json.loads((folder / "config.json").read_text()).get("signed_features")  # models without features lack it
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or name.endswith((".directions", ".statistics")):
            continue
        noise, end = torch.randn(tensor.shape, generator=generator), name.split(".")[-1]
        if end in ("gain", "output_norm"):
            value = 1 + 0.3 * noise
        elif end == "oprf_a":
            value = -0.05 * noise.abs()
        elif end == "scaling":
            value = 1 + 0.3 * noise.abs()
        elif end in ("query_features", "key_features") or "short_convolution" in name:
            value = tensor + 0.2 * noise
        elif "embedding.weight" in name:
            value = 0.5 * noise
        elif tensor.dim() == 1 or end.endswith("_center"):
            value = 0.3 * noise
        else:
            value = noise / tensor.shape[-1] ** 0.5
        # Sums of weights of either sign cancel where queries and keys are long; no float32 knows such a row.
        if signed and "query_key_value" in name:
            value[: 2 * len(value) // 3] *= 0.4
        tensors[name] = value.to(tensor.dtype).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def foreign(program, work, name):
    """A model of transformers, its attention replaced."""
    bert = lambda: random_models.bert(transformers.BertModel)
    make, attention = {"from_bert": (bert, "elu1"), "from_llama": (random_models.llama, "windowed:8+hedgehog")}[name]
    source = work / "source"
    source.mkdir()
    model = make()
    random_models.save(model, source)
    if name == "from_bert":
        random_models.word_tokenizer(source, model.config.vocab_size)
    else:
        random_models.byte_tokenizer(source)
    furlong(program, "convert", source, work / "foreign.h5", "--attention", attention)
    return work / "foreign.h5"


def same_tensors(a, b):
    a, b = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
    a, b = ({n: t for n, t in x.items() if not n.startswith("carried.")} for x in (a, b))
    assert set(a) == set(b), f"names differ: {sorted(set(a) ^ set(b))[:4]}"
    for name in a:
        assert a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]), f"{name}: other values"
    return len(a)


def loaded(folder, loader, dtype):
    return loader.from_pretrained(folder, trust_remote_code=True, **{DTYPE: dtype}).eval()


def doubled(folder, loader):
    """In float64 from the first operation on: what the stored weights mean."""
    return loaded(folder, loader, torch.float64)


def inputs_for(config):
    generator = torch.Generator().manual_seed(3)
    lengths = [min(length, config.max_position_embeddings) for length in LENGTHS]
    rows, n = len(lengths), max(lengths)
    ids = torch.randint(0, config.vocab_size, (rows, n), generator=generator)
    mask = (torch.arange(n)[None] < torch.tensor(lengths)[:, None]).long()
    result = {"input_ids": ids * mask, "attention_mask": mask}
    if config.type_vocab_size > 1:
        result["token_type_ids"] = torch.randint(0, config.type_vocab_size, (rows, n), generator=generator)
    return result


def of_furlong(program, checkpoint, inputs, work, dtype, hidden):
    source, target = work / "ids.h5", work / "out.h5"
    with h5py.File(source, "w") as file:
        file["tokens"], file["lengths"] = inputs["input_ids"].int().numpy(), inputs["attention_mask"].sum(1).numpy()
        if "token_type_ids" in inputs:
            file["segments"] = inputs["token_type_ids"].int().numpy()
    furlong(
        program, "logits", checkpoint, source, "--output", target, "--dtype", dtype, *(["--hidden"] if hidden else [])
    )
    with h5py.File(target) as file:
        return torch.from_numpy(file["hidden" if hidden else "logits"][:]).double()


def of_transformers(model, inputs):
    with torch.no_grad():
        output = model(**inputs)
    return output.last_hidden_state if "last_hidden_state" in output else output.logits


def distance(a, b, inputs):
    return float(((a - b).abs().amax(-1) * inputs["attention_mask"]).max())


def label_logits(folder, config, hidden, mask):
    """The head of labels by its definition, from hidden states of Furlong."""
    tensors = {name: t.double() for name, t in load_file(folder / "model.safetensors").items()}
    mask = mask[..., None].double()
    if config.architectures[0] == "FurlongForTokenClassification":
        return hidden @ tensors["classifier.weight"].T + tensors["classifier.bias"]
    x = hidden[:, 0] if config.pooling == "class_token" else (hidden * mask).sum(1) / mask.sum(1)
    if config.pair_classification:
        u, v = x[0::2], x[1::2]
        x = torch.cat([u, v, u * v, u - v], -1) @ tensors["matching.weight"].T + tensors["matching.bias"]
        x = torch.nn.functional.gelu(x)
    x = x @ tensors["classifier.weight"].T + tensors["classifier.bias"]
    for k, (mean, scale) in enumerate(config.label_scales):
        x[:, k] = x[:, k] * scale + mean
    return x


def cache_name(model):
    return sys.modules[type(model).__module__].CACHE


def check_generation(model):
    """200 greedy tokens with and without a cache, and after padding on the left."""
    prompt = torch.tensor([[5, 17, 3, 44, 8, 21, 9]])
    options = dict(do_sample=False, max_new_tokens=200, eos_token_id=None, pad_token_id=0)
    widths = {}
    count = lambda module, inputs: widths.setdefault(module, []).append(inputs[0].shape[1])
    hooks = [part.register_forward_pre_hook(count) for part in (model.get_input_embeddings(), model.lm_head)]
    cached = model.generate(prompt, attention_mask=torch.ones_like(prompt), use_cache=True, **options)
    for hook in hooks:
        hook.remove()
    tokens, logits = (widths[part] for part in (model.get_input_embeddings(), model.lm_head))
    assert tokens == [prompt.shape[1]] + [1] * 199, "generation with a cache computes earlier tokens again"
    assert logits == [1] * 200, "generation computes the logits of the whole prompt"
    plain = model.generate(prompt, attention_mask=torch.ones_like(prompt), use_cache=False, **options)
    assert cached.shape[1] == prompt.shape[1] + 200, f"{cached.shape[1]} tokens"
    assert torch.equal(cached, plain), f"{int((cached != plain).sum())} tokens differ without a cache"
    padded = torch.cat([torch.full((1, 4), 11), prompt], 1)
    both = torch.cat([padded, torch.cat([cached[:, :4], padded[:, 4:]], 1)])
    mask = torch.ones_like(both)
    mask[0, :4] = 0
    options["max_new_tokens"] = 30
    found = model.generate(both, attention_mask=mask, use_cache=True, **options)
    assert torch.equal(found[0, 4:], cached[0, : found.shape[1] - 4]), "other tokens after left padding"
    beams = model.generate(prompt, attention_mask=mask[:1, 4:], num_beams=3, use_cache=True, **options)
    assert torch.equal(
        beams, model.generate(prompt, attention_mask=mask[:1, 4:], num_beams=3, use_cache=False, **options)
    ), "other beams without a cache"
    with torch.no_grad():
        past = model(prompt, use_cache=True)[1]  # of logits and cache
    assert len(list(past)) == model.config.num_hidden_layers, "the cache is no sequence of layers"
    options["max_new_tokens"] = 5
    again = model.generate(cached[:, :12], attention_mask=torch.ones(1, 12), **{cache_name(model): past}, **options)
    assert torch.equal(again, cached[:, :17]), "other tokens from a given cache"


def check_types(folder, loader):
    """Weights in 16 bits, loaded so and converted: what is float32 in the file stays as it is."""
    for dtype in (torch.float16, torch.bfloat16):
        for model in (loaded(folder, loader, dtype), loaded(folder, loader, torch.float32).to(dtype)):
            found = model.state_dict()
            exact = sys.modules[type(model).__module__].EXACT
            for name, tensor in load_file(folder / "model.safetensors").items():
                if name.split(".")[-1] in exact:
                    name = name if name in found else name.removeprefix("model.")
                    assert torch.equal(found[name], tensor), f"{name}: other values in {dtype}"
            assert next(model.parameters()).dtype == dtype


def check_devices(model):
    """What layers share follows them to another device, as accelerate moves it."""
    trunk = getattr(model, "model", model)
    x = trunk.get_input_embeddings()(torch.tensor([[1, 2, 3]]))
    moved = trunk.tokens(x, torch.ones(1, 3).bool(), None, 0).to("meta", non_blocking=True)
    for part in (moved.mask, moved.positions, *(moved.rotary or ())):
        assert part.device.type == "meta", "what layers share stays on its device"


def check_hooks(model):
    """Generation with the hooks of several devices, which copy what they pass on."""
    prompt = torch.tensor([[5, 17, 3, 44, 8, 21, 9]])
    options = dict(attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=30, eos_token_id=None)
    plain = model.generate(prompt, pad_token_id=0, **options)
    parts = [f"model.{name}" for name, _ in model.model.named_children() if name != "blocks"]
    parts += [f"model.blocks.{i}" for i in range(len(model.model.blocks))] + ["lm_head"]
    parts += ["prediction"] if model.prediction is not None else []
    hooked = accelerate.dispatch_model(model, {part: "cpu" for part in parts}, main_device="cpu", force_hooks=True)
    found = hooked.generate(prompt, pad_token_id=0, **options)
    accelerate.hooks.remove_hook_from_submodules(hooked)
    assert torch.equal(found, plain), "other tokens with layers on several devices"


def batch_for(model, config):
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(0, config.vocab_size, (4, 24), generator=generator)
    name = type(model).__name__
    if name == "FurlongForTokenClassification":
        labels = ids % config.num_labels
        return {"input_ids": ids, "labels": torch.where(ids % 3 == 0, -100, labels)}
    if config.problem_type is not None:
        values = torch.randint(0, 2, (4, config.num_labels), generator=generator).double()
        return {"input_ids": ids, "labels": values}
    if name == "FurlongForSequenceClassification":
        count = 2 if config.pair_classification else 4
        return {"input_ids": ids, "labels": torch.arange(count) % config.num_labels}
    return {"input_ids": ids, "labels": ids.clone()} if name != "FurlongModel" else None


def gradients(model, batch):
    model.train()
    model.zero_grad()
    model(**batch).loss.backward()
    model.eval()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def in_short_segments(model, inputs):
    """Outputs with linear attention in segments of 64 tokens."""
    module = sys.modules[type(model).__module__.replace("modeling_", "attention_")]
    before, module.SEGMENT = module.SEGMENT, 64
    result = of_transformers(model, inputs)
    module.SEGMENT = before
    return result


def check_rows_alone(model, inputs, exact):
    """Each row without padding: some are shorter than a window, or end with a segment that is."""
    for row, length in enumerate(inputs["attention_mask"].sum(1).tolist()):
        one = {name: value[row : row + 1, :length] for name, value in inputs.items()}
        for outputs in (of_transformers(model, one), in_short_segments(model, one)):
            far = float((outputs[0] - exact[row, :length]).abs().max())
            assert far <= 1e-6, f"float64 of {length} tokens alone differs by {far}"


def check_padding(model, inputs):
    """A row without a token: finite, and nothing changes in the other rows."""
    mask = inputs["attention_mask"].clone()
    mask[1] = 0
    found, plain = of_transformers(model, {**inputs, "attention_mask": mask}), of_transformers(model, inputs)
    assert bool(found.isfinite().all()), "a row of padding alone is not finite"
    if len(found) == len(mask):
        others = [row for row in range(len(mask)) if row != 1]
        far = float(((found - plain).abs().amax(-1) * inputs["attention_mask"])[others].max()) if found.dim() > 2 else 0
        assert far < 1e-9, f"a row of padding moves others by {far}"


def check_accumulation(model, batch):
    """Two halves of a batch, as Trainer accumulates them: losses are divided by the labels of both."""
    if type(model).__name__ == "FurlongForSequenceClassification" and model.config.pair_classification:
        return
    labels = batch["labels"][:, 1:] if type(model).__name__ == "FurlongForCausalLM" else batch["labels"]
    count = int((labels != -100).sum())  # as Trainer counts them
    whole, halves = gradients(model, batch), None
    for part in (slice(0, 1), slice(1, None)):
        half = {name: value[part] for name, value in batch.items()}
        found = gradients(model, {**half, "num_items_in_batch": torch.tensor(count)})
        halves = found if halves is None else {name: halves[name] + found[name] for name in found}
    far = max(float((whole[name] - halves[name]).abs().max()) for name in whole)
    assert far < 1e-9, f"gradients differ by {far} over accumulated batches"


def check_checkpointing(model, batch):
    plain = gradients(model, batch)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    again = gradients(model, batch)
    model.gradient_checkpointing_disable()
    assert set(plain) == set(again) == {name for name, _ in model.named_parameters()}, "parameters without gradients"
    far = max(float((plain[name] - again[name]).abs().max()) for name in plain)
    assert far < 1e-9, f"gradients differ by {far} with checkpointing"


def train(folder, loader, batch, work):
    """20 steps of Trainer on one batch; the loss before and after, and where Trainer saved the model."""
    model = loaded(folder, loader, torch.float32)
    arguments = TrainingArguments(
        str(work / "trainer"),
        max_steps=20,
        per_device_train_batch_size=1,
        learning_rate=3e-3,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        use_cpu=True,
        remove_unused_columns=False,
    )
    loss = lambda: float(model.eval()(**batch).loss.detach())
    before = loss()
    trainer = Trainer(model, arguments, train_dataset=[batch] * 20, data_collator=lambda items: items[0])
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    saved = work / "saved"
    trainer.save_model(str(saved))
    return before, loss(), saved


def check(program, name, row, work):
    checkpoint = None
    if row:
        checkpoint = trained(program, work, *row)
    else:
        checkpoint = foreign(program, work, name)
    folder = work / "exported"
    if name != "lora":  # of adapters the run itself is compared with the merged export
        first = work / "first"
        furlong(program, "export", checkpoint, first)
        randomize(first)
        checkpoint = work / "model.h5"
        furlong(program, "convert", first, checkpoint)
        furlong(program, "export", checkpoint, folder)
        same_tensors(first, folder)
    else:
        furlong(program, "export", checkpoint, folder)
        back, again = work / "back.h5", work / "back"
        furlong(program, "convert", folder, back)
        furlong(program, "export", back, again)
        same_tensors(folder, again)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    kind = config.architectures[0]
    loader = {
        "FurlongForCausalLM": AutoModelForCausalLM,
        "FurlongForMaskedLM": AutoModelForMaskedLM,
        "FurlongForSequenceClassification": AutoModelForSequenceClassification,
        "FurlongForTokenClassification": AutoModelForTokenClassification,
        "FurlongModel": AutoModel,
    }[kind]
    inputs = inputs_for(config)
    labels = kind in ("FurlongForSequenceClassification", "FurlongForTokenClassification")
    hidden = labels or kind == "FurlongModel"
    trunk = AutoModel if hidden else loader
    with torch.no_grad():
        wide, narrow = of_transformers(doubled(folder, trunk), inputs), of_transformers(
            loaded(folder, trunk, torch.float32), inputs
        )
    exact = of_furlong(program, checkpoint, inputs, work, "float64", hidden)
    wide_model = doubled(folder, trunk)
    check_padding(wide_model, inputs)
    far_in_segments = distance(in_short_segments(wide_model, inputs), exact, inputs)
    assert far_in_segments <= 1e-6, f"float64 differs by {far_in_segments} in segments"
    check_rows_alone(wide_model, inputs, exact)
    own = of_furlong(program, checkpoint, inputs, work, "model", hidden)
    far = {
        "float64": distance(wide, exact, inputs),
        "float32": distance(narrow.double(), own, inputs),
        "furlong": distance(own, exact, inputs),
        "pytorch": distance(narrow.double(), exact, inputs),
    }
    model = doubled(folder, loader)
    if labels:
        found = of_transformers(model, inputs)
        wanted = label_logits(folder, config, exact, inputs["attention_mask"])
        if kind == "FurlongForTokenClassification":
            found, wanted = (x * inputs["attention_mask"][..., None] for x in (found, wanted))
        far["float64"] = max(far["float64"], float((found - wanted).abs().max()))
    size = float(exact.abs().max())
    line = (
        f"{name:<28} float64 {far['float64']:.1e}, float32 {far['float32']:.1e} "
        f"(from float64: Furlong {far['furlong']:.1e}, PyTorch {far['pytorch']:.1e}), of up to {size:.2g}"
    )
    print(line, end="", flush=True)
    assert far["float64"] <= 1e-6, "float64 differs"
    assert far["float32"] <= 1e-4 or far["furlong"] <= 2 * far["pytorch"], "float32 differs"
    bfloat = of_transformers(loaded(folder, loader, torch.bfloat16), inputs)
    expected = torch.float32 if labels and config.label_scales else torch.bfloat16  # in the units of the data
    assert bfloat.dtype == expected and bool(bfloat.isfinite().all()), "bfloat16 is not finite"
    check_types(folder, loader)
    check_devices(model)
    if labels:
        long_text = torch.full((1, 8192, 1), 9.0, dtype=torch.float16)
        assert float(sys.modules[type(model).__module__].pooled(long_text, None, "mean")) == 9, "the mean is not finite"
    if kind == "FurlongForCausalLM":
        check_generation(model)
        check_hooks(doubled(folder, loader))
        print("; 200 tokens equal", end="", flush=True)
    batch = batch_for(model, config)
    back, again = work / "after.h5", work / "after"
    if batch is None:
        loaded(folder, loader, torch.float32).save_pretrained(work / "saved")
        furlong(program, "convert", work / "saved", back)
        furlong(program, "export", back, again)
        same_tensors(folder, again)
        print("; base model alone; back bit for bit", flush=True)
        return
    check_checkpointing(model, batch)
    check_accumulation(model, batch)
    before, after, saved = train(folder, loader, batch, work)
    assert after < before, f"the loss rose from {before} to {after}"
    furlong(program, "convert", saved, back)
    furlong(program, "export", back, again)
    n = same_tensors(saved, again)
    wide = of_transformers(doubled(saved, trunk), inputs)
    moved = distance(wide, of_furlong(program, back, inputs, work, "float64", hidden), inputs)
    assert moved <= 1e-6, f"after training float64 differs by {moved}"
    print(f"; loss {before:.3f} to {after:.3f}; {n} tensors back bit for bit", flush=True)


class CacheWarnings(logging.Handler):
    """Keeps what transformers says of the cache's earlier name."""

    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        if "`past_key_values`/`cache_params`" in record.getMessage():
            self.messages.append(record.getMessage())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--furlong", type=pathlib.Path, default=pathlib.Path("build/release/bin/furlong"))
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    program = arguments.furlong.resolve()
    table = model_table()
    only = list(filter(None, arguments.only.split(",")))
    warnings.filterwarnings("ignore", category=FutureWarning)
    deprecated = CacheWarnings()
    transformers.logging.disable_default_handler()
    transformers.logging.add_handler(deprecated)
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("accelerate").setLevel(logging.ERROR)  # of parts on the CPU
    print(f"transformers {transformers.__version__}, torch {torch.__version__}", flush=True)
    failures = []
    for name in only or [*table, "from_bert", "from_llama"]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(program, name, table.get(name), pathlib.Path(folder))
            except Exception as error:  # of any library: the next model is still to be checked
                print(f"  {name} FAILED: {type(error).__name__}: {error}", flush=True)
                failures.append(name)
    if deprecated.messages:
        sys.exit(f"transformers warns: {deprecated.messages[0]}")
    if failures:
        sys.exit(f"failed: {', '.join(failures)}")


if __name__ == "__main__":
    main()
