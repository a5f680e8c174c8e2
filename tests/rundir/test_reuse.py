"""A study takes runs that another has finished, where they are the same runs, and trains the others."""

import json
from pathlib import Path

import pytest
import yaml

from meanq.config.schema import Config
from meanq.launching.execute import Run
from meanq.launching.launch import launch
from meanq.launching.plan import Plan, plan
from meanq.rundir.layout import run_directory
from meanq.rundir.lock import DirectoryLock
from meanq.rundir.reader import read_status
from meanq.rundir.reuse import copy_run, find_twin, reuse, said_of
from meanq.training.session import Session
from tests.short_runs import SHORT, SilentReporter, compose_run, train

# So short that only what a run is called can matter.
FIELDS = (*SHORT, "algo=meanq", "algo.ensemble_size=2", "compile=false")


def of_study(root: Path, study: str, label: str, *overrides: str) -> Config:
    return compose_run(root, *FIELDS, *overrides, f"study={study}", f"label={label}")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With one finished run below it."""
    path = tmp_path_factory.mktemp("runs")
    train(path, *FIELDS, "study=first", "label=meanq")
    return path


def test_a_twin_has_other_names_and_nothing_else(root: Path) -> None:
    found = find_twin(of_study(root, "second", "another_name"))
    assert found == run_directory(of_study(root, "first", "meanq"))
    for override in ("algo.discount=0.9", "seed=1", "total_steps=120", "threads=2", "env.options.max_steps=59"):
        assert find_twin(of_study(root, "second", "meanq", override)) is None, override
    assert find_twin(of_study(root, "second", "meanq", "checkpoint.every=7")) == found, "that is no part of the run"


def test_a_run_is_not_its_own_twin_and_an_unfinished_one_is_none(root: Path, tmp_path: Path) -> None:
    config = of_study(root, "first", "meanq")
    assert find_twin(config) is None
    other = of_study(tmp_path, "second", "meanq")
    copy_run(run_directory(config), of_study(tmp_path, "first", "meanq"))
    assert find_twin(other) is not None
    status = run_directory(of_study(tmp_path, "first", "meanq")) / "status.json"
    status.write_text(json.dumps({**json.loads(status.read_text()), "state": "interrupted"}))
    assert find_twin(other) is None


def test_a_copy_is_a_run_of_its_study_and_says_whose_it_was(root: Path) -> None:
    source = run_directory(of_study(root, "first", "meanq"))
    config = of_study(root, "second", "another_name")
    copy_run(source, config)
    directory = run_directory(config)
    for name in ("evaluations.csv", "training.csv", "timings.csv", "probes.npz", "weights.safetensors", "status.json"):
        assert (directory / name).read_bytes() == (source / name).read_bytes()
    stored = yaml.safe_load((directory / "config.yaml").read_text())
    assert (stored["study"], stored["label"]) == ("second", "another_name")
    meta = json.loads((directory / "meta.json").read_text())
    assert meta.pop("copied_from") == "first, meanq"
    assert meta == json.loads((source / "meta.json").read_text())
    assert {path.name for path in directory.iterdir()} == {path.name for path in source.iterdir()}
    # A copy of a copy says where the run was trained.
    again = of_study(root, "third", "meanq")
    copy_run(directory, again)
    assert json.loads((run_directory(again) / "meta.json").read_text())["copied_from"] == "first, meanq"


def test_what_cannot_be_copied_is_trained(root: Path, tmp_path: Path) -> None:
    source = of_study(tmp_path, "first", "meanq")
    copy_run(run_directory(of_study(root, "first", "meanq")), source)
    other = of_study(tmp_path, "second", "meanq")
    run_directory(other).mkdir(parents=True)
    lock = DirectoryLock(run_directory(other))
    lock.acquire()
    assert reuse(other) is None, "another process has it"
    lock.release()
    weights = run_directory(source) / "weights.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    assert reuse(other) is None and not read_status(run_directory(other)), "somebody has removed the weights"
    train_config(other)
    assert (run_directory(other) / "weights.safetensors").read_bytes() == content
    assert "copied_from" not in json.loads((run_directory(other) / "meta.json").read_text())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", b"study: [half"),
        ("config.yaml", b"\xff\xfe"),
        ("config.yaml", b"a list"),
        ("status.json", b"\xff\xfe"),
        ("status.json", b"[]"),
        ("meta.json", b'{"versions":'),
        ("meta.json", b"[]"),
        ("meta.json", b"{}"),
    ],
)
def test_a_damaged_run_is_no_twin(name: str, content: bytes, root: Path, tmp_path: Path) -> None:
    source = of_study(tmp_path, "first", "meanq")
    copy_run(run_directory(of_study(root, "first", "meanq")), source)
    other = of_study(tmp_path, "second", "meanq")
    assert find_twin(other) == run_directory(source)
    (run_directory(source) / name).write_bytes(content)
    assert reuse(other) is None and not run_directory(other).exists()


def test_a_run_is_trained_where_a_copy_would_not_be_the_same(root: Path, tmp_path: Path) -> None:
    source = of_study(tmp_path, "first", "meanq")
    copy_run(run_directory(of_study(root, "first", "meanq")), source)
    assert reuse(of_study(tmp_path, "second", "meanq", "checkpoint.keep=true")) is None
    meta = run_directory(source) / "meta.json"
    content = json.loads(meta.read_text())
    content["versions"]["torch"] = "1.0"
    meta.write_text(json.dumps(content))
    assert reuse(of_study(tmp_path, "second", "meanq")) is None


def test_another_commit_is_said(root: Path, tmp_path: Path) -> None:
    source = run_directory(of_study(tmp_path, "first", "meanq"))
    copy_run(run_directory(of_study(root, "first", "meanq")), of_study(tmp_path, "first", "meanq"))
    content = json.loads((source / "meta.json").read_text())
    assert said_of(source) == ""
    (source / "meta.json").write_text(json.dumps({**content, "commit": "abc"}))
    assert said_of(source) == f", trained by commit abc (here is {content['commit']})"


def planned(root: Path, study: str, *overrides: str) -> Plan:
    found = plan(["-m", f"+study={study}", "scale=small", f"root={root}", *overrides])
    assert found is not None
    return found


STUDY = """
question: q
paper: p
refuted_by: r
scales:
  small:
    machine: m
    cost: c
    common: {common}
    runs:
      - {runs}
