"""Where the time of a run goes."""

import time

# Choosing actions; the environment; storing and drawing transitions and setting priorities; gradient steps; evaluation
# and probes; checkpoints, tables and mirrors; the loop itself and what it shows.
PARTS = ("act", "env", "sample", "learn", "evaluate", "save", "other")


class Clock:
    """Seconds spent in named parts of a run. Every moment belongs to one part: the innermost; `other` outside all."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._parts = ["other"]  # that are under way, the innermost last
        self._entered = "other"
        self._mark = time.perf_counter()

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
        """The seconds of all parts since they were last taken."""
        self._charge()
        taken, self._seconds = self._seconds, dict.fromkeys(PARTS, 0.0)
        return taken
