"""One page with every table and figure of a set of runs, and the same as CSV, SVG and PNG beside it.

    meanq report runs/target_network

The page, report/index.html below the first path (or `--out`), opens from disk and needs no network. Hover over curves
to read them; hide a method or a game and it is hidden everywhere; click a table's head to sort it. Summary and curves
come first, the paper's conclusions later, the commands that make the runs again last. What has to be known about the
runs is one line at the top, unfolded if a run has failed.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from meanq.metrics.definitions import BIASES, DEFAULT_BIAS

from ..console import command, default_directory, make_parser, say, writing
from ..metrics import compute
from ..runs import read_runs
from .sections import Report


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser("report", __doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="directories with runs anywhere below, e.g. runs/techniques")
    parser.add_argument("--out", type=Path, help="directory of the page (default: report, below the first of `runs`)")
    parser.add_argument("--bias", choices=list(BIASES), default=DEFAULT_BIAS, help="see meanq metrics (%(default)s)")
    options = parser.parse_args(arguments)
    directory = options.out or default_directory(options.runs[0], "report")
    shown = f"meanq report {shlex.join(map(str, options.runs))}"
    shown += f" --bias {options.bias}" if options.bias != DEFAULT_BIAS else ""
    found = read_runs(options.runs)
    metrics = compute(found, dict.fromkeys([options.bias, DEFAULT_BIAS]))  # the second for figures
    page = directory / "index.html"
    with writing(directory):
        report = Report(found, metrics, options.bias, directory, shown)
        page.write_text(report.page(), encoding="utf-8")
    say(report.messages())
    print(f"{page}: {report.size}")


if __name__ == "__main__":
    main()
