"""Uploads runs to W&B from their directories: those trained without W&B, offline, or while W&B was down.

python -m meanq.wandb_upload runs                      every finished or failed run below runs/, each step once
python -m meanq.wandb_upload runs --mode offline       into <run>/wandb, for `wandb sync`; needs no network
"""

import argparse
import dataclasses
import os
import sys
from pathlib import Path

from meanq.config.checks import check_logger
from meanq.config.errors import ConfigError
from meanq.config.schema import LoggerConfig
from meanq.mirrors.points import read_points
from meanq.mirrors.process import ProcessMirror
from meanq.mirrors.wandb import destination, has_key, is_mirrored
from meanq.rundir.layout import CONFIG, STATUS
from meanq.rundir.lock import lock_holder
from meanq.rundir.reader import UnreadableFileError, find_runs, read_config, read_status

_MAX_FAILURES = 3  # consecutive runs; then W&B seems to be down


class UploadError(RuntimeError):
    """W&B does not have the run; the mirror has printed why."""


def reason_to_skip(directory: Path) -> str | None:
    """Say why a run is not to be uploaded now; None where it is."""
    if holder := lock_holder(directory):
        return f"is being trained, by process {holder.get('pid')} on {holder.get('host')}"
    state = read_status(directory).get("state", "unknown")
    return None if state in ("finished", "failed") else f"is not finished: its state is {state}"


def logger_settings(directory: Path, arguments: argparse.Namespace) -> LoggerConfig:
    """Combine the settings of the run, if its logger was W&B, with those of the command, which prevail."""
    stored = read_config(directory).get("logger") or {}
    known = {field.name for field in dataclasses.fields(LoggerConfig)}
    kept = {name: value for name, value in stored.items() if name in known} if stored.get("name") == "wandb" else {}
    chosen = {name: getattr(arguments, name) for name in ("project", "entity", "tags", "weights")}
    given = {name: value for name, value in chosen.items() if value is not None}
    fixed = {"name": "wandb", "mode": arguments.mode, "finish_seconds": arguments.seconds}
    logger = LoggerConfig(**{**kept, **given, **fixed})
    check_logger(logger)
    return logger


def upload(directory: Path, arguments: argparse.Namespace) -> str:
    """Upload one run; returns what was done, in words."""
    state = read_status(directory)["state"]
    logger = logger_settings(directory, arguments)
    where = destination(logger, arguments.mode)
    if not arguments.force and is_mirrored(directory, where, state):
        return "is there already"
    points = read_points(directory)
    try:
        mirror = ProcessMirror(logger, directory)
    except OSError as error:
        raise PermissionError(f"{directory}: not uploaded; its own directory has to be writable ({error})") from None
    mirror.update(points[-1].step if points else 0)
    mirror.close(state)
    if not is_mirrored(directory, where, state):
        raise UploadError(f"{directory}: not uploaded; the line above says why")
    return f"uploaded, {len(points)} steps"


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m meanq.wandb_upload", description=__doc__.split("\n")[0])
    parser.add_argument("root", type=Path, help="a directory with runs below it, or a run's own")
    parser.add_argument("--project", help="default: the run's logger.project, or meanq")
    parser.add_argument("--entity", help="user or team; default: the run's logger.entity, or W&B's default")
    parser.add_argument("--mode", choices=("online", "offline"), default="online")
    parser.add_argument("--tags", nargs="+", help="instead of the run's logger.tags")
    parser.add_argument("--weights", action="store_const", const=True, help="also weights.safetensors, as an artifact")
    parser.add_argument(
        "--force", action="store_true", help="also runs that have been uploaded according to mirror.json"
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="give up a run after this time (default: 600)")
    arguments = parser.parse_args(argv)
    try:
        return _upload_all(arguments)
    except ConfigError as error:
        print(f"meanq: {error}", file=sys.stderr)
        return 1


def _upload_all(arguments: argparse.Namespace) -> int:
    root = arguments.root
    if not root.is_dir():
        raise ConfigError(f"{root}: no such directory; write the root of your runs")
    runs = [path for path in find_runs([root], []) if (path / CONFIG).exists() and (path / STATUS).exists()]
    if not runs:
        raise ConfigError(f"{root}: no runs there; a run is a directory with {CONFIG} and {STATUS}")
    os.environ["WANDB_SILENT"] = "true"
    if arguments.mode == "online" and not has_key():
        raise ConfigError("no W&B API key: run `wandb login`, set WANDB_API_KEY, or write --mode offline")
    uploaded, failed, in_a_row = 0, 0, 0
    for directory in runs:
        if reason := reason_to_skip(directory):
            print(f"{directory}: skipped, {reason}")
            continue
        try:
            outcome = upload(directory, arguments)
        except (UnreadableFileError, PermissionError, UploadError) as error:
            print(f"meanq: {error}", file=sys.stderr)
            failed += 1
            in_a_row = in_a_row + 1 if isinstance(error, UploadError) else 0
            if in_a_row == _MAX_FAILURES:
                print(f"meanq: {in_a_row} runs in a row could not be uploaded: W&B is down, it seems", file=sys.stderr)
                break
            continue
        in_a_row = 0
        uploaded += outcome.startswith("uploaded")
        print(f"{directory}: {outcome}")
    print(f"{uploaded} of {len(runs)} run(s) uploaded" if uploaded else "nothing to upload")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
