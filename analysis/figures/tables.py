"""The tables that figures are drawn from, and what their captions say about them.

A figure is a function of its table alone, so a table that is kept gives the figure again. Tables of curves have the
columns of analysis.metrics, and two additions: rows with env `average`, and rows with scope `cited` (a score of the
paper, at the step it is for). A mean over fewer runs than there are is left out.

`read_table` also reads the form of earlier versions: labels in a column `algo`, and seeds, groups, means and standard
deviations together in a column `group`.
"""

import io
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pandas as pd

from meanq.rundir.reader import open_file

from ..intervals import student_reach
from ..metrics import COLUMNS, GROUP, OVER, RUN, as_table, with_intervals
from ..notes import listed
from ..paper.tables import HORIZONS, paper_table
from ..runs import AnalysisError
from .palette import Looks

AVERAGE = "average"
CITED = "cited"
MOST_GAMES = 5  # side by side; more are too narrow to be read
_KEY = ["env", "label", "metric"]
_TEXTS = ("env", "algo", "scope", "metric", "label", "other", "steps", "method", "field", "against")


def read_table(path: Path | TextIO) -> pd.DataFrame:
    """A figure's table. Texts stay texts: a label may be called NA, or nothing at all."""
    if isinstance(path, Path):
        with open_file(path) as file:  # kept results may be a stranger's
            return read_table(io.TextIOWrapper(file, "utf-8"))
    # Equal texts are one object: a table of many runs repeats few of them.
    table = pd.read_csv(path, converters=dict.fromkeys(_TEXTS, sys.intern), dtype={"seed": "Int64", "group": str})
    table = table.rename(columns={"algo": "label"})
    if "scope" in table:
        return table.astype({"group": "Int64"})
    return _from_mixed_groups(table) if "group" in table else table


def _from_mixed_groups(table: pd.DataFrame) -> pd.DataFrame:
    """The table of an earlier version, whose `group` is seed_<n>, group_<n>, mean, std, all or cited."""
    kind = table["group"].str.partition("_")
    scopes = {"seed": RUN, "group": GROUP, "mean": OVER, "all": OVER, "cited": CITED}
    numbers = {name: kind[2].where(kind[0] == name).astype("Int64") for name in ("seed", "group")}
    rows = table.assign(scope=kind[0].map(scopes), **numbers)
    std = table[table["group"] == "std"].rename(columns={"value": "std"})[[*_KEY, "step", "std"]]
    rows = rows[table["group"] != "std"].merge(std, "left", [*_KEY, "step"])
    rows = rows.assign(std=rows["std"].where(rows["scope"] == OVER))
    return with_intervals(as_table(rows), rows["env"] != AVERAGE)


@dataclass(frozen=True)
class Curve:
    """What is drawn of a label in a panel; NaN: a gap."""

    steps: np.ndarray  # [n]
    mean: np.ndarray  # [n]
    spread: np.ndarray  # [n], half the height of the band
    runs: dict[int, np.ndarray] = field(default_factory=dict)  # by seed, [m, 2] each: step, value
    counts: np.ndarray = field(default_factory=lambda: np.empty(0))  # [n], of runs (or groups, or games) in the mean
    ratios: int = 0  # of groups of runs
    undefined: int = 0  # of them

    @property
    def drawn(self) -> bool:
        """Whether there is anything to see."""
        return bool(np.isfinite(self.mean).any()) or any(np.isfinite(run[:, 1]).any() for run in self.runs.values())

    @property
    def incomplete(self) -> int:
        """At how many steps some runs, but not all, have a number."""
        return int((~np.isfinite(self.mean)).sum()) if self.runs else 0

    def range(self, band: bool = True, runs: bool = True) -> tuple[float, float]:
        """From the lowest to the highest number of what is drawn."""
        spread = np.nan_to_num(self.spread) * band
        shown = [run[:, 1] for run in self.runs.values()] if runs or not np.isfinite(self.mean).any() else []
        numbers = [self.mean - spread, self.mean + spread, *shown]
        finite = np.concatenate([part[np.isfinite(part)] for part in numbers])
        return float(finite.min()), float(finite.max())


