"""The benchmark runs from end to end and says something about every goal. Times themselves are never tested."""

import json
import math
from pathlib import Path

import pytest

from benchmarks.goals import GOALS, SECTIONS, main


def test_quick_benchmark_has_a_row_for_every_goal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.json"
    main(["--quick", "--json", str(path)])
    printed = capsys.readouterr()
    assert all(f"{section}: " in printed.err for section in SECTIONS)
    results = json.loads(path.read_text())
    assert [row["key"] for row in results["goals"]] == [goal.key for goal in GOALS]
    for row in results["goals"]:
        if "compiled" in row["key"]:  # takes minutes, so a try-out leaves it out
            assert row["measured"] is None and row["met"] is None
            continue
        assert 0 < row["measured"] < math.inf, row["key"]
        assert row["met"] == (row["measured"] >= row["bound"] if row["least"] else row["measured"] <= row["bound"])
        assert row["how"]
    assert f"of {len(GOALS)} goals are met, 2 were not measured" in printed.out
    titles = " ".join(table["title"] for table in results["tables"])
    shown = ("per learner step", "Replay: ms per update", "Parallel runs", "against stable-baselines3")
    assert all(what in titles for what in shown)
