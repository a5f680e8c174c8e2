"""Each metric against a slow reference written from its definition, and against noise whose answer is known."""

import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis import metrics
from analysis.intervals import clearly_positive, member_pseudovalues, student_interval
from analysis.metrics import compute
from analysis.runs import read_runs
from meanq.metrics.definitions import Decomposition, around_truth, jensen_gap, value_std
from meanq.metrics.registry import METRICS
from tests.synthetic_runs import gaussian_q, write_run


def slow_value(q_of_run: np.ndarray, state: int) -> float:
    """V(s_0) = max_a mean_k Q_k(s_0, a)."""
    members, actions = q_of_run.shape[1:]
    return max(sum(float(q_of_run[state, k, a]) for k in range(members)) / members for a in range(actions))


def slow_std(q: np.ndarray) -> float:
    total = 0.0
    for state in range(q.shape[1]):
        values = [slow_value(run, state) for run in q]
        mean = sum(values) / len(values)
        total += math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return total / q.shape[1]


def slow_gap(q: np.ndarray) -> float:
    runs, states, members, actions = q.shape
    total = 0.0
    for state in range(states):
        expected_maximum = sum(slow_value(run, state) for run in q) / runs
        expected_q = [sum(float(run[state, k, a]) for run in q for k in range(members)) for a in range(actions)]
        total += expected_maximum - max(expected_q) / (runs * members)
    return total / states


def slow_pairs(errors: np.ndarray) -> tuple[float, float, float]:
    """Means over runs, states and actions of e_k e_j for k != j, of e_k^2, and of (mean_k e_k)^2."""
    runs, states, members, actions = errors.shape
    products, squares, means = [], [], []
    for r in range(runs):
        for s in range(states):
            for a in range(actions):
                e = [float(errors[r, s, k, a]) for k in range(members)]
                products += [e[k] * e[j] for k in range(members) for j in range(members) if k != j]
                squares += [x * x for x in e]
                means.append((sum(e) / members) ** 2)
    return float(np.mean(products)), float(np.mean(squares)), float(np.mean(means))


@pytest.fixture
def noise() -> np.ndarray:
    generator = np.random.default_rng(1)
    return generator.normal(2, 1, (6, 4, 3, 5)) * generator.uniform(0.5, 2, (6, 1, 1, 1))  # [R, P, K, A]


def select(table: pd.DataFrame, metric: str, which: str, label: str = "dqn", column: str = "value") -> dict[int, float]:
    """By step; which: `run <seed>`, `group <number>` or `over_runs`."""
    scope, _, number = which.partition(" ")
    rows = table[(table["metric"] == metric) & (table["scope"] == scope) & (table["label"] == label)]
    if number:
        rows = rows[rows["seed" if scope == "run" else "group"] == int(number)]
    return dict(zip(rows["step"], rows[column], strict=True))


def counts(table: pd.DataFrame, metric: str, which: str, label: str = "dqn") -> dict[int, float]:
    return select(table, metric, which, label, "n")


def write_probed(root: Path, q: np.ndarray, scores: Sequence[float], label: str = "dqn") -> None:
    for seed, (values, score) in enumerate(zip(q, scores, strict=True)):
        write_run(root, label=label, seed=seed, returns={10: score}, q={0: values, 10: values})


def test_std_and_gap_are_the_definitions(noise: np.ndarray) -> None:
    assert value_std(noise) == pytest.approx(slow_std(noise))
    assert jensen_gap(noise) == pytest.approx(slow_gap(noise))


def test_std_of_independent_noise_has_its_closed_form() -> None:
    # One action: V of a run is a mean of K Gaussians, and the expected sample std of R of them is c4(R) sigma / sqrt K.
    runs, members, sigma = 5, 4, 3.0
    q = np.random.default_rng(0).normal(7, sigma, (runs, 20_000, members, 1))
    c4 = math.sqrt(2 / (runs - 1)) * math.gamma(runs / 2) / math.gamma((runs - 1) / 2)
    assert value_std(q) == pytest.approx(c4 * sigma / math.sqrt(members), rel=0.01)
    assert jensen_gap(q) == pytest.approx(0, abs=1e-12)


