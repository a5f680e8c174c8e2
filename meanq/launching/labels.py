"""The label of a run: the algorithm's name and the overrides that change the run."""

import hashlib
import re
from collections.abc import Iterable

from meanq.config.fields import in_label

_LONGEST = 120  # file systems limit the length of a name


def run_label(algo: str, overrides: Iterable[str]) -> str:
    """Join algorithm and overrides: meanq, or meanq__ensemble_size=10__total_steps=20000."""
    parts = []
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        if not in_label(key):
            continue
        parts.append(re.sub(r"[^A-Za-z0-9_.=+-]+", "-", f"{key.removeprefix('algo.')}={value}").strip("-"))
    label = "__".join([algo, *sorted(parts)])
    if len(label) > _LONGEST:
        label = f"{label[: _LONGEST - 20]}__{hashlib.sha256(label.encode()).hexdigest()[:12]}"
    return label
