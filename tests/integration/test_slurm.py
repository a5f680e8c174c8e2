"""Sweeps on a real SLURM: arrays, preemption, time limits, requeues, failures, kills; and leaving and coming back."""

import contextlib
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

import psutil
import pytest

from meanq.rundir.lock import lock_holder
from tests.integration.slurm_cluster import Cluster, NoSlurmError, slurm_cluster

pytestmark = pytest.mark.xdist_group("slurm")

PROJECT = Path(__file__).parents[2]
DETERMINISTIC = ("evaluations.csv", "training.csv", "diagnosis.csv", "probes.npz", "weights.safetensors")
PATIENCE = 600.0  # seconds; only a failing test waits so long

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


def start(cluster: Cluster | None, cwd: Path, *arguments: str, path: Path | None = None) -> subprocess.Popen[str]:
    """Start a command; programs in `path` come before those of SLURM."""
    environment = dict(cluster.environment if cluster else os.environ)
    environment |= {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}
    if path:
        environment["PATH"] = f"{path}:{environment['PATH']}"
    process = subprocess.Popen(
        [sys.executable, "-m", "meanq.run", *arguments],
        cwd=cwd,
        env=environment,
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


def program(directory: Path, name: str, text: str) -> Path:
    """Write a shell script that takes the place of one of SLURM's programs, `$real`; return its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(f"#!/bin/bash\nreal={shutil.which(name)}\n{text}")
    (directory / name).chmod(0o755)
    return directory


def jobs_of_runs(root: Path) -> dict[Path, str]:
    """Run by run, which job it has; as the launcher noted it."""
    found: dict[Path, str] = {}
    for path in root.rglob("*_runs.json"):
        noted = json.loads(path.read_text())["runs"]
        found |= {Path(directory): job for job, directories in noted.items() for directory in directories}
    return found


def jobs(root: Path) -> dict[str, Path]:
    """Job by job, which run it is, where each job has one."""
    return {job: directory for directory, job in jobs_of_runs(root).items()}


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


def terminate(cluster: Cluster, job: str) -> None:
    """Announce an end, and let it follow later."""
    cluster.command("scancel", "--signal=TERM", job)
    time.sleep(8)
    cluster.command("scontrol", "requeue", job)


# How a run is disturbed, and the launcher's fields that this needs. SLURM may warn of a time limit a minute early.
PACKED = ("hydra.launcher.runs_per_job=2", "hydra.launcher.cpus_per_task=2")
DISTURBANCES: dict[str, tuple[Callable[[Cluster, str], object], tuple[str, ...]]] = {
    "usr2": (lambda cluster, job: cluster.command("scancel", "--signal=USR2", job), ()),
    "requeue": (lambda cluster, job: cluster.command("scontrol", "requeue", job), ()),
    "timeout": (lambda cluster, job: None, ("hydra.launcher.timeout_min=2", "hydra.launcher.signal_delay_s=5")),
    "usr2 in a shared job": (lambda cluster, job: cluster.command("scancel", "--signal=USR2", job), PACKED),
    "term in a shared job": (terminate, PACKED),
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
    assert log(tmp_path).count("  step ") == 10 and "\x1b" not in log(tmp_path), "lines, no progress bars"
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
RULE = """
import os
from pathlib import Path

def sometimes(q):
    if "SLURM_JOB_ID" in os.environ and Path("broken").exists():
        raise RuntimeError("on purpose")
    return q.mean(0)
"""


def failing_study(cwd: Path, slow: bool) -> tuple[str, ...]:
    """Four runs, of which that of seed 0 raises in jobs while there is a file `broken`."""
    playground(cwd, slow)
    (cwd / "rules.py").write_text(RULE)
    (cwd / "broken").touch()
    (cwd / "mixed.yaml").write_text(STUDY)
    return ("-m", "+study=mixed.yaml", "scale=tiny", *SMALL, *(o for o in RUN if not o.startswith("label")))


def seed(directory: Path) -> int:
    return int(directory.name.removeprefix("seed_"))


def test_failures_are_tried_again_told_and_do_not_stop_the_others(
    slurm: Cluster, undisturbed: Path, tmp_path: Path
) -> None:
    """One raises each time, one is cancelled, one is killed once."""
    command = (*failing_study(tmp_path, slow=True), "hydra.launcher.retries=1")
    process = start(slurm, tmp_path, *command)
    wait_for(lambda: len(jobs(tmp_path)) == 4 or process.poll() is not None, "submission")
    by_seed = {seed(d): (job, d) for job, d in jobs(tmp_path).items()}
    assert len(by_seed) == 4, process.communicate()
    for number in (1, 2, 3):
        wait_for(lambda n=number: rows(by_seed[n][1]) >= 2, f"rows of seed {number}")
    slurm.command("scancel", by_seed[1][0])
    os.kill(json.loads((by_seed[2][1] / "lock").read_text())["pid"], signal.SIGKILL)
    wait_for(lambda: lock_holder(by_seed[1][1]) is None and lock_holder(by_seed[2][1]) is None, "two deaths")
    (tmp_path / "slow").unlink()
    code, out, err = finish(process)
    assert code == 1
    assert "2 done, 2 failed" in out
    for number, how in ((0, "FAILED, failed 2 times"), (1, "CANCELLED")):
        job, directory = by_seed[number]
        assert f"meanq: {directory}: job {job} left the run unfinished (ended as {how})" in err, err
    failed = status(by_seed[0][1])
    assert failed["state"] == "failed" and "on purpose" in str(failed["traceback"])
    folder = tmp_path / "runs/mixed/.submitit"
    assert (folder / f"{by_seed[2][0]}_failures").read_text().startswith("exit code 137 on ")
    assert not (folder / f"{by_seed[1][0]}_failures").exists(), "who cancels a job does not want it again"
    assert json.loads((by_seed[2][1] / "meta.json").read_text())["resumed"][0] >= 100
    (tmp_path / "broken").unlink()
    code, out, err = finish(start(slurm, tmp_path, *command))
    assert code == 0, err
    assert "Submitted 2 run(s)" in out and out.count("is finished already: skipped") == 2
    assert all(status(directory)["state"] == "finished" for _, directory in by_seed.values())


def test_runs_of_one_job_fail_alone(slurm: Cluster, undisturbed: Path, tmp_path: Path) -> None:
    """Two runs per job, on one GPU."""
    command = failing_study(tmp_path, slow=False)
    shared = (*PACKED, "hydra.launcher.gres=gpu:a100:1", "hydra.launcher.retries=0")
    code, out, err = finish(start(slurm, tmp_path, *command, *shared))
    assert code == 1 and "Submitted 4 run(s) in 2 jobs as SLURM job array" in out
    of_runs = jobs_of_runs(tmp_path)
    assert len(of_runs) == 4 and len(set(of_runs.values())) == 2
    states = {seed(directory): status(directory)["state"] for directory in of_runs}
    assert states == {0: "failed", 1: "finished", 2: "finished", 3: "finished"}
    assert err.count("left the run unfinished") == 1
    logs = log(tmp_path)
    assert re.search(r"seed=1 +\| finished", logs) and re.search(r"failed with exit code 1", logs)
    assert slurm.command("scontrol", "show", "job", next(iter(of_runs.values()))).count("gpu:a100:1") >= 1


def test_submit_return_and_come_back(slurm: Cluster, tmp_path: Path) -> None:
    """With an sbatch that returns late, when SLURM has started the jobs already."""
    playground(tmp_path, slow=True)
    late = program(tmp_path / "late", "sbatch", '"$real" "$@"; code=$?; sleep 3; exit $code\n')
    fields = ("hydra.launcher.gpus_per_node=a100:1", "hydra.launcher.array_parallelism=3")
    command = ("-m", *SMALL, *fields, *RUN, "seed=0-2")
    code, out, err = finish(start(slurm, tmp_path, *command, "hydra.launcher.wait=false", path=late))
    assert code == 0, err
    assert "Submitted 3 run(s) as SLURM job array" in out and "does not wait" in out
    submitted = jobs(tmp_path)
    wait_for(lambda: all(rows(directory) >= 2 for directory in submitted.values()), "all three runs to train")
    code, out, err = finish(start(slurm, tmp_path, *command, "hydra.launcher.wait=false"))
    assert code == 3 and "3 of 3 runs are queued or running already" in out and "Submitted" not in out
    assert "meanq: 3 of 3 runs are not finished: they are queued, or other processes train them" in err
    (tmp_path / "slow").unlink()
    code, out, err = finish(start(slurm, tmp_path, *command))
    assert code == 0, err
    assert jobs(tmp_path) == submitted
    code, out, _ = finish(start(slurm, tmp_path, *command, "hydra.launcher.wait=false"))
    assert code == 0 and out.count("is finished already: skipped") == 3


def test_runs_that_others_train_are_left_to_them(slurm: Cluster, tmp_path: Path) -> None:
    playground(tmp_path, slow=True)
    other = start(slurm, tmp_path, *RUN)
    theirs = tmp_path / "runs/default/minatar_asterix/run/seed_0"
    wait_for(lambda: rows(theirs) >= 2, "the first rows")
    other.send_signal(signal.SIGSTOP)  # it holds its lock, and does not end before we look
    (tmp_path / "slow").unlink()
    code, out, err = finish(start(slurm, tmp_path, "-m", *SMALL, *RUN, "seed=0,1"))
    assert code == 3 and "Submitted 1 run(s)" in out and "1 done" in out
    assert re.search(rf"meanq: {theirs}: is being trained by process {other.pid} on ", err)
    assert "meanq: 1 of 2 runs are not finished: they are queued, or other processes train them; this command" in err
    code, _, err = finish(start(slurm, tmp_path, "-m", "hydra/launcher=local", *RUN))
    assert code == 3 and "meanq: 1 of 1 runs are not finished" in err
    other.kill()


@pytest.fixture(scope="module")
def small_arrays() -> Iterator[Cluster]:
    """A cluster whose arrays have at most two jobs."""
    try:
        with slurm_cluster("MaxArraySize=2") as cluster:
            yield cluster
    except NoSlurmError as error:
        pytest.skip(f"no SLURM here: {error}")


TINY = ("env=chain", "total_steps=100", "algo.first_update=64", "evaluation.every=100", "evaluation.episodes=1")
TINY += ("probe.every=100", "threads=1", "label=run")


def most_running(cluster: Cluster, process: subprocess.Popen[str]) -> int:
    """Wait for the end of a command; return how many jobs ran at once."""
    most = 0
    while process.poll() is None:
        most = max(most, list(cluster.states().values()).count("RUNNING"))
        time.sleep(0.5)
    return most


def test_more_runs_than_an_array_may_have(small_arrays: Cluster, tmp_path: Path) -> None:
    limit = "hydra.launcher.array_parallelism=2"
    process = start(small_arrays, tmp_path, "-m", *SMALL, limit, *TINY, "seed=0-4")
    assert most_running(small_arrays, process) == 2
    code, out, err = finish(process)
    assert code == 0, err
    assert re.search(r"Submitted 5 run\(s\) as SLURM job arrays \d+, \d+, \d+, at most 2 at once", out)
    assert "Dependency" in out and "5 done" in out
    assert all(status(directory)["state"] == "finished" for directory in jobs(tmp_path).values())


def test_more_runs_than_may_be_submitted(small_arrays: Cluster, tmp_path: Path) -> None:
    """sbatch accepts no job while there are two; what it has refused follows when there is room."""
    limited = program(
        tmp_path / "limited",
        "sbatch",
        """
        script="${@: -1}"
        count=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$script"); count=$((${count:-0} + 1))
        queued=$(squeue --noheader --array | wc -l)
        if [ $((queued + count)) -gt 2 ]; then
            echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2
            echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit)" >&2
            exit 1
        fi
        exec "$real" "$@"
        """,
    )
    process = start(small_arrays, tmp_path, "-m", *SMALL, *TINY, "seed=0-3", path=limited)
    assert most_running(small_arrays, process) <= 2
    code, out, err = finish(process)
    assert code == 0, err
    assert "Submitted 2 run(s)" in out and "2 not submitted yet" in out and "4 done" in out
    assert len(jobs(tmp_path)) == 4


def start_one(cluster: Cluster, cwd: Path, *fields: str) -> tuple[subprocess.Popen[str], str, Path]:
    """Start a sweep of one slow run; return the command, the job and the run's directory once it trains."""
    playground(cwd, slow=True)
    process = start(cluster, cwd, "-m", *SMALL, *fields, *RUN)
    wait_for(lambda: len(jobs(cwd)) == 1 or process.poll() is not None, "submission")
    ((job, directory),) = jobs(cwd).items()
    wait_for(lambda: rows(directory) >= 2, "the first rows")
    return process, job, directory


