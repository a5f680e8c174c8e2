"""The files of kept results: read, write, and merge new runs into the kept ones.

A kept run is a run directory without weights, checkpoint and private data (host, paths, tracebacks). It can be read
like any other run, so a study can be continued anywhere: new runs join the kept ones, and all tables are made again.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from meanq.rundir import layout
from meanq.rundir.reader import UnreadableFileError, open_file, read_json

from ..figures.catalogue import KINDS, read_tables
from ..figures.tables import need, read_table
from ..runs import AnalysisError, Run, RunSet, differing_fields, read_runs
from .provenance import PRIVATE, public_overrides, without_paths

PROVENANCE = "provenance.json"
RUNS = "runs"
TABLES = ("late", "pairs", "findings", "scores")


@dataclass(frozen=True)
class Kept:
    """Everything that is kept except the page and the images, which follow from it."""

    about: dict[str, Any]  # provenance.json
    figures: dict[str, pd.DataFrame]  # tables of figures, by name
    tables: dict[str, pd.DataFrame]  # those of TABLES that have rows
    new_runs: Sequence[Run] = ()  # to add to the kept runs


def joined(new: RunSet, directory: Path) -> tuple[list[Path], list[Run]]:
    """The directories of all runs, new and kept, and the new runs to add.

    If a run is in both, the one that got further counts. AnalysisError if a kept run would be lost.
    """
    kept = read_runs([directory / RUNS]).runs if (directory / RUNS).is_dir() else []
    if not kept:
        _check_older_tables(new, directory)
    places = {_place(run): run for run in kept}
    taken = []
    for run in new.runs:
        place = _place(run)
        there = places.get(place, run)
        different = ", ".join(differing_fields([there.config, run.config]))
        remedy = "keep this one in a directory of its own"
        need(
            not different, f"{run.directory}: {directory / RUNS / place} is another run ({different} differ); {remedy}"
        )
        if _progress(run) >= _progress(there):
            places[place] = run
            taken.append(run)
    return [run.directory for run in places.values()], taken


def _progress(run: Run) -> tuple[bool, int]:
    return run.state == "finished", run.last_evaluation


def _place(run: Run) -> Path:
    place = Path(run.env) / str(run.config["label"]) / f"seed_{run.seed}"
    need(not place.is_absolute() and ".." not in place.parts, f"{run.directory}: env.name and label are no plain names")
    return place


def _check_older_tables(found: RunSet, directory: Path) -> None:
    """Refuse to replace tables that were kept without their runs by tables of fewer runs."""
    if not (directory / PROVENANCE).is_file():
        return
    counts = {cell: len(runs) for cell, runs in found.groups().items()}
    for row in read(directory).tables["late"].to_dict("records"):
        lost = f"{directory}: kept without its runs, of which {row['game']}, {row['label']} would be lost"
        enough = counts.get((row["game"], row["label"]), 0) >= row["runs"]
        need(enough, f"{lost}; keep these runs in a directory of their own")


def _copy(run: Run, place: Path) -> None:
    """Copy the files that analysis reads, without private data."""
    place.mkdir(parents=True, exist_ok=True)
    config = {name: value for name, value in run.config.items() if name not in PRIVATE}
    (place / layout.CONFIG).write_text(yaml.safe_dump(config, sort_keys=False))
    meta = _without_host(run.meta)
    meta |= {"overrides": public_overrides(meta)} if "overrides" in meta else {}
    meta |= {"earlier": [_without_host(part) for part in meta["earlier"]]} if "earlier" in meta else {}
    status = {name: run.status[name] for name in ("state", "total_steps", "step") if name in run.status}
    if "reason" in run.status:
        status["reason"] = without_paths([run.directory], str(run.status["reason"]))
    for name, content in ((layout.META, meta), (layout.STATUS, status)):
        (place / name).write_text(json.dumps(content, indent=2) + "\n")
    for name in (*layout.TABLES, layout.PROBES):
        with suppress(FileNotFoundError), open_file(run.directory / name) as file:
            (place / name).write_bytes(file.read())


def _without_host(meta: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in meta.items() if name not in ("host", "platform")}


def read(directory: Path) -> Kept:
    """Read what `write` wrote; figures in the order of the page. AnalysisError where a file cannot be read."""
    try:
        return _read(directory)
    except UnreadableFileError as error:
        raise AnalysisError(str(error)) from None


def _read(directory: Path) -> Kept:
    figures = read_tables(directory / "figures")
    tables = {path.stem: read_table(path) for path in (directory / "tables").glob("*.csv")}
    there = {PROVENANCE: (directory / PROVENANCE).is_file(), "tables/late.csv": "late" in tables, "figures": figures}
    for name, found in there.items():
        need(bool(found), f"{directory}: no {name} here")
    return Kept(read_json(directory / PROVENANCE), figures, tables)


def write(kept: Kept, directory: Path) -> None:
    """Write the kept results; replaces the tables of an older set of runs."""
    for run in kept.new_runs:
        _copy(run, directory / RUNS / _place(run))
    for name in (*KINDS, *TABLES):
        for file in (f"figures/{name}.csv", f"figures/{name}.svg", f"tables/{name}.csv"):
            (directory / file).unlink(missing_ok=True)
    for kind, frames in (("figures", kept.figures), ("tables", kept.tables)):
        (directory / kind).mkdir(parents=True, exist_ok=True)
        for name, frame in frames.items():
            text = frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")
            (directory / kind / f"{name}.csv").write_text(text)
    (directory / PROVENANCE).write_text(json.dumps(kept.about, indent=1, ensure_ascii=False) + "\n")
