"""The lock of a run directory: at most one process trains there."""

import errno
import fcntl
import json
import os
import socket
import stat
import struct
import sys
from pathlib import Path
from typing import Any, ClassVar

from meanq.config.errors import ConfigError
from meanq.rundir.layout import LOCK
from meanq.rundir.reader import open_file, read_json_if_valid


class BusyError(RuntimeError):
    """Another process trains in this directory."""


class DirectoryLock:
    """A POSIX record lock on the file `lock`.

    The system drops it when its process ends, however that happens, and NFS passes it on to its server, so it holds
    across the machines of a cluster.
    """

    _held: ClassVar[dict[Path, int]] = {}  # locks of this process, which the system does not report to itself

    def __init__(self, directory: Path) -> None:
        self._path = directory.absolute() / LOCK

    @property
    def held(self) -> bool:
        """Whether this process holds it."""
        return self._path in self._held

    def acquire(self) -> None:
        """Take the lock, or raise BusyError."""
        if self.held:
            raise BusyError(f"{self._path.parent} is being trained by this very process")
        while True:
            # The holder writes into this file, so it must not be a link to another one, or a pipe.
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                os.close(handle)
                raise OSError(errno.EINVAL, "is not a regular file", str(self._path))
            try:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(handle)
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    where = f"{self._path.parent} is on a file system without locks ({error.strerror})"
                    raise ConfigError(f"root: {where}; write a root on another one") from None
                holder = lock_holder(self._path.parent) or {}
                who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
                raise BusyError(f"{self._path.parent} is being trained by {who}") from None
            # A holder that ended between the two calls has removed the file we locked: then lock the new one.
            if self._path.exists() and os.path.samestat(os.fstat(handle), self._path.stat()):
                break
            os.close(handle)
        os.truncate(handle, 0)
        os.write(handle, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode())
        self._held[self._path] = handle

    def release(self) -> None:
        """Release the lock; does nothing where it is not held."""
        handle = self._held.pop(self._path, None)
        if handle is not None:
            self._path.unlink(missing_ok=True)
            os.close(handle)


def lock_holder(directory: Path) -> dict[str, Any] | None:
    """Return host and pid of the process that trains in a directory, or None. Does not acquire the lock."""
    path = directory.absolute() / LOCK
    # Opening and closing the file of a lock that this process holds would drop the lock.
    if path in DirectoryLock._held:
        return {"host": socket.gethostname(), "pid": os.getpid()}
    try:
        with open_file(path) as file:
            # F_GETLK reports who would prevent a write lock on the whole file; it needs no permission to write.
            if sys.platform == "darwin":  # start, length, process, type, whence
                query = struct.pack("qqihh", 0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
                _, _, pid, kind, _ = struct.unpack("qqihh", fcntl.fcntl(file, fcntl.F_GETLK, query))
            else:  # type, whence, start, length, process, as Linux has it on 64 bits
                query = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, query))
    except OSError:
        return None
    if kind == fcntl.F_UNLCK:
        return None
    holder = {"host": "?", "pid": "?", **read_json_if_valid(path)}  # one that was acquired just now is still empty
    # The system knows the process, unless it runs on another host or in another container: then it reports 0, -1 or a
    # number that means nothing here. The file may still name an earlier holder that was killed.
    if pid > 0 and holder["host"] in ("?", socket.gethostname()):
        holder["pid"] = pid
    return holder
