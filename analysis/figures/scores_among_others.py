"""The picture of our scores among the runs of others: a panel per game, a line per method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis.figures.aggregates import ROW, name_lines, room_for
from analysis.figures.palette import SOLID, Style, cited, styles
from analysis.figures.panels import FONT, INCH, Sheet, look, settings, write_picture
from analysis.figures.tables import game_name, number_of_runs
from analysis.paper.tables import INTERACTIONS, RUN_BY_RUN, reference_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_COLUMNS = 3
PANEL = 1.75  # inches
PERCENTILES = 0.5  # inches of a panel, to the right of its axes
FENCE = 5  # interquartile ranges beyond the quartiles; a run further out would squeeze all others
OTHERS = Style("#6E6E6E", SOLID, "o", "")
MEANS = {"der": ("DER (Dopamine)", OTHERS), "meanq": ("MeanQ (paper)", cited("meanq", "100k"))}
_GOLDEN = 0.618034  # multiples of it, modulo 1, are evenly spread

Scores = Mapping[tuple[str, str], Sequence[float]]  # of our runs, by game and label


def write_standing(table: pd.DataFrame, scores: Scores, path: Path) -> str:
    """Draw into an image file; returns the caption."""
    with settings():
        figure, caption = draw_standing(table, scores)
        write_picture(figure, path)
    return caption


def draw_standing(table: pd.DataFrame, scores: Scores) -> tuple[Figure, str]:
    """The picture and its caption. table: of `paper.tables.standing`, made from the same scores."""
    games, looks = sorted(set(table["game"])), styles(table["label"])
    names = [*RUN_BY_RUN.values(), *(name for name, _ in MEANS.values()), *(style.name for style in looks.values())]
    columns = min(MOST_COLUMNS, len(games))
    sheet = Sheet(
        -(-len(games) // columns),
        columns,
        [(Style(OTHERS.colour, (0, 1), "o", ""), "a run"), (OTHERS, "mean ± std")],
        height=ROW * len(names) + 0.1,
        left=room_for(names),
        panel_width=PANEL if columns > 1 else 1.5 * PANEL,
    )
    beyond = 0
    for i, game in enumerate(games):
        axis = sheet.panel(i // columns, i % columns)
        place = axis.get_position()
        axis.set_position((place.x0, place.y0, place.width - PERCENTILES / sheet.width, place.height))
        rows = table[table["game"] == game].set_index("label")
        beyond += _draw_panel(axis, rows, {label: scores[game, label] for label in rows.index}, looks)
        name_lines(axis, len(names), names if i % columns == 0 else [])
        axis.set_title(game_name(game), loc="left")
    return sheet.figure, _caption(table, beyond)


def _draw_panel(
    axis: Axes, rows: pd.DataFrame, scores: Mapping[str, Sequence[float]], looks: Mapping[str, Style]
) -> int:
    """A game's lines, and the range of its axis; returns how many runs of others are beyond it."""
    game = str(rows["game"].iloc[0])
    runs = [reference_runs()[method, game] for method in RUN_BY_RUN]
    numbers = [score for of_label in scores.values() for score in of_label]
    for y, (method, (_, style)) in enumerate(MEANS.items(), len(runs)):
        mean, std = rows[[f"{method} mean", f"{method} std"]].iloc[0]
        axis.plot([mean - std, mean + std], [y, y], color=style.colour, linewidth=1.0)
        axis.plot([mean], [y], **look(style))
        numbers += [mean - std, mean + std]
    low, high = _range(runs, numbers)
    beyond = sum(_draw_runs(axis, y, values, low, high) for y, values in enumerate(runs))
    first = len(runs) + len(MEANS)
    for y, (label, style) in enumerate(looks.items(), first):
        if label in scores:
            _draw_ours(axis, y, style, scores[label], rows.loc[[label]].iloc[0])
    _beside(axis, 0.5, first - 2, "above %", OTHERS.colour)
    for column, name in enumerate(RUN_BY_RUN.values()):
        _beside(axis, column, first - 1, name.partition("(")[0], OTHERS.colour)
    margin = 0.06 * (high - low)
    axis.set_xlim(low - margin, high + margin)
    return beyond


def _range(runs: Sequence[np.ndarray], numbers: Sequence[float]) -> tuple[float, float]:
    """From the lowest to the highest of the numbers and of the runs that are not far out."""
    ends = list(numbers)
    for values in runs:
        lower, upper = np.percentile(values, [25, 75])
        fence = FENCE * (upper - lower)
        near = values[(values >= lower - fence) & (values <= upper + fence)]
        ends += [float(near.min()), float(near.max())]
    return min(ends), max(ends)


def _draw_runs(axis: Axes, y: int, values: np.ndarray, low: float, high: float) -> int:
    """Points at several heights, so that they do not hide each other; returns how many are beyond the axis."""
    heights = y + 0.6 * ((np.arange(len(values)) * _GOLDEN) % 1 - 0.5)
    inside = (values >= low) & (values <= high)
    axis.plot(values[inside], heights[inside], "o", color=OTHERS.colour, markersize=1.6, alpha=0.55)
    for far, end, marker in ((values < low, low, "<"), (values > high, high, ">")):
        if far.any():
            axis.plot([end], [y], marker, color=OTHERS.colour, markersize=3)
    return int((~inside).sum())


def _draw_ours(axis: Axes, y: int, style: Style, scores: Sequence[float], row: pd.Series) -> None:
    axis.plot(scores, [y] * len(scores), "o", color=style.colour, markersize=2.2, alpha=0.6)
    axis.plot([row["mean"]], [y], **{**look(style), "markersize": 7 if style.marker == "*" else 4.5})
    for column, method in enumerate(RUN_BY_RUN):
        _beside(axis, column, y, f"{row[method]:g}", style.colour)


def _beside(axis: Axes, column: float, y: int, text: str, colour: str) -> None:
    """Write right of the axes, in the first or second column of percentiles."""
    axis.annotate(
        text,
        (1, y),
        xycoords=axis.get_yaxis_transform(),  # x in widths of the axes, y in lines
        xytext=(INCH * (0.18 + 0.28 * column), 0),
        textcoords="offset points",
        ha="center",
        va="center",
        fontsize=FONT - 0.5,
        color=colour,
    )


def _caption(table: pd.DataFrame, beyond: int) -> str:
    sentences = [
        f"Scores after {INTERACTIONS:,} interactions: 100 runs each of DrQ(eps) and SPR; mean and standard deviation "
        "of Dopamine's data-efficient Rainbow (100 runs) and of the paper's MeanQ; every run of ours (small) and "
        f"their mean (large), {number_of_runs(table['runs'])}.",
        "Numbers: the percentage of the runs of DrQ(eps) and of SPR below our mean, ties counting half.",
    ]
    if beyond:
        sentences.append(f"Arrows: runs beyond the axis, {beyond} in all.")
    return " ".join(sentences)
