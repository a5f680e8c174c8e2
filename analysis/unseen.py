"""What of a game's images a network never reads, because its strides leave out the last rows and columns.

    python -m analysis.unseen network=data_efficient env=assault,breakout,pong --picture unseen.png
    python -m analysis.unseen network=nature env=breakout

Overrides are those of meanq.run. Games are played at random. A row says which part of the image is read, and which
share of all changes of pixels from one observation to the next is in the rest, below it and to its right. A large
share is a reason to look (at the picture); a small one may still be what matters, as a gauge does.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis.console import command, write_out
from analysis.figures.panels import write_picture

if TYPE_CHECKING:
    from meanq.config.schema import Config

_PICTURED_AFTER = 60  # interactions, so that the game has begun
_COLUMNS = 4  # images side by side
_TINT = "#D55E00"


@dataclass(frozen=True)
class View:
    """One game's images, and how far they are read."""

    env: str
    seen: tuple[int, ...]  # height, width
    changes: np.ndarray  # [height, width], how often a pixel was not as before
    frame: np.ndarray  # [channels, height, width], one of them
    scale: float  # by which networks multiply it

    def row(self) -> dict[str, object]:
        """For the table."""
        height, width = self.seen
        total = max(1, int(self.changes.sum()))
        below, right = self.changes[height:].sum() / total, self.changes[:height, width:].sum() / total
        size = "x".join(map(str, self.changes.shape))
        return {"env": self.env, "image": size, "read": f"{height}x{width}", "below": below, "right": right}


def view(config: "Config", steps: int) -> View:
    """Play at random for so many interactions."""
    from meanq.config.errors import ConfigError
    from meanq.envs import make_env
    from meanq.learning.build import make_network
    from meanq.rng import stream

    env = make_env(config.env, stream(config.seed, "unseen", "env"))
    if len(env.frame_shape) != 3:
        raise ConfigError(f"env={config.env.name}: its states are no images, and are read whole")
    network = make_network(config, env)
    generator = stream(config.seed, "unseen", "actions")
    changes = np.zeros(env.frame_shape[1:], dtype=np.int64)
    frame = pictured = env.reset()
    for step in range(steps):
        outcome = env.step(int(generator.integers(env.num_actions)))
        changes += (outcome.frame != frame).any(0)
        frame = outcome.frame
        if outcome.terminal or outcome.truncated:
            frame = env.reset()  # a new game is no change
        if step < _PICTURED_AFTER:
            pictured = frame
    return View(config.env.name, network.seen, changes, pictured, env.frame_scale)


def table(views: Sequence[View]) -> pd.DataFrame:
    """A row per game, those with most out of sight first."""
    rows = pd.DataFrame([each.row() for each in views])
    order = (-(rows["below"] + rows["right"])).sort_values(kind="stable").index
    return rows.loc[order].reset_index(drop=True)


def draw(views: Sequence[View], path: Path) -> None:
    """The images as the network gets them, what it does not read in colour."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    from analysis.playing.drawing import draw_frame

    columns = min(_COLUMNS, len(views))
    lines = -(-len(views) // columns)
    figure = Figure(figsize=(2.6 * columns, 2.85 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for ax in axes:
        ax.axis("off")
    for ax, each in zip(axes, views, strict=False):
        height, width = each.changes.shape
        seen_height, seen_width = each.seen
        ax.imshow(draw_frame(each.frame, each.scale), interpolation="nearest", extent=(0, width, height, 0))
        ax.set_title(each.env, fontsize=10)
        below = (0, seen_height), width, height - seen_height
        right = (seen_width, 0), width - seen_width, seen_height
        for corner, across, down in (below, right):
            ax.add_patch(Rectangle(corner, across, down, color=_TINT, alpha=0.45, linewidth=0))
    write_picture(figure, path, dpi=120)


@command
def main(arguments: Sequence[str] | None = None) -> None:
    assert __doc__
    parser = argparse.ArgumentParser(prog="python -m analysis.unseen", description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="+", help="as for meanq.run, e.g. network=data_efficient env=breakout,pong")
    parser.add_argument("--steps", type=int, default=1000, help="interactions at random in each game (default: 1000)")
    parser.add_argument("--picture", type=Path, help="an image file for one observation of each game")
    parser.add_argument("--out", type=Path, help="a CSV file for the table")
    options = parser.parse_intermixed_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps {options.steps}: write 1 or more")
    from meanq.launching.plan import hydra_arguments, plan, register_schema

    register_schema()
    with tempfile.TemporaryDirectory() as nowhere:  # nothing is run, so no directory is in the way
        planned = plan(hydra_arguments(["-m", *options.overrides, f"root={nowhere}"]))
    assert planned is not None
    different = dict[str, "Config"]()
    for config in planned.configs:
        different.setdefault(f"{config.env}{config.network}", config)
    views = [view(config, options.steps) for config in different.values()]
    found = table(views)
    print(found.to_string(index=False, float_format=lambda share: f"{share:.1%}"))
    if options.out is not None:
        write_out(options.out, found.to_csv(index=False, float_format="%.4f", lineterminator="\n"))
    if options.picture is not None:
        draw(views, options.picture)


if __name__ == "__main__":
    main()
