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
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from meanq.rundir.progress import RunStatus
from meanq.status.overview import COLLAPSE_ABOVE, Overview, details, failures, printable

WATCH_SECONDS = 5.0
_PIPE_WIDTH = 1_000_000  # lines in a pipe are never wrapped


def watch(root: Path, collapse: bool | None, seconds: float) -> int:
    """Show the overview again and again, until Ctrl-C."""
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # Live then restores the terminal
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                heading = Text(f"{printable(str(root))} at {datetime.now():%H:%M:%S}; Ctrl-C ends", style="dim")
                overview = Overview(root)
                # The summary comes first, since Live cuts off what does not fit the window.
                parts: list[RenderableType] = [heading, overview.summary()]
                if overview.runs:
                    parts += overview.table(collapse, console.width, min(COLLAPSE_ABOVE, console.height - 10))
                live.update(Group(*parts), refresh=True)
                time.sleep(seconds)
    except KeyboardInterrupt:
        return 0


def _render(parts: Iterable[RenderableType]) -> str:
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, color_system=None, width=_PIPE_WIDTH)
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    return captured.get()


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
    for i, argument in enumerate(given):  # in `--watch runs`, runs is the root
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
    """Run the command and return its exit code."""
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
    if options.watch is not None:
        return watch(root, collapse, options.watch)
    if options.json:
        text = _json(failed if options.failed else overview.runs)
    elif options.failed:
        count = Text(f"{len(failed)} of {len(overview.runs)} runs failed.", style="bold")
        text = _render([*failures(failed), count])
    elif overview.runs[0].directory == str(root):
        text = _render(details(overview.runs[0]))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH
        text = _render([*overview.table(collapse, width), "", overview.summary()])
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
