"""W&B and TensorBoard show what the run directory says, once, and never get in the way of training."""

import copy
import csv
import io
import json
import os
import pickle
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import yaml

from meanq.config.errors import ConfigError
from meanq.config.extensions import LOGGERS
from meanq.config.schema import CONFIG_DIR, Config, LoggerConfig
from meanq.mirrors import dashboard
from meanq.mirrors import upload as wandb_upload
from meanq.mirrors.process import ProcessMirror, follow, make_mirror
from meanq.mirrors.sink import Point, Sink, read_points
from meanq.mirrors.tensorboard import TensorboardSink
from meanq.mirrors.wandb import run_id
from meanq.rundir.layout import TABLES
from meanq.rundir.reader import UnreadableFileError
from meanq.rundir.writer import Record
from meanq.training.session import Session
from tests.helpers import compose
from tests.short_runs import SHORT, SilentReporter, compose_run, train
from tests.wandb_files import exit_codes, history, of_type, records, scalars

OFFLINE = LoggerConfig(name="wandb", mode="offline", finish_seconds=120)
# Of returns from 0 to 10 these make scores clearly above zero, so that everything that can be logged is.
SCORES = ("env.random_score=-10", "env.reference_score=10")


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody's W&B account is used, whoever runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("finished"), *SHORT, *SCORES, "algo.first_update=32").directory


@pytest.fixture
def directory(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def cut(directory: Path, through: int) -> None:
    """The directory as it was after this step."""
    for name in TABLES:
        with (directory / name).open(newline="") as file:
            rows = list(csv.DictReader(file))
        with (directory / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(row for row in rows if int(row["step"]) <= through)
    with np.load(directory / "probes.npz") as arrays:
        kept = arrays["step"] <= through
        np.savez(directory / "probes.npz", step=arrays["step"][kept], q=arrays["q"][kept])


def mirror_all(logger: LoggerConfig, directory: Path, state: str = "finished") -> None:
    mirror = make_mirror(logger, directory)
    assert mirror is not None
    mirror.update(240)
    mirror.close(state)


def test_points_are_the_tables_merged_by_step(finished: Path) -> None:
    points = {point.step: point for point in read_points(finished)}
    assert list(points) == [0, 60, 80, 120, 160, 180, 240]
    with (finished / "evaluations.csv").open(newline="") as file:
        episodes = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file) if row["step"] == "120"]
    assert len(episodes) == 2
    at = points[120].scalars
    assert at["evaluation/return"] == sum(e["return"] for e in episodes) / 2
    assert at["evaluation/bias"] == pytest.approx(sum(e["value"] - e["discounted_return"] for e in episodes) / 2)
    assert at["evaluation/value"] == pytest.approx(sum(e["value"] for e in episodes) / 2)
    assert at["evaluation/normalised_return"] == pytest.approx((at["evaluation/return"] + 10) / 20)
    with (finished / "training.csv").open(newline="") as file:
        training = {int(row["step"]): row for row in csv.DictReader(file)}
    assert at["training/loss"] == float(training[120]["loss"])
    assert "timing/steps_per_second" in at and "timing/share_learn" in at
    assert not any(name.startswith("probe/") for name in at), "probes were at other steps"
    q = np.load(finished / "probes.npz")["q"][-1]
    np.testing.assert_array_equal(points[240].histograms["probe/q"], q.ravel())
    assert points[240].scalars["probe/value"] == pytest.approx(q.mean(1).max(-1).mean())
    of_probes = {"probe/value", "probe/member_std", "probe/member_jensen_gap"}
    assert {name for name in points[0].scalars if not name.startswith("diagnosis/")} == of_probes
    assert {"diagnosis/dormant", "diagnosis/feature_rank"} < set(points[0].scalars)


def test_before_the_first_update_there_is_no_loss(tmp_path: Path) -> None:
    points = read_points(train(tmp_path, *SHORT).directory)
    assert points[1].step == 60 and "training/loss" not in points[1].scalars and "training/epsilon" in points[1].scalars


