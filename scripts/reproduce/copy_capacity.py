"""Capacity of linear attention's state: accuracy of the copy task against the number m of features, for several feature
maps, next to softmax. After the recall studies of Linear Transformers (Schlag et al. 2021, arXiv:2102.11174)."""

import json

import plot
import reproduction

NAME = "copy_capacity"
CONFIG = """seed: 1
model:
  n_layers: 2
  d_model: 128
  n_heads: 4
  d_feedforward: 256
  position: learned
  short_convolution: 4
  initializer_range: 0.1
data: {{task: copy, task_symbols: 10, sequence_length: {length}, batch_size: {batch}}}
optimizer: {{learning_rate: 3e-3, weight_decay: 0.01}}
schedule: {{warmup_steps: {warmup}}}
trainer: {{max_steps: {steps}, validate_every: 0, validation_batches: 1}}
checkpoint: {{every: 0}}
log: {{every: {steps}, progress: none, level: error}}
"""


def measure(arguments, folder, result):
    cases = [("softmax", None)] + [(name, m) for name in arguments.maps for m in arguments.features]
    result["runs"] = []
    for name, m in cases:
        settings = {"model__attention__mechanism": "softmax"}
        if m:
            settings = {"model__attention__mechanism": "linear", "model__attention__feature_map": name}
            settings["model__attention__n_features"] = m
        config = CONFIG.format(**vars(arguments), warmup=max(1, arguments.steps // 20))
        run = f"{name}_{m}"
        reproduction.train(folder, run, arguments.threads, config, **settings)
        found = json.loads(
            reproduction.furlong(
                *("evaluate", folder / run, "--split", "test", "--max-batches", arguments.batches, "--json"),
                *("--threads", arguments.threads),
            )
        )
        result["runs"].append({"attention": name, "m": m, "accuracy": found["accuracy"], "targets": found["targets"]})


def series(result):
    found = {}
    for run in result["runs"]:
        found.setdefault(run["attention"], {})[run["m"]] = run["accuracy"]
    return found


def tables(result):
    features = result["settings"]["features"]
    rows = [
        [name, *(accuracies.get(m, accuracies.get(None)) for m in features)]
        for name, accuracies in series(result).items()
    ]
    settings = result["settings"]
    title = (
        f"Accuracy on {settings['length'] // 2 - 1} copied symbols of 10 after {settings['steps']:,} steps of "
        f"{settings['batch']} sequences; baseline 0.1."
    )
    return [{"title": title, "columns": ["attention", *(f"m = {m:,}" for m in features)], "rows": rows}]


def draw(result, folder):
    figure, (axes,) = plot.panels(1, width=4.6, height=3.4)
    features = result["settings"]["features"]
    for index, (name, accuracies) in enumerate(series(result).items()):
        values = [accuracies.get(m, accuracies.get(None)) for m in features]
        axes.plot(features, values, label=name, **plot.style(index - 1 if index else None))
    axes.axhline(0.1, color=plot.INK, linestyle=":", label="baseline")
    plot.lengths_axis(axes, features, "features m of each of 4 heads")
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("accuracy of the copy")
    plot.legend_below(figure, axes, 3)
    plot.save(figure, folder / f"{NAME}.svg")


def more(parser):
    parser.add_argument("--maps", type=lambda text: text.split(","), default="favor_positive,favor_relu,oprf")
    parser.add_argument("--features", type=reproduction.integers, default="8,16,32,64,128")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batches", type=int, default=8, help="held-out batches of an evaluation")


if __name__ == "__main__":
    small = {"maps": "favor_positive", "features": "4,8", "length": 16, "batch": 2, "steps": 2, "batches": 1}
    reproduction.reproduce(NAME, reproduction.options(NAME, __doc__, more, small), measure, draw, tables)
