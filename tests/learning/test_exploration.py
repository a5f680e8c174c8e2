"""Exploration: what an action is chosen by, and how often it is chosen at random."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from meanq.config.schema import AlgoConfig, EpsilonConfig
from meanq.learning.exploration import Explorer, random_share, upper_bound
from meanq.rng import stream
from tests.helpers import algo_config
from tests.short_runs import SHORT, SilentReporter, make_run

ACTIONS = 4
EXPLORATIONS = ("epsilon_greedy", "episode_member", "ucb", "greedy")
SCHEDULE = EpsilonConfig(start=1.0, end=0.1, steps=200)
NEVER = EpsilonConfig(start=0.0, end=0.0, steps=1)


def make_algo(exploration: str, **changes: Any) -> AlgoConfig:
    return algo_config("meanq", **{"ensemble_size": ACTIONS, "exploration": exploration, "epsilon": NEVER} | changes)


def make_explorer(algo: AlgoConfig, seed: int = 0) -> Explorer:
    return Explorer(algo, ACTIONS, np.random.default_rng(seed), np.random.default_rng(1000 + seed))


class Values:
    """Values [K, A] that count how often they were asked for."""

    def __init__(self, q: np.ndarray) -> None:
        self.q = q
        self.calls = 0

    def __call__(self) -> np.ndarray:
        self.calls += 1
        return self.q


def favourites() -> Values:
    """Member k likes action k best; the mean likes the last one."""
    q = np.eye(ACTIONS)
    q[:, -1] += 0.5
    return Values(q)


# The upper bound


def naive_upper_bound(q: np.ndarray, ucb_lambda: float, ensemble_std: str) -> np.ndarray:
    members, actions = q.shape
    bound = np.zeros(actions)
    for a in range(actions):
        mean = sum(q[k, a] for k in range(members)) / members
        squares = sum((q[k, a] - mean) ** 2 for k in range(members))
        bound[a] = mean + ucb_lambda * math.sqrt(squares / (members if ensemble_std == "population" else members - 1))
    return bound


@pytest.mark.parametrize(
    ("members", "ensemble_std"),
    [(k, std) for k in (1, 2, 5) for std in ("population", "sample") if k > 1 or std[0] == "p"],
)
@pytest.mark.parametrize("ucb_lambda", [0.0, 0.5, 1.0, 10.0])
def test_the_upper_bound_is_the_mean_and_lambda_standard_deviations(
    members: int, ensemble_std: str, ucb_lambda: float
) -> None:
    generator = np.random.default_rng(members)
    for _ in range(10):
        q = generator.normal(3.0, 2.0, size=(members, ACTIONS))
        expected = naive_upper_bound(q, ucb_lambda, ensemble_std)
        np.testing.assert_allclose(upper_bound(q, ucb_lambda, ensemble_std), expected, rtol=1e-12)
        np.testing.assert_allclose(upper_bound(q.astype(np.float32), ucb_lambda, ensemble_std), expected, rtol=1e-4)


@pytest.mark.filterwarnings("error")  # numpy warns of a sample of one
@pytest.mark.parametrize("ensemble_std", ["population", "sample"])
@pytest.mark.parametrize("ucb_lambda", [0.0, 1.0, 100.0])
def test_the_upper_bound_of_one_member_is_its_values_bit_for_bit(ucb_lambda: float, ensemble_std: str) -> None:
    q = np.random.default_rng(0).normal(1e4, 1e3, size=(1, 50)).astype(np.float32)
    assert np.array_equal(upper_bound(q, ucb_lambda, ensemble_std), q[0])
    for one in q.reshape(5, 1, 10):
        assert chosen(one, "ucb", ucb_lambda=ucb_lambda, ensemble_std=ensemble_std) == one[0].argmax()


def chosen(q: np.ndarray, exploration: str, **changes: Any) -> int:
    algo = make_algo(exploration, ensemble_size=len(q), **changes)
    return make_explorer(algo).act(0, lambda: q)


def test_ucb_prefers_an_action_that_members_disagree_on() -> None:
    q = np.array([[2.0, 0.0, 1.9, 1.0], [2.0, 3.5, 1.9, 1.0]])  # of action 1: mean 1.75, std 1.75 or, as a sample, 2.47
    assert chosen(q, "greedy") == chosen(q, "epsilon_greedy") == 0
    assert chosen(q, "ucb", ucb_lambda=1.0, ensemble_std="population") == 1
    assert chosen(q, "ucb", ucb_lambda=0.12, ensemble_std="population") == 0  # 1.96
    assert chosen(q, "ucb", ucb_lambda=0.12, ensemble_std="sample") == 1  # 2.05
    assert chosen(q, "ucb", ucb_lambda=0.0, ensemble_std="sample") == 0


@pytest.mark.parametrize("ensemble_std", ["population", "sample"])
def test_each_exploration_takes_the_best_action_by_its_score(ensemble_std: str) -> None:
    generator, differ = np.random.default_rng(5), 0
    for _ in range(100):
        q = generator.normal(size=(3, ACTIONS))
        mean = naive_upper_bound(q, 0.0, "population").argmax()
        bound = naive_upper_bound(q, 2.0, ensemble_std).argmax()
        assert chosen(q, "ucb", ucb_lambda=2.0, ensemble_std=ensemble_std) == bound
        assert chosen(q, "greedy") == chosen(q, "epsilon_greedy") == mean
        differ += int(mean != bound)
    assert differ > 10


# Random actions


@pytest.mark.parametrize("exploration", ["epsilon_greedy", "episode_member"])
@pytest.mark.parametrize(
    ("step", "share"), [(0, 1.0), (1, 0.9955), (50, 0.775), (100, 0.55), (199, 0.1045), (200, 0.1), (10**6, 0.1)]
)
def test_epsilon_falls_linearly_and_then_stays(exploration: str, step: int, share: float) -> None:
    assert random_share(make_algo(exploration, epsilon=SCHEDULE), step) == pytest.approx(share, rel=1e-12)


def dopamine_epsilon(decay_period: int, step: int, warmup_steps: int, epsilon: float) -> float:
    """Dopamine's linearly_decaying_epsilon."""
    steps_left = decay_period + warmup_steps - step
    bonus = (1.0 - epsilon) * steps_left / decay_period
    return epsilon + float(np.clip(bonus, 0.0, 1.0 - epsilon))


