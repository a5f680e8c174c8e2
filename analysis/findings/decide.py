"""What the paper concludes, each supported, refuted or not decidable from the runs at hand.

    python -m analysis.findings runs/target_network
    python -m analysis.findings runs/sampling --compare ens_dqn meanq__priorities=shared    # by the same rules

How it is decided, by rules that do not depend on the runs at hand:

Methods     A method is the label that is called like its algorithm (`dqn`); or else the only label whose configured
            algorithm it is. Two methods are compared in an environment where both have 3 runs or more (std and gap: 4)
            of one and the same length that were evaluated to the end. Runs that were not are left out, and said.
Windows     late: the last quarter of training, steps > 3/4; early: the first quarter, steps <= 1/4. Means over the
            evaluations, or over the probes, in it.
Numbers     return: normalised return. bias: |mean over runs of the bias|, in the unit of `--bias`. std, gap: the
            normalised standard deviation and Jensen gap over all runs (as many of both methods; those with the lowest
            seeds), at the probes where the normalised performance of both is clearly above zero (analysis.metrics).
            correlation: of members' errors, as log(1 + K c / (1 - c)), which rises with the correlation c and of which
            the jackknife has numbers per run (analysis.metrics, `member_pseudovalues`); of ensembles of one size.
            It is freed of the bias of few runs, which the estimates in tables have.
            member variance: the logarithm of the variance between the members of a run, mean over late probes.
Difference  bias, std, gap: (A - B) / (A + B), which is between -1 and 1, for they are never negative, so that no
            environment outweighs the others by its unit. Others: A - B. Then the mean over environments.
Interval    95%, percentiles of the difference of numbers drawn for each environment and method by itself, seeded.
            std, gap: a bootstrap over runs. Others: a mean over runs is drawn from Student's distribution around it
            (the interval of Behrens and Fisher, which neither takes the spreads of two methods for equal nor ends
            where the runs do).
Comparison  supported: the whole interval is on the claimed side of zero. refuted: on the other side; here, of an
            interval of 100% - 5% / m, m the number of the finding's comparisons, because one of them is enough to
            refute it by chance. not decidable: neither, or nothing can be compared.
Finding     supported: each of its comparisons is. refuted: one of them is. Otherwise not decidable.

`FINDINGS` lists the comparisons of F2 to F8. F1 has a rule of its own: `correlation_of_std_and_gap`.
"""

import argparse
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.console import say, write_out
from analysis.metrics.compute import (
    DEFAULT_BIAS,
    Decomposition,
    clearly_positive,
    jensen_gap,
    member_pseudovalues,
    value_std,
)
from analysis.runs import BIASES, AnalysisError, Run, RunSet, read_runs

SUPPORTED, REFUTED, UNDECIDED = "supported", "refuted", "not decidable"
LEAST_RUNS = 3
LEAST_RUNS_FOR_SPREAD = 4  # every ninth resample of 3 runs is one run three times, which has no spread
SPREADS = ("std", "gap")
OF_MEMBERS = ("correlation", "member_variance")
COMPARED = ("return", "bias", *SPREADS, *OF_MEMBERS)
LEAST_METHODS = 5  # four can be paired in 24 ways only, so 2.5% cannot be reached
REPETITIONS = 5000  # of a bootstrap, and pairings
DRAWS = 100_000  # of a mean; they cost nothing, and the ends of strict intervals are far out
LATE, EARLY = 3 / 4, 1 / 4


@dataclass(frozen=True)
class Claim:
    """That a number of method A is higher, or lower, than that of method B."""

    metric: str  # early_return, or one of COMPARED
    a: str
    relation: str  # above, below
    b: str
    of_labels: bool = False  # a and b are labels as they stand, not names of methods

    def __str__(self) -> str:
        return f"{self.metric.replace('_', ' ')} of {self.a} {self.relation} {self.b}"


def _claims(metric_relations: str, a: str, b: str) -> list[Claim]:
    """'return+ std-': the return of a is above that of b, the std below."""
    relations = {"+": "above", "-": "below"}
    return [Claim(item[:-1], a, relations[item[-1]], b) for item in metric_relations.split()]


