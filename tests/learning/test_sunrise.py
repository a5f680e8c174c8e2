"""SUNRISE (Lee et al. 2021): own targets, and less trust in those whose next states' values members disagree on."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from meanq.config.schema import AlgoConfig, NetworkConfig
from meanq.learning.agent import Agent
from meanq.learning.networks import Params, QNetwork
from meanq.replay.buffer import Batch
from tests.helpers import algo_config, make_agent, random_params

ACTIONS, BATCH, FEATURES, MEMBERS = 4, 9, 5, 3

SHARED: dict[str, Any] = {}
INDEPENDENT = {"minibatch": "independent", "priorities": "per_member"}
SHARINGS = pytest.mark.parametrize("sharing", [SHARED, INDEPENDENT], ids=["shared", "independent"])
VALUES = pytest.mark.parametrize("value", ["categorical", "scalar"])


def make_algo(value: str, **changes: Any) -> AlgoConfig:
    """SUNRISE's file, without noise unless asked for; values are small, so that not all trust is gone at T = 10."""
    small = {"ensemble_size": MEMBERS, "value": value, "atoms": 11, "noisy": False, "max_gradient_norm": 1e9}
    return algo_config("sunrise", **small | changes)


def make_network(algo: AlgoConfig) -> QNetwork:
    return QNetwork(
        (FEATURES,),
        ACTIONS,
        NetworkConfig(name="tiny", convolutions=[], dense=[16], hidden=16),
        dueling=algo.dueling,
        scale=1.0,
        atoms=algo.atoms if algo.value == "categorical" else None,
        noise=algo.noise if algo.noisy else None,
    )


