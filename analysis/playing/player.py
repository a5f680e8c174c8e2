"""Plays a run's last evaluation again, with its own weights and seeds.

Code that a run's directory names is imported only if the caller trusts it: fields of the configuration are checked
against the schema, weights are plain arrays, and the environment has to be one of meanq's own kinds.
"""

import dataclasses
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import gymnasium
import numpy as np
import pandas as pd
import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from safetensors import SafetensorError
from safetensors.torch import load_file

from meanq.config.checks import from_omegaconf
from meanq.config.errors import ConfigError
from meanq.config.extensions import own_code
from meanq.config.fields import is_identity
from meanq.config.schema import Config, EnvConfig, HyperparametersConfig
from meanq.envs import make_env
from meanq.learning.agent import Agent
from meanq.learning.build import make_network, weight_shapes
from meanq.rng import stream
from meanq.rundir.checkpoint import CheckpointError, Checkpoints
from meanq.rundir.layout import CONFIG, EVALUATIONS, WEIGHTS, Episode
from meanq.training.evaluation import Evaluator, evaluation_policy, learned_reward
from meanq.training.machine import resolve_device, tune_process

from ..runs import AnalysisError, Run
from .drawing import draw_frame

# What acting does not depend on, and what may not exist on this machine: a user's own bootstrap rule, directories.
_HERE = {
    "root": tempfile.gettempdir(),
    "device": "cpu",
    "checkpoint": {"every": 1, "keep": False},
    "logger": {"name": "files"},
    "algo": {"bootstrap": "mean", "optimiser": "adam", "optimiser_options": {}},
}
_TOLERANCE = 1e-4  # values of the same policy differ in the last digits between machines


@dataclass
class Player:
    """A run's agent at a step, with notes for the user."""

    config: Config
    agent: Agent
    step: int
    notes: list[str]


@dataclass
class Played:
    """One episode of T steps."""

    index: int
    actions: np.ndarray  # [T]
    rewards: np.ndarray  # [T], as the game gives them
    realised: np.ndarray  # [T], the discounted return that followed, of rewards as the learner sees them
    q: np.ndarray  # [T, K, A]
    true_values: np.ndarray  # [T], of the optimal policy; empty where it is not known
    terminal: bool  # else it was cut at its limit of steps
    score: Episode


def load_player(run: Run, checkpoint: int | None = None, trust: bool = False) -> Player:
    """The agent of a finished run, of its newest checkpoint, or of the checkpoint of a step.

    Raises AnalysisError where there is none.
    """
    notes: list[str] = []
    try:
        config = _typed_config(run.config, trust)
        weights, step = _read_weights(run, config, checkpoint, notes)
        tune_process(int(run.meta.get("threads") or 1))  # as in the run
        device = resolve_device("auto" if run.meta.get("device") == "cuda" else "cpu")
        network = make_network(config, make_env(config.env, stream(config.seed, "evaluation")))
    except OmegaConfBaseException as error:
        raise AnalysisError(f"{CONFIG}: {error.full_key or 'a field'}: {str(error).splitlines()[0]}") from None
    except ConfigError as error:
        raise AnalysisError(f"{CONFIG}: {error}") from None
    there, needed = (
        {name: tuple(weight.shape) for name, weight in group.items()}
        for group in (weights, weight_shapes(config, network))
    )
    for name in sorted(needed.keys() | there.keys()):
        if there.get(name) != needed.get(name):
            what = f"{name} is {there.get(name, 'absent')} not {needed.get(name, 'absent')}"
            raise AnalysisError(f"{run.directory}: its weights are not those of its {CONFIG}: {what}")
    return Player(config, Agent(config.algo, network, weights, device, torch.Generator(device)), step, notes)


def _typed_config(stored: Mapping[str, Any], trust: bool) -> Config:
    content = {name: value for name, value in stored.items() if is_identity(name)}
    # Acting depends on no block of an algorithm family; one that is newer than the run takes the values of another.
    env, families = stored["env"], [f.name for f in fields(EnvConfig) if f.type is HyperparametersConfig]
    content["env"] = dict.fromkeys(families, next((env[name] for name in families if name in env), {})) | env
    merged = OmegaConf.merge(OmegaConf.structured(Config), content, _HERE)
    foreign_id = merged.env.kind == "gymnasium" and ":" in merged.env.id
    named = own_code(merged) | ({"env.id": merged.env.id} if foreign_id else {})
    for name, value in named.items():
        if not trust:
            raise ConfigError(f"{name}={value} names code outside meanq; if you trust it, add --trust")
    assert isinstance(merged, DictConfig)
    return from_omegaconf(merged)


def _read_weights(
    run: Run, config: Config, checkpoint: int | None, notes: list[str]
) -> tuple[dict[str, torch.Tensor], int]:
    path, checkpoints = run.directory / WEIGHTS, Checkpoints(run.directory)
    try:
        if checkpoint is None and path.is_file():
            return load_file(path), config.total_steps
        saved = checkpoints.load(notes.append, step=checkpoint, frames=False)
    except (SafetensorError, OSError, CheckpointError) as error:
        raise AnalysisError(f"{run.directory}: its weights cannot be read ({error})") from None
    if saved is None and checkpoint is not None:
        steps = ", ".join(map(str, checkpoints.steps())) or "none"
        raise AnalysisError(f"--checkpoint {checkpoint}: {run.directory} has no such checkpoint (it has: {steps})")
    if saved is None:
        raise AnalysisError(f"{run.directory}: no {WEIGHTS}, no checkpoint: the run has nothing yet that could play")
    if checkpoint is None:
        notes.append(f"the run is not finished: this is its checkpoint of step {saved.step:,}")
    return saved.state["agent"]["online"], saved.step


def play_episode(player: Player, index: int) -> Played:
    """Play an episode of the evaluation at the player's step.

    All its episodes are played together, as in training: a network rounds otherwise for another number of states, and
    one action that differs makes another episode.
    """
    config, discount = player.config, player.config.algo.discount
    games = Evaluator(config).games(player.step)
    moves, true_values = [], []
    for together in games.play(evaluation_policy(player.agent, config, player.step)):
        for move in together:
            if move.game == index:
                moves.append((move.action, move.outcome.reward, move.q.copy()))
                last = move.outcome
        if moves and (last.terminal or last.truncated):
            break
        true_q = games.envs[index].true_q(discount)
        if true_q is not None:
            true_values.append(true_q.max())
    actions, rewards, q = map(np.array, zip(*moves, strict=True))
    realised, after = np.zeros(len(rewards)), 0.0
    for t in reversed(range(len(rewards))):
        realised[t] = after = learned_reward(rewards[t], config.env.clip_rewards) + discount * after
    return Played(index, actions, rewards, realised, q, np.array(true_values), last.terminal, games.episodes[index])


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

    def __init__(self, player: Player) -> None:
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
