"""Reuse across studies: a run that another study has finished is copied instead of being trained again."""

import contextlib
from pathlib import Path

from meanq.config.errors import ConfigError
from meanq.config.fields import is_content
from meanq.config.schema import Config
from meanq.rundir import files, layout, reader
from meanq.rundir.circumstances import circumstances
from meanq.rundir.identity import changed_sources, differences
from meanq.rundir.lock import BusyError
from meanq.rundir.writer import Record


def reuse(config: Config) -> Path | None:
    """Copy a finished run that equals this one, which has not begun. Returns its directory; None means: train it.

    Errors while copying are ignored, because training reports them where they matter.
    """
    twin = None if config.checkpoint.keep else find_twin(config)  # a copy has no checkpoint
    if twin is not None:
        with contextlib.suppress(BusyError, ConfigError, OSError):
            copy_run(twin, config)
            return twin
    return None


def find_twin(config: Config) -> Path | None:
    """Find a finished run below the same root that differs from this one in its names only.

    It was made with the same package versions; its commit may differ, which `said_of` reports.
    """
    directory = layout.run_directory(config)
    versions = circumstances()["versions"]
    for found in sorted(Path(config.root).glob(f"*/{config.env.name}/*/seed_{config.seed}")):
        with contextlib.suppress(OSError, ConfigError):  # a damaged run is no twin
            if found == directory or reader.read_status(found).get("state") != "finished":
                continue
            if any(is_content(difference.partition(":")[0]) for difference in differences(found, config)):
                continue
            if changed_sources(found, config):
                continue
            if reader.read_json_if_valid(found / layout.META).get("versions") == versions:
                return found
    return None


def said_of(twin: Path) -> str:
    """Say which commit trained a copied run, where it is another one than today's."""
    theirs, ours = reader.read_json_if_valid(twin / layout.META).get("commit"), circumstances()["commit"]
    return "" if theirs == ours else f", trained by commit {theirs} (here is {ours})"


def copy_run(source: Path, config: Config) -> None:
    """Copy a finished run into the directory of this one. The status comes last: without it, the run is trained."""
    record = Record(layout.run_directory(config), config)
    record.open()
    try:
        stored, meta = reader.read_config(source), reader.read_json_if_valid(source / layout.META)
        meta.setdefault("copied_from", f"{stored['study']}, {stored['label']}")  # of a copy: where it was trained
        files.write_json(record.directory / layout.META, meta)
        for name in (*layout.TABLES, layout.PROBES, layout.WEIGHTS, layout.STATUS):
            if name == layout.DIAGNOSIS and not (source / name).is_file():
                continue  # not every run has it
            with reader.open_file(source / name) as file:
                files.write_atomically(record.directory / name, file.read())
    finally:
        record.close()
