"""The error of values late in training, taken apart: bars of its parts, for environments that are solved exactly."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from meanq.metrics.registry import METRICS

from ..late import late_table
from ..metrics import Metrics
from ..runs import RunSet
from . import form as forms
from . import panels
from .form import Form
from .palette import SOLID, Looks, Style, order
from .tables import MOST_GAMES, game_name, need, number_of_runs

TOTAL = METRICS["bias_true"]
OVERESTIMATION = METRICS["overestimation"]
# With their colours. One run has no Jensen gap: the first two are then one, overestimation.
PARTS = {METRICS["jensen_gap"]: "#E69F00", METRICS["mean_bias"]: "#D55E00", METRICS["policy_loss"]: "#0072B2"}
SHOWN = (TOTAL, OVERESTIMATION, *PARTS)
_SUM = Style("#000000", SOLID, "o", "their sum")
_BAR = 0.19  # inches


def error_rows(found: RunSet, metrics: Metrics) -> pd.DataFrame:
    """A row per game and label: the error of V and its parts."""
    table = late_table(found, metrics, SHOWN).rename(columns={"game": "env"})
    table = table[table[OVERESTIMATION.column].notna()]
    need(len(table) > 0, "no environment of these runs is solved exactly; env=garnet is")
    need(table["env"].nunique() <= MOST_GAMES, f"more than {MOST_GAMES} games: give the directories of fewer")
    counts = {key: len(runs) for key, runs in found.groups().items()}
    runs = [counts[env, label] for env, label in zip(table["env"], table["label"], strict=True)]
    return table.drop(columns="runs").assign(n=runs).reset_index(drop=True)


def draw_errors(table: pd.DataFrame, looks: Looks, form: Form = forms.DEFAULT) -> tuple[Figure, str]:
    """A panel per game, a bar per label."""
    envs, labels = sorted(set(table["env"])), order(table["label"])
    left = 0.12 + max(panels.text_width(looks[label].name) for label in labels)
    width = (panels.PAGE - left - panels.RIGHT - panels.GAP_X * (len(envs) - 1)) / len(envs)
    height = _BAR * (len(labels) + 0.5)
    titles = [game_name(env) for env in envs]
    legend = [*(Style(colour, SOLID, "s", part.title) for part, colour in PARTS.items()), _SUM]
    figure, axes = panels.sheet(
        len(envs), len(envs), legend, titles, height=height, left=left, panel_width=width, form=form
    )
    for env, axis in zip(envs, axes, strict=True):
        _draw_panel(axis, table[table["env"] == env].set_index("label").reindex(labels))
        axis.set_yticks([])
    axes[0].set_yticks(range(len(labels)), [looks[label].name for label in labels])
    figure.supxlabel("V - V*, mean over states", y=0)
    return figure, (
        "The error of V(s0) against the optimal value, mean over all states and the last quarter of training, as the "
        f"sum of its parts (dot); {number_of_runs(table['n'])}. Overestimation, V minus the exact value of the greedy "
        "policy, is the Jensen gap, which the maximum makes of differences between runs, and the bias of the mean over "
        "runs. Policy loss is the exact value of the greedy policy minus the optimal one."
    )


def _draw_panel(axis: Axes, rows: pd.DataFrame) -> None:
    places = np.arange(len(rows))
    parts = {metric: rows[metric.column].to_numpy(float) for metric in SHOWN}
    gap, bias = list(PARTS)[:2]
    alone = np.isnan(parts[gap])
    parts[gap], parts[bias] = np.where(alone, 0, parts[gap]), np.where(alone, parts[OVERESTIMATION], parts[bias])
    ends = {True: np.zeros(len(rows)), False: np.zeros(len(rows))}  # to the right of zero, and to the left
    for part, colour in PARTS.items():
        size = np.nan_to_num(parts[part])
        for right, end in ends.items():
            piece = np.where((size > 0) == right, size, 0)
            axis.barh(places, piece, left=end, height=0.7, color=colour, linewidth=0)
            ends[right] = end + piece
    axis.plot(parts[TOTAL], places, **panels.look(_SUM) | {"linestyle": ""})
    axis.axvline(0, color="#999999", linewidth=0.6)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_axisbelow(True)
    axis.grid(visible=False, axis="y")
    panels.ticks(axis.xaxis)
