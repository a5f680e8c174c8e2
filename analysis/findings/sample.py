"""The runs of a method in an environment: their numbers, and random draws of what those may be.

The numbers (`COMPARED` in analysis/findings/claims.py) are of two kinds. Return, bias and the numbers of members are
means over runs, drawn from Student's distribution. Std and gap are statistics of all runs, drawn by a bootstrap.
"""

import zlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import groupby

import numpy as np
import pandas as pd

from meanq.metrics.definitions import DEFAULT_BIAS, LATE
from meanq.metrics.registry import METRICS

from ..intervals import clearly_positive, member_pseudovalues
from ..labels import short_labels
from ..runs import Run, RunSet
from .claims import EARLY, SPREADS, Claim

REPETITIONS = 5000  # of a bootstrap
DRAWS = 100_000  # of a mean; strict intervals reach far into the tails


Evidence = dict[str, list["Sample"]]  # the samples of all methods, by environment


class NotComparable(Exception):
    """Why methods cannot be compared in an environment."""


class Sample:
    """The runs of a method in an environment that were evaluated to the end."""

    def __init__(self, env: str, label: str, runs: Sequence[Run], bias: str, short: str = "") -> None:
        self.env, self.label, self.algo = env, label, runs[0].algo
        self.short = short or label  # without what all labels share
        self._exact = all(METRICS["optimality"].of_run(run.data) is not None for run in runs)
        self.scored = self._exact or runs[0].scores is not None  # whether returns can be normalised
        self.steps = min(run.total_steps for run in runs)
        self._bias = f"bias_{bias}"
        self.runs = [run for run in runs if self._is_complete(run)]
        self.left_out = sorted({run.seed for run in runs} - {run.seed for run in self.runs})
        self._probes = [run.probes for run in self.runs if run.probes is not None]
        states, self.members, actions = self._probes[0].q.shape[1:] if self._probes else (0, 0, 0)
        probe = runs[0].config.get("probe") or {}  # runs of a label have one configuration
        self.probed_at = (probe.get("seed"), states, actions)  # std and gap are comparable only if this is the same
        self._seed = [0, zlib.crc32(f"{env}/{label}".encode())]  # methods draw independently

    def _is_complete(self, run: Run) -> bool:
        curves = [self._curve(run, metric) for metric in ("bias", *(["return"] if self.scored else []))]
        return all(self.steps in curve.index and bool(np.isfinite(curve.to_numpy()).all()) for curve in curves)

    def _curve(self, run: Run, metric: str) -> "pd.Series[float]":
        """The return or bias of a run by step: exact where the environment is solved, else of evaluated episodes."""
        if self._exact:
            steps, values = METRICS["overestimation" if metric == "bias" else "optimality"].of_run(run.data)
            return pd.Series(values, index=steps)
        return run.episode_means[self._bias if metric == "bias" else "normalised_return"]

    @cached_property
    def probed(self) -> list[int]:
        """The late steps at which every run has a finite probe."""
        if len(self._probes) < len(self.runs):
            return []
        steps = {int(step) for probes in self._probes for step in probes.step if step > LATE * self.steps}
        return sorted(step for step in steps if all(probes.at(step) is not None for probes in self._probes))

    def defined(self, count: int) -> set[int]:
        """The late probes at which the performance of the first `count` runs is clearly above zero."""
        return {step for step in self.probed if clearly_positive(self._performance(step, count))}

    def q(self, step: int, count: int | None = None) -> np.ndarray:
        """Values [R, P, K, A] of the first `count` runs at a step in `probed`."""
        found = [probes.at(step) for probes in self._probes[:count]]
        return np.stack([q for q in found if q is not None])

    def _performance(self, step: int, count: int) -> np.ndarray:
        """Normalised returns [R] of the first `count` runs."""
        values = [self._curve(run, "return").get(step, np.nan) for run in self.runs[:count]]
        return np.array(values, dtype=float)

    def by_run(self, metric: str) -> np.ndarray:
        """A metric that is a mean over runs: numbers [R]; NaN where a run has none."""
        if metric == "correlation":
            return member_pseudovalues([self.q(step) for step in self.probed])
        if metric == "member_variance":
            variances = [self.q(step).var(axis=2, ddof=1).mean(axis=(1, 2)) for step in self.probed]
            variance = np.mean(variances, axis=0)
            return np.log(np.where(variance > 0, variance, np.nan))
        means = [self._curve(run, metric) for run in self.runs]
        if metric == "early_return":
            return np.array([of_run[of_run.index <= EARLY * self.steps].mean() for of_run in means])
        return np.array([of_run[of_run.index > LATE * self.steps].mean() for of_run in means])

    def estimate(self, metric: str, count: int, steps: Iterable[int]) -> tuple[float, np.ndarray]:
        """The metric and random draws of it; std and gap: of the first `count` runs at these steps."""
        if metric in SPREADS:
            times_drawn = (self.resamples(count)[:, :, None] == np.arange(count)).sum(1)
            weights = np.concatenate([np.ones((1, count)), times_drawn]) / count
            numbers = self._spreads(metric, weights, steps)
            return float(numbers[0]), numbers[1:]
        by_run = self.by_run(metric)
        draws = draw_means(by_run, np.random.default_rng([*self._seed, zlib.crc32(metric.encode())]))
        return (abs(by_run.mean()), np.abs(draws)) if metric == "bias" else (by_run.mean(), draws)

    def resamples(self, count: int) -> np.ndarray:
        """Indices [REPETITIONS, count] of runs, drawn with replacement from the first `count`."""
        return np.random.default_rng([*self._seed, count]).integers(0, count, (REPETITIONS, count))

    def _spreads(self, metric: str, weights: np.ndarray, steps: Iterable[int]) -> np.ndarray:
        """Normalised std or gap, mean over steps, for weights [B, R] of runs that sum to one: numbers [B]."""
        weighted, count = _weighted_std if metric == "std" else _weighted_gap, weights.shape[1]
        found = []
        for step in steps:
            performance = weights @ self._performance(step, count)
            performance[performance <= 0] = np.nan
            found.append(weighted(self.q(step, count).mean(2), weights) / performance)
        return np.mean(found, axis=0)


