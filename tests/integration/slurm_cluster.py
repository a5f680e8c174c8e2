"""A real SLURM on this machine, in a private directory: munged, slurmctld and slurmd, started and stopped by a test."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
START_SECONDS = 30

# Many cores and much memory are claimed, so that requests of a real size are scheduled on a small machine.
# - cred_expire: else a job that is queued again waits two minutes.
# - DefMemPerCPU: else a job takes all memory, and an array runs one by one.
# - EnforcePartLimits: else a job that asks for too much waits for ever.
# - `urgent` jobs preempt those of `scavenge`, which are told ten seconds before they are killed and queued again.
# - `seat`: something of which there is one, so that a test can preempt one job and no other.
SLURM_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={home}/run/munge.socket,cred_expire=5
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/run/slurmctld.pid
SlurmdPidFile={home}/run/slurmd.pid
SlurmctldLogFile={home}/log/slurmctld.log
SlurmdLogFile={home}/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=1000
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=1000
EnforcePartLimits=ALL
ReturnToService=2
JobRequeue=1
KillWait=5
GresTypes=gpu,seat
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=64 RealMemory=256000 Gres=gpu:a100:4,seat:1 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=OFF
PartitionName=scavenge Nodes={host} MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=10
PartitionName=urgent Nodes={host} MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


class NoSlurmError(RuntimeError):
    """There is none here, or it does not start."""


@dataclass
class Cluster:
    """How to talk to it."""

    home: Path
    environment: Mapping[str, str]

    def command(self, *words: str) -> str:
        """Run one of SLURM's commands; what it says."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    def states(self) -> dict[str, str]:
        """Jobs by id, ended ones included."""
        lines = self.command("squeue", "--noheader", "--array", "--states=all", "--format=%i %T").splitlines()
        return {line.split()[0]: line.split()[1] for line in lines}

    def lose_node(self) -> None:
        """Kill the node's daemon and all that its jobs have started, as a crash would, and let SLURM notice."""
        daemons = {psutil.Process(int((self.home / "run" / "slurmd.pid").read_text()))}
        others = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                environment = process.environ()
                ours = environment.get("SLURM_CONF") == self.environment["SLURM_CONF"]
                if ours and "SLURM_JOB_ID" in environment:
                    daemons |= {parent for parent in process.parents() if parent.name().startswith("slurmstepd")}
                    others.append(process)
        for process in (*daemons, *others):  # daemons first: they would report the end of the others
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs([*daemons, *others], timeout=10)
        node = self.command("sinfo", "--noheader", "--format=%n").split()[0]
        self.command("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")

    def restore_node(self) -> None:
        """Start the node's daemon again."""
        subprocess.run([str(_find("slurmd"))], env=self.environment, timeout=START_SECONDS, check=True)


@contextlib.contextmanager
def slurm_cluster(*settings: str) -> Iterator[Cluster]:
    """Start, wait until the node is idle, and stop whatever happens. Raises NoSlurmError.

    `settings` are further lines of slurm.conf.
    """
    if os.getuid() != 0:
        raise NoSlurmError("only root can start slurmd")
    missing = [name for name in NEEDED if _find(name) is None]
    if missing:
        raise NoSlurmError(f"{', '.join(missing)} not installed: apt-get install slurm-wlm munge")
    home = Path(tempfile.mkdtemp(prefix="slurm_"))  # not pytest's: a socket's path must be short
    try:
        cluster = _configure(home, settings)
        try:
            _start(cluster)
            yield cluster
        finally:
            _stop(home)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _find(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


def _configure(home: Path, settings: Sequence[str]) -> Cluster:
    for name in ("state", "spool", "log", "run"):
        (home / name).mkdir()
    home.chmod(0o755)
    key = home / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    ports = _free_ports(2)
    names = {"home": home, "host": socket.gethostname().split(".")[0]}
    text = SLURM_CONF.format(**names, controller_port=ports[0], node_port=ports[1])
    (home / "slurm.conf").write_text("\n".join([text, *settings, ""]))
    gpus = [home / "run" / f"gpu{i}" for i in range(4)]
    for gpu in gpus:
        os.mknod(gpu, 0o20666, os.makedev(1, 3))  # SLURM wants devices; these are /dev/null
    (home / "gres.conf").write_text("".join(f"Name=gpu Type=a100 File={gpu}\n" for gpu in gpus) + "Name=seat Count=1\n")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH", "SRUN"))}
    return Cluster(home, environment | {"SLURM_CONF": str(home / "slurm.conf")})


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


def _start(cluster: Cluster) -> None:
    home = cluster.home
    munge = [
        f"--key-file={home}/munge.key",
        f"--socket={home}/run/munge.socket",
        f"--pid-file={home}/run/munged.pid",
        f"--log-file={home}/log/munged.log",
        f"--seed-file={home}/run/munged.seed",
        "--force",  # below a world-writable /tmp it would refuse
    ]
    for program, options in (("munged", munge), ("slurmctld", ["-c", "-i"]), ("slurmd", [])):
        command = [str(_find(program)), *options]
        done = subprocess.run(command, env=cluster.environment, capture_output=True, text=True, timeout=START_SECONDS)
        if done.returncode:
            raise NoSlurmError(f"{program} does not start: {done.stderr.strip()}")
    deadline = time.monotonic() + START_SECONDS
    state = ""
    while time.monotonic() < deadline:
        asked = subprocess.run(
            ["sinfo", "--noheader", "--format=%T", "--partition=main"],
            env=cluster.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        state = asked.stdout.strip() or asked.stderr.strip()
        if state == "idle":
            return
        time.sleep(0.3)
    logs = "\n".join(path.read_text()[-2000:] for path in sorted((home / "log").glob("*.log")))
    raise NoSlurmError(f"the node is not idle after {START_SECONDS} s but {state}:\n{logs}")


def _stop(home: Path) -> None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        environment = {**os.environ, "SLURM_CONF": str(home / "slurm.conf")}
        subprocess.run(["scancel", "--full", "--signal=KILL", "--user=root"], env=environment, timeout=20)
        time.sleep(1)
    for program in ("slurmd", "slurmctld", "munged"):
        path = home / "run" / f"{program}.pid"
        with contextlib.suppress(OSError, ValueError):
            pid = int(path.read_text())
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + 10
            while _alive(pid) and time.monotonic() < deadline:
                time.sleep(0.1)


def _alive(pid: int) -> bool:
    """Not so where it only waits to be reaped: where nobody does that, it would for ever."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
