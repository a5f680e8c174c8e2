"""ablations/: every study composes at every scale, is the union it says, and can be cut down from the command line."""

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from analysis.runs import differing_fields, read_runs
from meanq import run
from meanq.config.errors import ConfigError
from meanq.config.fields import field_value, flatten
from meanq.config.schema import Config
from meanq.envs import make_env
from meanq.launching.cost import estimate_seconds, evaluations_per_update
from meanq.launching.plan import Plan, plan
from meanq.launching.study import STUDY_DIR, load_study, study_names
from meanq.rng import stream
from tests.helpers import algo_config, compose

SCALES = [(name, scale) for name in study_names() for scale in load_study(name).scales]


def planned(root: Path, *arguments: str) -> Plan:
    result = plan(["-m", *arguments, f"root={root}"])
    assert result is not None
    return result


def cells(configs: list[Config]) -> dict[tuple[str, str], list[int]]:
    """(environment, label) -> seeds."""
    found: dict[tuple[str, str], list[int]] = {}
    for config in configs:
        found.setdefault((config.env.name, config.label or ""), []).append(config.seed)
    return found


def test_the_studies_of_the_paper_and_ours_exist() -> None:
    assert set(study_names()) >= {
        "target_network",
        "larger_model_more_updates",
        "main_100k",
        "main_500k",
        "ensemble_size",
        "sampling",
    }
    for name in study_names():
        own = {"first_look": {"minatar"}, "released_100k": {"six_games"}, "released_settings": {"one_member"}}
        own |= {"without_target_network": {"minatar", "garnet"}, "mellowmax_omega": {"other_seeds"}}
        some = own.get(name, {"paper", "minatar"})
        assert load_study(name).scales.keys() >= some


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_every_study_composes_at_every_scale(name: str, scale: str, tmp_path: Path) -> None:
    """One seed is enough: seeds share everything else. So are three of the 26 games, which have a test of their own."""
    games = ["env=alien,hero,up_n_down"] if name.startswith("main") and scale == "paper" else []
    seed = 100 if scale == "other_seeds" else 0
    plan = planned(tmp_path, f"+study={name}", f"scale={scale}", f"seed={seed}", *games)
    study = load_study(name)
    assert study.question and study.paper and study.refuted_by
    assert study.scales[scale].machine and study.scales[scale].cost
    assert {config.study for config in plan.configs} == {name}
    kinds = {"minatar": {"minatar"}, "garnet": {"garnet"}, "other_seeds": {"minatar", "garnet"}}.get(scale, {"atari"})
    assert {config.env.kind for config in plan.configs} == kinds
    least = 30_000 if scale == "other_seeds" else 50_000
    for config in plan.configs:
        assert config.total_steps >= (config.env.main.total_steps if scale == "paper" else least)
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_without_target_network_has_every_method_with_and_without(tmp_path: Path) -> None:
    """Nine methods in pairs that differ in the target network alone, but for Double DQN, and HL-Gauss a second time."""
    for scale, one in (("minatar", "env=minatar/asterix"), ("garnet", "env.id=0")):
        assert all("seed=0-4" in sweep for sweep in load_study("without_target_network").scales[scale].runs)
        configs = planned(tmp_path, "+study=without_target_network", f"scale={scale}", "seed=0", one).configs
        assert len(configs) == len(cells(configs)) == 19
        methods: dict[str, set[bool]] = {}
        for config in configs:
            same = asdict(config.algo) | {"name": "", "target_network": None, "norm": config.network.layer_norm}
            methods.setdefault(str(same), set()).add(config.algo.target_network is None)
        assert sorted(map(len, methods.values())) == [1, *[2] * 9], "Double DQN needs one"


GAMES = ("seaquest", "asterix", "bank_heist", "hero")
ALGORITHMS = ("dqn", "dqn_no_target", "avg_dqn", "ens_dqn", "meanq", "meanq_no_target")
ENSEMBLES = ("ens_dqn", "meanq", "meanq_no_target")


def test_the_first_look_is_part_of_target_network(tmp_path: Path) -> None:
    found = cells(planned(tmp_path, "+study=first_look", "scale=minatar").configs)
    game = "minatar_space_invaders"
    assert found == {(game, label): [0] for label in ("dqn", "dqn_no_target", "meanq", "meanq_no_target")}
    assert found.keys() <= cells(planned(tmp_path, "+study=target_network", "scale=minatar").configs).keys()


