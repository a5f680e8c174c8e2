"""The benchmark's plain reference and the batched engine compute the same thing, so their times can be compared."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from benchmarks.reference import Member, ReferenceAgent
from benchmarks.reference_replay import Minibatch, ReferenceReplay, UniformReplay
from meanq.config.schema import Config
from meanq.envs import Environment
from meanq.learning.agent import Agent
from meanq.learning.build import make_network
from meanq.learning.networks import Params, QNetwork
from meanq.replay.buffer import Batch, Replay, ring_slots
from tests.helpers import compose, make_agent, random_params

CPU = torch.device("cpu")
BATCH = 8
NUM_ACTIONS = 6


@dataclass(frozen=True)
class Setting:
    """What a network looks at."""

    env: str
    frame_shape: tuple[int, int, int]
    stack: int
    levels: int  # pixels are drawn from 0 to levels - 1
    scale: float

    @property
    def state_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.frame_shape
        return self.stack * channels, height, width

    def network(self, config: Config) -> QNetwork:
        channels, *size = self.state_shape
        frame_shape = (channels // config.env.stack, *size)
        env = SimpleNamespace(frame_shape=frame_shape, num_actions=NUM_ACTIONS, frame_scale=self.scale)
        return make_network(config, cast(Environment, env))


ATARI = Setting("asterix", (1, 84, 84), stack=4, levels=256, scale=1 / 255)
SETTINGS = {
    "data_efficient": ATARI,
    "minatar": Setting("minatar/asterix", (4, 10, 10), stack=1, levels=2, scale=1.0),
}

# Algorithm, network, members.
CASES = pytest.mark.parametrize(
    ("algo", "network", "members"),
    [
        ("meanq", "minatar", 1),
        ("meanq", "minatar", 3),
        ("meanq", "data_efficient", 3),
        ("meanq_rainbow", "minatar", 3),
        ("meanq_rainbow", "data_efficient", 2),
        ("rainbow", "data_efficient", 1),
        ("single_stream", "data_efficient", 1),
    ],
)
NETWORKS = pytest.mark.parametrize(("network", "members"), [("minatar", 1), ("minatar", 3), ("data_efficient", 3)])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads gain nothing at these sizes and wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """All noise is 1.44, whoever draws it and in whatever order: both sides are noisy in the same way."""
    monkeypatch.setattr(torch, "randn", lambda *size, **_: torch.full(size, 1.44))


@cache
def make_config(algo: str, network: str, members: int) -> Config:
    """The step size moves weights far beyond rounding; the epsilon keeps Adam from blowing up tiny gradients."""
    name, *changes = {"single_stream": ("dqn", "algo.dueling=false")}.get(algo, (algo,))
    return compose(
        f"algo={name}",
        f"env={SETTINGS[network].env}",
        f"network={network}",
        f"algo.ensemble_size={members}",
        "algo.learning_rate=0.01",
        "algo.adam_epsilon=0.01",
        *changes,
    )


def make_agents(algo: str, network: str, members: int) -> tuple[Setting, Agent, ReferenceAgent]:
    """Both engines with the same weights."""
    config, setting = make_config(algo, network, members), SETTINGS[network]
    q_network = setting.network(config)
    params = random_params(q_network, members, 0)
    agent = make_agent(config.algo, q_network, params)
    reference = ReferenceAgent(config.algo, config.network, setting.state_shape, NUM_ACTIONS, setting.scale)
    for k, member in enumerate(reference.members):
        member.load_state_dict(member_weights(params, k, member))
    if reference.lagging:
        reference.update_targets()
    return setting, agent, reference


def member_weights(params: Params, k: int, member: Member) -> dict[str, torch.Tensor]:
    """Member k of stacked parameters, in the layout and under the names of the reference's module."""
    convolutions = [name.removesuffix(".weight") for name in params if name.startswith("conv") and "weight" in name]
    layers = [i for i, layer in enumerate(member.features) if isinstance(layer, torch.nn.Conv2d)]
    weights = {}
    for name, layer in zip(convolutions, layers, strict=True):
        weights[f"features.{layer}.weight"] = params[f"{name}.weight"][k]
        weights[f"features.{layer}.bias"] = params[f"{name}.bias"][k]
    channels = len(params[f"{convolutions[-1]}.bias"][k])
    streams = ("value", "advantage") if member.advantage is not None else ("value",)
    for kind in ("", "_sigma") if "hidden.weight_sigma" in params else ("",):
        # Features are (y, x, channel) in the stacked matrix and (channel, y, x) in the module. Value stream first.
        hidden = params[f"hidden.weight{kind}"][k].T
        hidden = hidden.unflatten(1, (-1, channels)).transpose(1, 2).flatten(1)
        biases = params[f"hidden.bias{kind}"][k, 0]
        for i, stream in enumerate(streams):
            weights[f"{stream}.0.weight{kind}"] = hidden.chunk(len(streams))[i]
            weights[f"{stream}.0.bias{kind}"] = biases.chunk(len(streams))[i]
            weights[f"{stream}.2.weight{kind}"] = params[f"{stream}.weight{kind}"][k].T
            weights[f"{stream}.2.bias{kind}"] = params[f"{stream}.bias{kind}"][k, 0]
    return {name: weight.detach().clone() for name, weight in weights.items()}


