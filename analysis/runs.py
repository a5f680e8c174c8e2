"""Pools runs: reads all run directories below the given paths and groups them by environment and label.

Whatever is wrong with a set of runs ends up in one of two lists: `problems` names each directory that was skipped, and
why; `notes` tells a reader of the numbers what to keep in mind (unfinished runs, missing seeds, ...).

Runs are pooled where environment, label and configuration agree. Where one label covers several configurations, the
fields that differ become part of the label: `dqn {algo.learning_rate=0.001}`. Different configurations are never
averaged together. The files themselves are read by meanq.rundir.reader, which executes nothing.
"""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from meanq.config.fields import field_value, flatten, is_compared
from meanq.metrics.definitions import BIASES, bias, episode_means, normalise, normalising_scores
from meanq.metrics.registry import diagnostic_columns
from meanq.rundir.layout import CONFIG, EVALUATION_COLUMNS, EVALUATIONS, META, PROBES, STATUS, TIMINGS, TRAINING
from meanq.rundir.reader import (
    DamagedFileError,
    Probes,
    UnreadableFileError,
    find_runs,
    open_file,
    read_config,
    read_json,
    read_probes,
)

DIAGNOSTICS = diagnostic_columns()


class AnalysisError(ValueError):
    """A user's mistake, or data that cannot answer the question; the message is one line."""


