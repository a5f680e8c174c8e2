"""Reads the files of run directories; everything that reads a run does it through here.

`open_file` is the only place that opens one: regular files only, no links, up to a size limit. Nothing that is read is
executed: JSON, CSV, YAML without tags, arrays without pickles. Nothing that is small on disk grows large in memory. A
file that cannot be read raises UnreadableFileError, which names the file and the reason; a file that does not exist
raises FileNotFoundError or, where runs may lack it, reads as empty.
"""

import contextlib
import csv
import io
import json
import math
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, BinaryIO

import yaml

from meanq.config.errors import printable as printable
from meanq.rundir.layout import CONFIG, LOCK, META, PROBES, SEED_DIR, STATUS

if TYPE_CHECKING:
    import numpy as np

# What a run's files never exceed, so that the largest that is read takes less than a second and 500 MB.
_MAX_BYTES = {".csv": 2**25, ".npz": 2**27, ".safetensors": 2**36}
_MAX_TEXT_BYTES = 2**20  # of all other files
_MAX_ROWS, _MAX_COLUMNS, _MAX_CELLS = 2**18, 1_000, 2**21  # of tables; 50 million interactions are 50,000 rows
_MAX_LINE_BYTES = 2**16
_MAX_UNPACKED_BYTES, _MAX_MEMBERS = 2**27, 100  # of an archive of arrays
_MAX_VALUES, _MAX_DEPTH = 10_000, 30  # of JSON and YAML; a configuration has 300 values
_MAX_TEXT, _MAX_JSON_TEXT = 10_000, 100_000  # characters of a value; the latter may be a traceback
# Types of the values in JSON files and, of lists and objects, of their items. All may be absent or null.
_Kind = tuple[tuple[type, ...], tuple[type, ...]]
_TEXT: _Kind = ((str,), ())
_WHOLE: _Kind = ((int,), ())
_JSON_TYPES: dict[str, dict[str, _Kind]] = {
    STATUS: {
        **dict.fromkeys(("state", "reason", "traceback"), _TEXT),
        **dict.fromkeys(("step", "total_steps", "checkpoint"), _WHOLE),
    },
    META: {
        **dict.fromkeys(("python", "host", "platform", "cpu", "commit", "device", "copied_from"), _TEXT),
        **dict.fromkeys(("cores", "threads"), _WHOLE),
        "seconds": ((int, float), ()),
        "versions": ((dict,), (str, NoneType)),
        "sources": ((dict,), (str,)),
        "overrides": ((list,), (str,)),
        "earlier": ((list,), (dict,)),
        "resumed": ((list,), (int,)),
    },
    LOCK: {"host": _TEXT, "pid": _WHOLE},
}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SEED_LINE = re.compile(r"^seed: (0|[1-9][0-9]{0,17})$", re.MULTILINE)
# What parsers raise for a file that is not what its name promises.
_DAMAGE = (
    *(ArithmeticError, AttributeError, EOFError, KeyError, MemoryError, NotImplementedError, RecursionError, TypeError),
    *(ValueError, csv.Error, zipfile.BadZipFile, zlib.error, yaml.YAMLError),
)
_YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same language, ten times as fast


class UnreadableFileError(OSError):
    """A file, or directory, of a run that cannot be read, and why."""

    def __init__(self, path: Path, reason: str | BaseException) -> None:
        self.path = path
        self.reason = printable(str(reason)) or type(reason).__name__
        super().__init__(f"{path}: {self.reason}")

    @property
    def brief(self) -> str:
        """Without the directory."""
        return f"{self.path.name}: {self.reason}"


class DamagedFileError(UnreadableFileError):
    """A file whose content is not what its name promises."""


