"""Aggregates over games, as in `rliable` (Agarwal et al. 2021): mean, median, interquartile mean, optimality gap,
performance profiles and probability of improvement, with stratified bootstrap intervals.

    meanq aggregate runs/main_100k

Scores are normalised returns at one step: `--at`, or else the length of the shortest run of a game. Labels are compared
in the games that all of them have. The bootstrap needs the same number of runs in every game, so a label with more runs
in some games uses those with the lowest seeds. Notes say what is left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from .console import command, make_parser, say
from .labels import find_label, find_labels, short_labels
from .notes import all_notes
from .runs import AnalysisError, Run, RunSet, read_runs

REPETITIONS = 2000  # of the bootstrap
PERCENTILES = [2.5, 97.5]
FEW_RUNS = 5
THRESHOLDS = np.linspace(0, 2, 41)  # of normalised score
AGGREGATES = ("iqm", "optimality_gap", "mean", "median")
INTERVAL = ["value", "low", "high"]


@dataclass(frozen=True)
class Scores:
    """Normalised scores of each label, [runs, games], in the same games."""

    matrices: Mapping[str, np.ndarray]
    envs: Sequence[str]
    steps: Mapping[str, int]  # by game
    notes: list[str] = field(default_factory=list)


def collect(found: RunSet, at: int | None = None, labels: Sequence[str] | None = None) -> Scores:
    """The scores at a step; AnalysisError if no game has all the labels."""
    wanted = [find_label(label, found.labels, "--labels") for label in labels] if labels else found.labels
    notes: list[str] = []
    steps: dict[str, int] = {}
    by_env: dict[str, dict[str, list[float]]] = {}
    for env in found.envs:
        here = {label: runs for (e, label), runs in found.groups().items() if e == env and label in wanted}
        everyone = [run for runs in here.values() for run in runs]
        if any(run.scores is None for run in everyone):
            notes.append(f"{env}: left out, because it has no scores to normalise by")
        elif everyone:
            steps[env] = at if at is not None else min(run.total_steps for run in everyone)
            scored = {label: scores_at(steps[env], runs, "normalised_return", notes) for label, runs in here.items()}
            by_env[env] = {label: scores for label, scores in scored.items() if scores}
    envs = [env for env, scored in by_env.items() if len(scored) == len(wanted)]
    if not envs:
        have = "; ".join(f"{env}: {', '.join(sorted(here))}" for env, here in by_env.items()) or "no scores at all"
        raise AnalysisError(f"no game has scores of all labels; choose some with --labels ({have})")
    for env in sorted(by_env.keys() - envs):
        missing = ", ".join(label for label in wanted if label not in by_env[env])
        notes.append(f"{env}: left out, because it has no scores of {missing}")
    matrices = {}
    for label in wanted:
        columns = [by_env[env][label] for env in envs]
        count = min(map(len, columns))
        if any(len(column) > count for column in columns):
            notes.append(f"{label}: not as many runs in each game; the first {count} of each count")
        if 1 < count < FEW_RUNS:
            notes.append(f"{label}: {count} runs in each game; bootstrap intervals of so few are too short")
        matrices[label] = np.array([column[:count] for column in columns]).T
    return Scores(matrices, envs, {env: steps[env] for env in envs}, notes)


def scores_at(step: int, runs: Sequence[Run], column: str, notes: list[str]) -> list[float]:
    """The mean returns of runs of one label in the evaluation at exactly this step; a note names those without."""
    scores = {run.seed: float(run.episode_means[column].get(step, np.nan)) for run in runs}
    absent = ", ".join(str(seed) for seed, score in scores.items() if np.isnan(score))
    if absent:
        notes.append(f"{runs[0].env}, {runs[0].label}: no score at step {step} of seed {absent}; left out")
    return [score for score in scores.values() if not np.isnan(score)]


def aggregates(scores: Scores, repetitions: int = REPETITIONS) -> pd.DataFrame:
    """label, metric, value, low, high, runs, games; low and high are NaN for one run per game."""
    table = _by_label(scores, "metric", AGGREGATES, _aggregate, repetitions)
    runs, games = zip(*(scores.matrices[label].shape for label in table["label"]), strict=True)
    return table.assign(runs=runs, games=games)


def _aggregate(drawn: np.ndarray) -> np.ndarray:
    """rliable's aggregate_<name> for each name in AGGREGATES, of each resample; [B, runs, games] -> [B, 4]."""
    by_game = drawn.mean(1)
    flat = np.sort(drawn.reshape(len(drawn), -1), axis=1)
    quarter = flat.shape[1] // 4
    middle = flat[:, quarter : flat.shape[1] - quarter].mean(1)
    gap = 1 - np.minimum(flat, 1).mean(1)
    return np.stack([middle, gap, by_game.mean(1), np.median(by_game, axis=1)], axis=1)


