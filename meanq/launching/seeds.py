"""Ranges of seeds: seed=0-4 on the command line, 0-4 in tables."""

import re
from collections.abc import Iterable, Sequence

from meanq.config.errors import ConfigError

_HELP = "write whole numbers, a range first-last, or both: seed=3, seed=0-4, seed=0-2,7"


def expand_seed_ranges(arguments: Sequence[str]) -> list[str]:
    """Replace seed=0-2,7 by seed=0,1,2,7. Hydra's own forms, such as range(0,5), pass through."""
    return [_expand(a) if re.match(r"\+{0,2}seed=", a) else a for a in arguments]


def _expand(argument: str) -> str:
    name, _, text = argument.partition("=")
    if "(" in text or "$" in text:
        return argument
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if not match:
            raise ConfigError(f"{argument}: {_HELP}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ConfigError(f"{argument}: the range {part.strip()} runs backwards; write seed={last}-{first}")
        seeds.extend(range(first, last + 1))
    twice = {seed for seed in seeds if seeds.count(seed) > 1}
    if twice:
        raise ConfigError(f"{argument}: seed {min(twice)} is named twice; {_HELP}")
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
