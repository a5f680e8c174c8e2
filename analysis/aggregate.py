"""Aggregates over games, as in `rliable` (Agarwal et al. 2021): mean, median, interquartile mean, optimality gap,
performance profiles and probability of improvement, with stratified bootstrap intervals.

    python -m analysis.aggregate runs/main_100k

Scores are normalised returns at one step: `--at`, or else the length of the shortest run of a game. Labels are compared
in the games that all of them have. The bootstrap needs the same number of runs in every game, so a label with more runs
in some games uses those with the lowest seeds. Notes say what is left out.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.console import command, say
from analysis.runs import AnalysisError, Run, RunSet, named_labels, read_runs

REPETITIONS = 2000
CONFIDENCE = 0.95
FEW_RUNS = 5
THRESHOLDS = np.linspace(0, 2, 41)  # of normalised score
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
    wanted = list(labels) if labels else found.labels
    unknown = sorted(set(wanted) - set(found.labels))
    if unknown:
        raise AnalysisError(f"no runs with label {', '.join(unknown)}; there are {', '.join(found.labels)}")
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
            by_env[env] = {label: _scores_at(steps[env], runs, notes) for label, runs in here.items()}
    envs = [env for env, scored in by_env.items() if all(scored.get(label) for label in wanted)]
    if not envs:
        have = "; ".join(f"{env}: {', '.join(sorted(here))}" for env, here in by_env.items()) or "no scores at all"
        raise AnalysisError(f"no game has scores of all labels; choose some with --labels ({have})")
    for env in [env for env in by_env if env not in envs]:
        missing = ", ".join(label for label in wanted if not by_env[env].get(label))
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


def _scores_at(step: int, runs: Sequence[Run], notes: list[str]) -> list[float]:
    scores = {run.seed: float(run.episode_means["normalised_return"].get(step, np.nan)) for run in runs}
    absent = ", ".join(str(seed) for seed, score in scores.items() if np.isnan(score))
    if absent:
        notes.append(f"{runs[0].env}, {runs[0].label}: no score at step {step} of seed {absent}; left out")
    return [score for score in scores.values() if not np.isnan(score)]


def aggregates(scores: Scores, repetitions: int = REPETITIONS, seed: int = 0) -> pd.DataFrame:
    """label, metric, value, low, high, runs, games; low and high are NaN for one run per game."""
    rows = []
    for label, matrix in scores.matrices.items():
        estimates = _estimate(_aggregate, [matrix], repetitions, seed)
        names = ("iqm", "optimality_gap", "mean", "median")
        rows += [(label, name, *numbers, *matrix.shape) for name, numbers in zip(names, estimates, strict=True)]
    return pd.DataFrame(rows, columns=["label", "metric", *INTERVAL, "runs", "games"])


def _aggregate(drawn: np.ndarray) -> np.ndarray:
    """rliable's aggregate_iqm, _optimality_gap, _mean and _median of each resample; [B, runs, games] -> [B, 4]."""
    by_game = drawn.mean(1)
    flat = np.sort(drawn.reshape(len(drawn), -1), axis=1)
    quarter = flat.shape[1] // 4
    middle = flat[:, quarter : flat.shape[1] - quarter].mean(1)
    gap = 1 - np.minimum(flat, 1).mean(1)
    return np.stack([middle, gap, by_game.mean(1), np.median(by_game, axis=1)], axis=1)


def profiles(
    scores: Scores, thresholds: np.ndarray = THRESHOLDS, repetitions: int = REPETITIONS, seed: int = 0
) -> pd.DataFrame:
    """label, threshold, value, low, high: the share of runs, over all games, with a score above the threshold."""

    def share_above(drawn: np.ndarray) -> np.ndarray:
        return np.stack([(drawn > threshold).mean(axis=(1, 2)) for threshold in thresholds], axis=1)

    rows = []
    for label, matrix in scores.matrices.items():
        estimates = _estimate(share_above, [matrix], repetitions, seed)
        rows += [(label, threshold, *numbers) for threshold, numbers in zip(thresholds, estimates, strict=True)]
    return pd.DataFrame(rows, columns=["label", "threshold", *INTERVAL])


