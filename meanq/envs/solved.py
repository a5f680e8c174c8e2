"""What environments with known optimal values have in common."""

from abc import abstractmethod

import numpy as np

from meanq.envs import Environment


class SolvedEnvironment(Environment):
    """A small MDP with states 0 .. S-1, whose frames are vectors and whose optimal values are computed exactly."""

    frame_dtype = np.dtype(np.float32)
    pictures_per_second = 4.0

    def __init__(self, generator: np.random.Generator, actions: int) -> None:
        super().__init__(generator)
        self.num_actions = actions
        self._state = 0  # the current one
        self._q: dict[float, np.ndarray] = {}  # by discount

    @abstractmethod
    def _solve(self, discount: float) -> np.ndarray:
        """Compute the optimal Q [S, A]."""

    def all_true_q(self, discount: float) -> np.ndarray:
        """Return the optimal Q [S, A] of all states."""
        if discount not in self._q:
            self._q[discount] = self._solve(discount)
        return self._q[discount]

    def true_q(self, discount: float) -> np.ndarray:
        return self.all_true_q(discount)[self._state]
