"""Reuse across studies: a run that another study has finished is copied instead of being trained again."""

import contextlib
from dataclasses import asdict
from pathlib import Path

import yaml

from meanq.config.errors import ConfigError
from meanq.config.fields import is_content
from meanq.config.schema import Config
from meanq.rundir.circumstances import circumstances
from meanq.rundir.files import write_atomically, write_json
from meanq.rundir.identity import differences
from meanq.rundir.layout import CONFIG, META, PROBES, STATUS, TABLES, WEIGHTS, run_directory
from meanq.rundir.lock import BusyError, DirectoryLock
from meanq.rundir.reader import read_config, read_json_if_valid, read_status


def reuse(config: Config) -> Path | None:
    """Copy a finished run that equals this one, which has not begun. Returns its directory; None means: train it.

    Errors while copying are ignored, because training reports them where they matter.
    """
    if config.checkpoint.keep:  # a copy has no checkpoint
        return None
    twin = find_twin(config)
    if twin is not None:
        with contextlib.suppress(BusyError, OSError):
            copy_run(twin, config)
            return twin
    return None


def find_twin(config: Config) -> Path | None:
    """Find a finished run below the same root that differs from this one in its names only.

    It was made with the same package versions; its commit may differ, which `said_of` reports.
    """
    directory = run_directory(config)
    versions = circumstances()["versions"]
    for found in sorted(Path(config.root).glob(f"*/{config.env.name}/*/seed_{config.seed}")):
        with contextlib.suppress(OSError, ConfigError):  # a damaged run is no twin
            if found == directory or read_status(found).get("state") != "finished":
                continue
            if any(is_content(difference.partition(":")[0]) for difference in differences(found, config)):
                continue
            if read_json_if_valid(found / META).get("versions") == versions:
                return found
    return None


def said_of(twin: Path) -> str:
    """Say which commit trained a copied run, where it is another one than today's."""
    theirs, ours = read_json_if_valid(twin / META).get("commit"), circumstances()["commit"]
    return "" if theirs == ours else f", trained by commit {theirs} (here is {ours})"


def copy_run(source: Path, config: Config) -> None:
    """Copy a finished run into the directory of this one. The status comes last: without it, the run is trained."""
    directory = run_directory(config)
    directory.mkdir(parents=True, exist_ok=True)
    lock = DirectoryLock(directory)
    lock.acquire()
    try:
        write_atomically(directory / CONFIG, yaml.safe_dump(asdict(config), sort_keys=False).encode())
        for name in (*TABLES, PROBES, WEIGHTS):
            write_atomically(directory / name, (source / name).read_bytes())
        stored = read_config(source)
        meta = read_json_if_valid(source / META)
        meta.setdefault("copied_from", f"{stored['study']}, {stored['label']}")  # of a copy: where it was trained
        write_json(directory / META, meta)
        write_atomically(directory / STATUS, (source / STATUS).read_bytes())
    finally:
        lock.release()
