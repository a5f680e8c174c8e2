"""Signals that ask a run to stop become a wish, which the loop grants where its state can be saved."""

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

# Ctrl-C; what systems and schedulers send before they kill; a terminal that was closed; what SLURM sends through
# submitit before a time limit.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
ONE_CTRL_C_SECONDS = 0.5  # a wrapper such as `timeout` passes on what the terminal has sent to us already


def hold_stop_signals() -> None:
    """Keep such signals back until a run is ready for them.

    For a process that is about to import much: an exception that a handler raises inside an import can be swallowed.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


class StopSignals:
    """Within this context such a signal only sets `wanted`; a second Ctrl-C acts at once."""

    def __init__(self) -> None:
        self.wanted: int | None = None
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():  # only there can handlers be set
            for number in _SIGNALS:
                if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                    self._before[number] = signal.signal(number, self._want)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)  # what was held back comes now
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is None and self.wanted is not None:  # it came too late for this run, but others may follow
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
        """Let whoever handled the signal before do so now: submitit queues the job again. Without one, exit.

        Returns where that handler chose to go on (submitit's does on SIGTERM: SLURM will end the job itself).
        """
        number, self.wanted = self.wanted, None
        assert number is not None
        handler = self._before.get(number)
        if callable(handler):
            handler(number, frame)
        else:
            raise SystemExit(128 + number)
