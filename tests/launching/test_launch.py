"""What a launcher is given, how a machine is divided among runs, and how the end of a job is told."""

import dataclasses
import os
import pickle
import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext
from omegaconf import OmegaConf, open_dict

from meanq.config.checks import from_omegaconf
from meanq.config.errors import ConfigError
from meanq.config.schema import CONFIG_DIR
from meanq.launching import slurm_queue
from meanq.launching.execute import RunFailedError
from meanq.launching.hydra_bridge import sweep_config
from meanq.launching.launch import FrozenConfigs, context_for, frozen_configs, launch
from meanq.launching.local import LocalLauncher, Share, available_cores, describe, divide, run_names
from meanq.launching.plan import Plan, plan
from meanq.launching.slurm import explain_rejection
from meanq.launching.slurm_queue import QueueEntry, Submitted, Waiting, already_queued, ask_queue, remember

PROJECT = Path(__file__).parents[2]


def planned(*arguments: str) -> Plan:
    found = plan(["-m", *arguments])
    assert found is not None
    return found


def frozen(a_plan: Plan) -> FrozenConfigs:
    return FrozenConfigs(dict(zip(map(tuple, a_plan.job_overrides), a_plan.configs, strict=True)))


def test_a_launcher_gets_the_configurations_that_were_checked_whatever_happens_to_conf(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    shutil.copytree(CONFIG_DIR, conf)
    arguments = ("--config-path", str(conf), "algo=meanq,rainbow", "env=chain", "seed=0,1", f"root={tmp_path}")
    a_plan = planned(*arguments)
    sent = pickle.dumps(frozen(a_plan))
    master = OmegaConf.create({"hydra": {"overrides": {"task": []}, "sweep": {"dir": "${root}/${study}"}}})
    shutil.rmtree(conf)
    received: FrozenConfigs = pickle.loads(sent)
    for overrides, config in zip(a_plan.job_overrides, a_plan.configs, strict=True):
        composed = received.load_sweep_config(master, overrides)
        assert composed.hydra.overrides.task == overrides
        assert composed.hydra.sweep.dir == f"{tmp_path}/default", "references to the run's fields are its own"
        with open_dict(composed):  # as Hydra does before it calls a job
            del composed["hydra"]
        assert from_omegaconf(composed) == config
    assert master.hydra.overrides.task == [], "the master is left as it was"


def test_one_jobs_share_of_a_sweep_does_not_grow_with_it(tmp_path: Path) -> None:
    a_plan = planned("algo=meanq,dqn,rainbow", "env=chain,hero", "seed=0", f"root={tmp_path}")
    all_of_them = frozen(a_plan)
    context = HydraContext(config_loader=all_of_them, callbacks=None)  # type: ignore[arg-type]
    one = frozen_configs(context_for(context, a_plan.job_overrides[0]))
    assert one.config(a_plan.job_overrides[0]) == a_plan.configs[0]
    with pytest.raises(KeyError):
        one.config(a_plan.job_overrides[1])
    assert 3 * len(pickle.dumps(one)) < len(pickle.dumps(all_of_them))


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
    assert launch(dataclasses.replace(a_plan, config_path="file:///nowhere"), lambda config: None) == []
    assert capsys.readouterr().out.count("is finished already: skipped") == 2


PARAMS = {"partition": "gpuu", "gpus_per_node": 9, "cpus_per_task": 4, "mem_gb": 12, "timeout_min": 60}


@pytest.mark.parametrize(
    ("sbatch", "says"),
    [
        (
            "sbatch: error: invalid partition specified: gpuu\n"
            "sbatch: error: Batch job submission failed: Invalid partition name specified",
            "hydra.launcher.partition=gpuu: SLURM refused the jobs (Invalid partition name specified); "
            "`sinfo -s` lists the partitions",
        ),
        (
            "sbatch: error: Batch job submission failed: Requested time limit is invalid",
            "hydra.launcher.timeout_min=60: SLURM refused the jobs (Requested time limit is invalid); "
            "`sinfo -o '%P %l'` shows the limits",
        ),
        (
            "sbatch: error: Batch job submission failed: Requested node configuration is not available",
            "hydra/launcher=slurm: SLURM refused the jobs (Requested node configuration is not available); "
            "asked for gpus_per_node=9, cpus_per_task=4, mem_gb=12, timeout_min=60",
        ),
    ],
)
def test_what_sbatch_refuses_is_told_by_field(sbatch: str, says: str) -> None:
    assert explain_rejection(sbatch, PARAMS) == says


def test_queued_jobs_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [Submitted(f"7_{i}", tmp_path / f"seed_{i}") for i in range(4)]
    remember(tmp_path, runs, "meanq-default")
    queue = {
        "7_0": QueueEntry("PENDING", "Priority", "meanq-default"),
        "7_1": QueueEntry("RUNNING", "None", "meanq-default"),
        "7_2": QueueEntry("CANCELLED", "None", "meanq-default"),
        "7_3": QueueEntry("RUNNING", "None", "somebody-elses"),
    }
    monkeypatch.setattr(slurm_queue, "queue", lambda: queue)
    assert already_queued(tmp_path, "meanq-default") == {run.directory: run for run in runs[:2]}
    assert already_queued(tmp_path / "empty", "meanq-default") == {}


def test_a_queue_that_is_not_known_is_asked_again_and_then_nothing_is_submitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [None, None, {}]
    monkeypatch.setattr(slurm_queue, "queue", lambda: answers.pop(0))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert ask_queue(tries=3) == {}
    answers += [None, None]
    with pytest.raises(ConfigError, match=r"squeue does not answer, .* nothing was submitted"):
        ask_queue(tries=2)
    assert not answers


def test_waiting_ends_for_jobs_that_are_killed_gone_or_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The queue answers late, once not at all; a job that is queued again is not taken for ended."""
    monkeypatch.setattr(slurm_queue, "ENDED_SECONDS", 5.0)
    clock = [0.0]
    fake_time = SimpleNamespace(  # for the launcher alone: other threads of the tests need the real one
        sleep=lambda seconds: clock.__setitem__(0, clock[0] + seconds),
        monotonic=lambda: clock[0],
        strftime=time.strftime,
    )
    monkeypatch.setattr(slurm_queue, "time", fake_time)
    running = QueueEntry("RUNNING", "None", "x")

    def finish(job: str, status: JobStatus, value: object = None) -> None:
        returned = JobReturn(status=status)
        returned.return_value = value
        (tmp_path / f"{job}.pkl").write_bytes(pickle.dumps(("success", returned)))

    def ask() -> dict[str, QueueEntry] | None:
        now = clock[0]
        if 10 < now < 30:
            return None
        if now > 60:
            finish("good", JobStatus.COMPLETED)
        if now > 40:
            finish("raises", JobStatus.FAILED, RuntimeError("on purpose"))
        preempted = 30 < now < 34
        answer = {"good": QueueEntry("PREEMPTED", "None", "x") if preempted else running, "raises": running}
        if now < 5:
            answer |= {"killed": running, "gone": running}
        else:
            answer["killed"] = QueueEntry("OUT_OF_MEMORY", "None", "x")
        return answer

    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "status.json").write_text('{"state": "finished"}')
    jobs = [Submitted(name, tmp_path / name) for name in ("good", "raises", "killed", "gone", "done")]
    outcomes = Waiting(jobs, lambda job: tmp_path / f"{job}.pkl").wait(ask)
    assert outcomes["good"] is None and outcomes["done"] is None
    assert str(outcomes["raises"]) == "on purpose"
    assert "left no result (ended as OUT_OF_MEMORY)" in str(outcomes["killed"])
    assert "left no result (no longer in the queue)" in str(outcomes["gone"])
    said = capsys.readouterr().out
    assert "squeue does not answer" in said and said.strip().endswith("2 done, 3 failed")


def test_a_job_that_an_older_version_submitted_says_so() -> None:
    with pytest.raises(ImportError, match=r"older version of meanq; cancel it"):
        pickle.loads(b"cmeanq.slurm_launcher\nSlurmLauncher\n.")


def test_a_failure_survives_the_way_back_from_a_job() -> None:
    failure = pickle.loads(pickle.dumps(RunFailedError(Path("runs/x"), 2)))
    assert failure.code == 2 and str(failure).startswith("runs/x: not started, because its configuration")


def documentation(kind: str) -> list[str]:
    """The blocks of docs/slurm.md in one language."""
    text = (PROJECT / "docs" / "slurm.md").read_text()
    return re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)


def test_the_commands_of_the_documentation_name_runs_and_a_launcher(tmp_path: Path) -> None:
    commands = [line for block in documentation("bash") for line in block.splitlines() if "meanq.run" in line]
    assert len(commands) == 3
    for command in commands:
        words = command.partition("meanq.run ")[2].partition(" >")[0].split()
        found = plan([*words, f"root={tmp_path}"])
        assert found is not None and found.launcher in ("slurm", "local") and len(found.configs) == 10


def test_a_labs_own_launcher_file_extends_ours(tmp_path: Path) -> None:
    (block,) = documentation("yaml")
    own = tmp_path / "my_conf" / "hydra" / "launcher"
    own.mkdir(parents=True)
    (own / "mylab.yaml").write_text(block)
    found = planned("--config-dir", str(tmp_path / "my_conf"), "hydra/launcher=mylab", "seed=0", f"root={tmp_path}")
    with sweep_config(found.config_path, "config", found.shared_overrides) as composed:
        launcher = composed.hydra.launcher
    assert (launcher._target_, launcher.partition, launcher.timeout_min, launcher.mem_gb) == (
        "meanq.launching.slurm.SlurmLauncher",
        "gpu",
        480,
        12,
    )


def test_the_documented_fields_are_those_of_the_files() -> None:
    documented = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", (PROJECT / "docs" / "slurm.md").read_text(), re.MULTILINE)
    names = {name for row in documented for name in re.findall(r"`(\w+)`", row)}
    slurm, local = (OmegaConf.load(CONFIG_DIR / "hydra" / "launcher" / f"{name}.yaml") for name in ("slurm", "local"))
    fields = (set(slurm) | set(local)) - {"defaults", "_target_", "submitit_folder", "name"}
    assert names == fields
