"""Targets against explicit loops over members, minibatches and states."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from meanq.config.checks import check
from meanq.config.extensions import BOOTSTRAP_RULES
from meanq.config.schema import AlgoConfig, NetworkConfig
from meanq.learning.bootstrap import BootstrapRule, bootstrap_rule, mellowmax, next_actions, own
from meanq.learning.networks import Params, QNetwork
from meanq.learning.values import ScalarValue
from meanq.replay.buffer import Batch
from tests.helpers import algo_config, compose, make_agent, random_params

ACTIONS, BATCH, FEATURES = 4, 12, 5
OMEGA = 3.0


def naive_next_value(rule: str, q_target: np.ndarray, q_choice: np.ndarray, k: int) -> float:
    """The value of one next state for member k, from all members' values [K, A]; q_choice chooses the action."""
    if rule == "mean":
        return q_target.mean(0)[q_choice.mean(0).argmax()]
    if rule == "min":
        return q_target.min(0)[q_choice.min(0).argmax()]
    if rule == "own":
        return q_target[k][q_choice[k].argmax()]
    if rule == "others":
        return np.mean([q_target[j] for j in range(len(q_target)) if j != k], axis=0)[q_choice[k].argmax()]
    if rule == "mellowmax":
        total = 0.0
        for action in range(q_target.shape[1]):
            mean = sum(q_target[j, action] for j in range(len(q_target))) / len(q_target)
            total += math.exp(OMEGA * mean)
        return math.log(total / q_target.shape[1]) / OMEGA
    raise NotImplementedError(f"write down what {rule} means")


def configured(rule: str) -> BootstrapRule:
    """A rule with its option."""
    return bootstrap_rule(rule, algo_config("meanq", mellowmax_omega=OMEGA))


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize(
    ("rule", "members"),
    [(name, k) for name in BOOTSTRAP_RULES for k in (1, 2, 5) if k >= bootstrap_rule(name).min_members],
)
def test_rules_by_themselves(rule: str, members: int, double: bool) -> None:
    generator = np.random.default_rng(members)
    q_target = generator.normal(size=(members, members, BATCH, ACTIONS))
    q_online = generator.normal(size=(members, members, BATCH, ACTIONS))
    expected = np.zeros((members, BATCH))
    for r in range(members):
        for b in range(BATCH):
            expected[r, b] = naive_next_value(rule, q_target[:, r, b], (q_online if double else q_target)[:, r, b], r)

    def as_read(q: np.ndarray) -> torch.Tensor:
        """What the rule is given: all evaluations, or those of the learning member alone."""
        tensor = torch.from_numpy(q)
        return tensor if bootstrap_rule(rule).all_members else own(tensor).unsqueeze(0)

    actions = next_actions(configured(rule), as_read(q_online if double else q_target))
    nothing, certain = torch.zeros(members, BATCH, dtype=torch.float64), torch.ones(members, BATCH, dtype=torch.float64)
    value = ScalarValue().target(configured(rule), as_read(q_target), actions, nothing, certain)
    np.testing.assert_allclose(value.numpy(), expected, rtol=1e-12)


def test_own_takes_the_diagonal() -> None:
    q = torch.arange(2 * 2 * 3 * 4).reshape(2, 2, 3, 4)
    assert torch.equal(own(q), torch.stack([q[0, 0], q[1, 1]]))


def make_network() -> QNetwork:
    config = NetworkConfig(name="tiny", convolutions=[], dense=[16], hidden=16)
    return QNetwork((FEATURES,), ACTIONS, config, dueling=True, scale=1.0)


def make_batch(rows: int, seed: int = 0, size: int = BATCH) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(rows, size, *shape, generator=generator)

    discounts = 0.9 * torch.ones(rows, size)
    discounts[:, ::3] = 0  # every third one is terminal
    return Batch(
        indices=np.zeros((rows, size), dtype=np.int64),
        states=normal(FEATURES),
        actions=torch.randint(ACTIONS, (rows, size), generator=generator),
        returns=normal(),
        discounts=discounts,
        next_states=5 * normal(FEATURES),
        weights=torch.rand(rows, size, generator=generator),
    )


