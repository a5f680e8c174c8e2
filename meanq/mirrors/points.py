"""A run directory as points of metrics over steps: what is mirrored to W&B or TensorBoard, under which name.

The names are explained in docs/wandb.md.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from meanq.rundir.layout import EVALUATIONS, TIMINGS, TRAINING
from meanq.rundir.reader import DamagedFileError, read_config, read_probes, read_table

_LONG_HORIZON = 500_000  # from here on scores are normalised as in the paper's table 2


@dataclass(frozen=True)
class Point:
    """Everything that the tables say of one step."""

    step: int
    scalars: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, np.ndarray] = field(default_factory=dict)


def read_points(directory: Path) -> list[Point]:
    """One point per step that any table or probe mentions, in order."""
    config = read_config(directory)
    points: dict[int, Point] = {}

    def add(step: int, scalars: Mapping[str, float]) -> Point:
        point = points.setdefault(step, Point(step))
        point.scalars.update(scalars)
        return point

    try:
        episodes: dict[int, list[dict[str, float]]] = defaultdict(list)
        for row in read_table(directory / EVALUATIONS):
            episodes[int(row["step"])].append(
                {name: float(row[name]) for name in row if name not in ("step", "episode")}
            )
        for step, found in episodes.items():
            add(step, evaluation_metrics(found, config))
        for table, prefix in ((TRAINING, "training"), (TIMINGS, "timing")):
            for row in read_table(directory / table):
                cells = {name: value for name, value in row.items() if name != "step" and value != ""}
                add(int(row["step"]), {f"{prefix}/{name}": float(value) for name, value in cells.items()})
        probes = read_probes(directory)
        for step, values in zip(probes.step, probes.q, strict=True) if probes else ():
            q = values.astype(np.float64)
            point = add(int(step), probe_metrics(q, probes.true_q if probes else None))
            point.scalars.update(_normalised_spread(point.scalars))
            point.histograms["probe/q"] = q.ravel()
    except (KeyError, ValueError, TypeError, AttributeError) as error:  # cells that are missing or no numbers
        raise DamagedFileError(directory, error) from None
    return [points[step] for step in sorted(points)]


def evaluation_metrics(episodes: list[dict[str, float]], config: Mapping[str, Any]) -> dict[str, float]:
    """Means over the episodes of one evaluation, the bias, and the normalised return where scores are known."""
    columns = {name: np.array([episode[name] for episode in episodes]) for name in episodes[0]}
    metrics = {f"evaluation/{name}": float(values.mean()) for name, values in columns.items()}
    metrics["evaluation/bias"] = float((columns["value"] - columns["discounted_return"]).mean())
    several = len(episodes) > 1
    if several:
        metrics["evaluation/return_std"] = float(columns["return"].std(ddof=1))
    env = config.get("env") or {}
    random, reference = env.get("random_score"), env.get("reference_score")
    if config.get("total_steps", 0) >= _LONG_HORIZON and env.get("random_score_500k") is not None:
        random = env["random_score_500k"]
    if random is not None and reference is not None and reference != random:
        metrics["evaluation/normalised_return"] = (metrics["evaluation/return"] - random) / (reference - random)
        if several:
            error = metrics["evaluation/return_std"] / len(episodes) ** 0.5
            metrics["evaluation/normalised_return_error"] = error / abs(reference - random)
    return metrics


def probe_metrics(q: np.ndarray, true_q: np.ndarray | None) -> dict[str, float]:
    """Of values q [states, members, actions] at the probe states: their value, and how far members disagree."""
    value = q.mean(1).max(-1)  # V(s_0) = max_a mean_k Q_k, [states]
    metrics = {"probe/value": float(value.mean())}
    if true_q is not None:
        metrics["probe/error"] = float((value - true_q.max(-1)).mean())
    if q.shape[1] > 1:  # one member cannot disagree; a zero would look like agreement
        members = q.max(-1)  # [states, members]
        metrics["probe/member_std"] = float(members.std(1).mean())
        metrics["probe/member_jensen_gap"] = float((members.mean(1) - value).mean())
    return metrics


def _normalised_spread(scalars: Mapping[str, float]) -> dict[str, float]:
    """The paper's unit, normalised return; left out where the return of that step is not clearly above zero."""
    score = scalars.get("evaluation/normalised_return")
    error = scalars.get("evaluation/normalised_return_error")
    if score is None or error is None or score <= 2 * error:
        return {}
    names = ("probe/member_std", "probe/member_jensen_gap")
    return {f"{name}_normalised": scalars[name] / score for name in names if name in scalars}
