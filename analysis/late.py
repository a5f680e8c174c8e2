"""What is measured late in training: the last quarter of it, as far as it has come."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from meanq.metrics.definitions import LATE, Decomposition
from meanq.metrics.registry import OVER_RUNS, PER_RUN, Metric, shown_in

from .figures.palette import order
from .intervals import LEAST_RUNS, member_pseudovalues, student_interval
from .metrics import OVER, RUN, Metrics
from .runs import AnalysisError, Run, RunSet

NAN = float("nan")


def late_table(found: RunSet, metrics: Metrics, shown: Sequence[Metric] | None = None) -> pd.DataFrame:
    """A row per game and label that has been evaluated, labels in the order of legends; `shown`: columns.

    `step`: how far training has come, by the label's furthest run. `not_alike` names games where labels differ in it.
    Metrics per run (return, bias): means over the runs that have every evaluation in the last quarter, with Student's
    95% interval (empty for one run); `runs` counts those of the return. Others: means over the probes in it at which
    they are defined; metrics over runs (correlation, effective size) with the jackknife's 95% interval over the runs
    that have every probe in it (empty for fewer than 3).
    """
    rows, groups = [], found.groups()
    rank = {label: i for i, label in enumerate(order(label for _, label in groups))}
    by_label = metrics.table.groupby(["env", "label"], sort=False)
    parts = {(str(env), str(label)): part for (env, label), part in by_label}
    for (env, label), part in sorted(parts.items(), key=lambda item: (item[0][0], rank[item[0][1]])):
        runs = part[part["scope"] == RUN]
        if runs.empty:
            continue  # begun, and not evaluated yet
        last = int(runs["step"].max())
        window = part[part["step"] > LATE * last]
        row: dict[str, Any] = {"game": env, "label": label, "step": last, "runs": 0}
        ends = _member_interval(groups[env, label], LATE * last)
        for metric in shown_in("late") if shown is None else shown:
            rows_of_metric = window[window["metric"] == metric.name]
            if metric.scope == PER_RUN and not metric.once:
                means = _means_of_runs(rows_of_metric, last if metric.cumulative else None)
                row[metric.column] = means.mean() if len(means) else NAN
                interval = [*student_interval(means)] if len(means) > 1 else [NAN, NAN]
                row["runs"] = len(means) if metric.name == "return" else row["runs"]
            else:
                row[metric.column] = rows_of_metric[rows_of_metric["scope"] == OVER]["value"].mean()
                over_runs = metric.compute if metric.scope == OVER_RUNS else None
                interval = sorted(map(over_runs, ends)) if over_runs else []
            if interval:
                row |= {f"{metric.column} low": interval[0], f"{metric.column} high": interval[1]}
        rows.append(row)
    if not rows:
        raise AnalysisError("no run has been evaluated yet")
    return pd.DataFrame(rows)


def _means_of_runs(rows: pd.DataFrame, at: int | None) -> np.ndarray:
    """A mean over steps (or the value at one) for each run that has a number at all of them."""
    seeds = rows[rows["scope"] == RUN]
    seeds = seeds if at is None else seeds[seeds["step"] == at]
    if seeds.empty:
        return np.empty(0)
    by_run = seeds.pivot(index="seed", columns="step", values="value").to_numpy(float)
    return by_run[np.isfinite(by_run).all(axis=1)].mean(axis=1)


def _member_interval(runs: Sequence[Run], after: float) -> list[Decomposition]:
    """The ends of a 95% interval of what members share, at the probes after this step; NaN where there is none."""
    probed = [run.probes for run in runs if run.probes is not None and run.probes.q.shape[2] > 1]
    steps = sorted({int(step) for probes in probed for step in probes.step if step > after})
    by_run = [[probes.at(step) for step in steps] for probes in probed]
    complete = [[q for q in run if q is not None] for run in by_run if all(q is not None for q in run)]
    ends = (NAN, NAN)
    if steps and len(complete) >= LEAST_RUNS:
        numbers = member_pseudovalues([np.stack(q) for q in zip(*complete, strict=True)])
        ends = student_interval(numbers) if np.isfinite(numbers).all() else ends
    members = probed[0].q.shape[2] if probed else 1
    return [Decomposition.with_log_ratio(members, end) for end in ends]


def not_alike(table: pd.DataFrame) -> list[str]:
    """A note for each game whose labels have not been trained equally far."""
    steps = table.groupby("game", sort=False)["step"].agg(["min", "max"])
    return [
        f"{game}: labels have come to {low:,} to {high:,} interactions; late in training is the last quarter of that"
        for game, low, high in steps.itertuples()
        if low < high
    ]
