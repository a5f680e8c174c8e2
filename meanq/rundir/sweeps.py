"""What sweeps are about to run, for `meanq status`.

A sweep lists its runs in <root>/.sweeps/<hash>/plan.json and holds the lock beside it while it goes on. The system
drops the lock when the process ends, however that happens: the list of a sweep that was killed counts no longer, and
the next sweep removes it. Everything here is a courtesy to status: where it cannot be written, the sweep goes on.
"""

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from meanq.config.errors import ConfigError
from meanq.rundir import files, reader
from meanq.rundir.lock import BusyError, DirectoryLock, lock_holder

SWEEPS, PLAN = ".sweeps", "plan.json"
_FAILURES = (OSError, ConfigError, BusyError)  # ConfigError: a file system without locks


@contextlib.contextmanager
def announced(root: Path, directories: Sequence[Path]) -> Iterator[None]:
    """Within this context these runs below the root are known to be planned."""
    names = [directory.relative_to(root).as_posix() for directory in directories]
    place = root / SWEEPS / hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]
    lock, is_new = DirectoryLock(place), not root.exists()
    try:
        _remove_ended(root)
        with contextlib.suppress(*_FAILURES):  # Busy: the same sweep is under way already, and has said so
            place.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            files.write_json(place / PLAN, {"runs": names})
        yield
    finally:
        if lock.held:
            _remove(place, lock)
        with contextlib.suppress(OSError):
            if is_new:
                root.rmdir()  # of a sweep that was refused; otherwise there are runs in it


def _remove_ended(root: Path) -> None:
    for path in sorted((root / SWEEPS).glob("*")):
        lock = DirectoryLock(path)
        with contextlib.suppress(*_FAILURES):
            lock.acquire()
            _remove(path, lock)


def _remove(place: Path, lock: DirectoryLock) -> None:
    """Remove a plan whose lock we hold; the lock goes last."""
    with contextlib.suppress(OSError):
        for path in place.glob("*"):
            if path.name != "lock":
                path.unlink()
    lock.release()
    with contextlib.suppress(OSError):
        place.rmdir()
        place.parent.rmdir()  # where no other sweep is there


def planned_runs(path: Path) -> dict[Path, float]:
    """Runs at or below a path that a living sweep has planned, and when it did. The path may be deep below the root."""
    path = path.absolute()
    found: dict[Path, float] = {}
    for root in (path, *path.parents):
        for place in sorted((root / SWEEPS).glob("*")) if (root / SWEEPS).is_dir() else ():
            with contextlib.suppress(OSError):
                if lock_holder(place) is None:
                    continue
                since = (place / PLAN).stat().st_mtime
                names = reader.read_json(place / PLAN).get("runs")
                for name in names if isinstance(names, list) else ():
                    directory = root / str(name)
                    if ".." not in directory.parts and directory.is_relative_to(path):
                        found[directory] = since
    return found
