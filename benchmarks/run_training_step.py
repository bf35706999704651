#!/usr/bin/env python3
"""Compares a whole training step with PyTorch 2, in alternating steps of one run, and the peak memory of both. Writes
benchmarks/results/training_step_<date>.json.

For each dtype: runs PyTorch eager and compiled and takes the faster one, then alternates steps and reports medians.
PyTorch's form, chunk and environment are those that run_attention.py has found best on this machine with this dtype.
Then runs one step of each at a longer sequence, in new processes, for their peak resident memory (VmHWM).
"""

import argparse
import datetime
import json
from contextlib import nullcontext

from common import (
    RESULTS,
    ROOT,
    Budget,
    Failed,
    Worker,
    add_peer_arguments,
    compare,
    our_environment,
    our_program,
    peer_environments,
    peer_versions,
    processor,
    provenance,
    write_result,
)

PEER = ROOT / "benchmarks" / "training_step" / "peer.py"


def settings_of_sweep(environments, processor, torch, dtype, folder=RESULTS):
    """The peer's best form, chunk and environment in the newest result of run_attention.py of this processor, version
    of PyTorch and dtype whose environment exists here; None if there is no such result."""
    fitting = []
    for path in folder.glob("attention_*.json"):
        found = json.loads(path.read_text())
        best = found.get("peer_sweep", {}).get("best")
        if not best or best["environment"] not in environments:
            continue
        same = all(found["machine"].get(key) == value for key, value in processor.items())
        if same and found["versions"]["torch"] == torch and found["shape"].get("dtype", "float32") == dtype:
            fitting.append((datetime.datetime.fromisoformat(found["date"]), path.name, best))
    if not fitting:
        return None
    _, name, best = max(fitting, key=lambda result: result[:2])
    return {**{key: best[key] for key in ("form", "chunk", "environment")}, "from": name}


def settings_of_peer(arguments, environments):
    """Those of each dtype, or an error that names the commands that find them."""
    dtypes = arguments.dtypes or ["float32"]
    here = processor(arguments.threads)
    torch = peer_versions(arguments.python)["torch"]
    settings = {dtype: settings_of_sweep(environments, here, torch, dtype) for dtype in dtypes}
    missing = [dtype for dtype in dtypes if not settings[dtype]]
    if arguments.peer_chunk:
        given = {"form": "batched", "environment": next(iter(environments))}
        chosen = {"chunk": arguments.peer_chunk, "from": "--peer-chunk"}
        return {dtype: {**(settings[dtype] or given), **chosen} for dtype in dtypes}
    if missing:
        raise SystemExit(
            f"run_training_step.py: {RESULTS.relative_to(ROOT)} has no result of run_attention.py for this processor "
            f"({here['cpu']}, {here['cpu_numbers']}, {' '.join(here['instructions'])}, {here['threads']} threads) and "
            f"this PyTorch with {' and '.join(missing)}, from which PyTorch's best settings are taken; "
            f"run first, or choose with --peer-chunk:\n"
            + "\n".join(
                f"  {arguments.python} benchmarks/run_attention.py --threads {arguments.threads} --dtype {dtype} "
                f"--name attention_{dtype}"
                for dtype in missing
            )
        )
    return settings


def faster_peer(command, environment, request, modes, budget):
    """Starts the peer in each mode, and keeps the one whose second step is faster: (worker, request, what was
    measured)."""
    best, measured = None, []
    for compiled in modes:
        name = "compiled" if compiled else "eager"
        if compiled and not budget.allows(120, f"peer {request['dtype']} compiled"):
            continue
        worker = Worker(command, environment)
        try:
            candidate = {**request, "compile": int(compiled)}
            worker.ask(**candidate)
            seconds = min(worker.ask(**candidate)["seconds"][0] for _ in range(2))
        except Failed as error:
            measured.append({"mode": name, "failed": str(error)})
            print(f"peer {request['dtype']} {name}: {error}", flush=True)
            worker.close()
            continue
        measured.append({"mode": name, "seconds": seconds})
        print(f"peer {request['dtype']} {name}: {seconds:.2f} s a step", flush=True)
        if best is None or seconds < best[0]:
            if best:
                best[1].close()
            best = (seconds, worker, candidate)
        else:
            worker.close()
    if best is None:
        raise SystemExit("the peer ran in no mode; see above")
    return best[1], best[2], measured


def favor_request(settings):
    return {"attention": "favor", "form": settings["form"], "chunk": settings["chunk"]}


