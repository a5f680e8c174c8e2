"""Studies overlap: a run that another study has finished is copied and not trained again."""

import contextlib
import json
from dataclasses import asdict
from pathlib import Path

import yaml

from meanq.config.fields import is_content
from meanq.config.schema import Config
from meanq.rundir.circumstances import circumstances
from meanq.rundir.files import read_object, read_status, write_atomically
from meanq.rundir.identity import differences
from meanq.rundir.layout import CONFIG, EVALUATIONS, META, PROBES, STATUS, TIMINGS, TRAINING, WEIGHTS, run_directory
from meanq.rundir.lock import BusyError, DirectoryLock


def reuse(config: Config) -> Path | None:
    """Copy a finished run that is the same as this one, which has not begun; where it was, or None: train it.

    Whatever keeps it from being copied will be told by training, in a clear line, or does not matter there.
    """
    if config.checkpoint.keep:  # a copy has none
        return None
    twin = find_twin(config)
    if twin is not None:
        with contextlib.suppress(BusyError, OSError):
            copy_run(twin, config)
            return twin
    return None


def find_twin(config: Config) -> Path | None:
    """A finished run below the same root that differs from this one in nothing but its names.

    Made with the same versions of all packages. Its commit may be another one, which is said where it is copied.
    """
    directory = run_directory(config)
    versions = circumstances()["versions"]
    for found in sorted(Path(config.root).glob(f"*/{config.env.name}/*/seed_{config.seed}")):
        with contextlib.suppress(OSError, ValueError, TypeError, yaml.YAMLError):  # somebody's damaged run is no twin
            if found == directory or read_status(found).get("state") != "finished":
                continue
            if any(is_content(difference.partition(":")[0]) for difference in differences(found, config)):
                continue
            if read_object(found / META).get("versions") == versions:
                return found
    return None


def said_of(twin: Path) -> str:
    """For the line that says that it was copied."""
    theirs, ours = read_object(twin / META).get("commit"), circumstances()["commit"]
    return "" if theirs == ours else f", trained by commit {theirs} (here is {ours})"


def copy_run(source: Path, config: Config) -> None:
    """Make it this run, too. Its status comes last: where that is missing, the run is trained from its beginning."""
    directory = run_directory(config)
    directory.mkdir(parents=True, exist_ok=True)
    lock = DirectoryLock(directory)
    lock.acquire()
    try:
        write_atomically(directory / CONFIG, yaml.safe_dump(asdict(config), sort_keys=False).encode())
        for name in (EVALUATIONS, TRAINING, TIMINGS, PROBES, WEIGHTS):
            write_atomically(directory / name, (source / name).read_bytes())
        stored = yaml.safe_load((source / CONFIG).read_text())
        meta = read_object(source / META)
        meta.setdefault("copied_from", f"{stored['study']}, {stored['label']}")
        write_atomically(directory / META, f"{json.dumps(meta, indent=2)}\n".encode())
        write_atomically(directory / STATUS, (source / STATUS).read_bytes())
    finally:
        lock.release()
