"""Reading run directories: what is pooled, what is told apart, what is skipped and what is said."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from analysis.runs import AnalysisError, read_runs
from tests.short_runs import train
from tests.synthetic_runs import write_run


def said(messages: list[str], *words: str) -> bool:
    return any(all(word in message for word in words) for message in messages)


def test_a_run_is_what_its_files_say(tmp_path: Path) -> None:
    q = np.arange(24.0).reshape(4, 2, 3)
    write_run(tmp_path / "a", label="meanq", seed=3, returns={10: [1, 3], 20: [5, 7]}, q={0: q, 20: q + 1}, seconds=60)
    found = read_runs([tmp_path])
    (run,) = found.runs
    assert (run.env, run.label, run.algo, run.seed, run.state) == ("game", "meanq", "meanq", 3, "finished")
    assert (run.total_steps, run.last_evaluation, run.seconds) == (20, 20, 60)
    assert run.episode_means["return"].to_dict() == {10: 2, 20: 6}
    assert run.episode_means["normalised_return"].to_dict() == {10: 0.2, 20: 0.6}
    assert run.probes is not None
    at_end = run.probes.at(20)
    assert at_end is not None
    np.testing.assert_array_equal(at_end, q + 1)
    assert run.probes.at(10) is None
    assert found.problems == []


def test_runs_are_found_at_any_depth_and_once(tmp_path: Path) -> None:
    for study, seed in (("a/b/c", 0), ("d", 1)):
        write_run(tmp_path / study, seed=seed, returns={10: 1})
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    found = read_runs([tmp_path, tmp_path / "d", tmp_path / "a" / "b" / "c" / "game" / "dqn" / "seed_0"])
    assert [run.seed for run in found.of("game", "dqn")] == [0, 1]


def test_long_runs_are_normalised_by_the_second_table(tmp_path: Path) -> None:
    scores = {"env.random_score": 0.0, "env.random_score_500k": 5.0, "env.reference_score": 10.0}
    write_run(tmp_path, label="short", returns={499_999: 7.5}, overrides=scores)
    write_run(tmp_path, label="long", returns={500_000: 7.5}, overrides=scores)
    write_run(tmp_path, label="unscored", returns={10: 7.5}, overrides={"env.reference_score": None})
    found = read_runs([tmp_path])
    last = {run.label: run.episode_means["normalised_return"].iloc[-1] for run in found.runs}
    assert (last["short"], last["long"]) == (0.75, 0.5)
    assert np.isnan(last["unscored"])
    assert said(found.notes, "different random or reference scores")


def test_configurations_under_one_label_are_kept_apart(tmp_path: Path) -> None:
    write_run(tmp_path / "a", seed=0, returns={10: 1})
    write_run(tmp_path / "b", seed=1, returns={10: 1}, overrides={"algo.learning_rate": 0.5})
    found = read_runs([tmp_path])
    assert found.labels == ["dqn {algo.learning_rate=0.0001}", "dqn {algo.learning_rate=0.5}"]
    assert said(found.notes, "several configurations", "algo.learning_rate=0.5 (seeds 1)")


def test_many_differences_still_make_different_labels(tmp_path: Path) -> None:
    for seed, discount in ((0, 0.9), (1, 0.8), (2, 0.8)):
        fields = {"algo.discount": discount, "algo.extra": seed, "algo.a": 1 if seed else 2}
        write_run(tmp_path, seed=seed, returns={10: 1}, overrides=fields)
    assert len(read_runs([tmp_path]).labels) == 3


def test_where_and_how_a_run_was_watched_does_not_set_it_apart(tmp_path: Path) -> None:
    other = {"root": "x", "study": "y", "device": "cuda", "threads": 8, "log_every": 7, "logger.name": "wandb"}
    write_run(tmp_path, seed=0, returns={10: 1})
    write_run(tmp_path, seed=1, returns={10: 1}, overrides={**other, "checkpoint.every": 5, "env.vanilla.x": 3})
    assert read_runs([tmp_path]).labels == ["dqn"]


def test_a_second_copy_is_no_second_sample(tmp_path: Path) -> None:
    write_run(tmp_path / "a", returns={10: 1}, state="running", overrides={"total_steps": 20})
    write_run(tmp_path / "b", returns={10: 1, 20: 2})
    found = read_runs([tmp_path])
    assert [run.directory.parts[-4] for run in found.runs] == ["b"]
    assert said(found.notes, "seed 0 is there 2 times")


@pytest.mark.parametrize("state", ["failed", "interrupted", "running"])
def test_unfinished_runs_are_named(state: str, tmp_path: Path) -> None:
    directory = write_run(tmp_path, seed=4, returns={10: 1}, state=state, overrides={"total_steps": 50})
    status = json.loads((directory / "status.json").read_text()) | {"reason": "out of memory"}
    (directory / "status.json").write_text(json.dumps(status))
    assert said(read_runs([tmp_path]).notes, "seed 4", state, "up to step 10 of 50", "out of memory")


def test_a_run_that_was_killed_before_its_first_evaluation_counts_as_empty(tmp_path: Path) -> None:
    directory = write_run(tmp_path, state="running", seconds=None)
    (directory / "status.json").unlink()
    (directory / "meta.json").unlink()
    found = read_runs([tmp_path])
    (run,) = found.runs
    assert (run.state, run.last_evaluation, len(run.episode_means), run.probes) == ("unknown", 0, 0, None)
    assert np.isnan(run.seconds)


def test_finished_without_its_last_evaluation_is_said(tmp_path: Path) -> None:
    write_run(tmp_path, returns={10: 1}, overrides={"total_steps": 20})
    assert said(read_runs([tmp_path]).notes, "finished, evaluated up to step 10 of 20")


def test_missing_seeds_single_seeds_and_lengths_are_said(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, label="dqn", seed=seed, returns={10: 1})
    write_run(tmp_path, label="meanq", seed=1, returns={10: 1, 20: 1})
    notes = read_runs([tmp_path]).notes
    assert said(notes, "meanq: no run of seed 0, 2")
    assert said(notes, "meanq: one run only")
    assert said(notes, "not of one length", "dqn: 10", "meanq: 20")


@pytest.mark.parametrize(("field", "value"), [("probe.seed", 1), ("probe.states", 5)])
def test_values_at_other_states_are_not_pooled_and_said(field: str, value: int, tmp_path: Path) -> None:
    states = value if field == "probe.states" else 4
    write_run(tmp_path, seed=0, returns={10: 1}, q={10: np.zeros((4, 1, 2))})
    write_run(tmp_path, seed=1, returns={10: 1}, q={10: np.zeros((states, 1, 2))}, overrides={field: value})
    found = read_runs([tmp_path])
    assert len(found.labels) == 2
    assert said(found.notes, "not probed at the same states")


def test_numbers_that_are_not_finite_are_left_out_and_said(tmp_path: Path) -> None:
    q = np.zeros((4, 1, 2))
    write_run(tmp_path, returns={10: [1, np.nan], 20: [np.inf, 2], 30: [1, 2]}, q={10: q, 20: q * np.nan})
    found = read_runs([tmp_path])
    (run,) = found.runs
    means = run.episode_means["return"]
    assert np.isnan(means[10]) and np.isnan(means[20]) and means[30] == 1.5
    assert run.probes is not None
    assert run.probes.at(10) is not None and run.probes.at(20) is None
    assert said(found.notes, "evaluations.csv", "step 10 and 1 more")
    assert said(found.notes, "probes.npz", "step 20;")


def write_text(directory: Path, name: str, text: str) -> None:
    (directory / name).write_text(text)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.yaml", "seed: [", "while parsing"),
        ("config.yaml", "just words", "is not the configuration of a run"),
        ("config.yaml", "!!python/object/apply:os.system ['touch executed']", "has aliases or tags"),
        ("evaluations.csv", "step,episode\n10,0\n", "has no column return"),
        ("evaluations.csv", "", "No columns"),
        ("probes.npz", "not an archive", "not a zip file"),
        ("timings.csv", "step,seconds\n1,fast\n", "could not convert"),
    ],
)
def test_an_unreadable_directory_is_named_and_skipped(name: str, content: str, reason: str, tmp_path: Path) -> None:
    write_run(tmp_path, seed=0, returns={10: 1})
    bad = write_run(tmp_path, seed=1, returns={10: 1})
    write_text(bad, name, content)
    found = read_runs([tmp_path])
    assert [run.seed for run in found.runs] == [0]
    (problem,) = found.problems
    assert problem.startswith(f"{bad}: {name}: ") and reason in problem
    assert said(found.messages(), "skipped", "seed_1")
    assert not Path("executed").exists()


def test_nothing_pickled_is_loaded(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "executed",)  # type: ignore[return-value]

    write_run(tmp_path, seed=0, returns={10: 1})
    bad = write_run(tmp_path, seed=1, returns={10: 1})
    trap = np.empty(1, dtype=object)
    trap[0] = Trap()
    np.savez(bad / "probes.npz", step=np.array([10]), q=trap)
    also_bad = write_run(tmp_path, seed=2, returns={10: 1})
    (also_bad / "probes.npz").write_bytes(pickle.dumps(Trap()))
    assert [problem.partition(":")[0] for problem in read_runs([tmp_path]).problems] == [str(bad), str(also_bad)]
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "arrays",
    [
        {"step": np.array([10]), "q": np.zeros((1, 4, 1))},
        {"step": np.array([10, 20]), "q": np.zeros((1, 4, 1, 2))},
        {"step": np.array([10, 10]), "q": np.zeros((2, 4, 1, 2))},
        {"step": np.array([10]), "q": np.zeros((1, 4, 3, 2))},
        {"step": np.array([10]), "q": np.zeros((1, 4, 1, 2)), "true_q": np.zeros((4, 3))},
        {"step": np.array([10]), "q": np.zeros((1, 4, 1, 2)), "policy_value": np.zeros((1, 3))},
        {"step": np.array([10])},
    ],
)
def test_probes_that_contradict_themselves_or_the_configuration_are_refused(
    arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    write_run(tmp_path, seed=0, returns={10: 1})
    bad = write_run(tmp_path, seed=1, returns={10: 1})
    np.savez(bad / "probes.npz", allow_pickle=False, **arrays)  # type: ignore[arg-type]
    assert [problem.partition(":")[0] for problem in read_runs([tmp_path]).problems] == [str(bad)]


def test_rows_that_are_there_twice_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path, seed=0, returns={10: 1})
    bad = write_run(tmp_path, seed=1, returns={10: 1})
    table = (bad / "evaluations.csv").read_text()
    (bad / "evaluations.csv").write_text(table + table.splitlines()[-1] + "\n")
    assert [problem.partition(":")[0] for problem in read_runs([tmp_path]).problems] == [str(bad)]


def test_nothing_at_all_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="no runs here"):
        read_runs([tmp_path])
    with pytest.raises(AnalysisError, match=r"nowhere.*No such file"):
        read_runs([tmp_path / "nowhere"])
    (tmp_path / "game" / "dqn" / "seed_0").mkdir(parents=True)
    with pytest.raises(AnalysisError, match=r"seed_0: no config\.yaml"):
        read_runs([tmp_path])


def test_directories_of_the_training_code_can_be_read(tmp_path: Path) -> None:
    train(
        tmp_path,
        *("algo=meanq", "algo.ensemble_size=2", "env=chain", "total_steps=200", "algo.first_update=50", "seed=5"),
        *("evaluation.every=100", "evaluation.episodes=2", "probe.every=100", "probe.states=3", "log_every=100"),
        *("study=s", "label=mine", "threads=1"),
    )
    found = read_runs([tmp_path])
    (run,) = found.runs
    assert found.problems == []
    assert found.notes == ["chain, mine: one run only, so nothing can be said about its spread over runs"]
    assert (run.env, run.label, run.algo, run.seed, run.state) == ("chain", "mine", "meanq", 5, "finished")
    assert run.episode_means.index.tolist() == [100, 200]
    assert run.probes is not None and run.probes.true_q is not None
    assert run.probes.q.shape == (3, 3, 2, 2)
    assert run.seconds > 0
    assert yaml.safe_load((run.directory / "config.yaml").read_text()) == run.config


def test_reading_and_deciding_imports_no_training_code() -> None:
    program = (
        "import sys, analysis.aggregate, analysis.compare, analysis.figures, analysis.findings, analysis.metrics\n"
        "import rliable.library\n"
        "print([name for name in ('torch', 'meanq.training', 'hydra') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr


def test_values_that_begin_alike_are_told_apart(tmp_path: Path) -> None:
    for root, rule in (("a", "lower"), ("b", "upper")):
        for seed in range(2):
            overrides = {"algo.bootstrap": f"a_package_with_a_long_name.rules.{rule}_half"}
            write_run(tmp_path / root, label="mine", seed=seed, returns={10: 1}, overrides=overrides)
    found = read_runs([tmp_path])
    assert sorted(found.labels) == [
        f"mine {{algo.bootstrap=a_package_with_a_long_name.rules.{rule}_half}}" for rule in ("lower", "upper")
    ]
    assert [len(runs) for runs in found.groups().values()] == [2, 2]


@pytest.mark.parametrize("fields", [["algo.a"], ["algo.a", "algo.b", "algo.c"]])
def test_a_configuration_is_called_the_same_in_every_game(fields: list[str], tmp_path: Path) -> None:
    """In whatever order they are found, and where a game has one of them only."""
    for game, roots in (("one", ("x", "y")), ("two", ("y", "x")), ("three", ("x",))):
        for i, root in enumerate(roots):
            overrides = dict.fromkeys(fields, root)
            write_run(tmp_path / f"{i}", game, "mine", 0, returns={10: ord(root)}, overrides=overrides)
    found = read_runs([tmp_path])
    assert len(found.labels) == 2
    for label in found.labels:
        returns = {run.env: run.episode_means["return"][10] for run in found.runs if run.label == label}
        assert len(set(returns.values())) == 1, "one configuration"
    assert sum("kept apart" in note for note in found.messages()) == 2


def test_a_reason_of_several_lines_is_one(tmp_path: Path) -> None:
    directory = write_run(tmp_path, returns={10: 1}, state="failed")
    status = json.loads((directory / "status.json").read_text()) | {"reason": "CUDA error: bad\nsecond\n  third"}
    (directory / "status.json").write_text(json.dumps(status))
    assert said(read_runs([tmp_path]).messages(), "of 10: CUDA error: bad second third")


def test_a_kind_of_environment_that_is_no_name_is_no_hindrance(tmp_path: Path) -> None:
    write_run(tmp_path, seed=0, returns={10: 1}, overrides={"env.kind": ["x"], "env.options.resize": "linear"})
    write_run(tmp_path, seed=1, returns={10: 1}, overrides={"env.kind": ["x"], "env.options": {}})
    assert len(read_runs([tmp_path]).labels) == 2
