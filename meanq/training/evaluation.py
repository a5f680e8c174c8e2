"""Evaluation: greedy episodes on the ensemble's mean, all at once; and the states at which values are probed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from meanq.config.schema import Config, EnvConfig
from meanq.envs import Environment, FrameStack, make_env
from meanq.rng import integer_seed, stream

if TYPE_CHECKING:
    from meanq.learning.agent import Agent, Values


@dataclass
class Episode:
    """One greedy episode, and the value that the agent gave its first state."""

    episode_return: float = 0.0
    discounted_return: float = 0.0  # of rewards as learned from, i.e. clipped where the environment clips
    discounted_return_unclipped: float = 0.0
    discounted_return_first_life: float = 0.0  # as learned from, up to the first loss of life
    length: int = 0
    value: float = 0.0  # V(s_0) = max_a mean_k Q_k(s_0, a)


def evaluated_values(agent: "Agent", config: Config, step: int) -> "Values":
    """The values by which a run is evaluated at this step: noise off, or one draw of it left on."""
    if not config.evaluation.noise:
        return agent.values
    return agent.noisy_values(integer_seed(stream(config.seed, "evaluation", step, "noise")))


class Evaluator:
    """Plays `evaluation.episodes` games at once. Each evaluation is a function of the run's seed and the step alone."""

    def __init__(
        self, config: Config, make: Callable[[EnvConfig, np.random.Generator], Environment] = make_env
    ) -> None:
        self._config = config
        self._make = make
        self._envs: list[Environment] = []

    def __call__(self, values: "Values", step: int, meanwhile: Callable[[], None] = lambda: None) -> list[Episode]:
        """The episodes of the evaluation at this interaction; `meanwhile` is called all along."""
        config = self._config
        generators = [stream(config.seed, "evaluation", step, i) for i in range(config.evaluation.episodes)]
        if not self._envs:  # made with a generator of their own: making an environment may draw from it
            self._envs = [self._make(config.env, stream(config.seed, "evaluation")) for _ in generators]
        for env, generator in zip(self._envs, generators, strict=True):
            env.seed(generator)
        return play(
            values,
            self._envs,
            config.env.stack,
            config.algo.discount,
            config.env.clip_rewards,
            meanwhile,
            epsilon=config.algo.epsilon.evaluation,
            actions=stream(config.seed, "evaluation", step, "actions"),
        )


def play(
    values: "Values",
    envs: Sequence[Environment],
    stack: int,
    discount: float,
    clip: bool,
    meanwhile: Callable[[], None] = lambda: None,
    *,
    epsilon: float = 0.0,
    actions: np.random.Generator | None = None,
) -> list[Episode]:
    """One greedy episode in each environment; states of all running games are evaluated together.

    With `epsilon`, a fraction of the actions is random, drawn from `actions`.
    """
    stacks = [FrameStack(stack, env.frame_shape, env.frame_dtype) for env in envs]
    for env, frames in zip(envs, stacks, strict=True):
        frames.start(env.reset())
    episodes = [Episode() for _ in envs]
    first_life = [True] * len(envs)
    running = list(range(len(envs)))
    factor = 1.0  # discount ** length
    while running:
        meanwhile()
        q = values(np.stack([stacks[i].state for i in running])).mean(0)  # [running, A]
        if episodes[running[0]].length == 0:
            for i, value in zip(running, q.max(-1), strict=True):
                episodes[i].value = float(value)
        chosen = q.argmax(-1)
        if epsilon > 0:
            assert actions is not None
            at_random = actions.random(len(running)) < epsilon
            chosen = np.where(at_random, actions.integers(q.shape[-1], size=len(running)), chosen)
        still = []
        for i, action in zip(running, chosen, strict=True):
            outcome = envs[i].step(int(action))
            stacks[i].push(outcome.frame)
            learned = learned_reward(outcome.reward, clip)
            episode = episodes[i]
            episode.length += 1
            episode.episode_return += outcome.reward
            episode.discounted_return += factor * learned
            episode.discounted_return_unclipped += factor * outcome.reward
            if first_life[i]:
                episode.discounted_return_first_life += factor * learned
                first_life[i] = not outcome.life_lost
            if not (outcome.terminal or outcome.truncated):
                still.append(i)
        running = still
        factor *= discount
    return episodes


def learned_reward(reward: float, clip: bool) -> float:
    """The reward as the learner sees it."""
    return max(-1.0, min(1.0, reward)) if clip else reward


@dataclass
class Probes:
    """The same initial states in every run of every algorithm: they depend on `probe.seed`, not on the run's seed."""

    states: np.ndarray  # [P, *state]
    true_q: np.ndarray | None  # [P, A] where the environment knows it


def make_probes(config: Config) -> Probes:
    """The initial states of `probe.states` resets."""
    states, truths = [], []
    env = make_env(config.env, stream(config.probe.seed, "probe"))
    for i in range(config.probe.states):
        env.seed(stream(config.probe.seed, "probe", i))
        frames = FrameStack(config.env.stack, env.frame_shape, env.frame_dtype)
        states.append(frames.start(env.reset()))
        truths.append(env.true_q(config.algo.discount))
    known = [q for q in truths if q is not None]
    return Probes(np.stack(states), np.stack(known) if len(known) == len(truths) else None)
