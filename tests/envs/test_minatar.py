"""MinAtar games against the package's own environment, and the randomness that each of ours owns."""

import importlib.util
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import minatar
import numpy as np
import pytest
from scipy import stats

from meanq.config.errors import ConfigError
from meanq.envs import Step, make_env
from meanq.envs.minatar import MinAtar
from tests.helpers import compose

SHAPES = {  # channels and minimal actions
    "asterix": (4, 5),
    "breakout": (4, 3),
    "freeway": (7, 3),
    "seaquest": (10, 6),
    "space_invaders": (6, 4),
}
every_game = pytest.mark.parametrize("game", SHAPES)


def make(game: str, seed: int = 0, **options: float) -> MinAtar:
    return MinAtar(game, np.random.default_rng(seed), **options)


def play(env: MinAtar, steps: int, seed: int = 0) -> list[Step]:
    """Random actions, the same for the same seed; a new game after the last. A reset is a step without a reward."""
    actions = np.random.default_rng(seed)
    trajectory = []
    ended = True
    while len(trajectory) < steps:
        if ended:
            trajectory.append(Step(env.reset(), 0.0, False, False, False))
        trajectory.append(env.step(int(actions.integers(env.num_actions))))
        ended = trajectory[-1].terminal or trajectory[-1].truncated
    return trajectory


def same(first: list[Step], second: list[Step]) -> bool:
    return len(first) == len(second) and all(
        np.array_equal(a.frame, b.frame) and a[1:] == b[1:] for a, b in zip(first, second, strict=True)
    )


@every_game
def test_shapes_and_actions(game: str) -> None:
    env = make_env(compose(f"env=minatar/{game}").env, np.random.default_rng(0))
    channels, actions = SHAPES[game]
    assert env.frame_shape == (channels, 10, 10)
    assert env.num_actions == actions
    frames = [env.reset()] + [env.step(action).frame for action in range(actions)]
    for frame in frames:
        assert frame.shape == (channels, 10, 10)
        assert frame.dtype == env.frame_dtype == np.uint8
        assert set(np.unique(frame)) == {0, 1}
    assert env.frame_scale == 1


def test_the_configuration_is_minatar_s_own() -> None:
    options = compose("env=minatar/asterix").env.options
    own = minatar.Environment("asterix")
    assert options["sticky_actions"] == own.sticky_action_prob == 0.1
    assert options["difficulty_ramping"] == own.env.ramping is True


@pytest.mark.parametrize(("sticky", "ramping"), [(0.1, True), (0.0, False)])
@every_game
def test_it_equals_the_package_s_environment(game: str, sticky: float, ramping: bool) -> None:
    env = make(game, sticky_actions=sticky, difficulty_ramping=ramping, noop_max=0)
    env.seed(np.random.default_rng(11))
    reference = minatar.Environment(game, sticky_action_prob=sticky, difficulty_ramping=ramping)
    reference.seed(int(np.random.default_rng(11).integers(2**32)))
    actions = np.random.default_rng(12)
    ended = True
    games = 0
    for t in range(500):
        if ended:
            reference.reset()
            reference.last_action = 0  # a package's game can begin with the last action of the game before; ours cannot
            np.testing.assert_array_equal(env.reset(), reference.state().transpose(2, 0, 1))
            games += 1
        action = int(actions.integers(env.num_actions))
        outcome = env.step(action)
        reward, ended = reference.act(reference.minimal_action_set()[action])
        assert (outcome.reward, outcome.terminal, outcome.truncated) == (reward, ended, False), t
        assert not outcome.life_lost
        np.testing.assert_array_equal(outcome.frame, reference.state().transpose(2, 0, 1), err_msg=f"step {t}")
    assert games > 1 or game == "freeway"  # which always lasts 2,500 steps


@pytest.mark.parametrize("change", [{"sticky_actions": 0.5}, {"difficulty_ramping": False}])
def test_options_change_the_game(change: dict[str, float]) -> None:
    """Otherwise the comparison above would show little. Asterix becomes harder after 100 steps."""
    assert not same(play(make("asterix"), 3000), play(make("asterix", **change), 3000))


@every_game
def test_the_same_seed_gives_the_same_games(game: str) -> None:
    first = play(make(game, seed=1), 400)
    assert same(first, play(make(game, seed=1), 400))
    assert not same(first, play(make(game, seed=2), 400))


@every_game
def test_a_seed_given_later_replaces_everything(game: str) -> None:
    """What was played before leaves no trace: evaluations reuse environments."""
    used, fresh = make(game, seed=1), make(game, seed=2)
    play(used, 300)
    for env in (used, fresh):
        env.seed(np.random.default_rng(3))
    assert same(play(used, 300), play(fresh, 300))


