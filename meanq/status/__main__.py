"""Show what every run below a directory is doing. It only reads, so it is safe at any time.

python -m meanq.status                  every run below runs/
python -m meanq.status --watch          the same, refreshed until Ctrl-C
python -m meanq.status --failed         why runs failed, with tracebacks
python -m meanq.status RUN_DIRECTORY    all about one run
python -m meanq.status --json           for scripts: a list with one object per run

A run is `finished`, `interrupted` or `failed` where it said so. It is `running` while a process holds its lock,
`stalled?` if that process has not written its status for two minutes, and `killed` if there is no such process.
"""

import argparse
import io
import json
import math
import os
import re
import shutil
import signal
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from statistics import mean, stdev
from types import FrameType
from typing import Any, NoReturn

from rich.cells import cell_len
from rich.text import Text

from meanq.rundir.reader import STATES, RunStatus, find_runs, read_run

COLLAPSE_ABOVE = 40  # runs; more than that are shown as one row per environment and label
WATCH_SECONDS = 5.0

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
_LEFT = ("environment", "label", "state", "states")
# What becomes a heading, and what is left out, where the terminal is too narrow for all columns; the first that fits.
# How many seeds a mean is of, and at which step, is left out of no group.
Layouts = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
_RUN_LAYOUTS: Layouts = (
    ((), ()),
    (("environment",), ()),
    (("environment",), ("at step",)),
    (("environment", "label"), ()),
    (("environment", "label"), ("at step",)),
    (("environment", "label"), ("at step", "steps")),
    (("environment", "label"), ("at step", "steps", "steps/s", "heartbeat")),
)
_GROUP_LAYOUTS: Layouts = (
    ((), ()),
    (("environment",), ()),
    (("environment",), ("steps/s",)),
    (("environment", "label"), ()),
    (("environment", "label"), ("steps/s",)),
    (("environment", "label", "states"), ("steps/s",)),
)

Row = dict[str, str]


