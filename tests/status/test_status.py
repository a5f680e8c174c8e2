"""python -m meanq.status: truthful states, readable tables, and no directory that makes it fall over."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from meanq.rundir import progress
from meanq.rundir.layout import STATES
from meanq.rundir.lock import DirectoryLock, lock_holder
from meanq.rundir.progress import RunStatus, read_run
from meanq.rundir.reader import find_runs
from meanq.status.__main__ import main
from meanq.status.overview import Overview, comparable_returns, duration

HOLD = """
import fcntl, json, os, socket, sys, time
file = open(sys.argv[1], "w")
getattr(fcntl, sys.argv[3])(file, fcntl.LOCK_EX)
file.write(sys.argv[2] or json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
file.flush()
print("held", flush=True)
time.sleep(600)
"""
TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1\nRuntimeError: out of memory\n'
REASON = "RuntimeError: out of memory"
HERE = {"host": socket.gethostname(), "pid": 1}


def make_run(
    root: Path,
    *,
    state: str = "finished",
    env: str = "chain",
    label: str = "meanq",
    seed: int = 0,
    step: int = 1000,
    total: int = 1000,
    age: float = 0.0,
    returns: dict[int, list[float]] | None = None,
    speeds: dict[int, float] | None = None,
    lock: dict[str, Any] | None = None,
    study: str = "default",
    **more: Any,
) -> Path:
    """A run directory as training leaves it."""
    directory = root / study / env / label / f"seed_{seed}"
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(f"seed: {seed}\n")
    status = {"state": state, "total_steps": total, "step": step, **more}
    (directory / "status.json").write_text(json.dumps(status, indent=2) + "\n")
    os.utime(directory / "status.json", (time.time() - age,) * 2)
    if returns is not None:
        rows = [f"{at},{i},{value},0.5\n" for at, values in returns.items() for i, value in enumerate(values)]
        (directory / "evaluations.csv").write_text("step,episode,return,value\n" + "".join(rows))
    if speeds is not None:
        rows = [f"{at},1.0,{value},0.2\n" for at, value in speeds.items()]
        (directory / "timings.csv").write_text("step,seconds,steps_per_second,share_act\n" + "".join(rows))
    if lock is not None:
        (directory / "lock").write_text(json.dumps(lock))
    return directory


Hold = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Another process that holds a run's lock until it is killed."""
    processes = []

    def start(directory: Path, content: str = "", call: str = "lockf", age: float = 3600) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", HOLD, str(directory / "lock"), content, call]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        os.utime(directory / "lock", (time.time() - age,) * 2)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def state_of(directory: Path) -> str:
    return read_run(directory).state


# The lock


def test_the_holder_is_known_until_it_is_killed_and_stays_undisturbed(tmp_path: Path, hold: Hold) -> None:
    assert lock_holder(tmp_path) is None, "no file"
    process = hold(tmp_path)
    expected = {"host": socket.gethostname(), "pid": process.pid}
    assert lock_holder(tmp_path) == expected
    assert lock_holder(tmp_path) == expected, "asking once does not take it away"
    with (tmp_path / "lock").open("a") as file, pytest.raises(OSError):
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (tmp_path / "lock").exists()
    assert lock_holder(tmp_path) is None


def test_a_read_only_lock_file_can_be_asked_for(tmp_path: Path, hold: Hold) -> None:
    process = hold(tmp_path)
    (tmp_path / "lock").chmod(0o444)
    holder = lock_holder(tmp_path)
    assert holder is not None and holder["pid"] == process.pid


def test_what_the_file_says_counts_only_where_the_system_does_not_know_better(tmp_path: Path, hold: Hold) -> None:
    (tmp_path / "a").mkdir()
    process = hold(tmp_path / "a", "half a JS")
    assert lock_holder(tmp_path / "a") == {"host": "?", "pid": process.pid}
    (tmp_path / "b").mkdir()
    process = hold(tmp_path / "b", json.dumps(HERE))
    assert lock_holder(tmp_path / "b") == {"host": HERE["host"], "pid": process.pid}, "the file names an earlier holder"
    (tmp_path / "c").mkdir()
    hold(tmp_path / "c", json.dumps({"host": "elsewhere", "pid": 77}))
    assert lock_holder(tmp_path / "c") == {"host": "elsewhere", "pid": 77}, "a pid of another host means nothing here"
    (tmp_path / "d").mkdir()
    hold(tmp_path / "d", "[1]")
    assert lock_holder(tmp_path / "d") is not None


def test_a_lock_of_another_kind_is_no_lock(tmp_path: Path, hold: Hold) -> None:
    hold(tmp_path, call="flock")
    assert lock_holder(tmp_path) is None


# States


def test_states(tmp_path: Path, hold: Hold) -> None:
    assert state_of(make_run(tmp_path, seed=0)) == "finished"
    assert state_of(make_run(tmp_path, seed=1, state="interrupted", step=10)) == "interrupted"
    assert state_of(make_run(tmp_path, seed=2, state="failed", step=10)) == "failed"
    running = make_run(tmp_path, seed=3, state="running", step=10)
    process = hold(running)
    run = read_run(running)
    assert (run.state, run.host, run.pid) == ("running", socket.gethostname(), process.pid)
    stalled = make_run(tmp_path, seed=4, state="running", step=10, age=121)
    hold(stalled)
    assert state_of(stalled) == "stalled?"
    process.kill()
    process.wait()
    assert state_of(running) == "killed", "at once, although its heartbeat is fresh"


def test_the_lock_that_training_takes(tmp_path: Path) -> None:
    directory = make_run(tmp_path, state="running", step=10)
    lock = DirectoryLock(directory)
    lock.acquire()
    try:
        os.utime(directory / "status.json")
        asked = [sys.executable, "-m", "meanq.status", "--json", str(tmp_path)]
        run = json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)[0]
        assert (run["state"], run["host"], run["pid"]) == ("running", socket.gethostname(), os.getpid())
    finally:
        lock.release()


