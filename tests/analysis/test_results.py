"""What is kept of a study: it follows from the runs, names no host and no path, and is made again from itself."""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from analysis.results import __main__ as results
from analysis.results.__main__ import redraw
from analysis.runs import read_runs
from meanq.launching.study import load_study
from tests.helpers import compose
from tests.synthetic_runs import gaussian_q, write_run

KEPT = sorted(path for path in (Path(__file__).parents[2] / "ablations" / "results").iterdir() if path.is_dir())
STEPS = [20_000, 40_000, 60_000, 80_000, 100_000]


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.name)
def test_what_the_repository_keeps_follows_from_its_tables(kept: Path, tmp_path: Path) -> None:
    redraw(kept, tmp_path)
    made, there = contents(tmp_path), contents(kept)
    sources = {name for name in there if name.startswith(("runs/", "tables/")) or name == "provenance.json"}
    assert made.keys() == there.keys() - sources
    for name, content in made.items():
        assert content == there[name], f"{name} is not what its tables give: python -m analysis.results --again {kept}"
    sizes = dict[str, int]()  # of each run, and of everything else together
    for name, content in there.items():
        run = str(Path(name).parent) if name.startswith("runs/") else "the rest"
        sizes[run] = sizes.get(run, 0) + len(content)
    assert sizes.pop("the rest") < 2_000_000 and all(size < 200_000 for size in sizes.values())


def test_there_is_something_kept() -> None:
    assert {path.name for path in KEPT} >= {
        "ensemble_size",
        "first_look",
        "main_100k",
        "sampling",
        "target_network",
        "techniques",
    }


def write_study(root: Path, seeds: int = 3, spread: float = 1.0) -> None:
    """Returns of seed s end at 8 + spread s (dqn) or 10 + spread s (meanq); biases at 1 and 0.5."""
    for label, top, value, members in (("dqn", 8, 3.0, 1), ("meanq", 10, 2.5, 2)):
        for seed in range(seeds):
            generator = np.random.default_rng([members, seed])
            q = {step: gaussian_q(generator, 3, members, 2, 0.5, 0.5) for step in STEPS}
            returns = {step: top + spread * seed if step > 75_000 else 1 for step in STEPS}
            more: dict[str, Any] = {"values": value, "discounted": 2.0, "q": q, "seconds": 1800}
            directory = write_run(root, "minatar_breakout", label, seed, returns, **more)
            meta = json.loads((directory / "meta.json").read_text())
            meta |= {"commit": "abc", "cpu": "A chip", "cores": 2, "threads": 1, "versions": {"torch": "2.0"}}
            (directory / "meta.json").write_text(json.dumps(meta))


def keep(runs: Path, out: Path, *arguments: str) -> dict[str, bytes]:
    results.main([str(runs), "--out", str(out), *arguments])
    return contents(out)


def test_the_late_table_is_the_mean_over_runs_of_the_last_quarter(tmp_path: Path) -> None:
    write_study(tmp_path / "runs")
    keep(tmp_path / "runs", tmp_path / "out")
    late = pd.read_csv(tmp_path / "out" / "tables" / "late.csv").set_index("label")
    assert list(late.index) == ["dqn", "meanq"] and set(late["runs"]) == {3}
    assert late["return"].tolist() == [9, 11], "8, 9, 10 and 10, 11, 12"
    reach = 4.302653 * 1 / np.sqrt(3)  # Student's with 2 degrees of freedom, a standard deviation of 1
    np.testing.assert_allclose(late["return low"], [9 - reach, 11 - reach], rtol=1e-5)
    np.testing.assert_allclose(late["return high"], [9 + reach, 11 + reach], rtol=1e-5)
    np.testing.assert_allclose(late["bias"], [1, 0.5])
    for name in ("correlation", "effective size"):
        numbers = late[[f"{name} low", name, f"{name} high"]].to_numpy()
        assert np.isnan(numbers[0]).all(), "of ensembles only"
        assert (np.diff(numbers[1]) > 0).all()


