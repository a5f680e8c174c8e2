"""Compare methods and decide findings, by the rules in analysis/findings/claims.py."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from analysis.findings.claims import (
    COMPARED,
    CORRELATION,
    EARLY,
    FINDINGS,
    LEAST_RUNS_FOR_SPREAD,
    OF_MEMBERS,
    REFUTED,
    SPREADS,
    SUPPORTED,
    UNDECIDED,
    Claim,
)
from analysis.findings.correlation import comparable_methods, correlation, pairing_test, std_and_gap
from analysis.findings.sample import Evidence, NotComparable, Sample
from analysis.intervals import LEAST_RUNS
from analysis.runs import AnalysisError, RunSet
from meanq.metrics.definitions import DEFAULT_BIAS, Decomposition

TAIL = 0.025  # of a 95% interval, and of random pairings


@dataclass
class Result:
    """A comparison, and the numbers behind it."""

    claim: str
    verdict: str = UNDECIDED
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


def decide(found: RunSet, bias: str = DEFAULT_BIAS, seed: int = 0) -> tuple[list[Finding], list[str]]:
    """All findings, and notes on runs that are left out."""
    evidence = Evidence(found, bias, seed)
    findings = [Finding("F1", CORRELATION, [correlation_of_std_and_gap(evidence, seed)])]
    for name, (text, claims) in FINDINGS.items():
        findings.append(Finding(name, text, [examine(evidence, claim, len(claims)) for claim in claims]))
    return findings, evidence.notes


def compare(found: RunSet, a: str, b: str, bias: str = DEFAULT_BIAS, seed: int = 0) -> tuple[list[Result], list[str]]:
    """Compare two labels by the same rules: a result per metric, and notes on runs that are left out."""
    for name in (a, b):
        if name not in found.labels:
            raise AnalysisError(f"--compare {name}: no such label; there are {', '.join(found.labels)}")
    evidence = Evidence(found, bias, seed)
    words = {SUPPORTED: "higher", REFUTED: "lower", UNDECIDED: "not told apart"}
    results = []
    for metric in COMPARED:
        result = examine(evidence, Claim(metric, a, "above", b, of_labels=True), 1)
        result.claim, result.verdict = metric.replace("_", " "), words[result.verdict]
        results.append(result)
    return results, evidence.notes


def as_table(findings: Iterable[Finding]) -> pd.DataFrame:
    """One row per comparison."""
    numbers = ["difference", "low", "high"]
    columns = ["finding", "statement", "finding_verdict", "comparison", "verdict", *numbers, "details"]
    rows = [
        (f.name, f.statement, f.verdict, r.claim, r.verdict, r.difference, r.low, r.high, " | ".join(r.details))
        for f in findings
        for r in f.results
    ]
    return pd.DataFrame(rows, columns=columns)


def correlation_of_std_and_gap(evidence: Evidence, seed: int = 0) -> Result:
    """F1, by the rule in analysis/findings/correlation.py."""
    result = Result("rank correlation of std and gap across methods above 0")
    measured: list[np.ndarray] = []
    methods: list[list[str]] = []
    for env in evidence.envs:
        try:
            samples = comparable_methods(evidence, env)
        except NotComparable as reason:
            result.details.append(f"{env}: left out, {reason}")
            continue
        count = min(len(sample.runs) for sample in samples)
        values = std_and_gap(samples, count)
        measured.append(values)
        methods.append([sample.label for sample in samples])
        pairs = ", ".join(f"{s.label} {x:.3f} {y:.4f}" for s, x, y in zip(samples, *values.mean(1), strict=True))
        result.details.append(f"{env}: {correlation(values)[0]:+.3f} ({count} runs each; std, gap: {pairs})")
    if measured:
        result.difference, above, below = pairing_test(measured, methods, seed)
        result.verdict = SUPPORTED if above <= TAIL else REFUTED if below <= TAIL else UNDECIDED
        result.details.append(f"p = {above:.4f} (as high by chance), {below:.4f} (as low by chance)")
    return result


def examine(evidence: Evidence, claim: Claim, claims: int) -> Result:
    """Compare two methods in every environment that has both; `claims`: the number of comparisons of the finding."""
    details, points, draws = [], [], []
    for env in evidence.envs:
        try:
            point, drawn, text = _difference_in(evidence, env, claim)
        except NotComparable as reason:
            details.append(f"{env}: left out, {reason}")
            continue
        points.append(point)
        draws.append(drawn)
        details.append(f"{env}: {text}")
    return judge(str(claim), points, draws, 1 if claim.relation == "above" else -1, details, claims)


def judge(
    claim: str, points: Sequence[float], draws: Sequence[np.ndarray], sign: int, details: list[str], claims: int = 1
) -> Result:
    """The verdict from differences and draws of them by environment; sign: the claimed side of zero."""
    if not points:
        return Result(claim, details=details)
    difference, drawn = float(np.mean(points)), np.mean(draws, axis=0)
    undefined = np.isnan(drawn).mean()
    if undefined > 0.05:
        details.append(f"{undefined:.0%} of the resamples have no defined ratio")
        return Result(claim, UNDECIDED, difference, details=details)
    low, high, strict_low, strict_high = np.nanquantile(drawn, [TAIL, 1 - TAIL, TAIL / claims, 1 - TAIL / claims])
    verdict = UNDECIDED
    if (low if sign > 0 else -high) > 0:
        verdict = SUPPORTED
    elif (strict_high if sign > 0 else -strict_low) < 0:
        verdict = REFUTED
    return Result(claim, verdict, difference, float(low), float(high), details)


def _difference_in(evidence: Evidence, env: str, claim: Claim) -> tuple[float, np.ndarray, str]:
    """The difference between two methods in an environment, draws of it, and the numbers of both as text."""
    metric = claim.metric
    spread = metric in SPREADS
    a, b = samples = evidence.pair(env, claim, LEAST_RUNS_FOR_SPREAD if spread else LEAST_RUNS)
    _check_comparable(a, b, metric)
    counts, steps = [len(a.runs), len(b.runs)], list[int]()
    if spread:
        counts = [min(counts)] * 2
        steps = sorted(set(a.defined(counts[0])) & set(b.defined(counts[0])))
        if not steps:
            raise NotComparable("normalised performance not clearly above zero")
    values = [sample.value(metric, counts[0], steps) for sample in samples]
    drawn = [sample.draws(metric, counts[0], steps) for sample in samples]
    text = f"{values[0]:.3f} ({counts[0]} runs) against {values[1]:.3f} ({counts[1]} runs)"
    if spread:
        plain = [sample.value(metric, counts[0], steps, normalised=False) for sample in samples]
        text += f"; not normalised: {plain[0]:.4f} against {plain[1]:.4f}"
    elif metric == "correlation":
        plain = [Decomposition.with_log_ratio(a.members, value).correlation for value in values]
        text += f"; as correlations: {plain[0]:.3f} against {plain[1]:.3f}"
    elif metric == "member_variance":
        text += f"; as variances: {np.exp(values[0]):.4g} against {np.exp(values[1]):.4g}"
    return float(_subtract(metric, *map(np.array, values))), _subtract(metric, *drawn), text


def _check_comparable(a: Sample, b: Sample, metric: str) -> None:
    """Raise NotComparable with the first reason why a metric of two samples cannot be compared."""
    reasons = {f"runs of {a.steps} and of {b.steps} steps": a.steps != b.steps}
    if metric not in ("bias", *OF_MEMBERS):
        reasons["no scores to normalise by"] = not (a.scored and b.scored)
    if metric in (*SPREADS, *OF_MEMBERS):
        reasons["no probes late in training"] = not a.probed or not b.probed
        reasons["different probe states"] = a.probed_states != b.probed_states or len(a.probed_states) > 1
    if metric == "correlation":
        reasons[f"ensembles of {a.members} and of {b.members}"] = a.members != b.members
    if metric in OF_MEMBERS:
        reasons["one member only"] = min(a.members, b.members) < 2
    for reason, holds in reasons.items():
        if holds:
            raise NotComparable(reason)
    if metric not in SPREADS and not np.isfinite([*a.by_run[metric], *b.by_run[metric]]).all():
        early = f"no evaluation in the first {EARLY * a.steps:.0f} steps"
        raise NotComparable("members that do not differ" if metric in OF_MEMBERS else early)


def _subtract(metric: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A - B; of metrics that are never negative, relative to their sum (0 where both are 0)."""
    if metric not in ("bias", *SPREADS):
        return a - b
    return (a - b) / np.where(a + b == 0, 1, a + b)