"""


def test_a_second_study_trains_what_the_first_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    common = " ".join(override for override in FIELDS if not override.startswith(("algo=", "algo.ensemble_size")))
    for name, runs in (("one", "algo=dqn seed=0-1"), ("two", "algo=dqn algo.multi_step=1,2 seed=0-1")):
        (tmp_path / f"{name}.yaml").write_text(STUDY.format(common=common, runs=runs))
    trained: list[str] = []

    def execute(run: Run) -> None:
        trained.append(f"{run.config.study}/{run.config.label}/{run.config.seed}")
        train_config(run.config)

    monkeypatch.setattr("meanq.launching.launch.execute", execute)
    root = tmp_path / "runs"
    assert launch(planned(root, str(tmp_path / "one.yaml"))) == []
    assert trained == ["one/dqn/0", "one/dqn/1"]
    trained.clear()
    capsys.readouterr()
    second = planned(root, str(tmp_path / "two.yaml"))
    assert launch(second) == []
    assert trained == ["two/dqn__multi_step=2/0", "two/dqn__multi_step=2/1"]
    assert capsys.readouterr().out.count("copied") == 2
    assert {read_status(directory)["state"] for directory in second.directories} == {"finished"}
    trained.clear()
    assert launch(planned(root, str(tmp_path / "two.yaml"))) == [] and trained == []


def test_what_is_mirrored_is_trained_under_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.yaml").write_text(STUDY.format(common=" ".join(SHORT), runs="algo=dqn seed=0"))
    (tmp_path / "two.yaml").write_text(STUDY.format(common=" ".join(SHORT), runs="algo=dqn seed=0"))
    jobs: list[str] = []
    root = tmp_path / "runs"
    monkeypatch.setattr("meanq.launching.launch.execute", lambda run: train_config(run.config))
    launch(planned(root, str(tmp_path / "one.yaml")))
    monkeypatch.setattr("meanq.launching.launch.execute", lambda run: jobs.append(run.config.study))
    launch(planned(root, str(tmp_path / "two.yaml"), "logger=tensorboard"))
    assert jobs == ["two"]


def train_config(config: Config) -> None:
    Session(config).train(SilentReporter())
