"""What this machine has, and whether the learner computes the same on each of its devices.

meanq doctor

Ten learner steps on every GPU, compiled and not, are compared with those of the CPU, and made twice to see whether all
bits are the same. Frames in a GPU's memory and the state of its random numbers are checked, too. Exit code 1 where
something differs or fails; then report the whole screen.
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
from collections.abc import Callable, Iterator, Sequence
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
_NO_GPU = "; where nvidia-smi shows one, install a build of torch for CUDA that suits its driver"
_REMEDY = "report this whole screen, and what `python -m torch.utils.collect_env` prints, as an issue of meanq"


@dataclass
class Steps:
    """Losses of the learner steps, and the values after them."""

    losses: "np.ndarray"  # [STEPS]
    values: "np.ndarray"  # [K, N, A]
    seconds: float  # of one step, the median


def learner_steps(device: "torch.device", case: str, compile: bool = False) -> Steps:
    """Train an ensemble on fixed random minibatches; on every device from the same weights and numbers."""
    import numpy as np

    from meanq.envs import make_env
    from meanq.launching.plan import plan
    from meanq.learning import build
    from meanq.replay.buffer import Batch
    from meanq.replay.frames import to_device
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

    losses, seconds = [], []
    for _ in range(STEPS):
        arrays = {
            "states": states(*shape),
            "actions": generator.integers(0, env.num_actions, shape),
            "returns": generator.random(shape, np.float32),
            "discounts": np.full(shape, 0.99, np.float32),
            "next_states": states(*shape),
            "weights": np.ones(shape, np.float32),
        }
        started = time.perf_counter()
        tensors: dict[str, Any] = {name: to_device(array, device) for name, array in arrays.items()}
        losses.append(float(agent.learn(Batch(indices=np.zeros(shape, int), **tensors)).loss))  # waits for the device
        seconds.append(time.perf_counter() - started)
    # The first step loads or compiles kernels, the second records a CUDA graph.
    return Steps(np.array(losses), agent.values(states(64)), float(np.median(seconds[2:])))


def difference(ours: Steps, reference: Steps) -> float:
    """The largest difference of losses and values, relative to the largest of each; infinite where one is no number."""
    import numpy as np

    found = 0.0
    for a, b in ((ours.losses, reference.losses), (ours.values, reference.values)):
        with np.errstate(invalid="ignore"):
            worst = float(np.abs(a - b).max() / np.abs(b).max())
        found = max(found, worst if np.isfinite(worst) else np.inf)
    return found


def memory_faults(device: "torch.device") -> Iterator[str]:
    """Name what the device gets wrong: copies from pinned memory and frames that it keeps, or its random numbers."""
    import numpy as np
    import torch

    from meanq.replay.frames import FrameRing
    from meanq.rng import stream

    generator, slots, size = stream(0, "doctor", "frames"), 64, 7056
    rings = [FrameRing(slots, size, np.dtype(np.uint8), device, on_device=there) for there in (False, True)]
    frame = np.zeros(size, np.uint8)
    for slot in range(slots):
        frame[:] = generator.integers(0, 256, size)  # while the copy of the last one may be under way
        for ring in rings:
            ring.write(slot, frame)
    drawn = generator.integers(0, slots + 1, (20, 4 * slots))
    gathered = [[ring.gather(indices) for indices in drawn] for ring in rings]
    if not all(torch.equal(host, there) for host, there in zip(*gathered, strict=True)):
        yield "frames"
    noise = torch.Generator(device).manual_seed(0)
    state = noise.get_state()
    first = torch.randn(10_000, generator=noise, device=device)
    noise.set_state(state)
    if not torch.equal(torch.randn(10_000, generator=noise, device=device), first):
        yield "random numbers after their state was restored"


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
    for device in devices():
        about = torch.cuda.get_device_properties(device)
        memory, capability = human_bytes(about.total_memory), f"{about.major}.{about.minor}"
        yield "GPU", f"{device}: {about.name}, {memory}, compute capability {capability}"
    if not devices():
        yield "GPU", "none that torch can use" + (_NO_GPU if shutil.which("nvidia-smi") else "")
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
    said = printable(lines[0], 80).removeprefix(f"{command[0]}: ")
    return f"{command[0]}{' fails' if result.returncode else ''}: {said}"


def _wandb() -> str:
    from meanq.mirrors.wandb import has_key

    try:
        key = "has a key" if has_key() else "has no key (`wandb login`), so runs are logged offline"
    except ConfigError as error:
        key = str(error)
    return f"{importlib.metadata.version('wandb')}, {key}"


def _judge_memory(device: "torch.device") -> tuple[bool, str]:
    faults = list(memory_faults(device))
    return not faults, f"WRONG: {', '.join(faults)}" if faults else "frames and random numbers are right"


def _judge_learner(device: "torch.device", case: str, compile: bool, reference: Steps) -> tuple[bool, str]:
    steps, again = (learner_steps(device, case, compile) for _ in range(2))
    far, repeats = difference(steps, reference), difference(again, steps) == 0
    verdict = f"{'as' if far <= _TOLERANCE else 'NOT AS'} on the CPU (largest difference {far:.1e})"
    bits = f"{'the same' if repeats else 'OTHER'} bits when made again"
    return far <= _TOLERANCE and repeats, f"{1000 * steps.seconds:.1f} ms each, {verdict}, {bits}"


def _print_verdict(name: str, what: str, judge: Callable[..., tuple[bool, str]], *arguments: Any) -> bool:
    try:
        right, line = judge(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever a device raises is what its user should report
        right, line = False, f"FAILED: {type(error).__name__}: {printable(str(error))}"
    print(f"{name:10}{what}: {line}", flush=True)
    return right


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the screen; 1 where a device does not compute as the CPU does."""
    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser("meanq doctor", description=__doc__, formatter_class=raw).parse_args(arguments)
    for name, fact in facts():
        print(f"{name:10}{fact}", flush=True)
    import torch

    from meanq.training.machine import tune_process

    tune_process(1)
    wrong = [str(device) for device in devices() if not _print_verdict("memory", str(device), _judge_memory, device)]
    for case in _CASES:
        reference = learner_steps(torch.device("cpu"), case)
        print(f"{'learner':10}{case}, {STEPS} steps on cpu: {1000 * reference.seconds:.1f} ms each", flush=True)
        for device, compile in product(devices(), (False, True)):
            what = f"{case}, on {device}{', compiled' * compile}"
            if not _print_verdict("learner", what, _judge_learner, device, case, compile, reference):
                wrong.append(str(device))
    if wrong:
        print(f"meanq: {', '.join(dict.fromkeys(wrong))}: not as it should be; {_REMEDY}", file=sys.stderr)
    return int(bool(wrong))
