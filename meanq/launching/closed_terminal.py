"""Output that may go away while runs go on: a terminal is closed, a pipe has lost its reader, a log its disk."""

import contextlib
import os
import sys
from typing import Any, TextIO


class LastingOutput:
    """A text stream that is silent from its first failure on, instead of ending the run that speaks."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """As of a file."""
        try:
            return self._stream.write(text)
        except OSError:
            self._silence()
            return len(text)

    def flush(self) -> None:
        """As of a file."""
        try:
            self._stream.flush()
        except OSError:
            self._silence()

    def _silence(self) -> None:
        """What the stream still holds would fail again when the process ends, and change its exit code."""
        with contextlib.suppress(OSError, ValueError):  # it may have no descriptor, or be closed
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def outlive_terminal() -> None:
    """Let this process go on, in silence, when its standard output or error goes away."""
    sys.stdout, sys.stderr = LastingOutput(sys.stdout), LastingOutput(sys.stderr)
