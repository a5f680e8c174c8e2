"""Report a run to the user: a progress bar on a terminal, a line per evaluation anywhere."""

import time
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from meanq.config.schema import Config
from meanq.metrics import definitions
from meanq.rundir.layout import Episode

_REFRESH_SECONDS = 0.2
_PLAIN_WIDTH = 140  # of tables in a file or a pipe


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
        self._started = 0.0
        self._first = 0  # the step at which this process began
        self._total = 0

    def started(self, config: Config, directory: Path, facts: str, step: int) -> None:
        """Print the name of the run and start the bar."""
        self._print(f"[bold]{config.label}[/] on [bold]{config.env.name}[/], seed {config.seed} -> {directory}")
        self._print(f"  {facts}")
        if step:
            self._print(f"  resumed from step {step:,}")
        self._started, self._first, self._total = time.monotonic(), step, config.total_steps
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("  {task.completed:,.0f}/{task.total:,.0f}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[speed]:>6,.0f} steps/s"),
                TimeElapsedColumn(),
                TextColumn("ETA"),
                TimeRemainingColumn(),
                TextColumn("eps {task.fields[epsilon]:.2f}  last return {task.fields[last]}"),
                console=self._console,
                auto_refresh=False,
                speed_estimate_period=60,
            )
            self._task = self._bar.add_task("", total=self._total, completed=step, speed=0.0, epsilon=1.0, last="-")
            self._bar.start()

    def warn(self, message: str) -> None:
        """Print a warning."""
        self._print(f"  [yellow]warning:[/] {escape(message)}")

    def progress(self, step: int, epsilon: float, last_return: float | None) -> None:
        """Update the bar, at most a few times a second. `last_return` is that of the last training game that ended."""
        now = time.monotonic()
        if self._bar is None or (now < self._next_refresh and step < self._total):
            return
        self._next_refresh = now + _REFRESH_SECONDS
        last = "-" if last_return is None else f"{last_return:g}"
        speed = (step - self._first) / max(now - self._started, 1e-9)
        self._bar.update(self._task, completed=step, speed=speed, epsilon=epsilon, last=last)
        self._bar.refresh()

    def evaluated(self, step: int, episodes: list[Episode]) -> None:
        """Print a line with the means over the episodes."""
        returns = [e.episode_return for e in episodes]
        bias = mean(definitions.bias(e.value, e.discounted_return) for e in episodes)
        speed = (step - self._first) / max(time.monotonic() - self._started, 1e-9)
        self._print(
            f"  step {step:>9,}  return {mean(returns):8.2f}  V(s0) {mean(e.value for e in episodes):8.3f}  "
            f"bias {bias:+8.3f}  {speed:6,.0f} steps/s"
        )

    def close(self) -> None:
        """Remove the bar and restore the terminal."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)
