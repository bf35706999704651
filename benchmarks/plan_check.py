#!/usr/bin/env python3
"""Compares the estimates of furlong plan for this machine's CPU with measurements of furlong train, for one rank and
for two ranks with one thread each. Writes benchmarks/results/plan_check_<date>.json: time of a step, peak memory, and
the scaling from one rank to two.

Plans each case twice: with the default utilization, and with the utilization measured with one rank, which isolates the
cost of the second rank. Needs an idle machine; takes less than five minutes.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import tempfile

from common import Budget, commit, cpu_model, our_program, write_result

# Sequences of the copy task, which needs no data. A small model, whose gradients are large beside its work; and the
# model of run_training_step.py.
CASES = {
    "small": {
        "model": {
            "n_layers": 4,
            "d_model": 256,
            "n_heads": 4,
            "d_feedforward": 1024,
            "vocabulary_size": 4096,
            "attention": {"mechanism": "softmax"},
        },
        "n": 256,
    },
    "performer": {
        "model": {
            "n_layers": 6,
            "d_model": 512,
            "n_heads": 8,
            "d_feedforward": 2048,
            "attention": {"mechanism": "linear", "feature_map": "favor_positive", "n_features": 256},
        },
        "n": 4096,
    },
}


def run(command):
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        env={key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"},
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(str(word) for word in command)}: status {done.returncode}: {done.stderr[-1000:]}")
    return done.stdout


def config_of(case, processes, sharded, steps):
    """As JSON, which is YAML: as many samples as processes, one thread for each."""
    return json.dumps(
        {
            "device": "cpu",
            "threads": 1,
            "model": case["model"],
            "data": {"task": "copy", "task_symbols": 10, "sequence_length": case["n"], "batch_size": processes},
            "parallel": {"zero_stage": int(sharded)},
            "trainer": {"max_steps": steps, "validate_every": 0},
            "schedule": {"warmup_steps": 1},
            "checkpoint": {"every": 1000000},
            "log": {"every": 1, "level": "error", "progress": "none"},
        }
    )


def measure(program, config, folder, processes, warm_up, trace=None):
    """Seconds of each step behind the first ones, and the peak of tensors in rank 0. `trace`: the file of a Chrome
    trace."""
    directory = folder / "run"
    command = [program, "train", config, "--run-dir", directory, "--resume", "never", "--json"]
    if trace:
        command += ["--trace", trace]
    run(command if processes == 1 else [program, "launch", "--processes", processes] + command[1:])
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["split"] == "train"]
    before = [0] + [line["tokens"] for line in steps]
    seconds = [(line["tokens"] - tokens) / line["tokens_per_second"] for line, tokens in zip(steps, before)]
    return {
        "seconds": seconds[warm_up:],
        "median_seconds": statistics.median(seconds[warm_up:]),
        "memory_bytes": max(line["memory_bytes"] for line in steps),
    }


def plan(program, config, processes, utilization=None):
    more = [] if utilization is None else ["--utilization", utilization]
    return json.loads(run([program, "plan", config, "--devices", processes, "--device", "cpu", "--json"] + more))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--warm-up", type=int, default=2, help="first steps that are not counted")
    parser.add_argument("--seconds", type=float, default=280, help="time limit; cases that do not fit are left out")
    parser.add_argument("--build", default="build/release", help="build folder")
    parser.add_argument("--program", type=pathlib.Path, help="path of furlong, instead of the one in --build")
    parser.add_argument("--name", default="plan_check", help="name of the result file")
    arguments = parser.parse_args()
    budget = Budget(arguments.seconds)
    program = arguments.program or our_program("furlong", arguments.build)
    result = {
        "what": "furlong plan --device cpu beside furlong train: processes of one thread each",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "kernel": platform.release()},
        "load_before": os.getloadavg(),
        "steps": arguments.steps,
        "warm_up": arguments.warm_up,
        "cases": {},
    }
    with tempfile.TemporaryDirectory(prefix="furlong_plan_") as place:
        for name in arguments.cases:
            if budget.allows(100 if name == "performer" else 40, name):
                result["cases"][name] = check(arguments, program, CASES[name], pathlib.Path(place), budget)
    result["left_out"] = budget.skipped
    write_result(arguments.name, result)


def check(arguments, program, case, folder, budget):
    config = folder / "config.yaml"
    found, shown = {"model": case["model"], "n": case["n"]}, None
    for what, processes, sharded in (
        ("one process", 1, False),
        ("two, data parallel", 2, False),
        ("two, ZeRO-1", 2, True),
    ):
        if shown and not budget.allows(40, what):
            continue
        config.write_text(config_of(case, processes, sharded, arguments.steps))
        # Neighbors in time: the plan measures the machine, too.
        planned = plan(program, config, processes)
        measured = measure(program, config, folder, processes, arguments.warm_up)
        own = planned["zero_1" if sharded else "data_parallel"]
        entry = {
            "planned": own,
            "device": planned["device"],
            "measured": measured,
            "step_planned_over_measured": own["seconds"]["step"] / measured["median_seconds"],
            "memory_planned_over_measured": own["memory_bytes"]["total"] / measured["memory_bytes"],
        }
        if shown is None:
            # What the products reached, once the optimizer's time is taken off.
            busy = own["seconds"]["forward"] + own["seconds"]["backward"]
            used = planned["device"]["numbers"]["utilization"]
            shown = min(1, used * busy / (measured["median_seconds"] - own["seconds"]["optimizer"]))
            entry["utilization_shown"] = shown
            alone = measured["median_seconds"]
        else:
            tuned = plan(program, config, processes, shown)["zero_1" if sharded else "data_parallel"]
            entry["planned_by_utilization_shown"] = tuned
            entry["step_planned_by_utilization_shown_over_measured"] = (
                tuned["seconds"]["step"] / measured["median_seconds"]
            )
            entry["speed_beside_processes_that_need_not_wait"] = alone / measured["median_seconds"]
        found[what] = entry
        print(
            f"{what}: step {measured['median_seconds']:.3f} s, planned {own['seconds']['step']:.3f} s"
            + (
                f", by what one process showed {entry['planned_by_utilization_shown']['seconds']['step']:.3f} s"
                if processes > 1
                else ""
            )
            + f"; memory planned over measured {entry['memory_planned_over_measured']:.3f}",
            flush=True,
        )
    return found


if __name__ == "__main__":
    main()
