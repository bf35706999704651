#!/usr/bin/env python3
"""Counts the issue slots of compiled CUDA kernels and predicts their time. The model: docs/internals/kernel_cost.md.

  scripts/sass_cost.py [--kernel REGEX] [--lines N] FILE...    slots by pipe of each kernel and loop
  scripts/sass_cost.py --cases [--lines N] FILE...             slots and time per token-head of each case
  scripts/sass_cost.py --check TABLE [--toolkit VERSION] FILE...    compares the cases with a table
  scripts/sass_cost.py --update TABLE [--toolkit VERSION] FILE...   rewrites that table

FILE is an object file or a program (compiled with nvcc --no-compress), a cubin, or a listing of nvdisasm (*.sass).
Cases need line information (nvcc -lineinfo). --kernel selects kernels or cases whose names match. --lines also prints
the N source lines with most slots. --json prints JSON. Needs nvdisasm, in $NVDISASM, on PATH, in /usr/local/cuda or in
this Python's packages (cuda-nvdisasm, or nvidia-cuda-nvdisasm of PyPI).

--check reports a fault if a figure of a case differs by more than 1% from the table. It does so only if the table was
made with the same toolkit, and only for architectures that both have.
Exit status: 0 no fault, 1 a fault, 2 invalid input: no nvdisasm, an unreadable file, or a case that does not fit the
code: it matches no kernel or several, has no trip count for a loop, or names a loop or a part that does not exist."""

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
import sass_cases
import sass_sources

TOLERANCE = 0.01
COMPARED = ("slots", "tensor", "exp", "wavefronts", "bytes", "registers")


class Refused(Exception):
    """Invalid input: one line, status 2."""


# ---- reading ----


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
        run = subprocess.run([nvdisasm(), "-c", "-gi", file.name], capture_output=True, text=True)
    if run.returncode != 0:
        raise Refused(f"nvdisasm: {(run.stderr.strip().splitlines() or ['failed'])[-1]}")
    return run.stdout


def images(path):
    """(architecture, listing, figures of cuda_gates.py) of each cubin in a file."""
    if path.endswith(".sass"):
        text = pathlib.Path(path).read_text()
        target = re.search(r"\.target\s+sm_(\d+)", text)
        if not target:
            raise sass.Unreadable("the listing has no .target")
        yield int(target.group(1)), text, {}
        return
    for architecture, cubin in cuda_gates.cubins(pathlib.Path(path).read_bytes()):
        yield architecture, disassembled(cubin), cuda_gates.kernels(cubin, architecture)


def read(paths):
    """ "sm_90" -> "file: kernel" -> (kernel, figures of cuda_gates.py)."""
    table, claims = {}, json.loads(cuda_gates.TABLE.read_text())["claims"]
    for path in paths:
        stem = re.sub(r"(_cuda)?(\.cu)?\.(o|cubin|sass)$", "", pathlib.Path(path).name)
        try:
            for architecture, text, figures in images(path):
                found = {kernel.name: kernel for kernel in sass.kernels(text)}
                names = cuda_gates.readable(found)
                of_architecture = table.setdefault(f"sm_{architecture}", {})
                for mangled, kernel in found.items():
                    name, of_kernel = f"{stem}: {names[mangled]}", figures.get(mangled, {})
                    if of_kernel and architecture in cuda_gates.SHARED_OF_MULTIPROCESSOR:
                        cuda_gates.add_occupancy(of_kernel, name, architecture, claims)
                    of_architecture[name] = kernel, of_kernel
        except (cuda_gates.Unreadable, sass.Unreadable, OSError, struct.error, KeyError, ValueError) as error:
            raise Refused(f"{path}: {error}")
    if not any(table.values()):
        raise Refused("the files contain no kernel")
    return table


# ---- kernels ----


def loop_statement(kernel, loop):
    """The loop's statement in the source and the statements around it, one per line; "" without line information."""
    for index in sorted(loop.blocks):
        block = kernel.blocks[index]
        if loop.header in block.successors:
            rows = sass_sources.description(block.instructions[-1].frames).split("\n")
            for place, row in enumerate(rows):
                if re.search(r": (for|while|do)\b", row):
                    return "\n".join(rows[place:])
    return ""