class History:
    """An agent whose lagging weights came about as in training, and all those weights, kept by the test."""

    def __init__(self, algo: AlgoConfig) -> None:
        self.network = make_network()
        self.algo = algo
        self.agent = make_agent(algo, self.network, random_params(self.network, algo.ensemble_size, 0))
        self.weights: list[Params] = []  # at each update of the target, then the newest
        updates = algo.target_snapshots + 1 if algo.target_network else 0
        for seed in range(1, updates + 1):
            self._train(seed)
            self.agent.update_target()
        self._train(updates + 1)

    def _train(self, seed: int) -> None:
        weights = random_params(self.network, self.algo.ensemble_size, seed)
        with torch.no_grad():
            for name, online in self.agent.online.items():
                online.copy_(weights[name])
        self.weights.append(weights)

    def values(self, weights: list[Params], states: torch.Tensor) -> np.ndarray:
        """Q [K, R, B, A], of one member and one minibatch at a time; the mean over several sets of weights."""
        q = np.zeros((self.algo.ensemble_size, *states.shape[:2], ACTIONS))
        for params in weights:
            for k in range(self.algo.ensemble_size):
                member = {name: p[k : k + 1] for name, p in params.items()}
                for r, minibatch in enumerate(states):
                    q[k, r] += self.network(member, minibatch)[0].numpy() / len(weights)
        return q

    def naive_targets(self, batch: Batch, members: list[int] | None = None) -> np.ndarray:
        """y [K, B], from the values of some of the members."""
        online, lagging = self.weights[-1:], self.weights[-1:]
        if self.algo.target_network:
            lagging = self.weights[-1 - self.algo.target_snapshots : -1]
            assert len(lagging) == self.algo.target_snapshots
        q_target = self.values(lagging, batch.next_states)
        q_choice = self.values(online if self.algo.double else lagging, batch.next_states)
        count, rows = q_target.shape[:2]
        q_target, q_choice = (q if members is None else q[members] for q in (q_target, q_choice))
        y = np.zeros((count, BATCH))
        for k in range(count):
            r = k if rows > 1 else 0
            for b in range(BATCH):
                y[k, b] = batch.returns[r, b]
                if batch.discounts[r, b] > 0:
                    value = naive_next_value(self.algo.bootstrap, q_target[:, r, b], q_choice[:, r, b], k)
                    y[k, b] += batch.discounts[r, b] * value
        return y


ALGORITHMS: dict[str, dict[str, Any]] = {
    "meanq": {},
    "meanq_no_target": {},
    "ens_dqn": {},
    "maxmin": {},
    "ebql": {},
    "bootstrapped_dqn": {},
    "double_dqn": {},
    "avg_dqn": {"target_snapshots": 3},
}