def test_a_run_that_was_not_evaluated_to_the_end_is_not_in_the_late_means(tmp_path: Path) -> None:
    write_study(tmp_path / "runs")
    overrides = {"total_steps": 100_000, "probe.states": 3}
    write_run(tmp_path / "runs", "minatar_breakout", "dqn", 9, {80_000: 99}, state="failed", overrides=overrides)
    made = keep(tmp_path / "runs", tmp_path / "out")
    late = pd.read_csv(tmp_path / "out" / "tables" / "late.csv").set_index("label")
    assert late.loc["dqn", "return"] == 9 and late.loc["dqn", "runs"] == 3
    assert "| runs | 7, 6 finished;" in made["README.md"].decode()
    assert "seed 9: failed, evaluated up to step 80000 of 100000" in made["README.md"].decode()


def test_a_run_that_has_just_begun_is_no_hindrance(tmp_path: Path) -> None:
    write_study(tmp_path / "runs")
    overrides = {"total_steps": 100_000, "probe.states": 3}
    more: dict[str, Any] = {"q": {0: np.zeros((3, 1, 2))}, "state": "running", "overrides": overrides}
    write_run(tmp_path / "runs", "minatar_breakout", "avg_dqn", 0, {}, **more)
    keep(tmp_path / "runs", tmp_path / "out")
    assert pd.read_csv(tmp_path / "out" / "tables" / "late.csv")["label"].tolist() == ["dqn", "meanq"]
    write_run(tmp_path / "only", "minatar_breakout", "avg_dqn", 0, {}, **more)
    with pytest.raises(SystemExit, match="analysis: no run has been evaluated yet"):
        keep(tmp_path / "only", tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_labels_that_are_not_equally_far_are_named(tmp_path: Path) -> None:
    write_study(tmp_path / "runs")
    said = "labels have come to 40,000 to 100,000 interactions"
    assert said not in keep(tmp_path / "runs", tmp_path / "out")["README.md"].decode()
    overrides = {"total_steps": 100_000, "probe.states": 3}
    for seed in (0, 1):
        write_run(
            tmp_path / "runs", "minatar_breakout", "avg_dqn", seed, {40_000: 1}, state="running", overrides=overrides
        )
    assert f"minatar_breakout: {said}" in keep(tmp_path / "runs", tmp_path / "out")["README.md"].decode()


def test_the_commits_of_a_run_that_was_resumed_by_another_are_all_named(tmp_path: Path) -> None:
    write_study(tmp_path / "runs")
    path = tmp_path / "runs" / "minatar_breakout" / "dqn" / "seed_0" / "meta.json"
    meta = {**json.loads(path.read_text()), "earlier": [{"to_step": 5, "commit": "old"}, {"to_step": 7, "host": "x"}]}
    path.write_text(json.dumps(meta))
    about = json.loads(keep(tmp_path / "runs", tmp_path / "out")["provenance.json"])
    assert about["commits"] == {"abc": 5, "old, then abc": 1}


def test_provenance_is_what_the_runs_recorded_without_hosts_and_paths(tmp_path: Path) -> None:
    write_study(tmp_path / "runs")
    (tmp_path / "runs" / "minatar_breakout" / "dqn" / "seed_7").mkdir()
    made = keep(tmp_path / "runs", tmp_path / "out")
    about = json.loads(made["provenance.json"])
    assert (about["runs"], about["finished"], about["interactions"], about["hours"]) == (6, 6, 600_000, 3.0)
    assert about["commits"] == {"abc": 6} and about["machines"] == {"A chip, 2 cores": 6}
    assert about["threads"] == {"1": 6} and about["versions"] == {"torch": {"2.0": 6}} and about["devices"] == {}
    assert "skipped minatar_breakout/dqn/seed_7: no config.yaml" in about["notes"]
    for name, content in made.items():
        assert b"somewhere" not in content, f"the host is in {name}"
        assert str(tmp_path).encode() not in content, f"a path is in {name}"


def test_runs_of_another_study_are_named_as_such(tmp_path: Path) -> None:
    write_study(tmp_path / "runs")
    assert "other studies" not in keep(tmp_path / "runs", tmp_path / "out")["README.md"].decode()
    for seed in (0, 1):
        path = tmp_path / "runs" / "minatar_breakout" / "dqn" / f"seed_{seed}" / "meta.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "copied_from": "target_network, dqn"}))
    made = keep(tmp_path / "runs", tmp_path / "out")
    assert json.loads(made["provenance.json"])["copied"] == {"target_network, dqn": 2}
    row = "| copied from other studies | 2 of target_network, dqn (the same runs; their hours are in both) |"
    assert row in made["README.md"].decode()


def test_the_page_has_verdicts_with_intervals_and_names_what_cannot_be_compared(tmp_path: Path) -> None:
    write_study(tmp_path / "runs", seeds=5, spread=0.1)
    page = keep(tmp_path / "runs", tmp_path / "out")["README.md"].decode()
    assert "**F3 not decidable**: MeanQ beats DQN" in page
    assert "| return of meanq above dqn | supported | +0.200 [+" in page
    assert "nothing to compare: F1, F2, F4, F5, F6, F7, F8." in page
    assert "![Return, bias, standard deviation and Jensen gap](figures/study.svg)" in page


def test_the_same_runs_and_the_tables_alone_give_the_same_bytes(tmp_path: Path) -> None:
    write_study(tmp_path / "runs")
    first = keep(tmp_path / "runs", tmp_path / "first")
    assert keep(tmp_path / "runs", tmp_path / "second") == first
    for name in ("README.md", "figures/study.svg"):
        (tmp_path / "second" / name).unlink()
    results.main(["--again", str(tmp_path / "second")])
    assert contents(tmp_path / "second") == first


def test_what_an_older_set_of_runs_left_is_removed(tmp_path: Path) -> None:
    write_study(tmp_path / "runs")
    for name in ("figures/learning_curves.csv", "tables/scores.csv"):
        (tmp_path / "out" / name).parent.mkdir(parents=True)
        (tmp_path / "out" / name).write_text("")
    after = keep(tmp_path / "runs", tmp_path / "out")
    assert {name for name in after if name.startswith("tables/")} == {"tables/late.csv", "tables/findings.csv"}
    assert {name for name in after if name.startswith("figures/")} == {
        f"figures/{name}.{kind}" for name in ("study", "mechanism") for kind in ("csv", "svg")
    }, "one game without the paper's scores: its learning curve is a row of `study`"


def test_the_runs_are_checked_against_the_scale_of_the_study(tmp_path: Path) -> None:
    """Three runs of target_network at MinAtar scale: one as planned, one with another rate, one of no such label."""
    config = compose("algo=dqn", "env=minatar/breakout", "total_steps=100000", "study=target_network", "label=dqn")
    for seed, label, rate in ((0, "dqn", None), (1, "dqn", 0.5), (0, "mine", None)):
        directory = write_run(tmp_path / "runs", "minatar_breakout", label, seed, dict.fromkeys(STEPS, 1.0))
        fields = asdict(config) | {"seed": seed, "label": label, "threads": 1}
        fields["algo"] = fields["algo"] | ({"learning_rate": rate} if rate else {})
        (directory / "config.yaml").write_text(yaml.safe_dump(fields))
    made = keep(tmp_path / "runs", tmp_path / "out", "--scale", "minatar")
    about = json.loads(made["provenance.json"])
    assert (about["study"], about["scale"], about["runs_of_scale"]) == ("target_network", "minatar", 90)
    assert about["not_of_scale"] == [
        "minatar_breakout, dqn {algo.learning_rate=0.5}, seed 1 (algo.learning_rate=0.5)",
        "minatar_breakout, mine, seed 0",
    ]
    page = made["README.md"].decode()
    assert (
        "make reproduce STUDY=target_network SCALE=minatar" in page
        and "| runs | 1 of the 90 of this scale, and 2 that are none of it; " in page
    )
    assert "# mine: command not recorded; config.yaml of each run has every value" in page
    assert f"- Question: {load_study('target_network').question}" in page
    with pytest.raises(SystemExit, match=r"scale=tiny: .* choose from paper, minatar"):
        keep(tmp_path / "runs", tmp_path / "out", "--scale", "tiny")


def test_scores_of_short_atari_runs_stand_beside_the_papers_and_say_so(tmp_path: Path) -> None:
    for label, score in (("rainbow", 300), ("meanq_rainbow", 400)):
        for seed in range(2):
            write_run(tmp_path / "runs", "assault", label, seed, {10_000: 1, 50_000: score + seed})
    page = keep(tmp_path / "runs", tmp_path / "out")["README.md"].decode()
    assert "Mean returns of greedy episodes; the paper's after 100,000 interactions." in page
    assert "| game | label | interactions | seeds | ours | paper: random | paper: ppo | " in page
    assert "| Assault | MeanQ + Rainbow | 50,000 | 2 | 400.5 | 233.7 | 424.2 | " in page
    assert "| Assault | Rainbow | 50,000 | 2 | 300.5 | 233.7 | 424.2 | " in page


def test_scores_of_atari_runs_that_were_cut_off_are_those_of_the_last_step_its_seeds_share(tmp_path: Path) -> None:
    overrides = {"total_steps": 100_000}
    for seed, last in ((0, 40_000), (1, 60_000)):
        returns = {step: step / 100 + seed for step in range(20_000, last + 1, 20_000)}
        write_run(tmp_path / "runs", "assault", "rainbow", seed, returns, state="interrupted", overrides=overrides)
    write_run(tmp_path / "runs", "assault", "meanq_rainbow", 0, {100_000: 900}, overrides=overrides)
    page = keep(tmp_path / "runs", tmp_path / "out")["README.md"].decode()
    assert "| Assault | Rainbow | 40,000 | 2 | 400.5 | " in page, "whatever others have come to"
    assert "| Assault | MeanQ + Rainbow | 100,000 | 1 | 900.0 | " in page
    assert "assault, rainbow: runs of 100000 steps, looked at after 40000; schedules follow the length" in page


def test_one_run_each_is_said_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_study(tmp_path / "runs", seeds=1)
    made = keep(tmp_path / "runs", tmp_path / "out")
    assert "figures/mechanism.svg" not in made, "of one run there is no correlation"
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith("Last quarter of training (one run each, so differences may be chance); a positive bias")
    assert lines[1] == "game label interactions runs return bias IQM"
    assert lines[2] == "MinAtar Breakout DQN 100,000 1 8.00 +1.00 8.00"
    figure = tmp_path / "out" / "figures" / "study.svg"
    assert any(line.startswith(f"{figure}: Return, and bias") and "No std and no gap" in line for line in lines)


@pytest.mark.parametrize("arguments", [[], ["--again", "--out", "x"], ["--again", "--scale", "minatar"]])
def test_a_wrong_command_is_one_line(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        results.main([str(tmp_path), *arguments])
    assert "write directories with runs and --out DIRECTORY, or --again" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r"no provenance\.json here"):
        results.main(["--again", str(tmp_path)])


def test_an_atari_run_that_has_just_begun_takes_no_scores_away(tmp_path: Path) -> None:
    for seed in range(2):
        overrides = {"total_steps": 100_000}
        write_run(tmp_path / "runs", "assault", "rainbow", seed, {50_000: 300}, state="running", overrides=overrides)
    write_run(tmp_path / "runs", "assault", "rainbow", 2, state="running", overrides={"total_steps": 100_000})
    page = keep(tmp_path / "runs", tmp_path / "out")["README.md"].decode()
    assert "| Assault | Rainbow | 50,000 | 2 | 300.0 | " in page


def test_runs_without_finite_values_have_a_return_and_no_bias(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for label, value in (("dqn", 1.0), ("meanq", float("nan"))):
        for seed in range(2):
            write_run(tmp_path / "runs", "minatar_breakout", label, seed, {10: 4 + seed}, values=value)
    made = keep(tmp_path / "runs", tmp_path / "out")
    assert "MeanQ 10 2 4.50 [-1.85, 10.85]" in " ".join(capsys.readouterr().out.split())
    assert "| Breakout | MeanQ | 10 | 2 | 4.50 [-1.85, 10.85] |  |" in made["README.md"].decode().replace(
        "MinAtar ", ""
    )


def test_nothing_of_the_machine_is_published(tmp_path: Path) -> None:
    write_study(tmp_path / "home" / "alice" / "runs")
    directory = write_run(tmp_path / "home" / "alice" / "runs", "minatar_breakout", "dqn", 7, {10: 1}, state="failed")
    reason = "FileNotFoundError: [Errno 2] No such file: '/home/alice/roms/x.bin' (1/3 read)"
    (directory / "status.json").write_text(json.dumps({"state": "failed", "total_steps": 10, "reason": reason}))
    empty = tmp_path / "home" / "alice" / "more" / "seed_9"
    empty.mkdir(parents=True)
    arguments = [str(tmp_path / "home" / "alice" / "runs"), str(empty), str(tmp_path / "home" / "alice" / "absent")]
    results.main([*arguments, "--out", str(tmp_path / "out")])
    for name, content in contents(tmp_path / "out").items():
        assert b"alice" not in content and str(tmp_path).encode() not in content, name
    page = (tmp_path / "out" / "README.md").read_text()
    assert "No such file: 'x.bin' (1/3 read)" in page and "skipped seed_9" in page and "skipped absent" in page


def test_what_cannot_be_written_or_is_not_there_is_one_line(tmp_path: Path) -> None:
    write_study(tmp_path / "runs", seeds=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match=r"^analysis: .*/file/[\w/.]+: cannot be written \(Not a directory\)$"):
        keep(tmp_path / "runs", tmp_path / "file")
    keep(tmp_path / "runs", tmp_path / "out")
    (tmp_path / "out" / "tables" / "late.csv").unlink()
    with pytest.raises(SystemExit, match=r"^analysis: .*out: no tables/late.csv here$"):
        results.main(["--again", str(tmp_path / "out")])


@pytest.mark.parametrize("name", ["provenance.json", "tables/late.csv", "figures/study.csv"])
def test_hostile_kept_results_cost_a_line_and_the_others_are_redrawn(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_study(tmp_path / "runs", seeds=1)
    keep(tmp_path / "runs", tmp_path / "good")
    bad = [tmp_path / kind for kind in ("pipe", "link", "empty", "binary", "other", "nested")]
    for directory in bad:
        shutil.copytree(tmp_path / "good", directory)
        (directory / name).unlink()
    os.mkfifo(bad[0] / name)
    (bad[1] / name).symlink_to(tmp_path / "good" / name)
    for directory, content in zip(bad[2:], [b"", b"\xff\x00,1\n", b"{}", b"[" * 200_000], strict=True):
        (directory / name).write_bytes(content)
    (tmp_path / "good" / "README.md").unlink()
    with pytest.raises(SystemExit) as ended:
        results.main(["--again", *map(str, bad), str(tmp_path / "good")])
    lines = [*capsys.readouterr().err.splitlines()[-len(bad) + 1 :], str(ended.value)]
    assert [line.partition(":")[0] for line in lines] == ["analysis"] * len(bad)
    assert all(f"{directory}" in line and "\0" not in line for directory, line in zip(bad, lines, strict=True))
    assert (tmp_path / "good" / "README.md").is_file()


def write_atari(root: Path, cells: Sequence[tuple[str, str]], seeds: int = 2, commit: str = "abc") -> Path:
    """Runs of main_100k, scale few_games; returns differ from game to game, label to label and seed to seed."""
    for env, label in cells:
        algo, _, override = label.partition("__")
        words = [f"algo.{override}"] if override else []
        common = load_study("main_100k").scale("few_games").common
        config = compose(f"algo={algo}", f"env={env}", *common, *words, "study=main_100k")
        for seed in range(seeds):
            returns = {step: 10 * len(label) + len(env) + seed + step / 1000 for step in STEPS}
            directory = write_run(root, env, label, seed, returns, values=len(label), seconds=360)
            fields = asdict(config) | {"seed": seed, "label": label}
            (directory / "config.yaml").write_text(yaml.safe_dump(fields))
            meta = {**json.loads((directory / "meta.json").read_text()), "commit": commit, "threads": 1}
            (directory / "meta.json").write_text(json.dumps(meta))
    return root


CELLS = [
    ("assault", "rainbow"),
    ("boxing", "rainbow"),
    ("boxing", "rainbow__multi_step=20"),
    ("assault", "meanq_rainbow"),
]


def test_runs_that_come_later_give_the_same_as_all_at_once(tmp_path: Path) -> None:
    later = [("road_runner", "meanq_rainbow"), ("assault", "rainbow__multi_step=20")]
    first, second = write_atari(tmp_path / "first", CELLS, 2), write_atari(tmp_path / "later", later, 3, commit="new")
    scale = ("--scale", "few_games")
    results.main([str(first), str(second), "--out", str(tmp_path / "all"), *scale])
    keep(first, tmp_path / "out", *scale)
    made = keep(second, tmp_path / "out", *scale)
    assert made == contents(tmp_path / "all")
    about = json.loads(made["provenance.json"])
    assert about["commits"] == {"abc": 8, "new": 6} and about["runs"] == 14
    shutil.rmtree(first)
    results.main(["--out", str(tmp_path / "out"), *scale])  # from what is kept alone
    assert contents(tmp_path / "out") == made
    results.main(["--again", str(tmp_path / "out")])
    assert contents(tmp_path / "out") == made


def test_a_kept_run_is_replaced_by_the_one_that_came_further(tmp_path: Path) -> None:
    runs, out = tmp_path / "runs", tmp_path / "out"
    for state, returns in (("running", {10: 1}), ("finished", {10: 1, 20: 5}), ("interrupted", {10: 1})):
        shutil.rmtree(runs, ignore_errors=True)
        write_run(runs, "boxing", "dqn", 0, returns, state=state, overrides={"total_steps": 20})
        keep(runs, out)
    (run,) = read_runs([out / "runs"]).runs
    assert (run.state, run.last_evaluation) == ("finished", 20)


def test_another_run_under_the_same_name_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    before = keep(write_atari(tmp_path / "first", CELLS), tmp_path / "out", "--scale", "few_games")
    other = write_atari(tmp_path / "other", [("freeway", "rainbow"), ("boxing", "rainbow")], seeds=1)
    path = other / "boxing" / "rainbow" / "seed_0" / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config["algo"]["discount"] = 0.5
    path.write_text(yaml.safe_dump(config))
    with pytest.raises(
        SystemExit, match=r"another run \(algo.discount differ\); keep this one in a directory of its own"
    ):
        keep(other, tmp_path / "out", "--scale", "few_games")
    assert contents(tmp_path / "out") == before


def test_tables_that_were_kept_without_runs_are_not_replaced_by_those_of_fewer(tmp_path: Path) -> None:
    first = write_atari(tmp_path / "first", CELLS)
    keep(first, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "runs")
    before = contents(tmp_path / "out")
    with pytest.raises(SystemExit, match=r"kept without its runs, of which assault, rainbow would be lost"):
        keep(first / "boxing", tmp_path / "out")
    assert contents(tmp_path / "out") == before
    assert "runs/boxing/rainbow/seed_1/probes.npz" not in before
    assert "runs/boxing/rainbow/seed_1/evaluations.csv" in keep(first, tmp_path / "out")


def test_a_kept_run_is_small_and_tells_nothing_of_its_machine(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "runs", "boxing", "dqn", 0, {10: 1}, overrides={"root": "/home/alice/runs"})
    meta = {"host": "alices-laptop", "platform": "x", "commit": "abc", "earlier": [{"to_step": 5, "host": "alices"}]}
    meta["overrides"] = ["algo=dqn", "root=/home/alice/runs", "logger.entity=alice"]
    (directory / "meta.json").write_text(json.dumps(meta))
    (directory / "weights.safetensors").write_bytes(b"alice")
    (directory / "checkpoint").mkdir()
    kept = {name: content for name, content in keep(tmp_path / "runs", tmp_path / "out").items() if "runs/" in name}
    assert {Path(name).name for name in kept} == {
        *("config.yaml", "meta.json", "status.json", "evaluations.csv", "timings.csv")
    }
    assert not any(b"alice" in content for content in kept.values())
    public = {"commit": "abc", "earlier": [{"to_step": 5}], "overrides": ["algo=dqn"]}
    assert json.loads(kept["runs/boxing/dqn/seed_0/meta.json"]) == public


def test_a_label_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path / "runs", "boxing", "dqn", 0, {10: 1}) / "config.yaml"
    path.write_text(path.read_text().replace("label: dqn", "label: ../../../escaped"))
    with pytest.raises(SystemExit, match="label are no plain names"):
        keep(tmp_path / "runs", tmp_path / "out")
    assert not list(tmp_path.rglob("escaped"))
