"""Time several implementations of training in one process, in alternating turns of a fraction of a second.

Times drift on a shared machine. Ratios are therefore computed within a round, in which each side has one turn and the
matmul peak is measured; the benchmarks report the median over rounds.
"""

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import psutil
import torch

from benchmarks.reference import IMPORTANCE_EXPONENT, ReferenceRun
from meanq.config.schema import Config, NetworkConfig
from meanq.envs import Environment
from meanq.launching.plan import plan
from meanq.replay.buffer import ring_slots
from meanq.training.clock import Clock
from meanq.training.session import Session

BURST_SECONDS = 0.15  # duration of a turn, which has at least one update
FRAMES = 2_000  # frames of a real game that are repeated to fill a replay buffer
EPISODE = 500  # length of the episodes that fill a replay buffer
WHOLE = "whole"  # an interaction with its share of an update
UPDATE = "update"  # sampling, learning, priorities
PARTS = ("act", "env", "sample", "learn")


def compose(*overrides: str, compiled: bool = False, threads: int | None = None) -> Config:
    """Compose the configuration of a run that is never started, so nothing is written to its directory."""
    fields = [f"root={tempfile.gettempdir()}", "study=benchmark", f"threads={'null' if threads is None else threads}"]
    planned = plan([*fields, f"compile={str(compiled).lower()}", *overrides])
    assert planned is not None
    return planned.configs[0]


def play(env: Environment, count: int) -> np.ndarray:
    """Collect `count` frames with random actions."""
    generator = np.random.default_rng(0)
    frames = [env.reset()]
    while len(frames) < count:
        outcome = env.step(int(generator.integers(env.num_actions)))
        over = outcome.terminal or outcome.truncated
        frames.append(env.reset() if over else outcome.frame)
    return np.stack(frames)


def fill(start: Callable, append: Callable, frames: np.ndarray, count: int) -> None:
    """Append `count` transitions to a replay buffer, as episodes of real frames."""
    start(frames[0])
    for i in range(count):
        terminal = i % EPISODE == EPISODE - 1
        append(i % 3, 0.1 * (i % 7), frames[i % len(frames)], terminal=terminal)
        if terminal:
            start(frames[i % len(frames)])


@dataclass
class Side:
    """One side of a comparison, with a filled replay buffer and a started game."""

    config: Config
    interact: Callable[[], None]
    learn: Callable[[], None]  # sample, one gradient step of every member, update priorities
    clock: Clock  # times the parts of the loop
    run: Session | None = None  # None for the reference

    @property
    def engine(self) -> Session:
        assert self.run is not None
        return self.run

    def update(self) -> dict[str, float]:
        """Make one update and its interactions. Returns seconds per interaction and of its parts."""
        interactions = self.config.algo.interactions_per_update
        self.clock.take()
        start = time.perf_counter()
        for _ in range(interactions):
            self.interact()
        self.learn()
        seconds = {WHOLE: (time.perf_counter() - start) / interactions}
        parts = self.clock.take()
        # Sampling (including storing) and learning are reported per update.
        for part, times in (("act", interactions), ("env", interactions), ("sample", 1), ("learn", 1)):
            seconds[part] = parts[part] / times
        return seconds | {UPDATE: seconds["sample"] + seconds["learn"]}


def engine_side(config: Config, transitions: int, *, keep_values: bool = False) -> Side:
    """Build the side that uses meanq's training loop. Only this function creates such a side.

    The cache of next states' values is off by default, because it would make steps faster during the measurement.
    """
    run = Session(config)
    run.loop.step = config.algo.first_update
    if not keep_values:
        run.loop.agent._target_cache = None
    fill_engine(run, transitions)
    run.loop.start_game()

    def interact() -> None:
        run.loop.step += 1
        run.loop.interact()

    return Side(config, interact, run.loop.learn, run._clock, run)


def fill_engine(run: Session, transitions: int) -> None:
    """Append `transitions` transitions of a random game to the run's replay buffer."""
    frames = play(run.loop.env, min(FRAMES, transitions))
    for begin in range(0, transitions, FRAMES):
        fill(
            run.loop.replay.start,
            partial(run.loop.replay.append, truncated=False),
            frames,
            min(FRAMES, transitions - begin),
        )
        # As in training, read the priorities regularly; the sum trees buffer what is written in between.
        run.loop.replay.sample(run.config.algo.ensemble_size, 1, IMPORTANCE_EXPONENT)


