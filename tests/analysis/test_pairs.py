"""Methods with and without what a field switches: pairs, verdicts, arrows, and the page; and errors taken apart."""

from pathlib import Path

import numpy as np
import pytest

from analysis.figures.arrows import SWITCHED, arrow_rows, ordered_pairs
from analysis.figures.errors import PARTS, TOTAL
from analysis.findings.pairs import Pair, family, find_pairs, judge_pairs
from analysis.metrics import compute
from analysis.results import __main__ as results
from analysis.runs import AnalysisError, read_runs
from meanq.metrics.definitions import jensen_gap, mean_bias, state_value
from tests.analysis.test_figures import assert_readable, picture
from tests.synthetic_runs import write_run

STEPS = [20_000, 80_000, 90_000, 100_000]
STATES, ACTIONS = 6, 3
TRUTH = np.random.default_rng(9).normal(5, 1, (STATES, ACTIONS))
# By label: returns, bias, noise of values between runs, what the greedy policy loses.
METHODS = {
    "dqn": (8.0, 1.0, 1.0, 0.2),
    "dqn_no_target": (4.0, 9.0, 1.0, 2.0),
    "meanq": (8.0, 1.0, 0.1, 0.2),
    "meanq_no_target": (8.0, 1.0, 0.1, 0.2),
    "double_dqn": (7.0, 0.5, 1.0, 0.3),
}


def write_methods(root: Path, env: str, exact: bool, seeds: int = 5, **more: object) -> None:
    generator = np.random.default_rng(1)
    for label, (level, bias, noise, loss) in METHODS.items():
        for seed in range(seeds):
            q = {s: TRUTH[:, None] + bias + noise * generator.normal(0, 1, (STATES, 1, ACTIONS)) for s in STEPS}
            policy_value = TRUTH.max(-1) - loss - 0.01 * generator.random((len(STEPS), STATES))
            fields = {
                "algo.target_network": None if label.endswith("no_target") else 1000,
                "algo.double": label == "double_dqn",
                "algo.bootstrap": "mean" if "meanq" in label else "own",
                "algo.learning_rate": 1e-3 if exact else 1e-4,  # of the environment
                **more,
            }
            returns = {step: level + 0.1 * generator.normal(0, 1, 2) for step in STEPS}
            values = {step: bias + 0.1 * generator.normal() for step in STEPS}
            truth = {"true_q": TRUTH, "policy_value": policy_value} if exact else {}
            write_run(root, env, label, seed, returns, values, q=q, overrides=fields, **truth)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for env in ("garnet_0", "garnet_1", "minatar_asterix"):
        write_methods(root, env, exact=env.startswith("garnet"))
    return root


def test_labels_are_paired_by_their_configurations(runs: Path, tmp_path: Path) -> None:
    expected = [Pair("dqn", "dqn_no_target"), Pair("double_dqn", ""), Pair("meanq", "meanq_no_target")]
    assert ordered_pairs(read_runs([runs]), SWITCHED) == expected, "in the order of legends"
    write_run(tmp_path, "other", "dqn", 0, {10: 1.0})
    alone = read_runs([runs, tmp_path])
    assert find_pairs(alone, SWITCHED).count(Pair("dqn", "dqn_no_target")) == 1
    assert "dqn" not in [pair.on for pair in find_pairs(alone, SWITCHED) if not pair.off], "it has a partner elsewhere"
    switched = find_pairs(read_runs([runs]), "algo.double")
    assert Pair("double_dqn", "dqn") in switched and Pair("", "meanq") in switched
    assert (family("garnet_12"), family("minatar_asterix")) == ("garnet", "minatar_asterix")


def test_verdicts(runs: Path) -> None:
    found = read_runs([runs])
    table = judge_pairs(found, ordered_pairs(found, SWITCHED))
    verdicts = {(row.games, row.question, row.method): row.verdict for row in table.itertuples()}
    for games in ("garnet", "minatar_asterix"):
        assert verdicts[games, "return", "dqn"] == "lower" and verdicts[games, "bias", "dqn"] == "higher"
        assert verdicts[games, "return", "meanq"] == verdicts[games, "bias", "meanq"] == "not told apart"
        assert verdicts[games, "std", "meanq"] == verdicts[games, "gap", "meanq"] == "lower", "than DQN without"
        assert (games, "return", "double_dqn") not in verdicts
        assert verdicts[games, "mean_return", "dqn"] == "lower" and verdicts[games, "mean_bias", "dqn"] == "higher"
    first = table.set_index(["games", "question", "method"]).loc[("garnet", "return", "dqn")]
    optimum = TRUTH.max(-1).mean()
    assert first["difference"] == pytest.approx(-1.8 / optimum, abs=0.005), "exact, not of the sampled returns"
    assert first["low"] < first["difference"] < first["high"] < 0


