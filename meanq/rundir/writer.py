"""The run directory: the one contract between training and analysis.

    config.yaml          the run, resolved and frozen
    evaluations.csv      one row per evaluation episode
    probes.npz           step [T], q [T, P, K, A], and true_q [P, A] where it is known
    training.csv         losses, values and schedules, means since the row before
    timings.csv          speed and where the time went; the only table that depends on the machine
    weights.safetensors  online weights of all members, at the end
    status.json          running | finished | failed | interrupted, with progress or traceback; its age is the heartbeat
    meta.json            versions, commit, host, timings, the steps at which the run was resumed
    checkpoint/          what is needed to go on (checkpoint.py), until the run is finished
    lock                 held by the process that trains here

Every file is replaced whole, never edited in place, so a crash leaves the last complete version.
"""

import contextlib
import csv
import errno
import fcntl
import io
import json
import os
import platform
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import yaml

from meanq.config import Config, ConfigError, EnvConfig, HyperparametersConfig, field_value, flatten
from meanq.evaluation import Episode

CONFIG, STATUS, META = "config.yaml", "status.json", "meta.json"
EVALUATIONS, TRAINING, TIMINGS = "evaluations.csv", "training.csv", "timings.csv"
PROBES, WEIGHTS, LOCK = "probes.npz", "weights.safetensors", "lock"

# Fields that are not part of a run's identity: where it is stored and mirrored, how often it is saved, what is kept for
# speed; and the environment's blocks of hyper-parameters: the values in use are those of `algo`.
NOT_IDENTITY = (
    *("root", "logger", "checkpoint", "replay_on_device", "cache_targets"),
    *("algo.family", *(f"env.{f.name}" for f in fields(EnvConfig) if f.type is HyperparametersConfig)),
)
_NOT_IDENTITY_PREFIXES = tuple(f"{name}." for name in NOT_IDENTITY)
_HEARTBEAT_SECONDS = 10.0
_TEMPORARY = re.compile(r"\.[a-z.]+\.\w{8}")  # what a crash leaves of write_atomically


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
        return read_object(directory / STATUS)
    except FileNotFoundError:
        return {}


def read_object(path: Path) -> dict[str, Any]:
    """What a JSON file holds; nothing where it is damaged."""
    try:
        content = json.loads(path.read_text())
    except ValueError:  # not JSON, or not even text
        return {}
    return content if isinstance(content, dict) else {}


