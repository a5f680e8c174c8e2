"""What `python -m meanq.status` shows: a table of runs or of labels, failures, a summary, and details of one run."""

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.cells import cell_len
from rich.console import JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from meanq.rundir.layout import STATES
from meanq.rundir.progress import RunStatus, read_run
from meanq.rundir.reader import find_runs

COLLAPSE_ABOVE = 40  # runs; more are shown as one row per environment and label

_LISTED_REASONS = 8
_STYLES = {
    "finished": "green",
    "running": "cyan",
    "starting": "cyan",
    "stalled?": "yellow",
    "interrupted": "yellow",
    "killed": "red",
    "failed": "bold red",
    "unreadable": "magenta",
}
_TEXT_COLUMNS = ("environment", "label", "state", "states")
_FOLDED_COLUMNS = ("environment", "label", "states")  # wrapped on a narrow terminal
_FOLDED_WIDTH = 14  # below this width of a folded column, others are left out
_LEFT_OUT = ("at step", "steps/s", "heartbeat", "steps", "seeds")  # in this order, on a narrow terminal

Row = dict[str, str]


class Overview:
    """All runs below a root, at one moment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.unlisted: list[tuple[str, str]] = []
        runs = [read_run(directory) for directory in find_runs([root], self.unlisted)]
        self._one_study = len({Path(run.directory).parents[2] for run in runs}) == 1
        self.runs = sorted(runs, key=lambda run: (_natural(self._environment(run)), _natural(run.directory)))

    def _environment(self, run: RunStatus) -> str:
        """The name of the environment, with the path from the root where there are several studies."""
        return run.environment if self._one_study else os.path.relpath(Path(run.directory).parents[1], self.root)

    def table(self, collapse: bool | None, width: int, most: int = COLLAPSE_ABOVE) -> list[RenderableType]:
        """One row per run or per label, reasons of failures, and what could not be read."""
        collapsed = len(self.runs) > most if collapse is None else collapse
        rows = self._label_rows() if collapsed else self._run_rows()
        failed = [(run.directory, run.reason or "") for run in self.runs if run.state == "failed"]
        unread = [(run.directory, problem) for run in self.runs for problem in run.problems]
        hint = Text("One row for all seeds of a label; --all shows every run.", style="dim")
        return [
            _table(rows, width),
            *([hint] if collapsed and collapse is None else []),
            *_reasons("Failed (tracebacks: --failed)", failed),
            *_reasons("Cannot be read", unread + self.unlisted),
        ]

    def summary(self) -> Text:
        """How many runs are in which state, their speed, and when they will be done."""
        running = [run for run in self.runs if run.state == "running"]
        text = f"{len(self.runs)} run{'s' * (len(self.runs) != 1)}: {_count_states(self.runs)}"
        if running:
            text += f"; {sum(run.steps_per_second or 0 for run in running):,.0f} steps/s in all"
        etas = [run.eta_seconds for run in running if run.eta_seconds is not None]
        if etas:
            text += f"; the running ones would be done {_clock(max(etas))}"
            if len(etas) < len(running):
                text += f" ({len(running) - len(etas)} of them without an estimate yet)"
        return Text(f"{text}.", style="bold")

    def _run_rows(self) -> list[Row]:
        return [_run_row(run, self._environment(run)) for run in self.runs]

    def _label_rows(self) -> list[Row]:
        rows = []
        for _, members in groupby(self.runs, key=lambda run: Path(run.directory).parent):
            runs = list(members)
            step, returns = comparable_returns(runs)
            center = mean(returns) if returns else None
            spread = f" ± {_number(stdev(returns), like=center)}" if len(returns) > 1 else ""
            shares = [run.share for run in runs if run.share is not None]
            speeds = [run.steps_per_second for run in runs if run.state == "running" and run.steps_per_second]
            etas = [run.eta_seconds for run in runs if run.eta_seconds is not None]
            rows.append(
                {
                    "environment": self._environment(runs[0]),
                    "label": runs[0].label,
                    "seeds": str(len(runs)),
                    "states": _count_states(runs),
                    "done": _percent(mean(shares) if shares else None),
                    "return": _number(center) + spread,
                    "of seeds": f"{len(returns)} at {_steps(step)}" if returns else "-",
                    "steps/s": _speed(sum(speeds) if speeds else None),
                    "ETA": _duration(max(etas, default=None)),
                }
            )
        return rows


def _run_row(run: RunStatus, environment: str) -> Row:
    return {
        "environment": environment,
        "label": run.label,
        "seed": Path(run.directory).name if run.seed is None else str(run.seed),
        "state": run.state,
        "steps": f"{_steps(run.step)}/{_steps(run.total_steps)}",
        "done": _percent(run.share),
        "return": _number(run.evaluation_return),
        "at step": _steps(run.evaluation_step),
        "steps/s": _speed(run.steps_per_second),
        "ETA": _duration(run.eta_seconds),
        "heartbeat": _duration(run.heartbeat_age_seconds),
    }


def comparable_returns(runs: Sequence[RunStatus]) -> tuple[int | None, list[float]]:
    """Return a step, and the returns of the runs whose last evaluation was at that step.

    Seeds at different points of training are not averaged. The step is the one that most finished runs share, or most
    runs if none is finished; of several such steps, the latest.
    """
    evaluated = [run for run in runs if run.evaluation_step is not None and run.evaluation_return is not None]
    deciding = [run for run in evaluated if run.state == "finished"] or evaluated
    if not deciding:
        return None, []
    counts = Counter(run.evaluation_step for run in deciding)
    step = max(counts, key=lambda s: (counts[s], s or 0))
    return step, [run.evaluation_return for run in deciding if run.evaluation_step == step]  # type: ignore[misc]


def details(run: RunStatus) -> list[RenderableType]:
    """All about one run; its traceback if it failed."""
    facts = _run_row(run, run.environment) | {
        "reason": run.reason or "-",
        "cannot be read": "; ".join(run.problems) or "-",
        "checkpoint": _steps(run.checkpoint),
        "process": "-" if run.pid is None else f"{run.pid} on {run.host or 'an unknown host'}",
    }
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        if value != "-":
            style = _STYLES[run.state] if name == "state" else ""
            grid.add_row(Text(f"  {name}", style="dim"), Text(printable(value), style=style, overflow="fold"))
    return [Text(printable(run.directory), style="bold"), grid, *_traceback(run)]


def failures(runs: Sequence[RunStatus]) -> list[RenderableType]:
    """Reasons and tracebacks of failed runs."""
    lines: list[RenderableType] = []
    for run in runs:
        lines += [Text(printable(run.directory), style="bold"), Text(f"  {printable(run.reason or '')}", style="red")]
        lines += [*_traceback(run), ""]
    return lines


def _traceback(run: RunStatus) -> list[Text]:
    return [Text(f"  {printable(line.expandtabs(4))}") for line in (run.traceback or "").rstrip().splitlines()]


def _table(rows: Sequence[Row], width: int) -> Table:
    """Align the columns; leave some out where the terminal is too narrow."""
    cells = {name: [printable(row[name]) for row in rows] for name in rows[0]}
    widths = {name: max(map(cell_len, [name, *cells[name]])) for name in cells}
    for name in set(_FOLDED_COLUMNS) & widths.keys():
        widths[name] = min(widths[name], _FOLDED_WIDTH)
    for name in _LEFT_OUT:
        if sum(widths.values()) + 2 * (len(widths) - 1) > width:
            widths.pop(name, None)
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    for name in widths:
        justify: JustifyMethod = "left" if name in _TEXT_COLUMNS else "right"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name not in _FOLDED_COLUMNS)
    for i in range(len(rows)):
        styles = [_state_style(cells[name][i]) if name.startswith("state") else "" for name in widths]
        table.add_row(*(Text(cells[name][i], style=style) for name, style in zip(widths, styles, strict=True)))
    return table


def _reasons(title: str, pairs: Iterable[tuple[str, str]]) -> list[RenderableType]:
    """Group directories by reason, so that a hundred runs that failed alike take two lines."""
    directories: dict[str, list[str]] = {}
    for directory, reason in pairs:
        directories.setdefault(printable(reason), []).append(printable(directory))
    if not directories:
        return []
    lines: list[RenderableType] = ["", Text(title, style="bold")]
    for reason in sorted(directories, key=lambda r: -len(directories[r]))[:_LISTED_REASONS]:
        first, *others = directories[reason]
        more = f" and {len(others)} more" if others else ""
        lines.append(Text(f"  {len(others) + 1} x {reason}", no_wrap=True, overflow="ellipsis"))
        lines.append(Text(f"      {first}{more}", overflow="fold"))
    if len(directories) > _LISTED_REASONS:
        lines.append(f"  and {len(directories) - _LISTED_REASONS} other reasons")
    return lines


def _count_states(runs: Iterable[RunStatus]) -> str:
    counts = Counter(run.state for run in runs)
    return ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])


def _state_style(text: str) -> str:
    """Return the style of the worst state in a text."""
    return next((_STYLES[state] for state in reversed(STATES) if state in text), "")


def _natural(text: str) -> list[Any]:
    """Sort key that puts size=2 before size=10."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]{1,18})", text))]


