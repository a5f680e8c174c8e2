"""The one way to read a run's files: what it refuses, how it says so, and that nothing reads them otherwise."""

import io
import json
import os
import re
import zipfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from meanq.metrics import registry
from meanq.rundir import frames, layout, reader
from meanq.rundir.reader import (
    DamagedFileError,
    UnreadableFileError,
    find_runs,
    read_config,
    read_json,
    read_json_if_valid,
    read_last_rows,
    read_probes,
    read_status,
    read_table,
)
from tests.synthetic_runs import COLUMNS, write_run

SOURCES = Path(__file__).parents[2]
# What else may read or name these files, and why.
ALLOWED = {
    "meanq/metrics/registry.py": "names the file of each metric, and may not import rundir",
    "meanq/launching/study.py": "conf/config.yaml and studies are YAML of users, not of runs",
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_run(tmp_path, returns={10: [1, 2], 20: [3, 4]}, q={10: np.zeros((4, 1, 2))})


def readers(directory: Path) -> dict[str, Callable[[], Any]]:
    return {
        layout.CONFIG: lambda: read_config(directory),
        layout.STATUS: lambda: read_json(directory / layout.STATUS),
        layout.EVALUATIONS: lambda: read_table(directory / layout.EVALUATIONS),
        layout.TIMINGS: lambda: list(read_last_rows(directory / layout.TIMINGS, "seconds")),
        layout.PROBES: lambda: read_probes(directory),
    }


NAMES = list(readers(Path()))


@pytest.mark.parametrize("name", NAMES)
def test_what_training_writes_can_be_read(name: str, directory: Path) -> None:
    assert readers(directory)[name]()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["pipe", "directory", "device", "bytes"])
def test_what_is_no_such_file_is_one_line_with_name_and_reason(name: str, kind: str, directory: Path) -> None:
    path = directory / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b"\xff\xfe\x00[")
    with pytest.raises(DamagedFileError) as raised:
        readers(directory)[name]()
    error = raised.value
    assert error.path == path and str(error) == f"{path}: {error.reason}" and error.brief == f"{name}: {error.reason}"
    assert "\n" not in str(error)


@pytest.mark.parametrize("name", [layout.CONFIG, layout.STATUS, layout.EVALUATIONS, layout.PROBES])
def test_a_file_that_is_too_large_is_not_read(name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_MAX_BYTES", {".csv": 20, ".npz": 20})
    monkeypatch.setattr(reader, "_MAX_TEXT_BYTES", 20)
    with pytest.raises(DamagedFileError, match="more than 20"):
        readers(directory)[name]()


def test_files_that_a_new_run_lacks_are_empty(tmp_path: Path) -> None:
    assert read_table(tmp_path / layout.TRAINING) == [] and read_probes(tmp_path) is None
    assert read_status(tmp_path) == {} == read_json_if_valid(tmp_path / layout.META)
    with pytest.raises(FileNotFoundError):
        read_config(tmp_path)


def test_a_damaged_status_is_none_but_one_without_permission_is_an_error(directory: Path) -> None:
    path = directory / layout.STATUS
    path.write_text('{"state": "fin')
    assert read_status(directory) == {}
    path.write_text("{}")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("the superuser may read everything")
    with pytest.raises(UnreadableFileError, match=r"status\.json: Permission denied"):
        read_status(directory)


def test_a_file_in_the_archive_that_is_no_array_is_said(directory: Path) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("step.npy", b"no array")
        archive.writestr("q.npy", b"no array")
    (directory / layout.PROBES).write_bytes(data.getvalue())
    with pytest.raises(DamagedFileError, match=r"probes\.npz"):
        read_probes(directory)


@pytest.mark.parametrize("kind", [str, int, object])
def test_probes_of_another_type_are_refused(kind: type, directory: Path) -> None:
    np.savez(directory / layout.PROBES, step=np.array([10]), q=np.zeros((1, 4, 1, 2)).astype(kind))
    with pytest.raises(DamagedFileError, match=r"probes\.npz"):
        read_probes(directory)


def test_runs_are_found_once_in_order(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "b", seed=seed) for seed in (0, 1)]
    named = tmp_path / "a" / "my_best_run"
    named.mkdir(parents=True)
    (named / layout.STATUS).write_text("{}")
    (tmp_path / "c").symlink_to(tmp_path / "b")
    (tmp_path / "b" / "loop").symlink_to(tmp_path)
    hidden = write_run(tmp_path / ".hidden")
    problems: list[tuple[str, str]] = []
    found = list(find_runs([tmp_path, runs[0], tmp_path / "absent"], problems))
    assert found == [named, *runs] and hidden not in found
    assert problems == [(str(tmp_path / "absent"), "No such file or directory")]