@dataclass(frozen=True)
class Run:
    """The content of one run directory."""

    directory: Path
    env: str
    label: str  # the group; extended by fields where configurations differ
    algo: str  # the name of the configured algorithm
    seed: int
    config: Mapping[str, Any]
    evaluations: pd.DataFrame  # one row per episode; EVALUATION_COLUMNS
    probes: Probes | None
    status: Mapping[str, Any]
    meta: Mapping[str, Any]
    timings: pd.DataFrame
    diagnostics: pd.DataFrame  # step and the columns DIAGNOSTICS of training.csv that the run has

    @property
    def state(self) -> str:
        """As in status.json: finished, failed, interrupted, or running, which includes killed runs."""
        return str(self.status.get("state", "unknown"))

    @property
    def total_steps(self) -> int:
        """The planned length, in interactions."""
        return int(self.config["total_steps"])

    @property
    def last_evaluation(self) -> int:
        """The step of the last evaluation; 0 where there is none."""
        return int(self.evaluations["step"].max()) if len(self.evaluations) else 0

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of training; of an unfinished run, up to the last row of timings.csv."""
        if isinstance(self.meta.get("seconds"), int | float):
            return float(self.meta["seconds"])
        return float(self.timings["seconds"].iloc[-1]) if len(self.timings) else float("nan")

    @cached_property
    def scores(self) -> tuple[float, float] | None:
        """(random, reference) score by which returns are normalised; None where the environment has no such scores."""
        return normalising_scores(self.config)

    def normalise(self, score: Any) -> Any:
        """(score - random) / (reference - random); NaN where the environment has no such scores."""
        return score * np.nan if self.scores is None else normalise(score, self.scores)

    @cached_property
    def episode_means(self) -> pd.DataFrame:
        """Means over the episodes of each evaluation, by step; NaN where an episode's number is not finite.

        `episodes` is their number. Beside the columns of the table: normalised_return, and each kind of bias.
        """
        columns = {name: self.evaluations[name].to_numpy(float) for name in EVALUATION_COLUMNS[2:]}
        steps, episodes, means = episode_means(self.evaluations["step"].to_numpy(), columns)
        means |= {f"bias_{kind}": bias(means["value"], means[column]) for kind, column in BIASES.items()}
        means |= {"normalised_return": self.normalise(means["return"]), "episodes": episodes}
        return pd.DataFrame(means, index=pd.Index(steps, name="step"))


@dataclass(frozen=True)
class Problem:
    """A directory that was skipped."""

    directory: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.directory}: {self.reason}"


@dataclass
class RunSet:
    """Runs, the directories that were skipped, and notes about both."""

    runs: list[Run]
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def envs(self) -> list[str]:
        """Sorted."""
        return sorted({run.env for run in self.runs})

    @property
    def labels(self) -> list[str]:
        """Sorted."""
        return sorted({run.label for run in self.runs})

    @property
    def lengths(self) -> dict[str, int]:
        """Planned length of the longest run, by environment, in interactions."""
        return {env: max(run.total_steps for run in self.runs if run.env == env) for env in self.envs}

    def groups(self) -> dict[tuple[str, str], list[Run]]:
        """Runs by (env, label), ordered by seed."""
        found: dict[tuple[str, str], list[Run]] = defaultdict(list)
        for run in sorted(self.runs, key=lambda run: (run.env, run.label, run.seed)):
            found[run.env, run.label].append(run)
        return dict(found)

    def of(self, env: str, label: str) -> list[Run]:
        """The runs of a label in an environment, ordered by seed."""
        return self.groups().get((env, label), [])

    def messages(self) -> list[str]:
        """Every problem and note, one line each."""
        return [f"skipped {problem}" for problem in self.problems] + self.notes


def read_run(directory: Path) -> Run:
    """Read one run; AnalysisError where its files are not those of a run."""
    try:
        config = read_config(directory)
        return Run(
            directory=directory,
            env=config["env"]["name"],
            label=config["label"],
            algo=config["algo"]["name"],
            seed=config["seed"],
            config=config,
            evaluations=_read_table(directory / EVALUATIONS, EVALUATION_COLUMNS, ("step", "episode")),
            probes=_read_probes(directory, config),
            status=_read_json(directory / STATUS),
            meta=_read_json(directory / META),
            timings=_read_table(directory / TIMINGS, ("step", "seconds"), ("step",)),
            diagnostics=_read_table(directory / TRAINING, ("step",), ("step",), DIAGNOSTICS),
        )
    except FileNotFoundError:
        raise AnalysisError(f"no {CONFIG}") from None
    except UnreadableFileError as error:
        raise AnalysisError(error.brief) from None


def read_runs(paths: Sequence[Path | str]) -> RunSet:
    """Read all runs below the paths and check them against each other; AnalysisError where none can be read."""
    unlisted: list[tuple[str, str]] = []
    problems: list[Problem] = []
    runs = []
    for directory in find_runs(map(Path, paths), unlisted):
        try:
            runs.append(read_run(directory))
        except AnalysisError as error:
            problems.append(Problem(directory, str(error)))
    problems += [Problem(Path(directory), reason) for directory, reason in unlisted]
    if not runs:
        what = "; ".join(map(str, problems)) or "nothing called <env>/<label>/seed_<n> is below"
        raise AnalysisError(f"{', '.join(map(str, paths))}: no runs here ({what})")
    notes: list[str] = []
    runs = _separate_configurations(runs, notes)
    runs = _drop_repeated(runs, notes)
    found = RunSet(runs, problems, notes)
    notes += [*_unfinished(runs), *_not_finite(runs), *_missing_seeds(found), *_unlike(found)]
    return found


def named_labels(text: str, known: Sequence[str]) -> list[str]:
    """Split a comma-separated list of labels, which may contain commas; unknown ones are left as written."""
    found = []
    while text:
        fitting = [label for label in known if f"{text},".startswith(f"{label},")]
        label = max(fitting, key=len) if fitting else text.partition(",")[0]
        found.append(label)
        text = text[len(label) + 1 :]
    return found


def differing_fields(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the compared fields in which the configurations are not all equal."""
    flat = [flatten(config) for config in configs]
    names = sorted({name for fields in flat for name in fields})
    return [
        name
        for name in names
        if is_compared(name) and any(field_value(fields, name) != field_value(flat[0], name) for fields in flat)
    ]


