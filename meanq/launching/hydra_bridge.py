"""What meanq needs of Hydra besides `compose`: its argument parser, its product of swept values, one-line errors.

The only module that imports Hydra's internals.
"""

import re
from argparse import ArgumentError, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from meanq.config.errors import ConfigError, closest, printable
from meanq.config.fields import walk
from meanq.config.reference import GROUPS, group_choices
from meanq.config.schema import CONFIG_DIR

_BASIC_SWEEPER = "hydra/sweeper=basic"
_BLOCKS = [name for name, field in walk() if is_dataclass(field.type)]
_KINDS = {"Integer": "a whole number", "Float": "a number", "bool": "true or false"}


def parse_arguments(arguments: Sequence[str]) -> Namespace:
    """Parse a command line as Hydra does, except that options may stand anywhere."""
    parser = get_args_parser()
    parser.exit_on_error = False
    try:
        options, unknown = parser.parse_known_intermixed_args(arguments)
    except ArgumentError as error:
        raise ConfigError(f"{error}; see --help") from None
    if unknown:
        raise ConfigError(f"{unknown[0]}: no such option; see --help")
    for word in options.overrides:
        if re.match(r"[+~]*=", word):
            raise ConfigError(f"{printable(word)}: it names no field; write FIELD=VALUE")
        if re.search(r"[0-9]{100}", word):
            raise ConfigError(f"{printable(word, 60)}: a number of more than 100 digits; write a smaller one")
    return options


def expand_sweep(overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> list[list[str]]:
    """Return the overrides of every combination of swept values; those of glob() include choices in `config_dirs`.

    Values are normalised (1e-3 becomes 0.001, True becomes true), so that equal runs have equal names.
    """
    parser = OverridesParser.create()
    parsed = [_without_glob(override, parser, config_dirs) for override in parser.parse_overrides(list(overrides))]
    jobs = [job for batch in BasicSweeper.split_arguments(parsed, None) for job in batch]
    return [[re.sub(r"=(True|False)$", lambda value: value[0].lower(), o) for o in job] for job in jobs]


def _without_glob(override: Override, parser: OverridesParser, config_dirs: Sequence[Path]) -> Override:
    """List the choices that glob() matches. Refuse ranges of real numbers, which have no product."""
    value, group = override.value(), override.key_or_group
    if isinstance(value, dict) and (group in GROUPS or group in _BLOCKS):
        remedy = "write the name of a choice" if group in GROUPS else f"write its fields, {group}.FIELD=VALUE"
        raise ConfigError(f"{override.input_line}: {remedy}")
    if override.is_sweep_override() and not override.is_discrete_sweep():
        raise ConfigError(f"{override.input_line}: a sweep needs single values; write {group}=VALUE,VALUE,...")
    if not isinstance(value, Glob):
        return override
    if group not in GROUPS:
        raise ConfigError(f"{override.input_line}: glob() chooses among {', '.join(GROUPS)}; write the values")
    known = group_choices(group, *config_dirs)
    matches = value.filter(known)
    if not matches:
        raise ConfigError(f"{override.input_line}: it matches none of {', '.join(known)}")
    return parser.parse_override(f"{group}={','.join(matches)}")


def check_of_hydra(override: str) -> None:
    """Raise ConfigError for an override of Hydra's own configuration that would have no effect."""
    key = override.lstrip("+~").partition("=")[0]
    if key in ("hydra/launcher", "hydra.searchpath") or key.startswith("hydra.launcher.") or override == _BASIC_SWEEPER:
        return
    if key == "hydra/sweeper" or key.startswith("hydra.sweeper."):
        remedy = "meanq -m runs all combinations and has no other sweeper; write the values, FIELD=VALUE,VALUE,..."
    elif key.startswith(("hydra.run.", "hydra.sweep.", "hydra.output_subdir")):
        remedy = "it would have no effect; write root=DIRECTORY for the runs, and study= or label= for their names"
    else:
        remedy = "it would have no effect; leave it out"
    raise ConfigError(f"{override}: {remedy}")


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn errors of Hydra and OmegaConf into ConfigError: one line with field, value and remedy."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explain(error)) from None


def _explain(error: Exception) -> str:
    text = f"{error}\n{error.__cause__ or ''}"
    if isinstance(error, MissingConfigException):
        for group in GROUPS:
            if (error.missing_cfg_file or "").startswith(f"{group}/"):
                name = str(error.missing_cfg_file).removeprefix(f"{group}/")
                known = {*group_choices(group), *(option for option in error.options or [] if option[0] != "_")}
                return f"{group}={name}: there is no such {group.rpartition('/')[2]}{closest(name, known)}"
    exists = re.search(r"Could not append to config. An item is already at '([^']+)'", text)
    if exists:
        return f"+{exists[1]}: this field exists; write it without the plus sign, {exists[1]}=..."
    unknown = re.search(r"Could not override '([^']+)'", text)
    if unknown and "No match in the defaults list" in text:
        return f"{unknown[1]}: there is no such group{closest(unknown[1], GROUPS)}"
    if unknown and "not in" in text:
        return _unknown_field(unknown[1])
    invalid = re.search(r"Value '(.*?)'.*? (?:could not be converted to|is not a valid) (\w+)", text, re.DOTALL)
    where = re.search(r"full_key: (\S+)", text)
    if invalid and where:
        return f"{where[1]}={invalid[1]}: write {_KINDS.get(invalid[2], invalid[2])}"
    needed = re.search(r"field '([^']+)' is not Optional", text)
    if needed:
        return f"{needed[1]}=null: it needs a value; leave it out for its default"
    if isinstance(error, MissingMandatoryValue) and where:
        return f"{where[1]}: it has no default; write {where[1]}=..."
    if isinstance(error, OverrideParseException):
        return f"{printable(error.override)}: it cannot be read; put quotes around a text, FIELD='\"TEXT\"'"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ": ".join(dict.fromkeys(lines[:3]))


def _unknown_field(key: str) -> str:
    names = [name for name, _ in walk()]
    if key.startswith("hydra.launcher."):
        files = (CONFIG_DIR / "hydra" / "launcher").glob("*.yaml")
        names = [f"hydra.launcher.{name!s}" for path in files for name in OmegaConf.load(path)]
        if key in names:
            return f"{key}: it is a field of another launcher; write hydra/launcher=local or hydra/launcher=slurm, too"
    elif key in names:  # a dictionary, given new entries
        return f"{key}: new entries need a plus sign; write +{key}.name=value"
    return f"{key}: there is no such field{closest(key, names)}"
