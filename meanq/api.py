"""What `import meanq` offers a notebook or a script: `load` a run, read many `runs`, `train` one.

    run = meanq.load("runs/default/minatar_asterix/meanq/seed_0")
    run.evaluations                                   # a data frame, one row per episode
    run.agent.q(run.agent.probe_states)               # values of every member, [K, N, A]

    found = meanq.runs("runs")
    found.frame("evaluations", fields=["algo.ensemble_size"])

    run = meanq.train(["algo=dqn", "env=chain", "seed=3"])

Nothing that is read is executed, unless `trust=True` says that code named by a run may be imported. Mistakes raise
ConfigError (of overrides and arguments) or RunError (of run directories), both ValueErrors with a message of one line.
"""

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from meanq.config.errors import ConfigError, RunError, closest
from meanq.config.fields import ABSENT, field_value, flatten, walk
from meanq.metrics.definitions import state_value
from meanq.rundir import layout, reader

if TYPE_CHECKING:
    import pandas as pd

    from meanq.training.trained import Played, Trained

__all__ = ["Agent", "ConfigError", "Run", "RunError", "Runs", "load", "runs", "train"]

_TABLES = {Path(name).stem: name for name in layout.TABLES}  # evaluations, training, diagnosis, timings
FRAMES = (*_TABLES, "probes", "runs")


class Agent:
    """The trained agent of a run: its final weights, or those of its newest checkpoint."""

    def __init__(self, trained: "Trained") -> None:
        self._trained = trained
        self.step, self.notes = trained.step, trained.notes
        self.members = trained.config.algo.ensemble_size
        self.actions = trained.env.action_names()

    def __repr__(self) -> str:
        shape = list(self.state_shape)
        members = f"{self.members} member{'s' * (self.members > 1)}"
        return f"<Agent: {members}, {len(self.actions)} actions, states {shape}, step {self.step:,}>"

    @property
    def state_shape(self) -> tuple[int, ...]:
        """The shape of one state: frames stacked along the first axis."""
        return self._trained.network.state_shape

    @cached_property
    def probe_states(self) -> np.ndarray:
        """The initial states [P, *state] of the run's probes, the same for every seed and algorithm."""
        from meanq.training.evaluation import make_probes

        return make_probes(self._trained.config).states

    def q(self, states: Any) -> np.ndarray:
        """Values [K, N, A] of every member, state and action; `states` is [N, *state]."""
        return self._trained.agent.values(self._checked(states, 1))

    def value(self, states: Any) -> np.ndarray:
        """The ensemble's values [N] of states [N, *state]: max_a mean_k Q_k(s, a)."""
        return state_value(self.q(states), members=0)

    def act(self, state: Any) -> int:
        """The greedy action in one state [*state]: that of the highest mean over members."""
        from meanq.learning.exploration import greedy

        return int(greedy(self._trained.agent.values)(self._checked(state, 0)[None])[0][0])

    def play(self, episodes: int | None = None, *, states: bool = False) -> "list[Played]":
        """Play episodes as the run's last evaluation did, with its seeds; by default as many.

        Each has `actions`, `rewards`, `q` [T, K, A], `realised` (the discounted return that followed each step),
        `score` and, if `states` is true, the `states` [T, *state].
        """
        from meanq.training.trained import play

        if episodes is not None and (not isinstance(episodes, int) or episodes < 1):
            raise ConfigError(f"episodes={episodes!r}: write a whole number of 1 or more")
        return play(self._trained, episodes, states=states)

    def _checked(self, states: Any, leading: int) -> np.ndarray:
        """States as the network takes them; ConfigError where they are none."""
        given, wanted = np.asarray(states), ("[N, " if leading else "[") + ", ".join(map(str, self.state_shape)) + "]"
        if given.ndim != leading + len(self.state_shape) or given.shape[leading:] != self.state_shape:
            raise ConfigError(f"states have shape {list(given.shape)}; give {wanted}")
        exact = given.astype(self._trained.env.frame_dtype)
        if exact.dtype.kind in "biu" and not (exact == given).all():
            raise ConfigError(f"states of type {given.dtype} have other values than {exact.dtype} can hold")
        return exact


