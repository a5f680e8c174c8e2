"""Random MDPs: their transitions, rewards and ends, and their exact values against slow versions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meanq.config.errors import ConfigError
from meanq.envs import make_env
from meanq.envs.garnet import Garnet
from meanq.envs.mdp import FiniteMDP
from meanq.rundir import reader
from meanq.training.evaluation import make_probes
from tests.helpers import compose
from tests.short_runs import train


def garnet(id: int = 0, seed: int = 0, **options: Any) -> Garnet:
    return Garnet(str(id), np.random.default_rng(seed), **options)


def slow_value_iteration(mdp: FiniteMDP, discount: float, policy: np.ndarray | None = None) -> np.ndarray:
    """Q of the best policy, or of the given one, sweep by sweep and state by state."""
    states, actions = mdp.reward.shape
    q = np.zeros((states, actions))
    for _ in range(3000):
        old = [max(q[s]) if policy is None else q[s, policy[s]] for s in range(states)]
        for s in range(states):
            for a in range(actions):
                q[s, a] = mdp.reward[s, a] + discount * sum(
                    p * v for p, v in zip(mdp.transition[s, a], old, strict=True)
                )
        if (
            max(abs(max(q[s]) - old[s]) if policy is None else abs(q[s, policy[s]] - old[s]) for s in range(states))
            < 1e-11
        ):
            break
    return q


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 7),
    st.integers(1, 3),
    st.floats(0, 1, allow_subnormal=False),
    st.sampled_from([0.1, 0.5, 1.0]),
)
def test_values_are_those_of_plain_value_iteration(
    id: int, states: int, actions: int, discount: float, ending: float
) -> None:
    mdp = garnet(id, states=states, actions=actions, branching=(states + 1) // 2, ending=ending).mdp()
    q = mdp.optimal_q(discount)
    np.testing.assert_allclose(q, slow_value_iteration(mdp, discount), atol=1e-8)
    policy = np.random.default_rng(id).integers(actions, size=states)
    slow = slow_value_iteration(mdp, discount, policy)[np.arange(states), policy]
    np.testing.assert_allclose(mdp.policy_value(policy, discount), slow, atol=1e-8)
    assert (slow <= q.max(1) + 1e-8).all()
    np.testing.assert_allclose(mdp.policy_value(q.argmax(1), discount), q.max(1), atol=1e-8)


def test_values_are_expected_returns() -> None:
    """Monte Carlo: a random first action, then the best policy; and a fixed policy throughout."""
    discount = 0.9
    env = garnet(3, seed=1, states=4, actions=2, branching=2, reward_noise=0.3, ending=0.2)
    mdp = env.mdp()
    best, fixed = mdp.optimal_q(discount).argmax(1), np.array([0, 1, 1, 0])
    first = np.random.default_rng(2)
    errors: dict[tuple[str, int, int], list[float]] = {}
    for game in range(16_000):
        state = int(env.reset().argmax())
        policy = best if game % 2 else fixed
        action = int(first.integers(2)) if game % 2 else int(fixed[state])
        truth = env.true_q(discount)[action] if game % 2 else mdp.policy_value(fixed, discount)[state]
        key = ("best" if game % 2 else "fixed", state, action)
        total, factor, over = 0.0, 1.0, False
        while not over:
            outcome = env.step(action)
            assert not outcome.truncated and not outcome.life_lost
            total, factor, over = total + factor * outcome.reward, factor * discount, outcome.terminal
            action = int(policy[outcome.frame.argmax()])
        errors.setdefault(key, []).append(total - truth)
    assert len(errors) == 12
    for key, differences in errors.items():
        error = np.std(differences) / np.sqrt(len(differences))
        assert abs(np.mean(differences)) < 4 * error, key
        assert error < 0.05


def test_scores_are_returns_without_discount() -> None:
    mdp = garnet(2, states=6, actions=3, branching=2, ending=0.1).mdp()
    one_action = FiniteMDP(mdp.frames, mdp.transition.mean(1, keepdims=True), mdp.reward.mean(1, keepdims=True))
    expected = {"random": slow_value_iteration(one_action, 1.0), "reference": slow_value_iteration(mdp, 1.0)}
    scores = Garnet.exact_scores("2", states=6, actions=3, branching=2, ending=0.1)
    assert scores == {name: pytest.approx(q.max(1).mean(), abs=1e-4) for name, q in expected.items()}
    small = [f"env.options.{name}" for name in ("states=6", "actions=3", "branching=2", "ending=0.1")]
    env = compose("env=garnet", "env.id=2", *small).env
    assert (env.random_score, env.reference_score) == (scores["random"], scores["reference"])
    assert compose("env=garnet", "env.options.branching=51").env.reference_score is None


def test_steps_follow_the_model() -> None:
    env = garnet(1, states=5, actions=2, branching=3, ending=0.25)
    mdp = env.mdp()
    counts, rewards = np.zeros((5, 2, 6)), np.zeros((5, 2))
    actions = np.random.default_rng(4)
    for _ in range(30_000):
        state, action = int(env.reset().argmax()), int(actions.integers(2))
        outcome = env.step(action)
        assert outcome.terminal == (not outcome.frame.any())
        counts[state, action, 5 if outcome.terminal else outcome.frame.argmax()] += 1
        rewards[state, action] += outcome.reward
    visits = counts.sum(-1)
    assert visits.min() > 2500
    expected = np.append(mdp.transition, np.full((5, 2, 1), 0.25), axis=-1)
    np.testing.assert_allclose(expected.sum(-1), 1)
    np.testing.assert_allclose(counts / visits[..., None], expected, atol=0.04)
    np.testing.assert_allclose(rewards / visits, mdp.reward, atol=0.06)
    assert ((mdp.transition > 0).sum(-1) == 3).all()


def test_the_mdp_depends_on_its_own_seed_only() -> None:
    def model(*overrides: str) -> FiniteMDP:
        env = make_env(compose("env=garnet", *overrides).env, np.random.default_rng(len(overrides)))
        assert isinstance(env, Garnet)
        return env.mdp()

    first = model()
    assert first.frames.tolist() == np.eye(50).tolist()
    for other in (model("seed=7"), model("env.options.reward_noise=0"), model("env.options.features=10")):
        np.testing.assert_array_equal(other.transition, first.transition)
        np.testing.assert_array_equal(other.reward, first.reward)
    assert model("env.options.features=10").frames.shape == (50, 10)
    assert not np.array_equal(model("env.id=1").transition, first.transition)
    assert compose("env=garnet", "env.id=1").env.name == "garnet_1"


def test_seeds_and_saved_states() -> None:
    def play(env: Garnet, steps: int = 60) -> list[Any]:
        trajectory: list[Any] = []
        for t in range(steps):
            outcome = env.step(t % 4)
            trajectory.append((outcome.frame.tolist(), *outcome[1:]))
            if outcome.terminal:
                trajectory.append(env.reset().tolist())
        return trajectory

    one, two, other = (garnet(0, seed, reward_noise=1.0) for seed in (1, 1, 2))
    for env in (one, two, other):
        env.reset()
    assert play(one) == play(two) != play(other)
    state = one.state_dict()
    expected = play(one)
    other.load_state_dict(state)
    assert play(other) == expected


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("env.id=first",), "env.id=first: .*whole number"),
        (("env.options.branching=51",), "branching=51.*from 1 to the number of states"),
        (("env.options.branching=0",), "branching=0"),
        (("env.options.states=1001",), "write up to 1000 states"),
        (("env.options.actions=0",), "1 or more actions"),
        (("env.options.ending=0",), "ending from 0.001 to 1"),
        (("env.stack=2",), "probe.states=0: only a finite MDP"),
        (("env.clip_rewards=true",), "env.clip_rewards=false"),
        (("env=chain", "probe.states=0"), "probe.states=0: only a finite MDP"),
    ],
)
def test_what_makes_no_mdp_is_refused_in_one_line(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        make_probes(compose("env=garnet", *overrides))
    assert "\n" not in str(error.value)


def test_a_run_stores_the_exact_value_of_its_greedy_policy(tmp_path: Path) -> None:
    """Recomputed from the stored values, which say what the greedy policy does in every state."""
    small = ("env.options.states=6", "env.options.features=3", "algo.ensemble_size=2", "probe.every=100")
    run = train(tmp_path, "env=garnet", *small, "total_steps=200", "algo.first_update=50", "evaluation.episodes=2")
    probes = reader.read_probes(run.directory)
    assert probes is not None and probes.policy_value is not None and probes.true_q is not None
    assert probes.q.shape == (3, 6, 2, 4) and probes.policy_value.shape == (3, 6)
    mdp = run.loop.env.mdp()
    assert mdp is not None
    np.testing.assert_allclose(probes.true_q, slow_value_iteration(mdp, 0.99), atol=1e-8)
    for q, value in zip(probes.q, probes.policy_value, strict=True):
        policy = q.mean(1).argmax(-1)
        slow = slow_value_iteration(mdp, 0.99, policy)[np.arange(6), policy]
        np.testing.assert_allclose(value, slow, atol=1e-8)
