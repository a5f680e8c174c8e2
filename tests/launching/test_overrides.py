"""meta.json stores the overrides that made a run, however it was launched."""

import json
import pickle
import sys
from pathlib import Path

import pytest

from meanq import run
from meanq.launching.execute import Run
from meanq.launching.plan import plan
from meanq.launching.slurm_job import SlurmJob

SHORT = (
    "env=chain",
    "total_steps=60",
    "algo.first_update=50",
    "algo.ensemble_size=2",
    "evaluation.episodes=1",
    "probe.states=2",
    "threads=1",
)


@pytest.mark.parametrize("launcher", [[], ["-m"], ["-m", "hydra/launcher=local", "hydra.launcher.jobs=1"]])
def test_overrides_are_stored(
    launcher: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["meanq", *launcher, *SHORT, "seed=3", "label=mine", f"root={tmp_path}"])
    with pytest.raises(SystemExit) as stop:
        run.main()
    assert stop.value.code == 0, capfd.readouterr().err
    meta = json.loads((tmp_path / "default" / "chain" / "mine" / "seed_3" / "meta.json").read_text())
    assert {*SHORT, "seed=3"} <= set(meta["overrides"])
    assert not any(override.startswith("hydra") for override in meta["overrides"]), "a launcher is no part of the run"


def test_overrides_of_a_slurm_job_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a job does on the cluster, here without one; `checkpoint` is what submitit queues again."""
    monkeypatch.setattr("meanq.launching.slurm_job.hold_stop_signals", lambda: None)
    planned = plan(["-m", "hydra/launcher=slurm", *SHORT, "seed=3", "label=mine", f"root={tmp_path}"])
    assert planned is not None
    submitted = pickle.dumps(SlurmJob([Run(planned.configs[0], planned.job_overrides[0])]).checkpoint().function)
    pickle.loads(submitted)()
    meta = json.loads((planned.directories[0] / "meta.json").read_text())
    assert meta["overrides"] == planned.job_overrides[0]
