"""The commands that pages give repeat the runs: they come from the overrides that each run recorded."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from analysis.results.provenance import commands, public_overrides
from analysis.runs import read_runs
from meanq.launching.plan import plan
from tests.synthetic_runs import write_run

SWEEPS = {
    "games and seeds": ["algo=dqn,meanq_rainbow", "env=seaquest,minatar/breakout", "seed=0-2"],
    "overrides": ["algo=meanq", "env=hero", "algo.ensemble_size=3,10", "algo.target_network=null", "seed=4"],
    "text": ["env=chain", "algo.bootstrap=meanq.learning.bootstrap.MEAN", "study='it is'", "label='a, b'"],
    "of one's own": ["env=custom", "env.kind=meanq.envs.chain.Chain", "env.name=a", "+env.options.length=4"],
    "a list": ["env=chain", "network.dense=[7,5]", "network.hidden=9"],
    "no game": ["total_steps=2000"],
}


def record(directory: Path, overrides: Sequence[str]) -> None:
    (directory / "meta.json").write_text(json.dumps({"overrides": list(overrides)}))


@pytest.mark.parametrize("overrides", SWEEPS.values(), ids=SWEEPS.keys())
def test_a_command_makes_the_configurations_of_its_runs(overrides: list[str], tmp_path: Path) -> None:
    made = plan(["-m", *overrides, f"root={tmp_path}/first"])
    assert made is not None
    recorded = {}
    for config, words, directory in zip(made.configs, made.job_overrides, made.directories, strict=True):
        directory.mkdir(parents=True)
        (directory / "config.yaml").write_text(yaml.safe_dump(asdict(config), sort_keys=False))
        record(directory, words)
        recorded[directory.relative_to(tmp_path / "first")] = asdict(config) | {"root": ""}
    again = {}
    for command in commands(read_runs([tmp_path / "first"])):
        words = shlex.split(command)
        assert words[:4] == ["python", "-m", "meanq.run", "-m"], command
        repeated = plan([*words[3:], f"root={tmp_path}/second"])
        assert repeated is not None
        for config, directory in zip(repeated.configs, repeated.directories, strict=True):
            again[directory.relative_to(tmp_path / "second")] = asdict(config) | {"root": ""}
    assert again == recorded


def test_runs_that_differ_in_seed_and_game_share_a_command(tmp_path: Path) -> None:
    for env, seeds in (("asterix", (0, 1, 2, 5)), ("hero", (0, 1, 2, 5)), ("pong", (0, 1))):
        for seed in seeds:
            words = ["study=x", "algo=dqn", f"env={env}", f"seed={seed}", "algo.noisy=true"]
            record(write_run(tmp_path, env, "dqn", seed), words)
    both, pong = commands(read_runs([tmp_path]))
    assert both == "python -m meanq.run -m algo=dqn env=asterix,hero seed=0-2,5 study=x algo.noisy=true"
    assert pong == "python -m meanq.run -m algo=dqn env=pong seed=0-1 study=x algo.noisy=true"


def test_runs_without_overrides_say_so_once_per_label(tmp_path: Path) -> None:
    for env in ("asterix", "hero"):
        for seed in range(2):
            (write_run(tmp_path, env, "dqn", seed) / "meta.json").write_text("{}")
    (command,) = commands(read_runs([tmp_path]))
    assert command == "# dqn: command not recorded; config.yaml of each run has every value"


@pytest.mark.parametrize("overrides", ["algo=dqn", [1]])
def test_a_run_whose_overrides_are_no_list_of_texts_is_skipped(overrides: object, tmp_path: Path) -> None:
    for seed, meta in enumerate([{}, {"overrides": overrides}]):
        (write_run(tmp_path, "asterix", "dqn", seed) / "meta.json").write_text(json.dumps(meta))
    found = read_runs([tmp_path])
    assert [run.seed for run in found.runs] == [0]
    (problem,) = found.problems
    assert "seed_1: meta.json: overrides is " in problem


def test_a_hostile_override_stays_one_word(tmp_path: Path) -> None:
    record(write_run(tmp_path, "asterix", "dqn"), ["algo=dqn", "label='; touch pwned; '", "x=$(id)\n"])
    (command,) = commands(read_runs([tmp_path]))
    assert shlex.split(command)[4:] == ["algo=dqn", "seed=0", "label='; touch pwned; '", "x=$(id)\n"]


def test_a_label_needs_no_nested_quotes_in_a_command(tmp_path: Path) -> None:
    for seed, quote in enumerate(("", "'")):  # as written today, and by older versions
        words = ["algo=dqn", f"seed={seed}", f"label={quote}dqn__noise=0.5{quote}"]
        record(write_run(tmp_path / str(seed), "asterix", "dqn__noise=0.5", seed), words)
        (command,) = commands(read_runs([tmp_path / str(seed)]))
        assert command == f"python -m meanq.run -m algo=dqn seed={seed} label=dqn__noise=0.5"


def test_directories_and_accounts_are_not_public() -> None:
    private = ["root=/home/alice", "logger=wandb", "+logger.entity=alice", "hydra/launcher=slurm", "hydra.verbose=true"]
    assert public_overrides({"overrides": [*private, "algo=dqn", "rooted=1"]}) == ["algo=dqn", "rooted=1"]
