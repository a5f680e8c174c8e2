"""The definitions behind every metric, as functions of plain arrays.

Shapes: q [..., K, A] holds the values of K members and A actions; P is the number of probe states, R that of runs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

LATE = 3 / 4  # late in training: steps above this share of the last one
LONG_HORIZON = 500_000  # interactions from which on the random score of the paper's table 2 counts
# The discounted return that V(s0) is compared with, by kind of bias: rewards as learned from, as the game gives them,
# or as learned from and up to the first loss of life.
BIASES = {
    "clipped": "discounted_return",
    "unclipped": "discounted_return_unclipped",
    "first_life": "discounted_return_first_life",
}
DEFAULT_BIAS = "clipped"  # the paper's


def state_value(q: np.ndarray, members: int = -2) -> np.ndarray:
    """V(s) = max_a mean_k Q_k(s, a); `members` is the axis of k, the last axis holds actions."""
    return q.mean(members).max(-1)


def bias(value: Any, discounted_return: Any) -> Any:
    """V(s0) minus the discounted return that followed (or minus the true value of s0)."""
    return value - discounted_return


def overestimation(q: np.ndarray, policy_value: np.ndarray) -> np.ndarray:
    """V(s) - V^pi(s), pi the greedy policy of the run itself; q [..., P, K, A], policy_value [..., P], both of one run.

    The error of a value has two parts: V - V* = (V - V^pi) + (V^pi - V*), overestimation + policy_loss.
    """
    return state_value(q) - policy_value


def policy_loss(policy_value: np.ndarray, true_q: np.ndarray) -> np.ndarray:
    """V^pi(s) - V*(s): what the greedy policy pi loses. Never positive; policy_value [..., P], true_q [P, A]."""
    return policy_value - true_q.max(-1)


def optimality(policy_value: np.ndarray, true_q: np.ndarray) -> np.ndarray:
    """mean_s V^pi(s) / mean_s V*(s), 1 for an optimal policy; NaN unless mean_s V* > 0. Shapes as of `policy_loss`."""
    best = true_q.max(-1).mean()
    return policy_value.mean(-1) / (best if best > 0 else math.nan)


def mean_bias(q: np.ndarray, policy_value: np.ndarray) -> float:
    """max_a E_runs[Q(s, a)] - E_runs[V^pi(s)] with Q the ensemble mean, mean over states; q [R, P, K, A], [R, P].

    The bias that is left when the noise of single runs is averaged away before the maximum. Over runs,
    E[V - V^pi] = (E[max_a Q] - max_a E[Q]) + (max_a E[Q] - E[V^pi]), overestimation = jensen_gap + mean_bias.
    """
    return float((q.mean((0, -2)).max(-1) - policy_value.mean(0)).mean())


def normalising_scores(config: Mapping[str, Any]) -> tuple[float, float] | None:
    """(random, reference) score of a run's configuration; None if the environment does not have both.

    Runs of LONG_HORIZON or more use `random_score_500k` where the environment has it.
    """
    env = config.get("env") or {}
    random, reference = env.get("random_score"), env.get("reference_score")
    if config.get("total_steps", 0) >= LONG_HORIZON and env.get("random_score_500k") is not None:
        random = env["random_score_500k"]
    if random is None or reference is None or random == reference:
        return None
    return float(random), float(reference)


def normalise(score: Any, scores: tuple[float, float]) -> Any:
    """(score - random) / (reference - random)."""
    random, reference = scores
    return (score - random) / (reference - random)


def episode_means(
    step: np.ndarray, columns: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """(steps [T], episodes [T], means [T] by column) of evaluations, from one row per episode in the order of steps.

    A mean is NaN where a number of one of its episodes is not finite.
    """
    values = np.column_stack([np.asarray(column, float) for column in columns.values()])
    values[~np.isfinite(values)] = np.nan
    steps, first, episodes = np.unique(step, return_index=True, return_counts=True)
    sums = np.add.reduceat(values, first, axis=0) if len(steps) else values
    means = (sums / episodes[:, None]).T
    return steps.astype(int), episodes, dict(zip(columns, means, strict=True))


def area_under_curve(steps: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """Mean height of a curve (trapezoids) from its first step up to each step; NaN from a gap on."""
    if not len(steps):
        return heights
    pieces = np.diff(steps) * (heights[1:] + heights[:-1]) / 2
    return np.concatenate([heights[:1], np.cumsum(pieces) / np.maximum(steps[1:] - steps[0], 1e-300)])


def steps_to_reference(steps: np.ndarray, normalised: np.ndarray) -> float:
    """The first step with a normalised return of 1 or more; NaN if there is none."""
    reached = steps[normalised >= 1]
    return float(reached[0]) if len(reached) else math.nan


def interquartile_mean(numbers: np.ndarray) -> float:
    """Mean of the numbers without the lowest and the highest quarter; NaN if one of them is not finite.

    Where the quarters are no whole numbers of values, those at the edges count by the part that lies inside.
    """
    count = len(numbers)
    if not count or not np.isfinite(numbers).all():
        return math.nan
    edges = np.clip(np.arange(count + 1), count / 4, 3 * count / 4)
    return float(np.sort(numbers) @ np.diff(edges) / (count / 2))


def member_std(q: np.ndarray) -> np.ndarray:
    """Population standard deviation over members of max_a Q_k, mean over states; q [..., P, K, A]."""
    return q.max(-1).std(-1).mean(-1)


def member_jensen_gap(q: np.ndarray) -> np.ndarray:
    """mean_k max_a Q_k - max_a mean_k Q_k, mean over states; q [..., P, K, A]. Never negative."""
    return (q.max(-1).mean(-1) - state_value(q)).mean(-1)


def value_std(q: np.ndarray) -> float:
    """Standard deviation over runs (with R - 1) of V(s0), mean over states; q [R, P, K, A], R > 1."""
    return float(state_value(q).std(axis=0, ddof=1).mean())


def jensen_gap(q: np.ndarray) -> float:
    """E_runs[max_a Q(s0, a)] - max_a E_runs[Q(s0, a)] with Q the ensemble mean, mean over states; q [R, P, K, A].

    The expectations are means over the R runs, as in the paper: never negative, and an underestimate of the gap of
    infinitely many runs, because max_a of a mean over few runs is itself too high. Compare equal R only.
    """
    mean_q = q.mean(-2)  # [R, P, A]
    gap = mean_q.max(-1).mean(0) - mean_q.mean(0).max(-1)
    return float(np.maximum(gap, 0).mean())  # below zero by rounding only


@dataclass(frozen=True)
class Decomposition:
    """Between-run variance of members' values, split into a shared and a member part.

    Q_rk(s, a), of run r of R and member k of K, is taken as mu(s, a) + S_r(s, a) + M_rk(s, a): S is what all members of
    a run have in common (the data it collected, a shared minibatch, bootstrapping from each other), M is each member's
    own. The members of a run are exchangeable. With Qbar_r the mean over k, and sums over s and a left out:

        member_variance  W = sum_r sum_k (Q_rk - Qbar_r)^2 / (R (K - 1))        unbiased for Var M
        mean_variance    B = sum_r (Qbar_r - mean_r Qbar_r)^2 / (R - 1)         unbiased for Var S + Var M / K
        shared_variance      B - W / K                                          unbiased for Var S; may be negative
        single_variance      B + W (K - 1) / K                                  unbiased for Var S + Var M

    These four are averaged over the probe states and actions; then, as ratios of unbiased estimates (consistent, not
    unbiased themselves),

        correlation      shared_variance / single_variance
        effective_size   single_variance / mean_variance  =  K / (1 + (K - 1) correlation)

    So without a known truth a member's error is its deviation from mu(s, a), the mean over runs of the ensemble mean:
    a bias that all runs have is not in it. `around_truth` is for environments whose Q* is known.
    """

    members: int
    member_variance: float
    mean_variance: float
    true_correlation: float | None = None  # of `around_truth`; None if the truth is not known
    true_effective_size: float | None = None

    @classmethod
    def of(cls, q: np.ndarray, true_q: np.ndarray | None = None) -> "Decomposition":
        """From q [R, P, K, A] with K > 1, and true_q [P, A]; mean_variance is NaN for R = 1."""
        runs, _, members, _ = q.shape
        within = float(q.var(axis=2, ddof=1).mean())
        between = float(q.mean(2).var(axis=0, ddof=1).mean()) if runs > 1 else math.nan
        return cls(members, within, between, *(() if true_q is None else around_truth(q, true_q)))

    @classmethod
    def with_log_ratio(cls, members: int, log_ratio: float) -> "Decomposition":
        """A decomposition with this log_ratio, and so with its correlation and effective size; of arbitrary scale."""
        return cls(members, members * math.exp(min(-log_ratio, 0.0)), math.exp(min(log_ratio, 0.0)))

    @property
    def log_ratio(self) -> float:
        """log(K mean_variance / member_variance), 0 for independent members; NaN without variance."""
        ratio = _divide(self.members * self.mean_variance, self.member_variance)
        return math.log(ratio) if ratio > 0 else math.nan

    @property
    def shared_variance(self) -> float:
        """Unbiased for Var S."""
        return self.mean_variance - self.member_variance / self.members

    @property
    def single_variance(self) -> float:
        """Unbiased for Var S + Var M."""
        return self.mean_variance + self.member_variance * (self.members - 1) / self.members

    @property
    def correlation(self) -> float:
        """Of the errors of two members of a run."""
        return _divide(self.shared_variance, self.single_variance)

    @property
    def effective_size(self) -> float:
        """How many independent members would have the variance of this mean."""
        return _divide(self.single_variance, self.mean_variance)


def around_truth(q: np.ndarray, true_q: np.ndarray) -> tuple[float, float]:
    """(correlation, effective size) of errors e_rk = Q_rk - Q*; q [R, P, K, A], true_q [P, A].

    Means over runs, states, actions, and pairs k != j. The truth is known, so they are unbiased as they are:

        correlation = E[e_k e_j] / E[e_k^2]      effective size = E[e_k^2] / E[ebar^2], ebar the mean over k

    A bias that all members have counts as error in common: an ensemble cannot average it away.
    """
    error = q - true_q[:, None, :]
    members = q.shape[2]
    squared, squared_mean = float((error**2).mean()), float((error.mean(2) ** 2).mean())
    product = (members * squared_mean - squared) / (members - 1)  # (sum_k e_k)^2 has K squares and K (K - 1) products
    return _divide(product, squared), _divide(squared, squared_mean)


def _divide(numerator: float, denominator: float) -> float:
    """NaN unless the denominator is above zero: a variance may be zero, or not known."""
    return numerator / denominator if denominator > 0 else math.nan
