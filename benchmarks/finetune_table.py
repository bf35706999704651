#!/usr/bin/env python3
"""Prints a Markdown table of the recovery.json files of furlong finetune, with the students one below the other.

benchmarks/finetune_table.py runs/antibody_*/recovery.json
benchmarks/finetune_table.py --lengths runs/antibody_*/recovery.json   # speed at each length instead
"""

import argparse
import json
import pathlib


STAGES = {
    "before": "no training",
    "transfer": "attention transfer",  # in files of older versions
    "attention_transfer": "attention transfer",
}


def name_of(run):
    attention = run["attention"]
    if attention["mechanism"] == "softmax":
        return "softmax"
    features = attention.get("feature_map", "")
    text = (
        features
        if attention["mechanism"] == "linear"
        else f"{attention['mechanism']} {attention.get('softmax_window', '')} + {features}".strip()
    )
    extras = [key for key in ("centering",) if attention.get(key)]
    if attention.get("scaling", "none") != "none":
        extras.append(attention["scaling"])
    return ", ".join([text] + extras)


def percent(value, error=None):
    if value is None:
        return ""
    return f"{100 * value:.2f} %" + (f" ± {100 * error:.2f}" if error else "")


def row(name, stage, model):
    recovery = model.get("recovery", {})
    # Files of older versions have the same numbers under the second key.
    errors = model.get("squared_attention_error") or model.get("relative_error_of_attention") or {}
    error = f"{sum(errors.values()) / len(errors):.3f}" if errors else ""
    spent = (f"{model['tokens']:,}", f"{model['minutes']:.1f}") if model.get("steps") else ("", "")
    cells = (
        name,
        stage,
        f"{model['loss']:.4f}",
        f"{model['perplexity']:.4f}",
        f"{model['accuracy']:.4f}",
        percent(recovery.get("accuracy"), recovery.get("accuracy_standard_error")),
        percent(recovery.get("loss")),
        error,
        *spent,
    )
    return "| " + " | ".join(cells) + " |"


def print_lengths(paths, runs):
    print("| config | tokens | teacher, tokens/s | student, tokens/s | student / teacher |")
    print("| --- " * 5 + "|")
    for path, run in zip(paths, runs):
        for entry in run["lengths"]:
            teacher, student = (entry[model]["tokens_per_second"] for model in ("teacher", "student"))
            speeds = f"{teacher:,.0f} | {student:,.0f} | {student / teacher:.2f}"
            print(f"| `{path.stem}` | {entry['length']:,} | {speeds} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recovery", nargs="+", type=pathlib.Path)
    parser.add_argument("--lengths", action="store_true", help="print the speed of teacher and student at each length")
    arguments = parser.parse_args()
    runs = [json.loads(path.read_text()) for path in arguments.recovery]
    if arguments.lengths:
        print_lengths(arguments.recovery, runs)
        return
    print(
        "| attention | model | loss | perplexity | accuracy | recovery | of loss | squared attention error | tokens "
        "| minutes |"
    )
    print("| --- " * 10 + "|")
    teachers = set()
    for run in runs:
        for model in run["models"]:
            if model["name"] == "teacher":
                key = (model["loss"], model["accuracy"])
                if key not in teachers:
                    print(row("softmax", "teacher", model))
                teachers.add(key)
                continue
            if run["attention"]["mechanism"] == "softmax" and model["name"] == "before":
                continue  # the teacher itself
            print(row(name_of(run), STAGES.get(model["name"], model["name"]), model))
            if "window_off" in model:
                print(row("", "window off", model["window_off"]))


if __name__ == "__main__":
    main()
