"""ListOps and Pathfinder of Long Range Arena (Tay et al. 2020, arXiv:2011.04006) at desk size: test accuracy of each
attention next to the paper's, which are for other models and data, and of one of them after masked self-pretraining on
the same expressions (Amos et al. 2023, arXiv:2310.02980)."""

import collections
import functools
import json
import os
import pathlib
import statistics
import time

import h5py
import numpy as np

import plot
import reproduction

NAME = "long_range_arena"
CONFIGS = reproduction.ROOT / "configs/lra"
PUBLISHED = {  # Tay et al. 2020, Table 1
    "listops": {"softmax": 0.3637, "local": 0.1582, "linformer": 0.3570, "favor_positive": 0.1801, "elu1": 0.1613},
    "pathfinder": {"softmax": 0.7140, "local": 0.6663, "linformer": 0.7634, "favor_positive": 0.7705, "elu1": 0.7530},
}
TITLES = {"listops": "ListOps", "pathfinder": "Pathfinder"}
PAPER = {"listops": "paper, 500 to 2,000 tokens", "pathfinder": "paper, 33,000 M tokens"}  # columns
TRAINED_ON = {"listops": "expressions of 500 to 2,000 tokens", "pathfinder": "33,000 M tokens"}  # in the paper
# Values of an operator with digits as arguments.
OPERATORS = {"[MAX": max, "[MIN": min, "[MED": lambda d: int(statistics.median(d)), "[SM": lambda d: sum(d) % 10}
MEASURED = ("accuracy", "baseline_accuracy", "test_samples", "parameters", "steps", "tokens")


def settings_of(arguments, folder, task):
    """Config keys that the options change."""
    keys = {"threads": arguments.threads, "log__progress": "none"}
    if arguments.tiny:
        keys.update(trainer__max_steps=2, schedule__warmup_steps=1, model__d_model=16, data__batch_size=2)
        keys.update(data__dataset=folder / f"tiny_{task}.h5", trainer__validate_every=1)
        if task == "listops":
            keys["data__sequence_length"] = 40
    return keys


def bench(arguments, folder, task, mechanism, runs="runs", **settings):
    """Trains and measures one model. Returns its row of the table, with the accuracies of its validations."""
    file = folder / f"{runs}_{task}_{mechanism}.json"
    words = ["--tasks", task, "--mechanisms", mechanism, "--configs", CONFIGS, "--output", folder / runs]
    if arguments.tiny:
        words += ["--samples", "60,10,20"]
    reproduction.furlong(
        *("bench", "lra", "--size", "desk", *words, "--json-file", file),
        **{**settings_of(arguments, folder, task), **settings},
    )
    (found,) = json.loads(file.read_text())["results"]
    metrics = pathlib.Path(found["run_directory"]) / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    validations = [line for line in lines if line["split"] == "validation"]
    per_step = found["tokens"] / found["steps"]
    return {
        "task": task,
        "attention": mechanism,
        **{key: found[key] for key in MEASURED},
        "validation_baseline": most_frequent(found["dataset"], "validation"),
        "rules": RULES[task](found["dataset"], found["test_samples"]) if task in RULES else [],
        "seconds": found["seconds"],
        "validation": [{"tokens": line["step"] * per_step, "accuracy": line["accuracy"]} for line in validations],
    }


def split_of(file, split):
    """The documents of a split of a generated dataset, which is one range of tokens."""
    ((begin, end),) = file["splits"][split][:]
    return slice(*np.searchsorted(file["documents"][:], (begin, end)))


def most_frequent(dataset, split):
    """The share of a split's most frequent label."""
    with h5py.File(dataset) as file:
        labels = file["labels"][split_of(file, split)]
    return float(np.bincount(labels).max() / len(labels))