@contextlib.contextmanager
def open_file(path: Path, most: int | None = None) -> Iterator[BinaryIO]:
    """Open a run's file for reading; whatever is wrong with it, also while it is parsed, is an UnreadableFileError.

    Regular files only, since opening a pipe would wait for its writer; no links, which may lead out of the run; and no
    larger than `most` bytes or, by default, than a run's file of this kind ever is.
    """
    try:
        if not stat.S_ISREG(mode := path.lstat().st_mode):  # a socket cannot be opened
            raise DamagedFileError(path, "is a link" if stat.S_ISLNK(mode) else "is not a regular file")
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):  # it was replaced in between
                raise DamagedFileError(path, "is not a regular file")
            most = most or _MAX_BYTES.get(path.suffix, _MAX_TEXT_BYTES)
            if about.st_size > most:
                raise DamagedFileError(path, f"has {about.st_size:,} bytes, more than {most:,}")
            yield file
    except (FileNotFoundError, UnreadableFileError):
        raise
    except OSError as error:
        raise UnreadableFileError(path, error.strerror or error) from None
    except _DAMAGE as error:
        raise DamagedFileError(path, error) from None


@contextlib.contextmanager
def open_table(path: Path) -> Iterator[bytes]:
    """Read a CSV file as `open_file` does: one row per line, cells without quotes, and a bounded number of both."""
    with open_file(path) as file:
        data = file.read()
        rows = data.count(b"\n") + data.count(b"\r")
        sizes = {"rows": (rows, _MAX_ROWS), "cells": (rows + data.count(b","), _MAX_CELLS)}
        sizes["columns"] = data.partition(b"\n")[0].count(b",") + 1, _MAX_COLUMNS
        for name, (size, most) in sizes.items():
            if size > most:
                raise DamagedFileError(path, f"has {size:,} {name}, more than {most:,}")
        if b'"' in data:
            raise DamagedFileError(path, "has quotes, which no table of a run has")
        yield data


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, and check the types of the values that readers rely on."""
    with open_file(path) as file:
        content = json.load(file)
        if not isinstance(content, dict):
            raise DamagedFileError(path, "is not a JSON object")
        for name, kind in _JSON_TYPES.get(path.name, {}).items():
            found = content.get(name)
            items = found if isinstance(found, list) else found.values() if isinstance(found, dict) else ()
            if found is not None and (type(found) not in kind[0] or not all(type(item) in kind[1] for item in items)):
                raise DamagedFileError(path, f"{name} is {found!r:.40}")
        _check_size(content)
    return content


def _check_size(content: Any) -> None:
    """Raise ValueError for content that is too large, too deep or no plain data; counts what aliases name each time."""
    count, level = 0, [content]
    for _ in range(_MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += [*value, *value.values()]
            elif isinstance(value, list):
                below += value
            elif not isinstance(value, str | int | float | NoneType):
                raise ValueError(f"has a value of type {type(value).__name__}")
            elif isinstance(value, str) and len(value) > _MAX_JSON_TEXT:
                raise ValueError(f"has a text of more than {_MAX_JSON_TEXT:,} characters")
            elif isinstance(value, int) and abs(value) >= 2**63:
                raise ValueError("has a number of more than 64 bits")
            elif isinstance(value, float) and not math.isfinite(value):
                raise ValueError("has a number that is not finite")
            if len(below) > _MAX_VALUES:
                break
        count, level = count + len(below), below
        if count > _MAX_VALUES:
            raise ValueError(f"has more than {_MAX_VALUES:,} values")
        if not level:
            return
    raise ValueError(f"is nested more than {_MAX_DEPTH} levels deep")


def read_json_if_there(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty where the file is missing, an error where it is damaged."""
    try:
        return read_json(path)
    except FileNotFoundError:
        return {}


def read_json_if_valid(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty where the file is missing or damaged."""
    try:
        return read_json(path)
    except (FileNotFoundError, DamagedFileError):
        return {}


def read_status(directory: Path) -> dict[str, Any]:
    """Read status.json; empty where there is no run."""
    return read_json_if_valid(directory / STATUS)


@lru_cache(maxsize=64)
def _parse_config(text: str) -> Any:
    """Parse YAML without doing what it may ask of a parser. Equal texts give the same object: do not change it."""
    _check_events(text)
    config = yaml.load(text, Loader=_YAML_LOADER)
    _check_size(config)
    return config


def _check_events(text: str) -> None:
    """Raise ValueError for YAML that a parser should not build: too deep (a segmentation fault in C), too large, or
    with tags or aliases. Looks at one event of the parser after the other, so that nothing is built before."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_YAML_LOADER)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise ValueError(f"is nested more than {_MAX_DEPTH} levels deep")
        if count > 2 * _MAX_VALUES:
            raise ValueError(f"has more than {_MAX_VALUES:,} values")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None):
            raise ValueError("has aliases or tags, which no configuration of a run has")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > _MAX_TEXT:  # some numbers take quadratic time
            raise ValueError(f"has a value of more than {_MAX_TEXT:,} characters")
        if isinstance(event, yaml.ScalarEvent) and _CONTROL.search(event.value):
            raise ValueError("has control characters")


