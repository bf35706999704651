"""Encoders that predict masked residues of proteins, in sequences of 1,024 and of 8,192 tokens (proteins one after
another): held-out accuracy after the same number of tokens, and the time it takes. After sections 4.4 and 4.5 of
Choromanski et al. 2021 (arXiv:2009.14794)."""

import json
import os
import pathlib
import random
import subprocess

import plot
import reproduction

NAME = "masked_proteins"
MEASURED = ("accuracy", "loss", "targets", "baseline_accuracy", "baseline_loss")
CONFIG = """seed: 1
model:
  architecture: encoder
  n_layers: {layers}
  d_model: {d_model}
  n_heads: 4
  d_feedforward: {d_feedforward}
  position: rotary
data:
  dataset: "{dataset}"
  sequence_length: {length}
  batch_size: {batch}
  ignore_tokens: {ignored}
objective: {{name: masked_tokens}}
optimizer: {{learning_rate: 2e-3}}
schedule: {{name: cosine, warmup_steps: {warmup}, final_fraction: 0.05}}
trainer: {{max_steps: {steps}, validate_every: {every}, validation_batches: {batches}}}
checkpoint: {{every: {steps}}}
log: {{every: {every}, progress: none, level: error}}
"""


def prepare(arguments, folder):
    """Returns the tokenized dataset: dolphin proteins, or for --tiny random ones."""
    if not arguments.tiny:
        data = pathlib.Path(os.environ.get("FURLONG_DATA", reproduction.ROOT / "data"))
        environment = {**os.environ, "FURLONG_DATA": str(data), "FURLONG": reproduction.FURLONG}
        subprocess.run([reproduction.ROOT / "scripts/prepare_data.sh", "proteins"], check=True, env=environment)
        return data / "proteins.h5"
    random_residues = random.Random(1)
    proteins, dataset = folder / "random.fa", folder / "random.h5"
    with open(proteins, "w") as file:
        for number in range(40):
            print(f">{number}", "".join(random_residues.choices("ACDEFGHIKLMNPQRSTVWY", k=50)), sep="\n", file=file)
    words = ("--alphabet", "protein", "--output", dataset, "--split", "0.6,0.2,0.2", "--force")
    reproduction.furlong("prepare", "fasta", proteins, *words)
    return dataset


def settings_of(arguments, attention):
    settings = {"model__attention__mechanism": "softmax"}
    if attention != "softmax":
        settings = {"model__attention__mechanism": "linear", "model__attention__feature_map": attention}
        settings["model__attention__n_features"] = arguments.features
    return settings