def test_spread_is_normalised_only_where_the_return_is_clearly_above_zero(directory: Path) -> None:
    last = read_points(directory)[-1].scalars
    score = last["evaluation/normalised_return"]
    assert last["probe/member_std_normalised"] == pytest.approx(last["probe/member_std"] / score)
    assert last["probe/member_jensen_gap_normalised"] == pytest.approx(last["probe/member_jensen_gap"] / score)
    config = yaml.safe_load((directory / "config.yaml").read_text())
    config["env"]["random_score"] = last["evaluation/return"] + 0.001
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    assert not [
        name for name in read_points(directory)[-1].scalars if name.startswith("probe") and "normalised" in name
    ]


class Payload:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def plant(directory: Path, kind: str) -> Path:
    """Make a directory that would run something if it were read carelessly; the file that would appear."""
    proof = directory / "executed"
    if kind == "array":
        np.savez(directory / "probes.npz", step=np.array([0]), q=np.array([Payload(proof)], dtype=object))
    elif kind == "pickle":
        (directory / "probes.npz").write_bytes(pickle.dumps(Payload(proof)))
    elif kind == "truncated":
        (directory / "probes.npz").write_bytes((directory / "probes.npz").read_bytes()[:900])
    elif kind == "other":
        (directory / "config.yaml").write_text("env: [1, 2]\n")
    else:
        (directory / "config.yaml").write_text(f"!!python/object/apply:os.mkdir ['{proof}']\n")
    return proof


@pytest.mark.parametrize("kind", ["array", "pickle", "yaml", "truncated", "other"])
def test_reading_a_directory_runs_nothing(kind: str, directory: Path) -> None:
    proof = plant(directory, kind)
    with pytest.raises(UnreadableFileError) as raised:
        read_points(directory)
    assert "\n" not in str(raised.value) and str(directory) in str(raised.value)
    assert not proof.exists()
    if kind == "array":  # the trap works on who steps into it
        with np.load(directory / "probes.npz", allow_pickle=True) as arrays:
            arrays["q"]
        assert proof.exists()


def test_a_runs_id_is_what_the_run_is(finished: Path) -> None:
    config = yaml.safe_load((finished / "config.yaml").read_text())
    elsewhere = {**config, "root": "/elsewhere", "logger": {"name": "wandb"}}
    assert run_id(config) == run_id(elsewhere)
    other = copy.deepcopy(config)
    other["algo"]["learning_rate"] *= 2
    assert len({run_id(config), run_id({**config, "seed": 1}), run_id(other)}) == 3
    long = run_id({**config, "label": "a/b:c?" * 60})
    assert len(long) <= 128 and not set(long) & set("/\\#?%:")


