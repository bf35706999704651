"""Small trainings in several ranks, started by each launcher from the lines of README.md, and their leftovers."""

import dataclasses
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

import slurm_cluster

SOURCE = pathlib.Path(__file__).resolve().parents[2]
STAND_IN = pathlib.Path(__file__).with_name("torchrun_stand_in.py")
MARKER = "FURLONG_TEST_MARKER"  # environment variable that all processes of a test inherit; identifies them

CONFIG = {
    "run_directory": "run",
    "data.sequence_length": 64,
    "data.batch_size": 4,
    "model.n_layers": 2,
    "model.d_model": 32,
    "model.n_heads": 2,
    "model.dropout": 0.1,
    "model.attention.mechanism": "linear",
    "optimizer.learning_rate": 0.01,
    "schedule.name": "constant",
    "schedule.warmup_steps": 2,
    "trainer.max_steps": 10,
    "trainer.validate_every": 5,
    "trainer.validation_batches": 2,
    "checkpoint.every": 5,
    "log.every": 1,
    "threads": 1,
    "device": "cpu",
}


class Failure(RuntimeError):
    """An unmet expectation."""


def expect(condition, text):
    if not condition:
        raise Failure(text)


def yaml(keys):
    """Returns keys with dots as nested mappings in JSON, which is valid YAML."""
    root = {}
    for name, value in keys.items():
        *groups, last = name.split(".")
        place = root
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    return json.dumps(root, indent=2) + "\n"


# ---- processes -------------------------------------------------------------------------------------------------------
@dataclasses.dataclass
class Process:
    number: int
    state: str  # R, S, T (stopped), Z (zombie), ...
    command: list
    environment: dict

    @property
    def living(self):
        return self.state not in "ZX"

    @property
    def rank(self):
        """The rank of a `furlong train` process; None for others."""
        words = [pathlib.Path(word).name for word in self.command[:1]] + self.command[1:2]
        if words != ["furlong", "train"]:
            return None
        for name in ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"):
            if name in self.environment:
                return int(self.environment[name])
        return None


def processes_of(marker):
    """Returns all processes of this machine whose environment has the marker, except zombies."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            variables = dict(
                part.split("=", 1)
                for part in (folder / "environ").read_text(errors="replace").split("\0")
                if "=" in part
            )
            if variables.get(MARKER) != marker:
                continue
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            process = Process(
                int(folder.name), state, (folder / "cmdline").read_text(errors="replace").split("\0")[:-1], variables
            )
            if process.living:
                found.append(process)
        except (OSError, PermissionError):
            continue
    return found


def end_all(marker):
    """Kills all processes with the marker and returns their commands."""
    found = processes_of(marker)
    for process in found:
        try:
            os.kill(process.number, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return [" ".join(process.command) for process in found]


def wait_until(condition, patience, what):
    """Waits for a true value of `condition` and returns it. `what` names it in the error: a text, or a function that
    returns one."""
    end = time.monotonic() + patience
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > end:
            raise Failure(f"{what() if callable(what) else what}: timed out after {patience} s")
        time.sleep(0.02)


# ---- launchers -------------------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Launcher:
    name: str
    word: str  # first word of its documented line
    known_as: str  # its name in Furlong's output
    program: str = ""  # skipped if this program is missing
    package: str = ""
    slurm: bool = False
    variables: tuple = ()


# By default Open MPI refuses to run as root, more ranks than cores, and binding with few cores.
OPEN_MPI = (
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("OMPI_MCA_hwloc_base_binding_policy", "none"),
)
# Without --rdzv-id torchrun provides no secret.
TORCHRUN = (("FURLONG_JOB_SECRET", "of the test"),)

LAUNCHERS = {
    launcher.name: launcher
    for launcher in (
        Launcher("furlong_launch", "furlong launch ", "furlong"),
        Launcher("by_hand", "RANK=", "environment variables", variables=TORCHRUN),
        Launcher("mpirun", "mpirun ", "open_mpi", program="mpirun", package="Debian: openmpi-bin", variables=OPEN_MPI),
        Launcher("srun", "srun ", "slurm", slurm=True),
        Launcher("sbatch", "sbatch scripts/slurm/train.sbatch", "slurm", slurm=True),
        Launcher(
            "torchrun",
            "torchrun ",
            "torchrun",
            program="torchrun",
            package="PyTorch's; its stand-in is tested",
            variables=TORCHRUN,
        ),
        Launcher("torchrun_stand_in", "torchrun ", "torchrun", variables=TORCHRUN),
    )
}


def documented_lines(launcher, document="README.md", processes=2):
    """Returns the launcher's lines in a document, with `processes` instead of eight; for by_hand, of two."""
    lines = [line.strip() for line in (SOURCE / document).read_text().splitlines() if line.startswith("    ")]
    found = [line.partition("  #")[0].strip() for line in lines if line.startswith(launcher.word)]
    expect(found, f"{document} has no line that starts with {launcher.word!r}")
    return [re.sub(r"(?<![\w.-])8(?![\w.-])", str(processes), line) for line in found]


