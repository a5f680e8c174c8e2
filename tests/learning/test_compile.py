"""The compiled learner is the learner: the same step within rounding, the same bytes every time, and said so."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from meanq.config.errors import ConfigError
from meanq.config.schema import AlgoConfig, Config, ConvolutionConfig, NetworkConfig
from meanq.learning.networks import QNetwork
from meanq.replay.buffer import Batch
from meanq.rundir.checkpoint import CheckpointError
from meanq.training import machine
from tests.helpers import algo_config, compose, make_agent, random_params
from tests.short_runs import SHORT, SilentReporter, compose_run, make_run, train

BATCH, ACTIONS, IMAGE = 6, 3, (2, 9, 9)
CPU = torch.device("cpu")

# Between them: both value forms, every kind of target, shared and own minibatches, masks, noise, several updates.
ALGORITHMS = {
    "meanq": algo_config("meanq", ensemble_size=3),
    "avg_dqn": algo_config("avg_dqn", target_snapshots=2),
    "meanq_rainbow": algo_config("meanq_rainbow", ensemble_size=2, atoms=7),
    "sunrise": algo_config("sunrise", ensemble_size=3, atoms=7, mask_probability=0.5),
    "mellowmax": algo_config("mellowmax", ensemble_size=3, target_network=None),
    "hl_gauss": algo_config("hl_gauss", ensemble_size=2, atoms=7),
    "subset_min": algo_config("subset_min", ensemble_size=3),
    "meanq, resets": algo_config("meanq_no_target", ensemble_size=2, reset_every=2),
    "meanq, features": algo_config("meanq", ensemble_size=2),
    "meanq, channels": algo_config("meanq", ensemble_size=2),
}


def make_network(algo: AlgoConfig, norm: str = "none") -> QNetwork:
    config = NetworkConfig(name="tiny", convolutions=[ConvolutionConfig(4, 3, 2), ConvolutionConfig(3, 2, 1)], hidden=8)
    config.layer_norm = norm
    return QNetwork(
        IMAGE,
        ACTIONS,
        config,
        dueling=algo.dueling,
        scale=1 / 255,
        atoms=algo.atoms if algo.value in ("categorical", "hl_gauss") else None,
        noise=algo.noise if algo.noisy else None,
    )


def make_batch(algo: AlgoConfig, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    rows = algo.ensemble_size if algo.minibatch == "independent" else 1
    masks = torch.randint(2, (algo.ensemble_size, BATCH), generator=generator).float()
    states, next_states = torch.randint(256, (2, rows, BATCH, *IMAGE), generator=generator, dtype=torch.uint8)
    discounts = torch.full((rows, BATCH), 0.9)
    discounts[:, ::3] = 0
    return Batch(
        indices=np.zeros((rows, BATCH), dtype=np.int64),
        states=states,
        actions=torch.randint(ACTIONS, (rows, BATCH), generator=generator),
        returns=torch.randn(rows, BATCH, generator=generator),
        discounts=discounts,
        next_states=next_states,
        weights=torch.rand(rows, BATCH, generator=generator) + 0.1,
        masks=masks if algo.mask_probability < 1 else None,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_compiled_step_is_the_step(name: str) -> None:
    """Step by step: three different batches, with target weights that have moved on in between."""
    algo, norm = ALGORITHMS[name], name.partition(", ")[2]
    network = make_network(algo, norm if norm in ("features", "channels") else "none")
    params = random_params(network, algo.ensemble_size, 0)
    plain, fused = (make_agent(algo, network, params, compile=compile) for compile in (False, True))
    for seed in range(3):
        batch = make_batch(algo, seed)
        expected, found = plain.learn(batch), fused.learn(batch)
        for field, tensor in vars(expected).items():
            torch.testing.assert_close(getattr(found, field), tensor, rtol=1e-4, atol=1e-6)
        for parameter, gradient in plain.gradients.items():
            torch.testing.assert_close(fused.gradients[parameter], gradient, rtol=1e-3, atol=1e-6)
            assert fused.gradients[parameter].stride() == fused.online[parameter].stride()
        fused.load_state_dict(plain.state_dict())  # or rounding would add up through Adam
        plain.update_target()
        fused.update_target()


def with_updates(count: int, compile: str = "auto") -> Config:
    config = compose("algo=dqn", "env=chain")
    algo = dataclasses.replace(config.algo, first_update=100, interactions_per_update=2, gradient_steps=3)
    return dataclasses.replace(config, algo=algo, total_steps=98 + 2 * (count // 3), compile=compile)


def test_auto_compiles_long_runs_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "why_not_compile", lambda device: None)
    limit = machine._COMPILE_FROM_UPDATES // 3 * 3
    assert machine.updates(with_updates(limit)) == limit
    assert machine.resolve_compile(with_updates(limit), CPU) == (False, f"{limit:,} updates are too few for it to pay")
    assert machine.resolve_compile(with_updates(limit + 3), CPU) == (True, f"{limit + 3:,} updates")
    assert machine.resolve_compile(with_updates(3, "true"), CPU) == (True, "compile=true")
    assert machine.resolve_compile(with_updates(limit + 3, "false"), CPU) == (False, "compile=false")


def test_updates_are_counted_as_the_loop_makes_them(tmp_path: Path) -> None:
    run = make_run(tmp_path, *SHORT, "algo.gradient_steps=2", "algo.first_update=63", "algo.interactions_per_update=4")
    learned = []
    learn = run.loop.agent.learn
    run.loop.agent.learn = lambda *args: learned.append(1) or learn(*args)  # type: ignore[method-assign,func-returns-value]
    run.train(SilentReporter())
    assert machine.updates(run.config) == len(learned) > 0


def test_where_torch_cannot_compile_auto_does_without_and_true_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "why_not_compile", lambda device: "no C++ compiler")
    done, reason = machine.resolve_compile(with_updates(300_000), CPU)
    assert not done and reason == "torch cannot compile here: no C++ compiler"
    with pytest.raises(ConfigError, match=r"^compile=true: torch cannot compile here \(no C\+\+ compiler\); write "):
        machine.resolve_compile(with_updates(3, "true"), CPU)


@pytest.mark.slow
def test_a_missing_compiler_is_noticed() -> None:
    """In a process of its own: torch remembers which compiler it found."""
    code = "import torch; from meanq.learning import learner; print(learner.why_not_compile(torch.device('cpu')))"
    environment = {**os.environ, "CXX": "no_such_compiler", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "no_such_compiler" in found.stdout and found.stdout.count("\n") == 1


def test_a_run_that_began_compiled_does_not_go_on_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Stop(SilentReporter):
        def progress(self, step: int, *rest: Any) -> None:
            if step == 60:
                raise RuntimeError("crash")

    overrides = (*SHORT, "algo=dqn", "checkpoint.every=50")
    monkeypatch.setattr(machine, "_COMPILE_FROM_UPDATES", 0)
    run = make_run(tmp_path, *overrides)
    assert run.compiled and "learner compiled (" in run.facts()
    with pytest.raises(RuntimeError, match="crash"):
        run.train(Stop())
    assert json.loads((run.directory / "meta.json").read_text())["compiled"] is True
    monkeypatch.setattr(machine, "why_not_compile", lambda device: "no C++ compiler")
    with pytest.raises(CheckpointError, match="compile=auto: the run began compiled and cannot"):
        make_run(tmp_path, *overrides).train(SilentReporter())
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="holds another run"):
        train(tmp_path, *overrides, "compile=false")


@pytest.mark.parametrize("value", ["yes", "1", "null"])
def test_other_values_are_refused(value: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, ValueError), match="compile"):
        compose_run(tmp_path, f"compile={value}")
