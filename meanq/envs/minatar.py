"""MinAtar (Young and Tian 2019): five Atari games on a 10x10 grid, with thousands of steps per second."""

import copy
import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from meanq.config.errors import ConfigError, closest
from meanq.envs import Environment, Step
from meanq.rng import integer_seed


@cache
def _game_module(name: str) -> ModuleType:
    """Load a game's module by itself; importing the whole package takes seconds, as it imports plotting libraries."""
    package = importlib.util.find_spec("minatar")
    assert package is not None and package.origin is not None
    games = Path(package.origin).parent / "environments"
    path = games / f"{name}.py"
    known = [p.stem for p in games.glob("*.py") if p.stem != "__init__"]
    if name not in known:  # this also rejects paths to other files
        raise ConfigError(f"env.id={name}: no such MinAtar game{closest(name, known)}")
    spec = importlib.util.spec_from_file_location(f"minatar.environments.{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class MinAtar(Environment):
    """Minimal action set, MinAtar's sticky actions and difficulty ramping, random no-ops at the start as on Atari."""

    frame_dtype = np.dtype(np.uint8)

    def __init__(
        self,
        id: str,
        generator: np.random.Generator,
        sticky_actions: float = 0.1,
        difficulty_ramping: bool = True,
        noop_max: int = 30,
        max_steps: int = 5_000,
    ) -> None:
        super().__init__(generator)
        self._game = _game_module(id).Env(ramping=difficulty_ramping)
        self._sticky = sticky_actions
        self._noop_max = noop_max
        self._max_steps = max_steps
        self._actions = list(self._game.minimal_action_set())
        self._last_action = 0
        self._steps = 0
        height, width, channels = self._game.state_shape()
        self.num_actions = len(self._actions)
        self.frame_shape = (channels, height, width)
        self.seed(generator)

    def seed(self, generator: np.random.Generator) -> None:
        super().seed(generator)
        # MinAtar's games call methods of numpy's legacy generator; each game owns one.
        self._game.random = np.random.RandomState(integer_seed(generator))

    def reset(self) -> np.ndarray:
        terminal = True
        while terminal:  # restart a game that ends during the no-ops
            self._game.reset()
            self._last_action, self._steps, terminal = 0, 0, False
            for _ in range(int(self.generator.integers(self._noop_max)) if self._noop_max else 0):
                _, terminal = self._game.act(0)
                if terminal:
                    break
        return self._frame()

    def step(self, action: int) -> Step:
        if self._game.random.rand() >= self._sticky:
            self._last_action = self._actions[action]
        reward, terminal = self._game.act(self._last_action)
        self._steps += 1
        return Step(
            frame=self._frame(),
            reward=float(reward),
            terminal=bool(terminal),
            truncated=not terminal and self._steps >= self._max_steps,
            life_lost=False,
        )

    def action_names(self) -> list[str]:
        names = {"n": "noop", "l": "left", "u": "up", "r": "right", "d": "down", "f": "fire"}
        return [names[self._game.action_map[action]] for action in self._actions]

    def _frame(self) -> np.ndarray:
        return self._game.state().transpose(2, 0, 1).astype(np.uint8)

    def state_dict(self) -> dict[str, Any]:
        game = {name: value for name, value in vars(self._game).items() if name != "random"}
        return {
            "game": copy.deepcopy(game),
            "random": self._game.random.get_state(legacy=False),
            "last_action": self._last_action,
            "steps": self._steps,
            "generator": self.generator.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self._game).update(copy.deepcopy(state["game"]))
        self._game.random.set_state(state["random"])
        self._last_action = state["last_action"]
        self._steps = state["steps"]
        self.generator.bit_generator.state = state["generator"]
