"""The batched ensemble against a plain loop over separate modules with the same weights."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meanq.config.errors import ConfigError
from meanq.config.schema import CONFIG_DIR, NetworkConfig
from meanq.learning import layers, networks
from meanq.learning.build import member_generator
from meanq.learning.networks import Params, QNetwork, parameter_count
from meanq.replay.buffer import Batch
from tests.helpers import algo_config, make_agent, network_config, random_params

# `custom` names the user's own code: tests/config/test_own_code.py
NETWORKS = sorted(path.stem for path in (CONFIG_DIR / "network").glob("*.yaml") if path.stem != "custom")
ACTIONS, BATCH = 3, 4
KINDS = ("weight", "bias")
# Small and not square, so that a slip between height and width shows; any other network gets an Atari state.
STATE_SHAPES = {
    "nature": (4, 44, 52),
    "data_efficient": (4, 50, 75),
    "dopamine": (4, 41, 54),  # a row more below than above, as many columns on the left as on the right
    "minatar": (4, 10, 8),
    "mlp": (6,),
}


def state_shape(name: str) -> tuple[int, ...]:
    return STATE_SHAPES.get(name, (4, 84, 84))


def make_network(name: str, *, dueling: bool = True) -> QNetwork:
    shape = state_shape(name)
    return QNetwork(shape, ACTIONS, network_config(name), dueling=dueling, scale=1 / 255 if len(shape) == 3 else 1.0)


def padded(x: Tensor, convolution: nn.Conv2d) -> Tensor:
    """With one row or column of zeros more, by turns at the end and at the start, until there are enough outputs."""
    (kernel, _), (stride, _) = convolution.kernel_size, convolution.stride
    wanted = [math.ceil(size / stride) for size in x.shape[2:]]
    for dim, outputs in zip((2, 3), wanted, strict=True):
        at_end = True
        while (x.shape[dim] - kernel) // stride + 1 < outputs:
            zeros = torch.zeros_like(x.narrow(dim, 0, 1))
            x = torch.cat([x, zeros] if at_end else [zeros, x], dim)
            at_end = not at_end
    return x


class Member(nn.Module):
    """One member as one would write it alone."""

    def __init__(self, config: NetworkConfig, shape: tuple[int, ...], *, dueling: bool) -> None:
        super().__init__()
        self.margin = math.inf  # how close to zero an input of a rectifier came
        channels, self.image = shape[0], len(shape) == 3
        self.same, self.shared = config.padding == "same", config.shared_hidden
        self.convolutions = nn.ModuleList()
        for conv in config.convolutions:
            self.convolutions.append(nn.Conv2d(channels, conv.channels, conv.kernel, conv.stride))
            channels = conv.channels
        with torch.no_grad():
            features = self.features(torch.zeros(1, *shape)).shape[1]
        self.dense = nn.ModuleList()
        for width in config.dense:
            self.dense.append(nn.Linear(features, width))
            features = width
        self.for_value = nn.Linear(features, config.hidden)
        self.value = nn.Linear(config.hidden, 1 if dueling else ACTIONS)
        self.dueling = dueling
        if dueling:
            self.for_advantage = self.for_value if self.shared else nn.Linear(features, config.hidden)
            self.advantage = nn.Linear(config.hidden, ACTIONS)

    def rectify(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():  # without gradients nothing jumps at zero
            self.margin = min(self.margin, x.detach().abs().min().item())
        return F.relu(x)

    def features(self, states: Tensor) -> Tensor:
        x = states.float() / 255 if self.image else states
        for convolution in self.convolutions:
            x = self.rectify(convolution(padded(x, convolution) if self.same else x))
        if self.convolutions:
            x = x.permute(0, 2, 3, 1)  # y, x, channel
        return x.flatten(1)

    def forward(self, states: Tensor) -> Tensor:
        x = self.features(states)
        for layer in self.dense:
            x = self.rectify(layer(x))
        value = self.value(self.rectify(self.for_value(x)))
        if not self.dueling:
            return value
        advantage = self.advantage(self.rectify(self.for_advantage(x)))
        return value + advantage - advantage.mean(1, keepdim=True)

    def stacked(self, part: Callable[[nn.Parameter], Any]) -> Params:
        """Something of every parameter, named and laid out as one member of the batched network."""

        def linear(*layers: nn.Module) -> tuple[Tensor, Tensor]:
            weights = torch.cat([part(layer.weight).T for layer in layers], dim=1)
            return weights, torch.cat([part(layer.bias) for layer in layers])[None]

        layers = {f"conv{i}": (part(conv.weight), part(conv.bias)) for i, conv in enumerate(self.convolutions)}
        layers |= {f"dense{i}": linear(layer) for i, layer in enumerate(self.dense)}
        streams = [self.for_value, self.for_advantage] if self.dueling and not self.shared else [self.for_value]
        layers["hidden"] = linear(*streams)
        if self.dueling:
            layers["advantage"] = linear(self.advantage)
        layers["value"] = linear(self.value)
        return {f"{name}.{kind}": t for name, pair in layers.items() for kind, t in zip(KINDS, pair, strict=True)}

    @torch.no_grad()
    def take(self, params: Params, k: int) -> None:
        """Copy member k's weights, found by where each number of the module's own goes."""
        total = sum(p.numel() for p in self.parameters())
        own = list(self.parameters())
        numbers = dict(zip(own, torch.arange(total).split([p.numel() for p in own]), strict=True))
        places = self.stacked(lambda p: numbers[p].view_as(p))
        flat = torch.empty(total)
        assert set(places) == set(params)
        for name, place in places.items():
            assert place.shape == params[name][k].shape, name
            flat[place] = params[name][k].detach()
        nn.utils.vector_to_parameters(flat, self.parameters())


def make_members(name: str, params: Params, *, dueling: bool) -> list[Member]:
    members = []
    for k in range(len(params["hidden.bias"])):
        member = Member(network_config(name), state_shape(name), dueling=dueling)
        member.take(params, k)
        members.append(member)
    return members


def gather(members: list[Member], part: Callable[[nn.Parameter], Any]) -> Params:
    """Something of all members' parameters, stacked."""
    each = [member.stacked(part) for member in members]
    return {name: torch.stack([params[name] for params in each]) for name in each[0]}


