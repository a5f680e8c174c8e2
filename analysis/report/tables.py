"""The tables of the report, as frames. Columns called `game` and `label` say what a row is about."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare import by_game, our_scores, summary
from analysis.metrics import Metrics
from analysis.paper.tables import HORIZONS, paper_table
from analysis.runs import Run, RunSet, differing_fields
from meanq.config.fields import field_value, flatten
from meanq.metrics.registry import METRICS, PER_RUN, shown_in

NAN = float("nan")
GROUPS = ("mean", "std")


def at_the_end(found: RunSet, metrics: Metrics, bias: str) -> pd.DataFrame:
    """A row per game and label, at the last evaluation that any of its runs has; `runs at step`: how many have it.

    Metrics of probes, and those that a run has once: their last mean.
    """
    table = metrics.table
    by_key = dict(iter(table[table["group"].isin(["mean", "std"])].groupby(["env", "algo", "metric", "group"])))
    rows = []
    for (env, label), runs in found.groups().items():
        last = max(run.last_evaluation for run in runs)
        row: dict[str, Any] = {"game": env, "label": label, "runs": len(runs), "step": last or NAN}
        row["runs at step"] = sum(last in run.episode_means.index for run in runs) if last else 0
        for metric in shown_in("summary"):
            latest = metric.once or metric.scope != PER_RUN
            number, std = (_at(by_key.get((env, label, metric.name, g)), None if latest else last) for g in GROUPS)
            column = f"bias ({bias})" if metric.name == f"bias_{bias}" else metric.column
            if column == "bias":
                continue  # of another kind than was asked for
            if number == number or column not in row:  # AUC: the normalised one, where there is one
                row[column] = number
            if metric.name == "return":
                row["± std"] = std
        rows.append(row | {"minutes per run": _mean([run.seconds for run in runs]) / 60})
    return pd.DataFrame(rows)


def _at(part: pd.DataFrame | None, step: int | None) -> float:
    """The value at a step, or the last one; NaN where there is none."""
    if part is None or part.empty:
        return NAN
    return float(part["value"].iloc[-1] if step is None else part.set_index("step")["value"].get(step, NAN))


def runs_table(found: RunSet) -> pd.DataFrame:
    """A row per run."""
    rows = []
    for run in (run for runs in found.groups().values() for run in runs):
        progress = (run.state, run.last_evaluation, run.total_steps, run.seconds / 60)
        commit = str(run.meta.get("commit") or "")[:10]
        rows.append((run.env, run.label, run.seed, *progress, commit, str(run.directory)))
    columns = ["game", "label", "seed", "state", "evaluated to", "of", "minutes", "commit", "directory"]
    return pd.DataFrame(rows, columns=columns)


def cost(found: RunSet) -> pd.DataFrame:
    """Wall-clock time, by game and label."""
    rows = []
    for (env, label), runs in found.groups().items():
        timed = [run for run in runs if run.seconds > 0]
        reached = [int(run.timings["step"].iloc[-1]) if len(run.timings) else run.last_evaluation for run in timed]
        rows.append(
            {
                "game": env,
                "label": label,
                "runs": len(runs),
                "minutes per run": _mean([run.seconds for run in timed]) / 60,
                "interactions per second": sum(reached) / sum(run.seconds for run in timed) if timed else NAN,
                "hours in all": sum(run.seconds for run in timed) / 3600,
                "device": _said(runs, "device"),
                "threads": _said(runs, "threads"),
                "host": _said(runs, "host"),
            }
        )
    return pd.DataFrame(rows)


def undefined_ratios(metrics: Metrics) -> pd.DataFrame:
    """How many ratios to normalised performance are empty, by game and label; no row where there are no ratios."""
    table = metrics.table
    names = [metric.name for metric in METRICS.values() if metric.ratio_of]
    ratios = table[table["metric"].isin(names) & ~table["group"].isin(GROUPS)]
    counted = ratios.assign(empty=ratios["value"].isna()).groupby(["env", "algo"])["empty"].agg(["size", "sum"])
    counted = counted.reset_index().rename(columns={"env": "game", "algo": "label", "size": "ratios", "sum": "empty"})
    return counted.assign(share=counted["empty"] / counted["ratios"])


def probe_states(found: RunSet) -> pd.DataFrame:
    """How many of the states at which values are probed differ, by game."""
    rows = []
    for env in found.envs:
        kinds: dict[tuple[int, Any], list[Run]] = {}
        for run in found.runs:
            if run.env == env and run.probes is not None and len(run.probes.step):
                seed = (run.config.get("probe") or {}).get("seed")
                kinds.setdefault((run.probes.q.shape[1], seed), []).append(run)
        for (states, seed), runs in kinds.items():
            distinct = distinct_states(runs)
            rows.append((env, str(seed), states, distinct, states - distinct, len(runs)))
    return pd.DataFrame(rows, columns=["game", "probe seed", "states", "distinct", "coincide", "runs"])


def distinct_states(runs: Sequence[Run]) -> int:
    """How many probe states some run tells apart: two with the same Q, in every run at every probe, coincide.

    The same to 1e-5 of a run's largest value: equal states in other places of a batch are rounded otherwise.
    """
    apart = np.zeros((0, 0), dtype=bool)
    for run in runs:
        assert run.probes is not None
        q = np.nan_to_num(run.probes.q, posinf=0, neginf=0)
        rows = q.transpose(1, 0, 2, 3).reshape(q.shape[1], -1)
        here = np.stack([np.abs(rows - row).max(1) > 1e-5 * np.abs(rows).max() for row in rows])
        apart = apart | here if len(apart) else here
        if np.triu(apart, 1).sum() == len(rows) * (len(rows) - 1) / 2:
            break
    return sum(bool(apart[i, :i].all()) for i in range(len(apart)))


def differences(found: RunSet, env: str) -> pd.DataFrame:
    """A row per field in which the labels of a game do not all agree, a column per label."""
    configs = {label: runs[0].config for (e, label), runs in found.groups().items() if e == env}
    flat = {label: flatten(config) for label, config in configs.items()}
    fields = [name for name in differing_fields(list(configs.values())) if name not in ("label", "algo.name")]
    rows = [{"field": name, **{label: _shown(field_value(flat[label], name)) for label in configs}} for name in fields]
    return pd.DataFrame(rows, columns=["field", *configs])


def beside_the_paper(found: RunSet, notes: list[str]) -> dict[str, tuple[pd.DataFrame, pd.DataFrame]]:
    """By horizon: scores by game, ours and the paper's; and the summary of each column."""
    tables = {}
    for at in HORIZONS:
        table = paper_table(at)
        said: list[str] = []
        ours, _ = our_scores(found, table, said)
        if ours.empty:
            continue
        notes += [f"{at}: {note}" for note in said]
        scores = by_game(table, ours)
        summed = summary(table, scores).rename_axis("method").reset_index()
        tables[at] = (scores.rename_axis("game").reset_index(), summed)
    return tables


def _mean(numbers: Sequence[float]) -> float:
    known = [number for number in numbers if np.isfinite(number)]
    return sum(known) / len(known) if known else NAN


def _said(runs: Sequence[Run], field: str) -> str:
    return ", ".join(sorted({str(run.meta[field]) for run in runs if run.meta.get(field) is not None}))


def _shown(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
