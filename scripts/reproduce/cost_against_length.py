"""Time and memory against sequence length, and the measured length from which on each mechanism is cheaper than exact
softmax: of attention alone and of a training step, for every feature map of the program."""

import json

import plot
import reproduction

NAME = "cost_against_length"
SOFTMAX, ENCODER = "softmax", "softmax, bidirectional"
PERFORMER = "favor_positive"
# A decoder on the copy task, whose sequences can have any length.
CONFIG = """seed: 1
model: {n_layers: 2, d_model: 256, n_heads: 4}
data: {task: copy, batch_size: 1}
schedule: {warmup_steps: 1}
trainer: {validate_every: 0, validation_batches: 1}
checkpoint: {every: 0}
log: {every: 1, progress: none, level: error}
"""


def label(mechanism, feature_map=None, window=0, causal=True):
    if mechanism == "linear":
        return feature_map
    text = f"{mechanism} {window} + {feature_map}" if mechanism == "windowed" else mechanism
    if mechanism == "softmax" and window:
        text = f"softmax, window {window}"
    return text if causal else f"{text}, bidirectional"


def op_costs(arguments, folder):
    """Runs furlong bench attention: softmax and all feature maps; windows; bidirectional attention."""
    maps = reproduction.choices("model", "attention", "feature_map")
    window = ["--window", arguments.window]
    for words in (
        ["--mechanism", "softmax,linear", "--feature-map", ",".join(maps), "--features", arguments.features],
        ["--mechanism", "softmax,windowed", *window, "--feature-map", PERFORMER, "--features", arguments.features],
        ["--mechanism", "softmax,linformer", "--bidirectional", "--projected-length", arguments.projected_length],
    ):
        file = folder / "bench.json"
        reproduction.furlong(
            *("bench", "attention", *words, "--train", "--heads", 4, "--head-dim", 64, "--json-file", file),
            *("--lengths", ",".join(map(str, arguments.lengths))),
            *("--repeats", arguments.repeats, "--threads", arguments.threads),
        )
        for found in json.loads(file.read_text())["attention"]:
            yield {
                "attention": label(found["mechanism"], found.get("feature_map"), found["window"], found["causal"]),
                "lengths": [
                    {"n": length["n"], "seconds": length["seconds"], "peak_bytes": length["peak_bytes"]}
                    for length in found["lengths"]
                ],
            }


def settings_of(attention, arguments):
    """Config keys of a label."""
    settings = {"mechanism": "linear"}
    if attention.startswith(("softmax", "linformer")):
        settings["mechanism"] = attention.split(",")[0]
    elif attention.startswith("windowed"):
        settings.update(mechanism="windowed", feature_map=PERFORMER, softmax_window=arguments.window)
    else:
        settings["feature_map"] = attention
    if attention.startswith("softmax, window"):
        settings["window"] = arguments.window
    if attention.startswith("linformer"):
        settings["projected_length"] = arguments.projected_length
    if settings.get("feature_map", "").startswith(("favor", "oprf")):
        settings["n_features"] = arguments.features
    settings = {f"model__attention__{key}": value for key, value in settings.items()}
    if attention.endswith("bidirectional"):
        settings.update(model__architecture="encoder", objective__name="masked_tokens")
    return settings


