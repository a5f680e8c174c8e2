"""Plays a run's last evaluation again, with its own weights and seeds."""

import dataclasses
import os
from collections.abc import Iterator, Mapping

import gymnasium
import numpy as np
import pandas as pd

from meanq.config.errors import ConfigError, RunError
from meanq.envs import make_env
from meanq.rng import stream
from meanq.rundir.layout import EVALUATIONS, Episode
from meanq.training.trained import Played, Trained, load_trained, play

from ..runs import AnalysisError, Run
from .drawing import draw_frame

_TOLERANCE = 1e-4  # values of the same policy differ in the last digits between machines


def load_player(run: Run, checkpoint: int | None = None, trust: bool = False) -> Trained:
    """The agent of a finished run, of its newest checkpoint, or of the checkpoint of a step.

    Raises AnalysisError where there is none.
    """
    try:
        return load_trained(run.directory, run.config, run.meta, checkpoint, trust)
    except RunError as error:
        raise AnalysisError(str(error)) from None


def play_episode(player: Trained, index: int) -> Played:
    """Play one of the episodes of the evaluation at the player's step."""
    return play(player, keep=[index])[0]


def unlike_recorded(run: Run, step: int, episodes: Mapping[int, Episode]) -> str | None:
    """Say which episodes differ from evaluations.csv, or that it has none of them; None if all are the same."""
    names = ["value", "return", "length"]
    table = run.evaluations[run.evaluations["step"] == step].set_index("episode")
    recorded = table.loc[table.index.isin(list(episodes)), names]
    if recorded.empty:
        return f"{EVALUATIONS} has no such episode at step {step:,}, so there is nothing to compare with"
    here = pd.DataFrame([episodes[i].row(step, i) for i in recorded.index])[names]
    same = np.isclose(here.to_numpy(), recorded.to_numpy(), _TOLERANCE, _TOLERANCE).all(axis=1)
    if same.all():
        return None
    return (
        f"{(~same).sum()} of {len(same)} greedy episodes are not as in {EVALUATIONS} at step {step:,}; another "
        "machine, version or number of episodes rounds otherwise, and one action that differs makes another episode"
    )


class Screening:
    """Plays a recorded episode again and renders every frame of the emulator, skipped frames included.

    The evaluation itself renders nothing, so no picture has to be kept in memory.
    """

    def __init__(self, player: Trained) -> None:
        self._player, self.notes = player, list[str]()
        env, self.repeats = player.config.env, 1
        options = dict(env.options)
        if env.kind == "atari":
            self.repeats = int(options.get("frame_skip", 4))
            options["frame_skip"] = 1
        elif env.kind == "gymnasium":
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # most environments draw with SDL; no display is needed
            options["make"] = {**(options.get("make") or {}), "render_mode": "rgb_array"}
        generator = stream(player.config.seed, "evaluation")
        try:
            self.env = make_env(dataclasses.replace(env, options=options), generator)
        except ConfigError as error:  # some cannot be rendered, and take no render_mode
            self.notes.append(f"its observations are drawn, because {error}")
            self.env = make_env(env, generator)

    def pictures(self, played: Played) -> Iterator[tuple[int, np.ndarray]]:
        """RGB of the first state to the last, each with its step. AnalysisError if the same actions lead elsewhere."""
        self.env.seed(stream(self._player.config.seed, "evaluation", self._player.step, played.index))
        frame = self.env.reset()
        for t, action in enumerate(played.actions.tolist()):
            reward = 0.0
            for _ in range(self.repeats):
                yield t, self._render(frame)
                outcome = self.env.step(action)
                frame, reward = outcome.frame, reward + outcome.reward
                if outcome.terminal:
                    break
            ends = played.terminal and t + 1 == len(played.actions)
            if reward != played.rewards[t] or outcome.terminal != ends:
                raise AnalysisError(f"step {t}: the same seed and actions lead elsewhere, so there is nothing to show")
        yield len(played.actions), self._render(frame)

    def _render(self, frame: np.ndarray) -> np.ndarray:
        rgb = None
        try:
            rgb = None if self.notes else self.env.render()
        except gymnasium.error.DependencyNotInstalled as error:
            reason = " ".join(str(error).split())
            self.notes.append(f"its observations are drawn, because gymnasium needs more ({reason})")
        return draw_frame(frame, self.env.frame_scale) if rgb is None else rgb