def test_an_episode_is_a_row_of_the_table() -> None:
    assert ",".join(layout.EVALUATION_COLUMNS) == COLUMNS
    values = [1.0, 2.0, 3.0, 4.0, 5, 6.0]
    episode = layout.Episode(**dict(zip((f.name for f in fields(layout.Episode)), values, strict=True)))  # type: ignore
    assert list(episode.row(100, 7).values()) == [100, 7, *values]
    assert episode.row(100, 7)["return"] == episode.episode_return


def test_states_that_are_written_are_among_those_that_are_shown() -> None:
    assert set(layout.ENDED_STATES) < set(layout.WRITTEN_STATES) < set(layout.STATES)


def test_metrics_name_the_files_as_the_layout_does() -> None:
    for name in ("EVALUATIONS", "PROBES", "TRAINING", "DIAGNOSIS", "TIMINGS"):
        assert getattr(registry, name) == getattr(layout, name)


def test_no_other_module_opens_the_files_of_runs() -> None:
    names = [value for name, value in vars(layout).items() if name.isupper() and isinstance(value, str)]
    literal = "|".join(re.escape(json.dumps(name)) for name in names if "." in name)
    parsers = r"np\.load\(|yaml\.(safe_)?load|csv\.(DictR|r)eader\(|DictReader"
    reading = re.compile(f"{literal}|{parsers}")
    offenders = []
    for path in [*SOURCES.glob("meanq/**/*.py"), *SOURCES.glob("analysis/**/*.py")]:
        name = str(path.relative_to(SOURCES))
        if name.startswith("meanq/rundir/") or name in ALLOWED:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if reading.search(line):
                offenders.append(f"{name}:{number}: {line.strip()}")
    assert offenders == [], "use meanq.rundir.reader and the names of meanq.rundir.layout"


def table_text(rows: int, generator: np.random.Generator) -> str:
    lines = ["step,loss,game_return,epsilon"]
    for step in range(1, rows + 1):
        cells = [f"{generator.normal():.17g}" if generator.random() < 0.7 else "" for _ in range(3)]
        lines.append(",".join([str(1000 * step), *cells]))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("rows", [0, 1, 2, 50])
def test_a_plain_table_is_read_as_pandas_reads_it(rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "training.csv"
    path.write_text(table_text(rows, np.random.default_rng(rows)))
    fast = frames.read_frame(path)
    assert rows == 0 or frames._plain_table(path.read_bytes(), ["step"], ["step"], frames.EVERY_COLUMN) is not None
    monkeypatch.setattr(frames, "_plain_table", lambda *_: None)
    pd.testing.assert_frame_equal(fast, frames.read_frame(path), rtol=1e-12)


@pytest.mark.parametrize(
    "text",
    ["step,a\n2,1\n1,2\n", "step,a\n1,1\n1,2\n", 'step,a\n1,"2"\n', "step,a\n1\n", "step,a\nnan,1\n", "a,b\n1,2\n", ""],
)
def test_other_tables_are_left_to_pandas(text: str) -> None:
    assert frames._plain_table(text.encode(), ["step"], ["step"], frames.EVERY_COLUMN) is None


def test_seeds_of_a_label_are_told_apart(tmp_path: Path) -> None:
    for seed in (0, 3, 12):
        directory = write_run(tmp_path, seed=seed, overrides={"probe.seed": 7})
        config = reader.read_config(directory)
        assert (config["seed"], config["probe"]["seed"]) == (seed, 7)
        assert config == yaml.safe_load((directory / "config.yaml").read_text())
