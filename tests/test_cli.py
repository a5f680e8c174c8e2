"""`meanq COMMAND`: one door to every command, which imports only what that command needs."""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import meanq
from meanq.cli import COMMANDS, command_of, help_text

PROJECT = Path(__file__).parents[1]
ENDS = ("", "_no_target", "_rainbow", "_rainbow_target", "_rainbow_text")


def call(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meanq", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture
def users_directory(tmp_path: Path) -> Path:
    """A directory with a package called analysis, which is the user's."""
    (tmp_path / "analysis").mkdir()
    (tmp_path / "analysis" / "__init__.py").write_text("raise SystemExit('the wrong analysis')\n")
    return tmp_path


def test_help_lists_the_commands_on_one_screen(tmp_path: Path) -> None:
    result = call("--help", cwd=tmp_path)
    lines = result.stdout.splitlines()
    assert result.returncode == 0 and result.stderr == "" and lines == help_text().splitlines()
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in COMMANDS)
    assert len(lines) <= 32 and max(map(len, lines)) <= 110


def test_help_is_fast(tmp_path: Path) -> None:
    """CPU time: other processes on the machine do not count."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    call("--help", cwd=tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


def test_the_version_is_that_of_meanq(tmp_path: Path) -> None:
    for arguments in (["--version"], ["run", "--version"]):
        assert call(*arguments, cwd=tmp_path).stdout == f"meanq {meanq.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_beside_a_users_own_analysis(command: str, users_directory: Path) -> None:
    result = call(command, "--help", cwd=users_directory)
    assert result.returncode == 0, result.stderr
    assert re.search(rf"^(usage: )?meanq {command}\b", result.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ([], "run"),
        (["algo=dqn"], "run"),
        (["-m", "algo=dqn,meanq"], "run"),
        (["--cfg", "job"], "run"),
        (["+study=first_look"], "run"),
        (["~logger"], "run"),
        (["run", "algo=dqn"], "run"),
        (["report", "runs"], "report"),
    ],
)
def test_a_line_without_a_command_is_a_run(words: list[str], command: str) -> None:
    assert command_of(words) == command


def test_a_run_with_and_without_its_command(tmp_path: Path) -> None:
    short, long = (call(*words, "--cfg", "job", "algo=dqn", cwd=tmp_path) for words in ([], ["run"]))
    assert short.returncode == 0 and "name: dqn" in short.stdout and short.stdout == long.stdout


@pytest.mark.parametrize(("typo", "meant"), [("reprot", "report"), ("metric", "metrics"), ("stat", "status")])
def test_a_misspelt_command_gives_one_line(typo: str, meant: str, tmp_path: Path) -> None:
    result = call(typo, "runs", cwd=tmp_path)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith(f"meanq: {typo}: no such command; did you mean ") and meant in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_mistake_in_a_command_keeps_its_exit_code(tmp_path: Path) -> None:
    result = call("report", "nowhere", cwd=tmp_path)
    assert result.returncode != 0 and "nowhere" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("module", ["analysis.report", "analysis.metrics", "analysis.figures", "analysis.video"])
def test_the_modules_of_a_checkout_are_still_commands(module: str) -> None:
    result = subprocess.run([sys.executable, "-m", module, "--help"], cwd=PROJECT, capture_output=True, text=True)
    assert result.returncode == 0 and f"usage: meanq {module.split('.')[1]} " in result.stdout


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("meanq env=minatar/a", {"env=minatar/asterix"}),
        ("meanq run +study=sam", {"+study=sampling"}),
        ("meanq -m seed=0-4 algo=dqn,mea", {f"algo=dqn,meanq{end}" for end in ENDS}),
        ("meanq algo=_", set()),
        ("meanq env=_", set()),
        ("meanq rep", {"report", "replay_on_device="}),
        ("meanq algo.dueling=t", {"algo.dueling=true"}),
        ("meanq report ru", set()),
    ],
)
def test_completion(line: str, offered: set[str], tmp_path: Path) -> None:
    result = call("-sc", "query=bash", cwd=tmp_path, COMP_LINE=line)
    assert result.returncode == 0 and set(result.stdout.split()) == offered, result.stderr
