"""Every metric of meanq.metrics.registry, from run directories, as one tidy table.

    meanq metrics runs/target_network --out metrics.csv

Columns: env, label, scope, seed, group, step, metric, value, std, ci, n. Rows of a scope hold numbers of one kind:

run         a number of one run, `seed`: the mean over the evaluation's n episodes (or n = 1 number of the run).
group       a statistic of the n runs of a group, `group`. Runs in the order of their seeds are split into groups of 5:
            0, 1, ... What is left over when the number of runs is no multiple of 5 is left out, because the expected
            std and gap depend on the number of runs. Fewer than 5 runs are one group. A group needs 2 runs.
over_runs   one number of a label: the mean over its n runs that have a number at this step (or over its n groups), and
            in `std` the standard deviation over them (with n - 1; empty for one). The 95% interval of the mean
            (Student's) is value - ci to value + ci. Of what a run has once, at its last step, there is a mean only if
            every run has it. Metrics over runs are unbiased estimates from all n runs at once, without a std.

So, of one metric, the means over runs as a table of steps and labels, and the runs themselves:

    of = table[(table["env"] == "minatar_asterix") & (table["metric"] == "return")]
    of[of["scope"] == "over_runs"].pivot_table(index="step", columns="label", values="value")
    of[of["scope"] == "run"].pivot_table(index="step", columns=["label", "seed"], values="value")

An empty value: not defined there. Ratios to the normalised return are defined where that return is clearly above zero:
where the 95% interval of its mean over the group's runs (Student's t) lies above zero. That rule has no constant to
tune and asks for more from fewer runs; a fixed threshold would either forbid games in which every method stays below
1% of human score, or let through ratios whose sign is a matter of chance.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from meanq.metrics import registry
from meanq.metrics.definitions import BIASES, DEFAULT_BIAS, Decomposition, steps_to_reference

from .console import command, make_parser, say, write_out
from .intervals import clearly_positive, student_reach
from .notes import all_notes
from .runs import AnalysisError, Run, RunSet, read_runs

COLUMNS = ["env", "label", "scope", "seed", "group", "step", "metric", "value", "std", "ci", "n"]
SCOPES = RUN, GROUP, OVER = "run", "group", "over_runs"  # of rows
GROUP_SIZE = 5
NAN = float("nan")

_Rows = Iterator[dict[str, Any]]


@dataclass
class Metrics:
    """The tidy table, and notes that a reader of it has to know."""

    table: pd.DataFrame
    notes: list[str] = field(default_factory=list)


def compute(found: RunSet, biases: Iterable[str] = tuple(BIASES)) -> Metrics:
    """Every metric of every group of runs; of the kinds of bias, these."""
    left_out = {f"bias_{kind}" for kind in BIASES} - {f"bias_{kind}" for kind in biases}
    tables: list[pd.DataFrame] = []  # one per label: rows as dictionaries take much more memory
    notes: list[str] = []
    for (env, label), runs in found.groups().items():
        groups = split(runs)
        of_label = [*_per_run(runs, left_out), *_per_group(groups), *_over_runs(runs)]
        tables += [as_table(of_label).assign(env=env, label=label)] if of_label else []
        notes += _about_sizes(env, label, of_label, runs)
        left_over = len(runs) - sum(map(len, groups))
        if left_over:
            notes.append(f"{env}, {label}: {left_over} of {len(runs)} runs are in no group of {GROUP_SIZE}")
    table = with_intervals(pd.concat(tables, ignore_index=True) if tables else as_table([]))
    return Metrics(table, [*_about_groups(table[table["scope"] == GROUP]), *notes])


def as_table(rows: Sequence[Mapping[str, Any]] | pd.DataFrame) -> pd.DataFrame:
    """Rows with all columns; seeds and groups are integers, also where some are empty."""
    return pd.DataFrame(rows, columns=COLUMNS).astype({"seed": "Int64", "group": "Int64", "std": float, "ci": float})


def with_intervals(table: pd.DataFrame, which: pd.Series | None = None) -> pd.DataFrame:
    """The table with `ci` of the rows that have a std, or of some of them."""
    reach = student_reach(np.maximum(table["n"].to_numpy(float) - 1, 1)) * table["std"] / np.sqrt(table["n"])
    return table.assign(ci=reach if which is None else reach.where(which))


def _about_groups(rows: pd.DataFrame) -> Iterator[str]:
    """Note ratios without a value, and games whose labels have std and gap of different numbers of runs."""
    ratios = rows[rows["metric"].isin([metric.name for metric in registry.METRICS.values() if metric.ratio_of])]
    empty = ratios["value"].isna().sum()
    if empty:
        why = "because it is not clearly above zero, or a run has no evaluation at that step"
        yield f"{empty} of {len(ratios)} ratios to normalised performance are not defined, {why}; left empty"
    first = rows[(rows["metric"] == "std") & (rows["group"] == 0)]
    last = first.groupby(["env", "label"], as_index=False)["n"].last()
    for env, labels in last.groupby("env"):
        sizes = [f"{size} runs: {', '.join(part['label'])}" for size, part in labels.groupby("n")]
        if len(sizes) > 1:
            why = "std and gap grow with the number of runs, so at the last probes they are not comparable"
            yield f"{env}: {why} between {'; '.join(sizes)}"


def _about_sizes(env: str, label: str, rows: Iterable[Mapping[str, Any]], runs: Sequence[Run]) -> Iterator[str]:
    """Note effective sizes above the number of members."""
    members = max((run.probes.q.shape[2] for run in runs if run.probes is not None), default=1)
    sizes = [row["value"] for row in rows if row["metric"] in ("effective_size", "effective_size_true")]
    if any(size > members for size in sizes):
        why = "at some probes, where the estimated correlation is below zero: by chance if runs are few"
        yield f"{env}, {label}: effective size above the number of members {why}"


def split(runs: Sequence[Run]) -> list[list[Run]]:
    """Groups of GROUP_SIZE in the order of seeds, without what is left over; fewer runs are one group."""
    ordered = sorted(runs, key=lambda run: run.seed)
    if len(ordered) < GROUP_SIZE:
        return [ordered]
    return [ordered[i : i + GROUP_SIZE] for i in range(0, len(ordered) - GROUP_SIZE + 1, GROUP_SIZE)]


def average_steps_to_reference(found: RunSet, label: str, envs: Sequence[str]) -> dict[int, float]:
    """By seed: the first step at which the mean normalised return over these environments is at 1 or above.

    The paper's "average human-level performance in 200K (+-100K) interactions". Only steps that the seed's runs have in
    all the environments count, and only seeds with a run in each.
    """
    found_steps = {}
    groups = found.groups()
    by_env = [{run.seed: run for run in groups.get((env, label), [])} for env in envs]
    for seed in sorted(set.intersection(*(set(runs) for runs in by_env))) if by_env else []:
        curves = [runs[seed].episode_means["normalised_return"] for runs in by_env]
        mean = pd.concat(curves, axis=1, join="inner").mean(axis=1, skipna=False)
        found_steps[seed] = steps_to_reference(mean.index.to_numpy(), mean.to_numpy())
    return found_steps


# --- by scope -------------------------------------------------------------------------------------------------------


def _per_run(runs: Sequence[Run], left_out: set[str]) -> _Rows:
    by_name: dict[str, dict[int, registry.Curve]] = defaultdict(dict)
    for run in runs:
        for name, curve in _curves(run, left_out):
            by_name[name][run.seed] = curve
    episodes = {run.seed: dict(zip(run.data.steps, run.data.episode_counts, strict=True)) for run in runs}
    for name, by_seed in by_name.items():
        metric = registry.describe(name)
        of_episodes = metric.source == registry.EVALUATIONS and not metric.once
        for seed, (steps, values) in by_seed.items():
            for step, value in zip(steps.tolist(), values.tolist(), strict=True):
                yield _row(RUN, step, name, value, episodes[seed][step] if of_episodes else 1, seed=seed)
        every_step = np.unique(np.concatenate([steps for steps, _ in by_seed.values()]))
        table = np.full((len(every_step), len(by_seed)), NAN)
        for column, (steps, values) in zip(table.T, by_seed.values(), strict=True):
            column[np.searchsorted(every_step, steps)] = values
        if metric.once and np.isnan(table).any():
            continue  # a mean over the runs that have it would flatter those that do not
        for step, row in zip(every_step.tolist(), table, strict=True):
            yield from _mean_and_std(name, step, row[~np.isnan(row)])


def _curves(run: Run, left_out: set[str]) -> Iterator[tuple[str, registry.Curve]]:
    """The metrics of a run by step: those that are computed, and diagnostics at the steps of evaluations."""
    steps = run.data.steps
    for metric in registry.tabulated(registry.PER_RUN):
        skipped = metric.name in left_out or (metric.once and not len(steps))
        found = None if skipped else metric.of_run(run.data)
        if found is not None:
            at, values = (steps[-1:], [found]) if metric.once else found
            yield metric.name, (np.asarray(at, int), np.asarray(values, float))
    logged = run.diagnostics["step"].to_numpy()
    evaluated = np.isin(logged, steps)
    for name in run.diagnostics.columns[run.diagnostics.columns != "step"]:
        values = run.diagnostics[name].to_numpy(float)
        kept = evaluated & ~np.isnan(values)
        yield str(name), (logged[kept], values[kept])


def _per_group(groups: Sequence[Sequence[Run]]) -> _Rows:
    runs = [run for group in groups for run in group]
    for step in _probed_steps(runs):
        present = [_probes_at(group, step) for group in groups]
        largest = max(map(len, present))
        q = {i: _stack(found) for i, found in enumerate(present) if len(found) > 1}
        policy_values = {i: _policy_values(present[i], step) for i in q}
        scores = {i: _normalised_returns(present[i], step) for i in q}
        for metric in registry.tabulated(registry.PER_GROUP):
            if metric.ratio_of and all(run.scores is None for run in runs):
                continue
            statistic = registry.METRICS[metric.ratio_of or metric.name].compute
            assert statistic is not None
            comparable = []  # statistics of fewer runs are not
            for i in q:
                value = statistic(q[i], policy_values[i])
                if value is None:
                    continue
                if metric.ratio_of:
                    value = value / scores[i].mean() if clearly_positive(scores[i]) else NAN
                yield _row(GROUP, step, metric.name, value, len(present[i]), group=i)
                if len(present[i]) == largest and not np.isnan(value):
                    comparable.append(value)
            yield from _mean_and_std(metric.name, step, np.array(comparable))


def _over_runs(runs: Sequence[Run]) -> _Rows:
    if any(run.probes is not None and run.probes.q.shape[2] < 2 for run in runs):
        return  # one member has nothing to be split
    for step in _probed_steps(runs):
        present = _probes_at(runs, step)
        if not present:
            continue
        probes = present[0][0].probes
        parts = Decomposition.of(_stack(present), None if probes is None else probes.true_q)
        for metric in registry.tabulated(registry.OVER_RUNS):
            assert metric.compute is not None
            value = metric.compute(parts)
            if value is not None and (len(present) > 1 or not np.isnan(value)):  # of one run, what it can tell
                yield _row(OVER, step, metric.name, value, len(present))


def _mean_and_std(metric: str, step: int, values: np.ndarray) -> _Rows:
    count = len(values)
    if count:
        std = float(values.std(ddof=1)) if count > 1 else NAN
        yield _row(OVER, step, metric, float(values.mean()), count, std=std)


def _row(scope: str, step: int, metric: str, value: float, n: int, **more: float) -> dict[str, Any]:
    return {"scope": scope, "step": step, "metric": metric, "value": value, "n": n, **more}


def _probed_steps(runs: Iterable[Run]) -> list[int]:
    return sorted({int(step) for run in runs if run.probes is not None for step in run.probes.step})


def _probes_at(runs: Iterable[Run], step: int) -> list[tuple[Run, np.ndarray]]:
    """The runs that have a finite probe at this step, with their values [P, K, A]."""
    return [(run, q) for run in runs if run.probes is not None and (q := run.probes.at(step)) is not None]


def _policy_values(present: Sequence[tuple[Run, np.ndarray]], step: int) -> np.ndarray | None:
    """Exact values [R, P] of the runs' greedy policies; None where they are not known."""
    known = [(run.data.probe_step, values) for run, _ in present if (values := run.data.policy_value) is not None]
    return np.stack([values[at == step][0] for at, values in known]) if len(known) == len(present) else None


