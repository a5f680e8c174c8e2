"""What meanq needs of Hydra besides `compose`: its argument parser, its product of swept values, one-line errors.

The only module that imports Hydra's internals.
"""

import re
from argparse import ArgumentError, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from meanq.config.errors import ConfigError, closest
from meanq.config.fields import walk
from meanq.config.reference import GROUPS, group_choices
from meanq.config.schema import CONFIG_DIR

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
    return options


def expand_sweep(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of every combination of swept values.

    Values are normalised (1e-3 becomes 0.001, True becomes true), so that equal runs have equal names.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    jobs = [job for batch in BasicSweeper.split_arguments(parsed, None) for job in batch]
    return [[re.sub(r"=(True|False)$", lambda value: value[0].lower(), o) for o in job] for job in jobs]


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
        return " ".join(str(error).split("See https")[0].split())
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
