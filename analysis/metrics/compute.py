"""The four metrics of the paper, the mechanism behind them, and the cost, from run directories.

    python -m analysis.metrics runs/target_network --out metrics.csv

A tidy table: env, algo (the label), group, step, metric, value, n. Three kinds of metric differ in what `group` and `n`
mean; `KINDS` lists them all.

per run     `seed_<n>`: the mean over the evaluation's n episodes (or n = 1 number of the run).
            `mean`, `std`: over the n runs that have a number at this step; std with n - 1, empty for one run.
per group   Statistics over runs. Runs in the order of their seeds are split into groups of 5: `group_0`, `group_1`,
            ...; n is the number of runs in it at this step. `mean`, `std`: over the n groups. What is left over when
            the number of runs is no multiple of 5 is left out, because the expected std and gap depend on the number
            of runs. Fewer than 5 runs are one group. A group needs 2 runs.
over runs   `all`: unbiased estimates from all n runs at once.

An empty value: not defined there. Ratios to the normalised performance are defined where that performance is clearly
above zero: where the 95% interval of its mean over the group's runs (Student's t) lies above zero. That rule has no
constant to tune and asks for more from fewer runs; a fixed threshold would either forbid games in which every method
stays below 1% of human score, or let through ratios whose sign is a matter of chance.
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.console import say, write_out
from analysis.runs import BIASES, AnalysisError, Run, RunSet, read_runs

COLUMNS = ["env", "algo", "group", "step", "metric", "value", "n"]
GROUP_SIZE = 5
DEFAULT_BIAS = "clipped"  # the paper's: rewards as learned from, to the end of the game

KINDS = {
    "return": "per run: undiscounted return",
    "normalised_return": "per run: (return - random) / (reference - random)",
    **{f"bias_{name}": f"per run: V(s_0) - {column}" for name, column in BIASES.items()},
    "bias_true": "per run: V(s_0) - max_a Q*(s_0, a) at the probe states, where the true Q* is known",
    "auc": "per run: mean height of the learning curve up to this step",
    "normalised_auc": "per run: the same of the normalised return",
    "steps_to_reference": "per run, at its last step: the first evaluation with normalised return >= 1; empty: none",
    "seconds": "per run, at its last step: wall-clock time",
    "adam_share_<layer>": "per run: share of Adam's step that a layer's median weight takes; near 0: it is starved",
    "adam_share_q90_<layer>": "per run: the same of the weight that a tenth of the layer's weights exceeds",
    "value_spread": "per run: standard deviation of members' value distributions at the probe states, their mean",
    "std": "per group: standard deviation over runs of V(s_0), mean over probe states",
    "normalised_std": "per group: std / normalised performance",
    "jensen_gap": "per group: E[max_a Q] - max_a E[Q] over runs, mean over probe states",
    "normalised_jensen_gap": "per group: jensen_gap / normalised performance",
    "member_variance": "over runs: variance of one member of a run around the run's mean",
    "shared_variance": "over runs: variance that all members of a run share",
    "single_variance": "over runs: variance of one member, shared_variance + member_variance",
    "mean_variance": "over runs: variance of the ensemble mean, shared_variance + member_variance / K",
    "member_correlation": "over runs: correlation of two members' errors, shared_variance / single_variance",
    "effective_size": "over runs: single_variance / mean_variance; 1 (identical members) to K (independent ones)",
    "member_correlation_true": "over runs: correlation of two members' errors around the true Q*",
    "effective_size_true": "over runs: mean squared error of one member / that of the ensemble mean, against Q*",
}


@dataclass(frozen=True)
class Ratio:
    """A statistic of a group before and after division by the normalised performance."""

    raw: float
    performance: float  # NaN: no evaluation at this step, or no scores to normalise by
    defined: bool

    @property
    def normalised(self) -> float:
        """NaN where it is not defined."""
        return self.raw / self.performance if self.defined else float("nan")


@dataclass
class Metrics:
    """The tidy table, and what has to be said about it."""

    table: pd.DataFrame
    ratios: int  # of statistics to normalised performance
    undefined: int  # of them, because the performance is not clearly above zero
    unevaluated: int  # of them, because there is no evaluation at that step
    notes: list[str]

    def messages(self) -> list[str]:
        """One line each."""
        said = []
        if self.undefined:
            said.append(
                f"{self.undefined} of {self.ratios} ratios to normalised performance are not defined, because it is "
                "not clearly above zero; left empty"
            )
        if self.unevaluated:
            said.append(
                f"{self.unevaluated} of {self.ratios} ratios to normalised performance are not known, because a run "
                "has no evaluation at that step; left empty"
            )
        return said + self.notes


def state_values(q: np.ndarray) -> np.ndarray:
    """V(s_0) = max_a mean_k Q_k(s_0, a), from q [..., P, K, A]."""
    return q.mean(-2).max(-1)


def value_std(q: np.ndarray) -> float:
    """Standard deviation over runs (with R - 1) of V(s_0), mean over states; q [R, P, K, A], R > 1."""
    return float(state_values(q).std(axis=0, ddof=1).mean())


def jensen_gap(q: np.ndarray) -> float:
    """E_runs[max_a Q(s_0, a)] - max_a E_runs[Q(s_0, a)] with Q the ensemble mean, mean over states; q [R, P, K, A].

    The expectations are means over the R runs, as in the paper: never negative, and an underestimate of the gap of
    infinitely many runs, because max_a of a mean over few runs is itself too high. Compare equal R only.
    """
    mean_q = q.mean(-2)  # [R, P, A]
    gap = mean_q.max(-1).mean(0) - mean_q.mean(0).max(-1)
    return float(np.maximum(gap, 0).mean())  # below zero by rounding only


def clearly_positive(scores: np.ndarray) -> bool:
    """Whether the 95% interval of the mean (Student's t over the runs) lies above zero."""
    count = len(scores)
    if count < 2 or not np.isfinite(scores).all():
        return False
    return bool(student_interval(scores)[0] > 0)


def student_interval(numbers: np.ndarray) -> tuple[float, float]:
    """95%, of the mean of 2 numbers or more."""
    mean, error = numbers.mean(), numbers.std(ddof=1) / np.sqrt(len(numbers))
    reach = _student(len(numbers) - 1) * error
    return float(mean - reach), float(mean + reach)


@cache
def _student(freedom: int) -> float:
    """The 97.5% quantile of Student's distribution."""
    from scipy.special import stdtrit  # scipy.stats takes six times as long to import

    return float(stdtrit(freedom, 0.975))


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
    a bias that all runs have is not in it. `around_truth` is for where Q* is known.
    """

    members: int
    member_variance: float
    mean_variance: float

    @classmethod
    def of(cls, q: np.ndarray) -> "Decomposition":
        """From q [R, P, K, A] with K > 1; mean_variance is NaN for R = 1."""
        runs, _, members, _ = q.shape
        mean_q = q.mean(2)
        within = float(q.var(axis=2, ddof=1).mean())
        between = float(mean_q.var(axis=0, ddof=1).mean()) if runs > 1 else float("nan")
        return cls(members, within, between)

    @classmethod
    def with_log_ratio(cls, members: int, log_ratio: float) -> "Decomposition":
        """One of this log_ratio, so of its correlation and effective size; of any scale that does not overflow."""
        return cls(members, members * math.exp(min(-log_ratio, 0.0)), math.exp(min(log_ratio, 0.0)))

    @property
    def log_ratio(self) -> float:
        """log(K mean_variance / member_variance), 0 for independent members; NaN without variance."""
        ratio = _divide(self.members * self.mean_variance, self.member_variance)
        return math.log(ratio) if ratio > 0 else float("nan")

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


def member_pseudovalues(probes: Sequence[np.ndarray]) -> np.ndarray:
    """Numbers [R], one per run, whose mean and spread are those of an ensemble's `log_ratio`; probes: q [R, P, K, A].

    The jackknife's: R L - (R - 1) L_r, with L the mean over probes of the log_ratio of all runs and L_r the same
    without run r. The logarithm makes it symmetric enough for Student's interval of them (Arvesen 1969): in simulated
    studies of 3 to 10 runs it holds the true one in 93 to 97%, in more where 3 runs have few states. Needs R > 2.
    """
    runs = np.arange(len(probes[0]))
    everywhere = np.mean([Decomposition.of(q).log_ratio for q in probes])
    without = [np.mean([Decomposition.of(q[runs != run]).log_ratio for q in probes]) for run in runs]
    return len(runs) * everywhere - (len(runs) - 1) * np.array(without)


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


def ratio(runs: Sequence[Run], step: int, statistic: Callable[[np.ndarray], float]) -> Ratio | None:
    """A statistic of the runs' values at a probe, and the performance it is divided by; None for fewer than 2 runs.

    Runs without a finite probe at this step are left out, also of the performance. Where one of those that are left has
    no evaluation at this step, the performance is not known.
    """
    present = [(run, q) for run in runs if run.probes is not None and (q := run.probes.at(step)) is not None]
    if len(present) < 2:
        return None
    q = _stack([q for _, q in present])
    scores = np.array([run.episode_means["normalised_return"].get(step, np.nan) for run, _ in present], dtype=float)
    return Ratio(statistic(q), float(scores.mean()), clearly_positive(scores))


def split(runs: Sequence[Run]) -> list[list[Run]]:
    """Groups of GROUP_SIZE in the order of seeds, without what is left over; fewer runs are one group."""
    ordered = sorted(runs, key=lambda run: run.seed)
    if len(ordered) < GROUP_SIZE:
        return [ordered]
    return [ordered[i : i + GROUP_SIZE] for i in range(0, len(ordered) - GROUP_SIZE + 1, GROUP_SIZE)]


def area_under_curve(values: pd.Series) -> pd.Series:
    """Mean height of a curve (trapezoids) from its first evaluation up to each step; NaN from a gap in it on."""
    steps, heights = values.index.to_numpy(float), values.to_numpy(float)
    if not len(steps):
        return values.astype(float)
    pieces = np.diff(steps) * (heights[1:] + heights[:-1]) / 2
    area = np.concatenate([heights[:1], np.cumsum(pieces) / np.maximum(steps[1:] - steps[0], 1e-300)])
    return pd.Series(area, index=values.index)


def steps_to_reference(normalised: pd.Series) -> float:
    """The first step at which a normalised curve is at 1 or above; NaN where it never is."""
    reached = normalised.index[normalised >= 1]
    return float(reached[0]) if len(reached) else float("nan")


def average_steps_to_reference(found: RunSet, label: str, envs: Sequence[str]) -> dict[int, float]:
    """By seed: the first step at which the mean normalised return over these environments is at 1 or above.

    The paper's "average human-level performance in 200K (+-100K) interactions". Only steps that the seed's runs have in
    all the environments count, and only seeds with a run in each.
    """
    found_steps = {}
    groups = found.groups()
    by_env = [{run.seed: run for run in groups.get((env, label), [])} for env in envs]
    for seed in sorted(set.intersection(*(set(runs) for runs in by_env))) if by_env else []:
        curves = [runs[seed].episode_means["normalised_return"] for runs in by_env]
        found_steps[seed] = steps_to_reference(pd.concat(curves, axis=1, join="inner").mean(axis=1, skipna=False))
    return found_steps


def compute(found: RunSet, biases: Iterable[str] = tuple(BIASES)) -> Metrics:
    """Every metric of every group of runs."""
    rows: list[tuple[Any, ...]] = []
    tally = {"ratios": 0, "undefined": 0, "unevaluated": 0}
    notes = []
    sizes: dict[str, dict[int, list[str]]] = {env: {} for env in found.envs}
    for (env, label), runs in found.groups().items():
        groups = split(runs)
        for group, step, metric, value, n in [
            *_per_run(runs, list(biases)),
            *_per_group(groups, tally),
            *_over_runs(runs),
        ]:
            rows.append((env, label, group, step, metric, value, n))
        last = max(_probed_steps(runs), default=0)
        sizes[env].setdefault(_probed(groups[0], last), []).append(label)
        left_over = len(runs) - sum(map(len, groups))
        if left_over:
            notes.append(f"{env}, {label}: {left_over} of {len(runs)} runs are in no group of {GROUP_SIZE}")
    for env, by_size in sizes.items():
        spread = {size: labels for size, labels in by_size.items() if size > 1}
        if len(spread) > 1:
            what = "; ".join(f"{size} runs: {', '.join(labels)}" for size, labels in sorted(spread.items()))
            why = "std and gap grow with the number of runs, so at the last probes they are not comparable"
            notes.append(f"{env}: {why} between {what}")
    return Metrics(pd.DataFrame(rows, columns=COLUMNS), **tally, notes=notes)


_Rows = Iterator[tuple[str, int, str, float, int]]  # group, step, metric, value, n


def _per_run(runs: Sequence[Run], biases: Sequence[str]) -> _Rows:
    names = ["return", "normalised_return", "auc", "normalised_auc", *(f"bias_{name}" for name in biases)]
    by_metric: dict[str, dict[int, pd.Series]] = {}

    def add(metric: str, seed: int, values: pd.Series) -> None:
        by_metric.setdefault(metric, {})[seed] = values.astype(float)

    episodes = {}
    for run in runs:
        means = run.episode_means.copy()
        means["auc"] = area_under_curve(means["return"])
        means["normalised_auc"] = area_under_curve(means["normalised_return"])
        episodes[run.seed] = means["episodes"].to_dict()
        for name in names:
            if run.scores is not None or not name.startswith("normalised_"):
                add(name, run.seed, means[name])
        if run.probes is not None and run.probes.true_q is not None:
            error = (state_values(run.probes.q) - run.probes.true_q.max(-1)).mean(-1)
            add("bias_true", run.seed, pd.Series(np.where(np.isfinite(error), error, np.nan), index=run.probes.step))
        watched = run.diagnostics.set_index("step")
        for column in watched:
            add(str(column), run.seed, watched[column][watched.index.isin(means.index) & watched[column].notna()])
        if run.last_evaluation:
            last = [run.last_evaluation]
            add("seconds", run.seed, pd.Series([run.seconds], index=last))
            if run.scores is not None:
                add("steps_to_reference", run.seed, pd.Series([steps_to_reference(means["normalised_return"])], last))
    for metric, by_seed in by_metric.items():
        counted = metric in names
        for seed, values in by_seed.items():
            for step, value in zip(values.index.tolist(), values.tolist(), strict=True):
                yield f"seed_{seed}", step, metric, value, episodes[seed][step] if counted else 1
        table = pd.DataFrame(by_seed)
        if metric == "steps_to_reference" and table.isna().any(axis=None):
            continue  # a mean over the runs that got there would flatter those that did not
        for step, row in zip(table.index.tolist(), table.to_numpy(), strict=True):
            present = row[~np.isnan(row)]
            if len(present):
                yield "mean", step, metric, float(present.mean()), len(present)
                yield "std", step, metric, _sample_std(present), len(present)


def _probed_steps(runs: Iterable[Run]) -> list[int]:
    return sorted({int(step) for run in runs if run.probes is not None for step in run.probes.step})


def _per_group(groups: Sequence[Sequence[Run]], tally: dict[str, int]) -> _Rows:
    statistics = {"std": value_std, "jensen_gap": jensen_gap}
    runs = [run for group in groups for run in group]
    for step in _probed_steps(runs):
        for name, statistic in statistics.items():
            found = [(i, ratio(group, step, statistic), _probed(group, step)) for i, group in enumerate(groups)]
            largest = max(n for _, _, n in found)
            for prefix in ("", "normalised_"):
                if prefix and all(run.scores is None for run in runs):
                    continue
                values = []
                for i, result, n in found:
                    if result is None:
                        continue
                    value = result.normalised if prefix else result.raw
                    if prefix:
                        tally["ratios"] += 1
                        tally["unevaluated"] += bool(np.isnan(result.performance))
                        tally["undefined"] += not (result.defined or np.isnan(result.performance))
                    yield f"group_{i}", step, prefix + name, value, n
                    if n == largest and not np.isnan(value):  # statistics of fewer runs are not comparable
                        values.append(value)
                if values:
                    yield "mean", step, prefix + name, float(np.mean(values)), len(values)
                    yield "std", step, prefix + name, _sample_std(np.array(values)), len(values)


def _probed(runs: Iterable[Run], step: int) -> int:
    return sum(run.probes is not None and run.probes.at(step) is not None for run in runs)


def _over_runs(runs: Sequence[Run]) -> _Rows:
    if any(run.probes is not None and run.probes.q.shape[2] < 2 for run in runs):
        return  # one member has nothing to be split
    for step in _probed_steps(runs):
        present = [(run, q) for run in runs if run.probes is not None and (q := run.probes.at(step)) is not None]
        if not present:
            continue
        q, n = _stack([q for _, q in present]), len(present)
        parts = Decomposition.of(q)
        yield "all", step, "member_variance", parts.member_variance, n
        if n > 1:
            yield "all", step, "shared_variance", parts.shared_variance, n
            yield "all", step, "single_variance", parts.single_variance, n
            yield "all", step, "mean_variance", parts.mean_variance, n
            yield "all", step, "member_correlation", parts.correlation, n
            yield "all", step, "effective_size", parts.effective_size, n
        truth = present[0][0].probes
        if truth is not None and truth.true_q is not None:
            correlation, size = around_truth(q, truth.true_q)
            yield "all", step, "member_correlation_true", correlation, n
            yield "all", step, "effective_size_true", size, n


def _stack(values: Sequence[np.ndarray]) -> np.ndarray:
    """[R, P, K, A]; the runs of a label have one configuration, so this fails only for files that contradict it."""
    shapes = {q.shape for q in values}
    if len(shapes) > 1:
        raise AnalysisError(f"probes of runs with one configuration have different shapes: {sorted(shapes)}")
    return np.stack(values)


def _sample_std(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else float("nan")


def _divide(numerator: float, denominator: float) -> float:
    """NaN where nothing can be divided: a variance of zero, or one that is not known."""
    return numerator / denominator if denominator > 0 else float("nan")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    assert __doc__
    parser = argparse.ArgumentParser(prog="python -m analysis.metrics", description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="directories with runs anywhere below, e.g. runs/techniques")
    parser.add_argument("--out", type=Path, help="a CSV file; otherwise the table is printed")
    parser.add_argument(
        "--bias",
        choices=[*BIASES, "all"],
        default=DEFAULT_BIAS,
        help="the discounted return that values are compared with: of rewards as learned from (clipped; the paper's), "
        "as the game gives them (unclipped), or as learned from up to the first loss of life (first_life)",
    )
    options = parser.parse_args(arguments)
    try:
        found = read_runs(options.runs)
        metrics = compute(found, BIASES if options.bias == "all" else [options.bias])
    except AnalysisError as error:
        sys.exit(f"analysis: {error}")
    say([*found.messages(), *metrics.messages()])
    text = metrics.table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    if options.out is None:
        sys.stdout.write(text)
    else:
        write_out(options.out, text)
        print(f"{options.out}: {len(metrics.table)} rows of {metrics.table['metric'].nunique()} metrics")


if __name__ == "__main__":
    main()
