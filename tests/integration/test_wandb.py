"""Whole runs with W&B: sweeps, a network that is dead, signals, and training that is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.short_runs import RULES
from tests.wandb_files import exit_codes, history, of_type, records

PROJECT = Path(__file__).parents[2]
TINY = (
    "env=minatar/asterix",
    "total_steps=150",
    "algo.first_update=50",
    "algo.ensemble_size=2",
    "evaluation.episodes=2",
    "evaluation.every=50",
    "probe.states=2",
    "probe.every=50",
    "log_every=50",
    "env.options.max_steps=30",
    "threads=1",
    "study=s",
    "label=l",
)
RUN = Path("runs/s/minatar_asterix/l")


def environment(home: Path, **more: str) -> dict[str, str]:
    """Nobody's W&B account, and a home in which nothing should appear."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROJECT), "HOME": str(home / "home"), **more}


def run(*arguments: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meanq.run", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment(cwd, **more), capture_output=True, text=True, timeout=300)


def mirrors_of(directory: Path) -> list[int]:
    """Processes that mirror this directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"meanq.mirrors.process" in arguments and str(directory).encode() in arguments:
            found.append(int(path.parent.name))
    return found


def wait_until(condition, seconds: float = 60) -> bool:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(condition())


def test_a_sweep_makes_one_wandb_run_each_and_failure_is_shown(tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(RULES)
    tiny = [override for override in TINY if not override.startswith(("label", "algo.first_update"))]
    choices = ("algo.bootstrap=mean,rules.broken", "algo.first_update=70", "algo.interactions_per_update=1")
    result = run("-m", *tiny, *choices, "logger=wandb", "logger.finish_seconds=120", cwd=tmp_path)
    assert result.returncode == 1, result.stderr
    assert "wandb:" not in result.stdout + result.stderr, "no banners"
    assert "RuntimeError: on purpose" in result.stderr
    finished, failed = sorted(tmp_path.glob("runs/s/minatar_asterix/*/seed_0"), key=lambda path: "broken" in str(path))
    found = [records(finished), records(failed)]
    assert [exit_codes(each) for each in found] == [[0], [1]]
    assert [row["_step"] for row in history(found[0])] == [0, 50, 100, 150]
    assert [row["_step"] for row in history(found[1])] == [0, 50]
    assert len({of_type(each, "run")[0]["run_id"] for each in found}) == 2
    assert len({of_type(each, "run")[0]["run_group"] for each in found}) == 2
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["rules.py", "runs"]


def test_a_dead_network_neither_stops_a_run_nor_makes_it_wait(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "dead").mkdir()
    plain = run(*TINY, cwd=tmp_path / "plain")
    assert plain.returncode == 0 and plain.stderr == ""
    started = time.monotonic()
    dead = run(
        *TINY,
        "logger=wandb",
        "logger.mode=online",
        "logger.finish_seconds=2",
        cwd=tmp_path / "dead",
        WANDB_BASE_URL="http://127.0.0.1:9",
        WANDB_API_KEY="a" * 40,
    )
    seconds = time.monotonic() - started
    assert dead.returncode == 0
    assert dead.stderr.count("\n") == 1 and dead.stderr.startswith("meanq: logger=wandb: ")
    assert f"meanq upload {RUN / 'seed_0'}" in dead.stderr
    assert seconds < 80, "W&B's own waiting would be 90 seconds at the start and as long as it takes at the end"
    for name in ("evaluations.csv", "training.csv", "probes.npz", "weights.safetensors"):
        assert (tmp_path / "dead" / RUN / "seed_0" / name).read_bytes() == (
            tmp_path / "plain" / RUN / "seed_0" / name
        ).read_bytes()
    assert not mirrors_of(tmp_path / "dead" / RUN / "seed_0")
    upload = [sys.executable, "-m", "meanq.wandb_upload", str(tmp_path / "dead"), "--mode", "offline"]
    for expected in ("1 of 1 run(s) uploaded", "nothing to upload"):
        result = subprocess.run(upload, env=environment(tmp_path), capture_output=True, text=True, timeout=120)
        assert result.returncode == 0 and result.stdout.endswith(f"{expected}\n") and result.stderr == ""
    assert len(history(records(tmp_path / "dead" / RUN / "seed_0"))) == 4


def test_uploading_into_a_dead_network_is_an_error(tmp_path: Path) -> None:
    assert run(*TINY, cwd=tmp_path).returncode == 0
    command = [sys.executable, "-m", "meanq.wandb_upload", "runs", "--seconds", "3"]
    more = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "a" * 40}
    result = subprocess.run(
        command, cwd=tmp_path, env=environment(tmp_path, **more), capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 1 and "uploaded" not in result.stdout
    assert result.stderr.endswith(": not uploaded; the line above says why\n") and "Traceback" not in result.stderr


def test_wandb_is_not_even_imported_by_training(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "hooks = sys.excepthook, sys.exit, sys.stdout\n"
        "from tests.short_runs import SHORT, train\n"
        f"train({str(tmp_path)!r}, *SHORT, 'logger=wandb', 'logger.finish_seconds=120')\n"
        "assert hooks == (sys.excepthook, sys.exit, sys.stdout)\n"
        "assert 'wandb' not in sys.modules\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=PROJECT,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert list(tmp_path.rglob("*.wandb")) and not (tmp_path / "home").exists()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_mirror_outlives_signals_but_not_training(how: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "meanq.run", *TINY, "total_steps=1000000", "compile=false", "logger=wandb"]
    training = subprocess.Popen(
        command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    directory = tmp_path / RUN / "seed_0"
    try:
        assert wait_until(lambda: list(directory.glob("wandb/offline-run-*/*.wandb")))
        (mirror,) = mirrors_of(directory)
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):  # as a cluster signals all processes of a job
            os.kill(mirror, name)
        time.sleep(0.5)
        assert mirrors_of(directory) == [mirror]
        steps = json.loads((directory / "status.json").read_text())["step"]
        assert wait_until(lambda: json.loads((directory / "status.json").read_text())["step"] > steps)
        training.send_signal(how)
        training.wait(60)
        assert wait_until(lambda: not mirrors_of(directory))
    finally:
        training.kill()
        training.wait()
    found = records(directory)
    rows = [row["_step"] for row in history(found)]
    assert exit_codes(found) == [255]
    assert rows == [50 * i for i in range(len(rows))] and len(rows) > 1


def test_a_run_that_was_killed_and_resumed_is_one_run_with_each_step_once(tmp_path: Path) -> None:
    arguments = (*TINY, "total_steps=400", "checkpoint.every=60", "logger=wandb", "logger.finish_seconds=120")
    command = [sys.executable, "-m", "meanq.run", *arguments]
    training = subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.DEVNULL)
    directory = tmp_path / RUN / "seed_0"
    try:
        assert wait_until(lambda: list(directory.glob("checkpoint/state-1*")))
    finally:
        training.kill()
        training.wait()
    result = run(*arguments, cwd=tmp_path)
    assert result.returncode == 0 and "resumed from step" in result.stdout, result.stderr
    found = records(directory)
    assert [row["_step"] for row in history(found)] == list(range(0, 401, 50))
    assert exit_codes(found) == [0]
