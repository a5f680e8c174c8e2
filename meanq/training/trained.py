"""A trained agent from the directory of its run, and episodes that it plays.

Code that a run's directory names is imported only if the caller trusts it: fields of the configuration are checked
against the schema, weights are plain arrays, and the environment has to be one of meanq's own kinds.
"""

import os
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from safetensors import SafetensorError
from safetensors.torch import load_file

from meanq.config.checks import from_omegaconf
from meanq.config.errors import ConfigError, RunError
from meanq.config.extensions import own_code
from meanq.config.fields import is_identity
from meanq.config.schema import Config, EnvConfig, HyperparametersConfig
from meanq.envs import Environment, make_env
from meanq.learning.agent import Agent
from meanq.learning.build import make_network, weight_shapes
from meanq.learning.networks import QNetwork
from meanq.rng import stream
from meanq.rundir.checkpoint import CheckpointError, Checkpoints
from meanq.rundir.layout import CONFIG, WEIGHTS, Episode
from meanq.rundir.reader import check_weights, open_file
from meanq.training.evaluation import Evaluator, evaluation_policy, learned_reward
from meanq.training.machine import MAX_THREADS, resolve_device, tune_process
from meanq.training.memory import check_memory

# What acting does not depend on, and what may not exist on this machine: a user's own bootstrap rule, directories.
_HERE = {
    "root": tempfile.gettempdir(),
    "device": "cpu",
    "checkpoint": {"every": 1, "keep": False},
    "logger": {"name": "files"},
    "algo": {"bootstrap": "mean", "optimiser": "adam", "optimiser_options": {}},
}


@dataclass
class Trained:
    """The agent of a run at a step, with notes for the user."""

    config: Config
    agent: Agent
    env: Environment  # for its shapes and names
    network: QNetwork
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
    states: np.ndarray | None = field(default=None)  # [T, *state], where asked for

    def __repr__(self) -> str:
        return f"<episode {self.index}: return {self.score.episode_return:g} in {self.score.length:,} steps>"


def load_trained(
    directory: Path,
    config: Mapping[str, Any],
    meta: Mapping[str, Any],
    checkpoint: int | None = None,
    trust: bool = False,
) -> Trained:
    """The agent of a finished run, of its newest checkpoint, or of the checkpoint of a step.

    `config` and `meta` are what the run stored. Raises RunError where there is no agent.
    """
    notes: list[str] = []
    try:
        typed = _typed_config(config, trust)
        weights, step = _read_weights(directory, typed, checkpoint, notes)
        threads = meta.get("threads")
        tune_process(threads if isinstance(threads, int) and 0 < threads <= MAX_THREADS else 1)  # as in the run
        device = resolve_device("auto" if meta.get("device") == "cuda" else "cpu")
        env = make_env(typed.env, stream(typed.seed, "evaluation"))
        check_memory(typed, env, device, training=False)
        network = make_network(typed, env, device)
    except OmegaConfBaseException as error:
        raise RunError(f"{CONFIG}: {error.full_key or 'a field'}: {str(error).splitlines()[0]}") from None
    except ConfigError as error:
        raise RunError(f"{CONFIG}: {error}") from None
    there, needed = (
        {name: tuple(weight.shape) for name, weight in group.items()}
        for group in (weights, weight_shapes(typed, network))
    )
    for name in sorted(needed.keys() | there.keys()):
        if there.get(name) != needed.get(name):
            what = f"{name} is {there.get(name, 'absent')} not {needed.get(name, 'absent')}"
            raise RunError(f"{directory}: its weights are not those of its {CONFIG}: {what}")
    agent = Agent(typed.algo, network, weights, device, torch.Generator(device))
    return Trained(typed, agent, env, network, step, notes)


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
            remedy = "if you trust it, add --trust (in Python: trust=True)"
            raise ConfigError(f"{name}={value} names code outside meanq; {remedy}")
    assert isinstance(merged, DictConfig)
    return from_omegaconf(merged)


def _read_weights(
    directory: Path, config: Config, checkpoint: int | None, notes: list[str]
) -> tuple[dict[str, torch.Tensor], int]:
    path, checkpoints = directory / WEIGHTS, Checkpoints(directory)
    try:
        if checkpoint is None and os.path.lexists(path):
            with open_file(path) as file:
                check_weights(file)
                return load_file(path), config.total_steps
        saved = checkpoints.load(notes.append, step=checkpoint, frames=False)
    except (SafetensorError, OSError, CheckpointError) as error:
        raise RunError(f"{directory}: its weights cannot be read ({error})") from None
    if saved is None and checkpoint is not None:
        steps = ", ".join(map(str, checkpoints.steps())) or "none"
        raise RunError(f"checkpoint {checkpoint}: {directory} has no such checkpoint (it has: {steps})")
    if saved is None:
        raise RunError(f"{directory}: no {WEIGHTS}, no checkpoint: the run has nothing yet that could play")
    if checkpoint is None:
        notes.append(f"the run is not finished: this is its checkpoint of step {saved.step:,}")
    try:
        weights = {str(name): torch.as_tensor(p) for name, p in saved.state["agent"]["online"].items()}
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise RunError(f"{directory}: its checkpoint of step {saved.step} has no weights ({error})") from None
    return weights, saved.step


def play(
    trained: Trained, episodes: int | None = None, keep: Collection[int] | None = None, states: bool = False
) -> list[Played]:
    """Play the episodes of the evaluation at the agent's step, and return those that `keep` names, else all.

    `episodes` is their number, that of the run by default. All are played together, as in training: a network rounds
    otherwise for another number of states, and one action that differs makes another episode.
    """
    config, discount = trained.config, trained.config.algo.discount
    games = Evaluator(config, episodes=episodes).games(trained.step)
    policy = evaluation_policy(trained.agent, config, trained.step)
    seen: list[np.ndarray] = []  # states of the games that run, before the last step

    def watched(now: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        seen[:] = now if states else []
        return policy(now)

    wanted = range(len(games.envs)) if keep is None else keep
    moves: dict[int, list[tuple[Any, ...]]] = {i: [] for i in wanted}
    true_values: dict[int, list[float]] = {i: [] for i in wanted}
    ended: dict[int, bool] = {}  # whether by a terminal state
    for together in games.play(watched):
        for row, move in enumerate(together):
            if move.game in moves:
                state = seen[row].copy() if states else None
                moves[move.game].append((move.action, move.outcome.reward, move.q.copy(), state))
                if move.outcome.terminal or move.outcome.truncated:
                    ended[move.game] = move.outcome.terminal
        if len(ended) == len(moves):
            break
        for i in moves.keys() - ended.keys():
            true_q = games.envs[i].true_q(discount)
            if true_q is not None:
                true_values[i].append(float(true_q.max()))
    found = []
    for i in wanted:
        actions, rewards, q, *shown = map(np.array, zip(*(m if states else m[:3] for m in moves[i]), strict=True))
        realised, after = np.zeros(len(rewards)), 0.0
        for t in reversed(range(len(rewards))):
            realised[t] = after = learned_reward(rewards[t], config.env.clip_rewards) + discount * after
        truth = np.array(true_values[i])
        found.append(Played(i, actions, rewards, realised, q, truth, ended[i], games.episodes[i], *shown))
    return found
