"""Writes a run directory; layout.py says what it holds."""

import io
import json
import os
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from meanq.config.errors import ConfigError
from meanq.config.schema import Config
from meanq.rundir import files, reader
from meanq.rundir.circumstances import circumstances
from meanq.rundir.identity import REMEDY, check_directory
from meanq.rundir.layout import CONFIG, META, PROBES, STATUS, TABLES, TEMPORARY, WEIGHTS, run_directory
from meanq.rundir.lock import BusyError, DirectoryLock

_HEARTBEAT_SECONDS = 10.0
_LOCK_WAIT_SECONDS = 120.0


class Record:
    """Writes one run's directory. Rows are collected in memory and written by `flush`."""

    def __init__(self, directory: Path, config: Config) -> None:
        self.directory = directory
        self._config = config
        self._lock = DirectoryLock(directory)
        self._tables: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
        self._changed: set[str] = set()
        self._probe_steps: list[int] = []
        self._probe_q: list[np.ndarray] = []
        self._true_q: np.ndarray | None = None
        self._policy_values: list[np.ndarray] = []
        self._checkpoint: int | None = None  # the step of the newest
        self._resumed: list[int] = []
        self._earlier: list[dict[str, Any]] = []
        self._next_heartbeat = 0.0

    def open(self) -> None:
        """Lock the directory, which is made if needed; raises where it holds another run."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._acquire()
            check_directory(self.directory, self._config)
            for path in self.directory.iterdir():
                if TEMPORARY.fullmatch(path.name):
                    path.unlink()
            self._checkpoint = reader.read_status(self.directory).get("checkpoint")
            if not (self.directory / CONFIG).exists():
                content = yaml.safe_dump(asdict(self._config), sort_keys=False)
                files.write_atomically(self.directory / CONFIG, content.encode())
        except (OSError, ConfigError) as error:
            self._lock.release()
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"root={self._config.root}: cannot write there ({error})") from None

    def _acquire(self) -> None:
        """Take the lock. A job that SLURM has requeued waits for the lock of its own earlier process.

        After a node has crashed, NFS keeps its locks until their lease expires, 90 seconds by default.
        """
        deadline = time.monotonic() + (_LOCK_WAIT_SECONDS if os.environ.get("SLURM_RESTART_COUNT") else 0.0)
        while True:
            try:
                return self._lock.acquire()
            except BusyError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(1.0)

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    def start(self) -> None:
        """Begin a new run, with empty tables."""
        self._checkpoint = None
        for name in (*TABLES, PROBES, WEIGHTS, META):
            (self.directory / name).unlink(missing_ok=True)
        self.status("running", step=0)

    def position(self) -> dict[str, int]:
        """Return the number of rows of each table and of probes, for `resume`."""
        return {**{name: len(rows) for name, rows in self._tables.items()}, PROBES: len(self._probe_steps)}

    def resume(self, step: int, position: Mapping[str, int]) -> None:
        """Cut the tables back to their length at a checkpoint: what was written after it will be written again."""
        before = reader.read_json_if_valid(self.directory / META)
        self._resumed, self._earlier = [*before.get("resumed", []), step], list(before.get("earlier", []))
        changed = {name: before[name] for name, now in circumstances().items() if before.get(name, now) != now}
        if changed:
            self._earlier.append({"to_step": step, **changed})
        self._checkpoint = step
        try:
            for name in TABLES:
                rows = reader.read_table(self.directory / name)
                self._tables[name] = self._first(name, rows, position.get(name, 0))  # 0: an older version, without it
            probes = reader.read_probes(self.directory)
        except reader.UnreadableFileError as error:
            raise ConfigError(f"{error.path} cannot be read ({error.reason}); {REMEDY}") from None
        if probes is None:
            raise ConfigError(f"{self.directory / PROBES} cannot be read (no such file); {REMEDY}")
        self._probe_steps = self._first(PROBES, probes.step.tolist(), position[PROBES])
        self._probe_q, self._true_q = list(probes.q[: position[PROBES]]), probes.true_q
        if probes.policy_value is not None:
            self._policy_values = list(probes.policy_value[: position[PROBES]])
        self._changed = {PROBES, *(name for name in TABLES if self._tables[name])}
        for name in set(TABLES) - self._changed:
            (self.directory / name).unlink(missing_ok=True)
        self.flush()
        self.status("running", step=step)

    def _first(self, name: str, rows: list[Any], count: int) -> list[Any]:
        if len(rows) < count:
            found = f"{len(rows)} rows where the checkpoint knows of {count}"
            raise ConfigError(f"{self.directory / name} has {found}; {REMEDY}")
        return rows[:count]

    def add(self, table: str, *rows: Mapping[str, Any]) -> None:
        """Add rows to one of layout.TABLES."""
        self._tables[table] += [dict(row) for row in rows]
        self._changed.add(table)

    def probe(
        self, step: int, q: np.ndarray, true_q: np.ndarray | None, policy_value: np.ndarray | None = None
    ) -> None:
        """Add the members' values q [K, P, A] at the probe states, and the exact value [P] of their greedy policy."""
        self._probe_steps.append(step)
        self._probe_q.append(q.transpose(1, 0, 2))
        self._true_q = true_q
        if policy_value is not None:
            self._policy_values.append(policy_value)
        self._changed.add(PROBES)

    def flush(self) -> None:
        """Write the tables and probes that have changed."""
        for name in sorted(self._changed):
            if name == PROBES:
                self._write_probes()
            else:
                files.write_table(self.directory / name, self._tables[name])
        self._changed.clear()

    def _write_probes(self) -> None:
        arrays = {"step": np.array(self._probe_steps), "q": np.stack(self._probe_q)}
        if self._true_q is not None:
            arrays["true_q"] = self._true_q
        if self._policy_values:
            arrays["policy_value"] = np.stack(self._policy_values)
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        files.write_atomically(self.directory / PROBES, buffer.getvalue())

    def weights(self, params: Mapping[str, Any]) -> None:
        """Store the weights."""
        from safetensors.torch import save

        tensors = {name: p.detach().cpu().contiguous() for name, p in params.items()}
        files.write_atomically(self.directory / WEIGHTS, save(tensors))

    def checkpointed(self, step: int) -> None:
        """Note the newest checkpoint in status.json from now on, so that its loss is noticed."""
        self._checkpoint = step

    def status(self, state: str, **details: Any) -> None:
        """Replace status.json."""
        files.write_json(self.directory / STATUS, self._status(state, details))
        self._next_heartbeat = time.monotonic() + _HEARTBEAT_SECONDS

    def _status(self, state: str, details: Mapping[str, Any]) -> dict[str, Any]:
        known = {} if self._checkpoint is None else {"checkpoint": self._checkpoint}
        return {"state": state, "total_steps": self._config.total_steps, **details, **known}

    def end(self, state: str, **details: Any) -> None:
        """Write how the run ended before its time; on a full disk over the bytes that status.json has there already."""
        try:
            self.status(state, **details)
        except OSError:
            details.pop("traceback", None)  # it might not fit the block
            files.overwrite(self.directory / STATUS, json.dumps(self._status(state, details)).encode())

    def heartbeat(self) -> None:
        """Refresh the modification time of status.json every few seconds; cheap enough for every step."""
        if time.monotonic() >= self._next_heartbeat:
            os.utime(self.directory / STATUS)
            self._next_heartbeat = time.monotonic() + _HEARTBEAT_SECONDS

    def meta(self, **details: Any) -> None:
        """Replace meta.json. `earlier` lists what was different before the run was resumed."""
        earlier = {"earlier": self._earlier} if self._earlier else {}
        files.write_json(self.directory / META, {**circumstances(), **details, "resumed": self._resumed, **earlier})


def record_failure(config: Config, error: Exception) -> None:
    """Note in its directory why a run could not be constructed."""
    record = Record(run_directory(config), config)
    record.open()
    try:
        record.status("failed", step=reader.read_status(record.directory).get("step", 0), **reason_of(error))
    finally:
        record.close()


def reason_of(error: Exception) -> dict[str, str]:
    """Describe a failure for status.json."""
    return {"reason": f"{type(error).__name__}: {error}", "traceback": "".join(traceback.format_exception(error))}
