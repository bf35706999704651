"""A Slurm cluster of two nodes on this machine, with its own controller and daemons, which end with it."""

import contextlib
import os
import pathlib
import pwd
import random
import shutil
import signal
import socket
import subprocess
import time

PROGRAMS = ("slurmctld", "slurmd", "srun", "salloc", "sbatch", "scontrol", "scancel", "sinfo", "setpriv")

# Ranks connect to rank 0 at the first host of the node list, which is this machine's network address. A name might not
# resolve, or resolve to the loopback interface, which other hosts cannot reach. The second name need not resolve.
CONFIGURATION = """\
ClusterName=furlong
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
TmpFS={folder}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SchedulerParameters=sched_interval=1,bf_interval=1
FirstJobId={first_job}
KillWait=30
SlurmdParameters=config_overrides
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=512 State=UNKNOWN
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=512 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=60
"""
DAEMON_FOLDERS = ":/usr/local/sbin:/usr/sbin:/sbin"


def own_address():
    """Returns this machine's first IPv4 address other than loopback, or None."""
    found = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
    return next((address for address in found if "." in address and not address.startswith("127.")), None)


def why_not():
    """Returns why this machine cannot run a cluster, or None."""
    missing = [
        name
        for name in PROGRAMS
        if not shutil.which(name, path=os.environ.get("PATH", "/usr/bin:/bin") + DAEMON_FOLDERS)
    ]
    if missing:
        return f"{', '.join(missing)} not installed (Debian: slurm-wlm, util-linux)"
    try:
        socket.getaddrinfo(socket.gethostname(), None)  # as Slurm's daemons do
    except OSError:
        return f"the name of this host, {socket.gethostname()}, does not resolve (/etc/hosts)"
    return None if own_address() else "this machine has no address but the loopback interface's"


def free_ports(count):
    """Returns ports below the kernel's ephemeral ones, which connections of other programs could take."""
    found = []
    for port in random.sample(range(30000, 32768), 2000):
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"fewer than {count} free ports")


class SlurmCluster:
    """Started by `with`. `environment` has the variables by which srun, sbatch and others find the cluster."""

    def __init__(self, folder, environment):
        self.folder = pathlib.Path(folder)
        self.nodes = (own_address(), "second")
        self.environment = dict(
            environment, PATH=environment["PATH"] + DAEMON_FOLDERS, SLURM_CONF=str(self.folder / "slurm.conf")
        )
        self.daemons = []

    def __enter__(self):
        self.folder.mkdir(parents=True)
        for name in ("state", *(f"spool.{node}" for node in self.nodes)):
            (self.folder / name).mkdir()
        # Job and step ids determine the rendezvous port: concurrent clusters need different ones.
        text = CONFIGURATION.format(
            folder=self.folder,
            host=socket.gethostname(),
            user=pwd.getpwuid(os.geteuid()).pw_name,
            nodes=self.nodes,
            ports=free_ports(3),
            first_job=random.randint(1, 60000),
        )
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        try:
            self._start("slurmctld", "-D")
            for node in self.nodes:
                self._start("slurmd", "-D", "-N", node)
            self._wait_until_idle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self.daemons = []
        for number in self.steps():
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    def steps(self):
        """Returns the step daemons (slurmstepd), recognized by the log that they share with the daemons."""
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                shares = any(
                    os.readlink(file).startswith(f"{self.folder}/slurmd.") for file in (folder / "fd").iterdir()
                )
                if shares and "slurmstepd" in os.readlink(folder / "exe"):
                    found.append(int(folder.name))
        return found

    def _start(self, *command):
        output = open(self.folder / (".".join(command).replace("-", "") + ".out"), "wb")
        # The daemons also end if this process is killed.
        self.daemons.append(
            subprocess.Popen(
                ("setpriv", "--pdeathsig", "TERM", *command),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        )
        output.close()

    def _wait_until_idle(self, patience=30):
        end = time.monotonic() + patience
        while time.monotonic() < end:
            for daemon in self.daemons:
                if daemon.poll() is not None:
                    raise RuntimeError(f"{daemon.args[3]} exited with status {daemon.returncode}:\n{self.log()}")
            found = subprocess.run(["sinfo", "-h", "-o", "%T %D"], env=self.environment, capture_output=True, text=True)
            if found.stdout.split() == ["idle", "2"]:
                return
            time.sleep(0.1)
        raise RuntimeError(f"expected two idle nodes within {patience} s:\n{self.log()}")

    def log(self):
        """Returns the ends of the daemons' logs."""
        files = sorted([*self.folder.glob("*.log"), *self.folder.glob("*.out")])
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-2000:]}" for path in files)

    def run(self, *command, may_fail=False):
        """Runs a Slurm command and returns its output."""
        found = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        if found.returncode and not may_fail:
            raise RuntimeError(f"{' '.join(command)} exited with status {found.returncode}: {found.stderr}")
        return found.stdout
