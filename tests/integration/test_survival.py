"""Sweeps as users have them: killed, started twice, out of disk; the same command goes on, and nothing runs twice."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meanq.rundir.progress import read_run
from tests.integration.test_commands import ENVIRONMENT, run, states

SWEEP = (
    "-m",
    "algo=dqn,meanq_rainbow",
    "env=minatar/breakout",
    "seed=0-1",
    "total_steps=600",
    "algo.first_update=100",
    "evaluation.every=200",
    "evaluation.episodes=2",
    "env.options.max_steps=40",
    "probe.states=2",
    "checkpoint.every=60",
    "log_every=100",
    "threads=1",
)
BYTES = ("evaluations.csv", "training.csv", "probes.npz", "weights.safetensors")


def start(root: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "meanq.run", *SWEEP, f"root={root}"]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for name in BYTES for path in root.rglob(name)}


def resumed(out: str) -> int:
    return out.count("resumed from step")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    root = tmp_path_factory.mktemp("undisturbed")
    result = run(*SWEEP, f"root={root}", cwd=root)
    assert result.returncode == 0 and "4 finished" in result.stdout
    found = contents(root)
    assert len(found) == 16
    return found


def wait_for(root: Path, pattern: str) -> None:
    deadline = time.monotonic() + 120
    while not list(root.rglob(pattern)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_killed_sweep_goes_on(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    for pattern in (
        "dqn__*/seed_0/checkpoint/state-*",
        "dqn__*/seed_1/evaluations.csv",
        "meanq_*/*/checkpoint/state-1*",
    ):
        process = start(tmp_path)
        wait_for(tmp_path, pattern)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    result = run(*SWEEP, f"root={tmp_path}", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert contents(tmp_path) == undisturbed
    assert "skipped" in result.stdout and resumed(result.stdout) == 1
    again = run(*SWEEP, f"root={tmp_path}", cwd=tmp_path)
    assert again.returncode == 0 and "4 skipped" in again.stdout
    assert contents(tmp_path) == undisturbed


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_ends_the_sweep_with_the_run_saved(
    sent: signal.Signals, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    process = start(tmp_path)
    wait_for(tmp_path, "checkpoint/state-*")
    process.send_signal(sent)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + sent
    assert f"stopped by {sent.name}" in out and "1 interrupted, 3 not started" in out and "Traceback" not in out
    result = run(*SWEEP, f"root={tmp_path}", cwd=tmp_path)
    assert result.returncode == 0 and resumed(result.stdout) == 1 and "1 resumed, 3 finished" in result.stdout
    assert contents(tmp_path) == undisturbed


def test_the_same_sweep_twice_at_once_trains_each_run_once(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    processes = [start(tmp_path) for _ in range(2)]
    outputs = [process.communicate(timeout=280)[0] for process in processes]
    assert {process.returncode for process in processes} <= {0, 3}, outputs
    assert contents(tmp_path) == undisturbed
    assert sum(out.count("replay 600 frames") for out in outputs) == 4, "as many starts as runs"


def test_a_full_disk_is_said_to_be_full(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", disk]).returncode:
        pytest.skip("a small file system can be mounted only by root")
    try:
        result = run(*SWEEP, f"root={disk}", cwd=tmp_path)
        assert result.returncode == 1
        assert "No space left on device; its tables are whole: make room" in result.stderr
        assert "Traceback" not in result.stderr
        assert {read_run(path.parent).state for path in disk.rglob("status.json")} <= {"failed", "finished"}
        for path in disk.rglob("*.csv"):
            lines = path.read_text().splitlines()
            assert len({line.count(",") for line in lines}) == 1
        subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
        result = run(*SWEEP, f"root={disk}", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert contents(disk) == undisturbed
    finally:
        subprocess.run(["umount", disk], check=True)
    assert states(tmp_path) == {}