def speed(arguments, model, program, environment, favor, dtype, budget):
    threads = {"threads": arguments.threads}
    peer, peer_request, modes = faster_peer(
        [arguments.python, PEER],
        environment,
        {**model, **threads, **favor, "dtype": dtype},
        [False, True] if arguments.compile else [False],
        budget,
    )
    our_request = {**model, "attention": "linear", "chunk": arguments.our_chunk, "dtype": dtype}
    earlier = Worker([arguments.before], our_environment(arguments.threads)) if arguments.before else nullcontext()
    with peer, Worker([program], our_environment(arguments.threads)) as ours, earlier as before:
        ours.ask(**our_request)
        peer_seconds, our_seconds, before_seconds, answers = [], [], [], {}
        if before:
            before.ask(**our_request)
        for _ in range(arguments.rounds):
            answers["peer"], answers["ours"] = peer.ask(**peer_request), ours.ask(**our_request)
            peer_seconds += answers["peer"]["seconds"]
            our_seconds += answers["ours"]["seconds"]
            if before:
                answers["before"] = before.ask(**our_request)
                before_seconds += answers["before"]["seconds"]
    result = compare(peer_seconds, our_seconds)
    if before:
        result["before"] = {
            "commit": answers["before"]["commit"],
            "peak_resident_bytes": answers["before"]["peak_resident_bytes"],
            **compare(before_seconds, our_seconds),
        }
        print(f"  {result['before']['ratio']:.2f} times as fast as {result['before']['commit']}", flush=True)
    for side in ("peer", "ours"):
        result[f"{side}_tokens_per_second"] = (
            model["n"] / result[f"{'our' if side == 'ours' else side}_seconds"]["median"]
        )
        result[f"{side}_peak_resident_bytes"] = answers[side]["peak_resident_bytes"]
        result[f"{side}_parameters"] = answers[side]["parameters"]
        result[f"{side}_loss"] = answers[side]["loss"]
    result["our_commit"] = answers["ours"]["commit"]
    result["peer_modes"], result["peer_best"] = modes, peer_request
    print(
        f"{dtype}: peer {result['peer_tokens_per_second']:.0f}, ours {result['ours_tokens_per_second']:.0f} tokens/s: "
        f"{result['ratio']:.2f} times as fast",
        flush=True,
    )
    return result


def memory(arguments, model, program, favor, dtype):
    """One step of each in fresh processes. The peer, not compiled, under its default allocator, which gives memory
    back, in the form that takes less."""
    request = {**model, "n": arguments.long_n, "dtype": dtype}
    result = {"n": arguments.long_n, "dtype": dtype}
    for name, checkpointing in (("ours", "elementwise"), ("ours_recomputing_blocks", "blocks")):
        with Worker([program], our_environment(arguments.threads)) as ours:
            linear = {"attention": "linear", "chunk": arguments.our_chunk, "activation_checkpointing": checkpointing}
            ours.ask(**request, **linear)
            result[name] = ours.ask(**request, **linear)
    forms = []
    for form in ("batched", "loop"):
        try:
            with Worker([arguments.python, PEER], peer_environments(arguments.threads)["default"]) as peer:
                answer = peer.ask(**request, **{**favor, "form": form}, threads=arguments.threads)
            forms.append({"form": form, **answer})
        except Failed as error:
            forms.append({"form": form, "failed": str(error)})
            print(f"n {arguments.long_n}: peer {form} failed: {error}", flush=True)
    result["peer_forms"] = forms
    measured = [answer for answer in forms if "peak_resident_bytes" in answer]
    if not measured:
        print(f"n {arguments.long_n}: ours {result['ours']['peak_resident_bytes'] / 1e9:.2f} GB", flush=True)
        return result
    result["peer"] = min(measured, key=lambda answer: answer["peak_resident_bytes"])
    ours, peer = result["ours"]["peak_resident_bytes"], result["peer"]["peak_resident_bytes"]
    result["ratio"] = ours / peer
    result["ratio_recomputing_blocks"] = result["ours_recomputing_blocks"]["peak_resident_bytes"] / peer
    result["ratio_without_what_importing_torch_takes"] = ours / (peer - result["peer"]["resident_bytes_at_start"])
    print(
        f"n {arguments.long_n} {dtype}: peak memory ours {result['ours']['peak_resident_bytes'] / 1e9:.2f} GB, peer "
        f"{result['peer']['peak_resident_bytes'] / 1e9:.2f} GB: {result['ratio']:.2f} of it "
        f"({result['ratio_recomputing_blocks']:.2f} when blocks are recomputed)",
        flush=True,
    )
    return result


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--n", type=int, default=8192)
    parser.add_argument("--long-n", type=int, default=16384, help="length at which memory is compared; 0: not compared")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--d-model", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--d-feedforward", type=int, default=2048)
    parser.add_argument("--m", type=int, default=256)
    parser.add_argument(
        "--dtypes", nargs="*", default=["float32", "bfloat16"],
        help="dtypes of the speed comparison; none: compare memory only",
    )
    parser.add_argument("--rounds", type=int, default=4, help="steps of each side, alternating")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--our-chunk", type=int, default=64)
    parser.add_argument("--before", help="benchmark_training_step of an earlier commit, which takes its turns too")
    parser.add_argument("--peer-chunk", type=int, help="instead of that of run_attention.py")
    add_peer_arguments(parser, "training_step")
    arguments = parser.parse_args()
    about = provenance(arguments.threads, arguments.python)
    budget = Budget(arguments.seconds)
    environments = peer_environments(arguments.threads)
    settings = settings_of_peer(arguments, environments)
    program = arguments.program or our_program("benchmark_training_step", arguments.build)
    model = {
        "n": arguments.n,
        "layers": arguments.layers,
        "d_model": arguments.d_model,
        "heads": arguments.heads,
        "d_feedforward": arguments.d_feedforward,
        "m": arguments.m,
        "vocabulary": 256,
        "batch": 1,
    }
    result = {
        "what": "training step of a decoder with FAVOR+ attention: forward, loss, backward, clipping, AdamW",
        "model": model,
        "peer_settings": settings,
        **about,
        "speed": {},
    }
    for dtype in arguments.dtypes:
        if budget.allows(40, dtype):
            environment, favor = environments[settings[dtype]["environment"]], favor_request(settings[dtype])
            result["speed"][dtype] = speed(arguments, model, program, environment, favor, dtype, budget)
    if arguments.long_n and budget.allows(30, "memory"):
        dtype = next(iter(settings))
        result["memory"] = memory(arguments, model, program, favor_request(settings[dtype]), dtype)
    result["left_out"] = budget.skipped
    write_result(arguments.name, result)


if __name__ == "__main__":
    main()