Curves = dict[tuple[str, str, str], Curve]  # by env, metric and label


def curve_table(table: pd.DataFrame, metrics: Sequence[str], averaged: Sequence[str] = ()) -> pd.DataFrame:
    """The rows of some metrics, without means over fewer runs than there are; `averaged`: these over all games too."""
    rows = _complete(table[table["metric"].isin([*metrics, *averaged])])
    shown = rows[rows["metric"].isin(metrics)]
    envs = sorted(shown["env"].unique())
    if averaged and len(envs) > 1:
        shown = pd.concat([shown, _average(rows[rows["metric"].isin(averaged)], envs)], ignore_index=True)
    return shown[COLUMNS].reset_index(drop=True)


def _complete(rows: pd.DataFrame) -> pd.DataFrame:
    """Without numbers over runs at steps where a run, or a run of a group, is missing or its number is not defined."""
    over = rows["scope"] == OVER
    at_once = over & ~rows["metric"].isin(rows[~over]["metric"])  # estimates from all runs
    parts = rows[~over | at_once].assign(weight=rows["n"].mask(rows["scope"] == RUN, 1))
    full = parts.groupby([*_KEY, "seed", "group"], dropna=False)["weight"].max().groupby(_KEY).sum()
    here = parts[parts["value"].notna()].groupby([*_KEY, "step"])["weight"].sum()
    expected = full.reindex(here.index.droplevel("step")).to_numpy()
    complete = here.index[here.to_numpy() == expected]
    known = pd.MultiIndex.from_frame(rows[[*_KEY, "step"]]).isin(complete) | ~over
    return rows.assign(value=rows["value"].where(known))[known | at_once]


def _average(rows: pd.DataFrame, envs: Sequence[str]) -> pd.DataFrame:
    """Means over games of the means, and the standard deviation of the mean of one run (or group) of each game.

    A row is there, and may be empty, for every step that all games have: a gap is a gap here too.
    """
    key, count = ["label", "metric", "step"], len(envs)
    games = rows.groupby(key)["env"].nunique()
    over = rows[rows["scope"] == OVER].assign(square=rows["std"] ** 2)
    over["error"] = over["square"] / over["n"]
    over["freedom"] = over["error"] ** 2 / (over["n"] - 1)
    columns = ["value", "square", "error", "freedom"]
    sums = over.groupby(key)[columns].sum(min_count=count).reindex(games.index[games == count])
    freedom = (sums["error"] ** 2 / sums["freedom"]).fillna(1)  # Welch and Satterthwaite's; 0 / 0: runs are equal
    means = sums.assign(
        value=sums["value"] / count,
        std=np.sqrt(sums["square"]) / count,
        ci=student_reach(freedom) * np.sqrt(sums["error"]) / count,
    )
    return as_table(means.reset_index().assign(env=AVERAGE, scope=OVER, n=count))


def shown_spreads(rows: pd.DataFrame) -> list[str]:
    """Std and gap divided by the normalised return; as they are where that ratio is defined nowhere."""
    ratios = rows[(rows["metric"] == "normalised_std") & (rows["scope"] == OVER)]["value"]
    return ["normalised_std", "normalised_jensen_gap"] if ratios.notna().any() else ["std", "jensen_gap"]


def cited_rows(lengths: Mapping[str, int], envs: Collection[str], average: bool) -> pd.DataFrame:
    """Scores of the paper's tables, in those of these games whose runs are as long (by game) as those of a table."""
    rows = []

    def add(env: str, method: str, at: str, metric: str, score: Any, n: int) -> None:
        about = {"env": env, "label": f"{method} {at}", "scope": CITED, "step": HORIZONS[at]}
        rows.append({**about, "metric": metric, "value": score, "n": n})

    for at, horizon in HORIZONS.items():
        table = paper_table(at)
        games = [env for env in sorted(envs) if lengths.get(env) == horizon and env in table.scores.index]
        for env, method in product(games, table.methods):
            add(env, method, at, "return", table.scores.loc[env, method], 1)
        if average and len(games) == len(envs) > 1:
            for method in table.methods:
                mean = table.normalise(table.scores.loc[games, method]).mean()
                add(AVERAGE, method, at, "normalised_return", mean, len(games))
    return as_table(rows)


