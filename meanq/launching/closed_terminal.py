"""Keep training when the output goes away: a closed terminal, a pipe without a reader, a log on a full disk.

Without this, the next line that a run prints would raise OSError and end the run.
"""

import contextlib
import os
import sys
from typing import Any, TextIO


class LastingOutput:
    """A text stream that discards everything after its first failure instead of raising."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._discard()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._discard()

    def _discard(self) -> None:
        """Point the descriptor to /dev/null: flushing the rest at exit would fail again and change the exit code."""
        with contextlib.suppress(OSError, ValueError):  # the stream may have no descriptor, or be closed
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def outlive_terminal() -> None:
    """Let this process go on silently when its standard output or error goes away."""
    sys.stdout, sys.stderr = LastingOutput(sys.stdout), LastingOutput(sys.stderr)
