"""Every static figure: its table from runs, and its picture and caption from the table."""

import io
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from ..labels import say_shared
from ..metrics import Metrics
from ..runs import AnalysisError, RunSet
from . import aggregates, arrows, curves, errors, late_returns, series
from .form import DEFAULT, Form
from .palette import Looks, styles
from .panels import settings
from .tables import CITED, read_table


@dataclass(frozen=True)
class Drawn:
    """A figure in <name>.svg or other formats, and <name>.csv, the table that it shows."""

    name: str
    title: str
    caption: str
    data: pd.DataFrame


@dataclass(frozen=True)
class Kind:
    """A figure: its table from runs (AnalysisError: why there is none), and the picture and caption of a table."""

    title: str
    select: Callable[[RunSet, Metrics], pd.DataFrame]
    draw: Callable[[pd.DataFrame, Looks, Form], tuple["Figure", str]]


KINDS = {
    "learning_curves": Kind("Learning curves", curves.learning_curve_rows, curves.draw_learning_curves),
    "study": Kind("Return, bias, standard deviation and Jensen gap", curves.study_rows, curves.draw_study),
    "series": Kind("Over a number in which labels differ", series.series_rows, series.draw_series),
    "mechanism": Kind("What the members of ensembles share", curves.mechanism_rows, curves.draw_mechanism),
    "optimisation": Kind("What holds learning back", curves.optimisation_rows, curves.draw_optimisation),
    "late_returns": Kind("Returns late in training", late_returns.late_return_rows, late_returns.draw_late_returns),
    "errors": Kind("Errors of values, taken apart", errors.error_rows, errors.draw_errors),
    "arrows": Kind("Return against bias", arrows.arrow_rows, arrows.draw_arrows),
    "aggregates": Kind("Aggregates over games", aggregates.aggregate_rows, aggregates.draw_aggregates),
    "profiles": Kind("Performance profiles", aggregates.profile_rows, aggregates.draw_profiles),
    "improvements": Kind("Probability of improvement", aggregates.improvement_rows, aggregates.draw_improvements),
}


def draw_all(
    found: RunSet,
    metrics: Metrics,
    directory: Path,
    only: Iterable[str] | None = None,
    looks: Looks | None = None,
    form: Form = DEFAULT,
    formats: Sequence[str] = ("svg", "png"),
) -> tuple[list[Drawn], dict[str, str]]:
    """Draw every figure that the runs have data for; also why there is none of the others, by name."""
    tables, missing = {}, {}
    for name in only or KINDS:
        try:
            tables[name] = KINDS[name].select(found, metrics)
        except AnalysisError as error:
            missing[name] = str(error)
    return draw_tables(tables, looks or styles(found.labels), directory, form, formats), missing


def draw_tables(
    tables: Mapping[str, pd.DataFrame],
    looks: Looks,
    directory: Path,
    form: Form = DEFAULT,
    formats: Sequence[str] = ("svg",),
) -> list[Drawn]:
    """Several at once where there are several cores: drawing is most of the time that a report takes."""
    draw = partial(draw_table, looks=looks, directory=directory, form=form, formats=formats)
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1  # elsewhere forking is not safe
    processes = min(len(tables), cores)
    if processes < 2:
        return list(map(draw, tables.keys(), tables.values()))
    with ProcessPoolExecutor(processes, multiprocessing.get_context("fork")) as pool:
        return list(pool.map(draw, tables.keys(), tables.values()))


def draw_table(
    name: str, table: pd.DataFrame, looks: Looks, directory: Path, form: Form, formats: Sequence[str]
) -> Drawn:
    """One figure from its table, in these formats; what is drawn is what the table's file says, digit by digit."""
    stem, kind = directory / name, KINDS[name]
    text = table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    table = read_table(io.StringIO(text))
    with settings():
        figure, caption = kind.draw(table, looks, form)
        caption = f"{caption} {say_shared(all_labels({name: table}))}".strip()
        directory.mkdir(parents=True, exist_ok=True)
        stem.with_suffix(".csv").write_text(text)
        for suffix in formats:
            figure.savefig(stem.with_suffix(f".{suffix}"), dpi=150, metadata=_about(suffix, kind.title, caption))
    return Drawn(name, kind.title, caption, table)


def _about(suffix: str, title: str, caption: str) -> dict[str, str | None]:
    """What a file says about itself; without the time, so that the same table gives the same bytes."""
    if suffix == "pdf":
        return {"Title": title, "Subject": caption, "CreationDate": None}
    return {"Title": title, "Description": caption, **({"Date": None} if suffix == "svg" else {})}


def read_tables(directory: Path) -> dict[str, pd.DataFrame]:
    """Tables of the figures in a directory, by name."""
    paths = {name: directory / f"{name}.csv" for name in KINDS}
    return {name: read_table(path) for name, path in paths.items() if path.is_file()}


def all_labels(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """Of the tables together, without what the paper cites."""
    found: set[str] = set()
    for table in tables.values():
        rows = table[table["scope"] != CITED] if "scope" in table else table
        found.update(*(rows[column] for column in ("label", "other") if column in rows))
    return sorted(found)
