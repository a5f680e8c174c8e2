"""The commands that the report gives make the configurations that were recorded."""

import shlex
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from analysis.results.commands import commands
from analysis.runs import read_runs
from meanq.config.fields import flatten, is_identity
from meanq.launching.plan import expand_seed_ranges, plan, register_schema
from tests.synthetic_runs import write_run

SWEEPS = {
    "as the paper": ["algo=dqn,meanq_rainbow", "env=seaquest,minatar/breakout", "seed=0-2"],
    "a study": ["+study=techniques", "scale=minatar", "seed=0-1"],
    "overrides": [
        "algo=meanq",
        "env=hero",
        "algo.ensemble_size=3,10",
        "algo.target_network=null",
        "seed=4",
        "threads=2",
    ],
    "a technique less": ["algo=rainbow,meanq_rainbow", "env=asterix", "algo.noisy=false", "network=nature"],
    "text": [
        "algo=meanq",
        "env=chain",
        "env.options.reward_noise=0.5",
        "algo.bootstrap=statistics.mean",
        "study='it is'",
    ],
    "gymnasium": ["algo=dqn", "env=gymnasium", "env.id=CartPole-v1", "total_steps=3000", "label=a b"],
    "of one's own": [
        "env=custom",
        "env.kind=meanq.envs.chain.Chain",
        "env.name=corridor",
        "+env.options.length=4",
        "algo=maxmin",
    ],
    "a list": ["env=chain", "network.dense=[7,5]", "network.hidden=9", "evaluation.every=50"],
}


@pytest.mark.parametrize("overrides", SWEEPS.values(), ids=SWEEPS.keys())
def test_a_command_composes_what_was_recorded(overrides: list[str], tmp_path: Path) -> None:
    register_schema()
    made = plan(expand_seed_ranges(["-m", *overrides, f"root={tmp_path}/first"]))
    assert made is not None
    recorded = {}
    for config, directory in zip(made.configs, made.directories, strict=True):
        directory.mkdir(parents=True)
        (directory / "config.yaml").write_text(yaml.safe_dump(asdict(config), sort_keys=False))
        recorded[directory.relative_to(tmp_path / "first")] = asdict(config)
    again = {}
    for command in commands(read_runs([tmp_path / "first"])):
        words = shlex.split(command.text)
        assert words[:3] == ["python", "-m", "meanq.run"], command.text
        repeated = plan(expand_seed_ranges([*words[3:], f"root={tmp_path}/second"]))
        assert repeated is not None
        for config, directory in zip(repeated.configs, repeated.directories, strict=True):
            again[directory.relative_to(tmp_path / "second")] = asdict(config)
    assert again.keys() == recorded.keys()
    for name, config in recorded.items():
        first, second = (
            {field: value for field, value in flatten(c).items() if is_identity(field.split(".")[0])}
            for c in (config, again[name])
        )
        assert first == second


def test_runs_of_several_games_share_a_command(tmp_path: Path) -> None:
    for env in ("asterix", "hero"):
        for seed in (0, 1, 2, 5):
            overrides = {"env.kind": "atari", "env.id": env, "network.name": "nature"}
            write_run(tmp_path, env, "dqn", seed, {100: 1.0}, overrides=overrides)
    (command,) = commands(read_runs([tmp_path]))
    assert command.envs == ("asterix", "hero")
    assert " algo=dqn env=asterix,hero network=nature seed=0-2,5 total_steps=100 " in command.text


def test_what_this_version_does_not_have_is_said(tmp_path: Path) -> None:
    kinds = {"env.kind": "atari", "env.id": "asterix", "network.name": "nature"}
    write_run(tmp_path, "asterix", "mine", overrides={**kinds, "algo.name": "../../mine"})
    write_run(tmp_path, "asterix", "dqn", overrides=kinds)
    by_label = {command.label: command.text for command in commands(read_runs([tmp_path]))}
    assert by_label["mine"] == "no command: this version of meanq has no algo=../../mine"
    assert by_label["dqn"].startswith("python -m meanq.run -m algo=dqn env=asterix ")


def test_a_hostile_value_stays_one_word(tmp_path: Path) -> None:
    kinds = {"env.kind": "atari", "env.id": "asterix", "network.name": "nature", "algo.name": "dqn"}
    write_run(tmp_path, "asterix", "'; touch pwned; '", overrides={**kinds, "algo.bootstrap": "$(id)\n"})
    write_run(tmp_path, "asterix", "y", overrides={**kinds, "algo": {**_algo(), "a=b; id #": 1}})
    by_label = {command.label: command.text for command in commands(read_runs([tmp_path]))}
    words = shlex.split(by_label["'; touch pwned; '"])
    assert words[-1] == r"label='\'; touch pwned; \''"
    assert "algo.bootstrap='$(id)\n'" in words
    assert by_label["y"] == "no command: algo.a=b; id # is no field that can be overridden"


def _algo() -> dict[str, object]:
    return {"name": "dqn", "ensemble_size": 1}
