"""The paper's two tables of Atari scores, published scores of other agents, and our rank among them.

DrQ(eps) and SPR, two single agents without a lagging target network, have scores of every run; Dopamine's
data-efficient Rainbow has mean and standard deviation, all after 100,000 interactions. analysis/paper/data/README.md
names the sources.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from ..aggregate import probability_of_improvement

DATA = Path(__file__).parent / "data"
HORIZONS = {"100k": 100_000, "500k": 500_000}
NORMALISERS = ("random", "human")
INTERACTIONS = 100_000  # of every score of others
RUN_BY_RUN = {"drq_eps": "DrQ(eps)", "spr": "SPR"}
DIGITS = 6  # after the point; rounding errors such as 99.99999999999999 would hide ties


@dataclass(frozen=True)
class PaperTable:
    """One of the paper's two tables; index: game."""

    at: str
    scores: pd.DataFrame  # a column per method
    random: pd.Series
    human: pd.Series
    stds: pd.DataFrame  # over runs; a column per method of which the paper prints them

    @property
    def methods(self) -> list[str]:
        return list(self.scores.columns)

    def normalise(self, scores: pd.Series) -> pd.Series:
        """(score - random) / (human - random), for the games of the table."""
        return ((scores - self.random) / (self.human - self.random)).reindex(scores.index)


def paper_table(at: str) -> PaperTable:
    """The paper's table at 100k or 500k interactions."""
    table = pd.read_csv(DATA / f"scores_{at}.csv", index_col="env")
    methods = [name for name in table.columns if not name.endswith("_std") and name not in NORMALISERS]
    stds = table.filter(regex="_std$").rename(columns=lambda name: name.removesuffix("_std"))
    return PaperTable(at, table[methods], table["random"], table["human"], stds)


@cache
def reference_runs() -> Mapping[tuple[str, str], np.ndarray]:
    """The scores of all runs [100], by method and game."""
    table = pd.read_csv(DATA / "atari_100k_runs.csv")
    return {(str(m), str(game)): part.to_numpy(float) for (m, game), part in table.groupby(["method", "game"])["score"]}


@cache
def dopamine_rainbow() -> pd.DataFrame:
    """Data-efficient Rainbow of Dopamine: mean, std and runs; index: game."""
    table = pd.read_csv(DATA / "atari_100k_means.csv", index_col="game")
    return table[table["method"] == "der_dopamine"].rename(columns={"std_over_runs": "std"})[["mean", "std", "runs"]]


def percentile(score: float, runs: np.ndarray) -> float:
    """The percentage of runs below a score, ties counting half."""
    ours, theirs = np.array([[score]]).round(DIGITS), runs[:, None].round(DIGITS)
    return 100 * float(probability_of_improvement(ours, theirs))


def standing(scores: Mapping[tuple[str, str], Sequence[float]], mean: pd.Series, std: pd.Series) -> pd.DataFrame:
    """A row per game and label: our mean, std (NaN for one run) and runs, those of others, our mean's percentiles.

    scores: of our runs, by game of the paper's table and label. mean, std: the paper's MeanQ; index: game.
    """
    rows = []
    for (game, label), values in scores.items():
        ours, der = pd.Series(values), dopamine_rainbow().loc[game]
        row = {"game": game, "label": label, "mean": ours.mean(), "std": ours.std(), "runs": len(ours)}
        row |= {"meanq mean": mean[game], "meanq std": std[game], "der mean": der["mean"], "der std": der["std"]}
        rows.append(row | {method: percentile(ours.mean(), reference_runs()[method, game]) for method in RUN_BY_RUN})
    return pd.DataFrame(rows)


def as_text(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of `standing` as text."""
    shown = table[["game", "label"]].copy()
    for name, prefix in (("ours", ""), ("MeanQ (paper)", "meanq "), ("DER (Dopamine)", "der ")):
        shown[name] = list(map(_score, table[f"{prefix}mean"], table[f"{prefix}std"]))
    shown["ours"] += [f" ({runs})" for runs in table["runs"]]
    for method, name in RUN_BY_RUN.items():
        shown[f"above {name}"] = [f"{share:g}%" for share in table[method]]
    return shown


def _score(mean: float, std: float) -> str:
    return f"{mean:.1f}" + ("" if pd.isna(std) else f" ± {std:.1f}")
