#!/usr/bin/env python3
"""Repeats training runs of `furlong train` in PyTorch, step by step.

Each case trains a tiny model for 24 steps on the CPU with one thread. Two runs of Furlong are made: the first, with a
high learning rate, gives weights in which no bias is 0 and no gain is 1; the second starts from them (model.weights).
The second run is repeated in float64: batches, masks and their order from the tokenized dataset, the model, losses,
gradients (torch.autograd), clipping, schedules and EMA as docs/ define them, and torch.optim.AdamW. Nothing of the
reference comes from Furlong but the dataset, the resolved config.yaml and the weights to start from (h5py).

Compared: loss, gradient norm, learning rate and number of tokens of each line of metrics.jsonl; loss and accuracy of
each validation (of the EMA, if there is one); weights, both moments and EMA in the last checkpoint; `furlong evaluate`
of the last checkpoint. Cases: every optimizer and schedule; gradient accumulation over batches of unequal numbers of
targets; EMA; packed, padded and stateful documents; masked tokens; every objective over labels; distillation; attention
transfer; adapters (LoRA); skipped outliers; a resumed run. The text after a case's name lists what it covers.

  tests/parity/training.py --furlong build/release/bin/furlong
  tests/parity/training.py --only adamw_cosine,masked --mutations

Tolerances. Furlong trains in float32, so the reference cannot be repeated to the last digit. Errors of numbers are
relative. A tensor's error is the root mean square of its difference, relative to the root mean square of its reference;
that of weights and EMA is relative to the change of the weights since step 0, so that an error of the update is not
hidden by the weights. Tensors that change little are compared with 3 % of the largest change: a key bias without rotary
positions has no gradient. The bounds in TOLERANCE are four to ten times the largest errors found. AdamW divides by
√v + ε: where a gradient is zero but for rounding, the update is noise / noise. Cases therefore use ε = 1e-5, and
`epsilon` the default. No case uses relu: an input within rounding of 0 may be on the other side in float32, which
changes the gradient by 1e-4.

--mutations repeats cases with one error in the reference (MUTATIONS: decay of biases, a schedule that is a step late,
means of means, ε under the root, no bias correction, clipping of single batches, …), which the comparison must reject.

Run with torch 2.15.0, h5py 3.16.0 and PyYAML 6.0.4. Exit status 1 if a difference is over its tolerance, or a mutation
is not rejected.
"""

import argparse
import json
import math
import pathlib
import sys
import tempfile

import h5py
import numpy as np
import torch
import yaml

from training_batches import furlong, prepare
from training_cases import MUTATIONS, STEPS, cases, merged
from training_steps import train, validate

TOLERANCE = {
    "learning rate": 1e-14,  # relative, doubles on both sides
    "loss": 1e-5,
    "gradient norm": 1e-4,
    "validation": 1e-5,
    "weights": 2e-4,
    "EMA": 2e-4,
    "first moments": 5e-5,
    "second moments": 5e-5,
    "evaluate": 3e-6,
}


def defaults(schema):
    """The default of each key of a JSON Schema, section by section."""
    parts = schema["properties"].items()
    return {key: defaults(part) if "properties" in part else part.get("default") for key, part in parts}


class Run:
    """A finished run: its metrics, and the tensors of its last checkpoint by group and name, in float64."""

    def __init__(self, program, folder, name, config, stop=0):
        self.path = folder / name
        file = folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(config))
        options = ["--run-dir", self.path]
        if stop:  # continues from a checkpoint of another run of the same config
            whole, saved = folder / f"{name}_whole", {"checkpoint": {"every": stop, "keep_last": STEPS}}
            file.write_text(yaml.safe_dump(merged(config, saved)))
            furlong(program, "train", file, "--run-dir", whole)
            options += ["--resume", whole / "checkpoints" / f"step_{stop:08}.h5"]
        furlong(program, "train", file, *options)
        self.checkpoint = max((self.path / "checkpoints").glob("step_*.h5"))
        # The resolved config lacks keys without an effect: they have their defaults.
        resolved = json.loads(furlong(program, "config", "show", self.path / "config.yaml", "--json"))
        self.settings = merged(defaults(json.loads(furlong(program, "config", "schema"))), resolved)
        self.metrics = [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]
        self.groups = {}
        with h5py.File(self.checkpoint) as file:
            for group in ("parameters", "first_moments", "second_moments", "ema"):
                self.groups[group] = {}
                if group in file:
                    file[group].visititems(lambda name, found, group=group: self.read(group, name, found))
            self.vocabulary = json.loads(file["vocabulary"][()])

    def read(self, group, name, found):
        if isinstance(found, h5py.Dataset):
            self.groups[group][name.replace("/", ".")] = torch.from_numpy(np.array(found[()], dtype=np.float64))


