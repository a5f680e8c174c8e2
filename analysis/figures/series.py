"""A figure of labels that differ in one number, such as an ensemble's size: what is measured late, over that number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis.figures.grid import MOST_GAMES, MetricGrid
from analysis.figures.palette import Style, order, series, styles
from analysis.figures.panels import look, ticks, write_inside
from analysis.figures.tables import need
from meanq.metrics.registry import shown_in

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# By the column of the table of late training.
ROWS = {metric.column: metric.title for metric in shown_in("series")}
SIGNED = [metric.column for metric in shown_in("series") if metric.signed]


def series_table(late: pd.DataFrame) -> pd.DataFrame:
    """A row per game, label and metric of the longest series in a table of late training (analysis.tables).

    Of labels that have been trained as far as any in their game: others would be late at another time.
    """
    late = late[late["step"] == late.groupby("game")["step"].transform("max")]
    found = series(late["label"])
    need(bool(found), "no three labels that differ in one number only")
    field, numbers = max(found.items(), key=lambda item: len(item[1]))
    need(late["game"].nunique() <= MOST_GAMES, f"more than {MOST_GAMES} games: give the directories of fewer")
    rows = []
    for row in late[late["label"].isin(list(numbers))].to_dict("records"):
        method, number = numbers[row["label"]]
        for metric in ROWS:
            ends = [row.get(f"{metric} {end}", np.nan) for end in ("low", "high")]
            if row[metric] == row[metric]:
                rows.append((row["game"], row["label"], method, field, number, metric, row[metric], *ends, row["runs"]))
    columns = ["env", "algo", "method", "field", "number", "metric", "value", "low", "high", "n"]
    return pd.DataFrame(rows, columns=columns)


def draw_series(table: pd.DataFrame, looks: Mapping[str, Style]) -> tuple[Figure, str]:
    """A panel per metric, or with several games a row per metric and a column per game."""
    methods = order(table["method"])
    shown = {method: styles([method])[method] for method in methods}
    titles = {metric: title for metric, title in ROWS.items() if metric in set(table["metric"])}
    field = str(table["field"].iloc[0]).removeprefix("algo.")
    columns = 3 if len(titles) > 4 else 2
    grid = MetricGrid(titles, sorted(set(table["env"])), shown, field, columns=columns, height=1.3)
    for metric, game, axis in grid.panels():
        _draw_panel(axis, table[(table["env"] == game) & (table["metric"] == metric)], shown, table["number"])
        grid.entitle(axis, titles[metric])
    low, high = int(table["n"].min()), int(table["n"].max())
    runs = f"{low}" if low == high else f"{low} to {high}"
    return grid.sheet.figure, (
        f"Over {field}: means over the last quarter of training and over {runs} runs of each label that has been "
        "trained as far as any; bars: 95% intervals over runs (of return and bias Student's; of correlation and "
        "effective size, which are of the members of ensembles, the jackknife's). Std and gap over runs are divided "
        "by the normalised return."
    )


def _draw_panel(axis: Axes, rows: pd.DataFrame, shown: Mapping[str, Style], numbers: pd.Series[float]) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    everywhere = sorted(set(numbers))
    logarithmic = everywhere[0] > 0 and everywhere[-1] > 4 * everywhere[0]
    if logarithmic:
        axis.set_xscale("log")
        room = (everywhere[-1] / everywhere[0]) ** 0.06
        axis.set_xlim(everywhere[0] / room, everywhere[-1] * room)
    if len(rows) == 0:
        write_inside(axis, "no data")
    for method, style in shown.items():
        part = rows[rows["method"] == method].sort_values("number")
        x, y = part["number"].to_numpy(float), part["value"].to_numpy(float)
        axis.plot(x, y, **look(style))
        axis.vlines(x, part["low"].to_numpy(float), part["high"].to_numpy(float), color=style.colour, linewidth=1.0)
    if rows["metric"].isin(SIGNED).any() and axis.get_ylim()[0] < 0 < axis.get_ylim()[1]:
        axis.axhline(0, color="#999999", linewidth=0.6, zorder=1)
    ticks(axis)
    axis.xaxis.set_major_locator(FixedLocator(everywhere))
    axis.xaxis.set_minor_locator(NullLocator())
