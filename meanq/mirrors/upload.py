"""Uploads runs to W&B from their directories: those trained without W&B, offline, or while W&B was down.

meanq upload runs                      every finished or failed run below runs/, each step once
meanq upload runs --mode offline       into <run>/wandb, for `wandb sync`; needs no network
"""

import argparse
import os
import sys
from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from meanq.config.checks import check_logger
from meanq.config.errors import ConfigError
from meanq.config.schema import LoggerConfig
from meanq.mirrors.process import ProcessMirror
from meanq.mirrors.sink import read_points
from meanq.mirrors.wandb import destination, has_key, is_mirrored
from meanq.rundir import reader
from meanq.rundir.layout import CONFIG, META, STATUS


def _logger_of(directory: Path, arguments: argparse.Namespace) -> LoggerConfig:
    """Combine the settings of the run with those of the command, which prevail."""
    stored = reader.read_config(directory).get("logger")
    stored = stored if isinstance(stored, dict) else {}
    kept = {name: stored[name] for name in ("project", "entity", "tags", "weights") if name in stored}
    try:
        check_logger(OmegaConf.to_object(OmegaConf.merge(LoggerConfig, {**kept, "name": "wandb"})))  # type: ignore
    except (ConfigError, OmegaConfBaseException) as error:
        raise reader.DamagedFileError(directory / CONFIG, str(error).partition("\n")[0]) from None
    given = {name: value for name in ("project", "entity") if (value := getattr(arguments, name)) is not None}
    fixed = {"name": "wandb", "mode": arguments.mode, "finish_seconds": arguments.seconds}
    logger = LoggerConfig(**{**kept, **given, **fixed})
    check_logger(logger)
    return logger


def upload(directory: Path, arguments: argparse.Namespace) -> str:
    """Upload one run, unless W&B has it or it has not ended; returns what was done, in words. Raises OSError."""
    state = reader.read_json_if_there(directory / STATUS).get("state", "unknown")
    if state not in ("finished", "failed"):
        return f"skipped, is not finished: its state is {reader.printable(str(state), 40)}"
    logger = _logger_of(directory, arguments)
    where = destination(logger, arguments.mode)
    # All files are read before W&B is started, which takes seconds.
    last_step = max((point.step for point in read_points(directory)), default=-1)
    reader.read_json_if_there(directory / META)
    if is_mirrored(directory, where, state, last_step):
        return "is there already"
    mirror = ProcessMirror(logger, directory, pass_on_notes=False)
    mirror.update(max(0, last_step))
    mirror.close(state)
    if not is_mirrored(directory, where, state, last_step):
        raise OSError("the line above says why")
    return "uploaded"


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="meanq upload", description=__doc__.split("\n")[0])
    parser.add_argument("root", type=Path, help="a directory with runs below it, or a run's own")
    parser.add_argument("--project", help="default: the run's logger.project, or meanq")
    parser.add_argument("--entity", help="user or team; default: the run's logger.entity, or W&B's default")
    parser.add_argument("--mode", choices=("online", "offline"), default="online")
    parser.add_argument("--seconds", type=float, default=600.0, help="give up a run after this time (default: 600)")
    try:
        return _upload_all(parser.parse_args(argv))
    except ConfigError as error:
        print(f"meanq: {error}", file=sys.stderr)
        return 1


def _upload_all(arguments: argparse.Namespace) -> int:
    runs = list(reader.find_runs([arguments.root], []))
    if not runs:
        raise ConfigError(f"{arguments.root}: no runs there; write the root of your runs, or a run's own directory")
    os.environ["WANDB_SILENT"] = "true"
    if arguments.mode == "online" and not has_key():
        raise ConfigError("no W&B API key: run `wandb login`, set WANDB_API_KEY, or write --mode offline")
    outcomes = []
    for directory in runs:
        name = reader.printable(str(directory), 1_000)
        try:
            outcomes.append(upload(directory, arguments))
            print(f"{name}: {outcomes[-1]}")
        except OSError as error:  # files that cannot be read or written, or a mirror that failed
            outcomes.append("failed")
            print(f"meanq: {name}: not uploaded; {reader.printable(str(error))}", file=sys.stderr)
    uploaded = outcomes.count("uploaded")
    print(f"{uploaded} of {len(runs)} run(s) uploaded" if uploaded else "nothing to upload")
    return int("failed" in outcomes)