def test_gap_of_independent_noise_has_its_closed_form() -> None:
    # Two actions of equal true value: E max(X, Y) = sigma / sqrt(pi), less the same of the mean over R runs.
    runs, members, sigma = 5, 4, 3.0
    q = np.random.default_rng(0).normal(7, sigma, (runs, 40_000, members, 2))
    of_one_run = sigma / math.sqrt(members) / math.sqrt(math.pi)
    assert jensen_gap(q) == pytest.approx(of_one_run * (1 - 1 / math.sqrt(runs)), rel=0.02)


def test_gap_is_never_negative() -> None:
    generator = np.random.default_rng(2)
    for _ in range(300):
        runs, states, members, actions = generator.integers(1, 6, 4)
        q = generator.standard_cauchy((runs, states, members, actions))
        assert jensen_gap(q) >= 0
        assert slow_gap(q) >= -1e-12 * np.abs(q).max(), "the definition itself, but for rounding"


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.9])
def test_correlated_members_are_measured_as_made(rho: float) -> None:
    variance, members = 4.0, 5
    generator = np.random.default_rng(3)
    shared, own = math.sqrt(rho * variance), math.sqrt((1 - rho) * variance)
    q = np.stack([gaussian_q(generator, 4000, members, 3, shared, own, mean=9) for _ in range(6)])
    parts = Decomposition.of(q)
    assert parts.shared_variance == pytest.approx(rho * variance, rel=0.03, abs=0.03)
    assert parts.member_variance == pytest.approx((1 - rho) * variance, rel=0.03)
    assert parts.single_variance == pytest.approx(variance, rel=0.03)
    assert parts.mean_variance == pytest.approx(variance * (rho + (1 - rho) / members), rel=0.03)
    assert parts.correlation == pytest.approx(rho, abs=0.02)
    assert parts.effective_size == pytest.approx(members / (1 + (members - 1) * rho), rel=0.04)


def test_the_split_is_unbiased_for_few_runs() -> None:
    # Two runs only: a plug-in estimate (dividing by R, or ignoring that the mean still has member noise) is far off.
    generator = np.random.default_rng(4)
    found = [
        Decomposition.of(np.stack([gaussian_q(generator, 1, 3, 1, 1.0, 2.0) for _ in range(2)])) for _ in range(20_000)
    ]
    assert np.mean([parts.shared_variance for parts in found]) == pytest.approx(1.0, abs=0.08)
    assert np.mean([parts.member_variance for parts in found]) == pytest.approx(4.0, abs=0.08)
    assert np.mean([parts.single_variance for parts in found]) == pytest.approx(5.0, abs=0.12)


def test_the_split_is_the_slow_one(noise: np.ndarray) -> None:
    runs, states, members, actions = noise.shape
    within, between = [], []
    for s in range(states):
        for a in range(actions):
            means = [float(np.mean(noise[r, s, :, a])) for r in range(runs)]
            grand = sum(means) / runs
            between.append(sum((mean - grand) ** 2 for mean in means) / (runs - 1))
            squares = sum((noise[r, s, k, a] - means[r]) ** 2 for r in range(runs) for k in range(members))
            within.append(float(squares) / (runs * (members - 1)))
    parts = Decomposition.of(noise)
    assert parts.member_variance == pytest.approx(np.mean(within))
    assert parts.mean_variance == pytest.approx(np.mean(between))
    assert parts.effective_size == pytest.approx(members / (1 + (members - 1) * parts.correlation))


def test_pseudovalues_are_what_leaving_a_run_out_changes(noise: np.ndarray) -> None:
    runs, members = noise.shape[0], noise.shape[2]
    probes = [noise, noise**2]

    def slow(left: list[int]) -> float:
        parts = [Decomposition.of(q[left]) for q in probes]
        return float(np.mean([math.log(members * part.mean_variance / part.member_variance) for part in parts]))

    whole = slow(list(range(runs)))
    expected = [runs * whole - (runs - 1) * slow([r for r in range(runs) if r != run]) for run in range(runs)]
    np.testing.assert_allclose(member_pseudovalues(probes), expected)


@pytest.mark.parametrize(("runs", "states"), [(3, 20), (5, 1), (5, 20)])
def test_intervals_of_a_correlation_hold_it_as_often_as_they_say(runs: int, states: int) -> None:
    """Of 600 studies with members that correlate 0.8; by chance alone 95% would be 93.2 to 96.8%."""
    rho, members, generator = 0.8, 5, np.random.default_rng(7)
    held = []
    for _ in range(600):
        q = np.stack([gaussian_q(generator, states, members, 1, rho**0.5, (1 - rho) ** 0.5) for _ in range(runs)])
        ends = [Decomposition.with_log_ratio(members, end) for end in student_interval(member_pseudovalues([q]))]
        held.append(ends[0].correlation <= rho <= ends[1].correlation)
        assert ends[0].effective_size >= ends[1].effective_size
    assert 0.93 <= np.mean(held) <= 0.985


