"""Checkpoints: the complete state of a run, so that a killed run resumes exactly.

    checkpoint/
      frames-<first>-<last>     replay frames by number; written once, never changed
      frames-<first>-<last>.copy  the same bytes, since all checkpoints share these files
      arrays-<step>.safetensors all other arrays
      state-<step>.json         the rest, and the checksums of those files; written last, so all of them are complete

The two newest are kept. Every file is read back from disk after it was written. A damaged file of frames is restored
from its copy; where other files are damaged, the checkpoint before is used. Reading executes nothing: arrays are bytes
with a type and a shape, the rest is JSON. Only files with these names are ever removed.
"""

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from meanq.replay.buffer import Replay
from meanq.rundir.files import write_atomically
from meanq.rundir.layout import CHECKPOINT_DIR
from meanq.rundir.reader import UnreadableFileError, check_weights, open_file

_FORMAT = 2
_KEPT = 2  # one survives if the newest turns out to be broken
_SEGMENT_FRAMES = 10_000  # bounds the memory that compression takes
_MAX_STATE_BYTES = 2**24
_MAX_BYTES = 2**33  # of other files whose size an older version has not stored
_STATE_NAME = re.compile(r"state-(\d+)\.json")
_COPY = ".copy"
_NAMES = r"(frames-\d+-\d+(\.copy)?|arrays-\d+\.safetensors|state-\d+\.json)"
_OURS = re.compile(rf"{_NAMES}|\.{_NAMES}\.\w{{8}}")  # the latter: left behind by write_atomically after a crash