@pytest.mark.parametrize(("begin", "steps", "end"), [(0, 200, 0.1), (16, 20, 0.01), (100, 1, 0.0), (7, 50, 1.0)])
def test_epsilon_begins_to_fall_as_in_dopamine(begin: int, steps: int, end: float) -> None:
    algo = make_algo("epsilon_greedy", epsilon=EpsilonConfig(start=1.0, end=end, begin=begin, steps=steps))
    shares = [random_share(algo, step) for step in range(begin + steps + 20)]
    assert shares == pytest.approx([dopamine_epsilon(steps, step, begin, end) for step in range(len(shares))])
    assert set(shares[: begin + 1]) == {1.0} and shares[-1] == pytest.approx(end)
    assert end == 1 or shares[begin + 1] < 1


def test_a_late_epsilon_may_start_anywhere() -> None:
    algo = make_algo("epsilon_greedy", epsilon=EpsilonConfig(start=0.2, end=0.6, begin=3, steps=4))
    shares = [random_share(algo, step) for step in range(9)]
    assert shares == pytest.approx([0.2, 0.2, 0.2, 0.2, 0.3, 0.4, 0.5, 0.6, 0.6])


def test_epsilon_may_rise_or_stay() -> None:
    rising = make_algo("epsilon_greedy", epsilon=EpsilonConfig(start=0.2, end=0.6, steps=10))
    assert [random_share(rising, step) for step in (0, 5, 10, 11)] == pytest.approx([0.2, 0.4, 0.6, 0.6])
    constant = make_algo("epsilon_greedy", epsilon=EpsilonConfig(start=0.3, end=0.3, steps=1))
    assert [random_share(constant, step) for step in (0, 1, 2)] == pytest.approx([0.3, 0.3, 0.3])


@pytest.mark.parametrize("exploration", ["ucb", "greedy"])
def test_ucb_and_greedy_have_no_random_share_unless_asked_for(exploration: str) -> None:
    algo = make_algo(exploration, epsilon=SCHEDULE)
    assert [random_share(algo, step) for step in (0, 100, 200, 300)] == [0, 0, 0, 0]
    asked = make_algo(exploration, epsilon=replace(SCHEDULE, with_noise=True))
    assert [random_share(asked, step) for step in (0, 100, 200, 300)] == pytest.approx([1, 0.55, 0.1, 0.1])


