"""Figures of curves: learning curves, and figures with a row per metric and a column per game."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from meanq.metrics.registry import METRICS, PER_GROUP, describe, tabulated, titles_of

from ..metrics import Metrics
from ..runs import RunSet
from . import form as forms
from . import panels, tables
from .form import BANDS, Form
from .palette import Looks, Style, cited
from .scales import is_logarithmic, scale_of
from .tables import AVERAGE, CITED, MOST_GAMES, OVER, Curves, need

STUDY_ROWS = titles_of("study")
SPREADS = [metric.name for metric in tabulated(PER_GROUP)]
MECHANISM_ROWS = titles_of("mechanism")


# --- which rows a figure shows --------------------------------------------------------------------------------------


def learning_curve_rows(found: RunSet, metrics: Metrics) -> pd.DataFrame:
    """Returns, their average over games where they can be normalised, and what the paper cites."""
    rows = tables.curve_table(metrics.table, ["return"], ["normalised_return"])
    need(not rows.empty, "no run has been evaluated yet")
    envs = set(rows["env"])
    from_paper = tables.cited_rows(found.lengths, envs - {AVERAGE}, average=AVERAGE in envs)
    return pd.concat([rows, from_paper], ignore_index=True) if len(from_paper) else rows


def study_rows(found: RunSet, metrics: Metrics) -> pd.DataFrame:
    """The paper's four metrics; std and gap as they are where their ratios to the return are defined nowhere."""
    rows = tables.curve_table(metrics.table, list(STUDY_ROWS), ["normalised_return", *_averaged(STUDY_ROWS)])
    rows = rows[~rows["metric"].isin(SPREADS) | rows["metric"].isin(tables.shown_spreads(rows))]
    if "normalised_return" not in set(rows["metric"]):  # where not every game has such a score, there is no average
        rows = rows[rows["env"] != AVERAGE]
    need(not rows.empty, "no run has been evaluated yet")
    return _fewer_columns(rows)


def mechanism_rows(found: RunSet, metrics: Metrics) -> pd.DataFrame:
    """What the members of ensembles share."""
    rows = tables.curve_table(metrics.table, list(MECHANISM_ROWS), _averaged(MECHANISM_ROWS))
    need(not rows.empty, "no ensemble has been probed")
    return _fewer_columns(rows)


def optimisation_rows(found: RunSet, metrics: Metrics) -> pd.DataFrame:
    """The share of Adam's step that each layer takes, dormant units, rank and the spread of value distributions."""
    names = [name for name in metrics.table["metric"].unique() if describe(name).is_in("optimisation")]
    rows = tables.curve_table(metrics.table, names)
    need(not rows.empty, "no run has recorded the share of Adam's step or the spread of its value distributions")
    need(rows["env"].nunique() <= MOST_GAMES, f"more than {MOST_GAMES} games: give the directories of fewer")
    return rows


def _averaged(names: Mapping[str, str]) -> list[str]:
    return [name for name in names if METRICS[name].averaged]


def _fewer_columns(rows: pd.DataFrame) -> pd.DataFrame:
    """With more games than there is room for, their average only."""
    average = rows["env"] == AVERAGE
    if rows[~average]["env"].nunique() <= MOST_GAMES:
        return rows
    why = f"more than {MOST_GAMES} games, and no average over them: give the directories of at most {MOST_GAMES}"
    need(bool(average.any()), why)
    return rows[average]


# --- pictures and captions ------------------------------------------------------------------------------------------


def draw_learning_curves(table: pd.DataFrame, looks: Looks, form: Form = forms.DEFAULT) -> tuple[Figure, str]:
    """A panel per game, and one for their average."""
    curves, envs = tables.read_curves(table, form.band), _ordered_envs(table)
    shown = _shown(curves, looks)
    form = form.of(len(shown))
    from_paper = table[table["scope"] == CITED]
    styles = {label: cited(*label.split(" ")) for label in from_paper["label"].drop_duplicates()}
    legend = [*shown.values(), *(replace(style, name=f"{style.name} (cited)") for style in styles.values())]
    titles = ["Average, normalised" if env == AVERAGE else tables.game_name(env) for env in envs]
    figure, axes = panels.sheet(len(envs), panels.columns_for(len(envs)), legend, titles, form=form)
    figure.supxlabel("interactions", y=0)
    figure.supylabel("return", x=0.005)
    for env, axis in zip(envs, axes, strict=True):
        metric = "return" if env != AVERAGE else "normalised_return"
        scores = from_paper[from_paper["env"] == env][["label", "step", "value"]].itertuples(index=False)
        lines = [(styles[label], step, score) for label, step, score in scores]
        _draw_panel(axis, curves, env, metric, shown, form, lines)
    sentences = [f"Return of greedy episodes. {_about_runs(table, form)}"]
    if AVERAGE in envs:
        normalised = "returns are normalised (0: random play, 1: the reference score)"
        sentences.append(_about_average(table, normalised, form))
    if len(from_paper):
        sentences.append("Dotted: scores that the paper gives for this number of interactions.")
    return figure, " ".join([*sentences, *tables.what_is_missing(curves, shown)])