def test_a_log_ratio_tells_correlation_and_effective_size(noise: np.ndarray) -> None:
    parts = Decomposition.of(noise)
    again = Decomposition.with_log_ratio(parts.members, parts.log_ratio)
    assert again.correlation == pytest.approx(parts.correlation)
    assert again.effective_size == pytest.approx(parts.effective_size)
    assert Decomposition.with_log_ratio(5, 1000).correlation == pytest.approx(1)
    assert Decomposition.with_log_ratio(5, -1000).correlation == pytest.approx(-1 / 4), "the least that 5 can have"


def test_errors_around_a_known_truth_are_the_slow_ones(noise: np.ndarray) -> None:
    truth = np.random.default_rng(5).normal(0, 1, (4, 5))
    product, square, mean_square = slow_pairs(noise - truth[None, :, None, :])
    correlation, size = around_truth(noise, truth)
    assert correlation == pytest.approx(product / square)
    assert size == pytest.approx(square / mean_square)


def test_a_common_bias_is_error_in_common_only_where_the_truth_is_known() -> None:
    q = np.stack([gaussian_q(np.random.default_rng(seed), 2000, 4, 2, 0.0, 1.0, mean=10.0) for seed in range(4)])
    assert Decomposition.of(q).correlation == pytest.approx(0, abs=0.02)
    correlation, size = around_truth(q, np.zeros((2000, 2)))
    assert correlation == pytest.approx(100 / 101, abs=0.001)
    assert size == pytest.approx(101 / 100.25, abs=0.001)


def test_identical_members_count_as_one() -> None:
    q = np.repeat(np.random.default_rng(6).normal(0, 1, (5, 10, 1, 2)), 4, axis=2)
    parts = Decomposition.of(q)
    assert (parts.correlation, parts.effective_size) == (pytest.approx(1), pytest.approx(1))


def test_ratios_are_divided_by_the_groups_performance(tmp_path: Path, noise: np.ndarray) -> None:
    q, scores = noise[:3].astype(np.float32), [4.0, 5.0, 6.0]
    write_probed(tmp_path, q, scores)
    table = compute(read_runs([tmp_path])).table
    assert select(table, "std", "group 0")[10] == pytest.approx(slow_std(q))
    assert select(table, "normalised_std", "group 0")[10] == pytest.approx(slow_std(q) / 0.5)
    assert select(table, "normalised_jensen_gap", "group 0")[10] == pytest.approx(slow_gap(q) / 0.5)
    assert counts(table, "normalised_std", "group 0")[10] == 3
    assert select(table, "normalised_std", "over_runs")[10] == pytest.approx(slow_std(q) / 0.5)
    assert np.isnan(select(table, "normalised_std", "over_runs", column="std")[10])


def test_ratios_that_are_not_defined_are_empty_and_counted(tmp_path: Path, noise: np.ndarray) -> None:
    write_probed(tmp_path, noise[:3], [-1.0, 0.5, 2.0])  # on average above zero, but not clearly
    found = compute(read_runs([tmp_path]))
    assert np.isnan(select(found.table, "normalised_std", "group 0")[10])
    assert select(found.table, "normalised_std", "over_runs") == {}
    assert select(found.table, "std", "group 0")[10] > 0
    assert "4 of 4" in found.notes[0]  # std and gap; at step 10, and at step 0, which has no evaluation
    assert "not clearly above zero" in found.notes[0] and "no evaluation" in found.notes[0]


def test_clearly_positive_is_students_interval() -> None:
    generator = np.random.default_rng(7)
    outcomes = set()
    for _ in range(200):
        scores = generator.normal(generator.uniform(-1, 3), 1, generator.integers(2, 8))
        by_test = stats.ttest_1samp(scores, 0).pvalue < 0.05 and scores.mean() > 0
        assert clearly_positive(scores) == by_test
        outcomes.add(by_test)
    assert outcomes == {True, False}
    assert not clearly_positive(np.array([5.0])) and not clearly_positive(np.array([5.0, np.nan]))


