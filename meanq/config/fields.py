"""Fields of a configuration by dotted name: values, declared defaults, and their role in what a run is."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import Field, asdict, fields, is_dataclass
from functools import cache
from typing import Any, get_args

from omegaconf import MISSING

from meanq.config.extensions import ENVIRONMENTS, import_environment
from meanq.config.schema import Config
from meanq.config.setting import setting_of

ABSENT = "absent"


def flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    """Values of nested mappings by dotted name."""
    if isinstance(node, Mapping) and node:
        flat: dict[str, Any] = {}
        for key, value in node.items():
            flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
        return flat
    return {prefix: node}


def field_value(flat: Mapping[str, Any], name: str) -> Any:
    """A field of a stored, flattened configuration.

    A field that did not exist when the run was stored has its declared default, or is ABSENT where none is declared.
    """
    if name in flat:
        return flat[name]
    if name.startswith("env.options."):
        return _default_options(str(flat.get("env.kind"))).get(name.removeprefix("env.options."), ABSENT)
    return _declared_defaults().get(name, ABSENT)


@cache
def _declared_defaults() -> dict[str, Any]:
    return {name: value for name, value in flatten(asdict(Config())).items() if value != MISSING}


@cache
def _default_options(kind: str) -> dict[str, Any]:
    """Defaults of the options of an environment. A user's own kind is not imported: that would run their code."""
    if kind not in ENVIRONMENTS:
        return {}
    options = inspect.signature(import_environment(kind)).parameters.values()
    return {option.name: option.default for option in options if option.default is not inspect.Parameter.empty}


def walk(schema: Any = Config, prefix: str = "") -> Iterator[tuple[str, Field[Any]]]:
    """Every field of the schema with its dotted name, blocks before their fields; items of a list as `name[].field`."""
    for field in fields(schema):
        name = prefix + field.name
        yield name, field
        item = next(iter(get_args(field.type)), None)
        if is_dataclass(field.type):
            yield from walk(field.type, f"{name}.")
        elif is_dataclass(item):
            yield from walk(item, f"{name}[].")


def is_identity(name: str) -> bool:
    """Whether runs that differ in this field are different runs."""
    return _has_role(name, "identity")


def is_compared(name: str) -> bool:
    """Whether runs that differ in this field are different experiments, whose seeds are not pooled."""
    return is_identity(name) and _has_role(name, "compared")


def is_content(name: str) -> bool:
    """Whether the field is more than a name of the run."""
    return _has_role(name, "content")


def in_label(name: str) -> bool:
    """Whether an override of this field or group is part of the run's label.

    The choices of `algo` and `env` are not: the label begins with the algorithm, and runs are sorted by environment.
    """
    return name not in ("algo", "env") and not name.startswith(("hydra.", "hydra/")) and _has_role(name, "label")


@cache
def _has_role(name: str, role: str) -> bool:
    """Whether a field and the blocks around it have a role. Names that the schema does not know have every role."""
    block: Any = Config
    for part in name.split("."):
        declared = {field.name: field for field in fields(block)} if is_dataclass(block) else {}
        if part not in declared:
            return True
        if not getattr(setting_of(declared[part]), role):
            return False
        block = declared[part].type
    return True
