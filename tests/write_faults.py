#!/usr/bin/env python3
"""The table of failed writes: in small runs of train, prepare, convert and export, fails each system call that changes
files, and stops the program at each, and checks the files.

    write_faults.py FURLONG [--only COMMAND,...] [--locks] [--json FILE]

A preloaded library (launchers/failing_calls.c) counts the calls of a run (open and close of a writer, write, pwrite,
fsync, fdatasync, ftruncate, rename, link, mkdir, remove) and then fails each in turn: once with EIO, with ENOSPC from
there on, and with EROFS from there on, as far as the call has that error. After each failure the status is 0 or 1.
With 1, the error is one line that names the file or its folder. Each file is completely the old or the new one, no
partial file is left whose removal has not failed, and the same command without a fault gives the undisturbed result.
Further runs of prepare, convert and export get SIGTERM at each call: the status is 3 and all files are the old ones,
or, if the signal comes too late, it is 0 and all are the new ones. In two further runs of train the time of day jumps
forwards and back by a day. On a file system without locks, where flock fails, each command warns once and has the
undisturbed result. --locks runs only these, which takes seconds.
Exit status: 0 all as expected, 1 a failure, 2 invalid arguments.
"""

import argparse
import dataclasses
import errno
import hashlib
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import typing

sys.path.insert(0, str(pathlib.Path(__file__).with_name("launchers")))
import jobs  # noqa: E402

OF_PATHS = {"open", "mkdir", "remove", "rename", "link"}
OF_SPACE = {"write", "writev", "pwrite", "fsync", "fdatasync", "ftruncate", "close", *OF_PATHS} - {"remove"}
FAULTS = [  # with the calls that fail
    (errno.EIO, "once", OF_SPACE | OF_PATHS),
    (errno.ENOSPC, "onwards", OF_SPACE),
    (errno.EROFS, "onwards", OF_PATHS),
]
NO_LOCKS = [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP]
PATIENCE = 120


def files_of(folder):
    return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digests(folder):
    """Returns those of complete files; expect_nothing_left() checks that no others are left."""
    return {name: digest(path) for name, path in files_of(folder).items() if not name.endswith(".partial")}


class Place:
    """A folder with the state before a command; each try works on a copy."""

    def __init__(self, scratch):
        self.scratch = scratch
        self.template, self.work = scratch.folder / "template", scratch.folder / "work"
        self.log = scratch.folder / "calls"
        self.libraries = {}

    def shim(self, name):
        if name not in self.libraries:
            library = self.scratch.folder / f"{name}.so"
            source = pathlib.Path(__file__).with_name("launchers") / f"{name}.c"
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
            self.libraries[name] = library
        return self.libraries[name]

    def reset(self):
        shutil.rmtree(self.work, ignore_errors=True)
        subprocess.run(["cp", "-a", str(self.template), str(self.work)], check=True)  # preserves hard links

    def run(self, arguments, **variables):
        environment = {**self.scratch.environment, **{name: str(value) for name, value in variables.items()}}
        # A program with AddressSanitizer refuses libraries that are loaded before its own.
        environment["ASAN_OPTIONS"] = "verify_asan_link_order=0:" + environment.get("ASAN_OPTIONS", "")
        return subprocess.run(
            [str(self.scratch.furlong), *arguments],
            cwd=self.work,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
        )

    def run_counted(self, arguments, **variables):
        self.log.unlink(missing_ok=True)
        found = self.run(
            arguments,
            LD_PRELOAD=self.shim("failing_calls"),
            FURLONG_TEST_CALLS_FOLDER=self.work,
            FURLONG_TEST_CALLS_LOG=self.log,
            **variables,
        )
        return found, self.log.read_text().splitlines() if self.log.exists() else []


# ---- what has to hold after a fault ----------------------------------------------------------------------------------
@dataclasses.dataclass
class Command:
    name: str
    prepare: typing.Callable  # fills the template
    arguments: list
    check: typing.Callable  # (place, old, new, status): checks the files after a try; `old` and `new` are digests
    calls: set = dataclasses.field(default_factory=lambda: OF_SPACE | OF_PATHS)  # those that fail
    stopped: tuple = ()  # the states of the files after status 3; empty: no run is stopped
    refuses_existing: bool = False  # without --force


def without_timings(metrics):
    return re.sub(r'"(tokens_per_second|memory_bytes)":[^,}]*,?', "", metrics.read_text())


