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

from ..labels import NAMES, readable_names, short_labels, split_label

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


@dataclass(frozen=True)
class Style:
    """How an algorithm is drawn, and what it is called."""

    colour: str  # #rrggbb
    dash: Dash
    marker: str
    name: str


Looks = Mapping[str, Style]
_LOOKS = {
    "dqn": ("#0072B2", LONG, "o"),
    "dqn_no_target": ("#56B4E9", DASHED, "s"),
    "double_dqn": ("#44339C", LONG, "v"),
    "avg_dqn": ("#009E73", DASH_DOT, "^"),
    "qr_dqn": ("#F03060", DASH_DOT_DOT, ">"),
    "hl_gauss": ("#A00800", LONG, "s"),
    "mellowmax": ("#9078F8", SOLID, "^"),
    "ens_dqn": ("#E69F00", DASH_DOT_DOT, "D"),
    "ebql": ("#D684B8", DASH_DOT, "P"),
    "maxmin": ("#999933", DASH_DOT, "X"),
    "subset_min": ("#280048", DASH_DOT, "s"),
    "bootstrapped_dqn": ("#5C4033", DASH_DOT_DOT, "<"),
    "meanq": ("#D55E00", SOLID, "v"),
    "meanq_no_target": ("#882255", DASHED, "o"),
    "rainbow": ("#CC79A7", SOLID, "s"),
    "rainbow_canonical": ("#AA4499", LONG, "D"),
    "rainbow_data_efficient": ("#6565FF", DASHED, "<"),
    "rainbow_dopamine": ("#89B77A", LONG, "<"),
    "drq_eps": ("#9832FF", DASHED, "P"),
    "rainbow_large": ("#33BBEE", DASHED, "^"),
    "rainbow_more_updates": ("#117733", DASH_DOT, "D"),
    "rainbow_large_more_updates": ("#332288", LONG, "X"),
    "sunrise": ("#DDAA33", DASH_DOT_DOT, "P"),
    "meanq_rainbow_target": ("#6E6E6E", DASHED, "*"),
    "meanq_rainbow_text": ("#B8B8A0", DASH_DOT, "*"),
    "meanq_rainbow": ("#000000", SOLID, "*"),
}
_ALGORITHMS = {algorithm: Style(*_LOOKS[algorithm], name) for algorithm, name in NAMES.items()}
ALGORITHMS = tuple(_ALGORITHMS)
_COLOURS = [style.colour for style in _ALGORITHMS.values()]

# Light to dark, of a series. Between two of them are those of a longer one.
_RAMP = ("#E9A03A", "#DD5A35", "#B23A6B", "#6A1F7B", "#1E1147")
_LEAST_SERIES = 3  # numbers
_LEAST_ON_DARK = 0.2  # luminance: a contrast of 4.5 with the dark page

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
    short = short_labels(names)
    found = {label: _ALGORITHMS[short[label]] for label in names if short[label] in _ALGORITHMS} | _series_styles(names)
    for label in names:
        if label not in found:
            used = Counter(style.colour for style in found.values())
            taken = {(style.dash, style.marker) for style in found.values()}
            dash, marker = next((pair for pair in _PAIRS if pair not in taken), (SOLID, "o"))
            found[label] = Style(min(_COLOURS, key=used.__getitem__), dash, marker, "")
    return {label: replace(found[label], name=name) for label, name in names.items()}


def series(labels: Iterable[str]) -> dict[str, dict[str, tuple[str, float]]]:
    """By field: the algorithm and the number of each label whose only override is a number in that field.

    Overrides that all labels share do not count. Fields with fewer than three numbers are no series.
    """
    found: dict[str, dict[str, tuple[str, float]]] = {}
    for label, short in short_labels(labels).items():
        algorithm, overrides = split_label(short)
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


def on_dark(colour: str) -> str:
    """A colour for a dark page: mixed with white until it stands out; black is white."""
    channels = np.array([*bytes.fromhex(colour[1:])], float)
    if channels.max() < 32:
        channels = 255 - channels
    while _luminance(channels) < _LEAST_ON_DARK:
        channels += 0.05 * (255 - channels)
    return f"#{bytes(channels.round().astype(np.uint8)).hex().upper()}"


def _luminance(channels: np.ndarray) -> float:
    """Relative luminance (WCAG) of red, green and blue, 0 to 255."""
    shares = channels / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


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


def _natural(text: str) -> tuple[tuple[int, float, str], ...]:
    """A sort key that puts 2 before 10."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return tuple((1, float(part), "") if i % 2 else (0, 0.0, part) for i, part in enumerate(parts))
