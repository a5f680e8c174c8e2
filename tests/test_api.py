"""`import meanq`: load a run, read many runs, train one. Numbers are those of the run's own files."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import meanq
from meanq import api
from meanq.rundir import layout
from meanq.rundir.frames import probe_frame
from meanq.rundir.reader import Probes
from tests.short_runs import SHORT

PROJECT = Path(__file__).parents[1]
OLD = PROJECT / "tests" / "data" / "old_runs"
TINY = (
    *("algo=meanq", "env=chain", "total_steps=60", "algo.first_update=40", "evaluation.episodes=3", "threads=1"),
    *("evaluation.every=30", "probe.every=30", "probe.states=4", "log_every=20", "compile=false", "device=cpu"),
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs: two seeds of one label and one run of another."""
    root = tmp_path_factory.mktemp("api") / "runs"
    for different in (["label=five"], ["label=five", "seed=11"], ["label=two", "algo.ensemble_size=2"]):
        meanq.train([*TINY, f"root={root}", *different], quiet=True)
    return root


@pytest.fixture(scope="module")
def run(root: Path) -> meanq.Run:
    return meanq.load(root / "default/chain/five/seed_0")


def test_importing_is_light(root: Path) -> None:
    script = (
        "import sys, meanq\n"
        "heavy = lambda: {'torch', 'pandas', 'hydra', 'omegaconf', 'numpy'} & set(sys.modules)\n"
        "assert not heavy(), heavy()\n"
        "assert {'load', 'runs', 'train', '__version__'} <= set(dir(meanq))\n"
        f"repr(meanq.load(r'{root}/default/chain/five/seed_0'))\n"
        "assert not {'torch', 'pandas', 'hydra'} & heavy(), heavy()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_unknown_names_of_the_module_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'lode'"):
        meanq.lode  # noqa: B018


def test_a_run_has_its_configuration_tables_probes_and_status(run: meanq.Run) -> None:
    assert (run.env, run.algo, run.label, run.seed, run.state) == ("chain", "meanq", "five", 0, "finished")
    assert run.config["algo"]["ensemble_size"] == run.field("algo.ensemble_size") == 5
    for name in layout.TABLES:
        stored = pd.read_csv(run.directory / name)
        table = run.frame(name.removesuffix(".csv"))
        assert list(table) == list(stored) and np.allclose(table, stored, equal_nan=True), name
        assert table["step"].dtype.kind == "i"
    assert run.evaluations["step"].tolist() == [30] * 3 + [60] * 3 and run.training["step"].tolist() == [20, 40, 60]
    assert run.probes is not None and run.probes.q.shape[:3] == (3, 4, 5)
    assert run.status["step"] == 60 and run.meta["device"] == "cpu"
    assert repr(run) == "<Run chain/five/seed_0: finished, 60 of 60 steps>"


def test_a_field_that_is_newer_than_the_run_has_its_default() -> None:
    old = meanq.load(OLD / "finished/old/chain/meanq/seed_0")
    assert "loss" not in old.config["algo"] and old.field("algo.loss") == "squared"
    assert len(old.evaluations) and old.agent.q(old.agent.probe_states).shape[:2] == (2, 3)


def test_q_of_every_member_is_that_of_the_last_probe(run: meanq.Run) -> None:
    assert run.probes is not None
    q = run.agent.q(run.agent.probe_states)
    np.testing.assert_array_equal(q.transpose(1, 0, 2), run.probes.q[-1])
    best = [max(np.mean(q[:, state, action]) for action in range(q.shape[2])) for state in range(q.shape[1])]
    np.testing.assert_allclose(run.agent.value(run.agent.probe_states), best, rtol=1e-6)
    actions = [run.agent.act(state) for state in run.agent.probe_states]
    assert actions == q.mean(0).argmax(-1).tolist() and type(actions[0]) is int
    shape = list(run.agent.probe_states.shape[1:])
    assert repr(run.agent) == f"<Agent: 5 members, {q.shape[2]} actions, states {shape}, step 60>"


