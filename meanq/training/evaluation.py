"""Evaluation: episodes of a policy, one in each of several environments, all at once; and the states of probes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from meanq.config.errors import ConfigError
from meanq.config.schema import Config, EnvConfig
from meanq.envs import Environment, FrameStack, Step, make_env
from meanq.envs.mdp import FiniteMDP
from meanq.learning.agent import Agent
from meanq.learning.exploration import Policy, Values, greedy, sometimes_random
from meanq.metrics.definitions import state_value
from meanq.rng import integer_seed, stream
from meanq.rundir.layout import Episode


class Move(NamedTuple):
    """One game's action: what the agent thought, did and got."""

    game: int
    q: np.ndarray  # [K, A], of the state before
    action: int
    outcome: Step


@dataclass
class Games:
    """Episodes that are played together: states of all running games are evaluated at once."""

    envs: Sequence[Environment]
    stack: int
    discount: float
    clip_rewards: bool
    episodes: list[Episode] = field(default_factory=list)

    def play(self, policy: Policy) -> Iterator[list[Move]]:
        """Play one episode in each environment. Yields once after the resets, then the moves of every step."""
        stacks = [FrameStack(self.stack, env.frame_shape, env.frame_dtype) for env in self.envs]
        for env, frames in zip(self.envs, stacks, strict=True):
            frames.start(env.reset())
        self.episodes = [Episode() for _ in self.envs]
        first_life = [True] * len(self.envs)
        running = list(range(len(self.envs)))
        factor = 1.0  # discount ** length
        yield []
        while running:
            actions, q = policy(np.stack([stacks[i].state for i in running]))
            if self.episodes[running[0]].length == 0:
                for i, value in zip(running, state_value(q, members=0), strict=True):
                    self.episodes[i].value = float(value)
            moves, still = [], []
            for row, (i, action) in enumerate(zip(running, actions, strict=True)):
                outcome = self.envs[i].step(int(action))
                moves.append(Move(i, q[:, row], int(action), outcome))
                stacks[i].push(outcome.frame)
                learned = learned_reward(outcome.reward, self.clip_rewards)
                episode = self.episodes[i]
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
            factor *= self.discount
            yield moves


class Evaluator:
    """Plays evaluations of a run. Each is a function of the run's seed and the step alone.

    `env` and `episodes` take the place of the configured ones.
    """

    def __init__(self, config: Config, env: EnvConfig | None = None, episodes: int | None = None) -> None:
        self._config = config
        self._env = env or config.env
        self._count = episodes or config.evaluation.episodes
        self._envs: list[Environment] = []

    def games(self, step: int) -> Games:
        """The games of the evaluation at this interaction, not begun."""
        config = self._config
        if not self._envs:  # made with a generator of their own: making an environment may draw from it
            self._envs = [make_env(self._env, stream(config.seed, "evaluation")) for _ in range(self._count)]
        for i, env in enumerate(self._envs):
            env.seed(stream(config.seed, "evaluation", step, i))
        return Games(self._envs, self._env.stack, config.algo.discount, self._env.clip_rewards)

    def __call__(self, policy: Policy, step: int, meanwhile: Callable[[], None] = lambda: None) -> list[Episode]:
        """Play the evaluation at this interaction to its end; calls `meanwhile` before every step."""
        games = self.games(step)
        for _ in games.play(policy):
            meanwhile()
        return games.episodes


def evaluation_policy(agent: Agent, config: Config, step: int) -> Policy:
    """The policy by which a run is evaluated: greedy, with noise or random actions where configured."""
    values: Values = agent.values
    if config.evaluation.noise:
        values = agent.noisy_values(integer_seed(stream(config.seed, "evaluation", step, "noise")))
    return sometimes_random(
        greedy(values), config.algo.epsilon.evaluation, stream(config.seed, "evaluation", step, "actions")
    )


def learned_reward(reward: float, clip: bool) -> float:
    """The reward as the learner sees it."""
    return max(-1.0, min(1.0, reward)) if clip else reward


@dataclass
class Probes:
    """Initial states, the same in every run of every algorithm: they depend on `probe.seed`, not on the run's seed."""

    states: np.ndarray  # [P, *state]
    true_q: np.ndarray | None  # [P, A] where the environment knows it
    mdp: FiniteMDP | None = None  # whose states these are, all of them and in its order

    def policy_value(self, q: np.ndarray, discount: float) -> np.ndarray | None:
        """Exact value [P] of the policy that is greedy in q [K, P, A]; None unless these are all states of an MDP."""
        return None if self.mdp is None else self.mdp.policy_value(q.mean(0).argmax(-1), discount)


def make_probes(config: Config) -> Probes:
    """The initial states of `probe.states` resets; with 0, all states of a finite MDP."""
    states, truths = [], []
    env = make_env(config.env, stream(config.probe.seed, "probe"))
    if config.probe.states == 0:
        mdp = env.mdp()
        if mdp is None or config.env.stack > 1 or config.env.clip_rewards:
            raise ConfigError(
                "probe.states=0: only a finite MDP (env=garnet) lists its states, with env.stack=1 and "
                "env.clip_rewards=false; write 1 or more"
            )
        return Probes(mdp.frames, mdp.optimal_q(config.algo.discount), mdp)
    for i in range(config.probe.states):
        env.seed(stream(config.probe.seed, "probe", i))
        frames = FrameStack(config.env.stack, env.frame_shape, env.frame_dtype)
        states.append(frames.start(env.reset()))
        truths.append(env.true_q(config.algo.discount))
    known = [q for q in truths if q is not None]
    return Probes(np.stack(states), np.stack(known) if len(known) == len(truths) else None)
