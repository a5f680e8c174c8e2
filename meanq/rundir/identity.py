"""Whether a directory holds the run of a configuration."""

import os
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from meanq.config.errors import ConfigError
from meanq.config.extensions import own_code, sources
from meanq.config.fields import field_value, flatten, is_identity
from meanq.config.schema import Config
from meanq.rundir.layout import CONFIG, LOCK, META, TEMPORARY
from meanq.rundir.reader import UnreadableFileError, read_config, read_json_if_valid, read_status

REMEDY = "remove the directory to start the run again from the beginning"


_blocks: dict[int, tuple[Any, Any]] = {}  # by identity, which the entry keeps; seeds of a sweep share their blocks


def _plain(value: Any) -> Any:
    """A field of the configuration as config.yaml has it."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    if id(value) not in _blocks:
        _blocks[id(value)] = value, asdict(value)
    return _blocks[id(value)][1]


def differences(directory: Path, config: Config) -> list[str]:
    """List 'field: stored -> given' for each field in which the run stored here differs from this configuration."""
    stored = read_config(directory)
    plain = {field.name: _plain(getattr(config, field.name)) for field in fields(config)}
    names = [name for name in stored.keys() | plain.keys() if is_identity(name)]
    if all(name in stored and name in plain and stored[name] == plain[name] for name in names):
        return []
    theirs, ours = flatten(stored), flatten(plain)
    pairs = {name: (field_value(theirs, name), field_value(ours, name)) for name in sorted(theirs.keys() | ours.keys())}
    return [f"{name}: {their} -> {our}" for name, (their, our) in pairs.items() if their != our and is_identity(name)]


def changed_sources(directory: Path, config: Config) -> list[str]:
    """List the fields that name a user's own code whose source has changed since the run stored here was trained.

    A run without a checkpoint is not compared, since it starts again from the beginning; nor is one that stored no
    sources.
    """
    status = read_status(directory)
    if status.get("state") != "finished" and "checkpoint" not in status:
        return []
    stored = read_json_if_valid(directory / META).get("sources", {})
    return [field for field, digest in sources(config).items() if stored.get(field, digest) != digest]


def check_directory(directory: Path, config: Config) -> None:
    """Raise ConfigError where the directory holds anything but this run. Writes nothing."""
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"root={config.root}: {directory} is a file; write another root, study or label")
    if os.path.lexists(directory / CONFIG):
        try:
            different, changed = "; ".join(differences(directory, config)), changed_sources(directory, config)
        except UnreadableFileError as error:
            raise ConfigError(f"{error.path} cannot be read ({error.reason}); {REMEDY}") from None
        if different:
            raise ConfigError(f"{directory} holds another run ({different}): write another label= or study=")
        for field in changed:
            remedy = "write another label= or study=, or remove the directory"
            what = f"its source is not the one that {directory} was trained with"
            raise ConfigError(f"{field}={own_code(config)[field]}: {what}; {remedy}")
    elif any(path.name != LOCK and not TEMPORARY.fullmatch(path.name) for path in directory.glob("*")):
        raise ConfigError(f"{directory} holds files but no {CONFIG}: write another label= or study=")
