#!/usr/bin/env python3
"""Counts the issue slots of compiled CUDA kernels, by pipe and by loop. Needs nvdisasm (CUDA toolkit, or the PyPI
package nvidia-cuda-nvdisasm), in $NVDISASM, on PATH, in the toolkit or in this Python's packages.

  scripts/sass_cost.py [--kernel REGEX] FILE...     prints slots of each kernel and loop

FILE is an object file or a program with kernels (compiled with nvcc --no-compress), a cubin (Triton's too), or a
listing that nvdisasm wrote (its name ends with .sass)."""

import argparse
import collections
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cuda_gates
import sass


class Refused(Exception):
    """Invalid input: one line, status 2."""


def nvdisasm():
    packages = [pathlib.Path(path) / "nvidia" for path in sys.path]
    found = [os.environ.get("NVDISASM"), shutil.which("nvdisasm"), "/usr/local/cuda/bin/nvdisasm"]
    found += [path for folder in packages for path in sorted(folder.glob("*/bin/nvdisasm"))]
    for path in found:
        if path and os.access(path, os.X_OK):
            return str(path)
    raise Refused("nvdisasm was not found; install cuda-nvdisasm or the Python package nvidia-cuda-nvdisasm")


def disassembled(cubin):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        run = subprocess.run([nvdisasm(), "-c", "-g", file.name], capture_output=True, text=True)
    if run.returncode != 0:
        raise Refused(f"nvdisasm: {(run.stderr.strip().splitlines() or ['failed'])[-1]}")
    return run.stdout


def cost_of(instructions):
    """Slots in all and by pipe."""
    counts = collections.Counter(slots=len(instructions))
    for instruction in instructions:
        counts[instruction.pipe] += 1
    return counts


def loop_costs(kernel):
    """Path of each loop, "" for the code outside loops -> cost of one pass through its own blocks, without inner
    loops."""
    inner = {}
    for loop in kernel.all_loops():  # outer ones first
        for block in loop.blocks:
            inner[block] = loop.path
    found = collections.defaultdict(collections.Counter)
    for index, block in enumerate(kernel.blocks):
        found[inner.get(index, "")] += cost_of(block.instructions)
    return found


def measure(paths, wanted):
    """ "sm_90" -> "file: kernel" -> (kernel, figures of cuda_gates.py)."""
    table = {}
    for path in paths:
        stem = re.sub(r"(_cuda)?(\.cu)?\.(o|cubin|sass)$", "", pathlib.Path(path).name)
        try:
            if path.endswith(".sass"):
                text = pathlib.Path(path).read_text()
                target = re.search(r"\.target\s+sm_(\d+)", text)
                images = [(int(target.group(1)) if target else 90, text, {})]
            else:
                images = [
                    (architecture, disassembled(cubin), cuda_gates.kernels(cubin, architecture))
                    for architecture, cubin in cuda_gates.cubins(pathlib.Path(path).read_bytes())
                ]
            for architecture, text, figures in images:
                of_cubin = {kernel.name: kernel for kernel in sass.kernels(text)}
                names = cuda_gates.readable(of_cubin)
                for mangled, kernel in of_cubin.items():
                    name = f"{stem}: {names[mangled]}"
                    if re.search(wanted, name):
                        table.setdefault(f"sm_{architecture}", {})[name] = kernel, figures.get(mangled, {})
        except (cuda_gates.Unreadable, sass.Unreadable, OSError, struct.error, KeyError, ValueError) as error:
            raise Refused(f"{path}: {error}")
    if not table:
        raise Refused(f"no kernel matches '{wanted}'" if wanted else "the files contain no kernel")
    return table


def as_json(kernel, figures):
    costs = loop_costs(kernel)
    loops = {"": {**costs[""]}}
    for loop in kernel.all_loops():
        header = kernel.blocks[loop.header].instructions[0]
        loops[loop.path] = {"address": header.address, "line": header.line, **costs[loop.path]}
    return {**figures, "loops": loops}


def print_kernel(name, kernel, figures):
    costs = loop_costs(kernel)
    known = ", ".join(f"{key} {figures[key]}" for key in ("registers", "shared", "threads") if key in figures)
    print(f"\n{name}{': ' if known else ''}{known}")
    columns = ("slots", "all", *sass.PIPES)
    print(f"  {'loop':<14}{'address':>8}" + "".join(f"{column:>8}" for column in columns) + "  line of the header")

    def row(title, header, cost, everything):
        numbers = (cost["slots"], everything, *(cost[pipe] for pipe in sass.PIPES))
        address = "" if header is None else f"{header.address:x}"
        print(f"  {title:<14}{address:>8}" + "".join(f"{number:>8}" for number in numbers) +
              (f"  {header.line}" if header is not None else ""))

    total = sum((cost["slots"] for cost in costs.values()))
    row("outside loops", None, costs[""], total)
    for loop in kernel.all_loops():
        everything = sum(len(kernel.blocks[block].instructions) for block in loop.blocks)
        row("  " * loop.path.count(".") + loop.path, kernel.blocks[loop.header].instructions[0], costs[loop.path],
            everything)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="", metavar="REGEX", help="only kernels whose 'file: name' matches")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("files", nargs="+", metavar="FILE")
    arguments = parser.parse_args()
    try:
        table = measure(arguments.files, arguments.kernel)
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps({a: {n: as_json(*k) for n, k in of.items()} for a, of in table.items()}, indent=1))
        return 0
    for architecture, of_architecture in sorted(table.items()):
        for name, (kernel, figures) in sorted(of_architecture.items()):
            print_kernel(f"{architecture} {name}", kernel, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
