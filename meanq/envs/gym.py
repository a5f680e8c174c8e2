"""Any gymnasium environment with discrete actions and image or vector observations."""

from typing import Any

import gymnasium
import numpy as np

from meanq.config.errors import ConfigError
from meanq.envs import Environment, Step
from meanq.rng import integer_seed


class Gymnasium(Environment):
    """Wraps `gymnasium.make(id, **make)`: images become uint8 [channels, height, width], the rest a float32 vector.

    Gymnasium cannot save an environment's state. Each game therefore starts from its own seed, and restoring replays
    the game's actions from there.
    """

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
        self._one_hot: int | None  # the lowest integer if observations are integers, else None
        if isinstance(observations, gymnasium.spaces.Discrete):
            self._shape, self._one_hot = (int(observations.n),), int(observations.start)
        elif isinstance(observations, gymnasium.spaces.Box):
            self._shape, self._one_hot = observations.shape, None
        else:
            raise ConfigError(
                f"env.id={id}: its observations are {_one_line(observations)}; only arrays and integers are supported"
            )
        self._first_action = int(actions.start)
        self.pictures_per_second = float(self._env.metadata.get("render_fps") or 30.0)
        self.num_actions = int(actions.n)
        self._image = len(self._shape) in (2, 3) and observations.dtype == np.uint8
        self.frame_dtype = np.dtype(np.uint8 if self._image else np.float32)
        self.frame_scale = 1 / 255 if self._image else 1.0
        self.frame_shape = self._to_frame(np.zeros(self._shape, dtype=self.frame_dtype)).shape
        self._id = id
        self._game_seed = 0
        self._played: list[int] = []  # actions of the current game
        self._frame = np.zeros(self.frame_shape, dtype=self.frame_dtype)  # the newest frame

    def reset(self) -> np.ndarray:
        return self._restart(integer_seed(self.generator))

    def _restart(self, seed: int) -> np.ndarray:
        self._game_seed = seed
        self._played = []
        observation, _ = self._env.reset(seed=seed)
        self._frame = self._to_frame(observation)
        return self._frame

    def step(self, action: int) -> Step:
        self._played.append(action)
        observation, reward, terminal, truncated, _ = self._env.step(self._first_action + action)
        self._frame = self._to_frame(observation)
        return Step(
            frame=self._frame,
            reward=float(reward),
            terminal=bool(terminal),
            truncated=bool(truncated) and not terminal,
            life_lost=False,
        )

    def render(self) -> np.ndarray | None:
        """Return gymnasium's rendering if it was made with `render_mode: rgb_array`."""
        return np.asarray(self._env.render()) if self._env.render_mode == "rgb_array" else None

    def state_dict(self) -> dict[str, Any]:
        return {
            "game_seed": self._game_seed,
            "played": np.array(self._played, dtype=np.int64),
            "frame": self._frame.copy(),
            "generator": self.generator.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._restart(state["game_seed"])
        for action in state["played"].tolist():
            self.step(action)
        if not np.array_equal(self._frame, state["frame"]):
            raise RuntimeError(
                f"env.id={self._id}: the same seed and actions gave a different frame, so this environment cannot be "
                "resumed; remove the run's directory to start the run again from the beginning"
            )
        self.generator.bit_generator.state = state["generator"]

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
