"""What the report's interactive charts show, as plain data: web/page.js draws it.

A chart is a game and a metric; a series is a label in it. Numbers are rounded to 5 digits, which is more than a screen
shows, so that the page stays small.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from meanq.metrics.registry import PER_GROUP, PER_RUN, Metric

from ..figures.form import DEFAULT
from ..figures.palette import Style, cited, on_dark
from ..figures.scales import LOG_PART, Scale, scale_of
from ..figures.tables import AVERAGE, MOST_GAMES, Curve, game_name, read_curves

_SYMBOLS = ("circle", "square", "triangle-up", "triangle-down", "diamond", "cross", "x", "star")
_MARKERS = dict(zip("os^vDPX*", _SYMBOLS, strict=True)) | {"<": "triangle-left", ">": "triangle-right"}
_LINE_WIDTH = 2


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
    scale: dict[str, Any] = field(default_factory=dict)  # of the y axis, as in the static figure
    number: int = 0  # on the page


def looks(styles: Mapping[str, Style]) -> list[dict[str, str]]:
    """Labels as plotly names their looks."""
    return [
        {
            "label": label,
            "name": style.name,
            "colour": style.colour,
            "dark": on_dark(style.colour),
            "dash": ",".join(f"{length * _LINE_WIDTH:g}px" for length in style.dash) or "solid",
            "marker": _MARKERS.get(style.marker, "circle"),
        }
        for label, style in styles.items()
    ]


class CurveCharts:
    """Charts of metrics over training, from the same curves as the static figures."""

    def __init__(self, table: pd.DataFrame, labels: Sequence[str], cited: pd.DataFrame) -> None:
        """table: of figures.tables.curve_table; cited: of its cited_rows."""
        self._labels, self._cited = labels, cited
        games = sorted(set(table["env"]) - {AVERAGE})
        self._envs = [*games, AVERAGE] if len(games) <= MOST_GAMES else [AVERAGE, *games]  # below many, few find it
        self._curves = read_curves(table)

    def draw(self, metric: Metric) -> list[Chart]:
        """A chart per game that has the metric; of metrics per run, with every run and a band of one std."""
        of = "groups of runs" if metric.scope == PER_GROUP else "runs"
        charts = []
        for env in self._envs:
            name = "normalised_return" if (metric.name, env) == ("return", AVERAGE) else metric.name
            curves = {label: self._curves.get((env, name, label)) for label in self._labels}
            drawn = {label: curve for label, curve in curves.items() if curve is not None and curve.drawn}
            series = [_series(label, curve, metric.scope == PER_RUN) for label, curve in drawn.items()]
            if series:
                counted, cited = "games" if env == AVERAGE else of, self._lines(env, name)
                scale = scale_of(self._curves, env, name, list(drawn), DEFAULT.of(len(self._labels)))
                more: dict[str, Any] = {"of": counted, "cited": cited, "scale": _as_data(scale)}
                title = "Average, return normalised" if name != metric.name else game_name(env)
                charts.append(Chart(title, env, "interactions", metric.title, series, **more))
        return charts

    def _lines(self, env: str, metric: str) -> list[dict[str, Any]]:
        rows = self._cited[(self._cited["env"] == env) & (self._cited["metric"] == metric)]
        lines = []
        for label, step, score in zip(rows["label"], rows["step"].tolist(), rounded(rows["value"]), strict=True):
            method, at = label.split(" ")
            style = cited(method, at)
            about = {"name": f"{style.name} (the paper, {at})", "colour": style.colour, "dark": on_dark(style.colour)}
            lines.append({**about, "step": step, "y": score})
        return lines


def _as_data(scale: Scale) -> dict[str, Any]:
    """Of a folded scale: the edge of its linear part, the height of a decade beyond, and ticks there."""
    if scale.kind != "folded":
        return {"kind": scale.kind}
    decade = (scale.top - scale.bottom) * LOG_PART / (1 - LOG_PART) / scale.decades
    inside, beyond = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(scale.bottom, scale.top), scale.beyond
    ticks = rounded([*(tick for tick in inside if scale.bottom <= tick <= scale.top), *beyond])
    return {"kind": scale.kind, "edge": scale.edge, "decade": decade, "ticks": ticks}


def _series(label: str, curve: Curve, runs: bool) -> dict[str, Any]:
    """A step without a mean is a gap."""
    found: dict[str, Any] = {
        "label": label,
        "x": curve.steps.astype(int).tolist(),
        "y": rounded(curve.mean),
        "n": np.nan_to_num(curve.counts).astype(int).tolist(),
    }
    if runs and curve.runs:
        found["low"] = rounded(curve.mean - curve.spread)
        found["high"] = rounded(curve.mean + curve.spread)
        found["runs"] = [
            {"seed": seed, "x": run[:, 0].astype(int).tolist(), "y": rounded(run[:, 1])}
            for seed, run in curve.runs.items()
        ]
    return found


def intervals(table: pd.DataFrame, title: str) -> Chart:
    """From label, value, low, high: one row per label."""
    series = [
        {"label": label, "x": rounded([value]), "low": rounded([low]), "high": rounded([high])}
        for label, value, low, high in table[["label", "value", "low", "high"]].itertuples(index=False)
    ]
    return Chart(title, None, title, "", series, kind="interval")


def profile_chart(table: pd.DataFrame) -> Chart:
    """From label, threshold, value, low, high."""
    series = [
        {"label": label, "x": rounded(part["threshold"])}
        | {name: rounded(part[column]) for name, column in (("y", "value"), ("low", "low"), ("high", "high"))}
        for label, part in table.groupby("label", sort=False)
    ]
    return Chart("share of runs above a score", None, "normalised score", "share above", series)


def rounded(values: Iterable[float]) -> list[float | None]:
    """None where there is no number, which JSON cannot write."""
    return [float(f"{value:.5g}") if value == value and abs(value) != float("inf") else None for value in values]
