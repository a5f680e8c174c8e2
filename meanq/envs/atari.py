"""Atari 2600 games with the paper's protocol, using the ALE emulator directly."""

from typing import Any, Literal

import ale_py
import cv2
import numpy as np

from meanq.config.errors import ConfigError, closest
from meanq.envs import Environment, Step


class Atari(Environment):
    """Minimal action set, no sticky actions, no FIRE at reset; a frame is the maximum of the last two of `frame_skip`.

    `resize_first`: resize both screens before taking their maximum, not after. `noop_after_life`: in training, repeat
    a no-op for one frame after a lost life.
    """

    frame_dtype = np.dtype(np.uint8)
    frame_scale = 1 / 255
    pictures_per_second = 60.0

    def __init__(
        self,
        id: str,
        generator: np.random.Generator,
        frame_skip: int = 4,
        screen_size: int = 84,
        noop_max: int = 30,
        max_frames: int = 108_000,
        resize: Literal["area", "linear"] = "area",
        resize_first: bool = False,
        noop_after_life: bool = False,
    ) -> None:
        super().__init__(generator)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._ale = ale_py.ALEInterface()
        # Without sticky actions the emulator is deterministic: only the number of no-ops and the agent are random.
        self._ale.setFloat("repeat_action_probability", 0.0)
        self._ale.setInt("random_seed", 0)
        roms = ale_py.roms.get_all_rom_ids()
        if id not in roms:
            raise ConfigError(f"env.id={id}: no such Atari game{closest(id, roms)}")
        rom = ale_py.roms.get_rom_path(id)
        assert rom is not None
        self._ale.loadROM(rom)
        if frame_skip < 1 or screen_size < 1:
            raise ConfigError(f"env.options: frame_skip={frame_skip}, screen_size={screen_size}: write 1 or more")
        # In a few games (e.g. Assault) a reset keeps traces of the previous game, so each game starts from this state.
        self._ale.reset_game()
        self._fresh = self._ale.cloneState(include_rng=True)
        self._actions = self._ale.getMinimalActionSet()
        self._frame_skip = frame_skip
        self._size = (screen_size, screen_size)
        self._interpolation = {"area": cv2.INTER_AREA, "linear": cv2.INTER_LINEAR}[resize]
        self._resize_first = resize_first
        self._noop_after_life = noop_after_life
        self._noop_max = noop_max
        self._max_frames = max_frames
        self._screens = np.zeros((2, *self._ale.getScreenDims()), dtype=np.uint8)
        self._lives = 0
        self.num_actions = len(self._actions)
        self.frame_shape = (1, screen_size, screen_size)

    def reset(self) -> np.ndarray:
        self._restart()
        for _ in range(int(self.generator.integers(self._noop_max)) if self._noop_max else 0):
            self._ale.act(ale_py.Action.NOOP)
            if self._ale.game_over():
                self._restart()
        self._lives = self._ale.lives()
        return self._current_frame()

    def start_life(self, frame: np.ndarray) -> np.ndarray:
        if not self._noop_after_life:
            return frame
        self._ale.act(ale_py.Action.NOOP)
        return self._current_frame()

    def _current_frame(self) -> np.ndarray:
        self._ale.getScreenGrayscale(self._screens[0])
        return self._resize(self._screens[0])

    def _restart(self) -> None:
        self._ale.reset_game()
        self._ale.restoreState(self._fresh)

    def step(self, action: int) -> Step:
        reward = 0.0
        self._screens[:] = 0
        for i in range(self._frame_skip):
            reward += self._ale.act(self._actions[action])
            if i >= self._frame_skip - 2:
                self._ale.getScreenGrayscale(self._screens[i - self._frame_skip])
            if self._ale.game_over():
                break
        terminal = self._ale.game_over()
        lives = self._ale.lives()
        life_lost = lives < self._lives and not terminal
        self._lives = lives
        return Step(
            frame=self._frame(),
            reward=reward,
            terminal=terminal,
            truncated=not terminal and self._ale.getEpisodeFrameNumber() >= self._max_frames,
            life_lost=life_lost,
        )

    def action_names(self) -> list[str]:
        return [action.name.lower() for action in self._actions]

    def render(self) -> np.ndarray:
        return self._ale.getScreenRGB()

    def _frame(self) -> np.ndarray:
        if self._resize_first:
            return np.maximum(self._resize(self._screens[0]), self._resize(self._screens[1]))
        return self._resize(self._screens.max(axis=0))

    def _resize(self, screen: np.ndarray) -> np.ndarray:
        return cv2.resize(screen, self._size, interpolation=self._interpolation)[None]

    def state_dict(self) -> dict[str, Any]:
        state = self._ale.cloneState(include_rng=True)
        return {
            "emulator": state.__getstate__(),
            "frames": self._ale.getEpisodeFrameNumber(),
            "lives": self._lives,
            "generator": self.generator.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._ale.reset_game()
        if state["frames"] > 0:
            # Some games (e.g. Qbert) are restored exactly only after the emulator has made a step.
            self._ale.act(ale_py.Action.NOOP)
        emulator = ale_py.ALEState.__new__(ale_py.ALEState)
        emulator.__setstate__(state["emulator"])
        self._ale.restoreState(emulator)
        self._lives = state["lives"]
        self.generator.bit_generator.state = state["generator"]
