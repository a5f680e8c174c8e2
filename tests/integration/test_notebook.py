"""The notebook of examples/: it runs from top to bottom, and what it shows was made by its cells."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "members.ipynb"


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook["cells"] for output in cell.get("outputs", [])]


def images(notebook: Any) -> list[bytes]:
    shown = [output.get("data", {}).get("image/png") for output in outputs(notebook)]
    return [base64.b64decode(image) for image in shown if image]


def texts(notebook: Any) -> str:
    parts = [output.get("text") or output.get("data", {}).get("text/plain") or "" for output in outputs(notebook)]
    return "\n".join("".join(part) for part in parts)


def test_its_outputs_are_complete_small_and_of_no_machine() -> None:
    stored = json.loads(NOTEBOOK.read_text())
    code = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert len(images(stored)) == 3 and sum(map(len, images(stored))) < 200_000
    assert texts(stored).count(": finished, 10,000 of 10,000 steps>") == 2
    assert not any(output["output_type"] == "error" or output.get("name") == "stderr" for output in outputs(stored))
    assert "/home" not in texts(stored) and "/tmp" not in texts(stored)


@pytest.mark.slow
def test_it_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("MEANQ_NOTEBOOK_STEPS", "2000")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert len(images(notebook)) == 3
    assert texts(notebook).count(": finished, 2,000 of 2,000 steps>") == 2
    assert len(list(tmp_path.glob("runs/notebook/minatar_space_invaders/*/seed_0/weights.safetensors"))) == 2