@functools.cache
def rules_of_listops(dataset, samples):
    """Accuracies on the first test samples of rules that read little of an expression: its first operator, and that
    with the digits that are its own arguments, whose value without the nested expressions is taken. Each answers with
    the label that is most frequent in training after what it has read."""
    with h5py.File(dataset) as file:
        ids = json.loads(file.attrs["vocabulary"])["tokenizer"]["tokenizer"]["model"]["vocab"]
        words = {number: word for word, number in ids.items()}
        tokens, documents, labels = file["tokens"][:], file["documents"][:], file["labels"][:]
        training, test = split_of(file, "train"), split_of(file, "test")

    def value(index):
        depth, digits = 0, []
        expression = [words[token] for token in tokens[documents[index] : documents[index + 1]]]
        for word in expression:
            if word.startswith("[") or word == "]":
                depth += 1 if word != "]" else -1
            elif depth == 1:
                digits.append(int(word))
        return expression[0], OPERATORS[expression[0]](digits) if digits else None

    found = []
    for name, key in (("first operator", lambda read: read[0]), ("first operator and its digits", lambda read: read)):
        counts = collections.defaultdict(collections.Counter)
        for index in range(training.start, training.stop):
            counts[key(value(index))][labels[index]] += 1
        answers = {read: of.most_common(1)[0][0] for read, of in counts.items()}
        tested = range(test.start, min(test.stop, test.start + samples))
        right = [answers.get(key(value(index))) == labels[index] for index in tested]
        found.append({"rule": name, "accuracy": float(np.mean(right))})
    return found


def dots_of(picture):
    """The centers of the two dots: the brightest squares of three pixels, three or more apart."""
    size = picture.shape[0]
    padded = np.pad(picture.astype(int), 1)
    sums = sum(padded[y : y + size, x : x + size] for y in range(3) for x in range(3))
    found = []
    for _ in range(2):
        y, x = np.unravel_index(sums.argmax(), sums.shape)
        found.append((int(y), int(x)))
        sums[max(0, y - 2) : y + 3, max(0, x - 2) : x + 3] = 0
    return found


def is_connected(picture):
    """Whether pixels that are not black lead from one dot to the other, each next to the last, also diagonally."""
    begin, end = dots_of(picture)
    left, waiting = picture > 0, [begin]
    left[begin] = False
    while waiting:
        y, x = waiting.pop()
        if (y, x) == end:
            return True
        near = np.argwhere(left[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2]) + (max(0, y - 1), max(0, x - 1))
        for pixel in map(tuple, near):
            left[pixel] = False
            waiting.append(pixel)
    return False


@functools.cache
def rules_of_pathfinder(dataset, samples):
    """The accuracy of is_connected() on the first test samples."""
    with h5py.File(dataset) as file:
        test, documents = split_of(file, "test"), file["documents"][:]
        tested = range(test.start, min(test.stop, test.start + samples))
        right = []
        for index in tested:
            pixels = file["tokens"][documents[index] : documents[index + 1]]
            picture = pixels.reshape(2 * (round(len(pixels) ** 0.5),))
            right.append(is_connected(picture) == file["labels"][index])
    return [{"rule": "unbroken line between the dots", "accuracy": float(np.mean(right))}]


RULES = {"listops": rules_of_listops, "pathfinder": rules_of_pathfinder}


def attention_keys(mechanism):
    """Config keys of a mechanism or feature map."""
    if mechanism in ("softmax", "linformer"):
        return {"model__attention__mechanism": mechanism}
    return {"model__attention__mechanism": "linear", "model__attention__feature_map": mechanism}


def pretrain(weights, keys):
    """Seconds of masked self-pretraining, from the start."""
    begin = time.monotonic()
    words = ("--run-dir", weights, "--resume", "never")
    reproduction.furlong("train", CONFIGS / "listops_desk_pretraining.yaml", *words, **keys)
    return time.monotonic() - begin


def measure(arguments, folder, result):
    os.environ.setdefault("FURLONG_DATA", str(reproduction.ROOT / "data"))  # of the configs
    result["runs"] = [
        bench(arguments, folder, task, mechanism)
        for task in arguments.tasks
        for mechanism in arguments.mechanisms
    ]
    for mechanism in arguments.pretrained if "listops" in arguments.tasks else []:
        weights = folder / f"pretraining_{mechanism}"
        keys = {**settings_of(arguments, folder, "listops"), **attention_keys(mechanism)}
        seconds = reproduction.measured_once(folder / f"{weights.name}.seconds", lambda: pretrain(weights, keys))
        run = bench(arguments, folder, "listops", mechanism, "pretrained", model__weights=weights)
        result["runs"].append({**run, "attention": f"{mechanism}, pretrained", "pretraining_seconds": seconds})


