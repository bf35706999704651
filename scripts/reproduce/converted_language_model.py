"""Converts SmolLM2-135M, a Llama, into linear-time models by attention transfer and distillation, and measures what
the linear branch adds: loss by position, at lengths beyond that of training, with the softmax window switched off, and
recall. The controls see as many tokens: softmax in a sliding window of the same size, distilled, and softmax, trained
on the text (distilling the teacher into itself would not change it). Hedgehog: Zhang et al. 2024 (arXiv:2402.04347);
windows and LoRA as in LoLCATs: Zhang et al. 2024 (arXiv:2410.10254).

Measured models stay in the JSON, so that the table can grow from call to call: each row has its commit and machine.
With --work, an interrupted conversion continues."""

import argparse
import json
import os
import pathlib
import subprocess

import plot
import reproduction

NAME = "converted_language_model"
HEDGEHOG = {"feature_map": "hedgehog"}
WINDOW = "--window"  # stands for the value of this option
MODELS = {  # attention, further keys of the model, and stages with their share of the tokens
    "softmax": ({"mechanism": "softmax"}, {}, {"task": 1}),
    "sliding_window": ({"mechanism": "softmax", "window": WINDOW}, {}, {"distillation": 1}),
    "hedgehog": ({"mechanism": "linear", **HEDGEHOG}, {}, {"attention_transfer": 0.25, "distillation": 0.75}),
    "no_normalizer": (
        {"mechanism": "linear", "normalizer": "none", **HEDGEHOG},
        {},
        {"attention_transfer": 0.25, "distillation": 0.75},
    ),
    "windowed": (
        {"mechanism": "windowed", "softmax_window": WINDOW, **HEDGEHOG},
        {},
        {"attention_transfer": 0.25, "distillation": 0.75},
    ),
    "windowed_lora": (
        {"mechanism": "windowed", "softmax_window": WINDOW, **HEDGEHOG},
        {"lora_rank": 8},
        {"attention_transfer": 0.25, "distillation": 0.75},
    ),
}
RATES = {"attention_transfer": 1e-3, "distillation": 2e-4, "task": 2e-4}
LORA_RATE = 1e-3  # of distillation: adapters start from zero
RECOVERY = ("loss", "perplexity", "accuracy", "targets", "recovery", "squared_attention_error", "window_off")
CONFIG = """seed: 1
model: {model}
data: {{dataset: "{dataset}", sequence_length: {length}, batch_size: {batch}}}
{teacher}optimizer: {{weight_decay: 0}}
schedule: {{name: cosine, warmup_steps: {warmup}, final_fraction: 0.05}}
trainer: {{validate_every: 0, validation_batches: 1}}
checkpoint: {{every: 20, keep_last: 1}}
log: {{every: 5, progress: none, level: error}}
finetune: {finetune}
"""


def prepare(arguments, folder):
    """Returns the teacher's files and the tokenized text; with --tiny a small model of bytes that it trains."""
    if not arguments.tiny:
        data = pathlib.Path(os.environ.get("FURLONG_DATA", reproduction.ROOT / "data"))
        environment = {**os.environ, "FURLONG_DATA": str(data), "FURLONG": reproduction.FURLONG}
        subprocess.run([reproduction.ROOT / "scripts/fetch_models.sh", "smollm2"], check=True, env=environment)
        subprocess.run([reproduction.ROOT / "scripts/prepare_data.sh", "english"], check=True, env=environment)
        return data / "models/smollm2/model.gguf", data / "english.h5"
    dataset = folder / "text.h5"
    text = reproduction.ROOT / "docs/internals/numerics.md"
    reproduction.furlong("prepare", "text", text, "--output", dataset, "--force")
    config = f"""model: {{n_layers: 1, d_model: 16, n_heads: 2}}
data: {{dataset: "{dataset}", sequence_length: 32, batch_size: 2}}
trainer: {{max_steps: 2, validate_every: 0, validation_batches: 1}}
schedule: {{warmup_steps: 1}}
log: {{progress: none, level: error}}
"""
    reproduction.train(folder, "teacher", arguments.threads, config)
    return folder / "teacher", dataset


