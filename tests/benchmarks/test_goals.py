"""What the benchmark says about speed: counts of operations, ratios, verdicts. Times themselves are never tested."""

import time

import pytest

from benchmarks.goals import GOALS, Goal, to_json
from benchmarks.measure import PARTS, WHOLE, Times, compose, engine_side, interleave, learner_flop, reference_side
from benchmarks.sections import DATA_EFFICIENT, NATURE, QUICK, Findings

SMALL = ("env=minatar/asterix", "algo.replay_capacity=60")


@pytest.mark.parametrize(
    ("overrides", "shape", "actions", "gflop"),
    [
        # 18 actions: counted by hand from the layers, 19.2 and 3.65 MFLOP per state.
        (("algo=meanq_rainbow", "env=asterix", *NATURE), (4, 84, 84), 18, 23.5),
        (("algo=meanq_rainbow", "env=asterix", *DATA_EFFICIENT), (4, 84, 84), 18, 4.40),
        (("algo=meanq", "env=minatar/asterix"), (4, 10, 10), 5, 0.419),
        (("algo=dqn", "env=minatar/asterix"), (4, 10, 10), 5, 0.0407),
    ],
)
def test_operations_of_an_update(
    overrides: tuple[str, ...], shape: tuple[int, ...], actions: int, gflop: float
) -> None:
    assert learner_flop(compose(*overrides), shape, actions) / 1e9 == pytest.approx(gflop, rel=5e-3)


def test_ratios_are_taken_within_rounds() -> None:
    # The machine is ten times slower in the second round, and one turn of the third was disturbed.
    times = Times({"a": {WHOLE: [4.0, 40.0, 4.0]}, "b": {WHOLE: [2.0, 20.0, 40.0], "learn": [1.0, 10.0, 1.0]}})
    times.peaks = [100.0, 10.0, 100.0]
    assert times.ratio("a", "b") == 2.0
    assert times.milliseconds("a") == 4000.0
    assert times.share("b", flop=50.0) == 0.5


def test_both_sides_take_as_many_interactions_as_an_update_needs() -> None:
    config = compose("algo=meanq", *SMALL, "algo.interactions_per_update=3", "algo.ensemble_size=2", threads=1)
    for make in (engine_side, reference_side):
        side = make(config, 60)
        calls = []
        interact, learn = side.interact, side.learn
        side.interact = lambda calls=calls, call=interact: calls.append("interact") or call()
        side.learn = lambda calls=calls, call=learn: calls.append("learn") or call()
        start = time.perf_counter()
        seconds = side.update()
        elapsed = time.perf_counter() - start
        assert calls == ["interact"] * 3 + ["learn"]
        assert all(seconds[part] > 0 for part in PARTS)
        # Per interaction: the parts of acting are, those of learning are per update.
        parts = 3 * (seconds["act"] + seconds["env"]) + seconds["sample"] + seconds["learn"]
        assert parts <= 3 * seconds[WHOLE] <= elapsed


def test_every_side_has_its_turn_in_every_round() -> None:
    config = compose("algo=dqn", *SMALL, threads=1)
    times = interleave({"a": engine_side(config, 60), "b": reference_side(config, 60)}, seconds=0, warm_up=1)
    assert len(times.peaks) == 1
    assert all(len(times.rounds[side][part]) == 1 for side in "ab" for part in (WHOLE, *PARTS))


def test_verdicts() -> None:
    least, most = Goal("a", "", True, 2.0, "x"), Goal("b", "", False, 2.0, " ms")
    missing = Goal("c", "", False, 2.0)
    findings = Findings()
    findings.add("a", 2.5, "how")
    findings.add("b", 2.5, "how")
    rows = to_json((least, most, missing), findings, QUICK, 1.0)["goals"]
    assert [row["met"] for row in rows] == [True, False, None]
    assert [row["measured"] for row in rows] == [2.5, 2.5, None]
    assert least.met(2.0) and most.met(2.0)


def test_every_goal_has_a_figure_of_its_own() -> None:
    assert len({goal.key for goal in GOALS}) == len(GOALS)
