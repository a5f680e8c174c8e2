"""Files that are replaced whole: a reader or a crash sees the old version or the new one."""

import csv
import io
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from meanq.rundir.layout import (
    STATUS,
)


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