class Overview:
    """All runs below a root, at one moment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.unlisted: list[tuple[str, str]] = []
        runs = [read_run(directory) for directory in find_runs(root, self.unlisted)]
        studies = {Path(run.directory).parent.parent.parent for run in runs}
        # The environment's name says enough where all runs are of one study.
        self._place = {
            run.directory: run.environment
            if len(studies) == 1
            else os.path.relpath(Path(run.directory).parent.parent, root)
            for run in runs
        }
        self.runs = sorted(runs, key=lambda run: (_natural(self._place[run.directory]), _natural(run.directory)))

    def lines(self, *, collapse: bool | None, width: int | None, most: int = COLLAPSE_ABOVE) -> list[Text]:
        """The table, what went wrong, and the summary. Without a width, every line is complete."""
        collapsed = len(self.runs) > most if collapse is None else collapse
        rows = self._group_rows() if collapsed else self._run_rows()
        lines = table(rows, _GROUP_LAYOUTS if collapsed else _RUN_LAYOUTS, width)
        failed = [(run.directory, run.reason or "") for run in self.runs if run.state == "failed"]
        lines += _reasons("Failed (tracebacks: --failed)", failed, width)
        problems = [(run.directory, problem) for run in self.runs for problem in run.problems]
        lines += _reasons("Cannot be read", [*problems, *self.unlisted], width)
        lines += [Text(), *_folded(self.summary(), width, "bold")]
        if collapsed and collapse is None:
            lines += _folded(f"{len(rows)} rows, one for all seeds of a label; --all shows every run.", width, "dim")
        return lines

    def summary(self) -> str:
        """How many runs are in which state, how fast they go, and when they would be done."""
        running = [run for run in self.runs if run.state == "running"]
        text = f"{len(self.runs)} run{'s' * (len(self.runs) != 1)}: {_count_states(self.runs)}"
        if running:
            text += f"; {sum(run.steps_per_second or 0 for run in running):,.0f} steps/s in all"
        etas = [run.eta_seconds for run in running if run.eta_seconds is not None]
        if etas:
            text += f"; the running ones would be done {_clock(max(etas))}"
            if len(etas) < len(running):
                text += f" ({len(running) - len(etas)} of them without an estimate yet)"
        return text + "."

    def _run_rows(self) -> list[Row]:
        return [
            {
                "environment": _printable(self._place[run.directory]),
                "label": _printable(run.label),
                "seed": _printable(Path(run.directory).name if run.seed is None else str(run.seed)),
                "state": run.state,
                "steps": f"{_steps(run.step)}/{_steps(run.total_steps)}",
                "done": _percent(run.share),
                "return": _number(run.evaluation_return),
                "at step": _steps(run.evaluation_step),
                "steps/s": _speed(run.steps_per_second),
                "ETA": _duration(run.eta_seconds),
                "heartbeat": _duration(run.heartbeat_age_seconds),
            }
            for run in self.runs
        ]

    def _group_rows(self) -> list[Row]:
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
                    "environment": _printable(self._place[runs[0].directory]),
                    "label": _printable(runs[0].label),
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


def comparable_returns(runs: Sequence[RunStatus]) -> tuple[int | None, list[float]]:
    """A step, and the last returns of those runs whose last evaluation was at it.

    Seeds at different points of training are not averaged. Finished runs decide the step where there are any; else it
    is the one that most runs have reached last, and of several such the latest.
    """
    evaluated = [run for run in runs if run.evaluation_step is not None and run.evaluation_return is not None]
    deciding = [run for run in evaluated if run.state == "finished"] or evaluated
    if not deciding:
        return None, []
    counts = Counter(run.evaluation_step for run in deciding)
    step = max(counts, key=lambda s: (counts[s], s or 0))
    return step, [run.evaluation_return for run in deciding if run.evaluation_step == step]  # type: ignore[misc]


def table(rows: Sequence[Row], layouts: Layouts, width: int | None) -> list[Text]:
    """Aligned columns. On a terminal of this width, what repeats is shown once, as a heading where space is short."""
    if width is None:
        return _columns(rows, (), ())
    for headings, omitted in layouts:
        lines = _columns(_without_repetition(rows), headings, omitted)
        if max(line.cell_len for line in lines) <= width:
            break
    with_headings = [lines[0]]
    before: Row = {}
    for row, line in zip(rows, lines[1:], strict=True):
        for depth in range(len(headings)):
            if any(row[name] != before.get(name) for name in headings[: depth + 1]):
                style = "bold" if depth == 0 else _state_style(row["states"]) if depth == 2 else ""
                folded = _folded(row[headings[depth]], width - depth, style)
                with_headings += [Text(" " * depth) + part for part in folded]
        with_headings.append(line)
        before = row
    return with_headings


def _columns(rows: Sequence[Row], headings: Sequence[str], omitted: Sequence[str]) -> list[Text]:
    """A line with the columns' names, and one per row."""
    names = [name for name in rows[0] if name not in (*headings, *omitted)]
    widths = {name: max(cell_len(name), *(cell_len(row[name]) for row in rows)) for name in names}
    lines = []
    for row in [{name: name for name in names}, *rows]:
        cells = []
        for name in names:
            padding = " " * (widths[name] - cell_len(row[name]))
            cell = Text(row[name], style=_state_style(row[name]) if name in ("state", "states") else "")
            cells.append(Text.assemble(cell, padding) if name in _LEFT else Text.assemble(padding, cell))
        line = Text(" " * len(headings)) + Text("  ").join(cells)
        line.rstrip()
        lines.append(line)
    lines[0].stylize("dim")
    return lines


def _without_repetition(rows: Iterable[Row]) -> list[Row]:
    """Environment and label only where they change."""
    result = []
    place = ("", "")
    for row in rows:
        same_environment, same = row["environment"] == place[0], (row["environment"], row["label"]) == place
        place = row["environment"], row["label"]
        result.append(row | ({"environment": ""} if same_environment else {}) | ({"label": ""} if same else {}))
    return result


