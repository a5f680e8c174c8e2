"""Labels: what all of them share is said once, any unambiguous part names one, and repeated notes become one."""

from pathlib import Path

import pytest

from analysis import aggregate
from analysis.figures.palette import series, styles
from analysis.labels import find_label, find_labels, readable_names, say_shared, shared_overrides, short_labels
from analysis.notes import all_notes, merged
from analysis.runs import AnalysisError, read_runs
from tests.synthetic_runs import write_run

LONG = ["dqn__batch_size=64", "meanq__batch_size=64", "meanq__batch_size=64__ensemble_size=10"]


def test_what_all_labels_share_is_left_out_of_their_names() -> None:
    assert shared_overrides(LONG) == ["batch_size=64"] and say_shared(LONG) == "All runs: batch_size=64."
    assert list(short_labels(LONG).values()) == ["dqn", "meanq", "meanq__ensemble_size=10"]
    assert list(readable_names(LONG).values()) == ["DQN", "MeanQ", "MeanQ (ensemble_size=10)"]
    assert styles(LONG)["meanq__batch_size=64"] == styles(["meanq"])["meanq"], "with the looks of the algorithm"


def test_what_only_some_labels_have_stays() -> None:
    for labels in (["dqn", *LONG], ["a__list=[1,2]", "b__list=[1,3]"], ["dqn", "meanq"], []):
        assert shared_overrides(labels) == [] and say_shared(labels) == ""
        assert short_labels(labels) == {label: label for label in labels}


def test_fields_in_braces_are_overrides_too() -> None:
    labels = ["dqn {algo.double=True, algo.sizes=[1, 2]}", "dqn {algo.double=False, algo.sizes=[1, 2]}"]
    assert say_shared(labels) == "All runs: sizes=[1, 2]."
    assert list(short_labels(labels).values()) == ["dqn {algo.double=True}", "dqn {algo.double=False}"]


def test_a_series_may_share_an_override() -> None:
    labels = [f"meanq__ensemble_size={size}__noisy=true" for size in (1, 2, 10)]
    assert series(labels)["ensemble_size"][labels[2]] == ("meanq", 10)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        (LONG[2], LONG[2]),
        ("meanq", LONG[1]),  # a short label comes before what begins so
        ("MeanQ", LONG[1]),  # a name of figures
        ("DQN", LONG[0]),
        ("d", LONG[0]),  # begins so
        ("=10", LONG[2]),  # contains it
        ("MeanQ (ensemble_size=10)", LONG[2]),
    ],
)
def test_any_unambiguous_part_names_a_label(text: str, label: str) -> None:
    assert find_label(text, LONG, "--labels") == label


def test_others_are_one_line_with_the_candidates() -> None:
    with pytest.raises(AnalysisError, match=r"^--labels mean: which of meanq, meanq__ensemble_size=10\?$"):
        find_label("mean", LONG, "--labels")
    with pytest.raises(
        AnalysisError, match=r"^--labels x: no such label; there are dqn, meanq, meanq__ensemble_size=10$"
    ):
        find_label("x", LONG, "--labels")


def test_labels_and_names_with_commas_can_be_listed() -> None:
    known = ["dqn", "dqn {algo.double=True, algo.learning_rate=0.1}", "meanq_no_target"]
    assert find_labels(",".join(known), known) == known
    assert find_labels("DQN, MeanQ, no target", known) == ["dqn", "meanq_no_target"]
    assert find_labels("", known) == []


def test_notes_that_repeat_become_one() -> None:
    assert merged(["a, dqn: one run", "a, meanq: one run", "b: other", "alone"]) == [
        "a; dqn, meanq: one run",
        "b: other",
        "alone",
    ]
    many = [f"{env}, {label}: one run" for env in "abcdef" for label in ("dqn", "meanq")]
    assert merged(many) == ["a, b, c, d and 2 more; dqn, meanq: one run"]
    assert merged([*many[:3]]) == ["a, dqn; a, meanq; b, dqn: one run"]


def test_commands_say_what_is_shared_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label in LONG:
        write_run(tmp_path, label=label, returns={10: 5}, overrides={"algo.name": label.split("__")[0]})
    notes = all_notes(read_runs([tmp_path]))
    assert notes == [
        "All runs: batch_size=64. Labels leave that out.",
        "game; dqn, meanq, meanq__ensemble_size=10: one run only, so nothing can be said about its spread over runs",
    ]
    aggregate.main([str(tmp_path), "--labels", "dqn,=10"])
    printed = capsys.readouterr()
    assert "batch_size" not in printed.out and "meanq__ensemble_size=10" in printed.out
    assert printed.err.count("batch_size") == 1
