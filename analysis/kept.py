"""Kept results of a study: what its runs recorded about themselves, and tables; and how two of them become one.

`join` is for runs that come in several sittings, or from several machines, and are never at hand all at once. Rows of a
game and label are those of one side or the other, and averages over games are made anew; so a game and label must be
of one side alone. Verdicts need the runs of both sides, so there must be none to make: fewer runs of each label than
any verdict asks for.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import provenance
from analysis.figure_tables import AVERAGE, CITED, need, read_table
from analysis.figures import CURVES, KINDS, read_tables
from analysis.findings import LEAST_RUNS
from analysis.palette import order
from analysis.runs import AnalysisError
from analysis.series_figure import series_table
from analysis.tables import not_alike

PROVENANCE = "provenance.json"
FIGURES = ("study", "learning_curves", "series", "mechanism", "ablation")  # where there is something to show
TABLES = ("late", "findings", "scores")


@dataclass(frozen=True)
class Kept:
    """All that is kept but the page and the pictures, which follow from it."""

    about: dict[str, Any]  # as analysis.provenance
    figures: dict[str, pd.DataFrame]  # tables of figures, by name
    tables: dict[str, pd.DataFrame]  # late in training, verdicts, scores; those that have rows


def read(directory: Path) -> Kept:
    """What `write` wrote."""
    figures = read_figures(directory)
    need((directory / PROVENANCE).is_file(), f"{directory}: no {PROVENANCE} here")
    about = json.loads((directory / PROVENANCE).read_text())
    tables = {path.stem: read_table(path) for path in (directory / "tables").glob("*.csv")}
    need("late" in tables, f"{directory}: no tables/late.csv here")
    return Kept(about, figures, tables)


def read_figures(directory: Path) -> dict[str, pd.DataFrame]:
    """The tables of its figures alone, in the order of a page."""
    tables = read_tables(sorted((directory / "figures").glob("*.csv")))
    need(bool(tables), f"{directory}: no tables of figures here")
    return {name: tables[name] for name in KINDS if name in tables}


def write(kept: Kept, directory: Path) -> None:
    """Instead of what an older set of runs left there."""
    for name in (*KINDS, *TABLES):
        for path in (directory / "figures" / f"{name}.csv", directory / "figures" / f"{name}.svg"):
            path.unlink(missing_ok=True)
        (directory / "tables" / f"{name}.csv").unlink(missing_ok=True)
    for kind, frames in (("figures", kept.figures), ("tables", kept.tables)):
        (directory / kind).mkdir(parents=True, exist_ok=True)
        for name, frame in frames.items():
            text = frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")
            (directory / kind / f"{name}.csv").write_text(text)
    (directory / PROVENANCE).write_text(json.dumps(kept.about, indent=1, ensure_ascii=False) + "\n")


def join(first: Kept, second: Kept) -> Kept:
    """Both as one, where that can be done from tables; AnalysisError: why it cannot."""
    _check(first, second)
    ranks = {label: i for i, label in enumerate(order(_both(first, second, "late")["label"]))}
    late = _both(first, second, "late").sort_values(
        ["game", "label"], key=lambda column: column.map(ranks) if column.name == "label" else column, kind="stable"
    )
    tables = {"late": late.reset_index(drop=True)}
    undecided = f"no label has {LEAST_RUNS} runs in a game"
    tables["findings"] = second.tables["findings"].assign(details=undecided)
    scores = _both(first, second, "scores")
    if len(scores):
        tables["scores"] = scores.sort_values(["game", "label"], kind="stable").reset_index(drop=True)
    table, lengths = _metrics(first, second, scores)
    figures = {}
    for name in FIGURES:
        try:
            figures[name] = series_table(late) if name == "series" else CURVES[name](table, lengths)
        except AnalysisError:
            continue
    for name in ("learning_curves", "mechanism"):  # which are kept only where they show more than `study` does
        if name not in first.figures and name not in second.figures:
            figures.pop(name, None)
    about = provenance.join(first.about, second.about)
    alone = {note for part in (first, second) for note in not_alike(part.tables["late"])}
    about["notes"] = [note for note in about["notes"] if note not in alone] + not_alike(late)
    return Kept(about, figures, tables)


def _check(first: Kept, second: Kept) -> None:
    for field in ("study", "scale"):
        ours, theirs = (part.about.get(field) for part in (first, second))
        need(ours == theirs, f"--add: {field} {theirs}, where {ours} is kept; keep it in a directory of its own")
    need(
        "scale" in first.about, "--add: write --scale, which says how labels are configured, here and when it was kept"
    )
    cells = [
        set(zip(part.tables["late"]["game"], part.tables["late"]["label"], strict=True)) for part in (first, second)
    ]
    twice = sorted(cells[0] & cells[1])
    if twice:
        env, label = twice[0]
        raise AnalysisError(
            f"--add: {env}, {label} is kept there already; leave its runs out, or name all runs without --add"
        )
    for part in (first, second):
        most = part.tables["late"]["runs"].max()
        need(
            most < LEAST_RUNS,
            f"--add: {most} runs of a label, of which the paper's conclusions can be decided: that needs all runs at "
            "once; name them all without --add, or keep these in a directory of their own",
        )
        alone = sorted(set(part.figures) - {*CURVES, "series"})
        need(not alone, f"--add: the figure {', '.join(alone)} needs all runs at once; name them all without --add")
        need(
            "study" in part.figures and bool((part.figures["study"]["env"] != AVERAGE).any()),
            "--add: figures/study.csv must have every game, and not their average alone, as for too many games to be "
            "drawn; name all runs without --add",
        )


def _both(first: Kept, second: Kept, name: str) -> pd.DataFrame:
    return pd.concat([part.tables[name] for part in (first, second) if name in part.tables] or [pd.DataFrame()])


def _metrics(first: Kept, second: Kept, scores: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
    """The rows of analysis.metrics that both have in figures, with returns normalised; the lengths of cited games."""
    tables = [table for part in (first, second) for name, table in part.figures.items() if name in CURVES]
    rows = pd.concat(tables)
    cited = rows[rows["group"] == CITED]
    lengths = {str(env): int(step) for env, step in zip(cited["env"], cited["step"], strict=True) if env != AVERAGE}
    rows = rows[(rows["group"] != CITED) & (rows["env"] != AVERAGE)]
    rows = rows.drop_duplicates(["env", "algo", "group", "step", "metric"])  # figures have some in common
    rows = rows.sort_values(["env", "algo"], kind="stable")
    returns = rows[rows["metric"] == "return"]
    if not len(scores) or not set(returns["env"]) <= set(scores["game"]):
        return rows, lengths  # without an average over games
    known = scores.drop_duplicates("game").set_index("game")
    random, human = (returns["env"].map(known[f"paper: {name}"]) for name in ("random", "human"))
    spread = returns["group"] == "std"
    normalised = returns["value"].where(spread, returns["value"] - random) / (human - random)
    return pd.concat([rows, returns.assign(metric="normalised_return", value=normalised)]), lengths
