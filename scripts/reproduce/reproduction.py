"""Shared by the reproductions: options, calls of the program, and the files in docs/results/."""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import re
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs/results"
FURLONG = os.environ.get("FURLONG", str(ROOT / "build/release/bin/furlong"))
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"


def options(name, text, more=lambda parser: None, tiny=None):
    """Parses the command line. `tiny`: values of options that --tiny replaces."""
    parser = argparse.ArgumentParser(
        prog=f"scripts/reproduce/{name}.sh", description=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    more(parser)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: all cores")
    parser.add_argument("--tiny", action="store_true", help="smallest sizes, to test the script in seconds")
    parser.add_argument(
        "--work", type=pathlib.Path, help="folder that keeps the runs; refused if it has runs of other options"
    )
    parser.add_argument("--redraw", action="store_true", help="measure nothing: figure and tables of the existing JSON")
    parser.add_argument(
        "--output", type=pathlib.Path, default=RESULTS, help=f"folder of {name}.json, .svg and .md; --tiny requires it"
    )
    if "--tiny" in sys.argv[1:]:
        parser.set_defaults(**(tiny or {}))
    for action in parser._actions:  # the formatter adds defaults to texts only
        action.help = action.help or "default: %(default)s"
    arguments = parser.parse_args()
    arguments.output = arguments.output.resolve()
    if arguments.tiny and arguments.output == RESULTS:
        parser.error("--tiny requires --output: its numbers do not belong into docs/results/")
    return arguments


def processor_time_option(parser):
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="processor time, the sum over threads, instead of the clock: for busy machines, with --threads 1",
    )


def kind_of_time(result):
    return "processor time" if result["settings"]["processor_time"] else "clock time"


def integers(text):
    """The type of options like --lengths 256,1024."""
    return [int(word) for word in text.split(",")]


def furlong(*words, **settings):
    """Runs the program and returns its standard output. `settings` become --set options. Ends the script if it
    fails."""
    command = [FURLONG, *(str(word) for word in words)]
    for key, value in settings.items():
        command += ["--set", f"{key.replace('__', '.')}={value}"]
    try:
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        sys.exit(f"{FURLONG}: cannot be run ({error.strerror}); build the program, or set FURLONG to one")
    if done.returncode:
        sys.exit(f"{shlex.join(command)}\nended with status {done.returncode}:\n{done.stderr[-2000:].rstrip()}")
    return done.stdout


def processor_seconds(*words, **settings):
    """Runs the program like furlong(). Returns its output and the processor time of all its threads, which other work
    on the machine changes far less than the time on the clock."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    output = furlong(*words, **settings)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return output, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def difference(seconds):
    """Processor seconds that the second run takes more than the first. Ends the script if there are none."""
    if seconds[1] <= seconds[0]:
        sys.exit(
            f"the longer run took {seconds[1]:.3f} s of processor time, the shorter {seconds[0]:.3f} s: measure more "
            "tokens, or on a machine with less other work"
        )
    return seconds[1] - seconds[0]


def train(folder, name, threads, config, *words, **settings):
    """Trains `config`, the text of a YAML file, into folder/name. Returns the lines of metrics.jsonl, and the processor
    seconds."""
    path = folder / f"{name}.yaml"
    path.write_text(config)
    words = ("train", path, "--run-dir", folder / name, "--json", *words)
    _, seconds = processor_seconds(*words, threads=threads, **settings)
    return metrics(folder / name), seconds


def train_whole(folder, name, *words, **settings):
    """train() for scripts that report its seconds, which an interruption must not shorten: started again with --work,
    a stopped run begins again, and a finished one keeps its seconds."""
    file = folder / f"{name}.seconds"
    seconds = measured_once(file, lambda: train(folder, name, *words, "--resume", "never", **settings)[1])
    return metrics(folder / name), seconds


def metrics(run):
    """The lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def measured_once(file, measure):
    """The number in `file`; if there is none, the number that measure() returns, which is kept there."""
    if not file.exists():
        temporary = file.with_name(file.name + ".partial")
        temporary.write_text(repr(measure()))
        temporary.replace(file)
    return float(file.read_text())


def choices(*path):
    """The allowed values of a config key, from the JSON Schema of configs."""
    schema = json.loads(furlong("config", "schema"))
    for key in path:
        schema = schema["properties"][key]
    return schema["enum"]


def without_folders(words):
    """The command line without --output and --work, which change no number."""
    text = re.sub(r"(^|\n)--(output|work)(=|\n)[^\n]*", "", "\n".join(words))
    return text.strip("\n").split("\n") if text else []


