"""The tables of the report, as frames. Columns called `game` and `label` say what a row is about."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare import by_game, our_scores, summary
from analysis.figures.palette import order
from analysis.figures.tables import AVERAGE, need
from analysis.findings.claims import LATE, LEAST_RUNS
from analysis.metrics.compute import DEFAULT_BIAS, Decomposition, Metrics, member_pseudovalues, student_interval
from analysis.paper.tables import HORIZONS, paper_table
from analysis.runs import Run, RunSet, differing_fields
from meanq.config.fields import field_value, flatten

NAN = float("nan")


def at_the_end(found: RunSet, metrics: Metrics, bias: str) -> pd.DataFrame:
    """A row per game and label, at the last evaluation that any of its runs has; `runs at step`: how many have it."""
    means = metrics.table[metrics.table["group"] == "mean"]
    values = {key: part.set_index("step") for key, part in means.groupby(["env", "algo", "metric"], sort=False)}
    spreads = metrics.table[(metrics.table["group"] == "std") & (metrics.table["metric"] == "return")]
    spread = spreads.set_index(["env", "algo", "step"])["value"]
    rows = []
    for (env, label), runs in found.groups().items():
        last = max(run.last_evaluation for run in runs)

        def number(metric: str, env: str = env, label: str = label, last: int = last) -> float:
            part = values.get((env, label, metric))
            return float(part["value"].get(last, NAN)) if part is not None else NAN

        def latest(metric: str, env: str = env, label: str = label) -> float:
            part = values.get((env, label, metric))
            return float(part["value"].iloc[-1]) if part is not None and len(part) else NAN

        rows.append(
            {
                "game": env,
                "label": label,
                "runs": len(runs),
                "step": last or NAN,
                "runs at step": sum(last in run.episode_means.index for run in runs) if last else 0,
                "return": number("return"),
                "± std": float(spread.get((env, label, last), NAN)),
                "normalised return": number("normalised_return"),
                "AUC": number("normalised_auc") if runs[0].scores else number("auc"),
                "steps to reference": latest("steps_to_reference"),
                f"bias ({bias})": number(f"bias_{bias}"),
                "norm. std": latest("normalised_std"),
                "norm. gap": latest("normalised_jensen_gap"),
                "minutes per run": _mean([run.seconds for run in runs]) / 60,
            }
        )
    return pd.DataFrame(rows)


def late(found: RunSet, metrics: Metrics) -> pd.DataFrame:
    """A row per game and label that has been evaluated: the last quarter of training, as far as it has come.

    `step`: how far that is, by the label's furthest run. `not_alike` says where labels are not equally far.
    return, bias: means over the runs that have every evaluation in it, with Student's 95% interval (empty for one run).
    Others: means over the probes in it at which they are defined; correlation and effective size with the jackknife's
    95% interval over the runs that have every probe in it (empty for fewer than 3). Labels in the order of legends.
    """
    rows, groups = [], found.groups()
    games = metrics.table[metrics.table["env"] != AVERAGE]
    parts = {(str(env), str(label)): part for (env, label), part in games.groupby(["env", "algo"], sort=False)}
    rank = {label: i for i, label in enumerate(order(label for _, label in parts))}
    for (env, label), part in sorted(parts.items(), key=lambda item: (item[0][0], rank[item[0][1]])):
        runs = part[part["group"].str.startswith("seed_")]
        if runs.empty:
            continue  # begun, and not evaluated yet
        last = int(runs["step"].max())
        row: dict[str, Any] = {"game": env, "label": label, "step": last, "runs": 0}
        for name, metric in (("return", "return"), ("bias", f"bias_{DEFAULT_BIAS}")):
            window = runs[(runs["metric"] == metric) & (runs["step"] > LATE * last)]
            by_run = window.pivot(index="group", columns="step", values="value").to_numpy(float)
            means = by_run[np.isfinite(by_run).all(axis=1)].mean(axis=1)
            low, high = student_interval(means) if len(means) > 1 else (NAN, NAN)
            row |= {name: means.mean() if len(means) else NAN, f"{name} low": low, f"{name} high": high}
            if name == "return":
                row["runs"] = len(means)
        for name, metric in _LATE_PROBES.items():
            of_runs = part[(part["metric"] == metric) & part["group"].isin(["mean", "all"])]
            row[name] = of_runs[of_runs["step"] > LATE * last]["value"].mean()
        apart, alike = _members_between(groups[env, label], LATE * last)
        row |= {"correlation low": apart.correlation, "correlation high": alike.correlation}
        row |= {"effective size low": alike.effective_size, "effective size high": apart.effective_size}
        rows.append(row)
    need(bool(rows), "no run has been evaluated yet")
    return pd.DataFrame(rows)


def _members_between(runs: Sequence[Run], after: float) -> tuple[Decomposition, Decomposition]:
    """The ends of a 95% interval of what members share, at the probes after this step; NaN where there is none."""
    probed = [run.probes for run in runs if run.probes is not None and run.probes.q.shape[2] > 1]
    steps = sorted({int(step) for probes in probed for step in probes.step if step > after})
    by_run = [[probes.at(step) for step in steps] for probes in probed]
    complete = [[q for q in run if q is not None] for run in by_run if all(q is not None for q in run)]
    low = high = NAN
    if steps and len(complete) >= LEAST_RUNS:
        numbers = member_pseudovalues([np.stack(q) for q in zip(*complete, strict=True)])
        low, high = student_interval(numbers) if np.isfinite(numbers).all() else (NAN, NAN)
    members = probed[0].q.shape[2] if probed else 1
    return Decomposition.with_log_ratio(members, low), Decomposition.with_log_ratio(members, high)


def not_alike(late_table: pd.DataFrame) -> list[str]:
    """What has to be said of games whose labels have not been trained equally far."""
    notes = []
    for game, part in late_table.groupby("game", sort=False):
        low, high = part["step"].min(), part["step"].max()
        if low < high:
            reached = f"{low:,} to {high:,} interactions"
            notes.append(f"{game}: labels have come to {reached}, and late in training is the last quarter of that")
    return notes


_LATE_PROBES = {
    "norm. std": "normalised_std",
    "norm. gap": "normalised_jensen_gap",
    "correlation": "member_correlation",
    "effective size": "effective_size",
}


def runs_table(found: RunSet) -> pd.DataFrame:
    """A row per run."""
    rows = [
        {
            "game": run.env,
            "label": run.label,
            "seed": run.seed,
            "state": run.state,
            "evaluated to": run.last_evaluation,
            "of": run.total_steps,
            "minutes": run.seconds / 60,
            "commit": str(run.meta.get("commit") or "")[:10],
            "directory": str(run.directory),
        }
        for runs in found.groups().values()
        for run in runs
    ]
    return pd.DataFrame(rows)


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
    ratios = table[
        table["metric"].isin(["normalised_std", "normalised_jensen_gap"]) & ~table["group"].isin(["mean", "std"])
    ]
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
            rows.append(
                {
                    "game": env,
                    "probe seed": str(seed),
                    "states": states,
                    "distinct": distinct,
                    "coincide": states - distinct,
                    "runs": len(runs),
                }
            )
    return pd.DataFrame(rows)


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
