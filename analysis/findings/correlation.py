"""F1: are std and gap correlated across methods? Spearman's rank correlation and a permutation test.

All labels with at least 4 runs count, in environments with at least 5 such labels of the same length and probe states.
Two artefacts would make std and gap correlate even if methods did not differ, and are avoided: dividing both by the
same performance (so they are NOT normalised here), and measuring both on the same runs (so the std comes from one half
of a method's runs and the gap from the other half, and vice versa; the correlation is the mean of the two).

supported, refuted: at most 2.5% of random pairings of the methods' stds with the methods' gaps have a mean correlation
over environments as high, or as low, as the true pairing. These shares are the `p` in the details. A random pairing is
the same in all environments, because a method's std and gap are alike across environments, which are therefore not
independent.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from meanq.metrics.definitions import jensen_gap, value_std

from .claims import LEAST_RUNS_FOR_SPREAD, REFUTED, SUPPORTED, TAIL, UNDECIDED, Result
from .sample import Evidence, Sample

LEAST_METHODS = 5  # four methods have only 24 pairings, too few for 2.5%
PAIRINGS = 5000


def correlation_of_std_and_gap(evidence: Evidence) -> Result:
    """F1."""
    result = Result("rank correlation of std and gap across methods above 0")
    measured, methods = list[np.ndarray](), list[list[str]]()
    for env, here in evidence.items():
        samples = [s for s in here if len(s.runs) >= LEAST_RUNS_FOR_SPREAD and s.probed]
        lengths = sorted({sample.steps for sample in samples})
        reasons = {
            f"{len(samples)} methods where {LEAST_METHODS} are needed": len(samples) < LEAST_METHODS,
            "different probe states": len({sample.probed_at for sample in samples}) > 1,
            f"runs of {' and of '.join(map(str, lengths))} steps": len(lengths) > 1,
        }
        if any(reasons.values()):
            result.details.append(f"{env}: left out, {next(reason for reason, holds in reasons.items() if holds)}")
            continue
        count = min(len(sample.runs) for sample in samples)
        values, labels = std_and_gap(samples, count), [sample.label for sample in samples]
        measured.append(values)
        methods.append(labels)
        pairs = ", ".join(f"{label} {x:.3f} {y:.4f}" for label, x, y in zip(labels, *values.mean(1), strict=True))
        true = correlation(values, np.arange(len(labels))[None])[0]
        result.details.append(f"{env}: {true:+.3f} ({count} runs each; std, gap: {pairs})")
    if measured:
        result.difference, above, below = pairing_test(measured, methods)
        result.verdict = SUPPORTED if above <= TAIL else REFUTED if below <= TAIL else UNDECIDED
        result.details.append(f"p = {above:.4f} (as high by chance), {below:.4f} (as low by chance)")
    return result


def std_and_gap(samples: Sequence[Sample], count: int) -> np.ndarray:
    """[std or gap, half of the first `count` runs, method]: not normalised, mean over the late probes."""
    numbers = [
        [[np.mean([statistic(s.q(step, count)[half::2]) for step in s.probed]) for s in samples] for half in (0, 1)]
        for statistic in (value_std, jensen_gap)
    ]
    return np.array(numbers)


def correlation(values: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """Spearman's, of stds of one half with gaps of the other, mean of both ways; 0 where one of them is constant.

    values: [std or gap, half, method]. One number for each order [B, M] of the gaps: [B].
    """
    ranks = pd.DataFrame(values.reshape(4, -1)).rank(axis=1).to_numpy()
    ranks -= ranks.mean(1, keepdims=True)
    norm = np.linalg.norm(ranks, axis=1, keepdims=True)
    std, gap = (ranks / np.where(norm == 0, 1, norm)).reshape(values.shape)
    return np.mean([gap[1 - half][orders] @ std[half] for half in (0, 1)], axis=0)


def pairing_test(measured: Sequence[np.ndarray], methods: Sequence[Sequence[str]]) -> tuple[float, float, float]:
    """Mean correlation over environments, and the shares of random pairings that are at least as high and as low.

    measured: by environment, [std or gap, half, method]; methods: their names.
    """
    names = sorted({name for here in methods for name in here})
    keys = np.random.default_rng(0).random((PAIRINGS, len(names)))
    found = []
    for values, here in zip(measured, methods, strict=True):
        orders = keys[:, [names.index(name) for name in here]].argsort(axis=1)
        found.append(correlation(values, np.concatenate([np.arange(len(here))[None], orders])))  # the true one first
    means, rounding = np.mean(found, axis=0), 1e-9
    return means[0], (means >= means[0] - rounding).mean(), (means <= means[0] + rounding).mean()
