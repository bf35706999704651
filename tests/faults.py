#!/usr/bin/env python3
"""The fault table: injects faults into trainings with two or four ranks under each launcher, and checks how and when
the other ranks end.

    faults.py FURLONG [--only REGEX] [--markdown FILE] [--json FILE]

parallel.timeout has its default, 15 s. For each case: within 15 s all ranks that can run and the launcher have ended,
with a status other than 0 (3 after SIGTERM); one line of the ranks names the faulty rank and its host; no process is
left; and the newest checkpoint is complete: the same job resumes from it. Cases whose requirements this machine lacks
are skipped, counted and listed.
Exit status: 0 all as expected, 1 a failure, 2 invalid arguments.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).with_name("launchers")))
import jobs  # noqa: E402
import networks  # noqa: E402
from fault_cases import CASES, LAUNCH  # noqa: E402

TIMEOUT = 15.0  # parallel.timeout
PATIENCE = 90  # seconds for the launcher: train.sbatch waits 60 s before it kills


class Scene:
    """The running job of a case."""

    def __init__(self, scratch, case, folder, network):
        self.scratch, self.case, self.folder, self.network = scratch, case, folder, network
        launcher = jobs.LAUNCHERS[case.launcher]
        change = self.on_its_host if network else (lambda rank, command: command)
        self.slowness = folder / "slowness"  # see slow_fsync.c
        variables = (
            {"LD_PRELOAD": str(slow_fsync(scratch)), "FURLONG_TEST_FSYNC": str(self.slowness)} if case.slow_disk else {}
        )
        self.job = scratch.start(
            launcher,
            folder,
            extra=case.extra,
            before=keep_going_when_files_cannot_grow,
            change=change,
            processes=case.processes,
            variables=variables,
        )
        jobs.wait_until(
            self.checkpoint(case.checkpoint_every).exists,
            60,
            lambda: f"the first checkpoint; output:\n{self.job.output()}",
        )
        self.ranks = scratch.ranks()
        jobs.expect(
            sorted(self.ranks) == list(range(case.processes)),
            f"expected {case.processes} ranks, found {sorted(self.ranks)}",
        )

    def checkpoint(self, step):
        return self.folder / "run" / "checkpoints" / f"step_{step:08d}.h5"

    def on_its_host(self, rank, command):
        """Returns the documented manual command, adapted to two hosts."""
        of_host = self.case.processes // 2
        replaced = [re.sub("127.0.0.1", self.network.addresses[0], word) for word in command]
        replaced[1:1] = [f"LOCAL_WORLD_SIZE={of_host}"]
        replaced = [re.sub(r"^LOCAL_RANK=\d+", f"LOCAL_RANK={rank % of_host}", word) for word in replaced]
        return self.network.command(rank // of_host, replaced)

    def number(self, rank):
        return self.ranks[rank].number

    def host(self, rank):
        if self.network:
            return self.network.hosts[rank // (self.case.processes // 2)]
        return self.ranks[rank].environment.get("SLURMD_NODENAME", platform.node())

    def step(self):
        lines = (self.folder / "run" / "metrics.jsonl").read_text().splitlines()
        return max(int(found.group(1)) for found in map(re.compile(r'\{"step":(\d+),.*\}$').match, lines) if found)


def keep_going_when_files_cannot_grow():
    """Makes writes beyond the file size limit fail as on a full disk instead of killing the process."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def slow_fsync(scratch):
    """Builds and returns the library that simulates a slow disk."""
    library = scratch.folder / "slow_fsync.so"
    if not library.exists():
        source = pathlib.Path(__file__).with_name("launchers") / "slow_fsync.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    return library


# ---- what has to hold ------------------------------------------------------------------------------------------------
def is_living(number):
    try:
        return pathlib.Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def watch(scene, begin):
    """Returns when the last rank that can run and the launcher have ended, in seconds since the fault, and the
    launcher's status."""
    case = scene.case
    waiting = [scene.number(rank) for rank in range(case.processes) if not (case.stopped and rank in case.struck)]
    jobs.wait_until(
        lambda: not any(map(is_living, waiting)),
        PATIENCE,
        lambda: f"the end of the ranks; output:\n{scene.job.output()}",
    )
    ended = time.monotonic() - begin
    status = scene.job.wait(PATIENCE)
    return ended, time.monotonic() - begin, status


