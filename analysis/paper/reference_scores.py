"""Published Atari scores of other agents at 100,000 interactions, and our rank among them.

DrQ(eps) and SPR, two single agents without a lagging target network, have scores of every run; Dopamine's
data-efficient Rainbow has mean and standard deviation. analysis/paper/data/README.md names the sources.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.aggregate import probability_of_improvement

DATA = Path(__file__).parent / "data"
INTERACTIONS = 100_000  # of every score here
RUN_BY_RUN = {"drq_eps": "DrQ(eps)", "spr": "SPR"}
DIGITS = 6  # after the point; rounding errors such as 99.99999999999999 would hide ties


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
    """The percentage of runs below a score, ties counting half; NaN without runs."""
    if not len(runs):
        return float("nan")
    ours, theirs = np.array([[score]]).round(DIGITS), runs[:, None].round(DIGITS)
    return 100 * float(probability_of_improvement(ours, theirs))


def standing(scores: Mapping[tuple[str, str], Sequence[float]], meanq: pd.DataFrame) -> pd.DataFrame:
    """A row per game and label: our mean, std and runs, those of others, and the percentiles of our mean.

    scores: of our runs, by game and label. meanq: the paper's mean and std; index: game. Missing numbers are NaN.
    """
    rows = []
    for (game, label), ours in scores.items():
        mean = float(np.mean(ours))
        row = {"game": game, "label": label, "mean": mean, "std": _std(ours), "runs": len(ours)}
        for name, others in (("meanq", meanq), ("der", dopamine_rainbow())):
            found = others.reindex([game]).iloc[0]
            row |= {f"{name} mean": found["mean"], f"{name} std": found["std"]}
        for method in RUN_BY_RUN:
            row[method] = percentile(mean, reference_runs().get((method, game), np.array([])))
        rows.append(row)
    return pd.DataFrame(rows)


def as_text(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of `standing` as text; missing numbers are empty."""
    ours = [_score(*row) for row in zip(table["mean"], table["std"], strict=True)]
    shown = {
        "game": table["game"],
        "label": table["label"],
        "ours": [f"{score} ({runs})" for score, runs in zip(ours, table["runs"], strict=True)],
        "MeanQ (paper)": list(map(_score, table["meanq mean"], table["meanq std"])),
        "DER (Dopamine)": list(map(_score, table["der mean"], table["der std"])),
    }
    for method, name in RUN_BY_RUN.items():
        shown[f"above {name}"] = ["" if pd.isna(share) else f"{share:g}%" for share in table[method]]
    return pd.DataFrame(shown)


def _score(mean: float, std: float) -> str:
    spread = "" if pd.isna(std) else f" ± {std:.1f}"
    return "" if pd.isna(mean) else f"{mean:.1f}{spread}"


def _std(scores: Sequence[float]) -> float:
    return float(np.std(scores, ddof=1)) if len(scores) > 1 else float("nan")
