"""Capacity of linear attention's state: accuracy of copying and of multi-query associative recall against the number m
of features, for several feature maps, next to softmax. After the recall studies of Schlag et al. 2021
(arXiv:2102.11174) and Arora et al. 2023 (arXiv:2312.04927)."""

import json

import plot
import reproduction

NAME = "recall_capacity"
CONFIG = """seed: 1
model:
  n_layers: 2
  d_model: 128
  n_heads: 4
  d_feedforward: 256
  position: learned
  short_convolution: 4
  initializer_range: 0.1
data: {{task: {task}, task_symbols: {symbols}, {pairs}sequence_length: {length}, batch_size: {batch}}}
optimizer: {{learning_rate: 3e-3, weight_decay: 0.01}}
schedule: {{warmup_steps: {warmup}}}
trainer: {{max_steps: {steps}, validate_every: 0, validation_batches: 1}}
checkpoint: {{every: 0}}
log: {{every: {steps}, progress: none, level: error}}
"""


def config_of(arguments, task):
    values = {**vars(arguments), "task": task, "warmup": max(1, arguments.steps // 20)}
    values.update(symbols=10, pairs="")
    if task == "associative_recall":
        values.update(symbols=2 * arguments.pairs, pairs=f"task_pairs: {arguments.pairs}, ")
    return CONFIG.format(**values)


def measure(arguments, folder, result):
    cases = [("softmax", None)] + [(name, m) for name in arguments.maps for m in arguments.features]
    result["runs"] = []
    for task in arguments.tasks:
        for name, m in cases:
            settings = {"model__attention__mechanism": "softmax"}
            if m:
                settings = {"model__attention__mechanism": "linear", "model__attention__feature_map": name}
                settings["model__attention__n_features"] = m
            run = f"{task}_{name}_{m}"
            reproduction.train(folder, run, arguments.threads, config_of(arguments, task), **settings)
            found = json.loads(
                reproduction.furlong(
                    *("evaluate", folder / run, "--split", "test", "--max-batches", arguments.batches, "--json"),
                    *("--threads", arguments.threads),
                )
            )
            result["runs"].append(
                {"task": task, "attention": name, "m": m, "accuracy": found["accuracy"], "targets": found["targets"]}
            )


def series(result, task):
    found = {}
    for run in result["runs"]:
        if run["task"] == task:
            found.setdefault(run["attention"], {})[run["m"]] = run["accuracy"]
    return found


def guess(settings):
    """The accuracy of one of the sequence's values, which are drawn from as many symbols as there are pairs, with
    repetition."""
    pairs = settings["pairs"]
    return 1 / pairs + (1 - 1 / pairs) / pairs


def description(settings, task):
    if task == "copy":
        return f"{settings['length'] // 2 - 1} copied symbols of 10; baseline 0.1"
    return f"the values of {settings['pairs']} keys; baseline {guess(settings):.3g}"


def tables(result):
    settings = result["settings"]
    features = settings["features"]
    for task in settings["tasks"]:
        rows = [
            [name, *(accuracies.get(m, accuracies.get(None)) for m in features)]
            for name, accuracies in series(result, task).items()
        ]
        title = (
            f"Accuracy on {description(settings, task)}. Sequences of {settings['length']:,} tokens, "
            f"{settings['steps']:,} steps of {settings['batch']} sequences."
        )
        yield {"title": title, "columns": ["attention", *(f"m = {m:,}" for m in features)], "rows": rows}


def draw(result, folder):
    settings = result["settings"]
    figure, axes = plot.panels(len(settings["tasks"]), width=7.6, height=3.4)
    for panel, task in zip(axes, settings["tasks"]):
        for index, (name, accuracies) in enumerate(series(result, task).items()):
            values = [accuracies.get(m, accuracies.get(None)) for m in settings["features"]]
            panel.plot(settings["features"], values, label=name, **plot.style(index - 1 if index else None))
        baseline = 0.1 if task == "copy" else guess(settings)
        panel.axhline(baseline, color=plot.INK, linestyle=":", label="baseline")
        plot.lengths_axis(panel, settings["features"], "features m of each of 4 heads")
        panel.set_ylim(0, 1.05)
        panel.set_ylabel("accuracy")
        panel.set_title(task.replace("_", " "))
    plot.legend_below(figure, axes[0], 5)
    plot.save(figure, folder / f"{NAME}.svg")


def more(parser):
    parser.add_argument("--tasks", type=lambda text: text.split(","), default="copy,associative_recall")
    parser.add_argument("--maps", type=lambda text: text.split(","), default="favor_positive,favor_relu,oprf")
    parser.add_argument("--features", type=reproduction.integers, default="8,16,32,64,128")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=31, help="keys and values of associative recall")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batches", type=int, default=8, help="held-out batches of an evaluation")


if __name__ == "__main__":
    small = {"maps": "favor_positive", "features": "4,8", "length": 16, "pairs": 3, "batch": 2, "steps": 2}
    small["batches"] = 1
    reproduction.reproduce(
        NAME, reproduction.options(NAME, __doc__, more, small), measure, draw, lambda result: list(tables(result))
    )
