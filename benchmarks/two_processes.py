#!/usr/bin/env python3
"""Compares two ranks of one thread each with one process of two threads: the same model and the same two sequences per
step, on two cores, in alternating runs. Writes benchmarks/results/two_processes_<date>.json.

Both compute the same losses. Reports the ratio of their tokens per second. With --trace FILE the last run of two ranks
writes a trace of its last steps (furlong train --trace). Needs an idle machine.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import tempfile

from common import commit, compare, cpu_model, our_program, write_result
from plan_check import CASES, measure


def config_of(arguments, threads):
    """As JSON, which is YAML: two sequences of the copy task, which needs no data."""
    return json.dumps(
        {
            "device": "cpu",
            "threads": threads,
            "model": {**CASES["performer"]["model"], "dtype": arguments.dtype},
            "data": {"task": "copy", "task_symbols": 10, "sequence_length": arguments.n, "batch_size": 2},
            "parallel": {"zero_stage": arguments.zero_stage},
            "trainer": {"max_steps": arguments.steps, "validate_every": 0},
            "schedule": {"warmup_steps": 1},
            "checkpoint": {"every": 1000000},
            "log": {"every": 1, "level": "error", "progress": "none"},
        }
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--zero-stage", type=int, choices=(0, 1), default=0, help="parallel.zero_stage of the two ranks"
    )
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warm-up", type=int, default=2, help="first steps that are not counted")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side, alternating")
    parser.add_argument("--trace", type=pathlib.Path, help="Chrome trace of the last run of two processes")
    parser.add_argument("--build", default="build/release", help="build folder")
    parser.add_argument("--program", type=pathlib.Path, help="path of furlong, instead of the one in --build")
    parser.add_argument("--name", default="two_processes", help="name of the result file")
    arguments = parser.parse_args()
    program = arguments.program or our_program("furlong", arguments.build)
    seconds, load = {1: [], 2: []}, os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="furlong_two_") as place:
        folder = pathlib.Path(place)
        for turn in range(arguments.rounds):
            for processes in (1, 2):
                config = folder / "config.yaml"
                config.write_text(config_of(arguments, 2 // processes))
                traced = arguments.trace if processes == 2 and turn == arguments.rounds - 1 else None
                seconds[processes] += measure(program, config, folder, processes, arguments.warm_up, trace=traced)[
                    "seconds"
                ]
    found = compare(seconds[1], seconds[2])
    result = {
        "what": "one process with two threads (peer) beside two processes with one thread each (our), "
        "seconds of a step of two sequences",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "kernel": platform.release()},
        "load_before": load,
        "model": CASES["performer"]["model"],
        "n": arguments.n,
        "dtype": arguments.dtype,
        "zero_stage": arguments.zero_stage,
        "one_process_seconds": found["peer_seconds"],
        "two_processes_seconds": found["our_seconds"],
        "ratio": found["ratio"],
        "ratio_of_turns": found["ratio_of_turns"],
    }
    print(
        f"one process {found['peer_seconds']['median']:.3f} s a step, two {found['our_seconds']['median']:.3f} s: "
        f"{100 * found['ratio']:.1f} % of its tokens a second (turns: {100 * found['ratio_of_turns']['median']:.1f} %)"
    )
    write_result(arguments.name, result)


if __name__ == "__main__":
    main()
