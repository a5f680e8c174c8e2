"""Compare methods and decide findings, by the rules in analysis/findings/claims.py."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict

import numpy as np
import pandas as pd

from meanq.metrics.definitions import DEFAULT_BIAS, Decomposition

from ..intervals import LEAST_RUNS
from ..labels import find_label
from ..runs import RunSet
from . import claims
from .claims import (
    HIGHER,
    LOWER,
    NOT_TOLD_APART,
    OF_MEMBERS,
    REFUTED,
    SPREADS,
    SUPPORTED,
    TAIL,
    UNDECIDED,
    Claim,
    Finding,
    Result,
)
from .correlation import correlation_of_std_and_gap
from .sample import Evidence, NotComparable, Sample, pair, take_samples

RELATIONS = {SUPPORTED: HIGHER, REFUTED: LOWER, UNDECIDED: NOT_TOLD_APART}


def decide(found: RunSet, bias: str = DEFAULT_BIAS) -> tuple[list[Finding], list[str]]:
    """All findings, and notes on runs that are left out."""
    evidence, notes = take_samples(found, bias)
    findings = [Finding("F1", claims.CORRELATION, [correlation_of_std_and_gap(evidence)])]
    for name, (text, made) in claims.FINDINGS.items():
        findings.append(Finding(name, text, [examine(evidence, claim, len(made)) for claim in made]))
    return findings, notes


def compare(found: RunSet, a: str, b: str, bias: str = DEFAULT_BIAS) -> tuple[list[Result], list[str]]:
    """Compare two labels by the same rules: a result per metric, and notes on runs that are left out."""
    a, b = (find_label(name, found.labels, "--compare") for name in (a, b))
    evidence, notes = take_samples(found, bias)
    return [relation(evidence, Claim(metric, a, b, of_labels=True)) for metric in claims.COMPARED], notes


def relation(evidence: Evidence, claim: Claim) -> Result:
    """Compare without a claim of which is higher."""
    result = examine(evidence, claim, 1)
    result.comparison, result.verdict = claim.metric.replace("_", " "), RELATIONS[result.verdict]
    return result


def as_table(findings: Iterable[Finding]) -> pd.DataFrame:
    """One row per comparison."""
    rows = []
    for finding in findings:
        about = {"finding": finding.name, "statement": finding.statement, "finding_verdict": finding.verdict}
        rows += [{**about, **asdict(result), "details": " | ".join(result.details)} for result in finding.results]
    return pd.DataFrame(rows)


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
        judge(result, np.mean(draws, axis=0), claim.sign, comparisons)
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
