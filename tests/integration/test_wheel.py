"""The built wheel works without the checkout: every command, from a directory that has only an analysis/ of its own."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from meanq.cli import COMMANDS

PROJECT = Path(__file__).parents[2]
SWEEP = (
    *("-m", "algo=dqn,meanq", "env=minatar/breakout", "seed=0-1", "total_steps=150", "algo.first_update=100"),
    *("evaluation.episodes=2", "probe.states=2", "env.options.max_steps=30", "threads=1"),
    *("hydra/launcher=local", "hydra.launcher.jobs=1"),
)
# Every command with arguments, and what it prints; files that it writes are those after --out.
ARGUMENTS = {
    "run": ("-m +study=target_network scale=minatar --dry-run", "target_network"),
    "status": ("", "4 finished"),
    "report": ("runs --out page", "page/index.html: 4 runs"),
    "figures": ("runs --out figures", "figures/study.svg"),
    "metrics": ("runs", "env,label,"),
    "aggregate": ("runs", "meanq"),
    "findings": ("runs", "F1"),
    "compare": ("--paper-only", "above in 16/26"),
    "evaluate": ("runs", "meanq"),
    "results": ("runs --out kept", "kept/README.md"),
    "video": ("RUN --out play.gif", "play.gif"),
    "upload": ("runs --mode offline", "seed_1: "),
    "doctor": ("", "torch"),
    "dashboard": ("--entity me --json", "bias"),
}


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment with the wheel. It borrows the packages that meanq needs, but not meanq itself."""
    root = tmp_path_factory.mktemp("wheel")
    source, env = root / "source", root / "env"
    for name in ("meanq", "analysis", "conf", "ablations"):
        shutil.copytree(PROJECT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, source)
    pip = [sys.executable, "-m", "pip"]
    wheel = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(root), str(source)]
    subprocess.run(wheel, check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(env)}))
    (packages / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    (built,) = root.glob("*.whl")
    subprocess.run([*pip, "--python", str(env), "install", "--quiet", "--no-deps", str(built)], check=True)
    return env / "bin"


def run(program: Path, *arguments: str, at: Path) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([program, *arguments], cwd=at, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def users_directory(tmp_path: Path) -> Path:
    """A directory with a package called analysis, which is the user's."""
    for name in ("__init__", "console", "report", "metrics"):
        (tmp_path / "analysis").mkdir(exist_ok=True)
        (tmp_path / "analysis" / f"{name}.py").write_text("raise SystemExit('the wrong analysis')\n")
    return tmp_path


def test_a_sweep_and_what_reads_its_runs(binaries: Path, users_directory: Path) -> None:
    python, meanq, at = binaries / "python", binaries / "meanq", users_directory
    where = run(python, "-c", "import meanq, meanq.analysis as a; print(meanq.__file__, a.__file__)", at=at)
    assert where.count(str(binaries.parent)) == 2, where
    package = Path(where.split()[0]).parent
    assert (package / "py.typed").is_file()
    run(meanq, *SWEEP, at=at)
    trained = [path.parent for path in (at / "runs").rglob("weights.safetensors")]
    assert len(trained) == 4
    assert set(ARGUMENTS) == set(COMMANDS), "every command is tried"
    for command, (arguments, expected) in ARGUMENTS.items():
        words = [str(trained[0]) if word == "RUN" else word for word in arguments.split()]
        assert expected in run(meanq, command, *words, at=at), command
        assert "--out" not in words or (at / words[words.index("--out") + 1]).exists()
    assert "4 finished" in run(python, "-m", "meanq.status", at=at)
    table = run(meanq, "metrics", "runs", at=at)
    assert table == run(python, "-m", "meanq.analysis.metrics", "runs", at=at)
    assert table == run(python, "-m", "meanq", "metrics", "runs", at=at)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, binaries: Path, users_directory: Path) -> None:
    assert f"meanq {command}" in run(binaries / "meanq", command, "--help", at=users_directory)


def test_the_name_analysis_is_the_users(binaries: Path, tmp_path: Path) -> None:
    find = "from importlib.util import find_spec; print(find_spec('analysis'))"
    assert run(binaries / "python", "-c", find, at=tmp_path) == "None\n"
