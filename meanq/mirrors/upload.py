"""Replay runs into W&B from their directories: what was trained without W&B, offline, or while W&B was down.

python -m meanq.wandb_upload runs                      every finished or failed run below runs/, each step once
python -m meanq.wandb_upload runs --mode offline       into <run>/wandb, for `wandb sync`; needs no network
"""

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

from meanq.config.checks import check_logger
from meanq.config.errors import ConfigError
from meanq.config.schema import LoggerConfig
from meanq.mirrors.points import UnreadableRunError, read_config, read_points
from meanq.mirrors.process import ProcessMirror, destination, has_key, is_mirrored
from meanq.rundir.files import read_status
from meanq.rundir.layout import CONFIG, STATUS
from meanq.rundir.lock import lock_holder
from meanq.rundir.reader import find_runs

_FINAL = ("finished", "failed")
_PATIENCE = 3  # runs that fail one after the other, before it is called an outage


def _state(directory: Path) -> str:
    status: Any = read_status(directory)
    return str(status.get("state")) if isinstance(status, dict) else "unknown"


def reason_to_skip(directory: Path) -> str | None:
    """Why a run is not to be uploaded now; None where it is."""
    if holder := lock_holder(directory):
        return f"is being trained, by process {holder.get('pid')} on {holder.get('host')}"
    state = _state(directory)
    return None if state in _FINAL else f"is not finished: its state is {state}"


def logger_settings(directory: Path, arguments: argparse.Namespace) -> LoggerConfig:
    """As the run was configured, where it was for W&B, and as the command says."""
    stored = read_config(directory).get("logger") or {}
    known = {field.name for field in dataclasses.fields(LoggerConfig)}
    kept = {name: value for name, value in stored.items() if name in known} if stored.get("name") == "wandb" else {}
    chosen = {name: getattr(arguments, name) for name in ("project", "entity", "tags", "weights")}
    changed = {name: value for name, value in chosen.items() if value is not None}
    seconds = {"finish_seconds": arguments.seconds}
    logger = LoggerConfig(**{**kept, "name": "wandb", "mode": arguments.mode, **changed, **seconds})
    check_logger(logger)
    return logger


def upload(directory: Path, arguments: argparse.Namespace) -> str:
    """Mirror one run; what was done, in words."""
    state = _state(directory)
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
        raise ConnectionError(f"{directory}: not uploaded; the line above says why")
    return f"uploaded, {len(points)} steps"


def main(argv: list[str] | None = None) -> int:
    """The command line."""
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
    runs = sorted(path for path in find_runs(root, []) if (path / CONFIG).exists() and (path / STATUS).exists())
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
        except (UnreadableRunError, PermissionError, ConnectionError) as error:
            print(f"meanq: {error}", file=sys.stderr)
            failed += 1
            in_a_row = in_a_row + 1 if isinstance(error, ConnectionError) else 0
            if in_a_row == _PATIENCE:
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
