"""Aggregates over games: mean, median, interquartile mean, optimality gap, performance profiles and the probability of
improvement, with intervals by bootstrap over runs, stratified by game, as `rliable` (Agarwal et al. 2021) has them.

    python -m analysis.aggregate runs/main_100k

Scores are normalised returns at one step: `--at`, or else the length of the shortest runs of a game. Labels are
compared in the games that all of them have. The bootstrap wants as many runs in each game, so where a label has more in
one game than in another, those with the lowest seeds count. What is left out is said.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.console import say
from analysis.runs import AnalysisError, RunSet, named_labels, read_runs

REPETITIONS = 2000
CONFIDENCE = 0.95
FEW_RUNS = 5
THRESHOLDS = np.linspace(0, 2, 41)  # of normalised score


@dataclass(frozen=True)
class Scores:
    """Normalised scores of each label, [runs, games], in the same games."""

    matrices: Mapping[str, np.ndarray]
    envs: Sequence[str]
    steps: Mapping[str, int]  # by game
    notes: list[str] = field(default_factory=list)


def collect(found: RunSet, at: int | None = None, labels: Sequence[str] | None = None) -> Scores:
    """The scores at a step; AnalysisError where no game has all the labels."""
    notes: list[str] = []
    wanted = list(labels) if labels else found.labels
    unknown = sorted(set(wanted) - set(found.labels))
    if unknown:
        raise AnalysisError(f"no runs with label {', '.join(unknown)}; there are {', '.join(found.labels)}")
    groups = {(env, label): runs for (env, label), runs in found.groups().items() if label in wanted}
    steps: dict[str, int] = {}
    by_env: dict[str, dict[str, list[float]]] = {}
    for env in found.envs:
        here = {label: runs for (e, label), runs in groups.items() if e == env}
        if not here:
            continue
        if any(run.scores is None for runs in here.values() for run in runs):
            notes.append(f"{env}: left out, because it has no scores to normalise by")
            continue
        steps[env] = at if at is not None else min(run.total_steps for runs in here.values() for run in runs)
        by_env[env] = {}
        for label, runs in here.items():
            scores = {run.seed: float(run.episode_means["normalised_return"].get(steps[env], np.nan)) for run in runs}
            absent = [str(seed) for seed, score in scores.items() if np.isnan(score)]
            if absent:
                notes.append(f"{env}, {label}: no score at step {steps[env]} of seed {', '.join(absent)}; left out")
            by_env[env][label] = [score for score in scores.values() if not np.isnan(score)]
    envs = [env for env, found_here in by_env.items() if all(found_here.get(label) for label in wanted)]
    if not envs:
        have = "; ".join(f"{env}: {', '.join(sorted(here))}" for env, here in by_env.items())
        raise AnalysisError(
            f"no game has scores of all labels; choose some with --labels ({have or 'no scores at all'})"
        )
    for env, scored in by_env.items():
        if env not in envs:
            missing = ", ".join(label for label in wanted if not scored.get(label))
            notes.append(f"{env}: left out, because it has no scores of {missing}")
    matrices = {}
    for label in wanted:
        columns = [by_env[env][label] for env in envs]
        count = min(map(len, columns))
        if any(len(column) > count for column in columns):
            notes.append(f"{label}: not as many runs in each game; the first {count} of each count")
        matrices[label] = np.array([column[:count] for column in columns]).T
        if 1 < count < FEW_RUNS:
            notes.append(f"{label}: {count} runs in each game; bootstrap intervals of so few are too short")
    return Scores(matrices, envs, {env: steps[env] for env in envs}, notes)


def aggregates(scores: Scores, repetitions: int = REPETITIONS, seed: int = 0) -> pd.DataFrame:
    """label, metric, value, low, high, runs, games; low and high are empty for one run per game."""
    names = ["iqm", "optimality_gap", "mean", "median"]
    points, intervals = _estimate(scores.matrices, _aggregate, repetitions, seed)
    rows = []
    for label, matrix in scores.matrices.items():
        for i, name in enumerate(names):
            low, high = intervals[label][:, i]
            rows.append((label, name, points[label][i], low, high, *matrix.shape))
    return pd.DataFrame(rows, columns=["label", "metric", "value", "low", "high", "runs", "games"])


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
    """label, threshold, value, low, high: the share of runs, over all games, whose score is above the threshold."""

    def share_above(drawn: np.ndarray) -> np.ndarray:
        return np.stack([(drawn > threshold).mean(axis=(1, 2)) for threshold in thresholds], axis=1)

    points, intervals = _estimate(scores.matrices, share_above, repetitions, seed)
    rows = [
        (label, threshold, points[label][i], *intervals[label][:, i])
        for label in scores.matrices
        for i, threshold in enumerate(thresholds)
    ]
    return pd.DataFrame(rows, columns=["label", "threshold", "value", "low", "high"])


def improvements(
    scores: Scores,
    pairs: Sequence[tuple[str, str]] | None = None,
    repetitions: int = REPETITIONS,
    seed: int = 0,
) -> pd.DataFrame:
    """label, other, value, low, high: how likely a run of label is above one of other in a game, mean over games.

    Without `pairs`: every two labels. The other way round it is 1 - value, between 1 - high and 1 - low.
    """
    chosen = list(combinations(scores.matrices, 2)) if pairs is None else list(pairs)

    def improvement(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return probability_of_improvement(x, y)[:, None]

    data = {f"{i}": (scores.matrices[x], scores.matrices[y]) for i, (x, y) in enumerate(chosen)}
    points, intervals = _estimate(data, improvement, repetitions, seed)
    rows = [(*pair, points[f"{i}"][0], *intervals[f"{i}"][:, 0]) for i, pair in enumerate(chosen)]
    return pd.DataFrame(rows, columns=["label", "other", "value", "low", "high"])


def probability_of_improvement(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """P(X > Y) + P(X = Y) / 2 in each game, mean over games; x, y [..., runs, games].

    The same number as rliable's function of this name, which also computes a p-value and takes a hundred times as long.
    """
    a, b = x[..., :, None, :], y[..., None, :, :]
    return np.asarray(((a > b).mean(axis=(-3, -2, -1)) + (a >= b).mean(axis=(-3, -2, -1))) / 2)


def _estimate(
    data: Mapping[str, np.ndarray | tuple[np.ndarray, ...]],
    function: Callable[..., np.ndarray],
    repetitions: int,
    seed: int,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Point estimates, and intervals [2, ...] by percentiles; NaN where one run says nothing about its spread.

    The resamples, hence the intervals, are those of rliable's `get_interval_estimates` (tests compare them), all drawn
    and evaluated at once: `function` takes [repetitions, runs, games]. One by one, as rliable does it, they take a
    hundred times as long.
    """
    points, intervals = {}, {}
    tails = [100 * (1 - CONFIDENCE) / 2, 100 * (1 + CONFIDENCE) / 2]
    for name, matrices in data.items():
        several = matrices if isinstance(matrices, tuple) else (matrices,)
        points[name] = function(*(matrix[None] for matrix in several))[0]
        intervals[name] = np.full((2, len(points[name])), np.nan)
        if min(map(len, several)) > 1:
            drawn = function(*_resample(several, repetitions, seed))
            intervals[name] = np.percentile(drawn, tails, axis=0)
    return points, intervals


def _resample(matrices: Sequence[np.ndarray], repetitions: int, seed: int) -> list[np.ndarray]:
    """Runs drawn with replacement, each game by itself; a list of [repetitions, runs, games]."""
    counts = np.concatenate([np.full(matrix.size, len(matrix)) for matrix in matrices])
    generator = np.random.RandomState(seed)
    chosen = generator.randint(0, counts, (repetitions, len(counts)))
    parts = np.split(chosen, np.cumsum([matrix.size for matrix in matrices])[:-1], axis=1)
    return [
        matrix[part.reshape(repetitions, *matrix.shape), np.arange(matrix.shape[1])]
        for matrix, part in zip(matrices, parts, strict=True)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
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
    try:
        found = read_runs(options.runs)
        scores = collect(found, options.at, named_labels(options.labels or "", found.labels))
    except AnalysisError as error:
        sys.exit(f"analysis: {error}")
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
