"""How two ways of training are timed: in one process, by turns of a fraction of a second.

Times drift on a shared machine. So a ratio is taken within a round, in which every side has its turn and the matmul
peak is measured, and what is reported is the median over rounds.
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
from meanq.launching.plan import plan, register_schema
from meanq.replay.buffer import ring_slots
from meanq.training.clock import Clock
from meanq.training.session import Session

BURST_SECONDS = 0.15  # a turn lasts this long, and at least one update
FRAMES = 2_000  # of a real game, which fill a replay again and again
EPISODE = 500  # interactions, of what fills a replay
WHOLE = "whole"  # an interaction, with its share of an update
UPDATE = "update"  # sampling, learning, priorities
PARTS = ("act", "env", "sample", "learn")


def compose(*overrides: str, compiled: bool = False, threads: int | None = None) -> Config:
    """The configuration of a run that is never started, so nothing is written to its directory."""
    register_schema()
    fields = [f"root={tempfile.gettempdir()}", "study=benchmark", f"threads={'null' if threads is None else threads}"]
    planned = plan([*fields, f"compile={str(compiled).lower()}", *overrides])
    assert planned is not None
    return planned.configs[0]


def play(env: Environment, count: int) -> np.ndarray:
    """Frames of a random game."""
    generator = np.random.default_rng(0)
    frames = [env.reset()]
    while len(frames) < count:
        outcome = env.step(int(generator.integers(env.num_actions)))
        over = outcome.terminal or outcome.truncated
        frames.append(env.reset() if over else outcome.frame)
    return np.stack(frames)


def fill(start: Callable, append: Callable, frames: np.ndarray, count: int) -> None:
    """Append so many transitions to a replay, as episodes of real frames."""
    start(frames[0])
    for i in range(count):
        terminal = i % EPISODE == EPISODE - 1
        append(i % 3, 0.1 * (i % 7), frames[i % len(frames)], terminal=terminal)
        if terminal:
            start(frames[i % len(frames)])


@dataclass
class Side:
    """One of those that are compared; its replay is full, its game begun."""

    config: Config
    interact: Callable[[], None]
    learn: Callable[[], None]  # sample, one gradient step of every member, write the priorities back
    clock: Clock  # of the parts of the loop
    run: Session | None = None  # the engine's; the reference has none

    @property
    def engine(self) -> Session:
        """What trains."""
        assert self.run is not None
        return self.run

    def update(self) -> dict[str, float]:
        """As many interactions as an update takes, and the update: seconds per interaction and of its parts."""
        interactions = self.config.algo.interactions_per_update
        self.clock.take()
        start = time.perf_counter()
        for _ in range(interactions):
            self.interact()
        self.learn()
        seconds = {WHOLE: (time.perf_counter() - start) / interactions}
        parts = self.clock.take()
        # Sampling (with storing) and learning are given per update.
        for part, times in (("act", interactions), ("env", interactions), ("sample", 1), ("learn", 1)):
            seconds[part] = parts[part] / times
        return seconds | {UPDATE: seconds["sample"] + seconds["learn"]}


def engine_side(config: Config, transitions: int, *, keep_values: bool = False) -> Side:
    """What trains: the parts of meanq.training.loop.Loop, in its order. This is the one place that makes an engine.

    Next states' values are not kept unless asked for: a step's cost would fall while it is measured.
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
    """Append so many transitions of a random game."""
    frames = play(run.loop.env, min(FRAMES, transitions))
    for begin in range(0, transitions, FRAMES):
        fill(
            run.loop.replay.start,
            partial(run.loop.replay.append, truncated=False),
            frames,
            min(FRAMES, transitions - begin),
        )
        # As in training, priorities are read now and then: what was written in between is kept until then.
        run.loop.replay.sample(run.config.algo.ensemble_size, 1, IMPORTANCE_EXPONENT)


def reference_side(config: Config, transitions: int) -> Side:
    """The plain reference."""
    run = ReferenceRun(config, ring_slots(transitions, config.env.stack))
    fill(run.replay.start, run.replay.append, play(run.env, min(FRAMES, transitions)), transitions)
    run.start_game()
    return Side(config, run.interact, run.learn, run.clock)


class MatmulPeak:
    """What the machine can do: fp32 products of large square matrices."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self._matrices = [torch.rand(size, size, generator=generator) for size in (1024, 2048)]
        self._outputs = [torch.empty_like(matrix) for matrix in self._matrices]

    def measure(self) -> float:
        """Operations per second: the best of two products of each size."""
        rates = []
        for matrix, output in [*zip(self._matrices, self._outputs, strict=True)] * 2:
            start = time.perf_counter()
            torch.mm(matrix, matrix, out=output)
            rates.append(2 * len(matrix) ** 3 / (time.perf_counter() - start))
        return max(rates)


@dataclass
class Times:
    """Medians of each round, by side and by what was timed; and each round's peak."""

    rounds: dict[str, dict[str, list[float]]]
    peaks: list[float] = field(default_factory=list)

    def milliseconds(self, side: str, what: str = WHOLE) -> float:
        """The median over rounds."""
        return 1e3 * statistics.median(self.rounds[side][what])

    def ratio(self, slow: str, fast: str, what: str = WHOLE) -> float:
        """How many times one takes as long as the other; the median over rounds."""
        pairs = zip(self.rounds[slow][what], self.rounds[fast][what], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def share(self, side: str, flop: float, what: str = "learn") -> float:
        """Of the round's matmul peak; the median over rounds."""
        pairs = zip(self.rounds[side][what], self.peaks, strict=True)
        return statistics.median(flop / seconds / peak for seconds, peak in pairs)


def interleave(sides: dict[str, Side], seconds: float, warm_up: int = 5) -> Times:
    """Rounds for about so many seconds, at least one; before, some updates of each that do not count."""
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
    """Floating point operations of each layer of one member that values one state; a multiply-add is two.

    `values` outputs of the value stream, 0 where there is none beside the `outputs`.
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
    """Of one update, all members together: networks only, the rest is not counted.

    All members value the next states of all K minibatches (twice with Double DQN); each learns from its own minibatch,
    where backwards costs twice as much as forwards, but for the first layer, whose input needs no gradient.
    """
    algo = config.algo
    atoms = algo.atoms if algo.value == "categorical" else 1
    layers = layer_flop(config.network, state_shape, num_actions * atoms, atoms if algo.dueling else 0)
    members, size = algo.ensemble_size, algo.batch_size
    next_states = members * members * size * (2 if algo.double else 1)
    return next_states * sum(layers) + members * size * (3 * sum(layers) - layers[0])


def resident_bytes() -> int:
    """Memory of this process now."""
    return psutil.Process().memory_info().rss


def describe(times: Times, sides: Sequence[str]) -> list[list[str]]:
    """Rows of a table: milliseconds of each side and of its parts."""
    return [[name, *(f"{times.milliseconds(name, what):.2f}" for what in (WHOLE, *PARTS))] for name in sides]
