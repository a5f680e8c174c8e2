"""Pictures of tables of curves: learning curves, and figures with a row per metric and a column per game."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis.figures.grid import MetricGrid
from analysis.figures.palette import Style, cited
from analysis.figures.panels import (
    Sheet,
    compact,
    draw_curves,
    fold,
    grid_shape,
    limits,
    look,
    ticks,
    write_inside,
    write_note,
)
from analysis.figures.tables import AVERAGE, CITED, Curve, count_runs, game_name, read_curves, what_is_missing
from meanq.metrics.registry import METRICS, PER_GROUP, tabulated, titles_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STUDY_ROWS = titles_of("study")
STUDY_AVERAGES = ["normalised_return", *(name for name in STUDY_ROWS if METRICS[name].averaged)]
SPREADS = [metric.name for metric in tabulated(PER_GROUP)]
MECHANISM_ROWS = titles_of("mechanism")
MECHANISM_AVERAGES = [name for name in MECHANISM_ROWS if METRICS[name].averaged]
MOST_WITH_SPREAD = 8  # labels of a figure; the bands of more are a fog
ONE_RUN = "1 run of each label"
SPREAD_OF_RUNS = " (line), one standard deviation over them (band), every run (faded)"
PAPERS_READING = (
    "The paper's reading: a five times larger model is no better than Rainbow, five times the updates are worse, and "
    "both together are no better either, so neither explains what MeanQ gains."
)

Looks = Mapping[str, Style]
Curves = Mapping[tuple[str, str, str], Curve]  # by env, metric and label


def draw_learning_curves(table: pd.DataFrame, looks: Looks) -> tuple[Figure, str]:
    """A panel per game, and one for their average."""
    curves, envs = read_curves(table), _ordered_envs(table)
    from_paper = table[table["group"] == CITED]
    shown = _shown(curves, looks)
    legend = [(style, style.name) for style in shown.values()]
    cited_styles = [cited(*label.split(" ")) for label in from_paper["algo"].drop_duplicates()]
    rows, columns = grid_shape(len(envs))
    titles = [game_name(env) if env != AVERAGE else "Average, normalised" for env in envs]
    sheet = Sheet(rows, columns, legend, [(style, f"{style.name} (cited)") for style in cited_styles], titles=titles)
    said: list[str] = []
    for i, env in enumerate(envs):
        metric = "return" if env != AVERAGE else "normalised_return"
        axis = sheet.panel(i // columns, i % columns)
        of_game = from_paper[from_paper["env"] == env]
        lines = [
            (cited(*label.split(" ")), step, score)
            for label, step, score in of_game[["algo", "step", "value"]].itertuples(index=False)
        ]
        said += _draw_panel(axis, curves, env, metric, shown, lines)
        axis.set_title(sheet.titles[titles[i]])
        if i + columns >= len(envs):
            axis.set_xlabel("interactions")
        if i % columns == 0:
            axis.set_ylabel("return")
    runs, spread = count_runs(table), _has_spread(shown)
    sentences = [
        f"Return of greedy episodes, {runs}."
        if runs == ONE_RUN
        else f"Return of greedy episodes: mean over runs{SPREAD_OF_RUNS * spread}. {runs}."
    ]
    if AVERAGE in envs:
        sentences.append(
            _about_average(len(envs) - 1, "returns are normalised (0: random play, 1: the reference score)", spread)
        )
    if len(from_paper):
        sentences.append("Dotted: scores that the paper gives for this number of interactions.")
    return sheet.figure, " ".join([*sentences, *what_is_missing(curves, shown), *said])


def draw_ablation(table: pd.DataFrame, looks: Looks) -> tuple[Figure, str]:
    """Learning curves, with what the paper reads from its own."""
    figure, caption = draw_learning_curves(table, looks)
    return figure, f"{caption} {PAPERS_READING}"


def draw_study(table: pd.DataFrame, looks: Looks) -> tuple[Figure, str]:
    """A row per metric, a column per game and one for their average."""
    figure, sentences = _draw_rows(table, looks, STUDY_ROWS)
    games = table[table["env"] != AVERAGE]["env"].nunique() or int(table["n"].max())
    shown = set(table["metric"])
    spread = _has_spread(set(table["algo"]))
    about = ["Return, and bias: V(s0) minus the discounted return of rewards as learned from."]
    if shown & {"normalised_std", "std"}:
        about.append(
            "Std of V(s0) over runs, and Jensen gap: of groups of 5 runs, or of all runs where there are fewer"
            + (" (band: one standard deviation over groups, where there are several)" if spread else "")
            + ("; divided by the normalised return." if "normalised_std" in shown else ".")
        )
    else:
        about.append("No std and no gap: they need two runs of a label that were probed.")
    if set(table["env"]) != {AVERAGE}:
        runs = count_runs(table)
        about.append(f"{runs}." if runs == ONE_RUN else f"Mean over runs{SPREAD_OF_RUNS * spread}. {runs}.")
    if AVERAGE in set(table["env"]):
        about.append(_about_average(games, "its first row is the normalised return", band=spread))
    return figure, " ".join([*about, *sentences])


def draw_mechanism(table: pd.DataFrame, looks: Looks) -> tuple[Figure, str]:
    """The same for what is beyond the paper."""
    figure, sentences = _draw_rows(table, looks, MECHANISM_ROWS)
    about = (
        "Ensembles at the probe states: correlation of two members' errors; effective size, the variance of one member "
        "over that of the ensemble's mean; the variance that all members of a run share; and that of a member alone. "
        "Estimates from all runs at once, without an interval."
    )
    games = table[table["env"] != AVERAGE]["env"].nunique() or int(table["n"].max())
    if AVERAGE in set(table["env"]):
        sentences.insert(0, _about_average(games, "of correlation and effective size only", band=False))
    if set(table["env"]) != {AVERAGE}:
        sentences.insert(0, f"{count_runs(table)}.")
    return figure, " ".join([about, *sentences])


def _draw_rows(table: pd.DataFrame, looks: Looks, names: Mapping[str, str]) -> tuple[Figure, list[str]]:
    """The figure, and sentences for its caption."""
    curves, envs = read_curves(table), _ordered_envs(table)
    present = {metric for _, metric, _ in curves}
    if "normalised_return" in present:  # of the average, in the row of returns
        present.add("return")
    titles = {metric: title for metric, title in names.items() if metric in present}
    shown = _shown(curves, looks)
    columns = 2 if len(titles) in (3, 4) else grid_shape(len(titles))[1]
    grid = MetricGrid(titles, envs, shown, "interactions", columns=columns, height=1.5, ticks_on_each_row=True)
    if AVERAGE in envs:  # a metric that has a unit of its own in each game has no average
        averaged = {
            "return" if metric == "normalised_return" else metric for env, metric, _ in curves if env == AVERAGE
        }
        grid.places = {key: place for key, place in grid.places.items() if key[1] != AVERAGE or key[0] in averaged}
    logarithmic = [metric for metric in SPREADS if _all_positive(curves, metric)]
    said: list[str] = []
    for metric, env, axis in grid.panels():
        measured = "normalised_return" if (env, metric) == (AVERAGE, "return") else metric
        said += _draw_panel(axis, curves, env, measured, shown, logarithmic=metric in logarithmic)
        here = [curve for (e, m, _), curve in curves.items() if (e, m) == (env, measured)]
        undefined, ratios = sum(curve.undefined for curve in here), sum(curve.ratios for curve in here)
        note = f"{undefined} of {ratios} undefined" if undefined else axis.get_title(loc="right")
        grid.entitle(axis, METRICS[measured].title, note)
    if logarithmic:
        said.append(f"Logarithmic: {' and '.join(names[metric] for metric in logarithmic)}.")
    return grid.sheet.figure, [*what_is_missing(curves, shown), *said]


def _draw_panel(
    axis: Axes,
    curves: Curves,
    env: str,
    metric: str,
    shown: Looks,
    lines: Sequence[tuple[Style, float, float]] = (),
    logarithmic: bool = False,
) -> list[str]:
    """All curves of a metric in a game; where its axis changes, as a sentence."""
    here = {label: curves[env, metric, label] for label in shown if (env, metric, label) in curves}
    visible = {label: curve for label, curve in here.items() if curve.drawn}
    end = max((float(curve.steps[-1]) for (e, _, _), curve in curves.items() if e == env), default=1.0)
    axis.set_xlim(-0.02 * end, 1.02 * end)
    if not visible:
        why = "not defined" if here else "no data"
        axis.grid(visible=False)
        ticks(axis)
        write_inside(axis, why)
        return []
    for style, step, score in lines:
        axis.plot([0, step], [score, score], **{**look(style), "linewidth": 0.9, "markevery": [1], "zorder": 1.8})
    draw_curves(axis, [(shown[label], curve) for label, curve in visible.items()], spread=_has_spread(shown))
    if logarithmic:
        axis.set_yscale("log")
        ratio = [curve.mean[np.isfinite(curve.mean)] for curve in visible.values()]
        axis.set_ylim(min(map(np.min, ratio)) / 1.15, max(map(np.max, ratio)) * 1.15)
        ticks(axis)
        return []
    ranges = {label: curve.range for label, curve in visible.items()}
    ranges |= {f"cited {i}": (score, score) for i, (_, _, score) in enumerate(lines)}
    (low, high), far = limits(ranges, find_far=METRICS[metric].signed)
    if low < 0 < high and METRICS[metric].signed:
        axis.axhline(0, color="#999999", linewidth=0.6, zorder=1)
    axis.set_ylim(low, high)
    ticks(axis)
    if not far:
        return []
    edge = compact(float(f"{fold(axis, (low, high), [ranges[label] for label in far]):.2g}"))
    write_note(axis, f"log beyond {edge}")
    where = game_name(env) if env != AVERAGE else "the average"
    found = ", ".join(f"{shown[label].name} {ranges[label][0]:.3g} to {ranges[label][1]:.3g}" for label in far)
    return [f"Beyond {edge} the axis of {metric.replace('_', ' ')} in {where} is logarithmic ({found})."]


def _ordered_envs(table: pd.DataFrame) -> list[str]:
    """Alphabetical, the average last."""
    found = sorted(set(table["env"]))
    return [*(env for env in found if env != AVERAGE), *(env for env in found if env == AVERAGE)]


def _shown(curves: Curves, looks: Looks) -> dict[str, Style]:
    """The labels that are in a figure, in the order of legends."""
    present = {label for _, _, label in curves}
    return {label: style for label, style in looks.items() if label in present}


def _all_positive(curves: Curves, metric: str) -> bool:
    means = [curve.mean for (_, other, _), curve in curves.items() if other == metric]
    finite = np.concatenate([mean[np.isfinite(mean)] for mean in means]) if means else np.empty(0)
    return len(finite) > 0 and bool((finite > 0).all())


def _has_spread(labels: Collection[str]) -> bool:
    """Of a figure with these labels, whether its curves have bands and runs."""
    return len(labels) <= MOST_WITH_SPREAD


def _about_average(games: int, what: str, band: bool = True) -> str:
    spread = " (band: one standard deviation of a mean of one run, or group of runs, per game)" if band else ""
    return f"Average: over {games} games, where all have a number{spread}; {what}."
