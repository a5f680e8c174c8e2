"""Show what every run below a directory is doing. It only reads, so it is safe at any time.

meanq status                  every run below runs/
meanq status --watch          the same, refreshed until Ctrl-C
meanq status --failed         why runs failed, with tracebacks
meanq status RUN_DIRECTORY    all about one run
meanq status --json           for scripts: a list with one object per run

A run is `finished`, `interrupted` or `failed` where it said so. It is `running` while a process holds its lock,
`stalled?` if that process has not written its status for two minutes, and `killed` if there is no such process. It is
`waiting` where a sweep that goes on has planned it and has not come to it yet.
"""

import argparse
import contextlib
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live

from meanq.status.overview import COLLAPSE_ABOVE, Overview, details, text

_WATCH_SECONDS = 2.0
_PIPE_WIDTH = 1_000_000  # lines in a pipe are never wrapped


def watch(root: Path, console: Console, every_run: bool) -> None:
    """Show the overview again and again, until Ctrl-C."""
    with Live(console=console, auto_refresh=False) as live:
        while True:
            overview = Overview(root)
            heading = text(f"{root} at {datetime.now():%H:%M:%S}; Ctrl-C ends", "dim")
            rows = overview.table(math.inf if every_run else min(COLLAPSE_ABOVE, console.height - 10))
            # The summary comes first, since Live cuts off what does not fit the window.
            live.update(Group(heading, overview.summary(), *rows), refresh=True)
            time.sleep(_WATCH_SECONDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    described = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("meanq status", description=__doc__, formatter_class=described)
    parser.add_argument("root", nargs="?", type=Path, default=Path("runs"), help="a directory of runs, or one run")
    parser.add_argument("--all", action="store_true", help=f"a row for every run, also of more than {COLLAPSE_ABOVE}")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--failed", action="store_true", help="only failed runs, with their tracebacks")
    shown.add_argument("--json", action="store_true", help="a JSON list of runs")
    shown.add_argument("--watch", action="store_true", help=f"refresh every {_WATCH_SECONDS:g} s until Ctrl-C")
    options = parser.parse_args(arguments)
    terminal = sys.stdout.isatty()
    if options.watch and not terminal:
        parser.error("--watch: it needs a terminal; leave it out in a pipe")
    overview = Overview(options.root)
    if not overview.runs:
        why = "".join(f" ({directory}: {reason})" for directory, reason in overview.unlisted[:1])
        print(f"meanq: {options.root}: no run in it or below it{why}; name the root= of your runs", file=sys.stderr)
        return 2
    console = Console(highlight=False, markup=False, width=None if terminal else _PIPE_WIDTH)
    if options.watch:
        watch(options.root, console, options.all)
    elif options.json:
        console.print_json(data=[asdict(run) for run in overview.runs], indent=1, default=str, ensure_ascii=True)
    elif options.failed:
        failed = [run for run in overview.runs if run.state == "failed"]
        console.print(*(part for run in failed for part in details(run)), sep="\n")
        console.print(text(f"{len(failed)} of {len(overview.runs)} runs failed.", "bold"))
    elif overview.runs[0].directory == options.root:
        console.print(*details(overview.runs[0]), sep="\n")
    else:
        console.print(*overview.table(math.inf if options.all else COLLAPSE_ABOVE), "", overview.summary(), sep="\n")
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
