"""Fields of stored configurations by dotted name; one that is absent has its declared default."""

import inspect
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from omegaconf import MISSING

from meanq.config.extensions import import_object
from meanq.config.schema import (
    Config,
)

ABSENT = "absent"


def flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    """Fields by dotted name."""
    if isinstance(node, Mapping) and node:
        flat: dict[str, Any] = {}
        for key, value in node.items():
            flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
        return flat
    return {prefix: node}


def field_value(flat: Mapping[str, Any], name: str) -> Any:
    """A field of a stored configuration, flattened. One that did not exist when it was stored has its declared default.

    ABSENT where none is declared.
    """
    if name in flat:
        return flat[name]
    if name.startswith("env.options."):
        return _declared_options(str(flat.get("env.kind"))).get(name.removeprefix("env.options."), ABSENT)
    return _declared_defaults().get(name, ABSENT)


@cache
def _declared_defaults() -> dict[str, Any]:
    return {name: value for name, value in flatten(asdict(Config())).items() if value != MISSING}


@cache
def _declared_options(kind: str) -> dict[str, Any]:
    """The defaults of the options that environments of one of our own kinds take."""
    from meanq.envs import KINDS

    if kind not in KINDS:  # to look at somebody's own would be to run it
        return {}
    options = inspect.signature(import_object(KINDS[kind], "env.kind")).parameters.values()
    return {option.name: option.default for option in options if option.default is not inspect.Parameter.empty}
