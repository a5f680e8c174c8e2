"""Environments: one small interface over emulators, MinAtar, exact MDPs and anything in gymnasium.

May import config.
"""

import inspect
from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple, get_args, get_origin

import numpy as np

from meanq.config.errors import ConfigError
from meanq.config.extensions import ENVIRONMENTS, import_environment
from meanq.config.schema import EnvConfig


class Step(NamedTuple):
    """What an interaction led to."""

    frame: np.ndarray  # after the step, also where the game ended
    reward: float  # as the game gives it, unclipped
    terminal: bool  # the game is over
    truncated: bool  # cut short by a limit: the future still has a value
    life_lost: bool  # the game goes on, but a training episode ends here


class Environment(ABC):
    """One game. A frame is what replay stores for an interaction: [channels, height, width] or [features]."""

    num_actions: int
    frame_shape: tuple[int, ...]
    frame_dtype: np.dtype
    frame_scale: float = 1.0  # networks see frame * frame_scale
    pictures_per_second: float = 10.0  # at which a person can follow the game

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    @abstractmethod
    def reset(self) -> np.ndarray:
        """Start a game; the first frame."""

    @abstractmethod
    def step(self, action: int) -> Step:
        """Act once."""

    def start_life(self, frame: np.ndarray) -> np.ndarray:
        """Begin the training episode after a lost life, whose last frame is given; the first frame."""
        return frame

    def seed(self, generator: np.random.Generator) -> None:
        """Draw all randomness from this generator from the next reset on."""
        self.generator = generator

    def action_names(self) -> list[str]:
        """What the actions mean."""
        return [str(action) for action in range(self.num_actions)]

    def render(self) -> np.ndarray | None:
        """What a person sees now, RGB [height, width, 3]; None where there is nothing but the frame."""
        return None

    def true_q(self, discount: float) -> np.ndarray | None:
        """The exact optimal Q [A] of the current state, where it can be computed."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Plain data from which load_state_dict goes on exactly."""
        raise NotImplementedError(f"{type(self).__name__} cannot save its state")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the environment that gave this state."""
        raise NotImplementedError(f"{type(self).__name__} cannot restore its state")


def make_env(config: EnvConfig, generator: np.random.Generator) -> Environment:
    """A fresh environment; `env.options` are its keyword arguments."""
    factory = import_environment(config.kind)
    signature = inspect.signature(factory)
    try:
        signature.bind(id=config.id, generator=generator, **config.options)
    except TypeError as error:
        message = f"env.options={config.options}: {config.kind} environments do not take these ({error})"
        raise ConfigError(message) from None
    if config.kind in ENVIRONMENTS:  # what others accept is for them to say
        for name, value in config.options.items():
            _check_option(name, value, signature.parameters[name].annotation)
    return factory(id=config.id, generator=generator, **config.options)


def _check_option(name: str, value: Any, wanted: Any) -> None:
    if get_origin(wanted) is Literal and value not in get_args(wanted):
        raise ConfigError(f"env.options.{name}={value}: write {' or '.join(get_args(wanted))}")
    if wanted is bool and not isinstance(value, bool):
        raise ConfigError(f"env.options.{name}={value}: write true or false")
    if wanted in (int, float):
        number = isinstance(value, int if wanted is int else (int, float)) and not isinstance(value, bool)
        if not number or value < 0:
            raise ConfigError(f"env.options.{name}={value}: write a {'whole ' * (wanted is int)}number, 0 or more")


class FrameStack:
    """The state the agent acts on: the last frames of the episode, blank before its start.

    Replay rebuilds exactly these states. A loss of life starts a training episode, so it blanks the stack as well,
    unless `env.stack_over_lives` is on.
    """

    def __init__(self, stack: int, frame_shape: tuple[int, ...], frame_dtype: np.dtype) -> None:
        self._channels = frame_shape[0]
        self.state = np.zeros((stack * frame_shape[0], *frame_shape[1:]), dtype=frame_dtype)

    def start(self, frame: np.ndarray) -> np.ndarray:
        """Begin an episode."""
        self.state[:] = 0
        return self.push(frame)

    def push(self, frame: np.ndarray) -> np.ndarray:
        """Add the newest frame; the state (the same array each time)."""
        self.state[: -self._channels] = self.state[self._channels :]
        self.state[-self._channels :] = frame
        return self.state
