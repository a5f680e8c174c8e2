"""A member that is several networks side by side, with a fixed mean as its last layer, against those networks."""

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meanq.config.schema import AlgoConfig, ConvolutionConfig, NetworkConfig
from meanq.envs import Environment
from meanq.learning.build import make_network as network_of
from meanq.learning.build import member_generator
from meanq.learning.networks import Params, QNetwork, parameter_count
from meanq.learning.values import CategoricalValue, ScalarValue, ValueForm
from meanq.replay.buffer import Batch
from tests.helpers import algo_config, compose, make_agent, random_params

ACTIONS, BATCH, ATOMS, PARTS = 3, 4, 5, 5
VALUE_MIN, VALUE_MAX = -2.0, 3.0
CONVOLUTIONS = [ConvolutionConfig(channels=4, kernel=3, stride=2), ConvolutionConfig(channels=3, kernel=2, stride=1)]
SHAPES = {"vector": (6,), "image": (2, 9, 7)}
CONFIGS = {
    "vector": NetworkConfig(name="vector", convolutions=[], dense=[8], hidden=8),
    "image": NetworkConfig(name="image", convolutions=CONVOLUTIONS, dense=[], hidden=8),
}


def make_network(
    kind: str = "vector", *, dueling: bool = True, atoms: int | None = ATOMS, parallel: int = PARTS
) -> QNetwork:
    return QNetwork(SHAPES[kind], ACTIONS, CONFIGS[kind], dueling=dueling, scale=0.5, atoms=atoms, parallel=parallel)


def plain(kind: str, params: Params, index: int, states: Tensor, *, dueling: bool, atoms: int | None) -> Tensor:
    """One network as one would write it alone: Q [N, A], or probabilities [N, A, Z]."""

    def dense(layer: str, x: Tensor, part: slice = slice(None)) -> Tensor:
        return F.linear(x, params[f"{layer}.weight"][index][:, part].T, params[f"{layer}.bias"][index, 0, part])

    config = CONFIGS[kind]
    x = 0.5 * states
    for i, convolution in enumerate(config.convolutions):
        weight, bias = params[f"conv{i}.weight"][index], params[f"conv{i}.bias"][index]
        x = F.relu(F.conv2d(x, weight, bias, convolution.stride))
    if config.convolutions:
        x = x.permute(0, 2, 3, 1)  # y, x, channel
    x = x.flatten(1)
    for i in range(len(config.dense)):
        x = F.relu(dense(f"dense{i}", x))
    if dueling:
        value = dense("value", F.relu(dense("hidden", x, slice(config.hidden)))).unflatten(1, (1, atoms or 1))
        advantage = dense("advantage", F.relu(dense("hidden", x, slice(config.hidden, None))))
        advantage = advantage.unflatten(1, (ACTIONS, atoms or 1))
        outputs = value + advantage - sum(advantage[:, a : a + 1] for a in range(ACTIONS)) / ACTIONS
    else:
        outputs = dense("value", F.relu(dense("hidden", x))).unflatten(1, (ACTIONS, atoms or 1))
    return outputs.squeeze(2) if atoms is None else outputs.softmax(2)


def plain_mean(kind: str, params: Params, k: int, states: Tensor, *, dueling: bool, atoms: int | None) -> Tensor:
    """The mean of member k's networks: their Q, or their probabilities."""
    total = torch.zeros(())
    for part in range(PARTS):
        total = total + plain(kind, params, k * PARTS + part, states, dueling=dueling, atoms=atoms)
    return total / PARTS


def value_form(atoms: int | None) -> ValueForm:
    return ScalarValue() if atoms is None else CategoricalValue(VALUE_MIN, VALUE_MAX, atoms, torch.device("cpu"))