def test_target_network_has_the_papers_runs(tmp_path: Path) -> None:
    found = cells(planned(tmp_path, "+study=target_network", "scale=paper").configs)
    assert found == {
        (game, algo): list(range(20 if game == "asterix" and algo in ENSEMBLES else 5))
        for game in GAMES
        for algo in ALGORITHMS
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "algorithms", "steps"),
    [
        ("main_100k", {"meanq_rainbow", "sunrise", "rainbow_data_efficient"}, 100_000),
        ("main_500k", {"meanq_rainbow", "rainbow_canonical"}, 500_000),
    ],
)
def test_the_main_studies_have_26_games_and_5_seeds(
    name: str, algorithms: set[str], steps: int, tmp_path: Path
) -> None:
    configs = planned(tmp_path, f"+study={name}", "scale=paper").configs
    found = cells(configs)
    assert len({env for env, _ in found}) == 26
    assert {label for _, label in found} == algorithms
    assert len(found) == 26 * len(algorithms) and all(seeds == list(range(5)) for seeds in found.values())
    assert {config.total_steps for config in configs} == {steps}


RESULTS = sorted((STUDY_DIR / "results").glob("*/provenance.json"))
WITH_RUNS = [path.parent for path in RESULTS if (path.parent / "runs").is_dir()]
KEPT = {  # adam_epsilon, learning_rate and network of the kept results, by study and scale
    ("ensemble_size", "minatar"): (1e-8, 2.5e-4, "minatar"),
    ("first_look", "minatar"): (1e-8, 2.5e-4, "minatar"),
    ("main_100k", "few_games"): (1.5e-4, 1e-4, "data_efficient"),
    ("sampling", "minatar"): (1e-8, 2.5e-4, "minatar"),
    ("target_network", "minatar"): (1e-8, 2.5e-4, "minatar"),
    ("techniques", "minatar"): (1.5e-4, 1e-3, "minatar"),
}


@pytest.mark.parametrize("directory", WITH_RUNS, ids=lambda path: path.name)
def test_kept_runs_are_those_that_the_study_plans(directory: Path, tmp_path: Path) -> None:
    about = json.loads((directory / "provenance.json").read_text())
    plan = planned(tmp_path, f"+study={about['study']}", f"scale={about['scale']}")
    wanted = {(config.env.name, config.label, config.seed): asdict(config) for config in plan.configs}
    for kept in read_runs([directory / "runs"]).runs:
        assert differing_fields([kept.config, wanted[kept.env, kept.config["label"], kept.seed]]) == []


OLD = [path for path in RESULTS if not (path.parent / "runs").is_dir()]  # kept without their runs


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.parent.name)
def test_studies_still_plan_the_runs_whose_results_are_kept(path: Path, tmp_path: Path) -> None:
    """With the values of commit 3c8a382, though defaults have changed since; what was no field then is off."""
    kept = json.loads(path.read_text())
    name, scale = kept["study"], kept["scale"]
    adam_epsilon, learning_rate, network = KEPT[name, scale]
    old_config = Path(__file__).parents[1] / "data" / "old_runs" / "meanq_rainbow_boxing.yaml"
    old_fields = flatten(yaml.safe_load(old_config.read_text())).keys()
    configs = planned(tmp_path, f"+study={name}", f"scale={scale}", "seed=0").configs
    assert {word for c in kept["commands"] for word in c.split() if word.startswith("algo=")} <= {
        f"algo={config.algo.name}" for config in configs
    }
    for config in configs:
        algo, label = config.algo, str(config.label)
        multi_step = re.search(r"multi_step=(\d+)", label)
        assert (algo.adam_epsilon, algo.learning_rate, config.network.name) == (adam_epsilon, learning_rate, network)
        assert (algo.max_gradient_norm, algo.ensemble_std, algo.first_update) == (10, "population", 1600)
        assert algo.multi_step == (int(multi_step[1]) if multi_step else 1), label
        fields = flatten(asdict(config))
        new = [field for field in fields if field not in old_fields and field.startswith(NEW)]
        declared = {"env.kind": config.env.kind}
        assert {f: fields[f] for f in new} == {f: field_value(declared, f) for f in new}
        assert {"algo.random_steps", "algo.importance_steps", "env.stack_over_lives", "evaluation.noise"} <= set(new)


NEW = ("algo.", "network.", "evaluation.", "env.stack", "env.options.resize", "env.options.noop_after")


