"""meta.json stores the overrides that made a run, however it was launched."""

import json
import pickle
import sys
from pathlib import Path

import pytest
from hydra.core.singleton import Singleton
from hydra.core.utils import JobStatus
from hydra.types import HydraContext

from meanq import run
from meanq.launching.hydra_bridge import make_callbacks, sweep_config
from meanq.launching.launch import FrozenConfigs, make_launcher
from meanq.launching.plan import plan

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
    """What a job does on the cluster, here without one."""
    monkeypatch.setattr("meanq.launching.slurm.hold_stop_signals", lambda: None)
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    planned = plan(["-m", "hydra/launcher=slurm", *SHORT, "seed=3", "label=mine", f"root={tmp_path}"])
    assert planned is not None
    (overrides,) = planned.job_overrides
    frozen = FrozenConfigs({tuple(overrides): planned.configs[0]})
    with sweep_config(planned.config_path, planned.config_name, planned.shared_overrides) as config:
        context = HydraContext(config_loader=frozen, callbacks=make_callbacks(config))  # type: ignore[arg-type]
        submitted = pickle.dumps(make_launcher(config, context, run.job))
        returned = pickle.loads(submitted)(overrides, "hydra.sweep.dir", 0, "0", Singleton.get_state())
    assert returned.status == JobStatus.COMPLETED, returned._return_value
    meta = json.loads((planned.directories[0] / "meta.json").read_text())
    assert meta["overrides"] == overrides
