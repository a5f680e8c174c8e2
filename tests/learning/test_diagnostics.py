"""What training.csv tells of learning, against loops over weights, states and atoms."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from meanq.config.schema import NetworkConfig
from meanq.learning.agent import Agent
from meanq.learning.networks import Params, QNetwork
from meanq.learning.optimiser import Adam
from meanq.replay.buffer import Batch
from tests.helpers import algo_config, make_agent, random_params
from tests.short_runs import SHORT, train

FEATURES, ACTIONS, ATOMS, BATCH, MEMBERS = 5, 3, 7, 6, 2


def make_network(atoms: int | None, noise: float | None = None) -> QNetwork:
    config = NetworkConfig(name="tiny", convolutions=[], dense=[6], hidden=4)
    return QNetwork((FEATURES,), ACTIONS, config, dueling=True, scale=1.0, atoms=atoms, noise=noise)


def columns(*layers: str, prefix: str = "") -> list[str]:
    return [f"{prefix}{quantile}{layer}" for layer in layers for quantile in ("", "q90_")]


def random_gradients(params: Params, seed: int) -> Params:
    """Of very different sizes, layer by layer."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: 10.0 ** -(i % 7) * torch.randn(p.shape, generator=generator) for i, (name, p) in enumerate(params.items())
    }


def naive_shares(gradients: list[Params], epsilon: float) -> dict[str, float]:
    """Adam's second moments, weight by weight. At most half of the shares are below the median, 90% below q90."""
    shares = {}
    for name, p in gradients[0].items():
        if not name.endswith(".weight"):
            continue
        found = []
        for place in np.ndindex(*p.shape):
            v = 0.0
            for gradient in gradients:
                v = 0.999 * v + 0.001 * gradient[name][place].item() ** 2
            root = math.sqrt(v / (1 - 0.999 ** len(gradients)))
            found.append(root / (root + epsilon))
        layer = name.removesuffix(".weight")
        shares[layer] = sorted(found)[math.ceil(len(found) / 2) - 1]
        shares[f"q90_{layer}"] = sorted(found)[math.ceil(0.9 * len(found)) - 1]
    return shares


@pytest.mark.parametrize("epsilon", [1.5e-4, 1e-8])
@pytest.mark.parametrize("noise", [None, 0.5], ids=["quiet", "noisy"])
def test_shares_of_adam_s_step_are_those_of_a_loop(noise: float | None, epsilon: float) -> None:
    params = random_params(make_network(None, noise), MEMBERS, 0)
    optimiser, gradients = Adam(params, 1e-3, epsilon), []
    assert optimiser.step_shares() == {}
    for step in range(3):
        gradients.append(random_gradients(params, step))
        optimiser.step(gradients[-1])
        shares = optimiser.step_shares()
        assert shares == pytest.approx(naive_shares(gradients, epsilon), rel=1e-3)
    assert list(shares) == columns("dense0", "hidden", "advantage", "value")
    assert epsilon < 1e-4 or min(shares.values()) < 0.5 < max(shares.values()), "some layers are starved"


def test_a_share_is_that_of_the_step_that_adam_takes() -> None:
    """The first step moves a weight by the learning rate times its share, against its gradient's sign."""
    params = {"layer.weight": torch.zeros(1, 3, 3)}
    optimiser, gradient = Adam(params, 0.5, 1e-2), torch.full((1, 3, 3), 3e-2)
    optimiser.step({"layer.weight": gradient})
    assert optimiser.step_shares()["layer"] == pytest.approx(0.75, rel=1e-3)
    torch.testing.assert_close(params["layer.weight"], torch.full((1, 3, 3), -0.5 * 0.75), rtol=1e-3, atol=0)


def test_shares_outlive_a_checkpoint() -> None:
    params = random_params(make_network(None), MEMBERS, 0)
    optimiser, other = (Adam(params, 1e-3, 1e-4) for _ in range(2))
    optimiser.step(random_gradients(params, 0))
    other.load_state_dict(optimiser.state_dict())
    assert other.step_shares() == optimiser.step_shares() != {}