@pytest.mark.parametrize("exploration", ["epsilon_greedy", "episode_member"])
@pytest.mark.parametrize("step", [0, 50, 100, 500])
def test_random_actions_come_at_the_scheduled_rate_and_are_uniform(exploration: str, step: int) -> None:
    """An action is random where the values were not asked for; the greedy action is among the random ones, too."""
    algo = make_algo(exploration, epsilon=SCHEDULE)
    explorer, values, draws = make_explorer(algo, seed=step), favourites(), 4000
    explorer.start_episode()
    at_random: list[int] = []
    greedily: list[int] = []
    for _ in range(draws):
        before = values.calls
        action = explorer.act(step, values)
        (at_random if values.calls == before else greedily).append(action)
    share = {0: 1.0, 50: 0.775, 100: 0.55, 500: 0.1}[step]
    deviation = math.sqrt(share * (1 - share) / draws)
    assert abs(len(at_random) / draws - share) <= 4 * deviation
    assert chisquare(np.bincount(at_random, minlength=ACTIONS)).pvalue > 1e-3
    assert len(set(greedily)) == (0 if step == 0 else 1)
    if exploration == "epsilon_greedy":
        assert set(greedily) <= {ACTIONS - 1}


@pytest.mark.parametrize("exploration", ["ucb", "greedy"])
def test_ucb_and_greedy_never_act_at_random_and_draw_nothing(exploration: str) -> None:
    explorer, values = make_explorer(make_algo(exploration, epsilon=SCHEDULE)), favourites()
    before = explorer.state_dict()
    actions = []
    for step in range(100):
        if step % 10 == 0:
            explorer.start_episode()
        actions.append(explorer.act(step, values))
    assert set(actions) == {ACTIONS - 1}
    assert values.calls == 100
    assert explorer.state_dict() == before


def test_values_are_not_asked_for_where_the_action_is_random() -> None:
    def fail() -> np.ndarray:
        raise AssertionError("not needed")

    explorer = make_explorer(make_algo("epsilon_greedy", epsilon=EpsilonConfig(start=1.0, end=1.0, steps=1)))
    assert {explorer.act(step, fail) for step in range(200)} == set(range(ACTIONS))


@pytest.mark.parametrize("exploration", EXPLORATIONS)
def test_values_are_asked_for_once_where_the_action_is_greedy(exploration: str) -> None:
    explorer, values = make_explorer(make_algo(exploration)), favourites()
    for step in range(10):
        action = explorer.act(step, values)
        assert type(action) is int
        assert values.calls == step + 1


# The first interactions


@pytest.mark.parametrize("exploration", EXPLORATIONS)
def test_the_first_steps_are_random_whatever_explores(exploration: str) -> None:
    algo = make_algo(exploration, random_steps=30)
    later = random_share(make_algo(exploration), 30)
    assert [random_share(algo, step) for step in range(32)] == [1.0] * 30 + [later] * 2
    falling = make_algo(exploration, random_steps=30, epsilon=replace(SCHEDULE, with_noise=True))
    shares = [random_share(falling, step) for step in range(32)]
    assert shares == pytest.approx([1.0] * 30 + [0.865, 0.8605])  # where the schedule would be anyway


@pytest.mark.parametrize(
    "overrides",
    [
        ("algo=meanq_rainbow", "algo.epsilon.with_noise=false"),
        ("algo=meanq", "algo.epsilon.start=0.5", "algo.epsilon.end=0.3"),
    ],
    ids=["ucb", "epsilon_greedy"],
)
def test_a_run_begins_with_uniform_actions_that_ask_for_no_values(overrides: tuple[str, ...], tmp_path: Path) -> None:
    """All actions of a run again, from the stream of actions and the values that the run asked for."""
    first, total = 50, 100
    run = make_run(
        tmp_path, *SHORT, *overrides, "algo.ensemble_size=2", f"algo.random_steps={first}", f"total_steps={total}"
    )
    actions: list[int] = []
    asked: list[tuple[int, np.ndarray]] = []  # at which action, and the answer
    step, values = run.loop.env.step, run.loop.agent.values

    def spy_step(action: int) -> Any:
        actions.append(action)
        return step(action)

    def spy_values(states: np.ndarray, *, explore: bool = False) -> np.ndarray:
        q = values(states, explore=explore)
        if explore:
            asked.append((len(actions), q[:, 0]))
        return q

    run.loop.env.step, run.loop.agent.values = spy_step, spy_values  # type: ignore[method-assign]
    run.train(SilentReporter())

    generator, algo, answers = stream(run.config.seed, "actions"), run.config.algo, iter(asked)
    for t in range(total):
        share = 1.0 if t < first else 0.0
        if algo.exploration == "epsilon_greedy" and t >= first:
            share = 0.5 - 0.2 * t / 200
        if share > 0 and generator.random() < share:
            expected = generator.integers(run.loop.env.num_actions)
        else:
            when, q = next(answers)
            assert when == t
            expected = naive_upper_bound(q, 1.0 if algo.exploration == "ucb" else 0.0, "population").argmax()
        assert actions[t] == expected, t
    assert len(actions) == total and next(answers, None) is None
    assert 0 < len(asked) <= total - first and asked[0][0] >= first
    assert set(actions[:first]) == set(range(run.loop.env.num_actions))


