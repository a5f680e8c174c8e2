"""Figures of aggregates over games: point estimates, performance profiles, probabilities of improvement."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .. import aggregate
from ..metrics import Metrics
from ..runs import RunSet
from . import form as forms
from . import panels
from .form import Form
from .palette import Looks, Style, order
from .tables import Curve, need, number_of_runs

AGGREGATES = {"iqm": "IQM", "median": "median", "mean": "mean", "optimality_gap": "optimality gap"}
MOST_PAIRS = 15
COMPARED_FIRST = ("meanq_rainbow", "meanq_no_target", "meanq")  # with all others, where there are too many pairs
ROW = 0.17  # inches per label
INTERVALS = "Intervals: 95%, by bootstrap over runs, stratified by game; none for one run per game."


def aggregate_rows(found: RunSet, metrics: Metrics) -> pd.DataFrame:
    """With the step that scores are from."""
    scores = aggregate.collect(found)
    return aggregate.aggregates(scores).assign(steps=_steps(scores))


def profile_rows(found: RunSet, metrics: Metrics) -> pd.DataFrame:
    """From 0 to the highest score, or to twice the reference."""
    scores = aggregate.collect(found)
    highest = max(float(matrix.max()) for matrix in scores.matrices.values())
    need(highest > 0, "no score is above that of random play")
    runs = {label: matrix.size for label, matrix in scores.matrices.items()}
    table = aggregate.profiles(scores, np.linspace(0, min(highest, aggregate.THRESHOLDS[-1]), 41))
    return table.assign(runs=table["label"].map(runs), steps=_steps(scores))


def improvement_rows(found: RunSet, metrics: Metrics) -> pd.DataFrame:
    """Of every two labels; of many labels, of one with every other one."""
    scores = aggregate.collect(found)
    need(len(scores.matrices) > 1, "one label only: nothing to compare it with")
    table = aggregate.improvements(scores, pairs_to_compare(list(scores.matrices)))
    return table.assign(games=len(scores.envs), steps=_steps(scores))


def _steps(scores: aggregate.Scores) -> str:
    return " to ".join(str(step) for step in sorted({min(scores.steps.values()), max(scores.steps.values())}))


def pairs_to_compare(labels: Sequence[str]) -> list[tuple[str, str]]:
    """Every two labels, the later one of the legend first; of many labels, one with every other one."""
    ordered = order(labels)
    pairs = [(b, a) for a, b in combinations(ordered, 2)]
    if len(pairs) <= MOST_PAIRS:
        return pairs
    first = next((label for label in COMPARED_FIRST if label in ordered), ordered[-1])
    return [(first, other) for other in ordered if other != first]


def draw_aggregates(table: pd.DataFrame, looks: Looks, form: Form = forms.DEFAULT) -> tuple[Figure, str]:
    """A panel per aggregate, a line per label."""
    labels = [label for label in looks if label in set(table["label"])]
    names = [looks[label].name for label in labels]
    figure, axes = list_of_lines(names, list(AGGREGATES.values()), form=form)
    for metric, axis in zip(AGGREGATES, axes, strict=True):
        rows = table[table["metric"] == metric].set_index("label").loc[labels]
        draw_intervals(axis, rows, [looks[label] for label in labels])
    figure.supxlabel("normalised score", y=0)
    games = int(table["games"].max())
    return figure, (
        f"Normalised returns at step {table['steps'].iloc[0]} in {games} game{'s' * (games > 1)}, "
        f"{number_of_runs(table['runs'])} in a game: "
        "interquartile mean, median of the games' means, mean, and optimality gap (how far below 1 on average; less is "
        f"better). {INTERVALS}"
    )


def draw_profiles(table: pd.DataFrame, looks: Looks, form: Form = forms.DEFAULT) -> tuple[Figure, str]:
    """A line per label."""
    shown = {label: style for label, style in looks.items() if label in set(table["label"])}
    figure, (axis,) = panels.sheet(1, 1, list(shown.values()), form=form)
    curves = []
    for label, style in shown.items():
        rows = table[table["label"] == label]
        x, value, low, high = rows[["threshold", "value", "low", "high"]].to_numpy(float).T
        if form.of(len(shown)).has_band:
            axis.fill_between(x, low, high, **panels.band(style))
        curves.append((style, Curve(x, value, x * np.nan)))
    panels.draw_curves(axis, curves)
    axis.set_xlim(0, float(table["threshold"].max()))
    axis.set_ylim(0, 1.02)
    for which in (axis.xaxis, axis.yaxis):
        panels.ticks(which)
    axis.set_xlabel("normalised score")
    axis.set_ylabel("share of runs above it")
    return figure, (
        f"The share of runs, over all games, whose normalised return at step {table['steps'].iloc[0]} is above a "
        f"score; {number_of_runs(table['runs'])}, all games together. {INTERVALS}"
    )


def draw_improvements(table: pd.DataFrame, looks: Looks, form: Form = forms.DEFAULT) -> tuple[Figure, str]:
    """A line per pair."""
    names = [f"{looks[a].name} > {looks[b].name}" for a, b in zip(table["label"], table["other"], strict=True)]
    figure, (axis,) = list_of_lines(names, [""], panel_width=2.0, form=form)
    axis.axvline(0.5, color="#999999", linewidth=0.8, zorder=1)
    draw_intervals(axis, table, [looks[label] for label in table["label"]])
    axis.set_xlim(-0.02, 1.02)
    axis.set_xlabel("probability of improvement")
    games = int(table["games"].iloc[0])
    return figure, (
        f"How likely a run of the first label has a higher return at step {table['steps'].iloc[0]} than one of the "
        f"second, mean over {games} game{'s' * (games > 1)}; ties count half. {INTERVALS}"
    )


def draw_intervals(axis: Axes, rows: pd.DataFrame, styles: Sequence[Style]) -> None:
    """A marker and its interval in each line; the interval may be NaN."""
    for i, (style, value, low, high) in enumerate(zip(styles, rows["value"], rows["low"], rows["high"], strict=True)):
        axis.plot([low, high], [i, i], color=style.colour, linewidth=2.5, alpha=0.35, solid_capstyle="butt")
        axis.plot([value], [i], **panels.look(style, large=True))
    panels.ticks(axis.xaxis, 3)


def list_of_lines(
    names: Sequence[str],
    titles: Sequence[str],
    columns: int | None = None,
    panel_width: float | None = None,
    form: Form = forms.DEFAULT,
) -> tuple[Figure, list[Axes]]:
    """A panel per title, each with a line per name, the first at the top; names are written at the left."""
    columns = columns or len(titles)
    left = max(panels.LEFT, max(map(panels.text_width, names)) + 0.12)
    height = ROW * len(names) + 0.1
    more: dict[str, Any] = {"height": height, "left": left, "panel_width": panel_width, "form": form}
    figure, axes = panels.sheet(len(titles), columns, (), titles, **more)
    for i, axis in enumerate(axes):
        axis.set_ylim(len(names) - 0.4, -0.6)
        axis.set_yticks(range(len(names)), labels=names if i % columns == 0 else [""] * len(names))
        axis.tick_params(axis="y", length=0)
    return figure, axes