def check_train(place, old, new, status):
    """Checks length and magic of checkpoints; the next start checks the rest."""
    run = place.work / "run"
    for path in (run / "checkpoints").glob("*.h5"):
        stated = int.from_bytes(path.read_bytes()[24:32], "little")
        jobs.expect(path.read_bytes()[:8] == b"FURLONG1" and stated == path.stat().st_size, f"{path.name}: incomplete")
    jobs.expect((run / "config.yaml").exists(), "config.yaml is missing")
    steps = [int(path.stem[5:]) for path in (run / "checkpoints").glob("step_*.h5")]
    jobs.expect(max(steps, default=0) >= 2, f"checkpoints of steps {sorted(steps)}, expected 2 or later")
    if status == 0:
        jobs.expect((run / "checkpoints" / "step_00000004.h5").exists(), "the last checkpoint is missing")


def expect_train_is_whole(place, undisturbed):
    jobs.expect(without_timings(place.work / "run" / "metrics.jsonl") == undisturbed, "the metrics differ")


def check_file(name):
    def check(place, old, new, status):
        now = digests(place.work)
        jobs.expect(set(now) == set(old), f"files: {sorted(now)}")
        states = [new[name]] if status == 0 else [old[name], new[name]]
        jobs.expect(now[name] in states, f"{name} is neither the old nor the new file")

    return check


def check_export(place, old, new, status):
    """A folder with a config.json must equal the old or the new one, file by file."""
    now = digests(place.work / "model")
    for name, found in now.items():
        jobs.expect(found in (old.get(f"model/{name}"), new.get(f"model/{name}")), f"{name} is neither old nor new")
    if "config.json" in now:
        whole = [
            {name.removeprefix("model/"): value for name, value in state.items() if name.startswith("model/")}
            for state in (old, new)
        ]
        jobs.expect(now in (whole[1:] if status == 0 else whole), "the folder is neither the old model nor the new one")
    else:
        jobs.expect(status != 0, "config.json is missing")


def check_new(name):
    def check(place, old, new, status):
        jobs.expect(status != 0 or (place.work / name).exists(), f"{name} is missing")

    return check


def prepare_train(place, template):
    place.scratch.folder.joinpath("tokens.h5").rename(template / "tokens.h5")
    config = {**jobs.CONFIG, "data.dataset": "tokens.h5", "trainer.validate_every": 1, "checkpoint.every": 1}
    (template / "c.yaml").write_text(jobs.yaml({**config, "trainer.max_steps": 4}))
    place.scratch.run(["furlong", "train", "c.yaml", "--set", "trainer.max_steps=2"], template)
    shutil.rmtree(template / "run" / "tensorboard")
    shutil.copytree(template, place.scratch.folder / "trained", symlinks=True)


def prepare_new(place, template):
    trained = place.scratch.folder / "trained"
    for name in ("c.yaml", "tokens.h5", "run/checkpoints/step_00000002.h5"):
        shutil.copy(trained / name, template)


def prepare_prepare(place, template):
    (template / "text.txt").write_text("a new text of several words\n" * 50)
    shutil.copy(place.scratch.folder / "trained" / "tokens.h5", template / "tokens.h5")


def prepare_convert(place, template):
    checkpoints = place.scratch.folder / "trained" / "run" / "checkpoints"
    shutil.copy(checkpoints / "step_00000001.h5", template / "old.h5")
    shutil.copy(checkpoints / "step_00000002.h5", template / "source.h5")
    place.scratch.run(["furlong", "convert", "old.h5", "converted.h5"], template)


def prepare_export(place, template):
    prepare_convert(place, template)
    place.scratch.run(["furlong", "export", "old.h5", "model"], template)
    for name in ("merges.txt", "1_Pooling/config.json"):
        (template / "model" / name).parent.mkdir(exist_ok=True)
        (template / "model" / name).write_text("of the model that was there\n")


def creating(command, prepare, arguments, output):
    """A command without --force, whose output does not exist."""
    return Command(
        f"{command}_new",
        prepare,
        [command, *arguments],
        check_new(output),
        stopped=("old",),
        refuses_existing=True,
    )


COMMANDS = [
    Command("train", prepare_train, ["train", "c.yaml"], check_train),
    Command(
        "prepare",
        prepare_prepare,
        ["prepare", "text", "text.txt", "--output", "tokens.h5", "--force"],
        check_file("tokens.h5"),
        stopped=("old",),
    ),
    Command(
        "convert",
        prepare_convert,
        ["convert", "source.h5", "converted.h5", "--attention", "favor_positive", "--force"],
        check_file("converted.h5"),
        stopped=("old",),
    ),
    Command("export", prepare_export, ["export", "source.h5", "model", "--force"], check_export, stopped=("old",)),
    creating("prepare", prepare_prepare, ["text", "text.txt", "--output", "new.h5"], "new.h5"),
    creating("convert", prepare_new, ["step_00000002.h5", "new.h5", "--attention", "favor_positive"], "new.h5"),
    # Into folders that do not exist.
    Command(
        "train_new",
        prepare_new,
        ["train", "c.yaml", "--run-dir", "new/run"],
        check_new("new/run/checkpoints/step_00000004.h5"),
        {"mkdir"},
    ),
    creating("export", prepare_new, ["step_00000002.h5", "new/model"], "new/model/config.json"),
]


