"""--help and docs/fields.md list every choice and every field, from the schema."""

import sys
from dataclasses import is_dataclass

import pytest

from meanq import run
from meanq.config.fields import walk
from meanq.config.reference import GROUPS, group_choices, sections
from meanq.config.schema import CONFIG_DIR
from scripts import write_docs


def test_the_document_is_up_to_date() -> None:
    assert write_docs.FIELDS.read_text() == write_docs.fields_page(), "make docs"


def test_the_page_of_commands_is_up_to_date() -> None:
    assert write_docs.COMMANDS_PAGE.read_text() == write_docs.commands_page(), "make docs"


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