def make_batch(algo: AlgoConfig, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    rows = algo.ensemble_size if algo.minibatch == "independent" else 1
    discounts = torch.full((rows, BATCH), 0.9)
    discounts[:, ::4] = 0  # every fourth one is terminal
    return Batch(
        indices=np.zeros((rows, BATCH), dtype=np.int64),
        states=torch.randn(rows, BATCH, FEATURES, generator=generator),
        actions=torch.randint(ACTIONS, (rows, BATCH), generator=generator),
        returns=0.5 * torch.randn(rows, BATCH, generator=generator),
        discounts=discounts,
        next_states=torch.randn(rows, BATCH, FEATURES, generator=generator),
        weights=torch.rand(rows, BATCH, generator=generator) + 0.1,
    )


def trained_agent(algo: AlgoConfig, network: QNetwork, noise_seed: int = 0) -> Agent:
    """An agent whose online weights have nothing to do with its lagging ones any more."""
    agent = make_agent(algo, network, random_params(network, algo.ensemble_size, 1), noise_seed)
    with torch.no_grad():
        for name, p in random_params(network, algo.ensemble_size, 2).items():
            agent.online[name].copy_(p)
    return agent


class Reference:
    """Values, targets and confidence from the definitions, one member and one state at a time."""

    def __init__(self, algo: AlgoConfig, network: QNetwork, evaluating: Params, choosing: Params) -> None:
        self.algo = algo
        self._network = network
        self._evaluating = evaluating
        self._choosing = choosing
        self._support = [
            algo.value_min + i * (algo.value_max - algo.value_min) / (algo.atoms - 1) for i in range(algo.atoms)
        ]

    def _output(self, params: Params, k: int, state: torch.Tensor) -> np.ndarray:
        """Member k's values [A] or probabilities [A, Z]."""
        with torch.no_grad():
            outputs = self._network({n: p[k : k + 1] for n, p in params.items()}, state[None])[0, 0].double().numpy()
        return np.exp(outputs) if self.algo.value == "categorical" else outputs

    def _q(self, outputs: np.ndarray) -> list[float]:
        if self.algo.value == "scalar":
            return [float(q) for q in outputs]
        return [sum(p * z for p, z in zip(distribution, self._support, strict=True)) for distribution in outputs]

    def _chosen(self, k: int, state: torch.Tensor) -> int:
        """Member k's own choice of an action."""
        return int(np.argmax(self._q(self._output(self._choosing, k, state))))

    def confidence(self, batch: Batch) -> np.ndarray:
        """w [K, B]."""
        assert self.algo.confidence_temperature is not None
        members, rows = self.algo.ensemble_size, len(batch.states)
        w = np.zeros((members, BATCH))
        for learner in range(members):
            for b in range(BATCH):
                state = batch.next_states[learner if rows > 1 else 0, b]
                values = []
                for k in range(members):
                    values.append(self._q(self._output(self._evaluating, k, state))[self._chosen(k, state)])
                mean = sum(values) / members
                squares = sum((value - mean) ** 2 for value in values)
                std = math.sqrt(squares / (members if self.algo.ensemble_std == "population" else members - 1))
                if batch.discounts[learner if rows > 1 else 0, b] == 0:
                    std = 0.0  # nothing follows a terminal, so its target is certain
                w[learner, b] = 1 / (1 + math.exp(std * self.algo.confidence_temperature)) + 0.5
        return w

    def targets(self, batch: Batch) -> np.ndarray:
        """y [K, B(, Z)]: each member's own."""
        rows = len(batch.states)
        targets = []
        for k in range(self.algo.ensemble_size):
            r = k if rows > 1 else 0
            of_member = []
            for b in range(BATCH):
                state = batch.next_states[r, b]
                output = self._output(self._evaluating, k, state)[self._chosen(k, state)]
                reward, discount = float(batch.returns[r, b]), float(batch.discounts[r, b])
                of_member.append(self._target(output, reward, discount))
            targets.append(of_member)
        return np.array(targets)

    def _target(self, output: Any, reward: float, discount: float) -> Any:
        if self.algo.value == "scalar":
            return reward + discount * output
        spacing = (self.algo.value_max - self.algo.value_min) / (self.algo.atoms - 1)
        projected = np.zeros(self.algo.atoms)
        for p, z in zip(output, self._support, strict=True):
            moved = min(max(reward + discount * z, self.algo.value_min), self.algo.value_max)
            place = (moved - self.algo.value_min) / spacing
            lower = min(int(place), self.algo.atoms - 2)
            projected[lower] += p * (lower + 1 - place)
            projected[lower + 1] += p * (place - lower)
        return projected


def make_all(algo: AlgoConfig) -> tuple[Agent, QNetwork, Batch, Reference]:
    network = make_network(algo)
    agent = trained_agent(algo, network)
    evaluating = agent.online if agent.target is None else agent.target
    choosing = agent.online if algo.double else evaluating
    return agent, network, make_batch(algo), Reference(algo, network, evaluating, choosing)


def test_the_file_is_sunrise() -> None:
    algo = algo_config("sunrise")
    assert (algo.bootstrap, algo.double, algo.minibatch, algo.priorities) == ("own", True, "shared", "shared")
    assert (algo.confidence_temperature, algo.ensemble_std) == (10, "population")
    assert (algo.exploration, algo.ucb_lambda, algo.mask_probability) == ("ucb", 1.0, 1.0)
    assert algo.ensemble_size == 5 and algo.target_network is not None and algo.noisy and algo.value == "categorical"


# Confidence and targets


@VALUES
@SHARINGS
@pytest.mark.parametrize("ensemble_std", ["population", "sample"])
@pytest.mark.parametrize("temperature", [10.0, 2.0])
def test_confidence_and_targets_are_those_of_the_definition(
    value: str, sharing: dict[str, Any], ensemble_std: str, temperature: float
) -> None:
    algo = make_algo(value, ensemble_std=ensemble_std, confidence_temperature=temperature, **sharing)
    agent, _, batch, reference = make_all(algo)
    targets, confidence = agent.targets(batch)
    assert confidence is not None and confidence.shape == (MEMBERS, BATCH)
    np.testing.assert_allclose(confidence.numpy(), reference.confidence(batch), rtol=1e-5)
    np.testing.assert_allclose(targets.numpy(), reference.targets(batch), rtol=1e-4, atol=1e-5)
    assert not confidence.requires_grad and not targets.requires_grad
    assert confidence.max() - confidence.min() > 0.02  # there is something to tell apart
    if sharing == SHARED:
        assert torch.equal(confidence[0], confidence[1]) and torch.equal(confidence[0], confidence[2])
    else:
        assert not torch.equal(confidence[0], confidence[1])


@VALUES
@SHARINGS
@pytest.mark.parametrize(
    "changes", [{"double": False}, {"double": False, "target_network": None}], ids=["not double", "no target"]
)
def test_the_same_weights_may_choose_and_evaluate(value: str, sharing: dict[str, Any], changes: dict[str, Any]) -> None:
    agent, _, batch, reference = make_all(make_algo(value, **sharing, **changes))
    targets, confidence = agent.targets(batch)
    assert confidence is not None
    np.testing.assert_allclose(confidence.numpy(), reference.confidence(batch), rtol=1e-5)
    np.testing.assert_allclose(targets.numpy(), reference.targets(batch), rtol=1e-4, atol=1e-5)


@VALUES
@SHARINGS
def test_noise_is_drawn_once_for_those_that_evaluate_and_once_for_those_that_choose(
    value: str, sharing: dict[str, Any]
) -> None:
    algo = make_algo(value, noisy=True, noise=0.5, **sharing)
    network = make_network(algo)
    agent, batch = trained_agent(algo, network, noise_seed=4), make_batch(algo)
    generator = torch.Generator().manual_seed(4)
    assert agent.target is not None
    evaluating = network.perturb(agent.target, network.draw_noise(agent.target, generator))
    choosing = network.perturb(agent.online, network.draw_noise(agent.online, generator))
    targets, confidence = agent.targets(batch)
    reference = Reference(algo, network, evaluating, choosing)
    assert confidence is not None
    np.testing.assert_allclose(confidence.numpy(), reference.confidence(batch), rtol=1e-5)
    np.testing.assert_allclose(targets.numpy(), reference.targets(batch), rtol=1e-4, atol=1e-5)
    _, again = agent.targets(batch)
    assert again is not None and not torch.equal(again, confidence)


@VALUES
@SHARINGS
def test_a_members_target_is_its_own_but_the_confidence_is_everyones(value: str, sharing: dict[str, Any]) -> None:
    """Member 1 gets other lagging weights: the others' targets stay, all confidence changes."""
    agent, network, batch, _ = make_all(make_algo(value, **sharing))
    before, confidence_before = agent.targets(batch)
    assert agent.target is not None
    for name, p in random_params(network, MEMBERS, 9).items():
        agent.target[name][1] = p[1]
    after, confidence_after = agent.targets(batch)
    assert confidence_before is not None and confidence_after is not None
    going_on = batch.discounts.expand(MEMBERS, BATCH)[1] > 0
    for k in (0, 2):
        assert torch.equal(before[k], after[k])
    assert (before[1] != after[1]).reshape(BATCH, -1).any(1)[going_on].all()
    torch.testing.assert_close(before[1][~going_on], after[1][~going_on], rtol=0, atol=1e-6)
    assert ((confidence_before != confidence_after) == (batch.discounts > 0)).all(), "after a terminal it is certain"


@VALUES
@SHARINGS
def test_without_a_temperature_all_targets_are_trusted(value: str, sharing: dict[str, Any]) -> None:
    with_confidence, _, batch, _ = make_all(make_algo(value, **sharing))
    without, *_ = make_all(make_algo(value, confidence_temperature=None, **sharing))
    targets, confidence = without.targets(batch)
    assert confidence is None
    torch.testing.assert_close(targets, with_confidence.targets(batch)[0], rtol=1e-5, atol=1e-6)


@VALUES
@SHARINGS
def test_confidence_lies_between_a_half_and_one(value: str, sharing: dict[str, Any]) -> None:
    agent, _, batch, _ = make_all(make_algo(value, **sharing))
    _, confidence = agent.targets(batch)
    assert confidence is not None and (confidence > 0.5).all()
    assert ((confidence == 1) == (batch.discounts == 0)).all(), "only after a terminal is it certain"
    assert agent.target is not None
    agreeing = [{name: p[:1].expand_as(p) for name, p in params.items()} for params in (agent.target, agent.online)]
    agent.target = {name: p.clone() for name, p in agreeing[0].items()}
    with torch.no_grad():
        for name, p in agreeing[1].items():
            agent.online[name].copy_(p.clone())
    _, confidence = agent.targets(batch)
    assert confidence is not None
    torch.testing.assert_close(confidence, torch.ones(MEMBERS, BATCH), rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("error")  # torch warns of a sample of one
@VALUES
@pytest.mark.parametrize("ensemble_std", ["population", "sample"])
def test_one_member_agrees_with_itself(value: str, ensemble_std: str) -> None:
    agent, _, batch, _ = make_all(make_algo(value, ensemble_size=1, ensemble_std=ensemble_std))
    _, confidence = agent.targets(batch)
    assert confidence is not None and torch.equal(confidence, torch.ones(1, BATCH))


def test_more_disagreement_and_a_higher_temperature_mean_less_trust() -> None:
    """Two members, one of which values everything at 0 and the other at c: the std is c/2."""
    trust = []
    for c, temperature in ((0.0, 10.0), (0.1, 10.0), (0.1, 20.0), (0.4, 10.0), (100.0, 10.0)):
        agent, _, batch, _ = make_all(make_algo("scalar", ensemble_size=2, confidence_temperature=temperature))
        assert agent.target is not None
        for p in agent.target.values():
            p.zero_()
        agent.target["value.bias"][1] = c
        batch.discounts[:] = 0.9
        _, confidence = agent.targets(batch)
        assert confidence is not None
        trust.append(float(confidence[0, 0]))
        assert (confidence == trust[-1]).all()
    expected = [1.0] + [1 / (1 + math.exp(x)) + 0.5 for x in (0.5, 1.0, 2.0, 500.0)]
    assert trust == pytest.approx(expected, rel=1e-5)


# Learning


@VALUES
@SHARINGS
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_confidence_multiplies_the_loss_but_not_the_priorities(
    value: str, sharing: dict[str, Any], masked: bool
) -> None:
    agent, network, batch, reference = make_all(make_algo(value, **sharing))
    rows = len(batch.states)
    if masked:
        batch.masks = (torch.rand(MEMBERS, BATCH, generator=torch.Generator().manual_seed(3)) < 0.6).float()
    y = torch.from_numpy(reference.targets(batch)).float()
    confidence = torch.from_numpy(reference.confidence(batch)).float()
    weights = {name: p.detach().clone().requires_grad_() for name, p in agent.online.items()}
    losses, errors = [], torch.zeros(MEMBERS, BATCH)
    for k in range(MEMBERS):
        r = k if rows > 1 else 0
        outputs = network({name: p[k : k + 1] for name, p in weights.items()}, batch.states[r])[0]
        total = torch.zeros(())
        for b in range(BATCH):
            taken = outputs[b, batch.actions[r, b]]
            if value == "scalar":
                loss, errors[k, b] = (y[k, b] - taken) ** 2, (y[k, b] - taken).detach().abs()
            else:
                loss = -(y[k, b] * taken).sum()
                errors[k, b] = loss.detach()
            factor = batch.weights[r, b] * confidence[k, b]
            if batch.masks is not None:
                factor = factor * batch.masks[k, b]
            total = total + factor * loss
        losses.append(total / BATCH)
    torch.stack(losses).sum().backward()

    learned = agent.learn(batch)
    torch.testing.assert_close(learned.loss, torch.stack(losses).mean().detach(), rtol=1e-4, atol=1e-6)
    for name, expected in weights.items():
        torch.testing.assert_close(agent.gradients[name], expected.grad, rtol=1e-3, atol=1e-6)
    if rows == 1:
        errors = errors.mean(0, keepdim=True)
    assert learned.errors.shape == (rows, BATCH)
    torch.testing.assert_close(learned.errors, errors, rtol=1e-4, atol=1e-5)


@VALUES
def test_noisy_sunrise_learns(value: str) -> None:
    """As in its file, but small: all weights move, those of the noise, too."""
    algo = make_algo(value, noisy=True)
    network = make_network(algo)
    agent, batch = trained_agent(algo, network), make_batch(algo)
    before = agent.state_dict()["online"]
    learned = agent.learn(batch)
    assert learned.errors.shape == (1, BATCH) and torch.isfinite(learned.errors).all()
    assert torch.isfinite(learned.loss)
    for name, p in agent.online.items():
        assert torch.isfinite(p).all()
        for k in range(MEMBERS):
            assert not torch.equal(p[k], before[name][k])
