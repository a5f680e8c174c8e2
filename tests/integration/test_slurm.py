"""Sweeps on a real SLURM: arrays, preemption, time limits, requeues, failures, kills; and leaving and coming back."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from meanq.rundir.lock import lock_holder
from tests.integration.slurm_cluster import Cluster

pytestmark = pytest.mark.xdist_group("slurm")

PROJECT = Path(__file__).parents[2]
DETERMINISTIC = ("evaluations.csv", "training.csv", "probes.npz", "weights.safetensors")
PATIENCE = 300.0  # seconds; only a failing test waits so long

# A game that crawls after its first steps while there is a file `slow`: so a test decides how long a run takes, and a
# machine's speed does not matter. The file changes no result.
GAME = """
import time
from pathlib import Path

from meanq.envs.minatar import MinAtar

steps = 0


class Slow(MinAtar):
    def step(self, action):
        global steps
        steps += 1
        if steps > 150 and Path("slow").exists():
            time.sleep(1)
        return super().step(action)
"""
RUN = (
    "env=minatar/asterix",
    "env.kind=slow_game.Slow",
    "env.options.max_steps=20",
    "algo.ensemble_size=2",
    "algo.first_update=64",
    "algo.epsilon.steps=200",
    "total_steps=400",
    "evaluation.every=200",
    "evaluation.episodes=2",
    "probe.every=100",
    "probe.states=3",
    "log_every=50",
    "checkpoint.every=50",
    "threads=1",
    "label=run",
)
SMALL = (
    "hydra/launcher=slurm",
    "hydra.launcher.gpus_per_node=0",
    "hydra.launcher.cpus_per_task=1",
    "hydra.launcher.mem_gb=1",
)


started: list[subprocess.Popen[str]] = []


@pytest.fixture(scope="module", autouse=True)
def no_process_left() -> Iterator[None]:
    """Also where a test fails."""
    yield
    for process in started:
        if process.poll() is None:
            process.kill()


def start(cluster: Cluster, cwd: Path, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "meanq.run", *arguments],
        cwd=cwd,
        env={**cluster.environment, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started.append(process)
    return process


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"still there after {PATIENCE} s:\n{out}\n{err}")
    return process.returncode, out, err


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.3)


def jobs(root: Path) -> dict[str, Path]:
    """Job by job, which run it is; as the launcher noted it."""
    found: dict[str, Path] = {}
    for path in root.rglob("*_runs.json"):
        found |= {job: Path(directory) for job, directory in json.loads(path.read_text())["runs"].items()}
    return found


def rows(directory: Path) -> int:
    path = directory / "training.csv"
    return len(path.read_text().splitlines()) - 1 if path.exists() else 0


def status(directory: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((directory / "status.json").read_text())
    return content


def restarts(cluster: Cluster, job: str) -> int:
    match = re.search(r"Restarts=(\d+)", cluster.command("scontrol", "show", "job", job))
    assert match
    return int(match[1])


def log(root: Path) -> str:
    """What the jobs printed."""
    return "".join(path.read_text() for path in root.rglob("*_log.out"))


def playground(directory: Path, slow: bool) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "slow_game.py").write_text(GAME)
    if slow:
        (directory / "slow").touch()
    return directory


def preempt(cluster: Cluster, job: str) -> None:
    """A job that may take what others have asks for it."""
    cluster.command("sbatch", "--partition=urgent", "--gres=seat:1", "--mem=10", "--output=/dev/null", "--wrap=sleep 2")


# How a run is disturbed, and the launcher's fields that this needs.
DISTURBANCES: dict[str, tuple[Callable[[Cluster, str], object], tuple[str, ...]]] = {
    "usr2": (lambda cluster, job: cluster.command("scancel", "--signal=USR2", job), ()),
    "requeue": (lambda cluster, job: cluster.command("scontrol", "requeue", job), ()),
    "timeout": (lambda cluster, job: None, ("hydra.launcher.timeout_min=1", "hydra.launcher.signal_delay_s=5")),
    "preemption": (preempt, ("hydra.launcher.partition=scavenge", "hydra.launcher.gres='seat:1'")),
}


@dataclass
class Ended:
    directory: Path
    restarts: int
    code: int
    out: str
    err: str
    log: str


def disturb(cluster: Cluster, cwd: Path, name: str) -> Ended:
    """Start a run on SLURM, disturb it on its way, and let it finish once SLURM has started it again."""
    action, fields = DISTURBANCES[name]
    playground(cwd, slow=True)
    process = start(cluster, cwd, "-m", *SMALL, *fields, *RUN)
    wait_for(lambda: bool(jobs(cwd)) or process.poll() is not None, f"{name}: submission")
    assert process.poll() is None, process.communicate()
    ((job, directory),) = jobs(cwd).items()
    wait_for(lambda: rows(directory) >= 2, f"{name}: the first rows")
    action(cluster, job)
    # The first process may outlive the request by some seconds, so the log tells, not SLURM's count of restarts.
    wait_for(lambda: log(cwd).count("Starting with JobEnvironment") > 1, f"{name}: the job's second start")
    (cwd / "slow").unlink()
    code, out, err = finish(process)
    return Ended(directory, restarts(cluster, job), code, out, err, log(cwd))


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as executor:
        yield executor


@pytest.fixture(scope="module")
def disturbed(slurm: Cluster, pool: ThreadPoolExecutor, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Future]:
    """All at once: a crawling run costs no time, and a time limit is a minute at least."""
    place = tmp_path_factory.mktemp("disturbed")
    return {name: pool.submit(disturb, slurm, place / name, name) for name in DISTURBANCES}


@pytest.fixture(scope="module")
def undisturbed(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, here and at once."""
    cwd = playground(tmp_path_factory.mktemp("undisturbed"), slow=False)
    code, _, err = finish(start(slurm, cwd, *RUN))
    assert code == 0, err
    return cwd / "runs/default/minatar_asterix/run/seed_0"


