"""Both forms of value against loops over members, samples and atoms."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from meanq.config.extensions import BOOTSTRAP_RULES
from meanq.learning.bootstrap import bootstrap_rule, next_actions, own
from meanq.learning.values import CategoricalValue, ScalarValue, make_value_form
from tests.helpers import algo_config

CPU = torch.device("cpu")
ACTIONS, BATCH = 4, 6
SUPPORTS = [(-10.0, 10.0, 51), (-2.0, 2.0, 51), (-100.0, 100.0, 21), (-1.0, 11.0, 7), (-3.5, -0.5, 11), (0.0, 1.0, 2)]
GAMMA = 0.99
TOLERANCE = 2e-5  # single precision against double


def naive_support(value_min: float, value_max: float, atoms: int) -> np.ndarray:
    return np.array([value_min + i * (value_max - value_min) / (atoms - 1) for i in range(atoms)])


def naive_project(support: np.ndarray, reward: float, discount: float, distribution: np.ndarray) -> np.ndarray:
    """Algorithm 1 of Bellemare et al. 2017, for one sample."""
    atoms = len(support)
    spacing = (support[-1] - support[0]) / (atoms - 1)
    projected = np.zeros(atoms)
    for z, mass in zip(support, distribution, strict=True):
        moved = min(max(reward + discount * z, support[0]), support[-1])
        place = min(max((moved - support[0]) / spacing, 0), atoms - 1)
        low, high = int(np.floor(place)), int(np.ceil(place))
        if low == high:
            projected[low] += mass
        else:
            projected[low] += mass * (high - place)
            projected[high] += mass * (place - low)
    return projected


def random_distributions(generator: np.random.Generator, *shape: int) -> Tensor:
    """Some nearly flat, some nearly a single atom."""
    logits = generator.normal(size=shape) * generator.choice([0.1, 1.0, 10.0], size=(*shape[:-1], 1))
    return torch.from_numpy(logits).to(torch.float32).softmax(-1)


def project_one(form: CategoricalValue, reward: float, discount: float, distribution: Tensor) -> Tensor:
    returns, discounts = torch.tensor([[[reward]], [[discount]]], dtype=torch.float32)
    return form.project(returns, discounts, distribution[None, None])[0, 0]


# Projection


@pytest.mark.parametrize("support", SUPPORTS)
def test_the_projection_is_that_of_a_loop(support: tuple[float, float, int]) -> None:
    form, z = CategoricalValue(*support, CPU), naive_support(*support)
    np.testing.assert_allclose(form.support.numpy(), z, rtol=1e-6, atol=1e-6 * abs(z).max())
    generator = np.random.default_rng(0)
    rows, size = 3, 40
    # From well inside to outside of the support.
    returns = generator.uniform(1.5 * z[0] - 0.5 * z[-1], 1.5 * z[-1] - 0.5 * z[0], size=(rows, size))
    discounts = generator.choice([0, GAMMA, GAMMA**3, GAMMA**20, 0.5, 1], size=(rows, size))
    distribution = random_distributions(generator, rows, size, len(z))
    projected = form.project(
        torch.from_numpy(returns).to(torch.float32), torch.from_numpy(discounts).to(torch.float32), distribution
    ).numpy()
    for r in range(rows):
        for b in range(size):
            expected = naive_project(z, returns[r, b], discounts[r, b], distribution[r, b].double().numpy())
            np.testing.assert_allclose(projected[r, b], expected, atol=TOLERANCE)
    np.testing.assert_allclose(projected.sum(-1), 1, atol=TOLERANCE)
    assert (projected >= 0).all()


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(
    low=st.floats(-20, 20, width=32, allow_subnormal=False),
    width=st.floats(0.5, 40, width=32, allow_subnormal=False),
    atoms=st.integers(2, 12),
    reward=st.floats(-80, 80, width=32, allow_subnormal=False),
    discount=st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1, width=32, allow_subnormal=False)),
    seed=st.integers(0, 1000),
)
def test_the_projection_of_any_sample(
    low: float, width: float, atoms: int, reward: float, discount: float, seed: int
) -> None:
    form, z = CategoricalValue(low, low + width, atoms, CPU), naive_support(low, low + width, atoms)
    distribution = random_distributions(np.random.default_rng(seed), atoms)
    projected = project_one(form, reward, discount, distribution).numpy()
    expected = naive_project(z, reward, discount, distribution.double().numpy())
    rounding = 1e-6 * (abs(z).max() + 1) / (z[1] - z[0])
    np.testing.assert_allclose(projected, expected, atol=TOLERANCE + 3 * rounding)


@pytest.mark.parametrize("shift", [-25, -3, -1, 0, 1, 4, 25])
def test_a_move_by_whole_spacings_moves_the_atoms(shift: int) -> None:
    """Nothing is lost or spread where every moved atom lies on another one."""
    for value_min, value_max, spacing in ((-10.0, 10.0, 1.0), (-2.0, 3.0, 0.25)):
        form = CategoricalValue(value_min, value_max, 21, CPU)
        distribution = random_distributions(np.random.default_rng(shift % 7), 21)
        expected = torch.zeros(21)
        for i, mass in enumerate(distribution):
            expected[min(max(i + shift, 0), 20)] += mass
        torch.testing.assert_close(
            project_one(form, shift * spacing, 1.0, distribution), expected, rtol=1e-6, atol=1e-7
        )


@pytest.mark.parametrize("support", SUPPORTS)
def test_a_terminal_return_on_an_atom_is_that_atom(support: tuple[float, float, int]) -> None:
    form = CategoricalValue(*support, CPU)
    distribution = random_distributions(np.random.default_rng(1), support[2])
    for i, z in enumerate(form.support.tolist()):
        expected = torch.zeros(support[2])
        expected[i] = 1
        torch.testing.assert_close(project_one(form, z, 0.0, distribution), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("support", SUPPORTS)
def test_a_terminal_return_between_atoms_is_shared_by_its_neighbours(support: tuple[float, float, int]) -> None:
    form, z = CategoricalValue(*support, CPU), naive_support(*support)
    distribution = random_distributions(np.random.default_rng(1), len(z))
    for i in range(len(z) - 1):
        expected = torch.zeros(len(z))
        expected[i], expected[i + 1] = 0.75, 0.25
        projected = project_one(form, 0.75 * z[i] + 0.25 * z[i + 1], 0.0, distribution)
        torch.testing.assert_close(projected, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("discount", [0.0, GAMMA**3, 1.0])
@pytest.mark.parametrize("support", SUPPORTS)
def test_mass_outside_the_support_goes_to_its_end(support: tuple[float, float, int], discount: float) -> None:
    form = CategoricalValue(*support, CPU)
    distribution = random_distributions(np.random.default_rng(2), support[2])
    for reward, end in ((-1e4, 0), (1e4, -1)):
        expected = torch.zeros(support[2])
        expected[end] = 1
        torch.testing.assert_close(project_one(form, reward, discount, distribution), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("support", SUPPORTS)
def test_the_mean_is_kept_where_nothing_is_clipped(support: tuple[float, float, int]) -> None:
    form = CategoricalValue(*support, CPU)
    generator = np.random.default_rng(3)
    discounts = torch.from_numpy(generator.choice([0, 0.5, GAMMA**20, GAMMA], size=(2, 30))).to(torch.float32)
    # Both ends stay inside: min <= r + discount * min and r + discount * max <= max.
    returns = (1 - discounts) * torch.from_numpy(generator.uniform(*support[:2], size=(2, 30))).to(torch.float32)
    distribution = random_distributions(generator, 2, 30, support[2])
    mean = form.expectation(form.project(returns, discounts, distribution).log())
    expected = returns + discounts * (distribution * form.support).sum(-1)
    torch.testing.assert_close(mean, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("returns", "discounts", "distribution"),
    [
        ((2, 6), (2, 6), (1, 6, 5)),
        ((1, 6), (2, 6), (2, 6, 5)),
        ((2, 6), (6,), (2, 6, 5)),
        ((2, 6), (2, 6), (2, 6, 5, 5)),
    ],
)
def test_a_projection_refuses_to_broadcast(returns: tuple, discounts: tuple, distribution: tuple) -> None:
    form = CategoricalValue(-1, 1, 5, CPU)
    with pytest.raises(ValueError, match="shapes differ"):
        form.project(torch.zeros(returns), torch.zeros(discounts), torch.zeros(distribution))


# Outputs


def random_outputs(generator: np.random.Generator, *shape: int) -> Tensor:
    return random_distributions(generator, *shape).log()


def test_an_expectation_is_the_sum_over_atoms() -> None:
    form = CategoricalValue(-1, 3, 5, CPU)
    outputs = random_outputs(np.random.default_rng(0), 2, 3, BATCH, ACTIONS, 5)
    expected = torch.zeros(2, 3, BATCH, ACTIONS)
    for i, z in enumerate((-1, 0, 1, 2, 3)):
        expected += z * outputs[..., i].exp()
    torch.testing.assert_close(form.expectation(outputs), expected)
    certain = torch.tensor([[0.0, 0, 0, 1, 0], [0, 0.5, 0, 0, 0.5]]).log()  # atoms of no probability add nothing
    assert form.expectation(certain).tolist() == [2, 1.5]


def test_outputs_at_actions_are_broadcast_over_leading_dimensions() -> None:
    generator = np.random.default_rng(0)
    categorical, scalar = CategoricalValue(-1, 1, 5, CPU), ScalarValue()
    outputs = random_outputs(generator, 2, 3, BATCH, ACTIONS, 5)
    full = torch.from_numpy(generator.integers(ACTIONS, size=(2, 3, BATCH)))
    for actions in (full, full[0], full[0, 0]):
        distributions, values = categorical.at(outputs, actions), scalar.at(outputs[..., 0], actions)
        assert distributions.shape == (2, 3, BATCH, 5) and values.shape == (2, 3, BATCH)
        for e in range(2):
            for r in range(3):
                for b in range(BATCH):
                    action = actions.expand(2, 3, BATCH)[e, r, b]
                    assert torch.equal(distributions[e, r, b], outputs[e, r, b, action])
                    assert torch.equal(values[e, r, b], outputs[e, r, b, action, 0])


def test_the_configuration_names_the_form() -> None:
    form = make_value_form(algo_config("rainbow", value_min=-3.0, value_max=1.0, atoms=5), CPU)
    assert isinstance(form, CategoricalValue)
    assert form.support.tolist() == [-3, -2, -1, 0, 1]
    assert isinstance(make_value_form(algo_config("dqn"), CPU), ScalarValue)


# Losses


def test_the_categorical_loss_is_the_cross_entropy() -> None:
    form, generator = CategoricalValue(-1, 1, 5, CPU), np.random.default_rng(0)
    logits = torch.from_numpy(generator.normal(size=(3, BATCH, 5))).to(torch.float32).requires_grad_()
    targets = random_distributions(generator, 3, BATCH, 5)
    losses, errors = form.losses(logits.log_softmax(-1), targets)
    assert losses.shape == errors.shape == (3, BATCH)
    for k in range(3):
        for b in range(BATCH):
            weights = np.exp(logits[k, b].detach().double().numpy())
            expected = -sum(float(t) * np.log(w / weights.sum()) for t, w in zip(targets[k, b], weights, strict=True))
            assert losses[k, b].item() == pytest.approx(expected, rel=1e-5)
    assert torch.equal(errors, losses)
    assert losses.requires_grad and not errors.requires_grad
    losses.sum().backward()
    torch.testing.assert_close(logits.grad, logits.detach().softmax(-1) - targets)


def test_the_scalar_loss_is_the_squared_error() -> None:
    taken, targets = torch.tensor([[1.0, 2.0, -1.0]], requires_grad=True), torch.tensor([[4.0, 1.5, -1.0]])
    losses, errors = ScalarValue().losses(taken, targets)
    assert losses.tolist() == [[9, 0.25, 0]]
    assert errors.tolist() == [[3, 0.5, 0]]
    assert losses.requires_grad and not errors.requires_grad
    losses.sum().backward()
    assert taken.grad is not None and taken.grad.tolist() == [[-6, 1, 0]]


def naive_huber(error: float) -> tuple[float, float]:
    """The loss of target - taken, and its derivative by taken."""
    if abs(error) <= 1:
        return error * error / 2, -error
    return abs(error) - 0.5, -1.0 if error > 0 else 1.0


def test_the_huber_loss_is_linear_beyond_an_error_of_one() -> None:
    form = make_value_form(algo_config("dqn", loss="huber"), CPU)
    errors = [0.0, 0.25, -0.5, 0.99, -0.99, 1.0, -1.0, 1.01, -1.01, 3.0, -100.0]
    taken = torch.linspace(-2, 2, 11)[None].expand(2, 11).clone().requires_grad_()
    losses, found = form.losses(taken, taken.detach() + torch.tensor([errors, [-e for e in errors]]))
    losses.sum().backward()
    assert taken.grad is not None and not found.requires_grad
    for k, sign in enumerate((1, -1)):
        for b, error in enumerate(errors):
            loss, slope = naive_huber(sign * error)
            assert losses[k, b].item() == pytest.approx(loss, rel=1e-4, abs=1e-6)
            assert taken.grad[k, b].item() == pytest.approx(slope, rel=1e-4, abs=1e-6)
            assert found[k, b].item() == pytest.approx(abs(error), rel=1e-5, abs=1e-6)  # the priority's


def test_both_losses_have_the_same_errors() -> None:
    generator = np.random.default_rng(0)
    taken, targets = (torch.from_numpy(generator.normal(scale=2, size=(3, BATCH))) for _ in range(2))
    (squared, error), (huber, same_error) = (
        make_value_form(algo_config("dqn", loss=loss), CPU).losses(taken, targets) for loss in ("squared", "huber")
    )
    assert torch.equal(error, same_error) and torch.equal(squared, (targets - taken) ** 2)
    assert not torch.isclose(squared, huber).any()
    assert algo_config("dqn").loss == "squared"


@pytest.mark.parametrize(
    ("taken", "targets"), [((2, 6), (1, 6)), ((2, 6), (6,)), ((2, 6), (2, 6, 1)), ((2, 1), (2, 6))]
)
def test_losses_refuse_to_broadcast(taken: tuple, targets: tuple) -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        ScalarValue().losses(torch.zeros(taken), torch.zeros(targets))
    with pytest.raises(ValueError, match="shapes differ"):
        CategoricalValue(-1, 1, 5, CPU).losses(torch.zeros(*taken, 5), torch.zeros(*targets, 5))


# Targets


def naive_action(rule: str, q: np.ndarray, k: int) -> int:
    """What member k's target values, by the values q [K, A] of one next state."""
    if rule == "mean":
        return int(q.mean(0).argmax())
    if rule == "min":
        return int(q.min(0).argmax())
    if rule in ("own", "others"):
        return int(q[k].argmax())
    raise NotImplementedError(f"write down what {rule} means")


