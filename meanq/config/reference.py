"""The reference of all groups and fields, made from the schema: --help. `make docs` writes docs/fields.md from it."""

import textwrap
from collections.abc import Iterable
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from meanq.config.fields import flatten, walk
from meanq.config.schema import CONFIG_DIR, HyperparametersConfig, register_schema
from meanq.config.setting import allowed_values, as_written, setting_of

OPTIONS = {
    "-m, --multirun": "run all combinations of values separated by commas",
    "--dry-run": "list the runs and estimate their time, then stop",
    "--cfg job": "show the configuration of a run, then stop",
    "--config-dir DIR": "also look for choices in DIR, e.g. DIR/algo/mine.yaml",
    "--shell-completion": 'for bash: eval "$(meanq --shell-completion install=bash)"',
    "--hydra-help": "show Hydra's own options",
    "-h, --help": "show this page",
}
GROUPS = {
    "algo": "the method",
    "env": "the environment",
    "network": "the layers; algo or env choose them unless you do",
    "protocol": "details of environment, noise and evaluation",
    "logger": "a mirror of the run besides its own directory",
    "hydra/launcher": "runs of -m in turn, several at once, or as SLURM jobs",
}
_WIDTH = 79
_LONGEST_DEFAULT = 20


def group_choices(group: str, *others: Path) -> list[str]:
    """Names that GROUP=NAME takes, from conf/ and other directories; files that begin with _ are parts of others."""
    found = {"basic"} if group == "hydra/launcher" else set()  # Hydra's own
    for directory in (root / group for root in (CONFIG_DIR, *others)):
        files = [path.relative_to(directory) for path in directory.rglob("*.yaml") if path.name[0] != "_"]
        found |= {path.with_suffix("").as_posix() for path in files}
    return sorted(found)


def sections() -> dict[str, dict[str, str]]:
    """All fields by title, as {NAME=DEFAULT: meaning and values}: those of the run itself, then those of each block."""
    defaults = _default_values()
    found: dict[str, dict[str, str]] = {"run": {}}
    families = []
    for name, field in walk():
        meaning, default = setting_of(field).meaning, as_written(defaults.get(name, ""))
        if field.type is HyperparametersConfig:
            families.append(name)
        elif is_dataclass(field.type) and "." not in name:
            found[f"{name}: {meaning}"] = {}
        elif not is_dataclass(field.type) and not name.startswith(tuple(f"{family}." for family in families)):
            values = allowed_values(field).removeprefix("a number ").removesuffix(", or null")
            left = f"{name}={default}" if 0 < len(default) <= _LONGEST_DEFAULT else name
            found[next(reversed(found))][left] = f"{meaning}; {values}" if values else meaning
    title = f"env.FAMILY: values for each family of algorithms ({', '.join(name[4:] for name in families)})"
    fields = walk(HyperparametersConfig, "env.FAMILY.")
    return {**found, title: {name: setting_of(field).meaning for name, field in fields}}


def _default_values() -> dict[str, Any]:
    """Fields of `meanq run`, by dotted name."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    register_schema()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        composed = cast(dict[str, Any], OmegaConf.to_container(compose("config"), resolve=True))
    return flatten(composed)


def help_page(usage: str) -> str:
    """What --help prints. `usage` comes first."""
    lines = [usage.strip(), "", "Options", *_two_columns(OPTIONS.items())]
    lines += ["", "Groups: choose with GROUP=CHOICE"]
    for group, meaning in GROUPS.items():
        lines += _wrapped(f"  {group}: ", meaning) + _wrapped("    ", ", ".join(group_choices(group)))
    lines += ["", "Fields: override with FIELD=VALUE; shown are the values of `meanq run`"]
    for title, rows in sections().items():
        lines += ["", *_wrapped("", title), *_two_columns(rows.items())]
    return "\n".join(lines)


def _two_columns(pairs: Iterable[tuple[str, str]]) -> list[str]:
    pairs = list(pairs)
    width = max(len(left) for left, _ in pairs)
    return [line for left, right in pairs for line in _wrapped(f"  {left:{width}}  ", right)]


def _wrapped(indent: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=" " * len(indent), break_on_hyphens=False
    )
