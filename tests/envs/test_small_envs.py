"""The chain's true values, anything in gymnasium, and environments of one's own."""

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from meanq.config.errors import ConfigError
from meanq.envs import Environment, Step, make_env
from meanq.envs.chain import Chain
from meanq.envs.gym import Gymnasium
from tests.helpers import compose


def chain(seed: int = 0, **options: float) -> Chain:
    return Chain("chain", np.random.default_rng(seed), **options)


def transitions(length: int, actions: int, slip: float) -> np.ndarray:
    """P[s, a, s'] written down cell by cell; s' = length is the end."""
    p = np.zeros((length, actions, length + 1))
    for s in range(length):
        for a in range(actions):
            for direction in (-1, 1):
                wanted = 1 if a == 0 else -1
                p[s, a, max(0, s + direction)] += 1 - slip if direction == wanted else slip
    return p


@pytest.mark.parametrize("length", [1, 2, 8, 20])
def test_without_slips_values_are_powers_of_the_discount(length: int) -> None:
    discount = 0.9
    q = chain(length=length, slip=0.0).all_true_q(discount)
    for cell in range(length):
        right = discount ** (length - 1 - cell)
        left = discount * discount ** (length - 1 - max(0, cell - 1))
        np.testing.assert_allclose(q[cell], [right, left], rtol=1e-12)


def test_one_cell_with_slips_in_closed_form() -> None:
    """From the only cell, right ends with probability 1 - slip, else it is the same again."""
    q = chain(length=1, slip=0.3).all_true_q(0.8)
    value = 0.7 / (1 - 0.3 * 0.8)
    np.testing.assert_allclose(q, [[value, 0.3 + 0.7 * 0.8 * value]], rtol=1e-12)