def cost_of(instructions):
    found = collections.Counter()
    for instruction in instructions:
        found.update(instruction.cost())
    return found


def loop_costs(kernel):
    """Path of each loop, "" for the code outside loops -> cost of one pass through its own blocks, without inner
    loops."""
    innermost = {}
    for loop in kernel.all_loops():  # outer ones first
        innermost.update(dict.fromkeys(loop.blocks, loop.path))
    found = collections.defaultdict(collections.Counter)
    for index, block in enumerate(kernel.blocks):
        found[innermost.get(index, "")] += cost_of(block.instructions)
    return found


def as_json(kernel, figures):
    costs = loop_costs(kernel)
    loops = {"": costs[""]}
    for loop in kernel.all_loops():
        statement = loop_statement(kernel, loop).partition("\n")[0]
        address = kernel.blocks[loop.header].instructions[0].address
        loops[loop.path] = {"address": address, "statement": statement, **costs[loop.path]}
    return {**figures, "loops": loops}


def print_kernel(name, kernel, figures):
    costs = loop_costs(kernel)
    shown = ("registers", "shared", "dynamic_shared", "threads", "blocks")
    known = ", ".join(f"{key} {figures[key]}" for key in shown if key in figures)
    print(f"\n{name}{': ' if known else ''}{known}")
    print(f"  {'loop':<14}{'address':>8}" + "".join(f"{column:>8}" for column in ("slots", "all", *sass.PIPES)))

    def row(title, address, cost, everything, statement):
        numbers = (cost["slots"], everything, *(cost[pipe] for pipe in sass.PIPES))
        print(f"  {title:<14}{address:>8}" + "".join(f"{number:>8}" for number in numbers) + "  " + statement[:80])

    row("outside loops", "", costs[""], sum(cost["slots"] for cost in costs.values()), "")
    for loop in kernel.all_loops():
        everything = sum(len(kernel.blocks[block].instructions) for block in loop.blocks)
        address = f"{kernel.blocks[loop.header].instructions[0].address:x}"
        title = "  " * loop.path.count(".") + loop.path
        row(title, address, costs[loop.path], everything, loop_statement(kernel, loop).partition("\n")[0])


def print_lines(lines, count, unit):
    for line, slots in lines.most_common(count):
        print(f"  {slots / unit:10.2f}  {line[:110]}")


# ---- cases ----


def number_of(trips, architecture, place, what):
    if isinstance(trips, dict):
        if architecture not in trips:
            raise Refused(f"{what}: it has no trip count for {architecture}")
        trips = trips[architecture]
    if not isinstance(trips, (list, tuple)):
        return trips
    if place >= len(trips):
        raise Refused(f"{what}: it has {len(trips)} trip counts, the code has more loops")
    return trips[place]


def loop_rule(case, architecture, kernel, loop, uses):
    """Trips of a loop: of the first rule whose path or regular expression matches. A loop in a part that does not run
    needs none."""
    statement = loop_statement(kernel, loop)
    runs = all(
        number_of(share, architecture, 0, rule) or not re.search(rule, statement, re.DOTALL | re.MULTILINE)
        for rule, share in case.parts
    )
    for rule, trips in case.loops:
        if rule == loop.path or statement and re.match(r"\S+ " + rule, statement, re.DOTALL):
            uses[rule] += 1
            return runs and number_of(trips, architecture, uses[rule] - 1, f"case '{case.name}', loop '{rule}'")
    if not runs:
        return 0
    shown = statement.partition("\n")[0] or "compile with -lineinfo to see its statement"
    raise Refused(f"case '{case.name}', {architecture}: loop {loop.path} has no trip count ({shown})")