def draw_means(numbers: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Draws [DRAWS] of the mean behind these numbers, from Student's distribution."""
    error = numbers.std(ddof=1) / np.sqrt(len(numbers))
    return numbers.mean() + error * generator.standard_t(len(numbers) - 1, DRAWS)


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


def take_samples(found: RunSet, bias: str = DEFAULT_BIAS) -> tuple[Evidence, list[str]]:
    """The samples by environment, and notes on the runs that no comparison uses."""
    short = short_labels(found.labels)
    samples = [Sample(env, label, runs, bias, short[label]) for (env, label), runs in found.groups().items()]
    notes = [
        f"{s.env}, {s.label}: seed {', '.join(map(str, s.left_out))} left out: not evaluated to step {s.steps}, or NaN"
        for s in samples
        if s.left_out
    ]
    return {env: list(here) for env, here in groupby(samples, lambda sample: sample.env)}, notes


def pair(samples: Iterable[Sample], claim: Claim, least: int) -> tuple[Sample, Sample]:
    """The samples of both methods of a claim, with at least so many runs; raises with the reasons of both."""
    found, reasons = list[Sample](), list[str]()
    for method in (claim.a, claim.b):
        named = [s for s in samples if (s.label if claim.of_labels else s.algo) == method]
        chosen = [sample for sample in named if method in (sample.label, sample.short)] or named
        if not chosen:
            reasons.append(f"no {method}")
        elif len(chosen) > 1:
            reasons.append(f"several labels of {method} ({', '.join(sample.short for sample in chosen)})")
        elif len(chosen[0].runs) < least:
            reasons.append(f"{len(chosen[0].runs)} complete runs of {method} where {least} are needed")
        found += chosen[:1]
    if reasons:
        raise NotComparable("; ".join(reasons))
    return found[0], found[1]
