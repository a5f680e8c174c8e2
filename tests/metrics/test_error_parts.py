"""The error of a value, taken apart on random MDPs: overestimation (Jensen gap + bias of the mean) and policy loss."""

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meanq.envs.garnet import Garnet
from meanq.metrics import definitions
from meanq.metrics.registry import METRICS, RunData

DISCOUNT = 0.9


def random_case(id: int, runs: int, members: int, noise: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values [R, P, K, A] in single precision, exact values [R, P] of their greedy policies, and Q* [P, A]."""
    mdp = Garnet(str(id), np.random.default_rng(0), states=6, actions=3, branching=2).mdp()
    truth = mdp.optimal_q(DISCOUNT)
    errors = noise * np.random.default_rng(id).standard_normal((runs, 6, members, 3))
    q = (truth[:, None] + errors).astype(np.float32).astype(np.float64)
    return q, np.array([mdp.policy_value(one.mean(1).argmax(-1), DISCOUNT) for one in q]), truth


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 4), st.sampled_from([0.0, 0.01, 1.0, 100.0]))
def test_the_parts_add_up(id: int, runs: int, members: int, noise: float) -> None:
    q, policy_value, truth = random_case(id, runs, members, noise)
    over, loss = definitions.overestimation(q, policy_value), definitions.policy_loss(policy_value, truth)
    np.testing.assert_allclose(over + loss, definitions.state_value(q) - truth.max(-1), atol=1e-6)
    assert (loss <= 1e-6).all()
    gap, bias = definitions.jensen_gap(q), definitions.mean_bias(q, policy_value)
    assert gap >= 0
    assert abs(gap + bias - over.mean()) < 1e-6
    assert abs(gap + bias + loss.mean() - (definitions.state_value(q) - truth.max(-1)).mean()) < 1e-6
    if noise == 0:
        assert abs(loss).max() < 1e-5 and abs(over).max() < 1e-5


def test_parts_against_loops() -> None:
    q, policy_value, truth = random_case(3, runs=4, members=2, noise=1.0)
    over, loss, bias = [], [], []
    for state in range(6):
        best_mean = max(sum(q[r, state, k, a] for r, k in product(range(4), range(2))) / 8 for a in range(3))
        bias.append(best_mean - sum(policy_value[r, state] for r in range(4)) / 4)
        for r in range(4):
            value = max(sum(q[r, state, k, a] for k in range(2)) / 2 for a in range(3))
            over.append(value - policy_value[r, state])
            loss.append(policy_value[r, state] - max(truth[state]))
    assert np.isclose(definitions.overestimation(q, policy_value).mean(), np.mean(over))
    assert np.isclose(definitions.policy_loss(policy_value, truth).mean(), np.mean(loss))
    assert np.isclose(definitions.mean_bias(q, policy_value), np.mean(bias))


def test_metrics_of_a_run() -> None:
    q, policy_value, truth = random_case(5, runs=3, members=2, noise=1.0)  # as three probes of a run
    probes = {"probe_step": np.array([1, 2, 3]), "q": q, "true_q": truth}
    run = RunData(None, np.empty(0), {}, **probes, policy_value=policy_value)
    total, over, loss = (METRICS[name].of_run(run)[1] for name in ("bias_true", "overestimation", "policy_loss"))
    assert over.shape == (3,) and (loss < 0).all()
    np.testing.assert_allclose(over + loss, total, atol=1e-6)
    earlier = RunData(None, np.empty(0), {}, **probes)  # a run from before policies were evaluated
    assert METRICS["overestimation"].of_run(earlier) is METRICS["policy_loss"].of_run(earlier) is None
