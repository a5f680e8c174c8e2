"""Figures show what their tables say, gaps included, and nothing in them lies over something else."""

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from scipy import stats

from analysis import aggregate, metrics
from analysis.figures import __main__ as figures
from analysis.figures.aggregates import pairs_to_compare
from analysis.figures.catalogue import KINDS, all_labels, draw_all, draw_tables, read_tables
from analysis.figures.form import Form
from analysis.figures.palette import styles
from analysis.figures.panels import columns_for, compact, settings
from analysis.figures.series import ROWS, series_table
from analysis.intervals import student_interval
from analysis.late import late_table
from analysis.metrics import Metrics, compute
from analysis.paper.tables import paper_table
from analysis.runs import RunSet, read_runs
from tests.synthetic_runs import gaussian_q, write_run

GAMES = list(paper_table("100k").scores.index)
SIX = ["dqn", "dqn_no_target", "avg_dqn", "ens_dqn", "meanq", "meanq_no_target"]
MANY = ["rainbow", "meanq_rainbow", *(f"meanq_rainbow__exploration=epsilon_greedy__batch_size={i}" for i in range(10))]


def write_study(
    root: Path, games: Sequence[str], labels: Sequence[str], seeds: int = 2, top: float = 8, **more: Any
) -> None:
    """Curves that rise from 1 to about `top`, five evaluations and probes."""
    steps = [20_000, 40_000, 60_000, 80_000, 100_000]
    for i, env in enumerate(games):
        for j, label in enumerate(labels):
            for seed in range(seeds):
                generator = np.random.default_rng([i, j, seed])
                returns = {step: 1 + (top - 1) * step / 1e5 + generator.normal(0, 0.2) for step in steps}
                q = {step: gaussian_q(generator, 3, 1 if label == "dqn" else 3, 2, 0.5, 0.5) for step in steps}
                write_run(root, env, label, seed, returns, values=1.0, discounted=0.5, q=q, **more)


def study(root: Path, *args: Any, **more: Any) -> tuple[RunSet, Metrics]:
    write_study(root, *args, **more)
    found = read_runs([root])
    return found, compute(found)


def picture(found: RunSet, metrics: Metrics, name: str) -> tuple[Figure, str, pd.DataFrame]:
    table = KINDS[name].select(found, metrics)
    with settings():
        figure, caption = KINDS[name].draw(table, styles(found.labels))
    return figure, caption, table


