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
from export_checks import check_accumulation, check_checkpointing, check_devices, check_generation, check_hooks
from export_checks import check_padding, check_rows_alone, check_types, in_short_segments, loaded, of_transformers
from export_table import model_table

VOCABULARY, LENGTHS = 60, [1, 7, 67, 90]


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
