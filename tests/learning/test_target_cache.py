"""Kept values of next states change no bit of a run, save evaluations, and are dropped when they are out of date."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from meanq.learning.learner import Learner
from meanq.learning.networks import Params, QNetwork
from meanq.learning.target_cache import CHUNK, TargetCache
from meanq.learning.values import make_value_form
from meanq.replay.buffer import Replay
from meanq.training.session import Session
from tests.helpers import algo_config, compose, make_agent, network_config, random_params
from tests.short_runs import SHORT, SilentReporter, make_run, train

CPU = torch.device("cpu")
BYTES = ("evaluations.csv", "training.csv", "probes.npz", "weights.safetensors")
# Breakout has 3 actions: this network's rows are exact on processors where those of 5 or 6 are not.
BREAKOUT = (*SHORT, "env=minatar/breakout", "algo.target_network=40")

# Those that it can apply to, whether it pays or not; wrapping within a period, terminals (Breakout's games are short),
# several steps, several snapshots, a copy between two gradient steps of one interaction.
RUNS = {
    "meanq": ("algo=meanq",),
    "dqn": ("algo=dqn",),
    "avg_dqn": ("algo=avg_dqn",),
    "ens_dqn": ("algo=ens_dqn",),
    "maxmin": ("algo=maxmin",),
    "multi_step": ("algo=meanq", "algo.multi_step=3"),
    "wraps": ("algo=meanq", "algo.replay_capacity=50", "algo.target_network=120"),
    "wraps_in_stacks": ("algo=meanq", "env.stack=3", "algo.multi_step=2", "algo.replay_capacity=30"),
    "snapshots": ("algo=meanq", "algo.target_snapshots=3"),
    "uniform": ("algo=meanq", "algo.prioritized=false", "algo.gradient_steps=3"),
    "parallel": ("algo=maxmin", "algo.parallel_networks=2"),
    # 120 transitions are drawn between two copies: when the replay holds more, it ends.
    "ends": ("algo=meanq", "algo.target_network=3", "algo.interactions_per_update=2", "algo.batch_size=16"),
    "masked": ("algo=meanq", "algo.mask_probability=0.5"),
}


def assert_same(left: Path, right: Path) -> None:
    for name in BYTES:
        assert (left / name).read_bytes() == (right / name).read_bytes(), name


class Counting:
    """An evaluation that counts its calls."""

    def __init__(self, evaluate: Any) -> None:
        self.evaluate, self.calls = evaluate, 0

    def __call__(self, params: Params, states: Tensor) -> Tensor:
        self.calls += 1
        assert len(states) == CHUNK
        return self.evaluate(params, states)


def counted(run: Session) -> Counting:
    """Count the evaluations of a run, but those that test the machine."""
    values = run.loop.agent._target_cache
    assert values is not None
    values._exact = True
    values._evaluate = counting = Counting(values._evaluate)
    return counting


@pytest.mark.parametrize("name", RUNS)
def test_on_and_off_end_with_the_same_bytes(name: str, tmp_path: Path) -> None:
    on = train(tmp_path / "on", *BREAKOUT, *RUNS[name])
    off = train(tmp_path / "off", *BREAKOUT, *RUNS[name], "cache_targets=false")
    assert_same(on.directory, off.directory)
    kept = json.loads((on.directory / "meta.json").read_text())["cached_targets"]
    assert kept == (name not in ("dqn", "avg_dqn", "ens_dqn")), "one minibatch is evaluated at once anyway"
    assert not json.loads((off.directory / "meta.json").read_text())["cached_targets"]


@pytest.mark.slow
def test_a_compiled_run_too(tmp_path: Path) -> None:
    overrides = (*BREAKOUT, "algo=meanq", "compile=true", "total_steps=130")
    on = train(tmp_path / "on", *overrides)
    off = train(tmp_path / "off", *overrides, "cache_targets=false")
    assert on.loop.agent.caches_targets and not off.loop.agent.caches_targets
    assert_same(on.directory, off.directory)


def test_most_draws_are_answered_from_memory(tmp_path: Path) -> None:
    runs = {}
    for keep in ("true", "false"):
        run = make_run(tmp_path / keep, *BREAKOUT, "algo=meanq", f"cache_targets={keep}")
        counting = counted(run)
        run.train(SilentReporter())
        runs[keep] = counting.calls
    updates = (240 - 64) // 2 + 1
    assert runs["false"] > 3 * updates, "160 draws are 5 batches of 32, less duplicates"
    assert updates / 2 < runs["true"] < runs["false"] / 2


def test_a_run_resumed_within_a_period_recomputes_the_same_bits(tmp_path: Path) -> None:
    class Stop(SilentReporter):
        def progress(self, step: int, *rest: Any) -> None:
            if step == 137:
                raise RuntimeError("crash")

    overrides = (*BREAKOUT, "algo=meanq", "algo.target_network=100", "checkpoint.every=30")
    whole = train(tmp_path / "whole", *overrides)
    crashed = make_run(tmp_path / "crashed", *overrides)
    with pytest.raises(RuntimeError, match="crash"):
        crashed.train(Stop())
    # Whether values are kept is not part of what a run is: it may go on without.
    resumed = make_run(tmp_path / "crashed", *overrides, "cache_targets=false")
    assert resumed.directory == crashed.directory
    resumed.train(SilentReporter())
    assert json.loads((resumed.directory / "meta.json").read_text())["resumed"] == [120]
    assert_same(whole.directory, resumed.directory)


# The memory itself


class Fixture:
    """Five members, a replay of vectors, and the values of next states, counted."""

    def __init__(self, capacity: int = 200, multi_step: int = 1) -> None:
        self.network = QNetwork((4,), 3, network_config("mlp"), dueling=True, scale=1.0)
        self.algo = algo_config("meanq")
        self.params = random_params(self.network, 5, 0)
        self.replay = Replay(
            capacity=capacity,
            frame_shape=(4,),
            frame_dtype=np.dtype(np.float32),
            stack=1,
            multi_step=multi_step,
            discount=0.9,
            priority_trees=1,
            prioritized=False,
            priority_exponent=0.5,
            generator=np.random.default_rng(0),
            device=CPU,
        )
        self.random = np.random.default_rng(1)
        self.replay.start(self.frame())
        learner = Learner(self.algo, self.network, make_value_form(self.algo, CPU))
        self.evaluate = Counting(learner.next_values)
        self.values = TargetCache(self.evaluate, CPU, keep=True)

    def frame(self) -> np.ndarray:
        return self.random.standard_normal(4).astype(np.float32)

    def play(self, steps: int) -> None:
        for _ in range(steps):
            self.replay.append(0, 1.0, self.frame(), terminal=False, truncated=False)

    def check(self) -> int:
        """Draw, compare with values computed afresh, state by state, and say how many evaluations it took."""
        batch = self.replay.sample(5, 32, 0.5)
        before = self.evaluate.calls
        found = self.values(self.params, batch)
        calls = self.evaluate.calls - before
        q = self.network(self.params, batch.next_states.flatten(0, 1)).mean(0)
        torch.testing.assert_close(found, q.max(-1).values.view(5, 32), rtol=1e-5, atol=1e-6)
        return calls

    def fill(self) -> None:
        """Draw until all that there is to know is known."""
        assert any(self.check() == 0 for _ in range(20))


@pytest.mark.parametrize("multi_step", [1, 3])
def test_each_transition_is_evaluated_once(multi_step: int) -> None:
    fixture = Fixture(multi_step=multi_step)
    fixture.play(60)
    calls = [fixture.check() for _ in range(10)]
    assert calls[0] == 2, "160 draws of about 60 transitions, more than 32 of them different"
    assert sum(calls[1:]) <= 2 and calls[-1] == 0


def test_other_weights_have_other_values() -> None:
    fixture = Fixture()
    fixture.play(60)
    fixture.fill()
    fixture.params = random_params(fixture.network, 5, 1)
    fixture.values.invalidate()
    assert fixture.check() >= 1


def test_what_overwrites_a_transition_has_its_own_value() -> None:
    fixture = Fixture(capacity=40)
    fixture.play(60)
    for _ in range(30):
        fixture.fill()
        fixture.play(7)
        fixture.check()


def test_it_grows_with_the_replay() -> None:
    fixture = Fixture(capacity=5000)
    for _ in range(12):
        fixture.play(400)
        fixture.check()
    assert len(fixture.values._ids) == len(fixture.values._values) < 2 * 5010


def test_numbers_belong_to_transitions_for_ever() -> None:
    fixture = Fixture(capacity=20)
    seen: dict[int, tuple[float, ...]] = {}
    for _ in range(40):
        fixture.play(3)
        batch = fixture.replay.sample(1, 16, 0.5)
        assert batch.ids is not None
        for number, state in zip(batch.ids[0].tolist(), batch.states[0].tolist(), strict=True):
            assert seen.setdefault(number, tuple(state)) == tuple(state)
    assert len(set(seen.values())) == len(seen) > 60


# The agent


def agent_batch(fixture: Fixture) -> Any:
    return fixture.replay.sample(5, 32, 0.5)


@pytest.mark.parametrize("change", ["update_target", "load_state_dict"])
def test_an_agent_forgets_when_its_target_changes(change: str) -> None:
    fixture = Fixture()
    fixture.play(60)
    agent, twin = (make_agent(fixture.algo, fixture.network, fixture.params) for _ in range(2))
    for _ in range(3):
        batch = agent_batch(fixture)
        agent.learn(batch, 60)
        twin.learn(batch)  # which computes targets within the step
    assert agent.caches_targets
    state = twin.state_dict() | {"target": random_params(fixture.network, 5, 7)}
    for either in (agent, twin):
        either.load_state_dict(state) if change == "load_state_dict" else either.update_target()
    learned, expected = agent.learn(batch, 60), twin.learn(batch)
    torch.testing.assert_close(learned.errors, expected.errors, rtol=1e-4, atol=1e-5)
    before = twin.targets(batch)[0]
    assert not torch.equal(before, make_agent(fixture.algo, fixture.network, fixture.params).targets(batch)[0])


@pytest.mark.parametrize("rule", ["mean", "min", "mellowmax"])
@pytest.mark.parametrize("snapshots", [1, 3])
def test_values_are_those_of_the_rule(rule: str, snapshots: int) -> None:
    """Against the targets that a step computes itself."""
    fixture = Fixture()
    omega = 5.0 if rule == "mellowmax" else None
    algo = replace(fixture.algo, bootstrap=rule, target_snapshots=snapshots, mellowmax_omega=omega)
    agent = make_agent(algo, fixture.network, fixture.params)
    for seed in range(snapshots):
        for name, weights in random_params(fixture.network, 5, seed).items():
            agent.online[name].copy_(weights)
        agent.update_target()
    fixture.play(60)
    batch = agent_batch(fixture)
    values = agent._cached_values(batch, 60)
    assert values is not None and agent.target is not None
    torch.testing.assert_close(agent.targets(replace(batch, next_values=values))[0], agent.targets(batch)[0])


CANNOT = {
    "dqn": {},
    "ens_dqn": {},
    "avg_dqn": {},
    "double_dqn": {},
    "bootstrapped_dqn": {},
    "ebql": {},
    "sunrise": {},
    "meanq_no_target": {},
    "meanq_rainbow_target": {},
    "meanq": {"double": True},
    "maxmin": {"noisy": True},
}
CHANGES = (
    {"random_shift": 4},
    {"confidence_temperature": 10.0},
    {"value": "categorical"},
    {"bootstrap": "others"},
    {"bootstrap_subset": 2},
    {"value": "hl_gauss"},
    {"target_network": 1},
    {"ensemble_size": 1},
)


@pytest.mark.parametrize(
    ("name", "changes"), [*CANNOT.items(), *(("meanq", change) for change in CHANGES)], ids=lambda value: str(value)
)
def test_where_values_depend_on_more_or_nothing_is_saved_they_are_not_kept(name: str, changes: dict[str, Any]) -> None:
    config = compose(f"algo={name}", "env=minatar/breakout")
    network = QNetwork((4, 10, 10), 3, network_config("minatar"), dueling=True, scale=1.0)
    algo = replace(config.algo, **changes)
    assert not Learner(algo, network, make_value_form(algo, CPU)).caching_pays
    algo = compose("algo=meanq", "env=minatar/breakout").algo
    assert Learner(algo, network, make_value_form(algo, CPU)).caching_pays


def test_a_replay_of_more_than_are_drawn_between_two_copies_is_not_worth_it() -> None:
    """Half of what would be kept is never asked for again, and one large batch is faster than five small ones."""
    fixture = Fixture()
    algo = replace(fixture.algo, target_network=7, interactions_per_update=2, gradient_steps=3)
    agent = make_agent(algo, fixture.network, fixture.params)
    fixture.play(60)
    batch = agent_batch(fixture)
    draws = 5 * 32 * 3 * 7 // 2
    assert agent._cached_values(batch, draws) is not None
    assert agent._cached_values(batch, draws + 1) is None


# The machine


def test_a_machine_that_rounds_by_place_is_noticed_and_keeps_nothing(tmp_path: Path) -> None:
    """One bit, in one row of four, as kernels do with some numbers of actions."""
    directories = []
    for keep in ("true", "false"):
        run = make_run(tmp_path / keep, *BREAKOUT, "algo=meanq", f"cache_targets={keep}")
        values = run.loop.agent._target_cache
        assert values is not None
        evaluate = values._evaluate
        ulp = torch.where(torch.arange(CHUNK) % 4 == 1, torch.finfo(torch.float32).eps, 0.0)[:, None]
        values._evaluate = lambda params, states, evaluate=evaluate, ulp=ulp: evaluate(params, states) * (1 + ulp)
        run.train(SilentReporter())
        assert not run.loop.agent.caches_targets
        directories.append(run.directory)
    assert_same(*directories)
    assert not json.loads((directories[0] / "meta.json").read_text())["cached_targets"]


@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("actions", [3, 4, 5, 6, 9, 18])
@pytest.mark.parametrize("scale", [1.0, 1 / 255])
def test_what_the_test_of_the_machine_says_is_so(scale: float, actions: int, dueling: bool) -> None:
    """Where rows are said to be exact, states in any company have the same bits, with other weights and states."""
    shape = (6, 10, 10)
    network = QNetwork(shape, actions, network_config("minatar"), dueling=dueling, scale=scale)
    algo = algo_config("meanq")
    learner = Learner(algo, network, make_value_form(algo, CPU))
    params = random_params(network, 5, 3)
    pool = torch.randint(2, (6 * CHUNK, *shape), generator=torch.Generator().manual_seed(5), dtype=torch.uint8)
    exact = TargetCache(learner.next_values, CPU, keep=True).exact(network, params, pool)
    values = torch.cat([learner.next_values(params, chunk) for chunk in pool.split(CHUNK)])
    same = True
    for seed in range(4):
        order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed))
        again = torch.cat([learner.next_values(params, chunk) for chunk in pool[order].split(CHUNK)])
        same &= torch.equal(again, values[order])
    assert exact == same