class Run:
    """One run directory. Its files are read when they are first asked for; `load` again to see a run go on."""

    def __init__(self, directory: Path, config: Mapping[str, Any], trust: bool = False) -> None:
        self.directory, self.config = directory, config
        self._trust, self._frames = trust, dict[str, "pd.DataFrame"]()
        self.env: str = config["env"]["name"]
        self.algo: str = config["algo"]["name"]
        self.label: str = config["label"]
        self.seed: int = config["seed"]

    def __repr__(self) -> str:
        step, total = self.status.get("step", 0), self.config["total_steps"]
        return f"<Run {self.env}/{self.label}/seed_{self.seed}: {self.state}, {step:,} of {total:,} steps>"

    @cached_property
    def status(self) -> dict[str, Any]:
        """What status.json says: state, step, and the reason of a failure."""
        return _read(reader.read_json_if_there, self.directory / layout.STATUS)

    @cached_property
    def meta(self) -> dict[str, Any]:
        """What meta.json says: versions, commit, machine, seconds, overrides."""
        return _read(reader.read_json_if_there, self.directory / layout.META)

    @cached_property
    def state(self) -> str:
        """What the run is doing, as `meanq status` shows it: finished, running, interrupted, killed, failed, ..."""
        from meanq.rundir.progress import read_run

        return read_run(self.directory).state

    def field(self, name: str) -> Any:
        """A field of the configuration by its dotted name; its declared default where the run is older than it."""
        value = field_value(self._flat, name)
        if isinstance(value, str) and value == ABSENT and name not in self._flat:
            raise ConfigError(f"{name}: there is no such field{closest(name, {*self._flat, *(n for n, _ in walk())})}")
        return value

    @cached_property
    def _flat(self) -> dict[str, Any]:
        return flatten(self.config)

    @property
    def evaluations(self) -> "pd.DataFrame":
        """One row per evaluation episode."""
        return self.frame("evaluations")

    @property
    def training(self) -> "pd.DataFrame":
        """Losses, values and schedules: means since the row before."""
        return self.frame("training")

    @property
    def diagnosis(self) -> "pd.DataFrame":
        """Dormant units and the rank of features at each probe; no rows where a run did not record them."""
        return self.frame("diagnosis")

    @property
    def timings(self) -> "pd.DataFrame":
        """Speed, and where the time went."""
        return self.frame("timings")

    @cached_property
    def probes(self) -> reader.Probes | None:
        """Values `q` [T, P, K, A] of all members at the probe states at steps `step` [T]; None before the first."""
        return _read(reader.read_probes, self.directory)

    def frame(self, name: str) -> "pd.DataFrame":
        """A table as a data frame: evaluations, training, diagnosis, timings, probes, or runs (one row)."""
        from meanq.rundir.frames import probe_frame, read_frame

        if name not in FRAMES:
            raise ConfigError(f"{name}: there is no such table{closest(name, FRAMES)}")
        if name == "runs":
            return self._row()
        if name not in self._frames and name == "probes":
            self._frames[name] = probe_frame(self.probes)
        elif name not in self._frames:
            columns = layout.EVALUATION_COLUMNS if _TABLES[name] == layout.EVALUATIONS else ()
            path = self.directory / _TABLES[name]
            self._frames[name] = _read(lambda path: read_frame(path, columns), path)
        return self._frames[name]

    @cached_property
    def agent(self) -> Agent:
        """The trained agent; imports torch. RunError where the run has no weights yet."""
        return self.agent_at()

    def agent_at(self, checkpoint: int | None = None) -> Agent:
        """The agent of a checkpoint's step (checkpoint.keep=true keeps the last); None: the final or newest one."""
        from meanq.training.trained import load_trained

        return Agent(load_trained(self.directory, self.config, self.meta, checkpoint, self._trust))

    def _row(self) -> "pd.DataFrame":
        import pandas as pd

        row = {"state": self.state, "step": self.status.get("step"), "total_steps": self.config["total_steps"]}
        return pd.DataFrame([{**row, "seconds": self.meta.get("seconds"), "directory": str(self.directory)}])


