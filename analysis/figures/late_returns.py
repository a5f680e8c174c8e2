"""Returns late in training, a line per label: for studies of so many labels that their curves are hard to follow."""

import pandas as pd
from matplotlib.figure import Figure

from meanq.metrics.registry import METRICS

from ..late import late_table
from ..metrics import Metrics
from ..runs import RunSet
from .aggregates import draw_intervals, list_of_lines
from .form import DEFAULT, Form
from .palette import Looks, order
from .tables import MOST_GAMES, game_name, need, number_of_runs


def late_return_rows(found: RunSet, metrics: Metrics) -> pd.DataFrame:
    """A row per game and label: its return in the last quarter of training, with an interval over runs."""
    need(len(found.labels) > 1, "one label only: nothing to compare it with")
    names = {"game": "env", "return": "value", "return low": "low", "return high": "high", "runs": "n"}
    table = late_table(found, metrics, [METRICS["return"]]).rename(columns=names)
    need(table["env"].nunique() <= MOST_GAMES, f"more than {MOST_GAMES} games: give the directories of fewer")
    return table[["env", "label", "step", "value", "low", "high", "n"]]


def draw_late_returns(table: pd.DataFrame, looks: Looks, form: Form = DEFAULT) -> tuple[Figure, str]:
    """A panel per game, a line per label."""
    labels, envs = order(table["label"]), sorted(set(table["env"]))
    figure, axes = list_of_lines([looks[label].name for label in labels], [game_name(env) for env in envs], form=form)
    for env, axis in zip(envs, axes, strict=True):
        rows = table[table["env"] == env].set_index("label").reindex(labels)
        draw_intervals(axis, rows, [looks[label] for label in labels])
    figure.supxlabel("return late in training", y=0)
    interval = ", with 95% intervals (Student's)" if table["low"].notna().any() else ""
    about = f"Return of greedy episodes, mean over the last quarter of training{interval}"
    return figure, f"{about}. {number_of_runs(table['n'])}."
