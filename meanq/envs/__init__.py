"""Environments: one small interface to Atari, MinAtar, MDPs with known values, and gymnasium.

This package may import config.
"""

import inspect
from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple, get_args, get_origin

import numpy as np

from meanq.config.errors import ConfigError
from meanq.config.extensions import ENVIRONMENTS, import_environment
from meanq.config.schema import EnvConfig
from meanq.envs.mdp import FiniteMDP


class Step(NamedTuple):
    """The result of one interaction."""

    frame: np.ndarray  # the frame after the step, also after the last step of a game
    reward: float  # unclipped
    terminal: bool  # the game is over
    truncated: bool  # stopped by a time limit; targets still bootstrap
    life_lost: bool  # the game continues, but the training episode ends here


class Environment(ABC):
    """One game. A frame is the observation that replay stores: [channels, height, width] or [features]."""

    num_actions: int
    frame_shape: tuple[int, ...]
    frame_dtype: np.dtype
    frame_scale: float = 1.0  # the input of networks is frame * frame_scale
    pictures_per_second: float = 10.0  # frame rate for videos, at a speed that people can follow

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    @abstractmethod
    def reset(self) -> np.ndarray:
        """Start a game and return its first frame."""

    @abstractmethod
    def step(self, action: int) -> Step:
        """Perform one action."""

    def start_life(self, frame: np.ndarray) -> np.ndarray:
        """Start a training episode after a lost life, given the last frame. Returns the new episode's first frame."""
        return frame

    def seed(self, generator: np.random.Generator) -> None:
        """Use this generator for all randomness from the next reset on."""
        self.generator = generator

    def action_names(self) -> list[str]:
        """Return a readable name for each action."""
        return [str(action) for action in range(self.num_actions)]

    def render(self) -> np.ndarray | None:
        """Return the current screen as RGB [height, width, 3]; None if the environment cannot render."""
        return None

    def true_q(self, discount: float) -> np.ndarray | None:
        """Return the exact optimal Q [A] of the current state; None if it is unknown."""
        return None

    def mdp(self) -> FiniteMDP | None:
        """Return the environment as a finite MDP; None if it is not known as one."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return plain data from which `load_state_dict` can continue exactly."""
        raise NotImplementedError(f"{type(self).__name__} cannot save its state")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `state_dict`."""
        raise NotImplementedError(f"{type(self).__name__} cannot restore its state")


def make_env(config: EnvConfig, generator: np.random.Generator) -> Environment:
    """Create an environment; `env.options` are its keyword arguments."""
    factory = import_environment(config.kind)
    signature = inspect.signature(factory)
    try:
        signature.bind(id=config.id, generator=generator, **config.options)
    except TypeError as error:
        message = f"env.options={config.options}: {config.kind} environments do not take these ({error})"
        raise ConfigError(message) from None
    if config.kind in ENVIRONMENTS:  # custom environments check their own options
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
        least = int(name.startswith("max_"))  # a game without a frame or a step is none
        if not number or not least <= value < 2**31:
            kind = "whole number" if wanted is int else "number"
            raise ConfigError(f"env.options.{name}={value}: write a {kind}, {least} or more")


class FrameStack:
    """The state the agent acts on: the last frames of the episode, with blank frames before its start.

    Replay rebuilds exactly these states. A lost life starts a new training episode and therefore clears the stack,
    unless `env.stack_over_lives` is true.
    """

    def __init__(self, stack: int, frame_shape: tuple[int, ...], frame_dtype: np.dtype) -> None:
        self._channels = frame_shape[0]
        self.state = np.zeros((stack * frame_shape[0], *frame_shape[1:]), dtype=frame_dtype)

    def start(self, frame: np.ndarray) -> np.ndarray:
        """Clear the stack and add the first frame of an episode."""
        self.state[:] = 0
        return self.push(frame)

    def push(self, frame: np.ndarray) -> np.ndarray:
        """Add the newest frame and return the state (always the same array)."""
        self.state[: -self._channels] = self.state[self._channels :]
        self.state[-self._channels :] = frame
        return self.state
