"""Plays a run's last evaluation again, with its own weights and seeds.

Code that a run's directory names is imported only if the caller trusts it: fields of the configuration are checked
against the schema, weights are plain arrays, and the environment has to be one of meanq's own kinds.
"""

import dataclasses
import math
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from analysis.runs import AnalysisError, Run
from meanq.config.checks import check
from meanq.config.errors import ConfigError
from meanq.config.extensions import ENVIRONMENTS
from meanq.config.fields import is_identity
from meanq.config.schema import Config, EnvConfig
from meanq.envs import make_env
from meanq.learning.agent import Agent, DivergedError
from meanq.learning.build import make_network, weight_shapes
from meanq.metrics.definitions import state_value
from meanq.rng import stream
from meanq.rundir.checkpoint import CheckpointError, Checkpoints
from meanq.rundir.layout import WEIGHTS
from meanq.training.evaluation import Evaluator, Move, evaluation_policy, learned_reward
from meanq.training.machine import resolve_device, tune_process

# Exceptions of the readers of checkpoints and weights for a damaged file.
_DAMAGE = (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError, MemoryError)
# Values of the same policy differ in the last digits between machines.
_TOLERANCE = 1e-4


@dataclass
class Player:
    """A run's agent at a step, with notes for the user."""

    config: Config
    agent: Agent
    step: int
    notes: list[str]


@dataclass
class Played:
    """One episode: actions, rewards, and the members' values at every step (or only at the first)."""

    index: int
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)  # as the game gives them
    q: list[np.ndarray] = field(default_factory=list)  # [K, A] at each step
    true_values: list[float] = field(default_factory=list)  # of the optimal policy; empty where it is not known
    terminal: bool = False
    truncated: bool = False

    def add(self, move: Move, with_values: bool) -> None:
        """Keep a move, and the members' values if wanted or of the first state."""
        self.actions.append(move.action)
        self.rewards.append(move.outcome.reward)
        if with_values or not self.q:
            self.q.append(move.q.copy())
        self.terminal, self.truncated = move.outcome.terminal, move.outcome.truncated

    @property
    def over(self) -> bool:
        """Whether the episode was played to its end."""
        return self.terminal or self.truncated

    @property
    def episode_return(self) -> float:
        """Undiscounted return so far."""
        return sum(self.rewards)

    @property
    def value(self) -> float:
        """V(s_0) = max_a mean_k Q_k(s_0, a)."""
        return float(state_value(self.q[0]))

    def returns_to_go(self, discount: float, clip: bool) -> np.ndarray:
        """The discounted return after each step, of rewards as the learner sees them."""
        returns, after = np.zeros(len(self.rewards)), 0.0
        for t in range(len(self.rewards) - 1, -1, -1):
            returns[t] = after = learned_reward(self.rewards[t], clip) + discount * after
        return returns


def load_player(run: Run, checkpoint: int | None = None, trust: bool = False) -> Player:
    """The agent of a finished run, of its newest checkpoint, or of the checkpoint of a step.

    Raises AnalysisError where there is none.
    """
    config = typed_config(run.config, trust)
    notes: list[str] = []
    online, step = _read_weights(run.directory, config, checkpoint, notes)
    try:
        threads = run.meta.get("threads")
        tune_process(threads if type(threads) is int and 1 <= threads <= 1024 else 1)  # as in the run
        device = resolve_device("auto" if run.meta.get("device") == "cuda" else "cpu")
        env = make_env(config.env, stream(config.seed, "evaluation"))
        network = make_network(config, env)
        _check_shapes(online, weight_shapes(config, network))
        agent = Agent(config.algo, network, online, device, torch.Generator(device))
        agent.check_finite()
    except (ConfigError, DivergedError) as error:
        raise AnalysisError(f"{run.directory}: {error}") from None
    return Player(config, agent, step, notes)