def _normalised_returns(present: Sequence[tuple[Run, np.ndarray]], step: int) -> np.ndarray:
    """[R]; NaN where a run has no evaluation at this step, or no scores to normalise by."""
    return np.array([run.episode_means["normalised_return"].get(step, NAN) for run, _ in present], dtype=float)


def _stack(present: Sequence[tuple[Run, np.ndarray]]) -> np.ndarray:
    """[R, P, K, A]; the runs of a label have one configuration, so this fails only for files that contradict it."""
    shapes = {q.shape for _, q in present}
    if len(shapes) > 1:
        raise AnalysisError(f"probes of runs with one configuration have different shapes: {sorted(shapes)}")
    return np.stack([q for _, q in present])


# --- the command ----------------------------------------------------------------------------------------------------


@command
def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or write it to --out."""
    parser = make_parser("metrics", __doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="directories with runs anywhere below, e.g. runs/techniques")
    parser.add_argument("--out", type=Path, help="a CSV file; otherwise the table is printed")
    parser.add_argument(
        "--bias",
        choices=[*BIASES, "all"],
        default=DEFAULT_BIAS,
        help="the discounted return that values are compared with: of rewards as learned from (clipped; the paper's), "
        "as the game gives them (unclipped), or as learned from up to the first loss of life (first_life)",
    )
    options = parser.parse_args(arguments)
    found = read_runs(options.runs)
    metrics = compute(found, BIASES if options.bias == "all" else [options.bias])
    say(all_notes(found, metrics.notes))
    text = metrics.table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    if options.out is None:
        sys.stdout.write(text)
    else:
        write_out(options.out, text)
        print(f"{options.out}: {len(metrics.table)} rows of {metrics.table['metric'].nunique()} metrics")


if __name__ == "__main__":
    main()