def read_config(directory: Path) -> dict[str, Any]:
    """Read a run's configuration, and check the fields that readers rely on. Its blocks are not to be changed.

    The seeds of a label differ in one line, so what follows from the others is parsed once.
    """
    path = directory / CONFIG
    with open_file(path) as file:
        text = file.read().decode()
        seed = _SEED_LINE.findall(text)
        config = _parse_config(_SEED_LINE.sub("seed: 0", text) if len(seed) == 1 else text)
        config = {**config, "seed": int(seed[0])} if len(seed) == 1 and isinstance(config, dict) else config
    try:
        names = [config["study"], config["label"], config["env"]["name"], config["algo"]["name"]]
        numbers = [config["seed"], config["total_steps"], config["algo"]["ensemble_size"]]
        scores = [config["env"].get(name) for name in ("random_score", "random_score_500k", "reference_score")]
        states = config.get("probe", {}).get("states", 0)
        kinds = [(names, (str,)), ([*numbers, states], (int,)), (scores, (int, float, NoneType))]
        valid = all(type(value) in allowed for values, allowed in kinds for value in values)
        valid = valid and all(map(str.isprintable, names)) and min(numbers) >= 0
    except (KeyError, TypeError, IndexError, AttributeError):
        valid = False
    if not valid:
        raise DamagedFileError(path, "is not the configuration of a run")
    return config


