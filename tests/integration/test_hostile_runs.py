"""Every command that reads runs, over hundreds of broken and hostile ones beside good ones."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from meanq.config.errors import ConfigError
from meanq.rundir.identity import check_directory
from tests.hostile_runs import CONTENTS, KINDS, SHORT, spoil, write_hostile_runs, write_interrupted_runs
from tests.short_runs import SilentReporter, compose_run, make_run
from tests.synthetic_runs import write_run

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("hostile")]
GOOD = "good_label"
SOURCES = Path(__file__).parents[2]
# Exit codes: 0 where the good runs are analysed; 1 where these runs lack what the command is about, or where one of
# those that it should upload is damaged.
COMMANDS = {
    "status": ("-m meanq.status {runs} --all", 0),
    "status --json": ("-m meanq.status {runs} --json", 0),
    "status --failed": ("-m meanq.status {runs} --failed", 0),
    "metrics": ("-m analysis.metrics {runs} --out {out}/metrics.csv", 0),
    "report": ("-m analysis.report {runs} --out {out}/report", 0),
    "figures": ("-m analysis.figures {runs} --out {out}/figures", 0),
    "findings": ("-m analysis.findings {runs}", 0),
    "aggregate": ("-m analysis.aggregate {runs}", 0),
    "results": ("-m analysis.results {runs} --out {out}/results", 0),
    "compare": ("-m analysis.compare --at 100k {runs}", 1),
    "evaluate": ("-m analysis.evaluate {runs}", 1),
    "upload": ("-m meanq.wandb_upload {runs} --mode offline", 1),
}
SKIPPING = ("metrics", "report", "figures", "findings", "aggregate", "results")
# Commands that play or train, over runs that were interrupted.
PLAYING = {
    "evaluate": ("-m analysis.evaluate {runs}", 0),
    "video": ("-m tests.hostile_runs {runs} {out}", 0),
    "resume": (f"-m meanq.run -m {' '.join(SHORT)} root={{runs}} seed={{seeds}}", 1),
}
_MEASURE = """
import atexit, re, runpy, sys, time
def report():
    peak = re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]
    print('PEAK', int(peak) // 1024, time.process_time(), file=sys.stderr)
atexit.register(report)
module = sys.argv[2]; sys.argv = [module, *sys.argv[3:]]
runpy.run_module(module, run_name='__main__', alter_sys=True)
"""


class Ended(NamedTuple):
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str
    seconds: float  # of CPU
    peak: int  # largest memory, in MB


def run(command: str, directory: Path) -> Ended:
    process = subprocess.run(
        [sys.executable, "-c", _MEASURE, *command.split()],
        capture_output=True,
        text=True,
        errors="replace",
        cwd=directory,
        timeout=900,
        env={**os.environ, "WANDB_MODE": "offline", "PYTHONPATH": str(SOURCES)},
    )
    *lines, last = process.stderr.splitlines()
    measured = re.fullmatch(r"PEAK (\d+) (\S+)", last)
    assert measured, process.stderr[-3000:]  # a segmentation fault reports nothing
    return Ended(process.returncode, process.stdout, "\n".join(lines), float(measured[2]), int(measured[1]))


def check(ended: Ended, alone: Ended, code: int, runs: int) -> None:
    """Check the exit code, the output, and the cost beside that of the good runs alone."""
    output = ended.stdout + ended.stderr
    assert ended.code == code, output[-2000:]
    assert "Traceback" not in ended.stderr, ended.stderr[-3000:]
    assert not any((ord(c) < 32 and c not in "\n\t\r") or 127 <= ord(c) < 160 for c in output), "control characters"
    assert ended.peak - alone.peak < 500, f"{ended.peak} MB instead of {alone.peak}"
    assert ended.seconds - alone.seconds < runs, "more than a second per run"


def outside(root: Path) -> str:
    """What must not change: files beside the runs, by content."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        digest.update(str(path).encode() + (path.read_bytes() if path.is_file() else b""))
    return digest.hexdigest()


def write_good_runs(root: Path) -> None:
    for seed in (0, 1):
        q = {10_000: np.zeros((4, 1, 2)), 20_000: np.ones((4, 1, 2))}
        write_run(root, label=GOOD, seed=seed, returns={10_000: [1, 2], 20_000: [3, 4]}, q=q)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile")
    assert len(write_hostile_runs(root)) >= 300
    write_good_runs(root)
    return root


@pytest.mark.parametrize("name", COMMANDS)
def test_bad_runs_are_skipped_and_the_good_ones_analysed(name: str, runs: Path, tmp_path: Path) -> None:
    command, code = COMMANDS[name]
    write_good_runs(tmp_path / "good")
    alone = run(command.format(runs=tmp_path / "good", out=tmp_path / "alone"), tmp_path)
    ended = run(command.format(runs=runs, out=tmp_path / "out"), tmp_path)
    check(ended, alone, code, runs=300)
    if name in SKIPPING:
        assert ended.stderr.count("skipped ") >= 250
    elif code == 0 and name != "status --failed":
        assert GOOD in ended.stdout, "the good ones are there"
    if name == "upload":  # all others are refused before a process of W&B is started
        lines = [line.split(": ") for line in ended.stdout.splitlines()]
        uploaded = {Path(line[0]).parent.name for line in lines if line[1:] == ["uploaded"]}
        assert uploaded == {GOOD, "meta.json_control", "status.json_control"}
    assert not list(tmp_path.rglob("owned")) and not list(runs.rglob("owned"))


class StoppedReporter(SilentReporter):
    """Stops a run between two checkpoints."""

    def progress(self, step: int, epsilon: float, last_return: float | None) -> None:
        if step == 50:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    session = make_run(tmp_path_factory.mktemp("interrupted"), *SHORT, "seed=0")
    with pytest.raises(KeyboardInterrupt):
        session.train(StoppedReporter())
    return session.directory


@pytest.mark.parametrize("name", PLAYING)
def test_bad_checkpoints_are_one_line_and_the_good_run_plays_and_goes_on(
    name: str, interrupted: Path, tmp_path: Path
) -> None:
    command, code = PLAYING[name]
    other = tmp_path / "other"  # a directory of somebody else
    (other / "inside").mkdir(parents=True)
    for file in ("state-40.json", "frames-0-21", "inside/file"):
        (other / file).write_text("of somebody else")
    before = outside(other)
    made = write_interrupted_runs(tmp_path / "runs", interrupted, other)
    assert len(made) >= 200
    good = tmp_path / "good" / made[-1].relative_to(tmp_path / "runs")
    shutil.copytree(made[-1], good)
    seed = made[-1].name.removeprefix("seed_")
    alone = run(command.format(runs=tmp_path / "good", out=tmp_path / "alone", seeds=seed), tmp_path)
    ended = run(command.format(runs=tmp_path / "runs", out=tmp_path / "out", seeds=f"1-{seed}"), tmp_path)
    check(ended, alone, code, runs=len(made))
    assert alone.code == 0 and outside(other) == before
    if name == "resume":
        unfinished = [path for path in made if '"finished"' not in status_text(path)]
        told = [path for path in unfinished if re.search(rf"^meanq: .*{path}\b", ended.stderr, re.MULTILINE)]
        assert told == unfinished and made[-1] not in unfinished and len(unfinished) > 100
        assert len(ended.stderr.splitlines()) == len(unfinished), "one line each"
        for table in ("evaluations.csv", "training.csv", "probes.npz", "weights.safetensors"):
            assert (made[-1] / table).read_bytes() == (good / table).read_bytes()
    else:
        assert re.search(rf"(\b|_){seed}\b", ended.stdout), "the good one is there"


def status_text(directory: Path) -> str:
    path = directory / "status.json"
    return path.read_text() if path.is_file() and not path.is_symlink() and path.stat().st_size < 10_000 else ""


def test_a_run_whose_configuration_cannot_be_read_is_not_resumed(tmp_path: Path) -> None:
    config = compose_run(tmp_path, *SHORT)
    for name in (*CONTENTS, *KINDS):
        (tmp_path / name).mkdir()
        spoil(tmp_path / name / "config.yaml", name)
        with pytest.raises(ConfigError, match=r"config\.yaml") as raised:
            check_directory(tmp_path / name, config)
        assert str(raised.value).isprintable()