def rms(x):
    return x.square().mean().sqrt().item() if x.numel() else 0.0


def compare_lines(lines, expected, keys, split):
    """Largest relative difference by key; steps, tokens and skips are equal."""
    found = [line for line in lines if line["split"] == split]
    assert [x["step"] for x in found] == [x["step"] for x in expected], f"{split}: steps {[x['step'] for x in found]}"
    worst = dict.fromkeys(keys, 0.0)
    for line, wanted in zip(found, expected):
        for key in wanted:
            assert key in line, f"{split} line of step {line['step']} has no {key}"
            if key in ("tokens", "skipped"):
                assert line[key] == wanted[key], f"step {line['step']}: {key} {line[key]}, expected {wanted[key]}"
            elif key != "step":
                scale = max(abs(wanted[key]), 1e-300)
                worst[key] = max(worst.get(key, 0.0), abs(line[key] - wanted[key]) / scale)
    return worst


def compare_tensors(ours, expected, start, is_change):
    """The largest error of a tensor, and its name."""
    missing, more = set(expected) - set(ours), set(ours) - set(expected)
    assert not missing and not more, f"missing tensors {sorted(missing)[:4]}, unexpected {sorted(more)[:4]}"
    changes = {name: rms(value - start[name]) if is_change else rms(value) for name, value in expected.items()}
    least = 0.03 * max(changes.values(), default=0.0)
    errors = {name: rms(ours[name] - value) / max(changes[name], least, 1e-300) for name, value in expected.items()}
    name = max(errors, key=errors.get)
    return errors[name], name


def differences(run, start, result, groups):
    """Error of each quantity in TOLERANCE that the run has."""
    train_lines = compare_lines(run.metrics, result["train"], [], "train")
    validation = compare_lines(run.metrics, result["validation"], [], "validation")
    found = {
        "loss": (train_lines["loss"], ""),
        "gradient norm": (train_lines["gradient_norm"], ""),
        "learning rate": (train_lines["learning_rate"], ""),
        "validation": (max(value for key, value in validation.items()), ""),
    }
    for name, group in (("weights", "parameters"), ("EMA", "ema"), ("first moments", "first_moments"),
                        ("second moments", "second_moments")):
        if groups[group] or run.groups[group]:
            change = group in ("parameters", "ema")
            found[name] = compare_tensors(run.groups[group], groups[group], start, change)
    return found


def compare_evaluation(program, run, groups):
    """`furlong evaluate` of the last checkpoint, with the EMA and without."""
    if run.settings["teacher"]["loss"] == "attention_transfer":
        return 0.0
    worst = 0.0
    for weights in ["ema", "raw"] if groups["ema"] else ["raw"]:
        options = ("--weights", weights, "--threads", "1", "--json")
        found = json.loads(furlong(program, "evaluate", run.checkpoint, *options))
        tensors = {**groups["parameters"], **(groups["ema"] if weights == "ema" else {})}
        wanted = validate(run.settings, run.vocabulary, tensors)
        if run.settings["objective"]["name"] in ("next_token", "masked_tokens"):
            wanted["perplexity"] = math.exp(wanted["loss"])
            wanted["bits_per_token"] = wanted["loss"] / math.log(2)
        for key, value in wanted.items():
            worst = max(worst, abs(found[key] - value) / max(abs(value), 1e-300))
    return worst


