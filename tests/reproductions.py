#!/usr/bin/env python3
"""Runs each reproduction of scripts/reproduce/ with its smallest sizes and checks JSON, figures and tables, and those
in docs/results/.

usage: reproductions.py FURLONG [NAME...]
Exit status: 0 success, 1 failure, 77 without a Python that has h5py and matplotlib.
"""
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
SCRIPTS = ROOT / "scripts" / "reproduce"


def interpreter():
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import h5py, matplotlib"], stderr=subprocess.DEVNULL).returncode == 0:
            return python
    return None


def tables_of(page):
    """The tables of a Markdown page: lists of rows of cells, the header first."""
    found, lines = [], page.split("<!-- measured -->")[1].splitlines()
    for line, before in zip(lines, [""] + lines):
        if line.startswith("| "):
            if not before.startswith("|"):
                found.append([])
            if not re.fullmatch(r"[| -]+", line):
                found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def same(cell, value):
    """Whether a cell shows a value: text exactly, numbers to three digits."""
    if value is None or isinstance(value, str):
        return cell == (value or "")
    number = float(cell.split()[0].replace(",", ""))  # a median can be followed by least and most
    return number == value if isinstance(value, int) else abs(number - value) <= 0.00501 * abs(value)


def measured(name, result):
    """Numbers that tables must show, computed from the samples in the JSON: {(table, row's first cell, column): x}."""
    numbers = {}
    if name == "cost_against_length":
        for table, key in enumerate(result["settings"]["parts"]):
            for one in result[key]:
                last = one["lengths"][-1]
                seconds = statistics.median(last["seconds"]["samples"])
                for unit, value in (("µs", 1e6 * seconds), ("KiB", last["peak_bytes"] / 1024)):
                    numbers[table, one["attention"], f"{unit} per token at {last['n']:,}"] = value / last["n"]
    elif name == "estimator_error":
        for table, inputs in enumerate(result["inputs"]):
            column = f"m = {result['settings']['features'][0]:,}"
            numbers[table, "uniform", column] = statistics.median(inputs["uniform"]["samples"])
            for one in inputs["attention"]:
                if not one["random_projection"]:
                    column = f"error, deviation {inputs['std']:g}"
                    numbers[len(result["inputs"]), one["map"], column] = statistics.median(one["error"]["samples"])
    elif name == "generation_cost":
        for one in result["costs"]:
            last = one["by_prompt"][-1]
            tokens = last["prompt_tokens"] + result["settings"]["tokens"]
            numbers[0, one["attention"], f"state at {tokens:,}, KiB"] = last["state_bytes"] / 1024
            last = one["by_batch"][-1]
            seconds = statistics.median(last["seconds"]["samples"])
            numbers[1, one["attention"], f"tokens/s, {last['batch']} samples"] = last["batch"] / seconds
    elif name == "recall_capacity":
        for run in result["runs"]:
            if run["m"]:
                table = result["settings"]["tasks"].index(run["task"])
                numbers[table, run["attention"], f"m = {run['m']:,}"] = run["accuracy"]
    elif name == "converted_language_model":
        long = result["settings"]["long"]
        for model in result["models"]:
            numbers[0, model["model"], f"loss at {long:,}"] = model["loss"][str(long)]
    elif name == "image_density":
        for run in result["runs"]:
            numbers[0, run["attention"], "bits per dimension"] = run["test_bits"]
            seconds = statistics.median(run["picture_seconds"]["samples"])
            numbers[0, run["attention"], "pictures/s"] = 1 / seconds
    elif name == "long_range_arena":
        for run in result["runs"]:
            table = result["settings"]["tasks"].index(run["task"])
            numbers[table, run["attention"], "accuracy"] = 100 * run["accuracy"]["value"]
    elif name == "masked_proteins":
        for run in result["runs"]:
            minutes = run["processor_seconds"] / 60
            numbers[0, run["attention"], f"minutes at {run['length']:,}"] = minutes
            numbers[0, run["attention"], f"accuracy at {run['length']:,}"] = run["accuracy"]
    elif name == "softmax_to_performer":
        for student in result["students"]:
            for key in ("accuracy", "loss"):
                last = student["points"][-1]
                numbers[0, f"{key}: {student['name']}", f"{last['step']:,} steps"] = last[key]
    return numbers