def details(run: RunStatus) -> list[Text]:
    """All about one run; a failed one with its traceback."""
    evaluation = "none yet"
    if run.evaluation_step is not None:
        evaluation = f"return {_number(run.evaluation_return)} at step {run.evaluation_step:,}"
    progress = "unknown"
    if run.step is not None and run.total_steps is not None:
        progress = f"{run.step:,} of {run.total_steps:,} steps ({_percent(run.share)})"
    facts = {
        "environment": run.environment,
        "label": run.label,
        "seed": str(run.seed),
        "state": run.state,
        "reason": run.reason,
        "cannot be read": "; ".join(run.problems) or None,
        "progress": progress,
        "checkpoint": None if run.checkpoint is None else f"step {run.checkpoint:,}",
        "evaluation": evaluation,
        "speed": None if run.steps_per_second is None else f"{_speed(run.steps_per_second)} steps/s",
        "done": None if run.eta_seconds is None else _clock(run.eta_seconds),
        "heartbeat": None if run.heartbeat_age_seconds is None else f"{_duration(run.heartbeat_age_seconds)} ago",
        "process": None
        if run.pid is None
        else f"{run.pid} on {run.host or 'an unknown host'}" + ", gone" * (run.state == "killed"),
    }
    lines = [Text(_printable(run.directory), style="bold")]
    for name, value in facts.items():
        if value is not None:
            style = _state_style(value) if name == "state" else ""
            lines.append(Text.assemble((f"  {name:<16}", "dim"), (_printable(value), style)))
    return lines + _traceback(run)


def failures(runs: Sequence[RunStatus]) -> list[Text]:
    """The failed runs with their tracebacks."""
    lines = []
    for run in runs:
        lines.append(Text(_printable(run.directory), style="bold"))
        lines += [Text(f"  {_printable(run.reason or '')}", style=_STYLES["failed"]), *_traceback(run), Text()]
    return lines


def _traceback(run: RunStatus) -> list[Text]:
    lines = (run.traceback or "").rstrip().splitlines()
    return [Text("  " + _printable(line.expandtabs(4))) for line in lines]


def _reasons(title: str, pairs: Iterable[tuple[str, str]], width: int | None) -> list[Text]:
    """What happened to which directories; a hundred runs that failed alike take two lines."""
    directories: dict[str, list[str]] = {}
    for directory, reason in pairs:
        directories.setdefault(_printable(reason), []).append(_printable(directory))
    if not directories:
        return []
    lines = [Text(), Text(title, style="bold")]
    for reason in sorted(directories, key=lambda r: -len(directories[r]))[:_LISTED_REASONS]:
        first, *others = directories[reason]
        line = Text(f"  {len(others) + 1} x {reason}")
        if width is not None:
            line.truncate(width, overflow="ellipsis")
        more = f" and {len(others)} more" if others else ""
        lines += [line, *(Text("      ") + part for part in _folded(first + more, width and width - 6))]
    if len(directories) > _LISTED_REASONS:
        lines.append(Text(f"  and {len(directories) - _LISTED_REASONS} other reasons"))
    return lines


def _count_states(runs: Iterable[RunStatus]) -> str:
    counts = Counter(run.state for run in runs)
    return ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])


def _state_style(text: str) -> str:
    """That of the worst state in a text, which stands last."""
    return next((_STYLES[state] for state in reversed(STATES) if state in text), "")


def _folded(text: str, width: int | None, style: str = "") -> list[Text]:
    parts = textwrap.wrap(text, max(width, 8), break_on_hyphens=False) if width is not None else [text]
    return [Text(part, style=style) for part in parts]


def _natural(text: str) -> list[Any]:
    """Sorts size=2 before size=10."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]{1,18})", text))]


def _printable(text: str) -> str:
    """A name or a message can hold anything, also what would command a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _steps(steps: int | None) -> str:
    """Rounded down, so that it never claims more than was done."""
    if steps is None:
        return "-"
    if steps < 1000:
        return str(steps)
    return f"{steps // 100 / 10:g}K" if steps < 1_000_000 else f"{steps // 10_000 / 100:g}M"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{math.floor(100 * share)}%"


def _number(value: float | None, like: float | None = None) -> str:
    """With as many decimals as suit the value, or another."""
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
    """When that will be."""
    if seconds > 1e8:
        return f"in {_duration(seconds)}"
    now = datetime.now()
    then = now + timedelta(seconds=seconds)
    day = "" if then.date() == now.date() else f"{then:%a %d %b} "
    return f"about {day}{then:%H:%M}, in {_duration(seconds)}"