def test_play_repeats_the_last_evaluation(run: meanq.Run) -> None:
    episodes = run.agent.play(states=True)
    recorded = run.evaluations[run.evaluations["step"] == 60]
    for name in ("return", "length", "value", "discounted_return"):
        attribute = "episode_return" if name == "return" else name
        assert [getattr(e.score, attribute) for e in episodes] == pytest.approx(recorded[name].tolist()), name
    for episode in episodes:
        assert episode.states is not None and len(episode.states) == len(episode.actions) == episode.score.length
        np.testing.assert_allclose(run.agent.q(episode.states).transpose(1, 0, 2), episode.q, rtol=1e-4, atol=1e-5)
        assert episode.rewards.sum() == pytest.approx(episode.score.episode_return)
        assert episode.realised[0] == pytest.approx(episode.score.discounted_return)
    (one,) = run.agent.play(1)
    assert one.states is None and len(repr(one)) < 60


def test_all_runs_are_one_tidy_frame(root: Path) -> None:
    found = meanq.runs(root)
    assert [(r.label, r.seed) for r in found] == [("five", 0), ("five", 11), ("two", 0)]
    assert len(found[:2]) == 2 and isinstance(found[:2], meanq.Runs) and found[-1].label == "two"
    frame = found.frame("evaluations", fields=["algo.ensemble_size", "study", "network.dense"])
    assert list(frame)[:7] == ["env", "algo", "label", "seed", "algo.ensemble_size", "study", "network.dense"]
    assert frame["seed"].dtype.kind == "i" and frame["step"].dtype.kind == "i"
    cells = frame.groupby(["label", "seed", "algo.ensemble_size", "network.dense"])["return"].mean()
    assert len(cells) == 3 and set(frame["algo.ensemble_size"]) == {5, 2}
    for run in found:
        rows = frame[(frame["label"] == run.label) & (frame["seed"] == run.seed)]
        assert rows["return"].tolist() == run.evaluations["return"].tolist()
    pivot = found.frame("training").pivot_table(index="step", columns="seed", values="loss")
    assert list(pivot) == [0, 11]
    about = found.frame("runs", fields=["algo.noisy"])
    assert about["state"].tolist() == ["finished"] * 3 and (about["step"] == about["total_steps"]).all()
    assert len(repr(found)) < 100 and "3 finished" in repr(found)


def test_probes_are_tidy_too(root: Path) -> None:
    found = meanq.runs([root / "default/chain/five", root / "default/chain/two"])
    frame = found.frame("probes")
    for run in found:
        assert run.probes is not None
        part = frame[(frame["label"] == run.label) & (frame["seed"] == run.seed)]
        assert len(part) == run.probes.q.size
        q = part.sort_values(["step", "state", "member", "action"])["q"].to_numpy().reshape(run.probes.q.shape)
        np.testing.assert_array_equal(q, run.probes.q)
        assert run.probes.true_q is not None
        row = part[(part["state"] == 2) & (part["action"] == 1)].iloc[0]
        assert row["true_q"] == run.probes.true_q[2, 1]


def test_probes_have_the_exact_value_of_the_policy_where_it_is_known() -> None:
    q, exact = np.arange(24.0).reshape(2, 3, 2, 2), np.arange(6.0).reshape(2, 3)
    frame = probe_frame(Probes(np.array([0, 50]), q, None, exact))
    assert "true_q" not in frame and len(frame) == 24
    assert frame.query("step == 50 and state == 1")["policy_value"].tolist() == [exact[1, 1]] * 4
    row = frame.query("step == 50 and state == 1 and member == 1 and action == 0")
    assert row["q"].item() == q[1, 1, 1, 0]


def test_train_returns_a_finished_run_as_it_is(root: Path, run: meanq.Run) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.directory.iterdir()}
    again = meanq.train([*TINY, "label=five", f"root={root}"])
    assert again.directory == run.directory and again.state == "finished"
    assert {path: path.stat().st_mtime_ns for path in run.directory.iterdir()} == before


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["algo=dqn,meanq"], r"^algo=dqn,meanq: this names several runs; call train for each"),
        (["seed=0-4"], r"several runs; call train for each"),
        (["+study=first_look"], r"several runs; call train for each"),
        (["-m", "algo=dqn"], r"^-m: train takes overrides"),
        (["algo.learning_rat=1"], r"^algo.learning_rat: there is no such field; did you mean"),
        ("algo=dqn", r"^algo=dqn: give a list of overrides"),
    ],
)
def test_mistakes_in_training_are_one_line_and_write_nothing(overrides: list[str], says: str, tmp_path: Path) -> None:
    given = overrides if isinstance(overrides, str) else [*overrides, f"root={tmp_path}/runs"]
    with pytest.raises(meanq.ConfigError, match=says) as error:
        meanq.train(given)
    assert "\n" not in str(error.value) and not any(tmp_path.iterdir())