@pytest.mark.parametrize("size", [1, BATCH])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_member"])
@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("dueling", [True, False], ids=["dueling", "single"])
@pytest.mark.parametrize("atoms", [None, ATOMS], ids=["scalar", "categorical"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_outputs_are_the_mean_of_separate_networks(
    kind: str, atoms: int | None, dueling: bool, members: int, shared: bool, size: int
) -> None:
    network = make_network(kind, dueling=dueling, atoms=atoms)
    params = random_params(network, members, 1)
    params = {name: 3 * p for name, p in params.items()}  # so that networks differ clearly
    assert network.members(params) == members and len(params["hidden.bias"]) == PARTS * members
    leading = (size,) if shared else (members, size)
    states = torch.randn(*leading, *SHAPES[kind], generator=torch.Generator().manual_seed(2))
    outputs = network(params, states)
    assert outputs.shape == (members, size, ACTIONS, *(() if atoms is None else (atoms,)))
    form = value_form(atoms)
    for k in range(members):
        own_states = states if shared else states[k]
        mean = plain_mean(kind, params, k, own_states, dueling=dueling, atoms=atoms)
        torch.testing.assert_close(outputs[k], mean if atoms is None else mean.log(), rtol=1e-4, atol=1e-5)
        # The values are the mean of the networks' values, also where they are expectations.
        q = torch.zeros(size, ACTIONS)
        for part in range(PARTS):
            output = plain(kind, params, k * PARTS + part, own_states, dueling=dueling, atoms=atoms)
            q += form.expectation(output if atoms is None else output.log()) / PARTS
        torch.testing.assert_close(form.expectation(outputs[k]), q, rtol=1e-4, atol=1e-5)


def test_distributions_are_averaged_not_their_logarithms() -> None:
    """Two networks, each all but certain of another atom: the mean is certain of neither."""
    network = make_network(atoms=2, parallel=2, dueling=False)
    params = {name: torch.zeros_like(p) for name, p in random_params(network, 1, 0).items()}
    params["value.bias"][0, 0] = torch.tensor([30.0, 0]).repeat(ACTIONS)
    params["value.bias"][1, 0] = torch.tensor([0, 10.0]).repeat(ACTIONS)
    outputs = network(params, torch.zeros(1, *SHAPES["vector"]))
    torch.testing.assert_close(outputs.exp(), torch.full((1, 1, ACTIONS, 2), 0.5), rtol=1e-3, atol=1e-4)


def test_parts_start_different_and_from_one_generator() -> None:
    network = make_network()
    both, second = random_params(network, 2, 0), network.init([torch.Generator().manual_seed(1)])
    for name, p in both.items():
        assert p.shape[0] == 2 * PARTS
        assert torch.equal(p[PARTS:], second[name])  # member 1 is alone with its generator
        assert len({tuple(part.flatten()[:3].tolist()) for part in p}) == 2 * PARTS


@pytest.mark.parametrize("large", ["rainbow_large", "rainbow_large_more_updates"])
def test_the_larger_model_has_five_times_the_parameters(large: str) -> None:
    counts = {}
    for name in ("rainbow", large):
        config = compose(f"algo={name}", "env=minatar/asterix")
        assert config.algo.ensemble_size == 1
        env = SimpleNamespace(frame_shape=(4 // config.env.stack, 10, 10), num_actions=5, frame_scale=1.0)
        network = network_of(config, cast(Environment, env))
        params = network.init([member_generator(0, k) for k in range(config.algo.ensemble_size)])
        assert network.members(params) == 1
        assert network(params, torch.zeros(2, 4, 10, 10)).shape == (1, 2, 5, config.algo.atoms)
        counts[name] = parameter_count(params)
    assert counts[large] == 5 * counts["rainbow"]
    assert counts["rainbow"] > 50_000


# Learning


def algorithm(atoms: int | None = ATOMS, **changes: Any) -> AlgoConfig:
    """With a large epsilon Adam's step depends on the gradient's size, so clipping shows."""
    value = {"value": "scalar"} if atoms is None else {"atoms": atoms, "value_min": VALUE_MIN, "value_max": VALUE_MAX}
    return algo_config("rainbow_large", learning_rate=0.01, adam_epsilon=0.1, **value | changes)


def make_batch(kind: str, rows: int, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    discounts = torch.full((rows, BATCH), 0.9)
    discounts[:, 0] = 0
    return Batch(
        indices=np.zeros((rows, BATCH), dtype=np.int64),
        states=torch.randn(rows, BATCH, *SHAPES[kind], generator=generator),
        actions=torch.randint(ACTIONS, (rows, BATCH), generator=generator),
        returns=torch.randn(rows, BATCH, generator=generator),
        discounts=discounts,
        next_states=3 * torch.randn(rows, BATCH, *SHAPES[kind], generator=generator),
        weights=torch.rand(rows, BATCH, generator=generator) + 0.1,
    )


def assert_close(actual: Tensor, expected: Tensor, name: str) -> None:
    difference, scale = (actual - expected).norm().item(), expected.norm().item()
    assert scale > 0 and difference < 1e-3 * scale, f"{name}: {difference} of {scale}"


@pytest.mark.parametrize("clipped", [True, False], ids=["clipped", "not_clipped"])
@pytest.mark.parametrize("atoms", [None, ATOMS], ids=["scalar", "categorical"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_step_is_that_of_one_network(kind: str, atoms: int | None, clipped: bool) -> None:
    """One loss of the mean, one gradient norm of all parts together, one step of Adam."""
    max_norm = 0.02 if clipped else 100.0
    algo = algorithm(atoms, max_gradient_norm=max_norm)
    assert algo.double and algo.bootstrap == "mean"
    network, form = make_network(kind, atoms=atoms), value_form(atoms)
    lagging, online = (random_params(network, 1, seed) for seed in (0, 1))
    agent = make_agent(algo, network, lagging)
    with torch.no_grad():
        for name, p in agent.online.items():
            p.copy_(online[name])
    batch = make_batch(kind, 1)

    weights = {name: p.clone().requires_grad_() for name, p in online.items()}

    def member(params: Params, states: Tensor) -> Tensor:
        return plain_mean(kind, params, 0, states, dueling=True, atoms=atoms)

    with torch.no_grad():
        chooser, evaluator = (member(params, batch.next_states[0]) for params in (weights, lagging))
    taken = member(weights, batch.states[0])
    losses = []
    for b in range(BATCH):
        action, reward, discount = batch.actions[0, b], batch.returns[:, b : b + 1], batch.discounts[:, b : b + 1]
        if isinstance(form, CategoricalValue):
            best = (chooser[b] @ form.support).argmax()
            target = form.project(reward, discount, evaluator[b, best][None, None])[0, 0]
            losses.append(-(target * taken[b, action].log()).sum())
        else:
            y = reward[0, 0] + discount[0, 0] * evaluator[b, chooser[b].argmax()]
            losses.append((y - taken[b, action]) ** 2)
    loss = sum(batch.weights[0, b] * losses[b] for b in range(BATCH)) / BATCH
    optimiser = torch.optim.Adam(weights.values(), lr=algo.learning_rate, eps=algo.adam_epsilon, foreach=False)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(weights.values(), max_norm)
    assert (norm > max_norm) == clipped
    optimiser.step()

    learned = agent.learn(batch)
    assert learned.errors.shape == (1, BATCH)
    each = torch.stack(losses).detach()
    torch.testing.assert_close(learned.errors[0], each.sqrt() if atoms is None else each, rtol=1e-3, atol=1e-5)
    assert learned.loss.item() == pytest.approx(loss.item(), rel=1e-4)
    assert learned.gradient_norm.item() == pytest.approx(norm.item(), rel=1e-3)
    for name, expected in weights.items():
        actual = agent.online[name]
        assert expected.grad is not None
        assert_close(agent.gradients[name], expected.grad, name)
        assert_close(actual - online[name], expected.detach() - online[name], name)
    whole = torch.cat([gradient.flatten() for gradient in agent.gradients.values()]).norm()
    assert whole.item() == pytest.approx(max_norm if clipped else norm.item(), rel=1e-3)


@pytest.mark.parametrize("members", [1, 2])
def test_members_of_several_networks_are_clipped_by_themselves(members: int) -> None:
    """Each member's norm is that of its own networks alone."""
    max_norm = 0.02
    algo = algorithm(ensemble_size=members, max_gradient_norm=max_norm, bootstrap="own")
    network = make_network()
    batch = make_batch("vector", members)
    batch.weights *= torch.tensor([1.0, 1e-3])[:members, None]  # the second member has little to learn
    agent = make_agent(algo, network, random_params(network, members, 0))
    assert agent.learn(batch).errors.shape == (members, BATCH)
    gradients = [gradient.unflatten(0, (members, PARTS)) for gradient in agent.gradients.values()]
    norms = [math.sqrt(sum(g[k].square().sum().item() for g in gradients)) for k in range(members)]
    assert norms[0] == pytest.approx(max_norm, rel=1e-3)
    assert all(0 < norm < 0.5 * max_norm for norm in norms[1:])


@pytest.mark.parametrize("atoms", [None, ATOMS], ids=["scalar", "categorical"])
@pytest.mark.parametrize("together", [True, False], ids=["one_member", "five_members"])
def test_a_part_learns_with_the_others(together: bool, atoms: int | None) -> None:
    """Its gradient depends on theirs through the mean, which an ensemble's members do not have.

    All states are terminal and nothing is clipped, so that nothing else connects them.
    """
    algo = algorithm(
        atoms,
        ensemble_size=1 if together else PARTS,
        parallel_networks=PARTS if together else 1,
        max_gradient_norm=1e9,
    )
    network = make_network(atoms=atoms, parallel=PARTS if together else 1)
    params = random_params(network, algo.ensemble_size, 0)
    changed = {name: p.clone() for name, p in params.items()}
    for p in changed.values():
        p[3] *= -2
    batch = make_batch("vector", algo.ensemble_size)
    batch.discounts[:] = 0
    found = []
    for weights in (params, changed):
        agent = make_agent(algo, network, weights)
        agent.learn(batch)
        found.append(agent.gradients)
    for name, gradient in found[0].items():
        for part in (0, 1, 2, 4):
            change = (found[1][name][part] - gradient[part]).norm() / gradient[part].norm()
            assert change > 1e-2 if together else change < 1e-5, f"{name} of part {part}: {change}"
