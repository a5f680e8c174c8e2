"""Measure the cost of checkpoints: python -m benchmarks.checkpoint [--help].

The benchmark fills a replay buffer with real frames. Then, as in a long run, it repeatedly stores 10,000 more frames
and saves a checkpoint. The time is compared with that of 10,000 interactions with their updates, measured in the same
process between the checkpoints. Frames repeat after 10,000; no checkpoint file contains repeated frames, because each
holds at most 10,000.
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.measure import compose, fill, play
from meanq.config.schema import Config
from meanq.training.machine import human_bytes
from meanq.training.session import Session

ALGORITHMS = {"seaquest": ("dqn", "meanq", "meanq_rainbow"), "minatar/breakout": ("dqn", "meanq")}
INTERACTIONS = 40  # number of interactions, with updates, that are timed before each checkpoint


@dataclass
class Cost:
    """The cost of checkpoints for one algorithm: one row of the table."""

    checkpoint: float  # seconds
    resume: float  # seconds
    interval: float  # seconds for the interactions between two checkpoints
    disk: int  # bytes
    memory: int  # bytes

    @property
    def share(self) -> float:
        """Fraction of the run's time spent on checkpoints."""
        return self.checkpoint / (self.checkpoint + self.interval)


def configuration(env: str, algo: str, frames: int, root: str) -> Config:
    """Compose a run with a replay capacity of `frames`."""
    overrides = [f"env={env}", f"algo={algo}", f"algo.replay_capacity={frames}", f"total_steps={2 * frames}"]
    return compose(*overrides, f"root={root}", "compile=auto")  # the default of a run of that length


def store(run: Session, frames: np.ndarray, count: int) -> None:
    fill(run.loop.replay.start, partial(run.loop.replay.append, truncated=False), frames, count)


def measure(config: Config, checkpoints: int) -> Cost:
    """Fill the replay, then alternate interactions and checkpoints."""
    run = Session(config)
    run._record.open()
    run._record.start()
    every = config.checkpoint.every
    frames = play(run.loop.env, every)
    store(run, frames, config.algo.replay_capacity)
    run.loop.start_game()
    seconds, per_interaction = [], []
    for number in range(checkpoints + 1):
        run.loop.step = config.algo.first_update + number * every
        store(run, frames, every - INTERACTIONS)
        run.loop.start_game()
        start = time.perf_counter()
        for _ in range(INTERACTIONS):
            run.loop.step += 1
            run.loop.interact()
            if run.loop.step % config.algo.interactions_per_update == 0:
                for _ in range(config.algo.gradient_steps):
                    run.loop.learn()
        per_interaction.append((time.perf_counter() - start) / INTERACTIONS)
        start = time.perf_counter()
        run._save()
        seconds.append(time.perf_counter() - start)
    disk = sum(path.stat().st_size for path in run._checkpoints.directory.iterdir())
    run._record.close()
    start = time.perf_counter()
    again = Session(config)
    saved = again._checkpoints.load(print)
    assert saved is not None
    again.loop.agent.load_state_dict(saved.state["agent"])
    again.loop.replay.load_state_dict(saved.state["replay"])
    saved.restore_frames(again.loop.replay)
    resume = time.perf_counter() - start
    # The first checkpoint saves all frames at once, which never happens in a run, so its time is left out.
    return Cost(
        statistics.median(seconds[1:]),
        resume,
        every * statistics.median(per_interaction),
        disk,
        run.replay_bytes,
    )


def main() -> None:
    """Measure and print; exit with 1 if checkpoints take 2% of the time or more."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=500_000, help="frames in an Atari replay (default 500000)")
    parser.add_argument("--checkpoints", type=int, default=3, help="timed checkpoints per row (default 3)")
    parser.add_argument("--env", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    options = parser.parse_args()
    table = Table(title="A checkpoint every 10,000 interactions", title_justify="left", box=box.SIMPLE)
    for name in ("environment", "algorithm"):
        table.add_column(name)
    for name in ("frames", "checkpoint s", "10K interactions s", "share", "on disk", "replay in memory", "resume s"):
        table.add_column(name, justify="right")
    slow = 0
    for env in options.env:
        frames = options.frames if env == "seaquest" else options.frames // 5
        for algo in ALGORITHMS[env]:
            with tempfile.TemporaryDirectory() as root:
                cost = measure(configuration(env, algo, frames, root), options.checkpoints)
            slow += cost.share >= 0.02
            table.add_row(
                env,
                algo,
                f"{frames:,}",
                f"{cost.checkpoint:.2f}",
                f"{cost.interval:,.0f}",
                f"{cost.share:.2%}",
                human_bytes(cost.disk),
                human_bytes(cost.memory),
                f"{cost.resume:.1f}",
            )
    Console(width=140).print(table)
    print(f"checkpoints take 2% of the time or more in {slow} rows")
    sys.exit(min(slow, 1))


if __name__ == "__main__":
    main()
