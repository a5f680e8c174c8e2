"""What a person sees: one progress bar per run on a terminal, plain lines elsewhere, a table at the end."""

import csv
import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean, stdev

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from meanq.config.schema import Config
from meanq.rundir.files import read_status
from meanq.rundir.layout import EVALUATIONS, META, TIMINGS
from meanq.rundir.reader import Outcome
from meanq.training.evaluation import Episode
from meanq.training.session import Progress

_REFRESH_SECONDS = 0.2
_PLAIN_WIDTH = 140  # of tables in a file or a pipe


def make_console() -> Console:
    """Standard output; where that is no terminal, wide enough for the table."""
    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)


class TerminalReporter:
    """A bar with steps, steps/s, ETA, epsilon and last return; without a terminal, a line per evaluation."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Bar | None = None
        self._task = TaskID(0)
        self._next_refresh = 0.0
        self._started = 0.0
        self._first = 0  # the step from which this process goes on
        self._total = 0

    def started(self, config: Config, directory: Path, facts: str, step: int) -> None:
        """Name the run."""
        self._print(f"[bold]{config.label}[/] on [bold]{config.env.name}[/], seed {config.seed} -> {directory}")
        self._print(f"  {facts}")
        if step:
            self._print(f"  resumed from step {step:,}")
        self._started, self._first, self._total = time.monotonic(), step, config.total_steps
        if self._console.is_terminal:
            self._bar = Bar(
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
            self._task = self._bar.add_task(
                "", total=config.total_steps, completed=step, speed=0.0, epsilon=1.0, last="-"
            )
            self._bar.start()

    def warn(self, message: str) -> None:
        """One line."""
        self._print(f"  [yellow]warning:[/] {escape(message)}")

    def progress(self, progress: Progress) -> None:
        """Move the bar, a few times a second."""
        now = time.monotonic()
        if self._bar is None or (now < self._next_refresh and progress.step < self._total):
            return
        self._next_refresh = now + _REFRESH_SECONDS
        last = "-" if progress.last_return is None else f"{progress.last_return:g}"
        speed = (progress.step - self._first) / max(now - self._started, 1e-9)
        self._bar.update(self._task, completed=progress.step, speed=speed, epsilon=progress.epsilon, last=last)
        self._bar.refresh()

    def evaluated(self, step: int, episodes: list[Episode]) -> None:
        """One line per evaluation."""
        returns = [e.episode_return for e in episodes]
        bias = mean(e.value - e.discounted_return for e in episodes)
        speed = (step - self._first) / max(time.monotonic() - self._started, 1e-9)
        self._print(
            f"  step {step:>9,}  return {mean(returns):8.2f}  V(s0) {mean(e.value for e in episodes):8.3f}  "
            f"bias {bias:+8.3f}  {speed:6,.0f} steps/s"
        )

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)


def summary(console: Console, outcomes: Mapping[Path, Outcome]) -> None:
    """One row per run, read back from its directory, and why those failed that did."""
    table = Table(title="Runs", title_justify="left", header_style="bold")
    for name in ("environment", "algorithm", "seed", "state"):
        table.add_column(name, overflow="fold")
    for name in ("steps", "return", "V(s0)", "bias", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for directory, outcome in outcomes.items():
        env, label, seed = directory.parts[-3:]
        status = read_status(directory)
        rows = _last_evaluation(directory)
        cells = ["-", "-", "-"]
        if rows:
            returns = [float(row["return"]) for row in rows]
            values = [float(row["value"]) for row in rows]
            bias = mean(float(row["value"]) - float(row["discounted_return"]) for row in rows)
            spread = f" ± {stdev(returns):.1f}" if len(returns) > 1 else ""
            cells = [f"{mean(returns):.1f}{spread}", f"{mean(values):.2f}", f"{bias:+.2f}"]
        table.add_row(
            env,
            label,
            seed.removeprefix("seed_"),
            outcome.state,
            f"{status.get('step', 0):,}",
            *cells,
            _duration(directory),
        )
    console.print(table)
    if shares := time_shares(outcomes):
        parts = ", ".join(f"{part} {share:.0%}" for part, share in shares.items() if share >= 0.005)
        console.print(f"Time: {parts}", highlight=False, soft_wrap=True)
    for directory, outcome in outcomes.items():
        if outcome.state == "failed":
            console.print(f"{directory} failed: {escape(outcome.reason)}", highlight=False, soft_wrap=True)
    if len(outcomes) > 1:
        counts = Counter(outcome.state for outcome in outcomes.values())
        console.print(", ".join(f"{count} {state}" for state, count in counts.items()), highlight=False)


def time_shares(directories: Iterable[Path]) -> dict[str, float]:
    """The share of each part of the loop in the time of all these runs together, the largest first."""
    seconds: dict[str, float] = {}
    total = 0.0
    for directory in directories:
        before = 0
        for row in _read(directory / TIMINGS):
            steps, before = int(row["step"]) - before, int(row["step"])
            elapsed = steps / max(float(row["steps_per_second"]), 1e-9)
            total += elapsed
            for name, share in row.items():
                if name.startswith("share_"):
                    part = name.removeprefix("share_")
                    seconds[part] = seconds.get(part, 0.0) + elapsed * float(share)
    largest_first = sorted(seconds.items(), key=lambda item: -item[1])
    return {part: spent / total for part, spent in largest_first} if total else {}


def _last_evaluation(directory: Path) -> list[dict[str, str]]:
    rows = _read(directory / EVALUATIONS)
    return [row for row in rows if row["step"] == rows[-1]["step"]]


def _read(table: Path) -> list[dict[str, str]]:
    try:
        with table.open(newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        return []


def _duration(directory: Path) -> str:
    try:
        seconds = json.loads((directory / META).read_text()).get("seconds")
    except (FileNotFoundError, json.JSONDecodeError):
        return "-"
    if seconds is None:
        return "-"
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
