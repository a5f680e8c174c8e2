"""A sweep says what it is about to run, for as long as it lives; status shows these runs as waiting."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.table import Table

from meanq.rundir.progress import read_runs
from meanq.rundir.sweeps import SWEEPS, announced, planned_runs
from meanq.status.__main__ import main
from meanq.status.overview import Overview
from tests.synthetic_runs import write_run

# Holds a plan until it is killed.
HOLDER = (
    "import sys, time; from pathlib import Path; from meanq.rundir.sweeps import announced\n"
    "root = Path(sys.argv[1])\n"
    "with announced(root, [root / name for name in sys.argv[2:]]):\n"
    "    print('ready', flush=True); time.sleep(600)\n"
)


def states(path: Path) -> dict[str, str]:
    return {"/".join(run.directory.parts[-2:]): run.state for run in read_runs(path, [])}


def age(directory: Path, seconds: float) -> None:
    """Let a run have written its status so long ago."""
    then = time.time() - seconds
    os.utime(directory / "status.json", (then, then))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A study with a finished run, one that failed yesterday, one that was interrupted; two have not begun."""
    study = tmp_path / "runs" / "study"
    for seed, state in enumerate(("finished", "failed", "interrupted")):
        steps = {"returns": {100: 1.0}} if state == "finished" else {}
        age(write_run(study, "game", "dqn", seed, state=state, **steps), 1000)
    return tmp_path / "runs"


def plan(root: Path) -> list[Path]:
    return [root / "study" / "game" / "dqn" / f"seed_{seed}" for seed in range(5)]


def test_runs_of_a_living_sweep_wait(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = states(root)
    assert before == {"dqn/seed_0": "finished", "dqn/seed_1": "failed", "dqn/seed_2": "interrupted"}
    with announced(root, plan(root)[1:]):
        during = {f"dqn/seed_{seed}": "waiting" for seed in range(1, 5)} | {"dqn/seed_0": "finished"}
        assert states(root) == states(root / "study") == states(root / "study" / "game") == during
        assert states(root / "study" / "game" / "dqn" / "seed_4") == {"dqn/seed_4": "waiting"}
        assert main([str(root)]) == 0
        assert "5 runs: 1 finished, 4 waiting." in capsys.readouterr().out
        assert main([str(root), "--json"]) == 0
        assert [run["state"] for run in json.loads(capsys.readouterr().out)].count("waiting") == 4
        table = Overview(root).table(0)[0]  # a row per label
        assert isinstance(table, Table)
        cells = {column.header: [str(cell) for cell in column.cells] for column in table.columns}
        assert cells["states"] == ["1 finished, 4 waiting"] and cells["done"] == ["20.0%"] and cells["ETA"] == ["-"]
        age(plan(root)[1], -1)  # the sweep came to it, and it failed again
        assert states(root)["dqn/seed_1"] == "failed"
    assert states(root) == before and not (root / SWEEPS).exists()


def test_the_plan_of_a_killed_sweep_counts_no_longer(root: Path) -> None:
    before = states(root)
    names = [str(path.relative_to(root)) for path in plan(root)[3:]]
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(root), *names], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "ready\n"
        assert states(root) == before | {"dqn/seed_3": "waiting", "dqn/seed_4": "waiting"}
        with announced(root, plan(root)[3:]):  # the same sweep a second time: the first has said it
            assert len(list((root / SWEEPS).iterdir())) == 1
        assert len(planned_runs(root)) == 2
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.communicate()
    assert (root / SWEEPS).exists() and states(root) == before
    with announced(root, plan(root)[4:]):
        assert len(list((root / SWEEPS).iterdir())) == 1, "what was left behind is removed"
    assert not (root / SWEEPS).exists()


def test_a_plan_that_cannot_be_written_or_read_hinders_nobody(root: Path) -> None:
    (root / SWEEPS).write_text("a file")
    with announced(root, plan(root)):
        assert "waiting" not in states(root).values()
    (root / SWEEPS).unlink()
    with announced(root, plan(root)):
        (place,) = (root / SWEEPS).iterdir()
        for content in ("{", '{"runs": 3}', '{"runs": ["../../elsewhere", "/etc", 5]}'):
            (place / "plan.json").write_text(content)
            assert "waiting" not in {state for name, state in states(root).items() if not name.endswith("/5")}
