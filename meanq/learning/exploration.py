"""Exploration: epsilon-greedy on the ensemble mean, UCB, or one member per episode (Bootstrapped DQN)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from meanq.config.extensions import EXPLORATIONS, import_code
from meanq.config.schema import AlgoConfig, EpsilonConfig

Values = Callable[[np.ndarray], np.ndarray]  # states [N, *state] -> Q [K, N, A]
Policy = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # states [N, *state] -> actions [N], Q [K, N, A]


def greedy(values: Values) -> Policy:
    """Return a policy that takes the best action under the mean over members."""

    def act(states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        q = values(states)
        return q.mean(0).argmax(-1), q

    return act


def optimistic(values: Values, algo: AlgoConfig) -> Policy:
    """Return a policy that takes the best action under the members' upper bound."""

    def act(states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        q = values(states)
        return upper_bound(q, algo.ucb_lambda, algo.ensemble_std).argmax(-1), q

    return act


def sometimes_random(policy: Policy, share: float, generator: np.random.Generator) -> Policy:
    """Return a policy that replaces the action of `policy` by a random one with probability `share`."""
    if share == 0:
        return policy

    def act(states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        actions, q = policy(states)
        at_random = generator.random(len(states)) < share
        return np.where(at_random, generator.integers(q.shape[-1], size=len(states)), actions), q

    return act


def linear(schedule: EpsilonConfig, step: int) -> float:
    """Return epsilon at this interaction, on a linear schedule."""
    progress = min(1.0, max(0, step - schedule.begin) / schedule.steps)
    return schedule.start + (schedule.end - schedule.start) * progress


def random_share(algo: AlgoConfig, step: int) -> float:
    """Return the probability of a random action at this interaction; 0 if noise or UCB alone explores."""
    if step < algo.random_steps:
        return 1.0
    never_random = algo.exploration not in ("epsilon_greedy", "episode_member") and not algo.epsilon.with_noise
    return 0.0 if never_random else linear(algo.epsilon, step)


def upper_bound(q: np.ndarray, ucb_lambda: float, ensemble_std: str) -> np.ndarray:
    """Compute mean_k Q_k + lambda std_k Q_k (Chen et al. 2017) from values [K, ..., A]; the std of one member is 0."""
    correction = int(ensemble_std == "sample" and len(q) > 1)
    return q.mean(0) + ucb_lambda * q.std(0, ddof=correction)


class Explorer:
    """Acts greedily on a score (ensemble mean, upper bound, or this episode's member), or randomly.

    `actions` draws random actions, `members` the member of each episode. A rule of the user's own chooses by itself.
    """

    def __init__(self, algo: AlgoConfig, num_actions: int, actions: np.random.Generator, members: np.random.Generator):
        self._algo = algo
        self._num_actions = num_actions
        self._actions = actions
        self._members = members
        self._member = 0
        self._rule: Any = None
        if algo.exploration not in EXPLORATIONS:
            rule = import_code("algo.exploration", algo.exploration)
            self._rule = rule(algo, num_actions) if isinstance(rule, type) else rule

    def start_episode(self) -> None:
        """Draw the member that acts in this episode, if one member acts per episode."""
        if self._algo.exploration == "episode_member":
            self._member = int(self._members.integers(self._algo.ensemble_size))
        if hasattr(self._rule, "start_episode"):
            self._rule.start_episode(self._actions)

    def act(self, step: int, values: Callable[[], np.ndarray]) -> int:
        """Choose an action. `values` returns Q [K, A] and is not called for a random action."""
        share = random_share(self._algo, step)
        if share > 0 and self._actions.random() < share:
            return int(self._actions.integers(self._num_actions))
        if self._rule is not None:
            return int(self._rule(values(), step, self._actions))
        return int(self._score(values()).argmax())

    def _score(self, q: np.ndarray) -> np.ndarray:
        if self._algo.exploration == "episode_member":
            return q[self._member]
        if self._algo.exploration == "ucb":
            return upper_bound(q, self._algo.ucb_lambda, self._algo.ensemble_std)
        return q.mean(0)

    def state_dict(self) -> dict[str, Any]:
        return {
            "actions": self._actions.bit_generator.state,
            "members": self._members.bit_generator.state,
            "member": self._member,
            **({"rule": self._rule.state_dict()} if hasattr(self._rule, "state_dict") else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._actions.bit_generator.state = state["actions"]
        self._members.bit_generator.state = state["members"]
        self._member = state["member"]
        if "rule" in state:
            self._rule.load_state_dict(state["rule"])
