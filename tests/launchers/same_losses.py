#!/usr/bin/env python3
"""Checks that a launcher starts a training in several ranks from its line in README.md, with the same losses as the
other launchers.

    same_losses.py FURLONG LAUNCHER [four]
        four  four ranks instead of two: under Slurm two on each of two nodes, with two ranks per sequence

Exit status: 0 equal, 1 different, 77 the launcher is missing (reported in one line).
"""

import re
import sys

import jobs

SKIPPED = 77


def expect_job(launcher, job, status, processes):
    """Expects status 0, ranks that recognize this launcher, and no process left."""
    output = job.output()
    jobs.expect(status == 0, f"status {status}:\n{output}")
    found = sorted(re.findall(r"rank (\d) of (\d) on \S+: .*threads?, (.+)$", output, re.MULTILINE))
    expected = [(str(rank), str(processes), launcher.known_as) for rank in range(processes)]
    jobs.expect(found == expected, f"expected {processes} ranks under {launcher.known_as}:\n{output}")
    # Shared cores are due to this machine.
    complaints = [
        line
        for line in output.splitlines()
        if re.search(r"\b(error|warning): ", line) and "slow each other down" not in line
    ]
    jobs.expect(not complaints, f"unexpected warnings:\n{output}")


def main():
    furlong, launcher = sys.argv[1], jobs.LAUNCHERS[sys.argv[2]]
    processes = 4 if sys.argv[3:] == ["four"] else 2
    for line in jobs.documented_lines(launcher):
        if "RANK=" not in line:
            jobs.expect(
                line in jobs.documented_lines(launcher, "docs/cluster.md"),
                f"{line}: in README.md but not in docs/cluster.md",
            )
    reason = jobs.why_skipped(launcher)
    if reason:
        print(f"skipped: {reason}")
        return SKIPPED
    with jobs.Scratch(furlong) as scratch:
        rows = {"parallel__context_parallel_size": 2} if processes == 4 else {}
        alone, launched, folder = (
            scratch.place(name, **(rows if name != "alone" else {})) for name in ("alone", "launched", "job")
        )
        scratch.run(["furlong", "train", "c.yaml"], alone)
        for one, place in ((jobs.LAUNCHERS["furlong_launch"], launched), (launcher, folder)):
            job = scratch.start(one, place, processes=processes)
            expect_job(one, job, job.wait(120), processes)
        left = [" ".join(process.command) for process in jobs.processes_of(scratch.marker)]
        jobs.expect(not left, f"still running: {left}")
        found, expected = jobs.metrics(folder), jobs.metrics(alone)
        jobs.expect(len(found) == 12, f"expected 10 training and 2 validation lines, found {len(found)}")
        jobs.expect(found == jobs.metrics(launched), f"metrics differ from those under furlong launch: {found}")
        worst = jobs.expect_near(found, expected, 1e-5, "one process")
        print(f"{launcher.name}: metrics equal those of furlong launch; losses within {worst:.1g} of one rank's")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as failure:
        print(f"same_losses: {failure}", file=sys.stderr)
        sys.exit(1)
