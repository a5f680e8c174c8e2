"""Make the tables and the provenance of kept results from runs."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd

from meanq.launching.study import Study, load_study, study_names

from ..compare import run_scores
from ..figures.arrows import arrow_rows, ordered_pairs
from ..figures.catalogue import KINDS
from ..figures.form import MOST_WITH_SPREAD
from ..figures.tables import CITED, MOST_GAMES
from ..findings.decide import as_table, decide
from ..findings.pairs import judge_pairs
from ..late import late_table, not_alike
from ..metrics import OVER, Metrics, compute
from ..paper.tables import HORIZONS, paper_table
from ..runs import AnalysisError, RunSet, read_runs
from . import store
from .provenance import provenance

FIGURES = ("study", "learning_curves", "late_returns", "series", "mechanism", "optimisation", "errors")
STARVED, FREE = 0.1, 0.5  # shares of Adam's step: below the one, and above the other


def collect(paths: Sequence[Path], out: Path, scale: str | None, study: str | None = None) -> store.Kept:
    """Everything that is kept of these runs and of those already in `out`, except the page and the images."""
    planned = load_study(study) if study is not None else None  # a mistake is told before runs are read
    scale = planned.only_scale(scale) if planned else scale
    new = read_runs(paths) if paths else RunSet([])
    directories, taken = store.joined(new, out)
    found = read_runs(directories or [out / store.RUNS])
    metrics = compute(found)
    findings, notes = decide(found)
    scores, about_scores = _scores(found, notes)
    late = late_table(found, metrics)
    skipped = [f"skipped {problem}" for problem in new.problems]
    notes = [*skipped, *metrics.notes, *not_alike(late), *notes]
    about = {**provenance(found, [*paths, out / store.RUNS], scale, notes, planned), "scores": about_scores}
    switched = _switched(about["study"], planned)
    pairs = judge_pairs(found, ordered_pairs(found, switched)) if switched else pd.DataFrame()
    tables = {"late": late, "pairs": pairs, "findings": as_table(findings), "scores": scores}
    tables = {name: table for name, table in tables.items() if len(table)}
    return store.Kept(about, _figure_tables(found, metrics, switched), tables, taken)


def _switched(name: str, planned: Study | None) -> str:
    """The field that a study switches; empty where it is no such study."""
    study = planned or (load_study(name) if name in study_names() else None)
    return study.switched if study else ""


def _figure_tables(found: RunSet, metrics: Metrics, switched: str) -> dict[str, pd.DataFrame]:
    """The tables of those of FIGURES that show something of their own, and of arrows if the study switches a field."""
    tables = {}
    for name in FIGURES:
        with suppress(AnalysisError):  # these runs have nothing to draw
            tables[name] = KINDS[name].select(found, metrics)
    with suppress(AnalysisError):
        tables |= {"arrows": arrow_rows(found, metrics, switched)} if switched else {}
    if len(found.envs) <= MOST_GAMES and CITED not in set(tables["learning_curves"]["scope"]):
        del tables["learning_curves"]  # the first row of `study` shows the same
    if "mechanism" in tables and "member_correlation" not in set(tables["mechanism"]["metric"]):
        del tables["mechanism"]  # one run of each label
    if len(found.labels) <= MOST_WITH_SPREAD:
        tables.pop("late_returns", None)  # few curves are easy to follow
    if "optimisation" in tables and not _differ_in_shares(tables["optimisation"]):
        del tables["optimisation"]
    return tables


def _differ_in_shares(rows: pd.DataFrame) -> bool:
    """Whether a layer is starved with one label and free with another, at any step."""
    shares = rows[rows["metric"].str.startswith("adam_share_") & (rows["scope"] == OVER)]
    ends = shares.groupby(["env", "metric", "step"])["value"].agg(["min", "max"])
    return bool(((ends["min"] < STARVED) & (ends["max"] > FREE)).any())


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
        step = longest if max(reached) == longest else min(reached)
        for values in run_scores(RunSet(runs), table, notes, step).values():  # of this game and label, if any
            row = {"game": env, "label": label, "interactions": step, "seeds": len(values), "ours": np.mean(values)}
            theirs = {"random": table.random[env], **table.scores.loc[env], "human": table.human[env]}
            rows.append(row | {f"paper: {name}": score for name, score in theirs.items()})
    return pd.DataFrame(rows), f"Mean returns of greedy episodes; the paper's after {HORIZONS[at]:,} interactions"
