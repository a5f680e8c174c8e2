"""Execute one run, report failures to the user and in the run's directory."""

import contextlib
import errno
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from meanq.config.errors import ConfigError
from meanq.config.schema import Config
from meanq.rundir.layout import run_directory
from meanq.rundir.lock import BusyError
from meanq.rundir.reader import read_status

FAILED, CANNOT_WORK, BUSY = 1, 2, 3  # exit codes
_MEANINGS = {
    FAILED: "failed; its status.json says why",
    CANNOT_WORK: "not started, because its configuration cannot work here",
    BUSY: "not started, because another process trains there",
}


class RunFailedError(RuntimeError):
    """A run failed. The user has been told in the run's own process, and its directory says why."""

    def __init__(self, directory: Path, code: int) -> None:
        super().__init__(directory, code)  # all arguments, so that it can be pickled
        self.directory, self.code = directory, code

    def __str__(self) -> str:
        return f"{self.directory}: {_MEANINGS[self.code]}"


def execute(config: Config, overrides: Sequence[str]) -> None:
    """Train a run, or resume it, unless it is finished. Raises RunFailedError."""
    from meanq.mirrors.process import make_mirror
    from meanq.rundir.writer import record_failure
    from meanq.training.session import Session
    from meanq.training.terminal import TerminalReporter, make_console

    console = make_console()
    directory = run_directory(config)
    if read_status(directory).get("state") == "finished":
        console.print(f"{directory} is finished already: skipped", highlight=False, soft_wrap=True)
        return
    reporter = TerminalReporter(console)
    session = None
    try:
        session = Session(config, overrides=overrides, make_mirror=make_mirror)
        session.train(reporter)
    except Exception as error:  # noqa: BLE001 - any failure ends this run only; the sweep goes on
        reporter.close()
        _report(directory, error)
        code = BUSY if isinstance(error, BusyError) else CANNOT_WORK if isinstance(error, ConfigError) else FAILED
        if session is None and code == FAILED:  # a session records its failure itself
            with contextlib.suppress(OSError, ConfigError, BusyError):
                record_failure(config, error)
        raise RunFailedError(directory, code) from None
    finally:
        reporter.close()


def _report(directory: Path, error: Exception) -> None:
    from meanq.learning.agent import DivergedError
    from meanq.rundir.checkpoint import CheckpointError

    if isinstance(error, ConfigError | BusyError | CheckpointError | DivergedError):
        complain(error)
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        complain(f"{directory}: {error.strerror}; its tables are whole: make room and give the same command again")
    else:
        traceback.print_exception(error)


def complain(message: object) -> None:
    """Print an error in one line."""
    print(f"meanq: {message}", file=sys.stderr)
