"""hydra/launcher=local: runs at once in processes of their own."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.short_runs import RULES

PROJECT = Path(__file__).parents[2]
CORES = len(os.sched_getaffinity(0))
DETERMINISTIC = ("evaluations.csv", "training.csv", "diagnosis.csv", "probes.npz", "weights.safetensors", "config.yaml")
SHORT = (
    "env=chain",
    "total_steps=150",
    "algo.first_update=50",
    "evaluation.episodes=1",
    "evaluation.every=50",
    "log_every=50",
    "probe.states=2",
    "algo.ensemble_size=2",
    "label=run",
)
ENDLESS = (*(o for o in SHORT if not o.startswith("total_steps")), "total_steps=10000000", "compile=false")
two_cores = pytest.mark.skipif(CORES < 2, reason="two runs at once need two cores")


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    processes = []

    def begin(cwd: Path, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "meanq.run", *arguments],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        if process.poll() is None:
            process.kill()


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def directory(root: Path, seed: int) -> Path:
    return root / "runs" / "default" / "chain" / "run" / f"seed_{seed}"


def state(root: Path, seed: int) -> str:
    found: str = json.loads((directory(root, seed) / "status.json").read_text())["state"]
    return found


def pid(root: Path, seed: int) -> int:
    found: int = json.loads((directory(root, seed) / "lock").read_text())["pid"]
    return found


def evaluated(root: Path, *seeds: int) -> bool:
    return all((directory(root, seed) / "evaluations.csv").exists() for seed in seeds)


def test_the_same_bytes_as_one_after_the_other_whatever_happens_to_conf(start, tmp_path: Path) -> None:
    """conf/ is broken while the first run trains and the second waits."""
    reference, parallel = tmp_path / "reference", tmp_path / "parallel"
    for place in (reference, parallel):
        place.mkdir()
    code, _, err = finish(start(reference, "-m", "seed=0-1", "threads=1", *SHORT))
    assert code == 0, err
    conf = tmp_path / "conf"
    shutil.copytree(PROJECT / "conf", conf)
    launcher = ("--config-path", str(conf), "hydra/launcher=local", "hydra.launcher.jobs=1")
    process = start(parallel, "-m", *launcher, "seed=0-1", "threads=1", *SHORT)
    wait_for(lambda: directory(parallel, 0).exists())
    assert not directory(parallel, 1).exists()
    for path in (conf / "config.yaml", conf / "env" / "chain.yaml", conf / "algo" / "_vanilla.yaml"):
        path.write_text("seed: [broken\n")
    code, out, err = finish(process)
    assert code == 0, err
    for seed in (0, 1):
        for name in DETERMINISTIC:
            theirs = directory(reference, seed) / name
            assert (directory(parallel, seed) / name).read_bytes() == theirs.read_bytes(), (seed, name)
        assert len(re.findall(rf"^seed={seed} \|   step +\d+  return", out, re.MULTILINE)) == 3
    assert "\x1b[" not in out and out.count("finished; ") == 2


@two_cores
def test_cores_are_divided_and_a_killed_run_fails_alone(start, tmp_path: Path) -> None:
    process = start(tmp_path, "-m", "hydra/launcher=local", "hydra.launcher.jobs=2", "seed=0-1", *ENDLESS)
    wait_for(lambda: evaluated(tmp_path, 0, 1))
    shares = [os.sched_getaffinity(pid(tmp_path, seed)) for seed in (0, 1)]
    assert not shares[0] & shares[1] and {len(share) for share in shares} == {CORES // 2}
    for seed in (0, 1):
        assert json.loads((directory(tmp_path, seed) / "meta.json").read_text())["threads"] == CORES // 2
        environment = psutil.Process(pid(tmp_path, seed)).environ()
        assert 0 < int(environment["MEANQ_MEMORY_SHARE"]) < psutil.virtual_memory().total / 2
    os.kill(pid(tmp_path, 0), signal.SIGKILL)
    lines = iter(process.stdout.readline, "")
    assert any("seed=0 | killed by signal 9" in line for line in lines)
    assert process.poll() is None, "the other goes on"
    rows = (directory(tmp_path, 1) / "evaluations.csv").read_text()
    wait_for(lambda: (directory(tmp_path, 1) / "evaluations.csv").read_text() != rows)
    os.kill(pid(tmp_path, 1), signal.SIGTERM)
    code, _, err = finish(process)
    assert code == 1
    assert re.search(r"meanq: runs/default/chain/run/seed_0: killed by signal 9", err), err
    assert re.search(r"meanq: runs/default/chain/run/seed_1: stopped by signal 15", err), err
    assert state(tmp_path, 1) == "interrupted"


@two_cores
@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopping_the_sweep_lets_its_runs_save(number: int, expected: int, start, tmp_path: Path) -> None:
    process = start(tmp_path, "-m", "hydra/launcher=local", "hydra.launcher.jobs=2", "seed=0-2", *ENDLESS)
    wait_for(lambda: evaluated(tmp_path, 0, 1))
    pids = [pid(tmp_path, seed) for seed in (0, 1)]
    process.send_signal(number)
    process.send_signal(number)  # a wrapper that passes signals on makes two of one: not yet a reason to kill
    code, out, err = finish(process)
    assert code == expected
    assert "stopping 2 run(s)" in out and "Traceback" not in err
    for seed in (0, 1):
        assert state(tmp_path, seed) == "interrupted" and (directory(tmp_path, seed) / "checkpoint").is_dir()
    assert not directory(tmp_path, 2).exists(), "no further run is started"
    assert not any(Path(f"/proc/{p}").exists() for p in pids)


def test_a_killed_sweep_takes_its_runs_with_it(start, tmp_path: Path) -> None:
    process = start(tmp_path, "-m", "hydra/launcher=local", "hydra.launcher.jobs=1", "seed=0-1", *ENDLESS)
    wait_for(lambda: evaluated(tmp_path, 0))
    run = pid(tmp_path, 0)
    process.kill()
    wait_for(lambda: not Path(f"/proc/{run}").exists() or "Z" in Path(f"/proc/{run}/stat").read_text().split()[2])
    assert state(tmp_path, 0) == "interrupted"


def test_a_second_interrupt_kills(start, tmp_path: Path) -> None:
    """A run that is stuck, here stopped, cannot save; the sweep can be ended all the same."""
    process = start(tmp_path, "-m", "hydra/launcher=local", "hydra.launcher.jobs=1", "seed=0-1", *ENDLESS)
    wait_for(lambda: evaluated(tmp_path, 0))
    os.kill(pid(tmp_path, 0), signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    lines = iter(process.stdout.readline, "")
    assert any("stopping 1 run(s)" in line for line in lines)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    code, out, _ = finish(process)
    assert code == 130 and "seed=0 | killed; 1 run(s) to go" in out


def test_a_failing_run_does_not_stop_the_others(start, tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(RULES)
    run = [o for o in SHORT if not o.startswith("label")]
    process = start(tmp_path, "-m", "hydra/launcher=local", "algo.bootstrap=rules.broken,rules.mean", *run)
    code, out, _ = finish(process)
    assert code == 1
    assert re.search(r"algo.bootstrap=rules.broken \| .*on purpose", out)
    states = {path.parts[-3]: json.loads(path.read_text()) for path in tmp_path.rglob("status.json")}
    assert sorted(content["state"] for content in states.values()) == ["failed", "finished"]
    assert any("on purpose" in content.get("traceback", "") for content in states.values())


def test_more_runs_at_once_than_cores_is_one_line(start, tmp_path: Path) -> None:
    jobs = CORES + 1
    seeds = f"seed=0-{CORES}"
    code, _, err = finish(start(tmp_path, "-m", "hydra/launcher=local", f"hydra.launcher.jobs={jobs}", seeds, *SHORT))
    assert code == 2 and err.startswith(f"meanq: hydra.launcher.jobs={jobs}: here are {CORES} cores; write ")
    assert not (tmp_path / "runs").exists()
