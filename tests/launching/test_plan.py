"""Command lines: seed ranges, labels, and the plan of a sweep."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from meanq.config.errors import ConfigError
from meanq.config.schema import Config
from meanq.launching.overrides import for_hydra, label_override, run_label, seed_ranges, unquoted_label
from meanq.launching.plan import hydra_arguments, plan


@pytest.mark.parametrize(
    ("written", "seeds"),
    [
        ("seed=0-4", "seed=0,1,2,3,4"),
        ("seed=0-2,7", "seed=0,1,2,7"),
        ("seed=7,0-2", "seed=7,0,1,2"),
        ("seed=3", "seed=3"),
        ("seed=3-3", "seed=3"),
        ("seed=range(0,5)", "seed=range(0,5)"),
        ("algo.label=0-4", "algo.label=0-4"),
        ("probe.seed=0-4", "probe.seed=0-4"),
    ],
)
def test_seed_ranges(written: str, seeds: str) -> None:
    assert for_hydra(["algo=meanq", written]) == ["algo=meanq", seeds]


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("seed=4-0", "runs backwards; write seed=0-4"),
        ("seed=x", "write whole numbers"),
        ("seed=", "write whole numbers"),
        ("seed=0-", "write whole numbers"),
        ("seed=0..4", "write whole numbers"),
        ("seed=-1", "write whole numbers"),
        ("seed=1.5", "write whole numbers"),
    ],
)
def test_seeds_that_cannot_be(written: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        for_hydra([written])


@pytest.mark.parametrize(("seeds", "text"), [([0, 1, 2], "0-2"), ([3], "3"), ([7, 0, 1, 4, 5], "0-1,4-5,7")])
def test_seeds_are_written_as_ranges(seeds: list[int], text: str) -> None:
    assert seed_ranges(seeds) == text


def test_options_may_stand_anywhere() -> None:
    assert hydra_arguments(["label=a=1", "--cfg", "job"])[-1] == "label='a=1'"
    assert hydra_arguments(["algo=dqn", "-m", "seed=0-1"]) == ["-m", "algo=dqn", "seed=0,1"]
    assert hydra_arguments(["env=hero", "--cfg", "job", "algo=dqn"]) == [
        "--cfg",
        "job",
        "--resolve",
        "env=hero",
        "algo=dqn",
    ]


@pytest.mark.parametrize(
    ("overrides", "label"),
    [
        (["algo=meanq", "env=hero", "seed=3", "root=/somewhere", "device=cpu", "hydra/launcher=slurm"], "meanq"),
        (["total_steps=20000", "algo.ensemble_size=10"], "meanq__ensemble_size=10__total_steps=20000"),
        (["algo.ensemble_size=10", "total_steps=20000"], "meanq__ensemble_size=10__total_steps=20000"),
        (["algo.target_network=null"], "meanq__target_network=null"),
        (["+env.options.x='a b/c'"], "meanq__env.options.x=-a-b-c"),
        (["network.dense=[64,64]"], "meanq__network.dense=-64-64"),
        (["evaluation.every=10", "evaluation.episodes=2", "probe.every=10", "probe.states=2", "log_every=5"], "meanq"),
        (["checkpoint.every=5", "logger=wandb", "env.evaluate_every=3", "env.random_score=1"], "meanq"),
        (["evaluation.noise=true", "evaluation.every=10"], "meanq__evaluation.noise=true"),
    ],
)
def test_labels_say_what_changes_learning(overrides: list[str], label: str) -> None:
    assert run_label("meanq", overrides) == label


def test_long_labels_fit_a_file_name_and_stay_apart() -> None:
    labels = {run_label("meanq", [f"algo.bootstrap={'x' * 300}{i}"]) for i in range(2)}
    assert len(labels) == 2 and all(len(label) <= 120 for label in labels)


def test_the_users_own_example_is_ten_runs_of_atari(tmp_path: Path) -> None:
    planned = plan(["-m", "algo=meanq,ens_dqn", "env=seaquest", "seed=0-4", f"root={tmp_path}"])
    assert planned is not None
    assert [d.relative_to(tmp_path).as_posix() for d in planned.directories] == [
        f"default/seaquest/{algo}/seed_{seed}" for algo in ("meanq", "ens_dqn") for seed in range(5)
    ]
    assert {config.env.kind for config in planned.configs} == {"atari"}
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("launcher", ["slurm", "local", "basic"])
def test_every_launcher_composes(launcher: str, tmp_path: Path) -> None:
    planned = plan(["-m", f"hydra/launcher={launcher}", "seed=0,1", f"root={tmp_path}"])
    assert planned is not None and [config.label for config in planned.configs] == ["meanq", "meanq"]


@pytest.mark.parametrize(
    ("sweep", "remedy"),
    [
        (["algo=meanq,dqn", "label=mine"], "label=NAME_${algo.name}"),
        (["evaluation.every=100,200"], "label=NAME_${evaluation.every}"),
        (["network=nature,dopamine", "label=a"], "label=NAME_${network.name}"),
    ],
)
def test_two_runs_in_one_directory_are_refused_and_the_remedy_works(
    sweep: list[str], remedy: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="the same directory") as error:
        plan(["-m", *sweep, "env=breakout", f"root={tmp_path}"])
    assert str(error.value).endswith(f"for example '{remedy}'")
    named = plan(["-m", *(o for o in sweep if "label" not in o), remedy, "env=breakout", f"root={tmp_path}"])
    assert named is not None and len({config.label for config in named.configs}) == 2


@pytest.mark.parametrize("label", ["meanq__ensemble_size=10", "a+b-c.d", "1e-3", "true", "007", "mine", "null", "a, b"])
def test_a_label_is_taken_and_written_as_it_is(label: str, tmp_path: Path) -> None:
    written = label_override(label)
    planned = plan([written, f"root={tmp_path}"])
    assert planned is not None and planned.configs[0].label == label
    assert planned.job_overrides[0][-1] == written
    plain = label not in ("null", "a, b")
    assert (shlex.quote(written) == written == f"label={label}") == plain, "no quotes, neither Hydra's nor the shell's"
    assert unquoted_label(f"label='{label}'") == written


def test_the_runs_of_older_versions_are_found_under_their_longer_label(tmp_path: Path) -> None:
    command = ["-m", "algo=dqn", "env=chain", "evaluation.every=500", "log_every=100", "seed=0-1", f"root={tmp_path}"]
    labels = {config.label for config in _configs(command)}
    assert labels == {"dqn"}
    older = tmp_path / "default" / "chain" / "dqn__evaluation.every=500__log_every=100"
    older.mkdir(parents=True)
    assert {config.label for config in _configs(command)} == {older.name}
    assert {config.label for config in _configs([*command, "label=mine"])} == {"mine"}


def _configs(command: list[str]) -> list[Config]:
    planned = plan(command)
    assert planned is not None
    return planned.configs


def test_an_algorithm_file_of_ones_own_needs_no_edit_of_the_package(tmp_path: Path) -> None:
    own = tmp_path / "my_conf" / "algo"
    own.mkdir(parents=True)
    (own / "pair.yaml").write_text("defaults:\n  - maxmin\n  - _self_\n\nname: pair\nensemble_size: 2\n")
    planned = plan(["--config-dir", str(tmp_path / "my_conf"), "algo=pair", f"root={tmp_path}"])
    assert planned is not None
    (config,) = planned.configs
    assert (config.label, config.algo.bootstrap, config.algo.ensemble_size) == ("pair", "min", 2)


def test_a_sweep_and_a_single_run_call_the_same_run_the_same(tmp_path: Path) -> None:
    fields = ("algo.dueling=false", "algo.double=True", "algo.learning_rate=1e-3", f"root={tmp_path}")
    for written in (fields, ("algo.double=true", "algo.dueling=False", "algo.learning_rate=0.001", fields[-1])):
        alone, one, sweep = (
            plan(["seed=0", *written]),
            plan(["-m", "seed=0", *written]),
            plan(["-m", "seed=0,1", *fields]),
        )
        assert alone is not None and one is not None and sweep is not None
        assert alone.configs[0].label == "meanq__double=true__dueling=false__learning_rate=0.001"
        assert alone.directories == one.directories == sweep.directories[:1]


def test_large_and_small_numbers_have_names_of_their_own() -> None:
    assert run_label("dqn", ["algo.value_max=1e+20"]) != run_label("dqn", ["algo.value_max=1e-20"])


def test_what_follows_the_seed_does_so_in_every_run_of_a_sweep(tmp_path: Path) -> None:
    own = tmp_path / "my_conf" / "env"
    own.mkdir(parents=True)
    defaults = "defaults:\n  - minatar/asterix@_here_\n  - _self_\n"
    (own / "limited.yaml").write_text(f"{defaults}\noptions:\n  max_steps: ${{seed}}\n")
    planned = plan(["-m", "--config-dir", str(own.parent), "env=limited", "seed=7,8", f"root={tmp_path}"])
    assert planned is not None and [c.env.options["max_steps"] for c in planned.configs] == [7, 8]


def test_of_two_seeds_the_last_counts_as_in_hydra(tmp_path: Path) -> None:
    planned = plan(["seed=1", "seed=2", f"root={tmp_path}"])
    assert planned is not None and [config.seed for config in planned.configs] == [2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["hydra/launcher=slurm"], r"^hydra/launcher=slurm: without -m .*; add -m$"),
        (["-m", "hydra.launcher.jobs=2"], r"^hydra.launcher.jobs: .* write hydra/launcher=local or"),
        (["-m", "hydra/launcher=local", "hydra.launcher.job=2"], r"did you mean hydra.launcher.jobs"),
        (["-m", "hydra/launcher=slurm", "hydra.launcher.partitionn=x"], r"did you mean hydra.launcher.partition"),
        # Where Hydra's plugin for submitit is installed, its launchers are known, but still not meanq's.
        (["-m", "hydra/launcher=submitit_slurm"], r"^hydra/launcher=submitit_slurm: .* slurm\??$"),
        (["-m", "hydra/launcher=joblib"], r"^hydra/launcher=joblib: .* choose from basic, local, slurm"),
    ],
)
def test_mistakes_about_launchers_and_names_are_one_line(arguments: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        plan([*arguments, f"root={tmp_path}"])
    assert len(str(caught.value)) < 200


def test_a_launcher_of_a_plugin_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hydra" / "launcher").mkdir(parents=True)
    (tmp_path / "hydra" / "launcher" / "other.yaml").write_text("_target_: some.plugin.Launcher\n")
    with pytest.raises(ConfigError, match=r"^hydra/launcher=other: .* write basic, local or slurm$"):
        plan(["-m", "--config-dir", str(tmp_path), "hydra/launcher=other", f"root={tmp_path}"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["+algo.learning_rat=0.5"],
            r"^algo.learning_rat=0.5: there is no such field; did you mean algo.learning_rate",
        ),
        (["++algo.learning_rat=0.5"], r"^algo.learning_rat=0.5: there is no such field"),
        (["+algo.learning_rat=0.5", "--cfg", "job"], r"^algo.learning_rat=0.5: there is no such field"),
        (["+seed=3"], r"^\+seed: this field exists; write it without the plus sign"),
        (["-m", "env=glob(nothing*)"], r"^env=glob\(nothing\*\): it matches none of alien"),
        (["-m", "seed=glob(*)"], r"glob\(\) chooses among algo, env"),
        (["-m", "algo.learning_rate=interval(0,1)"], r"a sweep needs single values"),
        (["-m", "hydra/sweeper=optuna"], r"^hydra/sweeper=optuna: .* has no other sweeper; write the values"),
        (["hydra.run.dir=x"], r"^hydra.run.dir=x: it would have no effect; write root="),
    ],
)
def test_nothing_on_the_command_line_is_silently_ignored(arguments: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        plan([*arguments, f"root={tmp_path}"])


def test_glob_chooses_among_the_files_of_a_group(tmp_path: Path) -> None:
    planned = plan(["-m", "env=glob(minatar/*s*)", f"root={tmp_path}"])
    names = ["asterix", "seaquest", "space_invaders"]
    assert planned is not None and [config.env.id for config in planned.configs] == names
    own = tmp_path / "my_conf" / "algo"
    own.mkdir(parents=True)
    (own / "pair.yaml").write_text("defaults:\n  - maxmin\n  - _self_\n\nname: pair\n")
    planned = plan(["-m", "--config-dir", str(own.parent), "algo=glob([pair,dqn])", f"root={tmp_path}"])
    assert planned is not None and [config.algo.name for config in planned.configs] == ["dqn", "pair"]


def test_planning_does_not_import_torch(tmp_path: Path) -> None:
    """Else a sweep that is finished takes seconds, and four times the memory, to say so."""
    code = (
        "import sys\nfrom meanq.launching.plan import plan\n"
        f"plan(['-m', 'algo=dqn,meanq,ebql', 'env=minatar/asterix', 'seed=0-1', 'root={tmp_path}'])\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
