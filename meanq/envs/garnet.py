"""Garnet: a family of random MDPs with known optimal values (Archibald et al. 1995)."""

from typing import Any

import numpy as np

from meanq.config.errors import ConfigError
from meanq.envs import Step
from meanq.envs.mdp import FiniteMDP
from meanq.envs.solved import SolvedEnvironment
from meanq.rng import stream

_MOST_STATES = 1000  # values are solved exactly, in a time that grows with their third power


class Garnet(SolvedEnvironment):
    """A random MDP. `id` is the seed that draws it: runs with any `seed` share it, and a family is a sweep over `id`.

    Each action of each state leads to `branching` different states, drawn uniformly, with the probabilities that
    `branching - 1` uniform cuts of [0, 1] leave between them. Entering a state gives its reward, drawn uniformly from
    [-1, 1], plus Gaussian noise with standard deviation `reward_noise`. After each step the episode ends with
    probability `ending`, whatever the state; there is no time limit. So with discount gamma

        V*(s) = max over policies of E[sum_t gamma^t r_t up to the end] = that of an endless MDP and gamma (1 - ending),

    and the discounted return of a greedy episode is an unbiased sample of the greedy policy's value. Episodes begin in
    a uniformly random state. The frame of a state is one-hot, or with `features` = d above 0 a random point of d
    normal numbers, so that states share weights and a network must generalise; the frame after the end is zero.
    """

    def __init__(
        self,
        id: str,
        generator: np.random.Generator,
        states: int = 50,
        actions: int = 4,
        branching: int = 3,
        reward_noise: float = 0.0,
        ending: float = 0.05,
        features: int = 0,
    ) -> None:
        super().__init__(generator, actions)
        if not id.isdecimal():
            raise ConfigError(f"env.id={id}: the seed that draws the MDP: write a whole number, 0 or more")
        if not 1 <= branching <= states <= _MOST_STATES or actions < 1 or not 0.001 <= ending <= 1:
            raise ConfigError(
                f"env.options: states={states}, actions={actions}, branching={branching}, ending={ending}: write up to "
                f"{_MOST_STATES} states, 1 or more actions, a branching from 1 to the number of states, and an ending "
                "from 0.001 to 1"
            )
        self._noise, self._ending = reward_noise, ending
        draw = stream(int(id), "garnet")
        self._next = np.array([[draw.permutation(states)[:branching] for _ in range(actions)] for _ in range(states)])
        cuts = np.sort(draw.random((states, actions, branching - 1)))
        self._cumulated = np.append(cuts, np.ones((states, actions, 1)), axis=-1)
        self._rewards = draw.uniform(-1, 1, states)
        points = stream(int(id), "garnet", "features").standard_normal((states, features)).astype(np.float32)
        self._frames = points if features else np.eye(states, dtype=np.float32)
        self.frame_shape = self._frames.shape[1:]

    def reset(self) -> np.ndarray:
        self._state = int(self.generator.integers(len(self._frames)))
        return self._frames[self._state]

    def step(self, action: int) -> Step:
        branch = np.searchsorted(self._cumulated[self._state, action], self.generator.random(), side="right")
        self._state = int(self._next[self._state, action, branch])
        reward = float(self._rewards[self._state]) + self._noise * self.generator.standard_normal()
        terminal = bool(self.generator.random() < self._ending)
        frame = np.zeros_like(self._frames[0]) if terminal else self._frames[self._state]
        return Step(frame, reward, terminal, truncated=False, life_lost=False)

    def mdp(self) -> FiniteMDP:
        transition = np.zeros((len(self._frames), self.num_actions, len(self._frames)))
        np.put_along_axis(transition, self._next, np.diff(self._cumulated, prepend=0.0, axis=-1), axis=-1)
        return FiniteMDP(self._frames, (1 - self._ending) * transition, transition @ self._rewards)

    @classmethod
    def exact_scores(cls, id: str, **options: Any) -> dict[str, float]:
        """Expected returns, without discount, of random play and of the best policy."""
        mdp = cls(id, np.random.default_rng(0), **options).mdp()
        values = {"random": mdp.random_value(1.0), "reference": mdp.optimal_q(1.0).max(1)}
        return {name: round(float(value.mean()), 4) for name, value in values.items()}

    def _solve(self, discount: float) -> np.ndarray:
        return self.mdp().optimal_q(discount)

    def state_dict(self) -> dict[str, Any]:
        return {"state": self._state, "generator": self.generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = state["state"]
        self.generator.bit_generator.state = state["generator"]