def config_of(arguments, name, source, dataset):
    """The config of furlong finetune, and the tokens that its steps train on."""
    attention, model, shares = MODELS[name]
    attention = {key: arguments.window if value is WINDOW else value for key, value in attention.items()}
    per_step = arguments.length * arguments.batch
    steps = {stage: max(1, round(share * arguments.tokens / per_step)) for stage, share in shares.items()}
    finetune = {"source": str(source), "stages": list(steps), "evaluation_batches": arguments.batches}
    for stage, count in steps.items():
        rate = LORA_RATE if model and stage == "distillation" else RATES[stage]
        finetune[stage] = {"max_steps": count, "learning_rate": rate}
    text = CONFIG.format(
        **{**vars(arguments), "dataset": dataset, "warmup": max(1, min(20, min(steps.values()) // 5))},
        teacher="teacher: {positions: all}\n" if "distillation" in steps else "",
        model=json.dumps({"dtype": arguments.dtype, **model, "attention": attention}),
        finetune=json.dumps(finetune),
    )
    return text, per_step * sum(steps.values())


def evaluated(arguments, model, dataset):
    """Loss of held-out text by length and position, and recall."""
    threads = ("--json", "--threads", arguments.threads)
    lengths = ",".join(map(str, (arguments.short, arguments.long)))
    found = json.loads(
        reproduction.furlong(
            *("evaluate", model, "--data", dataset, "--split", "test", *threads),
            *("--lengths", lengths, "--sequence-length", arguments.long, "--by-position"),
            *("--batch-size", 1, "--max-batches", arguments.windows),
        )
    )
    recall = json.loads(
        reproduction.furlong(
            *("evaluate", model, "--suite", "recall", "--lengths", arguments.recall_length, *threads),
            *("--samples", arguments.recall_samples),
        )
    )
    return {
        "loss": {one["sequence_length"]: one["loss"] for one in found["lengths"]},
        "baseline_loss": found["baseline_loss"],
        "targets": found["targets"],
        "by_position": [
            {key: one[key] for key in ("first", "last", "loss", "targets")} for one in found["by_position"]
        ],
        "recall": {key: recall[key] for key in ("samples", "seed", "results")},
    }


def measure(arguments, folder, name):
    """Trains and measures one model: name, tokens, and what evaluated() returns."""
    source, dataset = prepare(arguments, folder)
    if name == "teacher":
        teacher = folder / "teacher.h5"
        reproduction.furlong("convert", source, teacher, "--force")
        return {"tokens": 0, **evaluated(arguments, teacher, dataset)}
    text, tokens = config_of(arguments, name, source, dataset)
    (folder / "config.yaml").write_text(text)
    words = ("finetune", folder / "config.yaml", "--run-dir", folder / "run", "--json")
    reproduction.furlong(*words, threads=arguments.threads)
    recovery = json.loads((folder / "run/recovery.json").read_text())
    last = recovery["models"][-1]
    return {
        "tokens": tokens,
        **evaluated(arguments, folder / "run", dataset),
        "minutes": sum(one.get("minutes", 0) for one in recovery["models"]),
        "recovery": {
            stage: {key: one[key] for key in RECOVERY if key in one}
            for stage, one in (("before", recovery["models"][1]), ("last", last))
        },
    }


def beyond(model, position):
    """Mean loss of the targets with at least `position` tokens of context."""
    ranges = [one for one in model["by_position"] if one["first"] > position]
    targets = sum(one["targets"] for one in ranges)
    return sum(one["loss"] * one["targets"] for one in ranges) / targets if targets else None


def share(loss, teacher, baseline):
    """Percent of the teacher's gain over the baseline."""
    return 100 * (baseline - loss) / (baseline - teacher)


def nats(loss):
    return None if loss is None else f"{loss:.3f}"


def recall_of(model):
    """Mean accuracy of each task of the suite that ran."""
    found = {}
    for one in model["recall"]["results"]:
        if "accuracy" in one:
            found.setdefault(one["task"], []).append(one["accuracy"])
    return {task: sum(values) / len(values) for task, values in found.items()}


def tables(result):
    settings, models = result["settings"], result["models"]
    teacher = next(model for model in models if model["model"] == "teacher")
    short, long, window = settings["short"], settings["long"], settings["window"]
    columns = ["model", "tokens", f"loss at {short:,}", f"loss at {long:,}", f"beyond {4 * window}"]
    columns += ["share", "window off"]
    rows = []
    for model in models:
        last = model.get("recovery", {}).get("last", {})
        losses = model["loss"]
        rows.append(
            [
                model["model"],
                model["tokens"],
                *(nats(loss) for loss in (losses[str(short)], losses[str(long)], beyond(model, 4 * window))),
                share(losses[str(short)], teacher["loss"][str(short)], model["baseline_loss"]),
                nats(last.get("window_off", {}).get("loss")),
            ]
        )
    title = (
        f"Held-out loss in nats per token, on the same {teacher['targets']:,} targets in windows of {short:,} and "
        f"{long:,} tokens; beyond {4 * window}: targets with more context than that, in windows of {long:,}. Share: "
        f"percent of the teacher's gain over the frequencies of tokens ({teacher['baseline_loss']:.3f} nats), at "
        f"{short:,}. Window off: loss without the softmax window, in other windows of {settings['length']:,}."
    )
    ranges = [one for one in teacher["by_position"] if one["first"] > 32]
    by_position = [
        [model["model"], model["tokens"], *(nats(one["loss"]) for one in model["by_position"] if one["first"] > 32)]
        for model in models
    ]
    tasks = list(recall_of(teacher))
    recall = [[model["model"], model["tokens"], *(recall_of(model)[task] for task in tasks)] for model in models]
    origin = [
        [*(model[key] for key in ("model", "tokens", "commit", "date", "cpu")), f"{model.get('minutes', 0):.0f}"]
        for model in models
    ]
    return [
        {"title": title, "columns": columns, "rows": rows},
        {
            "title": f"Loss by tokens of context, in windows of {long:,}.",
            "columns": ["model", "tokens", *(f"{one['first']:,} to {one['last']:,}" for one in ranges)],
            "rows": by_position,
        },
        {
            "title": f"Recall: accuracy at {settings['recall_length']} tokens, {settings['recall_samples']} samples.",
            "columns": ["model", "tokens", *(task.replace("_", " ") for task in tasks)],
            "rows": recall,
        },
        {
            "title": "Where each row was measured; minutes of training.",
            "columns": ["model", "tokens", "commit", "date", "CPU", "minutes"],
            "rows": origin,
        },
    ]


def draw(result, folder):
    """Left: all rows. Right: their difference to the teacher, of those within half a nat everywhere."""
    figure, (left, right) = plot.panels(2, width=7.6, height=3.8)
    teacher, *models = result["models"]
    names = list(dict.fromkeys(model["model"] for model in models))
    rows = [model["model"] for model in models]
    shown = [place for place, one in enumerate(teacher["by_position"]) if one["first"] > 8]
    ticks = [teacher["by_position"][place]["last"] for place in shown]

    def losses(model):
        return [model["by_position"][place]["loss"] for place in shown]

    left.plot(ticks, losses(teacher), label="softmax teacher", **plot.style(None))
    for row, model in enumerate(models):
        style = plot.style(names.index(model["model"]))
        if model["model"] in rows[row + 1 :]:  # followed by one of more tokens
            style["linestyle"] = ":"
        label = model["model"].replace("_", " ")
        if rows.count(model["model"]) > 1:
            label += f", {model['tokens'] / 1e6:.2g} M tokens"
        left.plot(ticks, losses(model), label=label, **style)
        differences = [own - theirs for own, theirs in zip(losses(model), losses(teacher))]
        if max(map(abs, differences)) < 0.5:
            right.plot(ticks, differences, **style)
    right.axhline(0, **{**plot.style(None), "marker": None})
    for panel, label in ((left, "held-out loss, nats per token"), (right, "the same, above the teacher's")):
        plot.lengths_axis(panel, ticks, "tokens of context, at most")
        panel.set_ylabel(label)
    plot.legend_below(figure, left, 4)
    plot.save(figure, folder / f"{NAME}.svg")


def earlier(arguments):
    """Models of the existing JSON, if it was measured with the same settings."""
    path = arguments.output / f"{NAME}.json"
    if not path.exists():
        return {}
    found = json.loads(path.read_text())
    own = {key: value for key, value in vars(arguments).items() if key in found["settings"]}
    if own != found["settings"]:
        raise SystemExit(f"{path} was measured with other options; name another folder with --output")
    return {(model["model"], model["tokens"]): model for model in found["models"]}


def run(arguments):
    models = earlier(arguments)
    for name in ["teacher", *arguments.models]:
        if name == "teacher" and ("teacher", 0) in models:
            continue
        one = argparse.Namespace(**{**vars(arguments), "models": [name]})
        one.work = arguments.work and arguments.work / f"{name}_{arguments.tokens}"
        with reproduction.measurement(NAME, one) as (folder, result):
            found = measure(one, folder, name)
        del result["minutes"]  # of this row alone, which has its own
        for key in ("models", "tokens"):  # may differ from row to row
            del result["settings"][key]
        found = json.loads(json.dumps({"model": name, **found}))
        found.update(commit=result["furlong"]["commit"], date=result["date"], cpu=result["machine"]["cpu"])
        models[name, found["tokens"]] = found
        order = ["teacher", *MODELS]
        result["models"] = sorted(models.values(), key=lambda model: (order.index(model["model"]), model["tokens"]))
        reproduction.publish(arguments, result, draw, tables)


def more(parser):
    names = lambda text: text.split(",")
    parser.add_argument("--models", type=names, default=",".join(MODELS), help="rows to measure")
    parser.add_argument("--tokens", type=int, default=250_000, help="training tokens of each model, all stages")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--window", type=int, default=64, help="of windowed and sliding_window")
    parser.add_argument("--length", type=int, default=1024, help="of training")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--batches", type=int, default=5, help="of furlong finetune's own evaluation")
    parser.add_argument("--short", type=int, default=512, help="length of evaluation")
    parser.add_argument("--long", type=int, default=2048, help="length of evaluation")
    parser.add_argument("--windows", type=int, default=20, help="held-out windows of the long length")
    parser.add_argument("--recall-length", type=int, default=512)
    parser.add_argument("--recall-samples", type=int, default=16)


if __name__ == "__main__":
    small = {"models": "sliding_window,windowed", "tokens": 256, "dtype": "float32", "window": 8, "length": 32}
    small.update(batches=1, short=16, long=64, windows=2, recall_length=64, recall_samples=2)
    options = reproduction.options(NAME, __doc__, more, small)
    if unknown := set(options.models) - set(MODELS):
        raise SystemExit(f"--models: unknown {', '.join(sorted(unknown))}; expected some of {', '.join(MODELS)}")
    if options.redraw:
        reproduction.publish(options, reproduction.existing(NAME, options), draw, tables)
    else:
        run(options)
