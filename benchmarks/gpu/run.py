#!/usr/bin/env python3
"""Compares attention and whole training steps on a GPU with other implementations in one run. Writes JSON.

    python3 benchmarks/gpu/run.py --furlong build/release/bin/furlong --output gpu.json
    python3 benchmarks/gpu/run.py --list          # prints the cases; needs neither GPU nor PyTorch
    python3 benchmarks/gpu/run.py --self-test     # tests the arithmetic; likewise

Attention: measures `furlong bench attention --device cuda` before and after the others of each case, and takes the
median of both. Of each other implementation it takes the fastest setting. One whose package is missing is left out,
with the reason:
    elu1            fla.ops.linear_attn.chunk_linear_attn (flash-linear-attention), normalized; its inputs are the
                    features. Two times are reported next to it: with features by compiled PyTorch, and with
                    normalize=False, which computes less than ours (no denominators).
    favor_positive  causal FAVOR+ in chunks of plain PyTorch, compiled (favor() in peers.py)
    softmax         scaled_dot_product_attention, flash and cuDNN
All are causal, in bfloat16, with 16 heads and at least 128k tokens per case, so that a pass takes longer than its
launches.

Triton tunes each of fla's kernels over up to hundreds of configurations, which takes minutes. At most --fla-configs of
each kernel are tried, evenly chosen; the result contains how many of how many. 0 tries all, for fla's best times;
otherwise the result does not say whether elu1 reaches its target.

Training steps of GPT-2's shape with 124M parameters: see training.py.

Cases that do not fit in --seconds are left out and listed.
"""

import argparse
import datetime
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import figures
import peers
import training

try:
    import torch
except ImportError as error:  # --list and --self-test do without
    torch, missing = None, error

TARGETS = {"elu1": 1.2, "favor_positive": 5.0, "softmax": 0.8}