def typed_config(stored: Mapping[str, Any], trust: bool = False) -> Config:
    """A stored configuration as the typed object. Raises AnalysisError for a field that does not fit the schema."""
    content: dict[str, Any] = {
        name: value for name, value in stored.items() if is_identity(str(name)) and name != "device"
    }
    reference = _find_reference(content)
    if reference is not None:
        raise AnalysisError(f"config.yaml: {reference} refers to something else, and a run's own has values only")
    try:
        schema = OmegaConf.structured(Config)
        merged = OmegaConf.merge(schema, content, _HERE)
        typed = OmegaConf.to_object(merged)
        assert isinstance(typed, Config)
        if not trust:
            _check_own(typed.env)
        # Acting does not depend on the bootstrap rule, so a user's own rule need not be imported.
        typed = dataclasses.replace(typed, algo=dataclasses.replace(typed.algo, bootstrap="mean"))
        check(typed)
    except OmegaConfBaseException as error:
        raise AnalysisError(f"config.yaml: {error.full_key or 'a field'}: {str(error).splitlines()[0]}") from None
    except ConfigError as error:
        raise AnalysisError(f"config.yaml: {error}") from None
    return typed


# Where a run was stored, saved and mirrored does not matter here, and may not exist on this machine.
_HERE = {
    "root": tempfile.gettempdir(),
    "device": "cpu",
    "checkpoint": {"every": 1, "keep": False},
    "logger": {"name": "files"},
}


def _find_reference(node: Any, name: str = "") -> str | None:
    """The first field that OmegaConf would interpolate, e.g. with an environment variable."""
    if isinstance(node, str):
        return name if "${" in node or node == "???" else None
    items = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ()
    found = (_find_reference(value, f"{name}.{key}" if name else str(key)) for key, value in items)
    return next((reference for reference in found if reference is not None), None)


def _check_own(env: EnvConfig) -> None:
    """Raise if making the environment would import code that the configuration names."""
    for name, value, foreign in (
        ("env.kind", env.kind, env.kind not in ENVIRONMENTS),
        ("env.id", env.id, env.kind == "gymnasium" and ":" in env.id),
    ):
        if foreign:
            raise AnalysisError(f"config.yaml: {name}={value} names code outside meanq; if you trust it, add --trust")


def _read_weights(
    directory: Path, config: Config, checkpoint: int | None, notes: list[str]
) -> tuple[dict[str, Tensor], int]:
    path, checkpoints = directory / WEIGHTS, Checkpoints(directory)
    if checkpoint is None and path.is_file():
        try:
            return load_file(path), config.total_steps
        except _DAMAGE as error:
            raise AnalysisError(f"{path} cannot be read as weights ({_one_line(error)})") from None
    try:
        saved = checkpoints.load(notes.append, step=checkpoint, frames=False)
        if saved is not None:
            if checkpoint is None:
                notes.append(f"the run is not finished: this is its checkpoint of step {saved.step:,}")
            return saved.state["agent"]["online"], int(saved.step)
    except (CheckpointError, *_DAMAGE) as error:
        raise AnalysisError(f"{directory}: its checkpoint cannot be read ({_one_line(error)})") from None
    if checkpoint is not None:
        steps = ", ".join(map(str, checkpoints.steps())) or "none"
        raise AnalysisError(f"--checkpoint {checkpoint}: {directory} has no such checkpoint (it has: {steps})")
    raise AnalysisError(f"{directory}: neither {WEIGHTS} nor a checkpoint: the run has nothing yet that could play")


def _check_shapes(weights: Mapping[str, Any], wanted: Mapping[str, Tensor]) -> None:
    for name in [*wanted, *weights]:
        there, needed = weights.get(name), wanted.get(name)
        if (
            not isinstance(there, Tensor)
            or needed is None
            or (there.shape, there.dtype) != (needed.shape, needed.dtype)
        ):
            shapes = [str(tuple(x.shape)) if isinstance(x, Tensor) else "nothing" for x in (there, needed)]
            raise AnalysisError(f"its weights are not those of its config.yaml: {name} is {shapes[0]} not {shapes[1]}")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def play_evaluation(player: Player, keep: Collection[int], steps: int | None = None) -> list[Played]:
    """The episodes of the evaluation at the player's step, with all values of those to keep.

    All episodes are played together, as in training: a network rounds otherwise for another number of states, and one
    action that differs makes another episode. Playing ends when those to keep are over, or, where at most `steps` of
    them are wanted, when what follows no longer shows in the return of any such step.
    """
    config = player.config
    discount = config.algo.discount
    horizon = math.inf if steps is None else steps + _horizon(discount)
    try:
        games = Evaluator(config).games(player.step)
    except ConfigError as error:
        raise AnalysisError(f"config.yaml: {error}") from None
    played = [Played(i) for i in range(len(games.envs))]
    for moves in games.play(evaluation_policy(player.agent, config, player.step)):
        for move in moves:
            played[move.game].add(move, with_values=move.game in keep)
        wanted = [played[i] for i in keep]
        if all(game.over or len(game.actions) >= horizon for game in wanted):
            break
        for game in wanted:
            truth = None if game.over else games.envs[game.index].true_q(discount)
            if truth is not None:
                game.true_values.append(float(truth.max()))
    return played