def lose_node(cluster: Cluster, job: str, directory: Path) -> None:
    """Lose the node of a job, and wait until the job is in the queue again."""
    cluster.lose_node()
    assert lock_holder(directory) is None and status(directory)["state"] == "running"
    wait_for(lambda: cluster.states().get(job) == "PENDING", "the job in the queue again")


def test_a_run_survives_the_loss_of_its_node(small_arrays: Cluster, undisturbed: Path, tmp_path: Path) -> None:
    """On the cluster that has no jobs of other tests at that time: they would lose their node, too."""
    process, job, directory = start_one(small_arrays, tmp_path, "hydra.launcher.retries=1")
    lose_node(small_arrays, job, directory)
    (tmp_path / "slow").unlink()
    small_arrays.restore_node()
    code, _, err = finish(process)
    assert code == 0, err
    assert status(directory)["state"] == "finished" and restarts(small_arrays, job) == 1
    same_bytes(directory, undisturbed)


def test_nodes_are_lost_as_often_as_retries_say_and_requeues_do_not_count(
    small_arrays: Cluster, tmp_path: Path
) -> None:
    process, job, directory = start_one(small_arrays, tmp_path, "hydra.launcher.retries=0")
    small_arrays.command("scontrol", "requeue", job)
    wait_for(lambda: log(tmp_path).count("Starting with JobEnvironment") > 1, "the job's second start")
    wait_for(lambda: lock_holder(directory) is not None, "the run's second start")
    lose_node(small_arrays, job, directory)
    small_arrays.restore_node()
    code, _, err = finish(process)
    assert code == 1 and f"job {job} left the run unfinished (ended as FAILED)" in err
    noted = (tmp_path / f"runs/default/.submitit/{job}_failures").read_text()
    assert re.fullmatch(r"node lost or job script killed on \S+\n", noted), noted


