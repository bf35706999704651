#!/usr/bin/env python3
"""Plots the quality of a student of `furlong finetune` against its training tokens. Evaluates every stored checkpoint
of its stages, the teacher, and the student before training, on the same held-out batches.

  benchmarks/finetune_curve.py runs/smollm2_performer --furlong build/release/bin/furlong --max-batches 100 \\
      --json curve.json --svg curve.svg

Train with --set checkpoint.keep_last=1000, so that all checkpoints are kept. The plot needs matplotlib.
"""

import argparse
import json
import pathlib
import subprocess


def evaluated(arguments, checkpoint):
    command = [
        arguments.furlong,
        "evaluate",
        str(checkpoint),
        "--split",
        arguments.split,
        "--max-batches",
        str(arguments.max_batches),
        "--json",
    ]
    for option, value in (
        ("--data", arguments.data),
        ("--sequence-length", arguments.sequence_length),
        ("--batch-size", arguments.batch_size),
        ("--threads", arguments.threads),
    ):
        if value:
            command += [option, str(value)]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    keys = "loss perplexity accuracy targets baseline_loss baseline_accuracy sequence_length".split()
    return {key: found.get(key) for key in keys}


def tokens_by_step(stage):
    lines = [json.loads(line) for line in (stage / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["tokens"] for line in lines if line["split"] == "train"}


def points_of(arguments, recovery):
    run = arguments.run
    checkpoints = {model["name"]: model["checkpoint"] for model in recovery["models"]}
    yield {"model": "teacher", "tokens": None, **evaluated(arguments, checkpoints["teacher"])}
    yield {"model": "before", "tokens": 0, **evaluated(arguments, checkpoints["before"])}
    before = 0
    for stage in sorted(run.glob("[0-9]_*"), key=lambda path: int(path.name.split("_")[0])):
        tokens = tokens_by_step(stage)
        for checkpoint in sorted(stage.glob("checkpoints/step_*.h5")):
            step = int(checkpoint.stem.split("_")[1])
            if step not in tokens:
                raise SystemExit(
                    f"{stage}/metrics.jsonl has no line for step {step}: let log.every divide checkpoint.every"
                )
            yield {
                "model": stage.name.split("_", 1)[1],
                "step": step,
                "tokens": before + tokens[step],
                **evaluated(arguments, checkpoint),
            }
        before += max(tokens.values())


def draw(curve, path):
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    points = curve["points"]
    figure, axes = pyplot.subplots(figsize=(7, 4))
    trained = [point for point in points if point["tokens"] is not None]
    axes.plot([point["tokens"] / 1e6 for point in trained], [point["loss"] for point in trained], color="0.7", zorder=1)
    for model in dict.fromkeys(point["model"] for point in trained):
        chosen = [point for point in trained if point["model"] == model]
        axes.plot([point["tokens"] / 1e6 for point in chosen], [point["loss"] for point in chosen], "o", label=model)
    axes.axhline(points[0]["loss"], color="black", linewidth=1, label="softmax teacher")
    axes.axhline(points[0]["baseline_loss"], color="black", linewidth=1, linestyle=":", label="baseline")
    axes.set_xlabel("million tokens of training")
    axes.set_ylabel(f"loss on the {curve['split']} split, nats a token")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def table(curve):
    teacher = curve["points"][0]
    yield "| tokens | after | loss | perplexity | accuracy | recovery of accuracy | of loss |"
    yield "| --- " * 7 + "|"
    for point in curve["points"]:
        cells = [
            "" if point["tokens"] is None else f"{point['tokens']:,}",
            point["model"],
            f"{point['loss']:.4f}",
            f"{point['perplexity']:.3f}",
            f"{point['accuracy']:.4f}",
        ]
        for key in ("accuracy", "loss"):
            baseline = point[f"baseline_{key}"]
            gained = (point[key] - baseline) / (teacher[key] - baseline)
            cells.append("" if point is teacher else f"{100 * gained:.2f} %")
        yield "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path, nargs="?", help="run directory of furlong finetune")
    parser.add_argument("--furlong", default="build/release/bin/furlong")
    parser.add_argument("--data", help="tokenized dataset (default: that of the run's recovery.json)")
    parser.add_argument("--split", default="test")
    parser.add_argument("--max-batches", type=int, default=100)
    parser.add_argument("--sequence-length", type=int, help="default: that of recovery.json")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--threads", type=int)
    parser.add_argument(
        "--json", type=pathlib.Path, help="result file; without a run it is read, and no checkpoint is evaluated"
    )
    parser.add_argument("--svg", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.run:
        recovery = json.loads((arguments.run / "recovery.json").read_text())
        # Said each time: a teacher that was imported knows neither.
        arguments.data = arguments.data or recovery["data"]
        arguments.sequence_length = arguments.sequence_length or recovery["sequence_length"]
        curve = {
            "run": arguments.run.name,
            "split": arguments.split,
            "max_batches": arguments.max_batches,
            "batch_size": arguments.batch_size,
            "points": list(points_of(arguments, recovery)),
            **{key: recovery.get(key) for key in ("source", "attention", "commit", "machine")},
        }
        if arguments.json:
            arguments.json.write_text(json.dumps(curve, indent=2) + "\n")
    elif arguments.json:
        # Earlier versions wrote chance_loss and chance_accuracy.
        curve = json.loads(arguments.json.read_text().replace('"chance_', '"baseline_'))
    else:
        parser.error("name a run, or with --json a curve that has been evaluated before")
    if arguments.svg:
        draw(curve, arguments.svg)
    print("\n".join(table(curve)))


if __name__ == "__main__":
    main()