@pytest.mark.parametrize("slip", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize(("length", "actions"), [(8, 2), (3, 6)])
def test_bellman_s_equation(length: int, actions: int, slip: float) -> None:
    discount = 0.97
    q = chain(length=length, actions=actions, slip=slip).all_true_q(discount)
    p = transitions(length, actions, slip)
    assert q.shape == (length, actions)
    value = np.append(q.max(1), 0.0)
    reward = p[:, :, -1]
    np.testing.assert_allclose(q, reward + discount * p @ value, atol=1e-12)
    # Fixed points of the equation are unique below discount 1; the linear system of the greedy policy says the same.
    greedy = q.argmax(1)
    rows = np.arange(length)
    solved = np.linalg.solve(np.eye(length) - discount * p[rows, greedy, :-1], reward[rows, greedy])
    np.testing.assert_allclose(q.max(1), solved, atol=1e-12)


def test_without_discount_the_end_is_certain() -> None:
    np.testing.assert_allclose(chain(slip=0.2).all_true_q(1.0), 1.0, atol=1e-9)


def test_true_values_of_the_current_state() -> None:
    env = chain()
    table = env.all_true_q(0.99)
    seen = set()
    for _ in range(50):
        cell = int(env.reset().argmax())
        seen.add(cell)
        np.testing.assert_array_equal(env.true_q(0.99), table[cell])
        outcome = env.step(1)
        if not outcome.terminal:
            np.testing.assert_array_equal(env.true_q(0.99), table[outcome.frame.argmax()])
    assert seen == set(range(8))
    env.reset()
    assert not np.array_equal(env.true_q(0.9), env.true_q(0.99))


def test_values_are_expected_returns() -> None:
    """A random first action, then the best: the discounted return is Q on average, in every cell for each action."""
    discount = 0.9
    env = chain(seed=1, length=4, actions=3, slip=0.25, reward_noise=0.1, max_steps=10_000)
    first = np.random.default_rng(2)
    errors: dict[tuple[int, int], list[float]] = {}
    for _ in range(12_000):
        cell = int(env.reset().argmax())
        action = first_action = int(first.integers(3))
        expected = env.true_q(discount)[action]
        total, factor, over = 0.0, 1.0, False
        while not over:
            outcome = env.step(action)
            total, factor, over = total + factor * outcome.reward, factor * discount, outcome.terminal
            action = 0
        errors.setdefault((cell, first_action), []).append(total - expected)
    assert len(errors) == 12
    for key, differences in errors.items():
        error = np.std(differences) / np.sqrt(len(differences))
        assert abs(np.mean(differences)) < 4 * error, key
        assert error < 0.01


def test_moves_follow_the_documentation() -> None:
    """Frequencies of next cells against the table of probabilities, for every cell and action."""
    env = chain(seed=3, length=3, actions=3, slip=0.25)
    counts = np.zeros((3, 3, 4))
    actions = np.random.default_rng(4)
    for _ in range(9000):
        cell, action = int(env.reset().argmax()), int(actions.integers(3))
        outcome = env.step(action)
        assert outcome.terminal == (not outcome.frame.any())
        assert outcome.reward == float(outcome.terminal)
        counts[cell, action, 3 if outcome.terminal else outcome.frame.argmax()] += 1
    visits = counts.sum(-1, keepdims=True)
    assert visits.min() > 800
    expected = transitions(3, 3, 0.25)
    np.testing.assert_allclose(counts / visits, expected, atol=4 * np.sqrt(0.25 / visits.min()))
    np.testing.assert_array_equal(counts > 0, expected > 0)


def test_reward_noise_has_mean_zero() -> None:
    env = chain(seed=5, reward_noise=0.5, max_steps=10**9)
    rewards: dict[bool, list[float]] = {False: [], True: []}
    env.reset()
    for _ in range(20_000):
        outcome = env.step(0)
        rewards[outcome.terminal].append(outcome.reward)
        if outcome.terminal:
            env.reset()
    for terminal, sample in rewards.items():
        assert len(sample) > 1000
        assert abs(np.mean(sample) - float(terminal)) < 4 * 0.5 / np.sqrt(len(sample))
        assert np.std(sample) == pytest.approx(0.5, rel=0.1)
    np.testing.assert_array_equal(env.all_true_q(0.9), chain().all_true_q(0.9))


def test_a_chain_truncates() -> None:
    env = chain(slip=0.0, max_steps=7)
    for _ in range(2):
        env.reset()
        outcomes = [env.step(1) for _ in range(7)]
        assert [outcome.truncated for outcome in outcomes] == [False] * 6 + [True]
        assert not any(outcome.terminal for outcome in outcomes)
    while env.reset().argmax() != 1:
        pass
    outcomes = [env.step(0) for _ in range(7)]  # reaches the end at the limit
    assert (outcomes[-1].terminal, outcomes[-1].truncated) == (True, False)


def test_a_chain_s_seeds_and_saved_states() -> None:
    def play(env: Chain, steps: int = 60) -> list[tuple[Any, ...]]:
        trajectory: list[tuple[Any, ...]] = []
        for t in range(steps):
            outcome = env.step(t % 2)
            trajectory.append((outcome.frame.tolist(), *outcome[1:]))
            if outcome.terminal or outcome.truncated:
                trajectory.append(tuple(env.reset().tolist()))
        return trajectory

    one, two, other = (chain(seed=seed, reward_noise=1.0) for seed in (1, 1, 2))
    for env in (one, two, other):
        env.reset()
    expected = play(one)
    assert play(two) == expected
    assert play(other) != expected
    state = pickle.loads(pickle.dumps(one.state_dict()))
    other.load_state_dict(state)
    assert play(other) == play(one)


def gym(id: str, seed: int = 0, **make: Any) -> Gymnasium:
    return Gymnasium(id, np.random.default_rng(seed), make=make)


def test_cartpole() -> None:
    env = make_env(compose("env=gymnasium").env, np.random.default_rng(0))
    assert (env.num_actions, env.frame_shape, env.frame_dtype, env.frame_scale) == (2, (4,), np.float32, 1.0)
    frame = env.reset()
    assert frame.shape == (4,) and frame.dtype == np.float32
    rewards = []
    while True:
        outcome = env.step(1)
        rewards.append(outcome.reward)
        assert outcome.frame.dtype == np.float32
        if outcome.terminal:
            break
    assert (outcome.truncated, outcome.life_lost) == (False, False)
    assert 5 < len(rewards) < 20 and set(rewards) == {1.0}


def test_a_time_limit_is_no_end() -> None:
    env = gym("CartPole-v1", seed=1)
    frame = env.reset()
    for t in range(1, 501):
        outcome = env.step(int(3 * frame[2] + frame[3] > 0))  # balances
        frame = outcome.frame
        assert (outcome.terminal, outcome.truncated) == (False, t == 500)


def test_gymnasium_s_own_steps() -> None:
    env, reference = gym("CartPole-v1", seed=3), gymnasium.make("CartPole-v1")
    seeds = np.random.default_rng(3)  # each game has its own

    def reset() -> np.ndarray:
        return reference.reset(seed=int(seeds.integers(2**32)))[0]

    np.testing.assert_array_equal(env.reset(), reset())
    actions = np.random.default_rng(0)
    for _ in range(100):
        action = int(actions.integers(2))
        outcome = env.step(action)
        observation, reward, terminal, truncated, _ = reference.step(action)
        np.testing.assert_array_equal(outcome.frame, observation)
        assert outcome[1:4] == (reward, terminal, truncated)
        if terminal:
            np.testing.assert_array_equal(env.reset(), reset())


def test_a_gymnasium_game_is_played_again_up_to_where_it_was() -> None:
    env, other = gym("CartPole-v1", seed=3), gym("CartPole-v1", seed=4)
    env.reset()
    env.reset()
    for action in (0, 1, 1):
        env.step(action)
    state = env.state_dict()
    other.load_state_dict(state)
    for action in (0, 1, 0):
        np.testing.assert_array_equal(env.step(action).frame, other.step(action).frame)
    np.testing.assert_array_equal(env.reset(), other.reset())
    state["frame"] = state["frame"] + 1
    with pytest.raises(RuntimeError, match=r"CartPole-v1: the same seed and actions gave a different frame"):
        other.load_state_dict(state)


def test_gymnasium_seeds() -> None:
    def starts(env: Gymnasium) -> list[list[float]]:
        return [env.reset().tolist() for _ in range(3)]

    env = gym("CartPole-v1", seed=1)
    expected = starts(env)
    assert len({tuple(start) for start in expected}) == 3
    assert starts(gym("CartPole-v1", seed=1)) == expected
    assert starts(gym("CartPole-v1", seed=2)) != expected
    for current in (env, gym("CartPole-v1", seed=9)):
        current.seed(np.random.default_rng(7))
        again = starts(current)
        current.seed(np.random.default_rng(7))
        assert starts(current) == again != expected


def test_arguments_of_make() -> None:
    env = gym("CartPole-v1", max_episode_steps=3)
    env.reset()
    assert [env.step(t % 2).truncated for t in range(3)] == [False, False, True]


def test_integers_become_one_hot() -> None:
    env = gym("FrozenLake-v1", is_slippery=False)
    assert (env.num_actions, env.frame_shape, env.frame_dtype) == (4, (16,), np.float32)
    frames = [env.reset()] + [env.step(action).frame for action in (2, 2, 1)]  # right, right, down
    np.testing.assert_array_equal(frames, np.eye(16, dtype=np.float32)[[0, 1, 2, 6]])


class Small(gymnasium.Env):
    """Observes whatever it is given, and pays the action."""

    def __init__(self, observations: spaces.Space, actions: spaces.Space, observation: Any = None) -> None:
        self.observation_space, self.action_space, self._observation = observations, actions, observation

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observation, float(action), True, True, {}


@pytest.fixture(scope="module", autouse=True)
def small_env() -> None:
    gymnasium.register("Small-v0", Small)


def small(observations: spaces.Space, observation: Any, actions: spaces.Space | None = None) -> Gymnasium:
    return gym("Small-v0", observations=observations, actions=actions or spaces.Discrete(3), observation=observation)


@pytest.mark.filterwarnings("ignore:.*share an object")
def test_images_become_channels_first() -> None:
    image = np.random.default_rng(0).integers(256, size=(5, 6, 3), dtype=np.uint8)
    env = small(spaces.Box(0, 255, (5, 6, 3), np.uint8), image)
    assert (env.frame_shape, env.frame_dtype, env.frame_scale) == ((3, 5, 6), np.uint8, 1 / 255)
    for frame in (env.reset(), env.step(0).frame):
        assert frame.dtype == np.uint8
        for channel in range(3):
            np.testing.assert_array_equal(frame[channel], image[:, :, channel])


@pytest.mark.filterwarnings("ignore:.*share an object")
def test_grey_images_get_a_channel() -> None:
    image = np.arange(30, dtype=np.uint8).reshape(5, 6)
    env = small(spaces.Box(0, 255, (5, 6), np.uint8), image)
    assert (env.frame_shape, env.frame_scale) == ((1, 5, 6), 1 / 255)
    np.testing.assert_array_equal(env.reset(), image[None])


def test_arrays_become_vectors() -> None:
    observation = np.arange(6, dtype=np.float64).reshape(2, 3) / 7
    env = small(spaces.Box(-1, 1, (2, 3), np.float64), observation)
    assert (env.frame_shape, env.frame_dtype, env.frame_scale) == ((6,), np.float32, 1.0)
    frame = env.reset()
    assert frame.dtype == np.float32
    np.testing.assert_allclose(frame, observation.ravel(), rtol=1e-6)


def test_spaces_that_start_elsewhere() -> None:
    env = small(spaces.Discrete(4, start=10), np.int64(12), spaces.Discrete(2, start=5))
    np.testing.assert_array_equal(env.reset(), [0, 0, 1, 0])
    assert [env.step(action).reward for action in range(2) if env.reset() is not None] == [5, 6]


def test_an_end_at_the_limit_is_an_end() -> None:
    env = small(spaces.Discrete(2), np.int64(0))
    env.reset()
    outcome = env.step(1)
    assert (outcome.terminal, outcome.truncated) == (True, False)


WIDE = np.linspace(1, 2, 40, dtype=np.float32)


@pytest.mark.parametrize(
    ("id", "make", "expected"),
    [
        ("Pendulum-v1", {}, r"^env.id=Pendulum-v1: .*discrete"),
        ("Blackjack-v1", {}, r"^env.id=Blackjack-v1: .*observations"),
        ("NoSuchGame-v1", {}, r"^env.id=NoSuchGame-v1: .*exist"),
        ("CartPole-v77", {}, r"^env.id=CartPole-v77: .*v1"),
        ("no_such_module:Game-v1", {}, r"^env.id=no_such_module:Game-v1: .*no_such_module"),
        ("CartPole-v1", {"gravitation": 3}, r"^env.id=CartPole-v1: .*gravitation"),
        (
            "Small-v0",
            {"observations": spaces.Discrete(2), "actions": spaces.Box(-WIDE, WIDE)},  # printed over several lines
            r"^env.id=Small-v0: .*discrete",
        ),
    ],
)
def test_what_cannot_be_learned_is_refused_in_one_line(id: str, make: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){expected}") as error:
        gym(id, **make)
    assert "\n" not in str(error.value)


class Countdown(Environment):
    """Somebody's own environment: it ends after `start` steps and pays what is left."""

    num_actions = 2
    frame_shape = (1,)
    frame_dtype = np.dtype(np.float32)

    def __init__(self, id: str, generator: np.random.Generator, start: int, bonus: float = 0.0) -> None:
        super().__init__(generator)
        self.id, self.start, self.bonus, self.left = id, start, bonus, start

    def reset(self) -> np.ndarray:
        self.left = self.start
        return np.array([self.left], dtype=np.float32)

    def step(self, action: int) -> Step:
        self.left -= 1
        frame = np.array([self.left], dtype=np.float32)
        return Step(frame, self.left + self.bonus, self.left == 0, False, False)


OWN = ("env=custom", f"env.kind={__name__}.Countdown", "env.name=mine")


def test_an_environment_of_one_s_own() -> None:
    env = make_env(compose(*OWN, "+env.options.start=3", "+env.options.bonus=0.5").env, np.random.default_rng(0))
    assert isinstance(env, Countdown)
    assert env.id == "mine"
    env.reset()
    outcomes = [env.step(0) for _ in range(3)]
    assert [(outcome.reward, outcome.terminal) for outcome in outcomes] == [(2.5, False), (1.5, False), (0.5, True)]
    assert env.true_q(0.99) is None
    with pytest.raises(NotImplementedError, match="Countdown"):
        env.state_dict()


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (("env=chain", "+env.options.lenght=5"), "lenght"),
        (("env=breakout", "+env.options.sticky=0.25"), "sticky"),
        (("env=minatar/asterix", "+env.options.frame_skip=4"), "frame_skip"),
        (("env=gymnasium", "+env.options.render=true"), "render"),
        ((*OWN, "+env.options.start=3", "+env.options.generator=1"), "generator"),
        (OWN, "start"),  # required, and missing
    ],
)
def test_wrong_options_are_named(overrides: tuple[str, ...], named: str) -> None:
    with pytest.raises(ConfigError, match=rf"^env.options=.*\(.*'?{named}") as error:
        make_env(compose(*overrides).env, np.random.default_rng(0))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("atarri", r"^env.kind=atarri: .*atari"),
        ("no_such_module.Env", r"^env.kind=no_such_module.Env: .*no_such_module"),
        ("meanq.envs.chain.Chian", r"^env.kind=meanq.envs.chain.Chian: .*Chian"),
    ],
)
def test_an_unknown_kind(kind: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as error:
        compose("env=chain", f"env.kind={kind}")
    assert "\n" not in str(error.value)