def test_ensemble_size_varies_nothing_else(tmp_path: Path) -> None:
    configs = planned(tmp_path, "+study=ensemble_size", "scale=minatar", "seed=0", "algo=meanq_no_target").configs
    assert [config.algo.ensemble_size for config in configs] == [1, 2, 3, 5, 10]
    assert {config.label for config in configs} == {f"meanq_no_target__ensemble_size={k}" for k in (1, 2, 3, 5, 10)}


def test_sampling_has_three_cells_with_and_without_a_target(tmp_path: Path) -> None:
    configs = planned(tmp_path, "+study=sampling", "scale=minatar", "seed=0").configs
    found = {(c.algo.minibatch, c.algo.priorities, c.algo.target_network is not None) for c in configs}
    cells = [("independent", "per_member"), ("independent", "shared"), ("shared", "shared")]
    assert found == {(*cell, target) for cell in cells for target in (True, False)}
    assert len(configs) == 6 and {c.algo.bootstrap for c in configs} == {"mean"}


def test_larger_model_more_updates_has_the_papers_variants(tmp_path: Path) -> None:
    configs = planned(tmp_path, "+study=larger_model_more_updates", "scale=paper", "seed=0", "env=asterix").configs
    found = {c.label: (c.algo.ensemble_size, c.algo.parallel_networks, c.algo.gradient_steps) for c in configs}
    assert found == {
        "meanq_rainbow": (5, 1, 1),
        "rainbow": (1, 1, 1),
        "rainbow_large": (1, 5, 1),
        "rainbow_more_updates": (1, 1, 5),
        "rainbow_large_more_updates": (1, 5, 5),
    }


def test_what_a_study_varies_is_chosen_from_and_the_rest_is_changed(tmp_path: Path) -> None:
    plan = planned(
        tmp_path,
        *("+study=target_network", "scale=minatar", "algo=dqn,meanq", "env=minatar/breakout", "seed=0-1"),
        *("total_steps=5000", "algo.learning_rate=0.1,0.2"),
    )
    assert cells(plan.configs) == {
        ("minatar_breakout", f"{algo}__learning_rate={rate}__total_steps=5000"): [0, 1]
        for algo in ("dqn", "meanq")
        for rate in (0.1, 0.2)
    }
    assert {config.total_steps for config in plan.configs} == {5000}
    assert [config.seed for config in plan.configs] == [0] * 4 + [1] * 4, "a study cut short still compares"


def test_what_all_runs_have_in_common_can_be_chosen_too(tmp_path: Path) -> None:
    words = ("+study=main_100k", "scale=few_games", "env=assault", "seed=0")
    one_step = ["meanq_rainbow", "meanq_rainbow__env.options.screen_size=75"]
    found = planned(tmp_path, *words, "algo=meanq_rainbow", "algo.multi_step=1").configs
    assert [config.label for config in found] == one_step
    with pytest.raises(ConfigError, match=r"algo.target_network=1000: not among these runs .*; choose from null"):
        planned(tmp_path, "+study=sampling", "scale=minatar", "seed=0", "algo.target_network=1000")
    with pytest.raises(ConfigError, match=r"algo.multi_step=2: not among these runs .*; choose from 1, 3, 20"):
        planned(tmp_path, *words, "algo.multi_step=2")


def test_a_study_may_go_elsewhere(tmp_path: Path) -> None:
    plan = planned(tmp_path, "+study=sampling", "scale=minatar", "study=mine", "seed=0", "algo=meanq")
    assert {config.study for config in plan.configs} == {"mine"}


