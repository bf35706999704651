"""Converts a softmax model into a Performer: trains a small model on a text's bytes, replaces its attention by FAVOR+,
and trains on, with and without attention transfer. The control trains the softmax model as many steps. After section
4.3 and figure 5 of Choromanski et al. 2021 (arXiv:2009.14794)."""

import json
import os
import pathlib
import subprocess

import plot
import reproduction

NAME = "softmax_to_performer"
TRANSFER, DIRECT, CONTROL = "attention transfer, then task", "task only", "softmax, task"
TEACHER = """seed: 1
model:
  n_layers: {layers}
  d_model: {d_model}
  n_heads: 4
data: {{dataset: "{dataset}", sequence_length: {length}, batch_size: {batch}}}
optimizer: {{learning_rate: 2e-3, weight_decay: 0.01}}
schedule: {{warmup_steps: {warmup}, final_fraction: 0.05}}
trainer: {{max_steps: {teacher_steps}, validate_every: 0, validation_batches: 1}}
checkpoint: {{every: 0}}
log: {{every: 50, progress: none, level: error}}
"""
STUDENT = """seed: 1
{attention}
data: {{dataset: "{dataset}", sequence_length: {length}, batch_size: {batch}}}
optimizer: {{learning_rate: 1e-3, weight_decay: 0.01}}
schedule: {{warmup_steps: {student_warmup}, final_fraction: 0.05}}
trainer: {{validate_every: 0, validation_batches: 1}}
checkpoint: {{every: {every}, keep_last: 1000}}
log: {{every: {every}, progress: none, level: error}}
finetune:
  source: {source}
  stages: [{stages}]
  evaluation_batches: 1
"""
PERFORMER = """model:
  attention: {{mechanism: linear, feature_map: favor_positive, n_features: {features}, centering: true}}"""
SOFTMAX = "model: {{attention: {{mechanism: softmax}}}}"


def prepare(arguments, folder):
    """Returns the tokenized dataset: that of the King James Bible, or of --text."""
    if not arguments.text:
        data = pathlib.Path(os.environ.get("FURLONG_DATA", reproduction.ROOT / "data"))
        environment = {**os.environ, "FURLONG_DATA": str(data), "FURLONG": reproduction.FURLONG}
        subprocess.run([reproduction.ROOT / "scripts/prepare_data.sh", "kjv"], check=True, env=environment)
        return data / "kjv.h5"
    dataset = folder / "text.h5"
    reproduction.furlong("prepare", "text", *arguments.text, "--output", dataset)
    return dataset


def evaluated(arguments, checkpoint, dataset):
    found = json.loads(
        reproduction.furlong(
            *("evaluate", checkpoint, "--data", dataset, "--split", "validation", "--json"),
            *("--sequence-length", arguments.length, "--max-batches", arguments.batches),
            *("--batch-size", arguments.batch, "--threads", arguments.threads),
        )
    )
    return {key: found[key] for key in ("loss", "accuracy", "targets", "baseline_loss", "baseline_accuracy")}


