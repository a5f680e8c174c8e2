"""What a launcher is given, and how a machine is divided among runs."""

import contextlib
import os
import pickle
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from omegaconf import OmegaConf

from meanq.config.errors import ConfigError
from meanq.config.schema import CONFIG_DIR
from meanq.launching.cost import check_fits
from meanq.launching.execute import Run
from meanq.launching.launch import launch
from meanq.launching.local import LocalLauncher, Share, available_cores, describe, divide, run_names
from meanq.launching.plan import Plan, plan
from meanq.rundir.sweeps import SWEEPS, planned_runs

PROJECT = Path(__file__).parents[2]


def planned(*arguments: str) -> Plan:
    found = plan(["-m", *arguments])
    assert found is not None
    return found


def test_a_plan_does_not_change_with_conf(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    shutil.copytree(CONFIG_DIR, conf)
    arguments = ("--config-path", str(conf), "algo=meanq,rainbow", "env=chain", "seed=0,1", f"root={tmp_path}")
    a_plan = planned(*arguments, "hydra/launcher=slurm")
    shutil.rmtree(conf)
    runs = [Run(*pair) for pair in zip(a_plan.configs, a_plan.job_overrides, strict=True)]
    assert pickle.loads(pickle.dumps(runs)) == runs
    assert a_plan.launcher_fields["submitit_folder"] == f"{tmp_path}/default/.submitit"
    assert a_plan.launcher_fields["name"] == "meanq-default"


@pytest.mark.parametrize(
    ("cores", "gpus", "runs", "jobs", "threads", "shares"),
    [
        ([0, 1, 2, 3], [], 9, None, None, [((0,), None), ((1,), None), ((2,), None), ((3,), None)]),
        ([0, 1, 2, 3], [], 2, None, None, [((0, 1), None), ((2, 3), None)]),
        ([4, 6, 7], [], 9, 2, None, [((4,), None), ((6,), None)]),
        ([0, 1, 2, 3], [], 9, None, 2, [((0, 1), None), ((2, 3), None)]),
        ([0, 1, 2, 3], [], 9, 1, None, [((0, 1, 2, 3), None)]),
        ([0, 1], [], 9, None, 4, [((0, 1), None)]),
        ([0, 1, 2, 3], ["5", "7"], 9, None, None, [((0, 1), "5"), ((2, 3), "7")]),
        ([0, 1, 2, 3], ["5", "7"], 9, 4, None, [((0,), "5"), ((1,), "7"), ((2,), "5"), ((3,), "7")]),
        ([0], ["0", "1"], 9, None, None, [((0,), "0")]),
    ],
)
def test_cores_and_gpus_are_divided(cores, gpus, runs, jobs, threads, shares) -> None:  # type: ignore[no-untyped-def]
    assert divide(cores, gpus, runs, jobs, threads) == [Share(*share) for share in shares]


def test_idle_cores_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another sweep may have bound its runs to the others; a core that psutil does not know counts as idle."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2, 3, 5, 8})
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval, percpu: [99.0, 0.0, 3.0, 80.0, 90.0, 20.0])
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    assert available_cores() == [2, 5, 8, 0, 3]
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "2")
    assert available_cores() == [2, 5]


@pytest.mark.parametrize(
    ("jobs", "threads", "says"),
    [
        (3, None, r"hydra.launcher.jobs=3: here are 2 cores; write hydra.launcher.jobs=2"),
        (2, 2, r"hydra.launcher.jobs=2 with 2 threads each: here are 2 cores; write hydra.launcher.jobs=1"),
    ],
)
def test_more_than_there_is_cannot_be_divided(jobs: int, threads: int | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        divide([0, 1], [], 9, jobs, threads)


@pytest.mark.parametrize("field", ["jobs", "threads"])
@pytest.mark.parametrize("value", [0, -1, "two", 1.5])
def test_fields_of_the_local_launcher_are_checked(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"hydra.launcher.{field}={value}: write a whole number"):
        LocalLauncher(**{"jobs": None, "threads": None, field: value})  # type: ignore[arg-type]


def test_the_lines_of_runs_at_once_begin_with_what_tells_them_apart() -> None:
    jobs = [["algo=meanq", "env=chain", "seed=0", "label='x'"], ["algo=dqn", "env=chain", "seed=0", "label='y'"]]
    assert run_names(jobs) == ["algo=meanq", "algo=dqn  "]
    assert run_names(jobs[:1]) == ["run"]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (0, "finished"),
        (1, "failed with exit code 1"),
        (-9, "killed by signal 9 (SIGKILL; was memory short?)"),
        (-11, "killed by signal 11 (SIGSEGV)"),
        (143, "stopped by signal 15"),
    ],
)
def test_an_exit_code_is_explained(code: int, says: str) -> None:
    assert describe(code) == says