def test_what_all_runs_share_is_not_in_their_names(tmp_path: Path) -> None:
    plan = planned(tmp_path, "+study=target_network", "scale=minatar", "seed=0")
    assert {config.label for config in plan.configs} == set(ALGORITHMS)
    assert all(
        overrides[-1] == f"label={c.label}" for overrides, c in zip(plan.job_overrides, plan.configs, strict=True)
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["+study=target_networks", "scale=minatar"], "no such study; did you mean target_network?"),
        (["+study=target_network"], "it needs a scale; write scale= and one of paper, minatar"),
        (["+study=target_network", "scale=tiny"], "scale=tiny: .* choose from paper, minatar"),
        (["scale=minatar"], "only a study has scales"),
        (["+study=sampling", "+study=main_100k", "scale=minatar"], "one study at a time"),
        (["+study=target_network", "scale=minatar", "seed=7"], "seed=7: not among these runs .* 0, 1, 2, 3, 4"),
        (["+study=target_network", "scale=minatar", "algo=rainbow"], "algo=rainbow: not among these runs"),
        (["+study=target_network", "scale=minatar", "total_stps=9"], "total_stps: there is no such field"),
        (["+study=nowhere.yaml", "scale=minatar"], "there is no such file"),
    ],
)
def test_a_mistake_gets_a_clear_line(arguments: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        planned(tmp_path, *arguments)


def test_a_study_without_m_is_refused(tmp_path: Path) -> None:
    one = ["seed=0", "algo=ens_dqn", "algo.target_network=null"]
    for chosen in ([], one):
        with pytest.raises(ConfigError, match=r"\+study=sampling: this names several runs; add -m"):
            plan(["+study=sampling", "scale=minatar", *chosen, f"root={tmp_path}"])


OWN = """
question: Does it run?
paper: Nothing.
refuted_by: An error.
scales:
  tiny:
    machine: any
    cost: seconds
    common: total_steps=200 algo.first_update=64
    runs:
      - algo=dqn,rainbow env=chain seed=0-1
"""


def test_a_study_file_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(OWN)
    plan = planned(tmp_path, f"+study={tmp_path}/mine.yaml", "scale=tiny")
    assert cells(plan.configs) == {("chain", "dqn"): [0, 1], ("chain", "rainbow"): [0, 1]}
    assert {config.study for config in plan.configs} == {"mine"}


@pytest.mark.parametrize("ending", ["yaml", "yml"])
def test_the_smallest_study_is_a_name_and_runs(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"mine.{ending}"
    path.write_text("runs:\n  - algo=dqn env=chain seed=0-1\n")
    plan = planned(tmp_path, f"+study={path}")
    assert cells(plan.configs) == {("chain", "dqn"): [0, 1]}
    assert {config.study for config in plan.configs} == {"mine"} and plan.scale is None
    with pytest.raises(ConfigError, match=r"scale=tiny: \+study=mine has no such scale; leave scale= out"):
        planned(tmp_path, f"+study={path}", "scale=tiny")


def test_one_scale_needs_no_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(OWN)
    assert planned(tmp_path, f"+study={path}").scale == "tiny"
    path.write_text(OWN + "  huge: {runs: [env=chain]}\n")
    with pytest.raises(ConfigError, match="it needs a scale; write scale= and one of tiny, huge"):
        planned(tmp_path, f"+study={path}")


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("[1, 2]", "it is no study; write at least `runs:`"),
        ("", "it is no study"),
        ("a: [", "it cannot be read"),
        ("question: x", "runs is missing; write a list of sweeps"),
        ("runs: []", "runs is empty; write a list of sweeps"),
        ("runs:", "runs is empty"),
        ("runs: env=chain", "runs is no list; write a list of sweeps"),
        ("runs: {a: 1}", "runs is no list"),
        ("runs: [3]", r"runs\[0\]=3: write overrides as on the command line"),
        ("runs: ['']", r"runs\[0\]=: write overrides"),
        ("runs: [env=chain, [seed=0]]", r"runs\[1\]=\['seed=0'\]: write overrides"),
        ("runs: [env=chain dqn]", r"runs\[0\]=env=chain dqn: write overrides"),
        ('runs: ["env=\'chain"]', "No closing quotation; write it as on the command line"),
        ("runs: [env=chain]\ncommon: 7", "common=7: write overrides"),
        ("runs: [env=chain]\nquestion: [why]", r"question=\['why'\]: write a text"),
        ("runs: [env=chain]\nname: mine", "name: a study has no such entry; the name of the file is the study's"),
        ("runs: [env=chain]\nswitched: algo.target", "switched=algo.target: there is no such field; did you mean"),
        ("runs: [env=chain]\nmachin: x", "machin: a study has no such entry; did you mean machine"),
        (OWN.replace("machine", "machin"), r"scales\.tiny\.machin: .*did you mean machine"),
        (OWN + "why: x", "why: a study has no such entry"),
        (OWN + "runs: [env=chain]", "runs: the file has scales; write it below each of them"),
        ("scales: []", "scales: write a name and below it the `runs`"),
        ("scales: {tiny: [env=chain]}", "scales.tiny: write a name and below it `runs:`"),
        ("scales: {tiny: {runs: []}}", "scales.tiny.runs is empty"),
        ("runs: [env=chain nosuch=1]", "nosuch: there is no such"),
    ],
)
def test_a_file_that_is_no_study_gets_one_line_and_exit_code_2(
    broken: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(broken)
    words = ["-m", f"+study={tmp_path}/mine.yaml", f"root={tmp_path}/runs"]
    monkeypatch.setattr(sys, "argv", ["meanq", *words])
    with pytest.raises(SystemExit) as stop:
        run.main()
    shown = capsys.readouterr().err
    assert stop.value.code == 2 and re.search(says, shown), shown
    assert shown.count("\n") == 1 and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("name", "content"), [("a b.yaml", b"runs: [env=chain]"), ("mine.yaml", b"runs: [\xff]")])
