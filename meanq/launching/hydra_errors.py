"""Messages of Hydra and OmegaConf in the form of our own: one line with field, value and remedy."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from meanq.config.errors import ConfigError, closest
from meanq.config.fields import walk
from meanq.config.reference import group_choices
from meanq.config.schema import CONFIG_DIR
from meanq.launching.hydra_bridge import CONFIG_NAME
from meanq.launching.jobs import override_key

_KINDS = {"Integer": "a whole number", "Float": "a number", "bool": "true or false"}


@contextmanager
def one_line_errors(hydra_overrides: Sequence[str]) -> Iterator[None]:
    """Turn errors of Hydra and OmegaConf into ConfigError."""
    try:
        yield
    except MissingConfigException as error:
        raise ConfigError(_unknown_choice(error)) from None
    except (HydraException, OmegaConfBaseException) as error:
        launcher = re.search(r"Could not override '(hydra\.launcher\.[^']+)'", str(error))
        message = _unknown_launcher_field(launcher[1], hydra_overrides) if launcher else _explain(error)
        raise ConfigError(message) from None


def _unknown_choice(error: MissingConfigException) -> str:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    while group and not (CONFIG_DIR / group).is_dir():
        group, _, head = group.rpartition("/")
        name = f"{head}/{name}"
    if not group:
        return _explain(error)
    if group.startswith("env/"):  # minatar/asterixx is a choice of env, not of env/minatar
        group, name = "env", f"{group.removeprefix('env/')}/{name}"
    added_by_plugins = [option for option in error.options or [] if option[0] != "_"]
    known = [*group_choices(group), *added_by_plugins]
    return f"{group}={name}: there is no such {group.rpartition('/')[2]}{closest(name, set(known))}"


def _unknown_launcher_field(key: str, hydra_overrides: Sequence[str]) -> str:
    chosen = [o for o in hydra_overrides if override_key(o) == "hydra/launcher"]
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        launcher = compose(CONFIG_NAME, chosen, return_hydra_config=True).hydra.launcher
    known = [f"hydra.launcher.{name}" for name in launcher if not str(name).startswith("_")]
    if not known:
        return f"{key}: it is a field of another launcher; write hydra/launcher=local or hydra/launcher=slurm, too"
    return f"{key}: {chosen[0] if chosen else 'this launcher'} has no such field{closest(key, known)}"


def _explain(error: Exception) -> str:
    text = f"{error}\n{error.__cause__ or ''}"
    unknown = re.search(r"Could not override '([^']+)'", text)
    if unknown and "not in" in text:
        key = unknown[1]
        names = [name for name, _ in walk()]
        if key in names:  # a dictionary, given new entries
            return f"{key}: new entries need a plus sign; write +{key}.name=value"
        return f"{key}: there is no such field{closest(key, names)}"
    invalid = re.search(r"Value '(.*?)'.*? (?:could not be converted to|is not a valid) (\w+)", text, re.DOTALL)
    where = re.search(r"full_key: (\S+)", text)
    if invalid and where:
        return f"{where[1]}={invalid[1]}: write {_KINDS.get(invalid[2], invalid[2])}"
    needed = re.search(r"field '([^']+)' is not Optional", text)
    if needed:
        return f"{needed[1]}=null: it needs a value; leave it out for its default"
    group = re.search(r"Could not override '([^']+)'\.\s*No match in the defaults list", text)
    if group:
        groups = [path.name for path in CONFIG_DIR.iterdir() if path.is_dir()]
        return f"{group[1]}: there is no such group{closest(group[1], groups)}"
    if isinstance(error, MissingMandatoryValue) and where:
        return f"{where[1]}: it has no default; write {where[1]}=..."
    if isinstance(error, OverrideParseException):
        return " ".join(str(error).split("See https")[0].split())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ": ".join(dict.fromkeys(lines[:3]))