def test_finished_runs_are_not_given_to_a_launcher(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_plan = planned("env=chain", "seed=0,1", f"root={tmp_path}")
    for directory in a_plan.directories:
        directory.mkdir(parents=True)
        (directory / "status.json").write_text('{"state": "finished"}')
    assert launch(a_plan) == []
    assert capsys.readouterr().out.count("is finished already: skipped") == 2


def test_a_job_that_an_older_version_submitted_says_so() -> None:
    with pytest.raises(ImportError, match=r"older version of meanq; cancel it"):
        pickle.loads(b"cmeanq.slurm_launcher\nSlurmLauncher\n.")


def documentation(kind: str) -> list[str]:
    """The blocks of docs/slurm.md in one language."""
    text = (PROJECT / "docs" / "slurm.md").read_text()
    return re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)


def write_launchers(directory: Path) -> list[str]:
    """Write the documentation's own launchers below my_conf/; return their names."""
    own = directory / "my_conf" / "hydra" / "launcher"
    own.mkdir(parents=True)
    names = []
    for block in documentation("yaml"):
        names.append("scavenge" if "scavenge" in block else f"mylab{len(names)}")
        (own / f"{names[-1]}.yaml").write_text(block)
    return names


def test_the_commands_of_the_documentation_name_runs_and_a_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_launchers(tmp_path)
    monkeypatch.chdir(tmp_path)
    lines = {line for block in documentation("bash") for line in block.splitlines() if "meanq run" in line}
    assert len(lines) == 6
    for line in lines:
        found = plan(line.partition("meanq run ")[2].split())
        assert found is not None and found.launcher in ("slurm", "local", "scavenge") and len(found.configs) == 10


def test_a_labs_own_launcher_file_extends_ours(tmp_path: Path) -> None:
    names = write_launchers(tmp_path)
    assert len(names) == 4 and "scavenge" in names
    for name in names:
        own = ("--config-dir", str(tmp_path / "my_conf"), f"hydra/launcher={name}")
        fields = planned(*own, "seed=0", f"root={tmp_path}").launcher_fields
        assert fields["_target_"] == "meanq.launching.slurm.SlurmLauncher"
        assert fields["timeout_min"] == {"mylab0": 480, "scavenge": 240}.get(name, 1440)
        assert fields["additional_parameters"]["requeue"] is True


def test_the_documented_fields_are_those_of_the_files() -> None:
    documented = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", (PROJECT / "docs" / "slurm.md").read_text(), re.MULTILINE)
    names = {name for row in documented for name in re.findall(r"`(\w+)`", row)}
    files = [OmegaConf.load(CONFIG_DIR / "hydra" / "launcher" / f"{name}.yaml") for name in ("slurm", "local")]
    fields = (set(files[0]) | set(files[1])) - {"defaults", "_target_", "submitit_folder", "name"}
    assert names == fields


@pytest.mark.parametrize("seeds", ["0-2", "0"])
def test_a_sweep_says_what_it_is_about_to_run(seeds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = planned("env=chain", f"seed={seeds}", f"root={tmp_path}")
    seen: list[set[Path]] = []
    monkeypatch.setattr("meanq.launching.launch.execute", lambda run: seen.append(set(planned_runs(tmp_path))))
    assert launch(sweep) == []
    assert seen == ([set(sweep.directories)] * 3 if seeds == "0-2" else [set()]), "one run needs no list"
    assert not (tmp_path / SWEEPS).exists()


GIGABYTE = 2**30
REPLAY = r"^algo.replay_capacity=500000: the replay needs 3\.6 GB and \S+ GB are free"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], rf"{REPLAY}: write \d+ or less$"),
        (
            ["hydra/launcher=local", "hydra.launcher.jobs=1"],
            rf"{REPLAY} for each run: .*, or fewer hydra\.launcher\.jobs$",
        ),
        (
            ["hydra/launcher=slurm", "hydra.launcher.mem_gb=2"],
            rf"{REPLAY} in a job: .* than hydra\.launcher\.mem_gb=2$",
        ),
        (
            ["hydra/launcher=slurm", "hydra.launcher.runs_per_job=4"],
            rf"{REPLAY} for each run of a job: write \d+ or less, or more than hydra\.launcher\.mem_gb=12$",
        ),
        (["hydra/launcher=slurm"], None),
        (["hydra/launcher=slurm", "hydra.launcher.mem_gb=null"], None),
        (["algo.replay_capacity=100000"], None),
    ],
)
def test_a_dry_run_refuses_what_cannot_fit(
    arguments: list[str], says: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a machine with 2 GB, which does not matter to a cluster's jobs."""
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2 * GIGABYTE))
    a_plan = planned("algo=dqn", "env=seaquest", "seed=0-1", "device=cpu", *arguments, f"root={tmp_path}/runs")
    expected = pytest.raises(ConfigError, match=says) if says else contextlib.nullcontext()
    with expected:
        check_fits(a_plan)
