"""Findings from made-up studies in which each of them is true, false, or cannot be told."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis.findings import sample as sampling
from analysis.findings.__main__ import main
from analysis.findings.claims import FINDINGS, REFUTED, SUPPORTED, UNDECIDED, Finding, Result
from analysis.findings.correlation import pairing_test
from analysis.findings.decide import as_table, compare, decide, examine, judge
from analysis.findings.sample import Sample, take_samples
from analysis.runs import RunSet, read_runs
from meanq.metrics.definitions import jensen_gap, value_std
from tests.synthetic_runs import gaussian_q, write_run

# Early return, late return, bias, std of the values' noise: as the paper has it.
PAPER = {
    "dqn": (1.0, 3.0, 2.0, 1.0),
    "dqn_no_target": (1.0, 2.0, 6.0, 2.5),
    "avg_dqn": (1.0, 3.0, 1.0, 0.6),
    "ens_dqn": (1.0, 3.2, 1.2, 0.7),
    "meanq": (1.5, 6.0, 0.5, 0.4),
    "meanq_no_target": (1.0, 8.0, 0.2, 0.2),
    "meanq_rainbow": (1.0, 9.0, 0.2, 0.2),
    "rainbow_large": (1.0, 5.0, 0.2, 0.3),
    "rainbow_more_updates": (1.0, 5.0, 0.2, 0.3),
    "rainbow_large_more_updates": (1.0, 5.0, 0.2, 0.3),
}

METHODS = ["a", "b", "c", "d", "e", "f"]


def write_study(
    root: Path,
    methods: Mapping[str, Any],
    env: str = "game",
    runs: int = 5,
    spread: float = 0.05,
    alike: bool = False,
) -> None:
    """Runs of each method; `alike`: with the same noise for all of them."""
    generator = np.random.default_rng(len(env))
    for label, (early, late, bias, noise) in methods.items():
        generator = np.random.default_rng(0) if alike else generator
        for seed in range(runs):
            returns = {
                step: (early if step < 40 else late) + generator.normal(0, spread) for step in range(10, 101, 10)
            }
            q = {step: generator.normal(0, noise, (30, 1, 3)) for step in (50, 100)}
            value = bias + generator.normal(0, spread)
            write_run(root, env=env, label=label, seed=seed, returns=returns, values=value, q=q)


def sample_of(found: RunSet, label: str) -> Sample:
    samples, _ = take_samples(found)
    return next(sample for sample in samples["game"] if sample.label == label)


def verdicts(root: Path) -> dict[str, str]:
    return {finding.name: finding.verdict for finding in decide(read_runs([root]))[0]}


def test_all_are_supported_where_they_are_true(tmp_path: Path) -> None:
    write_study(tmp_path, PAPER)
    write_study(tmp_path, PAPER, env="other_game")
    supported = dict.fromkeys(["F1", "F2", "F3", "F4", "F5", "F6", "F7"], SUPPORTED)
    assert verdicts(tmp_path) == {**supported, "F8": UNDECIDED}, "F8 needs more than one member"


def test_each_is_refuted_where_the_opposite_is_true(tmp_path: Path) -> None:
    opposite = {
        "dqn": (1.0, 8.0, 5.0, 2.0),
        "dqn_no_target": (1.0, 8.0, 1.0, 0.3),
        "avg_dqn": (1.0, 9.0, 6.0, 3.0),
        "ens_dqn": (1.0, 9.0, 6.0, 1.0),
        "meanq": (1.0, 4.0, 6.0, 3.0),
        "meanq_no_target": (2.0, 3.0, 6.0, 3.0),
        "meanq_rainbow": (1.0, 4.0, 1.0, 1.0),
        "rainbow_large": (1.0, 2.0, 1.0, 1.0),
        "rainbow_more_updates": (1.0, 2.0, 1.0, 1.0),
        "rainbow_large_more_updates": (1.0, 9.0, 1.0, 1.0),
    }
    write_study(tmp_path, opposite)
    found = verdicts(tmp_path)
    assert {name: found[name] for name in ("F2", "F3", "F4", "F5", "F6", "F7")} == dict.fromkeys(
        ["F2", "F3", "F4", "F5", "F6", "F7"], REFUTED
    )


def test_nothing_is_decided_between_equals(tmp_path: Path) -> None:
    write_study(tmp_path, dict.fromkeys(PAPER, (1.0, 5.0, 1.0, 1.0)), spread=1.0, alike=True)
    found = verdicts(tmp_path)
    assert set(found.values()) == {UNDECIDED}


@pytest.mark.parametrize(
    ("meanq", "ens_dqn", "verdict"), [(0.3, 0.9, SUPPORTED), (0.9, 0.3, REFUTED), (0.6, 0.6, UNDECIDED)]
)
def test_members_are_compared_by_how_much_their_errors_correlate(
    meanq: float, ens_dqn: float, verdict: str, tmp_path: Path
) -> None:
    write_ensembles(tmp_path, {"meanq": (meanq, 5), "ens_dqn": (ens_dqn, 5)})
    assert verdicts(tmp_path)["F8"] == verdict
    (result,) = decide(read_runs([tmp_path]))[0][-1].results
    assert "as correlations: " in result.details[0]
    shown = [float(number) for number in result.details[0].split("as correlations: ")[1].split(" against ")]
    np.testing.assert_allclose(shown, [meanq, ens_dqn], atol=0.1)


@pytest.mark.parametrize(
    ("members", "correlation", "reason"), [(3, 0.5, "ensembles of 3 and of 5"), (5, 1.0, "members that do not differ")]
)
def test_members_that_cannot_be_compared_are_not(members: int, correlation: float, reason: str, tmp_path: Path) -> None:
    write_ensembles(tmp_path, {"meanq": (correlation, members), "ens_dqn": (0.5, 5)})
    (result,) = decide(read_runs([tmp_path]))[0][-1].results
    assert result.verdict == UNDECIDED and reason in result.details[0]


def write_ensembles(root: Path, methods: Mapping[str, tuple[float, int]]) -> None:
    """Five runs each of ensembles with this correlation of members and of this size."""
    for label, (correlation, members) in methods.items():
        for seed in range(5):
            generator = np.random.default_rng([seed, len(label)])
            spreads = correlation**0.5, (1 - correlation) ** 0.5
            q = {step: gaussian_q(generator, 30, members, 3, *spreads) for step in (80, 100)}
            write_run(root, label=label, seed=seed, returns={80: 5.0, 100: 5.0}, q=q)


def test_a_gap_that_falls_with_the_std_refutes_the_correlation(tmp_path: Path) -> None:
    # A shift of all actions alike makes for std, noise of each action by itself for the gap.
    generator = np.random.default_rng(0)
    for i, label in enumerate(("a", "b", "c", "d", "e")):
        for seed in range(6):
            q = seed * 10.0**i + generator.normal(0, 3.0**-i, (40, 1, 3))
            write_run(tmp_path, label=label, seed=seed, returns={10: 5}, q={10: q})
    (result,) = decide(read_runs([tmp_path]))[0][0].results
    assert result.difference == pytest.approx(-1)
    assert result.verdict == REFUTED


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"total_steps": 200}, "runs of 100 and of 200 steps"),
        ({"probe.seed": 9}, "different probe states"),
        (None, "4 methods where 5 are needed"),
    ],
)
def test_methods_that_cannot_be_compared_do_not_correlate(
    other: dict[str, Any] | None, reason: str, tmp_path: Path
) -> None:
    generator = np.random.default_rng(0)
    for label in METHODS[: 4 if other is None else 5]:
        overrides = other if other is not None and label == "e" else {}
        last = overrides.get("total_steps", 100)
        for seed in range(4):
            q = {last: generator.normal(0, 1, (30, 1, 3))}
            write_run(
                tmp_path, label=label, seed=seed, returns={last: 5.0}, q=q, overrides={"total_steps": 100, **overrides}
            )
    (result,) = decide(read_runs([tmp_path]))[0][0].results
    assert result.verdict == UNDECIDED and reason in result.details[0]


def test_methods_that_do_not_differ_rarely_correlate() -> None:
    generator = np.random.default_rng(0)
    from_halves, from_all = [], []
    for _ in range(100):
        q = generator.normal(0, 1, (6, 6, 4, 1, 3)) * generator.chisquare(3, (6, 6, 1, 1, 1))  # [method, run, P, K, A]
        halves = [[[f(runs[half::2]) for runs in q] for half in (0, 1)] for f in (value_std, jensen_gap)]
        whole = [[[f(runs) for runs in q]] * 2 for f in (value_std, jensen_gap)]
        from_halves.append(pairing_test([np.array(halves)], [METHODS]))
        from_all.append(pairing_test([np.array(whole)], [METHODS]))
    correlation, above, below = np.array(from_halves).T
    assert abs(correlation.mean()) < 0.1
    assert (above <= 0.025).mean() < 0.07 and (below <= 0.025).mean() < 0.07
    assert np.mean(from_all, axis=0)[0] > 0.3, "std and gap of the same runs share their noise"


def test_methods_that_are_alike_in_all_games_are_one_piece_of_evidence() -> None:
    generator = np.random.default_rng(0)
    together, apart = [], []
    for _ in range(100):
        level = generator.normal(0, 1, (2, 1, 6))  # std and gap of a method: unrelated, and the same in all games
        games = [level + generator.normal(0, 0.1, (2, 2, 6)) for _ in range(3)]
        together.append(pairing_test(games, [METHODS] * 3))
        apart.append(pairing_test(games, [[f"{i} {name}" for name in METHODS] for i in range(3)]))
    _, above, below = np.array(together).T
    assert (above <= 0.025).mean() < 0.07 and (below <= 0.025).mean() < 0.07
    assert (np.array(apart)[:, 1:] <= 0.025).any(axis=1).mean() > 0.15, "as three pieces they would decide by chance"


def test_a_pairing_leaves_out_the_methods_that_a_game_has_not() -> None:
    generator = np.random.default_rng(0)
    values = generator.normal(0, 1, (2, 2, 6))
    whole = pairing_test([values], [METHODS])
    both = pairing_test([values, values[..., 1:]], [METHODS, METHODS[1:]])
    part = pairing_test([values[..., 1:]], [METHODS[1:]])
    assert both[0] == pytest.approx((whole[0] + part[0]) / 2)


def test_numbers_are_those_of_the_metrics(tmp_path: Path) -> None:
    write_study(tmp_path, {"dqn": PAPER["dqn"], "meanq": PAPER["meanq"]}, runs=4)
    found = read_runs([tmp_path])
    sample = sample_of(found, "meanq")
    runs = found.of("game", "meanq")
    q = np.stack([run.probes.at(100) for run in runs])  # type: ignore[union-attr,misc]
    performance = np.mean([run.episode_means["normalised_return"][100] for run in runs])
    assert sample.probed == [100]
    assert sample.estimate("std", 4, [100])[0] == pytest.approx(value_std(q) / performance)
    assert sample.estimate("gap", 4, [100])[0] == pytest.approx(jensen_gap(q) / performance)
    late = [run.episode_means.loc[80:100] for run in runs]
    early = [run.episode_means.loc[10:20] for run in runs]
    means = {
        "return": np.mean([m["normalised_return"].mean() for m in late]),
        "early_return": np.mean([m["normalised_return"].mean() for m in early]),
        "bias": np.mean([m["bias_clipped"].mean() for m in late]),
    }
    assert {metric: sample.estimate(metric, 4, [])[0] for metric in means} == pytest.approx(means)


def test_a_resample_is_the_metric_of_the_runs_that_were_drawn(tmp_path: Path) -> None:
    write_study(tmp_path, {"dqn": PAPER["dqn"]}, runs=6)
    found = read_runs([tmp_path])
    sample, runs = sample_of(found, "dqn"), found.of("game", "dqn")
    q = np.stack([run.probes.at(100) for run in runs])[:5]  # type: ignore[union-attr,misc]
    performance = np.array([run.episode_means["normalised_return"][100] for run in runs])
    for i, drawn in enumerate(sample.resamples(5)[:20]):
        std, gap = (sample.estimate(metric, 5, [100])[1][i] for metric in ("std", "gap"))
        assert std == pytest.approx(value_std(q[drawn]) / performance[drawn].mean(), abs=1e-6)
        assert gap == pytest.approx(jensen_gap(q[drawn]) / performance[drawn].mean())


def test_the_interval_of_a_mean_is_students(tmp_path: Path) -> None:
    write_study(tmp_path, {"dqn": PAPER["dqn"], "meanq": PAPER["meanq"]}, runs=20, spread=1.0)
    found = read_runs([tmp_path])
    result = examine(take_samples(found)[0], FINDINGS["F3"][1][0], 1)
    a, b = (sample_of(found, label).by_run("return") for label in ("meanq", "dqn"))
    welch = stats.ttest_ind(a, b, equal_var=False).confidence_interval()
    assert result.difference == pytest.approx(a.mean() - b.mean())
    assert (result.high - result.low) / (welch.high - welch.low) == pytest.approx(1, abs=0.05)
    _, drawn = sample_of(found, "dqn").estimate("return", 20, [])
    alone = stats.t.interval(0.95, 19, b.mean(), stats.sem(b))
    assert np.quantile(drawn, [0.025, 0.975]) == pytest.approx(alone, rel=0.01)


@pytest.mark.parametrize("runs", [3, 5])
@pytest.mark.parametrize("spread", [1.0, 0.2])
def test_equal_means_of_few_runs_are_rarely_told_apart(runs: int, spread: float, monkeypatch: Any) -> None:
    monkeypatch.setattr(sampling, "DRAWS", 4000)
    generator = np.random.default_rng(0)
    supported = refuted = 0
    for _ in range(600):
        drawn = [sampling.draw_means(generator.normal(0, scale, runs), generator) for scale in (1.0, spread)]
        judge(result := Result(""), drawn[0] - drawn[1], 1, comparisons=8)
        supported += result.verdict == SUPPORTED
        refuted += result.verdict == REFUTED
    assert supported <= 600 * 0.025 + 10
    assert refuted <= 600 * 0.025 / 8 + 5


def test_the_same_runs_give_the_same_intervals(tmp_path: Path) -> None:
    write_study(tmp_path, PAPER, runs=4)
    found = read_runs([tmp_path])
    tables = [as_table(decide(found)[0]) for _ in range(2)]
    assert tables[0].equals(tables[1])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("few runs", "3 complete runs of meanq where 4 are needed"),
        ("crashed", "3 complete runs of meanq where 4 are needed"),
        ("length", "runs of 200 and of 100 steps"),
        ("variants", "several labels of meanq"),
        ("probes", "different probe states"),
        ("no scores", "no scores to normalise by"),
        ("poor", "normalised performance not clearly above zero"),
        ("absent", "no meanq"),
    ],
)
def test_what_cannot_be_compared_is_left_out_with_a_reason(change: str, reason: str, tmp_path: Path) -> None:
    write_study(tmp_path, {"ens_dqn": PAPER["ens_dqn"]}, runs=4)
    generator = np.random.default_rng(0)
    for seed in range({"few runs": 3, "absent": 0}.get(change, 4)):
        last = 200 if change == "length" else 100
        score = -1.0 if change == "poor" else 5.0
        overrides: dict[str, Any] = {"total_steps": last}
        overrides |= {"probe.seed": 9} if change == "probes" else {}
        overrides |= {"env.random_score": None} if change == "no scores" else {}
        overrides |= {"algo.learning_rate": seed} if change == "variants" else {}
        steps = [10, 50] if change == "crashed" and seed == 2 else [10, 50, 100, last]
        write_run(
            tmp_path,
            label="meanq",
            seed=seed,
            returns=dict.fromkeys(steps, score + 0.1 * seed),
            q={100: generator.normal(0, 1, (30, 1, 3)), **({200: np.ones((30, 1, 3))} if last == 200 else {})},
            overrides=overrides,
        )
    f6 = next(finding for finding in decide(read_runs([tmp_path]))[0] if finding.name == "F6")
    std = f6.results[1]
    assert std.verdict == UNDECIDED and np.isnan(std.difference)
    assert reason in std.details[0]


def test_the_more_comparisons_the_more_it_takes_to_refute() -> None:
    drawn = np.linspace(-0.15, 9.85, 1000)  # 1.5% are below zero
    verdicts = {}
    for sign, comparisons in product((1, -1), (1, 2)):
        judge(result := Result(""), sign * drawn, 1, comparisons)
        verdicts[sign, comparisons] = result.verdict
    assert verdicts == {(1, 1): SUPPORTED, (1, 2): SUPPORTED, (-1, 1): REFUTED, (-1, 2): UNDECIDED}


def test_a_finding_follows_from_its_comparisons() -> None:
    def verdict(*found: str) -> str:
        return Finding("F", "", [Result("", one) for one in found]).verdict

    assert verdict(SUPPORTED, SUPPORTED) == SUPPORTED
    assert verdict(SUPPORTED, UNDECIDED) == UNDECIDED
    assert verdict(SUPPORTED, UNDECIDED, REFUTED) == REFUTED


def test_the_command_prints_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_study(tmp_path / "runs", {"dqn": PAPER["dqn"], "dqn_no_target": PAPER["dqn_no_target"]}, runs=4)
    main([str(tmp_path / "runs")])
    out = capsys.readouterr().out
    assert "F2 supported: A target network" in out and "F7 not decidable" in out
    assert sum("supported" in line or "not decidable" in line for line in out.splitlines()) == 34
    with pytest.raises(SystemExit, match="no runs here"):
        main([str(tmp_path / "nowhere")])


def test_two_labels_are_compared_by_the_same_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_ensembles(tmp_path, {"meanq": (0.3, 5), "ens_dqn__x=1": (0.9, 5), "dqn": (0.5, 1)})
    main([str(tmp_path), "--compare", "ens_dqn__x=1", "meanq"])
    found = capsys.readouterr().out.splitlines()
    assert found[0] == "ens_dqn__x=1 against meanq, late in training; differences with 95% intervals"
    results, _ = compare(read_runs([tmp_path]), "ens_dqn__x=1", "meanq")
    verdicts = {result.comparison: result.verdict for result in results}
    assert verdicts["return"] == "not told apart", "all returns are 5"
    assert (verdicts["correlation"], verdicts["member variance"]) == ("higher", "lower")
    assert results[-1].low < np.log(0.1 / 0.7) < results[-1].high, "variances of 1 less the correlation"
    assert any(line.startswith("   member variance: lower -") for line in found)
    back, _ = compare(read_runs([tmp_path]), "meanq", "ens_dqn__x=1")
    assert [result.difference for result in back] == pytest.approx([-result.difference for result in results])
    alone, _ = compare(read_runs([tmp_path]), "dqn", "meanq")
    assert "ensembles of 1 and of 5" in alone[-2].details[0] and "one member only" in alone[-1].details[0]


def test_a_label_that_does_not_exist_is_named(tmp_path: Path) -> None:
    write_ensembles(tmp_path, {"meanq": (0.3, 5), "ens_dqn": (0.9, 5)})
    with pytest.raises(SystemExit, match=r"--compare meanc: no such label; there are ens_dqn, meanq"):
        main([str(tmp_path), "--compare", "meanc", "meanq"])