def random_states(name: str, *leading: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (*leading, *state_shape(name))
    if len(state_shape(name)) == 1:
        return torch.randn(shape, generator=generator)
    return torch.randint(256, shape, generator=generator, dtype=torch.uint8)


def clear_of_kinks(members: list[Member]) -> bool:
    """No rectifier's input was so close to zero that another order of summation could change its sign, and with that
    a gradient. Such draws (perhaps one in three) are no comparison of programs: tests draw again."""
    return min(member.margin for member in members) > 3e-7


SEEDS = range(1, 100)


def assert_params_close(actual: Params, expected: Params, tolerance: float = 1e-4) -> None:
    """In norm, for each member's tensors."""
    assert set(actual) == set(expected)
    for name, tensor in actual.items():
        assert tensor.shape == expected[name].shape
        for k, (one, other) in enumerate(zip(tensor, expected[name], strict=True)):
            difference, scale = (one - other).norm().item(), other.norm().item()
            assert scale > 0 and difference <= tolerance * scale, f"{name} of member {k}: {difference} of {scale}"


def strides(params: Params) -> dict[str, tuple[int, ...]]:
    """How each lies in memory."""
    return {name: p.stride() for name, p in params.items()}


def gradients(params: Params) -> Params:
    """All of them."""
    found = {name: p.grad for name, p in params.items() if p.grad is not None}
    assert set(found) == set(params)
    return found


def moves(after: Params, before: Params) -> Params:
    """How far weights went, which is little against what they are."""
    return {name: p.detach() - before[name] for name, p in after.items()}


@pytest.fixture(params=["grouped", "looped"])
def convolution_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Force one of the two ways in which several members' convolutions are done."""
    monkeypatch.setattr(networks, "_LOOP_MULTIPLY_ADDS", 0 if request.param == "looped" else math.inf)
    return request.param


def check_against_modules(name: str, dueling: bool, members: int, shared: bool, size: int) -> None:
    """Values of `size` states, and a gradient that every value has a part in."""
    network = make_network(name, dueling=dueling)
    for seed in SEEDS:
        params = random_params(network, members, seed)
        modules = make_members(name, params, dueling=dueling)
        states = random_states(name, *(() if shared else (members,)), size, seed=seed)
        expected = torch.stack([module(states if shared else states[k]) for k, module in enumerate(modules)])
        if clear_of_kinks(modules):
            break
    factors = torch.randn(members, size, ACTIONS, generator=torch.Generator().manual_seed(2))
    (expected * factors).sum().backward()

    leaves = {n: p.requires_grad_() for n, p in params.items()}
    q = network(leaves, states)
    (q * factors).sum().backward()
    assert q.shape == (members, size, ACTIONS)
    torch.testing.assert_close(q, expected, rtol=1e-4, atol=1e-5)
    assert_params_close(gradients(leaves), gather(modules, lambda p: p.grad))


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_member"])
@pytest.mark.parametrize("members", [1, 2, 5])
@pytest.mark.parametrize("dueling", [True, False], ids=["dueling", "single"])
@pytest.mark.parametrize("name", NETWORKS)
def test_values_and_gradients_are_those_of_separate_modules(
    name: str, dueling: bool, members: int, shared: bool, convolution_path: str
) -> None:
    check_against_modules(name, dueling, members, shared, BATCH)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_member"])
@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("split", [True, False], ids=["split", "whole"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_single_state_is_no_different(
    name: str, split: bool, members: int, shared: bool, convolution_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in acting, where the layout in memory is another one, and large layers are multiplied in parts."""
    monkeypatch.setattr(layers, "_SPLIT_WEIGHTS", 0 if split else math.inf)
    check_against_modules(name, True, members, shared, 1)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_member"])
def test_both_convolution_paths_are_taken(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above force what they say: grouped is one call per layer, looped is one per member and layer."""
    groups: list[int] = []
    convolve = F.conv2d

    def spy(*args: object, **kwargs: int) -> Tensor:
        groups.append(kwargs.get("groups", 1))
        return convolve(*args, **kwargs)

    monkeypatch.setattr(networks.F, "conv2d", spy)
    network = make_network("nature")
    params = random_params(network, 2, seed=1)
    states = random_states("nature", BATCH) if shared else random_states("nature", 2, BATCH)
    results = []
    for threshold in (math.inf, 0):
        monkeypatch.setattr(networks, "_LOOP_MULTIPLY_ADDS", threshold)
        results.append(network(params, states))
    grouped, looped = ([1, 2, 2], [1, 1, 1, 1, 1]) if shared else ([2, 2, 2], [1] * 6)
    assert groups == grouped + looped
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_the_default_threshold_sends_learning_on_images_to_the_loop() -> None:
    """The constant lies between acting on one state and learning from 32, for the paper's network."""
    shape = (4, 84, 84)
    network = QNetwork(shape, ACTIONS, network_config("nature"), dueling=True, scale=1 / 255)
    assert max(network._conv_work[1:]) < networks._LOOP_MULTIPLY_ADDS < 32 * max(network._conv_work[1:])


@pytest.mark.parametrize("name", NETWORKS)
def test_one_member_gives_the_same_bits_in_both_forms(name: str) -> None:
    network = make_network(name)
    params = random_params(network, 1, seed=3)
    states = random_states(name, BATCH)
    assert torch.equal(network(params, states), network(params, states[None]))


@pytest.mark.parametrize("size", [84, 75, 60])
@pytest.mark.parametrize("name", ["nature", "data_efficient"])
def test_pixels_have_an_effect_exactly_where_they_are_seen(name: str, size: int) -> None:
    shape = (4, size, size - 1)
    network = QNetwork(shape, ACTIONS, network_config(name), dueling=True, scale=1 / 255)
    member = Member(network_config(name), shape, dueling=True)  # which is given the whole image
    with torch.no_grad():
        for weights in member.parameters():
            weights.abs_()  # so that no rectifier hides a pixel
    states = torch.rand(2, *shape, requires_grad=True)
    member.features(states).sum().backward()
    assert states.grad is not None
    effect = states.grad.abs().sum((0, 1)) > 0
    height, width = network.seen
    assert effect[:height, :width].all() and effect.sum() == height * width


@pytest.mark.parametrize(
    ("shape", "paddings", "counts"),
    [
        # TensorFlow's SAME: left, right, top, bottom of each convolution; the outputs of each
        ((4, 84, 84), [(2, 2, 2, 2), (1, 2, 1, 2), (1, 1, 1, 1)], [(21, 21), (11, 11), (11, 11)]),
        ((4, 41, 54), [(3, 3, 3, 4), (1, 1, 1, 2), (1, 1, 1, 1)], [(11, 14), (6, 7), (6, 7)]),
        ((4, 1, 3), [(2, 3, 3, 4), (1, 2, 1, 2), (1, 1, 1, 1)], [(1, 1), (1, 1), (1, 1)]),
    ],
    ids=str,
)
def test_padding_is_that_of_tensorflow(
    shape: tuple[int, ...], paddings: list[tuple[int, ...]], counts: list[tuple[int, int]]
) -> None:
    """And so are weights and multiply-adds: those of Dopamine's network, whose two streams share one hidden layer."""
    network = QNetwork(shape, ACTIONS, network_config("dopamine"), dueling=True, scale=1 / 255)
    assert network._paddings == paddings and network.seen == shape[1:]
    weights, biases, work, channels = 0, 0, 0, shape[0]
    for (filters, kernel), (height, width) in zip(((32, 8), (64, 4), (64, 3)), counts, strict=True):
        weights += filters * channels * kernel * kernel
        work += height * width * filters * channels * kernel * kernel
        biases, channels = biases + filters, filters
    for inputs, outputs in ((64 * math.prod(counts[-1]), 512), (512, ACTIONS), (512, 1)):
        weights, work, biases = weights + inputs * outputs, work + inputs * outputs, biases + outputs
    assert parameter_count(random_params(network, 2, 0)) == 2 * (weights + biases)
    assert network.multiply_adds == work


def test_images_for_dense_layers_are_flattened() -> None:
    """A network without convolutions reads any state, as its numbers lie in memory."""
    config = network_config("mlp")
    image = QNetwork((2, 3, 4), ACTIONS, config, dueling=True, scale=0.5)
    vector = QNetwork((24,), ACTIONS, config, dueling=True, scale=0.5)
    params = random_params(image, 2, seed=0)
    states = torch.randint(256, (2, 5, 2, 3, 4), dtype=torch.uint8)
    assert torch.equal(image(params, states), vector(params, states.flatten(2)))
    assert torch.equal(image(params, states[0]), vector(params, states[0].flatten(1)))


def test_impossible_shapes_are_refused() -> None:
    with pytest.raises(ConfigError, match="network=mlp"):
        QNetwork((6,), ACTIONS, network_config("nature"), dueling=True, scale=1.0)
    with pytest.raises(ConfigError, match="too small"):
        QNetwork((4, 84, 35), ACTIONS, network_config("nature"), dueling=True, scale=1.0)
    QNetwork((4, 84, 36), ACTIONS, network_config("nature"), dueling=True, scale=1.0)  # the smallest that fits


# Learning


def make_batch(name: str, rows: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    # Rows with errors of very different size: some members' gradients are clipped and others' are not.
    size = torch.tensor([10.0, 0.1, 1.0, 10.0, 0.1])[:rows, None]
    return Batch(
        indices=np.zeros((rows, BATCH), dtype=np.int64),
        states=random_states(name, rows, BATCH, seed=seed),
        actions=torch.randint(ACTIONS, (rows, BATCH), generator=generator),
        returns=torch.randn(rows, BATCH, generator=generator) * size,
        discounts=torch.full((rows, BATCH), 0.9),
        next_states=random_states(name, rows, BATCH, seed=seed + 100),
        weights=torch.rand(rows, BATCH, generator=generator) + 0.1,
    )


MAX_NORM = 0.5
# With a large epsilon Adam's step depends on the gradient's size, not on its sign alone, so clipping shows.
STEP = {"learning_rate": 0.01, "adam_epsilon": 0.1, "max_gradient_norm": MAX_NORM}


@dataclass
class LoopStep:
    """What a step of the loop over members did."""

    errors: Tensor  # [K, B]
    losses: Tensor  # [K]
    norms: Tensor  # [K], before clipping
    clipped: Params
    weights: Params


class Loop:
    """An ensemble without lagging weights whose target is the mean: one module and one optimiser per member."""

    def __init__(self, members: list[Member]) -> None:
        self.members = members
        self.optimisers = [
            torch.optim.Adam(m.parameters(), lr=STEP["learning_rate"], eps=STEP["adam_epsilon"], foreach=False)
            for m in members
        ]

    def learn(self, batch: Batch) -> LoopStep:
        errors, losses, norms = [], [], []
        for k, member in enumerate(self.members):
            r = k if len(batch.states) > 1 else 0
            with torch.no_grad():
                value = torch.stack([m(batch.next_states[r]) for m in self.members]).mean(0).max(1).values
            y = batch.returns[r] + batch.discounts[r] * value
            taken = member(batch.states[r])[torch.arange(BATCH), batch.actions[r]]
            loss = (batch.weights[r] * (y - taken) ** 2).mean()
            member.zero_grad()
            loss.backward()
            errors.append((y - taken).detach().abs())
            losses.append(loss.detach())
            norms.append(nn.utils.clip_grad_norm_(member.parameters(), MAX_NORM))
        for optimiser in self.optimisers:  # only now: all targets are made with the weights before the step
            optimiser.step()
        return LoopStep(
            errors=torch.stack(errors),
            losses=torch.stack(losses),
            norms=torch.stack(norms),
            clipped=gather(self.members, lambda p: p.grad),
            weights=gather(self.members, lambda p: p.detach()),
        )


@pytest.mark.parametrize(
    ("algo", "members"), [("meanq", 1), ("meanq", 2), ("meanq", 5), ("ens_dqn", 2), ("ens_dqn", 5)]
)
@pytest.mark.parametrize("dueling", [True, False], ids=["dueling", "single"])
@pytest.mark.parametrize("name", NETWORKS)
def test_learning_is_that_of_a_loop_over_members(name: str, dueling: bool, algo: str, members: int) -> None:
    """Two steps of Adam with each member's gradient clipped by itself."""
    config = algo_config(algo, ensemble_size=members, dueling=dueling, target_network=None, **STEP)
    network = make_network(name, dueling=dueling)
    rows = members if config.minibatch == "independent" else 1
    for seed in SEEDS:
        params = random_params(network, members, seed)
        before = {n: p.clone() for n, p in params.items()}
        loop = Loop(make_members(name, params, dueling=dueling))
        batches = [make_batch(name, rows, seed=200 * seed + step) for step in range(2)]
        expected = [loop.learn(batch) for batch in batches]
        if clear_of_kinks(loop.members):
            break
    agent = make_agent(config, network, params)
    for batch, step in zip(batches, expected, strict=True):
        learned = agent.learn(batch)
        errors = step.errors if rows == members else step.errors.mean(0, keepdim=True)
        torch.testing.assert_close(learned.errors, errors, rtol=1e-3, atol=1e-4)
        assert learned.loss.item() == pytest.approx(step.losses.mean().item(), rel=1e-3)
        assert learned.gradient_norm.item() == pytest.approx(step.norms.mean().item(), rel=1e-3)
        assert_params_close(agent.gradients, step.clipped, tolerance=1e-3)
        assert strides(agent.gradients) == strides(agent.online)  # fused Adam is silently wrong otherwise
        assert_params_close(moves(agent.online, before), moves(step.weights, before), tolerance=1e-2)
    norms = torch.cat([step.norms for step in expected])
    assert norms.max() > MAX_NORM  # clipped
    if rows > 1 and name != "dopamine":  # whose padded images have many features
        assert norms.min() < MAX_NORM  # not clipped


@pytest.mark.parametrize(("members", "parallel"), [(1, 1), (3, 1), (2, 2)])
@pytest.mark.parametrize("name", ["minatar", "mlp"])
def test_no_limit_is_a_limit_that_is_never_reached(name: str, members: int, parallel: int) -> None:
    """Of gradients bit for bit, for two steps; the norm is the mean of the members' norms in both."""
    scale = 1 / 255 if name == "minatar" else 1.0
    shape = state_shape(name)
    network = QNetwork(shape, ACTIONS, network_config(name), dueling=True, scale=scale, parallel=parallel)
    agents = [
        make_agent(
            algo_config("meanq", ensemble_size=members, target_network=None, **STEP | {"max_gradient_norm": limit}),
            network,
            random_params(network, members, 0),
        )
        for limit in (None, 1e9, 0.05)
    ]
    for step in range(2):
        batch = make_batch(name, members, step)
        free, limited, clipped = (agent.learn(batch) for agent in agents)
        for n, gradient in agents[0].gradients.items():
            assert torch.equal(gradient, agents[1].gradients[n]), n
            assert torch.equal(agents[0].online[n], agents[1].online[n]), n
        assert torch.equal(free.gradient_norm, limited.gradient_norm)
        assert strides(agents[0].gradients) == strides(agents[0].online)
        norms = []
        for k in range(members):
            parts = [g[parallel * k : parallel * (k + 1)].double() for g in agents[0].gradients.values()]
            norms.append(math.sqrt(sum(float((part * part).sum()) for part in parts)))
        assert free.gradient_norm.item() == pytest.approx(sum(norms) / members, rel=1e-5)
        assert clipped.gradient_norm > 0.05 and not torch.equal(
            agents[2].gradients["value.bias"], agents[0].gradients["value.bias"]
        )


@pytest.mark.parametrize("name", NETWORKS)
def test_a_member_learns_the_same_in_any_ensemble(name: str) -> None:
    """Member 0 alone and as the first of five: same gradient and same weights, if its target is its own."""
    network = make_network(name)
    for seed in SEEDS:
        five = network.init([member_generator(seed, k) for k in range(5)])
        one = {n: p[:1].clone() for n, p in five.items()}
        batch = make_batch(name, 5, seed)
        (reference,) = make_members(name, one, dueling=True)
        reference(batch.states[0])
        if clear_of_kinks([reference]):
            break
    before = {n: p.clone() for n, p in one.items()}
    first_row = Batch(**{field: value[:1] for field, value in vars(batch).items() if value is not None})
    online, found = [], []
    for params, rows in ((five, batch), (one, first_row)):
        algo = algo_config("bootstrapped_dqn", ensemble_size=len(rows.states), **STEP)
        agent = make_agent(algo, network, params)
        agent.learn(rows)
        online.append(agent.online)
        found.append(agent.gradients)
    of_five, alone = online
    assert_params_close({n: g[:1] for n, g in found[0].items()}, found[1])
    first_of_five = {n: p[:1] for n, p in of_five.items()}
    assert_params_close(moves(first_of_five, before), moves(alone, before), tolerance=1e-2)


# Initial weights


@pytest.mark.parametrize("name", NETWORKS)
def test_initial_weights_of_a_member_do_not_depend_on_the_others(name: str) -> None:
    network = make_network(name)
    five = network.init([member_generator(7, k) for k in range(5)])
    two = network.init([member_generator(7, k) for k in range(2)])
    alone = network.init([member_generator(7, 4)])
    other_seed = network.init([member_generator(8, 0)])
    for n, p in five.items():
        assert torch.equal(p[:2], two[n])
        assert torch.equal(p[4:], alone[n])
        if network_config(name).initial_weights == "xavier" and n.endswith("bias"):
            assert not p.any()
            continue
        assert not torch.equal(p[:1], other_seed[n])
        assert len({tuple(member.flatten()[:5].tolist()) for member in p}) == 5  # all members differ
        assert p.is_contiguous()


@pytest.mark.parametrize("dueling", [True, False], ids=["dueling", "single"])
@pytest.mark.parametrize("name", NETWORKS)
def test_initial_weights_are_distributed_as_those_of_modules(name: str, dueling: bool) -> None:
    """PyTorch's default for these layers: uniform in +-1/sqrt(fan in), weights and biases; or its xavier_uniform_."""
    network = make_network(name, dueling=dueling)
    params = random_params(network, 3, seed=0)
    module = Member(network_config(name), state_shape(name), dueling=dueling)
    assert parameter_count(params) == 3 * sum(p.numel() for p in module.parameters())
    xavier = network_config(name).initial_weights == "xavier"
    if xavier:
        for own in module.parameters():
            nn.init.xavier_uniform_(own) if own.dim() > 1 else nn.init.zeros_(own)
    for n, p in module.stacked(lambda p: p.detach()).items():
        weight = params[n.replace("bias", "weight")][0]
        bound = 1 / math.sqrt(weight[0].numel() if n.startswith("conv") else weight.shape[0])
        if xavier:
            bound = p.abs().max().item() * 1.01 if p.any() else 0.0
        for actual in (params[n], p):
            assert actual.abs().max() <= bound
            if actual.numel() > 500 and bound > 0:
                assert actual.abs().max() > 0.98 * bound
                assert actual.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
                assert abs(actual.mean()) < 0.1 * bound


@pytest.mark.parametrize("dueling", [True, False], ids=["dueling", "single"])
def test_noisy_layers_keep_their_uniform_weights_with_xavier(dueling: bool) -> None:
    """As in Dopamine: Xavier's are for the layers without noise, here the convolutions."""
    shape, config = state_shape("dopamine"), network_config("dopamine")
    xavier, uniform = (
        random_params(QNetwork(shape, ACTIONS, c, dueling=dueling, scale=1.0, noise=0.5), 2, 0)
        for c in (config, dataclasses.replace(config, initial_weights="uniform"))
    )
    assert xavier.keys() == uniform.keys()
    for name, p in xavier.items():
        if not name.startswith("conv"):
            assert torch.equal(p, uniform[name]) and p.any(), name
        elif name.endswith("bias"):
            assert not p.any() and uniform[name].any()
        else:
            outputs, inputs, kernel, _ = p.shape[1:]
            bound = math.sqrt(6 / ((inputs + outputs) * kernel**2))
            assert 0.98 * bound < p.abs().max() <= bound
            assert p.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
