"""Studies: the runs that answer a question, in a file of ablations/ or of one's own; docs/studies.md has the format."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from meanq.config.errors import ConfigError, closest
from meanq.config.fields import walk
from meanq.config.schema import CONFIG_DIR
from meanq.launching.hydra_bridge import expand_sweep
from meanq.launching.overrides import for_hydra, override_key

STUDY_DIR = CONFIG_DIR.parent / "ablations"
_ENDINGS = (".yaml", ".yml")
_TEXTS = ("question", "paper", "refuted_by")
_OF_SCALE = ("runs", "common", "machine", "cost")
_SWEEPS = "write a list of sweeps, such as - algo=dqn,meanq env=chain seed=0-4"


@dataclass
class Scale:
    """The runs of a study for one kind of machine."""

    runs: list[list[str]]  # sweeps, each written as on the command line; the study is their union
    common: list[str] = field(default_factory=list)  # overrides of all runs, not part of their names
    machine: str = ""
    cost: str = ""


@dataclass
class Study:
    """The runs that decide a question; where they are given, the question, the paper's answer and what refutes it."""

    name: str
    path: Path
    scales: dict[str | None, Scale]  # without a name where the file has `runs` instead of `scales`
    question: str = ""
    paper: str = ""
    refuted_by: str = ""
    switched: str = ""  # a field: the results compare each method with and without what it switches

    @property
    def texts(self) -> dict[str, str]:
        """Those of question, paper and refuted_by that the file has."""
        return {name: text for name in _TEXTS if (text := getattr(self, name))}

    def only_scale(self, name: str | None) -> str | None:
        """Return the name of the scale that is meant by `name`; None stands for the only one."""
        known = [scale for scale in self.scales if scale is not None]
        if name is None:
            if len(self.scales) > 1:
                raise ConfigError(f"+study={self.name}: it needs a scale; write scale= and one of {', '.join(known)}")
            return next(iter(self.scales))
        if name not in known:
            remedy = f"choose from {', '.join(known)}" if known else "leave scale= out, since it has only one"
            raise ConfigError(f"scale={name}: +study={self.name} has no such scale; {remedy}")
        return name

    def scale(self, name: str | None) -> Scale:
        """Return a scale; None stands for the only one."""
        return self.scales[self.only_scale(name)]


def study_names() -> list[str]:
    """Return the names of all studies in ablations/."""
    return sorted(path.stem for path in STUDY_DIR.glob("*.yaml"))


def load_study(name: str) -> Study:
    """Load a study of ablations/ by name, or any other file by a path that ends in .yaml or .yml."""
    own = name.endswith(_ENDINGS)
    path = Path(name) if own else STUDY_DIR / f"{name}.yaml"
    if not path.is_file():
        hint = "; there is no such file" if own else closest(name, study_names())
        raise ConfigError(f"+study={name}: there is no such study{hint}")
    try:
        if not re.fullmatch(r"\w[\w.+-]*", path.stem):
            raise _NoStudyError("its runs are stored below its name; use letters, digits, _ . + and - in it")
        return _parse(path, yaml.safe_load(path.read_text(encoding="utf-8")))
    except _NoStudyError as error:
        problem = str(error)
    except (OSError, yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        problem = f"it cannot be read ({' '.join(str(error).split())}); write a YAML file with a list of `runs`"
    raise ConfigError(f"+study={name}: {problem}") from None


class _NoStudyError(ValueError):
    """What is wrong with a study's file, and what to write instead."""


def _parse(path: Path, content: Any) -> Study:
    if not isinstance(content, dict):
        raise _NoStudyError("it is no study; write at least `runs:` and below it a list of sweeps")
    texts = {name: _text(content, name) for name in (*_TEXTS, "switched")}
    known = [name for name, _ in walk()]
    if texts["switched"] and texts["switched"] not in known:
        hint = closest(texts["switched"], known)
        raise _NoStudyError(f"switched={texts['switched']}: there is no such field{hint}")
    if "scales" not in content:
        scales: dict[str | None, Scale] = {None: _scale(content, "", (*_TEXTS, "switched"))}
    else:
        for name in _OF_SCALE:
            if name in content:
                raise _NoStudyError(f"{name}: the file has scales; write it below each of them")
        _check_keys(content, "", (*_TEXTS, "switched", "scales"))
        entries = content["scales"]
        if not isinstance(entries, dict) or not entries:
            raise _NoStudyError("scales: write a name and below it the `runs` of each scale")
        scales = {}
        for name, entry in entries.items():
            if not isinstance(name, str) or not isinstance(entry, dict):
                raise _NoStudyError(f"scales.{name}: write a name and below it `runs:` with a list of sweeps")
            scales[name] = _scale(entry, f"scales.{name}.")
    return Study(path.stem, path, scales, **texts)


def _scale(entry: Mapping[Any, Any], prefix: str, others: Sequence[str] = ()) -> Scale:
    _check_keys(entry, prefix, (*others, *_OF_SCALE) if prefix else (*others, *_OF_SCALE, "scales"))
    sweeps = entry.get("runs")
    if not isinstance(sweeps, list) or not sweeps:
        found = "missing" if "runs" not in entry else "empty" if sweeps in ([], None) else "no list"
        raise _NoStudyError(f"{prefix}runs is {found}; {_SWEEPS}")
    runs = [_words(sweep, f"{prefix}runs[{i}]") for i, sweep in enumerate(sweeps)]
    common = _words(entry["common"], f"{prefix}common") if "common" in entry else []
    return Scale(runs, common, _text(entry, "machine", prefix), _text(entry, "cost", prefix))


def _check_keys(entry: Mapping[Any, Any], prefix: str, known: Sequence[str]) -> None:
    for key in entry:
        if key not in known:
            hint = "; the name of the file is the study's" if key == "name" else closest(str(key), known)
            raise _NoStudyError(f"{prefix}{key}: a study has no such entry{hint}")


def _text(entry: Mapping[Any, Any], name: str, prefix: str = "") -> str:
    text = entry.get(name, "")
    if not isinstance(text, str):
        raise _NoStudyError(f"{prefix}{name}={text}: write a text")
    return " ".join(text.split())


def _words(sweep: object, name: str) -> list[str]:
    """Split overrides that are written as on the command line."""
    try:
        words = shlex.split(sweep) if isinstance(sweep, str) else []
    except ValueError as error:  # quotes that do not match
        raise _NoStudyError(f"{name}={sweep}: {error}; write it as on the command line") from None
    if not words or not all("=" in word or word.startswith("~") for word in words):
        raise _NoStudyError(f"{name}={sweep}: write overrides as on the command line, such as algo=dqn,meanq env=chain")
    return words


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
    runs = [job for sweep in scale.runs for job in expand_sweep(for_hydra(sweep))]
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
