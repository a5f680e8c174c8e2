"""Every static figure: its table from runs, and its picture and caption from the table."""

import io
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis import aggregate
from analysis.figures.aggregates import draw_aggregates, draw_improvements, draw_profiles, pairs_to_compare
from analysis.figures.curves import (
    MECHANISM_AVERAGES,
    MECHANISM_ROWS,
    SPREADS,
    STUDY_AVERAGES,
    STUDY_ROWS,
    draw_ablation,
    draw_learning_curves,
    draw_mechanism,
    draw_study,
)
from analysis.figures.grid import MOST_GAMES
from analysis.figures.palette import Style, split_label, styles
from analysis.figures.panels import save, settings
from analysis.figures.series import draw_series, series_table
from analysis.figures.tables import (
    AVERAGE,
    CITED,
    cited_rows,
    count_runs,
    curve_table,
    game_name,
    listed,
    need,
    number_of_runs,
    read_table,
)
from analysis.late import late_table
from analysis.metrics import Metrics
from analysis.runs import AnalysisError, RunSet
from meanq.metrics.registry import METRICS, shown_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Looks = Mapping[str, Style]


@dataclass(frozen=True)
class Drawn:
    """A figure in <name>.svg and <name>.png, and <name>.csv, the table that it shows."""

    name: str
    title: str
    caption: str
    data: pd.DataFrame


@dataclass
class Drawings:
    """What was drawn, and why something was not, by name."""

    drawn: list[Drawn] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Kind:
    """A figure: its table from runs (AnalysisError: why there is none), and the picture and caption of a table."""

    title: str
    select: Callable[[RunSet, Metrics], pd.DataFrame]
    draw: Callable[[pd.DataFrame, Looks], tuple["Figure", str]]
    labels: str = "algo"  # the column with the labels


def draw_all(found: RunSet, metrics: Metrics, directory: Path, only: Iterable[str] | None = None) -> Drawings:
    """Every figure that the runs have data for, into a directory."""
    drawings = Drawings()
    tables = {}
    for name in KINDS if only is None else only:
        try:
            tables[name] = KINDS[name].select(found, metrics)
        except AnalysisError as error:
            drawings.missing[name] = str(error)
    drawings.drawn = draw_tables(tables, styles(found.labels), directory)
    return drawings


def draw_tables(tables: Mapping[str, pd.DataFrame], looks: Looks, directory: Path, png: bool = True) -> list[Drawn]:
    """Several at once where there are several cores: drawing is most of the time that a report takes."""
    draw = partial(draw_table, looks=looks, directory=directory, png=png)
    processes = min(len(tables), _cores())
    if processes < 2:
        return list(map(draw, tables.keys(), tables.values()))
    with ProcessPoolExecutor(processes, multiprocessing.get_context("fork")) as pool:
        return list(pool.map(draw, tables.keys(), tables.values()))


def _cores() -> int:
    """That may be used; 1 where processes cannot safely be forked."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def draw_table(name: str, table: pd.DataFrame, looks: Looks, directory: Path, png: bool = True) -> Drawn:
    """One figure from its table; what is drawn is what the file says, digit by digit."""
    directory.mkdir(parents=True, exist_ok=True)
    text = table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    (directory / f"{name}.csv").write_text(text)
    table = read_table(io.StringIO(text))
    kind = KINDS[name]
    with settings():
        figure, caption = kind.draw(table, looks)
        save(figure, directory / name, kind.title, caption, png)
    return Drawn(name, kind.title, caption, table)


def contents(drawn: Drawn) -> str:
    """What a figure shows, in a line: return and bias of V(s0) in MinAtar Breakout, 1 run of each of 4 methods."""
    methods = len(all_labels({drawn.name: drawn.data}))
    of = f"each of {methods} methods" if methods > 1 else "one method"
    if KINDS[drawn.name].labels == "label":
        return f"{drawn.title} of {of}"
    present = set(drawn.data["metric"].replace("normalised_return", "return"))
    *others, last = (metric.title for metric in shown_in(drawn.name) if {metric.name, metric.column} & present)
    shown = f"{', '.join(others)} and {last}" if others else last
    shown += f" over {drawn.data['field'].iloc[0]}" if "field" in drawn.data else ""
    table = drawn.data[drawn.data["env"] != AVERAGE]
    if table.empty:
        return f"{shown} of {of}, average over {drawn.data['n'].max()} games"
    games = listed(map(game_name, sorted(set(table["env"]))))
    average = ", and their average" if len(table) < len(drawn.data) else ""
    runs = count_runs(table, of) if "group" in table else number_of_runs(table["n"], of)
    return f"{shown} in {games}{average}, {runs}"


# --- which rows a figure shows --------------------------------------------------------------------------------------


def learning_curve_rows(found: RunSet, metrics: Metrics) -> pd.DataFrame:
    """Returns, their average over games where they can be normalised, and what the paper cites."""
    rows = curve_table(metrics.table, ["return"], ["normalised_return"])
    need(not rows.empty, "no run has been evaluated yet")
    envs = set(rows["env"])
    from_paper = cited_rows(found.lengths, envs - {AVERAGE}, average=AVERAGE in envs)
    return pd.concat([rows, from_paper], ignore_index=True) if len(from_paper) else rows


def ablation_rows(found: RunSet, metrics: Metrics) -> pd.DataFrame:
    """Learning curves of Rainbow, its variants, and the main agent."""
    table = metrics.table
    algorithms = {label: split_label(label)[0] for label in sorted(set(table["algo"]))}
    variants = [label for label, name in algorithms.items() if name.startswith("rainbow_")]
    need(bool(variants), "no runs of a variant of Rainbow (a label that begins with rainbow_)")
    wanted = [*variants, *(label for label, name in algorithms.items() if name in ("rainbow", "meanq_rainbow"))]
    need(len(wanted) > 1, f"{variants[0]} alone: neither Rainbow nor the main agent to compare it with")
    return learning_curve_rows(found, replace(metrics, table=table[table["algo"].isin(wanted)]))


def study_rows(found: RunSet, metrics: Metrics) -> pd.DataFrame:
    """The paper's four metrics; std and gap as they are where no game has scores to normalise by."""
    normalised = "normalised_std" in set(metrics.table["metric"])
    spreads = {name for name in SPREADS if bool(METRICS[name].ratio_of) == normalised}
    names = [name for name in STUDY_ROWS if name not in SPREADS or name in spreads]
    rows = curve_table(metrics.table, names, STUDY_AVERAGES)
    if "normalised_return" not in set(rows["metric"]):  # where not every game has such a score, there is no average
        rows = rows[rows["env"] != AVERAGE]
    need(not rows.empty, "no run has been evaluated yet")
    return _fewer_columns(rows)