def names_of(path):
    """Returns the names by which an error may refer to a file: its own, its final name, or its folder."""
    name = pathlib.Path(path).name
    partial = re.fullmatch(r"\.(.*)\.[0-9a-f]{12}\.partial", name)
    return {name, partial.group(1) if partial else name, str(pathlib.Path(path).parent.name)}


def remove_as_told(found, failed):
    """A file of the earlier model that cannot be removed is named in a warning, which asks the user to remove it."""
    warnings = [line for line in found.stderr.splitlines() if line.startswith("warning: ")]
    for path in (pathlib.Path(line.split(" ")[2]) for line in failed if line.split(" ")[1] == "remove"):
        if path.is_file() and not path.name.endswith(".partial"):
            jobs.expect(any(path.name in line for line in warnings), f"no warning of {path.name}:\n{found.stderr}")
            path.unlink()


def expect_one_error(found, failed):
    errors = [line for line in found.stderr.splitlines() if line.startswith("error: ")]
    jobs.expect(found.returncode == 1, f"status {found.returncode}:\n{found.stderr}")
    jobs.expect(len(errors) == 1, f"expected one line of error:\n{found.stderr}")
    names = set().union(*(names_of(line.split(" ")[2]) for line in failed))
    jobs.expect(any(name in errors[0] for name in names), f"expected one of {sorted(names)} in {errors[0]}")


def expect_nothing_left(place, failed=()):
    """Expects no partial file, except those whose removal is among the failed calls."""
    kept = {line.split(" ")[2] for line in failed if line.split(" ")[1] == "remove"}
    left = [name for name in files_of(place.work) if name.endswith(".partial") or "/.shared" in name]
    left = [name for name in left if str(place.work / name) not in kept]
    jobs.expect(not left, f"partial files left: {left}")


def expect_one_warning(place, found):
    """Expects one warning, that this file system cannot lock files, which names a folder."""
    warnings = [line for line in found.stderr.splitlines() if line.startswith("warning: ")]
    jobs.expect(len(warnings) == 1, f"expected one warning:\n{found.stderr}")
    folder, _, rest = warnings[0].removeprefix("warning: ").partition(": ")
    folders = {str(path.parent) for path in files_of(place.work).values()}
    jobs.expect(folder in folders and "cannot lock files" in rest, f"expected one of {folders} in {warnings[0]}")