def _separate_configurations(runs: list[Run], notes: list[str]) -> list[Run]:
    """Where a label covers several configurations, append the differing fields to it.

    This is done in every environment, so that one configuration has one label everywhere.
    """
    games: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        games[run.label][run.env].append(run)
    separated = []
    for label, by_env in games.items():
        fields = sorted({name for same in by_env.values() for name in differing_fields([run.config for run in same])})
        if not fields:
            separated += [run for same in by_env.values() for run in same]
            continue
        values = {run.directory: _values(run, fields) for same in by_env.values() for run in same}
        called = _suffixes(fields, sorted(set(values.values())))
        for env, same in by_env.items():
            separated += [replace(run, label=f"{label} {{{called[values[run.directory]]}}}") for run in same]
            here = {each: [run.seed for run in same if values[run.directory] == each] for each in sorted(called)}
            parts = [f"{_assignments(fields, v, ' ')} (seeds {_numbers(seeds)})" for v, seeds in here.items() if seeds]
            if len(parts) > 1:
                notes.append(f"{env}, {label}: several configurations under one label, kept apart: {'; '.join(parts)}")
    return separated


def _values(run: Run, fields: Sequence[str]) -> str:
    flat = flatten(run.config)
    return json.dumps([field_value(flat, name) for name in fields], default=str)


def _assignments(fields: Sequence[str], values: str, between: str, longest: int = 30) -> str:
    """List name=value of each field; long values are shortened."""
    pairs = zip(fields, json.loads(values), strict=True)
    return between.join(f"{name}={_short(value, longest)}" for name, value in pairs)


def _suffixes(fields: Sequence[str], variants: Sequence[str]) -> dict[str, str]:
    """Return a unique suffix of the label for each variant."""
    if len(fields) > 2:
        first = {values: _assignments(fields[:1], json.dumps(json.loads(values)[:1]), "") for values in variants}
        return {values: f"variant {i}: {first[values]}, ..." for i, values in enumerate(variants, 1)}
    short = {values: _assignments(fields, values, ", ") for values in variants}
    if len(set(short.values())) == len(variants):
        return short
    return {values: _assignments(fields, values, ", ", sys.maxsize) for values in variants}


def _drop_repeated(runs: list[Run], notes: list[str]) -> list[Run]:
    """Keep one run per configuration and seed: a second copy is no second sample."""
    copies: dict[tuple[str, str, int], list[Run]] = defaultdict(list)
    for run in runs:
        copies[run.env, run.label, run.seed].append(run)
    kept = []
    for (env, label, seed), same in copies.items():
        furthest = max(same, key=lambda run: run.last_evaluation)
        kept.append(furthest)
        if len(same) > 1:
            others = ", ".join(str(run.directory) for run in same if run is not furthest)
            notes.append(f"{env}, {label}: seed {seed} is there {len(same)} times; {furthest.directory}, the one that "
                         f"got furthest, counts, and not {others}")  # fmt: skip
    return kept


def _unfinished(runs: Iterable[Run]) -> Iterator[str]:
    for run in runs:
        if run.state != "finished":
            reason = run.status.get("reason")
            reason = f": {' '.join(reason.split())}" if isinstance(reason, str) else ""
            yield (
                f"{run.env}, {run.label}, seed {run.seed}: {run.state}, evaluated up to step {run.last_evaluation} of "
                f"{run.total_steps}{reason}"
            )
        elif run.last_evaluation < run.total_steps:
            yield (
                f"{run.env}, {run.label}, seed {run.seed}: says finished, but was evaluated up to step "
                f"{run.last_evaluation} of {run.total_steps} only"
            )


def _not_finite(runs: Iterable[Run]) -> Iterator[str]:
    for run in runs:
        numbers = run.evaluations.set_index("step")
        bad = sorted(set(numbers.index[~np.isfinite(numbers.to_numpy(float)).all(axis=1)]))
        if bad:
            yield (
                f"{run.env}, {run.label}, seed {run.seed}: numbers that are not finite in evaluations.csv at "
                f"{_steps(bad)}; what depends on them leaves this run out there"
            )
        if run.probes is not None:
            finite = np.isfinite(run.probes.q).all(axis=(1, 2, 3))
            if not finite.all():
                yield (
                    f"{run.env}, {run.label}, seed {run.seed}: values that are not finite in probes.npz at "
                    f"{_steps(run.probes.step[~finite])}; what depends on them leaves this run out there"
                )


