"""Studies: a question and the runs that answer it, one file each in ablations/."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import yaml

from meanq.config.errors import ConfigError, closest
from meanq.config.schema import CONFIG_DIR

STUDY_DIR = CONFIG_DIR.parent / "ablations"


@dataclass
class Scale:
    """The runs of a study for one kind of machine."""

    machine: str
    cost: str
    runs: list[list[str]]  # sweeps, each written as on the command line; the study is their union
    common: list[str] = field(default_factory=list)  # overrides of all runs, not part of their names


@dataclass
class Study:
    """A question, the paper's answer, what would refute it, and the runs that decide."""

    name: str
    question: str
    paper: str
    refuted_by: str
    scales: dict[str, Scale]

    def scale(self, name: str | None) -> Scale:
        known = ", ".join(self.scales)
        if name is None:
            raise ConfigError(f"+study={self.name}: it needs a scale; write scale= and one of {known}")
        if name not in self.scales:
            raise ConfigError(f"scale={name}: +study={self.name} has no such scale; choose from {known}")
        return self.scales[name]


def study_names() -> list[str]:
    """Return the names of all studies in ablations/."""
    return sorted(path.stem for path in STUDY_DIR.glob("*.yaml"))


def load_study(name: str) -> Study:
    """Load a study of ablations/ by name, or any other file by a path that ends in .yaml."""
    own = name.endswith(".yaml")
    path = Path(name) if own else STUDY_DIR / f"{name}.yaml"
    if not path.is_file():
        hint = "; there is no such file" if own else closest(name, study_names())
        raise ConfigError(f"+study={name}: there is no such study{hint}")
    try:
        content = yaml.safe_load(path.read_text())
        scales = {
            scale: Scale(
                machine=_text(entry.pop("machine")),
                cost=_text(entry.pop("cost")),
                runs=[shlex.split(sweep) for sweep in entry.pop("runs")],
                common=shlex.split(entry.pop("common", "")),
                **entry,
            )
            for scale, entry in content.pop("scales").items()
        }
        return Study(name=path.stem, scales=scales, **{key: _text(value) for key, value in content.items()})
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        needed = ", ".join(f.name for f in fields(Study) if f.name != "name")
        detail = " ".join(str(error).split())
        raise ConfigError(f"+study={name}: {path} is no study ({detail}); it needs {needed}") from None


def _text(value: str) -> str:
    return " ".join(value.split())


def split_study(overrides: Sequence[str]) -> tuple[Study | None, str | None, list[str]]:
    """Split overrides into the study, the name of its scale, and the rest."""
    rest = [o for o in overrides if not o.startswith(("+study=", "scale="))]
    study, scale = (_only_value(overrides, key) for key in ("+study=", "scale="))
    if study is None:
        if scale is not None:
            raise ConfigError(f"scale={scale}: only a study has scales; write +study=... scale={scale}")
        return None, None, rest
    loaded = load_study(study)
    loaded.scale(scale)  # raises where there is none of that name
    return loaded, scale, rest


def _only_value(overrides: Sequence[str], key: str) -> str | None:
    values = [o.removeprefix(key) for o in overrides if o.startswith(key)]
    if len(values) > 1:
        raise ConfigError(f"{key}{values[1]}: one {key.strip('+=')} at a time")
    return values[0] if values else None