def watch(root: Path, collapse: bool | None, seconds: float) -> int:
    """Show the overview again and again, until Ctrl-C."""
    from rich.console import Console, Group
    from rich.live import Live

    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                width, height = console.size
                overview = Overview(root)
                lines = [Text(f"{_printable(str(root))} at {datetime.now():%H:%M:%S}; Ctrl-C ends", style="dim")]
                if overview.runs:
                    lines += overview.lines(collapse=collapse, width=width, most=min(COLLAPSE_ABOVE, height - 10))
                else:
                    lines.append(Text("no run"))
                for line in lines:
                    line.truncate(width, overflow="ellipsis")
                live.update(Group(*_fitting(lines, height - 1)), refresh=True)
                time.sleep(seconds)
    except KeyboardInterrupt:
        return 0


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """End through the usual way out, which gives the terminal its cursor back."""
    sys.exit(128 + number)


def _fitting(lines: Sequence[Text], height: int) -> list[Text]:
    """The beginning, and the summary at the end."""
    if len(lines) <= height:
        return list(lines)
    ending = 4
    left_out = len(lines) - max(height - ending - 1, 1) - ending
    note = Text(f"... {left_out} lines more; a taller window shows them", style="dim")
    return [*lines[: max(height - ending - 1, 1)], note, *lines[-ending:]]


def _print(lines: Iterable[Text]) -> None:
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console(highlight=False)
        for line in lines:
            console.print(line, soft_wrap=True)
    else:
        _write("".join(f"{line.plain}\n" for line in lines))


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # as in `| head`: enough was read
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _json(runs: Sequence[RunStatus]) -> str:
    def finite(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps([{key: finite(value) for key, value in asdict(run).items()} for run in runs], indent=1) + "\n"


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    described = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m meanq.status", description=__doc__, formatter_class=described)
    parser.add_argument("root", nargs="?", type=Path, default=Path("runs"), help="a directory of runs, or one run")
    rows = parser.add_mutually_exclusive_group()
    rows.add_argument("--group", action="store_true", help="one row for all seeds of a label")
    rows.add_argument("--all", action="store_true", help=f"a row for every run, even of more than {COLLAPSE_ABOVE}")
    rows.add_argument("--failed", action="store_true", help="only failed runs, with their tracebacks")
    parser.add_argument("--json", action="store_true", help="a JSON list of runs")
    watch_help = f"refresh until Ctrl-C (every {WATCH_SECONDS:g} s)"
    parser.add_argument("--watch", nargs="?", metavar="SECONDS", type=float, const=WATCH_SECONDS, help=watch_help)
    given = list(arguments)
    for i, argument in enumerate(given):  # --watch runs: the root, not a number of seconds
        if argument == "--watch" and not re.match(r"[-+.\d]*\d", "".join(given[i + 1 : i + 2])):
            given[i] = f"--watch={WATCH_SECONDS}"
    options = parser.parse_args(given)
    if options.watch is not None:
        if not 0.1 <= options.watch <= 86400:
            parser.error(f"--watch {options.watch:g}: write a number of seconds, 0.1 or more")
        if options.json or options.failed:
            parser.error(f"--watch: not together with {'--json' if options.json else '--failed'}")
        if not sys.stdout.isatty():
            parser.error("--watch: it needs a terminal; leave it out in a pipe")
    if options.json and options.group:
        parser.error("--group: --json lists every run; leave out one of them")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without ± still shows the rest
    root: Path = options.root
    if not root.is_dir():
        print(f"meanq: {root}: there is no such directory; name the root= of your runs", file=sys.stderr)
        return 2
    overview = Overview(root)
    if not overview.runs:
        why = "".join(f" ({directory}: {reason})" for directory, reason in overview.unlisted[:1])
        print(f"meanq: {root}: no run in it or below it{why}; name the root= of your runs", file=sys.stderr)
        return 2
    collapse = True if options.group else False if options.all else None
    failed = [run for run in overview.runs if run.state == "failed"]
    if options.json:
        _write(_json(failed if options.failed else overview.runs))
    elif options.watch is not None:
        return watch(root, collapse, options.watch)
    elif options.failed:
        _print([*failures(failed), Text(f"{len(failed)} of {len(overview.runs)} runs failed.", style="bold")])
    elif overview.runs[0].directory == str(root):
        _print(details(overview.runs[0]))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        _print(overview.lines(collapse=collapse, width=width))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
