"""Make networks, agents, explorers and replays from a configuration."""

from typing import TYPE_CHECKING

import torch

from meanq.config.errors import ConfigError
from meanq.config.schema import AlgoConfig, Config
from meanq.learning.agent import Agent
from meanq.learning.exploration import Explorer
from meanq.learning.networks import OwnNetwork, Params, QNetwork
from meanq.learning.values import make_value_form
from meanq.replay.buffer import BernoulliMask, Replay, frames_bytes, replay_bytes
from meanq.rng import integer_seed, stream

if TYPE_CHECKING:
    from meanq.envs import Environment


def make_network(config: Config, env: "Environment", device: torch.device | None = None) -> QNetwork:
    """The network of one member, for any number of members' parameters; `device` is where it will compute."""
    algo = config.algo
    form = make_value_form(algo, device or torch.device("cpu"))
    if config.network.kind != "layers":
        shape = state_shape(config, env)
        return OwnNetwork(shape, env.num_actions, config.network, scale=env.frame_scale, form=form, atoms=form.atoms)
    return QNetwork(
        state_shape(config, env),
        env.num_actions,
        config.network,
        dueling=algo.dueling,
        scale=env.frame_scale,
        atoms=form.atoms,
        form=form,
        noise=algo.noise if algo.noisy else None,
        bias_noise=algo.bias_noise,
        parallel=algo.parallel_networks,
    )


def state_shape(config: Config, env: "Environment") -> tuple[int, ...]:
    """A state is a stack of frames along their first axis."""
    channels, *size = env.frame_shape
    return (config.env.stack * channels, *size)


def member_generator(seed: int, member: int, *reset: int) -> torch.Generator:
    """The generator of a member's weights, initially or at a reset; they do not depend on the size of the ensemble."""
    return torch.Generator().manual_seed(integer_seed(stream(seed, "weights", member, *reset)))


def weight_shapes(config: Config, network: QNetwork) -> Params:
    """Weights of all members without memory behind them."""
    with torch.device("meta"):
        return network.init([torch.Generator()] * config.algo.ensemble_size)


def make_agent(config: Config, network: QNetwork, device: torch.device, compile: bool) -> Agent:
    """An agent that has learned nothing yet."""
    noise = torch.Generator(device).manual_seed(integer_seed(stream(config.seed, "noise")))
    algo = config.algo

    def weights(*reset: int) -> Params:
        return network.init([member_generator(config.seed, k, *reset) for k in range(algo.ensemble_size)])

    return Agent(
        algo,
        network,
        weights(),
        device,
        noise,
        compile=compile,
        cache_targets=config.cache_targets,
        subsets=None if algo.bootstrap_subset is None else stream(config.seed, "subsets"),
        fresh=None if algo.reset_every is None else weights,
    )


def make_explorer(config: Config, env: "Environment") -> Explorer:
    """The explorer, with its own random streams."""
    return Explorer(config.algo, env.num_actions, stream(config.seed, "actions"), stream(config.seed, "members"))


def make_replay(config: Config, env: "Environment", device: torch.device) -> Replay:
    """An empty replay."""
    algo = config.algo
    return Replay(
        capacity=replay_capacity(config),
        frame_shape=env.frame_shape,
        frame_dtype=env.frame_dtype,
        stack=config.env.stack,
        multi_step=algo.multi_step,
        discount=algo.discount,
        priority_trees=_priority_trees(algo),
        prioritized=algo.prioritized,
        priority_exponent=algo.priority_exponent,
        generator=stream(config.seed, "replay"),
        device=device,
        mask=make_mask(config),
        frames_on_device=config.replay_on_device,
    )


def replay_capacity(config: Config) -> int:
    """Transitions that the replay holds: no more than the run will ever store."""
    return min(config.algo.replay_capacity, config.total_steps)


def replay_size(config: Config, env: "Environment") -> int:
    """Bytes that the replay takes when it is full."""
    masks = config.algo.ensemble_size if config.algo.mask_probability < 1 else 0
    trees = _priority_trees(config.algo)
    return replay_bytes(replay_capacity(config), env.frame_shape, env.frame_dtype, config.env.stack, trees, masks)


def frames_size(config: Config, env: "Environment") -> int:
    """Bytes of the replay's frames."""
    return frames_bytes(replay_capacity(config), env.frame_shape, env.frame_dtype, config.env.stack)


def check_augmentation(algo: AlgoConfig, shape: tuple[int, ...]) -> None:
    """Raise where states of this shape cannot be augmented: only images can, and by less than their size."""
    for name in ("random_shift", "random_intensity"):
        if getattr(algo, name) and len(shape) != 3:
            raise ConfigError(
                f"algo.{name}={getattr(algo, name)}: these states have shape {shape} and are no images; "
                f"write algo.{name}=0"
            )
    if algo.random_shift and algo.random_shift >= min(shape[1:]):
        raise ConfigError(
            f"algo.random_shift={algo.random_shift}: images are {shape[1]}x{shape[2]}; write less than that"
        )


def make_mask(config: Config) -> BernoulliMask | None:
    """None where every member learns from everything."""
    algo = config.algo
    if algo.mask_probability == 1:
        return None
    return BernoulliMask(algo.ensemble_size, algo.mask_probability, stream(config.seed, "masks"))


def _priority_trees(algo: AlgoConfig) -> int:
    """One tree per member, or one for all; uniform draws come from a tree, too."""
    return algo.ensemble_size if algo.prioritized and algo.priorities == "per_member" else 1
