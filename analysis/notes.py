"""Problems and notes of a set of runs, as a reader wants them: each said once, with short labels."""

from collections.abc import Iterable, Sequence

from .labels import say_shared, short_labels
from .runs import RunSet

LONGEST_LIST = 4


def all_notes(found: RunSet, more: Iterable[str] = ()) -> list[str]:
    """What the labels share, every problem, and every note of the runs and of what was made from them."""
    shared = say_shared(found.labels)
    notes = merged(dict.fromkeys([*found.notes, *more]))
    for label, short in sorted(short_labels(found.labels).items(), key=lambda item: -len(item[0])):
        notes = [note.replace(label, short) for note in notes] if short != label else notes
    of_runs = [f"skipped {problem}" for problem in found.problems]
    return [*([f"{shared} Labels leave that out."] if shared else []), *of_runs, *notes]


def merged(notes: Iterable[str]) -> list[str]:
    """Notes that say the same about several subjects, `<subject>: <text>`, as one; in the order of their first."""
    subjects: dict[str, list[str]] = {}
    for note in notes:
        subject, _, text = note.partition(": ")
        subjects.setdefault(text, []).append(subject)
    return [f"{_several(about)}: {text}" if text else about[0] for text, about in subjects.items()]


def _several(subjects: Sequence[str]) -> str:
    """Join subjects such as `<env>, <label>`; where every label is there in every game, list both."""
    pairs = [tuple(subject.split(", ")) for subject in subjects]
    envs, labels = list(dict.fromkeys(pair[0] for pair in pairs)), list(dict.fromkeys(pair[-1] for pair in pairs))
    if len(subjects) > 1 and {len(pair) for pair in pairs} == {2} and len(pairs) == len(envs) * len(labels):
        return f"{listed(envs)}; {listed(labels)}"
    return listed(subjects, "; " if any(len(pair) > 1 for pair in pairs) else ", ")


def listed(items: Iterable[str], between: str = ", ") -> str:
    """a, b, c, d and 3 more."""
    found = list(items)
    more = f" and {len(found) - LONGEST_LIST} more" if len(found) > LONGEST_LIST else ""
    return between.join(found[:LONGEST_LIST]) + more
