"""Time the batched engine against a plain loop over members: python -m benchmarks.learner [--help].

Both run in this process, in turns of a fraction of a second, and acting and learning alternate as they do in training.
Figures are medians per call. Times drift on a shared machine: trust the ratios.
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.reference import Member, ReferenceAgent, ReferenceReplay
from meanq.agent import Agent
from meanq.config import Config, ConfigError, NetworkConfig
from meanq.networks import QNetwork
from meanq.replay import Replay, ring_slots
from meanq.rng import stream
from meanq.sweep import plan, register_schema
from meanq.train import member_generator, priority_trees, thread_count, tune_process

NUM_ACTIONS = 6
TRANSITIONS = 2_000  # in replay
EPISODE = 200  # interactions
POOL = 64  # different random frames
IMPORTANCE_EXPONENT = 0.4
BURST_SECONDS = 0.1  # a turn lasts this long, and at least one learner step
WHATS = ("learner step", "interaction")

Seconds = dict[str, list[float]]  # of every call, by what it was


@dataclass(frozen=True)
class Setting:
    """What a network looks at."""

    env: str  # whose hyper-parameters apply
    frame_shape: tuple[int, int, int]
    stack: int
    levels: int  # pixels are drawn from 0 to levels - 1
    scale: float

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """Channels of all frames, height, width."""
        channels, height, width = self.frame_shape
        return self.stack * channels, height, width


ATARI = Setting("asterix", (1, 84, 84), stack=4, levels=256, scale=1 / 255)
SETTINGS = {
    "nature": ATARI,
    "data_efficient": ATARI,
    "minatar": Setting("minatar/asterix", (4, 10, 10), stack=1, levels=2, scale=1.0),
}


class RandomGame:
    """Random frames in place of an emulator. A lookup, so it takes no time worth counting."""

    def __init__(self, setting: Setting, generator: np.random.Generator) -> None:
        self.frames = generator.integers(setting.levels, size=(POOL, *setting.frame_shape), dtype=np.uint8)
        self.states = generator.integers(setting.levels, size=(POOL, *setting.state_shape), dtype=np.uint8)
        self.rewards = generator.normal(size=POOL).tolist()
        self.step = 0

    @property
    def state(self) -> np.ndarray:
        """The state to act in."""
        return self.states[self.step % POOL]

    @property
    def frame(self) -> np.ndarray:
        """The newest frame."""
        return self.frames[self.step % POOL]

    def advance(self) -> tuple[float, bool]:
        """Reward, terminal."""
        self.step += 1
        return self.rewards[self.step % POOL], self.step % EPISODE == 0


class Side:
    """One of the two that are compared. Its replay is full when it is made."""

    def __init__(
        self,
        game: RandomGame,
        *,
        values: Callable[[np.ndarray], np.ndarray],  # of one state, [K, A]
        start: Callable[[np.ndarray], None],  # of its replay, as the next
        append: Callable[..., None],
        learn: Callable[[], None],  # sample, one gradient step of every member, write the priorities back
    ) -> None:
        self._game = game
        self._values = values
        self._start = start
        self._append = append
        self.learn = learn
        start(game.frame)
        for i in range(TRANSITIONS):
            self._store(i % NUM_ACTIONS)

    def interact(self) -> None:
        """Evaluate one state with all members, choose the best action on average, store the transition."""
        self._store(int(self._values(self._game.state).mean(0).argmax()))

    def _store(self, action: int) -> None:
        reward, terminal = self._game.advance()
        self._append(action, reward, self._game.frame, terminal=terminal)
        if terminal:
            self._start(self._game.frame)


def make_batched(config: Config, setting: Setting) -> Side:
    """The engine of meanq/, used as its training loop does."""
    algo = config.algo
    network = QNetwork(setting.state_shape, NUM_ACTIONS, config.network, dueling=algo.dueling, scale=setting.scale)
    params = network.init([member_generator(config.seed, k) for k in range(algo.ensemble_size)])
    device = torch.device("cpu")
    agent = Agent(algo, network, params, device, torch.Generator(device).manual_seed(0))
    replay = Replay(
        capacity=TRANSITIONS,
        frame_shape=setting.frame_shape,
        frame_dtype=np.dtype(np.uint8),
        stack=setting.stack,
        multi_step=algo.multi_step,
        discount=algo.discount,
        priority_trees=priority_trees(algo),
        prioritized=algo.prioritized,
        priority_exponent=algo.priority_exponent,
        generator=stream(config.seed, "replay"),
        device=device,
    )

    def learn() -> None:
        batch = replay.sample(algo.ensemble_size, algo.batch_size, IMPORTANCE_EXPONENT)
        learned = agent.learn(batch)
        replay.update_priorities(batch.indices, learned.errors.cpu().numpy().astype(np.float64))

    return Side(
        RandomGame(setting, stream(config.seed, "env")),
        values=lambda state: agent.values(state[None])[:, 0],
        start=replay.start,
        append=partial(replay.append, truncated=False),
        learn=learn,
    )


def make_reference(config: Config, setting: Setting) -> Side:
    """The plain reference."""
    algo = config.algo
    agent = ReferenceAgent(algo, lambda: Member(setting.state_shape, NUM_ACTIONS, config.network), setting.scale)
    replay = ReferenceReplay(
        slots=ring_slots(TRANSITIONS, setting.stack),
        frame_shape=setting.frame_shape,
        stack=setting.stack,
        discount=algo.discount,
        members=algo.ensemble_size,
        generator=stream(config.seed, "replay"),
    )

    def learn() -> None:
        batches = replay.sample(algo.batch_size, IMPORTANCE_EXPONENT)
        errors = agent.learn(batches)
        for k, batch in enumerate(batches):
            replay.update_priorities(k, batch.slots, errors[k] ** algo.priority_exponent)

    return Side(
        RandomGame(setting, stream(config.seed, "env")),
        values=agent.values,
        start=replay.start,
        append=replay.append,
        learn=learn,
    )


class MatmulPeak:
    """What the machine can do: fp32 products of large square matrices, measured again and again."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self._matrices = [torch.rand(size, size, generator=generator) for size in (1024, 2048)]
        self._outputs = [torch.empty_like(matrix) for matrix in self._matrices]
        self.measured: list[float] = []  # operations per second, the better size of each time

    def measure(self) -> None:
        """One product of each size."""
        rates = []
        for matrix, output in zip(self._matrices, self._outputs, strict=True):
            start = time.perf_counter()
            torch.mm(matrix, matrix, out=output)
            rates.append(2 * len(matrix) ** 3 / (time.perf_counter() - start))
        self.measured.append(max(rates))


