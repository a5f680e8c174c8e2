"""What a run is doing, from its directory alone: read only, whatever state the directory is in, and without torch."""

import contextlib
import json
import math
import os
import socket
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, BinaryIO

from meanq.rundir.layout import CONFIG, EVALUATIONS, LOCK, META, STATUS, TIMINGS
from meanq.rundir.lock import lock_holder

# In the order of the summary. A run writes the words running, finished, failed and interrupted itself.
STATES = ("finished", "running", "starting", "stalled?", "interrupted", "killed", "failed", "unreadable")
_WRITTEN_STATES = ("running", "finished", "failed", "interrupted")
STALLED_SECONDS = 120.0  # a run that lives writes status.json at least every 30 s

_SPEED_ROWS = 10  # of timings.csv: some of them include an evaluation, some do not
_TAIL_BYTES, _LARGEST_TAIL, _LARGEST_STATUS = 4096, 2**22, 2**20


@dataclass
class RunStatus:
    """One run, as its directory tells it; None is unknown."""

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
        """Of the run that is done."""
        return None if self.step is None or not self.total_steps else self.step / self.total_steps


FINISHED = ("finished", "resumed", "skipped")  # outcomes of a run that has its last step


@dataclass
class Outcome:
    """What became of a run in a sweep, as its directory tells."""

    state: str  # one of STATES, with resumed and skipped for kinds of finished, or not started
    resumed: int = 0  # how often, up to now
    reason: str = ""

    @classmethod
    def of(cls, directory: Path, before: "Outcome | None" = None) -> "Outcome":
        """Now; compared with the outcome `before` the sweep, finished ones are told apart."""
        if not (directory / STATUS).exists():
            return cls("not started")
        run = read_run(directory)
        resumed = 0
        with contextlib.suppress(OSError, ValueError), _open(directory / META) as file:
            resumed = len(_json_object(META, file.read(_LARGEST_STATUS)).get("resumed", ()))
        state = run.state
        if before and state == "finished":
            state = "skipped" if before.state == "finished" else "resumed" if resumed > before.resumed else state
        return cls(state, resumed, run.reason or "")


def find_runs(root: Path, problems: list[tuple[str, str]]) -> Iterator[Path]:
    """Every run directory at or below root, links followed; (directory, reason) of what cannot be listed is added."""
    seen: set[tuple[int, int]] = set()  # a link may lead back up
    waiting = [root]
    while waiting:
        directory = waiting.pop()
        try:
            about = directory.stat()
            if (about.st_dev, about.st_ino) in seen:
                continue
            seen.add((about.st_dev, about.st_ino))
            with os.scandir(directory) as entries:
                below = {entry.name: entry for entry in entries}
            if _is_run(directory, below.keys()):
                yield directory
            else:
                waiting += [directory / n for n, entry in below.items() if not n.startswith(".") and entry.is_dir()]
        except OSError as error:
            problems.append((str(directory), error.strerror or str(error)))


def _is_run(directory: Path, names: Iterable[str]) -> bool:
    """A run that was killed while it began may have no status.json; other programs, too, write a config.yaml."""
    return STATUS in names or (directory.name.startswith("seed_") and (CONFIG in names or LOCK in names))


def read_run(directory: Path) -> RunStatus:
    """Whatever can be known about a run; never raises for what is in its directory."""
    study, environment, label, seed = ("", "", "", "", *directory.absolute().parts)[-4:]
    number = seed.removeprefix("seed_")
    run = RunStatus(str(directory), study, environment, label, int(number) if number.isdecimal() else None)
    run.state = _read_status(directory, run)
    for read in (_read_evaluation, _read_speed):
        try:
            read(directory, run)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            run.problems.append(_explain(error))
    if run.state == "running" and run.steps_per_second and run.step is not None and run.total_steps is not None:
        seconds = (run.total_steps - run.step) / run.steps_per_second
        run.eta_seconds = max(0.0, seconds - (run.heartbeat_age_seconds or 0.0))
    return run


def _read_status(directory: Path, run: RunStatus) -> str:
    """The state; progress, reason and holder are set on the way."""
    try:
        state = _load_status(directory, run)
        if state == "finished":
            return state
        locked_for = _locked_seconds(directory, run)
        if locked_for is None:
            state = _load_status(directory, run)  # it may have ended between the two questions
            return state if state != "running" else _without_lock(directory, run)
    except FileNotFoundError:
        if _locked_seconds(directory, run) is not None:
            return "starting"
        run.problems.append(f"no {STATUS}")
        return "unreadable"
    except (OSError, ValueError) as error:
        run.problems.append(_explain(error))
        return "unreadable"
    if run.heartbeat_age_seconds is not None and locked_for < run.heartbeat_age_seconds:  # what it says is of before
        return "starting" if locked_for < STALLED_SECONDS else "stalled?"
    return state if state != "running" or _fresh(run) else "stalled?"


def _locked_seconds(directory: Path, run: RunStatus) -> float | None:
    """For how long someone has been training here; None where nobody does. The holder signs the file when it begins."""
    holder = lock_holder(directory)
    if holder is None:
        return None
    _set_holder(run, holder)
    try:
        return max(0.0, time.time() - (directory / LOCK).stat().st_mtime)
    except OSError:  # given back this very moment
        return None