class Runs(Sequence[Run]):
    """Runs in order. `problems` has (directory, reason) of what could not be read."""

    def __init__(self, found: Sequence[Run], problems: Sequence[tuple[str, str]] = ()) -> None:
        self._runs, self.problems = list(found), list(problems)

    def __repr__(self) -> str:
        states = Counter(run.state for run in self)
        labels, envs = len({run.label for run in self}), len({run.env for run in self})
        parts = [f"{count} {state}" for state, count in states.most_common()]
        parts += [f"{len(self.problems)} unreadable"] * bool(self.problems)
        return f"<Runs: {len(self)} of {labels} label(s) in {envs} environment(s); {', '.join(parts)}>"

    def __len__(self) -> int:
        return len(self._runs)

    @overload
    def __getitem__(self, index: int) -> Run: ...

    @overload
    def __getitem__(self, index: slice) -> "Runs": ...

    def __getitem__(self, index: int | slice) -> "Run | Runs":
        return Runs(self._runs[index]) if isinstance(index, slice) else self._runs[index]

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def frame(self, name: str, fields: Iterable[str] = ()) -> "pd.DataFrame":
        """One tidy frame of a table of all runs: evaluations, training, diagnosis, timings, probes, or runs.

        `runs` has one row per run. The first columns are env, algo, label, seed and the given fields of the
        configuration by dotted name, such as algo.ensemble_size or study. Lists are given as text, so that every column
        can be grouped by.
        """
        import pandas as pd

        if isinstance(fields, str):
            raise ConfigError(f'fields={fields!r}: give a list, fields=["{fields}"]')
        parts, chosen = [], list(fields)
        for run in self:
            table = run.frame(name)
            about = {"env": run.env, "algo": run.algo, "label": run.label, "seed": run.seed}
            about |= {field: run.field(field) for field in chosen}
            cells = {key: str(value) if isinstance(value, list | dict) else value for key, value in about.items()}
            front = pd.DataFrame({key: [value] * len(table) for key, value in cells.items()}, index=table.index)
            parts.append(pd.concat([front.astype({"seed": int}), table], axis=1))
        parts = [part for part in parts if len(part)] or parts[:1]  # no rows would make whole numbers real ones
        return pd.concat(parts, ignore_index=True)


def load(directory: str | os.PathLike[str], *, trust: bool = False) -> Run:
    """The run of a directory, .../seed_<n>.

    `trust`: import code that the run names, such as an environment of your own, when its agent is made.
    """
    return Run(Path(directory), _read(reader.read_config, Path(directory)), trust)


def runs(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, trust: bool = False) -> Runs:
    """All runs at or below one or several directories.

    Warns of directories that cannot be read; RunError where no run can.
    """
    roots = [Path(paths)] if isinstance(paths, str | os.PathLike) else [Path(path) for path in paths]
    problems: list[tuple[str, str]] = []
    found = []
    for directory in reader.find_runs(roots, problems):
        try:
            found.append(load(directory, trust=trust))
        except RunError as error:
            problems.append((str(directory), str(error)))
    shown = "; ".join(reason for _, reason in problems[:1]) + f" and {len(problems) - 1} more" * (len(problems) > 1)
    if not found:
        why = f" ({shown})" if problems else "; give the directory of a run, or one with runs below it"
        raise RunError(f"{', '.join(map(str, roots))}: no run here{why}")
    if problems:
        warnings.warn(f"left out what cannot be read (see .problems): {shown}", stacklevel=2)
    return Runs(found, problems)


def train(overrides: Sequence[str] = (), *, quiet: bool = False) -> Run:
    """Train the run that these overrides name, as `meanq run` does, and return it.

    A run that is finished already is returned as it is; an interrupted one goes on. Overrides that name several runs
    are an error: call `train` for each, or give them to `meanq -m` in a shell. Interrupting saves a checkpoint first.
    """
    from rich.console import Console

    from meanq.launching.execute import train_here
    from meanq.launching.plan import plan
    from meanq.training.terminal import TerminalReporter, make_console

    if isinstance(overrides, str):
        raise ConfigError(f'{overrides}: give a list of overrides, such as ["algo=dqn", "env=chain"]')
    for option in (word for word in overrides if word.startswith("-")):
        raise ConfigError(f"{option}: train takes overrides, such as algo=dqn, and no options")
    planned = plan(overrides, if_several="call train for each of them, or give them to `meanq -m` in a shell")
    assert planned is not None  # without options
    config, directory = planned.configs[0], planned.directories[0]
    if reader.read_status(directory).get("state") != "finished":
        reporter = TerminalReporter(Console(quiet=True) if quiet else make_console())
        train_here(config, planned.job_overrides[0], reporter)
    return load(directory, trust=True)


def _read(read: Any, path: Path) -> Any:
    """Read a file of a run; RunError where that is not possible."""
    try:
        return read(path)
    except FileNotFoundError:
        raise RunError(f"{path}: not the directory of a run, .../seed_<n> (no {layout.CONFIG})") from None
    except reader.UnreadableFileError as error:
        raise RunError(str(error)) from None