def test_a_job_whose_script_is_killed_is_tried_again(small_arrays: Cluster, tmp_path: Path) -> None:
    process, job, directory = start_one(small_arrays, tmp_path, "hydra.launcher.retries=1")
    for attempt in (1, 2):
        wait_for(lambda n=attempt: log(tmp_path).count("Starting with JobEnvironment") == n, f"start {attempt}")
        wait_for(lambda: lock_holder(directory) is not None, f"the run's start {attempt}")
        for script in scripts(job):
            script.kill()
        wait_for(lambda: lock_holder(directory) is None, "the end of the run")
    code, out, err = finish(process)
    assert code == 1 and f"job {job} left the run unfinished (ended as FAILED, failed 2 times)" in err
    assert "1 failed" in out and restarts(small_arrays, job) == 1


def scripts(job: str) -> list[psutil.Process]:
    """Processes of the job's batch script."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "slurm_script" in " ".join(process.cmdline()) and process.environ().get("SLURM_JOB_ID") == job:
                found.append(process)
    return found


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
        ("hydra.launcher.gpus_per_node=h100:1", r"hydra/launcher=slurm: SLURM refused .*gpus_per_node=h100:1"),
        ("+hydra.launcher.additional_parameters.bogus=1", r"hydra\.launcher\.additional_parameters\.bogus=1: SLURM"),
    ],
)
def test_what_slurm_refuses_is_one_line(field: str, says: str, slurm: Cluster, tmp_path: Path) -> None:
    playground(tmp_path, slow=False)
    code, out, err = finish(start(slurm, tmp_path, "-m", *SMALL, field, *RUN))
    assert code == 2 and out == ""
    assert re.fullmatch(f"meanq: {says}.*\n", err), err
    assert not any(path.is_file() for path in (tmp_path / "runs").rglob("*"))


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (("Please specify a GPU type", "Unspecified error"), "hydra.launcher.gpus_per_node=1"),
        (
            ("QOSMaxSubmitJobPerUserLimit", "Job violates accounting/QOS policy (job submit limit)"),
            "hydra.launcher.qos=null",
        ),
        (("Invalid account or account/partition combination specified",), "hydra.launcher.account=null"),
    ],
)
def test_what_a_site_refuses_is_one_line(message: tuple[str, ...], says: str, tmp_path: Path) -> None:
    """Messages of clusters that the one here cannot be; this needs no SLURM."""
    lines = "".join(f"echo 'sbatch: error: {line}' >&2\n" for line in message)
    path = program(tmp_path / "site", "sbatch", f"{lines}exit 1\n")
    code, out, err = finish(start(None, tmp_path, "-m", "hydra/launcher=slurm", *TINY, "seed=0-2", path=path))
    assert (code, out) == (2, "")
    assert err.startswith(f"meanq: {says}: SLURM refused the jobs ({'; '.join(message)}); ") and err.count("\n") == 1
    assert not any(path.is_file() for path in (tmp_path / "runs").rglob("*"))


def test_a_run_may_use_all_cores_of_its_job(slurm: Cluster, tmp_path: Path) -> None:
    playground(tmp_path, slow=False)
    run = [o for o in RUN if not o.startswith("threads")]
    code, _, err = finish(start(slurm, tmp_path, "-m", *SMALL, "hydra.launcher.cpus_per_task=2", *run))
    assert code == 0, err
    (directory,) = jobs(tmp_path).values()
    assert json.loads((directory / "meta.json").read_text())["threads"] == 2
