"""Algorithms that must coincide do, bit for bit, after real training: the same weights, tables and probes."""

from pathlib import Path

import pytest
import torch

from tests.short_runs import SHORT, train, weights

ONE_MEMBER = {
    "meanq": ["algo.ensemble_size=1"],
    "ens_dqn": ["algo.ensemble_size=1"],
    "maxmin": ["algo.ensemble_size=1"],
    "bootstrapped_dqn": ["algo.ensemble_size=1"],
    "avg_dqn": ["algo.target_snapshots=1"],
}


# Rainbow whose target is its own online weights, and whose action is chosen by them.
RAINBOW = ("algo=rainbow", "algo.target_network=null", "algo.double=false")


def assert_same_run(left: Path, right: Path) -> None:
    ours, theirs = weights(left), weights(right)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name
    for table in ("evaluations.csv", "training.csv", "probes.npz"):
        assert (left / table).read_bytes() == (right / table).read_bytes(), table


@pytest.fixture(scope="module")
def dqn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dqn")
    return train(root, "algo=dqn", *SHORT, "algo.target_network=40").directory


@pytest.mark.parametrize("algo", ONE_MEMBER)
def test_with_one_member_it_is_dqn(algo: str, dqn: Path, tmp_path: Path) -> None:
    run = train(tmp_path, f"algo={algo}", *SHORT, "algo.target_network=40", *ONE_MEMBER[algo])
    assert_same_run(run.directory, dqn)


def test_one_member_without_a_target_is_dqn_without_a_target(tmp_path: Path) -> None:
    left = train(tmp_path, "algo=meanq_no_target", "algo.ensemble_size=1", *SHORT)
    right = train(tmp_path, "algo=dqn_no_target", *SHORT)
    assert_same_run(left.directory, right.directory)


def test_a_target_copied_at_every_interaction_is_no_target(tmp_path: Path) -> None:
    left = train(tmp_path, "algo=meanq", "algo.target_network=1", *SHORT)
    right = train(tmp_path, "algo=meanq_no_target", *SHORT)
    assert_same_run(left.directory, right.directory)


@pytest.mark.parametrize("no_ucb", ["algo.exploration=greedy", "algo.ucb_lambda=0"])
def test_the_main_agent_with_one_member_is_rainbow_without_target_and_double(no_ucb: str, tmp_path: Path) -> None:
    left = train(tmp_path / "left", "algo=meanq_rainbow", "algo.ensemble_size=1", no_ucb, *SHORT)
    right = train(tmp_path / "right", *RAINBOW, *SHORT)
    assert_same_run(left.directory, right.directory)
    assert "hidden.weight_sigma" in weights(left.directory), "noisy"


@pytest.mark.filterwarnings("error:.*[Dd]egrees of freedom")
def test_ucb_of_one_member_is_greedy_also_by_the_sample_s_std(tmp_path: Path) -> None:
    one = ("algo=meanq_rainbow", "algo.ensemble_size=1", "algo.ensemble_std=sample", *SHORT)
    noise_explores = "algo.epsilon.with_noise=false"
    left = train(tmp_path / "left", *one, noise_explores)
    right = train(tmp_path / "right", *one, noise_explores, "algo.exploration=greedy")
    assert_same_run(left.directory, right.directory)


RELEASED = (
    "algo.shared_noise=true",
    "algo.bias_noise=fan_out",
    "evaluation.noise=true",
    "algo.importance_steps=400",
    "algo.random_steps=50",
    "algo.max_gradient_norm=null",
    "algo.multi_step=3",
)


def test_the_main_agent_with_one_member_is_rainbow_with_the_released_details_too(tmp_path: Path) -> None:
    sample = "algo.ensemble_std=sample"
    left = train(tmp_path / "left", "algo=meanq_rainbow", "algo.ensemble_size=1", sample, *SHORT, *RELEASED)
    right = train(tmp_path / "right", *RAINBOW, *SHORT, *RELEASED)
    assert_same_run(left.directory, right.directory)


# The network of drq_eps on Atari, whose fields MinAtar's own network does not have.
DOPAMINE = ("network.padding=same", "network.shared_hidden=true", "network.initial_weights=xavier")