def percent(share):
    return "" if share is None else f"{100 * share:.2f}"


def tables(result):
    for task in result["settings"]["tasks"]:
        runs = [run for run in result["runs"] if run["task"] == task]
        first = runs[0]
        title = (
            f"{TITLES[task]}: accuracy in percent on {first['test_samples']:,} test samples; the most frequent "
            f"label gives {percent(first['baseline_accuracy'])}. {first['steps']:,} steps, "
            f"{first['tokens'] / 1e6:.3g} M tokens, one seed. Not comparable: accuracies of the paper (Table 1) are of "
            f"other models, trained on {TRAINED_ON[task]}."
        )
        if any(run["attention"].endswith("pretrained") for run in runs):
            title += " A pretrained model has as many steps of masked tokens before."
        rows = [
            [
                run["attention"],
                percent(run["accuracy"]["value"]),
                f"{percent(run['accuracy']['low'])} to {percent(run['accuracy']['high'])}",
                run["parameters"],
                percent(PUBLISHED[task].get(run["attention"])),
            ]
            for run in runs
        ]
        rows += [[f"no model: {one['rule']}", percent(one["accuracy"]), "", "", ""] for one in first["rules"]]
        columns = ["attention", "accuracy", "95% interval", "parameters", PAPER[task]]
        yield {"title": title, "columns": columns, "rows": rows}


def draw(result, folder):
    tasks = result["settings"]["tasks"]
    figure, axes = plot.panels(len(tasks), width=7.6, height=3.4)
    names = list(dict.fromkeys(run["attention"] for run in result["runs"]))
    for panel, task in zip(axes, tasks):
        runs = [run for run in result["runs"] if run["task"] == task]
        for run in runs:
            index = names.index(run["attention"])
            panel.plot(
                [point["tokens"] / 1e6 for point in run["validation"]],
                [point["accuracy"] for point in run["validation"]],
                label=run["attention"],
                **plot.style(index - 1 if index else None),
            )
        panel.axhline(runs[0]["validation_baseline"], color=plot.INK, linestyle=":", label="most frequent label")
        for one, linestyle in zip(runs[0]["rules"], ("--", "-.") if task == "listops" else ((0, (1, 3)),)):
            label = f"no model, test split: {one['rule']}"
            panel.axhline(one["accuracy"], color=plot.INK, linestyle=linestyle, label=label)
        panel.set_xlabel("millions of tokens")
        panel.set_ylabel("validation accuracy")
        panel.set_title(TITLES[task])
        panel.set_ylim(0, 1.15 * panel.dataLim.ymax)
    plot.legend_below(figure, max(axes, key=lambda panel: len(panel.lines)), 4)
    plot.save(figure, folder / f"{NAME}.svg")


def more(parser):
    words = lambda text: [word for word in text.split(",") if word]
    parser.add_argument("--tasks", type=words, default="listops,pathfinder")
    everything = "softmax,favor_positive,favor_relu,elu1,linformer,windowed"
    parser.add_argument("--mechanisms", type=words, default=everything, help="as of furlong bench lra")
    pretrained = "attentions of listops to pretrain, too; neither local nor windowed"
    parser.add_argument("--pretrained", type=words, default="softmax", help=pretrained)


if __name__ == "__main__":
    small = {"mechanisms": "softmax,elu1", "pretrained": "elu1"}
    options = reproduction.options(NAME, __doc__, more, small)
    if not options.tasks or not options.mechanisms or {"local", "windowed"} & set(options.pretrained):
        raise SystemExit("expected tasks and mechanisms, and neither local nor windowed among --pretrained")
    reproduction.reproduce(NAME, options, measure, draw, lambda result: list(tables(result)))
