"""Studies: a question and the runs that answer it, one file each in ablations/."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import yaml

from meanq.config.errors import ConfigError, closest
from meanq.config.schema import CONFIG_DIR
from meanq.launching.hydra_bridge import expand_sweep
from meanq.launching.overrides import expand_seed_ranges, override_key

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
    path = Path(name) if name.endswith(".yaml") else STUDY_DIR / f"{name}.yaml"
    if not path.is_file():
        hint = "; there is no such file" if name.endswith(".yaml") else closest(name, study_names())
        raise ConfigError(f"+study={name}: there is no such study{hint}")
    try:
        content = yaml.safe_load(path.read_text())
        scales = {}
        for scale, entry in content.pop("scales").items():
            runs, common = [shlex.split(sweep) for sweep in entry.pop("runs")], shlex.split(entry.pop("common", ""))
            scales[scale] = Scale(**_one_line(entry), runs=runs, common=common)
        return Study(name=path.stem, **_one_line(content), scales=scales)
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        needed = ", ".join(f.name for f in fields(Study) if f.name != "name")
        detail = " ".join(str(error).split())
        raise ConfigError(f"+study={name}: {path} is no study ({detail}); it needs {needed}") from None


def _one_line(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: " ".join(text.split()) for name, text in texts.items()}


def split_study(overrides: Sequence[str]) -> tuple[Study | None, str | None, list[str]]:
    """Split overrides into the study, the name of its scale, and the rest."""
    found = {}
    for key in ("+study=", "scale="):
        values = [o.removeprefix(key) for o in overrides if o.startswith(key)]
        if len(values) > 1:
            raise ConfigError(f"{key}{values[1]}: one {key.strip('+=')} at a time")
        found[key] = values[0] if values else None
    study, scale = found.values()
    if scale is not None and study is None:
        raise ConfigError(f"scale={scale}: only a study has scales; write +study=... scale={scale}")
    rest = [o for o in overrides if not o.startswith(("+study=", "scale="))]
    return load_study(study) if study else None, scale, rest


@dataclass
class Job:
    """One run, given by its overrides."""

    overrides: list[str]
    in_label: list[str]  # the overrides that distinguish this run from others


def study_jobs(study: Study, scale: Scale, overrides: Sequence[str]) -> list[Job]:
    """The runs of a study, sorted by seed so that a study cut short still compares all algorithms.

    An override of a field that the study varies selects among its runs; any other override changes all of them.
    """
    runs = [job for sweep in scale.runs for job in expand_sweep(expand_seed_ranges(sweep))]
    varied = {override_key(o) for run in runs for o in run}
    changes = [o for o in overrides if override_key(o) not in varied]
    for override in overrides:
        if override not in changes:
            runs = _select(study.name, scale, runs, override)
    changed = {override_key(o) for o in changes}
    common = [o for o in [f"study={study.name}", *scale.common] if override_key(o) not in changed]
    jobs = [Job([*common, *run, *change], [*run, *change]) for change in expand_sweep(changes) for run in runs]
    return sorted(jobs, key=lambda job: next((int(o[5:]) for o in job.overrides if o.startswith("seed=")), 0))


def _select(study: str, scale: Scale, runs: Sequence[list[str]], override: str) -> list[list[str]]:
    """Keep the runs for which the study writes one of the override's values; `default`: those that it does not set."""
    key, wanted = override_key(override), {job[0].partition("=")[2] for job in expand_sweep([override])}
    values = [{override_key(o): o.partition("=")[2] for o in [*scale.common, *run]}.get(key, "default") for run in runs]
    for value in sorted(wanted - set(values)):
        known = ", ".join(sorted(set(values), key=lambda text: (len(text), text)))
        raise ConfigError(f"{key}={value}: not among these runs of +study={study}; choose from {known}")
    return [run for run, value in zip(runs, values, strict=True) if value in wanted]
