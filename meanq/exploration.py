"""Which action to try: greedy on values of the ensemble, with a random action now and then."""

from collections.abc import Callable
from typing import Any

import numpy as np

from meanq.config import AlgoConfig, EpsilonConfig


def linear(schedule: EpsilonConfig, step: int) -> float:
    """Epsilon at this interaction."""
    progress = min(1.0, step / schedule.steps)
    return schedule.start + (schedule.end - schedule.start) * progress


class Explorer:
    """Epsilon-greedy on the ensemble's mean, or on one member that acts for a whole episode."""

    def __init__(self, algo: AlgoConfig, num_actions: int, actions: np.random.Generator, members: np.random.Generator):
        self._schedule = algo.epsilon
        self._num_actions = num_actions
        self._ensemble_size = algo.ensemble_size
        self._one_member = algo.exploration == "episode_member"
        self._actions = actions
        self._members = members
        self._member = 0

    def start_episode(self) -> None:
        """Pick the member that acts in this episode."""
        if self._one_member:
            self._member = int(self._members.integers(self._ensemble_size))

    def act(self, step: int, values: Callable[[], np.ndarray]) -> int:
        """An action, from values() [K, A], which is called only where it is needed."""
        if self._actions.random() < linear(self._schedule, step):
            return int(self._actions.integers(self._num_actions))
        q = values()
        return int((q[self._member] if self._one_member else q.mean(0)).argmax())

    def state_dict(self) -> dict[str, Any]:
        """Generators and the acting member."""
        return {
            "actions": self._actions.bit_generator.state,
            "members": self._members.bit_generator.state,
            "member": self._member,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the explorer that gave this state."""
        self._actions.bit_generator.state = state["actions"]
        self._members.bit_generator.state = state["members"]
        self._member = state["member"]
