"""What this machine has, and whether the learner computes the same on each of its devices.

meanq doctor

Ten learner steps on every GPU, compiled and not, are compared with those of the CPU. Exit code 1 where they differ, or
where a device fails; then report the whole screen.
"""

import argparse
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from meanq.config.errors import ConfigError, printable

if TYPE_CHECKING:
    import numpy as np
    import torch

STEPS = 10
# Single precision, and TensorFloat-32 in convolutions of a GPU: digits differ, but not the course of learning.
_TOLERANCE = 0.01
_NETWORK = ("env=minatar/breakout", "algo=meanq", "threads=1", "compile=false")
_CASES = {"scalar": (), "categorical": ("algo.value=categorical",)}
_REMEDY = "report this whole screen, and what `python -m torch.utils.collect_env` prints, as an issue of meanq"


@dataclass
class Steps:
    """Losses of the learner steps, and the values after them."""

    losses: "np.ndarray"  # [STEPS]
    values: "np.ndarray"  # [K, N, A]
    seconds: float  # of one step


def learner_steps(device: "torch.device", case: str, compile: bool = False) -> Steps:
    """Train an ensemble on fixed random minibatches; on every device from the same weights and numbers."""
    import numpy as np
    import torch

    from meanq.envs import make_env
    from meanq.launching.plan import plan
    from meanq.learning import build
    from meanq.replay.buffer import Batch
    from meanq.rng import stream

    planned = plan([*_NETWORK, *_CASES[case], f"root={tempfile.gettempdir()}"])
    assert planned is not None
    config = planned.configs[0]
    env = make_env(config.env, stream(0, "doctor"))
    network = build.make_network(config, env, device)
    agent = build.make_agent(config, network, device, compile=compile)
    generator, shape = stream(0, "doctor", "minibatches"), (config.algo.ensemble_size, config.algo.batch_size)

    def states(*leading: int) -> "np.ndarray":
        return generator.integers(0, 2, (*leading, *network.state_shape)).astype(np.uint8)

    losses, started = [], 0.0
    for step in range(STEPS):
        arrays = {
            "states": states(*shape),
            "actions": generator.integers(0, env.num_actions, shape),
            "returns": generator.random(shape, np.float32),
            "discounts": np.full(shape, 0.99, np.float32),
            "next_states": states(*shape),
            "weights": np.ones(shape, np.float32),
        }
        tensors: dict[str, Any] = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        started = started or (time.perf_counter() if step else 0.0)  # the first step loads kernels
        losses.append(float(agent.learn(Batch(indices=np.zeros(shape, int), **tensors)).loss))
    seconds = (time.perf_counter() - started) / (STEPS - 1)
    return Steps(np.array(losses), agent.values(states(64)), seconds)


def difference(ours: Steps, reference: Steps) -> float:
    """The largest difference of losses and values, relative to the largest of each; infinite where one is no number."""
    import numpy as np

    found = 0.0
    for a, b in ((ours.losses, reference.losses), (ours.values, reference.values)):
        worst = float(np.abs(a - b).max() / np.abs(b).max())
        found = max(found, worst if np.isfinite(worst) else np.inf)
    return found


def devices() -> list["torch.device"]:
    """The GPUs of this machine."""
    import torch

    return [torch.device("cuda", i) for i in range(torch.cuda.device_count())]


def facts() -> Iterator[tuple[str, str]]:
    """Lines of the screen: what the machine has."""
    import psutil
    import torch

    import meanq
    from meanq.learning.learner import why_not_compile
    from meanq.rundir.circumstances import circumstances
    from meanq.training.machine import available_memory, human_bytes

    commit = circumstances()["commit"]
    yield "meanq", meanq.__version__ + (f", commit {commit}" if commit else "")
    yield "Python", f"{platform.python_version()} on {platform.platform()}"
    yield (
        "torch",
        f"{torch.__version__}, built for {f'CUDA {torch.version.cuda}' if torch.version.cuda else 'CPUs only'}",
    )
    found = [f"{torch.cuda.get_device_name(device)} ({device})" for device in devices()]
    yield "GPU", ", ".join(found) or "none that torch can use"
    yield "driver", _said(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    compiler = os.environ.get("CXX") or next((name for name in ("g++", "clang++") if shutil.which(name)), "")
    obstacle = why_not_compile(torch.device("cpu"))
    can = "torch can compile the learner" if obstacle is None else f"torch cannot compile: {printable(obstacle, 100)}"
    yield "compiler", f"{_said([compiler, '-dumpfullversion']) if compiler else 'none'}; {can}"
    yield "cores", f"{os.cpu_count()}, of which this process may use {len(os.sched_getaffinity(0))}"
    total = human_bytes(psutil.virtual_memory().total)
    yield "memory", f"{total}, of which {human_bytes(available_memory())} are free"
    yield "SLURM", _said(["sbatch", "--version"])
    yield "W&B", _wandb()
    yield (
        "games",
        ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("ale-py", "minatar", "gymnasium")),
    )


def _said(command: Sequence[str]) -> str:
    """The first line that a program prints, after its name; or that it is not there."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return f"{command[0]} is not installed"
    lines = result.stdout.splitlines() or result.stderr.splitlines() or [f"code {result.returncode}"]
    return f"{command[0]}: {printable(lines[0], 80)}"


def _wandb() -> str:
    from meanq.mirrors.wandb import has_key

    try:
        key = "has a key" if has_key() else "has no key (`wandb login`), so runs are logged offline"
    except ConfigError as error:
        key = str(error)
    return f"{importlib.metadata.version('wandb')}, {key}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the screen; 1 where a device does not compute as the CPU does."""
    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser("meanq doctor", description=__doc__, formatter_class=raw).parse_args(arguments)
    for name, fact in facts():
        print(f"{name:10}{fact}", flush=True)
    import torch

    torch.set_num_threads(1)
    wrong = []
    for case in _CASES:
        reference = learner_steps(torch.device("cpu"), case)
        print(f"{'learner':10}{case}, {STEPS} steps on cpu: {1000 * reference.seconds:.1f} ms each", flush=True)
        for device, compile in product(devices(), (False, True)):
            try:
                steps = learner_steps(device, case, compile)
                far = difference(steps, reference)
                verdict = f"{'as' if far <= _TOLERANCE else 'NOT AS'} on the CPU (largest difference {far:.1e})"
                line = f"{1000 * steps.seconds:.1f} ms each, {verdict}"
            except (RuntimeError, ValueError) as error:  # CUDA's errors among them
                far, line = float("inf"), f"FAILED: {type(error).__name__}: {printable(str(error))}"
            wrong += [str(device)] * (far > _TOLERANCE)
            print(f"{'learner':10}{case}, on {device}{', compiled' * compile}: {line}", flush=True)
    if wrong:
        print(f"meanq: {', '.join(dict.fromkeys(wrong))}: not as on the CPU; {_REMEDY}", file=sys.stderr)
    return int(bool(wrong))
