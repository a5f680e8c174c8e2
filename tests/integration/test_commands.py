"""The command line as a user has it: processes, terminals, interrupts, launchers, and what make runs."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pexpect
import pytest

from tests.short_runs import RULES

PROJECT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROJECT)}
TINY = (
    "total_steps=150",
    "algo.first_update=50",
    "evaluation.episodes=1",
    "probe.states=2",
    "threads=1",  # tests run side by side
    "algo.ensemble_size=2",
)
# Games must end for an evaluation to end.
SHORT_GAMES = {"atari": "env.options.max_frames=200", "minatar": "env.options.max_steps=30"}


def run(*arguments: str, cwd: Path, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meanq.run", *arguments]
    return subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, **options)


def states(root: Path) -> dict[str, str]:
    found = root.rglob("status.json")
    return {str(path.parent.relative_to(root)): json.loads(path.read_text())["state"] for path in found}


def make_commands(*arguments: str) -> list[list[str]]:
    """The commands of this project that `make` would give."""
    shown = subprocess.run(["make", "-n", *arguments], cwd=PROJECT, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    commands = [shlex.split(line) for line in shown.stdout.splitlines() if line.startswith(".venv/bin/python -m")]
    return [command[2:] for command in commands]


def test_make_run_ends_with_a_figure_and_says_what_it_shows(tmp_path: Path) -> None:
    """As make gives the commands, with fewer steps."""
    train, keep = make_commands("run")
    assert train[:4] == ["meanq.run", "-m", "+study=first_look", "scale=minatar"]
    result = run(*train[1:], *TINY[:-2], SHORT_GAMES["minatar"], cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    command = [sys.executable, "-m", *keep]
    kept = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert kept.returncode == 0, kept.stderr
    assert "Last quarter of training (one run each, so differences may be chance)" in kept.stdout
    assert re.search(r"\n *MinAtar Space Invaders +MeanQ, no target .* 1 +\d.* [+-]\d", kept.stdout)
    figure = tmp_path / "results" / "first_look" / "figures" / "study.svg"
    shown = "Return, and bias: V(s0) minus the discounted return of rewards as learned from. No std and no gap: "
    assert f"{figure.relative_to(tmp_path)}: {shown}" in kept.stdout and "bias" in figure.read_text()
    assert "make reproduce STUDY=first_look SCALE=minatar" in (figure.parents[1] / "README.md").read_text()


def test_make_reproduce_takes_a_study_and_a_scale() -> None:
    train, keep = make_commands("reproduce", "STUDY=sampling", "SCALE=paper")
    assert train == ["meanq.run", "-m", "+study=sampling", "scale=paper", "hydra/launcher=local"]
    chosen = ("--study", "sampling", "--scale", "paper")
    assert keep == ["analysis.results", "runs/sampling", *chosen, "--out", "ablations/results/sampling"]
    assert make_commands("reproduce", "STUDY=sampling")[0][3] == "scale=minatar", "the default where there is one"
    train, keep = make_commands("reproduce", "STUDY=some/where/mine.yaml")
    assert train == ["meanq.run", "-m", "+study=some/where/mine.yaml", "hydra/launcher=local"]
    assert keep == ["analysis.results", "runs/mine", "--study", "some/where/mine.yaml", "--out", "results/mine"]
    asked = subprocess.run(["make", "reproduce", "READY="], cwd=PROJECT, capture_output=True, text=True)
    assert asked.returncode != 0 and "which study?" in asked.stdout and "target_network" in asked.stdout


def test_a_sweep_again_skips_what_is_finished(tmp_path: Path) -> None:
    arguments = ("-m", "env=chain", "algo=dqn,meanq", "seed=0-1", *TINY[:-1])
    assert run(*arguments, cwd=tmp_path).returncode == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.csv")}
    assert len(before) == 4 * 4
    again = run(*arguments, cwd=tmp_path)
    assert again.returncode == 0 and again.stdout.count("is finished already: skipped") == 4
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.csv")} == before


def test_a_failing_run_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(RULES)
    result = run("-m", "env=chain", "algo.bootstrap=rules.broken,rules.mean", *TINY, cwd=tmp_path)
    assert result.returncode == 1
    found = states(tmp_path / "runs")
    assert sorted(found.values()) == ["failed", "finished"]
    (failed,) = (name for name, state in found.items() if state == "failed")
    assert "on purpose" in json.loads((tmp_path / "runs" / failed / "status.json").read_text())["traceback"]


def test_a_run_that_cannot_even_be_made_says_why_in_its_directory(tmp_path: Path) -> None:
    (tmp_path / "bad_env.py").write_text(
        "from meanq.envs.chain import Chain\n\n"
        "class Bad(Chain):\n"
        "    made = 0\n\n"
        "    def __init__(self, id, generator):\n"
        "        Bad.made += 1\n"
        "        if Bad.made > 1:  # not when it is tried before the run starts\n"
        "            raise RuntimeError('on purpose')\n"
        "        super().__init__(id, generator)\n"
    )
    arguments = ("env=custom", "env.kind=bad_env.Bad", "env.name=bad", "network=mlp", *TINY)
    planned = run(*arguments, "--dry-run", cwd=tmp_path)
    assert planned.returncode == 1 and "RuntimeError: on purpose" in planned.stderr
    assert not (tmp_path / "runs").exists()
    result = run("-m", "seed=0-1", *arguments, cwd=tmp_path)
    assert result.returncode == 1 and "2 failed" in result.stdout
    for status in (tmp_path / "runs").rglob("status.json"):
        content = json.loads(status.read_text())
        assert content["state"] == "failed" and "on purpose" in content["traceback"]
    assert len(states(tmp_path / "runs")) == 2


def speaking_sweep(tmp_path: Path, **streams) -> subprocess.Popen[bytes]:
    arguments = ["-m", "env=chain", "seed=0-1", "evaluation.every=10", *TINY]
    command = [sys.executable, "-m", "meanq.run", *arguments]
    return subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, start_new_session=True, **streams)


def test_a_sweep_goes_on_when_nobody_reads_what_it_says(tmp_path: Path) -> None:
    """As with `| head -1`."""
    process = speaking_sweep(tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr and process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait(120) == 0
    assert list(states(tmp_path / "runs").values()) == ["finished", "finished"]


def test_a_sweep_goes_on_when_its_terminal_is_closed(tmp_path: Path) -> None:
    """As after `disown`: no signal, but every word is an error."""
    ours, its = os.openpty()
    process = speaking_sweep(tmp_path, stdin=its, stdout=its, stderr=its)
    os.close(its)
    assert os.read(ours, 1)
    os.close(ours)
    assert process.wait(120) == 0
    assert list(states(tmp_path / "runs").values()) == ["finished", "finished"]


def test_an_interrupt_leaves_complete_tables(tmp_path: Path) -> None:
    arguments = [
        "env=chain",
        "total_steps=10000000",
        "compile=false",
        "evaluation.every=200",
        "log_every=100",
        *TINY[1:],
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "meanq.run", *arguments],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.rglob("evaluations.csv")) and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err and "stopped" in err and "interrupted" in out
    (directory,) = (path.parent for path in tmp_path.rglob("status.json"))
    assert json.loads((directory / "status.json").read_text())["state"] == "interrupted"
    for name in ("evaluations.csv", "training.csv"):
        lines = (directory / name).read_text().splitlines()
        assert len(lines) > 1 and len({line.count(",") for line in lines}) == 1
    assert not list(directory.glob(".*")), "no temporary file is left behind"


def test_a_terminal_shows_a_progress_bar(tmp_path: Path) -> None:
    arguments = ["-m", "meanq.run", "env=chain", *TINY]
    environment = {**ENVIRONMENT, "TERM": "xterm-256color", "COLUMNS": "140"}
    child = pexpect.spawn(sys.executable, arguments, cwd=str(tmp_path), env=environment, timeout=120, encoding="utf-8")
    child.setwinsize(40, 140)
    child.expect("steps/s")
    child.expect("ETA")
    child.expect("eps")
    child.expect("last return")
    child.expect("finished")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_help_lists_the_choices_and_imports_no_torch(tmp_path: Path) -> None:
    result = run("--help", cwd=tmp_path)
    assert result.returncode == 0
    for word in ("meanq_no_target", "minatar", "seaquest", "ensemble_size"):
        assert word in result.stdout
    probe = (
        "import sys; sys.argv = ['meanq', '--help']\n"
        "from meanq.run import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('heavy:', [name for name in ('torch', 'gymnasium', 'ale_py', 'wandb', 'pandas') if name in sys.modules])"
    )
    command = [sys.executable, "-c", probe]
    out = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=60).stdout
    assert "heavy: []" in out


def test_the_console_script_completes(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("meanq")
    assert script.exists(), "pip install -e . makes it"
    environment = {**ENVIRONMENT, "COMP_LINE": "meanq seed=0-4 algo=mean", "COMP_POINT": "24", "COMP_TYPE": "9"}
    command = [str(script), "--shell-completion", "query=bash"]
    out = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert {"algo=meanq", "algo=meanq_no_target"} <= set(out.stdout.split()), out.stderr


def test_the_console_script_runs(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("meanq")
    command = [str(script), "-m", "env=chain", "seed=0-1", *TINY]
    result = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert sorted(states(tmp_path / "runs").values()) == ["finished", "finished"]


STUDY = """
question: Does a union of sweeps run?
paper: Nothing.
refuted_by: A missing run.
scales:
  tiny:
    machine: any
    cost: seconds
    common: total_steps=150 algo.first_update=50 evaluation.episodes=1 probe.states=2 threads=1
    runs:
      - algo=dqn,rainbow env=chain seed=0-1
      - algo=meanq_rainbow algo.ensemble_size=2 env=chain seed=1
"""


@pytest.mark.parametrize("launcher", ["basic", "local"])
def test_a_study_is_the_union_of_its_sweeps(launcher: str, tmp_path: Path) -> None:
    (tmp_path / "union.yaml").write_text(STUDY)
    result = run("-m", "+study=union.yaml", "scale=tiny", f"hydra/launcher={launcher}", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "5 runs below runs/union" in result.stdout and "Does a union of sweeps run?" in result.stdout
    assert states(tmp_path / "runs") == {
        f"union/chain/{label}/seed_{seed}": "finished"
        for label, seeds in (("dqn", (0, 1)), ("rainbow", (0, 1)), ("meanq_rainbow__ensemble_size=2", (1,)))
        for seed in seeds
    }
    assert not [p for p in (tmp_path / "runs").rglob("*.yaml") if p.name != "config.yaml"], "runs and nothing else"