# One member for an episode


def play_episodes(explorer: Explorer, episodes: int, steps: int, first_step: int = 0) -> list[list[int]]:
    """The actions of each episode; member k would always take action k."""
    values = Values(np.eye(ACTIONS))
    actions = []
    for episode in range(episodes):
        explorer.start_episode()
        first = first_step + steps * episode
        actions.append([explorer.act(first + step, values) for step in range(steps)])
    return actions


def test_one_member_acts_for_a_whole_episode_and_another_in_the_next() -> None:
    actions = play_episodes(make_explorer(make_algo("episode_member")), episodes=800, steps=5)
    assert all(len(set(episode)) == 1 for episode in actions)
    members = np.array([episode[0] for episode in actions])
    assert chisquare(np.bincount(members, minlength=ACTIONS)).pvalue > 1e-3
    assert 0.15 < (members[1:] == members[:-1]).mean() < 0.35  # a draw at each start: one in four stays


def test_the_acting_member_is_one_of_the_ensemble() -> None:
    actions = play_episodes(make_explorer(make_algo("episode_member", ensemble_size=2)), episodes=50, steps=1)
    assert {episode[0] for episode in actions} == {0, 1}


def test_the_acting_member_does_not_depend_on_random_actions() -> None:
    """Members are drawn from a generator of their own."""
    quiet = play_episodes(make_explorer(make_algo("episode_member")), episodes=30, steps=40)
    half = make_algo("episode_member", epsilon=EpsilonConfig(start=0.5, end=0.5, steps=1))
    noisy = play_episodes(make_explorer(half), episodes=30, steps=40)
    for without, with_random in zip(quiet, noisy, strict=True):
        assert np.bincount(with_random).argmax() == without[0]
        assert len(set(with_random)) > 1


@pytest.mark.parametrize("exploration", ["epsilon_greedy", "ucb", "greedy"])
def test_other_explorations_draw_no_member(exploration: str) -> None:
    explorer = make_explorer(make_algo(exploration, epsilon=SCHEDULE))
    before = explorer.state_dict()
    for _ in range(5):
        explorer.start_episode()
    assert explorer.state_dict() == before


# State


@pytest.mark.parametrize("exploration", EXPLORATIONS)
def test_state_round_trip(exploration: str) -> None:
    """From the middle of an episode; what the first explorer does since is not in the state."""
    algo = make_algo(exploration, epsilon=EpsilonConfig(start=0.5, end=0.3, steps=40))
    values = Values(np.eye(ACTIONS) + np.array([0.0, 0.0, 0.6, 0.0]))

    def go_on(explorer: Explorer) -> list[int]:
        actions = []
        for step in range(13, 113):
            if step % 10 == 0:
                explorer.start_episode()
            actions.append(explorer.act(step, values))
        return actions

    original = make_explorer(algo, seed=4)
    for step in range(13):
        if step % 4 == 0:
            original.start_episode()
        original.act(step, values)
    state = original.state_dict()
    expected = go_on(original)
    members = set()
    for seed in range(6):
        other = make_explorer(algo, seed=50 + seed)
        other.start_episode()
        members.add(other.state_dict()["member"])
        other.load_state_dict(state)
        assert go_on(other) == expected
        assert other.state_dict() == original.state_dict()
    assert (len(members) > 1) == (exploration == "episode_member")
