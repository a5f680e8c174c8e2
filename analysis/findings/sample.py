"""The runs of a method in an environment: their numbers, and random draws of what those may be.

The numbers (`COMPARED` in analysis/findings/claims.py) are of two kinds. Return, bias and the numbers of members are
means over runs, drawn from Student's distribution. Std and gap are statistics of all runs, drawn by a bootstrap.
"""

import zlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from analysis.findings.claims import EARLY, OF_MEMBERS, SPREADS, Claim
from analysis.intervals import LEAST_RUNS, clearly_positive, member_pseudovalues
from analysis.runs import Run, RunSet
from meanq.metrics.definitions import DEFAULT_BIAS, LATE

REPETITIONS = 5000  # of a bootstrap
DRAWS = 100_000  # of a mean; strict intervals reach far into the tails


class NotComparable(Exception):
    """Why methods cannot be compared in an environment."""


class Sample:
    """The runs of a method in an environment that were evaluated to the end."""

    def __init__(self, env: str, label: str, runs: Sequence[Run], bias: str, seed: int) -> None:
        self.env, self.label, self.algo = env, label, runs[0].algo
        self.steps = min(run.total_steps for run in runs)
        self._bias = f"bias_{bias}"
        self.runs = [run for run in runs if self._is_complete(run)]
        self.left_out = sorted({run.seed for run in runs} - {run.seed for run in self.runs})
        self._probes = [run.probes for run in self.runs if run.probes is not None]
        self._seed = [seed, zlib.crc32(f"{env}/{label}".encode())]  # methods draw independently
        self._bootstrapped: dict[tuple[str, int, tuple[int, ...]], np.ndarray] = {}

    def _is_complete(self, run: Run) -> bool:
        columns = [self._bias, *(["normalised_return"] if run.scores else [])]
        means = run.episode_means
        return self.steps in means.index and bool(np.isfinite(means[columns].to_numpy()).all())

    @property
    def scored(self) -> bool:
        """Whether returns can be normalised."""
        return all(run.scores is not None for run in self.runs)

    @property
    def probed_states(self) -> set[tuple[object, ...]]:
        """Probe seed, states and actions; std and gap are comparable only if these agree."""
        return {
            ((run.config.get("probe") or {}).get("seed"), *run.probes.q.shape[1::2])
            for run in self.runs
            if run.probes is not None
        }

    @property
    def members(self) -> int:
        """The ensemble's size; 0 without probes."""
        return next((probes.q.shape[2] for probes in self._probes), 0)

    @cached_property
    def probed(self) -> list[int]:
        """The late steps at which every run has a finite probe."""
        if len(self._probes) < len(self.runs):
            return []
        steps = {int(step) for probes in self._probes for step in probes.step if step > LATE * self.steps}
        return sorted(step for step in steps if all(probes.at(step) is not None for probes in self._probes))

    def defined(self, count: int) -> list[int]:
        """The late probes at which the performance of the first `count` runs is clearly above zero."""
        return [step for step in self.probed if clearly_positive(self._performance(step, count))]

    def q(self, step: int, count: int) -> np.ndarray:
        """Values [R, P, K, A] of the first `count` runs at a step in `probed`."""
        found = [probes.at(step) for probes in self._probes[:count]]
        return np.stack([q for q in found if q is not None])

    def _performance(self, step: int, count: int) -> np.ndarray:
        """Normalised returns [R] of the first `count` runs."""
        values = [run.episode_means["normalised_return"].get(step, np.nan) for run in self.runs[:count]]
        return np.array(values, dtype=float)

    @cached_property
    def by_run(self) -> dict[str, np.ndarray]:
        """The metrics that are means over runs: numbers [R]; NaN where a run has none."""
        tables = [run.episode_means for run in self.runs]
        late = [means[means.index > LATE * self.steps] for means in tables]
        early = [means[means.index <= EARLY * self.steps] for means in tables]
        return {
            "return": np.array([means["normalised_return"].mean() for means in late]),
            "early_return": np.array([means["normalised_return"].mean() for means in early]),
            "bias": np.array([means[self._bias].mean() for means in late]),
            **self._of_members(),
        }

    def _of_members(self) -> dict[str, np.ndarray]:
        if not self.probed or self.members < 2 or len(self.runs) < LEAST_RUNS:
            return dict.fromkeys(OF_MEMBERS, np.full(len(self.runs), np.nan))
        probes = [self.q(step, len(self.runs)) for step in self.probed]
        variance = np.mean([q.var(axis=2, ddof=1).mean(axis=(1, 2)) for q in probes], axis=0)
        logarithm = np.log(variance, where=variance > 0, out=np.full(len(variance), np.nan))
        return {"correlation": member_pseudovalues(probes), "member_variance": logarithm}

    def value(self, metric: str, count: int = 0, steps: Sequence[int] = (), normalised: bool = True) -> float:
        """The metric; std and gap of the first `count` runs at these steps."""
        if metric in SPREADS:
            return float(self._spreads(metric, np.full((1, count), 1 / count), steps, normalised)[0])
        return float(_size_of_bias(metric, self.by_run[metric].mean()))

    def draws(self, metric: str, count: int = 0, steps: Sequence[int] = ()) -> np.ndarray:
        """Random draws of `value`."""
        if metric not in SPREADS:
            generator = np.random.default_rng([*self._seed, zlib.crc32(metric.encode())])
            return _size_of_bias(metric, draw_means(self.by_run[metric], generator))
        key = (metric, count, tuple(steps))
        if key not in self._bootstrapped:
            weights = (self.resamples(count)[:, :, None] == np.arange(count)).mean(1)  # how often each run was drawn
            self._bootstrapped[key] = self._spreads(metric, weights, steps)
        return self._bootstrapped[key]

    def resamples(self, count: int) -> np.ndarray:
        """Indices [REPETITIONS, count] of runs, drawn with replacement from the first `count`."""
        return np.random.default_rng([*self._seed, count]).integers(0, count, (REPETITIONS, count))

    def _spreads(self, metric: str, weights: np.ndarray, steps: Sequence[int], normalised: bool = True) -> np.ndarray:
        """Std or gap, mean over steps, for weights [B, R] of runs that sum to one: numbers [B]."""
        weighted = _weighted_std if metric == "std" else _weighted_gap
        count = weights.shape[1]
        found = []
        for step in steps:
            numbers = weighted(self.q(step, count).mean(2), weights)
            if normalised:
                performance = weights @ self._performance(step, count)
                numbers = np.where(performance > 0, numbers / np.where(performance > 0, performance, 1), np.nan)
            found.append(numbers)
        return np.mean(found, axis=0)


