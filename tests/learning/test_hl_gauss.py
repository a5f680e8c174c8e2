"""HL-Gauss against loops over samples and bins, from the formulas."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from meanq.learning.bootstrap import bootstrap_rule, next_actions
from meanq.learning.values import GaussianHistogramValue, ScalarValue, make_value_form
from tests.helpers import algo_config
from tests.short_runs import SHORT, train, weights

CPU = torch.device("cpu")
MIN, MAX, BINS, ACTIONS, BATCH = -2.0, 4.0, 12, 3, 7
WIDTH = (MAX - MIN) / BINS
CENTRES = [MIN + (i + 0.5) * WIDTH for i in range(BINS)]


def phi(x: float) -> float:
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


def slow_histogram(y: float) -> list[float]:
    """p_i, proportional to Phi((e_i+1 - y) / sigma) - Phi((e_i - y) / sigma) with sigma = 0.75 bin widths."""
    y = min(max(y, MIN), MAX)
    mass = []
    for i in range(BINS):
        low, high = MIN + i * WIDTH, MIN + (i + 1) * WIDTH
        mass.append(phi((high - y) / (0.75 * WIDTH)) - phi((low - y) / (0.75 * WIDTH)))
    return [m / sum(mass) for m in mass]


def form() -> GaussianHistogramValue:
    return GaussianHistogramValue(MIN, MAX, BINS, CPU)


def random_outputs(*shape: int, seed: int = 0) -> torch.Tensor:
    return (2 * torch.randn(*shape, BINS, generator=torch.Generator().manual_seed(seed))).log_softmax(-1)


@pytest.mark.parametrize("y", [-2.0, -1.99, -0.3, 0.0, 1.25, 3.9, 4.0, -50.0, 1e6])
def test_a_target_is_that_of_a_loop(y: float) -> None:
    found = form().histogram(torch.tensor([y]))[0]
    assert found.tolist() == pytest.approx(slow_histogram(y), abs=2e-6)
    assert found.sum().item() == pytest.approx(1, abs=1e-6) and found.min() >= 0


def test_far_from_the_ends_the_mean_is_the_target() -> None:
    """To 1e-2 of a bin: bins are wide beside sigma. Off by one bin, as centres easily are, would be off by a width."""
    y = torch.linspace(MIN + 3 * WIDTH, MAX - 3 * WIDTH, 101)
    assert (form().histogram(y) @ form().support - y).abs().max() < 1e-2 * WIDTH
    assert form().support.tolist() == pytest.approx(CENTRES)


def test_q_is_the_mean_of_bin_centres() -> None:
    outputs = random_outputs(2, BATCH, ACTIONS)
    q = form().expectation(outputs)
    for place in np.ndindex(2, BATCH, ACTIONS):
        slow = sum(math.exp(p) * centre for p, centre in zip(outputs[place].tolist(), CENTRES, strict=True))
        assert q[place].item() == pytest.approx(slow, abs=1e-5)


@pytest.mark.parametrize("rule", ["mean", "min", "own", "mellowmax"])
@pytest.mark.parametrize("members", [1, 5])
def test_targets_are_those_of_scalar_values(members: int, rule: str) -> None:
    chosen = bootstrap_rule(rule, algo_config("meanq", mellowmax_omega=2.0))
    outputs = random_outputs(members if chosen.all_members else 1, members, BATCH, ACTIONS)
    q = form().expectation(outputs)
    returns, discounts = torch.randn(members, BATCH), torch.full((members, BATCH), 0.9)
    discounts[:, 0] = 0
    actions = next_actions(chosen, q)
    targets = form().target(chosen, outputs, actions, returns, discounts)
    y = ScalarValue().target(chosen, q, actions, returns, discounts)
    for k in range(members):
        for b in range(BATCH):
            assert targets[k, b].tolist() == pytest.approx(slow_histogram(y[k, b].item()), abs=1e-5)


def test_losses_are_cross_entropies_and_errors_are_those_of_q() -> None:
    taken, y = random_outputs(2, BATCH, seed=1).requires_grad_(), 3 * torch.rand(2, BATCH)
    losses, errors = form().losses(taken, form().histogram(y))
    assert not errors.requires_grad
    for k in range(2):
        for b in range(BATCH):
            target = slow_histogram(y[k, b].item())
            entropy = -sum(p * log for p, log in zip(target, taken[k, b].tolist(), strict=True))
            assert losses[k, b].item() == pytest.approx(entropy, rel=1e-4)
            q, goal = (
                sum(p * centre for p, centre in zip(each, CENTRES, strict=True))
                for each in (taken[k, b].exp().tolist(), target)
            )
            assert errors[k, b].item() == pytest.approx(abs(goal - q), abs=1e-5)
    (gradient,) = torch.autograd.grad(losses.sum(), taken)
    torch.testing.assert_close(gradient, -form().histogram(y))


@pytest.mark.parametrize(("members", "target"), [(1, "40"), (5, "null")])
def test_it_trains(members: int, target: str, tmp_path: Path) -> None:
    made = make_value_form(algo_config("hl_gauss", atoms=7), CPU)
    assert isinstance(made, GaussianHistogramValue) and made.atoms == 7
    overrides = ("algo=hl_gauss", f"algo.ensemble_size={members}", f"algo.target_network={target}", "algo.atoms=11")
    run = train(tmp_path, *overrides, *SHORT)
    assert weights(run.directory)["value.bias"].shape == (members, 1, 11)
    q = np.load(run.directory / "probes.npz")["q"]
    assert q.shape[2] == members and np.abs(q).max() < 10, "between the outer centres"
