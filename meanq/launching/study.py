"""Studies: a question and the runs that answer it, one file each in ablations/."""

import shlex
from collections.abc import Callable, Sequence
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
    """What is asked, what the paper answers, and what would refute that."""

    name: str
    question: str
    paper: str
    refuted_by: str
    scales: dict[str, Scale]

    def scale(self, name: str | None) -> Scale:
        """The scale of this name."""
        known = ", ".join(self.scales)
        if name is None:
            raise ConfigError(f"+study={self.name}: it needs a scale; write scale= and one of {known}")
        if name not in self.scales:
            raise ConfigError(f"scale={name}: +study={self.name} has no such scale; choose from {known}")
        return self.scales[name]


def study_names() -> list[str]:
    """All studies of ablations/."""
    return sorted(path.stem for path in STUDY_DIR.glob("*.yaml"))


def load_study(name: str) -> Study:
    """A study of ablations/, or a file of one's own, named by a path that ends in .yaml."""
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


def override_key(override: str) -> str:
    """The field of an override, without + or ~."""
    return override.lstrip("+~").partition("=")[0]


def choose(
    jobs: Sequence[Sequence[str]], choices: dict[str, set[str]], study: str, unwritten: Callable[[list[str], str], str]
) -> list[list[str]]:
    """Those jobs of a study that have one of the chosen values in every chosen field.

    `unwritten`: the value that a job has in a field which it does not override. It takes time, so it is asked last.
    """
    kept = [list(job) for job in jobs]
    for key, values in sorted(choices.items(), key=lambda choice: not all(_written(job, choice[0]) for job in jobs)):
        found = [(_written(job, key) or [unwritten(job, key)])[-1] for job in kept]
        for value in sorted(values - set(found)):
            known = ", ".join(sorted(set(found), key=lambda text: (len(text), text)))
            raise ConfigError(f"{key}={value}: not among these runs of +study={study}; choose from {known}")
        kept = [job for job, value in zip(kept, found, strict=True) if value in values]
    return kept


def _written(job: Sequence[str], key: str) -> list[str]:
    return [override.partition("=")[2] for override in job if override_key(override) == key]
