"""Compare speed with the project's goals: python -m benchmarks.goals [--help].

The command prints a table with one row per goal (measured value, goal, met or not) and detailed tables, e.g. how cost
grows with members, replay and parallel runs. It writes the same as JSON. The two sides of a ratio run alternately in
one process. Games are Asterix on Atari (9 actions) and on MinAtar (5). On a shared machine absolute times drift; the
ratios are more reliable.
"""

import argparse
import json
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import resources, sections, stable_baselines
from benchmarks.sections import QUICK, Findings, Scale

SECTIONS = {
    function.__name__: function
    for function in (
        sections.meanq_rainbow_nature,
        sections.meanq_rainbow_data_efficient,
        sections.meanq_nature,
        sections.single_networks,
        sections.minatar,
        sections.growth_with_members,
        resources.growth_with_replay,
        resources.large_replay,
        resources.large_replay_nature,
        resources.evaluation,
        resources.start_up,
        resources.parallel_runs,
        stable_baselines.stable_baselines3,
    )
}


@dataclass(frozen=True)
class Goal:
    """A bound for a measured figure."""

    key: str  # key of the figure in a section's findings
    what: str
    least: bool  # True: at least the bound, False: at most
    bound: float
    unit: str = ""  # "%": a share

    def met(self, figure: float) -> bool:
        return figure >= self.bound if self.least else figure <= self.bound

    def text(self, figure: float) -> str:
        return f"{figure:.0%}" if self.unit == "%" else f"{figure:.2f}{self.unit}"


def _at_least(key: str, what: str, bound: float, unit: str = "x") -> Goal:
    return Goal(key, what, True, bound, unit)


def _at_most(key: str, what: str, bound: float, unit: str) -> Goal:
    return Goal(key, what, False, bound, unit)


WHOLE = "interaction, over the plain reference: "
SHARE = "learner step, of matmul peak: "
MEMORY = "memory, 500K Atari frames: "
GOALS = (
    _at_least("meanq_rainbow/nature/ratio", f"{WHOLE}meanq_rainbow K=5, Nature, hidden 256", 2.2),
    _at_least("meanq_rainbow/nature/share/compiled", f"{SHARE}the same, compiled", 0.55, "%"),
    _at_least("meanq_rainbow/data_efficient/ratio", f"{WHOLE}meanq_rainbow K=5, data-efficient", 4.0),
    _at_least("meanq_rainbow/data_efficient/share/compiled", f"{SHARE}the same, compiled", 0.45, "%"),
    _at_least("meanq_rainbow/data_efficient/share/eager", f"{SHARE}the same, eager", 0.30, "%"),
    _at_least("meanq/nature/ratio", f"{WHOLE}meanq K=5, Nature, an update every 2nd", 2.0),
    _at_least("dqn/nature/ratio", f"{WHOLE}dqn K=1, Nature, an update every 2nd", 1.5),
    _at_least("plain_dqn/nature/ratio", f"{WHOLE}dqn K=1, no dueling, uniform replay", 1.5),
    _at_least("rainbow/data_efficient/ratio", f"{WHOLE}rainbow K=1, data-efficient", 1.5),
    _at_most("members/nature", "learner step, K=5 over K=1: Nature, hidden 256", 7.5, "x"),
    _at_most("members/data_efficient", "learner step, K=5 over K=1: data-efficient", 7.5, "x"),
    _at_least("minatar/5/share", f"{SHARE}meanq K=5, MinAtar, one thread", 0.40, "%"),
    _at_most("minatar/1/ms", "interaction and update: dqn K=1, MinAtar, one thread", 1.0, " ms"),
    _at_most("replay/sample", "sampling for K=5 from 500K frames, with priorities", 2.0, " ms"),
    _at_least("evaluation/ratio", "20 evaluation episodes at once over one by one", 8.0),
    _at_most("evaluation/share", "evaluations, of the time of a run of 100K", 0.10, "%"),
    _at_most("replay/memory/data_efficient", f"{MEMORY}meanq_rainbow K=5, data-efficient", 4.5, " GB"),
    _at_most("replay/memory/nature", f"{MEMORY}meanq K=5, Nature", 4.5, " GB"),
    _at_most("start/help", "start: python -m meanq.run --help", 2.0, " s"),
    _at_most("start/first_step", "start: first gradient step of the default run", 6.0, " s"),
)


