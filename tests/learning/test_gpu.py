"""What a GPU needs beside tensors in their places, without one: its graphs, its order, its memory and its time."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from meanq.config.errors import ConfigError
from meanq.config.schema import CONFIG_DIR, Config
from meanq.envs import make_env
from meanq.launching.local import gpus_of
from meanq.learning import build
from meanq.learning.learner import Learner, compiled, compiled_values
from meanq.learning.values import make_value_form
from meanq.rng import stream
from meanq.training import machine
from meanq.training.memory import check_memory
from meanq.training.session import Session
from tests.helpers import algo_config, compose, random_params
from tests.learning.test_compile import make_batch, make_network
from tests.short_runs import SHORT, make_run

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
GB = 10**9


class Graph:
    """A CUDA graph as torch documents it: each replay writes its results where it wrote those of the last one.

    A replay belongs to a new iteration only where that is said; else results of earlier ones must be left alone.
    """

    iterations = 0

    def __init__(self, function: Any, **options: Any) -> None:
        self._function, self.options, self._results, self._iteration = function, options, [], 0

    def __call__(self, *inputs: Any) -> Any:
        assert Graph.iterations > self._iteration, "no new iteration was begun"
        self._iteration = Graph.iterations
        made = self._function(*inputs)
        leaves, spec = torch.utils._pytree.tree_flatten((made[0], vars(made[1])) if isinstance(made, tuple) else made)
        self._results = self._results or [torch.empty_like(leaf) for leaf in leaves]
        for kept, leaf in zip(self._results, leaves, strict=True):
            kept.copy_(leaf)
        results = torch.utils._pytree.tree_unflatten(self._results, spec)
        return (results[0], type(made[1])(**results[1])) if isinstance(made, tuple) else results


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    made: list[Graph] = []

    def compile(function: Any, **options: Any) -> Graph:
        made.append(Graph(function, **options))
        return made[-1]

    def begin() -> None:
        Graph.iterations += 1

    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", begin)
    return made


def test_what_a_graph_computed_outlives_its_next_replay(graphs: list[Graph]) -> None:
    algo = algo_config("meanq", ensemble_size=2)
    network = make_network(algo)
    learner, params = Learner(algo, network, make_value_form(algo, CPU)), random_params(network, 2, 0)
    noise = learner.draw_noise(params, params, torch.Generator())
    step, values = compiled(learner.step, GPU), compiled_values(learner.next_values, GPU)
    batches = [make_batch(algo, seed) for seed in range(3)]
    found = [(step(params, params, b, noise)[1], values(params, b.next_states[0])) for b in batches]
    for batch, (learned, next_values) in zip(batches, found, strict=True):
        expected = learner.step(params, params, batch, noise)[1]
        assert all(torch.equal(getattr(learned, name), value) for name, value in vars(expected).items())
        assert torch.equal(next_values, learner.next_values(params, batch.next_states[0]))
    assert len(graphs) == 2
    for graph in graphs:
        assert graph.options["options"] == {"triton.cudagraphs": True, "deterministic": True}


@pytest.mark.parametrize("name", ["meanq", "meanq_rainbow", "subset_min", "hl_gauss"])
def test_a_compiled_step_has_no_inputs_that_stay_on_the_cpu(name: str) -> None:
    """Else torch would make no CUDA graph of it, and say so only in a log. Agent and minibatch are on `meta` here."""
    meta, algo = torch.device("meta"), algo_config(name, ensemble_size=3)
    network = make_network(algo)
    learner = Learner(algo, network, make_value_form(algo, meta))
    params = {name: p.to(meta) for name, p in random_params(network, 3, 0).items()}
    batch = make_batch(algo, 0)
    batch.ids = batch.indices
    for field, value in vars(batch).items():
        setattr(batch, field, value.to(meta) if isinstance(value, torch.Tensor) else value)
    with torch.device("meta"):
        noise = learner.draw_noise(params, None, torch.Generator())
    noise.subset = torch.zeros(2, dtype=torch.int64, device=meta) if algo.bootstrap_subset else None
    devices: set[str] = set()

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        constants = [*module.parameters(), *module.buffers()]
        devices.update(t.device.type for t in (*inputs, *constants) if isinstance(t, torch.Tensor))
        return module.forward

    torch.compiler.reset()
    torch.compile(learner.step, fullgraph=True, dynamic=False, backend=backend)(params, None, batch, noise)
    assert devices == {"meta"}


# Of torch.use_deterministic_algorithms: what adds up in any order on a GPU, and what a convolution's flag covers not.
IN_ANY_ORDER = {
    "scatter_reduce", "index_add", "index_put", "put", "histc", "bincount", "cumsum", "kthvalue", "median",
    "embedding_dense_backward", "nll_loss_forward", "grid_sampler_2d_backward", "reflection_pad2d_backward",
    "replication_pad2d_backward", "max_pool2d_with_indices_backward", "avg_pool2d_backward",
    "upsample_bilinear2d_backward", "index_select_backward", "_index_put_impl",
}  # fmt: skip


class Calls(TorchDispatchMode):
    """The names of operators, and the largest number of terms that a `scatter_add` adds in one place."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.terms = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.rstrip("_")
        self.names.add(name)
        if name == "scatter_add":
            into, dim, index, source = args
            counts = torch.zeros_like(into).scatter_add(dim, index, torch.ones_like(source))
            self.terms = max(self.terms, int(counts.max()))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONFIG_DIR / "algo").glob("[a-z]*.yaml")))