def step_cost(arguments, folder, n, settings):
    """Seconds of a training step after the first, and peak memory."""
    more = max(1, arguments.step_tokens // n)

    def run(steps):
        return reproduction.train(
            *(folder, "step", arguments.threads, CONFIG, "--resume", "never"),
            **settings,
            data__sequence_length=n,
            trainer__max_steps=steps,
        )

    lines, spent = run(1 + more)
    if arguments.processor_time:  # of the start, validation and checkpoint, too, which cancel
        seconds = reproduction.difference([run(1)[1], spent])
    else:
        lines_of_steps = [line for line in lines if line["split"] == "train"]
        if len(lines_of_steps) != 1 + more:
            raise SystemExit(f"{len(lines_of_steps)} lines of steps in metrics.jsonl, expected {1 + more}")
        seconds = sum(
            (line["tokens"] - before["tokens"]) / line["tokens_per_second"]
            for before, line in zip(lines_of_steps, lines_of_steps[1:])
        )
    return seconds / more, max(line["memory_bytes"] for line in lines)


def step_costs(arguments, folder, attentions):
    for attention in attentions:
        settings = settings_of(attention, arguments)
        lengths = []
        for n in arguments.step_lengths:
            if "model__attention__projected_length" in settings:
                settings["model__attention__projected_length"] = min(n, arguments.projected_length)
            costs = [step_cost(arguments, folder, n, settings) for _ in range(arguments.step_repeats)]
            lengths.append({"n": n, "seconds": [seconds for seconds, _ in costs], "peak_bytes": costs[0][1]})
        yield {"attention": attention, "lengths": lengths}


def labels(arguments):
    """Labels of all attentions, softmax first."""
    maps = reproduction.choices("model", "attention", "feature_map")
    mechanisms = set(reproduction.choices("model", "attention", "mechanism"))
    if mechanisms != {"softmax", "linear", "windowed", "linformer"}:
        raise SystemExit(f"the program has the mechanisms {', '.join(sorted(mechanisms))}; add the new one here")
    windows = [label("softmax", window=arguments.window), label("windowed", PERFORMER, arguments.window)]
    return [SOFTMAX, *maps, *windows, ENCODER, label("linformer", causal=False)]


def measure(arguments, folder, result):
    result["labels"] = labels(arguments)
    parts = {
        "op": lambda: op_costs(arguments, folder),
        "training_step": lambda: step_costs(arguments, folder, result["labels"]),
    }
    for key in arguments.parts:
        part = result[key] = list(parts[key]())
        for one in part:
            for length in one["lengths"]:
                length["seconds"] = reproduction.spread(length["seconds"])
        exact = {one["attention"]: one["lengths"] for one in part}
        for one in part:
            theirs = exact[ENCODER if one["attention"].endswith("bidirectional") else SOFTMAX]
            ns = [length["n"] for length in theirs]
            one["cheaper_from_n"] = {
                what: reproduction.below_from(ns, list(map(most, one["lengths"])), list(map(least, theirs)))
                for what, most, least in (
                    ("time", lambda length: length["seconds"]["most"], lambda length: length["seconds"]["least"]),
                    ("memory", kibibytes, kibibytes),
                )
            }


def microseconds(length):
    """Per token."""
    return 1e6 * length["seconds"]["median"] / length["n"]


def kibibytes(length):
    """Per token."""
    return length["peak_bytes"] / 1024 / length["n"]


TITLES = {
    "op": "Attention, forward and backward: 4 heads of 64, float32",
    "training_step": "Training step: 2 layers, d_model 256, 4 heads, one sequence, float32",
}


def kind_of_time(result, key):
    """furlong bench attention measures by the clock."""
    return "clock time" if key == "op" else reproduction.kind_of_time(result)


def tables(result):
    for key in result["settings"]["parts"]:
        lengths = [length["n"] for length in result[key][0]["lengths"]]
        shown = sorted({0, len(lengths) // 2, len(lengths) - 1})
        columns = ["attention", *(f"µs per token at {lengths[i]:,}" for i in shown)]
        columns += [f"KiB per token at {lengths[-1]:,}", "faster than softmax from", "less memory from"]
        rows = []
        for one in result[key]:
            row = [one["attention"]]
            for length in (one["lengths"][i] for i in shown):
                row.append(reproduction.with_spread(length["seconds"], lambda seconds: 1e6 * seconds / length["n"]))
            row.append(kibibytes(one["lengths"][-1]))
            exact = one["attention"] in (SOFTMAX, ENCODER)
            for what in ("time", "memory"):
                row.append("" if exact else one["cheaper_from_n"][what] or f"not up to {lengths[-1]:,}")
            rows.append(row)
        samples = reproduction.samples_text(len(result[key][0]["lengths"][0]["seconds"]["samples"]))
        yield {"title": f"{TITLES[key]}; {kind_of_time(result, key)}, {samples}.", "columns": columns, "rows": rows}


def draw_panels(result, keys, chosen, path, height, columns):
    """Two panels, time and memory, for each of `keys`. `chosen`: labels to draw, softmax first."""
    figure, axes = plot.panels(2 * len(keys), rows=len(keys), height=height)
    for row, (key, title) in enumerate(keys):
        shown = [one for one in result[key] if one["attention"] in chosen]
        lengths = [length["n"] for length in shown[0]["lengths"]]
        time = f"{kind_of_time(result, key)} per token, µs"
        for panel, value, unit in ((0, microseconds, time), (1, kibibytes, "memory per token, KiB")):
            panel = axes[2 * row + panel]
            for one in shown:
                values = list(map(value, one["lengths"]))
                index = chosen.index(one["attention"])
                style = plot.style(index - 1 if index else None, markers=len(chosen) < 9)
                panel.plot(lengths, values, label=one["attention"], **style)
            plot.lengths_axis(panel, lengths, "sequence length")
            plot.logarithmic(panel, unit)
            panel.set_title(title)
    plot.legend_below(figure, axes[0], columns)
    plot.save(figure, path)


def draw(result, folder):
    titles = {"op": "attention alone", "training_step": "training step"}
    parts = [(key, titles[key]) for key in result["settings"]["parts"]]
    draw_panels(result, parts, result["labels"], folder / f"{NAME}.svg", 1.2 + 2.7 * len(parts), 4)
    if "training_step" in result:
        images = (folder.parent if folder == reproduction.RESULTS else folder) / "images"  # of README.md
        images.mkdir(exist_ok=True)
        few = [SOFTMAX, PERFORMER, label("windowed", PERFORMER, result["settings"]["window"])]
        draw_panels(result, [("training_step", "training step")], few, images / f"{NAME}.svg", 2.7, 3)


def more(parser):
    parts = {"choices": list(TITLES), "default": list(TITLES), "help": "what to measure"}
    parser.add_argument("--parts", nargs="+", **parts)
    parser.add_argument("--lengths", type=reproduction.integers, default="256,512,1024,2048,4096,8192")
    parser.add_argument("--step-lengths", type=reproduction.integers, default="256,1024,4096,16384")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of attention alone; the median counts")
    parser.add_argument("--step-tokens", type=int, default=8192, help="tokens of a run's steps, of which one at least")
    parser.add_argument("--step-repeats", type=int, default=3, help="runs of training steps; the median counts")
    parser.add_argument("--features", type=int, default=128, help="random features of each head")
    parser.add_argument("--window", type=int, default=256)
    reproduction.processor_time_option(parser)
    parser.add_argument("--projected-length", type=int, default=256, help="rows of Linformer")


if __name__ == "__main__":
    small = {"parts": list(TITLES), "lengths": "32,64", "step_lengths": "32", "repeats": 1}
    small.update(step_repeats=1, step_tokens=1)
    reproduction.reproduce(
        NAME,
        reproduction.options(NAME, __doc__, more, {**small, "features": 16, "window": 8, "projected_length": 8}),
        measure,
        draw,
        lambda result: list(tables(result)),
    )
