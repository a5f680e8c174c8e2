"""The states at which the values of all members are probed."""

from dataclasses import dataclass

import numpy as np

from meanq.config.schema import Config
from meanq.envs import FrameStack, make_env
from meanq.rng import stream


@dataclass
class Probes:
    """Initial states, the same in every run of every algorithm: they depend on `probe.seed`, not on the run's seed."""

    states: np.ndarray  # [P, *state]
    true_q: np.ndarray | None  # [P, A] where the environment knows it


def make_probes(config: Config) -> Probes:
    """The initial states of `probe.states` resets."""
    states, truths = [], []
    env = make_env(config.env, stream(config.probe.seed, "probe"))
    for i in range(config.probe.states):
        env.seed(stream(config.probe.seed, "probe", i))
        frames = FrameStack(config.env.stack, env.frame_shape, env.frame_dtype)
        states.append(frames.start(env.reset()))
        truths.append(env.true_q(config.algo.discount))
    known = [q for q in truths if q is not None]
    return Probes(np.stack(states), np.stack(known) if len(known) == len(truths) else None)