def _load_status(directory: Path, run: RunStatus) -> str:
    with _open(directory / STATUS) as file:
        run.heartbeat_age_seconds = max(0.0, time.time() - os.fstat(file.fileno()).st_mtime)
        status = _json_object(STATUS, file.read(_LARGEST_STATUS))
    state = status.get("state")
    if state not in _WRITTEN_STATES:
        raise ValueError(f"{STATUS}: state is {state!r:.40}")
    run.step = _whole_number(status, "step", required=True)
    run.total_steps = _whole_number(status, "total_steps", required=True)
    run.checkpoint = _whole_number(status, "checkpoint", required=False)
    if state == "failed":
        traceback = status.get("traceback")
        run.traceback = traceback if isinstance(traceback, str) else None
        last_line = (run.traceback or "").strip().rpartition("\n")[2]
        run.reason = " ".join(str(status.get("reason") or last_line or "no reason given").split())
    return str(state)


def _without_lock(directory: Path, run: RunStatus) -> str:
    """It says running, and nobody holds the lock.

    Some file systems keep the locks of one host from the others. So where the lock was another host's, or where there
    is none, the run counts as killed only once it has also gone silent.
    """
    try:
        with _open(directory / LOCK) as file:
            _set_holder(run, _json_object(LOCK, file.read(4096)))
    except (OSError, ValueError):
        pass
    return "running" if _fresh(run) and run.host != socket.gethostname() else "killed"


def _set_holder(run: RunStatus, holder: dict[str, Any]) -> None:
    host, pid = holder.get("host"), holder.get("pid")
    run.host = host if isinstance(host, str) and host != "?" else None
    run.pid = pid if isinstance(pid, int) else None


def _fresh(run: RunStatus) -> bool:
    return run.heartbeat_age_seconds is not None and run.heartbeat_age_seconds < STALLED_SECONDS


def _read_evaluation(directory: Path, run: RunStatus) -> None:
    """The mean return of the last evaluation."""
    rows = _last_rows(directory / EVALUATIONS, "return", lambda rows: rows[0][0] != rows[-1][0])
    if rows:
        run.evaluation_step = int(rows[-1][0])
        run.evaluation_return = mean(value for step, value in rows if step == run.evaluation_step)


def _read_speed(directory: Path, run: RunStatus) -> None:
    """Steps per second over the last rows. Their `seconds` may start anew where a run was resumed; speeds do not."""
    rows = _last_rows(directory / TIMINGS, "steps_per_second", lambda rows: len(rows) > _SPEED_ROWS)
    before, last = [(0.0, 0.0), *rows][:-1][-_SPEED_ROWS:], rows[-_SPEED_ROWS:]
    steps = [step - step_before for (step, _), (step_before, _) in zip(last, before, strict=True)]
    seconds = sum(n / speed if speed > 0 else math.inf for n, (_, speed) in zip(steps, last, strict=True))
    if math.isfinite(seconds) and seconds > 0:
        run.steps_per_second = sum(steps) / seconds


def _last_rows(
    path: Path, column: str, enough: Callable[[list[tuple[float, float]]], bool]
) -> list[tuple[float, float]]:
    """(step, column) of the last rows of a table, read backwards from its end until there are enough."""
    with _open(path) as file:
        header = file.readline(_TAIL_BYTES).decode(errors="replace")
        names = header.rstrip("\n").split(",")
        if not {"step", column} <= set(names):
            raise ValueError(f"{path.name} has no column {column}" if header else f"{path.name} is empty")
        start_of_rows, end = file.tell(), file.seek(0, os.SEEK_END)
        size = _TAIL_BYTES
        while True:
            start = max(start_of_rows, end - size)
            file.seek(start)
            text = file.read(end - start).decode(errors="replace")
            if not (text or header).endswith("\n"):
                raise ValueError(f"{path.name} ends within a row")
            lines = text.splitlines()[0 if start == start_of_rows else 1 :]
            rows = [_two_numbers(path.name, names, column, line) for line in lines]
            if start == start_of_rows or (rows and enough(rows)):
                return rows
            if size >= _LARGEST_TAIL:
                raise ValueError(f"{path.name}: the last evaluation has more than {size:,} bytes")
            size *= 4


def _two_numbers(table: str, names: Sequence[str], column: str, line: str) -> tuple[float, float]:
    try:
        cells = dict(zip(names, line.split(","), strict=True))
        return float(int(cells["step"])), float(cells[column])
    except (ValueError, OverflowError):
        raise ValueError(f"{table}: malformed row {line!r:.60}") from None


def _open(path: Path) -> BinaryIO:
    """For reading; nothing but a regular file, since opening a pipe would wait for its writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path.name} is no file")
    return os.fdopen(descriptor, "rb")


def _json_object(name: str, data: bytes) -> dict[str, Any]:
    if not data.strip():
        raise ValueError(f"{name} is empty")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError(f"{name} is no JSON, or half of it") from None
    if not isinstance(content, dict):
        raise ValueError(f"{name} is no JSON object")
    return content


def _whole_number(status: dict[str, Any], key: str, *, required: bool) -> int | None:
    value = status.get(key)
    if value is None and not required:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{STATUS}: {key} is {value!r:.40}")
    return value


def _explain(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{Path(error.filename).name}: {error.strerror}"
    return str(error)
