"""The table at the end of `meanq run`: what became of its runs, and where the time went."""

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from statistics import mean, stdev

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from meanq.metrics import definitions
from meanq.rundir import layout, reader
from meanq.rundir.progress import Outcome
from meanq.status.overview import COLLAPSE_ABOVE, duration


def print_summary(console: Console, outcomes: Mapping[Path, Outcome]) -> None:
    """Print a row per run, the shares of time, and the reasons of failures. Many skipped runs are only counted."""
    many = len(outcomes) > COLLAPSE_ABOVE
    listed = {path: outcome for path, outcome in outcomes.items() if not (many and outcome.state == "skipped")}
    table = Table(title="Runs", title_justify="left", header_style="bold")
    for name in ("environment", "algorithm", "seed", "state"):
        table.add_column(name, overflow="fold")
    for name in ("steps", "return", "V(s0)", "bias", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for directory, outcome in listed.items():
        env, label, seed = map(escape, directory.parts[-3:])
        steps = f"{reader.read_status(directory).get('step') or 0:,}"
        spent = duration(reader.read_json_if_valid(directory / layout.META).get("seconds"))
        evaluated = _evaluation_cells(directory)
        table.add_row(env, label, seed.removeprefix("seed_"), outcome.state, steps, *evaluated, spent)
    if listed:
        console.print(table)
    shares = [f"{part} {share:.0%}" for part, share in time_shares(listed).items() if share >= 0.005]
    lines = [f"Time: {', '.join(shares)}"] if shares else []
    lines += [escape(f"{path} failed: {run.reason}") for path, run in outcomes.items() if run.state == "failed"]
    if len(outcomes) > 1:
        counts = Counter(outcome.state for outcome in outcomes.values())
        lines.append(", ".join(f"{count} {state}" for state, count in counts.items()))
    console.print(*lines, sep="\n", highlight=False, soft_wrap=True)


def time_shares(directories: Iterable[Path]) -> dict[str, float]:
    """Return the share of each part of the loop in the total time of these runs, the largest first."""
    seconds: Counter[str] = Counter()
    for directory in directories:
        before = 0.0
        with contextlib.suppress(reader.UnreadableFileError):  # `meanq status` tells of it
            for row in reader.read_numbers(directory / layout.TIMINGS):
                steps, before = row["step"] - before, row["step"]
                elapsed = steps / max(row.get("steps_per_second", 0.0), 1e-9)
                for name, share in row.items():
                    if name.startswith("share_"):
                        seconds[name.removeprefix("share_")] += elapsed * share  # type: ignore[assignment]
    return {part: spent / seconds.total() for part, spent in seconds.most_common()}


def _evaluation_cells(directory: Path) -> list[str]:
    """Return, V(s0) and bias of the last evaluation."""
    try:
        rows = reader.read_numbers(directory / layout.EVALUATIONS)
    except reader.UnreadableFileError:  # `meanq status` tells of it
        rows = []
    columns = ("return", "value", "discounted_return")
    last = [[row.get(name, math.nan) for name in columns] for row in rows if row["step"] == rows[-1]["step"]]
    if not last or not all(map(math.isfinite, chain(*last))):
        return ["-", "-", "-"]
    returns, values, discounted = zip(*last, strict=True)
    spread = f" ± {stdev(returns):.1f}" if len(returns) > 1 else ""
    value, bias = mean(values), mean(map(definitions.bias, values, discounted))
    return [f"{mean(returns):.1f}{spread}", f"{value:.2f}", f"{bias:+.2f}"]