def test_a_silent_run_of_an_unlocked_directory_was_killed(tmp_path: Path) -> None:
    assert state_of(make_run(tmp_path, seed=0, state="running", lock=HERE)) == "killed"
    elsewhere = {"host": "elsewhere", "pid": 1}
    assert state_of(make_run(tmp_path, seed=1, state="running", lock=elsewhere, age=121)) == "killed"
    assert state_of(make_run(tmp_path, seed=2, state="running", age=121)) == "killed", "no lock file"


def test_another_hosts_heartbeat_counts_where_its_lock_cannot_be_seen(tmp_path: Path) -> None:
    elsewhere = {"host": "elsewhere", "pid": 1}
    assert state_of(make_run(tmp_path, seed=0, state="running", lock=elsewhere, age=20)) == "running"
    assert state_of(make_run(tmp_path, seed=1, state="running", age=20)) == "running", "no lock file"


def test_a_run_that_ends_while_it_is_read_was_not_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_run(tmp_path, state="running", step=10, lock=HERE)

    def ends(asked: Path) -> None:
        (asked / "status.json").write_text('{"state": "finished", "step": 1000, "total_steps": 1000}')

    monkeypatch.setattr(progress, "lock_holder", ends)
    run = read_run(directory)
    assert (run.state, run.step) == ("finished", 1000)


def test_a_run_that_begins(tmp_path: Path, hold: Hold) -> None:
    directory = make_run(tmp_path)
    (directory / "status.json").unlink()
    run = read_run(directory)
    assert (run.state, run.problems) == ("unreadable", ["no status.json"])
    hold(directory)
    assert state_of(directory) == "starting"
    assert list(find_runs([tmp_path], [])) == [directory]