FINDINGS: dict[str, tuple[str, list[Claim]]] = {
    "F2": (
        "A target network lowers DQN's bias and variance.",
        _claims("bias- std-", "dqn", "dqn_no_target"),
    ),
    "F3": (
        "MeanQ beats DQN with and without a target network, with lower variance, gap and bias.",
        [
            *_claims("return+ std- gap- bias-", "meanq", "dqn"),
            *_claims("return+ std- gap- bias-", "meanq_no_target", "dqn_no_target"),
        ],
    ),
    "F4": (
        "Without a target network MeanQ starts a little worse than with one, and then overtakes it.",
        _claims("early_return- return+", "meanq_no_target", "meanq"),
    ),
    "F5": (
        "Avg-DQN and Ens-DQN lower variance and bias against DQN without a matching gain in return: less than MeanQ's.",
        [
            *_claims("std- bias-", "avg_dqn", "dqn"),
            *_claims("return-", "avg_dqn", "meanq"),
            *_claims("std- bias-", "ens_dqn", "dqn"),
            *_claims("return-", "ens_dqn", "meanq"),
        ],
    ),
    "F6": (
        "MeanQ beats Ens-DQN on return, standard deviation and gap.",
        _claims("return+ std- gap-", "meanq", "ens_dqn"),
    ),
    "F7": (
        "Neither a larger model nor more updates explain it, nor both: each stays below MeanQ's return.",
        [
            *_claims("return-", "rainbow_large", "meanq_rainbow"),
            *_claims("return-", "rainbow_more_updates", "meanq_rainbow"),
            *_claims("return-", "rainbow_large_more_updates", "meanq_rainbow"),
        ],
    ),
    "F8": (
        "Members that share minibatches (Ens-DQN) correlate more than MeanQ's: expected by the paper, not measured.",
        _claims("correlation-", "meanq", "ens_dqn"),
    ),
}


@dataclass
class Result:
    """A comparison, and the numbers behind it."""

    claim: str
    verdict: str
    difference: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    details: list[str] = field(default_factory=list)  # by environment: numbers, or why it is left out

    def __str__(self) -> str:
        number = "" if np.isnan(self.difference) else f" {self.difference:+.3f}"
        interval = "" if np.isnan(self.low) else f" [{self.low:+.3f}, {self.high:+.3f}]"
        return f"{self.claim}: {self.verdict}{number}{interval}"


@dataclass
class Finding:
    """One conclusion of the paper, and what the runs say about it."""

    name: str
    statement: str
    results: list[Result]

    @property
    def verdict(self) -> str:
        """By the rule above."""
        verdicts = {result.verdict for result in self.results}
        if REFUTED in verdicts:
            return REFUTED
        return SUPPORTED if verdicts == {SUPPORTED} else UNDECIDED


