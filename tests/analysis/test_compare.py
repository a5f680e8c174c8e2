"""The paper's headlines from its tables, and our scores beside them and among the runs of others."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image

from analysis import compare
from analysis.compare import versus
from analysis.figures import panels
from analysis.figures.scores_among_others import draw_standing
from analysis.paper.tables import RUN_BY_RUN, dopamine_rainbow, paper_table, percentile, reference_runs, standing
from analysis.runs import read_runs
from meanq.config.schema import CONFIG_DIR
from tests.synthetic_runs import write_run


def test_the_papers_headlines_follow_from_its_tables() -> None:
    table = paper_table("100k")
    result = versus(table, table.scores["meanq"], table.scores["sunrise"])
    assert (result.wins, result.games) == (16, 26)
    assert (round(result.mean, 3), round(result.other_mean, 3), round(result.ratio, 2)) == (0.726, 0.431, 1.68)
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
    compare.main(["--at", "100k", str(tmp_path)])
    out, err = capsys.readouterr()
    assert "15.0 (2)" in out and "600.0 (2)" in out and "-21.0 (1)" in out
    assert "does not have them: minatar_breakout" in err
    assert "alien, rainbow: no score at step 100000 of seed 0" in err
    table = paper_table("100k")
    scores = compare.by_game(table, compare.run_scores(read_runs([tmp_path]), table, []))
    assert scores["ours: meanq_rainbow"].to_dict() == {"alien": 600, "pong": 15}
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


def test_nothing_to_compare_is_one_sentence(tmp_path: Path) -> None:
    write_run(tmp_path, env="pong", returns={50: 1})
    with pytest.raises(SystemExit, match=r"no run has a score at step 500000 .* their last is at 50$"):
        compare.main(["--at", "500k", str(tmp_path)])
    for arguments in ([str(tmp_path)], ["--at", "100k"], ["--paper-only", str(tmp_path)]):
        with pytest.raises(SystemExit):
            compare.main(arguments)


# --- among the runs of others ---------------------------------------------------------------------------------------


def slow_percentile(score: float, runs: list[float]) -> float:
    points = 0.0
    for run in runs:
        if run < score:
            points += 1
        elif run == score:
            points += 0.5
    return 100 * points / len(runs)


@given(st.integers(-3, 3), st.lists(st.integers(-3, 3), min_size=1, max_size=12))
def test_a_percentile_is_the_share_of_runs_below_with_ties_counting_half(score: int, runs: list[int]) -> None:
    expected = slow_percentile(score / 10, [run / 10 for run in runs])
    assert percentile(score / 10, np.array(runs) / 10) == pytest.approx(expected)


def test_rounding_errors_do_not_hide_a_tie() -> None:
    assert 0.1 + 0.2 != 0.3 and percentile(0.1 + 0.2, np.array([0.3, 0.3])) == 50
    assert -1e-10 < reference_runs()["drq_eps", "kangaroo"].min() < 0
    assert percentile(0.0, reference_runs()["drq_eps", "kangaroo"]) == 0.5


def test_the_committed_scores_are_complete() -> None:
    games = set(paper_table("100k").scores.index)
    runs = reference_runs()
    assert set(runs) == {(method, game) for method in RUN_BY_RUN for game in games} and len(runs) == 52
    assert {scores.shape for scores in runs.values()} == {(100,)}
    assert all(np.isfinite(scores).all() for scores in runs.values())
    assert set(dopamine_rainbow().index) == games and set(dopamine_rainbow()["runs"]) == {100}


def test_dopamines_rainbow_has_the_mean_and_median_that_were_published() -> None:
    """Normalised by the scores of the configuration, which are not quite those of the notebook."""
    normalised = []
    for game, mean in dopamine_rainbow()["mean"].items():
        env = yaml.safe_load((CONFIG_DIR / "env" / f"{game}.yaml").read_text())
        normalised.append((mean - env["random_score"]) / (env["reference_score"] - env["random_score"]))
    assert np.mean(normalised) == pytest.approx(0.3513, abs=0.002)
    assert np.median(normalised) == pytest.approx(0.189, abs=0.002)


def test_our_scores_stand_among_the_runs_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_game(tmp_path, "boxing", "meanq_rainbow", [6, 12])
    write_game(tmp_path, "boxing", "rainbow", [7])
    write_game(tmp_path, "private_eye", "rainbow", [100])
    write_game(tmp_path, "minatar_breakout", "rainbow", [5])
    compare.main(["--at", "100k", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.endswith("below our mean, ties counting half"))
    assert [" ".join(line.split()) for line in lines[start + 2 :]] == [
        f"boxing meanq_rainbow 9.0 ± 4.2 (2) 22.2 ± 9.2 -0.3 ± 2.0 {slow_shares('boxing', 9)}",
        f"boxing rainbow 7.0 (1) 22.2 ± 9.2 -0.3 ± 2.0 {slow_shares('boxing', 7)}",
        f"private_eye rainbow 100.0 (1) 100.0 ± 0.0 111.8 ± 284.0 {slow_shares('private_eye', 100)}",
    ]


def slow_shares(game: str, score: float) -> str:
    """Others' scores are means over 100 episodes, so two digits after the point are all that they have."""
    runs = [[round(run, 2) for run in reference_runs()[method, game]] for method in ("drq_eps", "spr")]
    return " ".join(f"{slow_percentile(score, of_method):g}%" for of_method in runs)