@contextlib.contextmanager
def measurement(name, arguments):
    """A folder for temporary files, and the result to fill, with what is known about machine and program."""
    doctor = json.loads(furlong("doctor", "--json"))
    result = {
        "name": name,
        "command": shlex.join([f"scripts/reproduce/{name}.sh", *without_folders(sys.argv[1:])]),
        "date": datetime.date.today().isoformat(),
        "furlong": {key: doctor["furlong"][key] for key in ("version", "commit")},
        "machine": {
            "cpu": doctor["cpu"]["model"],
            "usable_cores": doctor["cpu"]["usable_cores"],
            "threads": arguments.threads or doctor["cpu"]["threads"],
            "memory_bytes": doctor["memory"]["total_bytes"],
            "kernel": doctor["system"]["kernel"],
        },
        "load_average": {"before": os.getloadavg()},
        "settings": {
            key: value
            for key, value in vars(arguments).items()
            if key not in ("output", "work", "redraw", "tiny", "threads")
        },
    }
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"furlong_{name}_") as temporary:
        folder = (arguments.work or pathlib.Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        refuse_other_options(folder, {**result["settings"], "threads": arguments.threads, "name": name})
        yield folder, result
    result["load_average"]["after"] = os.getloadavg()
    result["minutes"] = (time.monotonic() - begin) / 60


def refuse_other_options(folder, options):
    """Ends the script if the folder has runs of other options, which would be continued or evaluated as if of these."""
    file, text = folder / "options.json", compact(options)
    if file.exists() and file.read_text() != text:
        sys.exit(f"{folder} has runs of other options ({file.name}); name another folder with --work")
    file.write_text(text)


def below_from(lengths, ours, theirs):
    """The shortest length from which on each of our values is below theirs; None: not at the longest."""
    found = None
    for n, a, b in reversed(list(zip(lengths, ours, theirs))):
        if a >= b:
            break
        found = n
    return found


def spread(samples):
    """Median, least, most and all samples."""
    return {"median": statistics.median(samples), "least": min(samples), "most": max(samples), "samples": samples}


def with_spread(seconds, of):
    """Cell of a table: of(median), and least and most if there are several samples."""
    median, least, most = cell(of(seconds["median"])), *sorted(map(of, (seconds["least"], seconds["most"])))
    return f"{median} ({cell(least)} to {cell(most)})" if len(seconds["samples"]) > 1 else median


def samples_text(count):
    """What with_spread() shows."""
    return f"median (least to most) of {count} samples" if count > 1 else "one sample, so variation is unknown"


def cell(value):
    """Text of a table's cell: integers in full, other numbers with three significant digits."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e}"
    if abs(value) >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"


def markdown(table):
    columns = table["columns"]
    rows = [columns, ["---"] * len(columns), *([cell(value) for value in row] for row in table["rows"])]
    return "\n".join([textwrap.fill(table["title"], 100), "", *("| " + " | ".join(row) + " |" for row in rows)])


def provenance(result):
    machine, load = result["machine"], result["load_average"]
    before, after = (" / ".join(f"{value:.1f}" for value in load[when]) for when in ("before", "after"))
    commit = result["furlong"]["commit"].replace("-dirty", " with uncommitted changes")
    took = f"It took {cell(result['minutes'])} minutes. " if "minutes" in result else ""
    text = (
        f"`{result['command']}`, commit {commit}, {result['date']}. {machine['cpu']}, "
        f"{machine['usable_cores']} cores, {machine['threads']} thread{'s' if machine['threads'] != 1 else ''}. Load "
        f"average (1, 5 and 15 minutes) before: {before}; after: {after}. {took}All numbers: "
        f"[{result['name']}.json]({result['name']}.json)."
    )
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def publish(arguments, result, draw, tables):
    """Writes JSON and figure, and the tables into the page's measured part. draw(result, folder) draws the figures;
    tables(result) returns objects with title, columns and rows."""
    name, folder = result["name"], arguments.output
    folder.mkdir(parents=True, exist_ok=True)
    result["tables"] = tables(result)
    (folder / f"{name}.json").write_text(compact(result) + "\n")
    draw(result, folder)
    page = folder / f"{name}.md"
    text = page.read_text() if page.exists() else f"# {name}\n\n{BEGIN}\n{END}\n"
    head, rest = text.split(BEGIN)
    if f"({name}.svg)" not in head:
        head += f"![{name}]({name}.svg)\n\n"
    tail = rest.split(END)[1]
    measured = "\n\n".join([provenance(result), *(markdown(table) for table in result["tables"])])
    page.write_text(f"{head}{BEGIN}\n\n{measured}\n\n{END}{tail}")
    print(measured)


def compact(value):
    """JSON with one line for each list of numbers or row of a table."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    return re.sub(r"\[[^\[\]{}]*\]", lambda match: re.sub(r"\s*\n\s*", " ", match.group()), text)


def existing(name, arguments):
    path = arguments.output / f"{name}.json"
    if not path.exists():
        sys.exit(f"--redraw: {path} does not exist; measure first, without --redraw")
    return json.loads(path.read_text())


def reproduce(name, arguments, measure, draw, tables):
    """Measures, unless --redraw, and publishes. measure(arguments, folder, result) fills the result."""
    if arguments.redraw:
        result = existing(name, arguments)
    else:
        with measurement(name, arguments) as (folder, result):
            measure(arguments, folder, result)
    publish(arguments, result, draw, tables)
