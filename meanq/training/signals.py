"""Signals that stop a run set a flag, which the session honours at the next safe point."""

import signal
import threading
import time
from types import FrameType
from typing import Any

# Ctrl-C; the signal before a kill; a closed terminal; SLURM's warning before a time limit (through submitit).
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
ONE_CTRL_C_SECONDS = 0.5  # a wrapper such as `timeout` may send the same Ctrl-C again


def hold_stop_signals() -> None:
    """Block these signals until a run is ready for them.

    For a process that is about to import much: an exception raised by a handler inside an import can be swallowed.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


class StopSignals:
    """Within this context a signal only sets `wanted`; a second Ctrl-C acts at once."""

    def __init__(self) -> None:
        self.wanted: int | None = None
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():  # handlers can be set only there
            for number in _SIGNALS:
                if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                    self._before[number] = signal.signal(number, self._want)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)  # blocked signals arrive now
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is None and self.wanted is not None:  # too late for this run, but others may follow
            self.hand_over()
        self._before.clear()

    def _want(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.wanted == number == signal.SIGINT:
            if now - self._since <= ONE_CTRL_C_SECONDS:
                return
            self.hand_over(frame)
        self.wanted, self._since = number, now

    def hand_over(self, frame: FrameType | None = None) -> None:
        """Call the handler of before, e.g. submitit's, which queues the job again; without one, exit.

        Returns if that handler returns (submitit's does on SIGTERM: SLURM will end the job itself).
        """
        number, self.wanted = self.wanted, None
        assert number is not None
        handler = self._before.get(number)
        if callable(handler):
            handler(number, frame)
        else:
            raise SystemExit(128 + number)
