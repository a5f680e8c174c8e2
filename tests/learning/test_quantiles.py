"""QR-DQN: quantile values against slow loops, over any number of members."""

from pathlib import Path

import numpy as np
import pytest
import torch

from meanq.learning.bootstrap import bootstrap_rule
from meanq.learning.values import QuantileValue, make_value_form
from tests.helpers import algo_config, compose
from tests.short_runs import SHORT, train, weights

CPU = torch.device("cpu")
ACTIONS, BATCH, QUANTILES = 4, 3, 7


def slow_loss(taken: np.ndarray, targets: np.ndarray) -> float:
    """Equation 10 and Algorithm 1 of Dabney et al. 2018 with kappa = 1, for one sample."""
    count, total = len(taken), 0.0
    for i in range(count):
        tau = (2 * i + 1) / (2 * count)
        for target in targets:
            error = target - taken[i]
            huber = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
            total += abs(tau - (1.0 if error < 0 else 0.0)) * huber / count
    return total


@pytest.mark.parametrize("members", [1, 5])
def test_losses_and_gradients_are_those_of_loops(members: int) -> None:
    generator = torch.Generator().manual_seed(members)
    taken, targets = (2 * torch.randn(members, BATCH, QUANTILES, generator=generator).double() for _ in range(2))
    taken.requires_grad_()
    losses, errors = QuantileValue(QUANTILES, CPU).losses(taken, targets)
    assert torch.equal(losses, errors) and not errors.requires_grad
    (gradient,) = torch.autograd.grad(losses.sum(), taken)
    for k in range(members):
        for b in range(BATCH):
            row, goal = taken[k, b].detach().numpy(), targets[k, b].numpy()
            assert losses[k, b].item() == pytest.approx(slow_loss(row, goal), rel=1e-6)
            for i in range(QUANTILES):
                step = np.zeros(QUANTILES)
                step[i] = 1e-6
                slope = (slow_loss(row + step, goal) - slow_loss(row - step, goal)) / 2e-6
                assert gradient[k, b, i].item() == pytest.approx(slope, abs=1e-5)


@pytest.mark.parametrize("rule", ["mean", "own", "others", "min"])
@pytest.mark.parametrize("members", [1, 5])
def test_members_are_combined_quantile_by_quantile(rule: str, members: int) -> None:
    if rule == "others" and members == 1:
        pytest.skip("needs two members")
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(members, members, BATCH, ACTIONS, QUANTILES, generator=generator)
    if rule == "own":
        outputs = outputs.diagonal(dim1=0, dim2=1).movedim(-1, 0).unsqueeze(0)  # only the learner evaluates
    actions = torch.randint(ACTIONS, (members, BATCH), generator=generator)
    returns, discounts = torch.randn(members, BATCH, generator=generator), torch.full((members, BATCH), 0.9)
    discounts[0, 0] = 0
    found = QuantileValue(QUANTILES, CPU).target(bootstrap_rule(rule), outputs, actions, returns, discounts)
    for r in range(members):
        for b in range(BATCH):
            each = [outputs[e, r, b, actions[r, b]].numpy() for e in range(len(outputs))]
            for i in range(QUANTILES):
                if rule == "mean":
                    quantile = sum(row[i] for row in each) / members
                elif rule == "own":
                    quantile = each[0][i]
                elif rule == "others":
                    quantile = sum(row[i] for e, row in enumerate(each) if e != r) / (members - 1)
                else:
                    quantile = min(each, key=lambda row: row.mean())[i]
                wanted = returns[r, b].item() + discounts[r, b].item() * quantile
                assert found[r, b, i].item() == pytest.approx(wanted, abs=1e-5)


def test_expectation_and_spread_are_over_quantiles() -> None:
    form = QuantileValue(QUANTILES, CPU)
    outputs = torch.randn(2, BATCH, ACTIONS, QUANTILES, generator=torch.Generator().manual_seed(0))
    assert np.allclose(form.expectation(outputs), outputs.numpy().mean(-1), atol=1e-6)
    assert np.allclose(form.spread(outputs), outputs.numpy().std(-1), atol=1e-6)
    assert torch.allclose(form.average(outputs, 0), outputs.mean(0))


def test_regression_finds_the_quantiles_of_a_sample() -> None:
    """With errors small beside kappa = 1 the loss is that of expectiles, so samples are spread widely."""
    sample = torch.tensor(np.random.default_rng(0).normal(0, 100, 2001))
    form, theta = QuantileValue(5, CPU), torch.zeros(1, 1, 5, dtype=torch.float64, requires_grad=True)
    for step in range(1500):
        taken = theta.expand(1, len(sample), 5)
        loss = form.losses(taken, sample[None, :, None].expand(1, -1, 5))[0].mean()
        (gradient,) = torch.autograd.grad(loss, theta)
        with torch.no_grad():
            theta -= 300 / (1 + step / 30) * gradient
    wanted = np.quantile(sample, [0.1, 0.3, 0.5, 0.7, 0.9])
    assert np.abs(theta.detach().numpy().ravel() - wanted).max() < 5


def test_the_configuration_says_200_quantiles_and_their_loss_is_fixed() -> None:
    algo = compose("algo=qr_dqn").algo
    form = make_value_form(algo, CPU)
    assert isinstance(form, QuantileValue) and form.atoms == algo.quantiles == 200
    assert make_value_form(algo_config("dqn", value="quantile"), CPU).atoms == 200
    with pytest.raises(ValueError, match=r"algo\.loss=huber: distributions are learned by quantile regression"):
        compose("algo=qr_dqn", "algo.loss=huber")


@pytest.mark.parametrize("members", [1, 5])
def test_it_trains_and_writes_one_value_per_member_and_action(members: int, tmp_path: Path) -> None:
    run = train(tmp_path, "algo=qr_dqn", f"algo.ensemble_size={members}", "algo.quantiles=20", *SHORT)
    actions = run.loop.env.num_actions
    assert np.load(run.directory / "probes.npz")["q"].shape[2:] == (members, actions)
    assert weights(run.directory)["value.bias"].shape == (members, 1, actions * 20)
    assert "value_spread" in (run.directory / "training.csv").read_text().partition("\n")[0]


@pytest.mark.slow
def test_it_learns_minatar_breakout(tmp_path: Path) -> None:
    """Measured with this seed after 20,000 interactions: a return of 2.9, where random play gets 0.69."""
    fields = ("total_steps=20000", "algo.epsilon.steps=5000", "algo.first_update=1000", "evaluation.every=20000")
    run = train(tmp_path, "algo=qr_dqn", "env=minatar/breakout", *fields, "threads=1", "compile=false")
    random_score = run.config.env.random_score
    assert random_score is not None
    assert np.mean([episode.episode_return for episode in run.last_evaluation]) > 2 * random_score