def test_more_runs_are_split_into_groups_of_five(tmp_path: Path) -> None:
    q = np.random.default_rng(8).normal(0, 1, (12, 3, 2, 4)).astype(np.float32)
    scores = np.linspace(5, 6, 12)
    write_probed(tmp_path, q, list(scores))
    found = compute(read_runs([tmp_path]))
    table = found.table
    assert "game, dqn: 2 of 12 runs are in no group of 5" in found.notes
    expected = [slow_gap(q[i : i + 5]) / (scores[i : i + 5].mean() / 10) for i in (0, 5)]
    for i in (0, 1):
        assert select(table, "normalised_jensen_gap", f"group {i}")[10] == pytest.approx(expected[i])
    assert select(table, "normalised_jensen_gap", "group 2") == {}, "two runs are no group of five"
    assert select(table, "normalised_jensen_gap", "over_runs")[10] == pytest.approx(np.mean(expected))
    assert select(table, "normalised_jensen_gap", "over_runs", column="std")[10] == pytest.approx(
        np.std(expected, ddof=1)
    )
    assert counts(table, "normalised_jensen_gap", "over_runs")[10] == 2
    assert counts(table, "shared_variance", "over_runs")[10] == 12


def test_the_mean_over_groups_leaves_out_those_with_fewer_runs(tmp_path: Path) -> None:
    q = np.random.default_rng(8).normal(0, 1, (10, 3, 2, 4)).astype(np.float32)
    for seed in range(10):
        steps = (10,) if seed == 9 else (10, 20)
        returns, probes = dict.fromkeys(steps, 5 + seed / 10), dict.fromkeys(steps, q[seed])
        write_run(tmp_path, seed=seed, returns=returns, q=probes, overrides={"total_steps": 20})
    table = compute(read_runs([tmp_path])).table
    assert counts(table, "std", "group 1") == {10: 5, 20: 4}
    assert counts(table, "std", "over_runs") == {10: 2, 20: 1}
    assert select(table, "std", "over_runs")[20] == pytest.approx(slow_std(q[:5]))


def test_runs_that_stop_early_count_where_they_have_been(tmp_path: Path, noise: np.ndarray) -> None:
    for seed in range(3):
        steps = (10, 20, 30)[: 3 - (seed == 2)]
        returns = {step: seed + step / 10 for step in steps}
        q = {step: noise[seed] * step for step in steps}
        write_run(tmp_path, seed=seed, returns=returns, q=q, overrides={"total_steps": 30}, state="running")
    table = compute(read_runs([tmp_path])).table
    assert counts(table, "return", "over_runs") == {10: 3, 20: 3, 30: 2}
    assert select(table, "return", "over_runs") == {10: 2, 20: 3, 30: 3.5}
    assert counts(table, "std", "group 0") == {10: 3, 20: 3, 30: 2}
    assert select(table, "std", "group 0")[30] == pytest.approx(slow_std(30 * noise[:2].astype(np.float32)), rel=1e-5)


def test_one_run_has_no_spread(tmp_path: Path, noise: np.ndarray) -> None:
    write_probed(tmp_path, noise[:1], [5.0])
    table = compute(read_runs([tmp_path])).table
    assert select(table, "return", "over_runs") == {10: 5}
    assert np.isnan(select(table, "return", "over_runs", column="std")[10])
    assert not {"std", "jensen_gap", "shared_variance", "effective_size"} & set(table["metric"])
    assert select(table, "member_variance", "over_runs")[10] > 0


def test_one_member_has_no_split(tmp_path: Path, noise: np.ndarray) -> None:
    write_probed(tmp_path, noise[:3, :, :1], [5.0, 6.0, 7.0])
    table = compute(read_runs([tmp_path])).table
    assert "std" in set(table["metric"])
    assert not {"member_variance", "effective_size", "member_correlation"} & set(table["metric"])


def test_a_run_with_nan_is_left_out_where_it_has_it(tmp_path: Path, noise: np.ndarray) -> None:
    q = noise[:4].copy()
    q[1, 0, 0, 0] = np.nan
    write_probed(tmp_path, q, [5.0, 5.0, 6.0, np.nan])
    table = compute(read_runs([tmp_path])).table
    assert select(table, "std", "group 0")[10] == pytest.approx(slow_std(q[[0, 2, 3]].astype(np.float32)))
    assert counts(table, "std", "group 0")[10] == 3
    assert np.isnan(select(table, "normalised_std", "group 0")[10]), "the performance of one of them is not known"
    assert select(table, "return", "over_runs")[10] == pytest.approx(16 / 3)
    assert counts(table, "return", "over_runs")[10] == 3


