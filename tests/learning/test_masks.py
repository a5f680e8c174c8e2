"""Bernoulli masks: which members learn from a transition, drawn once when it is stored."""

import copy
import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from meanq.config.schema import AlgoConfig, NetworkConfig
from meanq.learning.build import make_mask
from meanq.learning.networks import Params, QNetwork
from meanq.replay.buffer import Batch, BernoulliMask, Replay
from tests.helpers import algo_config, compose, make_agent, random_params
from tests.short_runs import make_run

FEATURES = 3


@dataclass
class RecordedMask(BernoulliMask):
    """Remembers what it drew: the n-th mask belongs to the n-th transition."""

    drawn: list[np.ndarray] = field(default_factory=list)

    def draw(self) -> np.ndarray:
        self.drawn.append(super().draw().copy())
        return self.drawn[-1].copy()


def make_replay(capacity: int, mask: BernoulliMask | None, **changes: Any) -> Replay:
    arguments: dict[str, Any] = {
        "capacity": capacity,
        "frame_shape": (FEATURES,),
        "frame_dtype": np.dtype(np.float32),
        "stack": 1,
        "multi_step": 1,
        "discount": 0.9,
        "priority_trees": 1,
        "prioritized": True,
        "priority_exponent": 0.5,
        "generator": np.random.default_rng(3),
        "device": torch.device("cpu"),
        "mask": mask,
    }
    return Replay(**arguments | changes)


def store(replay: Replay, numbers: range) -> None:
    """Transitions whose action is their number; some end an episode. An episode must have begun."""
    frame = np.zeros(FEATURES, dtype=np.float32)
    for number in numbers:
        terminal, truncated = number % 7 == 6, number % 11 == 10
        replay.append(number, 0.0, frame, terminal=terminal, truncated=truncated)
        if terminal or truncated:
            replay.start(frame)


def started(replay: Replay) -> Replay:
    replay.start(np.zeros(FEATURES, dtype=np.float32))
    return replay


# In the replay


@pytest.mark.parametrize(("stack", "multi_step"), [(1, 1), (3, 1), (2, 4)])
@pytest.mark.parametrize(("members", "trees"), [(1, 1), (3, 1), (3, 3)])
def test_a_transition_keeps_its_mask_until_it_is_overwritten(
    members: int, trees: int, stack: int, multi_step: int
) -> None:
    """Drawn after every step, as one minibatch that is shared and as one of each member, by changing priorities."""
    mask = RecordedMask(members, 0.5, np.random.default_rng(members))
    replay = started(make_replay(8, mask, priority_trees=trees, stack=stack, multi_step=multi_step))
    generator, size, seen, rows_differ = np.random.default_rng(1), 12, set(), False
    for number in range(50):
        store(replay, range(number, number + 1))
        assert len(mask.drawn) == number + 1
        if len(replay) == 0:
            continue
        for rows in {1, members} if trees == 1 else {members}:
            batch = replay.sample(rows, size, 0.4)
            assert batch.masks is not None
            assert batch.masks.shape == (members, size) and batch.masks.dtype == batch.weights.dtype
            for k in range(members):
                for b in range(size):
                    drawn = int(batch.actions[k if rows > 1 else 0, b])
                    assert batch.masks[k, b] == float(mask.drawn[drawn][k])
                    seen.add(drawn)
            replay.update_priorities(batch.indices, generator.random((rows, size)))
            rows_differ |= not torch.equal(batch.actions[0], batch.actions[-1])
    assert len(seen) > 45  # the ring was written over several times
    assert rows_differ == (members > 1)


def test_the_members_of_one_transition_have_different_masks() -> None:
    mask = RecordedMask(2, 0.5, np.random.default_rng(0))
    replay = started(make_replay(30, mask))
    store(replay, range(30))
    for rows in (1, 2):
        batch = replay.sample(rows, 60, 0.4)
        assert batch.masks is not None and not torch.equal(batch.masks[0], batch.masks[1])


@pytest.mark.parametrize("probability", [0.2, 0.5, 0.9])
def test_masks_have_the_probability_and_members_are_independent(probability: float) -> None:
    """Each of the 2^K combinations is as frequent as it should be, over 1,500 stored transitions."""
    members, count = 3, 1500
    replay = started(make_replay(2 * count, BernoulliMask(members, probability, np.random.default_rng(8))))
    store(replay, range(count))
    batch = replay.sample(1, 2 * count, 0.4)
    assert batch.masks is not None
    masks = {int(a): tuple(m) for a, m in zip(batch.actions[0], batch.masks.T.int().tolist(), strict=True)}
    assert len(masks) == count
    combinations = list(itertools.product((0, 1), repeat=members))
    observed = [sum(mask == one for mask in masks.values()) for one in combinations]
    expected = [count * probability ** sum(one) * (1 - probability) ** (members - sum(one)) for one in combinations]
    assert chisquare(observed, expected).pvalue > 1e-3
    in_order = np.array([masks[number] for number in range(count)])
    for k in range(members):  # nor does a mask depend on that of the transition before
        both = (in_order[1:, k] * in_order[:-1, k]).mean()
        assert abs(both - probability**2) < 0.06


