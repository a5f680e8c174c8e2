"""A GPU without a GPU: under torch's FakeTensorMode tensors claim to be on cuda:1, and mixing devices raises.

Nothing is computed. What these runs show is that every tensor is where it should be, through acting, sampling,
learning, target copies, evaluation, probes, diagnostics, saving and resuming. The backward pass is left out, since
autograd asks CUDA itself for its streams: gradients are zeros that are placed as the weights are.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from meanq.config.schema import Config
from meanq.envs import make_env
from meanq.learning import build, learner
from meanq.learning.networks import Params
from meanq.learning.optimiser import TorchOptimiser
from meanq.learning.stacked import StackedModule
from meanq.rng import stream
from meanq.rundir.checkpoint import _from_plain, _to_plain
from meanq.training.evaluation import Evaluator, evaluation_policy, make_probes
from meanq.training.loop import Loop
from tests.helpers import compose

GPU = torch.device("cuda", 1)  # not the first: what is placed on "cuda" without a number is elsewhere
SMALL = (
    "total_steps=60",
    "algo.first_update=16",
    "algo.interactions_per_update=4",
    "algo.batch_size=4",
    "algo.replay_capacity=40",
    "algo.random_steps=0",
    "evaluation.episodes=2",
    "probe.states=3",
    "threads=1",
    "compile=false",
)
CHAIN = ("env=chain", "env.options.max_steps=5")
MINATAR = ("env=minatar/breakout", "env.options.max_steps=8", "network.hidden=16")
CASES: dict[str, tuple[str, ...]] = {
    "scalar, kept next values": (*CHAIN, "algo=meanq", "algo.target_network=8"),
    "double, Huber": (*CHAIN, "algo=double_dqn", "algo.loss=huber"),
    "categorical, noisy, no target": (*MINATAR, "algo=meanq_rainbow"),
    "quantile, noisy, snapshots": (
        *CHAIN, "algo=meanq", "algo.value=quantile", "algo.quantiles=7", "algo.noisy=true", "algo.target_snapshots=3",
        "algo.target_network=8", "evaluation.noise=true",
    ),
    "masks, confidence, UCB": (*CHAIN, "algo=sunrise"),
    "shared noise, augmentation": (
        *MINATAR, "algo=meanq_rainbow", "algo.shared_noise=true", "algo.random_shift=1", "algo.random_intensity=0.1",
    ),
    "parallel networks, one member per episode": (
        *CHAIN, "algo=bootstrapped_dqn", "algo.parallel_networks=2",
    ),
    "frames on the device": (*MINATAR, "algo=meanq", "replay_on_device=true"),
    "HL-Gauss, layer norm of features": (
        *MINATAR, "algo=hl_gauss", "algo.target_network=null", "algo.ensemble_size=2", "network.layer_norm=features",
    ),
    "mellowmax, layer norm of channels": (*MINATAR, "algo=mellowmax", "network.layer_norm=channels"),
    "random subsets, resets": (*CHAIN, "algo=subset_min", "algo.reset_every=2", "algo.reset_layers=all"),
    "an optimiser of torch": (*CHAIN, "algo=meanq", "algo.optimiser=torch.optim.Adam"),
    "a fused optimiser of torch": (
        *CHAIN, "algo=meanq", "algo.optimiser=torch.optim.Adam", "+algo.optimiser_options.fused=true",
    ),
}  # fmt: skip


def indexed(tensor: torch.Tensor, key: Any) -> torch.Tensor:
    """What tensor[key] does, by operators alone: a torch without CUDA cannot index what claims to be on cuda."""
    keys = list(key) if isinstance(key, tuple) else [key]
    if Ellipsis in [k for k in keys if not isinstance(k, torch.Tensor)]:
        at = next(i for i, k in enumerate(keys) if k is Ellipsis)
        consumed = sum(k is not None for k in keys) - 1
        keys[at : at + 1] = [slice(None)] * (tensor.dim() - consumed)
    dim, indices = 0, list[torch.Tensor | None]()
    for k in keys:
        if k is None:
            tensor = tensor.unsqueeze(dim)
        elif isinstance(k, slice):
            tensor = torch.ops.aten.slice(tensor, dim, k.start, k.stop, k.step or 1)
        elif isinstance(k, torch.Tensor):
            indices += [None] * (dim - len(indices)) + [k]
        else:
            tensor = tensor.select(dim, k)
            continue
        dim += 1
    return torch.ops.aten.index(tensor, indices) if indices else tensor


def assign(tensor: torch.Tensor, key: Any, value: Any) -> None:
    if isinstance(key, torch.Tensor):
        torch.ops.aten.index_put_(tensor, [key], value)
    else:
        indexed(tensor, key).copy_(value)


class AnyGenerator(torch.Generator):
    """There is none for cuda; its state is on the CPU there, too."""

    def __new__(cls, device: object = "cpu") -> "AnyGenerator":
        return super().__new__(cls)

    def set_state(self, state: torch.Tensor) -> "AnyGenerator":
        assert (state.device.type, state.dtype) == ("cpu", torch.uint8)
        return self


def without_backward(loss: Any, params: Params) -> tuple[Params, Any]:
    with torch.no_grad():
        total, rest = loss(params)
    assert total.device == GPU
    return {name: torch.zeros_like(p) for name, p in params.items()}, rest


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Numbers that leave a fake device are zeros; they may leave it only by way of the CPU."""

    def to_numpy(tensor: torch.Tensor) -> np.ndarray:
        assert tensor.device.type == "cpu", "can't convert cuda tensor to numpy"
        return np.zeros(tensor.shape, dtype=str(tensor.dtype).removeprefix("torch."))

    def copy(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:  # from any device, as torch allows
        assert torch.broadcast_shapes(tensor.shape, source.shape) == tensor.shape
        return tensor

    def contiguous(tensor: torch.Tensor, memory_format: Any = torch.contiguous_format) -> torch.Tensor:
        return torch.empty_like(tensor, memory_format=memory_format)

    def same(a: torch.Tensor, b: torch.Tensor) -> bool:
        assert a.device == b.device
        return True

    fake = FakeTensorMode(allow_non_fake_inputs=True)
    monkeypatch.setattr(torch, "Generator", AnyGenerator)
    monkeypatch.setattr(torch, "equal", same)
    shims = {"numpy": to_numpy, "__float__": lambda _: 0.0, "__bool__": lambda _: True}
    shims |= {"copy_": copy, "contiguous": contiguous}
    shims |= {"__getitem__": indexed, "__setitem__": assign, "pin_memory": lambda tensor: tensor}
    monkeypatch.setattr(learner, "_differentiate", without_backward)
    for name, value in shims.items():
        monkeypatch.setattr(torch.Tensor, name, value)
    with fake:
        yield


def make_loop(config: Config) -> Loop:
    env = make_env(config.env, stream(0, "env"))
    agent = build.make_agent(config, build.make_network(config, env, GPU), GPU, compile=False)
    return Loop(config, env, agent, build.make_explorer(config, env), build.make_replay(config, env, GPU))


@pytest.fixture(params=CASES)
def config(request: pytest.FixtureRequest) -> Config:
    return compose(*SMALL, *CASES[request.param])


def test_every_tensor_is_on_its_device(config: Config, gpu: None) -> None:
    loop = make_loop(config)
    loop.start_game()
    for _ in range(30):
        loop.advance()
    loop.agent.update_target()
    probes = make_probes(config)
    assert loop.agent.values(probes.states).shape[:2] == (config.algo.ensemble_size, 3)
    loop.agent.diagnostics(probes.states)
    loop.agent.diagnose(probes.states)
    Evaluator(config)(evaluation_policy(loop.agent, config, loop.step), loop.step)
    loop.statistics.take_row()
    loop.learn()
    loop.check_finite()
    state = {**loop.state_dict(), **loop.statistics.state_dict()}
    arrays: dict[str, np.ndarray] = {}
    saved = _from_plain(_to_plain(state, "", arrays), arrays)
    frames = loop.replay.get_frames(loop.replay.held_frames())
    again = make_loop(config)
    again.load_state_dict(loop.step, saved)
    again.statistics.load_state_dict(saved, GPU)
    again.replay.set_frames(loop.replay.held_frames(), frames)
    again.advance()
    again.learn()
    on = {p.device for params in (again.agent.online, again.agent.target or {}) for p in params.values()}
    assert on == {GPU}


def test_a_mix_up_is_noticed(gpu: None) -> None:
    with pytest.raises(RuntimeError, match="two devices"):
        torch.zeros(3, device=GPU) + torch.zeros(3)
    with pytest.raises(AssertionError, match="cuda tensor"):
        torch.zeros(3, device=GPU).numpy()


@pytest.mark.parametrize(("options", "counts_on"), [({}, "cpu"), ({"capturable": True}, "meta")])
def test_an_optimiser_s_numbers_return_to_where_torch_keeps_them(options: dict[str, bool], counts_on: str) -> None:
    """Also those without dimensions: ASGD keeps its step size with the weights. (Here these have no memory at all.)"""
    params = {"w": torch.zeros(3, device="meta")}
    optimiser = TorchOptimiser(torch.optim.ASGD(list(params.values()), **options), params)  # type: ignore[arg-type]
    saved = {"step": torch.tensor(2.0), "eta": torch.tensor(0.1), "mu": torch.tensor(1.0), "ax": torch.zeros(3)}
    optimiser.load_state_dict({"w": saved})
    loaded = optimiser._optimiser.state[params["w"]]
    assert {name: value.device.type for name, value in loaded.items()} == {
        **dict.fromkeys(saved, "meta"),
        "step": counts_on,
    }


def test_weights_of_own_networks_seed_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their modules draw from torch's own generator, which is restored; those of GPUs would not be."""
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("GPUs are seeded"))
    network = StackedModule(lambda: torch.nn.Linear(2, 2), (2,))
    before = torch.random.get_rng_state()
    drawn = [network.init([torch.Generator().manual_seed(seed)])["weight"] for seed in (1, 2, 1)]
    assert torch.equal(drawn[0], drawn[2]) and not torch.equal(drawn[0], drawn[1])
    assert torch.equal(torch.random.get_rng_state(), before)
