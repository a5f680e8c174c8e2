"""The SLURM launcher without a SLURM: its fields, arrays, messages of sbatch, and how the end of a job is told."""

import json
import pickle
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from meanq.config.errors import ConfigError
from meanq.config.schema import CONFIG_DIR, Config
from meanq.launching import slurm, slurm_queue
from meanq.launching.execute import BUSY, FAILED, Run, RunFailedError, worst_code
from meanq.launching.local import Share
from meanq.launching.plan import plan
from meanq.launching.slurm import SlurmLauncher, sbatch_options
from meanq.launching.slurm_job import SlurmJob, share_out
from meanq.launching.slurm_refusal import explain_rejection, is_submit_limit
from meanq.launching.slurm_submit import RefusedError, script, split
from meanq.rundir.lock import DirectoryLock


@pytest.fixture(scope="module")
def chain() -> Config:
    found = plan(["env=chain"])
    assert found is not None
    return found.configs[0]


def fields(**changed: Any) -> dict[str, Any]:
    content = OmegaConf.load(CONFIG_DIR / "hydra" / "launcher" / "slurm.yaml")
    content.update({"submitit_folder": "/shared/.submitit", "name": "meanq-default"})
    found: Any = OmegaConf.to_container(content)
    del found["_target_"]
    return found | changed


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("timeout_min", 0, r"timeout_min=0: write a whole number of 1 or more"),
        ("timeout_min", 1.5, r"timeout_min=1.5: write a whole number"),
        ("timeout_min", 2, r"signal_delay_s=120: .* timeout_min=2; write less than 120"),
        ("array_parallelism", 0, r"array_parallelism=0: write a whole number of 1 or more"),
        ("runs_per_job", 0, r"runs_per_job=0: write a whole number of 1 or more"),
        ("retries", -1, r"retries=-1: write a whole number of 0 or more"),
        ("cpus_per_task", True, r"cpus_per_task=True: write a whole number"),
        ("mem_gb", 0, r"mem_gb=0: write a number of gigabytes"),
        ("gpus_per_node", -1, r"gpus_per_node=-1: write a number, or type and number, such as a100:1"),
        ("wait", "later", r"wait=later: write true or false"),
        ("setup", "module", r"setup=module: write a list of shell commands"),
        ("additional_parameters", 3, r"additional_parameters: write \+hydra"),
    ],
)
def test_a_value_that_cannot_work_is_refused(field: str, value: object, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"^hydra\.launcher\.{says}"):
        SlurmLauncher(**fields(**{field: value}))


def test_a_plan_checks_the_fields_of_its_launcher() -> None:
    with pytest.raises(ConfigError, match=r"^hydra\.launcher\.array_parallelism=0: write"):
        plan(["-m", "env=chain", "hydra/launcher=slurm", "hydra.launcher.array_parallelism=0"])


def test_runs_of_a_job_have_a_core_for_each_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name)
    launcher = SlurmLauncher(**fields(runs_per_job=3, cpus_per_task=4))
    with pytest.raises(
        ConfigError, match=r"cpus_per_task=4: 3 runs of 2 thread\(s\) each share a job; write 6 or more"
    ):
        launcher.launch([Run(Config(threads=2), [])])  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        ({}, {"gpus-per-node": 1, "mem": "12288M", "time": 1440, "signal": "USR2@120", "requeue": True}),
        ({"gpus_per_node": "a100:1"}, {"gpus-per-node": "a100:1"}),
        ({"gpus_per_node": 0}, {"gpus-per-node": None}),
        ({"gres": "gpu:a100:1"}, {"gpus-per-node": None, "gres": "gpu:a100:1"}),
        ({"gres": "scratch:10"}, {"gpus-per-node": 1, "gres": "scratch:10"}),
        ({"mem_gb": None, "mem_per_cpu": "4G"}, {"mem-per-cpu": "4G"}),
        ({"additional_parameters": {"mem": 0}}, {"mem": 0}),
        ({"additional_parameters": {"mail_type": "END", "nodes": 2}}, {"mail-type": "END", "nodes": 2}),
    ],
)
def test_fields_become_options_of_sbatch(changed: dict[str, Any], options: dict[str, Any]) -> None:
    found = sbatch_options(fields(**changed))
    assert {name: found[name] for name in options} == options
    assert ("mem" in found) == (fields(**changed)["mem_gb"] is not None)
    assert not {"wait", "retries", "runs-per-job", "submitit-folder", "additional-parameters"} & set(found)


