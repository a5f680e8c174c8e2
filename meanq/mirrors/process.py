"""Copies a run directory to a logger while the run goes on, in a process of its own.

The run directory is the truth; a copy is a function of its files (sink.py). It is made by a separate process, because
W&B's library waits for the network, also when the interpreter exits, and replaces `sys.exit` and `sys.excepthook`.
Training only reports through a pipe up to which step its files are complete, and never waits for an answer. The process
ignores the signals meant for training and ends when the pipe closes, so also when training is killed.

    python -m meanq.mirrors.process DIRECTORY SETTINGS     started by training; reads steps and then a state from stdin
"""

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from meanq.config.extensions import import_logger, loggers
from meanq.config.schema import LoggerConfig
from meanq.mirrors.sink import Sink, read_points
from meanq.rundir.layout import ENDED_STATES, MIRROR_LOG
from meanq.rundir.reader import read_status

_NOTE = re.compile("^note: (.*)$", re.MULTILINE)


def make_mirror(logger: LoggerConfig, directory: Path) -> "Mirrors | None":
    """Start mirroring a directory that has its configuration; None where nothing is to be mirrored."""
    mirrors = []
    names = loggers(logger.name)
    for name in names:
        one = replace(logger, name=name)
        if not import_logger(name).enabled(one):
            continue
        try:
            mirrors.append(ProcessMirror(one, directory, MIRROR_LOG if len(names) == 1 else f"mirror.{name}.log"))
        except OSError as error:
            _warn(one, directory, f"could not be started ({error})")
    return Mirrors(mirrors) if mirrors else None


class Mirrors:
    """One process per logger, so that a slow or failing one does not hold up the others."""

    def __init__(self, mirrors: "list[ProcessMirror]") -> None:
        self._mirrors = mirrors

    def update(self, step: int) -> None:
        for mirror in self._mirrors:
            mirror.update(step)

    def close(self, state: str) -> None:
        for mirror in self._mirrors:
            mirror.close(state)


class ProcessMirror:
    """Training's end of the pipe. Nothing here raises; only `close` waits, for a bounded time."""

    def __init__(
        self, logger: LoggerConfig, directory: Path, log: str = MIRROR_LOG, pass_on_notes: bool = True
    ) -> None:
        self._logger, self._directory, self._log = logger, directory, directory / log
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("WANDB_SERVICE", None)  # the W&B service of a parent process, which ends with that process
        command = [sys.executable, "-m", "meanq.mirrors.process", str(directory.absolute())]
        command.append(json.dumps(asdict(logger)))
        self._log.unlink(missing_ok=True)  # it may be a link to a file of others
        with self._log.open("xb") as output:  # a session of its own, since Ctrl-C is for training
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": output, "stderr": subprocess.STDOUT}
            self._process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)
        assert self._process.stdin is not None
        self._pipe = self._process.stdin
        os.set_blocking(self._pipe.fileno(), False)
        self._warned, self._noted = False, not pass_on_notes

    def update(self, step: int) -> None:
        """Report progress; a mirror that is behind catches up at a later report."""
        self._send(str(step))
        self._pass_on_note()
        if self._process.poll():
            self._warn_once(self._problem())

    def close(self, state: str) -> None:
        """Wait until the mirror is complete, but no longer than `logger.finish_seconds`."""
        self._send(state)
        try:
            self._pipe.close()
            failed = self._process.wait(self._logger.finish_seconds)
            self._pass_on_note()
            if failed:
                self._warn_once(self._problem())
            elif not _NOTE.sub("", self._log.read_text(errors="replace")).strip():
                self._log.unlink()
        except subprocess.TimeoutExpired:
            self._warn_once(f"was not complete after logger.finish_seconds={self._logger.finish_seconds:g}")
        except OSError as error:
            self._warn_once(str(error))
        finally:
            self._process.kill()  # does nothing where it has ended
            self._process.wait()

    def _send(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the pipe is full because the reader is slow, or closed because it failed
            os.write(self._pipe.fileno(), f"{line}\n".encode())

    def _pass_on_note(self) -> None:
        """Print once what the mirror has to say, with the directory as the user wrote it."""
        with contextlib.suppress(OSError):
            if not self._noted and (found := _NOTE.search(self._log.read_text(errors="replace"))):
                self._noted = True
                print(f"  {found[1].replace(str(self._directory.absolute()), str(self._directory))}", flush=True)

    def _problem(self) -> str:
        with contextlib.suppress(OSError):
            if found := re.findall("^problem: (.*)$", self._log.read_text(errors="replace"), re.MULTILINE):
                return found[-1]
        return f"ended with code {self._process.returncode}; see {self._log}"

    def _warn_once(self, problem: str) -> None:
        if not self._warned:
            _warn(self._logger, self._directory, problem)
        self._warned = True


def _warn(logger: LoggerConfig, directory: Path, problem: str) -> None:
    where = f"Training is not affected, its files are complete{import_logger(logger.name).remedy(directory)}"
    print(f"meanq: logger={logger.name}: {problem}. {where}", file=sys.stderr)


def follow(directory: Path, logger: LoggerConfig, reports: Iterator[str]) -> None:
    """Log each point once, as soon as training reports that it is complete, and close with the reported state."""
    sink = import_logger(logger.name)(logger, directory)
    if said := getattr(sink, "note", str)():
        print(f"note: {said}", flush=True)
    state = ""
    for report in reports:
        if report.isdigit():
            _log(sink, directory, int(report))
        else:
            state = report
    if not state:  # training was killed, or the pipe was full at its end
        state = str(read_status(directory).get("state"))
    if state == "finished":
        _log(sink, directory, math.inf)
    # Otherwise the last step may lack rows that a resumed run adds, when it is too late to log them.
    sink.close(state if state in ENDED_STATES else "interrupted")


def _log(sink: Sink, directory: Path, through: float) -> None:
    for point in read_points(directory):
        if sink.position <= point.step <= through:
            sink.log(point)


def _reports(descriptor: int) -> Iterator[str]:
    """Yield lines from a pipe; of those that have piled up only the last step, and the state after it."""
    rest = b""
    while chunk := os.read(descriptor, 65536):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line.decode() for line in lines[-2:])


def main(arguments: list[str]) -> int:
    """Run the mirror process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    os.nice(10)  # training comes first
    try:
        follow(Path(arguments[0]), LoggerConfig(**json.loads(arguments[1])), _reports(0))
    except Exception as error:  # noqa: BLE001 - training prints it, in one line
        text = " ".join(str(error).split())
        print(f"problem: {type(error).__name__}: {text}", flush=True)
        os._exit(1)  # at a regular exit W&B would keep trying
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
