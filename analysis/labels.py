"""Labels of runs: their parts, the overrides that all of them share, and finding one from what a user types.

A label is an algorithm and its overrides, `meanq__ensemble_size=10__batch_size=64`; where one label covers several
configurations, the fields that differ follow in braces: `meanq {algo.ensemble_size=10}`. An override that every label
of a set has tells nothing apart. It is said once, and names are made from short labels, which leave it out.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from .runs import AnalysisError

NAMES = {  # of the algorithms of conf/algo, in the order of legends
    "dqn": "DQN",
    "dqn_no_target": "DQN, no target",
    "double_dqn": "Double DQN",
    "avg_dqn": "Avg-DQN",
    "qr_dqn": "QR-DQN",
    "hl_gauss": "HL-Gauss",
    "mellowmax": "Mellowmax",
    "ens_dqn": "Ens-DQN",
    "ebql": "EBQL",
    "maxmin": "Maxmin",
    "subset_min": "Random-subset minimum",
    "bootstrapped_dqn": "Bootstrapped DQN",
    "meanq": "MeanQ",
    "meanq_no_target": "MeanQ, no target",
    "rainbow": "Rainbow",
    "rainbow_canonical": "Rainbow (canonical)",
    "rainbow_data_efficient": "Rainbow (data-efficient)",
    "rainbow_dopamine": "Rainbow (Dopamine)",
    "drq_eps": "DrQ(eps)",
    "rainbow_large": "Rainbow, larger model",
    "rainbow_more_updates": "Rainbow, more updates",
    "rainbow_large_more_updates": "Rainbow, larger, more updates",
    "sunrise": "SUNRISE",
    "meanq_rainbow_target": "MeanQ + Rainbow, target",
    "meanq_rainbow_text": "MeanQ + Rainbow, the text's values",
    "meanq_rainbow": "MeanQ + Rainbow",
}
LONGEST_NAME = 44


def _parts(label: str) -> tuple[str, list[str], list[str]]:
    """The algorithm, its overrides, and the fields in braces."""
    plain, _, braces = label.partition(" {")
    algorithm, *overrides = plain.split("__")
    return algorithm, overrides, re.split(r", (?=[\w.]+=)", braces.removesuffix("}")) if braces else []


def shared_overrides(labels: Iterable[str]) -> list[str]:
    """The overrides that all labels have, in the order of the first one."""
    found = [[*overrides, *fields] for _, overrides, fields in map(_parts, dict.fromkeys(labels))]
    return [part for part in found[0] if all(part in other for other in found)] if found else []


def say_shared(labels: Iterable[str]) -> str:
    """A sentence about what all labels share; empty if that is nothing."""
    shared = ", ".join(part.removeprefix("algo.") for part in shared_overrides(labels))
    return f"All runs: {shared}." if shared else ""


def short_labels(labels: Iterable[str]) -> dict[str, str]:
    """Each label without the overrides that all of them share."""
    labels = list(labels)
    shared = set(shared_overrides(labels))
    short = {}
    for label in labels:
        algorithm, overrides, fields = _parts(label)
        kept = [part for part in fields if part not in shared]
        plain = "__".join([algorithm, *(part for part in overrides if part not in shared)])
        short[label] = plain + (f" {{{', '.join(kept)}}}" if kept else "") if shared else label
    return short


def split_label(label: str) -> tuple[str, str]:
    """The algorithm, and what was overridden: of `meanq__ensemble_size=10`, or of `meanq {algo.ensemble_size=10}`."""
    algorithm, *rest = re.split(r"__|,| ?\{", label, maxsplit=1)
    return algorithm, re.sub(r"__|[{},] ?", ", ", rest[0]).strip(", ") if rest else ""


def readable(label: str) -> str:
    """What to call it: MeanQ (ensemble_size=10)."""
    algorithm, overrides = split_label(label)
    if algorithm not in NAMES:
        return label
    shown = re.sub(r"(^|, |: )algo[.]", r"\1", overrides)
    return NAMES[algorithm] + (f" ({shown})" if overrides else "")


def readable_names(labels: Iterable[str]) -> dict[str, str]:
    """By label, as `readable`, without what all labels share.

    The middle of a long name is left out, unless it tells two of them apart.
    """
    names = {label: readable(short) for label, short in short_labels(labels).items()}
    half = (LONGEST_NAME - 1) // 2
    short = {label: re.sub(rf"^(.{{{half}}}).{{3,}}(.{{{half}}})$", r"\1…\2", name) for label, name in names.items()}
    count = Counter(short.values())
    return {label: short[label] if count[short[label]] == 1 else name for label, name in names.items()}


def find_label(text: str, labels: Sequence[str], option: str) -> str:
    """The label that a user means: a label, a short label or a name as figures show it, or the only one with this part.

    What fits at the beginning comes before what fits anywhere. AnalysisError names the candidates.
    """
    found = _matching(text, labels)
    short = short_labels(labels)
    if not found:
        raise AnalysisError(f"{option} {text}: no such label; there are {', '.join(short.values())}")
    if len(found) > 1:
        raise AnalysisError(f"{option} {text}: which of {', '.join(short[label] for label in found)}?")
    return found[0]


def find_labels(text: str, labels: Sequence[str], option: str = "--labels") -> list[str]:
    """The labels of a comma-separated list; a label or name may itself contain commas."""
    pieces = text.split(",") if text else []
    found = []
    while pieces:
        ends = range(len(pieces), 1, -1)
        end = next((end for end in ends if len(_matching(",".join(pieces[:end]), labels, exactly=True)) == 1), 1)
        found.append(find_label(",".join(pieces[:end]).strip(), labels, option))
        pieces = pieces[end:]
    return list(dict.fromkeys(found))


def _matching(text: str, labels: Sequence[str], exactly: bool = False) -> list[str]:
    """The labels that fit best: those called so, else those that begin so, else those that contain it."""
    short, names = short_labels(labels), readable_names(labels)
    wanted = text.strip().casefold()
    called = {label: [name.casefold() for name in (label, short[label], names[label])] for label in labels}
    if text in labels:
        return [text]
    rules: list[Callable[[str, str], bool]] = [str.__eq__, str.startswith, str.__contains__]
    for fits in rules[:1] if exactly else rules:
        found = [label for label in labels if any(fits(name, wanted) for name in called[label])]
        if found:
            return found
    return []