def by_hand(command, rank, processes):
    """Returns a rank's command from the documented commands for two."""
    values = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes}
    return [
        re.sub(r"^(RANK|LOCAL_RANK|WORLD_SIZE)=\d+$", lambda found: f"{found[1]}={values[found[1]]}", word)
        for word in command
    ]


def why_skipped(launcher):
    """Returns why the launcher cannot be tested on this machine, or None."""
    if launcher.slurm:
        return slurm_cluster.why_not()
    if launcher.program and not shutil.which(launcher.program):
        return f"{launcher.program} is not installed ({launcher.package})"
    return None


class Job:
    """One start of a launcher: its processes and their output."""

    def __init__(self, processes, folder):
        self.processes, self.folder = processes, folder

    def wait(self, patience):
        """Returns the exit status; for by_hand, the first that is not 0."""
        end = time.monotonic() + patience
        statuses = []
        for process in self.processes:
            try:
                statuses.append(process.wait(max(0.1, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                raise Failure(f"{process.args} did not end within {patience:g} s; output:\n{self.output()}") from None
        return next((status for status in statuses if status), 0)

    def output(self):
        """Returns all output, including sbatch's log."""
        files = sorted(self.folder.glob("output.*")) + sorted(self.folder.glob("furlong-*.log"))
        return "".join(file.read_text(errors="replace") for file in files)

    def errors(self):
        """Returns the lines of furlong's errors, with the rank in front if the launcher adds it, without those of Slurm
        and Open MPI."""
        return [line for line in self.output().splitlines() if re.match(r"(\[rank \d+\] )?error: ", line)]


class SlurmBatchJob(Job):
    """A job of sbatch. It may be requeued, so it is over when Slurm reports that."""

    def __init__(self, processes, folder, cluster):
        super().__init__(processes, folder)
        self.cluster = cluster
        expect(super().wait(30) == 0, f"sbatch failed: {self.output()}")
        self.number = re.search(r"Submitted batch job (\d+)", self.output()).group(1)

    def told(self, name):
        """Returns a field of `scontrol show job`."""
        return re.search(rf"\b{name}=(\S+)", self.cluster.run("scontrol", "show", "job", self.number)).group(1)

    def wait(self, patience):
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        wait_until(
            lambda: self.told("JobState") in over,
            patience,
            lambda: f"the end of job {self.number}; output:\n{self.output()}",
        )
        status, _, number = self.told("ExitCode").partition(":")
        return int(status) or (128 + int(number) if int(number) else 0)


class Scratch:
    """A temporary folder with a tokenized dataset and a folder for each job. Everything started in it ends with it."""

    def __init__(self, furlong):
        self.furlong = pathlib.Path(furlong).resolve()
        self.marker = uuid.uuid4().hex
        self.cluster = None

    def __enter__(self):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that __exit__ runs
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="furlong_"))
        programs = self.folder / "bin"
        programs.mkdir()
        (programs / "furlong").symlink_to(self.furlong)
        foreign = re.compile(
            r"(RANK|WORLD_SIZE|LOCAL_.*|MASTER_.*|SLURM_.*|SBATCH_.*|OMPI_.*|PMIX?_.*|TORCHELASTIC_.*|FURLONG_.*)$"
        )
        self.environment = {name: value for name, value in os.environ.items() if not foreign.match(name)}
        self.environment.update(
            {
                "PATH": f"{programs}:{os.environ.get('PATH', '/usr/bin:/bin')}",
                MARKER: self.marker,
                "OMP_WAIT_POLICY": "passive",
                "TMPDIR": str(self.folder),
            }
        )
        text = self.folder / "text.txt"
        text.write_bytes((SOURCE / "LICENSE").read_bytes())
        self.run([str(self.furlong), "prepare", "text", str(text), "--output", str(self.folder / "tokens.h5")])
        return self

    def __exit__(self, *_):
        if self.cluster:
            self.cluster.__exit__()
        end_all(self.marker)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_cluster(self):
        """The cluster. Its daemons do not have the marker, because they are not orphans of a job."""
        if not self.cluster:
            cluster = slurm_cluster.SlurmCluster(self.folder / "slurm", dict(self.environment, **{MARKER: ""}))
            self.cluster = cluster.__enter__()

    def run(self, command, folder=None, patience=60):
        found = subprocess.run(
            command, cwd=folder or self.folder, env=self.environment, capture_output=True, text=True, timeout=patience
        )
        expect(
            found.returncode == 0, f"{shlex.join(command)} status {found.returncode}:\n{found.stdout}{found.stderr}"
        )
        return found.stdout + found.stderr

    def place(self, name, **keys):
        """Creates a folder for a job, with its config."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "scripts").symlink_to(SOURCE / "scripts")
        self.configure(folder, **keys)
        return folder

    def configure(self, folder, **keys):
        changed = {name.replace("__", "."): value for name, value in keys.items()}
        (folder / "c.yaml").write_text(yaml({**CONFIG, "data.dataset": str(self.folder / "tokens.h5"), **changed}))

    def start(
        self, launcher, folder, extra=(), before=None, change=lambda rank, command: command, processes=2, variables=()
    ):
        """Starts the launcher's line from README.md. `extra` are options of the launcher. `change` modifies the command
        of each rank that is started by hand. `before` is called in the started process, before its program. Under Slurm
        half of the ranks are on each of two nodes.
        """
        environment = dict(self.environment, **dict(launcher.variables), **dict(variables))
        commands = [shlex.split(line) for line in documented_lines(launcher, processes=processes)]
        if launcher.slurm:
            self.start_cluster()
            environment["SLURM_CONF"] = self.cluster.environment["SLURM_CONF"]
            nodes = ["--nodes", "2", "--ntasks-per-node", str(processes // 2), "--cpus-per-task", "1"]
            commands = [
                (
                    [commands[0][0], *extra, *nodes, "--time", "10", *commands[0][1:]]
                    if launcher.name == "sbatch"
                    else ["salloc", "--quiet", *nodes, commands[0][0], *extra, *commands[0][1:]]
                )
            ]
        elif launcher.name == "torchrun_stand_in":
            commands[0][:1] = [sys.executable, "-B", str(STAND_IN)]
        elif launcher.name == "by_hand":
            port = str(slurm_cluster.free_ports(1)[0])
            ranks = [by_hand(commands[0], rank, processes) for rank in range(processes)] if processes != 2 else commands
            commands = [
                change(rank, ["env", *(word.replace("29500", port) for word in command)])
                for rank, command in enumerate(ranks)
            ]
        elif extra:
            commands[0][1:1] = extra
        processes = []
        for number, command in enumerate(commands):
            with open(folder / f"output.{number}", "ab") as output:
                processes.append(
                    subprocess.Popen(
                        command,
                        cwd=folder,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                        preexec_fn=before,
                    )
                )
        return SlurmBatchJob(processes, folder, self.cluster) if launcher.name == "sbatch" else Job(processes, folder)

    def ranks(self):
        """Returns the living processes of `furlong train`, by rank."""
        return {process.rank: process for process in processes_of(self.marker) if process.rank is not None}


def run_check(name, launcher, check):
    """Ends the process with check(), which throws if it fails: 0 success, 1 failure, 77 the launcher is missing."""
    reason = why_skipped(launcher)
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    try:
        check()
    except RuntimeError as failure:
        print(f"{name}: {failure}", file=sys.stderr)
        sys.exit(1)


def metrics(folder):
    """Returns metrics_of() the run of a folder."""
    return metrics_of(folder / "run" / "metrics.jsonl")


def metrics_of(file):
    """Returns metrics.jsonl without values that depend on the clock and on memory history."""
    found = [json.loads(line) for line in file.read_text().splitlines()]
    return [
        {key: value for key, value in line.items() if key not in ("tokens_per_second", "memory_bytes")}
        for line in found
    ]


def expect_near(found, expected, tolerance, what):
    """Expects equal losses at equal steps."""
    key = lambda line: (line["step"], line["split"])
    expect([key(line) for line in found] == [key(line) for line in expected], f"{what}: metrics.jsonl has other lines")
    worst = max(abs(a["loss"] - b["loss"]) / abs(b["loss"]) for a, b in zip(found, expected))
    expect(worst <= tolerance, f"{what}: losses differ by {worst:.2g}, expected at most {tolerance:g}")
    return worst