def start_from(program, folder, name, config):
    """Trains weights to start from: no teacher, no EMA, no skipped steps."""
    plain = {key: value for key, value in config.items() if key != "teacher"}
    fast = {"optimizer": {"learning_rate": 1e-2, "ema_decay": 0, "weight_decay": 0}, "seed": 3}
    schedule = {"schedule": {"name": "constant", "warmup_steps": 2}}
    plain = merged(plain, fast, schedule, {"trainer": {"max_steps": 12, "skip_outlier_factor": 0}})
    for key in ("final_fraction", "decay_steps"):
        plain["schedule"].pop(key, None)
    return Run(program, folder, name, plain)


def check(program, folder, name, config, mutations):
    config = merged(config, {"data": {"dataset": str(folder / f"{config['data']['dataset']}.h5")}})
    start = start_from(program, folder, f"{name}_start", config)
    config = merged(config, {"model": {"weights": str(start.checkpoint)}})
    teacher = None
    if "teacher" in config:
        softmax = merged(config, {"model": {"weights": ""}, "seed": 4})
        del softmax["model"]["attention"], softmax["model"]["weights"]  # a teacher with softmax
        teacher = start_from(program, folder, f"{name}_teacher", softmax)
        config = merged(config, {"teacher": {"checkpoint": str(teacher.checkpoint)}})
    run = Run(program, folder, name, config, stop=10 if name == "resumed" else 0)
    initial = start.groups["parameters"]
    failures, texts = [], []
    result, groups = train(config, initial, run, teacher)
    found = differences(run, initial, result, groups)
    found["evaluate"] = compare_evaluation(program, run, groups), ""
    for key, (value, where) in found.items():
        texts.append(f"{key} {value:.1e}")
        if not value <= TOLERANCE[key]:
            failures.append(f"{key} {value:.2e} > {TOLERANCE[key]:.0e} {where}")
    skipped = sum(line.get("skipped", 0) for line in result["train"])
    clip = config["optimizer"]["gradient_clip"] or math.inf
    clipped = sum(line["gradient_norm"] > clip for line in result["train"])
    more = f"; {clipped} of {len(result['train'])} steps clipped" + (f", {skipped} skipped" if skipped else "")
    print(f"{name:20} {', '.join(texts)}{more}", flush=True)
    if mutations:  # the reference of mutations, without one
        control = differences(run, initial, *train(config, initial, run, teacher, "none"))
        failures += [f"control: {key} {value:.2e}" for key, (value, _) in control.items() if value > TOLERANCE[key]]
    for mutation in mutations:
        wrong = train(config, initial, run, teacher, mutation)
        errors = {key: value / TOLERANCE[key] for key, (value, _) in differences(run, initial, *wrong).items()}
        key = max(errors, key=errors.get)
        print(f"{'':20} {mutation}: {key} {errors[key]:.1g} times its tolerance", flush=True)
        if errors[key] < 5:
            failures.append(f"{mutation} is not rejected")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--furlong", type=pathlib.Path, default=pathlib.Path("build/release/bin/furlong"))
    parser.add_argument("--only", default="", help="names of cases, separated by commas")
    parser.add_argument("--mutations", action="store_true", help="also repeat runs with errors that must be found")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    only, failed = set(filter(None, arguments.only.split(","))), []
    table = cases()
    if only - set(table):
        parser.error(f"unknown cases: {', '.join(sorted(only - set(table)))}")
    program = arguments.furlong.resolve()
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        prepare(program, folder)
        for name, (_, config) in table.items():
            if only and name not in only:
                continue
            try:
                mutations = MUTATIONS.get(name, ()) if arguments.mutations else ()
                failures = check(program, folder, name, config, mutations)
            except (AssertionError, RuntimeError, KeyError) as error:
                failures = [f"{type(error).__name__}: {error}"]
            failed += [f"{name}: {failure}" for failure in failures]
            for failure in failures:
                print(f"{name:20} FAILED: {failure}", flush=True)
    print(f"{len(only or table)} cases, {len(failed)} failures")
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