class Sample:
    """The runs of a method in an environment that were evaluated to the end."""

    def __init__(self, env: str, label: str, runs: Sequence[Run], bias: str, seed: int) -> None:
        self.env, self.label, self._bias = env, label, bias
        self.steps = min(run.total_steps for run in runs)
        self.runs = [run for run in runs if self._complete(run)]
        self._seed = [seed, zlib.crc32(f"{env}/{label}".encode())]  # of its own, so that methods are independent
        self._resampled: dict[tuple[str, int, tuple[int, ...]], np.ndarray] = {}

    def _complete(self, run: Run) -> bool:
        means = run.episode_means
        columns = [self._bias_column, *(["normalised_return"] if run.scores else [])]
        return self.steps in means.index and bool(np.isfinite(means[columns].to_numpy()).all())

    @property
    def _bias_column(self) -> str:
        return f"bias_{self._bias}"

    @property
    def scored(self) -> bool:
        """Whether returns can be normalised."""
        return all(run.scores is not None for run in self.runs)

    @property
    def probed_states(self) -> set[tuple[object, ...]]:
        """What has to agree for std and gap to be comparable."""
        return {
            ((run.config.get("probe") or {}).get("seed"), run.probes.q.shape[1], run.probes.q.shape[3])
            for run in self.runs
            if run.probes is not None
        }

    def _window(self, column: str, early: bool = False) -> np.ndarray:
        means = [run.episode_means[column] for run in self.runs]
        inside = [m[m.index <= EARLY * self.steps] if early else m[m.index > LATE * self.steps] for m in means]
        return np.array([m.mean() for m in inside])

    @cached_property
    def by_run(self) -> dict[str, np.ndarray]:
        """Numbers [R] whose mean over runs counts, late or early; NaN where there is no evaluation so early."""
        return {
            "return": self._window("normalised_return"),
            "early_return": self._window("normalised_return", early=True),
            "bias": self._window(self._bias_column),
            **self._of_members(),
        }

    def _of_members(self) -> dict[str, np.ndarray]:
        """NaN where nothing says how members vary."""
        if not self.probed or self.members < 2 or len(self.runs) < LEAST_RUNS:
            return dict.fromkeys(OF_MEMBERS, np.full(len(self.runs), np.nan))
        probes = [self._q(step, len(self.runs)) for step in self.probed]
        variance = np.mean([q.var(axis=2, ddof=1).mean(axis=(1, 2)) for q in probes], axis=0)
        logarithm = np.log(variance, where=variance > 0, out=np.full(len(variance), np.nan))
        return {"correlation": member_pseudovalues(probes), "member_variance": logarithm}

    @property
    def members(self) -> int:
        """The ensemble's size; 0 where nothing was probed."""
        return next((run.probes.q.shape[2] for run in self.runs if run.probes is not None), 0)

    @cached_property
    def probed(self) -> list[int]:
        """The late steps at which every run has a finite probe."""
        if not self.runs or any(run.probes is None for run in self.runs):
            return []
        steps = {int(step) for run in self.runs if run.probes is not None for step in run.probes.step}
        return sorted(
            step
            for step in steps
            if step > LATE * self.steps
            and all(run.probes is not None and run.probes.at(step) is not None for run in self.runs)
        )

    def _q(self, step: int, count: int) -> np.ndarray:
        """Values [R, P, K, A] of the first runs."""
        found = [run.probes.at(step) for run in self.runs[:count] if run.probes is not None]
        return np.stack([q for q in found if q is not None])

    def mean_q(self, step: int, count: int) -> np.ndarray:
        """Ensemble means [R, P, A] of the first runs."""
        return self._q(step, count).mean(2)

    def performance(self, step: int, count: int) -> np.ndarray:
        """Normalised returns [R] of the first runs."""
        values = [run.episode_means["normalised_return"].get(step, np.nan) for run in self.runs[:count]]
        return np.array(values, dtype=float)

    def of_half(self, statistic: Callable[[np.ndarray], float], half: int, count: int) -> float:
        """A statistic of every other one of the first `count` runs, not normalised, mean over the late probes."""
        runs = self.runs[:count][half::2]
        found = []
        for step in self.probed:
            q = [run.probes.at(step) for run in runs if run.probes is not None]
            found.append(statistic(np.stack([values for values in q if values is not None])))
        return float(np.mean(found))

    def defined(self, count: int) -> list[int]:
        """The late probes at which the performance is clearly above zero."""
        return [step for step in self.probed if clearly_positive(self.performance(step, count))]

    def mean(self, metric: str) -> float:
        """A return or bias: its mean over all runs."""
        return float(_sized(metric, self.by_run[metric].mean()))

    def drawn_means(self, metric: str) -> np.ndarray:
        """What that mean may be: [DRAWS]."""
        generator = np.random.default_rng([*self._seed, zlib.crc32(metric.encode())])
        return _sized(metric, draw_means(self.by_run[metric], generator))

    def spread(self, metric: str, count: int, steps: Sequence[int]) -> float:
        """A std or gap of the first `count` runs."""
        return float(self._spreads(metric, np.full((1, count), 1 / count), steps)[0])

    def resamples(self, count: int) -> np.ndarray:
        """Indices [REPETITIONS, count] of runs, drawn with replacement from the first `count`."""
        return np.random.default_rng([*self._seed, count]).integers(0, count, (REPETITIONS, count))

    def resampled_spreads(self, metric: str, count: int, steps: Sequence[int]) -> np.ndarray:
        """The std or gap of each resample."""
        key = (metric, count, tuple(steps))
        if key not in self._resampled:
            weights = (self.resamples(count)[:, :, None] == np.arange(count)).mean(1)  # how often each run was drawn
            self._resampled[key] = self._spreads(metric, weights, steps)
        return self._resampled[key]

    def _spreads(self, metric: str, weights: np.ndarray, steps: Sequence[int]) -> np.ndarray:
        """For weights [B, R] of runs, which add up to one: numbers [B]."""
        count = weights.shape[1]
        found = []
        for step in steps:
            q = self.mean_q(step, count)  # [R, P, A]
            numbers = _weighted_std(q, weights) if metric.endswith("std") else _weighted_gap(q, weights)
            if not metric.startswith("raw_"):
                performance = weights @ self.performance(step, count)
                numbers = np.where(performance > 0, numbers / np.where(performance > 0, performance, 1), np.nan)
            found.append(numbers)
        return np.mean(found, axis=0)


