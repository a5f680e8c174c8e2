"""One colour, dash and marker per algorithm, the same in every figure and in the report.

Colours are built on those of Okabe and Ito and of Tol. Within each of the paper's studies they can be told apart with
any of the common colour deficiencies (tests/analysis/test_palette.py computes it); between families, where there are
too many for that, colours come close to each other. No two algorithms have both the same dash and the same marker, so
that a black-and-white print can be read.

An algorithm of `conf/algo` always looks the same, whatever else is shown. So does a method that the paper cites. Labels
that differ in one number (`meanq__ensemble_size=1`, `=2`, ...) are a series: from light to dark as the number grows,
with the dash of their algorithm, so that two algorithms can be compared at the same number. Of other labels with
overrides, the first one of an algorithm that is not shown itself takes the looks of that algorithm. All others, in the
order of the legend, take a colour that is not in use, or is least in use, and a dash and marker that are not: so more
overrides of the algorithms that are there change no label above them.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product

Dash = tuple[float, ...]  # lengths on, off, on, ... in line widths; empty: solid

SOLID: Dash = ()
DASHED: Dash = (4, 1.5)
DASH_DOT: Dash = (5, 1.5, 1, 1.5)
DASH_DOT_DOT: Dash = (5, 1.5, 1, 1.5, 1, 1.5)
LONG: Dash = (9, 2)
DOTTED: Dash = (1, 1.5)  # kept for cited scores
_DASHES = (SOLID, DASHED, DASH_DOT, LONG, DASH_DOT_DOT)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")  # as matplotlib names them

LONGEST_NAME = 44


@dataclass(frozen=True)
class Style:
    """How an algorithm is drawn, and what it is called."""

    colour: str  # #rrggbb
    dash: Dash
    marker: str
    name: str


# Colours that are apart from each other; a shade is what an algorithm of another family has of the same hue.
_HUES = {
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "green": "#009E73",
    "pink": "#CC79A7",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "wine": "#882255",
    "black": "#000000",
    "indigo": "#332288",
    "olive": "#999933",
    "brown": "#7A4B1E",
    "grey": "#6E6E6E",
}

# In the order of legends. Shades: a dark and a light green, and so on, where a hue is used twice.
_ALGORITHMS: dict[str, tuple[str, Style]] = {
    "dqn": ("blue", Style("#0072B2", LONG, "o", "DQN")),
    "dqn_no_target": ("sky", Style("#56B4E9", DASHED, "s", "DQN, no target")),
    "double_dqn": ("indigo", Style("#44339C", LONG, "v", "Double DQN")),
    "avg_dqn": ("green", Style("#009E73", DASH_DOT, "^", "Avg-DQN")),
    "ens_dqn": ("orange", Style("#E69F00", DASH_DOT_DOT, "D", "Ens-DQN")),
    "ebql": ("pink", Style("#D684B8", DASH_DOT, "P", "EBQL")),
    "maxmin": ("olive", Style("#999933", DASH_DOT, "X", "Maxmin")),
    "bootstrapped_dqn": ("brown", Style("#5C4033", DASH_DOT_DOT, "<", "Bootstrapped DQN")),
    "meanq": ("vermillion", Style("#D55E00", SOLID, "v", "MeanQ")),
    "meanq_no_target": ("wine", Style("#882255", DASHED, "o", "MeanQ, no target")),
    "rainbow": ("pink", Style("#CC79A7", SOLID, "s", "Rainbow")),
    "rainbow_canonical": ("wine", Style("#AA4499", LONG, "D", "Rainbow (canonical)")),
    "rainbow_data_efficient": ("indigo", Style("#6565FF", DASHED, "<", "Rainbow (data-efficient)")),
    "rainbow_dopamine": ("olive", Style("#89B77A", LONG, "<", "Rainbow (Dopamine)")),
    "drq_eps": ("indigo", Style("#9832FF", DASHED, "P", "DrQ(eps)")),
    "rainbow_large": ("sky", Style("#33BBEE", DASHED, "^", "Rainbow, larger model")),
    "rainbow_more_updates": ("green", Style("#117733", DASH_DOT, "D", "Rainbow, more updates")),
    "rainbow_large_more_updates": ("indigo", Style("#332288", LONG, "X", "Rainbow, larger, more updates")),
    "sunrise": ("orange", Style("#DDAA33", DASH_DOT_DOT, "P", "SUNRISE")),
    "meanq_rainbow_target": ("grey", Style("#6E6E6E", DASHED, "*", "MeanQ + Rainbow, target")),
    "meanq_rainbow_text": ("grey", Style("#B8B8A0", DASH_DOT, "*", "MeanQ + Rainbow, the text's values")),
    "meanq_rainbow": ("black", Style("#000000", SOLID, "*", "MeanQ + Rainbow")),
}
ALGORITHMS = tuple(_ALGORITHMS)

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
_SAME_AS = {"meanq": "meanq_rainbow"}


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """By label, in the order of legends. Ask once for all labels of a study, so that they keep their looks."""
    wanted = order(labels)
    looks = {label: label for label in wanted if label in _ALGORITHMS}  # the algorithm that a label looks like
    in_series, names = _series_styles(wanted), readable_names(wanted)
    for label in wanted:
        algorithm, _ = split_label(label)
        if algorithm in _ALGORITHMS and algorithm not in looks.values() and label not in in_series:
            looks[label] = algorithm
    found = {label: _ALGORITHMS[name][1] for label, name in looks.items()} | in_series
    used = Counter(_ALGORITHMS[name][0] for name in looks.values())
    taken = {(style.dash, style.marker) for style in found.values()}
    for label in wanted:
        if label not in found:
            hue = min(_HUES, key=lambda name: used[name])  # the first of those least in use
            dash, marker = next((pair for pair in _by_turns() if pair not in taken), (SOLID, "o"))
            found[label] = Style(_HUES[hue], dash, marker, names[label])
            used[hue] += 1
            taken.add((dash, marker))
    return {label: replace(found[label], name=names[label]) for label in wanted}


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
            dash = _ALGORITHMS[algorithm][1].dash if algorithm in _ALGORITHMS else SOLID
            found[label] = Style(_ramp(i / (len(steps) - 1)), dash, _MARKERS[i % len(_MARKERS)], readable(label))
    return found


def _ramp(share: float) -> str:
    """The colour at this share of the ramp, 0 to 1."""
    place = share * (len(_RAMP) - 1)
    i = min(int(place), len(_RAMP) - 2)
    ends = [[int(colour[j : j + 2], 16) for j in (1, 3, 5)] for colour in _RAMP[i : i + 2]]
    mixed = [round(a + (b - a) * (place - i)) for a, b in zip(*ends, strict=True)]
    return "#" + "".join(f"{value:02X}" for value in mixed)


def cited(method: str, at: str) -> Style:
    """A method of the paper's table of this horizon (100k, 500k), in the colour of the algorithm that it is."""
    if method in _CITED:
        return _CITED[method]
    algorithm = "rainbow_canonical" if (method, at) == ("rainbow", "500k") else _SAME_AS.get(method, method)
    style = _ALGORITHMS[algorithm][1]
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
    """What to call it: MeanQ (ensemble_size=10). The middle of a long one is left out."""
    name = _whole_name(label)
    if len(name) > LONGEST_NAME:
        half = (LONGEST_NAME - 1) // 2
        name = f"{name[:half]}…{name[-half:]}"
    return name


def readable_names(labels: Iterable[str]) -> dict[str, str]:
    """By label, as `readable`; whole where the middle is what tells two of them apart."""
    names = {label: readable(label) for label in labels}
    common = {name for name, count in Counter(names.values()).items() if count > 1}
    return {label: _whole_name(label) if name in common else name for label, name in names.items()}


def _whole_name(label: str) -> str:
    algorithm, overrides = split_label(label)
    if algorithm not in _ALGORITHMS:
        name = label
    else:
        name = _ALGORITHMS[algorithm][1].name
        if overrides:
            shown = re.sub(r"(^|, |: )algo[.]", r"\1", overrides)
            name += f" ({shown})"
    return name


def _by_turns() -> Iterable[tuple[Dash, str]]:
    """Pairs of dash and marker; neighbours differ in both."""
    pairs = list(product(range(len(_DASHES)), range(len(_MARKERS))))
    return [(_DASHES[(i + j) % len(_DASHES)], _MARKERS[j]) for i, j in pairs]


def _natural(text: str) -> tuple[tuple[int, float, str], ...]:
    """A sort key that puts 2 before 10."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return tuple((1, float(part), "") if i % 2 else (0, 0.0, part) for i, part in enumerate(parts))
