"""Compare methods and decide findings, by the rules in analysis/findings/claims.py."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import pandas as pd

from analysis.findings import claims
from analysis.findings.claims import OF_MEMBERS, REFUTED, SPREADS, SUPPORTED, UNDECIDED, Claim
from analysis.findings.correlation import comparable_methods, pairing_test, std_and_gap, true_correlation
from analysis.findings.sample import NotComparable, Sample, pair
from analysis.intervals import LEAST_RUNS
from analysis.runs import AnalysisError, RunSet
from meanq.metrics.definitions import DEFAULT_BIAS, Decomposition

TAIL = 0.025  # of a 95% interval, and of random pairings
NAN = float("nan")

Evidence = dict[str, list[Sample]]  # the samples of all methods, by environment


@dataclass
class Result:
    """A comparison, and the numbers behind it."""

    claim: str
    verdict: str = UNDECIDED
    difference: float = NAN
    low: float = NAN
    high: float = NAN
    details: list[str] = field(default_factory=list)  # by environment: numbers, or why it is left out

    def __str__(self) -> str:
        number = "" if np.isnan(self.difference) else f" {self.difference:+.3f}"
        interval = "" if np.isnan(self.low) else f" [{self.low:+.3f}, {self.high:+.3f}]"
        return f"{self.claim}: {self.verdict}{number}{interval}"


@dataclass
class Finding:
    """One conclusion of the paper, and its comparisons."""

    name: str
    statement: str
    results: list[Result]

    @property
    def verdict(self) -> str:
        """Supported if all comparisons are; refuted if one is."""
        verdicts = {result.verdict for result in self.results}
        if REFUTED in verdicts:
            return REFUTED
        return SUPPORTED if verdicts == {SUPPORTED} else UNDECIDED


def decide(found: RunSet, bias: str = DEFAULT_BIAS) -> tuple[list[Finding], list[str]]:
    """All findings, and notes on runs that are left out."""
    evidence, notes = take_samples(found, bias)
    findings = [Finding("F1", claims.CORRELATION, [correlation_of_std_and_gap(evidence)])]
    for name, (text, made) in claims.FINDINGS.items():
        findings.append(Finding(name, text, [examine(evidence, claim, len(made)) for claim in made]))
    return findings, notes


def compare(found: RunSet, a: str, b: str, bias: str = DEFAULT_BIAS) -> tuple[list[Result], list[str]]:
    """Compare two labels by the same rules: a result per metric, and notes on runs that are left out."""
    for name in (a, b):
        if name not in found.labels:
            raise AnalysisError(f"--compare {name}: no such label; there are {', '.join(found.labels)}")
    evidence, notes = take_samples(found, bias)
    words = {SUPPORTED: "higher", REFUTED: "lower", UNDECIDED: "not told apart"}
    results = []
    for metric in claims.COMPARED:
        result = examine(evidence, Claim(metric, a, "above", b, of_labels=True), 1)
        result.claim, result.verdict = metric.replace("_", " "), words[result.verdict]
        results.append(result)
    return results, notes


def take_samples(found: RunSet, bias: str = DEFAULT_BIAS) -> tuple[Evidence, list[str]]:
    """The samples by environment, and notes on the runs that no comparison uses."""
    samples = [Sample(env, label, runs, bias) for (env, label), runs in found.groups().items()]
    notes = [
        f"{s.env}, {s.label}: seed {', '.join(map(str, s.left_out))} left out: not evaluated to step {s.steps}, or NaN"
        for s in samples
        if s.left_out
    ]
    return {env: list(here) for env, here in groupby(samples, lambda sample: sample.env)}, notes


def as_table(findings: Iterable[Finding]) -> pd.DataFrame:
    """One row per comparison."""
    rows = []
    for finding in findings:
        about = {"finding": finding.name, "statement": finding.statement, "finding_verdict": finding.verdict}
        for result in finding.results:
            numbers = {"difference": result.difference, "low": result.low, "high": result.high}
            row = {**about, "comparison": result.claim, "verdict": result.verdict, **numbers}
            rows.append(row | {"details": " | ".join(result.details)})
    return pd.DataFrame(rows)


def correlation_of_std_and_gap(evidence: Evidence) -> Result:
    """F1, by the rule in analysis/findings/correlation.py."""
    result = Result("rank correlation of std and gap across methods above 0")
    measured, methods = list[np.ndarray](), list[list[str]]()
    for env, here in evidence.items():
        try:
            samples = comparable_methods(here)
        except NotComparable as reason:
            result.details.append(f"{env}: left out, {reason}")
            continue
        count = min(len(sample.runs) for sample in samples)
        values, labels = std_and_gap(samples, count), [sample.label for sample in samples]
        measured.append(values)
        methods.append(labels)
        pairs = ", ".join(f"{label} {x:.3f} {y:.4f}" for label, x, y in zip(labels, *values.mean(1), strict=True))
        result.details.append(f"{env}: {true_correlation(values):+.3f} ({count} runs each; std, gap: {pairs})")
    if measured:
        result.difference, above, below = pairing_test(measured, methods)
        result.verdict = SUPPORTED if above <= TAIL else REFUTED if below <= TAIL else UNDECIDED
        result.details.append(f"p = {above:.4f} (as high by chance), {below:.4f} (as low by chance)")
    return result


def examine(evidence: Evidence, claim: Claim, comparisons: int) -> Result:
    """Compare two methods in every environment that has both; `comparisons`: how many the finding has."""
    result, points, draws = Result(str(claim)), [], []
    for env, samples in evidence.items():
        try:
            point, drawn, text = _difference_in(samples, claim)
        except NotComparable as reason:
            result.details.append(f"{env}: left out, {reason}")
            continue
        points.append(point)
        draws.append(drawn)
        result.details.append(f"{env}: {text}")
    if points:
        result.difference = float(np.mean(points))
        judge(result, np.mean(draws, axis=0), 1 if claim.relation == "above" else -1, comparisons)
    return result


def judge(result: Result, drawn: np.ndarray, sign: int, comparisons: int = 1) -> None:
    """Set interval and verdict from draws of the difference; sign: the claimed side of zero."""
    undefined = np.isnan(drawn).mean()
    if undefined > 0.05:
        result.details.append(f"{undefined:.0%} of the resamples have no defined ratio")
        return
    result.low, result.high = map(float, np.nanquantile(drawn, [TAIL, 1 - TAIL]))
    if (result.low if sign > 0 else -result.high) > 0:
        result.verdict = SUPPORTED
    elif np.nanquantile(sign * drawn, 1 - TAIL / comparisons) < 0:
        result.verdict = REFUTED


def _difference_in(samples: Sequence[Sample], claim: Claim) -> tuple[float, np.ndarray, str]:
    """The difference between two methods in an environment, draws of it, and the numbers of both as text."""
    metric, spread = claim.metric, claim.metric in SPREADS
    a, b = pair(samples, claim, claims.LEAST_RUNS_FOR_SPREAD if spread else LEAST_RUNS)
    _check_comparable(a, b, metric)
    counts, steps = [len(a.runs), len(b.runs)], list[int]()
    if spread:
        counts = [min(counts)] * 2
        steps = sorted(a.defined(counts[0]) & b.defined(counts[0]))
        if not steps:
            raise NotComparable("normalised performance not clearly above zero")
    (x, drawn_x), (y, drawn_y) = (sample.estimate(metric, counts[0], steps) for sample in (a, b))
    text = f"{x:.3f} ({counts[0]} runs) against {y:.3f} ({counts[1]} runs)"
    if metric == "correlation":
        plain = [Decomposition.with_log_ratio(a.members, value).correlation for value in (x, y)]
        text += f"; as correlations: {plain[0]:.3f} against {plain[1]:.3f}"
    elif metric == "member_variance":
        text += f"; as variances: {np.exp(x):.4g} against {np.exp(y):.4g}"
    return float(_subtract(metric, np.array(x), np.array(y))), _subtract(metric, drawn_x, drawn_y), text


def _check_comparable(a: Sample, b: Sample, metric: str) -> None:
    """Raise NotComparable with the first reason why a metric of two samples cannot be compared."""
    of_members = metric in OF_MEMBERS
    probed = of_members or metric in SPREADS
    normalised = metric != "bias" and not of_members
    reasons = {
        f"runs of {a.steps} and of {b.steps} steps": a.steps != b.steps,
        "no scores to normalise by": normalised and not (a.scored and b.scored),
        "no probes late in training": probed and not (a.probed and b.probed),
        "different probe states": probed and a.probed_at != b.probed_at,
        f"ensembles of {a.members} and of {b.members}": metric == "correlation" and a.members != b.members,
        "one member only": of_members and min(a.members, b.members) < 2,
    }
    for reason, holds in reasons.items():
        if holds:
            raise NotComparable(reason)
    if metric not in SPREADS and not np.isfinite([*a.by_run(metric), *b.by_run(metric)]).all():
        early = f"no evaluation in the first {claims.EARLY * a.steps:.0f} steps"
        raise NotComparable("members that do not differ" if of_members else early)


def _subtract(metric: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A - B; of metrics that are never negative, relative to their sum (0 where both are 0)."""
    if metric not in ("bias", *SPREADS):
        return a - b
    return (a - b) / np.where(a + b == 0, 1, a + b)