def weighed(case, architecture, kernel, lines):
    """Cost of a block of threads under a case. Adds slots of source lines to `lines`."""
    times, uses = collections.defaultdict(lambda: 1.0), collections.Counter()
    for loop in kernel.all_loops():
        trips = loop_rule(case, architecture, kernel, loop, uses)
        for block in loop.blocks:
            times[block] *= trips
    parts = [(rule, re.compile(rule, re.DOTALL | re.MULTILINE), factor) for rule, factor in case.parts]
    total = collections.Counter()
    for index, block in enumerate(kernel.blocks):
        for instruction in block.instructions:
            text, factor = sass_sources.description(instruction.frames), times[index]
            for rule, pattern, share in parts:
                if pattern.search(text):
                    uses[rule] += 1
                    factor *= number_of(share, architecture, 0, f"case '{case.name}', part '{rule}'")
            for name, amount in instruction.cost().items():
                total[name] += amount * factor * case.warps
            lines[sass_sources.own_line(instruction.frames)] += factor * case.warps
    for kind, rules in (("loop", case.loops), ("part", case.parts)):
        for rule, value in rules:
            expected = value.get(architecture) if isinstance(value, dict) else value
            expected = len(expected) if isinstance(expected, (list, tuple)) else 1
            if uses[rule] < expected:
                raise Refused(
                    f"case '{case.name}', {architecture}: {kind} '{rule}' matches {uses[rule]} times in the code, "
                    f"{expected} expected"
                )
    return total


def evaluated(case, architecture, kernels, lines):
    """Figures per token-head of a case, and its predicted time."""
    matching = [name for name in kernels if re.search(case.kernel, name)]
    if len(matching) != 1:
        raise Refused(f"case '{case.name}', {architecture}: {len(matching)} kernels match '{case.kernel}', 1 expected")
    kernel, figures = kernels[matching[0]]
    total = weighed(case, architecture, kernel, lines)
    token_heads = number_of(case.token_heads, architecture, 0, f"case '{case.name}'")
    found = {name: total[name] / token_heads for name in ("slots", *sass.PIPES, "mma", "wgmma", "wavefronts")}
    found["bytes"] = number_of(case.bytes, architecture, 0, f"case '{case.name}'")
    if "registers" in figures:
        found["registers"] = figures["registers"]
    device = next((device for device in sass_cases.DEVICES if device.architecture == architecture), None)
    if device:
        times = device.times(found)
        found["bound"] = max(times, key=times.get)
        found["picoseconds"] = times[found["bound"]]
        found["times"] = times
    return found


def evaluate(table, wanted, line_count):
    """ "sm_90" -> case -> figures."""
    found = {}
    for architecture, kernels in sorted(table.items()):
        for case in sass_cases.CASES:
            if not re.search(wanted, case.name):
                continue
            lines = collections.Counter()
            found.setdefault(architecture, {})[case.name] = evaluated(case, architecture, kernels, lines)
            if line_count:
                print(f"\n{architecture} {case.name}: slots per token-head of source lines")
                print_lines(lines, line_count, number_of(case.token_heads, architecture, 0, case.name))
    if not found:
        raise Refused(f"no case matches '{wanted}'")
    return found


def print_cases(found):
    columns = ("slots", "tensor", "fma", "alu", "exp", "shared", "global", "control", "uniform", "bytes")
    for architecture, cases in found.items():
        device = next((device for device in sass_cases.DEVICES if device.architecture == architecture), None)
        on_device = f"; picoseconds on {device.name}, {sass_cases.STATUS}" if device else ""
        print(f"\n{architecture}, per token of a head{on_device}")
        times = ("issue", "products", "exponentials", "shared", "memory") if device else ()
        print(f"  {'case':<34}" + "".join(f"{c:>9}" for c in columns) + " |" + "".join(f"{t:>13}" for t in times))
        for name, figures in cases.items():
            row = f"  {name:<34}" + "".join(f"{figures[c]:>9.1f}" for c in columns) + " |"
            for time in times:
                row += f"{figures['times'][time]:>12.0f}" + ("*" if figures["bound"] == time else " ")
            print(row)
        for title, members in sass_cases.SUMS.items():
            if device and all(member in cases for member in members):
                print(f"  {title}: {sum(cases[member]['picoseconds'] for member in members):.0f} ps")


def differences(found, expected):
    faults = []
    for architecture in sorted(set(found) & set(expected)):
        here, there = found[architecture], expected[architecture]
        for name in sorted(set(here) | set(there)):
            if name not in there or name not in here:
                faults.append(f"{architecture} {name}: {'not' if name in here else 'only'} in the table")
                continue
            changed = [
                f"{key} {there[name][key]:g} -> {here[name][key]:.5g}"
                for key in COMPARED
                if key in here[name]
                and key in there[name]  # a listing has no registers
                and abs(here[name][key] - there[name][key]) > TOLERANCE * abs(there[name][key])
            ]
            if changed:
                faults.append(f"{architecture} {name}: {', '.join(changed)}")
    return faults


