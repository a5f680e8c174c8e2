"""Any gymnasium environment with discrete actions and image or vector observations."""

from typing import Any

import gymnasium
import numpy as np

from meanq.config import ConfigError
from meanq.envs import Environment, Step
from meanq.rng import integer_seed


class Gymnasium(Environment):
    """`gymnasium.make(id, **make)`; images become [channels, height, width] uint8, the rest a float32 vector."""

    def __init__(self, id: str, generator: np.random.Generator, make: dict[str, Any] | None = None) -> None:
        super().__init__(generator)
        try:
            self._env = gymnasium.make(id, **(make or {}))
        except (gymnasium.error.Error, ModuleNotFoundError, TypeError) as error:
            raise ConfigError(f"env.id={id}: gymnasium cannot make it ({_one_line(error)})") from None
        actions, observations = self._env.action_space, self._env.observation_space
        if not isinstance(actions, gymnasium.spaces.Discrete):
            raise ConfigError(f"env.id={id}: its actions are {_one_line(actions)}; only discrete actions are supported")
        self._shape: tuple[int, ...]
        self._one_hot: int | None  # the first integer, where observations are integers
        if isinstance(observations, gymnasium.spaces.Discrete):
            self._shape, self._one_hot = (int(observations.n),), int(observations.start)
        elif isinstance(observations, gymnasium.spaces.Box):
            self._shape, self._one_hot = observations.shape, None
        else:
            raise ConfigError(
                f"env.id={id}: its observations are {_one_line(observations)}; only arrays and integers are supported"
            )
        self._first_action = int(actions.start)
        self.num_actions = int(actions.n)
        self._image = len(self._shape) in (2, 3) and observations.dtype == np.uint8
        self.frame_dtype = np.dtype(np.uint8 if self._image else np.float32)
        self.frame_scale = 1 / 255 if self._image else 1.0
        self.frame_shape = self._to_frame(np.zeros(self._shape, dtype=self.frame_dtype)).shape
        self._seed: int | None = integer_seed(generator)

    def seed(self, generator: np.random.Generator) -> None:
        super().seed(generator)
        self._seed = integer_seed(generator)

    def reset(self) -> np.ndarray:
        observation, _ = self._env.reset(seed=self._seed)
        self._seed = None
        return self._to_frame(observation)

    def step(self, action: int) -> Step:
        observation, reward, terminal, truncated, _ = self._env.step(self._first_action + action)
        return Step(
            frame=self._to_frame(observation),
            reward=float(reward),
            terminal=bool(terminal),
            truncated=bool(truncated) and not terminal,
            life_lost=False,
        )

    def _to_frame(self, observation: Any) -> np.ndarray:
        if self._image:
            image = np.asarray(observation)
            return image[None] if image.ndim == 2 else image.transpose(2, 0, 1)
        if self._one_hot is not None and np.ndim(observation) == 0:
            frame = np.zeros(self._shape, dtype=np.float32)
            frame[int(observation) - self._one_hot] = 1
            return frame
        return np.asarray(observation, dtype=np.float32).reshape(-1)


def _one_line(thing: object) -> str:
    return " ".join(str(thing).split())