@pytest.mark.parametrize("rows", [1, 3])
def test_without_a_mask_there_is_none(rows: int) -> None:
    replay = started(make_replay(8, None))
    store(replay, range(20))
    assert replay.sample(rows, 4, 0.4).masks is None


@pytest.mark.parametrize(("members", "rows"), [(3, 1), (3, 3)])
@pytest.mark.parametrize("steps", [5, 40])  # not full; wrapped
def test_state_round_trip(members: int, rows: int, steps: int) -> None:
    """A replay that takes the state of another has its masks and draws the same new ones."""

    def fresh(seed: int) -> Replay:
        mask = BernoulliMask(members, 0.5, np.random.default_rng(seed))
        return started(make_replay(16, mask, generator=np.random.default_rng(seed + 1)))

    def go_on(replay: Replay) -> list[Batch]:
        batches = []
        for first in range(steps, steps + 40, 4):
            batches.append(replay.sample(rows, 12, 0.4))
            store(replay, range(first, first + 4))
        return batches

    original = fresh(0)
    store(original, range(steps))
    state = original.state_dict()
    untouched = copy.deepcopy(state)
    numbers = original.held_frames()
    frames = original.get_frames(numbers)
    expected = go_on(original)
    for given in (state, untouched):  # the first: what the original did since is not in it
        other = fresh(77)
        store(other, range(9))
        other.load_state_dict(given)
        other.set_frames(numbers, frames)
        for batch, again in zip(expected, go_on(other), strict=True):
            assert torch.equal(batch.actions, again.actions)
            assert batch.masks is not None and again.masks is not None
            assert torch.equal(batch.masks, again.masks)


# In the learner

ACTIONS, BATCH, MEMBERS = 4, 10, 3


def make_algo(value: str, minibatch: str, members: int = MEMBERS) -> AlgoConfig:
    return algo_config(
        "meanq", ensemble_size=members, value=value, atoms=11, minibatch=minibatch, max_gradient_norm=1e9
    )


def make_network(value: str) -> QNetwork:
    config = NetworkConfig(name="tiny", convolutions=[], dense=[8], hidden=8)
    atoms = 11 if value == "categorical" else None
    return QNetwork((FEATURES,), ACTIONS, config, dueling=True, scale=1.0, atoms=atoms)


def make_batch(rows: int, masks: torch.Tensor | None = None) -> Batch:
    generator = torch.Generator().manual_seed(2)
    return Batch(
        indices=np.zeros((rows, BATCH), dtype=np.int64),
        states=torch.randn(rows, BATCH, FEATURES, generator=generator),
        actions=torch.randint(ACTIONS, (rows, BATCH), generator=generator),
        returns=torch.randn(rows, BATCH, generator=generator),
        discounts=torch.full((rows, BATCH), 0.9),
        next_states=torch.randn(rows, BATCH, FEATURES, generator=generator),
        weights=torch.rand(rows, BATCH, generator=generator) + 0.1,
        masks=masks,
    )


def some_masks() -> torch.Tensor:
    masks = (torch.rand(MEMBERS, BATCH, generator=torch.Generator().manual_seed(6)) < 0.5).float()
    assert 0 < masks.mean() < 1 and not torch.equal(masks[0], masks[1])
    return masks


def learn(value: str, minibatch: str, batch: Batch) -> tuple[Params, torch.Tensor, torch.Tensor]:
    """The gradients, the loss and the errors of one step from always the same weights."""
    network = make_network(value)
    agent = make_agent(make_algo(value, minibatch), network, random_params(network, MEMBERS, 1))
    learned = agent.learn(batch)
    gradients = agent.gradients
    assert len(gradients) == len(agent.online)
    return gradients, learned.loss, learned.errors


VALUES = pytest.mark.parametrize("value", ["scalar", "categorical"])
MINIBATCHES = pytest.mark.parametrize(("minibatch", "rows"), [("independent", MEMBERS), ("shared", 1)])


