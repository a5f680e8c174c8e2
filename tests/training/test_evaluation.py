"""Evaluation against one episode at a time, and what evaluations and probes depend on."""

import dataclasses
import zlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from scipy.stats import chisquare

from meanq.config.schema import Config
from meanq.envs import Environment, FrameStack, Step, make_env
from meanq.learning.agent import Agent
from meanq.rng import stream
from meanq.rundir.layout import Episode
from meanq.training.evaluation import Evaluator, evaluation_policy, make_probes
from tests.helpers import compose, play

MEMBERS = 3
CONFIGS = {
    "asterix": ("env=minatar/asterix", "evaluation.episodes=8"),
    "freeway": ("env=minatar/freeway", "env.options.max_steps=50", "evaluation.episodes=2"),
    "chain": ("env=chain", "evaluation.episodes=12", "env.options.reward_noise=1.0", "env.clip_rewards=true"),
    "cartpole": ("env=gymnasium", "evaluation.episodes=4"),
    "pong": ("env=pong", "env.options.max_frames=600", "evaluation.episodes=2"),  # truncated
    "ms_pacman": (
        "env=ms_pacman",
        "env.options.max_frames=1600",
        "evaluation.episodes=2",
    ),  # rewards above 1, and lives
}


def fake_values(actions: int) -> Callable[[np.ndarray], np.ndarray]:
    """Values [K, N, A] that look random, but are a function of each state alone, whatever states come with it."""

    def values(states: np.ndarray) -> np.ndarray:
        q = np.empty((MEMBERS, len(states), actions), dtype=np.float32)
        for n, state in enumerate(states):
            q[:, n] = np.random.default_rng(zlib.crc32(state.tobytes())).normal(size=(MEMBERS, actions))
        return q

    return values


def slow_episode(env: Environment, stack: int, discount: float, clip: bool) -> tuple[Episode, bool]:
    """One game, kept whole and summed up afterwards; and whether a life was lost on the way."""
    values = fake_values(env.num_actions)
    frame = env.reset()
    blank = np.zeros_like(frame)
    frames, rewards, lost, first_value = [frame], [], [], None
    over = False
    while not over:
        recent = ([blank] * stack + frames)[-stack:]
        q = np.mean([values(np.concatenate(recent)[None])[k, 0] for k in range(MEMBERS)], axis=0)
        first_value = max(q) if first_value is None else first_value
        outcome = env.step(int(np.argmax(q)))
        frames.append(outcome.frame)
        rewards.append(outcome.reward)
        lost.append(outcome.life_lost)
        over = outcome.terminal or outcome.truncated
    learned = [min(max(reward, -1), 1) if clip else reward for reward in rewards]
    first_life = lost.index(True) + 1 if any(lost) else len(rewards)
    return Episode(
        episode_return=sum(rewards),
        discounted_return=sum(discount**t * r for t, r in enumerate(learned)),
        discounted_return_unclipped=sum(discount**t * r for t, r in enumerate(rewards)),
        discounted_return_first_life=sum(discount**t * r for t, r in enumerate(learned[:first_life])),
        length=len(rewards),
        value=float(first_value),
    ), any(lost)


def environments(config: Config) -> list[Environment]:
    envs = []
    for i in range(config.evaluation.episodes):
        envs.append(make_env(config.env, np.random.default_rng(0)))
        envs[-1].seed(np.random.default_rng(100 + i))
    return envs


