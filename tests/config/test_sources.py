"""A run is refused where the source of the user's own code has changed since it was trained."""

import json
import sys
from pathlib import Path

import pytest

from meanq import run
from meanq.config.errors import ConfigError
from meanq.config.extensions import sources
from meanq.rundir.layout import run_directory
from meanq.rundir.reuse import copy_run, find_twin
from tests.short_runs import SHORT, SilentReporter, compose_run, make_run, train

RULE = "def rule(q):\n    return factor() * q.mean(0)\n\n\ndef factor():\n    return {}\n"
FIELDS = (*SHORT, "algo=meanq", "algo.ensemble_size=2", "algo.bootstrap=own_rules.rule", "label=mine")


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's file, importable as own_rules."""
    directory = tmp_path / "code"
    directory.mkdir()
    monkeypatch.syspath_prepend(directory)
    write(directory / "own_rules.py", 1.0)
    return directory / "own_rules.py"


def write(path: Path, factor: float) -> None:
    """Change a helper of the rule, as before a new process."""
    path.write_text(RULE.format(factor))
    sys.modules.pop("own_rules", None)
    for compiled in path.parent.glob("__pycache__/*"):
        compiled.unlink()


def refusal(root: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        compose_run(root, *FIELDS, *overrides)
    return str(caught.value)


def test_a_finished_run_with_another_rule_is_refused(rules: Path, tmp_path: Path) -> None:
    directory = train(tmp_path, *FIELDS).directory
    compose_run(tmp_path, *FIELDS)
    write(rules, 0.5)
    message = refusal(tmp_path)
    assert message.startswith("algo.bootstrap=own_rules.rule: its source is not the one that ")
    assert str(directory) in message and "label=" in message and "remove" in message and "\n" not in message
    compose_run(tmp_path, *FIELDS[:-1], "label=another")
    write(rules, 1.0)
    compose_run(tmp_path, *FIELDS)


def test_the_command_refuses_it_in_one_line(
    rules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, *FIELDS)
    write(rules, 0.5)
    monkeypatch.setattr(sys, "argv", ["meanq", f"root={tmp_path}", *FIELDS])
    with pytest.raises(SystemExit) as caught:
        run.main()
    written = capfd.readouterr()
    assert caught.value.code == 2 and "skipped" not in written.out
    assert len(written.err.splitlines()) == 1 and "algo.bootstrap=own_rules.rule" in written.err


class StopError(Exception):
    pass


class Stopping(SilentReporter):
    """Ends the run after its first evaluation."""

    def evaluated(self, step: int, episodes: object) -> None:
        raise StopError


@pytest.mark.parametrize("checkpointed", [True, False])
def test_an_interrupted_run_does_not_go_on_with_another_rule(rules: Path, tmp_path: Path, checkpointed: bool) -> None:
    fields = (*FIELDS, f"checkpoint.every={60 if checkpointed else 1000}")
    begun = make_run(tmp_path, *fields)
    with pytest.raises(StopError):
        begun.train(Stopping())
    write(rules, 0.5)
    if checkpointed:
        assert "algo.bootstrap=own_rules.rule: its source" in refusal(tmp_path, fields[-1])
        write(rules, 1.0)
    finished = train(tmp_path, *fields)  # without a checkpoint it starts again, all with the new rule
    meta = json.loads((finished.directory / "meta.json").read_text())
    assert meta["sources"] == sources(finished.config)
    assert meta["resumed"] == ([120] if checkpointed else [])


def test_a_run_that_stored_no_source_is_not_compared(rules: Path, tmp_path: Path) -> None:
    path = train(tmp_path, *FIELDS).directory / "meta.json"
    meta = json.loads(path.read_text())
    assert set(meta.pop("sources")) == {"algo.bootstrap"}
    path.write_text(json.dumps(meta))
    write(rules, 0.5)
    compose_run(tmp_path, *FIELDS)


def test_a_run_with_another_rule_is_no_twin(rules: Path, tmp_path: Path) -> None:
    train(tmp_path, *FIELDS)
    other = compose_run(tmp_path, *FIELDS, "study=second")
    assert find_twin(other) == run_directory(compose_run(tmp_path, *FIELDS))
    copy_run(run_directory(compose_run(tmp_path, *FIELDS)), compose_run(tmp_path, *FIELDS, "study=third"))
    write(rules, 0.5)
    assert find_twin(compose_run(tmp_path, *FIELDS, "study=second")) is None
    assert "its source is not" in refusal(tmp_path, "study=third")


def test_our_own_names_have_no_source_and_reexports_follow_their_definition(rules: Path, tmp_path: Path) -> None:
    assert sources(compose_run(tmp_path, *FIELDS[:-2])) == {}
    (rules.parent / "own_names.py").write_text("from own_rules import rule\n")
    fields = (*FIELDS[:-2], "algo.bootstrap=own_names.rule", "label=mine")
    before = sources(compose_run(tmp_path, *fields))
    write(rules, 0.5)
    sys.modules.pop("own_names")
    assert sources(compose_run(tmp_path, *fields)) != before
