#!/usr/bin/env python3
"""Trains example configs to their end, evaluates the best checkpoint of each on the test split, and writes NAME.json.

  benchmarks/train_configs.py configs/quickstart.yaml configs/lra/text_desk.yaml
  benchmarks/train_configs.py --table benchmarks/results/configs/*.json

Data: scripts/run.sh train CONFIG prepares the dataset of a config. A run that exists already is only evaluated, and its
JSON has no minutes; --commit names the program that trained it. --table prints Markdown rows of JSON files.
Exit status: 0 all trained, otherwise that of furlong.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]


def furlong(program, *arguments):
    """Runs the program. Returns its JSON and its processor time in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([program, *map(str, arguments), "--json"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return json.loads(done.stdout), sum(after[:2]) - sum(before[:2])


def train(program, config, runs, threads, commit):
    run = runs / config.stem
    found = {"config": os.path.relpath(config, ROOT)}
    if (run / "metrics.jsonl").exists():
        if not commit:
            sys.exit(f"error: {run} exists; name the commit of the program that trained it with --commit")
    else:
        _, seconds = furlong(program, "train", config, "--run-dir", run, "--set", f"threads={threads}")
        found.update(threads=threads, processor_minutes=seconds / 60)
    last = json.loads([line for line in open(run / "metrics.jsonl") if '"train"' in line][-1])
    settings, _ = furlong(program, "config", "show", run / "config.yaml")
    if last["step"] < settings["trainer"]["max_steps"]:
        sys.exit(f"error: {run} is not at its end; continue it with furlong train --run-dir")
    result, _ = furlong(program, "evaluate", run, "--split", "test", "--threads", threads)
    plan, _ = furlong(program, "plan", run / "config.yaml")
    found.update(parameters=plan["parameters"], steps=last["step"], tokens=last["tokens"])
    result.pop("tokens_per_second")
    for key in ("checkpoint", "data"):  # without the machine's folders
        result[key] = "/".join(pathlib.Path(result[key]).parts[-3 if key == "checkpoint" else -1 :])
    found["commit"] = commit or result["furlong"]["commit"]
    return {**found, "date": time.strftime("%Y-%m-%d"), "evaluation": result}


def row(file):
    found = json.loads(pathlib.Path(file).read_text())
    result = found["evaluation"]
    interval = result.get("metrics", {}).get("accuracy")
    accuracy = f"{result['accuracy']:.4f}" + (f" ({interval['low']:.3f} to {interval['high']:.3f})" if interval else "")
    bits = result.get("bits_per_byte") or result.get("bits_per_token")
    cells = (
        f"`{found['config'].removeprefix('configs/').removesuffix('.yaml')}`",
        found["commit"][:8],
        f"{found['parameters'] / 1e6:.2f} M",
        f"{found['steps']:,}" + (f" (best: {result['step']:,})" if result["step"] != found["steps"] else ""),
        f"{found['tokens'] / 1e6:.1f} M",
        f"{found['processor_minutes']:.1f}" if "processor_minutes" in found else "",
        f"{result['loss']:.4f}",
        f"{result['baseline_loss']:.4f}",
        f"{bits:.4f}" if bits else "",
        accuracy,
        f"{result['baseline_accuracy']:.3f}",
    )
    return "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="configs; with --table, JSON files")
    parser.add_argument("--table", action="store_true", help="print rows of JSON files")
    parser.add_argument("--program", default=ROOT / "build/release/bin/furlong", help="furlong (default: %(default)s)")
    parser.add_argument("--runs", type=pathlib.Path, default=pathlib.Path("runs/trained"), help="folder of runs")
    parser.add_argument("--threads", type=int, default=1, help="threads (default: %(default)s)")
    parser.add_argument("--commit", help="commit of the program that trained runs which exist already")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "benchmarks/results/configs", help="folder")
    arguments = parser.parse_args()
    if arguments.table:
        columns = "config commit parameters steps tokens minutes loss baseline bits accuracy baseline".split()
        print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))
        for file in arguments.files:
            print(row(file))
        return
    arguments.output.mkdir(parents=True, exist_ok=True)
    for file in map(pathlib.Path, arguments.files):
        found = train(arguments.program, file.resolve(), arguments.runs, arguments.threads, arguments.commit)
        (arguments.output / f"{file.stem}.json").write_text(json.dumps(found, indent=1) + "\n")
        print(row(arguments.output / f"{file.stem}.json"), flush=True)


if __name__ == "__main__":
    main()
