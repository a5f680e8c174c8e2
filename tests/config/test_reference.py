"""--help and docs/ list every choice, field, command and metric, from the code."""

import sys
from dataclasses import is_dataclass
from pathlib import Path

import pytest

from meanq import run
from meanq.config.fields import walk
from meanq.config.reference import GROUPS, group_choices, sections
from meanq.config.schema import CONFIG_DIR
from scripts import write_docs


def test_generated_pages_are_up_to_date() -> None:
    written = write_docs.pages()
    assert {"fields.md", "commands.md", "api.md", "metrics.md", "algorithms.md", "wandb.md"} <= {
        path.name for path in written
    }
    stale = [path.name for path, text in written.items() if path.read_text() != text]
    assert not stale, "python scripts/write_docs.py"


@pytest.mark.parametrize("name", [path.name for path in write_docs.PICTURES])
def test_generated_pictures_are_up_to_date(name: str, tmp_path: Path) -> None:
    (path,) = (path for path in write_docs.PICTURES if path.name == name)
    write_docs.PICTURES[path](tmp_path / name)
    assert (tmp_path / name).read_bytes() == path.read_bytes(), "python scripts/write_docs.py"


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_explains_every_choice_and_field_in_80_columns(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["meanq", option])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as stop:
        run.main()
    page = capsys.readouterr().out
    assert stop.value.code == 0
    assert max(map(len, page.splitlines())) <= 80
    for word in ("meanq run", "--dry-run", "--multirun", "--cfg job", "--hydra-help"):
        assert word in page
    for group in GROUPS:
        assert f"{group}: " in page and all(choice in page for choice in group_choices(group))
    assert "_main" not in page and "_atari" not in page
    assert "algo.ensemble_size=5              members K of the ensemble; 1 or more" in page
    assert "algo.discount=0.99                discount gamma; from 0 to 1" in page
    assert "algo.loss=squared                 loss of scalar values; squared or huber" in page


def test_the_reference_has_every_field_once() -> None:
    named = [left.partition("=")[0] for rows in sections().values() for left in rows]
    blocks = ("env.vanilla", "env.main", "env.sunrise", "env.canonical", "env.dopamine")
    declared = [name for name, field in walk() if not is_dataclass(field.type) and not name.startswith(blocks)]
    families = [name.replace("env.main.", "env.FAMILY.") for name, _ in walk() if name.startswith("env.main.")]
    assert sorted(named) == sorted(declared + families)


def test_every_group_of_conf_is_explained() -> None:
    directories = {path.name for path in CONFIG_DIR.iterdir() if path.is_dir()}
    assert directories == {group.partition("/")[0] for group in GROUPS}