def test_a_name_or_bytes_that_cannot_work_are_told(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=r"use letters, digits|it cannot be read"):
        planned(tmp_path, f"+study={tmp_path}/{name}")


def test_the_example_trains_and_gives_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from analysis.results import __main__ as results

    example = STUDY_DIR.parent / "examples" / "study.yaml"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["meanq", "-m", f"+study={example}", "seed=0"])  # one of its two seeds
    with pytest.raises(SystemExit) as stop:
        run.main()
    assert stop.value.code == 0
    results.main(["runs/study", "--study", str(example), "--out", "results"])
    page = (tmp_path / "results" / "README.md").read_text()
    assert "- Question: Does a larger ensemble" in page and "The paper:" not in page
    assert "make reproduce STUDY=study.yaml\n" in page and "3 of the 6 of this study;" in page
    assert str(tmp_path) not in page and str(example.parent) not in (tmp_path / "results/provenance.json").read_text()
    assert {run.label for run in read_runs([tmp_path / "results/runs"]).runs} == {
        "dqn",
        "meanq",
        "meanq__ensemble_size=10",
    }
    results.main(["--again", "results"])
    assert (tmp_path / "results" / "README.md").read_text() == page, "without the study's file"


def test_a_dry_run_lists_runs_and_times_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["-m", "+study=sampling", "scale=minatar", "--dry-run", f"root={tmp_path}/runs"]
    monkeypatch.setattr(sys, "argv", ["meanq", *arguments])
    with pytest.raises(SystemExit) as stop:
        run.main()
    out = capsys.readouterr().out
    assert stop.value.code == 0
    study = load_study("sampling")
    assert all(text.split()[0] in out for text in (study.question, study.paper, study.refuted_by))
    assert re.search(r"minatar_breakout │ meanq__priorities=shared +│ +0-4 │ +5 │ +100,000 │", out)
    assert re.search(r"30 runs below .*/sampling, roughly [\d.]+ h one after the other", out)
    assert not any(tmp_path.iterdir())


# What runs cost


@pytest.mark.parametrize(
    ("name", "changes", "evaluations"),
    [
        ("dqn", {}, 3 * 32 + 32),
        ("double_dqn", {}, 3 * 32 + 2 * 32),
        ("avg_dqn", {}, 3 * 32 + 5 * 32),
        ("meanq", {}, 3 * 160 + 5 * 160),
        ("meanq_no_target", {"target_snapshots": 7}, 3 * 160 + 5 * 160),
        ("ens_dqn", {}, 3 * 160 + 160),
        ("bootstrapped_dqn", {}, 3 * 160 + 160),
        ("sunrise", {}, 3 * 160 + 2 * 160),
        ("rainbow_large", {}, 5 * (3 * 32 + 2 * 32)),
    ],
)
def test_evaluations_per_update(name: str, changes: dict[str, int], evaluations: int) -> None:
    """Counted by hand: B = 32, K = 5."""
    assert evaluations_per_update(algo_config(name, **changes)) == evaluations


def test_estimates_grow_with_the_work() -> None:
    def seconds(config: Config) -> float:
        return estimate_seconds(config, make_env(config.env, stream(0, "cost")))

    dqn, meanq = compose("algo=dqn", "env=seaquest"), compose("algo=meanq", "env=seaquest")
    assert 0 < seconds(compose("algo=dqn", "env=chain")) < seconds(dqn) < seconds(meanq)
    half = compose("algo=dqn", "env=seaquest", "total_steps=500000")
    assert seconds(half) == pytest.approx(seconds(dqn) / 2, rel=0.01)
    once, five = (compose(f"algo={a}", "env=minatar/asterix") for a in ("rainbow", "rainbow_more_updates"))
    assert 3 < seconds(five) / seconds(once) < 5


def test_every_file_of_ablations_is_a_study() -> None:
    assert [path.stem for path in sorted(STUDY_DIR.glob("*.yaml"))] == study_names()
