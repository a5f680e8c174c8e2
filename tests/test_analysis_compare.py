"""The paper's headlines from its tables, and our scores beside them."""

from pathlib import Path

import pandas as pd
import pytest

from analysis import compare
from analysis.compare import best_of_all, paper_table, versus
from tests.synthetic_runs import write_run


def test_the_papers_headlines_follow_from_its_tables() -> None:
    table = paper_table("100k")
    result = versus(table, table.scores["meanq"], table.scores["sunrise"])
    assert (result.wins, result.games) == (16, 26)
    assert (round(result.mean, 3), round(result.other_mean, 3), round(result.ratio, 2)) == (0.726, 0.431, 1.68)
    assert (best_of_all(table, "meanq"), len(table.methods)) == (11, 7)
    table = paper_table("500k")
    result = versus(table, table.scores["meanq"], table.scores["rainbow"])
    assert (result.wins, result.games) == (21, 26)
    assert (round(result.mean, 3), round(result.other_mean, 3), round(result.ratio, 2)) == (1.427, 0.964, 1.48)


def test_the_command_says_them(capsys: pytest.CaptureFixture[str]) -> None:
    compare.main(["--paper-only"])
    assert capsys.readouterr().out.splitlines() == [
        "100k: meanq against sunrise: above in 16/26, mean 0.726 against 0.431 (+68%)",
        "100k: meanq is the best of all 7 methods in 11/26",
        "500k: meanq against rainbow: above in 21/26, mean 1.427 against 0.964 (+48%)",
    ]


def write_game(root: Path, env: str, label: str, scores: list[float], step: int = 100_000) -> None:
    for seed, score in enumerate(scores):
        # The configuration's own scores must not matter here: the table's do.
        write_run(root, env=env, label=label, seed=seed, returns={step // 2: 0, step: score})


def test_our_scores_are_compared_in_the_games_that_we_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_game(tmp_path, "pong", "meanq_rainbow", [10, 20])
    write_game(tmp_path, "alien", "meanq_rainbow", [500, 700])
    write_game(tmp_path, "pong", "rainbow", [-21])
    write_game(tmp_path, "minatar_breakout", "rainbow", [5])
    write_run(tmp_path, env="alien", label="rainbow", returns={50_000: 1}, overrides={"total_steps": 100_000})
    compare.main(["--at", "100k", str(tmp_path), "--out", str(tmp_path / "scores.csv")])
    out, err = capsys.readouterr()
    assert "15.0 (2)" in out and "600.0 (2)" in out and "-21.0 (1)" in out
    assert "does not have them: minatar_breakout" in err
    assert "alien, rainbow: no score at step 100000 of seed 0" in err
    scores = pd.read_csv(tmp_path / "scores.csv", index_col=0)
    assert scores["ours: meanq_rainbow"].to_dict() == {"alien": 600, "pong": 15}

    table = paper_table("100k")
    summary = compare.summary(table, scores)
    paper, random, human = table.scores.loc[["alien", "pong"]], table.random, table.human

    def normalised(env: str, score: float) -> float:
        return (score - random[env]) / (human[env] - random[env])

    mean = (normalised("alien", 600) + normalised("pong", 15)) / 2
    theirs = (normalised("alien", paper["sunrise"]["alien"]) + normalised("pong", paper["sunrise"]["pong"])) / 2
    ours = summary.loc["ours: meanq_rainbow"]
    assert ours["mean"] == pytest.approx(mean) and ours["median"] == pytest.approx(mean)
    assert ours["wins, paper: sunrise"] == "1/2", "872 in alien, -19.3 in pong"
    assert ours["ratio, paper: sunrise"] == pytest.approx(mean / theirs)
    assert ours["wins, ours: rainbow"] == "1/1", "one game in common"
    assert summary.loc["ours: rainbow", "games"] == 1


def test_a_ratio_to_a_score_below_random_is_not_defined() -> None:
    table = paper_table("100k")
    ours, theirs = pd.Series({"pong": 20.0}), pd.Series({"pong": -21.0})
    result = versus(table, ours, theirs)
    assert result.ratio != result.ratio and "no ratio" in str(result)


def test_runs_of_another_length_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, env="pong", label="rainbow", returns={100_000: 1, 500_000: 2})
    compare.main(["--at", "100k", str(tmp_path)])
    assert "runs of 500000 steps, looked at after 100000" in capsys.readouterr().err


def test_scores_after_fewer_interactions_say_so_in_every_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_game(tmp_path, "pong", "rainbow", [-15, -13], step=50_000)
    with pytest.raises(SystemExit, match=r"step 100000 .* their last is at 50000: write --after"):
        compare.main(["--at", "100k", str(tmp_path)])
    compare.main(["--at", "100k", "--after", "50000", str(tmp_path), "--out", str(tmp_path / "scores.csv")])
    out = capsys.readouterr().out
    assert "OURS AFTER 50,000 INTERACTIONS, the paper's after 100,000 interactions" in out and "-14.0 (2)" in out
    scores = pd.read_csv(tmp_path / "scores.csv", index_col=0)
    assert scores.loc["pong", "ours after 50K: rainbow"] == -14 and not [c for c in scores if c.startswith("ours:")]
    summary = compare.summary(paper_table("100k"), scores)
    assert summary.loc["ours after 50K: rainbow", "wins, paper: sunrise"] == "1/1"
    assert "wins, ours after 50K: rainbow" in summary


def test_nothing_to_compare_is_one_sentence(tmp_path: Path) -> None:
    write_run(tmp_path, env="pong", returns={50: 1})
    with pytest.raises(SystemExit, match="no run has a score at step 500000"):
        compare.main(["--at", "500k", str(tmp_path)])
    for arguments in ([str(tmp_path)], ["--at", "100k"], ["--paper-only", str(tmp_path)]):
        with pytest.raises(SystemExit):
            compare.main(arguments)