def test_bias_in_three_units(tmp_path: Path) -> None:
    units = {"discounted": 1.0, "unclipped": 20.0, "first_life": 0.5}
    write_run(tmp_path, returns={10: 1, 20: 1}, values={10: 3.0, 20: 5.0}, **units)
    table = compute(read_runs([tmp_path])).table
    assert select(table, "bias_clipped", "run 0") == {10: 2, 20: 4}
    assert select(table, "bias_unclipped", "run 0") == {10: -17, 20: -15}
    assert select(table, "bias_first_life", "run 0") == {10: 2.5, 20: 4.5}
    assert counts(table, "bias_clipped", "run 0") == {10: 2, 20: 2}


def test_bias_against_the_true_q(tmp_path: Path, noise: np.ndarray) -> None:
    truth = np.random.default_rng(9).normal(0, 1, (4, 5))
    unscored = {"env.random_score": None, "env.reference_score": None}
    for seed in range(2):
        write_run(tmp_path, seed=seed, returns={10: 1}, q={10: noise[seed]}, true_q=truth, overrides=unscored)
    table = compute(read_runs([tmp_path])).table
    for seed in range(2):
        expected = np.mean([slow_value(noise[seed], s) - max(truth[s]) for s in range(4)])
        assert select(table, "bias_true", f"run {seed}")[10] == pytest.approx(expected, rel=1e-5)
    correlation, size = around_truth(noise[:2].astype(np.float32).astype(float), truth)
    assert select(table, "member_correlation_true", "over_runs")[10] == pytest.approx(correlation)
    assert select(table, "effective_size_true", "over_runs")[10] == pytest.approx(size)
    assert not any(metric.startswith("normalised_") for metric in table["metric"]), "no scores to normalise by"


def test_area_under_the_curve_and_steps_to_reference(tmp_path: Path) -> None:
    write_run(tmp_path, seed=0, returns={10: 2, 20: 6, 40: 12}, seconds=50)
    write_run(tmp_path, seed=1, returns={10: 2, 20: 10, 40: 4}, seconds=70)
    table = compute(read_runs([tmp_path])).table
    assert select(table, "auc", "run 0") == pytest.approx({10: 2, 20: 4, 40: (40 + 180) / 30})
    assert select(table, "normalised_auc", "run 0")[40] == pytest.approx(22 / 30)
    assert select(table, "steps_to_reference", "run 0") == {40: 40}
    assert select(table, "steps_to_reference", "run 1") == {40: 20}
    assert select(table, "steps_to_reference", "over_runs") == {40: 30}
    assert select(table, "seconds", "over_runs") == {40: 60}


def test_runs_that_never_reach_the_reference_have_no_mean_of_those_that_do(tmp_path: Path) -> None:
    write_run(tmp_path, seed=0, returns={10: 12})
    write_run(tmp_path, seed=1, returns={10: 9})
    table = compute(read_runs([tmp_path])).table
    assert select(table, "steps_to_reference", "run 0") == {10: 10}
    assert np.isnan(select(table, "steps_to_reference", "run 1")[10])
    assert select(table, "steps_to_reference", "over_runs") == {}


def test_average_human_level_is_that_of_the_mean_over_games(tmp_path: Path) -> None:
    write_run(tmp_path, env="a", returns={10: 2, 20: 6, 30: 6})
    write_run(tmp_path, env="b", returns={10: 4, 20: 12, 30: 14})
    write_run(tmp_path, env="b", seed=1, returns={10: 90}, overrides={"total_steps": 30})
    assert metrics.average_steps_to_reference(read_runs([tmp_path]), "dqn", ["a", "b"]) == {0: 30.0}


def test_groups_of_different_sizes_are_said(tmp_path: Path, noise: np.ndarray) -> None:
    write_probed(tmp_path, noise[:3], [5.0, 6, 7], label="dqn")
    write_probed(tmp_path, noise[:5], [5.0, 6, 7, 5, 6], label="meanq")
    assert any("3 runs: dqn; 5 runs: meanq" in message for message in compute(read_runs([tmp_path])).notes)