def write(path, toolkit, table):
    lines = ["{", f'"toolkit": {json.dumps(toolkit)},', f'"status": {json.dumps(sass_cases.STATUS)},', '"cases": {']
    blocks = []
    for architecture, cases in sorted(table.items()):
        rows = []
        for name, figures in cases.items():
            kept = {key: figures[key] for key in (*COMPARED, "picoseconds", "bound") if key in figures}
            kept = {key: float(f"{value:.5g}") if isinstance(value, float) else value for key, value in kept.items()}
            rows.append(f"    {json.dumps(name)}: {json.dumps(kept)}")
        blocks.append(f"  {json.dumps(architecture)}: {{\n" + ",\n".join(rows) + "\n  }")
    path.write_text("\n".join([*lines, ",\n".join(blocks), "}", "}"]) + "\n")


def check(arguments, found):
    path = pathlib.Path(arguments.check or arguments.update)
    try:
        old = json.loads(path.read_text()) if path.exists() or arguments.check else {"toolkit": "", "cases": {}}
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: {error}")
    if arguments.update:
        # Figures of another toolkit are not kept next to these.
        write(path, arguments.toolkit, {**(old["cases"] if old["toolkit"] == arguments.toolkit else {}), **found})
        return 0
    if arguments.toolkit != old["toolkit"]:
        print(f"the table is from CUDA {old['toolkit']}, this build from {arguments.toolkit}: figures are not compared")
        return 0
    faults = differences(found, old["cases"])
    for fault in faults:
        print("FAULT", fault)
    if faults:
        print("if the change is intended: scripts/sass_cost.py --update, with the same arguments")
    else:
        print(f"{sum(map(len, found.values()))} cases on {', '.join(found)}: equal to the table within {TOLERANCE:.0%}")
    return 1 if faults else 0


def print_kernels(arguments, table):
    table = {
        architecture: {name: kernel for name, kernel in kernels.items() if re.search(arguments.kernel, name)}
        for architecture, kernels in table.items()
    }
    if not any(table.values()):
        raise Refused(f"no kernel matches '{arguments.kernel}'")
    if arguments.json:
        print(json.dumps({a: {n: as_json(*k) for n, k in of.items()} for a, of in table.items()}, indent=1))
        return
    for architecture, kernels in sorted(table.items()):
        for name, (kernel, figures) in sorted(kernels.items()):
            print_kernel(f"{architecture} {name}", kernel, figures)
            lines = collections.Counter(
                sass_sources.own_line(instruction.frames)
                for block in kernel.blocks
                for instruction in block.instructions
            )
            print_lines(lines, arguments.lines, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="", metavar="REGEX", help="only kernels or cases whose names match")
    parser.add_argument("--lines", type=int, default=0, metavar="N", help="source lines to print")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--cases", action="store_true", help="evaluate the cases of sass_cases.py")
    parser.add_argument("--check", metavar="TABLE", help="compare the cases with a table")
    parser.add_argument("--update", metavar="TABLE", help="rewrite a table")
    parser.add_argument("--toolkit", default="", metavar="VERSION", help="of the toolkit that compiled the files")
    parser.add_argument("files", nargs="+", metavar="FILE")
    arguments = parser.parse_args()
    try:
        if (arguments.check or arguments.update) and (arguments.kernel or not arguments.toolkit):
            raise Refused("--check and --update need --toolkit, and compare all cases: no --kernel")
        if arguments.json and arguments.lines and (arguments.cases or arguments.check or arguments.update):
            raise Refused("--json does not print the --lines of cases")
        table = read(arguments.files)
        if not (arguments.cases or arguments.check or arguments.update):
            print_kernels(arguments, table)
            return 0
        found = evaluate(table, arguments.kernel, arguments.lines)
        if arguments.check or arguments.update:
            return check(arguments, found)
        if arguments.json:
            print(json.dumps(found, indent=1))
        else:
            print_cases(found)
        return 0
    except (Refused, sass.Unreadable, re.error) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
