#!/usr/bin/env python3
"""Checks that of an array of scripts/slurm/train.sbatch only the interrupted task is requeued, that it resumes by
itself, and that each task finishes with the metrics of an undisturbed run.

    preempted_array.py FURLONG

Exit status: 0 success, 1 failure, 77 Slurm is missing (reported in one line).
"""

import re
import subprocess
import sys
import time

import jobs

STEPS = 800
RATES = (0.01, 0.02)
TASKS = range(1, len(RATES) + 1)
SBATCH = jobs.LAUNCHERS["sbatch"]
KEYS = {"trainer__max_steps": STEPS, "trainer__validate_every": 0, "checkpoint__every": 0, "log__progress": "none"}


def documented_command():
    """The line of docs/sweep.md, for two tasks of one rank each."""
    page = (jobs.SOURCE / "docs/sweep.md").read_text()
    words = re.search(r"^    (sbatch --array=.*)$", page, re.MULTILINE)[1].split()
    jobs.expect(words[1] == "--array=1-8" and words[-1] == "configs/rates.yaml", f"docs/sweep.md has {words}")
    words[1], words[-1] = f"--array=1-{len(RATES)}", "rates.yaml"
    return [*words[:-2], "--cpus-per-task", "1", "--time", "10", *words[-2:]]


class Array:
    """A submitted array."""

    def __init__(self, scratch, folder):
        scratch.start_cluster()
        self.folder, self.cluster = folder, scratch.cluster
        environment = dict(scratch.environment, SLURM_CONF=self.cluster.environment["SLURM_CONF"])
        done = subprocess.run(
            documented_command(), cwd=folder, env=environment, capture_output=True, text=True, timeout=30
        )
        jobs.expect(done.returncode == 0, f"sbatch failed: {done.stderr}")
        self.number = re.search(r"Submitted batch job (\d+)", done.stdout)[1]

    def told(self, task, name):
        shown = self.cluster.run("scontrol", "show", "job", f"{self.number}_{task}")
        return re.search(rf"\b{name}=(\S+)", shown)[1]

    def log(self, task):
        path = self.folder / f"furlong-{self.told(task, 'JobId')}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def metrics(self, task):
        return self.folder / "runs" / f"learning_rate={RATES[task - 1]}" / "metrics.jsonl"


def start_now(array, task):
    """Returns whether the task runs or is over. Starts a waiting task now, which Slurm delays for two minutes."""
    if array.told(task, "JobState") != "PENDING":
        return True
    array.cluster.run("scontrol", "update", f"JobId={array.number}_{task}", "StartTime=now", may_fail=True)
    return False


def interrupt(array, task):
    """Interrupts a task. Returns the step that it saved, when it waits in the queue."""
    jobs.wait_until(
        lambda: array.metrics(task).exists() and array.metrics(task).read_text().count("\n") > 20, 60, "training"
    )
    array.cluster.run("scancel", "--signal=USR1", f"{array.number}_{task}")
    jobs.wait_until(
        lambda: (array.told(task, "JobState"), array.told(task, "Restarts")) == ("PENDING", "1"),
        60,
        lambda: f"task {task} back in the queue; its log: {array.log(task)}",
    )
    checkpoints = (array.metrics(task).parent / "checkpoints").glob("step_????????.h5")
    saved = max((int(path.stem.removeprefix("step_")) for path in checkpoints), default=0)
    jobs.expect(saved > 0 and "stopped by a signal, saved" in array.log(task), f"nothing was saved:\n{array.log(task)}")
    return saved


def main():
    with jobs.Scratch(sys.argv[1]) as scratch:
        folder = scratch.place("array", **KEYS)
        sweep = {"base": "c.yaml", "output": "runs", "grid": {"optimizer.learning_rate": RATES}}
        (folder / "rates.yaml").write_text(jobs.json.dumps(sweep))
        undisturbed = []
        for rate in RATES:
            run = scratch.place(f"alone_{rate}", **{**KEYS, "optimizer__learning_rate": rate})
            scratch.run([str(scratch.furlong), "train", "c.yaml"], run, 120)
            undisturbed.append(jobs.metrics(run))
        array = Array(scratch, folder)
        last = TASKS[-1]  # its id is also that of the array
        step = interrupt(array, last)
        jobs.expect(20 < step < STEPS, f"it saved at step {step} of {STEPS}")
        jobs.wait_until(lambda: array.told(1, "JobState") == "COMPLETED", 120, "the end of the other task")
        time.sleep(2)  # Slurm fails a job that is restarted within the second of its requeue
        jobs.wait_until(lambda: start_now(array, last), 120, "a second start")
        jobs.wait_until(lambda: array.told(last, "JobState") == "COMPLETED", 120, lambda: f"the end: {array.log(last)}")
        jobs.expect(array.told(1, "Restarts") == "0", "the other task was requeued, too")
        jobs.expect(f"resuming at step {step}" in array.log(last), f"not resumed:\n{array.log(last)}")
        for task, expected in zip(TASKS, undisturbed):
            jobs.expect(jobs.metrics_of(array.metrics(task)) == expected, f"task {task}: other metrics than alone")
        print(f"task {last} of {last} stopped and resumed at step {step} of {STEPS}, the other one was not restarted")


if __name__ == "__main__":
    jobs.run_check("preempted_array", SBATCH, main)