@pytest.mark.parametrize("before", ["running", "interrupted", "failed"])
def test_a_run_that_begins_again(tmp_path: Path, hold: Hold, before: str) -> None:
    directory = make_run(tmp_path, seed=0, state=before, step=10, age=500)
    process = hold(directory, age=3)
    run = read_run(directory)
    assert (run.state, run.pid) == ("starting", process.pid), "what it wrote is of the process before"
    os.utime(directory / "lock", (time.time() - 200,) * 2)
    assert state_of(directory) == "stalled?"
    os.utime(directory / "status.json")
    assert state_of(directory) == before, "written by the process that holds the lock"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "status.json: Expecting value"),
        (b'{"state": "runn', "status.json: "),
        (b"[" * 100_000, "status.json: "),
        (b"\xff\xfe", "status.json: "),
        (b"[1, 2]", "status.json: is not a JSON object"),
        (b"{}", "status.json: state is None"),
        (b'{"state": ["running"]}', "status.json: state is ['running']"),
        (b'{"state": "finished", "total_steps": 5}', "status.json: step is None"),
        (b'{"state": "finished", "total_steps": 5, "step": "5"}', "status.json: step is '5'"),
        (b'{"state": "finished", "total_steps": NaN, "step": 5}', "status.json: total_steps is nan"),
    ],
)
def test_a_malformed_status_is_a_row_that_says_so(tmp_path: Path, content: bytes, problem: str) -> None:
    directory = make_run(tmp_path, returns={500: [1.0, 2.0]})
    (directory / "status.json").write_bytes(content)
    run = read_run(directory)
    assert run.state == "unreadable" and len(run.problems) == 1 and run.problems[0].startswith(problem)
    assert run.evaluation_return == 1.5, "what can be read is shown"


def test_no_kind_of_file_makes_it_wait_or_raise(tmp_path: Path) -> None:
    directory = make_run(tmp_path, state="running")
    for name in ("status.json", "evaluations.csv", "timings.csv", "lock"):
        (directory / name).unlink(missing_ok=True)
        os.mkfifo(directory / name)
    problems = read_run(directory).problems
    assert problems == [f"{name}: is not a regular file" for name in ("status.json", "evaluations.csv", "timings.csv")]
    (directory / "status.json").unlink()
    (directory / "status.json").write_text('{"state": "running", "total_steps": 5, "step": 1}')
    assert state_of(directory) == "running", "asking a pipe for its lock does not wait either"
    for name in ("status.json", "evaluations.csv", "timings.csv", "lock"):
        (directory / name).unlink()
        (directory / name).mkdir()
    assert state_of(directory) == "unreadable"


def test_files_without_permission(tmp_path: Path) -> None:
    directory = make_run(tmp_path, returns={500: [1.0]})
    (directory / "status.json").chmod(0)
    if os.access(directory / "status.json", os.R_OK):
        pytest.skip("the superuser may read everything")
    assert read_run(directory).problems == ["status.json: Permission denied"]
    make_run(tmp_path, env="closed").parent.chmod(0)
    try:
        overview = Overview(tmp_path)
        assert len(overview.runs) == 1
        assert overview.unlisted == [(str(tmp_path / "default" / "closed" / "meanq"), "Permission denied")]
    finally:
        (tmp_path / "default" / "closed" / "meanq").chmod(0o755)


# Numbers


def test_no_evaluation_yet(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path, state="interrupted", step=10))
    assert (run.evaluation_return, run.steps_per_second, run.eta_seconds, run.problems) == (None, None, None, [])


def test_the_last_evaluation_is_averaged_however_long_it_is(tmp_path: Path) -> None:
    long = {100: [50.0] * 20, 200: [float(i) for i in range(3001)]}
    run = read_run(make_run(tmp_path, seed=0, returns=long))
    assert (run.evaluation_step, run.evaluation_return) == (200, 1500.0)
    many = {step: [step / 1000, step / 500] for step in range(100, 100_100, 100)}
    run = read_run(make_run(tmp_path, seed=1, returns=many))
    assert (run.evaluation_step, run.evaluation_return) == (100_000, 150.0)
    run = read_run(make_run(tmp_path, seed=2, returns={100: [1.0, 2.0]}))
    assert (run.evaluation_step, run.evaluation_return) == (100, 1.5)


