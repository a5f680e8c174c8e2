"""What a run is doing, as far as its directory shows. Only reads, never raises for damaged files, needs no torch."""

import contextlib
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, groupby, islice, pairwise
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from meanq.rundir import layout, reader
from meanq.rundir.lock import lock_holder
from meanq.rundir.sweeps import planned_runs

STALLED_SECONDS = 120.0  # a live run refreshes status.json at least every 30 s
_SPEED_ROWS = 10  # of timings.csv, where the configuration does not say how often the run is evaluated
_WAITS = ("interrupted", "killed", "failed", "unreadable")  # may be waiting to be resumed
FINISHED = ("finished", "resumed", "skipped")  # outcomes of a run that has its last step


class Stretch(NamedTuple):
    """A part of a run: from which step, to which, and how many seconds that took."""

    first: int
    last: int
    seconds: float


def recent_speed(newest_first: Iterable[Stretch], window: float, first_update: int = 0) -> float | None:
    """Return the steps per second over the last `window` steps, which should be the steps between two evaluations.

    Then it counts one evaluation, as the rest of the run does on average. Steps up to the first update are left out
    where there are later ones: they are faster (nothing is learned) or slower (the learner is compiled).
    """
    steps, seconds = 0, 0.0
    for stretch in newest_first:
        if steps and (steps >= window or stretch.first < first_update):
            break
        steps += stretch.last - stretch.first
        seconds += stretch.seconds
    return steps / seconds if steps > 0 and seconds > 0 else None


@dataclass
class RunStatus:
    """The status of one run; None is unknown."""

    directory: Path
    study: str
    environment: str
    label: str
    seed: int | None
    state: str = "unreadable"
    step: int | None = None
    total_steps: int | None = None
    evaluation_step: int | None = None
    evaluation_return: float | None = None  # the mean over the episodes of the last evaluation
    steps_per_second: float | None = None
    eta_seconds: float | None = None
    heartbeat_age_seconds: float | None = None
    checkpoint: int | None = None
    host: str | None = None  # of the process that holds the lock
    pid: int | None = None
    reason: str | None = None  # of a failure, in one line
    traceback: str | None = None
    problems: list[str] = field(default_factory=list)  # files that could not be read

    @property
    def share(self) -> float | None:
        """The completed fraction of the run."""
        return None if self.step is None or not self.total_steps else self.step / self.total_steps


@dataclass
class Outcome:
    """How a run of a sweep ended."""

    state: str  # one of layout.STATES; a finished run may also be resumed or skipped; or not started
    resumed: int = 0  # how often, up to now
    reason: str = ""

    @classmethod
    def of(cls, directory: Path, before: "Outcome | None" = None) -> "Outcome":
        """Read the outcome; compare it with that from before the sweep to tell skipped, resumed and new runs apart."""
        if before and before.state == "finished":
            return cls("skipped", before.resumed)
        if not (directory / layout.STATUS).exists():
            return cls("not started")
        run = read_run(directory, progress=False)
        steps = reader.read_json_if_valid(directory / layout.META).get("resumed")
        state, resumed = run.state, len(steps) if isinstance(steps, list) else 0
        if before and state == "finished":
            state = "resumed" if resumed > before.resumed else state
        return cls(state, resumed, run.reason or "")


def _unread(directory: Path) -> RunStatus:
    study, environment, label, seed = ("", "", "", "", *directory.absolute().parts)[-4:]
    number = seed.removeprefix("seed_")
    return RunStatus(directory, study, environment, label, int(number) if number.isdecimal() else None)


def read_runs(root: Path, unlisted: list[tuple[str, str]]) -> list[RunStatus]:
    """Read every run at or below a root, and those that wait because a sweep has planned them.

    A run waits if it has not begun, or if what it wrote is older than the plan. `unlisted`: see reader.find_runs.
    """
    runs = [read_run(directory) for directory in reader.find_runs([root], unlisted)]
    planned = planned_runs(root)
    for run in runs:
        since = planned.pop(run.directory.absolute(), None)
        written = None if run.heartbeat_age_seconds is None else time.time() - run.heartbeat_age_seconds
        if since is not None and run.state in _WAITS and (written is None or written < since):
            run.state, run.reason, run.traceback = "waiting", None, None
    for directory in planned:
        shown = root if directory == root.absolute() else root / directory.relative_to(root.absolute())
        run = _unread(shown)
        run.state = "waiting"
        runs.append(run)
    return runs