def student_points(arguments, folder, dataset, arm, stages, attention):
    """Runs furlong finetune and evaluates every checkpoint of its stages: steps since the conversion, and quality."""
    values = {**vars(arguments), "dataset": dataset, "source": folder / "teacher", "stages": ", ".join(stages)}
    values.update(attention=attention.format(**values), student_warmup=max(1, arguments.steps // 40))
    run, config = folder / arm.replace(" ", "_"), folder / "student.yaml"
    config.write_text(STUDENT.format(**values))
    settings = {f"finetune__{stage}__max_steps": steps for stage, steps in stages.items()}
    reproduction.furlong("finetune", config, "--run-dir", run, "--json", threads=arguments.threads, **settings)
    start = folder / "teacher" if arm == CONTROL else run / "student.h5"
    points = [{"step": 0, "stage": "", **evaluated(arguments, start, dataset)}]
    before = 0
    for number, (stage, steps) in enumerate(stages.items(), 1):
        for checkpoint in sorted((run / f"{number}_{stage}").glob("checkpoints/step_*.h5")):
            step = before + int(checkpoint.stem.split("_")[1])
            points.append({"step": step, "stage": stage, **evaluated(arguments, checkpoint, dataset)})
        before += steps
    return points


def measure(arguments, folder, result):
    if not 0 < arguments.transfer_steps < arguments.steps:
        raise SystemExit(f"--transfer-steps {arguments.transfer_steps}: expected 1 to {arguments.steps - 1}")
    dataset = prepare(arguments, folder)
    values = {**vars(arguments), "dataset": dataset, "warmup": max(1, arguments.teacher_steps // 20)}
    reproduction.train(folder, "teacher", arguments.threads, TEACHER.format(**values))
    result["teacher"] = evaluated(arguments, folder / "teacher", dataset)
    with_transfer = {"attention_transfer": arguments.transfer_steps, "task": arguments.steps - arguments.transfer_steps}
    result["students"] = [
        {"name": name, "points": student_points(arguments, folder, dataset, name, stages, attention)}
        for name, stages, attention in (
            (TRANSFER, with_transfer, PERFORMER),
            (DIRECT, {"task": arguments.steps}, PERFORMER),
            (CONTROL, {"task": arguments.steps}, SOFTMAX),
        )
    ]


def tables(result):
    steps = sorted({point["step"] for student in result["students"] for point in student["points"]})
    shown = sorted({steps[round(i * (len(steps) - 1) / 6)] for i in range(7)})
    rows = []
    for key in ("accuracy", "loss"):
        rows.append([f"{key}: teacher", *[result["teacher"][key]] * len(shown)])
        for student in result["students"]:
            at = {point["step"]: point[key] for point in student["points"]}
            rows.append([f"{key}: {student['name']}", *(at.get(step) for step in shown)])
    baseline = result["teacher"]
    title = (
        f"Held-out accuracy and loss (nats per byte) after steps of {result['settings']['batch']} sequences of "
        f"{result['settings']['length']:,} bytes; baseline {baseline['baseline_accuracy']:.3f} and "
        f"{baseline['baseline_loss']:.3f}."
    )
    return [{"title": title, "columns": ["", *(f"{step:,} steps" for step in shown)], "rows": rows}]


def draw(result, folder):
    figure, axes = plot.panels(2, height=3.4)
    for panel, key, label in zip(axes, ("accuracy", "loss"), ("held-out accuracy", "held-out loss, nats per byte")):
        for index, student in enumerate(result["students"]):
            points = student["points"]
            panel.plot(
                [point["step"] for point in points],
                [point[key] for point in points],
                label=student["name"],
                **plot.style(index),
            )
        panel.axhline(result["teacher"][key], color=plot.INK, linestyle="--", label="softmax teacher")
        panel.axvline(result["settings"]["transfer_steps"], color=plot.INK, linewidth=0.8, linestyle=":")
        panel.set_xlabel("steps since the conversion")
        panel.set_ylabel(label)
    plot.legend_below(figure, axes[0], 4)
    plot.save(figure, folder / f"{NAME}.svg")


def more(parser):
    parser.add_argument("--text", nargs="+", help="text files instead of the King James Bible")
    parser.add_argument("--teacher-steps", type=int, default=600)
    parser.add_argument("--steps", type=int, default=160, help="training steps of each student")
    parser.add_argument("--transfer-steps", type=int, default=80, help="of them attention transfer")
    parser.add_argument("--every", type=int, default=20, help="steps between evaluated checkpoints")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--d-model", type=int, default=128)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--batches", type=int, default=5, help="held-out batches of an evaluation")


if __name__ == "__main__":
    text = str(reproduction.ROOT / "docs/internals/numerics.md")
    small = {"text": [text], "teacher_steps": 4, "steps": 4, "transfer_steps": 2}
    small.update(every=2, layers=1, d_model=16, features=8, length=32, batch=2, batches=1)
    reproduction.reproduce(NAME, reproduction.options(NAME, __doc__, more, small), measure, draw, tables)
