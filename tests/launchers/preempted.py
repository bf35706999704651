#!/usr/bin/env python3
"""Checks that an interrupted job of scripts/slurm/train.sbatch saves, is requeued, resumes by itself, and finishes with
the metrics of an undisturbed run.

    preempted.py FURLONG usr1|term
        usr1  the ranks get SIGUSR1, as before the time limit, and the script requeues the job
        term  Slurm requeues the job, as on preemption: ranks and script get SIGTERM

Exit status: 0 success, 1 failure, 77 Slurm is missing (reported in one line).
"""

import sys
import time

import jobs

STEPS = 800
LAUNCH, SBATCH = jobs.LAUNCHERS["furlong_launch"], jobs.LAUNCHERS["sbatch"]


DISTURB = {"usr1": ("scancel", "--signal=USR1"), "term": ("scontrol", "requeue")}


def disturb(scratch, folder, how):
    """Starts the job, interrupts it and waits for its end. Returns the step that it resumed from."""
    job = scratch.start(SBATCH, folder)
    metrics = folder / "run" / "metrics.jsonl"
    jobs.wait_until(
        lambda: metrics.exists() and metrics.read_text().count("\n") > 20,
        30,
        lambda: f"training; the log: {job.output()}",
    )
    scratch.cluster.run(*DISTURB[how], job.number)
    jobs.wait_until(
        lambda: (job.told("JobState"), job.told("Restarts")) == ("PENDING", "1"),
        60,
        lambda: f"back in the queue; the log: {job.output()}",
    )
    jobs.expect("stopped by a signal, saved at step" in job.output(), f"nothing was saved:\n{job.output()}")
    # Slurm delays the job for two minutes, until its hosts are cleared; this is sooner.
    jobs.wait_until(
        lambda: not jobs.processes_of(scratch.marker) and not scratch.cluster.steps(), 120, "the end of the first start"
    )
    time.sleep(
        2
    )  # credentials have a resolution of one second: Slurm fails a job restarted within the second of its requeue
    jobs.wait_until(lambda: start_now(scratch, job), 60, lambda: f"a second start; it is {job.told('JobState')}")
    status = job.wait(200)
    jobs.expect(status == 0, f"status {status}:\n{job.output()}")
    resumed = [line for line in job.output().splitlines() if line.startswith("resuming at step ")]
    jobs.expect(len(resumed) == 1, f"expected one line about resuming:\n{job.output()}")
    return int(resumed[0].split()[3].rstrip(":"))


def start_now(scratch, job):
    """Returns whether the job runs. Starts a waiting job now; Slurm refuses this while the hosts are being cleared."""
    if job.told("JobState") != "PENDING":
        return True
    scratch.cluster.run("scontrol", "update", f"JobId={job.number}", "StartTime=now", may_fail=True)
    return False


def main():
    with jobs.Scratch(sys.argv[1]) as scratch:
        keys = {
            "trainer__max_steps": STEPS,
            "trainer__validate_every": 0,
            "checkpoint__every": 0,
            "log__progress": "none",
        }
        undisturbed, disturbed = scratch.place("undisturbed", **keys), scratch.place("disturbed", **keys)
        job = scratch.start(LAUNCH, undisturbed)
        jobs.expect(job.wait(200) == 0, job.output())
        step = disturb(scratch, disturbed, sys.argv[2])
        jobs.expect(20 < step < STEPS, f"it resumed at step {step} of {STEPS}")
        jobs.expect(jobs.metrics(disturbed) == jobs.metrics(undisturbed), "other metrics than without the interruption")
        print(f"stopped and resumed at step {step} of {STEPS}: the metrics of the undisturbed run, bit for bit")


if __name__ == "__main__":
    jobs.run_check("preempted", SBATCH, main)