def draw_study(table: pd.DataFrame, looks: Looks, form: Form = forms.DEFAULT) -> tuple[Figure, str]:
    """A row per metric, a column per game and one for their average."""
    figure, sentences = _draw_rows(table, looks, STUDY_ROWS, form)
    metrics, envs, form = set(table["metric"]), set(table["env"]), form.of(table["label"].nunique())
    about = ["Return, and bias: V(s0) minus the discounted return of rewards as learned from."]
    if metrics & {"normalised_std", "std"}:
        band = f" (band, where there are several groups: {BANDS[form.band]})" * form.has_band
        plain = "; not divided by the normalised return, which is missing or nowhere clearly above zero"
        divided = "; divided by the normalised return" if "normalised_std" in metrics else plain
        of = "of groups of 5 runs, or of all runs where there are fewer"
        about.append(f"Std of V(s0) over runs, and Jensen gap: {of}{band}{divided}.")
    else:
        about.append("No std and no gap: they need two runs of a label that were probed.")
    if envs != {AVERAGE}:
        about.append(_about_runs(table, form))
    if AVERAGE in envs:
        about.append(_about_average(table, "its first row is the normalised return", form))
    return figure, " ".join([*about, *sentences])


def draw_mechanism(table: pd.DataFrame, looks: Looks, form: Form = forms.DEFAULT) -> tuple[Figure, str]:
    """The same for what is beyond the paper."""
    figure, sentences = _draw_rows(table, looks, MECHANISM_ROWS, form)
    about = [
        "Ensembles at the probe states: correlation of two members' errors; effective size, the variance of one member "
        "over that of the ensemble's mean; the variance that all members of a run share; and that of a member alone. "
        "Estimates from all runs at once, without an interval."
    ]
    if set(table["env"]) != {AVERAGE}:
        about.append(f"{tables.count_runs(table)}.")
    if AVERAGE in set(table["env"]):
        about.append(_about_average(table, "of correlation and effective size only", Form("none")))
    if negative := _negative_correlations(table):
        labels = tables.listed(style.name for label, style in looks.items() if label in negative)
        why = "the correlation is estimated below zero, by chance if runs are few"
        about.append(f"An effective size above the number of members is where {why}: {labels}.")
    return figure, " ".join([*about, *sentences])


def draw_optimisation(table: pd.DataFrame, looks: Looks, form: Form = forms.DEFAULT) -> tuple[Figure, str]:
    """A row per layer and one for the spread, a column per game."""
    names = sorted(table["metric"].unique(), key=lambda name: describe(name).unit == "value")  # the spread is last
    figure, sentences = _draw_rows(table, looks, {name: describe(name).title for name in names}, form)
    about = [
        "Share of Adam's step, sqrt(v) / (sqrt(v) + epsilon), that a layer's weights take: that of the weight which a "
        "tenth of the layer's weights exceeds; near 0 the layer hardly learns. Below, if values are distributions: "
        f"their standard deviation, mean over the probe states. {_about_runs(table, form.of(table['label'].nunique()))}"
    ]
    about += [
        f"{describe(name).title}: {describe(name).meaning}." for name in ("dormant", "feature_rank") if name in names
    ]
    return figure, " ".join([*about, *sentences])


def _negative_correlations(table: pd.DataFrame) -> set[str]:
    """The labels with a correlation below zero, hence with an effective size above the number of members."""
    correlations = table["metric"].isin(["member_correlation", "member_correlation_true"]) & (table["scope"] == OVER)
    return set(table[correlations & (table["value"] < 0)]["label"])


