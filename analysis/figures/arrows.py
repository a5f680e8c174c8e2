"""Return against bias late in training: a point per label, and an arrow from each method with to the same without."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from meanq.metrics.registry import METRICS

from ..findings.pairs import Pair, find_pairs
from ..labels import short_labels
from ..late import late_table
from ..metrics import Metrics
from ..runs import RunSet
from . import form as forms
from . import panels
from .form import Form
from .palette import Looks, Style, order
from .scales import fit
from .tables import MOST_GAMES, game_name, need, number_of_runs

SWITCHED = "algo.target_network"
AXES = ("bias", "return")  # x and y
# Columns of the table of late training that are drawn, and those that are in environments that are solved exactly.
SAMPLED = [METRICS["bias_clipped"], METRICS["return"]]
EXACT = [METRICS["overestimation"], METRICS["optimality"]]
_ENDS = ("", " low", " high")


def ordered_pairs(found: RunSet, switched: str) -> list[Pair]:
    """In the order of legends."""
    pairs = find_pairs(found, switched)
    short = short_labels(found.labels)
    rank = {label: i for i, label in enumerate(order(short.values()))}
    return sorted(pairs, key=lambda pair: rank[short[pair.method]])


def arrow_rows(found: RunSet, metrics: Metrics, switched: str = SWITCHED) -> pd.DataFrame:
    """A row per game and label: its method, whether it is with what is switched, return and bias with intervals.

    In environments that are solved exactly these are the share of the optimal value and overestimation.
    """
    pairs = ordered_pairs(found, switched)
    need(any(pair.on and pair.off for pair in pairs), f"no two labels that differ in {switched} alone")
    need(len(found.envs) <= MOST_GAMES, f"more than {MOST_GAMES} games: give the directories of fewer")
    late = late_table(found, metrics, [*SAMPLED, *EXACT]).rename(columns={"game": "env", "runs": "n"})
    late["exact"] = late[EXACT[0].column].notna().astype(int)
    for name, sampled, exact in zip(AXES, SAMPLED, EXACT, strict=True):
        for end in _ENDS:
            late[name + end] = late[exact.column + end].where(late["exact"] == 1, late[sampled.column + end])
    sides = {label: (pair.method, int(side == "on")) for pair in pairs for side, label in vars(pair).items() if label}
    method, on = zip(*(sides[label] for label in late["label"]), strict=True)
    late = late.assign(method=method, on=on, field=switched)
    late["rank"] = late["method"].map({pair.method: i for i, pair in enumerate(pairs)})
    rows = late.sort_values(["env", "rank", "on"], ascending=[True, True, False])
    numbers = [name + end for name in AXES for end in _ENDS]
    return rows[["env", "label", "method", "field", "on", "exact", *numbers, "n"]].reset_index(drop=True)


def draw_arrows(table: pd.DataFrame, looks: Looks, form: Form = forms.DEFAULT) -> tuple[Figure, str]:
    """A panel per game."""
    shown = {method: looks[method] for method in table["method"].drop_duplicates()}
    envs, field = sorted(set(table["env"])), str(table["field"].iloc[0])
    columns = min(panels.columns_for(len(envs)), 3)
    titles, left = [game_name(env) for env in envs], panels.LEFT + 0.06
    width = 4.5 if len(envs) == 1 else None
    legend = list(shown.values())
    figure, axes = panels.sheet(len(envs), columns, legend, titles, height=2.2, left=left, panel_width=width, form=form)
    figure.supxlabel("bias", y=0)
    for env, axis in zip(envs, axes, strict=True):
        rows = table[table["env"] == env]
        _draw_panel(axis, rows, shown)
        axis.set_ylabel((EXACT if rows["exact"].all() else SAMPLED)[1].title)
    sentences = [
        f"Return against bias: means over the last quarter of training, {number_of_runs(table['n'])}, with 95% "
        f"intervals over runs (Student's). Filled: with {field}; hollow, at the arrow's end: the same method without. "
        "The dashed line is no bias: an arrow to the right is a price in bias, one down a price in return. Intervals "
        "much longer than the arrows are cut off."
    ]
    if (table.groupby(["env", "method"]).size() < 2).any():
        sentences.append("A point without an arrow has no such partner.")
    if table["exact"].any():
        sentences.append(
            "In environments that are solved exactly, the bias is overestimation, V minus the exact value of the "
            "greedy policy, and that value is shown as its share of the optimal one."
        )
    return figure, " ".join(sentences)


def _draw_panel(axis: Axes, rows: pd.DataFrame, shown: Looks) -> None:
    for which, name in zip("xy", AXES, strict=True):
        ends = rows[[name + end for end in _ENDS]].to_numpy(float)
        ends = ends[np.isfinite(ends[:, 0])]
        low, high = ends[:, 0].min(), ends[:, 0].max()
        reach = (high - low) / 2  # longer intervals are cut off, so that points are told apart
        ranges = [(max(np.nanmin(row), low - reach), min(np.nanmax(row), high + reach)) for row in ends]
        panels.apply_scale(axis, fit(ranges, may_fold=name == "bias"), which)
    axis.axvline(0, color="#999999", linewidth=0.6, linestyle=(0, (4, 3)), zorder=1)
    for method, style in shown.items():
        points = rows[rows["method"] == method].to_dict("records")
        for point in points:
            _draw_point(axis, point, style)
        if len(points) == 2:
            start, end = ((point[AXES[0]], point[AXES[1]]) for point in points)
            arrow = {"arrowstyle": "-|>", "color": style.colour, "linewidth": 1.0, "shrinkA": 3, "shrinkB": 3}
            axis.annotate("", xy=end, xytext=start, arrowprops={**arrow, "mutation_scale": 7})


def _draw_point(axis: Axes, point: Mapping[Any, float], style: Style) -> None:
    (x, x_low, x_high), (y, y_low, y_high) = ([point[name + end] for end in _ENDS] for name in AXES)
    axis.hlines(y, x_low, x_high, color=style.colour, linewidth=0.6, alpha=0.6)
    axis.vlines(x, y_low, y_high, color=style.colour, linewidth=0.6, alpha=0.6)
    look = panels.look(style, large=True) | {"linestyle": "", "markeredgecolor": style.colour, "markeredgewidth": 1.0}
    axis.plot([x], [y], **(look if point["on"] else {**look, "markerfacecolor": "white"}))
