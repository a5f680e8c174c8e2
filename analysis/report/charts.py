"""What the report's interactive charts show, as plain data: analysis/web/page.js draws it.

A chart is a game and a metric; a series is a label in it. Numbers are rounded to 5 digits, which is more than a screen
shows, so that the page stays small.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from analysis.figures.palette import Style, cited
from analysis.figures.tables import AVERAGE

_MARKERS = {
    "o": "circle",
    "s": "square",
    "^": "triangle-up",
    "v": "triangle-down",
    "D": "diamond",
    "P": "cross",
    "X": "x",
    "*": "star",
    "<": "triangle-left",
    ">": "triangle-right",
}
_LINE_WIDTH = 2
NAN = float("nan")


@dataclass
class Chart:
    """One pair of axes."""

    title: str
    env: str | None  # None: over all games
    x: str
    y: str
    series: list[dict[str, Any]] = field(default_factory=list)
    kind: str = "curve"  # or `interval`: a value and its interval per label
    of: str = "runs"  # what n counts
    cited: list[dict[str, Any]] = field(default_factory=list)  # scores of the paper
    number: int = 0  # on the page


def looks(styles: Mapping[str, Style]) -> list[dict[str, str]]:
    """Labels as plotly names their looks."""
    return [
        {
            "label": label,
            "colour": style.colour,
            "dash": ",".join(f"{length * _LINE_WIDTH:g}px" for length in style.dash) or "solid",
            "marker": _MARKERS.get(style.marker, "circle"),
        }
        for label, style in styles.items()
    ]


class Curves:
    """Charts of metrics over training, from the same rows as the static figures."""

    def __init__(self, table: pd.DataFrame, labels: Sequence[str], cited: pd.DataFrame) -> None:
        """table: of analysis.figure_tables.curve_table; cited: of its cited_rows."""
        self._labels = list(labels)
        self._envs = sorted(set(table["env"]) - {AVERAGE})
        rows = table.sort_values("step", kind="stable")
        self._parts = dict(iter(rows.groupby(["env", "metric", "algo"], sort=False)))
        self._cited = cited

    def draw(
        self, metric: str, y: str, of: str = "runs", runs: bool = False, labels: Iterable[str] | None = None
    ) -> list[Chart]:
        """A chart per game that has the metric; `runs`: every run behind the mean, and a band of one std."""
        wanted = self._labels if labels is None else [label for label in self._labels if label in set(labels)]
        charts = []
        for env in [*self._envs, AVERAGE]:
            parts = {label: self._parts.get((env, metric, label)) for label in wanted}
            series = [s for label, part in parts.items() if part is not None and (s := _series(label, part, runs))]
            if series:
                counted = "games" if env == AVERAGE else of
                charts.append(Chart(env, env, "interactions", y, series, of=counted, cited=self._lines(env, metric)))
        return charts

    def _lines(self, env: str, metric: str) -> list[dict[str, Any]]:
        rows = self._cited[(self._cited["env"] == env) & (self._cited["metric"] == metric)]
        lines = []
        for label, step, score in zip(rows["algo"], rows["step"].tolist(), rounded(rows["value"]), strict=True):
            method, at = label.split(" ")
            style = cited(method, at)
            lines.append({"name": f"{style.name} (the paper, {at})", "colour": style.colour, "step": step, "y": score})
        return lines


def _series(label: str, part: pd.DataFrame, runs: bool) -> dict[str, Any] | None:
    """None where there is nothing to see. A step without a mean is a gap."""
    columns = (part[name].tolist() for name in ("group", "step", "value", "n"))
    by_group: dict[str, dict[int, tuple[float, int]]] = {}
    for group, step, value, n in zip(*columns, strict=True):
        by_group.setdefault(group, {})[step] = (value, n)
    steps = part["step"].unique().tolist()
    means = by_group.get("mean", by_group.get("all", {}))
    middle = [means.get(step, (NAN, 0)) for step in steps]
    found: dict[str, Any] = {
        "label": label,
        "x": steps,
        "y": rounded(y for y, _ in middle),
        "n": [n for _, n in middle],
    }
    seeds = [group for group in by_group if group.startswith("seed_")] if runs else []
    if seeds:
        spread = [by_group.get("std", {}).get(step, (NAN, 0))[0] for step in steps]
        found["low"] = rounded(y - s for (y, _), s in zip(middle, spread, strict=True))
        found["high"] = rounded(y + s for (y, _), s in zip(middle, spread, strict=True))
        found["runs"] = [
            {"seed": seed.removeprefix("seed_"), "x": list(run), "y": rounded(y for y, _ in run.values())}
            for seed in seeds
            for run in [by_group[seed]]
        ]
    return found if seeds or any(value is not None for value in found["y"]) else None


def intervals(table: pd.DataFrame, title: str) -> Chart:
    """From label, value, low, high: one row per label."""
    columns = [table["label"], *(rounded(table[name]) for name in ("value", "low", "high"))]
    series = [
        {"label": label, "x": [value], "low": [low], "high": [high]}
        for label, value, low, high in zip(*columns, strict=True)
    ]
    return Chart(title, None, title, "", series, kind="interval")


def profile_chart(table: pd.DataFrame) -> Chart:
    """From label, threshold, value, low, high."""
    series = [
        {
            "label": label,
            "x": rounded(part["threshold"]),
            "y": rounded(part["value"]),
            "low": rounded(part["low"]),
            "high": rounded(part["high"]),
        }
        for label, part in table.groupby("label", sort=False)
    ]
    return Chart("share of runs above a score", None, "normalised score", "share above", series)


def rounded(values: Iterable[float]) -> list[float | None]:
    """None where there is no number, which JSON cannot write."""
    return [float(f"{value:.5g}") if value == value and abs(value) != float("inf") else None for value in values]
