"""One colour, dash and marker per algorithm, the same in every figure and in the report.

Colours are built on those of Okabe and Ito and of Tol. Within each of the paper's studies they can be told apart with
any of the common colour deficiencies (tests/analysis/test_palette.py computes it); between families, where there are
too many for that, colours come close to each other. No two algorithms have both the same dash and the same marker, so
that a black-and-white print can be read.

An algorithm of `conf/algo` always looks the same, whatever else is shown. So does a method that the paper cites. Labels
that differ in one number (`meanq__ensemble_size=1`, `=2`, ...) are a series: from light to dark as the number grows,
with the dash of their algorithm, so that two algorithms can be compared at the same number. Any other label takes the
colour that is least in use, and the next pair of dash and marker that is free.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

Dash = tuple[float, ...]  # lengths on, off, on, ... in line widths; empty: solid

SOLID: Dash = ()
DASHED: Dash = (4, 1.5)
DASH_DOT: Dash = (5, 1.5, 1, 1.5)
DASH_DOT_DOT: Dash = (5, 1.5, 1, 1.5, 1, 1.5)
LONG: Dash = (9, 2)
DOTTED: Dash = (1, 1.5)  # kept for cited scores
_DASHES = (SOLID, DASHED, DASH_DOT, LONG, DASH_DOT_DOT)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")  # as matplotlib names them

_PAIRS = [(_DASHES[(i + j) % len(_DASHES)], _MARKERS[j]) for i in range(len(_DASHES)) for j in range(len(_MARKERS))]
LONGEST_NAME = 44


@dataclass(frozen=True)
class Style:
    """How an algorithm is drawn, and what it is called."""

    colour: str  # #rrggbb
    dash: Dash
    marker: str
    name: str


Looks = Mapping[str, Style]
# In the order of legends.
_ALGORITHMS = {
    "dqn": Style("#0072B2", LONG, "o", "DQN"),
    "dqn_no_target": Style("#56B4E9", DASHED, "s", "DQN, no target"),
    "double_dqn": Style("#44339C", LONG, "v", "Double DQN"),
    "avg_dqn": Style("#009E73", DASH_DOT, "^", "Avg-DQN"),
    "qr_dqn": Style("#F03060", DASH_DOT_DOT, ">", "QR-DQN"),
    "ens_dqn": Style("#E69F00", DASH_DOT_DOT, "D", "Ens-DQN"),
    "ebql": Style("#D684B8", DASH_DOT, "P", "EBQL"),
    "maxmin": Style("#999933", DASH_DOT, "X", "Maxmin"),
    "bootstrapped_dqn": Style("#5C4033", DASH_DOT_DOT, "<", "Bootstrapped DQN"),
    "meanq": Style("#D55E00", SOLID, "v", "MeanQ"),
    "meanq_no_target": Style("#882255", DASHED, "o", "MeanQ, no target"),
    "rainbow": Style("#CC79A7", SOLID, "s", "Rainbow"),
    "rainbow_canonical": Style("#AA4499", LONG, "D", "Rainbow (canonical)"),
    "rainbow_data_efficient": Style("#6565FF", DASHED, "<", "Rainbow (data-efficient)"),
    "rainbow_dopamine": Style("#89B77A", LONG, "<", "Rainbow (Dopamine)"),
    "drq_eps": Style("#9832FF", DASHED, "P", "DrQ(eps)"),
    "rainbow_large": Style("#33BBEE", DASHED, "^", "Rainbow, larger model"),
    "rainbow_more_updates": Style("#117733", DASH_DOT, "D", "Rainbow, more updates"),
    "rainbow_large_more_updates": Style("#332288", LONG, "X", "Rainbow, larger, more updates"),
    "sunrise": Style("#DDAA33", DASH_DOT_DOT, "P", "SUNRISE"),
    "meanq_rainbow_target": Style("#6E6E6E", DASHED, "*", "MeanQ + Rainbow, target"),
    "meanq_rainbow_text": Style("#B8B8A0", DASH_DOT, "*", "MeanQ + Rainbow, the text's values"),
    "meanq_rainbow": Style("#000000", SOLID, "*", "MeanQ + Rainbow"),
}
ALGORITHMS = tuple(_ALGORITHMS)
_COLOURS = [style.colour for style in _ALGORITHMS.values()]

# Light to dark, of a series. Between two of them are those of a longer one.
_RAMP = ("#E9A03A", "#DD5A35", "#B23A6B", "#6A1F7B", "#1E1147")
_LEAST_SERIES = 3  # numbers

# Methods of the paper's tables (analysis/paper/data) that are none of ours, and the algorithm that the others are.
_CITED = {
    "ppo": Style("#7A4B1E", DOTTED, "v", "PPO"),
    "simple": Style("#2F6FA8", DOTTED, "o", "SimPLe"),
    "curl": Style("#3A9A3A", DOTTED, "^", "CURL"),
    "drq": Style("#771155", DOTTED, "X", "DrQ"),
}


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """By label, in the order of legends. Ask once for all labels of a study, so that they keep their looks."""
    names = readable_names(order(labels))
    found = {label: _ALGORITHMS[label] for label in names if label in _ALGORITHMS} | _series_styles(names)
    for label in names:
        if label not in found:
            used = Counter(style.colour for style in found.values())
            taken = {(style.dash, style.marker) for style in found.values()}
            dash, marker = next((pair for pair in _PAIRS if pair not in taken), (SOLID, "o"))
            found[label] = Style(min(_COLOURS, key=used.__getitem__), dash, marker, "")
    return {label: replace(found[label], name=name) for label, name in names.items()}


def series(labels: Iterable[str]) -> dict[str, dict[str, tuple[str, float]]]:
    """By field: the algorithm and the number of each label whose only override is a number in that field.

    Fields with fewer than three numbers are no series.
    """
    found: dict[str, dict[str, tuple[str, float]]] = {}
    for label in labels:
        algorithm, overrides = split_label(label)
        field = re.fullmatch(r"([\w.]+)=(\d+(?:\.\d+)?(?:e-?\d+)?)", overrides)
        if field:
            found.setdefault(field[1], {})[label] = (algorithm, float(field[2]))
    return {
        field: numbers for field, numbers in found.items() if len({n for _, n in numbers.values()}) >= _LEAST_SERIES
    }


def _series_styles(labels: Iterable[str]) -> dict[str, Style]:
    found = {}
    for numbers in series(labels).values():
        steps = sorted({number for _, number in numbers.values()})
        for label, (algorithm, number) in numbers.items():
            i = steps.index(number)
            dash = _ALGORITHMS[algorithm].dash if algorithm in _ALGORITHMS else SOLID
            found[label] = Style(_ramp(i / (len(steps) - 1)), dash, _MARKERS[i % len(_MARKERS)], "")
    return found


def _ramp(share: float) -> str:
    """The colour at this share of the ramp, 0 to 1."""
    channels = zip(*(bytes.fromhex(colour[1:]) for colour in _RAMP), strict=True)
    mixed = [round(np.interp(share, np.linspace(0, 1, len(_RAMP)), channel)) for channel in channels]
    return f"#{bytes(mixed).hex().upper()}"


def cited(method: str, at: str) -> Style:
    """A method of the paper's table of this horizon (100k, 500k), in the colour of the algorithm that it is."""
    if method in _CITED:
        return _CITED[method]
    same_as = {("meanq", at): "meanq_rainbow", ("rainbow", "500k"): "rainbow_canonical"}
    style = _ALGORITHMS[same_as.get((method, at), method)]
    return replace(style, dash=DOTTED, name={"meanq": "MeanQ", "rainbow": "Rainbow"}.get(method, style.name))


