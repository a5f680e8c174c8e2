"""A run directory as points of metrics over steps: what is mirrored to W&B or TensorBoard, under which name.

Names and definitions are those of meanq.metrics.registry.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from meanq.metrics.definitions import normalising_scores
from meanq.metrics.registry import METRICS, RunData
from meanq.rundir.layout import EVALUATIONS, TIMINGS, TRAINING
from meanq.rundir.reader import DamagedFileError, read_config, read_probes, read_table


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

    def at(step: int) -> Point:
        return points.setdefault(int(step), Point(int(step)))

    try:
        run = _read_data(directory, config)
        for metric in METRICS.values():
            curve = metric.of_run(run) if metric.mirror and not metric.once else None
            for step, value in zip(*curve, strict=True) if curve else ():
                at(step).scalars[metric.mirror] = float(value)
        for table, prefix in ((TRAINING, "training"), (TIMINGS, "timing")):
            for row in read_table(directory / table):
                cells = {name: value for name, value in row.items() if name != "step" and value != ""}
                at(int(row["step"])).scalars.update({f"{prefix}/{name}": float(cells[name]) for name in cells})
        for step, q in zip(run.probe_step, () if run.q is None else run.q, strict=True):
            at(step).histograms["probe/q"] = q.ravel()
    except (KeyError, ValueError, TypeError, AttributeError) as error:  # cells that are missing or no numbers
        raise DamagedFileError(directory, error) from None
    return [points[step] for step in sorted(points)]


def _read_data(directory: Path, config: Mapping[str, Any]) -> RunData:
    rows = read_table(directory / EVALUATIONS)
    step = np.array([int(row["step"]) for row in rows], int)
    order = np.argsort(step, kind="stable")
    names = [name for name in (rows[0] if rows else ()) if name not in ("step", "episode")]
    columns = {name: np.array([float(row[name]) for row in rows])[order] for name in names}
    data = RunData(normalising_scores(config), step[order], columns)
    probes = read_probes(directory)
    if probes is None:
        return data
    return replace(data, probe_step=probes.step, q=probes.q.astype(np.float64), true_q=probes.true_q)
