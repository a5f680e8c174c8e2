"""The registry: every entry computes what its definition says, and one entry is all that a metric takes."""

import re
from pathlib import Path

import numpy as np
import pytest

from analysis.late import late_table
from analysis.metrics import compute
from analysis.results.page import page
from analysis.runs import read_runs
from meanq.metrics.definitions import interquartile_mean, normalising_scores, state_value
from meanq.metrics.registry import METRICS, Metric, RunData, diagnostic_columns, shown_in, titles_of
from meanq.mirrors.sink import read_points
from scripts.write_docs import table_of_metrics, table_of_mirrors, with_tables
from tests.synthetic_runs import write_run

DOCS = Path(__file__).parents[2] / "docs"


def run_of(returns: dict[int, list[float]], **more: object) -> RunData:
    step = np.repeat(list(returns), [len(found) for found in returns.values()])
    episodes = {"return": np.concatenate([np.array(found, float) for found in returns.values()])}
    return RunData(None, step, episodes, **more)  # type: ignore[arg-type]


def slow_interquartile_mean(numbers: list[float]) -> float:
    """Each number four times, and of these the middle half."""
    four = sorted(number for number in numbers for _ in range(4))
    return float(np.mean(four[len(numbers) : 3 * len(numbers)]))


def test_the_interquartile_mean_is_that_of_the_middle_half() -> None:
    assert interquartile_mean(np.array([100.0, 1, 2, -50])) == 1.5
    generator = np.random.default_rng(0)
    for count in range(1, 30):
        numbers = generator.normal(0, 1, count)
        assert interquartile_mean(numbers) == pytest.approx(slow_interquartile_mean(list(numbers)))
    assert np.isnan(interquartile_mean(np.array([1.0, np.nan]))) and np.isnan(interquartile_mean(np.empty(0)))


def test_iqm_last_is_over_the_episodes_of_the_last_quarter() -> None:
    run = run_of({10: [9, 9], 70: [0, 1, 2, 3], 80: [4, 5, 6, 7], 100: [8, 9, 10, 99]})
    steps, values = METRICS["iqm_last"].of_run(run)
    assert steps.tolist() == [10, 70, 80, 100]
    assert values[0] == 9 and values[1] == 1.5, "of 70 the last quarter begins after 52.5"
    assert values[2] == slow_interquartile_mean(list(range(8)))
    assert values[3] == slow_interquartile_mean([4, 5, 6, 7, 8, 9, 10, 99])


def test_what_members_tell_of_spread_and_gap() -> None:
    q = np.array([[[[1.0, 0.0], [0.0, 3.0]]]])  # one probe, one state, two members, two actions
    step = np.array([5])
    run = run_of({5: [1.0]}, probe_step=step, q=q, true_q=np.array([[1.0, 0.5]]))

    def number(name: str, run: RunData = run) -> float | None:
        curve = METRICS[name].of_run(run)
        return None if curve is None else float(curve[1][0])

    assert state_value(q).tolist() == [[1.5]] and state_value(q[0, 0]) == state_value(q[0, 0][:, None], members=0)
    assert number("probe_value") == 1.5, "the largest of the means, (0.5, 1.5)"
    assert number("member_std") == 1.0, "of maxima 1 and 3"
    assert number("member_jensen_gap") == 0.5, "mean of maxima 2, maximum of means 1.5"
    assert number("bias_true") == 0.5
    alone = run_of({5: [1.0]}, probe_step=step, q=q[:, :, :1])
    assert number("member_std", alone) is number("member_jensen_gap", alone) is number("bias_true", alone) is None


def test_long_runs_are_normalised_by_the_random_score_of_their_table() -> None:
    env = {"random_score": 1.0, "random_score_500k": 2.0, "reference_score": 5}
    assert normalising_scores({"total_steps": 499_999, "env": env}) == (1, 5)
    assert normalising_scores({"total_steps": 500_000, "env": env}) == (2, 5)
    assert normalising_scores({"total_steps": 500_000, "env": {**env, "random_score_500k": None}}) == (1, 5)
    for other in ({**env, "reference_score": None}, {**env, "reference_score": 1.0}, {}):
        assert normalising_scores({"total_steps": 1, "env": other}) is None


def test_one_entry_is_all_that_a_metric_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    highest = Metric(
        "highest",
        "highest return",
        "the highest return so far",
        lambda run: (run.steps, np.maximum.accumulate(run.mean("return"))),
        cumulative=True,
        mirror="evaluation/highest",
        shown="late summary",
    )
    for seed in (0, 1):
        directory = write_run(tmp_path, "game", "dqn", seed, {50: 7 + seed, 100: 3})
    found = read_runs([tmp_path])
    before = late_table(found, compute(found))
    monkeypatch.setitem(METRICS, "highest", highest)
    metrics = compute(found)
    rows = metrics.table[(metrics.table["metric"] == "highest") & (metrics.table["step"] == 100)]
    assert dict(zip(rows["seed"].fillna(-1), rows["value"], strict=True)) == {0: 7, 1: 8, -1: 7.5}
    assert rows["std"].max() == pytest.approx(0.5**0.5)
    assert late_table(found, metrics, shown_in("summary"))["highest return"].tolist() == [7.5]
    assert late_table(found, metrics)["highest return"].tolist() == [7.5]
    assert [point.scalars["evaluation/highest"] for point in read_points(directory)] == [8, 8]
    assert "| `highest` | per run |" in table_of_metrics() and "`evaluation/highest`" in table_of_mirrors()
    about = {"study": "x", "runs": 2, "finished": 2, "interactions": 1, "hours": 1, "copied": {}, "notes": []}
    about |= {"commands": [], **{name: {} for name in ("machines", "threads", "devices", "versions", "commits")}}
    assert "| highest return |" in page(about, {"late": late_table(found, metrics)}, [])
    assert "highest" not in page(about, {"late": before}, []), "a table that was kept before it was there"


def test_entries_are_whole() -> None:
    mirrors = [metric.mirror for metric in METRICS.values() if metric.mirror]
    assert len(mirrors) == len(set(mirrors))
    for metric in METRICS.values():
        assert metric.meaning and metric.form.format(1.5) and metric.in_table | bool(metric.mirror), metric.name
        assert not metric.ratio_of or metric.ratio_of in METRICS
    assert list(titles_of("study").values())[:2] == ["return", "bias of V(s0)"]
    columns = ["adam_share_conv1", "adam_share_q90_conv1", "value_spread", "loss"]
    assert [name for name in columns if diagnostic_columns().fullmatch(name)] == columns[:3]


@pytest.mark.parametrize("name", ["metrics.md", "wandb.md"])
def test_the_documentation_has_the_tables_of_the_registry(name: str) -> None:
    text = (DOCS / name).read_text()
    assert re.search(r"<!-- (metrics|mirrors) -->\n\|", text)
    assert with_tables(text) == text, "make docs"


def test_tables_are_replaced_between_their_marks() -> None:
    text = with_tables("a\n<!-- metrics -->\nold\n<!-- end -->\nb\n")
    assert text == f"a\n<!-- metrics -->\n{table_of_metrics()}<!-- end -->\nb\n"
