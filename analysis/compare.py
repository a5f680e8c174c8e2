"""Compare our scores with the paper's tables of 26 Atari games.

    python -m analysis.compare --at 100k runs/main_100k
    python -m analysis.compare --at 100k --after 50000 runs/main_100k     # ours after half of the interactions
    python -m analysis.compare --at 100k runs/main_100k --picture scores.png
    python -m analysis.compare --paper-only

Scores are means over seeds of the evaluation at exactly that step, normalised by the table's own random and human
scores. Comparisons cover the games that both sides have; a win is a strictly higher score. With `--after` our scores
are those of another step, and every column and sentence says so.

At 100,000 interactions there is a second table: our mean and standard deviation over seeds beside the paper's MeanQ and
Dopamine's data-efficient Rainbow, and the percentage of 100 runs of DrQ(eps) and of SPR below our mean. `--picture`
draws it.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.console import command, say, write_out
from analysis.paper import reference_scores
from analysis.paper.tables import HORIZONS, PaperTable, paper_table
from analysis.runs import AnalysisError, RunSet, read_runs


@dataclass(frozen=True)
class Versus:
    """One method against another, over the games that both have."""

    games: int
    wins: int
    mean: float  # normalised
    other_mean: float

    @property
    def ratio(self) -> float:
        """Of the mean normalised scores; NaN where the other's is not above zero."""
        return self.mean / self.other_mean if self.other_mean > 0 else float("nan")

    def __str__(self) -> str:
        change = f"{self.ratio - 1:+.0%}" if self.ratio == self.ratio else "no ratio"
        return f"above in {self.wins}/{self.games}, mean {self.mean:.3f} against {self.other_mean:.3f} ({change})"


def versus(table: PaperTable, ours: pd.Series, theirs: pd.Series) -> Versus:
    """Compare scores by game, in the games that both have."""
    games = ours.dropna().index.intersection(theirs.dropna().index).intersection(table.scores.index)
    a, b = ours[games], theirs[games]
    return Versus(len(games), int((a > b).sum()), _mean(table.normalise(a)), _mean(table.normalise(b)))


def best_of_all(table: PaperTable, method: str) -> int:
    """The number of games in which a method is strictly above all others of the table."""
    others = table.scores.drop(columns=method).max(axis=1)
    return int((table.scores[method] > others).sum())


def paper_headlines() -> str:
    """The paper's conclusions from its two tables, computed from them."""
    short, long = paper_table("100k"), paper_table("500k")
    best = f"{best_of_all(short, 'meanq')}/{len(short.scores)}"
    return "\n".join(
        [
            f"100k: meanq against sunrise: {versus(short, short.scores['meanq'], short.scores['sunrise'])}",
            f"100k: meanq is the best of all {len(short.methods)} methods in {best}",
            f"500k: meanq against rainbow: {versus(long, long.scores['meanq'], long.scores['rainbow'])}",
        ]
    )


def run_scores(
    found: RunSet, table: PaperTable, notes: list[str], after: int | None = None
) -> dict[tuple[str, str], list[float]]:
    """By game and label: the scores of the runs that were evaluated at exactly this step, ordered by seed.

    `after`: the step, if it is not that of the table.
    """
    step = HORIZONS[table.at] if after is None else after
    scores = {}
    unknown = sorted(set(found.envs) - set(table.scores.index))
    if unknown:
        notes.append(f"left out, because the paper's table does not have them: {', '.join(unknown)}")
    for (env, label), runs in found.groups().items():
        if env in unknown:
            continue
        values = {run.seed: float(run.episode_means["return"].get(step, float("nan"))) for run in runs}
        present = [value for value in values.values() if value == value]
        absent = ", ".join(str(seed) for seed, value in values.items() if value != value)
        if absent:
            notes.append(f"{env}, {label}: no score at step {step} of seed {absent}")
        if present:
            scores[env, label] = present
            for length in sorted({run.total_steps for run in runs} - {step})[:1]:
                notes.append(
                    f"{env}, {label}: runs of {length} steps, looked at after {step}; schedules follow the length"
                )
    return scores