def assert_close(episode: Episode, expected: Episode) -> None:
    assert dataclasses.asdict(episode) == pytest.approx(dataclasses.asdict(expected), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", CONFIGS)
def test_all_at_once_equals_one_after_another(name: str) -> None:
    config = compose(*CONFIGS[name])
    envs = environments(config)
    discount, clip = config.algo.discount, config.env.clip_rewards
    episodes = play(fake_values(envs[0].num_actions), envs, config.env.stack, discount, clip)
    slow = [slow_episode(env, config.env.stack, discount, clip) for env in environments(config)]
    assert len(episodes) == config.evaluation.episodes
    for episode, (expected, _) in zip(episodes, slow, strict=True):
        assert_close(episode, expected)
    if name in ("asterix", "chain", "cartpole"):  # games that end at other times
        assert len({episode.length for episode in episodes}) > 2
    if name in ("freeway", "pong"):  # truncated games
        assert {episode.length for episode in episodes} <= ({50} if name == "freeway" else set(range(142, 151)))
    if name in ("chain", "ms_pacman"):  # clipping matters
        assert any(episode.discounted_return != episode.discounted_return_unclipped for episode in episodes)
    if name == "ms_pacman":  # and so do lives
        assert any(lost for _, lost in slow)
        assert any(episode.discounted_return_first_life < episode.discounted_return for episode in episodes)
    else:
        assert all(episode.discounted_return_first_life == episode.discounted_return for episode in episodes)


class Script(Environment):
    """Plays what is written: a reward for each step, and which steps lose a life."""

    num_actions = 2
    frame_shape = (1,)
    frame_dtype = np.dtype(np.float32)

    def __init__(self, rewards: list[float], lost: list[int]) -> None:
        super().__init__(np.random.default_rng(0))
        self._rewards, self._lost, self._t = rewards, lost, 0

    def reset(self) -> np.ndarray:
        self._t = 0
        return np.zeros(1, dtype=np.float32)

    def step(self, action: int) -> Step:
        self._t += 1
        last = self._t == len(self._rewards)
        return Step(np.full(1, self._t, np.float32), self._rewards[self._t - 1], last, False, self._t - 1 in self._lost)


def test_sums_by_hand() -> None:
    """The reward of the step that loses the first life counts towards that life."""
    envs = [Script([3.0, -2.0, 0.5, 4.0], lost=[1, 2]), Script([-5.0], lost=[])]
    values = np.array([[1.0, 2.0], [5.0, 0.0]])  # two members: the mean prefers action 0

    episodes = play(lambda states: np.repeat(values[:, None], len(states), axis=1), envs, 1, discount=0.5, clip=True)
    assert episodes == [
        Episode(
            episode_return=5.5,
            discounted_return=1 - 0.5 + 0.125 + 0.125,
            discounted_return_unclipped=3 - 1 + 0.125 + 0.5,
            discounted_return_first_life=1 - 0.5,
            length=4,
            value=3.0,
        ),
        Episode(-5.0, -1.0, -5.0, -1.0, 1, 3.0),
    ]


def test_an_episode_starts_with_blank_frames() -> None:
    frames = FrameStack(3, (2, 1, 1), np.dtype(np.uint8))
    for first in (10, 50):  # the second episode sees nothing of the first
        states = [frames.start(np.full((2, 1, 1), first)).ravel().tolist()]
        states += [frames.push(np.full((2, 1, 1), first + t)).ravel().tolist() for t in range(1, 5)]
        assert states == [
            [0, 0, 0, 0, first, first],
            [0, 0, first, first, first + 1, first + 1],
            *([t, t, t + 1, t + 1, t + 2, t + 2] for t in range(first, first + 3)),
        ]


@pytest.mark.parametrize("discount", [0.0, 0.5, 1.0])
def test_other_discounts(discount: float) -> None:
    config = compose(*CONFIGS["asterix"])
    envs = environments(config)
    episodes = play(fake_values(envs[0].num_actions), envs, config.env.stack, discount, clip=False)
    for episode, env in zip(episodes, environments(config), strict=True):
        assert_close(episode, slow_episode(env, config.env.stack, discount, clip=False)[0])
    if discount == 1:
        assert [episode.discounted_return for episode in episodes] == [episode.episode_return for episode in episodes]


def test_values_see_only_running_games() -> None:
    """States of all running games in one call, fewer as games end, and none twice."""
    config = compose(*CONFIGS["asterix"])
    envs = environments(config)
    values, sizes = fake_values(envs[0].num_actions), []

    def recorded(states: np.ndarray) -> np.ndarray:
        sizes.append(len(states))
        return values(states)

    episodes = play(recorded, envs, config.env.stack, 0.99, clip=False)
    lengths = [episode.length for episode in episodes]
    assert sizes == [sum(length > t for length in lengths) for t in range(max(lengths))]


def evaluate(config: Config, *steps: int) -> list[Episode]:
    """The evaluation at the last of these steps, by an evaluator that has done the others before. The two first actions
    are enough."""
    evaluator = Evaluator(config)
    for step in steps:
        agent = cast(Agent, SimpleNamespace(values=fake_values(actions=2)))
        episodes = evaluator(evaluation_policy(agent, config, step), step)
    return episodes


EVALUATED = {
    "asterix": CONFIGS["asterix"],
    "chain": CONFIGS["chain"],
    "cartpole": CONFIGS["cartpole"],
    "atari": ("env=asterix", "env.options.max_frames=160", "evaluation.episodes=2"),
}


@pytest.mark.parametrize("name", EVALUATED)
def test_an_evaluation_depends_on_seed_and_step(name: str) -> None:
    config = compose(*EVALUATED[name])
    expected = evaluate(config, 1000)
    assert evaluate(config, 1000) == expected
    assert evaluate(config, 2000) != expected
    assert evaluate(compose(*EVALUATED[name], "seed=1"), 1000) != expected
    assert evaluate(compose(*EVALUATED[name], "algo=dqn", "probe.seed=3", "probe.states=2"), 1000) == expected


@pytest.mark.parametrize("name", EVALUATED)
def test_an_evaluation_does_not_depend_on_those_before(name: str) -> None:
    """A run that is continued, or evaluates less often, must see the same games at the same step."""
    config = compose(*EVALUATED[name])
    assert evaluate(config, 500, 1000) == evaluate(config, 1000)
    assert evaluate(config, 500, 700, 1000) == evaluate(config, 700, 1000)


def test_an_evaluation_plays_the_stated_streams() -> None:
    """Game i of the evaluation at a step has its own stream, so that fewer episodes are the first of more."""
    config = compose(*EVALUATED["chain"])
    fewer = compose(*EVALUATED["chain"][:1], "evaluation.episodes=5", *EVALUATED["chain"][2:])
    episodes = evaluate(config, 1000)
    assert evaluate(fewer, 1000) == episodes[:5]
    for i, episode in enumerate(episodes):
        env = make_env(config.env, np.random.default_rng(0))
        env.seed(stream(config.seed, "evaluation", 1000, i))
        assert_close(episode, slow_episode(env, 1, config.algo.discount, clip=True)[0])


# Random actions


def test_random_actions_of_an_evaluation_are_those_of_a_loop() -> None:
    """Half of the actions are random: in each round a number for every running game, then an action for each."""
    config = compose(*CONFIGS["asterix"])
    envs, actions = environments(config), envs_actions(config)
    episodes = play(fake_values(actions), envs, config.env.stack, 0.99, False, epsilon=0.5, actions=seeded_actions())
    generator, slow, at_random, total = seeded_actions(), environments(config), 0, 0
    stacks = [FrameStack(config.env.stack, env.frame_shape, env.frame_dtype) for env in slow]
    states = [stack.start(env.reset()).copy() for stack, env in zip(stacks, slow, strict=True)]
    returns, lengths, running = [0.0] * len(slow), [0] * len(slow), list(range(len(slow)))
    for i, state in enumerate(states):
        assert episodes[i].value == pytest.approx(fake_values(actions)(state[None]).mean(0).max()), "V(s_0) is greedy"
    while running:
        numbers = [generator.random() for _ in running]
        drawn = generator.integers(actions, size=len(running))
        still = []
        for place, i in enumerate(running):
            action = int(fake_values(actions)(states[i][None])[:, 0].mean(0).argmax())
            if numbers[place] < 0.5:
                action, at_random = int(drawn[place]), at_random + 1
            outcome = slow[i].step(action)
            states[i] = stacks[i].push(outcome.frame).copy()
            returns[i], lengths[i], total = returns[i] + outcome.reward, lengths[i] + 1, total + 1
            if not (outcome.terminal or outcome.truncated):
                still.append(i)
        running = still
    assert [(e.episode_return, e.length) for e in episodes] == list(zip(returns, lengths, strict=True))
    assert abs(at_random / total - 0.5) < 4 * 0.5 / np.sqrt(total)


def envs_actions(config: Config) -> int:
    return environments(config)[0].num_actions


def seeded_actions() -> np.random.Generator:
    return np.random.default_rng(9)


class Recording(Script):
    """Keeps the actions that it is given."""

    num_actions = 4

    def __init__(self, steps: int) -> None:
        super().__init__([0.0] * steps, lost=[])
        self.actions: list[int] = []

    def step(self, action: int) -> Step:
        self.actions.append(action)
        return super().step(action)


def recorded_actions(epsilon: float, favourite: int, generator: np.random.Generator | None) -> np.ndarray:
    """Of three episodes of 400 steps, in which all values prefer one action."""
    envs = [Recording(400) for _ in range(3)]
    q = np.eye(4)[favourite]
    episodes = play(lambda s: np.tile(q, (2, len(s), 1)), envs, 1, 0.9, False, epsilon=epsilon, actions=generator)
    assert [episode.value for episode in episodes] == [1.0] * 3, "V(s_0) does not depend on epsilon"
    return np.array([env.actions for env in envs])


def test_the_share_of_random_actions() -> None:
    uniform = recorded_actions(1.0, 2, seeded_actions())
    np.testing.assert_array_equal(recorded_actions(1.0, 0, seeded_actions()), uniform)  # whatever the values
    assert chisquare(np.bincount(uniform.ravel(), minlength=4)).pvalue > 1e-3
    assert (uniform[0] == uniform[1]).mean() < 0.4, "each game has actions of its own"
    half = recorded_actions(0.5, 2, seeded_actions())
    assert abs((half != 2).mean() - 0.5 * 3 / 4) < 4 * np.sqrt(0.375 * 0.625 / half.size)
    generator = seeded_actions()
    before = generator.bit_generator.state
    assert (recorded_actions(0.0, 2, generator) == 2).all() and generator.bit_generator.state == before
    assert (recorded_actions(0.0, 2, None) == 2).all()


def test_random_actions_depend_on_seed_and_step() -> None:
    chain = ("env=chain", "evaluation.episodes=5", "algo.epsilon.evaluation=0.5")
    expected = evaluate(compose(*chain), 1000)
    assert evaluate(compose(*chain), 1000) == evaluate(compose(*chain), 500, 1000) == expected
    greedy = evaluate(compose(*chain[:2]), 1000)
    assert [e.value for e in greedy] == [e.value for e in expected] and greedy != expected
    others = [evaluate(compose(*chain), 2000), evaluate(compose(*chain, "seed=1"), 1000)]
    assert expected not in others


def test_the_paper_s_numbers() -> None:
    config = compose("env=seaquest")
    assert (config.evaluation.episodes, config.evaluation.every) == (20, 10_000)
    assert (config.probe.states, config.probe.every) == (50, 100_000)


PROBED = {
    "env=minatar/asterix": (50, 4, 10, 10),
    "env=chain": (50, 8),
    "env=gymnasium": (50, 4),
    "env=asterix": (50, 4, 84, 84),
}


@pytest.mark.parametrize("env", PROBED)
def test_probes_are_the_same_in_every_run(env: str) -> None:
    states = make_probes(compose(env)).states
    assert states.shape == PROBED[env]
    np.testing.assert_array_equal(make_probes(compose(env, "algo=ens_dqn", "seed=5")).states, states)
    few = make_probes(compose(env, "probe.states=7", "evaluation.episodes=3", "seed=1")).states
    np.testing.assert_array_equal(few, states[:7])
    other = make_probes(compose(env, "probe.states=7", "probe.seed=1")).states
    assert not np.array_equal(other, few)
    assert len({state.tobytes() for state in states}) >= 8  # resets differ; the chain has 8 states


def test_probes_are_initial_states() -> None:
    """Blank frames, then the first one: what an agent sees at its first decision."""
    config = compose("env=asterix", "probe.states=5")
    states = make_probes(config).states
    assert not states[:, :3].any()
    env = make_env(config.env, np.random.default_rng(0))
    for i, state in enumerate(states):
        env.seed(stream(config.probe.seed, "probe", i))
        np.testing.assert_array_equal(state[3], env.reset()[0])


def test_only_the_chain_knows_the_truth() -> None:
    probes = make_probes(compose("env=chain"))
    table = make_env(compose("env=chain").env, np.random.default_rng(0)).all_true_q(0.99)  # type: ignore[attr-defined]
    assert probes.true_q is not None
    np.testing.assert_array_equal(probes.true_q, table[probes.states.argmax(1)])
    discounted = make_probes(compose("env=chain", "algo.discount=0.9")).true_q
    assert discounted is not None and (discounted < probes.true_q).all()
    for env in ("env=minatar/asterix", "env=gymnasium", "env=asterix"):
        assert make_probes(compose(env, "probe.states=2")).true_q is None
