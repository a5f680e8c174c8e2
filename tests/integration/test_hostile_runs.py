"""Every command that reads runs, over hundreds of broken and hostile ones beside two good ones."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.hostile_runs import write_hostile_runs
from tests.synthetic_runs import write_run

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("hostile")]
GOOD = "good_label"
# Exit codes: 0 where the good runs are analysed; 1 where these runs lack what the command is about, or where one of
# those that it should upload is damaged.
COMMANDS = {
    "status": ("-m meanq.status {runs} --all", 0),
    "status --json": ("-m meanq.status {runs} --json", 0),
    "metrics": ("-m analysis.metrics {runs} --out {out}/metrics.csv", 0),
    "report": ("-m analysis.report {runs} --out {out}/report", 0),
    "figures": ("-m analysis.figures {runs} --out {out}/figures", 0),
    "findings": ("-m analysis.findings {runs}", 0),
    "aggregate": ("-m analysis.aggregate {runs}", 0),
    "compare": ("-m analysis.compare --at 100k {runs}", 1),
    "evaluate": ("-m analysis.evaluate {runs}", 1),
    "upload": ("-m meanq.wandb_upload {runs} --mode offline", 1),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile")
    count = len(write_hostile_runs(root))
    assert count >= 200
    for seed in (0, 1):
        q = {10_000: np.zeros((4, 1, 2)), 20_000: np.ones((4, 1, 2))}
        write_run(root, label=GOOD, seed=seed, returns={10_000: [1, 2], 20_000: [3, 4]}, q=q)
    return root


def run(command: str, directory: Path) -> tuple[subprocess.CompletedProcess[str], float, int]:
    """The finished process, its CPU seconds and its largest memory in MB."""
    measure = (
        "import atexit, re, runpy, sys, time\n"
        "def report():\n"
        "    peak = re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]\n"
        "    print('PEAK', int(peak) // 1024, time.process_time(), file=sys.stderr)\n"
        "atexit.register(report)\n"
        "module = sys.argv[2]; sys.argv = [module, *sys.argv[3:]]\n"
        "runpy.run_module(module, run_name='__main__', alter_sys=True)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", measure, *command.split()],
        capture_output=True,
        text=True,
        errors="replace",
        cwd=directory,
        timeout=900,
        env={**os.environ, "WANDB_MODE": "offline", "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    peak, seconds = next(line.split()[1:] for line in process.stderr.splitlines() if line.startswith("PEAK"))
    return process, float(seconds), int(peak)


@pytest.mark.parametrize("name", COMMANDS)
def test_bad_runs_are_skipped_and_the_good_ones_analysed(name: str, runs: Path, tmp_path: Path) -> None:
    command, code = COMMANDS[name]
    good = tmp_path / "good"
    for seed in (0, 1):
        q = {10_000: np.zeros((4, 1, 2)), 20_000: np.ones((4, 1, 2))}
        write_run(good, label=GOOD, seed=seed, returns={10_000: [1, 2], 20_000: [3, 4]}, q=q)
    _, seconds_alone, peak_alone = run(command.format(runs=good, out=tmp_path / "alone"), tmp_path)
    start = time.monotonic()
    process, seconds, peak = run(command.format(runs=runs, out=tmp_path / "out"), tmp_path)
    output = process.stdout + process.stderr
    assert process.returncode == code, output[-2000:]
    assert "Traceback" not in process.stderr, process.stderr[-3000:]
    assert not any(ord(c) < 32 and c not in "\n\t\r" for c in output), "control characters"
    assert peak - peak_alone < 500, f"{peak} MB instead of {peak_alone}"
    assert seconds - seconds_alone < 250 and time.monotonic() - start < 900
    if code == 0:
        assert GOOD in output or name in ("metrics", "report", "figures", "findings"), "the good ones are there"
    if name in ("metrics", "report", "figures", "findings", "aggregate"):
        assert process.stderr.count("skipped ") >= 200
    assert not list(tmp_path.rglob("owned")) and not list(runs.rglob("owned"))