def mechanism_rows(found: RunSet, metrics: Metrics) -> pd.DataFrame:
    """What the members of ensembles share."""
    rows = curve_table(metrics.table, list(MECHANISM_ROWS), MECHANISM_AVERAGES)
    need(not rows.empty, "no ensemble has been probed")
    return _fewer_columns(rows)


def series_rows(found: RunSet, metrics: Metrics) -> pd.DataFrame:
    """The longest series of labels."""
    return series_table(late_table(found, metrics))


def aggregate_rows(found: RunSet, metrics: Metrics) -> pd.DataFrame:
    """With the step that scores are from."""
    scores = aggregate.collect(found)
    return aggregate.aggregates(scores).assign(steps=_steps(scores))


def profile_rows(found: RunSet, metrics: Metrics) -> pd.DataFrame:
    """From 0 to the highest score, or to twice the reference."""
    scores = aggregate.collect(found)
    highest = max(float(matrix.max()) for matrix in scores.matrices.values())
    need(highest > 0, "no score is above that of random play")
    runs = {label: matrix.size for label, matrix in scores.matrices.items()}
    table = aggregate.profiles(scores, np.linspace(0, min(highest, aggregate.THRESHOLDS[-1]), 41))
    return table.assign(runs=table["label"].map(runs), steps=_steps(scores))


def improvement_rows(found: RunSet, metrics: Metrics) -> pd.DataFrame:
    """Of every two labels; of many labels, of one with every other one."""
    scores = aggregate.collect(found)
    need(len(scores.matrices) > 1, "one label only: nothing to compare it with")
    table = aggregate.improvements(scores, pairs_to_compare(list(scores.matrices)))
    return table.assign(games=len(scores.envs), steps=_steps(scores))


def _fewer_columns(rows: pd.DataFrame) -> pd.DataFrame:
    """With more games than there is room for, their average only."""
    if rows[rows["env"] != AVERAGE]["env"].nunique() <= MOST_GAMES:
        return rows
    average = rows[rows["env"] == AVERAGE]
    need(
        not average.empty,
        f"more than {MOST_GAMES} games, and no average over them: give the directories of at most {MOST_GAMES}",
    )
    return average


def _steps(scores: aggregate.Scores) -> str:
    steps = sorted(set(scores.steps.values()))
    return f"{steps[0]}" if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"


# --- the figures ----------------------------------------------------------------------------------------------------

KINDS = {
    "learning_curves": Kind("Learning curves", learning_curve_rows, draw_learning_curves),
    "study": Kind("Return, bias, standard deviation and Jensen gap", study_rows, draw_study),
    "ablation": Kind("Larger model and more updates", ablation_rows, draw_ablation),
    "series": Kind(
        "Over a number in which labels differ",
        lambda found, metrics: series_table(late_table(found, metrics)),
        draw_series,
    ),
    "mechanism": Kind("What the members of ensembles share", mechanism_rows, draw_mechanism),
    "aggregates": Kind("Aggregates over games", aggregate_rows, draw_aggregates, "label"),
    "profiles": Kind("Performance profiles", profile_rows, draw_profiles, "label"),
    "improvements": Kind("Probability of improvement", improvement_rows, draw_improvements, "label"),
}


def read_tables(paths: Sequence[Path]) -> dict[str, pd.DataFrame]:
    """Tables of figures by name, which is that of the file."""
    tables = {}
    for path in paths:
        if path.stem in tables:
            raise AnalysisError(f"{path}: a second table of {path.stem}; draw them one by one, each with its --out")
        if path.stem not in KINDS:
            raise AnalysisError(f"{path}: not the table of a figure; those are called {', '.join(KINDS)}.csv")
        try:
            table = read_table(path)
        except (OSError, ValueError) as error:
            raise AnalysisError(f"{path}: {' '.join(str(error).split())}") from None
        if KINDS[path.stem].labels not in table:
            raise AnalysisError(f"{path}: not the table of {path.stem}: no column {KINDS[path.stem].labels}")
        tables[path.stem] = table
    return tables


def all_labels(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """Of the tables together, without what the paper cites."""
    found: set[str] = set()
    for name, table in tables.items():
        rows = table[table["group"] != CITED] if "group" in table else table
        found |= set(rows[KINDS[name].labels])
        found |= set(rows["other"]) if "other" in rows else set()
    return sorted(found)
