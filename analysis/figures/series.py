"""A figure of labels that differ in one number, such as an ensemble's size: what is measured late, over that number."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from meanq.metrics.registry import shown_in

from ..late import late_table
from ..metrics import Metrics
from ..runs import RunSet
from . import form as forms
from . import panels
from .form import Form
from .palette import Looks, order, series, styles
from .tables import MOST_GAMES, need, number_of_runs

# By the column of the table of late training.
ROWS = {metric.column: metric.title for metric in shown_in("series")}
SIGNED = [metric.column for metric in shown_in("series") if metric.signed]


def series_rows(found: RunSet, metrics: Metrics) -> pd.DataFrame:
    """The longest series of labels."""
    return series_table(late_table(found, metrics))


def series_table(late: pd.DataFrame) -> pd.DataFrame:
    """A row per game, label and metric of the longest series in a table of late training.

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
    columns = ["env", "label", "method", "field", "number", "metric", "value", "low", "high", "n"]
    return pd.DataFrame(rows, columns=columns)


def draw_series(table: pd.DataFrame, looks: Looks, form: Form = forms.DEFAULT) -> tuple[Figure, str]:
    """A panel per metric, or with several games a row per metric and a column per game."""
    shown = {method: styles([method])[method] for method in order(table["method"])}
    titles = {metric: title for metric, title in ROWS.items() if metric in set(table["metric"])}
    field = str(table["field"].iloc[0]).removeprefix("algo.")
    figure, axes = panels.metric_grid(titles, sorted(set(table["env"])), shown, field, form)
    for (metric, env), axis in axes.items():
        rows = table[(table["env"] == env) & (table["metric"] == metric)]
        _draw_panel(axis, rows, shown, sorted(set(table["number"])))
        if metric in SIGNED:
            panels.draw_zero(axis)
    return figure, (
        f"Over {field}: means over the last quarter of training, {number_of_runs(table['n'])} that has been "
        "trained as far as any; bars: 95% intervals over runs (of return and bias Student's; of correlation and "
        "effective size, which are of the members of ensembles, the jackknife's). Std and gap over runs are divided "
        "by the normalised return."
    )


def _draw_panel(axis: Axes, rows: pd.DataFrame, shown: Looks, numbers: list[float]) -> None:
    if 4 * numbers[0] < numbers[-1] and numbers[0] > 0:
        axis.set_xscale("log")
    for method, style in shown.items():
        part = rows[rows["method"] == method].sort_values("number")
        x, y, low, high = part[["number", "value", "low", "high"]].to_numpy(float).T
        axis.plot(x, y, **panels.look(style))
        axis.vlines(x, low, high, color=style.colour, linewidth=1.0)
    panels.ticks(axis.xaxis)
    axis.set_xticks(numbers)
    panels.ticks(axis.yaxis)
    if rows.empty:
        panels.write_inside(axis, "no data")