def order(labels: Iterable[str]) -> list[str]:
    """In the order of legends: as the algorithms of `conf/algo`, each before its overrides; others at the end."""

    def key(label: str) -> tuple[object, ...]:
        algorithm, overrides = split_label(label)
        rank = ALGORITHMS.index(algorithm) if algorithm in _ALGORITHMS else len(ALGORITHMS)
        return rank, _natural(algorithm), _natural(overrides), label

    return sorted(set(labels), key=key)


def split_label(label: str) -> tuple[str, str]:
    """The algorithm, and what was overridden: of `meanq__ensemble_size=10`, or of `meanq {algo.ensemble_size=10}`."""
    algorithm, *rest = re.split(r"__|,| ?\{", label, maxsplit=1)
    return algorithm, re.sub(r"__|[{},] ?", ", ", rest[0]).strip(", ") if rest else ""


def readable(label: str) -> str:
    """What to call it: MeanQ (ensemble_size=10)."""
    algorithm, overrides = split_label(label)
    if algorithm not in _ALGORITHMS:
        return label
    shown = re.sub(r"(^|, |: )algo[.]", r"\1", overrides)
    return _ALGORITHMS[algorithm].name + (f" ({shown})" if overrides else "")


def readable_names(labels: Iterable[str]) -> dict[str, str]:
    """By label, as `readable`; the middle of a long name is left out, unless it tells two of them apart."""
    names = {label: readable(label) for label in labels}
    half = (LONGEST_NAME - 1) // 2
    short = {label: re.sub(rf"^(.{{{half}}}).{{3,}}(.{{{half}}})$", r"\1…\2", name) for label, name in names.items()}
    count = Counter(short.values())
    return {label: short[label] if count[short[label]] == 1 else name for label, name in names.items()}


def _natural(text: str) -> tuple[tuple[int, float, str], ...]:
    """A sort key that puts 2 before 10."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return tuple((1, float(part), "") if i % 2 else (0, 0.0, part) for i, part in enumerate(parts))