def test_other_steps_are_not_compared_with_runs_of_100k(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_game(tmp_path / "runs", "pong", "rainbow", [1, 2], step=500_000)
    compare.main([str(tmp_path / "runs"), "--at", "500k"])
    out = capsys.readouterr().out
    assert "1.5 (2)" in out and "SPR" not in out and "DER" not in out
    with pytest.raises(SystemExit):
        compare.main([str(tmp_path / "runs"), "--at", "500k", "--picture", str(tmp_path / "scores.png")])
    assert "--picture with --at 500k: " in capsys.readouterr().err
    assert not (tmp_path / "scores.png").exists()


def texts(figure: Figure, panel: int) -> list[str]:
    return [text.get_text() for text in figure.axes[panel].texts]


def test_the_picture_has_every_run_and_the_percentiles() -> None:
    scores = {("boxing", "meanq_rainbow"): [6.0, 12.0], ("up_n_down", "rainbow"): [0.0]}
    paper = paper_table("100k")
    table = standing(scores, paper.scores["meanq"], paper.stds["meanq"])
    with panels.settings():
        figure, caption = draw_standing(table, scores)
    boxing, up_n_down = figure.axes
    points = np.concatenate([line.get_xdata() for line in boxing.lines]).astype(float)
    expected = [*reference_runs()["drq_eps", "boxing"], *reference_runs()["spr", "boxing"], 6, 12, 9]
    assert np.isin(expected, points).all(), "runs of others, and ours with their mean"
    assert [tick.get_text() for tick in boxing.get_yticklabels()] == [
        *("DrQ(eps)", "SPR", "DER (Dopamine)", "MeanQ (paper)", "Rainbow", "MeanQ + Rainbow")
    ]
    assert texts(figure, 0)[:2] == [f"{table[method].iloc[0]:g}" for method in RUN_BY_RUN]
    assert texts(figure, 1)[:2] == ["0", "0"]
    low, high = up_n_down.get_xlim()
    beyond = reference_runs()["spr", "up_n_down"] > high
    assert low < 0 and 0 < beyond.sum() < 10, "a run with 142,282 does not squeeze the others"
    assert f"{beyond.sum()} runs of others are beyond the axes." in caption


def test_the_command_draws_the_picture_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_game(tmp_path / "runs", "pong", "rainbow", [1, 2])
    path = tmp_path / "new" / "scores.png"
    compare.main(["--at", "100k", str(tmp_path / "runs")])
    assert [child.name for child in tmp_path.iterdir()] == ["runs"], "nothing is written"
    compare.main(["--at", "100k", str(tmp_path / "runs"), "--picture", str(path)])
    assert f"{path}: Scores after 100,000 interactions: 100 runs each" in capsys.readouterr().out
    assert min(Image.open(path).size) > 200
    with pytest.raises(SystemExit, match=r"^analysis: --picture .*a\.foo: cannot be written") as error:
        compare.main(["--at", "100k", str(tmp_path / "runs"), "--picture", str(tmp_path / "a.foo")])
    assert "\n" not in str(error.value)
