#!/usr/bin/env python3
"""Compares Furlong's attention with PyTorch 2 in one run. Both processes stay alive and alternate. Writes
benchmarks/results/attention_<date>.json.

1. Finds PyTorch's fastest setting of chunked FAVOR+ (attention/chunked_favor.py): chunk size, form, eager or compiled,
   allocator.
2. Compares Furlong with it, and softmax with scaled_dot_product_attention: medians of alternating runs.
3. Measures Furlong alone: peak memory, the exponent of time in n, the longest exact softmax.
"""

import argparse
import itertools
import math
from contextlib import nullcontext

from common import (
    MKL_AS_ON_INTEL,
    ROOT,
    Budget,
    Failed,
    Worker,
    add_peer_arguments,
    compare,
    our_environment,
    our_program,
    peer_environments,
    provenance,
    write_result,
)

PEER = ROOT / "benchmarks" / "attention" / "peer.py"


def seconds_of(worker, repetitions, **request):
    """The least of a few repetitions after one to warm up (and, where it is compiled, to compile)."""
    worker.ask(**request)
    return min(worker.ask(repetitions=repetitions, **request)["seconds"])


def sweep(arguments, shape, budget):
    """The peer's fastest candidate, its fastest without settings that PyTorch does not come with, and every time taken
    on the way."""
    environments = peer_environments(arguments.threads)
    chunks = [chunk for chunk in arguments.chunks if shape["n"] % chunk == 0]
    times = []

    def measure(name, candidates):
        with Worker([arguments.python, PEER], environments[name]) as peer:
            for form, chunk, compiled in candidates:
                request = {"attention": "favor", "form": form, "chunk": chunk, "compile": int(compiled)}
                if not budget.allows(100, f"peer {name} {form} chunk {chunk}{' compiled' * compiled}"):
                    continue
                try:
                    seconds = seconds_of(peer, 2, threads=arguments.threads, **shape, **request)
                except Failed as error:
                    times.append({"environment": name, **request, "failed": str(error)})
                    print(f"peer {name}: {error}", flush=True)
                    if peer.process.poll() is not None:
                        break
                    continue
                times.append({"environment": name, **request, "seconds": seconds})
                print(
                    f"peer favor, {name}, {form}, chunk {chunk}{', compiled' * compiled}: {seconds:.3f} s", flush=True
                )

    def best(count=1):
        return sorted((t for t in times if "seconds" in t), key=lambda t: t["seconds"])[:count]

    # Which allocator is best hardly depends on the chunk: all chunks under one setting, the fastest two under each
    # other.
    first, *others = environments
    measure(first, list(itertools.product(("batched", "loop"), chunks, (False,))))
    leaders = [(t["form"], t["chunk"], False) for t in best(2)]
    for name in others:
        measure(name, leaders)
    # A loop over many chunks takes minutes to compile; batched is what a compiler can fuse.
    fastest = best()[0]["environment"]
    order = sorted(
        chunks,
        key=lambda chunk: min(
            (t["seconds"] for t in times if t.get("chunk") == chunk and t["form"] == "batched"), default=9e9
        ),
    )
    if arguments.compile:
        measure(fastest, [("batched", chunk, True) for chunk in order])
    stock = min(
        (t for t in times if "seconds" in t and MKL_AS_ON_INTEL not in t["environment"]), key=lambda t: t["seconds"]
    )
    return best()[0], stock, times


def by_turns(peer, ours, before, rounds, peer_request, our_request):
    """Medians of alternating runs of the peer, our program and, if it is not None, an earlier version of ours."""
    workers = {"peer": (peer, peer_request), "ours": (ours, our_request)}
    if before:
        workers["before"] = (before, our_request)
    answers = {name: [] for name in workers}
    for turn in range(rounds + 1):
        for name, (worker, request) in workers.items():
            answer = worker.ask(**request)
            if turn > 0:  # the first one warms up
                answers[name].append(answer)
    seconds = lambda name, key: [value for answer in answers[name] for value in answer[key]]
    result = {
        **compare(seconds("peer", "seconds"), seconds("ours", "seconds")),
        "forward": compare(seconds("peer", "forward_seconds"), seconds("ours", "forward_seconds")),
        "our_commit": answers["ours"][-1]["commit"],
        "our_extra_bytes": answers["ours"][-1]["extra_bytes"],
        "our_peak_bytes": answers["ours"][-1]["peak_bytes"],
    }
    if before:
        result["before"] = {
            "commit": answers["before"][-1]["commit"],
            **compare(seconds("before", "seconds"), seconds("ours", "seconds")),
            "forward": compare(seconds("before", "forward_seconds"), seconds("ours", "forward_seconds")),
            "extra_bytes": answers["before"][-1]["extra_bytes"],
        }
        print(f"  {result['before']['ratio']:.2f} times as fast as {result['before']['commit']}", flush=True)
    return result


def softmax_environments(arguments, shape, budget):
    """Seconds of scaled_dot_product_attention in each environment, the fastest first."""
    times = {}
    for name, environment in peer_environments(arguments.threads).items():
        if times and not budget.allows(60, f"peer softmax {name}"):
            continue
        try:
            with Worker([arguments.python, PEER], environment) as peer:
                times[name] = seconds_of(peer, 1, threads=arguments.threads, **shape, attention="softmax")
        except Failed as error:
            print(f"peer softmax, {name}: {error}", flush=True)
            continue
        print(f"peer softmax, {name}: {times[name]:.3f} s", flush=True)
    return dict(sorted(times.items(), key=lambda one: one[1]))