def expect_names(scene, lines):
    """Expects one message of the ranks, and one of furlong launch if a signal has ended a rank."""
    case, output = scene.case, scene.job.output()
    if case.rank is None and not case.small_disk:
        jobs.expect(not lines, f"expected no error:\n{output}")
        return
    own = [line for line in lines if re.match(r"error: rank \d+ \(host ", line)]
    lines = [line for line in lines if line not in own]
    if case.launcher == LAUNCH and case.rank is not None:
        jobs.expect(
            len(own) == 1 if case.stopped or case.by_signal else len(own) < 2,
            f"expected one line of the launcher:\n{output}",
        )
        places = tuple(f"error: rank {rank} (host {scene.host(rank)}, process " for rank in case.struck)
        for line in own:
            jobs.expect(line.startswith(places), f"expected {' or '.join(places)} in {line}")
    if case.named_by == "mpirun":
        place = f"process rank {case.rank} with PID "
        jobs.expect(
            place in output and f" on node {scene.host(case.rank)} exited on signal 9" in output,
            f"expected Open MPI to name the rank:\n{output}",
        )
        return
    # When the hosts are cut off from each other, the first one names any rank of the second.
    others = tuple(range(case.processes // 2, case.processes))
    blamed = [others, (0,)] if case.named_by == "each the other" else [(case.rank,)]
    jobs.expect(
        len(lines) == len(blamed), f"expected {len(blamed)} message(s) of the ranks, found {len(lines)}:\n{output}"
    )
    for ranks, line in zip(blamed, lines):
        place = "|".join(
            r"rank \d+ on host \S+" if rank is None else re.escape(f"rank {rank} on host {scene.host(rank)}")
            for rank in ranks
        )
        jobs.expect(re.search(rf"error: ({place})( failed)?: ", line), f"expected {place} in {line}")


def expect_goes_on(scene):
    """Expects that the same job resumes and runs 20 steps beyond the last logged one."""
    filler = scene.folder / "run" / "filler"
    filler.unlink(missing_ok=True)
    last = scene.step() + 20
    newest = max(
        int(path.stem[5:])
        for path in (scene.folder / "run" / "checkpoints").glob("step_*.h5")
        if ".shard_" not in path.name
    )
    scene.slowness.unlink(missing_ok=True)
    scene.scratch.configure(scene.folder, **keys(scene.case, last))
    job = scene.scratch.start(jobs.LAUNCHERS[LAUNCH], scene.folder)
    status = job.wait(60)
    output = job.output()
    jobs.expect(status == 0, f"the restart exited with status {status}:\n{output}")
    found = re.findall(r"^resuming at step (\d+)", output, re.MULTILINE)
    jobs.expect(found == [str(newest)], f"expected to resume at step {newest}:\n{output}")
    steps = [line["step"] for line in jobs.metrics(scene.folder) if line["split"] == "train"]
    jobs.expect(steps == list(range(1, last + 1)), f"expected steps 1 to {last} in metrics.jsonl")


def keys(case, steps):
    return {
        "trainer__max_steps": steps,
        "trainer__validate_every": 0,
        "checkpoint__every": case.checkpoint_every,
        "log__progress": "none",
    }


def try_case(scratch, case, network):
    folder = scratch.place(re.sub(r"\W+", "_", case.name), **keys(case, 10_000_000))
    run = folder / "run"
    if case.small_disk:
        run.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "furlong", str(run)], check=True)
    try:
        scene = Scene(scratch, case, folder, network)
        begin = time.monotonic()
        begin = case.strike(scene) or begin
        if case.survives:
            begin = time.monotonic()
        ended, over, status = watch(scene, begin)
        left = [" ".join(process.command) for process in jobs.processes_of(scratch.marker)]
        jobs.expect(not left, f"still running: {left}")
        jobs.expect(
            status == case.status if case.status is not None else status != 0, f"status {status}:\n{scene.job.output()}"
        )
        jobs.expect(ended <= TIMEOUT, f"the processes ended after {ended:.1f} s, and {TIMEOUT:g} s are allowed")
        if not case.stopped:
            jobs.expect(over <= TIMEOUT, f"the launcher ended after {over:.1f} s, and {TIMEOUT:g} s are allowed")
        lines = scene.job.errors()
        expect_names(scene, lines)
        expect_goes_on(scene)
        return {
            "fault": case.fault,
            "launcher": case.launcher,
            "processes_ended_seconds": round(ended, 1),
            "launcher_ended_seconds": round(over, 1),
            "status": status,
            "messages": lines,
        }
    finally:
        jobs.end_all(scratch.marker)
        if case.small_disk:
            subprocess.run(["umount", "--lazy", str(run)], check=True)


def markdown(rows):
    lines = [
        "| launcher | fault | processes ended after | launcher ended after | status |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        seconds = f"{row['processes_ended_seconds']:.1f} s | {row['launcher_ended_seconds']:.1f} s"
        lines.append(f"| {row['launcher'].replace('_', ' ')} | {row['fault']} | {seconds} | {row['status']} |")
    return "\n".join(lines) + "\n"


def run_all(scratch, chosen):
    rows, skipped, failed = [], [], []
    for case in chosen:
        reason = jobs.why_skipped(jobs.LAUNCHERS[case.launcher]) or case.needs()
        if reason:
            skipped.append(f"{case.name}: {reason}")
            continue
        try:
            if case.network:
                with networks.CutNetwork() as network:
                    rows.append(try_case(scratch, case, network))
            else:
                rows.append(try_case(scratch, case, None))
            print(markdown(rows).splitlines()[-1], flush=True)
        except (RuntimeError, subprocess.SubprocessError) as failure:
            failed.append(case.name)
            print(f"faults: {case.name}: {failure}", file=sys.stderr, flush=True)
    return rows, skipped, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("furlong")
    parser.add_argument("--only", metavar="REGEX", help="cases whose `launcher: fault` matches")
    parser.add_argument("--markdown", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    chosen = [case for case in CASES if not arguments.only or re.search(arguments.only, case.name)]
    if not chosen:
        parser.error(f"--only {arguments.only}: no case matches; the cases: {'; '.join(case.name for case in CASES)}")
    with jobs.Scratch(arguments.furlong) as scratch:
        rows, skipped, failed = run_all(scratch, chosen)
        version = scratch.run(["furlong", "--version"]).strip()
    if arguments.markdown:
        arguments.markdown.write_text(markdown(rows))
    if arguments.json:
        found = {
            "furlong": version,
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "load": os.getloadavg()[0],
            "cases": rows,
            "skipped": skipped,
            "failed": failed,
        }
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")
    print(f"{len(rows)} as expected, {len(failed)} failed, {len(skipped)} skipped" + (":" if skipped else ""))
    for reason in skipped:
        print(f"  {reason}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
