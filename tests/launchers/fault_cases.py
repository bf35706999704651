"""The cases of the fault table (faults.py): which fault hits which ranks of a job under which launcher."""

import dataclasses
import errno
import os
import pathlib
import re
import resource
import shutil
import signal
import time
import typing

import jobs
import networks

CHECKPOINT_EVERY = 50


@dataclasses.dataclass
class Case:
    fault: str
    launcher: str
    strike: typing.Callable  # injects the fault into the Scene
    rank: typing.Optional[int] = 1  # the faulty rank; None: no rank
    with_it: tuple = ()  # other ranks with the same fault
    processes: int = 2  # world size; in a network, half of the ranks on each host
    stopped: bool = False  # the faulty rank is stopped and cannot end by itself
    status: typing.Optional[int] = None  # None: any but 0
    named_by: str = "furlong"  # who must name the faulty rank
    by_signal: bool = False  # the rank ends by a signal, which a launcher detects
    survives: bool = False
    extra: tuple = ()  # options of the launcher
    needs: typing.Callable = lambda: None  # returns why the case cannot run here
    network: bool = False
    small_disk: bool = False
    slow_disk: bool = False  # writing checkpoints can be delayed
    checkpoint_every: int = CHECKPOINT_EVERY

    @property
    def struck(self):
        return (self.rank, *self.with_it)

    @property
    def name(self):
        return f"{self.launcher}: {self.fault}"


# ---- faults ----------------------------------------------------------------------------------------------------------
def kill(scene):
    for rank in scene.case.struck:
        os.kill(scene.number(rank), signal.SIGKILL)


def stop(scene):
    for rank in scene.case.struck:
        os.kill(scene.number(rank), signal.SIGSTOP)


def limit(what, value):
    def lower(scene):
        resource.prlimit(scene.number(scene.case.rank), what, (value, value))

    return lower


def terminate_one(scene):
    os.kill(scene.number(1), signal.SIGTERM)


def signal_launcher(number):
    return lambda scene: scene.job.processes[0].send_signal(number)


def why_no_compiler():
    return None if shutil.which("cc") else "cc is not installed (Debian: gcc)"


def while_writing(rank, seconds, strike=None, error=0):
    """Delays the next shard of a checkpoint that `rank` writes. `strike` happens during the write; without it, the
    fault is `error`, with which the write fails. The returned function returns the time of the fault."""

    def held_up(scene):
        scene.slowness.with_suffix(".new").write_text(f".shard_{rank}_of_ {seconds} {error}\n")
        scene.slowness.with_suffix(".new").rename(scene.slowness)
        inside = scene.slowness.with_name("slowness.inside")
        jobs.wait_until(inside.exists, 60, lambda: f"a shard of a checkpoint; output:\n{scene.job.output()}")
        begin = time.monotonic() + (0 if strike else seconds)
        if strike:
            strike(scene)
        return begin

    return held_up


def fill_disk(scene):
    block = bytes(65536)
    with open(scene.folder / "run" / "filler", "wb", buffering=0) as filler:
        for size in (65536, 1):
            try:
                while True:
                    filler.write(block[:size])
            except OSError:
                continue


def cut_for_ever(scene):
    scene.network.cut()


def cut_for_two_seconds(scene):
    """Cuts the network for two seconds. Stops the training as a user would after some more checkpoints."""
    scene.network.cut()
    time.sleep(0.5)
    before = scene.step()
    time.sleep(1.5)
    jobs.expect(scene.step() == before, "training continued while the network was cut")
    scene.network.join()
    jobs.wait_until(
        lambda: scene.step() > before + 2 * CHECKPOINT_EVERY,
        30,
        lambda: f"training after the cut; output:\n{scene.job.output()}",
    )
    terminate_one(scene)


def why_no_mount():
    """Returns why the run directory cannot be a separate small file system, or None."""
    status = pathlib.Path("/proc/self/status").read_text()
    administrator = int(re.search(r"^CapEff:\s*(\S+)", status, re.MULTILINE).group(1), 16) >> 21 & 1
    return None if administrator else "mounting a small disk is not permitted"