def mean_lines(axis: Axes, labels: Sequence[str]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By label: x and y of the line in its colour."""
    colours = {style.colour: label for label, style in styles(labels).items()}
    return {
        colours[str(line.get_color())]: (np.asarray(line.get_xdata()), np.asarray(line.get_ydata()))
        for line in axis.lines
        if line.get_color() in colours
    }


def panel(figure: Figure, title: str) -> Axes:
    (axis,) = [axis for axis in figure.axes if title == axis.get_title(loc="left")]
    return axis


def shown_text(figure: Figure) -> dict[str, Bbox]:
    """What is written, and where, in pixels; ticks outside of the axes are not."""
    figure.set_dpi(150)  # as it is saved: letters have whole pixels
    canvas = FigureCanvasAgg(figure)
    with settings():
        canvas.draw()
    renderer = canvas.get_renderer()
    texts: list[Any] = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    for axis in figure.axes:
        texts += [axis.title, axis._left_title, axis._right_title, axis.xaxis.label, axis.yaxis.label, *axis.texts]  # type: ignore[attr-defined]
        for which in (axis.xaxis, axis.yaxis):
            low, high = sorted(which.get_view_interval())
            for tick in which.get_major_ticks():
                if low <= tick.get_loc() <= high and tick.label1.get_visible():
                    texts.append(tick.label1)
    shown = [text for text in texts if text.get_text() and text.get_visible()]
    return {f"{i}: {text.get_text()}": text.get_window_extent(renderer) for i, text in enumerate(shown)}


def assert_readable(figure: Figure) -> None:
    boxes = shown_text(figure)
    assert boxes
    width, height = figure.canvas.get_width_height()
    for name, box in boxes.items():
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, f"{name!r} is cut off"
    for (a, first), (b, second) in combinations(boxes.items(), 2):
        assert not first.overlaps(second), f"{a!r} lies over {b!r}"
    for i, first_axes in enumerate(figure.axes):
        assert first_axes.has_data() or first_axes.texts, "empty axes"
        for second_axes in figure.axes[i + 1 :]:
            assert not first_axes.bbox.overlaps(second_axes.bbox)


def test_what_is_drawn_is_what_the_table_says(tmp_path: Path) -> None:
    found, metrics = study(tmp_path, ["a", "b"], ["dqn", "meanq"], seeds=3)
    figure, caption, table = picture(found, metrics, "learning_curves")
    axis = panel(figure, "A")
    rows = table[table["env"] == "a"]
    for label, (steps, heights) in mean_lines(axis, found.labels).items():
        runs = {run.seed: run.episode_means["return"] for run in found.of("a", label)}
        slow = pd.DataFrame(runs).mean(axis=1)
        assert steps.tolist() == slow.index.tolist()
        np.testing.assert_allclose(heights, slow)
        mean = rows[(rows["label"] == label) & (rows["scope"] == "over_runs")]
        np.testing.assert_array_equal(heights, mean["value"])
    faded = [item for item in axis.collections if isinstance(item, LineCollection)]
    drawn = sorted(tuple(segment[:, 1]) for item in faded for segment in item.get_segments())
    assert drawn == sorted(tuple(run.episode_means["return"]) for run in found.runs if run.env == "a")
    band, _ = [item for item in axis.collections if isinstance(item, PolyCollection)]
    values = pd.DataFrame({run.seed: run.episode_means["return"] for run in found.of("a", "dqn")})
    low = (values.mean(axis=1) - values.std(axis=1, ddof=1)).to_numpy()
    assert np.isclose(band.get_paths()[0].vertices[:, 1, None], low).any(axis=0).all()
    assert "3 runs of each label" in caption and "one standard deviation" in caption


def test_the_average_is_over_games_and_its_spread_that_of_one_run_per_game(tmp_path: Path) -> None:
    found, metrics = study(tmp_path, ["a", "b"], ["dqn"], seeds=3)
    figure, _, table = picture(found, metrics, "learning_curves")
    _, heights = mean_lines(panel(figure, "Average, normalised"), found.labels)["dqn"]
    games = [
        pd.DataFrame({run.seed: run.episode_means["normalised_return"] for run in found.of(env, "dqn")})
        for env in ("a", "b")
    ]
    np.testing.assert_allclose(heights, (games[0].mean(axis=1) + games[1].mean(axis=1)) / 2)
    spread = table[table["env"] == "average"]["std"]
    variance = (games[0].var(axis=1, ddof=1) + games[1].var(axis=1, ddof=1)) / 4  # of (X + Y) / 2
    np.testing.assert_allclose(spread, np.sqrt(variance))


def test_undefined_ratios_are_gaps_with_their_number(tmp_path: Path) -> None:
    everywhere = range(10, 150, 10)
    for seed, score in enumerate((5.0, -5.0)):  # at every other step the mean performance is not clearly above zero
        generator = np.random.default_rng(seed)
        q = {step: gaussian_q(generator, 3, 2, 2, 0.5, 0.5) for step in everywhere}
        returns = {step: score if step % 20 else 8 + seed / 100 for step in everywhere}
        write_run(tmp_path, "a", "meanq", seed, returns, q=q)
    found = read_runs([tmp_path])
    figure, caption, _ = picture(found, compute(found), "study")
    axis = panel(figure, "normalised std")
    steps, heights = mean_lines(axis, found.labels)["meanq"]
    assert steps.tolist() == list(everywhere)
    assert np.isnan(heights).tolist() == [True, False] * 7
    (line,) = axis.lines
    assert line.get_markevery() == list(range(1, 14, 2)), "what has no neighbour to be joined with has a marker"
    assert axis.get_title(loc="right") == "7 of 14 undefined"
    assert "14 of 28 ratios" in caption
    assert axis.get_yscale() == "log"


def test_a_gap_in_one_game_is_a_gap_in_the_average(tmp_path: Path) -> None:
    for env in ("a", "b"):
        for seed in range(2):
            q = {step: gaussian_q(np.random.default_rng(seed), 3, 2, 2, 0.5, 0.5) for step in (10, 20, 30)}
            middle = 8 if env == "a" else [5, -5][seed]
            write_run(tmp_path, env, "meanq", seed, {10: 8, 20: middle, 30: 8}, q=q)
    found = read_runs([tmp_path])
    figure, _, _ = picture(found, compute(found), "study")
    averages = [axis for axis in figure.axes if axis.get_position().x0 > 0.65]
    assert len(averages) == 4
    _, heights = mean_lines(averages[2], found.labels)["meanq"]
    assert np.isnan(heights).tolist() == [False, True, False]


def test_games_without_scores_to_normalise_by_have_no_average_and_say_what_they_lack(tmp_path: Path) -> None:
    write_study(tmp_path, ["a"], ["meanq"])
    found, metrics = study(
        tmp_path, ["chain"], ["meanq"], true_q=np.ones((3, 2)), overrides={"env.reference_score": None}
    )
    figure, _, table = picture(found, metrics, "study")
    assert set(table["env"]) == {"a", "chain"} and len(figure.axes) == 2 * 5
    assert [text.get_text() for axis in figure.axes for text in axis.texts] == ["no data"] * 3
    assert_readable(figure)
    alone = RunSet([run for run in found.runs if run.env == "chain"])
    figure, _, table = picture(alone, compute(alone), "study")
    assert [axis.get_title(loc="left") for axis in figure.axes][2:] == ["bias to true Q*", "std of V(s0)", "Jensen gap"]
    assert_readable(figure)


def test_a_panel_in_which_nothing_is_defined_says_so(tmp_path: Path) -> None:
    for env, score in (("a", 8.0), ("b", -8.0)):
        for seed in range(2):
            q = {10: gaussian_q(np.random.default_rng(seed), 3, 2, 2, 0.5, 0.5)}
            write_run(tmp_path, env, "meanq", seed, {10: score}, q=q)
    found = read_runs([tmp_path])
    figure, _, _ = picture(found, compute(found), "study")
    assert [text.get_text() for axis in figure.axes for text in axis.texts] == ["not defined"] * 2
    assert_readable(figure)


def test_a_mean_ends_where_a_run_ends(tmp_path: Path) -> None:
    write_run(tmp_path, "a", "dqn", 0, {10: 1, 20: 2, 30: 3})
    write_run(tmp_path, "a", "dqn", 1, {10: 3}, state="failed", overrides={"total_steps": 30})
    found = read_runs([tmp_path])
    figure, caption, table = picture(found, compute(found), "learning_curves")
    (axis,) = figure.axes
    _, heights = mean_lines(axis, found.labels)["dqn"]
    np.testing.assert_array_equal(heights, [2, np.nan, np.nan])
    assert "No mean is drawn where a run has no number: DQN in A at 2 of 3 steps" in caption
    assert table[table["scope"] == "over_runs"]["step"].tolist() == [10]
    (faded,) = [item for item in axis.collections if isinstance(item, LineCollection)]
    assert [segment[:, 1].tolist() for segment in faded.get_segments()] == [[1, 2, 3], [3]]


def test_statistics_of_fewer_runs_than_there_are_are_left_out(tmp_path: Path) -> None:
    for seed, last in ((0, 30), (1, 30), (2, 20)):
        generator = np.random.default_rng(seed)
        q = {step: gaussian_q(generator, 3, 2, 2, 0.5, 0.5) for step in range(10, last + 1, 10)}
        returns = dict.fromkeys(q, 8 + seed / 10)
        write_run(tmp_path, "a", "meanq", seed, returns, q=q, overrides={"total_steps": 30})
    found = read_runs([tmp_path])
    for name, title in (("study", "normalised std"), ("mechanism", "effective size")):
        figure, _, _ = picture(found, compute(found), name)
        steps, heights = mean_lines(panel(figure, title), found.labels)["meanq"]
        assert steps.tolist() == [10, 20, 30]
        assert np.isnan(heights).tolist() == [False, False, True]


def test_a_label_that_a_game_does_not_have_is_named(tmp_path: Path) -> None:
    write_study(tmp_path, ["a", "b"], ["dqn"])
    found, metrics = study(tmp_path, ["a"], ["meanq"])
    figure, caption, _ = picture(found, metrics, "learning_curves")
    shown = {axis.get_title(loc="left"): set(mean_lines(axis, found.labels)) for axis in figure.axes}
    assert shown == {"A": {"dqn", "meanq"}, "B": {"dqn"}, "Average, normalised": {"dqn"}}
    assert "Not in every game and so not in the average: MeanQ (B)" in caption


def test_scores_of_the_paper_are_shown_at_their_horizon_only(tmp_path: Path) -> None:
    found, metrics = study(tmp_path / "x", ["asterix", "minatar_asterix"], ["meanq_rainbow"])
    figure, caption, table = picture(found, metrics, "learning_curves")
    cited = table[table["scope"] == "cited"].set_index(["env", "label"])["value"]
    paper = paper_table("100k")
    assert set(cited.index) == {("asterix", f"{method} 100k") for method in paper.methods}
    for method in paper.methods:
        assert cited["asterix", f"{method} 100k"] == paper.scores.loc["asterix", method]
    drawn = {
        tuple(np.asarray(line.get_ydata())) for line in panel(figure, "Asterix").lines if len(line.get_xdata()) == 2
    }  # type: ignore[arg-type]
    assert drawn == {(score, score) for score in paper.scores.loc["asterix"]}
    assert "scores that the paper gives" in caption
    both, metrics = study(tmp_path / "y", ["asterix", "alien"], ["meanq_rainbow"])
    _, _, table = picture(both, metrics, "learning_curves")
    average = table[(table["scope"] == "cited") & (table["env"] == "average")].set_index("label")["value"]
    expected = paper.normalise(paper.scores["sunrise"])[["asterix", "alien"]].mean()
    assert average["sunrise 100k"] == pytest.approx(expected)
    other, metrics = study(tmp_path / "z", ["asterix"], ["meanq_rainbow"], overrides={"total_steps": 200_000})
    assert "cited" not in set(picture(other, metrics, "learning_curves")[2]["scope"])


def test_a_figure_without_data_is_a_sentence(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "a", "dqn", 0, {10: 1}, overrides={"env.reference_score": None})
    found = read_runs([tmp_path / "runs"])
    (curves, drawn), missing = draw_all(found, compute(found), tmp_path / "out")
    assert [curves.name, drawn.name] == ["learning_curves", "study"]
    assert missing.keys() == KINDS.keys() - {"learning_curves", "study"}
    assert all("\n" not in reason for reason in missing.values())
    assert "No std and no gap: they need two runs" in drawn.caption
    assert "1 run of each label" in curves.caption and "deviation" not in curves.caption
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {f"{name}.{suffix}" for name in ("learning_curves", "study") for suffix in ("csv", "svg", "png")}


def test_shares_of_adams_step_have_a_panel_per_layer_from_zero_to_one(tmp_path: Path) -> None:
    for label, share in (("dqn", 0.01), ("meanq", 0.9)):
        run = write_run(tmp_path, "a", label, 0, {10: 1, 20: 2})
        rows = [f"{step},{share},{share / 2},{share / 4},{5 * share}" for step in (10, 15, 20)]
        header = "step,adam_share_hidden,adam_share_q90_hidden,adam_share_q90_value,value_spread"
        (run / "training.csv").write_text("\n".join([header, *rows]) + "\n")
    found = read_runs([tmp_path])
    figure, _, table = picture(found, compute(found), "optimisation")
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles == [
        *(f"share of Adam's step, 90%, {x}" for x in ("hidden", "value")),
        "spread of value distributions",
    ]
    assert all(axis.get_ylim()[0] < 0 and axis.get_ylim()[1] > 1 for axis in figure.axes[:2])
    shown = table[(table["scope"] == "run") & (table["label"] == "meanq") & (table["step"] == 20)]
    assert dict(zip(shown["metric"], shown["value"], strict=True)) == {
        "adam_share_q90_hidden": 0.45,
        "adam_share_q90_value": 0.225,
        "value_spread": 4.5,
    }


def test_late_returns_have_a_line_per_label_in_the_order_of_legends(tmp_path: Path) -> None:
    for label, score in (("meanq", 5), ("dqn", 2)):
        for seed in range(3):
            write_run(tmp_path, "a", label, seed, {10: 0, 80: score + seed, 100: score + seed + 2})
    found = read_runs([tmp_path])
    figure, caption, table = picture(found, compute(found), "late_returns")
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["DQN", "MeanQ"]
    assert dict(zip(table["label"], table["value"], strict=True)) == {"dqn": 4, "meanq": 7}
    half = 4.302652729911275 / 3**0.5  # Student's t with 2 degrees of freedom, of runs with 3, 4 and 5
    assert [*table[table["label"] == "dqn"][["low", "high"]].to_numpy()[0]] == pytest.approx([4 - half, 4 + half], 1e-5)
    assert "3 runs of each label" in caption


def test_runs_that_were_never_evaluated_are_no_figure(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "a", "dqn", 0)
    found = read_runs([tmp_path / "runs"])
    drawn, missing = draw_all(found, compute(found), tmp_path / "out")
    assert drawn == [] and missing.keys() == KINDS.keys()
    assert missing["learning_curves"] == "no run has been evaluated yet"


@pytest.mark.parametrize("label", ["NA", "null", "1e5", r"$\frac{1$", ""])
def test_any_label_is_a_text(label: str, tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / "runs", "a", label, seed, {10: 1 + seed, 20: 3 + seed})
    found = read_runs([tmp_path / "runs"])
    made, _ = draw_all(found, compute(found), tmp_path / "out")
    assert {drawn.name for drawn in made} >= {"learning_curves", "aggregates", "profiles"}
    again = read_tables(tmp_path / "out")["learning_curves"]
    assert set(again["label"]) == {label} and again["value"].dtype == float


def test_more_games_than_columns_are_shown_by_their_average(tmp_path: Path) -> None:
    found, metrics = study(tmp_path, GAMES[:6], ["dqn", "meanq"])
    for name, panels in (("study", 4), ("mechanism", 2)):
        figure, caption, table = picture(found, metrics, name)
        assert set(table["env"]) == {"average"} and len(figure.axes) == panels
        assert "over 6 games" in caption
        assert_readable(figure)


def test_where_a_curve_would_hide_the_others_the_axis_is_logarithmic_beyond_them(tmp_path: Path) -> None:
    for label, value in (("dqn", 1.0), ("meanq", 1.5), ("dqn_no_target", 1000.0)):
        write_run(tmp_path, "a", label, 0, {10: 1, 20: 2}, values=value)
    found = read_runs([tmp_path])
    figure, caption, _ = picture(found, compute(found), "study")
    axis = panel(figure, "bias of V(s0)")
    low, high = axis.get_ylim()
    assert low < 1 and high > 1000, "nothing is cut off"
    near, far = (axis.transData.transform((0, y))[1] for y in (1.5, 1000))
    bottom, top = (axis.transData.transform((0, y))[1] for y in (low, high))
    assert 0.55 < (near - bottom) / (top - bottom) < 0.7 and far < top, "two thirds are for the others"
    assert 1000 in axis.get_yticks() and 1 in axis.get_yticks()
    assert axis.get_title(loc="right") == "log beyond 1.5"
    assert "the axis is logarithmic there" in caption
    assert_readable(figure)
    assert panel(figure, "return").get_yscale() == "linear", "of returns none is far"


def test_where_half_of_the_curves_are_large_the_axis_is_linear(tmp_path: Path) -> None:
    biases = {"dqn": 1.0, "meanq": 1.5, "dqn_no_target": 40.0, "meanq_no_target": 20.0}
    for label, value in biases.items():
        write_run(tmp_path, "a", label, 0, {10: 1, 20: 2}, values=value)
    found = read_runs([tmp_path])
    figure, caption, _ = picture(found, compute(found), "study")
    axis = panel(figure, "bias of V(s0)")
    assert axis.get_yscale() == "linear" and "logarithmic" not in caption
    assert axis.get_ylim()[0] < 1 and axis.get_ylim()[1] > 40
    assert_readable(figure)


def test_a_far_curve_below_the_others_is_seen_too(tmp_path: Path) -> None:
    for label, value in (("dqn", -1.0), ("meanq", 1.5), ("dqn_no_target", -500.0)):
        write_run(tmp_path, "a", label, 0, {10: 1, 20: 2}, values=value)
    found = read_runs([tmp_path])
    figure, _, _ = picture(found, compute(found), "study")
    axis = panel(figure, "bias of V(s0)")
    assert axis.get_ylim()[0] < -500 and 1.5 < axis.get_ylim()[1] < 2
    assert {-100, 0} <= set(axis.get_yticks()) and max(axis.get_yticks()) <= 2
    assert_readable(figure)


@pytest.mark.parametrize(
    ("games", "labels"),
    [
        (["minatar_breakout"], ["dqn"]),
        (["minatar_breakout"], MANY),
        (["minatar_space_invaders", "minatar_breakout"], SIX),
        (GAMES[:3], ["rainbow", "rainbow_large", "meanq_rainbow"]),
        (["asterix", "bank_heist", "hero", "seaquest"], MANY),
        ([f"minatar_{name}" for name in ("asterix", "breakout", "freeway", "seaquest", "space_invaders")], SIX),
        (GAMES[:7], ["dqn", "meanq"]),
        (GAMES, ["rainbow", "sunrise", "meanq_rainbow"]),
    ],
    ids=lambda value: f"{len(value)}",
)
def test_nothing_lies_over_something_else(games: list[str], labels: list[str], tmp_path: Path) -> None:
    table = paper_table("100k")
    for game in games:
        low, high = (table.random[game], table.human[game]) if game in GAMES else (0.0, 10.0)
        scores = {"env.random_score": float(low), "env.reference_score": float(high)}
        write_study(tmp_path, [game], labels, top=float(high), overrides=scores)
    found = read_runs([tmp_path])
    metrics = compute(found)
    for name in ("learning_curves", "study"):
        figure, _, _ = picture(found, metrics, name)
        assert_readable(figure)
    figure, _, _ = picture(found, metrics, "learning_curves")
    assert len(figure.axes) == len(games) + (len(games) > 1)


@pytest.mark.parametrize("labels", [["dqn"], SIX, MANY], ids=len)
def test_aggregates_show_their_tables_and_nothing_over_something_else(labels: list[str]) -> None:
    generator = np.random.default_rng(0)
    matrices: Mapping[str, np.ndarray] = {label: generator.normal(0.5, 0.2, (3, 2)) for label in labels}
    scores = aggregate.Scores(matrices, ["a", "b"], {"a": 10, "b": 10})
    looks = styles(labels)
    tables = {"aggregates": aggregate.aggregates(scores, repetitions=20).assign(steps="10")}
    tables["profiles"] = aggregate.profiles(scores, repetitions=20).assign(steps="10", runs=6)
    if len(labels) > 1:
        pairs = pairs_to_compare(labels)
        assert len(pairs) == (15 if labels == SIX else len(labels) - 1)
        tables["improvements"] = aggregate.improvements(scores, pairs, repetitions=20).assign(games=2, steps="10")
    for name, table in tables.items():
        with settings():
            figure, caption = KINDS[name].draw(table, looks)
        assert "at step 10" in caption and "95%" in caption
        assert_readable(figure)
        if name == "profiles":
            lines = mean_lines(figure.axes[0], labels)
            for label, part in table.groupby("label"):
                np.testing.assert_array_equal(lines[str(label)][1], part["value"])
        else:
            drawn = [line.get_xdata()[0] for axis in figure.axes for line in axis.lines if len(line.get_xdata()) == 1]  # type: ignore[arg-type,index]
            assert sorted(drawn) == sorted(table["value"])


SIZES = [f"{name}__ensemble_size={size}" for name in ("meanq", "meanq_no_target") for size in (1, 2, 3, 5, 10)]


@pytest.mark.parametrize("games", [["minatar_breakout"], ["minatar_space_invaders", "minatar_breakout", "a"]], ids=len)
def test_a_series_is_drawn_over_its_number(games: list[str], tmp_path: Path) -> None:
    found, metrics = study(tmp_path, games, SIZES)
    figure, caption, _ = picture(found, metrics, "series")
    assert_readable(figure)
    assert len(figure.axes) == len(games) * 6 and "Over ensemble_size" in caption
    expected = late_table(found, metrics).set_index(["game", "label"])
    for i, axis in enumerate(figure.axes):
        metric = list(ROWS)[i // len(games)]
        game = sorted(games)[i % len(games)]
        lines = [line for line in axis.lines if len(line.get_xdata()) == 5]  # type: ignore[arg-type]
        assert len(lines) == 2, "MeanQ with a target network and without"
        assert axis.get_xscale() == "log" and axis.get_xticks().tolist() == [1, 2, 3, 5, 10]
        for line, name in zip(lines, ("meanq", "meanq_no_target"), strict=True):
            assert np.asarray(line.get_xdata()).tolist() == [1, 2, 3, 5, 10]
            heights = [expected.loc[(game, f"{name}__ensemble_size={k}"), metric] for k in (1, 2, 3, 5, 10)]
            np.testing.assert_allclose(np.asarray(line.get_ydata(), dtype=float), heights)
    for name in ("study", "mechanism"):
        assert_readable(picture(found, metrics, name)[0])


@pytest.mark.parametrize(("labels", "bands"), [(8, True), (9, False)])
def test_many_curves_have_no_bands_and_the_caption_says_none(labels: int, bands: bool, tmp_path: Path) -> None:
    found, metrics = study(tmp_path, ["minatar_breakout", "minatar_asterix"], SIZES[:labels])
    for kind in ("study", "learning_curves"):
        figure, caption, _ = picture(found, metrics, kind)
        drawn = [item for axis in figure.axes for item in axis.collections]
        for faint in (LineCollection, PolyCollection):
            assert any(isinstance(item, faint) for item in drawn) == bands == ("band" in caption), kind


def test_a_series_is_of_labels_that_have_come_equally_far() -> None:
    labels = [f"meanq__ensemble_size={k}" for k in (1, 2, 3, 5)]
    rows = [{"game": "g", "label": label, "step": 100, "runs": 5, **dict.fromkeys(ROWS, 1.0)} for label in labels]
    rows[-1]["step"] = 40
    assert set(series_table(pd.DataFrame(rows))["number"]) == {1, 2, 3}


def test_the_same_runs_and_the_tables_give_the_same_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_study(tmp_path / "runs", ["a", "b"], ["dqn", "rainbow", "rainbow_large", "rainbow_large__noise=0.5"])
    names = "learning_curves,study,mechanism"
    figures.main([str(tmp_path / "runs"), "--out", str(tmp_path / "first"), "--only", names])
    assert "2 runs of each label" in capsys.readouterr().out
    first = {path.name: path.read_bytes() for path in (tmp_path / "first").iterdir()}
    assert first.keys() == {f"{name}.{suffix}" for name in names.split(",") for suffix in ("csv", "svg", "png")}
    figures.main([str(tmp_path / "runs"), "--out", str(tmp_path / "second"), "--only", names])
    tables = read_tables(tmp_path / "first")
    draw_tables(tables, styles(all_labels(tables)), tmp_path / "third", formats=("svg", "png"))
    for again in ("second", "third"):
        for name, content in first.items():
            assert (tmp_path / again / name).read_bytes() == content, f"{again}/{name}"
    assert b"2 runs of each label" in first["study.svg"], "the caption travels with the figure"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (["--only", "none"], r"--only none: write one or more of learning_curves,study,"),
        (["--format", "svg,gif"], r"--format gif: write one or more of pdf,svg,png"),
        (["--size", "4 by 3"], r"--size 4 by 3: write WIDTHxHEIGHT or WIDTH in inches"),
        (["--size", "1x1", "--only", "study"], r"--size: 2 panels side by side need a width above 1\.9 inches"),
        (["--size", "7x1", "--only", "study"], r"--size: 2 rows of panels need a height above 1\.\d inches"),
        (["--labels", "mean"], r"--labels mean: which of meanq, meanq_no_target\?"),
        (["--labels", "dqn", "--names", "meanq=Ours"], r"--names meanq: no such label; there are dqn"),
        (["--names", "dqn"], r"--names dqn: write LABEL=NAME"),
    ],
)
def test_what_is_wrong_with_the_command_is_one_line(wrong: list[str], told: str, tmp_path: Path) -> None:
    write_study(tmp_path / "runs", ["a"], ["dqn", "meanq", "meanq_no_target"])
    with pytest.raises(SystemExit, match=f"^analysis: {told}"):
        figures.main([str(tmp_path / "runs"), "--out", str(tmp_path / "out"), *wrong])
    assert not (tmp_path / "out").exists()
    with pytest.raises(SystemExit, match="nowhere"):
        figures.main([str(tmp_path / "nowhere")])


def test_a_user_chooses_labels_names_formats_and_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_study(tmp_path, ["a"], [f"{name}__batch_size=64" for name in ("dqn", "meanq", "rainbow")], seeds=3)
    chosen = ["--labels", "meanq,DQN", "--names", "meanq=Ours", "--size", "5x3.5", "--format", "svg,pdf"]
    figures.main([str(tmp_path), "--only", "study", *chosen])
    out = tmp_path / "figures"
    assert {path.name for path in out.iterdir()} == {"study.csv", "study.svg", "study.pdf"}, "below the runs by default"
    svg = (out / "study.svg").read_text()
    assert 'width="360pt" height="252pt"' in svg and "/MediaBox [ 0 0 360 252 ]" in (out / "study.pdf").read_text(
        "latin1"
    )
    assert svg.index("<!-- Ours -->") < svg.index("<!-- DQN -->"), "in the order of --labels"
    assert set(read_tables(out)["study"]["label"]) == {"dqn__batch_size=64", "meanq__batch_size=64"}
    assert (
        capsys.readouterr().out.count("All runs: batch_size=64.") == 1
        and "batch_size" not in svg[svg.index("<defs>") :]
    )
    before = (out / "study.pdf").read_bytes()
    figures.main([str(tmp_path), "--only", "study", *chosen])
    assert (out / "study.pdf").read_bytes() == before


@pytest.mark.parametrize("band", ["std", "ci", "none"])
def test_bands_are_what_a_user_chooses(band: str, tmp_path: Path) -> None:
    found, metrics = study(tmp_path, ["a", "b"], ["dqn"], seeds=3)
    table = KINDS["learning_curves"].select(found, metrics)
    with settings():
        figure, caption = KINDS["learning_curves"].draw(table, styles(["dqn"]), Form(band, single_runs=False))
    assert ("(band)" in caption) == (band != "none") and "faded" not in caption
    returns = [[run.episode_means["return"][100_000] for run in found.of(env, "dqn")] for env in "ab"]
    of_game = {
        "std": np.std(returns[0], ddof=1),
        "ci": np.ptp(student_interval(np.array(returns[0]))) / 2,
        "none": None,
    }
    scaled = [np.var(np.array(part) / 10, ddof=1) for part in returns]  # normalised
    errors = np.array(scaled) / 3
    freedom = errors.sum() ** 2 / (errors**2 / 2).sum()
    of_average = {
        "std": np.sqrt(sum(scaled)) / 2,
        "ci": stats.t.ppf(0.975, freedom) * np.sqrt(errors.sum()) / 2,
        "none": None,
    }
    for axis, reach in ((figure.axes[0], of_game[band]), (figure.axes[-1], of_average[band])):
        drawn = [item for item in axis.collections if isinstance(item, PolyCollection)]
        assert len(drawn) == (band != "none") and not [i for i in axis.collections if isinstance(i, LineCollection)]
        for polygon in drawn:
            at_end = [y for x, y in polygon.get_paths()[0].vertices if x == 100_000]
            assert np.ptp(at_end) / 2 == pytest.approx(reach, rel=1e-4)


def test_where_a_ratio_is_defined_nowhere_std_and_gap_are_shown_as_they_are(tmp_path: Path) -> None:
    found, metrics = study(tmp_path, ["a"], ["dqn", "meanq"], top=-5)
    assert metrics.table["metric"].isin(["normalised_std"]).any()
    figure, caption, table = picture(found, metrics, "study")
    assert {"std", "jensen_gap"} < set(table["metric"]) and "normalised_std" not in set(table["metric"])
    assert "not divided by the normalised return" in caption
    assert not [text for axis in figure.axes for text in axis.texts]


def test_an_effective_size_above_the_members_is_said(tmp_path: Path) -> None:
    """Two members whose errors cancel: the mean over them does not vary."""
    for label, noise in (("cancels", -1), ("agrees", 1)):
        for seed in range(4):
            error = np.random.default_rng(seed).normal(0, 1, (4, 1, 2))
            q = np.concatenate([error, noise * error], axis=1) + np.random.default_rng(9 + seed).normal(
                0, 0.1, (4, 2, 2)
            )
            write_run(tmp_path, "a", label, seed, {10: 5}, q={10: q})
    found = read_runs([tmp_path])
    metrics = compute(found)
    (note,) = (note for note in metrics.notes if "effective size" in note)
    assert note.startswith("a, cancels: effective size above the number of members")
    caption = picture(found, metrics, "mechanism")[1]
    assert re.search("An effective size above the number of members is where .* below zero.*: cancels[.]", caption)


def test_shapes_and_numbers() -> None:
    shapes = {1: 1, 3: 3, 4: 4, 5: 3, 6: 3, 7: 4, 8: 4, 9: 3, 26: 4, 27: 4}
    assert {count: columns_for(count) for count in shapes} == shapes
    numbers = {0: "0", 1e-17: "0", 0.05: "0.05", 7: "7", 2500: "2.5K", 1e6: "1M", -20_000: "-20K", 1e-4: "0.0001"}
    assert {value: compact(value) for value in numbers} == numbers


def test_the_papers_average_is_over_the_games_of_ours(tmp_path: Path) -> None:
    write_study(tmp_path, GAMES[:2], ["rainbow"], overrides={"total_steps": 100_000})
    write_run(tmp_path, GAMES[2], "rainbow", 0, state="running", overrides={"total_steps": 100_000})  # just begun
    found = read_runs([tmp_path])
    _, caption, table = picture(found, compute(found), "learning_curves")
    assert set(table["env"]) == {*GAMES[:2], "average"} and "Average: over 2 games" in caption
    cited = table[(table["scope"] == "cited") & (table["env"] == "average")]
    assert set(cited["n"]) == {2}


def test_a_label_without_a_number_is_left_out_of_pictures(tmp_path: Path) -> None:
    write_study(tmp_path, ["game"], ["dqn"])
    for seed in range(2):
        write_run(tmp_path, "game", "meanq", seed, {20_000: 1, 100_000: 2}, values=float("nan"))
    found = read_runs([tmp_path])
    figure, _, _ = picture(found, compute(found), "study")
    assert figure.axes


@pytest.mark.parametrize("command", [figures.main, metrics.main])
def test_an_out_that_cannot_be_written_is_one_line(command: Any, tmp_path: Path) -> None:
    write_study(tmp_path / "runs", ["assault"], ["dqn", "meanq"])
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match=r"^analysis: --out .* cannot be written \((Not a directory|File exists)\)$"):
        command([str(tmp_path / "runs"), "--out", str(tmp_path / "file" / "x")])


def test_tables_of_earlier_versions_can_be_read(tmp_path: Path) -> None:
    """Seeds, groups, means and standard deviations were one column, and labels another name."""
    old = "env,algo,group,step,metric,value,n\n" + "\n".join(
        f"game,NA,{group},10,{metric},{value},{n}"
        for group, metric, value, n in (
            ("seed_0", "return", 1, 20),
            ("seed_12", "return", 3, 20),
            ("mean", "return", 2, 2),
            ("std", "return", 1.5, 2),
            ("group_1", "normalised_std", "", 5),
            ("all", "effective_size", 4, 2),
            ("cited", "return", 9, 1),
        )
    )
    (tmp_path / "study.csv").write_text(old)
    rows = read_tables(tmp_path)["study"]
    new = pd.DataFrame(
        [
            ("game", "NA", "run", 0, pd.NA, 10, "return", 1, np.nan, np.nan, 20),
            ("game", "NA", "run", 12, pd.NA, 10, "return", 3, np.nan, np.nan, 20),
            ("game", "NA", "over_runs", pd.NA, pd.NA, 10, "return", 2, 1.5, 12.706205 * 1.5 / 2**0.5, 2),
            ("game", "NA", "group", pd.NA, 1, 10, "normalised_std", np.nan, np.nan, np.nan, 5),
            ("game", "NA", "over_runs", pd.NA, pd.NA, 10, "effective_size", 4, np.nan, np.nan, 2),
            ("game", "NA", "cited", pd.NA, pd.NA, 10, "return", 9, np.nan, np.nan, 1),
        ],
        columns=metrics.COLUMNS,
    ).astype({"seed": "Int64", "group": "Int64", "value": float})
    pd.testing.assert_frame_equal(rows, new)
    rows.to_csv(tmp_path / "study.csv", index=False)
    pd.testing.assert_frame_equal(read_tables(tmp_path)["study"], new)