def test_the_command_writes_the_tidy_table(
    tmp_path: Path, noise: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    write_probed(tmp_path / "runs", noise, [5.0, 6, 7, 5, 6, 7], label="meanq")
    (tmp_path / "runs" / "game" / "dqn" / "seed_0").mkdir(parents=True)
    metrics.main([str(tmp_path / "runs"), "--out", str(tmp_path / "new" / "m.csv"), "--bias", "all"])
    table = pd.read_csv(tmp_path / "new" / "m.csv")
    assert list(table.columns) == metrics.COLUMNS
    assert set(table["metric"].str.replace(r"(?<=adam_share_)\w+", "<layer>", regex=True)) <= set(METRICS)
    assert {"bias_clipped", "bias_unclipped", "bias_first_life", "normalised_std", "effective_size"} <= set(
        table["metric"]
    )
    assert "seed_0: no config.yaml" in capsys.readouterr().err
    metrics.main([str(tmp_path / "runs")])
    printed = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert {metric for metric in printed["metric"] if metric.startswith("bias")} == {"bias_clipped"}
    with pytest.raises(SystemExit, match="no runs here"):
        metrics.main([str(tmp_path / "nowhere")])


def test_the_obvious_pivots_give_means_over_runs_and_runs(tmp_path: Path, noise: np.ndarray) -> None:
    """Each number by hand: returns of seeds 0, 1, 2 are 1, 2, 6 at step 10 and 4, 8, 9 at step 20."""
    for seed, (first, last) in enumerate(((1, 4), (2, 8), (6, 9))):
        q = {10: noise[seed], 20: noise[seed]}
        write_run(tmp_path / "runs", label="dqn", seed=seed, returns={10: first, 20: last}, q=q)
        write_run(tmp_path / "runs", label="meanq", seed=seed, returns={10: 10 * first, 20: 10 * last})
    metrics.main([str(tmp_path / "runs"), "--out", str(tmp_path / "m.csv")])
    written = pd.read_csv(tmp_path / "m.csv", dtype={"seed": "Int64", "group": "Int64"})
    for table in (compute(read_runs([tmp_path / "runs"])).table, written):
        assert table["seed"].dtype == table["group"].dtype == "Int64" and set(table["scope"]) == set(metrics.SCOPES)
        returns = table[table["metric"] == "return"]
        for rows in (returns.query("scope == 'over_runs'"), returns.query("scope == 'run'"), returns):
            means = rows.pivot_table(index="step", columns="label", values="value")
            assert means.to_dict() == {"dqn": {10: 3.0, 20: 7.0}, "meanq": {10: 30.0, 20: 70.0}}
        spread = returns.query("scope == 'over_runs'").pivot_table(index="step", columns="label", values="std")
        assert spread["dqn"].to_dict() == pytest.approx({10: 7**0.5, 20: 7**0.5}, rel=1e-5)
        runs = returns.query("scope == 'run'").pivot_table(index="step", columns=["label", "seed"], values="value")
        assert runs["dqn"].to_dict() == {0: {10: 1, 20: 4}, 1: {10: 2, 20: 8}, 2: {10: 6, 20: 9}}
        of_group = table.query("metric == 'std' and scope == 'group'")
        assert of_group["group"].tolist() == [0, 0] and of_group["value"].tolist() == pytest.approx(
            [slow_std(noise[:3])] * 2, rel=1e-5
        )


def test_diagnostics_of_training_are_metrics_at_evaluations(tmp_path: Path) -> None:
    for seed, shares in enumerate((("0.5", "0.25", "0.75"), ("0.5", "0.75", ""))):
        directory = write_run(tmp_path, seed=seed, returns={10: 1, 20: 2})
        rows = "\n".join(f"{step},1.5,{share},3" for step, share in zip((5, 10, 20), shares, strict=True))
        (directory / "training.csv").write_text(f"step,loss,adam_share_advantage,value_spread\n{rows}\n")
    table, share = compute(read_runs([tmp_path])).table, "adam_share_advantage"
    assert select(table, share, "run 0") == {10: 0.25, 20: 0.75} and select(table, share, "run 1") == {10: 0.75}
    assert select(table, share, "over_runs") == {10: 0.5, 20: 0.75}
    assert select(table, "value_spread", "over_runs") == {10: 3.0, 20: 3.0} and "loss" not in set(table["metric"])


def test_a_run_without_diagnostics_has_none(tmp_path: Path) -> None:
    directory = write_run(tmp_path, returns={10: 1})
    (directory / "training.csv").write_text("step,loss\n10,0.5\n")
    assert not compute(read_runs([tmp_path])).table["metric"].str.startswith(("adam", "value_")).any()