def reference_side(config: Config, transitions: int) -> Side:
    """Build the side that uses the plain PyTorch reference."""
    run = ReferenceRun(config, ring_slots(transitions, config.env.stack))
    fill(run.replay.start, run.replay.append, play(run.env, min(FRAMES, transitions)), transitions)
    run.start_game()
    return Side(config, run.interact, run.learn, run.clock)


class MatmulPeak:
    """The machine's peak speed, measured with fp32 products of large square matrices."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self._matrices = [torch.rand(size, size, generator=generator) for size in (1024, 2048)]
        self._outputs = [torch.empty_like(matrix) for matrix in self._matrices]

    def measure(self) -> float:
        """Return floating point operations per second: the best of two products of each size."""
        rates = []
        for matrix, output in [*zip(self._matrices, self._outputs, strict=True)] * 2:
            start = time.perf_counter()
            torch.mm(matrix, matrix, out=output)
            rates.append(2 * len(matrix) ** 3 / (time.perf_counter() - start))
        return max(rates)


@dataclass
class Times:
    """The median of each round by side and timed part, and the matmul peak of each round."""

    rounds: dict[str, dict[str, list[float]]]
    peaks: list[float] = field(default_factory=list)

    def milliseconds(self, side: str, what: str = WHOLE) -> float:
        """Return the median over rounds."""
        return 1e3 * statistics.median(self.rounds[side][what])

    def ratio(self, slow: str, fast: str, what: str = WHOLE) -> float:
        """Return the time of `slow` divided by that of `fast`, as the median over rounds."""
        pairs = zip(self.rounds[slow][what], self.rounds[fast][what], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def share(self, side: str, flop: float, what: str = "learn") -> float:
        """Return the fraction of the round's matmul peak, as the median over rounds."""
        pairs = zip(self.rounds[side][what], self.peaks, strict=True)
        return statistics.median(flop / seconds / peak for seconds, peak in pairs)


def interleave(sides: dict[str, Side], seconds: float, warm_up: int = 5) -> Times:
    """Time all sides in rounds for about `seconds`, at least one round, after `warm_up` untimed updates of each."""
    for side in sides.values():
        for _ in range(warm_up):
            side.update()
    peak = MatmulPeak()
    peak.measure()
    times = Times({name: defaultdict(list) for name in sides})
    end = time.perf_counter() + seconds
    while not times.peaks or time.perf_counter() < end:
        times.peaks.append(peak.measure())
        for name, side in sides.items():
            turn: dict[str, list[float]] = defaultdict(list)
            turn_end = time.perf_counter() + BURST_SECONDS
            while not turn or time.perf_counter() < turn_end:
                for what, value in side.update().items():
                    turn[what].append(value)
            for what, values in turn.items():
                times.rounds[name][what].append(statistics.median(values))
    return times


def layer_flop(network: NetworkConfig, state_shape: tuple[int, ...], outputs: int, values: int) -> list[int]:
    """Count the floating point operations per layer for one member and one state; a multiply-add counts as two.

    `values` is the number of outputs of the value stream, 0 if the network has only one stream with `outputs` outputs.
    """
    channels, height, width = state_shape
    layers = []
    for conv in network.convolutions:
        height, width = ((size - conv.kernel) // conv.stride + 1 for size in (height, width))
        layers.append(2 * height * width * conv.channels * channels * conv.kernel**2)
        channels = conv.channels
    streams = 2 if values else 1
    return [*layers, 2 * channels * height * width * streams * network.hidden, 2 * network.hidden * (outputs + values)]


def learner_flop(config: Config, state_shape: tuple[int, ...], num_actions: int) -> int:
    """Count the floating point operations of one update of all members, in the networks only.

    All members evaluate the next states of all K minibatches (twice with Double DQN). Each member learns from its own
    minibatch, where the backward pass costs twice the forward pass, except in the first layer, whose input needs no
    gradient.
    """
    algo = config.algo
    atoms = algo.atoms if algo.value == "categorical" else 1
    layers = layer_flop(config.network, state_shape, num_actions * atoms, atoms if algo.dueling else 0)
    members, size = algo.ensemble_size, algo.batch_size
    next_states = members * members * size * (2 if algo.double else 1)
    return next_states * sum(layers) + members * size * (3 * sum(layers) - layers[0])


def resident_bytes() -> int:
    """Return the current resident memory of this process."""
    return psutil.Process().memory_info().rss


def describe(times: Times, sides: Sequence[str]) -> list[list[str]]:
    """Build table rows: milliseconds of each side and of its parts."""
    return [[name, *(f"{times.milliseconds(name, what):.2f}" for what in (WHOLE, *PARTS))] for name in sides]
