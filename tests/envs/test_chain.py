"""Every algorithm learns the chain MDP's true Q, to within a stated tolerance, and so does a rule of one's own."""

from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from meanq.config.schema import CONFIG_DIR
from meanq.envs.chain import Chain
from tests.helpers import slow_but
from tests.short_runs import train

ALGORITHMS = sorted(path.stem for path in (CONFIG_DIR / "algo").glob("[a-z]*.yaml"))

# Mean absolute error over all cells and both actions. With this discount true values lie between 0.3 and 1, and
# a constant guess at their mean is off by 0.17. Most methods end within 0.03; Maxmin, which is pessimistic, at 0.05.
DISCOUNT = 0.9
TOLERANCE = 0.06


def chain_error(root: Path, *overrides: str) -> float:
    run = train(root, "env=chain", f"algo.discount={DISCOUNT}", *overrides, "evaluation.episodes=1", "threads=1")
    assert isinstance(run.loop.env, Chain)
    q = run.loop.agent.values(run.loop.env.all_frames()).mean(0)
    omega = run.config.algo.mellowmax_omega
    truth = run.loop.env.all_true_q(DISCOUNT) if omega is None else mellowmax_q(omega)
    return float(np.abs(q - truth).mean())


def mellowmax_q(omega: float) -> np.ndarray:
    """The fixed point of Q = r + discount * mellowmax Q, on the chain of conf/env/chain.yaml."""
    length, slip = 8, 0.1
    q = np.zeros((length + 1, 2))  # the last cell ends the episode
    for _ in range(500):
        value = np.log(np.exp(omega * q).mean(1)) / omega
        value[length] = 0
        for cell in range(length):
            right = (cell + 1 == length) + DISCOUNT * value[cell + 1]
            left = DISCOUNT * value[max(cell - 1, 0)]
            q[cell] = (1 - slip) * right + slip * left, (1 - slip) * left + slip * right
    return q[:length]


@pytest.mark.parametrize("algo", slow_but(ALGORITHMS, "dqn", "avg_dqn", "meanq"))
def test_it_learns_the_true_values(algo: str, tmp_path: Path) -> None:
    # Returns over several steps contain the explorer's mistakes, so their expectation is not the true Q.
    changes = ["algo.multi_step=1"]
    if algo.endswith("more_updates"):
        changes.append("total_steps=1200")  # of five updates each
    if algo == "drq_eps":
        changes += ["algo.random_shift=0", "algo.random_intensity=0"]  # which are for images
    assert chain_error(tmp_path, f"algo={algo}", *changes) < TOLERANCE


# Methods that are to do without a target network. `subset_min` needs two members.
RIVALS = {
    "mellowmax": ("algo=mellowmax",),
    "hl_gauss": ("algo=hl_gauss",),
    "subset_min": ("algo=subset_min",),
    "features": ("algo=dqn", "network.layer_norm=features"),
    "channels": ("algo=dqn", "network.layer_norm=channels"),
    "reset last": ("algo=dqn", "algo.reset_every=1000"),
    "reset all": ("algo=dqn", "algo.reset_every=1000", "algo.reset_layers=all"),
}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["50", "null"])
@pytest.mark.parametrize(
    ("name", "members"), [(name, k) for name in RIVALS for k in (1, 5) if (name, k) != ("subset_min", 1)]
)
def test_rivals_learn_the_true_values(name: str, members: int, target: str, tmp_path: Path) -> None:
    fields = (*RIVALS[name], f"algo.ensemble_size={members}", f"algo.target_network={target}")
    assert chain_error(tmp_path, *fields) < TOLERANCE


def test_mellowmax_has_another_fixed_point() -> None:
    """It is below the true values, which it reaches for large omega."""
    truth = Chain("chain", np.random.default_rng(0)).all_true_q(DISCOUNT)
    assert np.abs(mellowmax_q(500.0) - truth).mean() < 0.01
    assert np.abs(mellowmax_q(25.0) - truth).mean() > TOLERANCE / 2 and (mellowmax_q(25.0) < truth).all()


def test_the_tolerance_means_something(tmp_path: Path) -> None:
    truth = Chain("chain", np.random.default_rng(0)).all_true_q(DISCOUNT)
    assert np.abs(truth - truth.mean()).mean() > 2 * TOLERANCE
    assert chain_error(tmp_path, "total_steps=100") > 5 * TOLERANCE


def lower_half(q: Tensor) -> Tensor:
    """A researcher's own rule: the mean of the lower half of the members' values."""
    return q.sort(0).values[: (len(q) + 1) // 2].mean(0)


@pytest.mark.slow
def test_a_rule_named_by_its_import_path_learns_too(tmp_path: Path) -> None:
    assert chain_error(tmp_path, "algo=meanq", "algo.bootstrap=tests.envs.test_chain.lower_half") < TOLERANCE
