"""Run directories of a commit that lacks many of today's fields: recognised, resumed, compared and made again.

tests/data/old_runs/README.md says what made them.
"""

import csv
import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import yaml

from analysis.evaluate import evaluate
from analysis.runs import read_runs
from meanq import run
from meanq.config.errors import ConfigError
from meanq.config.fields import flatten
from meanq.config.schema import Config
from meanq.rundir.circumstances import circumstances
from meanq.rundir.identity import differences
from meanq.rundir.reuse import find_twin, reuse
from meanq.training.session import Session
from tests.short_runs import SilentReporter, compose_run, train

OLD = Path(__file__).parents[1] / "data" / "old_runs"
# As in its README.
COMMAND = (
    *("algo=meanq", "env=chain", "seed=0", "total_steps=300", "algo.ensemble_size=2", "network.dense=[8]"),
    *("network.hidden=8", "algo.replay_capacity=150", "algo.epsilon.steps=200", "evaluation.every=100"),
    *("evaluation.episodes=2", "probe.every=100", "probe.states=3", "log_every=50", "checkpoint.every=1000"),
    *("device=cpu", "threads=1", "study=old", "label=meanq"),
)


def copy(name: str, root: Path) -> Path:
    """The directory of an old run, below a root of its own."""
    shutil.copytree(OLD / name, root, dirs_exist_ok=True)
    return root / "old" / "chain" / "meanq" / "seed_0"


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class Listening(SilentReporter):
    """Remembers where the run began."""

    first = -1

    def started(self, config: Config, directory: Path, facts: str, step: int) -> None:
        self.first = step


def test_they_lack_fields_of_today() -> None:
    """Otherwise nothing here would be tested."""
    stored = flatten(yaml.safe_load((OLD / "finished/old/chain/meanq/seed_0/config.yaml").read_text()))
    today = flatten(asdict(compose_run(OLD, *COMMAND, "label=another")))
    assert stored.keys() < today.keys()
    assert {"algo.random_steps", "algo.loss", "env.stack_over_lives", "network.padding"} <= today.keys() - stored.keys()


def test_a_finished_one_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy("finished", tmp_path)
    before = contents(tmp_path)
    monkeypatch.setattr(sys, "argv", ["meanq", *COMMAND, f"root={tmp_path}"])
    with pytest.raises(SystemExit) as stop:
        run.main()
    assert stop.value.code == 0
    assert "seed_0 is finished already: skipped" in capsys.readouterr().out
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["finished", "interrupted"])
@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("algo.discount=0.9", "algo.discount: 0.99 -> 0.9"),
        ("algo.random_steps=10", "algo.random_steps: 0 -> 10"),
        ("algo.importance_steps=200", "algo.importance_steps: None -> 200"),
        ("algo.loss=huber", "algo.loss: squared -> huber"),
        ("env.stack_over_lives=true", "env.stack_over_lives: False -> True"),
    ],
)
def test_another_value_is_refused(name: str, override: str, says: str, tmp_path: Path) -> None:
    directory = copy(name, tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ConfigError) as error:
        train(tmp_path, *COMMAND, override)
    assert str(error.value).startswith(f"{directory} holds another run ({says}): ")
    assert contents(tmp_path) == before


def test_an_interrupted_one_goes_on(tmp_path: Path) -> None:
    finished, directory = copy("finished", tmp_path / "finished"), copy("interrupted", tmp_path / "interrupted")
    before = {name: rows(directory / name) for name in ("evaluations.csv", "training.csv")}
    probes = np.load(directory / "probes.npz")["q"]
    reporter = Listening()
    Session(compose_run(tmp_path / "interrupted", *COMMAND)).train(reporter)
    assert reporter.first == 170
    status, meta = (json.loads((directory / name).read_text()) for name in ("status.json", "meta.json"))
    assert (status["state"], status["step"], meta["resumed"]) == ("finished", 300, [170])
    for name, stored in before.items():
        kept = rows(directory / name)[: len(stored)]
        assert [{column: row[column] for column in stored[0]} for row in kept] == stored, name
    table = rows(directory / "training.csv")
    assert [row["step"] for row in table] == ["50", "100", "150", "200", "250", "300"]
    added = table[0].keys() - before["training.csv"][0].keys()
    assert added and all(table[2][column] == "" != table[3][column] for column in added), "empty where it did not exist"
    after = np.load(directory / "probes.npz")
    assert after["step"].tolist() == [0, 100, 200, 300]
    np.testing.assert_array_equal(after["q"][: len(probes)], probes)
    # Another processor or another PyTorch may round otherwise; then a run that is not interrupted differs, too.
    whole = train(tmp_path / "whole", *COMMAND).directory
    if (whole / "weights.safetensors").read_bytes() == (finished / "weights.safetensors").read_bytes():
        for name in ("evaluations.csv", "probes.npz", "weights.safetensors"):
            assert (directory / name).read_bytes() == (finished / name).read_bytes(), name
        old = rows(finished / "training.csv")
        assert [{column: row[column] for column in old[0]} for row in table] == old


