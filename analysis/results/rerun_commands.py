"""Commands that repeat runs, from the overrides that each run recorded in its meta.json."""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from analysis.runs import RunSet

PRIVATE = ("root", "logger", "hydra")  # settings that name directories, accounts and clusters


class Command(NamedTuple):
    """A command that repeats runs of one label in these environments."""

    envs: tuple[str, ...]
    text: str  # the command, or a comment that it was not recorded


def commands(found: RunSet) -> list[Command]:
    """One command for all runs of a label that differ in seed and environment only; a comment where none is known."""
    alike: dict[tuple[str, str, str], dict[str, str]] = defaultdict(dict)  # what is before and after env=, by label
    for (env, label), runs in found.groups().items():
        words = next((known for run in runs if (known := public_overrides(run.meta)) is not None), None)
        if words is None:
            alike[label, f"# {label}: command not recorded; config.yaml of each run has every value", ""][env] = ""
            continue
        algo = [word for word in words if word.startswith("algo=")]
        others = [word for word in words if not word.startswith(("algo=", "env=", "seed="))]
        choice = "".join(word.removeprefix("env=") for word in words if word.startswith("env="))
        before = shlex.join(["python", "-m", "meanq.run", "-m", *algo]) + (" env=" if choice else "")
        after = shlex.join([f"seed={_ranges(run.seed for run in runs)}", *others])
        alike[label, before, f" {after}"][env] = choice
    made = []
    for (_, before, after), choices in alike.items():
        envs = shlex.quote(",".join(choices.values())) if before.endswith("env=") else ""
        made.append(Command(tuple(choices), f"{before}{envs}{after}"))
    return made


def public_overrides(meta: Mapping[str, Any]) -> list[str] | None:
    """The recorded overrides without private settings; None if the run recorded no overrides."""
    words = meta.get("overrides")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return None
    return [word for word in words if re.split("[=./]", word.lstrip("+~"), maxsplit=1)[0] not in PRIVATE]


def _ranges(numbers: Iterable[int]) -> str:
    """Format 0, 1, 2, 7 as 0-2,7."""
    counted = enumerate(sorted(numbers))
    runs = [[number for _, number in run] for _, run in groupby(counted, lambda pair: pair[1] - pair[0])]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