def draw_means(numbers: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """What the mean behind these numbers may be: [DRAWS], from Student's distribution around their own."""
    error = numbers.std(ddof=1) / np.sqrt(len(numbers))
    return numbers.mean() + error * generator.standard_t(len(numbers) - 1, DRAWS)


def _sized(metric: str, means: np.ndarray) -> np.ndarray:
    """Of a bias its size counts, over or under."""
    return np.abs(means) if metric == "bias" else means


def _weighted_std(q: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """analysis.metrics.value_std of runs drawn with these weights: q [R, P, A], weights [B, R] -> [B]."""
    values = q.max(-1)
    values = values - values.mean(0)  # so that squares do not swallow differences
    count = len(q)
    variance = (weights @ values**2 - (weights @ values) ** 2) * count / (count - 1)
    return np.sqrt(np.maximum(variance, 0)).mean(-1)


def _weighted_gap(q: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """analysis.metrics.jensen_gap of runs drawn with these weights: q [R, P, A], weights [B, R] -> [B]."""
    highest = weights @ q[..., 0]  # action by action, which is eight times as fast as a maximum over a short last axis
    for action in range(1, q.shape[-1]):
        np.maximum(highest, weights @ q[..., action], out=highest)
    return (weights @ q.max(-1) - highest).mean(-1)


class Evidence:
    """The samples of all methods in all environments."""

    def __init__(self, found: RunSet, bias: str = DEFAULT_BIAS, seed: int = 0) -> None:
        self.notes: list[str] = []
        self.samples: dict[tuple[str, str], Sample] = {}
        for (env, label), runs in found.groups().items():
            sample = Sample(env, label, runs, bias, seed)
            self.samples[env, label] = sample
            out = sorted({run.seed for run in runs} - {run.seed for run in sample.runs})
            if out:
                which = ", ".join(map(str, out))
                self.notes.append(
                    f"{env}, {label}: seed {which} left out: not evaluated to step {sample.steps}, or NaN"
                )
        self.envs = found.envs
        self._labels: dict[str, dict[str, str]] = {env: {} for env in found.envs}
        for (env, label), runs in found.groups().items():
            self._labels[env][label] = runs[0].algo

    def find(self, env: str, method: str, least: int, of_labels: bool = False) -> tuple[Sample | None, str]:
        """The sample of a method, or of a label as it stands; or None and why not."""
        labels = self._labels[env]
        named = [label for label, algo in labels.items() if (label if of_labels else algo) == method]
        chosen = [method] if method in named else named
        if not chosen:
            return None, f"no {method}"
        if len(chosen) > 1:
            return None, f"several labels of {method} ({', '.join(chosen)})"
        sample = self.samples[env, chosen[0]]
        if len(sample.runs) < least:
            return None, f"{len(sample.runs)} complete runs of {method} where {least} are needed"
        return sample, ""


def examine(evidence: Evidence, claim: Claim, claims: int) -> Result:
    """Compare two methods in every environment that has both; `claims`: how many comparisons the finding has."""
    details, points, drawn = [], [], []
    spread = claim.metric in SPREADS
    least = LEAST_RUNS_FOR_SPREAD if spread else LEAST_RUNS
    for env in evidence.envs:
        a, why_a = evidence.find(env, claim.a, least, claim.of_labels)
        b, why_b = evidence.find(env, claim.b, least, claim.of_labels)
        if a is None or b is None:
            details.append(f"{env}: left out, {'; '.join(why for why in (why_a, why_b) if why)}")
            continue
        count, steps, why = _comparable(a, b, claim.metric)
        if why:
            details.append(f"{env}: left out, {why}")
            continue
        if spread:
            values = [sample.spread(claim.metric, count, steps) for sample in (a, b)]
            draws = [sample.resampled_spreads(claim.metric, count, steps) for sample in (a, b)]
        else:
            values = [sample.mean(claim.metric) for sample in (a, b)]
            draws = [sample.drawn_means(claim.metric) for sample in (a, b)]
        difference = _relative if spread or claim.metric == "bias" else _subtract
        points.append(difference(np.array(values[0]), np.array(values[1])))
        drawn.append(difference(draws[0], draws[1]))
        counts = (count, count) if spread else (len(a.runs), len(b.runs))
        text = f"{env}: {values[0]:.3f} ({counts[0]} runs) against {values[1]:.3f} ({counts[1]} runs)"
        if claim.metric == "correlation":
            plain = [Decomposition.with_log_ratio(a.members, float(value)).correlation for value in values]
            text += f"; as correlations: {plain[0]:.3f} against {plain[1]:.3f}"
        if claim.metric == "member_variance":
            text += f"; as variances: {np.exp(values[0]):.4g} against {np.exp(values[1]):.4g}"
        if spread:
            raw = [sample.spread(f"raw_{claim.metric}", count, steps) for sample in (a, b)]
            text += f"; not normalised: {raw[0]:.4f} against {raw[1]:.4f}"
        details.append(text)
    sign = 1 if claim.relation == "above" else -1
    return judge(str(claim), points, drawn, sign, details, claims)


def correlation_of_std_and_gap(evidence: Evidence, seed: int = 0) -> Result:
    """F1: Spearman's correlation of std and gap across the methods of an environment, mean over environments.

    All labels with 4 runs or more count, where there are at least 5 of one length and with the same probe states. Two
    things would make std and gap correlate where methods do not differ at all, and are avoided: dividing both by one
    performance (so they are NOT normalised here), and measuring both from the same runs (so one half of a method's
    runs gives its std, the other half its gap, and the other way round; the mean of the two correlations counts).

    supported, refuted: at most 2.5% of random pairings of the methods' stds with the methods' gaps have a mean
    correlation as high, or as low, as the true pairing. That share is the `p` in the details. A method is paired with
    the same one in all environments: what its std and gap are like persists from one to the next, so that
    environments are not independent.
    """
    result = Result("rank correlation of std and gap across methods above 0", UNDECIDED)
    measured: list[np.ndarray] = []  # by environment: [std or gap, half, method]
    methods: list[list[str]] = []
    for env in evidence.envs:
        samples = [
            sample
            for (e, _), sample in evidence.samples.items()
            if e == env and len(sample.runs) >= LEAST_RUNS_FOR_SPREAD and sample.probed
        ]
        why = ""
        if len(samples) < LEAST_METHODS:
            why = f"{len(samples)} methods where {LEAST_METHODS} are needed"
        elif len({frozenset(sample.probed_states) for sample in samples}) > 1:
            why = "different probe states"
        elif len({sample.steps for sample in samples}) > 1:
            why = f"runs of {' and of '.join(map(str, sorted({sample.steps for sample in samples})))} steps"
        if why:
            result.details.append(f"{env}: left out, {why}")
            continue
        methods.append([sample.label for sample in samples])
        count = min(len(sample.runs) for sample in samples)
        measured.append(
            np.array(
                [[[s.of_half(f, half, count) for s in samples] for half in (0, 1)] for f in (value_std, jensen_gap)]
            )
        )
        pairs = ", ".join(f"{s.label} {x:.3f} {y:.4f}" for s, x, y in zip(samples, *measured[-1].mean(1), strict=True))
        correlation = _cross_correlation(measured[-1], np.arange(len(samples))[None])[0]
        result.details.append(f"{env}: {correlation:+.3f} ({count} runs each; std, gap: {pairs})")
    if measured:
        result.difference, above, below = pairing_test(measured, methods, seed)
        result.verdict = SUPPORTED if above <= 0.025 else REFUTED if below <= 0.025 else UNDECIDED
        result.details.append(f"p = {above:.4f} (as high by chance), {below:.4f} (as low by chance)")
    return result


def pairing_test(
    measured: Sequence[np.ndarray], methods: Sequence[Sequence[str]], seed: int = 0
) -> tuple[float, float, float]:
    """Mean correlation over environments, and the shares of random pairings that are as high and as low.

    measured: by environment, [std or gap, half of the runs, method]; methods: their names.
    """
    names = sorted({name for here in methods for name in here})
    keys = np.random.default_rng(seed).random((REPETITIONS, len(names)))  # games with the same methods pair them alike
    true, random = [], []
    for values, here in zip(measured, methods, strict=True):
        orders = keys[:, [names.index(name) for name in here]].argsort(axis=1)
        true.append(_cross_correlation(values, np.arange(len(here))[None])[0])
        random.append(_cross_correlation(values, orders))
    found, by_chance = float(np.mean(true)), np.mean(random, axis=0)
    slack = 1e-9  # equal but for rounding
    above, below = (by_chance >= found - slack).sum(), (by_chance <= found + slack).sum()
    return found, float((above + 1) / (REPETITIONS + 1)), float((below + 1) / (REPETITIONS + 1))


def _cross_correlation(values: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """Of stds of one half with gaps of the other, both ways; values [2, 2, M], orders [B, M] of the gaps -> [B]."""
    std, gap = values
    both = [_spearman(np.broadcast_to(std[half], orders.shape), gap[1 - half][orders]) for half in (0, 1)]
    return np.mean(both, axis=0)


def decide(found: RunSet, bias: str = DEFAULT_BIAS, seed: int = 0) -> tuple[list[Finding], list[str]]:
    """All findings, and what has to be said about the runs."""
    evidence = Evidence(found, bias, seed)
    statement = "Standard deviation and Jensen gap are positively correlated across methods."
    findings = [Finding("F1", statement, [correlation_of_std_and_gap(evidence, seed)])]
    for name, (text, claims) in FINDINGS.items():
        findings.append(Finding(name, text, [examine(evidence, claim, len(claims)) for claim in claims]))
    return findings, evidence.notes


def compare(found: RunSet, a: str, b: str, bias: str = DEFAULT_BIAS, seed: int = 0) -> tuple[list[Result], list[str]]:
    """Two labels, by the rules above: a result per number, and what has to be said about the runs."""
    labels = sorted({run.label for run in found.runs})
    for name in (a, b):
        if name not in labels:
            raise AnalysisError(f"--compare {name}: no such label; there are {', '.join(labels)}")
    evidence = Evidence(found, bias, seed)
    results = [examine(evidence, Claim(metric, a, "above", b, of_labels=True), 1) for metric in COMPARED]
    words = {SUPPORTED: "higher", REFUTED: "lower", UNDECIDED: "not told apart"}
    for metric, result in zip(COMPARED, results, strict=True):
        result.claim, result.verdict = metric.replace("_", " "), words[result.verdict]
    return results, evidence.notes


def as_table(findings: Iterable[Finding]) -> pd.DataFrame:
    """One row per comparison."""
    rows = [
        (f.name, f.statement, f.verdict, r.claim, r.verdict, r.difference, r.low, r.high, " | ".join(r.details))
        for f in findings
        for r in f.results
    ]
    columns = [
        "finding",
        "statement",
        "finding_verdict",
        "comparison",
        "verdict",
        "difference",
        "low",
        "high",
        "details",
    ]
    return pd.DataFrame(rows, columns=columns)


def _comparable(a: Sample, b: Sample, metric: str) -> tuple[int, list[int], str]:
    """(runs of each for std and gap, late probes, why not)."""
    if a.steps != b.steps:
        return 0, [], f"runs of {a.steps} and of {b.steps} steps"
    if metric not in ("bias", *OF_MEMBERS) and not (a.scored and b.scored):
        return 0, [], "no scores to normalise by"
    if metric == "early_return" and not np.isfinite([*a.by_run[metric], *b.by_run[metric]]).all():
        return 0, [], f"no evaluation in the first {EARLY * a.steps:.0f} steps"
    if metric not in (*SPREADS, *OF_MEMBERS):
        return 0, [], ""
    if not a.probed or not b.probed:
        return 0, [], "no probes late in training"
    if a.probed_states != b.probed_states or len(a.probed_states) > 1:
        return 0, [], "different probe states"
    if metric in OF_MEMBERS:
        if metric == "correlation" and a.members != b.members:
            return 0, [], f"ensembles of {a.members} and of {b.members}"
        if min(a.members, b.members) < 2:
            return 0, [], "one member only"
        finite = np.isfinite([*a.by_run[metric], *b.by_run[metric]]).all()
        return 0, [], "" if finite else "members that do not differ"
    count = min(len(a.runs), len(b.runs))
    steps = sorted(set(a.defined(count)) & set(b.defined(count)))
    return count, steps, "" if steps else "normalised performance not clearly above zero"


def judge(
    claim: str,
    points: Sequence[np.ndarray],
    draws: Sequence[np.ndarray],
    sign: int,
    details: list[str],
    claims: int = 1,
) -> Result:
    """From differences and drawn differences by environment; sign: which side of zero is claimed."""
    if not points:
        return Result(claim, UNDECIDED, details=details)
    difference, drawn = float(np.mean(points)), np.mean(draws, axis=0)
    undefined = np.isnan(drawn).mean()
    if undefined > 0.05:
        details.append(f"{undefined:.0%} of the resamples have no defined ratio")
        return Result(claim, UNDECIDED, difference, details=details)
    tail, firm_tail = 0.025, 0.025 / claims
    low, high, firm_low, firm_high = np.nanquantile(drawn, [tail, 1 - tail, firm_tail, 1 - firm_tail])
    verdict = UNDECIDED
    if (low if sign > 0 else -high) > 0:
        verdict = SUPPORTED
    elif (firm_high if sign > 0 else -firm_low) < 0:
        verdict = REFUTED
    return Result(claim, verdict, difference, float(low), float(high), details)


def _subtract(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a - b


def _relative(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Between -1 and 1; 0 where both are 0."""
    return (a - b) / np.where(a + b == 0, 1, a + b)


def _spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of each row; x, y [B, methods]. 0 where one of them has no order."""
    ranks = [pd.DataFrame(values).rank(axis=1).to_numpy() for values in (x, y)]
    a, b = (rank - rank.mean(1, keepdims=True) for rank in ranks)
    scale = np.sqrt((a**2).sum(1) * (b**2).sum(1))
    return (a * b).sum(1) / np.where(scale == 0, 1, scale)


def _print(results: Iterable[Result]) -> None:
    for result in results:
        print(f"   {result}")
        for detail in result.details:
            print(f"      {detail}")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    assert __doc__
    parser = argparse.ArgumentParser(
        prog="python -m analysis.findings",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", type=Path, nargs="+", help="directories with runs anywhere below")
    parser.add_argument("--bias", choices=list(BIASES), default=DEFAULT_BIAS, help="see analysis.metrics (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="a CSV file, one row per comparison")
    parser.add_argument("--compare", nargs=2, metavar=("A", "B"), help="two labels, instead of the paper's conclusions")
    options = parser.parse_args(arguments)
    if options.compare and options.out:
        parser.error("--out is for the paper's conclusions: leave it, or --compare, out")
    if options.seed < 0:
        parser.error(f"--seed {options.seed}: write 0 or more")
    try:
        found = read_runs(options.runs)
        if options.compare:
            a, b = options.compare
            compared, notes = compare(found, a, b, options.bias, options.seed)
            say([*found.messages(), *notes])
            print(f"{a} against {b}, late in training; differences with 95% intervals")
            _print(compared)
            return
    except AnalysisError as error:
        sys.exit(f"analysis: {error}")
    findings, notes = decide(found, options.bias, options.seed)
    say([*found.messages(), *notes])
    for finding in findings:
        print(f"{finding.name} {finding.verdict}: {finding.statement}")
        _print(finding.results)
    if options.out is not None:
        write_out(options.out, as_table(findings).to_csv(index=False, float_format="%.6g", lineterminator="\n"))


if __name__ == "__main__":
    main()