def _draw_rows(table: pd.DataFrame, looks: Looks, names: Mapping[str, str], form: Form) -> tuple[Figure, list[str]]:
    """The figure, and sentences for its caption."""
    curves, envs = tables.read_curves(table, form.band), _ordered_envs(table)
    measured = {(metric, env): metric for env, metric, _ in curves}
    if ("normalised_return", AVERAGE) in measured:  # in the row of returns
        measured["return", AVERAGE] = measured.pop(("normalised_return", AVERAGE))
    present = {metric for metric, _ in measured}
    titles = {name: describe(measured.get((name, envs[0]), name)).title for name in names if name in present}
    shown = _shown(curves, looks)
    form = form.of(len(shown))
    figure, axes = panels.metric_grid(titles, envs, shown, "interactions", form)
    logarithmic = [name for name in SPREADS if name in names and is_logarithmic(curves, name)]
    for (row, env), axis in axes.items():
        if env == AVERAGE and (row, env) not in measured:  # a unit of its own in each game has no average
            axis.remove()
            continue
        metric = measured.get((row, env), row)
        _draw_panel(axis, curves, env, metric, shown, form)
        here = [curve for (e, m, _), curve in curves.items() if (e, m) == (env, metric)]
        undefined, ratios = sum(curve.undefined for curve in here), sum(curve.ratios for curve in here)
        if undefined:
            panels.write_note(axis, f"{undefined} of {ratios} undefined")
    said = tables.what_is_missing(curves, shown)
    if logarithmic:
        said.append(f"Logarithmic: {' and '.join(names[name] for name in logarithmic)}.")
    if any(axis.get_yscale() == "symlog" for axis in figure.axes):
        said.append("Log beyond a number: the axis is logarithmic there, so that every curve is seen.")
    return figure, said


def _draw_panel(
    axis: Axes,
    curves: Curves,
    env: str,
    metric: str,
    shown: Looks,
    form: Form,
    lines: Sequence[tuple[Style, float, float]] = (),
) -> None:
    """All curves of a metric in a game, and lines at cited scores: style, step and score."""
    here = {label: curves[env, metric, label] for label in shown if (env, metric, label) in curves}
    visible = {label: curve for label, curve in here.items() if curve.drawn}
    end = max((float(curve.steps[-1]) for (e, _, _), curve in curves.items() if e == env), default=1.0)
    axis.set_xlim(-0.02 * end, 1.02 * end)
    panels.ticks(axis.xaxis)
    if not visible:
        panels.write_inside(axis, "not defined" if here else "no data")
        return
    for style, step, score in lines:
        look = {**panels.look(style), "linewidth": 0.9, "markevery": [1], "zorder": 1.8}
        axis.plot([0, step], [score, score], **look)
    panels.draw_curves(axis, [(shown[label], curve) for label, curve in visible.items()], form)
    panels.apply_scale(axis, scale_of(curves, env, metric, shown, form, [score for _, _, score in lines]))
    if describe(metric).signed:
        panels.draw_zero(axis)


def _ordered_envs(table: pd.DataFrame) -> list[str]:
    """Alphabetical, the average last."""
    return sorted(set(table["env"]), key=lambda env: (env == AVERAGE, env))


def _shown(curves: Curves, looks: Looks) -> dict[str, Style]:
    """The labels that are in a figure, in the order of legends."""
    present = {label for _, _, label in curves}
    return {label: style for label, style in looks.items() if label in present}


def _about_runs(table: pd.DataFrame, form: Form) -> str:
    runs = tables.count_runs(table)
    if runs.startswith("1 run "):
        return f"{runs}."
    drawn = [f"{BANDS[form.band]} (band)"] * form.has_band + ["every run (faded)"] * form.single_runs
    return f"Mean over runs{' (line), ' * bool(drawn)}{', '.join(drawn)}. {runs}."


def _about_average(table: pd.DataFrame, what: str, form: Form) -> str:
    games = int(table[table["env"] == AVERAGE]["n"].max())
    kinds = {"std": "one standard deviation of a mean of one run, or group of runs, per game", "ci": "95% interval"}
    band = f" (band: {kinds[form.band]})" if form.has_band else ""
    return f"Average: over {games} games, where all have a number{band}; {what}."