def test_speed_and_eta(tmp_path: Path) -> None:
    first = read_run(make_run(tmp_path, seed=0, state="running", step=100, speeds={100: 50.0}, age=6))
    assert first.steps_per_second == 50
    assert first.eta_seconds == pytest.approx(900 / 50 - 6, abs=1)
    # 100 steps at 100/s and 100 steps at 25/s take 5 s
    two = read_run(make_run(tmp_path, seed=1, state="running", step=200, speeds={100: 100.0, 200: 25.0}))
    assert two.steps_per_second == pytest.approx(40)
    slow_then_fast = {i: 1.0 if i <= 700 else 80.0 for i in range(1, 711)}
    many = read_run(make_run(tmp_path, seed=2, state="running", step=710, speeds=slow_then_fast))
    assert many.steps_per_second == pytest.approx(80), "only the last ten rows count"
    finished = read_run(make_run(tmp_path, seed=3, speeds={1000: 50.0}))
    assert finished.eta_seconds is None
    zero = read_run(make_run(tmp_path, seed=4, state="running", step=100, speeds={100: 0.0}))
    assert (zero.steps_per_second, zero.eta_seconds) == (None, None)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "evaluations.csv: is empty"),
        ("step,epis", "evaluations.csv: has no column return"),
        ("step,return\n100,1.0\n200\n", "evaluations.csv: zip() argument 2 is shorter than argument 1"),
        ("step,return\n100,1.0\n200,x\n", "evaluations.csv: could not convert string to float: 'x'"),
        ("step,return\ninf,1.0\n", "evaluations.csv: has the step inf"),
    ],
)
def test_a_malformed_table_is_said(tmp_path: Path, content: str, problem: str) -> None:
    directory = make_run(tmp_path)
    (directory / "evaluations.csv").write_text(content)
    run = read_run(directory)
    assert (run.state, run.evaluation_return, run.problems) == ("finished", None, [problem])


def test_an_empty_table_has_no_return(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path, returns={}, speeds={}))
    assert (run.evaluation_return, run.steps_per_second, run.problems) == (None, None, [])


def status_at(step: int | None, value: float | None, state: str = "running") -> RunStatus:
    return RunStatus(Path("d"), "s", "e", "l", 0, state, evaluation_step=step, evaluation_return=value)


def test_only_returns_at_the_same_step_are_averaged() -> None:
    assert comparable_returns([status_at(None, None)]) == (None, [])
    unfinished = [status_at(100, 1.0), status_at(200, 5.0), status_at(100, 3.0), status_at(None, None)]
    assert comparable_returns(unfinished) == (100, [1.0, 3.0]), "where most are"
    assert comparable_returns(unfinished[:2]) == (200, [5.0]), "the later of two"
    assert comparable_returns([*unfinished, status_at(300, 9.0, "finished")]) == (300, [9.0]), "finished ones first"


# Finding


def test_runs_are_found_through_links_and_not_elsewhere(tmp_path: Path) -> None:
    here = make_run(tmp_path / "scratch")
    root = tmp_path / "runs"
    root.mkdir()
    (root / "linked").symlink_to(tmp_path / "scratch")
    (tmp_path / "scratch" / "loop").symlink_to(tmp_path / "scratch")
    (here / "checkpoint").mkdir()
    (here / "checkpoint" / "status.json").write_text("{}")
    (root / ".hydra").mkdir()
    (root / ".hydra" / "status.json").write_text("{}")
    (root / "conf").mkdir()
    (root / "conf" / "config.yaml").write_text("seed: 0\n")
    assert list(find_runs([root], [])) == [root / "linked" / here.relative_to(tmp_path / "scratch")]


def test_natural_order(tmp_path: Path) -> None:
    for label in ("meanq__ensemble_size=10", "meanq__ensemble_size=2"):
        for seed in (10, 9):
            make_run(tmp_path, label=label, seed=seed)
    order = [(run.label, run.seed) for run in Overview(tmp_path).runs]
    assert order == [(f"meanq__ensemble_size={size}", seed) for size in (2, 10) for seed in (9, 10)]


# The command


