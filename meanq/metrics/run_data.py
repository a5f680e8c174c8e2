"""One run as plain arrays: what metrics of a run are computed from, whoever read its files."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from meanq.metrics.definitions import episode_means

Curve = tuple[np.ndarray, np.ndarray]  # steps [T], values [T]


@dataclass(frozen=True)
class RunData:
    """Evaluated episodes and probes of a run."""

    scores: tuple[float, float] | None  # random and reference, see `definitions.normalising_scores`
    step: np.ndarray  # [N], ascending, of each evaluated episode
    episodes: Mapping[str, np.ndarray]  # [N] each: the columns of evaluations.csv
    probe_step: np.ndarray = field(default_factory=lambda: np.empty(0, int))  # [T]
    q: np.ndarray | None = None  # [T, P, K, A] at the probe states; None without probes
    true_q: np.ndarray | None = None  # [P, A], where the environment knows it
    seconds: float = math.nan  # wall-clock time of training

    @property
    def steps(self) -> np.ndarray:
        """Of the evaluations, [T]."""
        return self._means[0]

    @property
    def episode_counts(self) -> np.ndarray:
        """Of each evaluation, [T]."""
        return self._means[1]

    def mean(self, column: str) -> np.ndarray:
        """Over the episodes of each evaluation, [T]."""
        return self._means[2][column]

    def probed(self, values: np.ndarray) -> Curve:
        """A number per probe as a curve, NaN where it is not finite."""
        return self.probe_step, np.where(np.isfinite(values), values, np.nan)

    @cached_property
    def _means(self) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        return episode_means(self.step, self.episodes)
