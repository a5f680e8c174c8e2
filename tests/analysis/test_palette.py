"""Colours that can be told apart, also by those who do not see red, green or blue; and looks that stay."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from analysis.figures.palette import ALGORITHMS, cited, order, series, styles
from analysis.labels import LONGEST_NAME, readable, readable_names, split_label
from analysis.paper.tables import paper_table

VANILLA = ["dqn", "dqn_no_target", "avg_dqn", "ens_dqn", "meanq", "meanq_no_target"]
MAIN = ["rainbow", "sunrise", "meanq_rainbow", "rainbow_large", "rainbow_more_updates", "rainbow_large_more_updates"]
TECHNIQUES = ["dqn", "meanq_no_target", "rainbow", "meanq_rainbow"]

# Linear sRGB as seen with a deficiency of full severity (Machado, Oliveira and Fernandes 2009).
SEEN = {
    "by most": np.eye(3),
    "with protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "with deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "with tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def cielab(colour: str, seen: np.ndarray) -> np.ndarray:
    encoded = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    relative = to_xyz @ np.clip(seen @ linear, 0, 1) / np.array([0.9505, 1, 1.089])
    x, y, z = np.where(relative > 0.008856, np.cbrt(relative), 7.787 * relative + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def smallest_distance(colours: dict[str, str]) -> tuple[float, str]:
    return min(
        (float(np.linalg.norm(cielab(colours[a], matrix) - cielab(colours[b], matrix))), f"{a} and {b} {seen}")
        for a, b in combinations(colours, 2)
        for seen, matrix in SEEN.items()
    )


def test_the_measure_knows_what_cannot_be_told_apart() -> None:
    distance, pair = smallest_distance({"red": "#B0553A", "green": "#6E7A2C", "blue": "#0000FF"})
    assert distance < 12 and pair.startswith("red and green with ")
    distance, _ = smallest_distance({"black": "#000000", "white": "#FFFFFF"})
    assert distance == pytest.approx(100, abs=0.1)


@pytest.mark.parametrize("study", [VANILLA, MAIN, TECHNIQUES], ids=["vanilla", "main", "techniques"])
def test_the_algorithms_of_a_study_can_be_told_apart(study: list[str]) -> None:
    distance, pair = smallest_distance({label: style.colour for label, style in styles(study).items()})
    assert distance > 15, pair


@pytest.mark.parametrize("family", ["vanilla", "main"])
def test_the_algorithms_of_a_family_can_be_told_apart(family: str) -> None:
    of_main = [name for name in ALGORITHMS if "rainbow" in name or name == "sunrise"]
    names = of_main if family == "main" else [name for name in ALGORITHMS if name not in of_main]
    distance, pair = smallest_distance({label: style.colour for label, style in styles(names).items()})
    assert distance > 10, pair


@pytest.mark.parametrize("at", ["100k", "500k"])
def test_the_methods_that_the_paper_cites_can_be_told_apart(at: str) -> None:
    found = {method: cited(method, at) for method in paper_table(at).methods}
    distance, pair = smallest_distance({method: style.colour for method, style in found.items()})
    assert distance > 15, pair
    assert len({style.marker for style in found.values()}) == len(found)
    assert cited("rainbow", "100k").colour == styles(["rainbow"])["rainbow"].colour
    assert cited("rainbow", "500k").colour == styles(["rainbow_canonical"])["rainbow_canonical"].colour


def test_every_algorithm_of_conf_has_looks_of_its_own_also_without_colour() -> None:
    conf = Path(__file__).parents[2] / "conf" / "algo"
    assert set(ALGORITHMS) == {path.stem for path in conf.glob("[!_]*.yaml")}
    found = styles(ALGORITHMS)
    assert len({style.colour for style in found.values()}) == len(found)
    assert len({(style.dash, style.marker) for style in found.values()}) == len(found)
    assert len({style.name for style in found.values()}) == len(found)
    for style in found.values():
        assert cielab(style.colour, np.eye(3))[0] < 75, f"{style.name} is too pale for white paper"


def test_an_algorithm_looks_the_same_whatever_else_is_shown() -> None:
    alone = {label: styles([label])[label] for label in ALGORITHMS}
    more = [f"{label}__learning_rate=0.{i}" for label in ALGORITHMS for i in range(4)] + ["mine", "dqn {a.b=1}"]
    together = styles([*more, *ALGORITHMS])
    assert {label: together[label] for label in ALGORITHMS} == alone


def test_other_labels_take_a_colour_that_is_free() -> None:
    found = styles(["dqn", "meanq", "meanq__ensemble_size=2", "mine"])
    assert len({style.colour for style in found.values()}) == 4
    assert len({(style.dash, style.marker) for style in found.values()}) == 4


def test_a_series_grows_darker_and_keeps_the_dash_of_its_algorithm() -> None:
    names = ("meanq", "meanq_no_target")
    sizes = (1, 2, 3, 5, 10)
    found = styles([f"{name}__ensemble_size={size}" for name in names for size in reversed(sizes)])
    for name in names:
        of_method = [found[f"{name}__ensemble_size={size}"] for size in sizes]
        distance, pair = smallest_distance({style.name: style.colour for style in of_method})
        assert distance > 10, pair
        light = [cielab(style.colour, np.eye(3))[0] for style in of_method]
        assert light == sorted(light, reverse=True) and light[0] < 75
        assert {style.dash for style in of_method} == {styles([name])[name].dash}
        colours = [found[f"meanq__ensemble_size={size}"].colour for size in sizes]
        assert [style.colour for style in of_method] == colours, "of the same number, the same"
    assert len({(style.dash, style.marker) for style in found.values()}) == len(found)
    assert series(["dqn", "meanq__a=1", "meanq__a=2"]) == {}, "two numbers are no series"
    assert series(["dqn", "dqn__a=1__b=1", "dqn__a=2__b=1", "dqn__a=3__b=1"]) == {}, "two overrides are none either"
    assert series([f"x__a={n}" for n in ("1", "1e-4", "0.5")])["a"]["x__a=1e-4"] == ("x", 1e-4)


def test_more_labels_than_looks_are_drawn_all_the_same() -> None:
    labels = [f"mine_{i}" for i in range(80)]
    found = styles(labels)
    assert list(found) == labels
    pairs = {(style.colour, style.dash, style.marker) for style in found.values()}
    assert len(pairs) >= 50


def test_the_order_is_that_of_the_methods_and_of_numbers() -> None:
    labels = ["zeta", "meanq__ensemble_size=10", "meanq__ensemble_size=2", "meanq", "dqn", "meanq_rainbow", "rainbow"]
    assert order(reversed(labels)) == [
        *("dqn", "meanq", "meanq__ensemble_size=2", "meanq__ensemble_size=10", "rainbow", "meanq_rainbow", "zeta"),
    ]


@pytest.mark.parametrize(
    ("label", "parts", "name"),
    [
        ("ens_dqn", ("ens_dqn", ""), "Ens-DQN"),
        ("meanq__a=1__b=2", ("meanq", "a=1, b=2"), "MeanQ (a=1, b=2)"),
        ("meanq {algo.dueling=false}", ("meanq", "algo.dueling=false"), "MeanQ (dueling=false)"),
        ("dqn,algo.learning_rate=0.1", ("dqn", "algo.learning_rate=0.1"), "DQN (learning_rate=0.1)"),
        ("dqn {variant 1: algo.a=1, ...}", ("dqn", "variant 1: algo.a=1, ..."), "DQN (variant 1: a=1, ...)"),
        ("mine", ("mine", ""), "mine"),
    ],
)
def test_names_are_readable(label: str, parts: tuple[str, str], name: str) -> None:
    assert split_label(label) == parts
    assert readable(label) == name


def test_long_names_are_shortened() -> None:
    label = "meanq__" + "__".join(f"field_{i}=0.001" for i in range(9))
    assert len(readable_names([label])[label]) <= LONGEST_NAME


@pytest.mark.parametrize("study", [VANILLA, MAIN, TECHNIQUES], ids=["vanilla", "main", "techniques"])
def test_the_algorithms_of_a_study_can_be_told_apart_in_print(study: list[str]) -> None:
    found = styles(study)
    for a, b in combinations(found, 2):
        lightness = [cielab(found[label].colour, np.eye(3))[0] for label in (a, b)]
        assert found[a].dash != found[b].dash or abs(lightness[0] - lightness[1]) > 15, f"{a} and {b}"
        assert found[a].marker != found[b].marker or found[a].dash != found[b].dash


def test_names_of_two_labels_differ() -> None:
    labels = [f"meanq_rainbow__dueling=false__learning_rate=0.00{i}__multi_step=3__noisy=false" for i in (1, 2)]
    assert len({readable_names([label])[label] for label in labels}) == 1
    names = readable_names([*labels, "dqn"])
    assert len(set(names.values())) == 3 and "learning_rate=0.001" in names[labels[0]] and names["dqn"] == "DQN"
    assert {label: style.name for label, style in styles([*labels, "dqn"]).items()} == names
