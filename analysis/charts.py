"""What the report's interactive charts show, as plain data: analysis/web/page.js draws it.

A chart is a game and a metric; a series is a label in it. Numbers are rounded to 5 digits, which is more than a screen
shows, so that the page stays small.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from analysis.metrics import Metrics, average_over_envs
from analysis.palette import Style
from analysis.runs import RunSet

AVERAGE = "average"
_MARKERS = {
    **{"o": "circle", "s": "square", "^": "triangle-up", "v": "triangle-down", "D": "diamond", "P": "cross"},
    **{"X": "x", "*": "star", "<": "triangle-left", ">": "triangle-right"},
}
_LINE_WIDTH = 2


@dataclass
class Chart:
    """One pair of axes."""

    name: str
    title: str
    env: str | None  # None: over all games
    x: str
    y: str
    series: list[dict[str, Any]] = field(default_factory=list)
    kind: str = "curve"  # or `interval`: a value and its interval per label
    of: str = "runs"  # what n counts
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
    """Charts of metrics over training."""

    def __init__(self, found: RunSet, metrics: Metrics, labels: Sequence[str]) -> None:
        self.envs, self._labels = found.envs, list(labels)
        scored = [env for env in found.envs if all(run.scores for run in found.runs if run.env == env)]
        table = metrics.table
        if len(scored) > 1:
            table = pd.concat([table, average_over_envs(table, scored)], ignore_index=True)
        table = table.dropna(subset="value")
        self._parts = dict(iter(table.groupby(["env", "metric", "algo", "group"], sort=False)))
        self._seeds: dict[tuple[str, str, str], list[str]] = {}
        for env, metric, label, group in self._parts:
            if group.startswith("seed_"):
                self._seeds.setdefault((env, metric, label), []).append(group)

    def draw(self, metric: str, y: str, group: str = "mean", runs: bool = False, average: bool = False) -> list[Chart]:
        """A chart per game that has the metric; `runs`: every run behind the mean, and a band of one std."""
        charts = []
        for env in [*self.envs, *([AVERAGE] if average else [])]:
            series = [s for label in self._labels if (s := self._series(env, metric, label, group, runs))]
            if series:
                charts.append(Chart(f"{metric}-{env}", env, env, "interactions", y, series))
        return charts

    def _series(self, env: str, metric: str, label: str, group: str, runs: bool) -> dict[str, Any] | None:
        part = self._parts.get((env, metric, label, group))
        if part is None:
            return None
        found = {"label": label, "x": part["step"].tolist(), "y": rounded(part["value"]), "n": part["n"].tolist()}
        if runs:
            spread = self._parts.get((env, metric, label, "std"))
            if spread is not None:
                band = spread.set_index("step")["value"].reindex(part["step"]).to_numpy()
                found["low"] = rounded(part["value"].to_numpy() - band)
                found["high"] = rounded(part["value"].to_numpy() + band)
            found["runs"] = [
                {"seed": seed.removeprefix("seed_"), "x": one["step"].tolist(), "y": rounded(one["value"])}
                for seed in self._seeds.get((env, metric, label), [])
                for one in [self._parts[env, metric, label, seed]]
            ]
        return found


def intervals(table: pd.DataFrame, name: str, title: str) -> Chart:
    """From label, value, low, high: one row per label."""
    series = [
        {"label": row.label, "x": rounded([row.value]), "low": rounded([row.low]), "high": rounded([row.high])}
        for row in table.itertuples()
    ]
    return Chart(name, title, None, title, "", series, kind="interval")


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
    return Chart("profiles", "share of runs above a score", None, "normalised score", "share above", series)


def rounded(values: Iterable[float]) -> list[float | None]:
    """None where there is no number, which JSON cannot write."""
    return [float(f"{value:.5g}") if value == value and abs(value) != float("inf") else None for value in values]
