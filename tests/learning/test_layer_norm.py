"""Layer normalisation: stacked members against separate modules with torch's layer_norm."""

import dataclasses
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meanq.config.errors import ConfigError
from meanq.config.schema import ConvolutionConfig, NetworkConfig
from meanq.learning import networks
from meanq.learning.networks import Params, QNetwork
from tests.helpers import random_params
from tests.short_runs import SHORT, make_run, train, weights

IMAGE, ACTIONS, BATCH = (2, 8, 6), 3, 5
CONFIG = NetworkConfig(
    name="tiny", convolutions=[ConvolutionConfig(4, 3, 1), ConvolutionConfig(6, 2, 2)], dense=[10], hidden=8
)


def make_network(norm: str, dueling: bool = True, **more: object) -> QNetwork:
    config = dataclasses.replace(CONFIG, layer_norm=norm)
    return QNetwork(IMAGE, ACTIONS, config, dueling=dueling, scale=0.5, **more)  # type: ignore[arg-type]


def uneven(params: Params) -> Params:
    """Gains and shifts as after some training."""
    generator = torch.Generator().manual_seed(9)
    return {
        name: p + torch.randn(p.shape, generator=generator) if name.endswith(("gain", "shift")) else p
        for name, p in params.items()
    }


def normalise(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    """torch's own, over the last dimensions, which are those of the gain."""
    return F.layer_norm(x, gain.shape, gain, shift)


def one_member(params: Params, k: int, x: Tensor, norm: str, dueling: bool) -> Tensor:
    """One member, layer by layer."""
    own = {name: p[k] for name, p in params.items()}
    x = x * 0.5
    for i, conv in enumerate(CONFIG.convolutions):
        x = F.conv2d(x, own[f"conv{i}.weight"], own[f"conv{i}.bias"], conv.stride)
        gain, shift = own[f"conv{i}.gain"], own[f"conv{i}.shift"]
        if norm == "features":
            x = normalise(x, gain, shift)
        else:
            assert gain.shape[1:] == (1, 1)
            x = normalise(x.permute(0, 2, 3, 1), gain[:, 0, 0], shift[:, 0, 0]).permute(0, 3, 1, 2)
        x = F.relu(x)
    x = x.permute(0, 2, 3, 1).flatten(1)
    x = x @ own["dense0.weight"] + own["dense0.bias"]
    x = F.relu(normalise(x, own["dense0.gain"][0, 0], own["dense0.shift"][0, 0]))
    streams = (x @ own["hidden.weight"] + own["hidden.bias"]).chunk(2 if dueling else 1, -1)
    hidden = [
        F.relu(normalise(each, own["hidden.gain"][0, i], own["hidden.shift"][0, i])) for i, each in enumerate(streams)
    ]
    value = hidden[0] @ own["value.weight"] + own["value.bias"]
    if not dueling:
        return value
    advantage = hidden[1] @ own["advantage.weight"] + own["advantage.bias"]
    return value + advantage - advantage.mean(-1, keepdim=True)


@pytest.mark.parametrize("threshold", [0, 1e9], ids=["loop", "grouped"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("members", [1, 5])
@pytest.mark.parametrize("norm", ["features", "channels"])
def test_values_and_gradients_are_those_of_separate_modules(
    norm: str, members: int, dueling: bool, shared: bool, threshold: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "_LOOP_MULTIPLY_ADDS", threshold)
    network = make_network(norm, dueling)
    params = {n: p.requires_grad_() for n, p in uneven(random_params(network, members, 0)).items()}
    shape = (BATCH, *IMAGE) if shared else (members, BATCH, *IMAGE)
    states = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    found = network(params, states)
    slow = torch.stack([one_member(params, k, states if shared else states[k], norm, dueling) for k in range(members)])
    torch.testing.assert_close(found, slow, rtol=1e-4, atol=1e-5)
    weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(2))
    ours = torch.autograd.grad((found * weight).sum(), list(params.values()))
    theirs = torch.autograd.grad((slow * weight).sum(), list(params.values()))
    for gradient, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-4)


def test_each_input_of_a_rectifier_has_mean_0_and_variance_1() -> None:
    network = make_network("features")
    params = random_params(network, 3, 0)
    x = 7 + 5 * torch.randn(3, BATCH, 16, generator=torch.Generator().manual_seed(0))
    normal = network._rectify({**params, "hidden.shift": torch.full_like(params["hidden.shift"], 50.0)}, "hidden", x)
    each = (normal - 50).unflatten(-1, (2, 8))
    assert each.mean(-1).abs().max() < 1e-4 and (each.std(-1, correction=0) - 1).abs().max() < 1e-3


def test_without_it_nothing_changes_and_with_it_initial_weights_stay() -> None:
    plain, normalised = (random_params(make_network(norm), 2, 0) for norm in ("none", "features"))
    assert plain.keys() < normalised.keys()
    assert all(torch.equal(p, normalised[name]) for name, p in plain.items())
    added = {name: p for name, p in normalised.items() if name not in plain}
    assert all((p == float(name.endswith("gain"))).all() for name, p in added.items())
    assert {name.partition(".")[0] for name in added} == {"conv0", "conv1", "dense0", "hidden"}, "none on the output"


@pytest.mark.parametrize("fields", [(), ("algo=meanq_rainbow", "algo.ensemble_size=2"), ("algo.parallel_networks=2",)])
@pytest.mark.parametrize("norm", ["features", "channels"])
def test_it_trains_also_with_noise_and_parallel_networks(norm: str, fields: tuple[str, ...], tmp_path: Path) -> None:
    run = train(tmp_path, *SHORT, f"network.layer_norm={norm}", *fields)
    stored = weights(run.directory)
    assert stored["conv0.gain"].shape[1:] == ((16, 8, 8) if norm == "features" else (16, 1, 1))
    assert (stored["hidden.gain"] != 1).float().mean() > 0.5, "a unit that is never active keeps its gain"
    assert (stored["hidden.shift"] != 0).any()


def test_a_network_of_one_s_own_has_no_such_layers(tmp_path: Path) -> None:
    own = ("network=custom", "network.kind=torch.nn.Identity", "algo.dueling=false", "network.layer_norm=features")
    with pytest.raises(ConfigError, match=r"network.layer_norm=features: network.kind=\S+ has layers of its own"):
        make_run(tmp_path, *SHORT, *own)
