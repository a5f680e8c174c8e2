"""What a run leaves behind: complete, deterministic, and never another run's."""

import contextlib
import csv
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from meanq.config.errors import ConfigError
from meanq.config.schema import CONFIG_DIR
from meanq.envs import Environment, Step
from meanq.rundir import circumstances
from meanq.rundir.files import write_atomically
from meanq.status.summary import time_shares
from meanq.training.clock import PARTS, Clock
from meanq.training.machine import MEMORY_SHARE
from tests.helpers import slow_but
from tests.short_runs import SHORT, SilentReporter, make_run, train, weights

DETERMINISTIC = ("evaluations.csv", "training.csv", "diagnosis.csv", "probes.npz", "weights.safetensors", "config.yaml")


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("finished"), *SHORT).directory


def test_the_directory_is_complete(finished: Path) -> None:
    evaluations = read(finished / "evaluations.csv")
    assert [(row["step"], row["episode"]) for row in evaluations] == [
        ("120", "0"),
        ("120", "1"),
        ("240", "0"),
        ("240", "1"),
    ]
    assert list(evaluations[0]) == [
        "step",
        "episode",
        "return",
        "discounted_return",
        "discounted_return_unclipped",
        "discounted_return_first_life",
        "length",
        "value",
    ]
    training = read(finished / "training.csv")
    assert [row["step"] for row in training] == ["60", "120", "180", "240"]
    assert training[0]["loss"] == "", "before the first update there is no loss"
    assert float(training[-1]["loss"]) > 0
    assert float(training[-1]["epsilon"]) == pytest.approx(0.1)
    probes = np.load(finished / "probes.npz", allow_pickle=False)
    assert probes["step"].tolist() == [0, 80, 160, 240]
    assert probes["q"].shape == (4, 5, 5, 5), "steps, states, members, actions"
    assert "true_q" not in probes
    assert json.loads((finished / "status.json").read_text())["state"] == "finished"
    meta = json.loads((finished / "meta.json").read_text())
    assert meta["seconds"] > 0 and meta["threads"] == 1 and "torch" in meta["versions"]
    assert meta["cores"] >= 1 and (meta["cpu"] is None or meta["cpu"].strip() == meta["cpu"] != "")
    config = yaml.safe_load((finished / "config.yaml").read_text())
    assert config["algo"]["learning_rate"] == 2.5e-4, "resolved, not a reference"
    assert {path.name for path in finished.iterdir()} == {*DETERMINISTIC, "timings.csv", "status.json", "meta.json"}


def test_the_shares_of_time_add_up_to_the_wall_time(finished: Path) -> None:
    """In every row, and in the summary."""
    rows = read(finished / "timings.csv")
    assert len(rows) == 4
    for row in rows:
        shares = {name: float(value) for name, value in row.items() if name.startswith("share_")}
        assert set(shares) == {f"share_{part}" for part in PARTS}
        assert sum(shares.values()) == pytest.approx(1, abs=0.05)
        assert all(share >= 0 for share in shares.values())
    assert float(rows[-1]["share_evaluate"]) > 0 and float(rows[-1]["share_learn"]) > 0
    assert float(rows[0]["share_learn"]) == 0, "before the first update"
    total = time_shares([finished])
    assert sum(total.values()) == pytest.approx(1, abs=0.05)
    assert list(total.values()) == sorted(total.values(), reverse=True)


