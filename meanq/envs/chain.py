"""A small MDP with known optimal values, for measuring the bias of value estimates."""

from typing import Any

import numpy as np

from meanq.config.errors import ConfigError
from meanq.envs import Step
from meanq.envs.solved import SolvedEnvironment


class Chain(SolvedEnvironment):
    """A row of cells 0 .. length-1; the state is a one-hot vector.

    Action 0 moves right, every other action moves left; with probability `slip` the move goes the other way. Moving
    left from cell 0 has no effect. Leaving the chain on the right gives reward 1 and ends the episode; all other
    rewards are 0. Gaussian noise with standard deviation `reward_noise` is added to every reward: it makes the maximum
    over estimates too high, and more `actions` increase this overestimation. Episodes start in a uniformly random cell.
    """

    def __init__(
        self,
        id: str,
        generator: np.random.Generator,
        length: int = 8,
        actions: int = 2,
        slip: float = 0.1,
        reward_noise: float = 0.0,
        max_steps: int = 100,
    ) -> None:
        super().__init__(generator, actions)
        if length < 1 or actions < 2 or not 0 <= slip <= 1:
            raise ConfigError(
                f"env.options: length={length}, actions={actions}, slip={slip}: write a length of 1 or more, 2 actions "
                "or more, and a slip from 0 to 1"
            )
        self._length = length
        self._slip = slip
        self._noise = reward_noise
        self._max_steps = max_steps
        self._steps = 0
        self.frame_shape = (length,)

    def reset(self) -> np.ndarray:
        self._state = int(self.generator.integers(self._length))
        self._steps = 0
        return self._frame()

    def step(self, action: int) -> Step:
        right = (action == 0) != (self.generator.random() < self._slip)
        self._state = self._state + 1 if right else max(0, self._state - 1)
        self._steps += 1
        terminal = self._state == self._length
        return Step(
            frame=self._frame(),
            reward=float(terminal) + self._noise * self.generator.standard_normal(),
            terminal=terminal,
            truncated=not terminal and self._steps >= self._max_steps,
            life_lost=False,
        )

    def _frame(self) -> np.ndarray:
        frame = np.zeros(self._length, dtype=np.float32)
        if self._state < self._length:
            frame[self._state] = 1
        return frame

    def action_names(self) -> list[str]:
        return ["right", *(["left"] if self.num_actions == 2 else [f"left {i}" for i in range(1, self.num_actions)])]

    def all_frames(self) -> np.ndarray:
        """Return the states of all cells, [length, length]."""
        return np.eye(self._length, dtype=np.float32)

    def _solve(self, discount: float) -> np.ndarray:
        """Compute the optimal Q [length, A] by value iteration until convergence."""
        cells = np.arange(self._length)
        right, left = cells + 1, np.maximum(cells - 1, 0)
        value = np.zeros(self._length + 1)  # the last entry is the terminal state, with value 0
        while True:
            go_right = (right == self._length) + discount * value[right]
            go_left = discount * value[left]
            q_right = (1 - self._slip) * go_right + self._slip * go_left
            q_left = (1 - self._slip) * go_left + self._slip * go_right
            q = np.stack([q_right] + [q_left] * (self.num_actions - 1), axis=1)
            new = np.append(q.max(axis=1), 0.0)
            if np.array_equal(new, value):
                return q
            value = new

    def state_dict(self) -> dict[str, Any]:
        return {"cell": self._state, "steps": self._steps, "generator": self.generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state, self._steps = state["cell"], state["steps"]
        self.generator.bit_generator.state = state["generator"]