def _missing_seeds(found: RunSet) -> Iterator[str]:
    for env in found.envs:
        seeds = {label: {run.seed for run in runs} for (e, label), runs in found.groups().items() if e == env}
        everywhere = set().union(*seeds.values())
        for label, present in seeds.items():
            missing = sorted(everywhere - present)
            if missing:
                yield f"{env}, {label}: no run of seed {_numbers(missing)}, which other labels have"
    for (env, label), runs in found.groups().items():
        if len(runs) == 1:
            yield f"{env}, {label}: one run only, so nothing can be said about its spread over runs"


def _unlike(found: RunSet) -> Iterator[str]:
    """Note differences between labels that make their numbers hard to compare."""
    for env in found.envs:
        runs = [run for run in found.runs if run.env == env]
        probed: dict[str, set[str]] = defaultdict(set)
        lengths: dict[int, set[str]] = defaultdict(set)
        for run in runs:
            lengths[run.total_steps].add(run.label)
            if run.probes is not None:
                _, states, _, actions = run.probes.q.shape
                seed = (run.config.get("probe") or {}).get("seed")
                probed[f"{states} states of probe.seed={seed}, {actions} actions"].add(run.label)
        if len(probed) > 1:
            what = "; ".join(f"{', '.join(sorted(labels))}: {probe}" for probe, labels in sorted(probed.items()))
            yield f"{env}: values were not probed at the same states, so std and gap are not comparable ({what})"
        if len(lengths) > 1:
            what = "; ".join(f"{', '.join(sorted(labels))}: {steps}" for steps, labels in sorted(lengths.items()))
            yield f"{env}: runs are not of one length; compare them at equal steps only ({what})"
        if len({run.scores for run in runs}) > 1:
            yield f"{env}: runs are normalised by different random or reference scores (longer runs use table 2's)"


def _read_table(
    path: Path, columns: Sequence[str], key: Sequence[str], also: re.Pattern[str] | None = None
) -> pd.DataFrame:
    """Read these columns and those that `also` matches, sorted by `key`. A new run has no such file: no rows."""
    try:
        with open_file(path) as file:
            table = pd.read_csv(file)
            columns = [*columns, *(name for name in map(str, table) if also and also.fullmatch(name))]
            missing = [name for name in columns if name not in table]
            if missing:
                raise ValueError(f"has no column {', '.join(missing)}")
            values = {name: table[name].to_numpy(float) for name in columns}
    except FileNotFoundError:
        return pd.DataFrame({name: pd.Series(dtype=float) for name in columns})
    keys = np.stack([values[name] for name in key])
    order = np.lexsort(keys[::-1])
    if not np.isfinite(keys).all() or (np.diff(keys[:, order]) == 0).all(axis=0).any():
        raise DamagedFileError(path, f"has rows without, or with the same, {' and '.join(key)}")
    return pd.DataFrame({name: v[order].astype(int) if name in key else v[order] for name, v in values.items()})


def _read_probes(directory: Path, config: Mapping[str, Any]) -> Probes | None:
    """Read the probes in double precision, and check them against the configuration."""
    probes = read_probes(directory)
    if probes is None:
        return None
    _, states, members, _ = probes.q.shape
    expected = (config.get("probe") or {}).get("states", states), config["algo"]["ensemble_size"]
    if (states, members) != expected:
        reason = f"has {states} states and {members} members where {CONFIG} says {expected[0]}, {expected[1]}"
        raise DamagedFileError(directory / PROBES, reason)
    true_q = None if probes.true_q is None else probes.true_q.astype(np.float64)
    return Probes(probes.step.astype(np.int64), probes.q.astype(np.float64), true_q)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except FileNotFoundError:  # a run that was killed early
        return {}


def _short(value: Any, longest: int) -> str:
    text = str(value)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))


def _steps(steps: Iterable[Any]) -> str:
    found = [int(step) for step in steps]
    return f"step {found[0]}" if len(found) == 1 else f"{len(found)} steps from {found[0]} on"
