"""Reads run directories: `<root>/.../<env>/<label>/seed_<n>/`, wherever they are below the given paths.

Nothing is read but CSV, JSON, YAML without tags and arrays without pickles, so reading somebody else's directory runs
nothing of theirs. What is wrong with a set of runs ends in one of two lists: `problems` names each directory that was
skipped, and why; `notes` says what a reader of the numbers has to know (unfinished runs, missing seeds, ...).

Runs are pooled where environment, label and configuration agree. Where one label covers several configurations, its
runs are told apart by the fields that differ: `dqn {algo.learning_rate=0.001}`. They are never averaged together.
"""

import csv
import json
import os
import re
import sys
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from meanq.config.fields import field_value, flatten, is_compared

EVALUATION_COLUMNS = (
    *("step", "episode", "return", "discounted_return", "discounted_return_unclipped"),
    *("discounted_return_first_life", "length", "value"),
)
LONG_HORIZON = 500_000  # from here on scores are normalised as in the paper's table 2
# Columns of training.csv that tell whether learning gets through, see `meanq.agent.Agent.diagnostics`.
DIAGNOSTICS = re.compile(r"adam_share_\w+|value_spread")
_TABLES = ("timings.csv", "training.csv")
_SEED = re.compile(r"seed_\d+")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same language, ten times as fast
# What the readers of CSV, JSON, YAML and arrays raise where a file is not what its name says.
_DAMAGE = (
    *(OSError, EOFError, MemoryError, KeyError, ValueError, TypeError, AttributeError, NotImplementedError),
    *(RecursionError, csv.Error, zipfile.BadZipFile, zlib.error, yaml.YAMLError, pd.errors.ParserError),
)


class AnalysisError(ValueError):
    """A user's mistake, or data that cannot answer the question: one line."""


@dataclass(frozen=True)
class Probes:
    """Values of all members at the probe states, and the truth where it is known."""

    step: np.ndarray  # [T]
    q: np.ndarray  # [T, P, K, A]
    true_q: np.ndarray | None  # [P, A]

    def at(self, step: int) -> np.ndarray | None:
        """Q [P, K, A] at this step; None where there is no probe or a value is not finite."""
        index = self._finite.get(step)
        return None if index is None else self.q[index]

    @cached_property
    def _finite(self) -> dict[int, int]:
        """By step, where in q it is; of finite values."""
        finite = np.isfinite(self.q).all(axis=(1, 2, 3))
        return {int(step): index for index, step in enumerate(self.step) if finite[index]}


@dataclass(frozen=True)
class Run:
    """One run directory, as its files tell."""

    directory: Path
    env: str
    label: str  # what runs are grouped by; told apart further where configurations differ
    algo: str  # the name of the configured algorithm
    seed: int
    config: Mapping[str, Any]
    evaluations: pd.DataFrame  # one row per episode; EVALUATION_COLUMNS
    probes: Probes | None
    status: Mapping[str, Any]
    meta: Mapping[str, Any]
    timings: pd.DataFrame
    diagnostics: pd.DataFrame  # of training.csv: step and the columns of DIAGNOSTICS, as far as the run has them

    @property
    def state(self) -> str:
        """What the run says of itself: finished, failed, interrupted, running (or killed without a word)."""
        return str(self.status.get("state", "unknown"))

    @property
    def total_steps(self) -> int:
        """How long the run is meant to be."""
        return int(self.config["total_steps"])

    @property
    def last_evaluation(self) -> int:
        """The last step at which it was evaluated; 0 where it never was."""
        return int(self.evaluations["step"].max()) if len(self.evaluations) else 0

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of training; up to the last row of timings.csv where the run is not finished."""
        if isinstance(self.meta.get("seconds"), int | float):
            return float(self.meta["seconds"])
        return float(self.timings["seconds"].iloc[-1]) if len(self.timings) else float("nan")

    @cached_property
    def scores(self) -> tuple[float, float] | None:
        """(random, reference) score by which returns are normalised, of the table of the run's horizon."""
        env = self.config["env"]
        random, reference = env.get("random_score"), env.get("reference_score")
        if self.total_steps >= LONG_HORIZON and env.get("random_score_500k") is not None:
            random = env["random_score_500k"]
        if random is None or reference is None or random == reference:
            return None
        return float(random), float(reference)

    def normalise(self, score: Any) -> Any:
        """(score - random) / (reference - random); NaN where the environment has no such scores."""
        if self.scores is None:
            return score * np.nan
        random, reference = self.scores
        return (score - random) / (reference - random)

    @cached_property
    def episode_means(self) -> pd.DataFrame:
        """Means over the episodes of each evaluation, by step; NaN where an episode's number is not finite.

        `episodes` is their number. Beside the columns of the table: normalised_return, and the bias
        V(s_0) - sum_t gamma^t r_t with rewards as learned from (clipped), as the game gives them (unclipped), or as
        learned from and up to the first loss of life (first_life).
        """
        columns = [name for name in EVALUATION_COLUMNS if name not in ("step", "episode")]
        values = self.evaluations[columns].to_numpy(float)
        values[~np.isfinite(values)] = np.nan
        steps, first, episodes = np.unique(self.evaluations["step"], return_index=True, return_counts=True)
        # Rows are in the order of steps. A sum with a NaN is NaN: no mean over what is left.
        sums = np.add.reduceat(values, first, axis=0) if len(steps) else values
        means = dict(zip(columns, (sums / episodes[:, None]).T, strict=True))
        means |= {f"bias_{name}": means["value"] - means[column] for name, column in BIASES.items()}
        means |= {"normalised_return": self.normalise(means["return"]), "episodes": episodes}
        return pd.DataFrame(means, index=pd.Index(steps.astype(int), name="step"))


