"""Report a run to the user: a progress bar on a terminal, a line per evaluation anywhere."""

import time
from collections import deque
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from meanq.config.errors import LONGEST_MESSAGE, printable
from meanq.config.schema import Config
from meanq.metrics import definitions
from meanq.rundir.layout import Episode
from meanq.rundir.progress import Stretch, recent_speed

_REFRESH_SECONDS = 0.2
_PLAIN_WIDTH = 140  # of tables in a file or a pipe
_POINTS = 50  # at which the time is noted, in each window of the recent speed


def make_console() -> Console:
    """Make a console on standard output; in a file or a pipe, wide enough for tables."""
    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)


class TerminalReporter:
    """Shows a bar with steps, steps/s, ETA, epsilon and last return; prints a line per evaluation."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._next_refresh = 0.0
        self._total = 0
        self._window = self._first_update = 1
        self._points: deque[tuple[int, float]] = deque([(0, 0.0)])  # step and time, oldest first

    def started(self, config: Config, directory: Path, facts: str, step: int) -> None:
        """Print the name of the run and start the bar."""
        label, env, place = (escape(str(name)) for name in (config.label, config.env.name, directory))
        self._print(f"[bold]{label}[/] on [bold]{env}[/], seed {config.seed} -> {place}")
        self._print(f"  {escape(facts)}")
        if step:
            self._print(f"  resumed from step {step:,}")
        self._total, self._window = config.total_steps, config.evaluation.every
        self._first_update = max(config.algo.first_update, step + 1)  # a resumed run is compiled again
        self._points = deque([(step, time.monotonic())])
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("  {task.completed:,.0f}/{task.total:,.0f}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[speed]:>6,.0f} steps/s"),
                TimeElapsedColumn(),
                TextColumn("ETA"),
                TextColumn("{task.fields[eta]}"),
                TextColumn("eps {task.fields[epsilon]:.2f}  last return {task.fields[last]}"),
                console=self._console,
                auto_refresh=False,
            )
            fields: dict[str, Any] = {"speed": 0.0, "eta": "-", "epsilon": 1.0, "last": "-"}
            self._task = self._bar.add_task("", total=self._total, completed=step, **fields)
            self._bar.start()

    def warn(self, message: str) -> None:
        """Print a warning."""
        self._print(f"  [yellow]warning:[/] {escape(printable(message, LONGEST_MESSAGE))}")

    def progress(self, step: int, epsilon: float, last_return: float | None) -> None:
        """Update the bar, at most a few times a second. `last_return` is that of the last training game that ended."""
        now = time.monotonic()
        self._note(step, now)
        if self._bar is None or (now < self._next_refresh and step < self._total):
            return
        self._next_refresh = now + _REFRESH_SECONDS
        last = "-" if last_return is None else f"{last_return:g}"
        speed, eta = self._speed(step, now), self._eta(step, now)
        self._bar.update(self._task, completed=step, speed=speed, eta=eta, epsilon=epsilon, last=last)
        self._bar.refresh()

    def evaluated(self, step: int, episodes: list[Episode]) -> None:
        """Print a line with the means over the episodes."""
        returns = [e.episode_return for e in episodes]
        bias = mean(definitions.bias(e.value, e.discounted_return) for e in episodes)
        speed = self._speed(step, time.monotonic())
        self._print(
            f"  step {step:>9,}  return {mean(returns):8.2f}  V(s0) {mean(e.value for e in episodes):8.3f}  "
            f"bias {bias:+8.3f}  {speed:6,.0f} steps/s"
        )

    def _note(self, step: int, now: float) -> None:
        """Keep the time of this step for the recent speed, and forget what is older than its window."""
        if step >= self._points[-1][0] + self._window / _POINTS or step == self._first_update:
            self._points.append((step, now))
            while len(self._points) > 1 and self._points[1][0] <= step - self._window:
                self._points.popleft()

    def _speed(self, step: int, now: float) -> float:
        stretches = [Stretch(a, b, t - s) for (a, s), (b, t) in pairwise([*self._points, (step, now)]) if b > a]
        return recent_speed(reversed(stretches), self._window, self._first_update) or 0.0

    def _eta(self, step: int, now: float) -> str:
        """Write the time to the end; unknown until the run learns."""
        speed = self._speed(step, now) if step >= self._first_update else 0.0
        return str(timedelta(seconds=round((self._total - step) / speed))) if speed else "-"

    def close(self) -> None:
        """Remove the bar and restore the terminal."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)
