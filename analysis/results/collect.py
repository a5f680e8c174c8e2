"""Make the tables and the provenance of kept results from runs."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from analysis.compare import our_scores
from analysis.figures.catalogue import KINDS
from analysis.figures.grid import MOST_GAMES
from analysis.figures.tables import CITED
from analysis.findings.decide import as_table, decide
from analysis.late import late_table, not_alike
from analysis.metrics import Metrics, compute
from analysis.paper.tables import HORIZONS, paper_table
from analysis.results import store
from analysis.results.provenance import provenance
from analysis.runs import AnalysisError, RunSet, read_runs

FIGURES = ("study", "learning_curves", "series", "mechanism", "ablation")  # unless --figures names others


def collect(paths: Sequence[Path], out: Path, scale: str | None, figures: Sequence[str] | None) -> store.Kept:
    """Everything that is kept of these runs and of those already in `out`, except the page and the images."""
    new = read_runs(paths) if paths else RunSet([])
    directories, taken = store.joined(new, out)
    found = read_runs(directories or [out / store.RUNS])
    metrics = compute(found)
    findings, notes = decide(found)
    scores, about_scores = _scores(found, notes)
    late = late_table(found, metrics)
    skipped = [f"skipped {problem}" for problem in new.problems]
    notes = [*skipped, *metrics.notes, *not_alike(late), *notes]
    about = {**provenance(found, [*paths, out / store.RUNS], scale, notes), "scores": about_scores}
    tables = {"late": late, "findings": as_table(findings), "scores": scores}
    tables = {name: table for name, table in tables.items() if len(table)}
    return store.Kept(about, _figure_tables(found, metrics, figures), tables, taken)


def _figure_tables(found: RunSet, metrics: Metrics, names: Sequence[str] | None) -> dict[str, pd.DataFrame]:
    """The tables of the named figures; without names, of those of FIGURES that show something of their own."""
    tables = {}
    for name in FIGURES if names is None else names:
        try:
            tables[name] = KINDS[name].select(found, metrics)
        except AnalysisError as error:
            if names is not None:
                raise AnalysisError(f"--figures {name}: {error}") from None
    if names is None:
        if len(found.envs) <= MOST_GAMES and CITED not in _values(tables, "learning_curves", "group"):
            tables.pop("learning_curves", None)  # the first row of `study` shows the same
        if "member_correlation" not in _values(tables, "mechanism", "metric"):
            tables.pop("mechanism", None)  # one run of each label
    return tables


def _values(tables: dict[str, pd.DataFrame], name: str, column: str) -> set[str]:
    return set(tables[name][column]) if name in tables else set()


def _scores(found: RunSet, notes: list[str]) -> tuple[pd.DataFrame, str]:
    """A row per Atari game and label: our score beside those of the paper's table with the next longer horizon.

    A label's score is taken at the end of its runs or, if none is finished, at the last step that all of them reached.
    """
    games = paper_table("100k").scores.index
    atari = RunSet([run for run in found.runs if run.env in games and run.last_evaluation])
    longest = max((run.total_steps for run in atari.runs), default=0)
    at = next((name for name, step in HORIZONS.items() if 0 < longest <= step), None)
    if at is None:
        return pd.DataFrame(), ""
    table = paper_table(at)
    rows = []
    for (env, label), runs in atari.groups().items():
        reached = [run.last_evaluation for run in runs]
        after = longest if max(reached) == longest else min(reached)
        ours, counts = our_scores(RunSet(runs), table, notes, after)
        if ours.empty:
            continue
        row = {"game": env, "label": label, "interactions": after}
        row |= {"seeds": counts.loc[env, label], "ours": ours.loc[env, label]}
        theirs = {"random": table.random[env], **table.scores.loc[env], "human": table.human[env]}
        rows.append(row | {f"paper: {name}": score for name, score in theirs.items()})
    return pd.DataFrame(rows), f"Mean returns of greedy episodes; the paper's after {HORIZONS[at]:,} interactions"
