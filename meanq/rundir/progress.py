"""What a run is doing, as far as its directory shows. Only reads, never raises for damaged files, needs no torch."""

import contextlib
import math
import socket
import time
from dataclasses import dataclass, field
from itertools import groupby, islice, pairwise
from pathlib import Path
from statistics import mean
from typing import Any

from meanq.rundir.layout import EVALUATIONS, LOCK, META, STATUS, TIMINGS, WRITTEN_STATES
from meanq.rundir.lock import lock_holder
from meanq.rundir.reader import DamagedFileError, UnreadableFileError, read_json, read_json_if_valid, read_last_rows

STALLED_SECONDS = 120.0  # a live run refreshes status.json at least every 30 s
_SPEED_ROWS = 10  # of timings.csv: some of them include an evaluation, some do not
FINISHED = ("finished", "resumed", "skipped")  # outcomes of a run that has its last step


@dataclass
class RunStatus:
    """The status of one run; None is unknown."""

    directory: str
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
    host: str | None = None
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
        if not (directory / STATUS).exists():
            return cls("not started")
        run = read_run(directory)
        resumed = 0
        with contextlib.suppress(OSError):
            steps = read_json_if_valid(directory / META).get("resumed")
            resumed = len(steps) if isinstance(steps, list) else 0
        state = run.state
        if before and state == "finished":
            state = "skipped" if before.state == "finished" else "resumed" if resumed > before.resumed else state
        return cls(state, resumed, run.reason or "")


def read_run(directory: Path) -> RunStatus:
    """Read whatever can be known about a run; damaged files become `problems`."""
    study, environment, label, seed = ("", "", "", "", *directory.absolute().parts)[-4:]
    number = seed.removeprefix("seed_")
    run = RunStatus(str(directory), study, environment, label, int(number) if number.isdecimal() else None)
    run.state = _read_state(directory, run)
    for read in (_read_evaluation, _read_speed):
        try:
            read(directory, run)
        except FileNotFoundError:
            pass
        except UnreadableFileError as error:
            run.problems.append(error.brief)
    if run.state == "running" and run.steps_per_second and run.step is not None and run.total_steps is not None:
        seconds = (run.total_steps - run.step) / run.steps_per_second
        run.eta_seconds = max(0.0, seconds - (run.heartbeat_age_seconds or 0.0))
    return run


def _read_state(directory: Path, run: RunStatus) -> str:
    """Derive the state; also fills in progress, reason and lock holder."""
    try:
        state = _read_status(directory, run)
        if state == "finished":
            return state
        locked_for = _locked_seconds(directory, run)
        if locked_for is None:
            state = _read_status(directory, run)  # the run may have ended between the two readings
            return state if state != "running" else _without_lock(directory, run)
    except FileNotFoundError:
        if _locked_seconds(directory, run) is not None:
            return "starting"
        run.problems.append(f"no {STATUS}")
        return "unreadable"
    except UnreadableFileError as error:
        run.problems.append(error.brief)
        return "unreadable"
    if run.heartbeat_age_seconds is not None and locked_for < run.heartbeat_age_seconds:
        # The process that holds the lock has not written status.json yet.
        return "starting" if locked_for < STALLED_SECONDS else "stalled?"
    return state if state != "running" or _fresh(run) else "stalled?"


def _locked_seconds(directory: Path, run: RunStatus) -> float | None:
    """How long the lock has been held; None where it is free. Its holder writes the lock file when it starts."""
    holder = lock_holder(directory)
    if holder is None:
        return None
    _set_holder(run, holder)
    try:
        return max(0.0, time.time() - (directory / LOCK).stat().st_mtime)
    except OSError:  # released in the meantime
        return None


def _read_status(directory: Path, run: RunStatus) -> str:
    path = directory / STATUS
    with contextlib.suppress(OSError):  # then reading it says why
        run.heartbeat_age_seconds = max(0.0, time.time() - path.stat().st_mtime)
    status = read_json(path)
    state = status.get("state")
    if state not in WRITTEN_STATES:
        raise DamagedFileError(path, f"state is {state!r:.40}")
    run.step = _whole_number(path, status, "step")
    run.total_steps = _whole_number(path, status, "total_steps")
    run.checkpoint = None if status.get("checkpoint") is None else _whole_number(path, status, "checkpoint")
    if state == "failed":
        traceback = status.get("traceback")
        run.traceback = traceback if isinstance(traceback, str) else None
        last_line = (run.traceback or "").strip().rpartition("\n")[2]
        run.reason = " ".join(str(status.get("reason") or last_line or "no reason given").split())
    return str(state)


def _without_lock(directory: Path, run: RunStatus) -> str:
    """The state of a run that says running although nobody holds its lock.

    Some file systems do not show one host's locks to another. So where the lock was another host's, or where there is
    no lock file, the run counts as killed only once its heartbeat has stopped, too.
    """
    with contextlib.suppress(OSError):
        _set_holder(run, read_json(directory / LOCK))
    return "running" if _fresh(run) and run.host != socket.gethostname() else "killed"


def _set_holder(run: RunStatus, holder: dict[str, Any]) -> None:
    host, pid = holder.get("host"), holder.get("pid")
    run.host = host if isinstance(host, str) and host != "?" else None
    run.pid = pid if isinstance(pid, int) else None


def _fresh(run: RunStatus) -> bool:
    return run.heartbeat_age_seconds is not None and run.heartbeat_age_seconds < STALLED_SECONDS


def _read_evaluation(directory: Path, run: RunStatus) -> None:
    """Set the mean return of the last evaluation."""
    _, last = next(groupby(read_last_rows(directory / EVALUATIONS, "return"), lambda row: row[0]), (None, None))
    if last:
        rows = list(last)
        run.evaluation_step = int(rows[0][0])
        run.evaluation_return = mean(value for _, value in reversed(rows))


def _read_speed(directory: Path, run: RunStatus) -> None:
    """Set the steps per second over the last rows. Uses speeds: `seconds` may restart where a run was resumed."""
    rows = [*islice(read_last_rows(directory / TIMINGS, "steps_per_second"), _SPEED_ROWS + 1), (0.0, 0.0)]
    steps = [step - before for (step, _), (before, _) in pairwise(rows[: _SPEED_ROWS + 1])]
    seconds = sum(n / speed if speed > 0 else math.inf for n, (_, speed) in zip(steps, rows, strict=False))
    if math.isfinite(seconds) and seconds > 0:
        run.steps_per_second = sum(steps) / seconds


def _whole_number(path: Path, status: dict[str, Any], key: str) -> int:
    value = status.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise DamagedFileError(path, f"{key} is {value!r:.40}")
    return value
