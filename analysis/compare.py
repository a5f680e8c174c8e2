"""Compare our scores with the paper's tables of 26 Atari games.

    meanq compare --at 100k runs/main_100k
    meanq compare --at 100k runs/main_100k --picture scores.png
    meanq compare --paper-only

Scores are means over seeds of the evaluation at exactly that step, normalised by the table's own random and human
scores. Comparisons cover the games that both sides have; a win is a strictly higher score.

At 100,000 interactions there is a second table: our mean and standard deviation over seeds beside the paper's MeanQ and
Dopamine's data-efficient Rainbow, and the percentage of 100 runs of DrQ(eps) and of SPR below our mean. `--picture`
draws it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from .aggregate import scores_at
from .console import command, make_parser, say
from .labels import short_labels
from .notes import all_notes
from .paper.tables import HORIZONS, INTERACTIONS, PaperTable, as_text, paper_table, standing
from .runs import AnalysisError, RunSet, read_runs

RIVALS = ("sunrise", "rainbow", "meanq")


@dataclass(frozen=True)
class Versus:
    """One method against another, over the games that both have."""

    games: int
    wins: int
    mean: float  # normalised
    other_mean: float
    ratio: float  # of the means; NaN where the other's is not above zero

    def __str__(self) -> str:
        change = f"{self.ratio - 1:+.0%}" if self.ratio == self.ratio else "no ratio"
        return f"above in {self.wins}/{self.games}, mean {self.mean:.3f} against {self.other_mean:.3f} ({change})"


def versus(table: PaperTable, ours: pd.Series, theirs: pd.Series) -> Versus:
    """Compare scores by game, in the games that both have."""
    games = ours.dropna().index.intersection(theirs.dropna().index)
    a, b = ours[games], theirs[games]
    mean, other = table.normalise(a).mean(), table.normalise(b).mean()
    return Versus(len(games), int((a > b).sum()), mean, other, mean / other if other > 0 else float("nan"))


def paper_headlines() -> str:
    """The paper's conclusions from its two tables, computed from them."""
    short, long = paper_table("100k"), paper_table("500k")
    best = (short.scores["meanq"] > short.scores.drop(columns="meanq").max(axis=1)).sum()
    return (
        f"100k: meanq against sunrise: {versus(short, short.scores['meanq'], short.scores['sunrise'])}\n"
        f"100k: meanq is the best of all {len(short.methods)} methods in {best}/{len(short.scores)}\n"
        f"500k: meanq against rainbow: {versus(long, long.scores['meanq'], long.scores['rainbow'])}"
    )


def run_scores(
    found: RunSet, table: PaperTable, notes: list[str], step: int | None = None
) -> dict[tuple[str, str], list[float]]:
    """By game and label: the scores of the runs that were evaluated at exactly this step, ordered by seed.

    Without `step`: at that of the table.
    """
    step = HORIZONS[table.at] if step is None else step
    scores = {}
    unknown = sorted(set(found.envs) - set(table.scores.index))
    if unknown:
        notes.append(f"left out, because the paper's table does not have them: {', '.join(unknown)}")
    for (env, label), runs in found.groups().items():
        present = [] if env in unknown else scores_at(step, runs, "return", notes)
        if present:
            scores[env, label] = present
            for length in sorted({run.total_steps for run in runs} - {step})[:1]:
                why = "schedules follow the length"
                notes.append(f"{env}, {label}: runs of {length} steps, looked at after {step}; {why}")
    return scores


def by_game(table: PaperTable, scores: Mapping[tuple[str, str], Sequence[float]]) -> pd.DataFrame:
    """Means over seeds of `run_scores`, and the paper's; index: game, columns: `ours: <label>`, `paper: <method>`."""
    ours = pd.Series({key: np.mean(values) for key, values in scores.items()}).unstack()
    return pd.concat([ours.add_prefix("ours: "), table.scores.loc[ours.index].add_prefix("paper: ")], axis=1)


def summary(table: PaperTable, scores: pd.DataFrame) -> pd.DataFrame:
    """Per column of `by_game`: games, normalised mean and median, and wins and ratio of means against rivals.

    Means are over all games of the column; against a rival, over the games of both.
    """
    rivals = [name for name in scores.columns if name.split(": ", 1)[1] in RIVALS]
    rows = {}
    for name in scores.columns:
        normalised = table.normalise(scores[name].dropna())
        row: dict[str, object] = {"games": len(normalised), "mean": normalised.mean(), "median": normalised.median()}
        for rival in rivals:
            result = versus(table, scores[name], scores[rival])
            row[f"wins, {rival}"] = f"{result.wins}/{result.games}" if rival != name else ""
            row[f"ratio, {rival}"] = result.ratio if rival != name else float("nan")
        rows[name] = row
    return pd.DataFrame.from_dict(rows, orient="index")


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser("compare", __doc__)
    parser.add_argument("runs", type=Path, nargs="*", help="directories with runs anywhere below")
    parser.add_argument("--at", choices=list(HORIZONS), help="the paper's table, and the step of our scores")
    parser.add_argument("--paper-only", action="store_true", help="the paper's headlines, from its own tables")
    parser.add_argument("--picture", type=Path, help="an image file for our scores among the runs of others; 100k only")
    options = parser.parse_args(arguments)
    if options.paper_only and not (options.runs or options.at or options.picture):
        print(paper_headlines())
        return
    if options.paper_only or not (options.runs and options.at):
        parser.error("write --at 100k or --at 500k and directories with runs, or --paper-only alone")
    step = HORIZONS[options.at]
    after_100k = step == INTERACTIONS
    if options.picture and not after_100k:
        parser.error(f"--picture with --at {options.at}: the runs of others are after 100,000 interactions only")
    table, found = paper_table(options.at), read_runs(options.runs)
    notes: list[str] = []
    of_runs = run_scores(found, table, notes)
    say(all_notes(found, notes))
    if not of_runs:
        seen = sorted({run.last_evaluation for run in found.runs if run.env in table.scores.index})
        hint = f"; their last is at {', '.join(map(str, seen))}" if seen else ""
        raise AnalysisError(f"no run has a score at step {step} of a game in the paper's table{hint}")
    names = short_labels(found.labels)
    of_runs = {(game, names[label]): values for (game, label), values in of_runs.items()}
    scores = by_game(table, of_runs)
    shown = scores.map("{:.1f}".format, na_action="ignore").fillna("")
    for (game, label), values in of_runs.items():
        shown.loc[game, f"ours: {label}"] = f"{np.mean(values):.1f} ({len(values)})"
    print(f"Scores after {step:,} interactions; mean over seeds; (n): their number")
    print(shown.to_string())
    print(f"\nHuman-normalised, over the {len(scores)} games above; wins and ratio of means against others")
    print(summary(table, scores).to_string(float_format="{:.3f}".format, na_rep=""))
    if after_100k:
        among = standing(of_runs, table.scores["meanq"], table.stds["meanq"])
        print("\nMean ± std over runs; (n): ours; above: the share of 100 runs below our mean, ties counting half")
        print(as_text(among).to_string(index=False))
    if options.picture is not None:
        from .figures.scores_among_others import write_standing

        print(f"\n{options.picture}: {write_standing(among, of_runs, options.picture)}")


if __name__ == "__main__":
    main()
