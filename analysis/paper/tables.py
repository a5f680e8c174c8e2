"""The paper's two tables of Atari scores."""

from dataclasses import dataclass

import pandas as pd

from analysis.paper.reference_scores import DATA

HORIZONS = {"100k": 100_000, "500k": 500_000}
NORMALISERS = ("random", "human")


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
