"""Pictures of aggregates over games: point estimates, performance profiles, probabilities of improvement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis.figures.palette import Style, order
from analysis.figures.panels import FONT, LEFT, Sheet, draw_bands, draw_curves, look, text_width, ticks
from analysis.figures.tables import Curve, number_of_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AGGREGATES = {"iqm": "IQM", "median": "median", "mean": "mean", "optimality_gap": "optimality gap"}
MOST_PAIRS = 15
COMPARED_FIRST = ("meanq_rainbow", "meanq_no_target", "meanq")  # with all others, where there are too many pairs
ROW = 0.17  # inches per label
INTERVALS = "Intervals: 95%, by bootstrap over runs, stratified by game; none for one run per game."


def pairs_to_compare(labels: Sequence[str]) -> list[tuple[str, str]]:
    """Every two labels, the later one of the legend first; of many labels, one with every other one."""
    ordered = order(labels)
    pairs = [(b, a) for a, b in combinations(ordered, 2)]
    if len(pairs) <= MOST_PAIRS:
        return pairs
    first = next((label for label in COMPARED_FIRST if label in ordered), ordered[-1])
    return [(first, other) for other in ordered if other != first]


def draw_aggregates(table: pd.DataFrame, looks: Mapping[str, Style]) -> tuple[Figure, str]:
    """A panel per aggregate, a line per label."""
    labels = [label for label in looks if label in set(table["label"])]
    names = [looks[label].name for label in labels]
    sheet = Sheet(1, len(AGGREGATES), height=ROW * len(labels) + 0.1, left=room_for(names))
    for i, (metric, name) in enumerate(AGGREGATES.items()):
        axis = sheet.panel(0, i)
        rows = table[table["metric"] == metric].set_index("label").loc[labels]
        _draw_intervals(axis, rows, [looks[label] for label in labels], names if i == 0 else [])
        axis.set_title(name)
        axis.set_xlabel("normalised score")
    games = int(table["games"].max())
    return sheet.figure, (
        f"Normalised returns at step {table['steps'].iloc[0]} in {games} game{'s' * (games > 1)}, "
        f"{number_of_runs(table['runs'])} in a game: "
        "interquartile mean, median of the games' means, mean, and optimality gap (how far below 1 on average; less is "
        f"better). {INTERVALS}"
    )


def draw_profiles(table: pd.DataFrame, looks: Mapping[str, Style]) -> tuple[Figure, str]:
    """A line per label."""
    shown = {label: style for label, style in looks.items() if label in set(table["label"])}
    sheet = Sheet(1, 1, [(style, style.name) for style in shown.values()])
    axis = sheet.panel(0, 0)
    rows = {label: table[table["label"] == label] for label in shown}
    lines = {label: part[["threshold", "value", "low", "high"]].to_numpy(float).T for label, part in rows.items()}
    draw_bands(axis, [(shown[label], x, low, high) for label, (x, _, low, high) in lines.items()])
    draw_curves(axis, [(shown[label], Curve(x, value, x * np.nan)) for label, (x, value, _, _) in lines.items()])
    axis.set_xlim(0, float(table["threshold"].max()))
    axis.set_ylim(0, 1.02)
    ticks(axis)
    axis.set_xlabel("normalised score")
    axis.set_ylabel("share of runs above it")
    return sheet.figure, (
        f"The share of runs, over all games, whose normalised return at step {table['steps'].iloc[0]} is above a "
        f"score; {number_of_runs(table['runs'])}, all games together. {INTERVALS}"
    )


def draw_improvements(table: pd.DataFrame, looks: Mapping[str, Style]) -> tuple[Figure, str]:
    """A line per pair."""
    names = [f"{looks[a].name} > {looks[b].name}" for a, b in zip(table["label"], table["other"], strict=True)]
    sheet = Sheet(1, 1, height=ROW * len(table) + 0.1, left=room_for(names), panel_width=2.0)
    axis = sheet.panel(0, 0)
    axis.axvline(0.5, color="#999999", linewidth=0.8, zorder=1)
    _draw_intervals(axis, table, [looks[label] for label in table["label"]], names)
    axis.set_xlim(-0.02, 1.02)
    axis.set_xlabel("probability of improvement")
    games = int(table["games"].iloc[0])
    return sheet.figure, (
        f"How likely a run of the first label has a higher return at step {table['steps'].iloc[0]} than one of the "
        f"second, mean over {games} game{'s' * (games > 1)}; ties count half. {INTERVALS}"
    )


def _draw_intervals(axis: Axes, rows: pd.DataFrame, styles: Sequence[Style], names: Sequence[str]) -> None:
    for i, (style, value, low, high) in enumerate(zip(styles, rows["value"], rows["low"], rows["high"], strict=True)):
        if np.isfinite(low) and np.isfinite(high):
            axis.plot([low, high], [i, i], color=style.colour, linewidth=2.5, alpha=0.35, solid_capstyle="butt")
        axis.plot([value], [i], **{**look(style), "markersize": 7 if style.marker == "*" else 4.5})
    name_lines(axis, len(styles), names)


def name_lines(axis: Axes, count: int, names: Sequence[str]) -> None:
    """Set up the y axis for `count` lines, the first at the top; `names` are written at the left if there are any."""
    axis.set_ylim(count - 0.4, -0.6)
    ticks(axis, x=3)
    axis.set_yticks(range(count), labels=list(names) if names else [""] * count)
    axis.tick_params(axis="y", length=0)


def room_for(names: Sequence[str]) -> float:
    """The left margin, in inches, of panels whose lines have these names."""
    return max(LEFT, max(text_width(name, FONT) for name in names) + 0.12)
