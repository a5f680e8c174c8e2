"""Commands that repeat runs, from the overrides that each run recorded in its meta.json."""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from analysis.runs import RunSet

PRIVATE = ("root", "logger", "hydra")  # settings that name directories, accounts and clusters


@dataclass(frozen=True)
class Command:
    """A command that repeats runs of one label."""

    label: str
    envs: tuple[str, ...]
    text: str  # the command, or a comment that it was not recorded


def commands(found: RunSet) -> list[Command]:
    """One command for all runs of a label that differ in seed and environment only; a comment where none is known."""
    seeds: dict[tuple[str, str, tuple[str, ...]], list[int]] = defaultdict(list)
    missing: dict[str, list[str]] = defaultdict(list)
    for run in sorted(found.runs, key=lambda run: (run.env, run.label, run.seed)):
        overrides = public_overrides(run.meta)
        if overrides is None:
            missing[run.label].append(run.env)
        else:
            words = tuple(word for word in overrides if not word.startswith("seed="))
            seeds[run.env, run.label, words].append(run.seed)
    envs: dict[tuple[str, tuple[str, ...], str], dict[str, str]] = defaultdict(dict)
    for (env, label, words), numbers in seeds.items():
        choice = "".join(word.removeprefix("env=") for word in words if word.startswith("env="))
        others = tuple("env=" if word.startswith("env=") else word for word in words)
        envs[label, others, _ranges(numbers)][env] = choice
    made = [
        Command(label, tuple(choices), _command(words, choices.values(), numbers))
        for (label, words, numbers), choices in envs.items()
    ]
    for label, names in missing.items():
        text = f"# {label}: command not recorded; config.yaml of each run has every value"
        made.append(Command(label, tuple(dict.fromkeys(names)), text))
    return made


def _command(words: Sequence[str], envs: Iterable[str], seeds: str) -> str:
    """The command line; "env=" among the words is where the environments go."""
    algo = [word for word in words if word.startswith("algo=")]
    env = [f"env={','.join(envs)}"] if "env=" in words else []
    others = [word for word in words if not word.startswith(("algo=", "env="))]
    return f"python -m meanq.run -m {shlex.join([*algo, *env, f'seed={seeds}', *others])}"


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
