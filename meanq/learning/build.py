"""From a configuration to networks, masks and sizes."""

import torch

from meanq.config.errors import ConfigError
from meanq.config.schema import AlgoConfig, Config
from meanq.learning.networks import QNetwork
from meanq.replay.buffer import BernoulliMask
from meanq.rng import integer_seed, stream


def make_network(config: Config, state_shape: tuple[int, ...], num_actions: int, scale: float) -> QNetwork:
    """The networks of an algorithm's members."""
    algo = config.algo
    return QNetwork(
        state_shape,
        num_actions,
        config.network,
        dueling=algo.dueling,
        scale=scale,
        atoms=algo.atoms if algo.value == "categorical" else None,
        noise=algo.noise if algo.noisy else None,
        bias_noise=algo.bias_noise,
        parallel=algo.parallel_networks,
    )


def make_mask(config: Config) -> BernoulliMask | None:
    """None where every member learns from everything."""
    algo = config.algo
    if algo.mask_probability == 1:
        return None
    return BernoulliMask(algo.ensemble_size, algo.mask_probability, stream(config.seed, "masks"))


def check_augmentation(algo: AlgoConfig, state_shape: tuple[int, ...]) -> None:
    """Only images can be augmented, and not shifted by more than their size."""
    for name in ("random_shift", "random_intensity"):
        if getattr(algo, name) and len(state_shape) != 3:
            raise ConfigError(
                f"algo.{name}={getattr(algo, name)}: these states have shape {state_shape} and are no images; "
                f"write algo.{name}=0"
            )
    if algo.random_shift and algo.random_shift >= min(state_shape[1:]):
        raise ConfigError(
            f"algo.random_shift={algo.random_shift}: images are {state_shape[1]}x{state_shape[2]}; write less than that"
        )


def member_generator(seed: int, member: int) -> torch.Generator:
    """Member k's initial weights do not depend on the size of the ensemble."""
    return torch.Generator().manual_seed(integer_seed(stream(seed, "weights", member)))


def replay_capacity(config: Config) -> int:
    """No more than the run will ever store."""
    return min(config.algo.replay_capacity, config.total_steps)


def priority_trees(algo: AlgoConfig) -> int:
    """One tree per member, or one for all; also uniform draws come from a tree."""
    return algo.ensemble_size if algo.prioritized and algo.priorities == "per_member" else 1
