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

from analysis.findings.claims import LEAST_RUNS_FOR_SPREAD
from analysis.findings.sample import NotComparable, Sample
from meanq.metrics.definitions import jensen_gap, value_std

LEAST_METHODS = 5  # four methods have only 24 pairings, too few for 2.5%
PAIRINGS = 5000


def comparable_methods(samples: Sequence[Sample]) -> list[Sample]:
    """The samples of an environment that enter its correlation."""
    chosen = [s for s in samples if len(s.runs) >= LEAST_RUNS_FOR_SPREAD and s.probed]
    if len(chosen) < LEAST_METHODS:
        raise NotComparable(f"{len(chosen)} methods where {LEAST_METHODS} are needed")
    if len({sample.probed_at for sample in chosen}) > 1:
        raise NotComparable("different probe states")
    lengths = sorted({sample.steps for sample in chosen})
    if len(lengths) > 1:
        raise NotComparable(f"runs of {' and of '.join(map(str, lengths))} steps")
    return chosen


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


def true_correlation(values: np.ndarray) -> float:
    """Of each method's stds with its own gaps."""
    return float(correlation(values, np.arange(values.shape[-1])[None])[0])


def pairing_test(measured: Sequence[np.ndarray], methods: Sequence[Sequence[str]]) -> tuple[float, float, float]:
    """Mean correlation over environments, and the shares of random pairings that are at least as high and as low.

    measured: by environment, [std or gap, half, method]; methods: their names.
    """
    names = sorted({name for here in methods for name in here})
    keys = np.random.default_rng(0).random((PAIRINGS, len(names)))
    orders = [keys[:, [names.index(name) for name in here]].argsort(axis=1) for here in methods]
    found = float(np.mean([true_correlation(values) for values in measured]))
    random = np.mean([correlation(values, order) for values, order in zip(measured, orders, strict=True)], axis=0)
    rounding = 1e-9
    above, below = (random >= found - rounding).sum(), (random <= found + rounding).sum()
    return found, float((above + 1) / (PAIRINGS + 1)), float((below + 1) / (PAIRINGS + 1))
