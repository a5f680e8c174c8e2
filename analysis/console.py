"""What commands print and write."""

import sys
from collections.abc import Iterable
from pathlib import Path


def say(messages: Iterable[str]) -> None:
    """To stderr, so that a table on stdout stays a table."""
    for message in messages:
        print(f"analysis: {message}", file=sys.stderr)


def write_out(path: Path, text: str) -> None:
    """What --out names; a line, and the end, where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        sys.exit(f"analysis: --out {path}: cannot be written ({error.strerror})")