def test_a_clock_charges_the_innermost_part(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("meanq.training.clock.time.perf_counter", lambda: now[0])
    clock = Clock()
    now[0] += 1  # other
    with clock.time("evaluate"):
        now[0] += 2
        with contextlib.suppress(ValueError), clock.time("save"):
            now[0] += 4
            raise ValueError
        now[0] += 8
    with clock.time("act"):
        now[0] += 16
    assert clock.take() == dict.fromkeys(PARTS, 0.0) | {"other": 1, "evaluate": 10, "save": 4, "act": 16}
    now[0] += 32
    assert clock.take() == dict.fromkeys(PARTS, 0.0) | {"other": 32}


def test_the_last_probe_is_the_final_weights(finished: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path, *SHORT)
    with torch.no_grad():
        for name, p in weights(finished).items():
            run.loop.agent.online[name].copy_(p)
    q = run.loop.agent.values(run._probes.states)
    stored = np.load(finished / "probes.npz")["q"][-1]
    np.testing.assert_array_equal(q.transpose(1, 0, 2), stored)


@pytest.mark.parametrize("algo", ["meanq", "bootstrapped_dqn"])
def test_the_same_command_gives_the_same_bytes(algo: str, tmp_path: Path) -> None:
    first = train(tmp_path / "first", f"algo={algo}", *SHORT).directory
    np.random.seed(1)  # noqa: NPY002 - nothing may depend on global generators
    torch.manual_seed(1)
    second = train(tmp_path / "second", f"algo={algo}", *SHORT).directory
    for name in DETERMINISTIC[:-1]:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_another_seed_differs_in_weights_exploration_sampling_and_starts(finished: Path, tmp_path: Path) -> None:
    ours, theirs = make_run(tmp_path, *SHORT), make_run(tmp_path, *SHORT, "seed=1")
    assert not torch.equal(ours.loop.agent.online["hidden.weight"], theirs.loop.agent.online["hidden.weight"])
    starts = [[run.loop.env.reset().tobytes() for _ in range(10)] for run in (ours, theirs)]
    assert starts[0] != starts[1]
    draws = [
        [
            getattr(owner, name).random()
            for owner, name in ((run.loop._explorer, "_actions"), (run.loop.replay, "_generator"))
        ]
        for run in (ours, theirs)
    ]
    assert len({value for pair in draws for value in pair}) == 4, "streams differ between seeds and from each other"
    directory = train(tmp_path, *SHORT, "seed=1").directory
    for name in DETERMINISTIC[:-1]:
        assert (directory / name).read_bytes() != (finished / name).read_bytes(), name


def test_an_unfinished_run_starts_again_and_ends_the_same(finished: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path, *SHORT)

    class Interrupting(SilentReporter):
        def progress(self, step: int, *rest: Any) -> None:
            if step == 130:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.train(Interrupting())
    status = json.loads((run.directory / "status.json").read_text())
    assert (status["state"], status["step"]) == ("interrupted", 130)
    assert [row["step"] for row in read(run.directory / "evaluations.csv")] == ["120", "120"]
    again = train(tmp_path, *SHORT).directory
    for name in DETERMINISTIC[:-1]:
        assert (again / name).read_bytes() == (finished / name).read_bytes(), name


def test_a_directory_with_another_config_is_refused_and_untouched(tmp_path: Path) -> None:
    directory = train(tmp_path, *SHORT, "label=mine").directory
    before = {path: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(ConfigError, match=r"holds another run \(algo.learning_rate: 0.00025 -> 0.1\)"):
        train(tmp_path, *SHORT, "label=mine", "algo.learning_rate=0.1")
    assert {path: path.read_bytes() for path in directory.iterdir()} == before


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    directory = make_run(tmp_path, *SHORT).directory
    directory.mkdir(parents=True)
    (directory / "thesis.tex").write_text("precious")
    with pytest.raises(ConfigError, match=r"holds files but no config\.yaml"):
        train(tmp_path, *SHORT)
    assert [path.name for path in directory.iterdir()] == ["thesis.tex"]


def test_making_a_run_writes_nothing(tmp_path: Path) -> None:
    make_run(tmp_path, *SHORT)
    assert not any(tmp_path.iterdir())


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.csv"
    write_atomically(path, b"old")

    def crash(descriptor: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", crash)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["table.csv"], "no temporary file is left behind"


def test_too_little_memory_is_an_error_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meanq.training.memory.available_memory", lambda: 10**9)
    with pytest.raises(
        ConfigError, match=r"algo.replay_capacity=500000: the replay needs 3\.\d GB and \d+\.\d MB are free"
    ):
        make_run(tmp_path, "env=hero")
    assert not any(tmp_path.iterdir())


def test_runs_side_by_side_share_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY_SHARE, "1000000000")
    with pytest.raises(ConfigError, match=r"are free for each run: .*or fewer hydra.launcher.jobs"):
        make_run(tmp_path, "env=hero")


def test_500k_atari_frames_take_little_more_than_their_pixels(tmp_path: Path) -> None:
    run = make_run(tmp_path, "env=hero", "algo.ensemble_size=1")
    assert 500_000 * 84 * 84 < run.replay_bytes < 500_000 * 84 * 84 * 1.02


class Corridor(Environment):
    """A researcher's own environment: walk right, `length` times."""

    num_actions = 2
    frame_dtype = np.dtype(np.float32)

    def __init__(self, id: str, generator: np.random.Generator, length: int = 3) -> None:
        super().__init__(generator)
        self._length, self._cell = length, 0
        self.frame_shape = (length,)

    def _frame(self) -> np.ndarray:
        return np.eye(self._length, dtype=np.float32)[min(self._cell, self._length - 1)]

    def reset(self) -> np.ndarray:
        self._cell, self._steps = 0, 0
        return self._frame()

    def step(self, action: int) -> Step:
        self._cell += action
        self._steps += 1
        terminal = self._cell == self._length
        truncated = not terminal and self._steps == 50
        return Step(self._frame(), float(terminal), terminal, truncated, life_lost=False)


def test_an_environment_named_by_its_import_path_trains(tmp_path: Path) -> None:
    run = train(
        tmp_path,
        "env=custom",
        "env.kind=tests.training.test_runs.Corridor",
        "env.name=corridor",
        "+env.options.length=4",
        "algo.first_update=64",
        "algo.epsilon.steps=600",
        "algo.ensemble_size=2",
        "algo.discount=0.8",
        "evaluation.episodes=1",
        "total_steps=1200",
        "threads=1",
    )
    assert run.directory.parts[-3] == "corridor"
    assert [e.episode_return for e in run.last_evaluation] == [1.0]
    assert run.last_evaluation[0].length == 4


MAIN = [path.stem for path in sorted((CONFIG_DIR / "algo").glob("*.yaml")) if re.search("rainbow|sunrise", path.stem)]
FLIPS = (
    "algo.dueling=false",
    "algo.noisy=false",
    "algo.value=scalar",
    "algo.multi_step=3",
    "algo.exploration=epsilon_greedy",
    "algo.prioritized=false",
    "algo.double=true",
)


@pytest.mark.parametrize("algo", slow_but(MAIN, "meanq_rainbow", "rainbow"))
@pytest.mark.parametrize("env", slow_but(["minatar/breakout", "assault"], "minatar/breakout"))
def test_the_main_algorithms_train_with_any_technique_flipped(algo: str, env: str, tmp_path: Path) -> None:
    """One override each; on Atari, where a step is slow, all as they are."""
    short = [o for o in SHORT if not o.startswith(("env", "total_steps", "algo.first_update"))]
    limit = "env.options.max_frames=200" if env == "assault" else "env.options.max_steps=20"
    for flip in FLIPS if env == "minatar/breakout" else ("seed=0",):
        run = train(
            tmp_path, f"algo={algo}", f"env={env}", *short, limit, "total_steps=70", "algo.first_update=64", flip
        )
        assert run.loop.step == 70 and np.isfinite([e.value for e in run.last_evaluation]).all()
        assert all(p.isfinite().all() for p in weights(run.directory).values()), flip


@pytest.mark.parametrize("env", ["pong", "minatar/freeway", "gymnasium"])
def test_every_kind_of_environment_trains(env: str, tmp_path: Path) -> None:
    short = [o for o in SHORT if not o.startswith("env")]
    limit = {"pong": ["env.options.max_frames=400"], "minatar/freeway": ["env.options.max_steps=50"]}.get(env, [])
    run = train(tmp_path, f"env={env}", "algo.ensemble_size=2", *short, *limit, "total_steps=120", "log_every=60")
    assert run.last_evaluation and np.isfinite([e.value for e in run.last_evaluation]).all()
    assert run.loop.step == 120


def test_the_commit_is_that_of_the_code_which_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of a change made while it runs, though meta.json is written again at its end."""
    before = circumstances.circumstances()["commit"]
    monkeypatch.setattr(circumstances.subprocess, "run", lambda *a, **k: SimpleNamespace(stdout="another\n"))
    assert circumstances.circumstances()["commit"] == before != "another"
