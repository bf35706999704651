#!/usr/bin/env python3
"""That a launcher starts a training in two processes from its line in README.md, and that the training is the one that the others start.

    same_losses.py FURLONG LAUNCHER

Exit status: 0 the same, 1 not, 77 the launcher is not there (said in one line).
"""
import re
import sys

import jobs

SKIPPED = 77


def expect_job(launcher, job, status):
    """It ended well, in two processes that were found to be this launcher's, and left nothing running."""
    output = job.output()
    jobs.expect(status == 0, f"status {status}:\n{output}")
    found = sorted(re.findall(r"rank (\d) of (\d) on \S+: .*, (\S+)$", output, re.MULTILINE))
    jobs.expect(found == [(str(rank), "2", launcher.known_as) for rank in range(2)], f"two ranks under {launcher.known_as} expected:\n{output}")
    # That they share cores is this machine's fault.
    complaints = [line for line in output.splitlines() if re.search(r"\b(error|warning): ", line) and "will wait for one another" not in line]
    jobs.expect(not complaints, f"complaints:\n{output}")


def main():
    furlong, launcher = sys.argv[1], jobs.LAUNCHERS[sys.argv[2]]
    for line in jobs.documented_lines(launcher):
        if "RANK=" not in line:
            jobs.expect(line in jobs.documented_lines(launcher, "docs/cluster.md"), f"{line}: README.md has it, docs/cluster.md has not")
    reason = jobs.why_skipped(launcher)
    if reason:
        print(f"skipped: {reason}")
        return SKIPPED
    with jobs.Scratch(furlong) as scratch:
        alone, launched, folder = (scratch.place(name) for name in ("alone", "launched", "job"))
        scratch.run(["furlong", "train", "c.yaml"], alone)
        for one, place in ((jobs.LAUNCHERS["furlong_launch"], launched), (launcher, folder)):
            job = scratch.start(one, place)
            expect_job(one, job, job.wait(120))
        left = [" ".join(process.command) for process in jobs.processes_of(scratch.marker)]
        jobs.expect(not left, f"still running: {left}")
        found, expected = jobs.metrics(folder), jobs.metrics(alone)
        jobs.expect(len(found) == 12, f"10 training and 2 validation lines expected, found {len(found)}")
        jobs.expect(found == jobs.metrics(launched), f"other metrics than under furlong launch: {found}")
        worst = jobs.expect_near(found, expected, 1e-5, "one process")
        print(f"{launcher.name}: the metrics of furlong launch; losses within {worst:.1g} of one process's")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as failure:
        print(f"same_losses: {failure}", file=sys.stderr)
        sys.exit(1)