def improvements(
    scores: Scores,
    pairs: Sequence[tuple[str, str]] | None = None,
    repetitions: int = REPETITIONS,
    seed: int = 0,
) -> pd.DataFrame:
    """label, other, value, low, high: the probability that a run of label beats one of other, mean over games.

    Without `pairs`: every two labels. The reverse is 1 - value, between 1 - high and 1 - low.
    """

    def improvement(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return probability_of_improvement(x, y)[:, None]

    rows = []
    for pair in combinations(scores.matrices, 2) if pairs is None else pairs:
        matrices = [scores.matrices[label] for label in pair]
        rows.append((*pair, *_estimate(improvement, matrices, repetitions, seed)[0]))
    return pd.DataFrame(rows, columns=["label", "other", *INTERVAL])


def probability_of_improvement(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """P(X > Y) + P(X = Y) / 2 in each game, mean over games; x, y [..., runs, games].

    Equals rliable's function of this name, which also computes a p-value and is a hundred times slower.
    """
    a, b = x[..., :, None, :], y[..., None, :, :]
    return np.asarray(((a > b).mean(axis=(-3, -2, -1)) + (a >= b).mean(axis=(-3, -2, -1))) / 2)


def _estimate(
    function: Callable[..., np.ndarray], matrices: Sequence[np.ndarray], repetitions: int, seed: int
) -> np.ndarray:
    """Value, low and high of each number that `function` computes: [N, 3]; low and high are NaN for a single run.

    `function` takes [repetitions, runs, games] of each matrix and returns [repetitions, N]. The resamples, hence the
    intervals, are those of rliable's `get_interval_estimates` (tests compare them), evaluated all at once, which is a
    hundred times faster than one by one.
    """
    point = function(*(matrix[None] for matrix in matrices))[0]
    low = high = np.full(len(point), np.nan)
    if min(map(len, matrices)) > 1:
        tails = [100 * (1 - CONFIDENCE) / 2, 100 * (1 + CONFIDENCE) / 2]
        low, high = np.percentile(function(*_resample(matrices, repetitions, seed)), tails, axis=0)
    return np.stack([point, low, high], axis=1)


def _resample(matrices: Sequence[np.ndarray], repetitions: int, seed: int) -> list[np.ndarray]:
    """Runs drawn with replacement, independently in each game; a list of [repetitions, runs, games]."""
    counts = np.concatenate([np.full(matrix.size, len(matrix)) for matrix in matrices])
    generator = np.random.RandomState(seed)
    chosen = generator.randint(0, counts, (repetitions, len(counts)))
    parts = np.split(chosen, np.cumsum([matrix.size for matrix in matrices])[:-1], axis=1)
    return [
        matrix[part.reshape(repetitions, *matrix.shape), np.arange(matrix.shape[1])]
        for matrix, part in zip(matrices, parts, strict=True)
    ]


@command
def main(arguments: Sequence[str] | None = None) -> None:
    assert __doc__
    parser = argparse.ArgumentParser(prog="python -m analysis.aggregate", description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", help="directories with runs anywhere below")
    parser.add_argument("--at", type=int, metavar="STEP", help="the step of the scores; otherwise the end of the runs")
    parser.add_argument("--labels", help="which ones, e.g. dqn,meanq; otherwise all")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help="of the bootstrap (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap (default: %(default)s)")
    options = parser.parse_args(arguments)
    for name, least in (("repetitions", 1), ("seed", 0)):
        if getattr(options, name) < least:
            parser.error(f"--{name} {getattr(options, name)}: write {least} or more")
    found = read_runs(options.runs)
    scores = collect(found, options.at, named_labels(options.labels or ""))
    say([*found.messages(), *scores.notes])
    how = {"repetitions": options.repetitions, "seed": options.seed}
    steps = ", ".join(f"{env} ({step})" for env, step in scores.steps.items())
    print(f"Normalised returns in {len(scores.envs)} games (step): {steps}; intervals: 95%")
    print(_show(aggregates(scores, **how)))
    if len(scores.matrices) > 1:
        print("\nProbability that a run of `label` is above one of `other`")
        print(_show(improvements(scores, **how)))


def _show(table: pd.DataFrame) -> str:
    return table.to_string(index=False, float_format=lambda value: f"{value:.3f}", na_rep="")


if __name__ == "__main__":
    main()