def test_gpus_are_asked_for_once() -> None:
    with pytest.raises(ConfigError, match=r"gres=gpu:2: gpus_per_node=4 asks for GPUs, too; write one of them"):
        SlurmLauncher(**fields(gres="gpu:2", gpus_per_node=4))


def test_the_script_of_an_array(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    text = script(
        "f00", 3, folder, {"nice": 0, "requeue": True, "qos": None, "hold": False}, fields(setup=["module load x"]), 2
    )
    assert text.startswith("#!/bin/bash\n#SBATCH --array=0-2%2\n") and "#SBATCH --requeue\n" in text
    assert "#SBATCH --nice=0\n" in text and "hold" not in text
    assert f"#SBATCH --output='{folder}/%A_%a_0_log.out'\n" in text and "qos" not in text
    assert "\nmodule load x\n" in text and '"$folder/f00_${SLURM_ARRAY_TASK_ID}.pkl"' in text
    assert "--array" not in script("f00", 1, folder, {}, fields(), 2)
    assert "/50%%/%j_0_log.err" in script("f00", 1, tmp_path / "50%", {}, fields(), 2), "SLURM replaces %j, but not %%"


def test_where_nothing_can_be_written_is_one_line(
    chain: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name)
    (tmp_path / "file").touch()
    launcher = SlurmLauncher(**fields(submitit_folder=f"{tmp_path}/file/.submitit"))
    with pytest.raises(ConfigError, match=r"^root: cannot write to .*/file/\.submitit \(Not a directory\)"):
        launcher.launch([Run(chain, [])])


@pytest.mark.parametrize("count", [1, 2, 7, 10, 1001, 1002, 3000])
@pytest.mark.parametrize("most", [1, 3, 1001])
@pytest.mark.parametrize("at_once", [1, 2, 64, 5000])
def test_arrays_together_hold_the_limit(count: int, most: int, at_once: int) -> None:
    arrays = split(count, most, at_once)
    assert sum(array.size for array in arrays) == count and all(1 <= array.size <= most for array in arrays)
    assert all(array.at_once >= 1 for array in arrays), "SLURM takes 0 for no limit"
    # An array runs while no other of its chain does, so a limit holds if the chains' limits sum up to no more.
    chain: dict[int, int] = {}
    for number, array in enumerate(arrays):
        chain[number] = number if array.after is None else chain[array.after]
        assert array.at_once == arrays[chain[number]].at_once
    assert sum(arrays[first].at_once for first in set(chain.values())) <= at_once
    assert len({array.after for array in arrays if array.after is not None}) == sum(a.after is not None for a in arrays)


FIELDS = {"partition": "gpuu", "account": None, "qos": "short", "constraint": "a100", "gpus_per_node": 9, "gres": None}
FIELDS |= {"cpus_per_task": 4, "mem_gb": 12, "timeout_min": 60, "dependency": None, "exclude": None}
FIELDS |= {"additional_parameters": {"requeue": True, "bogus": 1}}
POLICY = (
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size "
)
POLICY += "and/or time limits)"
PREFIX = "sbatch: error: Batch job submission failed: "
UNKNOWN = "sbatch: unrecognized option '--bogus=1'\nTry \"sbatch --help\" for more information"


@pytest.mark.parametrize(
    ("sbatch", "blamed"),
    [
        (f"sbatch: error: invalid partition specified: gpuu\n{PREFIX}Invalid partition name specified", "partition"),
        (f"{PREFIX}User's group not permitted to use this partition", "partition"),
        (f"{PREFIX}Invalid account or account/partition combination specified", "account"),
        (f"sbatch: error: You must specify an account, e.g. -A lab\n{PREFIX}Unspecified error", "account"),
        (f"{PREFIX}Job's account not permitted to use this partition (gpu allows lab not me)", "account"),
        (f"{PREFIX}Invalid qos specification", "qos"),
        (f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{POLICY}", "qos"),
        (f"sbatch: error: AssocMaxSubmitJobLimit\n{POLICY}", "account"),
        (f"sbatch: error: AssocGrpSubmitJobsLimit\n{POLICY}", "account"),
        (f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{POLICY}", "timeout_min"),
        (f"sbatch: error: QOSMaxGRESPerUser\n{POLICY}", "gpus_per_node"),
        (f"sbatch: error: QOSMaxMemoryPerJob\n{POLICY}", "mem_gb"),
        (f"sbatch: error: QOSMaxCpuPerUserLimit\n{POLICY}", "cpus_per_task"),
        (POLICY, "qos"),
        (f"{PREFIX}Requested time limit is invalid (missing or exceeds some limit)", "timeout_min"),
        (f"sbatch: error: Please specify a GPU type\n{PREFIX}Unspecified error", "gpus_per_node"),
        (f"sbatch: error: Use --gres=gpu:TYPE:N in partition gpu\n{PREFIX}Unspecified error", "gpus_per_node"),
        (f"{PREFIX}Invalid generic resource (gres) specification", "gpus_per_node"),
        (f"{PREFIX}Invalid Trackable RESource (TRES) specification", "gpus_per_node"),
        (f"{PREFIX}Invalid feature specification", "constraint"),
        (f"sbatch: error: Memory specification can not be satisfied\n{PREFIX}Requested node", "mem_gb"),
        (f"sbatch: error: CPU count per node can not be satisfied\n{PREFIX}Requested node", "cpus_per_task"),
        (f"{PREFIX}Job dependency problem", "dependency"),
        (UNKNOWN, "additional_parameters.bogus"),
        ('sbatch: error: Invalid numeric value "x" for --cpus-per-task.', "cpus_per_task"),
        ("sbatch: error: Invalid --mail-type specification", "additional_parameters.mail-type"),
    ],
)
def test_the_field_that_sbatch_complains_about_is_named(sbatch: str, blamed: str) -> None:
    said = explain_rejection(sbatch, FIELDS)
    value: Any = {"additional_parameters.bogus": 1}.get(blamed, FIELDS.get(blamed))
    assert said.startswith(f"hydra.launcher.{blamed}={'null' if value is None else value}: SLURM refused the jobs (")
    assert "\n" not in said
    for line in sbatch.splitlines():  # the whole message
        assert line.removeprefix("sbatch: ").removeprefix("error: ").removeprefix(PREFIX[15:]).rstrip(".") in said


def test_a_request_for_gpus_by_gres_is_blamed_as_such() -> None:
    said = explain_rejection("sbatch: error: Please specify a GPU type", FIELDS | {"gres": "gpu:1"})
    assert said.startswith("hydra.launcher.gres=gpu:1: SLURM refused the jobs (Please specify a GPU type); `sinfo")


@pytest.mark.parametrize(
    ("sbatch", "says"),
    [
        (
            f"{PREFIX}Requested node configuration is not available",
            "(Requested node configuration is not available); asked for partition=gpuu, gpus_per_node=9, cpus",
        ),
        (f"{PREFIX}Unable to contact slurm controller (connect failure)", "SLURM does not answer; try later"),
        ("", "SLURM refused the jobs (sbatch gave no reason); asked for"),
    ],
)
def test_without_a_field_to_blame_none_is(sbatch: str, says: str) -> None:
    said = explain_rejection(sbatch, FIELDS)
    assert said.startswith("hydra/launcher=slurm: ") and says in said


@pytest.mark.parametrize(
    ("sbatch", "fewer"),
    [
        (f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{POLICY}", True),
        (f"sbatch: error: AssocGrpSubmitJobsLimit\n{POLICY}", True),
        (POLICY, True),
        (f"{PREFIX}Invalid job array specification", True),
        (f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{POLICY}", False),
        (f"{PREFIX}Invalid qos specification", False),
    ],
)
def test_fewer_jobs_are_tried_only_where_that_can_help(sbatch: str, fewer: bool) -> None:
    assert is_submit_limit(sbatch) is fewer


@pytest.mark.parametrize(
    ("cores", "gpus", "places", "shares"),
    [
        ([0, 1, 2, 3], ["0"], 2, [((0, 1), "0"), ((2, 3), "0")]),
        ([4, 5, 6], [], 3, [((4,), None), ((5,), None), ((6,), None)]),
        ([7], ["0", "1"], 3, [((7,), "0"), ((7,), "1"), ((7,), "0")]),
    ],
)
def test_the_runs_of_a_job_share_it(cores: list[int], gpus: list[str], places: int, shares: Any) -> None:
    assert share_out(cores, gpus, places) == [Share(*share) for share in shares]


def test_a_job_of_an_earlier_version_is_understood() -> None:
    """It has one run."""
    run, job = Run(Config(), []), SlurmJob([])  # type: ignore[call-arg]
    job.__dict__ = {"run": run}
    assert pickle.loads(pickle.dumps(job)).runs == [run]


def test_the_worst_failure_decides_the_exit_code() -> None:
    busy, failed = RunFailedError("", BUSY), RunFailedError("", FAILED)
    assert [worst_code(x) for x in ([], [busy], [busy, failed])] == [0, BUSY, FAILED]


def test_queued_jobs_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of earlier versions name one directory per job."""
    runs: dict[str, Any] = {f"7_{i}": f"{tmp_path}/seed_{i}" for i in range(3)}
    runs["7_3"] = [f"{tmp_path}/seed_3", f"{tmp_path}/seed_4"]
    (tmp_path / "7_runs.json").write_text(json.dumps({"runs": runs}))
    answer = {"7_0": ("PENDING", "Priority"), "7_2": ("CANCELLED", "None"), "7_3": ("RUNNING", "None")}
    monkeypatch.setattr(slurm_queue, "queue", lambda users: answer)
    queued = {"seed_0": "7_0", "seed_3": "7_3", "seed_4": "7_3"}
    assert slurm_queue.already_queued(tmp_path) == {tmp_path / name: job for name, job in queued.items()}
    monkeypatch.setattr(slurm_queue, "queue", lambda users: None)
    assert slurm_queue.already_queued(tmp_path / "empty") == {}
    with pytest.raises(ConfigError, match=r"squeue does not answer, .* nothing was submitted"):
        slurm_queue.already_queued(tmp_path)
    monkeypatch.setattr(slurm_queue, "queue", lambda users: answer)
    (tmp_path / "7_runs.json").write_text('{"runs": [')
    with pytest.raises(ConfigError, match=r"7_runs.json cannot be read, .*; remove it if squeue shows no job 7"):
        slurm_queue.already_queued(tmp_path)


def fake_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [0.0]
    fake_time = SimpleNamespace(  # for the launcher alone: other threads of the tests need the real one
        sleep=lambda seconds: clock.__setitem__(0, clock[0] + seconds),
        monotonic=lambda: clock[0],
        strftime=time.strftime,
    )
    monkeypatch.setattr(slurm_queue, "time", fake_time)
    monkeypatch.setattr(slurm_queue, "ENDED_SECONDS", 5.0)
    return clock


def write_status(directory: Path, state: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "status.json").write_text(json.dumps({"state": state}))


def test_waiting_ends_for_jobs_that_are_killed_gone_or_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The queue answers late, once not at all; a job that is queued again is not taken for ended."""
    clock = fake_clock(monkeypatch)
    running = ("RUNNING", "None")

    def ask(users: object) -> Mapping[str, tuple[str, str]] | None:
        now = clock[0]
        if 10 < now < 30:
            return None
        if now > 60:
            write_status(tmp_path / "good", "finished")
        preempted = 30 < now < 34
        answer = {"good": ("PREEMPTED", "None") if preempted else running}
        answer["raises"] = running if now < 40 else ("FAILED", "None")
        answer["killed"] = running if now < 5 else ("OUT_OF_MEMORY", "None")
        answer["busy"] = ("FAILED", "None")
        return answer | ({"gone": running} if now < 5 else {})

    monkeypatch.setattr(slurm_queue, "queue", ask)
    write_status(tmp_path / "raises", "failed")
    write_status(tmp_path / "done", "finished")
    (tmp_path / "raises_failures").write_text("exit code 1 on here\n" * 3)
    lock = DirectoryLock(tmp_path / "busy")
    (tmp_path / "busy").mkdir()
    lock.acquire()
    names = ("good", "raises", "killed", "gone", "done", "busy")
    failures = slurm_queue.wait({tmp_path / name: name for name in names}, tmp_path)
    lock.release()
    said = sorted(str(failure).partition(";")[0].removeprefix(f"{tmp_path}/") for failure in failures)
    assert said[0].startswith("busy: is being trained by process ") and said[0].endswith(", not by job busy")
    assert said[1:] == [
        "gone: job gone left the run unfinished (no longer in the queue)",
        "killed: job killed left the run unfinished (ended as OUT_OF_MEMORY)",
        "raises: job raises left the run unfinished (ended as FAILED, failed 3 times)",
    ]
    assert [failure.code for failure in failures if "busy" in str(failure)] == [BUSY]
    told = capsys.readouterr().out
    assert "squeue does not answer" in told and told.strip().endswith("2 done, 4 failed")


@pytest.mark.parametrize(("retries", "requeues"), [(0, 0), (2, 2)])
def test_a_job_whose_script_was_killed_is_queued_again(
    retries: int, requeues: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it is killed in each of its tries."""
    fake_clock(monkeypatch)
    mark, asked = tmp_path / "7_running", list[list[str]]()

    def run(command: list[str], **options: object) -> SimpleNamespace:
        asked.append(command)
        mark.write_text("here\n")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(slurm_queue, "queue", lambda users: {"7": ("FAILED", "None")})
    monkeypatch.setattr(slurm_queue.subprocess, "run", run)
    mark.write_text("here\n")
    (failure,) = slurm_queue.wait({tmp_path / "run": "7"}, tmp_path, retries=retries)
    assert asked == [["scontrol", "requeue", "7"]] * requeues and not mark.exists()
    assert (tmp_path / "7_failures").read_text() == "job script killed on here\n" * (requeues + 1)
    assert ("failed 3 times" in str(failure)) == (requeues == 2)


@pytest.mark.parametrize(("limit", "most", "at_once"), [(5, 8, 4), (3, 1001, 64), (12, 4, 2), (1, 1, 1), (99, 6, 3)])
@pytest.mark.parametrize("places", [1, 2])
def test_runs_beyond_a_submit_limit_follow(
    limit: int, most: int, at_once: int, places: int, chain: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run gets one job, and the jobs that may run at any time are no more than `array_parallelism`."""
    queued: dict[str, tuple[str, list[str]]] = {}  # job -> its array, and the arrays that must end before
    throttle: dict[str, int] = {}
    trained: list[int] = []

    def submit(jobs: Any, folder: Path, options: Mapping[str, Any], fields: object, at_once: int) -> list[str]:
        if len(queued) + len(jobs) > limit:
            raise RefusedError("sbatch: error: QOSMaxSubmitJobPerUserLimit")
        assert len(jobs) <= most
        array, before = str(len(throttle)), (options["dependency"] or "").replace("afterany:", "").split(":")
        ids = [f"{array}_{index}" for index in range(len(jobs))]
        queued.update(dict.fromkeys(ids, (array, before)))
        throttle[array] = at_once
        trained.extend(run.config.seed for job in jobs for run in job.runs)
        return ids

    def may_run() -> int:
        ready = [array for array, before in queued.values() if not {a for a, _ in queued.values()} & set(before)]
        return sum(min(ready.count(array), throttle[array]) for array in set(ready))

    def wait(jobs: Mapping[Path, str], folder: Path, submit_more: Any, retries: int) -> list[RunFailedError]:
        left = 1
        while queued or left:
            assert may_run() <= at_once
            if queued:
                del queued[next(iter(queued))]
            _, left = submit_more(len(queued))
        return []

    for name, replacement in {"submit": submit, "wait": wait, "max_array_size": lambda: most}.items():
        monkeypatch.setattr(slurm, name, replacement)
    monkeypatch.setattr(slurm, "set_throttle", throttle.__setitem__)
    monkeypatch.setattr("shutil.which", lambda name: name)
    launcher = fields(submitit_folder=str(tmp_path), array_parallelism=at_once, runs_per_job=places)
    runs = [Run(replace(chain, seed=seed, root=str(tmp_path)), []) for seed in range(30)]
    assert SlurmLauncher(**launcher).launch(runs) == []
    assert sorted(trained) == list(range(30))