def show(console: Console, goals: Sequence[Goal], findings: Findings, scale: Scale) -> None:
    """Print all tables, ending with the goals."""
    for title, columns, rows in findings.tables:
        console.print(title)
        table = Table(box=box.SIMPLE, pad_edge=False)
        for number, name in enumerate(columns):
            table.add_column(name, justify="right" if number else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    console.print("Speed goals" if scale != QUICK else "Speed goals; a quick trial, its figures are not meaningful")
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in ("what", "measured", "goal", "", "how"):
        number = name in ("measured", "goal")
        table.add_column(name, justify="right" if number else "left", no_wrap=number or not name)
    for goal in goals:
        figure = findings.figures.get(goal.key)
        verdict = "-" if figure is None else "met" if goal.met(figure) else "NOT MET"
        table.add_row(
            goal.what,
            "not measured" if figure is None else goal.text(figure),
            f"{'>=' if goal.least else '<='} {goal.text(goal.bound)}",
            verdict,
            findings.notes.get(goal.key, ""),
            style="bold red" if verdict == "NOT MET" else None,
        )
    console.print(table)
    measured = [goal for goal in goals if goal.key in findings.figures]
    met = sum(goal.met(findings.figures[goal.key]) for goal in measured)
    console.print(f"{met} of {len(goals)} goals are met, {len(goals) - len(measured)} were not measured.")


def to_json(goals: Sequence[Goal], findings: Findings, scale: Scale, seconds: float) -> dict:
    """Convert goals and findings to plain data."""
    rows = []
    for goal in goals:
        figure = findings.figures.get(goal.key)
        met = None if figure is None else goal.met(figure)
        note = findings.notes.get(goal.key)
        rows.append({**asdict(goal), "measured": figure, "met": met, "how": note})
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "seconds": seconds,
        "scale": asdict(scale),
        "goals": rows,
        "figures": findings.figures,
        "tables": [{"title": title, "columns": columns, "rows": rows} for title, columns, rows in findings.tables],
    }


def measure(names: Sequence[str], scale: Scale, console: Console) -> Findings:
    """Run the sections one after the other, each in a new process (with --quick, all in one process)."""
    findings = Findings()
    each = None if scale == QUICK else 1
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, max_tasks_per_child=each) as process, console.status("") as status:
        for name in names:
            status.update(name)
            start = time.perf_counter()
            findings.merge(process.submit(SECTIONS[name], scale).result())
            console.print(f"{name}: {time.perf_counter() - start:.0f} s", highlight=False)
    return findings


def main(arguments: Sequence[str] | None = None) -> None:
    assert __doc__
    parser = argparse.ArgumentParser(prog="python -m benchmarks.goals", description=__doc__.split("\n")[0])
    names = ", ".join(SECTIONS)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION", help=names)
    parser.add_argument("--quick", action="store_true", help="a trial in a minute; its figures are not meaningful")
    parser.add_argument("--seconds", type=float, help=f"duration of each comparison (default: {Scale.seconds:g})")
    parser.add_argument("--eager", action="store_true", help="do not measure compiled code")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results.json"), help="default: %(default)s")
    options = parser.parse_args(arguments)
    scale = QUICK if options.quick else Scale()
    if options.seconds is not None:
        scale = replace(scale, seconds=options.seconds)
    if options.eager:
        scale = replace(scale, compiled=False)
    start = time.perf_counter()
    findings = measure(options.only, scale, Console(file=sys.stderr))
    show(Console(width=max(Console().width, 150)), GOALS, findings, scale)
    options.json.write_text(json.dumps(to_json(GOALS, findings, scale, time.perf_counter() - start), indent=2) + "\n")
    print(f"wrote {options.json}")


if __name__ == "__main__":
    main()
