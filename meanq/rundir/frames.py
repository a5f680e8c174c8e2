"""Tables of runs as data frames, in the shapes that analysis and notebooks use. Imports pandas."""

import io
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from meanq.rundir import layout, reader

# The columns that identify a row of each table.
KEYS = {name: ("step", "episode") if name == layout.EVALUATIONS else ("step",) for name in layout.TABLES}
EVERY_COLUMN = re.compile(".*")


def read_frame(path: Path, columns: Sequence[str] = (), also: re.Pattern[str] | None = EVERY_COLUMN) -> pd.DataFrame:
    """Read these columns of a table and those that `also` matches, sorted by its key; numbers, and the key whole ones.

    A new run has no such file: no rows. Raises UnreadableFileError for a file that is no such table.
    """
    key = KEYS[path.name]
    columns = list(dict.fromkeys([*key, *columns]))
    try:
        with reader.open_table(path) as data:
            if (sorted_table := _plain_table(data, key, columns, also)) is not None:
                return sorted_table
            table = pd.read_csv(io.BytesIO(data))
            if absent := [name for name in columns if name not in table]:
                raise ValueError(f"has no column {absent[0]}")
            columns += [name for name in map(str, table) if also and also.fullmatch(name) and name not in columns]
            table = table[columns].astype(float).astype(dict.fromkeys(key, int))
            if table.duplicated(list(key)).any():
                raise ValueError(f"has rows with the same {' and '.join(key)}")
    except FileNotFoundError:
        return pd.DataFrame({name: np.empty(0, int if name in key else float) for name in columns})
    return table.sort_values(list(key), ignore_index=True)


def _plain_table(
    data: bytes, key: Sequence[str], columns: Sequence[str], also: re.Pattern[str] | None
) -> pd.DataFrame | None:
    """The same for tables as runs write them: numbers and empty cells, in the order of the key; None for others.

    Several times as fast, since pandas guesses types and builds tables column by column.
    """
    header, _, body = data.partition(b"\n")
    names = header.decode().split(",")
    for _ in range(2):  # neighbouring empty cells share a comma
        body = body.replace(b",,", b",nan,")
    body = body.replace(b",\n", b",nan\n")
    if not body.strip() or not {*key, *columns} <= set(names) or len(set(names)) < len(names):
        return None
    try:
        cells = np.loadtxt(io.BytesIO(body), delimiter=",", comments=None, ndmin=2)
    except ValueError:
        return None
    if cells.shape[1] != len(names):
        return None
    keys = [cells[:, names.index(name)] for name in key]
    later = np.zeros(max(0, len(cells) - 1), dtype=bool)
    for column in reversed(keys):
        later = (np.diff(column) > 0) | ((np.diff(column) == 0) & later)
    if not later.all() or not all((np.abs(column) < 2**53).all() for column in keys):  # the latter is False for NaN
        return None
    chosen = [*columns, *(name for name in names if also and also.fullmatch(name) and name not in columns)]
    found = {name: np.ascontiguousarray(cells[:, names.index(name)]) for name in chosen}
    return pd.DataFrame({name: column.astype(int) if name in key else column for name, column in found.items()})


def probe_frame(probes: reader.Probes | None) -> pd.DataFrame:
    """One row per step, probe state, member and action: its value `q`.

    Where they are known, also `true_q` and the exact `policy_value` of the greedy policy in that state.
    """
    names = ["step", "state", "member", "action"]
    if probes is None:
        return pd.DataFrame(columns=[*names, "q"], dtype=float).astype(dict.fromkeys(names, int))
    indices = [index.ravel() for index in np.indices(probes.q.shape)]
    columns = {"step": probes.step[indices[0]].astype(int), **dict(zip(names[1:], indices[1:], strict=True))}
    columns["q"] = probes.q.ravel().astype(float)
    if probes.true_q is not None:
        columns["true_q"] = probes.true_q[columns["state"], columns["action"]].astype(float)
    if probes.policy_value is not None:
        columns["policy_value"] = probes.policy_value[indices[0], indices[1]].astype(float)
    return pd.DataFrame(columns)