# The discounted return that the value of the initial state is compared with, by the name of the option.
BIASES = {
    "clipped": "discounted_return",
    "unclipped": "discounted_return_unclipped",
    "first_life": "discounted_return_first_life",
}


@dataclass(frozen=True)
class Problem:
    """A directory that was skipped."""

    directory: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.directory}: {self.reason}"


@dataclass
class RunSet:
    """Runs, the directories that were skipped, and what has to be said about them."""

    runs: list[Run]
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def envs(self) -> list[str]:
        """In alphabetical order."""
        return sorted({run.env for run in self.runs})

    @property
    def labels(self) -> list[str]:
        """In alphabetical order."""
        return sorted({run.label for run in self.runs})

    @property
    def lengths(self) -> dict[str, int]:
        """Of the longest run in each environment, in interactions, finished or not."""
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


def find_directories(paths: Iterable[Path], problems: list[Problem]) -> Iterator[Path]:
    """Every directory called seed_<n> at or below the paths, once, in order; links are followed."""
    seen: set[tuple[int, int]] = set()  # paths may overlap, and a link may lead back up
    waiting = list(reversed(list(paths)))
    while waiting:
        directory = waiting.pop()
        try:
            about = directory.stat()
            if (about.st_dev, about.st_ino) in seen:
                continue
            seen.add((about.st_dev, about.st_ino))
            if _SEED.fullmatch(directory.name or directory.resolve().name):
                yield directory
                continue
            with os.scandir(directory) as entries:
                below = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
            waiting += [directory / name for name in reversed(below)]
        except OSError as error:
            problems.append(Problem(directory, error.strerror or str(error)))


def read_run(directory: Path) -> Run:
    """One run; AnalysisError where its files are not those of a run."""
    try:
        for name in ("config.yaml", "evaluations.csv", "probes.npz", "status.json", "meta.json", *_TABLES):
            if (directory / name).exists() and not (directory / name).is_file():
                raise ValueError(f"{name} is not a file")
        if not (directory / "config.yaml").exists():
            raise ValueError("no config.yaml")
        config = _read_config(directory / "config.yaml")
        return Run(
            directory=directory,
            env=config["env"]["name"],
            label=config["label"],
            algo=config["algo"]["name"],
            seed=config["seed"],
            config=config,
            evaluations=_read_table(directory / "evaluations.csv", EVALUATION_COLUMNS, ("step", "episode")),
            probes=_read_probes(directory / "probes.npz", config),
            status=_read_json(directory / "status.json"),
            meta=_read_json(directory / "meta.json"),
            timings=_read_table(directory / "timings.csv", ("step", "seconds"), ("step",)),
            diagnostics=_read_table(directory / "training.csv", ("step",), ("step",), DIAGNOSTICS),
        )
    except _DAMAGE as error:
        raise AnalysisError(" ".join(str(error).split()) or type(error).__name__) from None


def read_runs(paths: Sequence[Path | str]) -> RunSet:
    """All runs below the paths, checked against each other; AnalysisError where there is none that can be read."""
    problems: list[Problem] = []
    runs = []
    for directory in find_directories([Path(path) for path in paths], problems):
        try:
            runs.append(read_run(directory))
        except AnalysisError as error:
            problems.append(Problem(directory, str(error)))
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
    """The labels of a list with commas, where labels may have commas themselves; what is unknown is left as written."""
    found = []
    while text:
        fitting = [label for label in known if f"{text},".startswith(f"{label},")]
        label = max(fitting, key=len) if fitting else text.partition(",")[0]
        found.append(label)
        text = text[len(label) + 1 :]
    return found


