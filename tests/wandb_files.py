"""What W&B wrote, read back with W&B's own reader."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def records(directory: Path) -> list[dict[str, Any]]:
    """All records of the one offline run in a run directory."""
    (path,) = (directory / "wandb").glob("offline-run-*/*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [json.loads(line) for line in result.stdout.splitlines()]


def of_type(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The contents of the records of one kind."""
    return [record[kind] for record in found if record["type"] == kind]


def history(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A dictionary per logged step, without W&B's clocks."""
    return [
        {name: value for name, value in row["item"].items() if name not in ("_runtime", "_timestamp")}
        for row in of_type(found, "history")
    ]


def scalars(row: dict[str, Any]) -> dict[str, float]:
    """A row without its step, which it has twice, and its histograms."""
    assert row["global_step"] == row["_step"]
    steps = ("_step", "global_step")
    return {name: value for name, value in row.items() if name not in steps and not name.startswith("probe/q.")}


def exit_codes(found: list[dict[str, Any]]) -> list[int]:
    """One per ended run; W&B leaves a zero out."""
    return [record.get("exit_code", 0) for record in of_type(found, "exit")]