class Tries:
    def __init__(self, place, command):
        self.place, self.command = place, command
        shutil.rmtree(place.template, ignore_errors=True)
        place.template.mkdir()
        command.prepare(place, place.template)
        self.old = digests(place.template)
        place.reset()
        found, self.calls = place.run_counted(command.arguments)
        jobs.expect(found.returncode == 0, f"{command.name}: the undisturbed run:\n{found.stderr}")
        jobs.expect(len(self.calls) >= 10, f"{command.name}: expected at least 10 calls, found {len(self.calls)}")
        self.new = digests(place.work)
        if command.name == "train":
            self.metrics = without_timings(place.work / "run" / "metrics.jsonl")

    def expect_same(self, what="the restart", **variables):
        """Expects the undisturbed result of the same command without a fault. Returns its output."""
        found, _ = self.place.run_counted(self.command.arguments, **variables)
        jobs.expect(found.returncode == 0, f"{what} exited with status {found.returncode}:\n{found.stderr}")
        if self.command.name == "train":
            expect_train_is_whole(self.place, self.metrics)
        self.command.check(self.place, self.old, self.new, 0)
        expect_nothing_left(self.place)
        return found

    def expect_repeatable(self, status, failed=()):
        """Expects the undisturbed result of a second try, except without --force if a complete result, or a file whose
        removal has failed, is in its way."""
        kept = any(line.split(" ")[1] == "remove" for line in failed)
        if not (self.command.refuses_existing and (kept or status == 0)):
            self.expect_same()

    def attempt(self, number, error, when, which):
        self.place.reset()
        found, calls = self.place.run_counted(
            self.command.arguments, FURLONG_TEST_CALLS_FAIL=f"{number} {error} {when} ,{','.join(sorted(which))},"
        )
        failed = [line for line in calls if line.endswith(" fails")]
        if not failed:
            return "not reached"  # with threads the number of calls varies slightly
        if found.returncode != 0:
            expect_one_error(found, failed)
        expect_nothing_left(self.place, failed)
        if found.returncode == 0:
            remove_as_told(found, failed)
        self.command.check(self.place, self.old, self.new, found.returncode)
        self.expect_repeatable(found.returncode, failed)
        return f"status {found.returncode}"

    def attempt_stopped(self, number):
        self.place.reset()
        found, calls = self.place.run_counted(
            self.command.arguments, FURLONG_TEST_CALLS_FAIL=f"{number} {int(signal.SIGTERM)} signal"
        )
        if not any(line.endswith(" is signaled") for line in calls):
            return "not reached"
        states = {"old": self.old, "new": self.new}
        wanted = {0: ("new",), 3: self.command.stopped}.get(found.returncode, ())
        jobs.expect(wanted, f"status {found.returncode}:\n{found.stderr}")
        jobs.expect(found.returncode == 0 or "stopped by" in found.stderr, f"the message:\n{found.stderr}")
        now = digests(self.place.work)
        jobs.expect(any(now == states[state] for state in wanted), f"files of another state than {wanted}")
        expect_nothing_left(self.place)
        self.expect_repeatable(found.returncode)
        return f"stopped, status {found.returncode}"

    def attempt_without_locks(self, error):
        self.place.reset()
        found = self.expect_same("the run without locks", FURLONG_TEST_CALLS_LOCK=error)
        expect_one_warning(self.place, found)
        return "without locks"

    def attempt_under_jumping_clock(self, anew):
        self.place.reset()
        if anew:
            shutil.rmtree(self.place.work / "run")
        asked = self.place.scratch.folder / "asked"
        asked.unlink(missing_ok=True)
        library = self.place.shim("jumping_clock")
        found = self.place.run(self.command.arguments, LD_PRELOAD=library, FURLONG_TEST_CLOCK_LOG=asked)
        jobs.expect(found.returncode == 0, f"status {found.returncode}:\n{found.stderr}")
        jobs.expect(asked.exists(), "the clock was never read")
        expect_train_is_whole(self.place, self.metrics)
        lines = [json.loads(line) for line in (self.place.work / "run" / "metrics.jsonl").read_text().splitlines()]
        rates = [line["tokens_per_second"] for line in lines if line["split"] == "train"]
        jobs.expect(all(rate is None or 0 < rate < 1e9 for rate in rates), f"tokens per second: {rates}")
        return "clock jumps"

    def fail_each_call(self, outcomes):
        for number, call in enumerate(self.calls, 1):
            for error, when, which in FAULTS:
                if call.split(" ")[1] in which & self.command.calls:
                    what = f"{call}: {errno.errorcode[error]} {when}"
                    outcomes.add(what, self.attempt, number, error, when, which)
            if self.command.stopped:
                outcomes.add(f"{call}: SIGTERM", self.attempt_stopped, number)
        if outcomes.counts.get("not reached", 0) > sum(outcomes.counts.values()) / 10:
            outcomes.fail(f"{outcomes.counts['not reached']} faults were not reached")

    def all(self, locks_only):
        outcomes = Outcomes(self.command.name)
        if not locks_only:
            self.fail_each_call(outcomes)
            if self.command.name == "train":
                outcomes.add("clock, from the beginning", self.attempt_under_jumping_clock, True)
                outcomes.add("clock, resumed", self.attempt_under_jumping_clock, False)
        for error in NO_LOCKS:
            outcomes.add(f"flock: {errno.errorcode[error]}", self.attempt_without_locks, error)
        return outcomes


class Outcomes:
    """The outcomes of a command's attempts, counted, and the failures."""

    def __init__(self, command):
        self.command, self.counts, self.failures = command, {}, []

    def add(self, what, attempt, *arguments):
        try:
            outcome = attempt(*arguments)
        except (RuntimeError, subprocess.SubprocessError) as failure:
            outcome = "FAILED"
            self.fail(f"{what}: {failure}")
        self.counts[outcome] = self.counts.get(outcome, 0) + 1

    def fail(self, text):
        self.failures.append(f"{self.command}: {text}")
        print(f"write_faults: {self.failures[-1]}", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("furlong")
    parser.add_argument("--only", metavar="COMMAND,...", default=",".join(command.name for command in COMMANDS))
    parser.add_argument("--locks", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    only = arguments.only.split(",")
    if unknown := set(only) - {command.name for command in COMMANDS}:
        parser.error(f"--only: unknown command {', '.join(sorted(unknown))}")
    rows, failures = [], []
    with jobs.Scratch(arguments.furlong) as scratch:
        place = Place(scratch)
        for command in COMMANDS:
            if command.name not in only and command.name != "train":
                continue
            tries = Tries(place, command)  # the others start from the files of train
            if command.name not in only:
                continue
            outcomes = tries.all(arguments.locks)
            failures += outcomes.failures
            rows.append({"command": command.name, "calls": len(tries.calls), "outcomes": outcomes.counts})
            listed = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.counts.items()))
            print(f"{command.name:<10} {len(tries.calls):4} calls: {listed}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"commands": rows, "failures": failures}, indent=2) + "\n")
    print(f"{sum(sum(row['outcomes'].values()) for row in rows)} runs, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
