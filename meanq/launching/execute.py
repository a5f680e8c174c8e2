"""Execute one run, report failures to the user and in the run's directory."""

import contextlib
import errno
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from meanq.config.errors import LONGEST_MESSAGE, ConfigError, printable
from meanq.config.schema import Config
from meanq.rundir.layout import run_directory
from meanq.rundir.lock import BusyError

if TYPE_CHECKING:
    from meanq.training.terminal import TerminalReporter

FAILED, CANNOT_WORK, BUSY = 1, 2, 3  # exit codes


class Run(NamedTuple):
    """A run as launchers pass it on."""

    config: Config
    overrides: list[str]


class Room(NamedTuple):
    """The memory that a launcher has for each run."""

    size: int  # bytes of main memory
    gpu: bool  # there is one, which holds the rest
    whose: str  # for messages: "... are free" `whose`
    remedy: str


class RunFailedError(RuntimeError):
    """A run failed. Where it was executed the user has been told, and its directory says why."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


class LeftError(RuntimeError):
    """The command ends while jobs of a cluster train its runs, as the user asked; `code` is its exit code."""

    def __init__(self, code: int) -> None:
        super().__init__("runs are left to a cluster")
        self.code = code


def worst_code(failures: Iterable[RunFailedError]) -> int:
    """Return the exit code that tells most: that of a failed run, else that of a busy one; 0 without failures."""
    return min((failure.code for failure in failures), default=0)


def execute(run: Run) -> None:
    """Train a run, or resume it, unless it is finished. Raises RunFailedError."""
    from meanq.training.terminal import TerminalReporter, make_console

    directory = run_directory(run.config)
    try:
        train_here(run.config, run.overrides, TerminalReporter(make_console()))
    except Exception as error:  # noqa: BLE001 - any failure ends this run only; the sweep goes on
        _report(directory, error)
        raise RunFailedError(f"{directory}: failed", _code(error)) from None


def train_here(config: Config, overrides: Sequence[str], reporter: "TerminalReporter") -> None:
    """Train a run, or resume it, unless it is finished. Its directory says why it failed; the error is passed on."""
    from meanq.mirrors.process import make_mirror
    from meanq.rundir.writer import record_failure
    from meanq.training.session import Session

    session = None
    try:
        session = Session(config, overrides=overrides, make_mirror=make_mirror)
        session.train(reporter)
    except Exception as error:
        if session is None and _code(error) == FAILED:  # a session records its failure itself
            with contextlib.suppress(OSError, ConfigError, BusyError):
                record_failure(config, error)
        raise
    finally:
        reporter.close()


def _code(error: Exception) -> int:
    return BUSY if isinstance(error, BusyError) else CANNOT_WORK if isinstance(error, ConfigError) else FAILED


def _report(directory: Path, error: Exception) -> None:
    from meanq.learning.agent import DivergedError
    from meanq.rundir.checkpoint import CheckpointError

    if isinstance(error, ConfigError | BusyError | CheckpointError | DivergedError):
        complain(error)
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        complain(f"{directory}: {error.strerror}; its tables are whole: make room and give the same command again")
    elif isinstance(error, OSError) and directory in (path := Path(str(error.filename2 or error.filename))).parents:
        complain(f"{path}: {error.strerror}; mend that and give the same command again")
    else:
        traceback.print_exception(error)


def complain(message: object) -> None:
    """Print an error in one line."""
    print(f"meanq: {printable(str(message), LONGEST_MESSAGE)}", file=sys.stderr)
