"""The errors that are shown to the user as one line, and suggestions for misspelt names."""

import difflib
from collections.abc import Iterable

LONGEST_MESSAGE = 2_000


def printable(text: str, most: int = 300) -> str:
    """The text on one line, without control characters, which a terminal would obey, and not too long."""
    line = " ".join(text.split())
    shown = "".join(c if c.isprintable() else "?" for c in line[:most])
    return shown + "..." * (len(line) > most)


class ConfigError(ValueError):
    """A user's mistake, in one line: the field, its value, and what to write instead."""

    def __init__(self, message: object) -> None:
        super().__init__(printable(str(message), LONGEST_MESSAGE))  # a value may hold anything


class RunError(ValueError):
    """A directory that is not that of a run, or whose files cannot be used, in one line."""


_LONGEST_LIST = 60  # lists all environments, but not all fields


def closest(name: str, known: Iterable[str]) -> str:
    """The end of a message: '; did you mean ...?', or the known names if they are few, or nothing."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; choose from {', '.join(known)}" if 0 < len(known) <= _LONGEST_LIST else ""