def differences(directory: Path, config: Config) -> list[str]:
    """'field: theirs -> ours' for each field in which the run stored here differs from this one."""
    try:
        stored = yaml.safe_load((directory / CONFIG).read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{directory / CONFIG} cannot be read ({reason}); {_REMEDY}") from None
    theirs, ours = flatten(stored), flatten(asdict(config))
    pairs = {name: (field_value(theirs, name), field_value(ours, name)) for name in sorted(theirs.keys() | ours.keys())}
    return [
        f"{name}: {their} -> {our}"
        for name, (their, our) in pairs.items()
        if their != our and not f"{name}.".startswith(_NOT_IDENTITY_PREFIXES)
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
    elif any(path.name != LOCK and not _TEMPORARY.fullmatch(path.name) for path in directory.iterdir()):
        raise ConfigError(
            f"{directory} holds files but no {CONFIG}, so it is not a run: write another label= or study="
        )


_REMEDY = "remove the directory to start the run again from the beginning"


class BusyError(RuntimeError):
    """Another process trains in this directory."""


class DirectoryLock:
    """At most one process trains in a directory.

    A POSIX record lock: the system drops it when its process ends, however that happens, and NFS passes it on to its
    server, so it holds between the machines of a cluster.
    """

    _held: ClassVar[dict[Path, int]] = {}  # of this process, to which its own locks do not show

    def __init__(self, directory: Path) -> None:
        self._path = directory.absolute() / LOCK

    def acquire(self) -> None:
        """Take the lock, or raise BusyError."""
        if self._path in self._held:
            raise BusyError(f"{self._path.parent} is being trained by this very process")
        while True:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(handle)
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise ConfigError(
                        f"root: {self._path.parent} is on a file system without locks ({error.strerror}), so two "
                        "processes could train there at once; write a root on another one"
                    ) from None
                holder = lock_holder(self._path.parent) or {}
                who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
                raise BusyError(f"{self._path.parent} is being trained by {who}") from None
            # A holder that ended between our two calls has removed the file we locked: then lock the new one.
            if self._path.exists() and os.path.samestat(os.fstat(handle), self._path.stat()):
                break
            os.close(handle)
        os.truncate(handle, 0)
        os.write(handle, _json_bytes({"host": socket.gethostname(), "pid": os.getpid()}))
        self._held[self._path] = handle

    def release(self) -> None:
        """Give the lock back."""
        handle = self._held.pop(self._path, None)
        if handle is not None:
            self._path.unlink(missing_ok=True)
            os.close(handle)


def lock_holder(directory: Path) -> dict[str, Any] | None:
    """Who trains in a directory; None: nobody. Only asks, and so disturbs no one."""
    path = directory.absolute() / LOCK
    # To open and close the file of a lock that this process holds would drop it.
    if path in DirectoryLock._held:
        return {"host": socket.gethostname(), "pid": os.getpid()}
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        # Who would keep us from locking all of it for writing? To ask needs no permission to write.
        if sys.platform == "darwin":  # start, length, process, type, whence
            query = struct.pack("qqihh", 0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
            _, _, pid, kind, _ = struct.unpack("qqihh", fcntl.fcntl(descriptor, fcntl.F_GETLK, query))
        else:  # type, whence, start, length, process, as Linux has it on 64 bits
            query = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(descriptor, fcntl.F_GETLK, query))
        content = b"" if kind == fcntl.F_UNLCK else os.read(descriptor, 4096)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    if kind == fcntl.F_UNLCK:
        return None
    holder: dict[str, Any] = {"host": "?", "pid": "?"}
    with contextlib.suppress(ValueError, RecursionError):  # taken this very moment, and not signed yet
        signed = json.loads(content)
        if isinstance(signed, dict):
            holder |= signed
    # The system knows the process, unless it is of another host or container: then it says 0, -1 or what means
    # nothing here. The file may still bear the name of a holder that was killed.
    if pid > 0 and holder["host"] in ("?", socket.gethostname()):
        holder["pid"] = pid
    return holder


class Record:
    """Writes one run's directory."""

    def __init__(self, directory: Path, config: Config) -> None:
        self.directory = directory
        self._config = config
        self._lock = DirectoryLock(directory)
        self._tables: dict[str, list[dict[str, Any]]] = {EVALUATIONS: [], TRAINING: [], TIMINGS: []}
        self._changed: set[str] = set()
        self._probe_steps: list[int] = []
        self._probe_q: list[np.ndarray] = []
        self._true_q: np.ndarray | None = None
        self._checkpoint: int | None = None  # the step of the newest
        self._resumed: list[int] = []
        self._earlier: list[dict[str, Any]] = []
        self._next_heartbeat = 0.0

    def open(self) -> None:
        """Make the directory, or enter the unfinished run in it; no other process can until close."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._acquire()
            check_directory(self.directory, self._config)
            for path in self.directory.iterdir():
                if _TEMPORARY.fullmatch(path.name):
                    path.unlink()
            self._checkpoint = read_status(self.directory).get("checkpoint")
            if not (self.directory / CONFIG).exists():
                self._write(CONFIG, yaml.safe_dump(asdict(self._config), sort_keys=False).encode())
        except OSError as error:
            self._lock.release()
            raise ConfigError(f"root={self._config.root}: cannot write there ({error})") from None
        except ConfigError:
            self._lock.release()
            raise

    def _acquire(self) -> None:
        """Take the lock. A job that SLURM has queued again may have to wait for its own remains.

        Where a node crashed, NFS keeps its locks until their lease runs out, 90 seconds by default.
        """
        patience = 120.0 if os.environ.get("SLURM_RESTART_COUNT") else 0.0
        deadline = time.monotonic() + patience
        while True:
            try:
                return self._lock.acquire()
            except BusyError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(1.0)

    def close(self) -> None:
        """Let others in."""
        self._lock.release()

    def start(self) -> None:
        """Begin at the first interaction, with empty tables."""
        self._checkpoint = None
        for name in (EVALUATIONS, TRAINING, TIMINGS, PROBES, WEIGHTS, META):
            (self.directory / name).unlink(missing_ok=True)
        self.status("running", step=0)

    def position(self) -> dict[str, int]:
        """How much has been written so far."""
        return {**{name: len(rows) for name, rows in self._tables.items()}, PROBES: len(self._probe_steps)}

    def resume(self, step: int, position: Mapping[str, int]) -> None:
        """Take the tables up where they stood at a checkpoint: what was written after it will be written again."""
        with contextlib.suppress(FileNotFoundError):
            before = read_object(self.directory / META)
            self._resumed, self._earlier = list(before.get("resumed", [])), list(before.get("earlier", []))
            changed = {name: before[name] for name, now in circumstances().items() if before.get(name, now) != now}
            if changed:
                self._earlier.append({"to_step": step, **changed})
        self._resumed.append(step)
        self._checkpoint = step
        for name in self._tables:
            rows = self._read_rows(name)
            self._tables[name] = rows[: self._at_least(name, len(rows), position[name])]
        self._read_probes(position[PROBES])
        for name, rows in self._tables.items():
            if rows:
                self._changed.add(name)
            else:
                (self.directory / name).unlink(missing_ok=True)
        self.flush()
        self.status("running", step=step)

    def _read_rows(self, table: str) -> list[dict[str, Any]]:
        try:
            with (self.directory / table).open(newline="") as file:
                return list(csv.DictReader(file))
        except FileNotFoundError:
            return []

    def _read_probes(self, count: int) -> None:
        try:
            with np.load(self.directory / PROBES, allow_pickle=False) as probes:
                steps, q = probes["step"], probes["q"]
                self._true_q = probes.get("true_q")
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ConfigError(f"{self.directory / PROBES} cannot be read ({error}); {_REMEDY}") from None
        self._at_least(PROBES, len(steps), count)
        self._probe_steps, self._probe_q = steps[:count].tolist(), list(q[:count])
        self._changed.add(PROBES)

    def _at_least(self, name: str, found: int, wanted: int) -> int:
        if found < wanted:
            raise ConfigError(
                f"{self.directory / name} has {found} rows where the checkpoint knows of {wanted}; {_REMEDY}"
            )
        return wanted

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

    def checkpointed(self, step: int) -> None:
        """Remember, in status.json, that there is a checkpoint, so that its loss cannot go unnoticed."""
        self._checkpoint = step

    def status(self, state: str, **details: Any) -> None:
        """Say where the run stands."""
        known = {} if self._checkpoint is None else {"checkpoint": self._checkpoint}
        content = {"state": state, "total_steps": self._config.total_steps, **details, **known}
        self._write(STATUS, _json_bytes(content))
        self._next_heartbeat = time.monotonic() + _HEARTBEAT_SECONDS

    def heartbeat(self) -> None:
        """Show that the run lives, now and then; called all the time, so it costs next to nothing."""
        if time.monotonic() >= self._next_heartbeat:
            os.utime(self.directory / STATUS)
            self._next_heartbeat = time.monotonic() + _HEARTBEAT_SECONDS

    def meta(self, **details: Any) -> None:
        """Store what is worth knowing about the circumstances; `earlier`: what was otherwise before it was resumed."""
        earlier = {"earlier": self._earlier} if self._earlier else {}
        self._write(META, _json_bytes({**circumstances(), **details, "resumed": self._resumed, **earlier}))

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


def record_failure(config: Config, error: Exception) -> None:
    """Note in its directory why a run could not even be made."""
    record = Record(run_directory(config), config)
    record.open()
    try:
        record.status("failed", step=read_status(record.directory).get("step", 0), **reason_of(error))
    finally:
        record.close()


def reason_of(error: Exception) -> dict[str, str]:
    """What status.json says of a failure."""
    return {"reason": f"{type(error).__name__}: {error}", "traceback": "".join(traceback.format_exception(error))}


def circumstances() -> dict[str, Any]:
    """Versions, machine and commit."""
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
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),  # of the machine; `threads` says how many the run uses
        "commit": _git_commit(),
    }


def _cpu_model() -> str | None:
    """As Linux calls it; elsewhere what Python knows."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None


@cache
def _git_commit() -> str | None:
    """Asked once in a process: a commit that is made while a run goes on is not the code that it runs."""
    try:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None


def _csv_bytes(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Of all columns: a run that a newer version goes on with may have more of them than it began with."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _json_bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()
