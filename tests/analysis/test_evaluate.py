"""Evaluating trained agents again: the same protocol gives the same episodes, another one is told apart."""

from pathlib import Path

import pandas as pd
import pytest

from analysis import evaluate
from tests.short_runs import SHORT, train

NOISY = (*SHORT, "algo=rainbow")


def table(root: Path, *arguments: str) -> pd.DataFrame:
    evaluate.main([str(root), *arguments, "--out", str(root / "out.csv")])
    return pd.read_csv(root / "out.csv").set_index("protocol")


def test_greedy_is_the_last_evaluation_and_noise_is_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = train(tmp_path, *NOISY, "evaluation.episodes=8").directory
    found = table(tmp_path)
    recorded = pd.read_csv(directory / "evaluations.csv").query("step == 240")
    assert list(found.index) == ["greedy", "noise", "training"], "on small environments with random actions, too"
    assert found.loc["greedy", "return"] == pytest.approx(recorded["return"].mean())
    assert found.loc["greedy", "length"] == pytest.approx(recorded["length"].mean())
    assert found.loc["greedy", "error"] == pytest.approx(recorded["return"].sem(), rel=1e-5)
    assert found.loc["noise", "length"] != found.loc["greedy", "length"]
    assert "evaluations.csv" not in capsys.readouterr().err


def test_episodes_that_are_not_as_recorded_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = train(tmp_path, *SHORT).directory / "evaluations.csv"
    rows = pd.read_csv(path)
    rows.loc[len(rows) - 1, "return"] += 1
    rows.to_csv(path, index=False)
    assert list(table(tmp_path).index) == ["greedy", "training"], "without noise there is no such protocol"
    assert "1 of 2 greedy episodes are not as in evaluations.csv" in capsys.readouterr().err


def test_random_actions_replace_as_many_as_asked_for(tmp_path: Path) -> None:
    for name, rate in (("a", 1e-3), ("b", 1e-2)):
        train(tmp_path / name, *SHORT, f"algo.learning_rate={rate}", "evaluation.episodes=4")
    never, always = ({name: table(tmp_path / name, "--epsilon", e) for name in "ab"} for e in ("0", "1"))
    for found in never.values():
        assert found.loc["epsilon 0", "length"] == found.loc["greedy", "length"]
    columns = ["return", "error", "length"]
    assert always["a"].loc["epsilon 1", columns].equals(always["b"].loc["epsilon 1", columns]), "whatever the weights"
    assert not always["a"].loc["greedy", columns].equals(always["b"].loc["greedy", columns])


def test_how_much_is_explored_is_counted(tmp_path: Path) -> None:
    """Nothing without noise, doubt or random actions; nearly everything where members' disagreement decides."""
    no_noise = (
        *SHORT,
        "algo=meanq_rainbow",
        "algo.noisy=false",
        "algo.epsilon.with_noise=false",
        "evaluation.episodes=4",
    )
    for name, optimism in (("never", 0), ("always", 1e6)):
        train(tmp_path / name, *no_noise, f"algo.ucb_lambda={optimism}")
    never, always = (table(tmp_path / name, "--epsilon", "1") for name in ("never", "always"))
    columns = ["return", "error", "length", "not_greedy"]
    assert never.loc["training", columns].equals(never.loc["greedy", columns])
    assert never.loc["training", "not_greedy"] == 0 < always.loc["training", "not_greedy"]
    assert 0 < never.loc["epsilon 1", "not_greedy"] < 100, "a random action may be the greedy one"


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, says in (
        (["--episodes", "0"], "--episodes 0: write 1 or more"),
        (["--epsilon", "2"], "--epsilon 2: write a probability"),
    ):
        with pytest.raises(SystemExit):
            evaluate.main([str(tmp_path), *arguments])
        assert says in capsys.readouterr().err
    directory = train(tmp_path, *SHORT).directory
    (directory / "weights.safetensors").unlink()
    with pytest.raises(SystemExit, match=r"^analysis: .* left out: .*the run has nothing yet that could play$"):
        evaluate.main([str(tmp_path)])