def our_scores(
    found: RunSet, table: PaperTable, notes: list[str], after: int | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(mean over seeds, number of seeds) of `run_scores`, by game and label."""
    return over_seeds(run_scores(found, table, notes, after))


def over_seeds(scores: Mapping[tuple[str, str], Sequence[float]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(mean over seeds, number of seeds); index: game; a column per label."""
    means: dict[str, dict[str, float]] = {}
    counts: dict[str, dict[str, int]] = {}
    for (env, label), values in scores.items():
        means.setdefault(label, {})[env] = sum(values) / len(values)
        counts.setdefault(label, {})[env] = len(values)
    return pd.DataFrame(means).sort_index(), pd.DataFrame(counts).sort_index()


def among_others(table: PaperTable, scores: Mapping[tuple[str, str], Sequence[float]]) -> pd.DataFrame:
    """Our `run_scores` at 100,000 interactions beside those of others; see paper.reference_scores.standing."""
    meanq = pd.DataFrame({"mean": table.scores["meanq"], "std": table.stds["meanq"]})
    return reference_scores.standing(scores, meanq)


def by_game(table: PaperTable, ours: pd.DataFrame, after: int | None = None) -> pd.DataFrame:
    """Our scores by game, then the paper's; columns `ours: <label>` (`ours after 50K: ...`) and `paper: <method>`."""
    theirs = table.scores.reindex(ours.index)
    return pd.concat([ours.add_prefix(f"{our_name(table, after)}: "), theirs.add_prefix("paper: ")], axis=1)


def our_name(table: PaperTable, after: int | None) -> str:
    """`ours`, or `ours after 50K` if the step is not the table's."""
    return "ours" if after in (None, HORIZONS[table.at]) else f"ours after {after / 1000:g}K"


def heading(table: PaperTable, after: int | None) -> str:
    """The line above the table."""
    theirs = f"{HORIZONS[table.at]:,} interactions"
    what = f"Scores after {theirs}"
    if our_name(table, after) != "ours":
        what = f"Scores, OURS AFTER {after:,} INTERACTIONS, the paper's after {theirs}"
    return f"{what}; mean over seeds; (n): their number"


def as_text(scores: pd.DataFrame, counts: pd.DataFrame) -> pd.DataFrame:
    """The columns of `by_game` as text, ours with the number of seeds."""
    shown = pd.DataFrame({name: [f"{score:.1f}" for score in scores[name]] for name in scores}, index=scores.index)
    for name, label in zip(scores.columns, counts.columns, strict=False):
        shown[name] = [
            "" if pd.isna(score) else f"{score:.1f} ({int(count)})"
            for score, count in zip(scores[name], counts[label], strict=True)
        ]
    return shown


def summary(table: PaperTable, scores: pd.DataFrame) -> pd.DataFrame:
    """Per column of `by_game`: games, normalised mean and median, and wins and ratio of means against rivals.

    Means are over all games of the column; against a rival, over the games of both.
    """
    rivals = [name for name in scores.columns if name.split(": ", 1)[1] in ("sunrise", "rainbow", "meanq")]
    rows = {}
    for name in scores.columns:
        own = scores[name].dropna()
        normalised = table.normalise(own)
        row: dict[str, object] = {"games": len(own), "mean": _mean(normalised), "median": float(normalised.median())}
        for rival in rivals:
            result = versus(table, scores[name], scores[rival])
            row[f"wins, {rival}"] = f"{result.wins}/{result.games}" if rival != name else ""
            row[f"ratio, {rival}"] = result.ratio if rival != name else float("nan")
        rows[name] = row
    return pd.DataFrame.from_dict(rows, orient="index")


def _mean(values: pd.Series) -> float:
    return float(values.mean()) if len(values) else float("nan")


@command
def main(arguments: Sequence[str] | None = None) -> None:
    assert __doc__
    parser = argparse.ArgumentParser(prog="python -m analysis.compare", description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="*", help="directories with runs anywhere below")
    parser.add_argument(
        "--at",
        choices=list(HORIZONS),
        help="the paper's table, and the step of our scores unless --after names another",
    )
    parser.add_argument("--after", type=int, help="the step of our scores, if not the table's")
    parser.add_argument("--paper-only", action="store_true", help="the paper's headlines, from its own tables")
    parser.add_argument("--out", type=Path, help="a CSV file for the scores by game")
    parser.add_argument("--picture", type=Path, help="an image file for our scores among the runs of others; 100k only")
    options = parser.parse_args(arguments)
    if options.paper_only:
        if options.runs or options.picture:
            parser.error("--paper-only takes no runs and draws no --picture: leave them out")
        print(paper_headlines())
        return
    if not options.runs or not options.at:
        parser.error("write --at 100k or --at 500k and directories with runs, or --paper-only")
    table = paper_table(options.at)
    after_100k = {HORIZONS[options.at], options.after or HORIZONS[options.at]} == {reference_scores.INTERACTIONS}
    if options.picture and not after_100k:
        chosen = f"--at {options.at}" + (f" --after {options.after}" if options.after else "")
        parser.error(
            f"--picture with {chosen}: the runs of others are after 100,000 interactions; write --at 100k alone"
        )
    found = read_runs(options.runs)
    notes: list[str] = []
    of_runs = run_scores(found, table, notes, options.after)
    ours, counts = over_seeds(of_runs)
    say([*found.messages(), *notes])
    if ours.empty:
        step = options.after or HORIZONS[options.at]
        seen = sorted({run.last_evaluation for run in found.runs if run.env in table.scores.index})
        hint = f"; their last is at {', '.join(map(str, seen))}: write --after" if seen else ""
        raise AnalysisError(f"no run has a score at step {step} of a game in the paper's table{hint}")
    scores = by_game(table, ours, options.after)
    print(heading(table, options.after))
    print(as_text(scores, counts).to_string())
    print(f"\nHuman-normalised, over the {len(scores)} games above; wins and ratio of means against others")
    print(summary(table, scores).to_string(float_format=lambda value: f"{value:.3f}", na_rep=""))
    if after_100k:
        others = among_others(table, of_runs)
        print("\nMean ± std over runs; (n): ours; above: the share of 100 runs below our mean, ties counting half")
        print(reference_scores.as_text(others).to_string(index=False))
    if options.out is not None:
        write_out(options.out, scores.to_csv(float_format="%.6g", lineterminator="\n"))
    if options.picture is not None:
        from analysis.figures.scores_among_others import write_standing

        print(f"\n{options.picture}: {write_standing(others, of_runs, options.picture)}")


if __name__ == "__main__":
    main()