def same_bytes(ours: Path, theirs: Path) -> None:
    for name in DETERMINISTIC:
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name


def test_a_users_sweep_runs_as_a_job_array(slurm: Cluster, disturbed: dict[str, Future], tmp_path: Path) -> None:
    """The README's command, cut to few steps. SLURM's GPUs are not real, so the runs use the CPU."""
    words = ("-m", "algo=meanq,ens_dqn", "env=seaquest", "seed=0-4", "hydra/launcher=slurm")
    short = ("total_steps=60", "algo.first_update=50", "evaluation.episodes=1", "probe.states=2")
    limits = ("env.options.max_frames=100", "threads=1", "network=data_efficient", "algo.ensemble_size=2")
    code, out, err = finish(start(slurm, tmp_path, *words, *short, *limits))
    assert code == 0, err
    assert "Submitted 10 run(s) as SLURM job array" in out and "scancel" in out and "_log." in out
    submitted = jobs(tmp_path)
    arrays = {job.split("_")[0] for job in submitted}
    assert len(arrays) == 1 and {int(job.split("_")[1]) for job in submitted} == set(range(10))
    wait_for(lambda: all(slurm.states()[job] == "COMPLETED" for job in submitted), "SLURM to see the last job's end")
    assert all(status(directory)["state"] == "finished" for directory in submitted.values())
    assert {directory.parts[-1] for directory in submitted.values()} == {f"seed_{seed}" for seed in range(5)}
    assert len({directory.parts[-2] for directory in submitted.values()}) == 2
    again = finish(start(slurm, tmp_path, *words, *short, *limits))
    assert again[0] == 0 and again[1].count("is finished already: skipped") == 10 and "Submitted" not in again[1]


@pytest.mark.parametrize("name", DISTURBANCES)
def test_a_disturbed_run_ends_as_an_undisturbed_one(name: str, disturbed: dict[str, Future], undisturbed: Path) -> None:
    ended: Ended = disturbed[name].result(timeout=PATIENCE)
    assert ended.code == 0, ended.err
    assert ended.restarts >= 1
    assert status(ended.directory)["state"] == "finished"
    resumed = json.loads((ended.directory / "meta.json").read_text())["resumed"]
    assert resumed and resumed[0] >= 100, "it went on, rather than start again"
    assert f"resumed from step {resumed[0]}" in ended.log
    same_bytes(ended.directory, undisturbed)


STUDY = """
question: What if some fail?
paper: Nothing.
refuted_by: A launcher that hangs.
scales:
  tiny:
    machine: SLURM
    cost: seconds
    runs:
      - seed=0 algo.bootstrap=rules.sometimes label=raises
      - seed=1-3
"""
BROKEN = "def sometimes(q):\n    raise RuntimeError('on purpose')\n"
MENDED = "def sometimes(q):\n    return q.mean(0)\n"


