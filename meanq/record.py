"""The run directory: the one contract between training and analysis.

    config.yaml          the run, resolved and frozen
    evaluations.csv      one row per evaluation episode
    probes.npz           step [T], q [T, P, K, A], and true_q [P, A] where it is known
    training.csv         losses, values and schedules, means since the row before
    timings.csv          speed and where the time went; the only table that depends on the machine
    weights.safetensors  online weights of all members, at the end
    status.json          running | finished | failed | interrupted, with progress or traceback
    lock                 held by the process that trains here; its host and pid
    meta.json            versions, commit, host, timings

Every file is replaced whole, never edited in place, so a crash leaves the last complete version.
"""

import contextlib
import csv
import fcntl
import io
import json
import os
import platform
import socket
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from meanq.config import Config, ConfigError
from meanq.evaluation import Episode

CONFIG, STATUS, META = "config.yaml", "status.json", "meta.json"
EVALUATIONS, TRAINING, TIMINGS = "evaluations.csv", "training.csv", "timings.csv"
PROBES, WEIGHTS = "probes.npz", "weights.safetensors"
LOCK = "lock"

_FLOCK = "hhqqi4x"  # Linux's struct flock: type, whence, start, length, pid

# Where a run is stored and mirrored is not part of what it is.
_NOT_IDENTITY = ("root", "logger")