def differing_fields(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the fields, of those that matter, in which the configurations are not all equal."""
    flat = [flatten(config) for config in configs]
    names = sorted({name for fields in flat for name in fields})
    return [
        name
        for name in names
        if is_compared(name) and any(field_value(fields, name) != field_value(flat[0], name) for fields in flat)
    ]


def _separate_configurations(runs: list[Run], notes: list[str]) -> list[Run]:
    """Where a label covers several configurations of a game, add to it what differs; in other games, too, so that the
    same configuration is called the same everywhere.
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
    """name=value of each field; long values cut off."""
    pairs = zip(fields, json.loads(values), strict=True)
    return between.join(f"{name}={_short(value, longest)}" for name, value in pairs)


def _suffixes(fields: Sequence[str], variants: Sequence[str]) -> dict[str, str]:
    """What is added to a label, by the values of these fields; no two are alike."""
    if len(fields) > 2:
        first = {values: _assignments(fields[:1], json.dumps(json.loads(values)[:1]), "") for values in variants}
        return {values: f"variant {i}: {first[values]}, ..." for i, values in enumerate(variants, 1)}
    short = {values: _assignments(fields, values, ", ") for values in variants}
    if len(set(short.values())) == len(variants):
        return short
    return {values: _assignments(fields, values, ", ", sys.maxsize) for values in variants}


def _drop_repeated(runs: list[Run], notes: list[str]) -> list[Run]:
    """A run is a function of its configuration and seed, so a second copy is no second sample."""
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
    """Differences between labels that make their numbers hard to compare."""
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


def _read_config(path: Path) -> dict[str, Any]:
    config = yaml.load(path.read_text(), Loader=_LOADER)
    try:
        names = [config["label"], config["env"]["name"], config["algo"]["name"]]
        numbers = [config["seed"], config["total_steps"], config["algo"]["ensemble_size"]]
        scores = [config["env"].get(name) for name in ("random_score", "random_score_500k", "reference_score")]
    except (KeyError, TypeError, IndexError, AttributeError):
        raise ValueError(f"{path.name} is not the configuration of a run") from None
    if not all(isinstance(name, str) for name in names) or not all(type(number) is int for number in numbers):
        raise ValueError(f"{path.name} is not the configuration of a run")
    if not all(score is None or type(score) in (int, float) for score in scores):
        raise ValueError(f"{path.name} has a random or reference score that is not a number")
    return config


def _read_table(path: Path, columns: Sequence[str], key: Sequence[str], also: re.Pattern[str] | None = None) -> Any:
    """These columns, and those that `also` matches. Empty where there is no such file: a new run has none."""
    if not path.exists():
        return pd.DataFrame({name: pd.Series(dtype=float) for name in columns})
    table = pd.read_csv(path)
    columns = [*columns, *(name for name in map(str, table) if also and also.fullmatch(name))]
    missing = [name for name in columns if name not in table]
    if missing:
        raise ValueError(f"{path.name} has no column {', '.join(missing)}")
    try:
        values = {name: table[name].to_numpy(float) for name in columns}
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
    keys = np.stack([values[name] for name in key])
    order = np.lexsort(keys[::-1])
    if not np.isfinite(keys).all() or (np.diff(keys[:, order]) == 0).all(axis=0).any():
        raise ValueError(f"{path.name} has rows without, or with the same, {' and '.join(key)}")
    return pd.DataFrame({name: v[order].astype(int) if name in key else v[order] for name, v in values.items()})


def _read_probes(path: Path, config: Mapping[str, Any]) -> Probes | None:
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as arrays:
        if "step" not in arrays or "q" not in arrays:
            raise ValueError(f"{path.name} has no step or no q")
        step, q = arrays["step"], arrays["q"].astype(np.float64)
        true_q = arrays["true_q"].astype(np.float64) if "true_q" in arrays else None
    if q.ndim != 4 or 0 in q.shape[1:] or step.shape != (len(q),) or (np.diff(step) <= 0).any():
        raise ValueError(f"{path.name} holds q of shape {q.shape} for steps of shape {step.shape}, which is no probe")
    members, states = config["algo"]["ensemble_size"], (config.get("probe") or {}).get("states", q.shape[1])
    if q.shape[1:3] != (states, members):
        raise ValueError(
            f"{path.name} holds {q.shape[1]} states and {q.shape[2]} members where config.yaml says {states}, {members}"
        )
    if true_q is not None and (true_q.shape != (q.shape[1], q.shape[3]) or not np.isfinite(true_q).all()):
        raise ValueError(f"{path.name} holds true_q of shape {true_q.shape} for q of shape {q.shape}")
    return Probes(step.astype(np.int64), q, true_q)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    content = json.loads(path.read_text())
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return content


def _short(value: Any, longest: int) -> str:
    text = str(value)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))


def _steps(steps: Iterable[Any]) -> str:
    found = [int(step) for step in steps]
    return f"step {found[0]}" if len(found) == 1 else f"{len(found)} steps from {found[0]} on"
