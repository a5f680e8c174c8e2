"""The built wheel works without the checkout: a sweep, its status and its report from an empty directory."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
SWEEP = (
    *("-m", "algo=dqn,meanq", "env=chain", "seed=0-1", "total_steps=150", "algo.first_update=100"),
    *("evaluation.episodes=2", "probe.states=2", "threads=1", "hydra/launcher=local", "hydra.launcher.jobs=1"),
)


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


def test_a_sweep_status_and_report_from_an_empty_directory(binaries: Path, tmp_path: Path) -> None:
    python = binaries / "python"
    where = run(python, "-c", "import meanq, analysis; print(meanq.__file__, analysis.__file__)", at=tmp_path)
    assert where.count(str(binaries.parent)) == 2, where
    run(binaries / "meanq", *SWEEP, at=tmp_path)
    assert len(list((tmp_path / "runs").rglob("weights.safetensors"))) == 4
    assert "4 finished" in run(python, "-m", "meanq.status", at=tmp_path)
    run(python, "-m", "analysis.report", "runs", at=tmp_path)
    assert (tmp_path / "runs" / "report" / "index.html").stat().st_size > 100_000
    plan = run(binaries / "meanq", "-m", "+study=target_network", "scale=minatar", "--dry-run", at=tmp_path)
    assert "target_network" in plan