def measure(arguments, folder, result):
    dataset = prepare(arguments, folder)
    result["runs"] = []
    steps = arguments.tokens // arguments.tokens_of_step
    values = {**vars(arguments), "dataset": dataset, "steps": steps, "warmup": max(1, steps // 20)}
    values.update(d_feedforward=4 * arguments.d_model, every=max(1, steps // 8), ignored="[X, B, Z, J]")
    if unsuited := [length for length in arguments.lengths if arguments.tokens_of_step % length]:
        raise SystemExit(f"--tokens-of-step {arguments.tokens_of_step} is no multiple of --lengths {unsuited[0]}")
    for length in arguments.lengths:
        values.update(length=length, batch=arguments.tokens_of_step // length)
        values["batches"] = max(1, arguments.validation_tokens // arguments.tokens_of_step)
        for attention in ("softmax", *arguments.maps):
            run = f"{attention}_{length}"
            settings = settings_of(arguments, attention)
            config = CONFIG.format(**values)
            lines, seconds = reproduction.train_whole(folder, run, arguments.threads, config, **settings)
            found = json.loads(
                reproduction.furlong(
                    *("evaluate", folder / run, "--split", "test", "--json", "--threads", arguments.threads),
                    *("--max-batches", max(1, arguments.test_tokens // arguments.tokens_of_step)),
                )
            )
            validations = [line for line in lines if line["split"] == "validation"]
            result["runs"].append(
                {
                    "attention": attention,
                    "length": length,
                    "validation": [
                        {"tokens": line["step"] * arguments.tokens_of_step, "accuracy": line["accuracy"]}
                        for line in validations
                    ],
                    **{key: found[key] for key in MEASURED},
                    "processor_seconds": seconds,
                }
            )


def tables(result):
    settings, runs = result["settings"], result["runs"]
    lengths = settings["lengths"]
    by_attention = {}
    for run in runs:
        by_attention.setdefault(run["attention"], {})[run["length"]] = run
    title = (
        f"{settings['layers']} layers, d_model {settings['d_model']}, 4 heads, float32, "
        f"{settings['tokens'] / 1e6:.3g} M tokens in steps of {settings['tokens_of_step']:,}. Test split, "
        f"{runs[0]['targets']:,} masked residues; by frequencies alone accuracy {runs[0]['baseline_accuracy']:.4f}, "
        f"loss {runs[0]['baseline_loss']:.3f} nats. Time: processor time of the whole training, validation included."
    )
    columns = ["attention"]
    for name in ("accuracy", "loss", "minutes"):
        columns += [f"{name} at {length:,}" for length in lengths]
    rows = [
        [
            attention,
            *(f"{found[n]['accuracy']:.4f}" for n in lengths),
            *(f"{found[n]['loss']:.4f}" for n in lengths),
            *(found[n]["processor_seconds"] / 60 for n in lengths),
        ]
        for attention, found in by_attention.items()
    ]
    return [{"title": title, "columns": columns, "rows": rows}]


def draw(result, folder):
    lengths, maps = result["settings"]["lengths"], ["softmax", *result["settings"]["maps"]]
    figure, axes = plot.panels(1 + len(lengths), width=7.6, height=3.1)
    for run in result["runs"]:
        index = maps.index(run["attention"])
        style = plot.style(index - 1 if index else None)
        panel = axes[lengths.index(run["length"])]
        curve = run["validation"]
        panel.plot(
            [point["tokens"] / 1e6 for point in curve],
            [point["accuracy"] for point in curve],
            label=run["attention"],
            **style,
        )
        panel.set_title(f"{run['length']:,} tokens")
        panel.set_xlabel("millions of tokens")
        panel.set_ylabel("validation accuracy")
        panel.set_ylim(0, 1.15 * panel.dataLim.ymax)
    for index, name in enumerate(maps):
        minutes = [run["processor_seconds"] / 60 for run in result["runs"] if run["attention"] == name]
        axes[-1].plot(lengths, minutes, **plot.style(index - 1 if index else None))
    plot.lengths_axis(axes[-1], lengths, "sequence length")
    axes[-1].set_ylim(bottom=0)
    axes[-1].set_ylabel("minutes of processor time")
    axes[-1].set_title("time of the training")
    plot.legend_below(figure, axes[0], 4)
    plot.save(figure, folder / f"{NAME}.svg")


def more(parser):
    parser.add_argument("--lengths", type=reproduction.integers, default="1024,8192")
    parser.add_argument("--maps", type=lambda text: text.split(","), default="favor_positive,favor_relu")
    parser.add_argument("--tokens", type=int, default=4_000_000, help="of each training")
    parser.add_argument("--tokens-of-step", type=int, default=8192, help="a multiple of the lengths")
    parser.add_argument("--validation-tokens", type=int, default=65_536)
    parser.add_argument("--test-tokens", type=int, default=327_680)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--d-model", type=int, default=128)
    parser.add_argument("--features", type=int, default=64, help="of each head")


if __name__ == "__main__":
    small = {"lengths": "32,64", "maps": "favor_relu", "tokens": 256, "tokens_of_step": 64, "validation_tokens": 64}
    small.update(test_tokens=64, layers=1, d_model=16, features=8)
    reproduction.reproduce(NAME, reproduction.options(NAME, __doc__, more, small), measure, draw, tables)