def test_an_old_run_is_the_twin_of_a_new_one(tmp_path: Path) -> None:
    directory = copy("finished", tmp_path)
    meta = json.loads((directory / "meta.json").read_text())
    meta["versions"] = circumstances()["versions"]  # whichever are installed here
    (directory / "meta.json").write_text(json.dumps(meta))
    names = ("study=new", "label=another")
    for override in ("algo.random_steps=10", "algo.loss=huber", "algo.discount=0.9"):
        assert find_twin(compose_run(tmp_path, *COMMAND, *names, override)) is None, override
    config = compose_run(tmp_path, *COMMAND, *names)
    assert reuse(config) == directory
    copied = tmp_path / "new" / "chain" / "another" / "seed_0"
    assert differences(copied, config) == []
    assert (copied / "weights.safetensors").read_bytes() == (directory / "weights.safetensors").read_bytes()


def write_config(config: Config) -> None:
    directory = Path(config.root) / config.study / config.env.name / str(config.label) / f"seed_{config.seed}"
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(yaml.safe_dump(asdict(config), sort_keys=False))


def test_old_and_new_runs_of_a_label_are_one_configuration(tmp_path: Path) -> None:
    copy("finished", tmp_path)
    write_config(compose_run(tmp_path, *COMMAND, "seed=1"))
    found = read_runs([tmp_path])
    assert found.labels == ["meanq"] and [each.seed for each in found.of("chain", "meanq")] == [0, 1]
    assert not any("several configurations" in message for message in found.messages())
    write_config(compose_run(tmp_path, *COMMAND, "seed=2", "algo.random_steps=10"))
    assert read_runs([tmp_path]).labels == ["meanq {algo.random_steps=0}", "meanq {algo.random_steps=10}"]


def test_options_of_environments_have_declared_defaults_too(tmp_path: Path) -> None:
    directory = tmp_path / "old" / "boxing" / "meanq_rainbow" / "seed_0"
    directory.mkdir(parents=True)
    shutil.copy(OLD / "meanq_rainbow_boxing.yaml", directory / "config.yaml")
    stored = yaml.safe_load((directory / "config.yaml").read_text())
    words = [
        *("algo=meanq_rainbow", "env=boxing", "network=data_efficient", "algo.adam_epsilon=0.00015"),
        *("algo.multi_step=1", "algo.max_gradient_norm=10.0", "algo.random_steps=0", "algo.importance_steps=null"),
        *("algo.ensemble_std=population", f"study={stored['study']}", "label=meanq_rainbow"),
        *("device=cpu", "threads=1"),
    ]
    assert differences(directory, compose_run(tmp_path / "again", *words)) == []
    config = compose_run(tmp_path / "again", *words, "env.options.resize=linear")
    assert differences(directory, config) == ["env.options.resize: area -> linear"]


@pytest.mark.parametrize("name", ["finished", "interrupted"])
def test_an_old_agent_still_plays(name: str) -> None:
    """Its configuration lacks blocks of families that were added later."""
    (run,) = read_runs([OLD / name]).runs
    rows = evaluate(run, episodes=2, epsilon=None, trust=False, notes=[])
    assert "greedy" in {row["protocol"] for row in rows} and np.isfinite([row["return"] for row in rows]).all()