def test_drq_eps_is_double_dqn_with_a_target_copied_at_every_update(tmp_path: Path) -> None:
    drq = ("algo=drq_eps", *SHORT, *DOPAMINE)
    left = train(tmp_path / "left", *drq)
    right = train(tmp_path / "right", *drq, "algo.target_network=1", "algo.double=true")
    assert left.config.algo.target_network is None and not left.config.algo.double
    assert_same_run(left.directory, right.directory)


@pytest.mark.parametrize(
    "change",
    [
        "algo.target_network=40",
        "algo.loss=squared",
        "algo.random_intensity=0",
        "algo.random_shift=0",
        "algo.epsilon.begin=0",
        *(f"network.{field}" for field in ("padding=valid", "shared_hidden=false", "initial_weights=uniform")),
    ],
)
def test_each_part_of_drq_eps_shows(change: str, tmp_path: Path) -> None:
    """Guards the test above. A small epsilon, so that few actions are random."""
    drq = ("algo=drq_eps", *SHORT, *DOPAMINE, "total_steps=120", "algo.epsilon.steps=10")
    ours, theirs = (weights(train(tmp_path / c, *drq, *o).directory) for c, o in (("a", ()), ("b", (change,))))
    assert not torch.equal(ours["value.bias"], theirs["value.bias"])


@pytest.mark.parametrize(
    "change",
    [
        "algo.noisy=false",
        "algo.noise=0.2",
        "algo.value=scalar",
        "algo.dueling=false",
        "algo.target_network=40",
        "algo.double=true",
        "algo.multi_step=3",
        "algo.prioritized=false",
        "algo.exploration=epsilon_greedy",
        "algo.random_shift=1",
        "algo.parallel_networks=2",
        "algo.gradient_steps=2",
        "algo.mask_probability=0.5",
        "algo.shared_noise=true",
        "algo.bias_noise=fan_out",
        "algo.importance_steps=400",
        "algo.random_steps=50",
        "algo.max_gradient_norm=0.01",
    ],
)
def test_each_technique_changes_rainbow(change: str, tmp_path: Path) -> None:
    """Guards the test above: one override of any of them does show."""
    by_noise_alone = "algo.epsilon.with_noise=false"
    overrides = [o for o in RAINBOW if o.partition("=")[0] != change.partition("=")[0]]
    ours = weights(train(tmp_path / "ours", *overrides, *SHORT, by_noise_alone, change).directory)
    theirs = weights(train(tmp_path / "theirs", *RAINBOW, *SHORT, by_noise_alone).directory)
    assert not torch.equal(ours["conv0.weight"][:1], theirs["conv0.weight"])


def test_a_target_copied_at_every_interaction_is_no_target_for_the_main_agent(tmp_path: Path) -> None:
    left = train(tmp_path, "algo=meanq_rainbow_target", "algo.target_network=1", *SHORT)
    right = train(tmp_path, "algo=meanq_rainbow", *SHORT)
    assert_same_run(left.directory, right.directory)


@pytest.mark.parametrize("algo", ["dqn_no_target", "double_dqn", "meanq"])
def test_other_algorithms_are_not_dqn(algo: str, dqn: Path, tmp_path: Path) -> None:
    """Guards the tests above: a difference in algorithm does show after so short a run."""
    period = [] if algo == "dqn_no_target" else ["algo.target_network=40"]
    run = train(tmp_path, f"algo={algo}", *SHORT, *period)
    ours, theirs = weights(run.directory), weights(dqn)
    assert not torch.equal(ours["hidden.weight"][:1], theirs["hidden.weight"])


def test_five_members_equal_neither_each_other_nor_the_shared_minibatch(tmp_path: Path) -> None:
    meanq = weights(train(tmp_path, "algo=meanq", *SHORT).directory)
    ens_dqn = weights(train(tmp_path, "algo=ens_dqn", *SHORT).directory)
    assert not torch.equal(meanq["value.weight"], ens_dqn["value.weight"])
    for k in range(1, 5):
        assert not torch.equal(meanq["value.weight"][0], meanq["value.weight"][k])