def test_by_default_there_is_no_mirror(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(finished.iterdir())
    assert compose().logger.name == "files"
    assert make_mirror(compose().logger, finished) is None
    assert make_mirror(LoggerConfig(name="wandb", mode="disabled"), finished) is None
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert make_mirror(LoggerConfig(name="wandb"), finished) is None
    assert sorted(finished.iterdir()) == before


def test_the_fields_of_the_yaml_files_are_those_of_the_schema() -> None:
    assert compose("logger=wandb").logger == LoggerConfig(name="wandb")
    assert compose("logger=tensorboard").logger == LoggerConfig(name="tensorboard")
    stored = yaml.safe_load((CONFIG_DIR / "logger" / "wandb.yaml").read_text())
    assert stored == {**vars(LoggerConfig(name="wandb")), "finish_seconds": 30}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("logger.mode=onlin", "logger.mode=onlin: write auto or online or offline or disabled"),
        ("logger.project='a/b'", "logger.project=a/b: write a name of 1 to 128 characters"),
        ("logger.finish_seconds=0", "logger.finish_seconds=0.0: write a number above 0"),
        ("logger.name=mlflow", "logger.name=mlflow: no such logger"),
    ],
)
def test_a_wrong_field_is_one_line(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        compose("logger=wandb", override)
    assert str(raised.value).startswith(message) and "\n" not in str(raised.value)


def test_an_offline_run_has_exactly_the_rows_of_the_tables(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logger = ("logger=wandb", "logger.tags=[mine]", "logger.weights=true", "logger.finish_seconds=120")
    config = compose_run(tmp_path, *SHORT, *SCORES, *logger, "seed=3", "study=s", "label=l")
    run = Session(config, make_mirror=make_mirror)
    run.train(SilentReporter())
    found = records(run.directory)
    points = read_points(run.directory)
    rows = history(found)
    assert [row["_step"] for row in rows] == [point.step for point in points]
    for row, point in zip(rows, points, strict=True):
        assert scalars(row) == pytest.approx(point.scalars)
        assert row.get("probe/q._type") == ("histogram" if point.histograms else None)
        if point.histograms:
            values = point.histograms["probe/q"]
            assert sum(row["probe/q.values"]) == values.size
            assert (row["probe/q.bins"][0], row["probe/q.bins"][-1]) == pytest.approx((values.min(), values.max()))
    described = of_type(found, "run")[0]
    assert described["project"] == "meanq"
    assert described["run_group"] == "s/minatar_asterix/l"
    assert described["display_name"] == "seed_3"
    assert described["tags"] == ["meanq", "minatar_asterix", "mine"]
    assert described["run_id"] == run_id(yaml.safe_load((run.directory / "config.yaml").read_text()))
    config = described["config"]["update"]
    assert (config["env_id"], config["exp_name"]) == ("minatar_asterix", "l"), "as Open RL Benchmark finds runs"
    assert config["algo"]["learning_rate"] == 2.5e-4 and config["seed"] == 3 and "torch" in config["meta"]["versions"]
    assert exit_codes(found) == [0]
    (artifact,) = of_type(found, "artifact")
    assert artifact["name"].startswith("weights-") and "weights.safetensors" in json.dumps(artifact)
    assert not (run.directory / "mirror.log").exists(), "W&B had nothing to say"
    upload = f"to upload it later: wandb login, then meanq upload {run.directory}"
    assert capfd.readouterr().out == f"  W&B: no API key, so offline, in {run.directory}/wandb; {upload}\n"
    assert not (tmp_path / "home").exists(), "nothing is written in the user's home"


@pytest.mark.parametrize(("state", "code"), [("failed", 1), ("interrupted", 255)])
def test_how_a_run_ended_is_shown(state: str, code: int, directory: Path) -> None:
    mirror = make_mirror(OFFLINE, directory)
    assert mirror is not None
    mirror.update(120)
    mirror.close(state)
    found = records(directory)
    assert exit_codes(found) == [code]
    assert [row["_step"] for row in history(found)] == [0, 60, 80, 120], "what comes later may not be complete"


def test_a_resumed_run_has_each_step_once_in_one_directory(finished: Path, directory: Path) -> None:
    cut(directory, through=160)
    mirror = make_mirror(OFFLINE, directory)
    assert mirror is not None
    for step in (0, 60, 80, 120, 160):
        mirror.update(step)
    mirror.close("interrupted")
    assert [row["_step"] for row in history(records(directory))] == [0, 60, 80, 120, 160]
    cut(directory, through=120)  # the checkpoint was older
    resumed = make_mirror(OFFLINE, directory)
    assert resumed is not None
    for name in ("evaluations.csv", "training.csv", "timings.csv", "probes.npz"):
        shutil.copy(finished / name, directory / name)
    resumed.update(240)
    resumed.close("finished")
    found = records(directory)  # of the one offline directory there is
    assert [row["_step"] for row in history(found)] == [0, 60, 80, 120, 160, 180, 240]
    assert exit_codes(found) == [0]


def test_a_state_that_was_not_reported_is_read(directory: Path) -> None:
    for state, code, rows in (("finished", 0, 7), ("running", 255, 4)):
        status(directory, state)
        mirror = ProcessMirror(OFFLINE, directory)
        mirror.update(120)
        mirror._pipe.close()
        assert mirror._process.wait(60) == 0
        found = records(directory)
        assert (exit_codes(found), len(history(found))) == ([code], rows)


def test_two_runs_of_one_process_are_two(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SERVICE", "3-1-unix-/of/somebody/else")
    directories = [shutil.copytree(finished, tmp_path / name) for name in ("one", "two")]
    config = yaml.safe_load((finished / "config.yaml").read_text())
    (directories[1] / "config.yaml").write_text(yaml.safe_dump({**config, "seed": 1}))
    cut(directories[1], through=120)
    mirrors = [ProcessMirror(OFFLINE, directory) for directory in directories]
    for step in (0, 60, 80, 120):
        for mirror in mirrors:
            mirror.update(step)
    mirrors[1].close("failed")
    mirrors[0].close("finished")
    found = [records(directory) for directory in directories]
    assert [len(history(each)) for each in found] == [7, 4]
    assert [exit_codes(each) for each in found] == [[0], [1]]
    assert [of_type(each, "run")[0]["display_name"] for each in found] == ["seed_0", "seed_1"]


class FakeWandb(types.ModuleType):
    """A W&B server that has the steps up to 120 already."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.logged: list[int] = []
        self.options: dict[str, Any] = {}
        self.exit_code = -1
        self.starting_step = 121

    def Settings(self, **settings: Any) -> Any:
        return settings

    def Histogram(self, values: np.ndarray) -> np.ndarray:
        return values

    def init(self, **options: Any) -> Any:
        self.options = options
        return self

    def log(self, content: dict[str, Any], step: int) -> None:
        self.logged.append(step)

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


def test_online_only_what_the_server_lacks_is_sent(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", server)
    mirror_all(OFFLINE, directory)  # in its own process, with the real library
    follow(directory, LoggerConfig(name="wandb", mode="online"), iter(["160", "240", "finished"]))
    assert server.logged == [160, 180, 240]
    assert server.options["id"] == run_id(yaml.safe_load((directory / "config.yaml").read_text()))
    assert server.options["resume"] == "allow" and server.exit_code == 0
    assert not list(directory.glob("wandb/offline-run-*")), "wandb sync shall not upload it again"


def events(directory: Path) -> list[tuple[int, str]]:
    """Step and name of every value in the event files: records of length, checksum, message, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in (directory / "tensorboard").iterdir():
        stream = io.BytesIO(path.read_bytes())
        while header := stream.read(12):
            event = Event.FromString(stream.read(struct.unpack("<Q", header[:8])[0]))
            stream.read(4)
            found += [(event.step, value.tag) for value in event.summary.value]
    return found


def test_tensorboard_has_each_value_of_each_step_once(directory: Path) -> None:
    expected = sorted((p.step, name) for p in read_points(directory) for name in (*p.scalars, *p.histograms))
    logger = LoggerConfig(name="tensorboard", finish_seconds=120)
    mirror_all(logger, directory, "interrupted")
    assert sorted(events(directory)) == expected
    mirror_all(logger, directory)
    assert sorted(events(directory)) == expected
    assert not (directory / "mirror.log").exists()


def test_tensorboard_has_the_tables_values(directory: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event

    sink = TensorboardSink(LoggerConfig(name="tensorboard"), directory)
    point = read_points(directory)[3]
    sink.log(point)
    sink.close("finished")
    (path,) = (directory / "tensorboard").iterdir()
    data, found, offset = path.read_bytes(), {}, 0
    while offset < len(data):
        length = struct.unpack_from("<Q", data, offset)[0]
        for value in Event.FromString(data[offset + 12 : offset + 12 + length]).summary.value:
            found[value.tag] = value.simple_value
        offset += 16 + length
    assert found == pytest.approx(point.scalars, rel=1e-6)


class ListSink(Sink):
    """A logger of one's own."""

    logged: ClassVar[list[Any]] = []

    def log(self, point: Point) -> None:
        self.logged.append(point.step)
        self.position = point.step + 1

    def close(self, state: str) -> None:
        self.logged.append(state)


def test_a_new_logger_is_a_class_and_a_line(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOGGERS, "list", f"{__name__}.ListSink")
    follow(directory, LoggerConfig(name="list"), iter(["120", "finished"]))
    assert ListSink.logged == [0, 60, 80, 120, 160, 180, 240, "finished"]


def test_a_mirror_that_fails_is_one_warning(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (directory / "config.yaml").write_text("no: [yaml")
    mirror = ProcessMirror(OFFLINE, directory)
    deadline = time.monotonic() + 20
    while mirror._process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    mirror.update(60)
    mirror.update(120)
    mirror.close("finished")
    out, error = capfd.readouterr()
    assert out == "" and error.count("\n") == 1
    assert error.startswith("meanq: logger=wandb: ") and str(directory / "config.yaml") in error
    assert f"meanq upload {directory}" in error


def test_a_mirror_that_hangs_is_given_up(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mirror = ProcessMirror(LoggerConfig(name="wandb", mode="offline", finish_seconds=0.5), directory)
    os.kill(mirror._process.pid, signal.SIGSTOP)
    for step in range(50_000):  # far more than a pipe holds
        mirror.update(step)
    mirror.close("finished")
    assert mirror._process.poll() is not None, "it is not left behind"
    assert "was not complete after logger.finish_seconds=0.5" in capfd.readouterr().err


def test_without_being_told_a_key_decides(directory: Path) -> None:
    script = "from meanq.config.schema import LoggerConfig; from meanq.mirrors.wandb import resolve_mode as r;" + (
        "print(r(LoggerConfig(name='wandb')), r(LoggerConfig(name='wandb', mode='offline')))"
    )
    for environment, expected in (
        ({}, "offline offline"),
        ({"WANDB_API_KEY": "a" * 40}, "online offline"),
        ({"WANDB_API_KEY": "a" * 40, "WANDB_MODE": "offline"}, "offline offline"),
    ):
        result = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "WANDB_SILENT": "true", **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert result.stdout.strip() == expected, result.stderr


def status(directory: Path, state: str) -> None:
    (directory / "status.json").write_text(json.dumps({"state": state, "total_steps": 240, "step": 240}))


def test_upload_replays_what_has_ended_once(finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    states = {"a": "finished", "b": "failed", "c": "running", "d": "interrupted"}
    for name, state in states.items():
        status(shutil.copytree(finished, root / name), state)
    command = [str(root), "--mode", "offline", "--project", "papers"]
    assert wandb_upload.main(command) == 0
    out = capfd.readouterr().out
    assert f"{root / 'a'}: uploaded\n{root / 'b'}: uploaded\n" in out
    assert f"{root / 'c'}: skipped, is not finished: its state is running" in out
    assert f"{root / 'd'}: skipped, is not finished: its state is interrupted" in out
    assert "2 of 4 run(s) uploaded" in out
    assert not (root / "c" / "wandb").exists()
    found = {name: records(root / name) for name in "ab"}
    assert [exit_codes(each) for each in found.values()] == [[0], [1]]
    assert all(len(history(each)) == 7 for each in found.values())
    assert of_type(found["a"], "run")[0]["project"] == "papers"
    before = sorted(root.rglob("*"))
    assert wandb_upload.main(command) == 0
    out = capfd.readouterr().out
    assert "nothing to upload" in out and "is there already" in out
    assert sorted(root.rglob("*")) == before


def test_a_run_that_went_on_is_uploaded_again(directory: Path, finished: Path) -> None:
    cut(directory, through=120)
    status(directory, "failed")
    assert wandb_upload.main([str(directory), "--mode", "offline"]) == 0
    assert len(history(records(directory))) == 4
    for name in (*TABLES, "probes.npz", "status.json"):
        shutil.copy(finished / name, directory / name)
    assert wandb_upload.main([str(directory), "--mode", "offline"]) == 0
    found = records(directory)
    assert [row["_step"] for row in history(found)] == [0, 60, 80, 120, 160, 180, 240] and exit_codes(found) == [0]


@pytest.mark.parametrize("kind", ["array", "pickle", "yaml", "truncated", "other"])
def test_uploading_somebody_elses_directory_runs_nothing(
    kind: str, finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        shutil.copytree(finished, tmp_path / "root" / name)
    proof = plant(tmp_path / "root" / "a", kind)
    assert wandb_upload.main([str(tmp_path / "root"), "--mode", "offline"]) == 1
    out, error = capfd.readouterr()
    assert not proof.exists()
    assert error.startswith("meanq: ") and error.count("\n") == 1
    assert f"{tmp_path / 'root' / 'b'}: uploaded" in out, "the others are uploaded"


def test_runs_that_cannot_be_uploaded_do_not_hinder_the_others(
    finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in "abcdef":
        shutil.copytree(finished, tmp_path / name)
    for name in "acde":
        (tmp_path / name / "mirror.log").mkdir()  # as where it may not be written
    assert wandb_upload.main([str(tmp_path), "--mode", "offline"]) == 1
    out, error = capfd.readouterr()
    assert all(f"{tmp_path / name}: uploaded" in out for name in "bf") and "2 of 6 run(s) uploaded" in out
    lines = error.splitlines()
    assert len(lines) == 4
    assert all(line.startswith("meanq: ") and "not uploaded; " in line and "mirror.log" in line for line in lines)


def test_mistakes_are_one_line(finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        ([str(tmp_path / "absent")], "no runs there"),
        ([str(tmp_path)], "no runs there"),
        ([str(finished)], "no W&B API key: run `wandb login`"),
        ([str(finished), "--mode", "offline", "--project", "a/b"], "logger.project=a/b: write a name"),
    ):
        assert wandb_upload.main(arguments) == 1
        error = capfd.readouterr().err
        assert error.startswith("meanq: ") and message in error and error.count("\n") == 1


def test_every_panel_shows_something_that_is_logged(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert dashboard.main(["--entity", "somebody", "--project", "papers", "--json"]) == 0
    definition = json.loads(capfd.readouterr().out)
    shown = set()

    def collect(node: Any) -> None:
        if isinstance(node, dict):
            shown.update(node["metrics"] if isinstance(node.get("metrics"), list) else [])
            for child in node.values():
                collect(child)
        elif isinstance(node, list):
            for child in node:
                collect(child)

    collect(definition)
    assert shown == {metric for section in dashboard.SECTIONS.values() for metric in section}
    mirror_all(OFFLINE, directory)
    logged = {name for row in history(records(directory)) for name in row}
    assert shown <= logged
    assert dashboard.main(["--entity", "somebody"]) == 1
    assert capfd.readouterr().err.startswith("meanq: no W&B API key")


def test_the_documentation_names_every_metric(finished: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "wandb.md").read_text()
    names = {name for point in read_points(finished) for name in (*point.scalars, *point.histograms)}
    names = {re.sub(r"(adam_share_(q90_)?|dormant_).*", r"\1<layer>", name) for name in names}
    missing = [name for name in names if f"`{name}`" not in text]
    assert not missing


def test_a_run_without_rows_is_mirrored(tmp_path: Path) -> None:
    config: Config = compose(f"root={tmp_path}", *SHORT)
    record = Record(tmp_path / "run", config)
    record.open()
    record.start()
    record.close()
    mirror_all(OFFLINE, tmp_path / "run", "failed")
    found = records(tmp_path / "run")
    assert history(found) == [] and exit_codes(found) == [1]
