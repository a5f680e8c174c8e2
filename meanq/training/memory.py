"""Estimate the memory of a run, and refuse at the start what cannot fit.

The estimate counts only what is there at once for certain, so a run that is refused would indeed have failed.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from meanq.config.errors import ConfigError
from meanq.config.schema import Config
from meanq.envs import Environment
from meanq.learning import build
from meanq.learning.networks import parameter_count
from meanq.training.machine import MEMORY_SHARE, available_memory, gpu_memory, human_bytes

_EVALUATION_PARTS = 2  # the first of all
_FLOAT_BYTES = 4
_MAX_OUTPUT_BYTES = 2**28  # of one state
_ENV_BYTES = {"atari": 2**20}  # of one environment; of other kinds:
_OTHER_ENV_BYTES = 2**10
LOCAL_SHARE = (" for each run", ", or fewer hydra.launcher.jobs")  # whose memory it is, and the remedy
# Fields that memory is proportional to, with usual values. The one that exceeds it most is to blame.
_USUAL = {
    "algo.ensemble_size": 5,
    "algo.batch_size": 32,
    "algo.atoms": 51,
    "algo.quantiles": 200,
    "algo.target_snapshots": 5,
    "algo.parallel_networks": 1,
    "network.hidden": 512,
    "probe.states": 100,
    "evaluation.episodes": 20,
    "env.stack": 4,
}


@dataclass
class Part:
    """Something that takes memory, and the fields that decide how much."""

    name: str
    size: int
    fields: tuple[str, ...]
    on_gpu: bool


def check_memory(config: Config, env: Environment, device: torch.device, training: bool = True) -> None:
    """Raise ConfigError where the run, or its evaluation alone, would not fit: now, not at step 300,000."""
    parts = list(islice(_parts(config, env, device.type == "cuda"), None if training else _EVALUATION_PARTS))
    for on_gpu in sorted({part.on_gpu for part in parts}):
        whose, remedy = "", ""
        if on_gpu:
            whose, remedy = " on the GPU", ", or replay_on_device=false" if config.replay_on_device else ""
        elif MEMORY_SHARE in os.environ:
            whose, remedy = LOCAL_SHARE
        available = gpu_memory(device) if on_gpu else available_memory()
        _check_fits(config, [part for part in parts if part.on_gpu == on_gpu], available, whose, remedy)


def check_room(config: Config, env: Environment, gpu: bool, room: int, whose: str, remedy: str) -> None:
    """Raise ConfigError where what a run keeps in main memory exceeds `room` bytes; `gpu`: the run uses one."""
    _check_fits(config, [part for part in _parts(config, env, gpu) if not part.on_gpu], room, whose, remedy)


def _parts(config: Config, env: Environment, gpu: bool) -> Iterator[Part]:
    algo = config.algo
    state = config.env.stack * int(np.prod(env.frame_shape)) * np.dtype(env.frame_dtype).itemsize
    each = state + _ENV_BYTES.get(config.env.kind, _OTHER_ENV_BYTES)
    yield Part("the probe states need", config.probe.states * state, ("probe.states", "env.stack"), False)
    yield Part("evaluation needs", config.evaluation.episodes * each, ("evaluation.episodes",), False)
    form = {"categorical": "algo.atoms", "hl_gauss": "algo.atoms", "quantile": "algo.quantiles"}.get(algo.value)
    outputs = env.num_actions * (attrgetter(form)(config) if form else 1) * _FLOAT_BYTES
    fields = ("algo.ensemble_size", "algo.batch_size", *([form] if form else []))
    minibatches = algo.ensemble_size if algo.minibatch == "independent" else 1
    batches = 2 * algo.batch_size * (minibatches * state + algo.ensemble_size * outputs)
    yield Part("minibatches need", batches, fields, gpu)
    weights = 0  # of one member
    if outputs < _MAX_OUTPUT_BYTES:  # else it cannot be made, and minibatches are reason enough
        with torch.device("meta"):
            weights = parameter_count(build.make_network(config, env).init([torch.Generator()]))
    # The weights, their gradients, the optimiser's two moments, and the target network.
    copies = 4 + (algo.target_snapshots if algo.target_network is not None else 0)
    fields = (*fields, "algo.target_snapshots", "algo.parallel_networks", "network.hidden")
    yield Part("the weights need", algo.ensemble_size * weights * copies * _FLOAT_BYTES, fields, gpu)
    replay = build.replay_size(config, env)
    if gpu and config.replay_on_device:  # its other tables are not there
        frames = build.frames_size(config, env)
        replay -= frames
        yield Part("the replay's frames need", frames, ("algo.replay_capacity",), True)
    yield Part("the replay needs", replay, ("algo.replay_capacity", "algo.ensemble_size"), False)


def _check_fits(config: Config, parts: list[Part], available: int, whose: str, remedy: str) -> None:
    needed = sum(part.size for part in parts)
    if needed <= available:
        return
    part = max(parts, key=attrgetter("size"))
    values: dict[str, Any] = {name: attrgetter(name)(config) for name in part.fields}
    values |= {"algo.replay_capacity": build.replay_capacity(config)} if "algo.replay_capacity" in values else {}
    name, value = max(values.items(), key=lambda field: field[1] / _USUAL.get(field[0], 1))
    depending = sum(other.size for other in parts if name in other.fields)
    room = max(0, available - (needed - depending))
    raise ConfigError(
        f"{name}={value}: {part.name} {human_bytes(part.size)} and {human_bytes(room)} are free{whose}: write "
        f"{max(1, int(value * 0.9 * room / depending))} or less{remedy}"
    )
