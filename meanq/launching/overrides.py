"""Overrides as text: their field, shorthands of ours (seed=0-4), and the label of a run that they change."""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence

from meanq.config.errors import ConfigError, printable
from meanq.config.fields import in_label

_SEED_HELP = "write whole numbers, a range first-last, or both: seed=3, seed=0-4, seed=0-2,7"
_MOST_SEEDS = 100_000
_LONGEST_LABEL = 120  # file systems limit the length of a name
_PLAIN_LABEL = re.compile(r"(?!null$)[\w.=+-]+")  # needs quotes neither in a shell nor, thanks to `for_hydra`, in Hydra
# Older versions also had these fields in labels.
_ONCE_IN_LABEL = re.compile(
    r"(?:evaluation|probe)\..*|log_every|env\.(?:random_score|random_score_500k|reference|reference_score)"
    r"|env\.(?:evaluate|probe)_every"
)


def override_key(override: str) -> str:
    """Return the field of an override, without + or ~."""
    return override.lstrip("+~").partition("=")[0]


def for_hydra(arguments: Sequence[str]) -> list[str]:
    """Rewrite what Hydra does not take: seed=0-2,7 becomes seed=0,1,2,7, and label=a=1 becomes label='a=1'.

    Hydra's own forms, such as seed=range(0,5) and label='a b', pass through.
    """
    return [_rewritten(argument) for argument in arguments]


def _rewritten(argument: str) -> str:
    name, _, text = argument.partition("=")
    if re.fullmatch(r"\+{0,2}seed=[^(${]*", argument):
        return f"{name}={','.join(map(str, _seeds(argument, text)))}"
    if name.lstrip("+") == "label" and _PLAIN_LABEL.fullmatch(text):
        return f"{name}='{text}'"
    return argument


def _seeds(argument: str, text: str) -> list[int]:
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part.strip())
        if not match:
            raise ConfigError(f"{printable(argument)}: {_SEED_HELP}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ConfigError(f"{argument}: the range {part.strip()} runs backwards; write seed={last}-{first}")
        if len(seeds) + last - first >= _MOST_SEEDS:
            raise ConfigError(f"{argument}: more than {_MOST_SEEDS:,} runs; write fewer seeds")
        seeds.extend(range(first, last + 1))
    return seeds


def seed_ranges(seeds: Iterable[int]) -> str:
    """Write seeds as ranges: 0-4,7."""
    parts: list[list[int]] = []
    for seed in sorted(seeds):
        if parts and seed == parts[-1][1] + 1:
            parts[-1][1] = seed
        else:
            parts.append([seed, seed])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in parts)


def label_override(label: str) -> str:
    """Write label=... as the command line takes it: plain where that is possible, else in quotes."""
    escaped = label.replace("'", "\\'")
    return f"label={label}" if _PLAIN_LABEL.fullmatch(label) else f"label='{escaped}'"


def unquoted_label(override: str) -> str:
    """An override without the quotes that a label does not need; older versions stored them."""
    quoted = re.fullmatch(r"label='([^'\\]*)'", override)
    return label_override(quoted[1]) if quoted else override


def run_label(algo: str, overrides: Iterable[str]) -> str:
    """Join the algorithm and the overrides that change learning: meanq__ensemble_size=10__total_steps=20000."""
    return _label(algo, overrides, in_label)


def older_label(algo: str, overrides: Iterable[str]) -> str:
    """The label that older versions gave a run: schedules of evaluation, probes and logs were part of it."""
    return _label(algo, overrides, lambda key: in_label(key) or bool(_ONCE_IN_LABEL.fullmatch(key)))


def _label(algo: str, overrides: Iterable[str], named: Callable[[str], bool]) -> str:
    parts = []
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        if named(key):
            parts.append(re.sub(r"[^A-Za-z0-9_.=+-]+", "-", f"{key.removeprefix('algo.')}={value}").strip("-"))
    label = "__".join([algo, *sorted(parts)])
    if len(label) > _LONGEST_LABEL:
        label = f"{label[: _LONGEST_LABEL - 20]}__{hashlib.sha256(label.encode()).hexdigest()[:12]}"
    return label