def several(root: Path) -> None:
    """A run in every state that needs no other process."""
    make_run(root, env="breakout", seed=0, returns={1000: [4.0, 6.0]}, speeds={1000: 50.0})
    make_run(root, env="breakout", seed=1, returns={1000: [8.0, 10.0]}, speeds={1000: 50.0})
    make_run(
        root, env="breakout", seed=2, state="failed", step=400, reason=REASON, traceback=TRACEBACK, returns={300: [1.0]}
    )
    make_run(root, env="breakout", seed=3, state="failed", step=500, reason="too [red]hot[/]\x1b[31m", traceback="T\n")
    make_run(root, env="breakout", label="dqn", state="running", step=250, speeds={250: 10.0}, age=30)
    make_run(root, env="asterix", seed=0, state="running", step=10, age=3 * 86400, lock=HERE)
    make_run(root, env="asterix", seed=1, state="interrupted", step=500, returns={500: [2.5]}, age=7200)
    (make_run(root, env="asterix", seed=2) / "status.json").write_text("")


def test_a_pipe_gets_complete_plain_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    several(tmp_path)
    assert main([str(tmp_path)]) == 0
    output = capsys.readouterr().out
    rows = [" ".join(line.split()) for line in output.splitlines() if line.startswith(("asterix", "breakout"))]
    assert rows == [
        "asterix meanq 0 killed 1.0% - - -",
        "asterix meanq 1 interrupted 50.0% 2.50 - -",
        "asterix meanq 2 unreadable - - - -",
        "breakout dqn 0 running 25.0% - 10.0 45 s",
        "breakout meanq 0 finished 100.0% 5.00 50.0 -",
        "breakout meanq 1 finished 100.0% 9.00 50.0 -",
        "breakout meanq 2 failed 40.0% 1.00 - -",
        "breakout meanq 3 failed 50.0% - - -",
    ]
    assert "\x1b" not in output
    assert "1 x RuntimeError: out of memory" in output and "1 x too [red]hot[/]" in output
    assert "1 x status.json: Expecting value" in output
    last = output.splitlines()[-1]
    assert last.startswith("8 runs: 2 finished, 1 running, 1 interrupted, 1 killed, 2 failed, 1 unreadable; ")
    assert last.endswith("; 10 steps/s in all.")


def test_seeds_of_a_label_share_a_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meanq.status.__main__.COLLAPSE_ABOVE", 3)
    several(tmp_path)
    assert main([str(tmp_path)]) == 0
    rows = [re.sub(r"\s{2,}", "|", line) for line in capsys.readouterr().out.splitlines()]
    assert rows[1] == "asterix|meanq|1 interrupted, 1 killed, 1 unreadable|25.5%|2.50|1 at 500|-"
    assert rows[3] == "breakout|meanq|2 finished, 2 failed|72.5%|7.00 ± 2.83|2 at 1,000|-"


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    several(tmp_path)
    assert main([str(tmp_path), "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)
    assert len(runs) == 8
    assert {run["state"] for run in runs} <= set(STATES)
    failed = next(run for run in runs if run["traceback"] == TRACEBACK)
    assert failed["reason"] == "RuntimeError: out of memory"
    assert (failed["environment"], failed["label"], failed["seed"]) == ("breakout", "meanq", 2)
    assert (failed["step"], failed["total_steps"], failed["evaluation_return"]) == (400, 1000, 1.0)
    assert Path(failed["directory"]).is_dir()


def test_tracebacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    several(tmp_path)
    assert main([str(tmp_path), "--failed"]) == 0
    output = capsys.readouterr().out
    assert all(line in output for line in TRACEBACK.splitlines())
    assert "\x1b" not in output and output.endswith("2 of 8 runs failed.\n")
    assert main([str(tmp_path / "default" / "breakout" / "meanq" / "seed_2")]) == 0
    output = capsys.readouterr().out
    assert all(line in output for line in TRACEBACK.splitlines())
    facts = dict(re.findall(r"^  (\S.*?)  +(\S.*?) *$", output, re.MULTILINE))
    assert (facts["steps"], facts["done"], facts["return"]) == ("400 of 1,000", "40.0%", "1.00")
    assert facts["evaluated at"] == "300"
    assert facts["reason"] == "RuntimeError: out of memory" and "process" not in facts


def test_many_runs_are_collapsed_unless_all_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(41):
        make_run(tmp_path, seed=seed, returns={1000: [1.0]})
    main([str(tmp_path)])
    output = capsys.readouterr().out
    assert len(output.splitlines()) == 5 and "--all" in output and "41 finished" in output
    main([str(tmp_path), "--all"])
    output = capsys.readouterr().out
    assert len(output.splitlines()) == 44 and "--all" not in output


def test_studies_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path, study="one")
    make_run(tmp_path, study="two")
    main([str(tmp_path)])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:3]] == ["one/chain", "two/chain"]