def both_attentions(arguments, shape, program, candidate, softmax_environment):
    """favor_positive and softmax alternating, the peer of the first as `candidate` of the sweep says."""
    environments = peer_environments(arguments.threads)
    favor = {key: candidate[key] for key in ("attention", "form", "chunk", "compile")}
    result = {"peer": candidate, "softmax_environment": softmax_environment}
    for name, environment, rounds, theirs, own in (
        (
            "favor_positive",
            candidate["environment"],
            arguments.rounds,
            favor,
            {"attention": "linear", "chunk": arguments.our_chunk},
        ),
        ("softmax", softmax_environment, max(3, arguments.rounds - 2), *2 * ({"attention": "softmax"},)),
    ):
        earlier = Worker([arguments.before], our_environment(arguments.threads)) if arguments.before else nullcontext()
        with (
            Worker([arguments.python, PEER], environments[environment]) as peer,
            Worker([program], our_environment(arguments.threads)) as ours,
            earlier as before,
        ):
            their_request, our_request = {**shape, "threads": arguments.threads, **theirs}, {**shape, **own}
            found = by_turns(peer, ours, before, rounds, their_request, our_request)
            print(
                f"{name}, peer with {environment}: {found['peer_seconds']['median']:.3f} s, ours "
                f"{found['our_seconds']['median']:.3f} s: {found['ratio']:.2f} times as fast, "
                f"{found['our_extra_bytes'] / 1e6:.0f} MB besides the results",
                flush=True,
            )
            result[name] = found
    return result


def fitted_exponent(points):
    x, y = [math.log(n) for n, _ in points], [math.log(t) for _, t in points]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / sum((a - mean_x) ** 2 for a in x)


def scaling(ours, arguments, shape, budget):
    lengths, points = [], []
    for n in arguments.lengths:
        expected = points[-1][1] * 2.2 * 3 if points else 1
        if not budget.allows(expected, f"n = {n}"):
            break
        request = {**shape, "n": n, "attention": "linear"}
        ours.ask(**request)
        answer = ours.ask(repetitions=3, **request)
        points.append((n, min(answer["seconds"])))
        lengths.append(
            {
                "n": n,
                "seconds": answer["seconds"],
                "peak_bytes": answer["peak_bytes"],
                "extra_bytes": answer["extra_bytes"],
            }
        )
        print(
            f"ours linear n {n}: {points[-1][1]:.3f} s, {answer['extra_bytes'] / 1e6:.0f} MB besides the results",
            flush=True,
        )
    return {"lengths": lengths, "exponent": fitted_exponent(points) if len(points) > 1 else None}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--n", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--d", type=int, default=64)
    parser.add_argument("--m", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7, help="alternating runs of each comparison")
    parser.add_argument(
        "--chunks", type=int, nargs="+", default=[64, 128, 256, 512, 1024], help="chunk sizes of PyTorch's FAVOR+"
    )
    parser.add_argument("--our-chunk", type=int, default=64)
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[4096 << i for i in range(7)],
        help="sequence lengths for the exponent",
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--before", help="benchmark_attention of an earlier commit, which takes its turns too")
    parser.add_argument("--longest-softmax", type=int, default=32768, help="longest exact softmax; 0: none")
    add_peer_arguments(parser, "attention")
    arguments = parser.parse_args()
    about = provenance(arguments.threads, arguments.python)
    budget = Budget(arguments.seconds)
    shape = {"n": arguments.n, "heads": arguments.heads, "d": arguments.d, "m": arguments.m, "dtype": arguments.dtype}
    program = arguments.program or our_program("benchmark_attention", arguments.build)
    result = {
        "what": f"forward and backward of causal attention, batch 1, {arguments.dtype}",
        "shape": shape,
        **about,
        "settings": {key: getattr(arguments, key) for key in ("rounds", "chunks", "compile", "our_chunk", "seconds")},
    }

    best, stock, times = sweep(arguments, shape, budget)
    result["peer_sweep"] = {"best": best, "best_stock": stock, "all": times}
    result["softmax_sweep"] = softmax_environments(arguments, shape, budget)
    order = list(result["softmax_sweep"])
    if not order:
        raise SystemExit("the peer's softmax ran in no environment; see above")
    result.update(both_attentions(arguments, shape, program, best, order[0]))
    as_it_comes = next((name for name in order if MKL_AS_ON_INTEL not in name), order[0])
    if (stock, as_it_comes) != (best, order[0]) and budget.allows(60, "the peer as PyTorch comes"):
        result["stock_peer"] = both_attentions(arguments, shape, program, stock, as_it_comes)
    with Worker([program], our_environment(arguments.threads)) as ours:
        result["scaling"] = scaling(ours, arguments, shape, budget)
        if result["scaling"]["exponent"]:
            print(f"exponent of time in n: {result['scaling']['exponent']:.3f}")
        longest = arguments.longest_softmax
        expected = 3 * result["softmax"]["our_seconds"]["median"] * (longest / arguments.n) ** 2
        if longest and budget.allows(expected, f"softmax n = {longest}"):
            answer = ours.ask(**{**shape, "n": longest}, attention="softmax")
            result["longest_softmax"] = {"n": longest, **answer}
            print(
                f"softmax n {longest}: {answer['seconds'][0]:.2f} s, peak {answer['peak_bytes'] / 1e6:.0f} MB",
                flush=True,
            )
    result["left_out"] = budget.skipped
    write_result(arguments.name, result)


if __name__ == "__main__":
    main()