# ---- measuring -------------------------------------------------------------------------------------------------------
def seconds_of(run, device, repeat):
    """Median of `repeat` runs after warming up (and compiling)."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repeat):
        if device.type == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            run()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        else:
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
    return {"median_seconds": statistics.median(times), "seconds": times}


def peer_run(attention, inputs, d_output, train):
    if not train:

        def forward():
            with torch.no_grad():
                return attention(*inputs)

        return forward
    leaves = [x.detach().requires_grad_() for x in inputs]

    def both():
        for leaf in leaves:
            leaf.grad = None
        attention(*leaves).backward(d_output)

    return both


def first_line(error):
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


class Runner:
    def __init__(self, arguments):
        self.arguments = arguments
        self.device = torch.device(arguments.device)
        self.dtype = torch.bfloat16
        self.end = time.monotonic() + arguments.seconds
        self.left_out = []
        self.cases = []
        self.training_cases = []

    def left(self):
        return self.end - time.monotonic()

    def forget_memory(self):
        torch.compiler.reset()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def ours(self, case):
        mechanism = (
            ["--mechanism", "softmax"]
            if case["attention"] == "softmax"
            else ["--mechanism", "linear", "--feature-map", case["attention"]]
        )
        if case["attention"] == "favor_positive":
            mechanism += ["--features", str(case["m"])]
        with tempfile.TemporaryDirectory() as folder:
            answer = pathlib.Path(folder) / "answer.json"
            command = [
                self.arguments.furlong,
                "bench",
                "attention",
                "--device",
                self.arguments.device,
                *mechanism,
                "--causal",
                "--dtype",
                "bfloat16",
                "--lengths",
                str(case["n"]),
                "--heads",
                str(case["heads"]),
                "--batch",
                str(case["batch"]),
                "--head-dim",
                str(case["d"]),
                "--repeats",
                str(self.arguments.repeat),
                "--json-file",
                str(answer),
            ] + ["--train"] * case["train"]
            timeout = max(30.0, self.left() + 60)
            try:
                run = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
            except subprocess.TimeoutExpired:
                return {"failed": f"not done in {timeout:.0f} s"}
            if run.returncode != 0:
                return {"failed": (run.stderr or run.stdout).strip()[-400:]}
            found = json.loads(answer.read_text())["attention"][0]["lengths"][0]
        return {
            key: found[key]
            for key in ("median_seconds", "seconds", "flops", "flops_per_second", "fraction_of_peak", "peak_bytes")
        }

    def candidates(self, case):
        """(name, attention, order of [batch, heads, n, d] that it takes, whether it counts against the target)"""
        if case["attention"] == "softmax":
            for backend in ("FLASH_ATTENTION", "CUDNN_ATTENTION") if self.device.type == "cuda" else ("MATH",):
                yield f"scaled_dot_product_attention {backend}", lambda b=backend: peers.softmax_by(b), False, True
        elif case["attention"] == "favor_positive":
            directions = torch.randn(case["m"], case["d"], device=self.device, dtype=self.dtype)
            for chunk in self.arguments.chunks:
                if case["n"] % chunk == 0:

                    def compiled(chunk=chunk):
                        return torch.compile(lambda q, k, v: peers.favor(q, k, v, directions, chunk), dynamic=False)

                    yield f"compiled PyTorch, chunk {chunk}", compiled, False, True
        else:

            def with_features():
                features = torch.compile(peers.elu1)
                direct = peers.chunk_linear_attn(True)
                return lambda q, k, v: direct(features(q), features(k), v)

            yield "fla chunk_linear_attn, of features", lambda: peers.chunk_linear_attn(True), True, True
            yield (
                "fla chunk_linear_attn, normalize=False, of features",
                lambda: peers.chunk_linear_attn(False),
                True,
                False,
            )
            yield "fla chunk_linear_attn, features by compiled PyTorch", with_features, True, False

    def peers(self, case):
        generator = torch.Generator(device=self.device).manual_seed(1)
        shape = (case["batch"], case["heads"], case["n"], case["d"])
        for name, make, tokens_first, counts in self.candidates(case):
            if self.left() < 10:
                self.left_out.append(f"{describe(case)}: {name}")
                continue
            try:
                # PyTorch gives up compiling, without a word, a function that it has seen in many shapes.
                torch.compiler.reset()
                tensors = [
                    torch.randn(shape, device=self.device, dtype=self.dtype, generator=generator) for _ in range(4)
                ]
                if name.endswith("of features"):
                    tensors[:2] = [peers.elu1(x) for x in tensors[:2]]
                if tokens_first:
                    tensors = [x.transpose(1, 2).contiguous() for x in tensors]
                *inputs, d_output = tensors
                if self.device.type == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                    before = torch.cuda.memory_allocated()
                found = seconds_of(
                    peer_run(make(), inputs, d_output, case["train"]), self.device, self.arguments.repeat
                )
                if self.device.type == "cuda":
                    found["peak_bytes"] = torch.cuda.max_memory_allocated() - before
            except ImportError as error:
                found = {"skipped": f"the package is missing: {error}"}
            except (
                Exception
            ) as error:  # an unsupported setting, or out of memory: continue with the others
                found = {"failed": first_line(error)}
            yield {"name": name, "counts": counts, **found}
            inputs = d_output = tensors = None
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def run(self, case):
        if self.left() < 20:
            self.left_out.append(describe(case))
            return
        turns = [self.ours(case)]
        case["peers"] = list(self.peers(case))
        turns.append(self.ours(case))
        timed = [turn for turn in turns if "median_seconds" in turn]
        case["ours"] = figures.joined(timed) if timed else turns[-1]
        case["our_turns"] = [turn.get("median_seconds") for turn in turns]
        measured = [peer for peer in case["peers"] if peer["counts"] and "median_seconds" in peer]
        if timed and measured:
            best = min(measured, key=lambda peer: peer["median_seconds"])
            case["best_peer"] = best["name"]
            case["times_as_fast"] = best["median_seconds"] / case["ours"]["median_seconds"]
            if case["train"]:
                case["target"] = TARGETS[case["attention"]]
                if case["attention"] == "elu1" and self.arguments.fla_configs != 0:
                    case["not_compared_with_target"] = "--fla-configs is not 0: fla may have faster configurations"
                else:
                    case["reached"] = case["times_as_fast"] >= case["target"]
        self.cases.append(case)
        ours = f"{case['ours']['median_seconds'] * 1e3:.3f} ms" if timed else f"failed: {case['ours']['failed']}"
        told = (
            f"{case['times_as_fast']:.2f} times as fast as {case['best_peer']}"
            if "times_as_fast" in case
            else "; ".join(
                f"{peer['name']}: {peer.get('skipped') or peer.get('failed') or 'measured'}" for peer in case["peers"]
            )
            or "no peer"
        )
        print(f"{describe(case)}: {ours}, {told}", flush=True)

    def train_ours(self, case, folder):
        store = folder / "tokens.h5"
        if not store.exists():
            training.token_store(self.arguments.furlong, folder, max(self.arguments.training_n + [1024]))
        for recompute in ("elementwise", "blocks"):
            if self.left() < 10:
                self.left_out.append(f"{training.describe(case)}: ours, trainer.activation_checkpointing {recompute}")
                continue
            self.forget_memory()
            yield training.ours(case, store, self.arguments, folder, recompute, max(60.0, self.left()))

    def train_peer(self, case):
        shape = training.shape_of(self.arguments)
        for recompute in (False, True):
            name = "blocks computed again" if recompute else "everything kept"
            if self.left() < 10:
                self.left_out.append(f"{training.describe(case)}: the peer, {name}")
                continue
            self.forget_memory()
            if self.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            try:
                step = training.peer_step(case, shape, self.device, recompute)
                found = seconds_of(step, self.device, self.arguments.repeat if case["n"] < 65536 else 3)
                found["tokens_per_second"] = case["batch"] * case["n"] / found["median_seconds"]
                if self.device.type == "cuda":
                    found["peak_bytes"] = torch.cuda.max_memory_allocated()
            except Exception as error:  # out of memory: the other setting may fit
                found = {"failed": first_line(error)}
            step = None
            yield {"name": f"compiled PyTorch, {name}", **found}
        self.forget_memory()

    def run_training(self, case, folder):
        if self.left() < 30:
            self.left_out.append(training.describe(case))
            return
        case["our_turns"], case["peer_turns"] = list(self.train_ours(case, folder)), list(self.train_peer(case))
        if not case["our_turns"] or not case["peer_turns"]:
            return
        training.finish(case)
        self.training_cases.append(case)
        told = (
            f"{case['times_as_fast']:.2f} times as fast as {case['peer']['name']}"
            if "times_as_fast" in case
            else "; ".join(
                f"{whose} failed: {case[side]['failed']}"
                for side, whose in (("ours", "ours"), ("peer", "the peer"))
                if "failed" in case[side]
            )
        )
        print(f"{training.describe(case)}: {told}", flush=True)


def describe(case):
    features = f" m={case['m']}" if "m" in case else ""
    return (
        f"{case['attention']}{features} d={case['d']} n={case['n']} batch={case['batch']} heads={case['heads']} "
        f"{'forward and backward' if case['train'] else 'forward'}"
    )


def cases_of(arguments):
    """Those that targets are about first, short and long lengths alternating, so that a run that is cut off has seen
    both."""
    short_first = sorted(arguments.n)
    lengths = []
    while short_first:
        lengths.append(short_first.pop(0))
        if short_first:
            lengths.append(short_first.pop())
    for train in (True, False):
        for n in lengths:
            for attention, d in (("elu1", 64), ("favor_positive", 64), ("softmax", 64), ("elu1", 128)):
                if attention == "softmax" and n > arguments.longest_softmax:
                    continue
                case = {
                    "attention": attention,
                    "d": d,
                    "n": n,
                    "heads": arguments.heads,
                    "batch": max(1, arguments.tokens // n),
                    "train": train,
                }
                if attention == "favor_positive":
                    case["m"] = 256
                if re.search(arguments.only, describe(case)):
                    yield case


def machine(device, repeat):
    """PyTorch's own rates here: what the others are to be compared with."""
    size = 8192 if device.type == "cuda" else 512
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = seconds_of(lambda: a @ b, device, repeat)["median_seconds"]
    source = torch.empty(1 << (31 if device.type == "cuda" else 26), device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    copy = seconds_of(lambda: target.copy_(source), device, repeat)["median_seconds"]
    return {"matmul_flops_per_second": 2 * size**3 / product, "copy_bytes_per_second": 2 * source.numel() / copy}


def versions():
    found = {"python": sys.version.split()[0], "torch": torch.__version__, "cuda": torch.version.cuda}
    for name in ("triton", "fla"):
        try:
            found[name] = getattr(__import__(name), "__version__", "unknown")
        except Exception as error:
            found[name] = f"missing: {first_line(error)}"
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--furlong", default="build/release/bin/furlong", help="the program")
    parser.add_argument("--output", default="gpu.json", help="result file")
    parser.add_argument(
        "--parts", nargs="+", choices=("attention", "training"), help="default: both; with --only attention"
    )
    parser.add_argument("--list", action="store_true", help="print the cases in order and run none")
    parser.add_argument(
        "--only", default="", metavar="PATTERN", help="only attention whose line in --list has this regular expression"
    )
    parser.add_argument("--self-test", action="store_true", help="test the arithmetic and run no case")
    parser.add_argument(
        "--seconds", type=float, default=600, help="time limit; cases that do not fit are left out"
    )
    parser.add_argument("--n", type=int, nargs="+", default=[2048, 8192, 32768, 131072, 262144])
    parser.add_argument("--longest-softmax", type=int, default=32768)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=131072, help="minimum tokens per batch")
    parser.add_argument("--chunks", type=int, nargs="+", default=[128, 256, 512], help="chunk sizes of compiled FAVOR+")
    parser.add_argument(
        "--fla-configs", type=int, default=4, help="configurations that Triton tries of each of fla's kernels; 0: all"
    )
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument(
        "--training-n", type=int, nargs="+", default=[4096, 16384, 65536, 262144], help="lengths of the crossover"
    )
    parser.add_argument("--training-tokens", type=int, default=32768, help="minimum tokens per training step")
    parser.add_argument(
        "--training-share", type=float, default=0.5, help="fraction of --seconds for training if both parts run"
    )
    parser.add_argument(
        "--device", default="cuda", help="cpu: try the script without a GPU, with a small model"
    )
    arguments = parser.parse_args()
    if arguments.self_test:
        figures.self_test()
        training.self_test()
        return
    arguments.parts = arguments.parts or ["attention"] + ["training"] * (not arguments.only)
    try:
        re.compile(arguments.only)
    except re.error as error:
        parser.error(f"--only {arguments.only}: {error}")
    if "attention" in arguments.parts and not list(cases_of(arguments)):
        parser.error(f"--only {arguments.only}: no line of --list contains it")
    if arguments.list:
        for line in [describe(case) for case in cases_of(arguments) if "attention" in arguments.parts] + [
            training.describe(case) for case in training.cases(arguments) if "training" in arguments.parts
        ]:
            print(line)
        return
    if torch is None:
        sys.exit(f"run.py: this needs PyTorch with CUDA: {missing}")
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit("run.py: PyTorch sees no GPU (torch.cuda.is_available() is false)")
    thinned = []
    if arguments.fla_configs > 0:
        try:
            thinned = peers.thin_autotuning(arguments.fla_configs)
        except ImportError:
            pass  # fla needs Triton too, and is then reported as missing
    runner = Runner(arguments)
    properties = torch.cuda.get_device_properties(runner.device) if runner.device.type == "cuda" else None
    result = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "furlong": subprocess.run(
            [arguments.furlong, "--version"], capture_output=True, text=True, check=True
        ).stdout.strip(),
        "device": properties.name if properties else arguments.device,
        "multiprocessors": properties.multi_processor_count if properties else None,
        "arguments": {key: value for key, value in vars(arguments).items() if key not in ("furlong", "output")},
        "versions": versions(),
        "machine": machine(runner.device, arguments.repeat),
        "targets": TARGETS,
    }

    def write():
        result.update(
            cases=runner.cases,
            training=runner.training_cases,
            crossover=training.summary(runner.training_cases),
            left_out=runner.left_out,
            fla_configurations={
                "most": arguments.fla_configs,
                "kept": sum(kept for kept, _ in thinned),
                "of": sum(count for _, count in thinned),
            },
        )
        reached = [
            case["reached"]
            for case in [*runner.cases, *runner.training_cases, result["crossover"]]
            if "reached" in case
        ]
        result.update(targets_reached=sum(reached), targets_missed=len(reached) - sum(reached))
        pathlib.Path(arguments.output).write_text(json.dumps(result, indent=1) + "\n")

    end = runner.end
    if "attention" in arguments.parts:
        if "training" in arguments.parts:
            runner.end -= arguments.training_share * arguments.seconds
        for case in cases_of(arguments):
            runner.run(case)
            write()
    runner.end = end
    if "training" in arguments.parts:
        with tempfile.TemporaryDirectory() as folder:
            for case in training.cases(arguments):
                runner.run_training(case, pathlib.Path(folder))
                write()
    write()
    failed = [describe(case) for case in runner.cases if "failed" in case["ours"]]
    failed += [training.describe(case) for case in runner.training_cases if "failed" in case["ours"]]
    if runner.training_cases:
        print(f"crossover with softmax: {result['crossover']['text']} tokens")
    print(
        f"{len(runner.cases) + len(runner.training_cases)} cases measured, {len(runner.left_out)} left out; "
        f"{result['targets_reached']} of {result['targets_reached'] + result['targets_missed']} targets reached"
        + (f"; ours failed: {'; '.join(failed)}" if failed else "")
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