def naive_distribution(rule: str, p: np.ndarray, support: np.ndarray, k: int) -> np.ndarray:
    """The distribution in member k's target, of all members' distributions p [K, Z] at the chosen action."""
    if rule == "mean":
        return sum(p) / len(p)
    if rule == "own":
        return p[k]
    if rule == "others":
        return sum(p[j] for j in range(len(p)) if j != k) / (len(p) - 1)
    if rule == "min":
        return min(p, key=lambda member: sum(support * member))
    raise NotImplementedError(f"write down what {rule} means")


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize(
    ("rule", "members"),
    [
        (name, k)
        for name in BOOTSTRAP_RULES
        for k in (1, 2, 5)
        if k >= bootstrap_rule(name).min_members and bootstrap_rule(name).combine
    ],
)
def test_targets_of_every_rule(rule: str, members: int, double: bool) -> None:
    support = (-1.0, 3.0, 7)
    form, z = CategoricalValue(*support, CPU), naive_support(*support)
    generator = np.random.default_rng(members)
    outputs = random_outputs(generator, members, members, BATCH, ACTIONS, 7)  # of members, for minibatches
    choosing = random_outputs(generator, members, members, BATCH, ACTIONS, 7) if double else outputs
    returns = torch.from_numpy(generator.normal(size=(members, BATCH))).to(torch.float32)
    discounts = torch.from_numpy(generator.choice([0, GAMMA, GAMMA**3], size=(members, BATCH))).to(torch.float32)
    p, p_choosing = outputs.double().exp().numpy(), choosing.double().exp().numpy()

    def actual(outputs: Tensor, choosing: Tensor) -> Tensor:
        actions = next_actions(bootstrap_rule(rule), form.expectation(choosing))
        return form.target(bootstrap_rule(rule), outputs, actions, returns, discounts)

    target = actual(outputs, choosing)
    assert target.shape == (members, BATCH, 7)
    for r in range(members):
        for b in range(BATCH):
            action = naive_action(rule, p_choosing[:, r, b] @ z, r)
            distribution = naive_distribution(rule, p[:, r, b, action], z, r)
            expected = naive_project(z, returns[r, b].item(), discounts[r, b].item(), distribution)
            np.testing.assert_allclose(target[r, b].numpy(), expected, atol=TOLERANCE)
    if not bootstrap_rule(rule).all_members:  # the learning member's evaluation is enough
        alone = actual(own(outputs).unsqueeze(0), own(choosing).unsqueeze(0))
        assert torch.equal(alone, target)


