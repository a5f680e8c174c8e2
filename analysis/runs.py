"""Pools runs: reads all run directories below the given paths and groups them by environment and label.

Whatever is wrong with a set of runs ends up in one of two lists: `problems` names each directory that was skipped, and
why; `notes` tells a reader of the numbers what to keep in mind (unfinished runs, missing seeds, ...).

Runs are pooled where environment, label and configuration agree. Where one label covers several configurations, the
fields that differ become part of the label: `dqn {algo.learning_rate=0.001}`. Different configurations are never
averaged together. The files themselves are read by meanq.rundir.reader, which executes nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from meanq.config.fields import field_value, flatten, is_compared
from meanq.metrics.definitions import BIASES, bias, normalise, normalising_scores
from meanq.metrics.registry import DIAGNOSIS, TRAINING, RunData, diagnostic_columns
from meanq.rundir import layout, reader
from meanq.rundir.frames import read_frame

DIAGNOSTICS = {source: diagnostic_columns(source) for source in (TRAINING, DIAGNOSIS)}


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
    evaluations: pd.DataFrame  # one row per episode
    probes: reader.Probes | None
    status: Mapping[str, Any]
    meta: Mapping[str, Any]
    timings: pd.DataFrame
    diagnostics: pd.DataFrame  # step and the columns DIAGNOSTICS of training.csv and diagnosis.csv that the run has

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

    @cached_property
    def data(self) -> RunData:
        """The run as metrics want it."""
        columns = {name: self.evaluations[name].to_numpy(float) for name in layout.EVALUATION_COLUMNS[2:]}
        data = RunData(self.scores, self.evaluations["step"].to_numpy(), columns, seconds=self.seconds)
        if self.probes is None:
            return data
        return data.with_probes(self.probes)

    @cached_property
    def episode_means(self) -> pd.DataFrame:
        """Means over the episodes of each evaluation, by step; NaN where an episode's number is not finite.

        Beside the columns of the table: normalised_return, and each kind of bias.
        """
        means = {name: self.data.mean(name) for name in self.data.episodes}
        means |= {f"bias_{kind}": bias(means["value"], means[column]) for kind, column in BIASES.items()}
        means["normalised_return"] = normalise(means["return"], self.scores or (np.nan, np.nan))
        return pd.DataFrame(means, index=pd.Index(self.data.steps, name="step"))


@dataclass
class RunSet:
    """Runs, the directories that were skipped and why, and notes about both."""

    runs: list[Run]
    problems: list[str] = field(default_factory=list)
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

    def only(self, labels: Sequence[str]) -> "RunSet":
        """The runs of some labels, and what is said about them or about no label."""
        others = set(self.labels) - set(labels)
        notes = [
            note for note in self.notes if not any(f", {label}:" in note or f", {label}," in note for label in others)
        ]
        return RunSet([run for run in self.runs if run.label in labels], self.problems, notes)

    def messages(self) -> list[str]:
        """Every problem and note, one line each."""
        return [f"skipped {problem}" for problem in self.problems] + self.notes


def read_run(directory: Path) -> Run:
    """Read one run; AnalysisError where its files are not those of a run."""
    try:
        config = reader.read_config(directory)
        return Run(
            directory=directory,
            env=config["env"]["name"],
            label=config["label"],
            algo=config["algo"]["name"],
            seed=config["seed"],
            config=config,
            evaluations=read_frame(directory / layout.EVALUATIONS, layout.EVALUATION_COLUMNS, also=None),
            probes=_read_probes(directory, config),
            status=reader.read_json_if_there(directory / layout.STATUS),
            meta=reader.read_json_if_there(directory / layout.META),
            timings=read_frame(directory / layout.TIMINGS, ("seconds",), also=None),
            diagnostics=_read_diagnostics(directory),
        )
    except FileNotFoundError:
        raise AnalysisError(f"no {layout.CONFIG}") from None
    except reader.UnreadableFileError as error:
        raise AnalysisError(error.brief) from None


def read_runs(paths: Sequence[Path | str]) -> RunSet:
    """Read all runs below the paths and check them against each other; AnalysisError where none can be read."""
    unlisted: list[tuple[str, str]] = []
    problems, runs = [], []
    for directory in reader.find_runs(map(Path, paths), unlisted):
        try:
            runs.append(read_run(directory))
        except AnalysisError as error:
            problems.append(reader.printable(f"{directory}: {error}"))
    problems += [reader.printable(f"{directory}: {reason}") for directory, reason in unlisted]
    if not runs:
        what = "; ".join(problems) or "nothing called <env>/<label>/seed_<n> is below"
        raise AnalysisError(f"{', '.join(map(str, paths))}: no runs here ({what})")
    notes: list[str] = []
    found = RunSet(_drop_repeated(_separate_configurations(runs, notes), notes), problems, notes)
    notes += [note for run in found.runs for note in _about_run(run)]
    notes += [*_missing_seeds(found), *_unlike(found)]
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
    labels: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        labels[run.label][run.env].append(run)
    separated = []
    for label, by_env in labels.items():
        fields = sorted({name for same in by_env.values() for name in differing_fields([run.config for run in same])})
        for env, same in by_env.items():
            variants: dict[str, list[Run]] = defaultdict(list)
            for run in same:
                flat = flatten(run.config)
                variants[", ".join(f"{name}={field_value(flat, name)}" for name in fields)].append(run)
            for variant, alike in variants.items():
                separated += [replace(run, label=f"{label} {{{variant}}}") if fields else run for run in alike]
            if len(variants) > 1:
                parts = [f"{name} (seeds {_seeds(alike)})" for name, alike in sorted(variants.items())]
                notes.append(f"{env}, {label}: several configurations under one label, kept apart: {'; '.join(parts)}")
    return separated


def _drop_repeated(runs: list[Run], notes: list[str]) -> list[Run]:
    """Keep one run per configuration and seed: a second copy is no second sample."""
    copies: dict[tuple[str, str, int], list[Run]] = defaultdict(list)
    for run in runs:
        copies[run.env, run.label, run.seed].append(run)
    kept = [max(same, key=lambda run: run.last_evaluation) for same in copies.values()]
    for run, same in zip(kept, copies.values(), strict=True):
        if len(same) > 1:
            others = ", ".join(str(other.directory) for other in same if other is not run)
            counts = f"{run.directory}, the one that got furthest, counts, and not {others}"
            notes.append(f"{run.env}, {run.label}: seed {run.seed} is there {len(same)} times; {counts}")
    return kept


def _about_run(run: Run) -> Iterator[str]:
    """Note that a run is not complete, or has numbers that are not finite."""
    name = f"{run.env}, {run.label}, seed {run.seed}"
    if run.state != "finished" or run.last_evaluation < run.total_steps:
        reason = run.status.get("reason")
        reason = f": {reader.printable(reason)}" if isinstance(reason, str) else ""
        state, reached = reader.printable(run.state), f"{run.last_evaluation} of {run.total_steps}"
        yield f"{name}: {state}, evaluated up to step {reached}{reason}"
    rows = run.evaluations.to_numpy(float)
    finite = {layout.EVALUATIONS: (run.evaluations["step"].to_numpy(), np.isfinite(rows).all(axis=1))}
    if run.probes is not None:
        finite[layout.PROBES] = run.probes.step, np.isfinite(run.probes.q).all(axis=(1, 2, 3))
    for file, (steps, good) in finite.items():
        bad = sorted(set(steps[~good]))
        if bad:
            where = f"{file} at step {bad[0]}" + (f" and {len(bad) - 1} more" if len(bad) > 1 else "")
            yield f"{name}: numbers that are not finite in {where}; what depends on them leaves this run out there"


def _missing_seeds(found: RunSet) -> Iterator[str]:
    for (env, label), runs in found.groups().items():
        present = {run.seed for run in runs}
        missing = {run.seed: run for run in found.runs if run.env == env and run.seed not in present}
        if missing:
            yield f"{env}, {label}: no run of seed {_seeds(missing.values())}, which other labels have"
        if len(runs) == 1:
            yield f"{env}, {label}: one run only, so nothing can be said about its spread over runs"


def _unlike(found: RunSet) -> Iterator[str]:
    """Note differences between labels that make their numbers hard to compare."""
    notes = {
        "values were not probed at the same states, so std and gap are not comparable": _probed_states,
        "runs are not of one length; compare them at equal steps only": lambda run: f"{run.total_steps}",
        "runs are normalised by different random or reference scores": lambda run: f"{run.scores}",
    }
    for env in found.envs:
        for note, describe in notes.items():
            labels: dict[str, set[str]] = defaultdict(set)
            for run in (run for run in found.runs if run.env == env):
                labels[describe(run)].add(run.label)
            labels.pop("", None)
            if len(labels) > 1:
                parts = [f"{', '.join(sorted(names))}: {what}" for what, names in sorted(labels.items())]
                yield f"{env}: {note} ({'; '.join(parts)})"


def _probed_states(run: Run) -> str:
    if run.probes is None:
        return ""
    seed = run.config.get("probe", {}).get("seed")
    return f"{run.probes.q.shape[1]} states of probe.seed={seed}, {run.probes.q.shape[3]} actions"


def _read_diagnostics(directory: Path) -> pd.DataFrame:
    """Read the diagnostics of all tables, by step."""
    training, diagnosis = (read_frame(directory / name, also=also) for name, also in DIAGNOSTICS.items())
    return training.merge(diagnosis, on="step", how="outer") if len(diagnosis) else training


def _read_probes(directory: Path, config: Mapping[str, Any]) -> reader.Probes | None:
    """Read the probes in double precision."""
    probes = reader.read_probes(directory, config)
    if probes is None:
        return None
    true_q = None if probes.true_q is None else probes.true_q.astype(np.float64)
    return replace(probes, step=probes.step.astype(np.int64), q=probes.q.astype(np.float64), true_q=true_q)


def _seeds(runs: Iterable[Run]) -> str:
    return ", ".join(str(seed) for seed in sorted(run.seed for run in runs))