def _horizon(discount: float) -> float:
    """Steps after which a reward is discounted to less than a millionth."""
    return math.inf if discount == 1 else 1 if discount == 0 else math.ceil(math.log(1e-6) / math.log(discount))


def differences(run: Run, player: Player, episodes: list[Played]) -> list[str] | None:
    """A line per episode that differs from evaluations.csv; None if that has no evaluation at the player's step."""
    rows = run.evaluations[run.evaluations["step"] == player.step].set_index("episode").to_dict("index")
    if not rows:
        return None
    lines = []
    for played in episodes:
        if played.index not in rows:
            lines.append(f"episode {played.index} is not in evaluations.csv")
            continue
        names = ("value", "return", "length") if played.over else ("value",)
        there = [float(rows[played.index][name]) for name in names]
        here = [played.value, played.episode_return, len(played.actions)][: len(names)]
        if not np.allclose(here, there, rtol=_TOLERANCE, atol=_TOLERANCE):
            both = [", ".join(f"{name} {x:.6g}" for name, x in zip(names, row, strict=True)) for row in (here, there)]
            lines.append(f"episode {played.index}: {both[0]} here; {both[1]} recorded")
    return lines


@dataclass
class Picture:
    """The screen while the action of step t is carried out; after the last step, t is the number of steps."""

    t: int
    rgb: np.ndarray | None  # [height, width, 3]; None: only the frame
    frame: np.ndarray


class Screening:
    """Plays recorded episodes again and renders every frame of the emulator, skipped frames included.

    The evaluation itself renders nothing, so no picture has to be kept in memory.
    """

    def __init__(self, player: Player) -> None:
        self._player = player
        self.notes: list[str] = []
        env, self.repeats = player.config.env, 1
        if env.kind == "atari":
            self.repeats = int(env.options.get("frame_skip", 4))
            env = dataclasses.replace(env, options={**env.options, "frame_skip": 1})
        elif env.kind == "gymnasium":
            os.environ.setdefault(
                "SDL_VIDEODRIVER", "dummy"
            )  # most environments draw with SDL, which then needs no display
            drawn = {**(env.options.get("make") or {}), "render_mode": "rgb_array"}
            env = dataclasses.replace(env, options={**env.options, "make": drawn})
        generator = stream(player.config.seed, "evaluation")
        try:
            self.env = make_env(env, generator)
        except ConfigError as error:  # some cannot be rendered, and take no render_mode
            self.notes.append(f"its observations are drawn, because {error}")
            self.env = make_env(player.config.env, generator)

    def pictures(self, played: Played) -> Iterator[Picture]:
        """Pictures from the first state to the last. Raises AnalysisError if the same actions lead elsewhere."""
        self.env.seed(stream(self._player.config.seed, "evaluation", self._player.step, played.index))
        frame = self.env.reset()
        for t, action in enumerate(played.actions):
            reward, over = 0.0, False
            for _ in range(self.repeats):
                yield Picture(t, self._render(), frame)
                outcome = self.env.step(action)
                frame, reward, over = outcome.frame, reward + outcome.reward, outcome.terminal
                if over:
                    break
            ends = played.terminal and t + 1 == len(played.actions)
            if reward != played.rewards[t] or over != ends:
                raise AnalysisError(f"step {t}: the same seed and actions lead elsewhere, so there is nothing to show")
        yield Picture(len(played.actions), self._render(), frame)

    def _render(self) -> np.ndarray | None:
        if self.notes:
            return None
        try:
            return self.env.render()
        except gymnasium.error.DependencyNotInstalled as error:
            self.notes.append(f"its observations are drawn, because gymnasium cannot draw it ({_one_line(error)})")
            return None
