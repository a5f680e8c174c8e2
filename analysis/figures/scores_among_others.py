"""The picture of our scores among the runs of others: a panel per game, a line per method."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..paper.tables import INTERACTIONS, RUN_BY_RUN, reference_runs
from ..runs import AnalysisError
from . import panels
from .aggregates import list_of_lines
from .palette import SOLID, Looks, Style, cited, styles
from .tables import game_name, number_of_runs

MOST_COLUMNS = 3
PANEL = 1.75  # inches
PERCENTILES = 0.29  # of the width of a panel, to the right of its axes
FENCE = 5  # interquartile ranges beyond the quartiles; a run further out would squeeze all others
OTHERS = Style("#6E6E6E", SOLID, "o", "")
MEANS = {"der": ("DER (Dopamine)", OTHERS), "meanq": ("MeanQ (paper)", cited("meanq", "100k"))}
_GOLDEN = 0.618034  # multiples of it, modulo 1, are evenly spread

Scores = Mapping[tuple[str, str], Sequence[float]]  # of our runs, by game and label


def write_standing(table: pd.DataFrame, scores: Scores, path: Path) -> str:
    """Draw into the file that --picture names, in the format of its suffix; returns the caption."""
    about = {".png": {"Software": None}, ".svg": {"Date": None}}.get(path.suffix.lower())
    with panels.settings():
        figure, caption = draw_standing(table, scores)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=150, metadata=about)
        except (OSError, ValueError) as error:  # ValueError: unknown format
            raise AnalysisError(f"--picture {path}: cannot be written ({error})") from None
    return caption


def draw_standing(table: pd.DataFrame, scores: Scores) -> tuple[Figure, str]:
    """The picture and its caption. table: of `paper.tables.standing`, made from the same scores."""
    games, looks = sorted(set(table["game"])), styles(table["label"])
    names = [*RUN_BY_RUN.values(), *(name for name, _ in MEANS.values()), *(style.name for style in looks.values())]
    columns = min(MOST_COLUMNS, len(games))
    titles = [game_name(game) for game in games]
    figure, axes = list_of_lines(names, titles, columns, PANEL if columns > 1 else 1.5 * PANEL)
    beyond = 0
    for game, axis in zip(games, axes, strict=True):
        place = axis.get_position()
        axis.set_position((place.x0, place.y0, place.width * (1 - PERCENTILES), place.height))
        rows = table[table["game"] == game].set_index("label")
        beyond += _draw_panel(axis, rows, {label: scores[game, label] for label in rows.index}, looks)
        panels.ticks(axis.xaxis, 3)
    caption = (
        f"Scores after {INTERACTIONS:,} interactions: 100 runs each of DrQ(eps) and SPR; mean and standard deviation "
        "of Dopamine's data-efficient Rainbow (100 runs) and of the paper's MeanQ; every run of ours (small) and "
        f"their mean (large), {number_of_runs(table['runs'])}. Numbers: the percentage of the runs of DrQ(eps) and of "
        "SPR below our mean, ties counting half."
    )
    return figure, caption + f" {beyond} runs of others are beyond the axes." * (beyond > 0)


def _draw_panel(axis: Axes, rows: pd.DataFrame, scores: Mapping[str, Sequence[float]], looks: Looks) -> int:
    """A game's lines, and the range of its axis; returns how many runs of others are beyond it."""
    game = str(rows["game"].iloc[0])
    runs = [reference_runs()[method, game] for method in RUN_BY_RUN]
    for y, values in enumerate(runs):  # at several heights, so that they do not hide each other
        heights = y + 0.6 * ((np.arange(len(values)) * _GOLDEN) % 1 - 0.5)
        axis.plot(values, heights, "o", color=OTHERS.colour, markersize=1.6, alpha=0.55)
    numbers = [score for of_label in scores.values() for score in of_label]
    for y, (method, (_, style)) in enumerate(MEANS.items(), len(runs)):
        mean, std = rows[[f"{method} mean", f"{method} std"]].iloc[0]
        axis.plot([mean - std, mean + std], [y, y], color=style.colour, linewidth=1.0)
        axis.plot([mean], [y], **panels.look(style))
        numbers += [mean - std, mean + std]
    first = len(runs) + len(MEANS)
    for y, (label, style) in enumerate(looks.items(), first):
        if label in scores:
            axis.plot(scores[label], [y] * len(scores[label]), "o", color=style.colour, markersize=2.2, alpha=0.6)
            mean, *shares = rows.loc[[label], ["mean", *RUN_BY_RUN]].to_numpy(float)[0]
            axis.plot([mean], [y], **panels.look(style, large=True))
            for column, share in enumerate(shares):
                _beside(axis, column, y, f"{share:g}", style.colour)
    _beside(axis, 0.5, first - 2, "above %", OTHERS.colour)
    for column, name in enumerate(RUN_BY_RUN.values()):
        _beside(axis, column, first - 1, name.partition("(")[0], OTHERS.colour)
    low, high = _range(runs, numbers)
    margin = 0.06 * (high - low)
    axis.set_xlim(low - margin, high + margin)
    return sum(int(((values < low) | (values > high)).sum()) for values in runs)


def _range(runs: Sequence[np.ndarray], numbers: Sequence[float]) -> tuple[float, float]:
    """From the lowest to the highest of the numbers and of the runs that are not far out."""
    ends = list(numbers)
    for values in runs:
        lower, upper = np.percentile(values, [25, 75])
        fence = FENCE * (upper - lower)
        near = values[(values >= lower - fence) & (values <= upper + fence)]
        ends += [float(near.min()), float(near.max())]
    return min(ends), max(ends)


def _beside(axis: Axes, column: float, y: int, text: str, colour: str) -> None:
    """Write right of the axes, in the first or second column of percentiles."""
    x, place = 1.15 + 0.22 * column, axis.get_yaxis_transform()  # x in widths of the axes, y in lines
    axis.text(x, y, text, transform=place, ha="center", va="center", fontsize=panels.FONT - 0.5, color=colour)