def test_a_root_without_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path, tmp_path / "absent", tmp_path / "file"):
        assert main([str(root)]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.startswith(f"meanq: {root}: ") and captured.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--watch"], ["--failed", "--json"], ["--watch", "--json"]])
def test_options_that_make_no_sense_are_refused(
    tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path), *arguments])
    assert stop.value.code == 2 and "error: " in capsys.readouterr().err


def test_it_writes_nothing(tmp_path: Path, hold: Hold) -> None:
    several(tmp_path)
    hold(next(find_runs([tmp_path], [])))

    def everything() -> list[tuple[str, int, bytes]]:
        files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
        folders = sorted(path for path in tmp_path.rglob("*") if path.is_dir())
        stats = [(str(path), path.stat().st_mtime_ns, path.read_bytes()) for path in files]
        return stats + [(str(path), path.stat().st_mtime_ns, b"") for path in folders]

    before = everything()
    for arguments in ([], ["--all"], ["--json"], ["--failed"]):
        assert main([str(tmp_path), *arguments]) == 0
    assert everything() == before


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "meanq.status", *arguments]


def test_a_pipe_that_closes_is_no_error(tmp_path: Path) -> None:
    for seed in range(300):
        make_run(tmp_path, seed=seed, label="m" * 110)
    shell = " ".join(command(str(tmp_path), "--all")) + " | head -1"
    result = subprocess.run(["bash", "-c", shell], capture_output=True, text=True)
    assert result.stdout.startswith("environment") and result.stderr == ""


