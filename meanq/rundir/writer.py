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
import io
import os
import time
import traceback
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from meanq.config.errors import ConfigError
from meanq.config.schema import Config
from meanq.rundir.circumstances import circumstances
from meanq.rundir.files import _csv_bytes, _json_bytes, read_object, read_status, write_atomically
from meanq.rundir.identity import _REMEDY, check_directory
from meanq.rundir.layout import (
    _TEMPORARY,
    CONFIG,
    EVALUATIONS,
    META,
    PROBES,
    STATUS,
    TIMINGS,
    TRAINING,
    WEIGHTS,
    run_directory,
)
from meanq.rundir.lock import BusyError, DirectoryLock
from meanq.training.evaluation import Episode

_HEARTBEAT_SECONDS = 10.0


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
