"""Overrides as text: their field, ranges of seeds (seed=0-4), and the label of a run that they change."""

import hashlib
import re
from collections.abc import Iterable, Sequence

from meanq.config.errors import ConfigError
from meanq.config.fields import in_label

_SEED_HELP = "write whole numbers, a range first-last, or both: seed=3, seed=0-4, seed=0-2,7"
_LONGEST_LABEL = 120  # file systems limit the length of a name


def override_key(override: str) -> str:
    """Return the field of an override, without + or ~."""
    return override.lstrip("+~").partition("=")[0]


def expand_seed_ranges(arguments: Sequence[str]) -> list[str]:
    """Replace seed=0-2,7 by seed=0,1,2,7. Hydra's own forms, such as range(0,5), pass through."""
    return [_expand(a) if re.match(r"\+{0,2}seed=[^(${]*$", a) else a for a in arguments]


def _expand(argument: str) -> str:
    name, _, text = argument.partition("=")
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if not match:
            raise ConfigError(f"{argument}: {_SEED_HELP}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ConfigError(f"{argument}: the range {part.strip()} runs backwards; write seed={last}-{first}")
        seeds.extend(range(first, last + 1))
    return f"{name}={','.join(map(str, seeds))}"


def seed_ranges(seeds: Iterable[int]) -> str:
    """Write seeds as ranges: 0-4,7."""
    parts: list[list[int]] = []
    for seed in sorted(seeds):
        if parts and seed == parts[-1][1] + 1:
            parts[-1][1] = seed
        else:
            parts.append([seed, seed])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in parts)


def run_label(algo: str, overrides: Iterable[str]) -> str:
    """Join the algorithm and the overrides that change a run: meanq__ensemble_size=10__total_steps=20000."""
    parts = []
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        if in_label(key):
            parts.append(re.sub(r"[^A-Za-z0-9_.=+-]+", "-", f"{key.removeprefix('algo.')}={value}").strip("-"))
    label = "__".join([algo, *sorted(parts)])
    if len(label) > _LONGEST_LABEL:
        label = f"{label[: _LONGEST_LABEL - 20]}__{hashlib.sha256(label.encode()).hexdigest()[:12]}"
    return label