def test_500_runs_are_read_without_importing_torch(tmp_path: Path) -> None:
    returns = {step: [1.0] * 20 for step in range(1000, 101_000, 1000)}
    speeds = dict.fromkeys(returns, 100.0)
    first = make_run(tmp_path, state="running", step=100_000, total=200_000, returns=returns, speeds=speeds, lock=HERE)
    for i in range(1, 500):
        shutil.copytree(first, tmp_path / "default" / f"env_{i % 10}" / f"label_{i % 5}" / f"seed_{i}")
    program = (
        "import sys, meanq.status.__main__ as status\n"
        f"code = status.main([{str(tmp_path)!r}])\n"
        "heavy = {'torch', 'wandb', 'submitit', 'hydra', 'gymnasium', 'pandas'} & set(sys.modules)\n"
        "print(code, sorted(heavy))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "\n500 runs: 500 killed.\n" in result.stdout, result.stderr
    assert result.stdout.endswith("0 []\n")


# The terminal


def spawn(arguments: list[str], columns: int, rows: int = 50) -> "pexpect.spawn[str]":
    environment = {**os.environ, "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI"):
        environment.pop(name, None)
    line = command(*arguments)
    return pexpect.spawn(line[0], line[1:], dimensions=(rows, columns), env=environment, encoding="utf-8", timeout=30)


def shown(text: str) -> list[str]:
    """The lines without colours."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r", "").splitlines()


def column(lines: list[str], name: str) -> str:
    """The cells of one column of text, joined."""
    start = lines[0].index(name)
    table = lines[1 : lines.index("")]
    return "".join(re.split(r"\s{2,}", line[start:])[0] for line in table)


@pytest.mark.parametrize("columns", [60, 80, 100, 140])
@pytest.mark.parametrize("collapsed", [False, True])
def test_the_table_fits_the_terminal(tmp_path: Path, columns: int, collapsed: bool) -> None:
    several(tmp_path)
    long = "rainbow__evaluation.every=10000__prioritized=false__total_steps=30000__value=scalar_and_more"
    make_run(tmp_path, env="minatar_space_invaders", label=long, step=999_999, total=5_000_000, state="interrupted")
    for seed in range(40 if collapsed else 0):
        make_run(tmp_path, env="more", seed=seed)
    child = spawn([str(tmp_path)], columns, rows=80)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    lines = shown(child.before or "")
    assert max(len(line) for line in lines) <= columns
    if columns == 60:  # everything fits, but names are folded into little space
        return
    assert long in column(lines, "label"), "the label is whole, on several lines if need be"
    assert "minatar_space_invaders" in column(lines, "environment")
    text = "\n".join(lines)
    for essential in ("done", "return", "ETA", "20.0%", "2.50"):
        assert essential in text
    if collapsed:
        assert "2 at 1,000" in text, "of how many seeds a mean is"
        assert "interrupted" in column(lines, "states").replace(" ", "")
    else:
        assert all(state in column(lines, "state") for state in ("interrupted", "killed", "failed"))


@pytest.mark.slow
def test_watch_follows_a_run_until_ctrl_c_and_leaves_the_terminal_as_it_was(tmp_path: Path, hold: Hold) -> None:
    directory = make_run(tmp_path, state="running", step=250)
    process = hold(directory)
    child = spawn(["--watch", str(tmp_path)], 80)
    try:
        child.expect("25.0%")
        child.expect("1 running")
        temporary = directory / "next"
        temporary.write_text('{"state": "running", "total_steps": 1000, "step": 500}')
        temporary.replace(directory / "status.json")
        child.expect("50.0%")
        process.kill()
        process.wait()
        child.expect("1 killed")
        child.sendintr()
        child.expect(pexpect.EOF)
    finally:
        child.close()
    assert child.exitstatus == 0
    assert "Traceback" not in (child.before or "")
    assert (child.before or "").rindex("\x1b[?25h") >= (child.before or "").rfind("\x1b[?25l"), "the cursor is shown"


def test_watch_keeps_the_summary_in_a_low_window(tmp_path: Path) -> None:
    for i in range(30):
        make_run(tmp_path, env=f"env_{i}")
    child = spawn(["--watch", "--all", str(tmp_path)], 80, rows=15)
    try:
        child.expect("30 runs: 30 finished")
        child.expect(r"\.\.\.")
        shutil.rmtree(tmp_path / "default")
        child.expect("0 runs")
        child.sendintr()
        child.expect(pexpect.EOF)
    finally:
        with contextlib.suppress(pexpect.ExceptionPexpect):
            child.close()
    assert child.exitstatus == 0


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (0, "0.0 s"),
        (0.31, "0.3 s"),
        (45.2, "45 s"),
        (99.6, "1.7 min"),
        (600, "10 min"),
        (5_990, "1.7 h"),
        (34_000, "9.4 h"),
        (360_000, "100 h"),
    ],
)
def test_durations_are_in_the_unit_that_fits(seconds: float | None, shown: str) -> None:
    assert duration(seconds) == shown


def test_recent_speed_spans_one_evaluation_and_leaves_warm_up_out() -> None:
    """1,000 steps take 1 s of warm-up, 100 s with compiling, then 10 s, and 30 s where they include an evaluation."""
    seconds = [1, 100, 10, 10, 10, 30, 10, 10, 10, 30, 10]
    rows = [progress.Stretch(1000 * i, 1000 * i + 1000, s) for i, s in enumerate(seconds)]
    assert progress.recent_speed(reversed(rows), 4000, 1600) == pytest.approx(4000 / 60)
    assert progress.recent_speed(reversed(rows[:4]), 4000, 1600) == pytest.approx(2000 / 20)