@pytest.mark.parametrize("minibatch", ["independent", "shared"])
@pytest.mark.parametrize(
    ("name", "members", "double"),
    [
        (name, members, double)
        for name in ALGORITHMS
        for members in (1, 3)
        for double in (False, True)
        if not (name == "ebql" and members == 1) and not (name == "meanq_no_target" and double)  # refused
    ],
)
def test_targets_of_every_algorithm(name: str, members: int, double: bool, minibatch: str) -> None:
    """Every algorithm's file, with its number of members, Double DQN and the sharing of minibatches flipped."""
    algo = algo_config(name, ensemble_size=members, double=double, minibatch=minibatch, **ALGORITHMS[name])
    history = History(algo)
    batch = make_batch(members if minibatch == "independent" else 1, seed=members)
    targets, confidence = history.agent.targets(batch)
    assert confidence is None
    assert targets.shape == (members, BATCH)
    np.testing.assert_allclose(targets.numpy(), history.naive_targets(batch), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bootstrap", [rule for rule in BOOTSTRAP_RULES if rule != "mean"])
def test_snapshots_combine_with_every_rule(bootstrap: str) -> None:
    for minibatch, rows in (("independent", 3), ("shared", 1)):
        algo = algo_config(
            "meanq", ensemble_size=3, bootstrap=bootstrap, minibatch=minibatch, target_snapshots=2, double=True
        )
        algo.mellowmax_omega = OMEGA
        history, batch = History(algo), make_batch(rows)
        np.testing.assert_allclose(
            history.agent.targets(batch)[0].numpy(), history.naive_targets(batch), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("target", [True, False], ids=["target", "no target"])
@pytest.mark.parametrize("minibatch", ["independent", "shared"])
@pytest.mark.parametrize("members", [1, 5])
def test_mellowmax_targets(members: int, minibatch: str, target: bool) -> None:
    name = "meanq" if target else "meanq_no_target"
    changes = {"bootstrap": "mellowmax", "mellowmax_omega": OMEGA, "minibatch": minibatch, "ensemble_size": members}
    history = History(algo_config(name, **changes))
    batch = make_batch(members if minibatch == "independent" else 1)
    found = history.agent.targets(batch)[0].numpy()
    np.testing.assert_allclose(found, history.naive_targets(batch), rtol=1e-5, atol=1e-5)


def test_mellowmax_lies_between_mean_and_maximum_and_does_not_overflow() -> None:
    q = torch.tensor([[[[1.0, 2.0, 6.0]]], [[[3.0, 2.0, 4.0]]]])  # two members, whose mean is 2, 2, 5
    assert mellowmax(q, 1e-3)[0, 0].tolist() == pytest.approx([3.0] * 3, abs=2e-2)
    assert mellowmax(q, 1e3)[0, 0].tolist() == pytest.approx([5.0] * 3, abs=2e-3)
    assert mellowmax(torch.full((1, 1, 1, 4), 1e4), 1e3).tolist() == [[[1e4] * 4]], "equal values are kept"


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("snapshots", [0, 1, 2])
@pytest.mark.parametrize("minibatch", ["independent", "shared"])
@pytest.mark.parametrize(("rule", "members", "subset"), [("min", 5, 2), ("min", 3, 1), ("mean", 5, 3)])
def test_targets_of_a_random_subset(
    rule: str, members: int, subset: int, minibatch: str, snapshots: int, double: bool
) -> None:
    """One subset for all minibatches of an update, and another one at the next."""
    algo = algo_config("meanq", ensemble_size=members, bootstrap=rule, bootstrap_subset=subset, minibatch=minibatch)
    algo.double, algo.target_snapshots = double, max(1, snapshots)
    algo.target_network = algo.target_network if snapshots else None
    history, twin = History(algo), np.random.default_rng(0)
    batch, drawn = make_batch(members if minibatch == "independent" else 1), set()
    for _ in range(4):
        chosen = twin.permutation(members)[:subset].tolist()
        found = history.agent.targets(batch)[0]
        np.testing.assert_allclose(found.numpy(), history.naive_targets(batch, chosen), rtol=1e-5, atol=1e-5)
        drawn.add(tuple(sorted(chosen)))
    assert len(drawn) > 1


def test_all_pairs_of_members_are_drawn_alike() -> None:
    algo = algo_config("subset_min")
    history, counts = History(algo), dict[tuple[int, ...], int]()
    for _ in range(3000):
        drawn = history.agent._draw_subset()
        assert drawn is not None
        pair = tuple(sorted(drawn.tolist()))
        counts[pair] = counts.get(pair, 0) + 1
    assert len(counts) == 10 and max(abs(count - 300) for count in counts.values()) < 80  # 5 standard deviations


REFUSED = {
    "algo=mellowmax algo.mellowmax_omega=null": r"mellowmax_omega=null: algo.bootstrap=mellowmax needs a number",
    "algo=mellowmax algo.mellowmax_omega=0": r"mellowmax_omega=0.*write a number from 0.01 to 1000000, or null",
    "algo=mellowmax algo.mellowmax_omega=1e30": r"mellowmax_omega=1e\+30: write a number from 0.01 to 1000000, or null",
    "algo=dqn algo.mellowmax_omega=5": r"mellowmax_omega=5.0: it belongs to algo.bootstrap=mellowmax",
    "algo=mellowmax algo.double=true": r"algo.double=true: algo.bootstrap=mellowmax averages over actions",
    "algo=mellowmax algo.value=categorical": r"algo.bootstrap=mellowmax: this rule cannot combine distributions",
    "algo=subset_min algo.ensemble_size=1": r"bootstrap_subset=2: a subset has fewer .*=1 members: write null",
    "algo=subset_min algo.bootstrap_subset=5": r"bootstrap_subset=5: .*write 4 or less",
    "algo=dqn algo.bootstrap_subset=1": r"bootstrap_subset=1: .*write null",
    "algo=bootstrapped_dqn algo.bootstrap_subset=2": r"bootstrap_subset=2: algo.bootstrap=own needs members of its own",
    "algo=ebql algo.bootstrap_subset=2": r"bootstrap_subset=2: algo.bootstrap=others needs members of its own",
    "algo=sunrise algo.bootstrap=min algo.bootstrap_subset=2": r"confidence_temperature=.*need all members",
    "algo=hl_gauss algo.loss=huber": r"algo.loss=huber: distributions are learned by cross entropy",
    "algo=dqn algo.reset_layers=all": r"reset_layers=all: nothing is reset: write algo.reset_every=NUMBER",
    "algo=dqn network.layer_norm=batch": r"layer_norm=batch.*none or features or channels",
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_what_means_nothing_is_refused_in_one_line(overrides: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[overrides]) as refused:
        compose(*overrides.split())
    assert "\n" not in str(refused.value)


AS_PUBLISHED = {  # bootstrap, double, minibatch; the table of algorithms of the specification
    "dqn": ("mean", False, "independent"),
    "dqn_no_target": ("mean", False, "independent"),
    "double_dqn": ("mean", True, "independent"),
    "avg_dqn": ("mean", False, "independent"),
    "ens_dqn": ("mean", False, "shared"),
    "meanq": ("mean", False, "independent"),
    "meanq_no_target": ("mean", False, "independent"),
    "ebql": ("others", True, "shared"),
    "maxmin": ("min", False, "independent"),
    "bootstrapped_dqn": ("own", False, "independent"),
}


@pytest.mark.parametrize("name", AS_PUBLISHED)
def test_the_files_choose_the_published_rules(name: str) -> None:
    algo = algo_config(name)
    assert (algo.bootstrap, algo.double, algo.minibatch) == AS_PUBLISHED[name]
    assert algo.priorities == ("shared" if algo.minibatch == "shared" else "per_member")
    assert (algo.target_network is None) == name.endswith("no_target")
    assert (algo.ensemble_size == 1) == (name in ("dqn", "dqn_no_target", "double_dqn", "avg_dqn"))
    snapshot_count = algo.target_snapshots if algo.target_network else 1
    assert snapshot_count == (5 if name == "avg_dqn" else 1)


def test_ebql_needs_two_members() -> None:
    config = compose("algo=ebql", "env=chain")
    with pytest.raises(ValueError, match="needs at least 2 members"):
        check(dataclasses.replace(config, algo=dataclasses.replace(config.algo, ensemble_size=1)))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_terminal_target_is_the_reward(name: str) -> None:
    members = 3 if name in ("meanq", "meanq_no_target", "maxmin", "bootstrapped_dqn", "ens_dqn", "ebql") else 1
    algo = algo_config(name, ensemble_size=members, **ALGORITHMS[name])
    batch = make_batch(members if algo.minibatch == "independent" else 1)
    batch.discounts[:] = 0
    batch.next_states *= 1e6
    assert torch.equal(History(algo).agent.targets(batch)[0], batch.returns.expand(members, BATCH))


def target(returns: torch.Tensor, discounts: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    actions = next_actions(bootstrap_rule("mean"), q)
    return ScalarValue().target(bootstrap_rule("mean"), q, actions, returns, discounts)


@pytest.mark.parametrize(
    ("returns", "discounts"), [((2, 4), (2, 4, 1)), ((1, 4), (2, 4)), ((2, 4), (1, 4)), ((2, 4), ()), ((4,), (2, 4))]
)
def test_a_target_refuses_to_broadcast(returns: tuple, discounts: tuple) -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        target(torch.zeros(returns), torch.zeros(discounts), torch.zeros(3, 2, 4, 5))


def test_a_target_is_the_return_and_the_discounted_value() -> None:
    q = torch.tensor([[[[4.0, 1.0], [8.0, 9.0]]]])  # one member, one minibatch, two states, two actions
    assert target(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, 0.0]]), q).tolist() == [[3.0, 2.0]]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_gradient_flows_through_the_target(name: str) -> None:
    """The online weights' gradient is that of fixed targets, also where the same weights make the targets."""
    algo = algo_config(name, max_gradient_norm=1e9, **ALGORITHMS[name])
    history = History(algo)
    agent, network, members = history.agent, history.network, algo.ensemble_size
    batch = make_batch(members if algo.minibatch == "independent" else 1)
    y, _ = agent.targets(batch)
    assert not y.requires_grad
    weights = {n: p.clone().requires_grad_() for n, p in history.weights[-1].items()}
    loss = torch.zeros(())
    for k in range(members):
        row = k if algo.minibatch == "independent" else 0
        q = network({n: p[k : k + 1] for n, p in weights.items()}, batch.states[row])[0]
        taken = q[torch.arange(BATCH), batch.actions[row]]
        loss = loss + (batch.weights[row] * (y[k] - taken) ** 2).mean()
    loss.backward()
    agent.learn(batch)
    for parameter, expected in weights.items():
        torch.testing.assert_close(agent.gradients[parameter], expected.grad, rtol=1e-4, atol=1e-6)
    if agent.target is not None:
        assert all(not p.requires_grad for p in agent.target.values())


@pytest.mark.parametrize("loss", ["squared", "huber"])
@pytest.mark.parametrize("minibatch", ["independent", "shared"])
def test_learning_from_either_loss_is_that_of_a_loop(loss: str, minibatch: str) -> None:
    """A step's loss, gradients and errors, which are |y - Q| whatever the loss."""
    members = 2
    algo = algo_config("meanq", ensemble_size=members, minibatch=minibatch, loss=loss, max_gradient_norm=None)
    history = History(algo)
    agent, network = history.agent, history.network
    batch = make_batch(members if minibatch == "independent" else 1)
    batch.returns *= 2  # errors on both sides of 1
    y = torch.from_numpy(history.naive_targets(batch)).float()
    weights = {n: p.clone().requires_grad_() for n, p in history.weights[-1].items()}
    losses, errors = [], torch.zeros(members, BATCH)
    for k in range(members):
        row = k if minibatch == "independent" else 0
        q = network({n: p[k : k + 1] for n, p in weights.items()}, batch.states[row])[0]
        of_member = torch.zeros(())
        for b in range(BATCH):
            error = y[k, b] - q[b, batch.actions[row, b]]
            errors[k, b] = error.detach().abs()
            sample = error * error
            if loss == "huber":
                sample = sample / 2 if errors[k, b] <= 1 else (error if error > 0 else -error) - 0.5
            of_member = of_member + batch.weights[row, b] * sample / BATCH
        losses.append(of_member)
    torch.stack(losses).sum().backward()
    assert (errors < 1).sum() > 3 and (errors > 1).sum() > 3
    learned = agent.learn(batch)
    assert learned.loss.item() == pytest.approx(torch.stack(losses).mean().item(), rel=1e-4)
    for parameter, expected in weights.items():
        torch.testing.assert_close(agent.gradients[parameter], expected.grad, rtol=1e-4, atol=1e-6)
    expected_errors = errors if minibatch == "independent" else errors.mean(0, keepdim=True)
    torch.testing.assert_close(learned.errors, expected_errors, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [1, 3])
def test_lagging_weights_are_copies(count: int) -> None:
    """A gradient step leaves them alone, from the start and after an update, and only the oldest is dropped."""
    algo = algo_config("meanq", ensemble_size=2, learning_rate=0.1, target_snapshots=count)
    network = make_network()
    agent = make_agent(algo, network, random_params(network, 2, 0))
    newest_first = [agent.state_dict()["online"]] * count
    for seed in range(5):
        agent.learn(make_batch(2, seed))
        assert agent.target is not None
        for name, p in agent.target.items():
            assert torch.equal(p, torch.cat([weights[name] for weights in newest_first]))
            assert not torch.equal(agent.online[name], p[:2])
        agent.update_target()
        newest_first = [agent.state_dict()["online"], *newest_first][:count]