def random_batch(setting: Setting, members: int, generator: np.random.Generator, reward_scale: float = 1.0) -> Batch:
    """A minibatch per member that differ in everything, with terminals and uneven importance weights."""
    shape = (members, BATCH)

    def states() -> torch.Tensor:
        return torch.from_numpy(generator.integers(setting.levels, size=(*shape, *setting.state_shape), dtype=np.uint8))

    def floats(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.float32))

    return Batch(
        indices=generator.integers(100, size=shape),
        states=states(),
        actions=torch.from_numpy(generator.integers(NUM_ACTIONS, size=shape)),
        returns=floats(reward_scale * generator.normal(size=shape)),
        discounts=floats(0.99 * (generator.random(shape) < 0.8)),
        next_states=states(),
        weights=floats(generator.uniform(0.2, 1.0, shape)),
    )


def minibatches(batch: Batch) -> list[Minibatch]:
    return [
        Minibatch(
            slots=batch.indices[k].tolist(),
            states=batch.states[k],
            actions=batch.actions[k],
            rewards=batch.returns[k],
            discounts=batch.discounts[k],
            next_states=batch.next_states[k],
            weights=batch.weights[k],
        )
        for k in range(len(batch.indices))
    ]


def assert_same_weights(agent: Agent, reference: ReferenceAgent) -> None:
    for k, member in enumerate(reference.members):
        expected = member.state_dict()
        actual = member_weights(agent.online, k, member)
        assert actual.keys() == expected.keys()
        for name in expected:
            torch.testing.assert_close(
                actual[name], expected[name], rtol=1e-4, atol=2e-6, msg=lambda m, n=name: f"{n}: {m}"
            )


@CASES
def test_values_are_the_same(algo: str, network: str, members: int) -> None:
    setting, agent, reference = make_agents(algo, network, members)
    generator = np.random.default_rng(1)
    states = generator.integers(setting.levels, size=(4, *setting.state_shape), dtype=np.uint8)
    q = agent.values(states, explore=True)  # [K, 4, A]
    assert q.shape == (members, 4, NUM_ACTIONS)
    assert q.std(axis=(1, 2)).min() > 0.01  # else any two networks would agree
    for i, state in enumerate(states):
        np.testing.assert_allclose(reference.values(state), q[:, i], rtol=1e-4, atol=1e-5)


@CASES
def test_learning_is_the_same(algo: str, network: str, members: int) -> None:
    setting, agent, reference = make_agents(algo, network, members)
    before = [member_weights(agent.online, k, member) for k, member in enumerate(reference.members)]
    generator = np.random.default_rng(2)
    # Small gradients, gradients beyond the maximum norm, and then from a moved target network.
    for reward_scale, clipped in ((1.0, False), (300.0, True), (1.0, None)):
        batch = random_batch(setting, members, generator, reward_scale)
        targets = torch.stack(reference.targets(minibatches(batch)))
        torch.testing.assert_close(agent.targets(batch)[0], targets, rtol=1e-4, atol=1e-5)
        errors = np.stack(reference.learn(minibatches(batch)))
        learned = agent.learn(batch)
        np.testing.assert_allclose(learned.errors.numpy(), errors, rtol=1e-4, atol=1e-5)
        if make_config(algo, network, members).algo.value == "scalar":  # cross entropies have no large gradients
            assert clipped is None or (learned.gradient_norm > 10) == clipped
        assert_same_weights(agent, reference)
        if clipped and reference.lagging:
            agent.update_target()
            reference.update_targets()
    for k, member in enumerate(reference.members):
        for name, weight in member.state_dict().items():
            assert (weight - before[k][name]).abs().max() > 1e-4, f"{name} of member {k} was not trained"


