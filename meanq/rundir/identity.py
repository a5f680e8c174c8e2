"""Whether a directory holds the run of a configuration."""

from dataclasses import asdict
from pathlib import Path

from meanq.config.errors import ConfigError
from meanq.config.fields import field_value, flatten, is_identity
from meanq.config.schema import Config
from meanq.rundir.layout import CONFIG, LOCK, TEMPORARY
from meanq.rundir.reader import UnreadableFileError, read_config

REMEDY = "remove the directory to start the run again from the beginning"


def differences(directory: Path, config: Config) -> list[str]:
    """List 'field: stored -> given' for each field in which the run stored here differs from this configuration."""
    try:
        stored = read_config(directory)
    except UnreadableFileError as error:
        raise ConfigError(f"{error.path} cannot be read ({error.reason}); {REMEDY}") from None
    theirs, ours = flatten(stored), flatten(asdict(config))
    pairs = {name: (field_value(theirs, name), field_value(ours, name)) for name in sorted(theirs.keys() | ours.keys())}
    return [f"{name}: {their} -> {our}" for name, (their, our) in pairs.items() if their != our and is_identity(name)]


def check_directory(directory: Path, config: Config) -> None:
    """Raise ConfigError where the directory holds anything but this run. Writes nothing."""
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"root={config.root}: {directory} is a file; write another root, study or label")
    if (directory / CONFIG).exists():
        if different := "; ".join(differences(directory, config)):
            raise ConfigError(f"{directory} holds another run ({different}): write another label= or study=")
    elif any(path.name != LOCK and not TEMPORARY.fullmatch(path.name) for path in directory.glob("*")):
        raise ConfigError(f"{directory} holds files but no {CONFIG}: write another label= or study=")