@pytest.mark.parametrize("rule", ["mean", "others", "own"])
def test_the_expected_target_is_that_of_expected_values(rule: str) -> None:
    """Averages of distributions have the averages of values: the rule is the scalar one where nothing is clipped."""
    form, generator = CategoricalValue(-10, 10, 51, CPU), np.random.default_rng(0)
    outputs = random_outputs(generator, 3, 3, BATCH, ACTIONS, 51)
    q = form.expectation(outputs)
    discounts = torch.full((3, BATCH), GAMMA)
    returns = torch.from_numpy(generator.uniform(-0.1, 0.1, size=(3, BATCH))).to(torch.float32)
    actions = next_actions(bootstrap_rule(rule), q)
    mean = form.expectation(form.target(bootstrap_rule(rule), outputs, actions, returns, discounts).log())
    torch.testing.assert_close(
        mean, ScalarValue().target(bootstrap_rule(rule), q, actions, returns, discounts), rtol=1e-4, atol=1e-4
    )
    if rule == "mean":
        torch.testing.assert_close(mean, returns + GAMMA * q.mean(0).max(-1).values, rtol=1e-4, atol=1e-4)


def test_a_terminal_target_does_not_depend_on_the_next_state() -> None:
    form, generator = CategoricalValue(-1, 1, 5, CPU), np.random.default_rng(0)
    returns, discounts = torch.linspace(-2, 2, BATCH)[None], torch.zeros(1, BATCH)
    actions = torch.zeros(1, BATCH, dtype=torch.int64)
    target, other = (
        form.target(
            bootstrap_rule("mean"), random_outputs(generator, 1, 1, BATCH, ACTIONS, 5), actions, returns, discounts
        )
        for _ in range(2)
    )
    torch.testing.assert_close(target, other)
    mean = form.expectation(target.log())
    torch.testing.assert_close(mean, returns.clamp(-1, 1), rtol=0, atol=1e-6)
