"""Noisy layers against loops over members, layers and streams."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from meanq.config.schema import AlgoConfig, ConvolutionConfig, NetworkConfig
from meanq.learning.agent import Agent
from meanq.learning.bootstrap import bootstrap_rule, next_actions
from meanq.learning.learner import Learned
from meanq.learning.networks import Params, QNetwork
from meanq.learning.values import CategoricalValue
from meanq.replay.buffer import Batch
from meanq.rng import integer_seed, stream
from meanq.training.evaluation import evaluation_policy
from tests.helpers import algo_config, compose, make_agent, random_params
from tests.short_runs import SHORT, SilentReporter, make_run, train

FEATURES, ACTIONS, ATOMS, BATCH = 5, 3, 7, 6
DENSE, HIDDEN = 6, 4
SIGMA = 0.5
# name -> streams, inputs, outputs of each stream; in the order in which noise is drawn
DUELING = {
    "dense0": (1, FEATURES, DENSE),
    "hidden": (2, DENSE, HIDDEN),
    "advantage": (1, HIDDEN, ACTIONS * ATOMS),
    "value": (1, HIDDEN, ATOMS),
}
SINGLE = {
    "dense0": (1, FEATURES, DENSE),
    "hidden": (1, DENSE, HIDDEN),
    "value": (1, HIDDEN, ACTIONS * ATOMS),
}
LAYERS = {True: DUELING, False: SINGLE}


def make_network(*, dueling: bool = True, noise: float | None = SIGMA, atoms: int | None = ATOMS) -> QNetwork:
    config = NetworkConfig(name="tiny", convolutions=[], dense=[DENSE], hidden=HIDDEN)
    return QNetwork((FEATURES,), ACTIONS, config, dueling=dueling, scale=1.0, atoms=atoms, noise=noise)


def make_image_network(noise: float | None) -> QNetwork:
    convolutions = [
        ConvolutionConfig(channels=3, kernel=2, stride=1),
        ConvolutionConfig(channels=2, kernel=2, stride=1),
    ]
    config = NetworkConfig(name="tiny", convolutions=convolutions, dense=[], hidden=HIDDEN)
    return QNetwork((2, 5, 4), ACTIONS, config, dueling=True, scale=1.0, noise=noise)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shaken(params: Params, seed: int) -> Params:
    """Weights and scales of noise of which no two are the same, as after some learning."""
    generator = seeded(seed)
    return {
        name: p + 0.05 * torch.rand(p.shape, generator=generator) if name.endswith("_sigma") else p
        for name, p in params.items()
    }


def f(e: float) -> float:
    return math.copysign(math.sqrt(abs(e)), e)


def naive_noise(layers: dict[str, tuple[int, int, int]], members: int, generator: torch.Generator) -> Params:
    """One draw: what every sigma is multiplied with."""
    total = sum(streams * (inputs + outputs) for streams, inputs, outputs in layers.values())
    draws = torch.randn(members, total, generator=generator).tolist()
    noise: Params = {}
    for layer, (streams, inputs, outputs) in layers.items():
        noise[f"{layer}.weight"] = torch.zeros(members, inputs, streams * outputs)
        noise[f"{layer}.bias"] = torch.zeros(members, 1, streams * outputs)
    for k in range(members):
        numbers = iter(draws[k])
        for layer, (streams, inputs, outputs) in layers.items():
            e_in = [[next(numbers) for _ in range(inputs)] for _ in range(streams)]
            e_out = [[next(numbers) for _ in range(outputs)] for _ in range(streams)]
            for s in range(streams):
                for j in range(outputs):
                    noise[f"{layer}.bias"][k, 0, s * outputs + j] = f(e_out[s][j])
                    for i in range(inputs):
                        noise[f"{layer}.weight"][k, i, s * outputs + j] = f(e_in[s][i]) * f(e_out[s][j])
    return noise


def with_noise(params: Params, noise: Params) -> Params:
    """The weights alone: mu + sigma * noise."""
    means = {name: p for name, p in params.items() if not name.endswith("_sigma")}
    return {name: p + params[f"{name}_sigma"] * noise[name] if name in noise else p for name, p in means.items()}


def drawn_noise(network: QNetwork, params: Params, generator: torch.Generator) -> Params:
    """What `perturb` multiplies sigma with: with means of 0 and scales of 1 the weights are the noise."""
    only_noise = {name: torch.full_like(p, name.endswith("_sigma")) for name, p in params.items()}
    perturbed = network.perturb(only_noise, network.draw_noise(only_noise, generator))
    return {name: p for name, p in perturbed.items() if not name.endswith("_sigma")}


# Perturbed weights


@pytest.mark.parametrize("dueling", [True, False], ids=["dueling", "single"])
@pytest.mark.parametrize("members", [1, 3])
def test_noise_is_that_of_a_loop(members: int, dueling: bool) -> None:
    network = make_network(dueling=dueling)
    params = shaken(random_params(network, members, 0), 1)
    before = {name: p.clone() for name, p in params.items()}
    perturbed = network.perturb(params, network.draw_noise(params, seeded(5)))
    expected = with_noise(params, naive_noise(LAYERS[dueling], members, seeded(5)))
    for name, p in expected.items():
        torch.testing.assert_close(perturbed[name], p, rtol=1e-5, atol=1e-6)
        assert perturbed[name].shape == params[name].shape  # no weights of a sample's own
        assert torch.equal(params[name], before[name]) and not torch.equal(perturbed[name], before[name])
    for name in params.keys() - expected.keys():
        assert torch.equal(params[name], before[name]) and torch.equal(perturbed[name], before[name])
    assert perturbed["dense0.weight"].shape == (members, FEATURES, DENSE)


@pytest.mark.parametrize("dueling", [True, False], ids=["dueling", "single"])
def test_a_stream_has_one_factor_per_input_and_output(dueling: bool) -> None:
    """Whatever the order of the draws: a stream's noise is an outer product, and its bias has the outputs' factor."""
    network = make_network(dueling=dueling)
    noise = drawn_noise(network, random_params(network, 2, 0), seeded(0))
    for layer, (streams, _, outputs) in LAYERS[dueling].items():
        for k in range(2):
            input_factors = []
            for s in range(streams):
                part = slice(s * outputs, (s + 1) * outputs)
                weight, bias = noise[f"{layer}.weight"][k][:, part], noise[f"{layer}.bias"][k, 0, part]
                assert torch.linalg.matrix_rank(weight, rtol=1e-4) == 1
                input_factors.append(weight[:, 0] / bias[0])
                torch.testing.assert_close(weight, torch.outer(input_factors[-1], bias), rtol=1e-4, atol=1e-5)
            if streams == 2:
                assert not torch.isclose(*input_factors).any()
                assert not torch.isclose(*noise[f"{layer}.bias"][k, 0].chunk(2)).any()
                assert torch.linalg.matrix_rank(noise[f"{layer}.weight"][k], rtol=1e-4) == 2


def test_members_and_draws_differ() -> None:
    network = make_network()
    params = random_params(network, 2, 0)
    generator = seeded(0)
    first, second = (drawn_noise(network, params, generator) for _ in range(2))
    again = drawn_noise(network, params, seeded(0))
    for name in first:
        assert torch.equal(again[name], first[name])
        assert not torch.isclose(first[name][0], first[name][1]).any()
        assert not torch.isclose(first[name], second[name]).any()


def test_parts_of_a_larger_network_have_their_own_noise() -> None:
    config = NetworkConfig(name="tiny", convolutions=[], dense=[DENSE], hidden=HIDDEN)
    network = QNetwork((FEATURES,), ACTIONS, config, dueling=True, scale=1.0, atoms=ATOMS, noise=SIGMA, parallel=3)
    noise = drawn_noise(network, random_params(network, 1, 0), seeded(0))
    expected = naive_noise(DUELING, 3, seeded(0))
    for name, p in noise.items():
        torch.testing.assert_close(p, expected[name], rtol=1e-5, atol=1e-6)


def test_statistics_of_many_draws() -> None:
    """f(e) has mean 0 and variance E|e| = sqrt(2/pi), a product of two the variance 2/pi; all are independent."""
    draws, members = 2000, 2
    network = make_network(atoms=None)
    params = shaken(random_params(network, members, 0), 1)
    generator = seeded(0)
    all_draws = [network.perturb(params, network.draw_noise(params, generator)) for _ in range(draws)]
    columns = []
    for layer, streams in (("dense0", 1), ("hidden", 2), ("advantage", 1), ("value", 1)):
        weight, bias = (
            (torch.stack([one[name] for one in all_draws]) - params[name]) / params[f"{name}_sigma"]
            for name in (f"{layer}.weight", f"{layer}.bias")
        )
        for noise, variance in ((weight, 2 / math.pi), (bias, math.sqrt(2 / math.pi))):
            # Five standard errors: the variance of a sample is at most 1, that of its square too.
            assert noise.mean(0).abs().max() < 5 / math.sqrt(draws)
            assert (noise.square().mean(0) - variance).abs().max() < 5 / math.sqrt(draws)
        columns.append(bias.flatten(1))
        for stream_weight, stream_bias in zip(weight.chunk(streams, -1), bias.chunk(streams, -1), strict=True):
            # The inputs' factors, by way of the output whose own factor is the largest.
            largest = stream_bias.abs().argmax(-1, keepdim=True)  # [draws, K, 1, 1]
            column = torch.take_along_dim(stream_weight, largest, -1)
            columns.append((column / torch.take_along_dim(stream_bias, largest, -1)).flatten(1))
    factors = torch.cat(columns, dim=1)
    outputs = ACTIONS + 1  # of both streams
    assert factors.shape == (draws, members * (FEATURES + DENSE + 2 * (DENSE + HIDDEN) + 2 * HIDDEN + outputs))
    correlation = torch.corrcoef(factors.T) - torch.eye(factors.shape[1])
    assert correlation.abs().max() < 5.5 / math.sqrt(draws)
    assert (torch.corrcoef(factors.abs().T) - torch.eye(factors.shape[1])).abs().max() < 5.5 / math.sqrt(draws)


# Initial weights


def test_initial_scales_of_noise() -> None:
    network = make_image_network(SIGMA)
    params = random_params(network, 2, 0)
    features = 3 * 2 * 2  # 5x4 -> 4x3 -> 3x2, two channels
    fan_in = {"hidden": features, "advantage": HIDDEN, "value": HIDDEN}
    noisy = {f"{layer}.{kind}": inputs for layer, inputs in fan_in.items() for kind in ("weight", "bias")}
    assert {name for name in params if name.endswith("_sigma")} == {f"{name}_sigma" for name in noisy}
    for name, inputs in noisy.items():
        sigma = params[f"{name}_sigma"]
        assert sigma.shape == params[name].shape
        torch.testing.assert_close(sigma, torch.full_like(sigma, SIGMA / math.sqrt(inputs)))
    perturbed = network.perturb(params, network.draw_noise(params, seeded(0)))
    for name in ("conv0.weight", "conv0.bias", "conv1.weight", "conv1.bias"):
        assert perturbed[name] is params[name]


@pytest.mark.parametrize("dueling", [True, False], ids=["dueling", "single"])
@pytest.mark.parametrize("bias_noise", ["fan_in", "fan_out"])
def test_a_bias_s_noise_falls_by_inputs_or_by_outputs(bias_noise: str, dueling: bool) -> None:
    """Outputs of one stream: both hidden layers of a dueling network are one matrix."""
    config = NetworkConfig(name="tiny", convolutions=[], dense=[DENSE], hidden=HIDDEN)
    network = QNetwork(
        (FEATURES,), ACTIONS, config, dueling=dueling, scale=1.0, atoms=ATOMS, noise=SIGMA, bias_noise=bias_noise
    )
    params = random_params(network, 2, 0)
    for layer, (streams, inputs, outputs) in LAYERS[dueling].items():
        weight, bias = params[f"{layer}.weight_sigma"], params[f"{layer}.bias_sigma"]
        assert weight.shape == (2, inputs, streams * outputs) and bias.shape == (2, 1, streams * outputs)
        fan = inputs if bias_noise == "fan_in" else outputs
        for k in range(2):
            for j in range(streams * outputs):
                assert bias[k, 0, j].item() == pytest.approx(SIGMA / math.sqrt(fan))
                for i in range(inputs):
                    assert weight[k, i, j].item() == pytest.approx(SIGMA / math.sqrt(inputs))
    for name, p in random_params(make_network(dueling=dueling), 2, 0).items():
        assert torch.equal(params[name], p) or (name.endswith("bias_sigma") and bias_noise == "fan_out")


@pytest.mark.parametrize("make", [make_network, make_image_network])
def test_initial_means_are_those_of_a_network_without_noise(make: Callable[..., QNetwork]) -> None:
    quiet = random_params(make(noise=None), 2, 0)
    noisy = random_params(make(noise=SIGMA), 2, 0)
    assert quiet.keys() == {name for name in noisy if not name.endswith("_sigma")}
    for name, p in quiet.items():
        assert torch.equal(noisy[name], p)


def test_a_network_without_noise_draws_nothing() -> None:
    network = make_network(noise=None)
    params, generator = random_params(network, 2, 0), seeded(0)
    before = generator.get_state()
    assert network.perturb(params, network.draw_noise(params, generator)) is params
    assert torch.equal(generator.get_state(), before)


# Agents


def algorithm(name: str, **changes: Any) -> AlgoConfig:
    """With clipping off, so that gradients are seen as they are, and two members where there were five."""
    members = 1 if name == "rainbow" else 2
    support = {"atoms": ATOMS, "value_min": -2.0, "value_max": 2.0}
    return algo_config(name, ensemble_size=members, max_gradient_norm=1e9, **support, **changes)


def make_batch(rows: int) -> Batch:
    generator = seeded(7)
    discounts = torch.full((rows, BATCH), 0.9)
    discounts[:, ::3] = 0
    return Batch(
        indices=np.zeros((rows, BATCH), dtype=np.int64),
        states=torch.randn(rows, BATCH, FEATURES, generator=generator),
        actions=torch.randint(ACTIONS, (rows, BATCH), generator=generator),
        returns=torch.randn(rows, BATCH, generator=generator),
        discounts=discounts,
        next_states=3 * torch.randn(rows, BATCH, FEATURES, generator=generator),
        weights=torch.rand(rows, BATCH, generator=generator) + 0.1,
    )


@pytest.mark.parametrize("name", ["rainbow", "meanq_rainbow"])
def test_values_are_noisy_only_to_explore(name: str) -> None:
    algo = algorithm(name)
    network = make_network()
    params = shaken(random_params(network, algo.ensemble_size, 0), 1)
    agent = make_agent(algo, network, params, noise_seed=3)
    states = np.random.default_rng(0).normal(size=(BATCH, FEATURES)).astype(np.float32)
    form = CategoricalValue(algo.value_min, algo.value_max, ATOMS, torch.device("cpu"))
    quiet = make_network(noise=None)

    def value_of(weights: Params) -> np.ndarray:
        return form.expectation(quiet(weights, torch.from_numpy(states))).numpy()

    means = {n: p for n, p in params.items() if not n.endswith("_sigma")}
    state = agent.state_dict()["generator"]
    for _ in range(2):
        np.testing.assert_array_equal(agent.values(states), value_of(means))
    assert torch.equal(agent.state_dict()["generator"], state)

    generator = seeded(3)
    explored = [agent.values(states, explore=True) for _ in range(2)]
    for values in explored:  # each call draws anew, once for all states
        expected = value_of(with_noise(params, naive_noise(DUELING, algo.ensemble_size, generator)))
        np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(agent.state_dict()["generator"], generator.get_state())
    assert not np.isclose(*explored).any()
    assert not np.isclose(explored[0], agent.values(states)).any()


def test_one_draw_is_for_all_states() -> None:
    """The same state twice in a batch has the same value."""
    network, algo = make_network(), algorithm("rainbow")
    agent = make_agent(algo, network, random_params(network, 1, 0))
    state = np.random.default_rng(0).normal(size=(1, FEATURES)).astype(np.float32)
    first, second = agent.values(np.concatenate([state, state]), explore=True)[0]
    np.testing.assert_allclose(first, second, rtol=1e-5)


def naive_step(
    algo: AlgoConfig,
    online: Params,
    lagging: Params,
    batch: Batch,
    evaluating: Params,
    choosing: Params | None,
    learning: Params,
) -> tuple[float, Params]:
    """The loss and the gradients by the perturbed weights, under explicit draws, one member and sample at a time."""
    members, quiet = algo.ensemble_size, make_network(noise=None)
    form = CategoricalValue(algo.value_min, algo.value_max, ATOMS, torch.device("cpu"))

    def next_outputs(weights: Params) -> Tensor:
        """[E, R, B, A, Z], member by member."""
        return torch.stack(
            [
                torch.stack([quiet({n: p[k : k + 1] for n, p in weights.items()}, row)[0] for row in batch.next_states])
                for k in range(members)
            ]
        )

    outputs = next_outputs(with_noise(online if algo.target_network is None else lagging, evaluating))
    q_choice = form.expectation(outputs)
    if choosing is not None:
        q_choice = form.expectation(next_outputs(with_noise(online, choosing)))
    rule = bootstrap_rule(algo.bootstrap)
    targets = form.target(rule, outputs, next_actions(rule, q_choice), batch.returns, batch.discounts)
    weights = {n: p.clone().requires_grad_() for n, p in with_noise(online, learning).items()}
    loss = torch.zeros(())
    for k in range(members):
        log_p = quiet({n: p[k : k + 1] for n, p in weights.items()}, batch.states[k])[0]
        for b in range(BATCH):
            cross_entropy = -(targets[k, b] * log_p[b, batch.actions[k, b]]).sum()
            loss = loss + batch.weights[k, b] * cross_entropy / BATCH
    loss.backward()
    gradients = {n: w.grad for n, w in weights.items() if w.grad is not None and w.grad.any()}
    assert gradients.keys() == weights.keys()
    return loss.item() / members, gradients


def assert_step(agent: Agent, learned: Learned, expected: tuple[float, Params], noise: Params) -> None:
    """The gradient of a mean is that of the perturbed weight, the gradient of a sigma is that times the noise."""
    loss, gradients = expected
    assert learned.loss.item() == pytest.approx(loss, rel=1e-4)
    for n, gradient in gradients.items():
        torch.testing.assert_close(agent.gradients[n], gradient, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(agent.gradients[f"{n}_sigma"], gradient * noise[n], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "double"),
    [("rainbow", True), ("rainbow", False), ("meanq_rainbow", False), ("meanq_rainbow_target", True)],
)
def test_learning_with_noise_is_that_of_explicit_draws(name: str, double: bool) -> None:
    """Noise is drawn for the networks that evaluate, then for those that choose, if others, then for those that learn.

    dL/dmu = dL/dw and dL/dsigma = dL/dw * noise.
    """
    algo = algorithm(name, double=double)
    members = algo.ensemble_size
    network = make_network()
    lagging, online = (shaken(random_params(network, members, seed), seed) for seed in (0, 1))
    agent = make_agent(algo, network, lagging, noise_seed=3)
    with torch.no_grad():
        for n, p in agent.online.items():
            p.copy_(online[n])
    batch, generator = make_batch(members), seeded(3)
    evaluating, choosing, learning = (
        naive_noise(DUELING, members, generator) if needed else None for needed in (True, double, True)
    )
    assert evaluating is not None and learning is not None
    expected = naive_step(algo, online, lagging, batch, evaluating, choosing, learning)
    learned = agent.learn(batch)
    assert_step(agent, learned, expected, learning)
    for n, p in online.items():
        assert not torch.equal(agent.online[n], p)
    assert torch.equal(agent.state_dict()["generator"], generator.get_state())  # and nothing else was drawn


@pytest.mark.parametrize(("name", "draws"), [("rainbow", 3), ("meanq_rainbow", 2)])
def test_draws_of_one_step_are_all_different(name: str, draws: int, monkeypatch: pytest.MonkeyPatch) -> None:
    algo, network = algorithm(name), make_network()
    agent = make_agent(
        algo, network, random_params(network, algo.ensemble_size, 0)
    )  # lagging weights are the online ones
    perturbed: list[Params] = []
    perturb = network.perturb

    def spy(params: Params, noise: torch.Tensor | None) -> Params:
        perturbed.append(perturb(params, noise))
        return perturbed[-1]

    monkeypatch.setattr(network, "perturb", spy)
    agent.learn(make_batch(algo.ensemble_size))
    assert len(perturbed) == draws
    for i in range(draws):
        for j in range(i):
            assert not torch.equal(perturbed[i]["hidden.weight"], perturbed[j]["hidden.weight"])


# Noise that acting and learning share


def value_of(algo: AlgoConfig, weights: Params, states: np.ndarray) -> np.ndarray:
    """Q [K, N, A] of weights that have their noise in them."""
    form = CategoricalValue(algo.value_min, algo.value_max, ATOMS, torch.device("cpu"))
    return form.expectation(make_network(noise=None)(weights, torch.from_numpy(states))).numpy()


def random_states(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(BATCH, FEATURES)).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "double"),
    [
        ("rainbow", True),
        ("rainbow", False),
        ("meanq_rainbow", False),
        ("meanq_rainbow", True),
        ("meanq_rainbow_target", True),
    ],
)
def test_acting_and_learning_share_one_draw_per_interaction(name: str, double: bool) -> None:
    """Next states are evaluated under the draw of the interaction before; by a lagging network under a fresh one."""
    algo = algorithm(name, double=double, shared_noise=True)
    members, network = algo.ensemble_size, make_network()
    lagging, online = (shaken(random_params(network, members, seed), seed) for seed in (0, 1))
    agent = make_agent(algo, network, lagging, noise_seed=3)
    with torch.no_grad():
        for n, p in agent.online.items():
            p.copy_(online[n])
    batch, states, generator = make_batch(members), random_states(), seeded(3)
    noise = naive_noise(DUELING, members, generator)  # as if of an interaction before the first
    for _ in range(2):
        agent.start_interaction()
        last, noise = noise, naive_noise(DUELING, members, generator)
        expected = value_of(algo, with_noise(agent.online, noise), states)
        for _ in range(2):
            np.testing.assert_allclose(agent.values(states, explore=True), expected, rtol=1e-4, atol=1e-5)
        for _ in range(2):  # gradient steps of one interaction
            evaluating = last if algo.target_network is None else naive_noise(DUELING, members, generator)
            before = {n: p.clone() for n, p in agent.online.items()}
            step = naive_step(algo, before, lagging, batch, evaluating, noise if double else None, noise)
            assert_step(agent, agent.learn(batch), step, noise)
        assert torch.equal(agent.state_dict()["generator"], generator.get_state())  # nothing else was drawn
        means = {n: p for n, p in agent.online.items() if not n.endswith("_sigma")}
        np.testing.assert_allclose(agent.values(states), value_of(algo, means, states), rtol=1e-5, atol=1e-6)


def test_without_shared_noise_an_interaction_draws_nothing() -> None:
    network, algo = make_network(), algorithm("meanq_rainbow")
    agent = make_agent(algo, network, random_params(network, 2, 0))
    before = agent.state_dict()
    agent.start_interaction()
    assert torch.equal(agent.state_dict()["generator"], before["generator"]) and "noise" not in before


def test_a_saved_agent_goes_on_with_the_draws_of_its_interaction() -> None:
    network, algo = make_network(), algorithm("meanq_rainbow", shared_noise=True)
    agent = make_agent(algo, network, random_params(network, 2, 0))
    for _ in range(3):
        agent.start_interaction()
    other = make_agent(algo, network, random_params(network, 2, 1), noise_seed=9)
    other.load_state_dict(agent.state_dict())
    for _ in range(2):
        acted, learned = zip(
            *((one.values(random_states(), explore=True), one.learn(make_batch(2)).loss) for one in (agent, other)),
            strict=True,
        )
        np.testing.assert_array_equal(*acted)
        assert torch.equal(*learned)
        agent.start_interaction()
        other.start_interaction()


def test_a_resumed_run_shares_the_same_noise(tmp_path: Path) -> None:
    class Crash(SilentReporter):
        def progress(self, step: int, *rest: Any) -> None:
            if step == 101:
                raise RuntimeError("crash")

    overrides = ("algo=meanq_rainbow", *SHORT, "algo.ensemble_size=2", "algo.shared_noise=true", "total_steps=130")
    overrides += ("evaluation.noise=true", "checkpoint.every=75", "algo.interactions_per_update=1")
    whole = train(tmp_path / "whole", *overrides)
    crashed = make_run(tmp_path / "crashed", *overrides)
    with pytest.raises(RuntimeError, match="crash"):
        crashed.train(Crash())
    resumed = train(tmp_path / "crashed", *overrides)
    for name in ("weights.safetensors", "training.csv", "evaluations.csv", "probes.npz"):
        assert (whole.directory / name).read_bytes() == (resumed.directory / name).read_bytes(), name


# Noise left on in evaluation


def test_an_evaluation_has_one_draw_for_all_states_and_calls() -> None:
    """It depends on the run's seed and the step, and takes nothing from the agent's generator."""
    config = compose("algo=meanq_rainbow", "env=chain", "evaluation.noise=true", "seed=4")
    algo, network = algorithm("meanq_rainbow"), make_network()
    params = shaken(random_params(network, 2, 0), 1)
    agent = make_agent(algo, network, params, noise_seed=3)
    before, found = agent.state_dict(), []
    for seed, step in ((4, 100), (4, 200), (5, 100)):
        policy = evaluation_policy(agent, dataclasses.replace(config, seed=seed), step)
        draw = naive_noise(DUELING, 2, seeded(integer_seed(stream(seed, "evaluation", step, "noise"))))
        for states in (random_states(), random_states(1), random_states()):
            expected = value_of(algo, with_noise(params, draw), states)
            np.testing.assert_allclose(policy(states)[1], expected, rtol=1e-4, atol=1e-5)
        found.append(policy(random_states())[1])
        _, again = evaluation_policy(agent, dataclasses.replace(config, seed=seed), step)(random_states())
        np.testing.assert_array_equal(again, found[-1])
    assert not any(np.isclose(found[i], found[j]).any() for i, j in ((0, 1), (0, 2), (1, 2)))
    assert torch.equal(agent.state_dict()["generator"], before["generator"])
    quiet = evaluation_policy(agent, compose("algo=meanq_rainbow", "env=chain"), 100)
    np.testing.assert_array_equal(quiet(random_states())[1], agent.values(random_states()))


def test_noise_in_evaluation_does_not_disturb_training(tmp_path: Path) -> None:
    overrides = ("algo=meanq_rainbow", *SHORT, "algo.ensemble_size=2", "algo.noise=0.5", "total_steps=130")
    without, noisy = (train(tmp_path / on, *overrides, f"evaluation.noise={on}").directory for on in ("false", "true"))
    for name in ("weights.safetensors", "training.csv", "probes.npz"):
        assert (without / name).read_bytes() == (noisy / name).read_bytes(), name
    assert (without / "evaluations.csv").read_bytes() != (noisy / "evaluations.csv").read_bytes()
