"""The scale of a panel's y axis, the same in static figures and in the report.

Std and gap are logarithmic where all of them are positive. A signed metric, bias, is folded where few curves would hide
the others: linear as far as the others go, and logarithmic beyond. Everything else is linear.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from meanq.metrics.registry import PER_GROUP, describe

from .form import Form
from .tables import Curves

FAR = 8  # times as large as the median curve: one that would hide most others, were the axis linear throughout
LOG_PART = 1 / 3  # of a folded axis


@dataclass(frozen=True)
class Scale:
    """A linear, log or folded axis."""

    kind: str
    low: float
    high: float
    bottom: float = 0.0  # of a folded axis: where its linear part ends
    top: float = 0.0

    @property
    def edge(self) -> float:
        """A folded axis is logarithmic beyond plus and minus this."""
        return max(-self.bottom, self.top)

    @property
    def decades(self) -> float:
        """Of the logarithmic part of a folded axis."""
        return sum(float(np.log10(max(end / self.edge, 1))) for end in (-self.low, self.high))

    @property
    def beyond(self) -> list[float]:
        """Ticks of the logarithmic part: about 3 powers of ten, or else the largest round number in it."""
        powers = 10.0 ** np.arange(-12, 99, -(-self.decades // 3))
        ends = (float(tick) for power in powers for tick in (-power, power) if power > 1.5 * self.edge)
        most, side = max(-self.low, self.high), 1 if self.high > -self.low else -1
        rounds = [float(number) for power in powers for number in (power, 2 * power, 5 * power) if number <= most]
        return [tick for tick in ends if self.low <= tick <= self.high] or [
            side * number for number in rounds[-1:] if number > self.edge
        ]


def scale_of(
    curves: Curves, env: str, metric: str, labels: Collection[str], form: Form, lines: Sequence[float] = ()
) -> Scale:
    """For the curves of these labels in a panel, and lines at these heights; at least one curve is drawn."""
    here = [curves[env, metric, label] for label in labels if (env, metric, label) in curves]
    drawn = [curve for curve in here if curve.drawn]
    if is_logarithmic(curves, metric):
        means = np.concatenate([curve.mean[np.isfinite(curve.mean)] for curve in drawn])
        return Scale("log", float(means.min()) / 1.15, float(means.max()) * 1.15)
    ranges = [curve.range(form.has_band, form.single_runs) for curve in drawn] + [(line, line) for line in lines]
    if describe(metric).unit == "share":
        ranges = [(0, 1)]
    return fit(ranges, may_fold=describe(metric).signed)


def is_logarithmic(curves: Curves, metric: str) -> bool:
    """Whether all numbers of a metric per group of runs, in every game, are positive."""
    if describe(metric).scope != PER_GROUP:
        return False
    finite = [curve.mean[np.isfinite(curve.mean)] for (_, name, _), curve in curves.items() if name == metric]
    return sum(map(len, finite)) > 0 and all((mean > 0).all() for mean in finite)


def fit(ranges: Sequence[tuple[float, float]], may_fold: bool) -> Scale:
    """A linear scale with these ranges of curves in it, or a folded one where few would hide the others.

    These are fewer than half of the curves at most: where half of them are large, they are no exceptions.
    """
    sizes = [max(abs(low), abs(high)) for low, high in ranges]
    limit = FAR * np.median(sizes) if may_fold else 0
    near = [ends for ends, size in zip(ranges, sizes, strict=True) if size <= limit] if limit else ranges
    low, high = min(low for low, _ in near), max(high for _, high in near)
    size = max(high - low, 0.1 * max(abs(low), abs(high))) or 1  # what hardly changes is not blown up
    low, high = (low + high) / 2 - 0.54 * size, (low + high) / 2 + 0.54 * size
    if len(near) == len(ranges):
        return Scale("linear", low, high)
    lowest, highest = 1.15 * min(low for low, _ in ranges), 1.15 * max(high for _, high in ranges)
    return Scale("folded", min(low, lowest), max(high, highest), low, high)
