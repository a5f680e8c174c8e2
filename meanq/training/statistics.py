"""What training.csv says: means over the updates and games since its last row."""

from typing import Any

import numpy as np
import torch

from meanq.learning.learner import Learned

COLUMNS = ("loss", "mean_q", "gradient_norm")  # fields of Learned, averaged


class Statistics:
    """Collects numbers of updates and training games."""

    def __init__(self) -> None:
        self._window: dict[str, list[torch.Tensor]] = {name: [] for name in COLUMNS}
        self._returns: list[float] = []  # of games that ended since the last row
        self._games = 0
        self._game_return = 0.0
        self.last_return: float | None = None  # of the last game that ended

    def add_reward(self, reward: float) -> None:
        self._game_return += reward

    def end_game(self) -> None:
        self._games += 1
        self.last_return = self._game_return
        self._returns.append(self._game_return)
        self._game_return = 0.0

    def add_update(self, learned: Learned) -> None:
        for name, values in self._window.items():
            values.append(getattr(learned, name))

    def take_row(self) -> dict[str, float | None]:
        """Columns of a row; the next one starts from here."""
        row: dict[str, float | None] = {
            "games": self._games,
            "game_return": float(np.mean(self._returns)) if self._returns else None,
            **{name: float(torch.stack(got).mean()) if got else None for name, got in self._window.items()},
        }
        for values in self._window.values():
            values.clear()
        self._returns.clear()
        return row

    def state_dict(self) -> dict[str, Any]:
        return {
            "games": self._games,
            "game_return": self._game_return,
            "last_return": self.last_return,
            "window": {name: torch.stack(got) if got else torch.zeros(0) for name, got in self._window.items()},
            "window_returns": self._returns,
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self._games, self._game_return, self.last_return = state["games"], state["game_return"], state["last_return"]
        self._window = {name: list(values.to(device)) for name, values in state["window"].items()}
        self._returns = state["window_returns"]