def wrong_helpers():
    """Hand-computed cases of what the reproductions derive from measurements."""
    sys.path.insert(0, str(SCRIPTS))
    import reproduction

    for arguments, expected in (
        (([100, 400], [2, 1], [1, 4]), 400),
        (([100, 400], [1, 1], [2, 2]), 100),
        (([100, 400], [1, 1], [2, 1]), None),
        (([100, 200, 400], [1, 2, 1], [2, 2, 2]), 400),
    ):
        if reproduction.below_from(*arguments) != expected:
            yield f"below_from{arguments} is {reproduction.below_from(*arguments)}, expected {expected}"
    three = {"median": 0.5, "least": 0.25, "most": 1, "samples": [1, 0.5, 0.25]}
    if (found := reproduction.with_spread(three, lambda seconds: 1 / seconds)) != "2 (1 to 4)":
        yield f"with_spread: {found}, expected 2 (1 to 4)"
    if reproduction.difference([1, 3]) != 2:
        yield "difference([1, 3]) is not 2"
    for seconds in ([3, 3], [3, 1]):
        try:
            yield f"difference({seconds}) is {reproduction.difference(seconds)}, expected an error"
        except SystemExit:
            pass


def problems_of(name, folder):
    result = json.loads((folder / f"{name}.json").read_text())
    page = (folder / f"{name}.md").read_text()
    images = (folder.parent if folder == RESULTS else folder) / "images"
    for figure in [folder / f"{name}.svg", *images.glob(f"{name}.svg")]:
        text = figure.read_text()
        root = xml.fromstring(text)
        words = " ".join(element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text"))
        if len(re.findall(r"[a-z]{3}", words)) < 10:
            yield f"{figure.name}: no labels as text"
        if len(text) > 60_000:
            yield f"{figure.name}: {len(text)} bytes, expected at most 60,000"
    for key in ("commit", "version"):
        if not result["furlong"][key]:
            yield f"no {key} in the JSON"
    tables = tables_of(page)
    if len(tables) != len(result["tables"]):
        yield f"{len(tables)} tables, {len(result['tables'])} in the JSON"
        return
    cells = {}
    for number, (table, stored) in enumerate(zip(tables, result["tables"])):
        if table[0] != stored["columns"] or len(table) - 1 != len(stored["rows"]):
            yield f"table {number}: columns {table[0]}, {len(table) - 1} rows differ from the JSON"
            return
        for row, values in zip(table[1:], stored["rows"]):
            cells.update({(number, row[0], column): cell for column, cell in zip(table[0], row)})
            for column, cell, value in zip(table[0], row, values):
                if not same(cell, value):
                    yield f"table {number}, {row[0]}, {column}: {cell}, in the JSON {value}"
    expected = measured(name, result)
    if not expected:
        yield "no measurement was compared with the tables"
    for place, value in expected.items():
        if place not in cells or not same(cells[place], float(value)):
            yield f"table {place}: {cells.get(place)}, expected {value} of the samples"


def problems_of_page(name):
    """Of the page in docs/results/."""
    if (RESULTS / f"{name}.json").exists():
        yield from problems_of(name, RESULTS)
    elif "Not measured yet." not in (RESULTS / f"{name}.md").read_text():
        yield f"docs/results/{name}.md has no JSON and does not say that nothing is measured"


def refusals(name, command, work, environment):
    """Options that would mix measurements must fail with one line."""
    without_output = [SCRIPTS / f"{name}.sh", "--tiny"]
    for words, message in ((without_output, "--tiny requires --output"), ([*command, "--work", work], "other options")):
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        if done.returncode == 0 or message not in done.stderr:
            yield f"{words[1:]}: status {done.returncode}, {done.stderr!r}; expected: {message}"


def main():
    python = interpreter()
    if not python:
        print("no Python with h5py and matplotlib: reproductions are not run")
        return 77
    names = sys.argv[2:] or sorted(path.stem for path in SCRIPTS.glob("*.sh") if path.stem != "start")
    environment = {**os.environ, "FURLONG": str(pathlib.Path(sys.argv[1]).resolve()), "PYTHON": python}
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            output = pathlib.Path(folder) / name / "results"
            work = pathlib.Path(folder) / name / "work"
            command = [SCRIPTS / f"{name}.sh", "--tiny", "--threads", "1", "--output", output]
            done = subprocess.run([*command, "--work", work], env=environment, capture_output=True, text=True)
            found = [done.stderr] if done.returncode else list(problems_of(name, output))
            found += problems_of_page(name)
            found += wrong_helpers()
            if not found:
                # The same numbers give the same bytes.
                before = {path: path.read_bytes() for path in output.parent.rglob("*.*")}
                subprocess.run([*command, "--redraw"], env=environment, check=True, stdout=subprocess.DEVNULL)
                found = [f"{path.name} changed" for path, data in before.items() if path.read_bytes() != data]
                other = ["2" if word == "1" else word for word in command]  # threads
                found += refusals(name, other, work, environment)
            print(f"{name}: {'ok' if not found else ''}")
            for problem in found:
                print("  error:", problem)
            failed += bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
