#!/usr/bin/env python3
"""That a job of scripts/slurm/train.sbatch that is disturbed saves, is queued again, resumes by itself when it is
started again, and ends with the metrics of a run that nobody disturbed.

    preempted.py FURLONG usr1|term
        usr1  the processes get SIGUSR1, as when the time is running out, and the script queues the job again
        term  Slurm queues it again, as for a job with a higher priority: processes and script get SIGTERM

Exit status: 0 it does, 1 it does not, 77 there is no Slurm (said in one line).
"""

import sys
import time

import jobs

STEPS = 800
LAUNCH, SBATCH = jobs.LAUNCHERS["furlong_launch"], jobs.LAUNCHERS["sbatch"]


DISTURB = {"usr1": ("scancel", "--signal=USR1"), "term": ("scontrol", "requeue")}


def disturb(scratch, folder, how):
    """Starts the job, disturbs it and waits for its end; the step that it resumed from."""
    job = scratch.start(SBATCH, folder)
    metrics = folder / "run" / "metrics.jsonl"
    jobs.wait_until(
        lambda: metrics.exists() and metrics.read_text().count("\n") > 20, 30, f"training; the log: {job.output()}"
    )
    scratch.cluster.run(*DISTURB[how], job.number)
    jobs.wait_until(
        lambda: (job.told("JobState"), job.told("Restarts")) == ("PENDING", "1"),
        60,
        f"back in the queue; the log: {job.output()}",
    )
    jobs.expect("stopped by a signal, saved at step" in job.output(), f"nothing was saved:\n{job.output()}")
    # Slurm lets it wait for two minutes, by when its hosts are cleared; they are sooner.
    jobs.wait_until(
        lambda: not jobs.processes_of(scratch.marker) and not scratch.cluster.steps(), 120, "the end of the first start"
    )
    time.sleep(
        2
    )  # credentials count in seconds: Slurm fails a job that is started in the second in which it was taken back
    jobs.wait_until(lambda: start_now(scratch, job), 60, f"a second start; it is {job.told('JobState')}")
    status = job.wait(60)
    jobs.expect(status == 0, f"status {status}:\n{job.output()}")
    resumed = [line for line in job.output().splitlines() if line.startswith("resuming at step ")]
    jobs.expect(len(resumed) == 1, f"one line was expected that tells of resuming:\n{job.output()}")
    return int(resumed[0].split()[3].rstrip(":"))


def start_now(scratch, job):
    """Whether it runs; where it waits, its time has come. Slurm refuses that as long as the hosts are being cleared."""
    if job.told("JobState") != "PENDING":
        return True
    scratch.cluster.run("scontrol", "update", f"JobId={job.number}", "StartTime=now", may_fail=True)
    return False


def main():
    reason = jobs.why_skipped(SBATCH)
    if reason:
        print(f"skipped: {reason}")
        return 77
    with jobs.Scratch(sys.argv[1]) as scratch:
        keys = {
            "trainer__max_steps": STEPS,
            "trainer__validate_every": 0,
            "checkpoint__every": 0,
            "log__progress": "none",
        }
        undisturbed, disturbed = scratch.place("undisturbed", **keys), scratch.place("disturbed", **keys)
        job = scratch.start(LAUNCH, undisturbed)
        jobs.expect(job.wait(120) == 0, job.output())
        step = disturb(scratch, disturbed, sys.argv[2])
        jobs.expect(20 < step < STEPS, f"it resumed at step {step} of {STEPS}")
        # The last step before a stop is validated.
        found = [line for line in jobs.metrics(disturbed) if line["split"] == "train" or line["step"] != step]
        jobs.expect(found == jobs.metrics(undisturbed), "other metrics than without the interruption")
        print(f"stopped and resumed at step {step} of {STEPS}: the metrics of the undisturbed run, bit for bit")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as failure:
        print(f"preempted: {failure}", file=sys.stderr)
        sys.exit(1)
