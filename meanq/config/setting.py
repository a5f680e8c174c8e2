"""How the schema declares a field: its meaning, its bounds, and its role in a run's name and identity."""

import math
from collections.abc import Sequence
from dataclasses import Field, dataclass, field
from typing import Any, get_args

from omegaconf import MISSING


@dataclass(frozen=True)
class Setting:
    """Metadata of one field. A block passes its roles on to its fields.

    identity: runs that differ here are different runs, so one does not continue the other.
    label: an override of the field becomes part of the run's label.
    compared: runs that differ here are different experiments, so the analysis does not pool them.
    content: False where the field only names the run; a finished run that differs only in names can be copied.
    """

    meaning: str
    least: float | None = None
    most: float | None = None
    above: float | None = None
    choices: Sequence[str] = ()
    identity: bool = True
    label: bool = True
    compared: bool = True
    content: bool = True

    def allows(self, value: Any) -> bool:
        """Whether a value is within the bounds. OmegaConf has checked its type."""
        if value is None or value == MISSING:
            return True
        if self.choices:
            return value in self.choices
        if not isinstance(value, int | float):
            return True
        low = -math.inf if self.least is None else self.least
        high = math.inf if self.most is None else self.most
        return math.isfinite(value) and low <= value <= high and (self.above is None or value > self.above)

    @property
    def bounds(self) -> str:
        """The values that are allowed, as in "write 1 or more"; empty where every value of the type is."""
        if self.choices:
            return " or ".join(self.choices)
        if self.above is not None:
            return f"a number above {self.above}" + (f", at most {self.most}" if self.most is not None else "")
        if self.most is not None:
            return f"a number from {self.least} to {self.most}"
        return f"{self.least} or more" if self.least is not None else ""


def setting(meaning: str, default: Any = MISSING, **options: Any) -> Any:
    """A field of the schema. `default` may be a factory: list, dict, or the dataclass of a block."""
    metadata = {"setting": Setting(meaning, **options)}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def setting_of(declared: Field[Any]) -> Setting:
    return declared.metadata["setting"]


def allowed_values(declared: Field[Any]) -> str:
    """The bounds of a field, with null where it is optional."""
    bounds = setting_of(declared).bounds
    return f"{bounds}, or null" if bounds and type(None) in get_args(declared.type) else bounds


def as_written(value: object) -> str:
    """A value as the command line takes it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