def test_failing_and_killed_jobs_are_told_and_do_not_stop_the_others(
    slurm: Cluster, undisturbed: Path, tmp_path: Path
) -> None:
    cwd = playground(tmp_path, slow=True)
    (cwd / "rules.py").write_text(BROKEN)
    (cwd / "mixed.yaml").write_text(STUDY)
    run = [o for o in RUN if not o.startswith("label")]
    command = ("-m", "+study=mixed.yaml", "scale=tiny", *SMALL, *run)
    process = start(slurm, cwd, *command)
    wait_for(lambda: len(jobs(cwd)) == 4 or process.poll() is not None, "submission")
    by_seed = {int(d.name.removeprefix("seed_")): (job, d) for job, d in jobs(cwd).items()}
    assert len(by_seed) == 4, process.communicate()
    for seed in (1, 2, 3):
        wait_for(lambda s=seed: rows(by_seed[s][1]) >= 2, f"rows of seed {seed}")
    slurm.command("scancel", by_seed[1][0])
    os.kill(json.loads((by_seed[2][1] / "lock").read_text())["pid"], signal.SIGKILL)
    wait_for(lambda: lock_holder(by_seed[1][1]) is None and lock_holder(by_seed[2][1]) is None, "two deaths")
    (cwd / "slow").unlink()
    code, out, err = finish(process)
    assert code == 1
    assert "1 done, 3 failed" in out
    for seed, state in ((1, "CANCELLED"), (2, "FAILED")):
        job, directory = by_seed[seed]
        assert f"meanq: {directory}: job {job} left the run unfinished (ended as {state})" in err, err
    assert "raises/seed_0: job" in err
    failed = status(by_seed[0][1])
    assert failed["state"] == "failed" and "on purpose" in str(failed["traceback"])
    assert status(by_seed[3][1])["state"] == "finished"
    (cwd / "rules.py").write_text(MENDED)
    code, out, err = finish(start(slurm, cwd, *command))
    assert code == 0, err
    assert "Submitted 3 run(s)" in out and out.count("is finished already: skipped") == 1
    assert all(status(directory)["state"] == "finished" for _, directory in by_seed.values())


def test_leave_edit_the_configuration_and_come_back(slurm: Cluster, undisturbed: Path, tmp_path: Path) -> None:
    """What waits in the queue is neither submitted twice nor changed by an edit, not even by one that breaks conf/."""
    cwd = playground(tmp_path, slow=False)
    conf = cwd / "conf"
    shutil.copytree(PROJECT / "conf", conf)
    command = ("-m", "--config-path", str(conf), *SMALL, "+hydra.launcher.additional_parameters.hold=true", *RUN)
    process = start(slurm, cwd, *command)
    wait_for(lambda: len(jobs(cwd)) == 1 or process.poll() is not None, "submission")
    (job,) = jobs(cwd)
    wait_for(lambda: slurm.states().get(job) == "PENDING", "the job in the queue")
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    assert code == 130 and f"scancel {job}" in out and "the jobs go on" in out and "Traceback" not in err
    assert slurm.states()[job] == "PENDING"

    process = start(slurm, cwd, *command)
    assert process.stdout is not None
    first_line = process.stdout.readline()
    assert first_line.startswith(f"1 of 1 runs are queued or running already, as job {job}")
    for path in (conf / "config.yaml", conf / "algo" / "_vanilla.yaml", conf / "env" / "minatar" / "_base.yaml"):
        path.write_text("seed: [broken\n")
    slurm.command("scontrol", "release", job)
    code, _, err = finish(process)
    assert code == 0, err
    assert list(jobs(cwd)) == [job]
    same_bytes(jobs(cwd)[job], undisturbed)


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("hydra.launcher.partition=nowhere", r"hydra\.launcher\.partition=nowhere: SLURM refused .*; `sinfo -s`"),
        ("hydra.launcher.mem_gb=99999", r"hydra\.launcher\.mem_gb=99999: SLURM refused"),
        ("hydra.launcher.constraint=a100", r"hydra\.launcher\.constraint=a100: SLURM refused"),
        ("hydra.launcher.gpus_per_node=9", r"hydra/launcher=slurm: SLURM refused .*gpus_per_node=9"),
    ],
)
def test_what_slurm_refuses_is_one_line(field: str, says: str, slurm: Cluster, tmp_path: Path) -> None:
    playground(tmp_path, slow=False)
    code, out, err = finish(start(slurm, tmp_path, "-m", *SMALL, field, *RUN))
    assert code == 2 and out == ""
    assert re.fullmatch(f"meanq: {says}.*\n", err), err
    assert not list(tmp_path.rglob("*_runs.json"))


def test_a_run_may_use_all_cores_of_its_job(slurm: Cluster, tmp_path: Path) -> None:
    playground(tmp_path, slow=False)
    run = [o for o in RUN if not o.startswith("threads")]
    code, _, err = finish(start(slurm, tmp_path, "-m", *SMALL, "hydra.launcher.cpus_per_task=2", *run))
    assert code == 0, err
    (directory,) = jobs(tmp_path).values()
    assert json.loads((directory / "meta.json").read_text())["threads"] == 2