def read_table(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file; none where the file is missing, as in a new run."""
    try:
        with open_table(path) as data:
            rows = list(_rows(data))
            for row in rows:
                _step(row["step"])
            return rows
    except FileNotFoundError:
        return []


def _rows(data: bytes) -> Iterator[dict[str, str]]:
    rows = csv.reader(io.StringIO(data.decode(), newline=""))
    names = next(rows, [])
    if "step" not in names:
        raise ValueError("has no column step")
    return (dict(zip(names, row, strict=True)) for row in rows if row)


def read_numbers(path: Path) -> list[dict[str, float]]:
    """Read the rows of a CSV file as numbers, without empty cells; `step`, which all rows have, is a whole number."""
    try:
        with open_table(path) as data:
            rows = [
                {name: float(cell) for name, cell in row.items() if cell} | {"step": _step(row["step"])}
                for row in _rows(data)
            ]
            if len({(row["step"], row.get("episode")) for row in rows}) < len(rows):
                raise ValueError("has rows with the same step")
            return rows
    except FileNotFoundError:
        return []


def _step(cell: str) -> int:
    if not cell.isdecimal() or int(cell) >= 2**63:
        raise ValueError(f"has the step {cell:.40}")
    return int(cell)


@dataclass(frozen=True)
class Probes:
    """Values of all members at the probe states, and the true ones where they are known."""

    step: "np.ndarray"  # [T]
    q: "np.ndarray"  # [T, P, K, A]
    true_q: "np.ndarray | None"  # [P, A]
    policy_value: "np.ndarray | None" = None  # [T, P], exact, of the policy that is greedy in the members' mean

    def at(self, step: int) -> "np.ndarray | None":
        """Q [P, K, A] at this step; None where there is no probe or a value is not finite."""
        import numpy as np  # here, since `meanq status` needs no arrays

        found = self.q[self.step == step]
        return found[0] if len(found) and np.isfinite(found).all() else None


def read_probes(directory: Path, config: Mapping[str, Any] | None = None) -> Probes | None:
    """Read probes.npz, of as many states and members as the configuration says; None where the file is missing."""
    import numpy as np

    path = directory / PROBES
    try:
        with open_file(path) as file:
            _check_archive(file)
            arrays = np.load(file, allow_pickle=False)
            step, q = arrays["step"], arrays["q"]
            true_q, policy_value = arrays.get("true_q"), arrays.get("policy_value")
            if q.ndim != 4 or 0 in q.shape or step.shape != (len(q),) or not (np.diff(step) > 0).all():
                raise ValueError(f"has q of shape {q.shape} for steps of shape {step.shape}: these are no probes")
            if true_q is not None and (true_q.shape != (q.shape[1], q.shape[3]) or not np.isfinite(true_q).all()):
                raise ValueError(f"has true_q of shape {true_q.shape} for q of shape {q.shape}")
            if policy_value is not None and (policy_value.shape != q.shape[:2] or not np.isfinite(policy_value).all()):
                raise ValueError(f"has policy_value of shape {policy_value.shape} for q of shape {q.shape}")
            if q.dtype not in (np.float32, np.float64):
                raise ValueError(f"has q of type {q.dtype}, not float32 or float64")
            if config is not None:
                found = q.shape[1:3]
                wanted = config.get("probe", {}).get("states") or found[0], config["algo"]["ensemble_size"]  # 0: all
                if found != wanted:
                    raise ValueError(f"has (states, members) of {found} where {CONFIG} says {wanted}")
    except FileNotFoundError:
        return None
    return Probes(step, q, true_q, policy_value)


def check_weights(data: BinaryIO) -> None:
    """Raise ValueError for a file of safetensors whose header is too large; leaves the position at the beginning."""
    if (header := int.from_bytes(data.read(8), "little")) > _MAX_TEXT_BYTES:
        raise ValueError(f"has a header of {header:,} bytes, more than {_MAX_TEXT_BYTES:,}")
    data.seek(0)


def _check_archive(file: BinaryIO) -> None:
    """Raise ValueError for an archive that unpacks to too much, has too many files or is compressed in a slow way."""
    starts = 0  # of entries in its table of contents
    while chunk := file.read(2**20):
        starts += chunk.count(b"PK\1\2")
    if starts > _MAX_MEMBERS:
        raise ValueError(f"has more than {_MAX_MEMBERS:,} files")
    members = zipfile.ZipFile(file).infolist()
    unpacked = sum(member.file_size for member in members)
    if unpacked > _MAX_UNPACKED_BYTES:
        raise ValueError(f"unpacks to {unpacked:,} bytes, more than {_MAX_UNPACKED_BYTES:,}")
    if not {member.compress_type for member in members} <= {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise ValueError("is compressed otherwise than numpy does it")
    file.seek(0)


def find_runs(roots: Iterable[Path], problems: list[tuple[str, str]]) -> Iterator[Path]:
    """Find every run directory at or below the roots, once each, in order; links are followed, hidden ones skipped.

    A run directory has a status.json or is called seed_<n>. `problems` gets (directory, reason) of what cannot be
    listed.
    """

    def note(error: OSError) -> None:
        problems.append((error.filename, error.strerror or str(error)))

    seen: set[Path] = set()  # roots may overlap, and a link may lead back up
    for root in roots:
        above = Path(root).resolve().parents
        for path, names, files in os.walk(root, onerror=note, followlinks=True):
            directory, real = Path(path), Path(path).resolve()
            if real in above:
                problems.append((path, "leads out of the directory that was asked for"))
                seen.add(real)
            names[:] = [] if real in seen else sorted(name for name in names if not name.startswith("."))
            if real not in seen and (STATUS in files or SEED_DIR.fullmatch(directory.name or real.name)):
                names.clear()
                yield directory
            seen.add(real)


def read_last_rows(path: Path, column: str) -> Iterator[tuple[int, float]]:
    """Yield (step, column) of each row of a table, the last row first; parses no more rows than are asked for."""
    with open_table(path) as data:
        header, _, rows = data.partition(b"\n")
        names = header.decode().rstrip("\r").split(",")
        if not {"step", column} <= set(names):
            raise DamagedFileError(path, f"has no column {column}" if header else "is empty")
        end = len(rows.rstrip())
        while end > 0:
            start = rows.rfind(b"\n", 0, end) + 1
            if end - start > _MAX_LINE_BYTES:
                raise DamagedFileError(path, f"has a line of more than {_MAX_LINE_BYTES:,} bytes")
            cells = dict(zip(names, rows[start:end].decode().split(","), strict=True))
            yield _step(cells["step"]), float(cells[column])
            end = start - 1
