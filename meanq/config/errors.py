"""Mistakes of a user, told in one line."""

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """A user's mistake: one line that says which field, which value, and what to write instead."""


_LONGEST_LIST = 60  # there are half as many environments, and twice as many fields


def closest(name: str, known: Iterable[str]) -> str:
    """'; did you mean ...?', or the whole list where it is short, or nothing."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; choose from {', '.join(known)}" if 0 < len(known) <= _LONGEST_LIST else ""