@VALUES
@MINIBATCHES
def test_a_masked_transition_has_no_weight_for_that_member(value: str, minibatch: str, rows: int) -> None:
    """One member at a time: its gradient is that of a batch whose masked samples have weight 0, the mean over B."""
    masks = some_masks()
    batch = make_batch(rows, masks)
    weights = batch.weights.clone()
    gradients, loss, errors = learn(value, minibatch, batch)
    _, _, errors_of_all = learn(value, minibatch, make_batch(rows))
    assert torch.equal(batch.weights, weights)
    assert torch.equal(errors, errors_of_all)  # priorities know nothing of masks
    losses = []
    for k in range(MEMBERS):
        unmasked = make_batch(rows)
        expected, *_ = learn(value, minibatch, replace(unmasked, weights=unmasked.weights * masks[k]))
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient[k], expected[name][k], rtol=1e-5, atol=1e-8)
            assert gradient[k].abs().max() > 0
        losses.append(naive_loss(value, minibatch, k, unmasked.weights[k if rows > 1 else 0] * masks[k]))
    torch.testing.assert_close(loss, torch.stack(losses).mean(), rtol=1e-5, atol=1e-7)


def naive_loss(value: str, minibatch: str, k: int, weights: torch.Tensor) -> torch.Tensor:
    """Member k's weighted loss, summed over samples and divided by all of them."""
    rows = MEMBERS if minibatch == "independent" else 1
    network, batch = make_network(value), make_batch(rows)
    agent = make_agent(make_algo(value, minibatch), network, random_params(network, MEMBERS, 1))
    targets, _ = agent.targets(batch)
    r = k if rows > 1 else 0
    outputs = network(agent.online, batch.states[r])[k].detach()
    total = torch.zeros(())
    for b in range(BATCH):
        taken = outputs[b, batch.actions[r, b]]
        loss = (targets[k, b] - taken) ** 2 if value == "scalar" else -(targets[k, b] * taken).sum()
        total = total + weights[b] * loss
    return total / BATCH


@VALUES
@MINIBATCHES
def test_what_is_masked_for_one_member_still_teaches_the_others(value: str, minibatch: str, rows: int) -> None:
    """Another return of a transition changes nothing for the member that is masked there, but for the others."""
    masks = torch.ones(MEMBERS, BATCH)
    masks[1, 4] = 0
    changed = make_batch(rows, masks)
    changed.returns[:, 4] += 0.7
    before, after = (learn(value, minibatch, batch)[0] for batch in (make_batch(rows, masks), changed))
    for name in before:
        assert torch.equal(before[name][1], after[name][1])
        for k in (0, 2):
            assert not torch.equal(before[name][k], after[name][k])


@MINIBATCHES
def test_a_mask_of_ones_is_no_mask(minibatch: str, rows: int) -> None:
    for value in ("scalar", "categorical"):
        masked, loss, _ = learn(value, minibatch, make_batch(rows, torch.ones(MEMBERS, BATCH)))
        plain, plain_loss, _ = learn(value, minibatch, make_batch(rows))
        assert torch.equal(loss, plain_loss)
        assert all(torch.equal(masked[name], plain[name]) for name in plain)


def test_a_member_masked_everywhere_does_not_learn() -> None:
    masks = torch.ones(MEMBERS, BATCH)
    masks[2] = 0
    gradients, _, _ = learn("scalar", "shared", make_batch(1, masks))
    assert all((gradient[2] == 0).all() and (gradient[:2] != 0).any() for gradient in gradients.values())


# In a run


def test_probability_one_stores_no_masks() -> None:
    assert make_mask(compose("algo=sunrise", "env=chain")) is None
    assert make_mask(compose("algo=sunrise", "env=chain", "algo.mask_probability=1")) is None


def test_a_seed_gives_its_masks() -> None:
    overrides = ("algo=sunrise", "env=chain", "algo.mask_probability=0.4", "algo.ensemble_size=7")
    drawn = []
    for seed in (0, 0, 1):
        mask = make_mask(compose(*overrides, f"seed={seed}"))
        assert mask is not None and (mask.members, mask.probability) == (7, 0.4)
        drawn.append(np.stack([mask.draw() for _ in range(20)]))
    assert drawn[0].shape == (20, 7)
    assert np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[0], drawn[2])


@pytest.mark.parametrize(
    "sharing", [(), ("algo.minibatch=independent", "algo.priorities=per_member")], ids=["shared", "independent"]
)
def test_a_run_learns_with_masks(sharing: tuple[str, ...], tmp_path: Path) -> None:
    run = make_run(
        tmp_path, "algo=sunrise", "env=chain", "algo.mask_probability=0.5", "algo.batch_size=8", "threads=1", *sharing
    )
    batches = []
    sample = run.loop.replay.sample

    def spy(rows: int, batch_size: int, importance_exponent: float) -> Batch:
        batches.append(sample(rows, batch_size, importance_exponent))
        return batches[-1]

    run.loop.replay.sample = spy  # type: ignore[method-assign]
    run.loop.start_game()
    for run.loop.step in range(1, 41):
        run.loop.interact()
    run.loop.learn()
    members = run.config.algo.ensemble_size
    (batch,) = batches
    assert batch.masks is not None and batch.masks.shape == (members, 8)
    assert len(batch.states) == (members if sharing else 1)
    assert set(batch.masks.flatten().tolist()) == {0.0, 1.0}