def profiles(scores: Scores, thresholds: np.ndarray = THRESHOLDS, repetitions: int = REPETITIONS) -> pd.DataFrame:
    """label, threshold, value, low, high: the share of runs, over all games, with a score above the threshold."""

    def share_above(drawn: np.ndarray) -> np.ndarray:
        return np.stack([(drawn > threshold).mean(axis=(1, 2)) for threshold in thresholds], axis=1)

    return _by_label(scores, "threshold", thresholds.tolist(), share_above, repetitions)


def improvements(
    scores: Scores, pairs: Sequence[tuple[str, str]] | None = None, repetitions: int = REPETITIONS
) -> pd.DataFrame:
    """label, other, value, low, high: the probability that a run of label beats one of other, mean over games.

    Without `pairs`: every two labels. The reverse is 1 - value, between 1 - high and 1 - low.
    """
    rows = []
    for pair in combinations(scores.matrices, 2) if pairs is None else pairs:
        matrices = [scores.matrices[label] for label in pair]
        rows.append((*pair, *_estimate(probability_of_improvement, matrices, repetitions)[0]))
    return pd.DataFrame(rows, columns=["label", "other", *INTERVAL])


def probability_of_improvement(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """P(X > Y) + P(X = Y) / 2 in each game, mean over games; x, y [..., runs, games].

    Equals rliable's function of this name, which also computes a p-value and is a hundred times slower.
    """
    a, b = x[..., :, None, :], y[..., None, :, :]
    return np.asarray(((a > b).mean(axis=(-3, -2, -1)) + (a >= b).mean(axis=(-3, -2, -1))) / 2)


def _by_label(
    scores: Scores, name: str, keys: Sequence[object], function: Callable[..., np.ndarray], repetitions: int
) -> pd.DataFrame:
    """label, `name`, value, low, high: a row per label and number that `function` computes; `keys` name the numbers."""
    rows = []
    for label, matrix in scores.matrices.items():
        estimates = _estimate(function, [matrix], repetitions)
        rows += [(label, key, *numbers) for key, numbers in zip(keys, estimates, strict=True)]
    return pd.DataFrame(rows, columns=["label", name, *INTERVAL])


def _estimate(function: Callable[..., np.ndarray], matrices: Sequence[np.ndarray], repetitions: int) -> np.ndarray:
    """Value, low and high of each number that `function` computes: [N, 3]; low and high are NaN for a single run.

    `function` takes [B, runs, games] of each matrix and returns [B, N], or [B] for N = 1. The resamples, hence the
    intervals, are those of rliable's `get_interval_estimates` with seed 0 (tests compare them), evaluated all at once,
    which is a hundred times faster than one by one.
    """
    point = function(*(matrix[None] for matrix in matrices)).reshape(-1)
    low = high = np.full(len(point), np.nan)
    if min(map(len, matrices)) > 1:
        drawn = function(*_resample(matrices, repetitions)).reshape(repetitions, -1)
        low, high = np.percentile(drawn, PERCENTILES, axis=0)
    return np.stack([point, low, high], axis=1)


def _resample(matrices: Sequence[np.ndarray], repetitions: int) -> list[np.ndarray]:
    """Runs drawn with replacement, independently in each game; a list of [repetitions, runs, games]."""
    counts = np.concatenate([np.full(matrix.size, len(matrix)) for matrix in matrices])
    chosen = np.random.RandomState(0).randint(0, counts, (repetitions, len(counts)))
    parts = np.split(chosen, np.cumsum([matrix.size for matrix in matrices])[:-1], axis=1)
    return [
        matrix[part.reshape(repetitions, *matrix.shape), np.arange(matrix.shape[1])]
        for matrix, part in zip(matrices, parts, strict=True)
    ]


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser("aggregate", __doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="directories with runs anywhere below")
    parser.add_argument("--at", type=int, metavar="STEP", help="the step of the scores; otherwise the end of the runs")
    parser.add_argument(
        "--labels",
        default="",
        help="which ones, e.g. dqn,meanq; otherwise all. The part of a label that tells it apart is enough",
    )
    options = parser.parse_args(arguments)
    found = read_runs(options.runs)
    scores = collect(found, options.at, find_labels(options.labels, found.labels))
    say(all_notes(found, scores.notes))
    names = short_labels(found.labels)
    steps = ", ".join(f"{env} ({step})" for env, step in scores.steps.items())
    print(f"Normalised returns in {len(scores.envs)} games (step): {steps}; intervals: 95%")
    print(_show(aggregates(scores), names))
    if len(scores.matrices) > 1:
        print("\nProbability that a run of `label` is above one of `other`")
        print(_show(improvements(scores), names))


def _show(table: pd.DataFrame, names: Mapping[str, str]) -> str:
    for column in {"label", "other"} & set(table):
        table = table.assign(**{column: table[column].map(names)})
    return table.to_string(index=False, float_format="{:.3f}".format, na_rep="")


if __name__ == "__main__":
    main()
