"""What a logger receives, and its interface: points of metrics over steps, and Sink.

Names and definitions of metrics are those of meanq.metrics.registry.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from meanq.config.schema import LoggerConfig
from meanq.metrics.definitions import normalising_scores
from meanq.metrics.registry import METRICS, RunData
from meanq.rundir import layout, reader


@dataclass(frozen=True)
class Point:
    """Everything that the tables say of one step."""

    step: int
    scalars: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, np.ndarray] = field(default_factory=dict)


# Tables whose columns are mirrored as they are, and the first part of their names there.
_TABLES = ((layout.TRAINING, "training"), (layout.DIAGNOSIS, "diagnosis"), (layout.TIMINGS, "timing"))


class Sink:
    """Receives each point of a run once, in the order of steps. Lives in the mirror process."""

    position = 0  # the first step that is still missing

    def __init__(self, logger: LoggerConfig, directory: Path) -> None: ...

    def log(self, point: Point) -> None:
        """Add the point of a later step, and set `position`."""
        raise NotImplementedError

    def close(self, state: str) -> None:
        """Complete the copy; `state` is one of layout.ENDED_STATES."""
        raise NotImplementedError

    def note(self) -> str:
        """Say what the user should know about the copy, in one line; empty: nothing."""
        return ""

    @classmethod
    def enabled(cls, logger: LoggerConfig) -> bool:
        """Whether there is anything to do."""
        return True

    @classmethod
    def remedy(cls, directory: Path) -> str:
        """Say how a copy that failed can be completed later."""
        return ""


def read_points(directory: Path) -> list[Point]:
    """Read a run directory: one point per step that any table or probe mentions, in order."""
    points: dict[int, Point] = {}

    def at(step: int) -> Point:
        return points.setdefault(int(step), Point(int(step)))

    try:
        run = _read_data(directory)
        for metric in METRICS.values():
            curve = metric.of_run(run) if metric.mirror and not metric.once else None
            for step, value in zip(*curve, strict=True) if curve else ():
                at(step).scalars[metric.mirror] = float(value)
        for table, prefix in _TABLES:
            for row in reader.read_numbers(directory / table):
                at(int(row.pop("step"))).scalars.update({f"{prefix}/{name}": row[name] for name in row})
        for step, q in zip(run.probe_step, () if run.q is None else run.q, strict=True):
            at(step).histograms["probe/q"] = q.ravel()
    except (
        ArithmeticError,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
    ) as error:  # cells that are missing or no numbers
        raise reader.DamagedFileError(directory, error) from None
    return [points[step] for step in sorted(points)]


def _read_data(directory: Path) -> RunData:
    config = reader.read_config(directory)
    scores = normalising_scores(config)
    rows = reader.read_numbers(directory / layout.EVALUATIONS)
    names = set(rows[0]) - {"step", "episode"} if rows else ()
    columns = {name: np.array([row[name] for row in rows]) for name in names}
    step, probes = np.array([row["step"] for row in rows], int), reader.read_probes(directory, config)
    data = RunData(scores, step, columns)
    return data if probes is None else data.with_probes(replace(probes, q=probes.q.astype(np.float64)))
