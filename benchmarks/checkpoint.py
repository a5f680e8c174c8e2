"""Measure the cost of checkpoints: python -m benchmarks.checkpoint [--help]. A row takes one to three minutes.

The benchmark fills a replay buffer with real frames. Then, as in a long run, it repeatedly stores 10,000 more frames
and saves a checkpoint, in turn with and without the copies of files of frames. Frames repeat after 10,000; no
checkpoint file contains repeated frames, because each holds at most 10,000. Seconds are CPU seconds, which a busy
machine does not change; the time of 10,000 interactions with their updates is measured in the same process.
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.measure import compose, fill, play
from meanq.config.schema import Config
from meanq.rundir.checkpoint import Checkpoints
from meanq.training.machine import human_bytes
from meanq.training.session import Session

ALGORITHMS = {"seaquest": ("dqn", "meanq_rainbow"), "minatar/breakout": ("meanq",)}
INTERACTIONS = 40  # number of interactions, with updates, that are timed before each checkpoint
COLUMNS = (
    *("environment", "algorithm", "frames", "checkpoint s", "without copies", "written", "without", "on disk"),
    *("without", "at most", "resume s", "10K interactions s", "share"),
)


class Measured(Checkpoints):
    """Counts the bytes that are written, and those on disk when they are most; can leave out the copies."""

    def __init__(self, run_directory: Path) -> None:
        super().__init__(run_directory)
        self.copies, self.written, self.most = True, 0, 0

    def _write(self, name: str, data: bytes) -> str:
        if not self.copies and name.endswith(".copy"):
            return ""
        self.written += len(data)
        return super()._write(name, data)

    def _prune(self, *arguments: object) -> None:
        self.most = max(self.most, self.disk())
        super()._prune(*arguments)  # type: ignore[arg-type]

    def disk(self, copies: bool = True) -> int:
        """Return the bytes of all files, with or without a copy of each file of frames, whether it is there or not."""
        files = [path for path in self.directory.iterdir() if path.suffix != ".copy"]
        return sum(path.stat().st_size * (1 + (copies and path.name.startswith("frames"))) for path in files)


@dataclass
class Cost:
    """The cost of checkpoints for one algorithm: one row. Pairs are with and without copies."""

    seconds: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})  # per checkpoint
    written: dict[bool, list[int]] = field(default_factory=lambda: {True: [], False: []})  # bytes per checkpoint
    interaction: list[float] = field(default_factory=list)  # seconds per interaction with its updates
    resume: float = 0.0
    disk: int = 0
    disk_without: int = 0
    most: int = 0

    def interval(self, config: Config) -> float:
        """Seconds for the interactions between two checkpoints."""
        return config.checkpoint.every * statistics.median(self.interaction)

    def share(self, config: Config) -> float:
        """Fraction of the run's time spent on checkpoints."""
        checkpoint = statistics.median(self.seconds[True])
        return checkpoint / (checkpoint + self.interval(config))

    def row(self, config: Config) -> list[str]:
        """Return the cells after the first two."""
        return [
            f"{config.algo.replay_capacity:,}",
            *(f"{statistics.median(self.seconds[copies]):.2f}" for copies in (True, False)),
            *(human_bytes(int(statistics.median(self.written[copies]))) for copies in (True, False)),
            *(human_bytes(size) for size in (self.disk, self.disk_without, self.most)),
            f"{self.resume:.1f}",
            f"{self.interval(config):,.0f}",
            f"{self.share(config):.2%}",
        ]


def configuration(env: str, algo: str, frames: int, root: str) -> Config:
    """Compose a run with a replay capacity of `frames`."""
    overrides = [f"env={env}", f"algo={algo}", f"algo.replay_capacity={frames}", f"total_steps={2 * frames}"]
    return compose(*overrides, f"root={root}", "compile=auto")  # the default of a run of that length


def store(run: Session, frames: np.ndarray, count: int) -> None:
    fill(run.loop.replay.start, partial(run.loop.replay.append, truncated=False), frames, count)


def measure(config: Config, checkpoints: int) -> Cost:
    """Fill the replay, then alternate interactions and checkpoints."""
    cost = Cost()
    run = Session(config)
    run._checkpoints = saved = Measured(run.directory)
    run._record.open()
    run._record.start()
    every = config.checkpoint.every
    frames = play(run.loop.env, every)
    store(run, frames, config.algo.replay_capacity)
    run.loop.start_game()
    # The first checkpoint saves all frames at once, which never happens in a run, so its time is left out.
    for number, copies in enumerate([True, *[False, True] * checkpoints]):
        run.loop.step = config.algo.first_update + number * every
        store(run, frames, every - INTERACTIONS)
        run.loop.start_game()
        start = time.process_time()
        for _ in range(INTERACTIONS):
            run.loop.step += 1
            run.loop.interact()
            if run.loop.step % config.algo.interactions_per_update == 0:
                for _ in range(config.algo.gradient_steps):
                    run.loop.learn()
        if number:
            cost.interaction.append((time.process_time() - start) / INTERACTIONS)
        saved.copies, saved.written = copies, 0
        start = time.process_time()
        run._save()
        if number:
            cost.seconds[copies].append(time.process_time() - start)
            cost.written[copies].append(saved.written)
    cost.disk, cost.disk_without, cost.most = saved.disk(), saved.disk(copies=False), saved.most
    run._record.close()
    start = time.process_time()
    again = Session(config)
    found = again._checkpoints.load(print)
    assert found is not None
    again.loop.agent.load_state_dict(found.state["agent"])
    again.loop.replay.load_state_dict(found.state["replay"])
    found.restore_frames(again.loop.replay)
    cost.resume = time.process_time() - start
    return cost


def main() -> None:
    """Measure and print each row as soon as it is known; exit with 1 if checkpoints take 2% of the time or more."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=500_000, help="frames in an Atari replay (default 500000)")
    parser.add_argument("--checkpoints", type=int, default=3, help="timed checkpoints of each kind (default 3)")
    parser.add_argument("--env", nargs="+", default=list(ALGORITHMS), help="default: %(default)s")
    parser.add_argument("--algo", nargs="+", help="default: depends on the environment")
    options = parser.parse_args()
    print("A checkpoint every 10,000 interactions, with and without copies of the files of frames\n")
    widths = [max(len(name), 10) for name in COLUMNS]
    widths[0] = widths[1] = 16
    line = "  ".join(f"{{:<{w}}}" if i < 2 else f"{{:>{w}}}" for i, w in enumerate(widths)).format
    print(line(*COLUMNS), flush=True)
    slow = 0
    for env in options.env:
        small = env.startswith("minatar")
        for algo in options.algo or ALGORITHMS["minatar/breakout" if small else "seaquest"]:
            with tempfile.TemporaryDirectory() as root:
                config = configuration(env, algo, options.frames // 5 if small else options.frames, root)
                cost = measure(config, options.checkpoints)
            slow += cost.share(config) >= 0.02
            print(line(env, algo, *cost.row(config)), flush=True)
    print(f"checkpoints take 2% of the time or more in {slow} rows")
    sys.exit(min(slow, 1))


if __name__ == "__main__":
    main()
