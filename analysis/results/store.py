"""Kept results of a study: the small files of its runs, and the tables that are made from them.

A kept run is a run directory without weights and checkpoint, and without what tells of its machine's user: host,
paths, tracebacks. It is read as any other run. So a study can be continued anywhere: new runs join those that are kept,
and everything is made anew from all of them.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from analysis.figures.kinds import KINDS, read_tables
from analysis.figures.tables import need, read_table
from analysis.results.provenance import without_paths
from analysis.results.rerun_commands import PRIVATE, public_overrides
from analysis.runs import Run, RunSet, differing_fields, read_runs
from meanq.rundir import writer as layout

PROVENANCE = "provenance.json"
RUNS = "runs"
FIGURES = ("study", "learning_curves", "series", "mechanism", "ablation")  # where there is something to show
TABLES = ("late", "findings", "scores")


@dataclass(frozen=True)
class Kept:
    """All that is kept but the page and the pictures, which follow from it."""

    about: dict[str, Any]  # as analysis.provenance
    figures: dict[str, pd.DataFrame]  # tables of figures, by name
    tables: dict[str, pd.DataFrame]  # late in training, verdicts, scores; those that have rows
    new_runs: Sequence[Run] = ()  # to be kept beside those that are there


def joined(new: RunSet, directory: Path) -> tuple[list[Path], list[Run]]:
    """The directories of all runs, new ones and those that are kept, and which of the new ones are to be kept, too.

    Of a run that is in both, the one that has come further. AnalysisError where another run would be lost.
    """
    kept = read_runs([directory / RUNS]).runs if (directory / RUNS).is_dir() else []
    if not kept:
        _check_older_tables(new, directory)
    places = {_place(run): run for run in kept}
    taken = []
    for run in new.runs:
        there = places.get(_place(run))
        if there is not None:
            different = differing_fields([there.config, run.config])
            need(
                not different,
                f"{run.directory}: {directory / RUNS / _place(run)} is another run ({', '.join(different)} differ); "
                "keep this one in a directory of its own",
            )
        if there is None or _progress(run) >= _progress(there):
            places[_place(run)] = run
            taken.append(run)
    return [run.directory for run in places.values()], taken


def _progress(run: Run) -> tuple[bool, int]:
    return run.state == "finished", run.last_evaluation


def _place(run: Run) -> Path:
    place = Path(run.env) / str(run.config["label"]) / f"seed_{run.seed}"
    need(not place.is_absolute() and ".." not in place.parts, f"{run.directory}: env.name and label are no plain names")
    return place


def _check_older_tables(found: RunSet, directory: Path) -> None:
    """Tables that were kept without their runs must not be replaced by those of fewer runs."""
    if not (directory / PROVENANCE).is_file():
        return
    counts = {cell: len(runs) for cell, runs in found.groups().items()}
    for row in read(directory).tables["late"].to_dict("records"):
        need(
            counts.get((row["game"], row["label"]), 0) >= row["runs"],
            f"{directory}: kept without its runs, of which {row['game']}, {row['label']} would be lost; keep these "
            "runs in a directory of their own",
        )


def _copy(run: Run, place: Path) -> None:
    """The files that analysis reads, without what tells of the machine's user."""
    place.mkdir(parents=True, exist_ok=True)
    config = {name: value for name, value in run.config.items() if name not in PRIVATE}
    (place / layout.CONFIG).write_text(yaml.safe_dump(config, sort_keys=False))
    meta = {name: value for name, value in run.meta.items() if name not in ("host", "platform")}
    meta |= {"overrides": public_overrides(meta)} if "overrides" in meta else {}
    meta |= {"earlier": [_without_host(part) for part in meta["earlier"]]} if "earlier" in meta else {}
    status = {name: run.status[name] for name in ("state", "total_steps", "step") if name in run.status}
    if "reason" in run.status:
        status["reason"] = without_paths([run.directory], str(run.status["reason"]))
    for name, content in ((layout.META, meta), (layout.STATUS, status)):
        (place / name).write_text(json.dumps(content, indent=2) + "\n")
    for name in (layout.EVALUATIONS, layout.TRAINING, layout.TIMINGS, layout.PROBES):
        if (run.directory / name).is_file():
            shutil.copyfile(run.directory / name, place / name)


def _without_host(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    return {name: value for name, value in part.items() if name not in ("host", "platform")}


def read(directory: Path) -> Kept:
    """What `write` wrote."""
    figures = read_figures(directory)
    need((directory / PROVENANCE).is_file(), f"{directory}: no {PROVENANCE} here")
    about = json.loads((directory / PROVENANCE).read_text())
    tables = {path.stem: read_table(path) for path in (directory / "tables").glob("*.csv")}
    need("late" in tables, f"{directory}: no tables/late.csv here")
    return Kept(about, figures, tables)


def read_figures(directory: Path) -> dict[str, pd.DataFrame]:
    """The tables of its figures alone, in the order of a page."""
    tables = read_tables(sorted((directory / "figures").glob("*.csv")))
    need(bool(tables), f"{directory}: no tables of figures here")
    return {name: tables[name] for name in KINDS if name in tables}


def write(kept: Kept, directory: Path) -> None:
    """Instead of the tables that an older set of runs left there."""
    for run in kept.new_runs:
        _copy(run, directory / RUNS / _place(run))
    for name in (*KINDS, *TABLES):
        for path in (directory / "figures" / f"{name}.csv", directory / "figures" / f"{name}.svg"):
            path.unlink(missing_ok=True)
        (directory / "tables" / f"{name}.csv").unlink(missing_ok=True)
    for kind, frames in (("figures", kept.figures), ("tables", kept.tables)):
        (directory / kind).mkdir(parents=True, exist_ok=True)
        for name, frame in frames.items():
            text = frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")
            (directory / kind / f"{name}.csv").write_text(text)
    (directory / PROVENANCE).write_text(json.dumps(kept.about, indent=1, ensure_ascii=False) + "\n")
