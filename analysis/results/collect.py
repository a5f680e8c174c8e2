"""What the repository keeps of a study: its figures, the tables behind them, verdicts, and where the runs come from.

    python -m analysis.results runs/target_network --scale minatar --out ablations/results/target_network
    python -m analysis.results --scale minatar --out ablations/results/target_network   # from the runs kept there alone
    python -m analysis.results --again ablations/results/*       # pages and pictures anew, from the tables kept there

runs/                  the small files of every run, read as runs are
figures/*.csv, *.svg   tables of figures and the figures (`--figures` chooses them)
tables/late.csv        return, bias, std and gap, late in training, by game and label
tables/findings.csv    the paper's conclusions, compared; tables/scores.csv: Atari scores beside the paper's
provenance.json        commits, machine, versions, hours and commands, as the runs recorded them
README.md              all of it on a page

Everything is made from the kept runs, so a study can be continued on any machine: runs that come later join those that
are there. The page and the pictures follow from the tables and the study's file in ablations/; results that were kept
without their runs have these alone. `--scale` names the scale of the study that was run; that the runs belong to it is
checked.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from analysis.compare import our_scores
from analysis.console import say
from analysis.figures.kinds import KINDS, MOST_COLUMNS, Drawn, all_labels, contents, draw_tables
from analysis.figures.palette import readable_names, styles
from analysis.figures.tables import CITED, game_name
from analysis.findings.decide import as_table, decide
from analysis.metrics.compute import Metrics, compute
from analysis.paper.tables import HORIZONS, paper_table
from analysis.report.tables import late, not_alike
from analysis.results import store as kept
from analysis.results.page import page, with_interval
from analysis.results.provenance import provenance
from analysis.results.store import Kept
from analysis.runs import AnalysisError, RunSet, read_runs


def collect(paths: Sequence[Path], out: Path, scale: str | None, figures: Sequence[str] | None) -> Kept:
    """All that is kept of the runs, and of those that are kept in `out` already, but the page and the pictures."""
    new = read_runs(paths) if paths else RunSet([])
    directories, taken = kept.joined(new, out)
    found = read_runs(directories or [out / kept.RUNS])
    metrics = compute(found)
    findings, notes = decide(found)
    scores, about_scores = _scores(found, notes)
    late_table = late(found, metrics)
    skipped = [f"skipped {problem}" for problem in new.problems]
    notes = [*skipped, *metrics.messages(), *not_alike(late_table), *notes]
    about = {**provenance(found, [*paths, out / kept.RUNS], scale, notes), "scores": about_scores}
    tables = {"late": late_table, "findings": as_table(findings), "scores": scores}
    tables = {name: part for name, part in tables.items() if len(part)}
    return Kept(about, _figure_tables(found, metrics, figures), tables, taken)


def _figure_tables(found: RunSet, metrics: Metrics, names: Sequence[str] | None) -> dict[str, pd.DataFrame]:
    tables = {}
    for name in kept.FIGURES if names is None else names:
        try:
            tables[name] = KINDS[name].select(found, metrics)
        except AnalysisError as error:
            if names is not None:
                raise AnalysisError(f"--figures {name}: {error}") from None
    if names is not None:
        return tables
    curves, members = tables.get("learning_curves"), tables.get("mechanism")
    if curves is not None and len(found.envs) <= MOST_COLUMNS and CITED not in set(curves["group"]):
        del tables["learning_curves"]  # the first row of `study`
    if members is not None and "member_correlation" not in set(members["metric"]):
        del tables["mechanism"]  # one run of each label
    return tables


def _scores(found: RunSet, notes: list[str]) -> tuple[pd.DataFrame, str]:
    """A row per Atari game and label: our score, beside those of the first table that is no shorter than the runs.

    Each label's at the end of its runs; where none has come so far, at the last step that all of them have.
    """
    games = paper_table("100k").scores.index
    atari = RunSet([run for run in found.runs if run.env in games and run.last_evaluation])
    longest = max((run.total_steps for run in atari.runs), default=0)
    at = next((name for name, step in HORIZONS.items() if 0 < longest <= step), None)
    if at is None:
        return pd.DataFrame(), ""
    table = paper_table(at)
    rows = []
    for (env, label), runs in atari.groups().items():
        reached = [run.last_evaluation for run in runs]
        after = longest if max(reached) == longest else min(reached)
        ours, counts = our_scores(RunSet(runs), table, notes, after)
        if ours.empty:
            continue
        row = {"game": env, "label": label, "interactions": after}
        row |= {"seeds": counts.loc[env, label], "ours": ours.loc[env, label]}
        theirs = {"random": table.random[env], **table.scores.loc[env], "human": table.human[env]}
        rows.append(row | {f"paper: {name}": score for name, score in theirs.items()})
    return pd.DataFrame(rows), f"Mean returns of greedy episodes; the paper's after {HORIZONS[at]:,} interactions"


# --- from what is kept ----------------------------------------------------------------------------------------------


def redraw(source: Path, directory: Path) -> list[Drawn]:
    """Pictures, and the page where the runs are accounted for, from the tables in `source`; may be one directory."""
    figures = kept.read_figures(source)
    drawn = draw_tables(figures, styles(all_labels(figures)), directory / "figures", png=False)
    if (source / kept.PROVENANCE).is_file():
        results = kept.read(source)
        (directory / "README.md").write_text(page(results.about, results.tables, drawn))
    return drawn


def in_words(table: pd.DataFrame) -> str:
    """The table of late training as lines to be read."""
    lines = []
    names = readable_names(table["label"])
    width = max(map(len, names.values()))
    for game, part in table.groupby("game", sort=False):
        few = "one run each, so differences may be chance" if part["runs"].max() < 2 else "in brackets: 95% intervals"
        lines.append(f"{game_name(str(game))}, last quarter of training ({few})")
        for row in part.to_dict("records"):
            performance = with_interval(row["return"], row["return low"], row["return high"], "{:.1f}")
            bias = with_interval(row["bias"], row["bias low"], row["bias high"], "{:+.1f}")
            how = _judged(row["bias"], row["bias low"], row["bias high"])
            said = f"bias {bias}: values its start {how}" if bias else "no bias, because values are not finite"
            lines.append(f"  {names[row['label']]:{width}}  return {performance:18}  {said}")
    return "\n".join(lines)


def _judged(bias: float, low: float, high: float) -> str:
    """What is said of a bias; without an interval, by what is left of it when it is rounded."""
    if low != low:
        low, high = bias - 0.05, bias + 0.05
    return "too high" if low > 0 else "too low" if high < 0 else "neither clearly too high nor too low"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    assert __doc__
    parser = argparse.ArgumentParser(
        prog="python -m analysis.results", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", type=Path, nargs="*", help="directories with runs below; with --again, kept results")
    parser.add_argument("--out", type=Path, help="directory for all that is kept")
    parser.add_argument("--scale", help="of the study in ablations/ whose runs these are")
    parser.add_argument("--figures", type=lambda text: text.split(","), help=f"some of {','.join(KINDS)}")
    parser.add_argument("--again", action="store_true", help="make pages and pictures anew from the tables")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.figures or []) - set(KINDS))
    if unknown:
        parser.error(f"--figures {','.join(unknown)}: no such figure; there are {', '.join(KINDS)}")
    if options.again == (options.out is not None) or (options.again and (options.scale or options.figures)):
        parser.error("write directories with runs and --out DIRECTORY, or --again and directories of kept results")
    try:
        if options.again:
            for path in options.paths:
                redraw(path, path)
            return
        results = collect(options.paths, options.out, options.scale, options.figures)
        say(results.about["notes"])
        kept.write(results, options.out)
        drawn = redraw(options.out, options.out)
        late_table = kept.read(options.out).tables["late"]
    except AnalysisError as error:
        sys.exit(f"analysis: {error}")
    except OSError as error:
        sys.exit(f"analysis: {error.filename or options.out}: cannot be written ({error.strerror})")
    print(in_words(late_table))
    for figure in drawn:
        print(f"{options.out / 'figures' / figure.name}.svg: {contents(figure)}")
    print(f"{options.out / 'README.md'}: all of it")


if __name__ == "__main__":
    main()