def printable(text: str) -> str:
    """Replace control characters, which a name or a message may contain and a terminal would obey."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _steps(steps: int | None) -> str:
    """Round down, so that a run never seems further than it is."""
    if steps is None:
        return "-"
    if steps < 1000:
        return str(steps)
    return f"{steps // 100 / 10:g}K" if steps < 1_000_000 else f"{steps // 10_000 / 100:g}M"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{math.floor(100 * share)}%"


def _number(value: float | None, like: float | None = None) -> str:
    """Choose decimals by the size of the value, or of another."""
    if value is None:
        return "-"
    size = abs(value if like is None else like)
    return f"{value:.2f}" if size < 10 else f"{value:.1f}" if size < 1000 else f"{value:,.0f}"


def _speed(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if hours >= 48:
        return f"{days}d{hours % 24:02d}h"
    return f"{hours}h{minutes % 60:02d}m" if hours else f"{minutes}m" if minutes else f"{int(seconds)}s"


def _clock(seconds: float) -> str:
    """Say at which time a number of seconds will have passed."""
    if seconds > 1e8:
        return f"in {_duration(seconds)}"
    now = datetime.now()
    then = now + timedelta(seconds=seconds)
    day = "" if then.date() == now.date() else f"{then:%a %d %b} "
    return f"about {day}{then:%H:%M}, in {_duration(seconds)}"
