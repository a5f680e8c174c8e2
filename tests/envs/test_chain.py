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
    return float(np.abs(q - run.loop.env.all_true_q(DISCOUNT)).mean())


@pytest.mark.parametrize("algo", slow_but(ALGORITHMS, "dqn", "avg_dqn", "meanq"))
def test_it_learns_the_true_values(algo: str, tmp_path: Path) -> None:
    # Returns over several steps contain the explorer's mistakes, so their expectation is not the true Q.
    changes = ["algo.multi_step=1"]
    if algo.endswith("more_updates"):
        changes.append("total_steps=1200")  # of five updates each
    if algo == "drq_eps":
        changes += ["algo.random_shift=0", "algo.random_intensity=0"]  # which are for images
    assert chain_error(tmp_path, f"algo={algo}", *changes) < TOLERANCE


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