def test_arrows_show_exact_numbers_where_there_are_any(runs: Path) -> None:
    found = read_runs([runs])
    figure, caption, table = picture(found, compute(found), "arrows")
    rows = table.set_index(["env", "label"])
    assert len(table) == 15
    asterix, garnet = (rows.loc[(env, "dqn_no_target")] for env in ("minatar_asterix", "garnet_1"))
    assert (asterix["exact"], garnet["exact"], asterix["on"], asterix["method"]) == (0, 1, 0, "dqn")
    assert asterix["bias"] == pytest.approx(9, abs=0.2) and asterix["return"] == pytest.approx(4, abs=0.2)
    assert garnet["return"] == pytest.approx(1 - 2 / TRUTH.max(-1).mean(), abs=0.01)
    assert garnet["bias low"] < garnet["bias"] < garnet["bias high"]
    assert [len(axis.texts) for axis in figure.axes] == [2, 2, 2], "an arrow for each pair"
    assert "algo.target_network" in caption and "exactly" in caption
    assert_readable(figure)
    with pytest.raises(AnalysisError, match=r"no two labels that differ in algo\.prioritized"):
        arrow_rows(found, compute(found), "algo.prioritized")


def test_the_parts_of_errors_add_up_in_the_table(runs: Path) -> None:
    found = read_runs([runs])
    figure, _, table = picture(found, compute(found), "errors")
    assert set(table["env"]) == {"garnet_0", "garnet_1"}
    assert sum(table[part.column] for part in PARTS).to_numpy() == pytest.approx(table[TOTAL.column].to_numpy())
    late = [run for run in found.groups()["garnet_0", "dqn"] if run.probes is not None]
    q = np.stack([[run.data.q[run.data.probe_step == step][0] for run in late] for step in STEPS[1:]])  # type: ignore[index]
    policy = np.stack([run.data.policy_value[1:] for run in late], axis=1)  # type: ignore[index]
    row = table.set_index(["env", "label"]).loc[("garnet_0", "dqn")]
    assert row["Jensen gap"] == pytest.approx(np.mean([jensen_gap(one) for one in q]))
    assert row["bias of the mean"] == pytest.approx(np.mean([mean_bias(*one) for one in zip(q, policy, strict=True)]))
    assert row["overestimation"] == pytest.approx((state_value(q) - policy).mean())
    assert len(figure.axes) == 2
    assert_readable(figure)


def test_one_run_has_no_gap_but_errors(tmp_path: Path) -> None:
    write_methods(tmp_path, "garnet_0", exact=True, seeds=1)
    found = read_runs([tmp_path])
    figure, _, table = picture(found, compute(found), "errors")
    assert table["Jensen gap"].isna().all() and table["overestimation"].notna().all()
    assert_readable(figure)


def test_the_page_answers_the_study_s_questions(runs: Path, tmp_path: Path) -> None:
    study = tmp_path / "mine.yaml"
    study.write_text("switched: algo.target_network\nruns: [algo=dqn env=chain seed=0]\n")
    out = tmp_path / "out"
    results.main([str(runs), "--study", str(study), "--out", str(out)])
    page = (out / "README.md").read_text()
    assert "![Return against bias](figures/arrows.svg)" in page and (out / "figures" / "errors.svg").is_file()
    assert "- Who does without it? loses return: DQN; no difference in return is seen: MeanQ." in page
    assert "- At what price in bias? more biased: DQN; no difference in bias is seen: MeanQ." in page
    assert "- Is it variance that is reduced? Against DQN, no target, each without it: lower std: MeanQ." in page
    assert "- Is an ensemble's mean needed? Against MeanQ, no target, each without it: lower return: DQN." in page
    before = page, (out / "figures" / "arrows.svg").read_bytes()
    results.main(["--again", str(out)])
    assert ((out / "README.md").read_text(), (out / "figures" / "arrows.svg").read_bytes()) == before