def draw_means(numbers: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Draws [DRAWS] of the mean behind these numbers, from Student's distribution."""
    error = numbers.std(ddof=1) / np.sqrt(len(numbers))
    return numbers.mean() + error * generator.standard_t(len(numbers) - 1, DRAWS)


def _size_of_bias(metric: str, means: np.ndarray) -> np.ndarray:
    """The absolute value of a bias; other metrics as they are."""
    return np.abs(means) if metric == "bias" else means


def _weighted_std(q: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """analysis.metrics.value_std of runs drawn with these weights: q [R, P, A], weights [B, R] -> [B]."""
    values = q.max(-1)
    values = values - values.mean(0)  # against cancellation
    count = len(q)
    variance = (weights @ values**2 - (weights @ values) ** 2) * count / (count - 1)
    return np.sqrt(np.maximum(variance, 0)).mean(-1)


def _weighted_gap(q: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """analysis.metrics.jensen_gap of runs drawn with these weights: q [R, P, A], weights [B, R] -> [B]."""
    highest = weights @ q[..., 0]  # one action at a time: 8x faster than a maximum over a short last axis
    for action in range(1, q.shape[-1]):
        np.maximum(highest, weights @ q[..., action], out=highest)
    return (weights @ q.max(-1) - highest).mean(-1)


class Evidence:
    """The samples of all methods in all environments."""

    def __init__(self, found: RunSet, bias: str = DEFAULT_BIAS, seed: int = 0) -> None:
        self.envs = found.envs
        self.samples = {
            (env, label): Sample(env, label, runs, bias, seed) for (env, label), runs in found.groups().items()
        }

    @property
    def notes(self) -> list[str]:
        """The runs that no comparison uses."""
        return [
            f"{s.env}, {s.label}: seed {', '.join(map(str, s.left_out))} left out: "
            f"not evaluated to step {s.steps}, or NaN"
            for s in self.samples.values()
            if s.left_out
        ]

    def in_env(self, env: str) -> list[Sample]:
        """The samples of an environment."""
        return [sample for sample in self.samples.values() if sample.env == env]

    def pair(self, env: str, claim: Claim, least: int) -> tuple[Sample, Sample]:
        """The samples of both methods of a claim, with at least so many runs; raises with the reasons of both."""
        found, reasons = list[Sample](), list[str]()
        for method in (claim.a, claim.b):
            named = [s for s in self.in_env(env) if (s.label if claim.of_labels else s.algo) == method]
            chosen = [sample for sample in named if sample.label == method] or named
            if not chosen:
                reasons.append(f"no {method}")
            elif len(chosen) > 1:
                reasons.append(f"several labels of {method} ({', '.join(sample.label for sample in chosen)})")
            elif len(chosen[0].runs) < least:
                reasons.append(f"{len(chosen[0].runs)} complete runs of {method} where {least} are needed")
            found += chosen[:1]
        if reasons:
            raise NotComparable("; ".join(reasons))
        return found[0], found[1]