def make_batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    return Batch(
        indices=np.zeros((MEMBERS, BATCH), dtype=np.int64),
        states=torch.randn(MEMBERS, BATCH, FEATURES, generator=generator),
        actions=torch.randint(ACTIONS, (MEMBERS, BATCH), generator=generator),
        returns=torch.randn(MEMBERS, BATCH, generator=generator),
        discounts=torch.full((MEMBERS, BATCH), 0.9),
        next_states=torch.randn(MEMBERS, BATCH, FEATURES, generator=generator),
        weights=torch.ones(MEMBERS, BATCH),
    )


@pytest.mark.parametrize("noise", [None, 0.5], ids=["quiet", "noisy"])
def test_the_spread_of_values_is_that_of_a_loop(noise: float | None) -> None:
    support = {"atoms": ATOMS, "value_min": -2.0, "value_max": 4.0}
    algo = algo_config("meanq_rainbow", ensemble_size=MEMBERS, noisy=noise is not None, **support)
    network = make_network(ATOMS, noise)
    params = random_params(network, MEMBERS, 0)
    params["value.bias"] = 3 * torch.randn(params["value.bias"].shape, generator=torch.Generator().manual_seed(0))
    agent = make_agent(algo, network, params)
    states = np.random.default_rng(0).normal(size=(4, FEATURES)).astype(np.float32)
    spreads = []
    for distribution in network(params, torch.from_numpy(states)).double().exp().reshape(-1, ATOMS).tolist():
        atoms = [-2.0 + i for i in range(ATOMS)]
        mean = sum(p * z for p, z in zip(distribution, atoms, strict=True))
        spreads.append(math.sqrt(sum(p * (z - mean) ** 2 for p, z in zip(distribution, atoms, strict=True))))
    generator = agent.state_dict()["generator"]
    found = agent.diagnostics(states)
    assert found == {"value_spread": pytest.approx(sum(spreads) / len(spreads), rel=1e-5)}, "no step was made yet"
    assert torch.equal(agent.state_dict()["generator"], generator), "evaluated without noise"
    agent.learn(make_batch())
    shares = {f"adam_share_{layer}": share for layer, share in agent._optimiser.step_shares().items()}
    after = agent.diagnostics(states)
    assert list(after) == [*shares, "value_spread"] and len(shares) == 8
    assert after["value_spread"] != found["value_spread"] and shares.items() <= after.items()


def test_values_that_are_numbers_have_no_spread() -> None:
    network = make_network(None)
    agent = make_agent(algo_config("meanq", ensemble_size=MEMBERS), network, random_params(network, MEMBERS, 0))
    assert agent.diagnostics(np.zeros((1, FEATURES), np.float32)) == {}
    agent.learn(make_batch())
    wanted = columns("dense0", "hidden", "advantage", "value", prefix="adam_share_")
    assert list(agent.diagnostics(np.zeros((1, FEATURES), np.float32))) == wanted


def rows_of(directory: Path) -> list[dict[str, str]]:
    with (directory / "training.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("algo", ["meanq_rainbow", "meanq"])
def test_a_run_records_them_and_learns_the_same_without(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first update comes at interaction 64, the first row at 60."""
    overrides = (f"algo={algo}", *SHORT, "algo.ensemble_size=2", "total_steps=130")
    run = train(tmp_path / "with", *overrides)
    shares = columns("conv0", "hidden", "advantage", "value", prefix="adam_share_")
    spread = ["value_spread"] if algo == "meanq_rainbow" else []
    first, second, last = rows_of(run.directory)
    assert [name for name in first if name.startswith("adam_share_") or name == "value_spread"] == spread + shares
    assert all(first[name] == "" for name in shares) and all(float(first[name]) > 0 for name in spread)
    for row in (second, last):
        assert all(0 < float(row[name]) <= 1 for name in shares) and all(float(row[name]) > 0 for name in spread)
    now = run.loop.agent.diagnostics(run._probes.states)
    assert {name: float(last[name]) for name in now} == pytest.approx(now)

    monkeypatch.setattr(Agent, "diagnostics", lambda self, states: {})
    without = train(tmp_path / "without", *overrides)
    for name in ("weights.safetensors", "evaluations.csv", "probes.npz"):
        assert (run.directory / name).read_bytes() == (without.directory / name).read_bytes(), name
    rest = [{name: value for name, value in row.items() if name not in now} for row in rows_of(run.directory)]
    assert rest == rows_of(without.directory)