def read_run(directory: Path, progress: bool = True) -> RunStatus:
    """Read whatever can be known about a run, or its state alone; damaged files become `problems`."""
    run = _unread(directory)
    locked_at = _read_lock(run)  # before the status, so that a run which ends in between is not taken for killed
    for read in (_read_status, _read_evaluation, _read_speed) if progress else (_read_status,):
        try:
            read(run)
        except FileNotFoundError:
            pass
        except reader.UnreadableFileError as error:
            run.problems.append(error.brief)
    run.state = _derive_state(run, locked_at)
    if run.state == "running" and run.eta_seconds is not None:
        run.eta_seconds = max(0.0, run.eta_seconds - (run.heartbeat_age_seconds or 0.0))
    else:
        run.eta_seconds = None
    return run


def _read_lock(run: RunStatus) -> float | None:
    """The time at which the lock was acquired, since its holder then writes the lock file; None where it is free."""
    with contextlib.suppress(OSError):  # released in the meantime
        if holder := lock_holder(run.directory):
            run.host, run.pid = holder["host"], holder["pid"]
            return (run.directory / layout.LOCK).stat().st_mtime
    return None


def _read_status(run: RunStatus) -> None:
    path = run.directory / layout.STATUS
    status = reader.read_json(path)
    if status.get("state") not in layout.WRITTEN_STATES:
        raise reader.DamagedFileError(path, f"state is {status.get('state')!r:.40}")
    for name in ("step", "total_steps"):
        if type(status.get(name)) is not int:
            raise reader.DamagedFileError(path, f"{name} is {status.get(name)!r:.40}")
    run.state, run.step, run.total_steps = status["state"], status["step"], status["total_steps"]
    run.checkpoint = status.get("checkpoint")
    run.heartbeat_age_seconds = max(0.0, time.time() - path.stat().st_mtime)
    if run.state == "failed":
        run.reason = reader.printable(str(status.get("reason", "no reason given")))
        run.traceback = str(status.get("traceback", ""))


def _derive_state(run: RunStatus, locked_at: float | None) -> str:
    """Compare what the run wrote with its lock and its heartbeat."""
    age, locked_for = run.heartbeat_age_seconds, None if locked_at is None else time.time() - locked_at
    if age is None:
        if not any(problem.startswith(layout.STATUS) for problem in run.problems):  # then there is no such file
            if locked_for is not None:
                return "starting"
            run.problems.append(f"no {layout.STATUS}")
        return "unreadable"
    if run.state == "finished":
        return run.state
    if locked_for is not None and locked_for < age:  # the process that holds the lock has not written its status yet
        return "starting" if locked_for < STALLED_SECONDS else "stalled?"
    if run.state != "running":
        return run.state
    if locked_for is not None:
        return "running" if age < STALLED_SECONDS else "stalled?"
    # Some file systems do not show one host's locks to another. So where the lock was another host's, or where there is
    # no lock file, the run counts as killed only once its heartbeat has stopped, too.
    with contextlib.suppress(OSError):
        holder = reader.read_json(run.directory / layout.LOCK)
        run.host, run.pid = holder.get("host"), holder.get("pid")
    return "running" if age < STALLED_SECONDS and run.host != socket.gethostname() else "killed"


def _read_evaluation(run: RunStatus) -> None:
    """Set the mean return of the last evaluation."""
    rows = reader.read_last_rows(run.directory / layout.EVALUATIONS, "return")
    for step, last in islice(groupby(rows, lambda row: row[0]), 1):
        run.evaluation_step, run.evaluation_return = step, mean(value for _, value in last)


def _read_speed(run: RunStatus) -> None:
    """Set the recent speed and, once the run learns, the time to its end."""
    window, first_update = _read_schedule(run)
    rows = chain(reader.read_last_rows(run.directory / layout.TIMINGS, "steps_per_second"), [(0, 0.0)])
    stretches = (Stretch(b, a, (a - b) / speed) for (a, speed), (b, _) in pairwise(rows) if speed > 0)
    newest = next(stretches, None)
    if newest is None:
        return
    window = window or _SPEED_ROWS * (newest.last - newest.first)
    run.steps_per_second = recent_speed(chain([newest], stretches), window, first_update)
    if run.steps_per_second and run.step is not None and run.total_steps is not None and run.step >= first_update:
        run.eta_seconds = (run.total_steps - run.step) / run.steps_per_second


def _read_schedule(run: RunStatus) -> tuple[int, int]:
    """Return the steps between evaluations and that of the first update, if the run goes on; 0 where unknown."""
    if run.state == "running":  # as written
        with contextlib.suppress(OSError, KeyError, TypeError):
            config = reader.read_config(run.directory)
            every, first_update = config["evaluation"]["every"], config["algo"]["first_update"]
            if type(every) is int and type(first_update) is int:
                return max(0, every), first_update
    return 0, 0
