"""How long a run has taken, and which part of the loop the time goes to."""

import time
from typing import Any

# Choosing actions; the environment; storing and drawing transitions and setting priorities; gradient steps; evaluation
# and probes; checkpoints, tables and mirrors; the loop itself and what it shows.
PARTS = ("act", "env", "sample", "learn", "evaluate", "save", "other")


class Clock:
    """Seconds of a run and of its named parts. Every moment belongs to one part: the innermost, else `other`."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._parts = ["other"]  # that are under way, the innermost last
        self._entered = "other"
        self._mark = time.perf_counter()
        self._started = self._mark
        self._last_row = (0, 0.0)  # step, seconds

    def start(self, step: int = 0, seconds: float = 0.0) -> None:
        """Begin to measure, for a run that has taken so many seconds before it was interrupted at this step."""
        self._started = time.perf_counter() - seconds
        self._last_row = (step, seconds)
        self.take()

    @property
    def seconds(self) -> float:
        """Seconds that the run has taken, without the time between interruption and resumption."""
        return time.perf_counter() - self._started

    def time(self, part: str) -> "Clock":
        """A context whose time goes to this part. It is the clock itself: this is called several times per step."""
        self._entered = part
        return self

    def __enter__(self) -> None:
        self._charge()
        self._parts.append(self._entered)

    def __exit__(self, *error: object) -> None:
        self._charge()
        self._parts.pop()

    def _charge(self) -> None:
        now = time.perf_counter()
        self._seconds[self._parts[-1]] += now - self._mark
        self._mark = now

    def take(self) -> dict[str, float]:
        """Seconds of all parts since they were last taken."""
        self._charge()
        taken, self._seconds = self._seconds, dict.fromkeys(PARTS, 0.0)
        return taken

    def take_row(self, step: int) -> dict[str, Any]:
        """A row of timings.csv: speed and shares of the parts since the last row."""
        seconds = self.seconds
        before_step, before = self._last_row
        elapsed = max(seconds - before, 1e-9)
        shares = {f"share_{part}": round(spent / elapsed, 4) for part, spent in self.take().items()}
        self._last_row = (step, seconds)
        speed = round((step - before_step) / elapsed, 2)
        return {"step": step, "seconds": round(seconds, 3), "steps_per_second": speed, **shares}
