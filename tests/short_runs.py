"""Short real runs inside the test's process."""

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from meanq.config.schema import Config
from meanq.launching.plan import plan
from meanq.mirrors.process import make_mirror
from meanq.rundir.layout import Episode
from meanq.training.session import Session
from meanq.training.terminal import TerminalReporter, make_console

# Enough to fill a replay, learn, copy targets several times, evaluate, probe and log, in a second or two.
SHORT = (
    "env=minatar/asterix",
    "total_steps=240",
    "algo.first_update=64",
    "algo.interactions_per_update=2",
    "algo.epsilon.steps=200",
    "evaluation.every=120",
    "evaluation.episodes=2",
    "env.options.max_steps=60",
    "probe.every=80",
    "probe.states=5",
    "log_every=60",
    "threads=1",
)

# Bootstrap rules. The broken one works on the few states on which code is tried before a run starts.
RULES = """
def mean(q):
    return q.mean(0)

def broken(q):
    if q.shape[-2] > 8:
        raise RuntimeError("on purpose")
    return q.mean(0)
"""


class SilentReporter(TerminalReporter):
    """Says nothing."""

    def __init__(self) -> None:
        super().__init__(make_console())

    def started(self, config: Config, directory: Path, facts: str, step: int) -> None:
        pass

    def warn(self, message: str) -> None:
        pass

    def progress(self, step: int, epsilon: float, last_return: float | None) -> None:
        pass

    def evaluated(self, step: int, episodes: list[Episode]) -> None:
        pass


def compose_run(root: Path, *overrides: str) -> Config:
    """The configuration of a run."""
    planned = plan([f"root={root}", *overrides])
    assert planned is not None
    return planned.configs[0]


def make_run(root: Path, *overrides: str) -> Session:
    """A run that has not begun."""
    return Session(compose_run(root, *overrides), make_mirror=make_mirror)


def train(root: Path, *overrides: str) -> Session:
    """A finished run."""
    run = make_run(root, *overrides)
    run.train(SilentReporter())
    return run


def weights(directory: Path) -> dict[str, Tensor]:
    """What a finished run stored."""
    return load_file(directory / "weights.safetensors")