@every_game
def test_the_global_generator_is_neither_used_nor_changed(game: str) -> None:
    trajectories = []
    for seed in (1, 2):
        np.random.seed(seed)  # noqa: NPY002
        before = pickle.dumps(np.random.get_state())  # noqa: NPY002
        trajectories.append(play(make(game, seed=4), 300))
        assert pickle.dumps(np.random.get_state()) == before  # noqa: NPY002
    assert same(*trajectories)


def test_zero_to_29_noops_each_as_likely() -> None:
    """Freeway counts its 2,500 steps down."""
    env = make("freeway", seed=0)
    counts = Counter[int]()
    for _ in range(600):
        env.reset()
        counts[2500 - env.state_dict()["game"]["terminate_timer"]] += 1
    assert sorted(counts) == list(range(30))
    assert stats.chisquare(list(counts.values())).pvalue > 0.01


def test_a_game_that_ends_while_waiting_starts_again() -> None:
    """A ball that nobody returns is lost after a few steps in Breakout, which would make most starts terminal."""
    env = make("breakout", seed=0)
    starts = set()
    for _ in range(300):
        starts.add(env.reset().tobytes())
        assert not env.state_dict()["game"]["terminal"]
    assert len(starts) > 10
    lone = make("breakout", noop_max=0, sticky_actions=0.0)
    lone.reset()
    assert any(lone.step(0).terminal for _ in range(29))


def test_the_limit_truncates() -> None:
    env = make("freeway", max_steps=20)
    for _ in range(3):  # counted anew in each game, no-ops not counted
        env.reset()
        outcomes = [env.step(0) for _ in range(20)]
        assert [outcome.truncated for outcome in outcomes] == [False] * 19 + [True]
        assert not any(outcome.terminal for outcome in outcomes)


def test_a_game_that_ends_at_the_limit_is_over() -> None:
    def last(max_steps: int) -> tuple[int, Step]:
        env = make("breakout", max_steps=max_steps)
        env.reset()
        outcomes = [env.step(0)]
        while not (outcomes[-1].terminal or outcomes[-1].truncated):
            outcomes.append(env.step(0))
        return len(outcomes), outcomes[-1]

    length, outcome = last(1000)
    assert outcome.terminal and length > 1
    assert last(length)[1][2:] == (True, False, False)
    assert last(length - 1)[1][2:] == (False, True, False)


@pytest.mark.parametrize("steps", [1, 137])
@every_game
def test_a_saved_game_goes_on_exactly(game: str, steps: int) -> None:
    env, fresh, busy = (make(game, seed=seed, sticky_actions=0.9, max_steps=250) for seed in (5, 6, 7))
    play(env, steps)
    state = pickle.loads(pickle.dumps(env.state_dict()))
    play(busy, 50)
    for other in (fresh, busy):
        other.load_state_dict(state)
    actions = np.random.default_rng(8)
    for t in range(300):
        action = int(actions.integers(env.num_actions))
        outcomes = [[each.step(action)] for each in (env, fresh, busy)]
        assert same(outcomes[0], outcomes[1]) and same(outcomes[0], outcomes[2]), t
        if outcomes[0][0].terminal or outcomes[0][0].truncated:
            frame = env.reset()
            for other in (fresh, busy):
                np.testing.assert_array_equal(frame, other.reset())


@every_game
def test_a_saved_state_is_a_copy(game: str) -> None:
    env = make(game, seed=5)
    play(env, 50)
    state = env.state_dict()
    before = pickle.dumps(state)
    other = make(game)
    other.load_state_dict(state)
    play(env, 50), play(other, 50)
    for _ in range(20):
        env.step(0), other.step(0)
    assert pickle.dumps(state) == before


def test_an_unknown_game() -> None:
    with pytest.raises(ConfigError, match=r"^env.id=asterisk: .*asterix") as error:
        make("asterisk")
    assert "\n" not in str(error.value)


def test_plotting_libraries_are_not_imported() -> None:
    """The package itself imports them, which takes seconds."""
    assert importlib.util.find_spec("seaborn") and importlib.util.find_spec("matplotlib")
    program = """
import sys
import numpy as np
from meanq.envs.minatar import MinAtar
for game in sys.argv[1:]:
    env = MinAtar(game, np.random.default_rng(0))
    env.reset()
    env.step(0)
print(sorted({"seaborn", "matplotlib", "minatar.environment"} & set(sys.modules)))
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program, *SHAPES], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