LAUNCH = "furlong_launch"
FULL_FILE = limit(resource.RLIMIT_FSIZE, 1000)
HANGS = 1000  # seconds
CASES = [
    Case("rank 1 killed", LAUNCH, kill, by_signal=True),
    Case("rank 0 killed", LAUNCH, kill, rank=0, by_signal=True),
    Case("rank 1 stopped", LAUNCH, stop, stopped=True),
    Case("rank 0 stopped", LAUNCH, stop, rank=0, stopped=True),
    Case("ranks 0 and 1 of four killed", LAUNCH, kill, rank=0, with_it=(1,), processes=4, by_signal=True),
    Case("ranks 0 and 1 of four stopped", LAUNCH, stop, rank=0, with_it=(1,), processes=4, stopped=True),
    Case("rank 1 throws: no file can be opened", LAUNCH, limit(resource.RLIMIT_NOFILE, 4)),
    Case("rank 0 throws: no file can be opened", LAUNCH, limit(resource.RLIMIT_NOFILE, 4), rank=0),
    Case("disk full for rank 1", LAUNCH, FULL_FILE),
    Case("disk full for rank 0", LAUNCH, FULL_FILE, rank=0),
    Case("disk full for both", LAUNCH, fill_disk, rank=None, small_disk=True, needs=why_no_mount),
    Case("SIGTERM to rank 1", LAUNCH, terminate_one, rank=None, status=3),
    Case(
        "network cut for 2 s, then SIGTERM",
        "by_hand",
        cut_for_two_seconds,
        rank=None,
        status=3,
        survives=True,
        network=True,
        needs=networks.why_not,
    ),
    Case("network cut", "by_hand", cut_for_ever, network=True, named_by="each the other", needs=networks.why_not),
    Case(
        "network cut between two and two",
        "by_hand",
        cut_for_ever,
        network=True,
        processes=4,
        named_by="each the other",
        needs=networks.why_not,
    ),
    Case(
        "the first of two hosts dies",
        "by_hand",
        kill,
        rank=0,
        with_it=(1,),
        network=True,
        processes=4,
        needs=networks.why_not,
    ),
]
# Faults while a checkpoint is being written.
SLOW = {"slow_disk": True, "needs": why_no_compiler}
for rank in (1, 0):
    for writer in (1, 0):
        CASES.append(
            Case(
                f"rank {rank} killed while rank {writer} writes",
                LAUNCH,
                while_writing(writer, 60, kill),
                rank=rank,
                by_signal=True,
                **SLOW,
            )
        )
    CASES.append(
        Case(
            f"disk full in what rank {rank} writes",
            LAUNCH,
            while_writing(rank, 2, error=errno.ENOSPC),
            rank=rank,
            **SLOW,
        )
    )
    CASES.append(
        Case(
            f"rank 0 throws while rank {rank}'s write hangs",
            LAUNCH,
            while_writing(rank, HANGS, FULL_FILE),
            rank=0,
            checkpoint_every=1000,
            **SLOW,
        )
    )
    CASES.append(
        Case(
            f"SIGTERM to rank 1 while rank {rank} writes for 3 s",
            LAUNCH,
            while_writing(rank, 3, terminate_one),
            rank=None,
            status=3,
            **SLOW,
        )
    )
for name in ("mpirun", "srun", "torchrun", "torchrun_stand_in"):
    for rank in (1, 0):
        extra = ("--kill-on-bad-exit=1",) if name == "srun" else ()
        # Open MPI names the killed rank itself, and ends the others before they detect the fault.
        by = "mpirun" if name == "mpirun" else "furlong"
        CASES.append(Case(f"rank {rank} killed", name, kill, rank=rank, extra=extra, named_by=by, by_signal=True))
        CASES.append(Case(f"rank {rank} stopped", name, stop, rank=rank, extra=extra, stopped=True))
CASES += [
    Case("rank 1 killed", "sbatch", kill, by_signal=True),
    Case("rank 1 stopped", "sbatch", stop, stopped=True),
    Case("SIGTERM to the launcher", LAUNCH, signal_launcher(signal.SIGTERM), rank=None, status=3),
    Case("SIGUSR1 to the launcher", "mpirun", signal_launcher(signal.SIGUSR1), rank=None, status=3),
    Case("SIGTERM to the launcher", "torchrun", signal_launcher(signal.SIGTERM), rank=None, status=1),
    Case("SIGTERM to the launcher", "torchrun_stand_in", signal_launcher(signal.SIGTERM), rank=None, status=1),
]