def test_a_failure_is_raised_and_its_run_says_why(tmp_path: Path) -> None:
    with pytest.raises(FloatingPointError, match="learning_rate"):
        meanq.train([*TINY, "algo.learning_rate=1e30", "algo.max_gradient_norm=null", f"root={tmp_path}"], quiet=True)
    (failed,) = meanq.runs(tmp_path)
    assert failed.state == "failed" and "learning_rate" in failed.status["reason"]


def test_mistakes_in_reading_are_one_line(root: Path, run: meanq.Run, tmp_path: Path) -> None:
    states = run.agent.probe_states
    mistakes = [
        (lambda: meanq.load(root), r"not the directory of a run, .../seed_<n> \(no config.yaml\)$"),
        (lambda: meanq.runs(tmp_path), r"no run here; give the directory of a run"),
        (lambda: run.frame("evaluation"), r"^evaluation: there is no such table; did you mean evaluations"),
        (
            lambda: run.field("algo.ensemble"),
            r"^algo.ensemble: there is no such field; did you mean .*algo.ensemble_size",
        ),
        (lambda: meanq.runs(root).frame("evaluations", fields="study"), r"give a list, fields=\[\"study\"\]"),
        (lambda: run.agent.q(states[0]), r"^states have shape \[\d+\]; give \[N, \d+\]$"),
        (lambda: run.agent.act(states), r"^states have shape"),
        (lambda: run.agent.play(0), r"^episodes=0: write a whole number"),
        (lambda: run.agent_at(7), r"^checkpoint 7: .* has no such checkpoint \(it has: none\)$"),
    ]
    for mistake, says in mistakes:
        with pytest.raises(ValueError, match=says) as error:
            mistake()
        assert "\n" not in str(error.value) and isinstance(error.value, meanq.ConfigError | meanq.RunError)


def test_damaged_runs_are_left_out_with_a_warning(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "runs")
    (tmp_path / "runs/default/chain/five/seed_11/config.yaml").write_text("{")
    with pytest.warns(UserWarning, match=r"left out what cannot be read .*seed_11"):
        found = meanq.runs(tmp_path)
    assert len(found) == 2 and len(found.problems) == 1 and "1 unreadable" in repr(found)


def test_code_of_a_run_needs_trust(root: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(root / "default/chain/five/seed_0", tmp_path / "seed_0")
    config = (directory / "config.yaml").read_text()
    (directory / "config.yaml").write_text(config.replace("kind: chain", "kind: meanq.envs.chain.Chain"))
    with pytest.raises(meanq.RunError, match=r"env.kind=meanq.envs.chain.Chain names code outside meanq; .*trust=True"):
        meanq.load(directory).agent  # noqa: B018
    assert meanq.load(directory, trust=True).agent.step == 60


def test_a_run_without_weights_has_tables_but_no_agent(root: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(root / "default/chain/five/seed_0", tmp_path / "seed_0")
    (directory / "weights.safetensors").unlink()
    status = json.loads((directory / "status.json").read_text())
    (directory / "status.json").write_text(json.dumps({**status, "state": "interrupted"}))
    run = meanq.load(directory)
    assert run.state == "interrupted" and len(run.evaluations) == 6
    with pytest.raises(meanq.RunError, match="nothing yet that could play"):
        run.agent  # noqa: B018


def test_the_examples_of_the_documentation_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks in their order, with training made short."""

    def short(overrides: list[str], **options: bool) -> meanq.Run:
        label = overrides[0].replace("algo=", "label=")
        rest = (override for override in SHORT if not override.startswith("env="))
        return train([*rest, *overrides, label], **{**options, "quiet": True})

    train = meanq.train
    monkeypatch.setattr(api, "train", short)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall("```python\n(.*?)```", (PROJECT / "docs" / "python.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 4 and len(names["runs"]) == 3 and len(names["frame"]) == 2 * 2