def read_curves(table: pd.DataFrame, band: str = "std") -> Curves:
    """By env, metric and label, as the rows of a table say; without those that are cited. band: std or ci."""
    curves = {}
    rows = table[table["scope"] != CITED].sort_values("step", kind="stable")
    for (env, metric, label), part in rows.groupby(["env", "metric", "label"], sort=False):
        by_scope = {scope: part[part["scope"] == scope] for scope in (RUN, GROUP, OVER)}
        everywhere = np.unique(part["step"].to_numpy(float))
        middle = by_scope[OVER].set_index("step").reindex(everywhere)
        curves[str(env), str(metric), str(label)] = Curve(
            everywhere,
            middle["value"].to_numpy(float),
            middle[band if band == "ci" else "std"].to_numpy(float),
            _by_seed(by_scope[RUN]),
            middle["n"].to_numpy(float),
            len(by_scope[GROUP]),
            int(by_scope[GROUP]["value"].isna().sum()),
        )
    return {key: curve for key, curve in curves.items() if curve.drawn or curve.ratios}


def _by_seed(rows: pd.DataFrame) -> dict[int, np.ndarray]:
    """By seed: step and value [T, 2], in the order of the rows."""
    codes, seeds = pd.factorize(rows["seed"])
    order = np.argsort(codes, kind="stable")
    pieces = np.split(rows[["step", "value"]].to_numpy(float)[order], np.flatnonzero(np.diff(codes[order])) + 1)
    return dict(zip(seeds.tolist(), pieces, strict=False))  # of no rows there is one empty piece


def game_name(env: str) -> str:
    """minatar_bank_heist: MinAtar Bank Heist; average: Average."""
    return " ".join({"minatar": "MinAtar"}.get(word, word.capitalize()) for word in env.split("_"))


def count_runs(table: pd.DataFrame) -> str:
    """How many runs a label has in a game."""
    runs = table[table["scope"] == RUN]
    if len(runs):
        counts = runs.groupby(["env", "label"])["seed"].nunique()
    else:
        of_groups = table[table["scope"] == GROUP]
        counts = (of_groups if len(of_groups) else table[(table["scope"] == OVER) & (table["env"] != AVERAGE)])["n"]
    return number_of_runs(counts)


def number_of_runs(counts: "pd.Series[int]") -> str:
    """1 run of each label; or 3 to 5 runs of each label."""
    low, high = int(counts.min()), int(counts.max())
    return f"{low} run{'s' * (low > 1)} of each label" if low == high else f"{low} to {high} runs of each label"


def what_is_missing(curves: Curves, looks: Looks) -> list[str]:
    """Sentences for a caption: means that are not drawn, labels that are not in every game, ratios without a value."""
    said = []
    incomplete = dict.fromkeys(
        f"{looks[label].name} in {game_name(env)} at {curve.incomplete} of {len(curve.steps)} steps"
        for (env, _, label), curve in curves.items()
        if curve.incomplete
    )
    if incomplete:
        said.append(f"No mean is drawn where a run has no number: {listed(incomplete)}.")
    games = sorted({env for env, _, _ in curves} - {AVERAGE})
    absent = []
    for label in looks:
        here = {env for env, _, other in curves if other == label} - {AVERAGE}
        if len(here) < len(games):
            absent.append(f"{looks[label].name} ({listed(game_name(env) for env in games if env not in here)})")
    if absent:
        also = " and so not in the average" if AVERAGE in {env for env, _, _ in curves} else ""
        said.append(f"Not in every game{also}: {listed(absent)}.")
    ratios = sum(curve.ratios for (_, metric, _), curve in curves.items() if metric.startswith("normalised_"))
    undefined = sum(curve.undefined for curve in curves.values())
    if undefined:
        why = "because it is not clearly above zero or not known at that step"
        said.append(f"{undefined} of {ratios} ratios to normalised performance are not defined, {why}: gaps.")
    return said


def need(condition: bool, reason: str) -> None:
    """Raise AnalysisError with this reason unless the condition holds."""
    if not condition:
        raise AnalysisError(reason)
