"""What `meanq status` shows: a table of runs or of labels, failures, a summary, and details of one run."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from meanq.rundir.layout import STATES
from meanq.rundir.progress import RunStatus, read_runs

COLLAPSE_ABOVE = 40  # runs; more are shown as one row per environment and label

_COLOURS = ("green", "cyan", "cyan", "blue", "yellow", "yellow", "red", "bold red", "magenta")
_STYLES = dict(zip(STATES, _COLOURS, strict=True))
_WRAPPED = ("environment", "label", "states")  # columns that give way on a narrow terminal


class Overview:
    """All runs below a root, at one moment."""

    def __init__(self, root: Path) -> None:
        self.unlisted: list[tuple[str, str]] = []
        runs = read_runs(root, self.unlisted)
        self.runs = sorted(runs, key=lambda run: _natural(str(run.directory)))
        self._one_study = len({run.study for run in runs}) == 1

    def _names(self, run: RunStatus) -> dict[str, str]:
        environment = run.environment if self._one_study else f"{run.study}/{run.environment}"
        return {"environment": environment, "label": run.label}

    def table(self, most: float) -> list[RenderableType]:
        """One row per run or, of more than `most`, per label; reasons of failures; what could not be read."""
        collapsed = len(self.runs) > most
        rows = self._label_rows() if collapsed else [{**self._names(run), **_run_row(run)} for run in self.runs]
        failed = [(str(run.directory), run.reason or "") for run in self.runs if run.state == "failed"]
        unread = [(str(run.directory), problem) for run in self.runs for problem in run.problems]
        hint = [text("One row for all seeds of a label; --all shows every run.", "dim")] if collapsed else []
        reasons = _reasons("Failed (tracebacks: --failed)", failed) + _reasons("Cannot be read", unread + self.unlisted)
        return [_table(rows), *hint, *reasons]

    def summary(self) -> Text:
        """How many runs are in which state, and their speed."""
        running = [run for run in self.runs if run.state == "running"]
        line = f"{len(self.runs)} run{'s' * (len(self.runs) != 1)}: {_count_states(self.runs)}"
        if running:
            line += f"; {sum(run.steps_per_second or 0 for run in running):,.0f} steps/s in all"
        return text(f"{line}.", "bold")

    def _label_rows(self) -> list[dict[str, str]]:
        rows = []
        for _, members in groupby(self.runs, key=lambda run: run.directory.parent):
            runs = list(members)
            step, returns = comparable_returns(runs)
            spread = f" ± {stdev(returns):,.2f}" if len(returns) > 1 else ""
            waiting = any(run.state == "waiting" for run in runs)  # nobody knows for how long
            shares = [run.share or 0.0 for run in runs if run.share is not None or run.state == "waiting"]
            times = [run.eta_seconds for run in runs if run.eta_seconds is not None and not waiting]
            row = {
                "states": _count_states(runs),
                "done": _cell(mean(shares) if shares else None, ".1%"),
                "return": f"{mean(returns):,.2f}{spread}" if returns else "-",
                "of seeds": f"{len(returns)} at {step:,}" if returns else "-",
                "ETA": duration(max(times, default=None)),
            }
            rows.append({**self._names(runs[0]), **row})
        return rows


def _run_row(run: RunStatus) -> dict[str, str]:
    return {
        "seed": run.directory.name if run.seed is None else str(run.seed),
        "state": run.state,
        "done": _cell(run.share, ".1%"),
        "return": _cell(run.evaluation_return, ",.2f"),
        "steps/s": _cell(run.steps_per_second, ",.1f"),
        "ETA": duration(run.eta_seconds),
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
    facts = _run_row(run) | {
        "steps": f"{_cell(run.step, ',')} of {_cell(run.total_steps, ',')}",
        "evaluated at": _cell(run.evaluation_step, ","),
        "heartbeat": duration(run.heartbeat_age_seconds),
        "checkpoint": _cell(run.checkpoint, ","),
        "process": "-" if run.pid is None else f"{run.pid} on {run.host}",
        "reason": run.reason or "-",
        "cannot be read": "; ".join(run.problems) or "-",
    }
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        if value != "-":
            grid.add_row(text(f"  {name}", "dim"), text(value, _STYLES[run.state] if name == "state" else ""))
    lines = (run.traceback or "").expandtabs(4).rstrip().splitlines()
    return [text(str(run.directory), "bold"), grid, *(text(f"  {line}") for line in lines)]


def _table(rows: Sequence[dict[str, str]]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    for name in rows[0] if rows else ():
        wrapped = name in _WRAPPED
        justify: Any = "left" if wrapped or name == "state" else "right"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=not wrapped)
    for row in rows:
        styles = (_state_style(cell) if name.startswith("state") else "" for name, cell in row.items())
        table.add_row(*map(text, row.values(), styles))
    return table


def _reasons(title: str, pairs: Iterable[tuple[str, str]]) -> list[RenderableType]:
    """Group directories by reason, so that a hundred runs that failed alike take two lines."""
    directories: dict[str, list[str]] = {}
    for directory, reason in pairs:
        directories.setdefault(reason, []).append(directory)
    lines: list[RenderableType] = ["", text(title, "bold")] if directories else []
    for reason, (first, *others) in directories.items():
        lines.append(text(f"  {len(others) + 1} x {reason}"))
        lines.append(text(f"      {first}{f' and {len(others)} more' if others else ''}"))
    return lines


def _count_states(runs: Iterable[RunStatus]) -> str:
    counts = Counter(run.state for run in runs)
    return ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])


def _state_style(states: str) -> str:
    """Return the style of the worst state in a text."""
    return next((_STYLES[state] for state in reversed(STATES) if state in states), "")


def _natural(path: str) -> list[Any]:
    """Sort key that puts size=2 before size=10."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]{1,18})", path))]


def text(content: str, style: str = "") -> Text:
    """Text without control characters, which a name or a message may contain and a terminal would obey."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in content)
    return Text(shown, style=style, overflow="fold")


def duration(seconds: float | None) -> str:
    """Write seconds, minutes or hours, whichever fits, with two or three digits."""
    if seconds is None:
        return "-"
    size, unit = next((pair for pair in ((1, "s"), (60, "min")) if seconds < 99.5 * pair[0]), (3600, "h"))
    return f"{seconds / size:,.{1 if seconds / size < 9.95 else 0}f} {unit}"


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