def test_no_sum_of_a_step_depends_on_the_order_of_threads(name: str) -> None:
    """`cudnn.deterministic` covers convolutions; nothing else that is learned may differ between two runs."""
    config = compose("env=minatar/breakout", f"algo={name}", "network.layer_norm=features", "algo.batch_size=4")
    env = make_env(config.env, stream(0, "env"))
    agent = build.make_agent(config, build.make_network(config, env), CPU, compile=False)
    replay = build.make_replay(config, env, CPU)
    replay.start(env.reset())
    for _ in range(40):
        outcome = env.step(0)
        replay.append(0, outcome.reward, outcome.frame, terminal=outcome.terminal, truncated=outcome.truncated)
        if outcome.terminal or outcome.truncated:
            replay.start(env.reset())
    rows = config.algo.ensemble_size if config.algo.minibatch == "independent" else 1
    with Calls() as calls:
        agent.start_interaction()
        agent.learn(replay.sample(rows, config.algo.batch_size, 0.5))
    assert "convolution_backward" in calls.names and not calls.names & IN_ANY_ORDER
    assert calls.terms <= 1


def test_convolutions_of_a_gpu_are_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    machine.tune_process(1)
    assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark
    assert machine.os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_the_wait_for_a_gpu_counts_as_learning(tmp_path: Path) -> None:
    loop = make_run(tmp_path, *SHORT).loop
    loop.start_game()
    for _ in range(64):
        loop.interact()
    learn, parts = loop.agent.learn, []

    class Errors:
        def __init__(self, errors: torch.Tensor) -> None:
            self._errors = errors

        def cpu(self) -> torch.Tensor:
            parts.append(loop.clock._parts[-1])
            return self._errors

    def learned(*inputs: Any) -> Any:
        made = learn(*inputs)
        made.errors = Errors(made.errors)  # type: ignore[assignment]
        return made

    loop.agent.learn = learned  # type: ignore[method-assign]
    loop.learn()
    assert parts == ["learn"]


@pytest.fixture
def gpu_memory(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU with 8 GB, and a machine with 100 GB."""
    memory = SimpleNamespace(free=8 * GB, reserved=0, allocated=0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (memory.free, 8 * GB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: memory.reserved)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: memory.allocated)
    monkeypatch.setattr("meanq.training.memory.available_memory", lambda: 100 * GB)
    return memory


def check(*overrides: str) -> None:
    config = compose(*overrides)
    check_memory(config, make_env(config.env, stream(0, "env")), GPU)


def test_frames_on_the_gpu_must_fit_there_and_only_they(gpu_memory: SimpleNamespace) -> None:
    """In a chain, the tables beside the frames are larger than they."""
    many = ("env=chain", "algo=dqn", "algo.replay_capacity=50000000", "total_steps=50000000")
    config = compose(*many)
    env = make_env(config.env, stream(0, "env"))
    frames = build.frames_size(config, env)
    assert build.replay_size(config, env) > 2 * frames > 2 * GB
    gpu_memory.free = frames + GB // 10
    check(*many, "replay_on_device=true")
    gpu_memory.free = frames - 1
    with pytest.raises(ConfigError, match=r"capacity=50000000: the replay's frames need .* on the GPU.*on_device=fa"):
        check(*many, "replay_on_device=true")
    check(*many)


def test_memory_that_torch_would_use_again_is_free(gpu_memory: SimpleNamespace) -> None:
    """A process that trains several runs keeps the GPU memory of the last one."""
    run = ("env=breakout", "algo=dqn", "algo.replay_capacity=500000", "total_steps=500000", "replay_on_device=true")
    gpu_memory.free = GB
    with pytest.raises(ConfigError, match=r"the replay's frames need 3\.5 GB and"):
        check(*run)
    gpu_memory.reserved = 7 * GB
    check(*run)
    gpu_memory.allocated = 7 * GB
    with pytest.raises(ConfigError, match="on the GPU"):
        check(*run)


def test_bins_that_cannot_fit_are_blamed(gpu_memory: SimpleNamespace) -> None:
    with pytest.raises(ConfigError, match=r"^algo.atoms=1000000000: minibatches need "):
        check("env=chain", "algo=hl_gauss", "algo.atoms=1000000000")


@pytest.mark.parametrize(
    ("named", "count", "expected"),
    [(None, 2, ["0", "1"]), ("2,3", 2, ["2", "3"]), ("0,-1,1", 1, ["0"]), ("MIG-a", 1, ["MIG-a"])],
)
def test_runs_are_given_gpus_that_cuda_sees(
    named: str | None, count: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    config: Config = compose("env=chain")
    assert gpus_of([config]) == expected


def test_another_gpu_is_named_when_a_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sums and random numbers may differ, so the reader of a warning decides."""
    run = make_run(tmp_path, *SHORT)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    assert "gpu" not in run._versions()
    run.device = GPU
    assert run._versions()["gpu"] == "Tesla T4"
    said: list[str] = []
    saved = {"versions": {**Session._versions(run), "gpu": "A100"}, "compiled": run.compiled}
    run._check_same_machine(saved, SimpleNamespace(warn=said.append))  # type: ignore[arg-type]
    assert said == ["saved with gpu A100 and resumed with Tesla T4: results may differ"]
