"""Aggregates over games against their definitions, and intervals that are rliable's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rliable import metrics as rliable_metrics
from rliable.library import get_interval_estimates

from analysis import aggregate
from analysis.aggregate import Scores, aggregates, collect, improvements, probability_of_improvement, profiles
from analysis.runs import AnalysisError, read_runs
from tests.synthetic_runs import write_run


@pytest.fixture
def scores() -> Scores:
    generator = np.random.default_rng(0)
    matrices = {"dqn": generator.normal(0.5, 0.2, (4, 3)), "meanq": generator.normal(0.8, 0.2, (6, 3))}
    return Scores(matrices, ["a", "b", "c"], dict.fromkeys("abc", 10))


def test_aggregates_are_their_definitions(scores: Scores) -> None:
    table = aggregates(scores, repetitions=100).set_index(["label", "metric"])
    for label, matrix in scores.matrices.items():
        ordered = np.sort(matrix.ravel())
        cut = len(ordered) // 4
        expected = {
            "iqm": ordered[cut : len(ordered) - cut].mean(),
            "optimality_gap": np.mean([max(0, 1 - score) for score in ordered]),
            "mean": matrix.mean(),
            "median": np.median(matrix.mean(0)),
        }
        for name, value in expected.items():
            row = table.loc[(label, name)]
            assert row["value"] == pytest.approx(value)
            assert row["low"] < value < row["high"]
            assert (row["runs"], row["games"]) == matrix.shape


def test_the_interval_of_the_mean_is_about_two_standard_errors() -> None:
    matrix = np.random.default_rng(1).normal(0, 1, (200, 2))
    row = aggregates(Scores({"x": matrix}, ["a", "b"], {})).set_index("metric").loc["mean"]
    error = np.sqrt((matrix.var(0, ddof=1) / 200).sum()) / 2
    assert (row["high"] - row["low"]) / (2 * 1.96 * error) == pytest.approx(1, abs=0.08)


def test_profiles_are_shares_above_a_threshold(scores: Scores) -> None:
    thresholds = np.array([0.0, 0.6, 5.0])
    table = profiles(scores, thresholds, repetitions=100)
    for label, matrix in scores.matrices.items():
        found = table[table["label"] == label]["value"].tolist()
        assert found == pytest.approx([np.mean(matrix > threshold) for threshold in thresholds])
    assert (table["low"] <= table["value"]).all() and (table["value"] <= table["high"]).all()


def test_probability_of_improvement_is_rliables_with_ties_as_halves() -> None:
    generator = np.random.default_rng(2)
    for _ in range(20):
        x, y = generator.integers(0, 4, (5, 3)).astype(float), generator.integers(1, 5, (3, 3)).astype(float)
        slow = np.mean([[(a > b) + 0.5 * (a == b) for a in x[:, g] for b in y[:, g]] for g in range(3)])
        assert probability_of_improvement(x, y) == pytest.approx(slow)
        assert probability_of_improvement(x, y) == pytest.approx(rliable_metrics.probability_of_improvement(x, y))


def test_improvements_of_both_directions_add_up_to_one(scores: Scores) -> None:
    both = [("dqn", "meanq"), ("meanq", "dqn")]
    table = improvements(scores, both, repetitions=100).set_index(["label", "other"])
    assert table.loc[("dqn", "meanq"), "value"] + table.loc[("meanq", "dqn"), "value"] == pytest.approx(1)
    assert improvements(scores, repetitions=10)[["label", "other"]].to_numpy().tolist() == [["dqn", "meanq"]]


def test_intervals_do_not_depend_on_the_global_generator(scores: Scores) -> None:
    np.random.seed(5)  # noqa: NPY002 - the global generator, which rliable uses
    before = np.random.get_state()[1].copy()  # type: ignore[index,union-attr]  # noqa: NPY002
    first = aggregates(scores, repetitions=50)
    after = np.random.get_state()[1]  # type: ignore[index]  # noqa: NPY002
    np.testing.assert_array_equal(before, after)
    np.random.random(7)  # noqa: NPY002
    assert aggregates(scores, repetitions=50).equals(first)


def test_one_run_has_no_interval() -> None:
    scores = Scores({"x": np.array([[0.5, 0.7]]), "y": np.array([[0.1, 0.2], [0.3, 0.4]])}, ["a", "b"], {})
    table = aggregates(scores, repetitions=20).set_index(["label", "metric"])
    assert table.loc[("x", "mean"), "value"] == pytest.approx(0.6)
    assert np.isnan(table.loc[("x", "mean"), "low"]) and not np.isnan(table.loc[("y", "mean"), "low"])
    assert improvements(scores, repetitions=20)["low"].isna().all()


def test_scores_are_those_of_games_and_runs_that_all_have(tmp_path: Path) -> None:
    for env in ("a", "b"):
        for label, seeds in (("dqn", 3), ("meanq", 2 if env == "a" else 3)):
            for seed in range(seeds):
                write_run(tmp_path, env=env, label=label, seed=seed, returns={10: seed, 20: seed + 1})
    write_run(tmp_path, env="a", label="dqn", seed=7, returns={10: 99}, overrides={"total_steps": 20}, state="failed")
    write_run(tmp_path, env="c", label="dqn", returns={20: 1})
    write_run(tmp_path, env="d", label="dqn", returns={20: 1}, overrides={"env.reference_score": None})
    write_run(tmp_path, env="d", label="meanq", returns={20: 1}, overrides={"env.reference_score": None})
    found = read_runs([tmp_path])
    scores = collect(found)
    assert (scores.envs, scores.steps) == (["a", "b"], {"a": 20, "b": 20})
    np.testing.assert_allclose(scores.matrices["dqn"], [[0.1, 0.1], [0.2, 0.2], [0.3, 0.3]])
    np.testing.assert_allclose(scores.matrices["meanq"], [[0.1, 0.1], [0.2, 0.2]])
    notes = " | ".join(scores.notes)
    for words in (
        "no score at step 20 of seed 7",
        "c: left out",
        "d: left out",
        "meanq: not as many runs",
        "meanq: 2 runs in each game",
    ):
        assert words in notes
    np.testing.assert_allclose(collect(found, at=10, labels=["meanq"]).matrices["meanq"], [[0, 0], [0.1, 0.1]])
    with pytest.raises(AnalysisError, match="other: no such label; there are"):
        collect(found, labels=["other"])
    with pytest.raises(AnalysisError, match="no game has scores of all labels"):
        collect(found, at=15)


def test_the_command_prints_both_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label in ("dqn", "meanq"):
        for seed in range(2):
            write_run(tmp_path, label=label, seed=seed, returns={10: seed + 3})
    aggregate.main([str(tmp_path)])
    out = capsys.readouterr().out
    assert "optimality_gap" in out and "Probability that a run" in out
    with pytest.raises(SystemExit, match="no runs here"):
        aggregate.main([str(tmp_path / "nowhere")])


def test_intervals_are_those_of_rliable(scores: Scores) -> None:
    """To the last resample: the same draws in the same order, and the same percentiles."""

    def theirs(data: Any, function: Any) -> tuple[Any, Any]:
        np.random.seed(0)  # noqa: NPY002 - what rliable draws from
        points, intervals = get_interval_estimates({"x": data}, function, reps=300, confidence_interval_size=0.95)
        return points["x"], intervals["x"]

    functions = [getattr(rliable_metrics, f"aggregate_{name}") for name in ("iqm", "optimality_gap", "mean", "median")]
    table = aggregates(scores, repetitions=300)
    for label, matrix in scores.matrices.items():
        points, intervals = theirs(matrix, lambda m: np.array([function(m) for function in functions]))
        ours = table[table["label"] == label]
        np.testing.assert_allclose(ours["value"], points)
        np.testing.assert_allclose(ours[["low", "high"]].to_numpy().T, intervals)
    pair = [scores.matrices["dqn"], scores.matrices["meanq"]]  # 4 runs and 6
    point, interval = theirs(pair, lambda x, y: np.array([rliable_metrics.probability_of_improvement(x, y)]))
    row = improvements(scores, repetitions=300).iloc[0]
    np.testing.assert_allclose(row[["value", "low", "high"]].astype(float), [point[0], *interval[:, 0]])