def test_targets_are_the_same_where_the_target_network_prefers_other_actions() -> None:
    config = make_config("rainbow", "minatar", 1)
    setting, agent, reference = make_agents("rainbow", "minatar", 1)
    assert reference.lagging is not None
    agent.target = random_params(setting.network(config), 1, 1)
    reference.lagging[0].load_state_dict(member_weights(agent.target, 0, reference.lagging[0]))
    batch = random_batch(setting, 1, np.random.default_rng(5))
    states = batch.next_states[0].float()
    online, lagging = (
        reference._expectation(m(states)).argmax(1) for m in (reference.members[0], reference.lagging[0])
    )
    assert (online != lagging).any()
    torch.testing.assert_close(
        agent.targets(batch)[0][0], reference.targets(minibatches(batch))[0], rtol=1e-4, atol=1e-5
    )


def test_noise_is_drawn_anew_for_every_use(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = []

    def randn(size: int) -> torch.Tensor:
        draws.append(size)
        return torch.zeros(size)

    monkeypatch.setattr(torch, "randn", randn)
    setting, _, reference = make_agents("rainbow", "minatar", 1)
    batch = random_batch(setting, 1, np.random.default_rng(0))
    reference.learn(minibatches(batch))
    # 4 noisy layers with a vector for inputs and one for outputs; networks that evaluate, that choose, that learn.
    assert len(draws) == 4 * 2 * 3


@NETWORKS
def test_replays_draw_the_same_minibatches(network: str, members: int) -> None:
    config, setting = make_config("meanq", network, members), SETTINGS[network]
    capacity = 50
    batched = Replay(
        capacity=capacity,
        frame_shape=setting.frame_shape,
        frame_dtype=np.dtype(np.uint8),
        stack=setting.stack,
        multi_step=1,
        discount=config.algo.discount,
        priority_trees=members,
        prioritized=True,
        priority_exponent=1.0,
        generator=np.random.default_rng(3),
        device=CPU,
    )
    reference = ReferenceReplay(
        slots=ring_slots(capacity, setting.stack),
        frame_shape=setting.frame_shape,
        stack=setting.stack,
        discount=config.algo.discount,
        members=members,
        generator=np.random.default_rng(3),
    )
    generator = np.random.default_rng(4)
    weights_seen = []
    for step in range(170):  # the ring is overwritten three times
        frame, next_frame = generator.integers(setting.levels, size=(2, *setting.frame_shape), dtype=np.uint8)
        if step % 7 == 0:
            batched.start(frame)
            reference.start(frame)
        action, reward, terminal = int(generator.integers(NUM_ACTIONS)), float(generator.normal()), step % 7 == 6
        batched.append(action, reward, next_frame, terminal=terminal, truncated=False)
        reference.append(action, reward, next_frame, terminal=terminal)
        if step % 10 != 9:
            continue
        batch = batched.sample(members, BATCH, 0.4)
        expected = reference.sample(BATCH, 0.4)
        # By slot: a transition drawn twice has the same error twice.
        by_slot = generator.uniform(0.1, 3.0, (members, ring_slots(capacity, setting.stack)))
        priorities = np.take_along_axis(by_slot, batch.indices, axis=1)
        for k, (actual, minibatch) in enumerate(zip(minibatches(batch), expected, strict=True)):
            assert actual.slots == minibatch.slots
            for name in ("states", "actions", "rewards", "discounts", "next_states", "weights"):
                torch.testing.assert_close(getattr(actual, name), getattr(minibatch, name), msg=name)
            reference.update_priorities(k, minibatch.slots, priorities[k])
        batched.update_priorities(batch.indices, priorities)
        weights_seen.append(batch.weights)
    assert torch.stack(weights_seen).std() > 0.05  # the priorities were not all alike


def test_uniform_replay_returns_what_was_stored() -> None:
    replay = UniformReplay(
        slots=8, frame_shape=(1, 2, 2), stack=2, discount=0.9, generator=np.random.default_rng(0)
    )  # fmt: skip
    for step in range(13):  # frames say when they were seen; an episode starts at every fifth
        if step % 5 == 0:
            replay.start(np.full((1, 2, 2), step))
        replay.append(step % 3, float(step), np.full((1, 2, 2), step + 1), terminal=step % 5 == 4)
    (batch,) = replay.sample(200, 0.4)
    steps = batch.rewards.int()
    assert set(steps.tolist()) == set(range(5, 13))  # all of the last 8, and nothing else
    first = steps % 5 == 0
    assert (batch.states[:, 1, 0, 0] == steps).all()
    assert (batch.states[:, 0, 0, 0] == torch.where(first, 0, steps - 1)).all()
    assert (batch.next_states[:, 1, 0, 0] == steps + 1).all() and (batch.next_states[:, 0, 0, 0] == steps).all()
    assert (batch.actions == steps % 3).all()
    torch.testing.assert_close(batch.discounts, torch.where(steps % 5 == 4, 0.0, 0.9))
    assert (batch.weights == 1).all()
