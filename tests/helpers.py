"""What several test files need."""

import dataclasses
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from meanq.config.schema import AlgoConfig, Config, NetworkConfig
from meanq.envs import Environment
from meanq.launching.plan import plan
from meanq.learning.agent import Agent
from meanq.learning.exploration import Values, greedy, sometimes_random
from meanq.learning.networks import Params, QNetwork
from meanq.rundir.layout import Episode
from meanq.training.evaluation import Games


@cache
def compose(*overrides: str) -> Config:
    """The checked configuration of one run that is never started; shared, so not to be changed."""
    planned = plan([f"root={tempfile.gettempdir()}/meanq_tests_never_written", *overrides])
    assert planned is not None
    return planned.configs[0]


def slow_but(cases: Iterable[str], *fast: str) -> list[Any]:
    """Parameters of a test: these cases, all but the fast ones marked as slow."""
    return [case if case in fast else pytest.param(case, marks=pytest.mark.slow) for case in cases]


def algo_config(name: str, **changes: Any) -> AlgoConfig:
    """conf/algo/<name>.yaml with the chain's hyper-parameters and these fields changed."""
    return dataclasses.replace(compose(f"algo={name}", "env=chain").algo, **changes)


def network_config(name: str) -> NetworkConfig:
    """conf/network/<name>.yaml."""
    return compose(f"network={name}").network


def make_agent(
    algo: AlgoConfig, network: QNetwork, params: Params, noise_seed: int = 0, *, compile: bool = False
) -> Agent:
    """An agent on the CPU."""
    generator = torch.Generator().manual_seed(noise_seed)
    return Agent(
        algo,
        network,
        params,
        torch.device("cpu"),
        generator,
        compile=compile,
        subsets=np.random.default_rng(noise_seed),
        fresh=lambda number: random_params(network, algo.ensemble_size, 100 + number),
    )


def random_params(network: QNetwork, members: int, seed: int) -> Params:
    """Initial weights that have nothing to do with those of another seed."""
    return network.init([torch.Generator().manual_seed(1000 * seed + k) for k in range(members)])


def play(
    values: Values,
    envs: Sequence[Environment],
    stack: int,
    discount: float,
    clip: bool,
    epsilon: float = 0.0,
    actions: np.random.Generator | None = None,
) -> list[Episode]:
    """One greedy episode in each environment, with a share of random actions."""
    games = Games(envs, stack, discount, clip)
    for _ in games.play(sometimes_random(greedy(values), epsilon, actions or np.random.default_rng(0))):
        pass
    return games.episodes