_WRONG = (AttributeError, MemoryError, OverflowError, TypeError, ValueError)  # of what is not as it was written


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used; the message says why and what to do."""


@dataclass
class Segment:
    """A file of consecutive frames."""

    first: int
    last: int  # exclusive
    compressed: bool

    @property
    def name(self) -> str:
        """The file name."""
        return f"frames-{self.first}-{self.last}"


@dataclass
class Saved:
    """A complete checkpoint, as read."""

    step: int
    state: dict[str, Any]
    frames: list[tuple[Segment, bytes]]  # compressed as on disk, to save memory

    def restore_frames(self, replay: Replay) -> None:
        """Fill the replay with the saved frames."""
        for segment, data in self.frames:
            numbers = range(segment.first, segment.last)
            if segment.compressed:  # to no more than the frames, whatever the file says
                data = zlib.decompressobj().decompress(data, len(numbers) * replay.frame_bytes + 1)
            frames = np.frombuffer(data, dtype=replay.frame_dtype)
            replay.set_frames(numbers, frames.reshape(len(numbers), -1))


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, run_directory: Path) -> None:
        self.directory = run_directory / CHECKPOINT_DIR
        self._segments: list[Segment] = []
        self._checksums: dict[str, str] = {}  # of the segments' files
        self._sizes: dict[str, int] = {}  # of the files that were written or read last

    def save(self, step: int, state: Mapping[str, Any], replay: Replay) -> None:
        """Write the state after this step. Older checkpoints are removed only once it is safe on disk."""
        self._refuse_link()
        self.directory.mkdir(exist_ok=True)
        self._write_frames(replay)
        arrays: dict[str, np.ndarray] = {}
        plain = _to_plain(state, "", arrays)
        name = f"arrays-{step}.safetensors"
        files = {s.name: self._checksums[s.name] for s in self._segments}
        files[name] = self._write(name, safetensors.numpy.save(arrays))
        _sync(self.directory)
        sizes = {name: self._sizes[name] for name in files}
        content = {"format": _FORMAT, "step": step, "files": files, "sizes": sizes, "arrays": name}
        content |= {"frames": [asdict(s) for s in self._segments], "state": plain}
        line = json.dumps(content).encode()
        self._write(f"state-{step}.json", line + b"\n" + _checksum(line).encode() + b"\n")
        _sync(self.directory)
        self._prune(step, files)

    def load(self, warn: Callable[[str], None], *, step: int | None = None, frames: bool = True) -> Saved | None:
        """Load the newest complete checkpoint, or that of `step`; None where there is none.

        Raises CheckpointError where all are broken. Without `frames`, most of the data, it suffices to act, but not to
        resume.
        """
        self._refuse_link()
        broken = []
        for found, path in reversed(self._states().items()):
            if step not in (None, found):
                continue
            try:
                return self._load(path, frames, warn)
            except CheckpointError as error:
                broken.append(str(error))
                warn(f"checkpoint {path.name} cannot be used: {error}")
        if broken:
            remedy = f"remove {self.directory.parent} to start the run again from the beginning"
            raise CheckpointError(f"{self.directory}: no checkpoint can be read ({broken[0]}); {remedy}")
        return None

    def steps(self) -> list[int]:
        """List the steps of all checkpoints on disk, complete or not, oldest first."""
        return list(self._states())

    def remove(self) -> None:
        """Remove all checkpoints. Files that cannot be removed (NFS keeps open ones) do no harm."""
        self._refuse_link()
        with contextlib.suppress(OSError):
            self._remove_except(set())
            self.directory.rmdir()  # fails where it holds files of others

    def _refuse_link(self) -> None:
        """Raise where checkpoint/ is a link: what it leads to may belong to others."""
        if self.directory.is_symlink():
            raise CheckpointError(f"{self.directory} is a link; replace it with the directory that it leads to")

    def _remove_except(self, needed: set[str]) -> None:
        for path in self.directory.iterdir():
            if path.name not in needed and _OURS.fullmatch(path.name) and (path.is_symlink() or not path.is_dir()):
                path.unlink()

    def _states(self) -> dict[int, Path]:
        """State files by step, oldest first."""
        matches = [(_STATE_NAME.fullmatch(path.name), path) for path in self.directory.glob("state-*.json")]
        return dict(sorted((int(match[1]), path) for match, path in matches if match))

    def _write_frames(self, replay: Replay) -> None:
        held = replay.held_frames()
        self._segments = [s for s in self._segments if s.last > held.start]
        first = max(held.start, self._segments[-1].last if self._segments else 0)
        for start in range(first, held.stop, _SEGMENT_FRAMES):
            numbers = range(start, min(start + _SEGMENT_FRAMES, held.stop))
            data = replay.get_frames(numbers).tobytes()
            sample = data[: 1 << 20]
            compressed = len(zlib.compress(sample, 1)) < 0.8 * len(sample)  # not worth it for noise
            segment = Segment(numbers.start, numbers.stop, compressed)
            content = zlib.compress(data, 1) if compressed else data
            self._checksums[segment.name] = self._write(segment.name, content)
            self._write(segment.name + _COPY, content)
            self._segments.append(segment)

    def _write(self, name: str, data: bytes) -> str:
        """Write a file, read it back and return its checksum; raises OSError where the disk holds something else."""
        path, checksum = self.directory / name, _checksum(data)
        self._sizes[name] = len(data)
        write_atomically(path, data)
        with path.open("rb") as file:
            if hasattr(os, "posix_fadvise"):  # drop it from the cache, so that the disk is read
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if hashlib.file_digest(file, "sha256").hexdigest() != checksum:
                raise OSError(errno.EIO, "what was written cannot be read back: check the disk", str(path))
        return checksum

    def _prune(self, newest: int, newest_files: Mapping[str, str]) -> None:
        """Remove all files that the kept checkpoints do not need, including leftovers of a crash."""
        # Those later than the newest are broken: the run had to resume from an earlier one.
        states = [path for step, path in self._states().items() if step <= newest][-_KEPT:]
        files = set(newest_files)
        for path in states[:-1]:
            with contextlib.suppress(CheckpointError):  # a broken one needs nothing
                files |= set(_read_state(path)["files"])
        copies = {name + _COPY for name in files}
        self._remove_except(files | copies | {path.name for path in states})

    def _load(self, path: Path, with_frames: bool, warn: Callable[[str], None]) -> Saved:
        try:
            content = _read_state(path)
            if content["format"] != _FORMAT:
                raise CheckpointError(f"its format is {content['format']}, of another version of meanq")
            if type(content["step"]) is not int or path.name != f"state-{content['step']}.json":
                raise CheckpointError(f"it is of step {content['step']!r:.40}")
            files = content["files"] if with_frames else {content["arrays"]: content["files"][content["arrays"]]}
            if not all(_OURS.fullmatch(name) for name in files):
                raise CheckpointError("it names files that are not of a checkpoint")
            sizes = content.get("sizes", {})
            data = {
                name: self._read_or_restore(name, checksum, sizes.get(name, _MAX_BYTES), warn)
                for name, checksum in files.items()
            }
            segments = [Segment(**s) for s in content["frames"]] if with_frames else []
            if not all(0 <= s.last - s.first <= _SEGMENT_FRAMES for s in segments):
                raise CheckpointError("it has more frames in a file than meanq writes")
            check_weights(io.BytesIO(data[content["arrays"]]))
            arrays = safetensors.numpy.load(data[content["arrays"]])
            frames = [(s, data[s.name]) for s in segments]
            state = _from_plain(content["state"], arrays)
        except (safetensors.SafetensorError, LookupError, RecursionError, *_WRONG) as error:
            raise CheckpointError(f"it is malformed ({error})") from None
        self._segments = segments
        self._checksums = {s.name: content["files"][s.name] for s in segments}
        self._sizes = {name: len(content) for name, content in data.items()}
        return Saved(content["step"], state, frames)

    def _read_or_restore(self, name: str, checksum: str, size: int, warn: Callable[[str], None]) -> bytes:
        """Read a file. One that is damaged, or gone, is written anew from its copy if it has one."""
        path = self.directory / name
        try:
            return _read(path, checksum, size)
        except CheckpointError as error:
            copy = path.with_name(name + _COPY)
            if not copy.is_file():
                raise
            data = _read(copy, checksum, size)
            write_atomically(path, data)
            warn(f"{error}; restored from its copy")
            return data


def _read(path: Path, checksum: str | None = None, most: int = _MAX_STATE_BYTES) -> bytes:
    """Read a file of at most so many bytes and compare its checksum; a state file has it as its last line."""
    try:
        with open_file(path, most) as file:
            data = file.read()
    except UnreadableFileError as error:
        raise CheckpointError(f"{path.name} cannot be read ({error.reason})") from None
    except FileNotFoundError:
        raise CheckpointError(f"{path.name} cannot be read (No such file or directory)") from None
    if checksum is None:
        data, _, last = data.strip().rpartition(b"\n")
        checksum = last.decode(errors="replace")
    if _checksum(data) != checksum:
        raise CheckpointError(f"{path.name} is damaged: its checksum is wrong")
    return data


def _read_state(path: Path) -> dict[str, Any]:
    """Read a state file and check that it is an object with `files`."""
    try:
        content = json.loads(_read(path))
        dict(content["files"].items())
        return content
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(f"it is malformed ({error})") from None


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sync(directory: Path) -> None:
    """Make renames in this directory survive a power failure."""
    handle = os.open(directory, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def check_state(state: Any, path: str) -> None:
    """Raise TypeError where a state contains what a checkpoint cannot store."""
    _to_plain(state, path, {})


def _to_plain(node: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """Convert to JSON types; arrays go into `arrays` by their path and are replaced by a mark."""
    if node is None or (isinstance(node, (bool, int, float, str)) and not isinstance(node, np.generic)):
        return node
    if isinstance(node, np.generic):
        return {"$scalar": [node.dtype.str, node.item()]}
    if isinstance(node, (list, tuple)):
        items = [_to_plain(item, f"{path}/{i}", arrays) for i, item in enumerate(node)]
        return items if isinstance(node, list) else {"$tuple": items}
    if isinstance(node, dict):
        if not all(isinstance(key, str) and not key.startswith("$") for key in node):
            raise TypeError(f"{path}: the keys of a state must be plain strings")
        return {key: _to_plain(value, f"{path}/{key}", arrays) for key, value in node.items()}
    kind = "$tensor" if isinstance(node, torch.Tensor) else {np.ndarray: "$array", bytes: "$bytes"}.get(type(node))
    if kind is None or (isinstance(node, np.ndarray) and node.dtype.hasobject):
        raise TypeError(f"{path}: a state cannot hold {type(node).__name__}; use numbers, text, lists, dicts, arrays")
    if isinstance(node, torch.Tensor):
        node = node.detach().cpu().numpy()
    elif isinstance(node, bytes):
        node = np.frombuffer(node, dtype=np.uint8)
    arrays[path] = np.ascontiguousarray(node).reshape(node.shape)  # keeps scalars without dimensions
    return {kind: path}


def _from_plain(node: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Invert _to_plain. Takes each array out of `arrays`, since a state has it once."""
    if isinstance(node, list):
        return [_from_plain(item, arrays) for item in node]
    if not isinstance(node, dict):
        return node
    if len(node) == 1:
        (mark, value), *_ = node.items()
        if mark == "$scalar":
            dtype = np.dtype(value[0])
            if dtype.kind not in "biuf":
                raise ValueError(f"a number of type {dtype}")
            return dtype.type(value[1])
        if mark == "$tuple":
            return tuple(_from_plain(item, arrays) for item in value)
        if mark == "$array":
            return arrays.pop(value).copy()  # safetensors returns read-only arrays
        if mark == "$tensor":
            return torch.from_numpy(arrays.pop(value).copy())
        if mark == "$bytes":
            return arrays.pop(value).tobytes()
    return {key: _from_plain(value, arrays) for key, value in node.items()}
