"""Learning curves against tables worked out by hand."""

from pathlib import Path

import pandas as pd
import pytest

from analysis import curves
from analysis.runs import read_runs
from tests.synthetic_runs import write_run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "study"
    fields = {"total_steps": 20}
    write_run(root, seed=0, returns={10: [1, 3], 20: [5, 7]}, values={10: 3, 20: 1}, discounted=1, overrides=fields)
    write_run(root, seed=1, returns={10: [0, 0], 20: [2, 4]}, overrides=fields)
    write_run(root, label="meanq", returns={10: [8, 8]}, state="running", overrides=fields)  # not as far as the others
    return root


def test_a_row_is_the_mean_over_a_runs_episodes(root: Path) -> None:
    table = curves.curve_table(read_runs([root]))
    first = table.iloc[0]
    assert (first["env"], first["method"], first["seed"], first["step"]) == ("game", "dqn", 0, 10)
    assert (first["return"], first["value"], first["bias"], first["episodes"]) == (2, 3, 2, 2)
    assert len(table) == 5


def test_the_summary_compares_where_all_runs_have_been(root: Path) -> None:
    summary = curves.summarise(curves.curve_table(read_runs([root]))).set_index("method")
    assert summary["step"].tolist() == [10, 10]
    assert summary["mean"].to_dict() == {"dqn": 1.0, "meanq": 8.0}
    assert summary["count"].to_dict() == {"dqn": 2, "meanq": 1}
    assert summary["std"]["dqn"] == pytest.approx(2**0.5)


def test_the_command_writes_table_and_pictures_and_can_redraw_them(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curves.main([str(root), "--out", str(tmp_path / "out")])
    assert "meanq" in capsys.readouterr().out
    files = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert files.keys() == {"curves.csv", "curves.svg", "curves.png"}
    assert pd.read_csv(tmp_path / "out" / "curves.csv").shape == (5, 8)
    curves.main([str(tmp_path / "out" / "curves.csv"), "--out", str(tmp_path / "again")])
    for name in ("curves.csv", "curves.svg"):
        assert (tmp_path / "again" / name).read_bytes() == files[name], "the same table, the same picture"


@pytest.mark.parametrize("what", ["nowhere", "nowhere.csv"])
def test_a_directory_without_runs_is_named(what: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=what):
        curves.main([str(tmp_path / what), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
