"""The diagnosis of networks: planted dead units, duplicates and ranks are found exactly."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from analysis.metrics import compute
from analysis.runs import read_runs
from meanq.config.schema import ConvolutionConfig, NetworkConfig
from meanq.learning import networks
from meanq.learning.agent import Agent
from meanq.learning.diagnosis import diagnose, dormant_units, effective_rank
from meanq.learning.networks import Params, QNetwork
from meanq.metrics.definitions import Decomposition
from meanq.mirrors.sink import read_points
from tests.helpers import random_params
from tests.short_runs import SHORT, train

IMAGE, ACTIONS, STATES = (2, 8, 6), 3, 20
SIZES = {"conv0": 4, "conv1": 6, "dense0": 10, "hidden": 8}
CONFIG = NetworkConfig(
    name="tiny", convolutions=[ConvolutionConfig(4, 3, 1), ConvolutionConfig(6, 2, 2)], dense=[10], hidden=8
)


def make_network(dueling: bool = True) -> QNetwork:
    return QNetwork(IMAGE, ACTIONS, CONFIG, dueling=dueling, scale=1.0)


def lively(network: QNetwork, members: int) -> Params:
    """Weights above 0, so that every unit is active."""
    params = random_params(network, members, 0)
    return {name: torch.ones_like(p) if name.endswith("bias") else p.abs() for name, p in params.items()}


def random_states(count: int = STATES) -> Tensor:
    return torch.randn(count, *IMAGE, generator=torch.Generator().manual_seed(1))


def slow_dormant(activations: Tensor) -> list[list[bool]]:
    """Member by member and unit by unit."""
    found = []
    for member in activations.double():
        scores = [sum(abs(x) for x in member[:, unit].tolist()) / len(member) for unit in range(member.shape[1])]
        found.append([score <= 0.025 * sum(scores) / len(scores) for score in scores])
    return found


def slow_rank(features: Tensor) -> int:
    held, values = 0.0, sorted(np.linalg.svd(features.double().numpy(), compute_uv=False), reverse=True)
    for count, value in enumerate(values, 1):
        held += value
        if held >= 0.99 * sum(values):
            return count
    return 0


def test_dormant_units_and_ranks_are_those_of_loops() -> None:
    scale = 10.0 ** torch.linspace(-4, 0, 12)
    x = torch.randn(3, STATES, 12, generator=torch.Generator().manual_seed(0)).relu() * scale
    assert dormant_units(x).tolist() == slow_dormant(x)
    assert 0 < dormant_units(x).sum() < x.shape[0] * x.shape[2]
    assert effective_rank(x).tolist() == [slow_rank(member) for member in x]


def test_at_most_tau_of_the_mean_is_dormant() -> None:
    x = torch.tensor([[[0.025, 1.975]], [[0.0251, 1.9749]], [[0.0, 0.0]]])  # the means are 1, 1 and 0
    assert dormant_units(x.double().float()).tolist()[1:] == [[False, False], [True, True]]
    exact = torch.tensor([[[1 / 40, 79 / 40], [1 / 40, 79 / 40]]], dtype=torch.float64)
    assert dormant_units(exact * 1024).tolist() == [[True, False]]


@pytest.mark.parametrize("rank", [0, 1, 5, 12])
def test_a_planted_rank_is_found(rank: int) -> None:
    """Equal singular values, of which 99% needs all but those beyond."""
    left, right = (torch.linalg.qr(torch.randn(n, 12, generator=torch.Generator().manual_seed(n)))[0] for n in (20, 16))
    features = (left[:, :rank] @ right[:, :rank].T)[None]
    assert effective_rank(features).tolist() == [rank]
    assert effective_rank(torch.cat([features, features], -1)).tolist() == [rank], "duplicated units add nothing"


@pytest.mark.parametrize("threshold", [0, 1e9], ids=["loop", "grouped"])
@pytest.mark.parametrize("members", [1, 3])
def test_planted_dead_units_are_counted_exactly(
    members: int, threshold: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "_LOOP_MULTIPLY_ADDS", threshold)
    network, states = make_network(), random_states()
    params = lively(network, members)
    assert diagnose(network, params, states)["dormant"] == 0
    dead = {"conv0": 1, "conv1": 2, "dense0": 3, "hidden": 2}  # in the last member; of `hidden` in its value stream
    for layer, count in dead.items():
        params[f"{layer}.bias"][-1].view(-1)[:count] = -1e4
    found = diagnose(network, params, states)
    units = members * (sum(SIZES.values()) + 8)  # two streams
    assert found["dormant"] == pytest.approx(sum(dead.values()) / units)
    for layer, size in SIZES.items():
        name = "hidden_value" if layer == "hidden" else layer
        assert found[f"dormant_{name}"] == pytest.approx(dead[layer] / (members * size)), layer
    assert found["dormant_hidden_advantage"] == 0


def test_activations_are_those_of_one_member_at_a_time() -> None:
    network, states = make_network(), random_states()
    params = lively(network, 3)
    together = network.activations(params, states)
    assert list(together) == ["conv0", "conv1", "dense0", "hidden_value", "hidden_advantage"]
    assert [x.shape[-1] for x in together.values()] == [4, 6, 10, 8, 8]
    for k in range(3):
        alone = network.activations({name: p[k : k + 1] for name, p in params.items()}, states)
        for layer, x in alone.items():
            torch.testing.assert_close(together[layer][k], x[0], rtol=1e-4, atol=1e-5)
    x = states.clone()
    for i, conv in enumerate(CONFIG.convolutions):
        x = torch.conv2d(x, params[f"conv{i}.weight"][1], params[f"conv{i}.bias"][1], conv.stride).relu()
        channels = x.transpose(0, 1).flatten(1)  # [C, N * pixels]
        torch.testing.assert_close(together[f"conv{i}"][1].abs().mean(0), channels.mean(1), rtol=1e-4, atol=1e-5)


def test_rank_is_that_of_the_last_features() -> None:
    network, states = make_network(dueling=False), random_states()
    params = random_params(network, 2, 0)
    layers = network.activations(params, states)
    ranks = [slow_rank(layers["hidden"][k]) for k in range(2)]
    assert diagnose(network, params, states)["feature_rank"] == sum(ranks) / 2 > 2
    params["hidden.bias"][:] = 0
    params["hidden.weight"][:] = params["hidden.weight"][..., :1].abs()  # all units are one
    assert diagnose(network, params, states)["feature_rank"] == 1
    params["hidden.weight"][:] = 0
    found = diagnose(network, params, states)
    assert (found["feature_rank"], found["dormant_hidden"]) == (0, 1)
    params["hidden.weight"][:] = torch.nan
    assert np.isnan(diagnose(network, params, states)["feature_rank"])


def test_duplicated_members_are_one_member() -> None:
    """Five copies of one member, in each of four runs."""
    q = np.random.default_rng(0).normal(size=(4, 6, 1, 3)).repeat(5, axis=2)
    parts = Decomposition.of(q, true_q=np.zeros((6, 3)))
    assert parts.member_variance == pytest.approx(0, abs=1e-30)
    assert (parts.correlation, parts.effective_size) == pytest.approx((1, 1))
    assert (parts.true_correlation, parts.true_effective_size) == pytest.approx((1, 1))


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_run_records_it_at_every_probe_and_learns_the_same_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ("algo=meanq", *SHORT, "algo.ensemble_size=2", "evaluation.every=80")
    run = train(tmp_path / "with", *overrides)
    rows = rows_of(run.directory / "diagnosis.csv")
    assert [int(row["step"]) for row in rows] == [0, 80, 160, 240]
    now = run.loop.agent.diagnose(run._probes.states)
    assert {name: float(value) for name, value in rows[-1].items()} == pytest.approx({"step": 240.0, **now})
    assert 1 <= now["feature_rank"] <= 5, "five probe states"

    table = compute(read_runs([tmp_path / "with"])).table
    for name in ("dormant", "dormant_conv0", "feature_rank"):
        found = table[(table["metric"] == name) & (table["scope"] == "over_runs")]
        assert found["step"].tolist() == [80, 160, 240]
        assert found["value"].tolist()[-1] == pytest.approx(now[name])
    points = {point.step: point.scalars for point in read_points(run.directory)}
    assert points[80]["diagnosis/dormant"] == float(rows[1]["dormant"])

    monkeypatch.setattr(Agent, "diagnose", lambda self, states: {})
    without = train(tmp_path / "without", *overrides)
    assert not (without.directory / "diagnosis.csv").exists()
    for name in ("weights.safetensors", "evaluations.csv", "training.csv", "probes.npz"):
        assert (run.directory / name).read_bytes() == (without.directory / name).read_bytes(), name
    assert read_runs([tmp_path / "without"]).problems == []
