"""Tables of runs as data frames, in the shapes that analysis and notebooks use. Imports pandas."""

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
        with reader.open_file(path) as file:
            table = pd.read_csv(file)
            if absent := [name for name in columns if name not in table]:
                raise ValueError(f"has no column {absent[0]}")
            columns += [name for name in map(str, table) if also and also.fullmatch(name) and name not in columns]
            table = table[columns].astype(float).astype(dict.fromkeys(key, int))
            if table.duplicated(list(key)).any():
                raise ValueError(f"has rows with the same {' and '.join(key)}")
    except FileNotFoundError:
        return pd.DataFrame(columns=columns, dtype=float).astype(dict.fromkeys(key, int))
    return table.sort_values(list(key), ignore_index=True)


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
