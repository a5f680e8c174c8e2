"""The tables of the report, as frames. Columns called `game` and `label` say what a row is about."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from meanq.config.fields import field_value, flatten
from meanq.metrics.registry import METRICS, describe

from ..compare import by_game, run_scores, summary
from ..metrics import OVER, average_steps_to_reference
from ..paper.tables import HORIZONS, paper_table
from ..runs import Run, RunSet, differing_fields

Groups = Mapping[tuple[str, str], list[Run]]  # by game and label, in the order of legends


def diagnosis(metrics: pd.DataFrame, labels: Sequence[str]) -> dict[str, pd.DataFrame]:
    """A card per label that has one: measures of its networks, in the rows, at the last step of each game."""
    rows = metrics[metrics["scope"] == OVER].dropna(subset="value")
    rows = rows[rows["metric"].map(lambda name: describe(name).is_in("diagnosis")).astype(bool)]
    last = rows.sort_values("step", kind="stable").drop_duplicates(["env", "label", "metric"], keep="last")
    order = [metric.meaning for metric in METRICS.values()]  # of a layer's metric, too
    cards = {}
    for label in labels:
        values = last[last["label"] == label].pivot(index="metric", columns="env", values="value")
        if "feature_rank" in values.index:
            values = values.loc[sorted(values.index, key=lambda name: (order.index(describe(name).meaning), name))]
            cards[label] = values.rename(index=lambda name: describe(name).title).rename_axis("measure").reset_index()
    return cards


def runs_table(groups: Groups) -> pd.DataFrame:
    """A row per run; wall-clock time is that of training and evaluation, of unfinished runs up to now."""
    rows = []
    for run in (run for runs in groups.values() for run in runs):
        reached = run.timings["step"].iloc[-1] if len(run.timings) else run.last_evaluation
        speed = reached / run.seconds if run.seconds else float("nan")
        progress = (run.state, run.last_evaluation, run.total_steps, run.seconds / 60, speed)
        about = (str(run.meta.get("device") or ""), str(run.meta.get("commit") or "")[:10], str(run.directory))
        rows.append((run.env, run.label, run.seed, *progress, *about))
    progress_columns = ["state", "evaluated to", "of", "minutes", "interactions per second"]
    return pd.DataFrame(rows, columns=["game", "label", "seed", *progress_columns, "device", "commit", "directory"])


def cost(runs: pd.DataFrame) -> pd.DataFrame:
    """Means over the runs of a label, from `runs_table`."""
    by_label = runs.groupby(["game", "label"], sort=False)
    table = by_label[["minutes", "interactions per second"]].mean()
    table["hours in all"] = by_label["minutes"].sum() / 60
    table["device"] = by_label["device"].agg(lambda names: ", ".join(sorted(set(names))))
    return table.rename(columns={"minutes": "minutes per run"}).reset_index()


def steps_to_average(found: RunSet, labels: list[str]) -> pd.DataFrame:
    """By label: when the mean normalised return over all games that have one is at 1 or above; empty for one game."""
    scored = [env for env in found.envs if all(run.scores for run in found.runs if run.env == env)]
    rows = []
    for label in labels if len(scored) > 1 else []:
        reached = pd.Series(average_steps_to_reference(found, label, scored), dtype=float)
        rows.append((label, len(scored), len(reached), reached.count(), reached.mean(), reached.std()))
    return pd.DataFrame(rows, columns=["label", "games", "seeds", "that get there", "steps, mean", "± std"])


def differences(groups: Groups) -> pd.DataFrame:
    """A row per game and field in which its labels do not all agree, a column per label."""
    rows = []
    for env in dict.fromkeys(env for env, _ in groups):
        configs = {label: runs[0].config for (game, label), runs in groups.items() if game == env}
        flat = {label: flatten(config) for label, config in configs.items()}
        for name in differing_fields(list(configs.values())):
            if name not in ("label", "algo.name"):
                values = {label: _shown(field_value(flat[label], name)) for label in configs}
                rows.append({"game": env, "field": name, **values})
    return pd.DataFrame(rows).fillna("")


def beside_the_paper(found: RunSet, notes: list[str]) -> dict[str, tuple[pd.DataFrame, pd.DataFrame]]:
    """By horizon: scores by game, ours and the paper's; and the summary of each column."""
    tables = {}
    for at in HORIZONS:
        table = paper_table(at)
        said: list[str] = []
        ours = run_scores(found, table, said)
        if not ours:
            continue
        notes += [f"{at}: {note}" for note in said]
        scores = by_game(table, ours)
        summed = summary(table, scores).rename_axis("method").reset_index()
        tables[at] = (scores.rename_axis("game").reset_index(), summed)
    return tables


def _shown(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