@dataclass
class Row:
    """One line of the table."""

    network: str
    members: int
    what: str
    batched_ms: float
    reference_ms: float
    batched_calls: int
    reference_calls: int
    gflop: float

    @property
    def ratio(self) -> float:
        """How many times the batched engine is faster."""
        return self.reference_ms / self.batched_ms


def forward_flop(network: NetworkConfig, state_shape: tuple[int, int, int]) -> int:
    """Floating point operations of one member's value of one state; a multiply-add is two."""
    channels, height, width = state_shape
    multiply_adds = 0
    for conv in network.convolutions:
        height, width = ((size - conv.kernel) // conv.stride + 1 for size in (height, width))
        multiply_adds += height * width * conv.channels * channels * conv.kernel**2
        channels = conv.channels
    multiply_adds += channels * height * width * 2 * network.hidden  # both dueling streams
    multiply_adds += network.hidden * (NUM_ACTIONS + 1)
    return 2 * multiply_adds


def flop(config: Config, setting: Setting, what: str) -> int:
    """Floating point operations of one call, all members together.

    A learner step evaluates the next states of all K minibatches with K members, and each member's own minibatch
    forwards and backwards, where backwards counts twice.
    """
    members, size = config.algo.ensemble_size, config.algo.batch_size
    states = members * (members * size) + 3 * members * size if what == "learner step" else members
    return states * forward_flop(config.network, setting.state_shape)


def burst(side: Side, interactions_per_update: int, seconds: Seconds) -> None:
    """Interactions and learner steps by turns, for a short time; adds the time of every call."""
    end = time.perf_counter() + BURST_SECONDS
    while time.perf_counter() < end:
        for what, call, times in (
            ("interaction", side.interact, interactions_per_update),
            ("learner step", side.learn, 1),
        ):
            for _ in range(times):
                start = time.perf_counter()
                call()
                seconds[what].append(time.perf_counter() - start)


def run_cell(config: Config, budget: float, peak: MatmulPeak) -> list[Row]:
    """Time one network and ensemble size for about `budget` seconds."""
    setting = SETTINGS[config.network.name]
    sides = [make_batched(config, setting), make_reference(config, setting)]
    for side in sides:
        burst(side, config.algo.interactions_per_update, defaultdict(list))  # warm-up
    batched: Seconds = defaultdict(list)
    reference: Seconds = defaultdict(list)
    end = time.perf_counter() + budget
    while not batched or time.perf_counter() < end:
        peak.measure()
        for side, seconds in zip(sides, (batched, reference), strict=True):
            burst(side, config.algo.interactions_per_update, seconds)
    return [
        Row(
            network=config.network.name,
            members=config.algo.ensemble_size,
            what=what,
            batched_ms=1e3 * statistics.median(batched[what]),
            reference_ms=1e3 * statistics.median(reference[what]),
            batched_calls=len(batched[what]),
            reference_calls=len(reference[what]),
            gflop=flop(config, setting, what) / 1e9,
        )
        for what in WHATS
    ]


def compose(network: str, members: int, threads: int | None) -> Config:
    """MeanQ with a target network, as a run would have it."""
    composed = plan(
        [
            "algo=meanq",
            f"env={SETTINGS[network].env}",
            f"network={network}",
            f"algo.ensemble_size={members}",
            f"threads={'null' if threads is None else threads}",
            f"root={tempfile.gettempdir()}",  # nothing is written there
            "study=benchmark",
        ]
    )
    assert composed is not None
    return composed.configs[0]


def share(row: Row, milliseconds: float, peak: float) -> float:
    """Of the matmul peak (operations per second)."""
    return row.gflop * 1e9 / (milliseconds / 1e3) / peak


def show(console: Console, rows: Sequence[Row], peak: MatmulPeak) -> None:
    """Print the table and its verdict."""
    best = max(peak.measured)
    title = "Batched members against a loop over members (medians)"
    table = Table(box=box.SIMPLE, title=title, pad_edge=False, collapse_padding=True)
    for name in ("network", "K", "what", "batched\nms", "reference\nms", "ratio", "share\nbatched", "share\nref."):
        table.add_column(name, justify="left" if name in ("network", "what") else "right", no_wrap=True)
    for row in rows:
        slower = row.ratio < 1
        table.add_row(
            row.network,
            str(row.members),
            row.what,
            f"{row.batched_ms:.2f}",
            f"{row.reference_ms:.2f}",
            f"SLOWER {row.ratio:.2f}" if slower else f"{row.ratio:.2f}",
            f"{share(row, row.batched_ms, best):.1%}",
            f"{share(row, row.reference_ms, best):.1%}",
            style="bold red" if slower else None,
            end_section=row.what == WHATS[-1] and row.members == rows[-1].members,
        )
    console.print(table)
    console.print(
        f"Shares are of the fp32 matmul peak, {best / 1e9:.0f} GF/s: the best of {len(peak.measured)} measurements "
        f"between the others (median {statistics.median(peak.measured) / 1e9:.0f}). "
        f"{torch.get_num_threads()} thread(s), torch {torch.__version__}."
    )
    slower_rows = sum(row.ratio < 1 for row in rows)
    console.print(f"{slower_rows} of {len(rows)} rows are slower than the reference.")


def save(path: Path, rows: Sequence[Row], peak: MatmulPeak) -> None:
    """Write the numbers."""
    best = max(peak.measured)
    facts = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "peak_gflops": best / 1e9,
        "median_peak_gflops": statistics.median(peak.measured) / 1e9,
        "rows": [
            {
                **asdict(row),
                "ratio": row.ratio,
                "batched_share": share(row, row.batched_ms, best),
                "reference_share": share(row, row.reference_ms, best),
            }
            for row in rows
        ],
    }
    path.write_text(json.dumps(facts, indent=2) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learner", description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=SETTINGS, default=list(SETTINGS), metavar="NAME")
    parser.add_argument("--members", nargs="+", type=int, default=[1, 2, 5, 10], metavar="K")
    parser.add_argument("--seconds", type=float, default=12.0, help="for each network and K (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="default: all cores of this job")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here, too")
    options = parser.parse_args(arguments)
    register_schema()
    cells = itertools.product(options.networks, options.members)
    try:
        configs = [compose(network, members, options.threads) for network, members in cells]
    except ConfigError as error:
        parser.error(str(error))
    tune_process(thread_count(configs[0]))
    peak = MatmulPeak()
    rows: list[Row] = []
    with Console(file=sys.stderr).status("") as status:
        for config in configs:
            status.update(f"{config.network.name}, {config.algo.ensemble_size} member(s)")
            rows += run_cell(config, options.seconds, peak)
    show(Console(width=max(Console().width, 90)), rows, peak)
    if options.json:
        save(options.json, rows, peak)


if __name__ == "__main__":
    main()