def run_directory(config: Config) -> Path:
    """A function of what the run is; nothing depends on the clock."""
    assert config.label is not None
    return Path(config.root) / config.study / config.env.name / config.label / f"seed_{config.seed}"


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file so that a reader, or a crash, sees the old version or the new one, whole."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_status(directory: Path) -> dict[str, Any]:
    """What a run says of itself; empty where there is no run."""
    try:
        return json.loads((directory / STATUS).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


def lock_holder(directory: Path) -> dict[str, Any] | None:
    """Who trains here, {"host", "pid"} as far as that is known; None where nobody does. Raises OSError.

    It asks without taking the lock, so it disturbs no one. Not for the process that holds the lock: a process does not
    see its own POSIX locks, and closing any descriptor of the file, as this does, would release them.
    """
    try:
        descriptor = os.open(directory / LOCK, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # "Who would keep me from locking all of it for writing?" Asking needs no permission to write.
        question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
        content = os.read(descriptor, 4096)
    finally:
        os.close(descriptor)
    if kind == fcntl.F_UNLCK:
        return None
    holder: dict[str, Any] = {"host": None, "pid": None}
    with contextlib.suppress(ValueError, RecursionError):  # not written yet
        written = json.loads(content)
        if isinstance(written, dict):
            holder |= {key: written.get(key) for key in holder}
    # The system's pid is 0 or negative for a process of another host or container, or means nothing here. Where the
    # holder is of this host it is the truth, while the file may still name the holder before.
    if pid > 0 and holder["host"] in (None, socket.gethostname()):
        holder["pid"] = pid
    return holder


def differences(directory: Path, config: Config) -> list[str]:
    """'field: theirs -> ours' for each field in which the run stored here differs from this one."""
    stored = yaml.safe_load((directory / CONFIG).read_text())
    theirs, ours = _flatten(stored), _flatten(asdict(config))
    return [
        f"{name}: {theirs.get(name, 'absent')} -> {ours.get(name, 'absent')}"
        for name in sorted(theirs.keys() | ours.keys())
        if theirs.get(name, "absent") != ours.get(name, "absent") and name.split(".")[0] not in _NOT_IDENTITY
    ]


def check_directory(directory: Path, config: Config) -> None:
    """Raise where the directory holds anything but this very run; writes nothing."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise ConfigError(f"root={config.root}: {directory} is a file; write another root, study or label")
    if (directory / CONFIG).exists():
        different = differences(directory, config)
        if different:
            raise ConfigError(
                f"{directory} holds another run ({'; '.join(different)}): write another label= or study=, or remove it"
            )
    elif any(directory.iterdir()):
        raise ConfigError(
            f"{directory} holds files but no {CONFIG}, so it is not a run: write another label= or study="
        )


class Record:
    """Writes one run's directory."""

    def __init__(self, directory: Path, config: Config) -> None:
        self.directory = directory
        self._config = config
        self.created = False
        self._tables: dict[str, list[dict[str, Any]]] = {EVALUATIONS: [], TRAINING: [], TIMINGS: []}
        self._changed: set[str] = set()
        self._probe_steps: list[int] = []
        self._probe_q: list[np.ndarray] = []
        self._true_q: np.ndarray | None = None

    def create(self) -> None:
        """Make the directory, or empty the unfinished run in it."""
        check_directory(self.directory, self._config)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            for name in (EVALUATIONS, TRAINING, TIMINGS, PROBES, WEIGHTS, STATUS, META):
                (self.directory / name).unlink(missing_ok=True)
            self._write(CONFIG, yaml.safe_dump(asdict(self._config), sort_keys=False).encode())
        except OSError as error:
            raise ConfigError(f"root={self._config.root}: cannot write there ({error})") from None
        self.created = True
        self.status("running", step=0)

    def evaluation(self, step: int, episodes: Sequence[Episode]) -> None:
        """Add one evaluation."""
        for i, episode in enumerate(episodes):
            row = asdict(episode)
            row["return"] = row.pop("episode_return")
            self._row(EVALUATIONS, {"step": step, "episode": i, "return": row.pop("return"), **row})

    def training(self, row: Mapping[str, Any]) -> None:
        """Add one row of training.csv."""
        self._row(TRAINING, row)

    def timing(self, row: Mapping[str, Any]) -> None:
        """Add one row of timings.csv."""
        self._row(TIMINGS, row)

    def probe(self, step: int, q: np.ndarray, true_q: np.ndarray | None) -> None:
        """Add the members' values q [K, P, A] at the probe states."""
        self._probe_steps.append(step)
        self._probe_q.append(q.transpose(1, 0, 2))
        self._true_q = true_q
        self._changed.add(PROBES)

    def flush(self) -> None:
        """Write what has changed."""
        for name in sorted(self._changed):
            if name == PROBES:
                self._write(name, self._probe_bytes())
            else:
                self._write(name, _csv_bytes(self._tables[name]))
        self._changed.clear()

    def weights(self, params: Mapping[str, Any]) -> None:
        """Store the weights."""
        from safetensors.torch import save

        tensors = {name: p.detach().cpu().contiguous() for name, p in params.items()}
        self._write(WEIGHTS, save(tensors))

    def status(self, state: str, **details: Any) -> None:
        """Say where the run stands."""
        self._write(STATUS, _json_bytes({"state": state, "total_steps": self._config.total_steps, **details}))

    def meta(self, **details: Any) -> None:
        """Store what is worth knowing about the circumstances."""
        self._write(META, _json_bytes({**circumstances(), **details}))

    def _row(self, table: str, row: Mapping[str, Any]) -> None:
        self._tables[table].append(dict(row))
        self._changed.add(table)

    def _probe_bytes(self) -> bytes:
        arrays = {"step": np.array(self._probe_steps), "q": np.stack(self._probe_q)}
        if self._true_q is not None:
            arrays["true_q"] = self._true_q
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        return buffer.getvalue()

    def _write(self, name: str, data: bytes) -> None:
        write_atomically(self.directory / name, data)


def circumstances() -> dict[str, Any]:
    """Versions, host and commit."""
    packages = ("meanq", "torch", "numpy", "gymnasium", "ale-py", "minatar", "hydra-core")
    versions = {}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "python": platform.python_version(),
        "versions": versions,
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "commit": _git_commit(),
    }


def _git_commit() -> str | None:
    try:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None


def _csv_bytes(rows: Sequence[Mapping[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _json_bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def _flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(node, Mapping):
        flat: dict[str, Any] = {} if node else {prefix: node}
        for key, value in node.items():
            flat |= _flatten(value, f"{prefix}.{key}" if prefix else str(key))
        return flat
    return {prefix: node}
