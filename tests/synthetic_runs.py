"""Writes run directories with known contents, for tests of what reads them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

COLUMNS = "step,episode,return,discounted_return,discounted_return_unclipped,discounted_return_first_life,length,value"


def make_config(env: str, label: str, seed: int, **overrides: Any) -> dict[str, Any]:
    """The fields that matter to analysis; overrides by dotted name: {"algo.learning_rate": 1.0}."""
    config: dict[str, Any] = {
        "seed": seed,
        "total_steps": 100_000,
        "study": "study",
        "label": label,
        "root": "runs",
        "device": "cpu",
        "threads": 1,
        "log_every": 1000,
        "algo": {"name": label, "ensemble_size": 1, "target_network": 2000, "learning_rate": 1e-4, "discount": 0.99},
        "env": {
            "name": env,
            "random_score": 0.0,
            "random_score_500k": None,
            "reference_score": 10.0,
            "vanilla": {"total_steps": 100_000},
        },
        "evaluation": {"episodes": 2, "every": 10_000},
        "probe": {"states": 4, "every": 10_000, "seed": 0},
        "logger": {"name": "files"},
    }
    for name, value in overrides.items():
        node = config
        *parents, last = name.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return config


def write_run(
    root: Path,
    env: str = "game",
    label: str = "dqn",
    seed: int = 0,
    returns: Mapping[int, Any] | None = None,
    values: float | Mapping[int, Any] = 0.0,
    discounted: float = 0.0,
    unclipped: float = 0.0,
    first_life: float = 0.0,
    q: Mapping[int, np.ndarray] | None = None,
    true_q: np.ndarray | None = None,
    policy_value: np.ndarray | None = None,
    state: str = "finished",
    seconds: float | None = 100.0,
    overrides: Mapping[str, Any] | None = None,
) -> Path:
    """One run directory, <root>/<env>/<label>/seed_<n>.

    returns: by step, the returns of that evaluation's episodes, or one number for two equal ones; values: V(s_0), for
    all or by step. q: by step, [P, K, A]; states and members of the configuration follow it. policy_value: [T, P].
    """
    directory = root / env / label / f"seed_{seed}"
    directory.mkdir(parents=True)
    returns = {} if returns is None else returns
    rows = [COLUMNS]
    for step, found in returns.items():
        value = values[step] if isinstance(values, Mapping) else values
        for i, score in enumerate(np.ravel(found) if np.ndim(found) else [found, found]):
            rows.append(f"{step},{i},{score},{discounted},{unclipped},{first_life},10,{value}")
    overrides = dict(overrides or {})
    if returns:
        (directory / "evaluations.csv").write_text("\n".join(rows) + "\n")
        overrides.setdefault("total_steps", max(returns))
    if q is not None:
        arrays = {"step": np.array(list(q)), "q": np.stack(list(q.values())).astype(np.float32)}
        if true_q is not None:
            arrays["true_q"] = true_q
        if policy_value is not None:
            arrays["policy_value"] = policy_value
        np.savez(directory / "probes.npz", allow_pickle=False, **arrays)
        _, states, members, _ = arrays["q"].shape
        overrides = {"probe.states": states, "algo.ensemble_size": members, **overrides}
    config = make_config(env, label, seed, **overrides)
    (directory / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    reached = max(returns, default=0)
    status = {"state": state, "total_steps": config["total_steps"], "step": reached}
    (directory / "status.json").write_text(json.dumps(status))
    meta = {"host": "somewhere", **({"seconds": seconds} if seconds is not None and state == "finished" else {})}
    (directory / "meta.json").write_text(json.dumps(meta))
    if seconds is not None:
        timings = f"step,seconds,steps_per_second\n{reached},{seconds},{reached / seconds}\n"
        (directory / "timings.csv").write_text(timings)
    return directory


def gaussian_q(
    generator: np.random.Generator,
    states: int,
    members: int,
    actions: int,
    shared_sigma: float,
    member_sigma: float,
    mean: float = 0.0,
) -> np.ndarray:
    """Q [P, K, A] of one run: a mean, plus noise that its members share, plus noise of each member."""
    shared = generator.normal(0, shared_sigma, (states, 1, actions))
    return mean + shared + generator.normal(0, member_sigma, (states, members, actions))
